"""The search and the filters of messages in the tables of the database.

The classes replace those steps of the search in the index of files that use the full-text search of
SQLite (FTS5). Its expressions are translated to `tsquery`, and the score is computed in SQL.

What must stay true: the same words, filters and profiles find the same messages as in the index of
files, with the same score, bm25. PostgreSQL has no bm25, and no function that counts a word in a
text. But `ts_rank` of one word is the sum of 1/n² for n from 1 to the number of its occurrences,
divided by the limit of this sum. So the number can be derived from it. A phrase counts once.
"""

from __future__ import annotations

import re
from decimal import Decimal
from itertools import accumulate
from typing import Any

import orjson

from capsule import timestamps
from capsule.engines.index.parsing import tools_of
from capsule.engines.index.search import search
from capsule.engines.index.search.query import Phrase
from capsule.engines.index.search.search import TITLE_WEIGHTS, Corpus, Match, SearchPage, corpus_of
from capsule.engines.index.tables.filters import FilterMatcher, compared
from capsule.engines.index.visibility import VisibilityFilter
from capsule.engines.postgres import layout
from capsule.engines.postgres.rows import LONGEST_WORD
from capsule.engines.queries import FieldValue
from capsule.format.facts import IN_LIST, NUMBER, TEXT
from capsule.format.filters import FieldCondition

#: The limit of the sums of 1/n², as PostgreSQL writes it.
_LIMIT = 1.64493406685
#: The sums of 1/n² for 1 to 32 occurrences. More occurrences hardly change the score.
_SUMS = f"ARRAY{list(accumulate(1 / (n * n) for n in range(1, 33)))}::float8[]"
#: The messages with a phrase are counted for the owner up to this number. Beyond, the estimate of
#: PostgreSQL's planner is used.
_MAX_COUNTED = 5000
_PHRASE = re.compile(r'"([^"]*)"(\*?)')
_OPERATORS = {" AND ": " & ", " OR ": " | ", " NOT ": " & !"}


def _tsquery(match: str) -> str:
    """Return an expression of FTS5 as a `tsquery`."""
    # The text before the first phrase, then of each phrase: its words, its asterisk, the text after.
    parts = _PHRASE.split(match)
    terms = [_operators(parts[0])]
    for words, star, text_after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        lexemes = [f"'{word[:LONGEST_WORD]}'" for word in words.split()]
        prefix_mark = ":*" if star else ""
        terms += ["(", " <-> ".join(lexemes), prefix_mark, ")", _operators(text_after)]
    return "".join(terms)


def _operators(text: str) -> str:
    for word, operator in _OPERATORS.items():
        text = text.replace(word, operator)
    return text


class PostgresSearchPage(SearchPage):
    """One page of one search."""

    def _tagged(self, tags: list[str]) -> str:
        return ""

    def _message_matches(self) -> tuple[list[Match], bool]:
        if self._scope_nums == [] or not self._query.match:
            return super()._message_matches()
        conditions, values = self._conditions()
        fit, fit_values = self._ranking_sql()
        matches, match_values = self._match("w", self._match_expression)
        order = "w.num DESC"
        limit = search.WINDOW + 1
        if self._ranks_all:
            order = "1 DESC, m.time_ms DESC, w.num DESC"
            limit = self._request.limit + len(self._page.returned_nums) + 1
        rows = self._db.execute(
            f"SELECT {fit}, m.time_ms, w.num FROM words AS w JOIN messages AS m ON m.num = w.num"
            f" WHERE {matches} AND w.num BETWEEN ? AND ? AND {conditions} ORDER BY {order} LIMIT "
            f"{limit}",
            (*fit_values, *match_values, *self._message_num_range(), *values),
        ).fetchall()
        if self._ranks_all:
            return rows, len(rows) == limit
        return rows[: search.WINDOW], len(rows) > search.WINDOW

    def _ranking_sql(self) -> tuple[str, list[str]]:
        """Return the score of a message as SQL, and the values bound in it."""
        if not self._query.phrases:
            return "1.0::float8", []
        vector = "coalesce(w.tools, w.vector)" if self._request.in_tools else "w.vector"
        rank = f"ts_rank('{{1,1,1,1}}', {vector}, ?::tsquery) * {_LIMIT}"
        counts = []
        for phrase in self._query.phrases:
            if len(phrase.words) > 1:
                counts.append(f"({vector} @@ ?::tsquery)::int")
            elif phrase.prefix:  # Several words can begin with it, so the sum gives no count.
                counts.append(f"({rank})")
            else:
                counts.append(f"width_bucket({rank} + 1e-6, {_SUMS})")
        values = [_tsquery(str(phrase)) for phrase in self._query.phrases]
        return self._corpus().fit_in("m.words", counts), values

    def _match(self, table: str, expression: str) -> tuple[str, list[str]]:
        """Return an expression as a condition on a row of `words`, and the values bound in it."""
        query = _tsquery(expression)
        if not self._request.in_tools:
            return f"{table}.vector @@ ?::tsquery", [query]
        return f"({table}.vector @@ ?::tsquery OR {table}.tools @@ ?::tsquery)", [query, query]

    def _corpus(self) -> Corpus:
        """Return the statistics of the messages that the asker may read."""
        visible = self._visibility.message_condition
        phrases = self._query.phrases
        if self._visibility.visible_from_ms:
            totals = f"SELECT count(*), avg(words)::float8 FROM messages AS m WHERE {visible}"
        else:
            columns = "coalesce(sum(entries), 0), sum(words)::float8 / nullif(sum(entries), 0)"
            totals = (
                f"SELECT {columns} FROM capsules AS c WHERE gone = 0 AND "
                f"{self._visibility.conversation_condition}"
            )
        texts, average = self._db.execute(totals).fetchone() or (0, None)
        counts = [self._count_messages_with(phrase, visible) for phrase in phrases]
        return corpus_of(texts, average, counts, phrases, ())

    def _count_messages_with(self, phrase: Phrase, visible: str) -> int:
        """Return the number of messages with a phrase. `visible` is a condition on the messages."""
        matches, values = self._match("w", str(phrase))
        if not self._visibility.sees_all:
            joined = f"words AS w JOIN messages AS m ON m.num = w.num WHERE {matches} AND {visible}"
            return int(self._first_value(f"SELECT count(*) FROM {joined}", values))
        matching_rows = f"SELECT 1 FROM words AS w WHERE {matches}"
        statement = f"SELECT count(*) FROM ({matching_rows} LIMIT {_MAX_COUNTED}) AS max_looked_up"
        count = int(self._first_value(statement, values))
        if count == _MAX_COUNTED:
            plan = self._first_value(f"EXPLAIN (FORMAT JSON) {matching_rows}", values)
            count = max(count, int(plan[0]["Plan"]["Plan Rows"]))
        return count

    def _first_value(self, statement: str, values: list[str]) -> Any:
        row = self._db.execute(statement, values).fetchone()
        return row[0] if row else 0

    def _title_matches(self, conditions: str, values: list[Any], limit: int) -> list[Match]:
        if not self._query.match:
            return super()._title_matches(conditions, values, limit)
        limit_clause = "" if limit < 0 else f" LIMIT {limit}"
        rows = self._db.execute(
            "SELECT c.updated_ms, c.num, c.title, c.tags FROM names AS n JOIN capsules AS c ON "
            "c.num = n.num"
            f" WHERE n.vector @@ ?::tsquery AND {conditions} ORDER BY c.num DESC{limit_clause}",
            (_tsquery(self._match_expression), *values),
        ).fetchall()
        if not rows:
            return []
        visible = f"c.gone = 0 AND {self._visibility.conversation_condition}"
        totals = (
            "SELECT count(*), avg(length(c.title || c.tags))::float8 FROM capsules AS c "
            f"WHERE {visible}"
        )
        texts, average = self._db.execute(totals).fetchone() or (0, None)
        joined = (
            "names AS n JOIN capsules AS c ON c.num = n.num WHERE n.vector @@ ?::tsquery "
            f"AND {visible}"
        )
        phrases = self._query.phrases
        counts = [
            int(self._first_value(f"SELECT count(*) FROM {joined}", [_tsquery(str(phrase))]))
            for phrase in phrases
        ]
        corpus = corpus_of(texts, average, counts, phrases, TITLE_WEIGHTS)
        return [
            (corpus.fit(len(title + tags), title, tags), updated_ms, num)
            for updated_ms, num, title, tags in rows
        ]

    def _tools(self, tools: str) -> str:
        return tools_of(layout.entries_in([tools], "the message")[0]) or ""


class PostgresFilterMatcher(FilterMatcher):
    """Finds the messages that match filters."""

    max_looked_up = 1 << 62  # PostgreSQL needs no other way for many messages.

    def _compare_values(self, test: FieldCondition) -> set[int]:
        condition, values = compared(test)
        if test.operator == "$empty":
            condition = (
                f"(type = 0 OR type = {TEXT} AND value = '' OR type IN (4, 5) AND number = 0) "
                "AND ? = 1"
            )
        elif test.operator == "$exists":
            condition = "? = 1"
        elif not isinstance(values[-1], str):
            condition = condition.replace("value", "number")
            values = [
                Decimal(repr(value)) if isinstance(value, float) else value for value in values
            ]
        return self._numbers(condition, [*self._scope, test.path, *values])

    def _numbers(self, condition: str, values: list[Any]) -> set[int]:
        rows = self._db.execute(
            f"SELECT message FROM {self._source} AND path = ? AND {condition}", values
        )
        return {number for (number,) in rows}

    def _match_texts(self, test: FieldCondition) -> set[int]:
        condition = f"type IN ({TEXT}, {TEXT + IN_LIST}) AND {self._visible_condition}"
        rows = self._db.execute(
            f"SELECT message, value FROM {self._source} AND path = ? AND {condition}",
            [*self._scope, test.path],
        )
        matches = self._in_time(test)
        return {number for number, value in rows if matches(value)}


def values_of(db: Any, path: str, conversation: str, hidden: VisibilityFilter) -> list[FieldValue]:
    """Return the values of a field in a conversation; see `filters.values_of`."""
    conditions = " AND ".join(
        ["c.id = ?", "f.path = ?", *hidden.conditions("m.capsule", "m.time_ms")]
    )
    rows = db.execute(
        "SELECT f.value, f.number IS NULL, count(*), max(m.time_ms) FROM capsules AS c"
        " JOIN messages AS m ON m.capsule = c.num JOIN facts AS f ON f.message = m.num WHERE "
        f"{conditions}"
        f" AND f.type IN ({NUMBER}, {TEXT}, {NUMBER + IN_LIST}, {TEXT + IN_LIST})"
        " GROUP BY 1, 2 ORDER BY 4 DESC, 2, 1",
        (conversation, path),
    )
    values = []
    for text, is_text, count, time_ms in rows:
        value = text if is_text else orjson.loads(text)
        time = timestamps.blank_if_unknown(timestamps.from_ms(time_ms))
        values.append(FieldValue(value, count, time))
    return values
