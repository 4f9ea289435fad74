"""Search the index in SQLite: match with its full-text search (FTS5), filter, and compute bm25.

`MatchedRows` asks FTS5 for the newest matches, and reads the rows of the hits.
`capsule.engines.questions.search` ranks them.

What must stay true:

- No text makes SQLite raise: its errors count as damage of the index.
- A score depends only on texts that the asker may read. FTS5's own bm25 measures among all texts.
  `corpus_of` and `bm25_sql` compute it among some.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import orjson

from capsule.engines.index.tables.filters import FilterMatcher
from capsule.engines.index.visibility import VisibilityFilter
from capsule.engines.queries import SearchRequest
from capsule.engines.questions import ranking
from capsule.engines.questions.query import Phrase, as_fts5, parse
from capsule.engines.questions.ranking import TITLE_WEIGHTS, Match, corpus_of
from capsule.engines.questions.search import MessageRow, Search, TitleRow

#: The messages of at most so many conversations are also narrowed by the range of their row
#: numbers.
_MAX_RANGED = 16

#: The index `messages_narrow` has all columns that a search compares, but no texts.
_MESSAGES = "messages AS m INDEXED BY messages_narrow"
_MATCHING_MESSAGES = """words CROSS JOIN messages AS m INDEXED BY messages_narrow ON m.num = words.rowid
    WHERE words.words MATCH ?"""
_MATCHING_TITLES = "names CROSS JOIN capsules AS c ON c.num = names.rowid WHERE names MATCH ?"
_IS_VALID = "c.gone = 0 AND c.damaged = ''"


def bm25_sql(
    db: sqlite3.Connection,
    rows: str,
    length_sql: str,
    columns: dict[str, float],
    matching: str,
    expressions: dict[Phrase, str],
) -> str:
    """Return SQL for the bm25 of a row among some rows.

    Cost: a pass over the rows, and one over those that have a phrase.

    Args:
        db: The index, within a transaction. It gets a function.
        rows: The rows among which it is measured, as SQL after FROM.
        length_sql: SQL for the length of a row.
        columns: SQL for each text of a row, with its weight.
        matching: Those of the rows that match an expression of FTS5, as SQL after FROM, with `?`.
        expressions: The expression for each phrase.
    """
    texts, average_length = db.execute(f"SELECT count(*), avg({length_sql}) FROM {rows}").fetchone()
    counts = []
    for expression in expressions.values():
        counts.append(db.execute(f"SELECT count(*) FROM {matching}", (expression,)).fetchone()[0])
    corpus = corpus_of(texts, average_length, counts, list(expressions), list(columns.values()))
    # The functions for messages and for titles are on one connection, so they have two names.
    name = f"fit_{len(columns)}_{length_sql[0]}"
    db.create_function(name, 1 + len(columns), corpus.fit)
    return f"{name}({', '.join((length_sql, *columns))})"


class MatchedRows:
    """The matches and the rows of hits for one request. See `SearchIndex`.

    Args:
        db: The index, within a transaction.
        request: The request.
        visibility: What the asker may read. For the owner, the scores are computed among all texts,
            by FTS5, otherwise among the visible ones.
    """

    def __init__(
        self, db: sqlite3.Connection, request: SearchRequest, visibility: VisibilityFilter
    ) -> None:
        self._db = db
        self._request = request
        self._visibility = visibility

    @property
    def can_rank_all(self) -> bool:
        return self._visibility.sees_all

    def newest_nums(self) -> tuple[int, int]:
        visibility = self._visibility
        return (
            self._newest_num("messages AS m", visibility.message_condition),
            self._newest_num("capsules AS c", visibility.conversation_condition),
        )

    def _newest_num(self, table: str, condition: str) -> int:
        row = self._db.execute(
            f"SELECT num FROM {table} WHERE {condition} ORDER BY num DESC LIMIT 1"
        ).fetchone()
        return row[0] if row else 0

    # -- Conditions --------------------------------------------------------------------------------

    @cached_property
    def _filter_condition(self) -> tuple[str, list[Any]]:
        """A condition on the row `m` of `messages`, and the values bound in it."""
        if self._request.where is None:
            return "TRUE", []
        return FilterMatcher(self._db, self._visibility).condition(self._request.where)

    @cached_property
    def _scope_nums(self) -> list[int] | None:
        """The numbers of the conversations with the ids and tags of the request. None: all.

        Those that the asker may not read are among them. `_conditions` and `titles` exclude them.
        """
        request = self._request
        if not (request.ids or request.tags):
            return None
        conditions = ["gone = 0"]
        values: list[Any] = []
        if request.ids:
            conditions.append(f"id IN ({_marks(request.ids)})")
            values += request.ids
        # A tag without words is found by comparing the tags of all conversations.
        tag_expressions = []
        for tag in request.tags:
            terms = parse(_quoted(tag)).terms
            if terms:
                tag_expressions.append(f"({{tags}} : {as_fts5(terms)})")
        if tag_expressions:
            conditions.append("num IN (SELECT rowid FROM names WHERE names MATCH ?)")
            values.append(" AND ".join(tag_expressions))
        rows = self._db.execute(
            f"SELECT num, tags FROM capsules WHERE {' AND '.join(conditions)}", values
        )
        required_tags = set(request.tags)
        nums = []
        for num, tags in rows:
            if not required_tags or required_tags <= set(orjson.loads(tags)):
                nums.append(num)
        return nums

    def _conditions(self, search: Search) -> tuple[str, list[Any]]:
        """Return the conditions of the request on the row `m` of `messages`, and their values."""
        request = self._request
        conditions = ["m.num <= ?"]
        values: list[Any] = [search.page.newest_num]
        if request.branch == "active":
            conditions.append("m.active = 1")
        for column, allowed in (("role", request.roles), ("sender", request.senders)):
            if allowed:
                conditions.append(f"m.{column} IN ({_marks(allowed)})")
                values += allowed
        self._narrow(conditions, values, "m.time_ms", "m.capsule")
        conditions.append(self._visibility.message_condition)
        filter_condition, filter_values = self._filter_condition
        conditions.append(filter_condition)
        values += filter_values
        if request.mode:
            conditions.append("m.capsule IN (SELECT num FROM capsules WHERE mode = ?)")
            values.append(request.mode)
        return " AND ".join(conditions), values

    def _narrow(
        self,
        conditions: list[str],
        values: list[Any],
        time_column: str,
        conversation_column: str,
    ) -> None:
        """Add the conditions on times and conversations, and their values."""
        for comparison, time_ms in ((">=", self._request.since_ms), ("<", self._request.until_ms)):
            if time_ms is not None:
                conditions.append(f"{time_column} {comparison} ?")
                values.append(time_ms)
        if self._scope_nums is not None:
            nums = ", ".join(map(str, self._scope_nums))
            conditions.append(f"{conversation_column} IN ({nums})")

    def _message_num_range(self, newest_num: int) -> tuple[int, int]:
        """Return the first and the last row number that a message of the scope can have. (1, 0):
        the scope has no message.
        """
        if self._scope_nums is None or len(self._scope_nums) > _MAX_RANGED:
            return 0, newest_num
        nums = ", ".join(map(str, self._scope_nums))
        first, last = self._db.execute(
            f"SELECT min(num), max(num) FROM messages WHERE capsule IN ({nums})"
        ).fetchone()
        if first is None:
            return 1, 0
        return first, min(last, newest_num)

    # -- Matches -----------------------------------------------------------------------------------

    def messages(self, search: Search) -> tuple[list[Match], bool]:
        if self._scope_nums == []:
            return [], False
        conditions, values = self._conditions(search)
        if search.ranks_all:
            return self._best_messages(search, conditions, values)
        if search.terms:
            fit = self._message_fit(search)
            num_column = "words.rowid"
            table = _MATCHING_MESSAGES
            bound_text = self._in_columns(as_fts5(search.terms))
        else:  # The full-text index has only words: compare the texts.
            fit = "1.0"
            num_column = "m.num"
            bound_text = search.query.literal
            content = "m.content"
            if self._request.in_tools:
                content = "m.content || coalesce(m.tools, '')"
            table = f"messages AS m WHERE instr({content}, ?) > 0"
            if not bound_text:
                table = f"{_MESSAGES} WHERE '' = ?"  # Always true, as `bound_text` is empty.
        window = ranking.WINDOW
        rows = self._db.execute(
            f"SELECT {fit}, m.time_ms, m.num FROM {table} AND {num_column} BETWEEN ? AND ? "
            f"AND {conditions} ORDER BY {num_column} DESC LIMIT {window + 1}",
            (bound_text, *self._message_num_range(search.page.newest_num), *values),
        ).fetchall()
        return rows[:window], len(rows) > window

    def _best_messages(
        self, search: Search, conditions: str, values: list[Any]
    ) -> tuple[list[Match], bool]:
        """Return the best of all matches, more than the page needs, and whether there are more."""
        count = self._request.limit + len(search.page.returned_nums) + 1
        first, last = self._message_num_range(search.page.newest_num)
        expression = self._in_columns(as_fts5(search.terms))
        if self._scope_nums is None:
            # Reading the rows of all matches costs as much as ranking them. So rank first, and read
            # the rows of the best ones. If the conditions exclude too many, rank all that meet
            # them.
            rows = self._db.execute(
                f"""SELECT found.fit, m.time_ms, m.num
                FROM (SELECT rowid AS num, -bm25(words) AS fit FROM words WHERE words MATCH ? AND rowid <= ?
                    ORDER BY 2 DESC, 1 DESC LIMIT {2 * count + 40}) AS found
                CROSS JOIN messages AS m INDEXED BY messages_narrow ON m.num = found.num WHERE {conditions}""",
                (expression, last, *values),
            ).fetchall()
            if len(rows) >= count:
                return rows, True
        rows = self._db.execute(
            f"SELECT -bm25(words.words), m.time_ms, m.num FROM {_MATCHING_MESSAGES} "
            f"AND words.rowid BETWEEN ? AND ? AND {conditions} "
            f"ORDER BY 1 DESC, m.time_ms DESC, m.num DESC LIMIT {count}",
            (expression, first, last, *values),
        ).fetchall()
        return rows, len(rows) == count

    def _in_columns(self, expression: str) -> str:
        """Restrict an expression of FTS5 to the columns that are searched."""
        return expression if self._request.in_tools else f"{{content}} : ({expression})"

    def _message_fit(self, search: Search) -> str:
        """Return SQL for the bm25 of a message."""
        if self._visibility.sees_all:
            return "-bm25(words.words)"
        visible = self._visibility.message_condition
        columns = {"m.content": 1.0}
        if self._request.in_tools:
            columns["m.tools"] = 1.0
        phrases = search.query.phrases
        return bm25_sql(
            self._db,
            rows=f"{_MESSAGES} WHERE {visible}",
            length_sql="m.words",
            columns=columns,
            matching=f"{_MATCHING_MESSAGES} AND {visible}",
            expressions={phrase: self._in_columns(str(phrase)) for phrase in phrases},
        )

    def _title_fit(self, search: Search) -> str:
        """Return SQL for the bm25 of a title and its tags."""
        if self._visibility.sees_all:
            return "-bm25(names, {}, {})".format(*TITLE_WEIGHTS)
        visible = f"{_IS_VALID} AND {self._visibility.conversation_condition}"
        return bm25_sql(
            self._db,
            rows=f"capsules AS c WHERE {visible}",
            length_sql="length(c.title || c.tags)",
            columns=dict(zip(("c.title", "c.tags"), TITLE_WEIGHTS, strict=True)),
            matching=f"{_MATCHING_TITLES} AND {visible}",
            expressions={phrase: str(phrase) for phrase in search.query.phrases},
        )

    def titles(self, search: Search) -> tuple[list[Match], bool]:
        if self._scope_nums == []:
            return [], False
        conditions = ["c.num <= ?", _IS_VALID]
        values: list[Any] = [search.page.newest_title_num]
        self._narrow(conditions, values, "c.updated_ms", "c.num")
        conditions.append(self._visibility.conversation_condition)
        if self._request.mode:
            conditions.append("c.mode = ?")
            values.append(self._request.mode)
        if search.terms:
            fit = self._title_fit(search)
            num_column = "names.rowid"
            table = _MATCHING_TITLES
            bound_text = as_fts5(search.terms)
        else:
            fit = "1.0"
            num_column = "c.num"
            table = "capsules AS c WHERE instr(c.title, ?) > 0"
            bound_text = search.query.literal
        limit = -1 if search.ranks_all else ranking.WINDOW + 1
        rows = self._db.execute(
            f"SELECT {fit}, c.updated_ms, c.num FROM {table} AND {' AND '.join(conditions)} "
            f"ORDER BY {num_column} DESC LIMIT {limit}",
            (bound_text, *values),
        ).fetchall()
        if search.ranks_all:
            return rows, False
        return rows[: ranking.WINDOW], len(rows) > ranking.WINDOW

    # -- Hits --------------------------------------------------------------------------------------

    def message_rows(self, nums: Sequence[int]) -> dict[int, MessageRow]:
        listed = ", ".join(map(str, nums)) or "NULL"
        rows = {}
        for num, *columns in self._db.execute(
            "SELECT m.num, c.id, c.title, m.id, m.at, m.role, m.sender, m.time_ms, m.content, "
            "m.tools, m.active FROM messages AS m JOIN capsules AS c ON c.num = m.capsule "
            f"WHERE m.num IN ({listed}) AND c.damaged = ''"
        ):
            rows[num] = MessageRow(*columns)
        return rows

    def title_row(self, num: int) -> TitleRow:
        id, title, updated_at, tags = self._db.execute(
            "SELECT id, title, updated_at, tags FROM capsules WHERE num = ?", (num,)
        ).fetchone()
        return TitleRow(id, title, updated_at, orjson.loads(tags))


def _quoted(text: str) -> str:
    """Return a query for the words of a text in their order."""
    return '"' + text.replace('"', " ") + '"'


def _marks(values: tuple[str, ...]) -> str:
    return ", ".join("?" * len(values))
