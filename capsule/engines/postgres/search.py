"""Search messages and match filters in the tables of the database.

What must stay true: the same words, filters and profiles find the same as in the index of files,
and the score is bm25, too. PostgreSQL has no bm25. It is computed from `ts_rank`: for one word that
is the sum of 1/n² over the word's occurrences, divided by its limit, and so gives their number. A
phrase counts once.
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

#: What `ts_rank` divides by, and the sums of 1/n² up to as many places as make a difference.
_LIMIT = 1.64493406685
_SUMS = f"ARRAY{list(accumulate(1 / (n * n) for n in range(1, 33)))}::float8[]"
#: So many texts with a phrase are counted for the owner; beyond, what PostgreSQL's statistics say
#: is near enough.
_COUNTED = 5000
_PHRASE = re.compile(r'"([^"]*)"(\*?)')
_OPERATORS = {" AND ": " & ", " OR ": " | ", " NOT ": " & !"}


def _asked(match: str) -> str:
    """What FTS5 is asked, as a `tsquery`."""
    parts = _PHRASE.split(match)  # Between two phrases: the word list and the asterisk of each.
    said = [_operators(parts[0])]
    for words, star, between in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        lexemes = [f"'{word[:LONGEST_WORD]}'" for word in words.split()]
        said += ["(", " <-> ".join(lexemes), ":*" if star else "", ")", _operators(between)]
    return "".join(said)


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
        fit, asked = self._fit()
        matches, found = self._match("w", self._match_expression)
        order, most = "w.num DESC", search.WINDOW + 1
        if self._ranks_all:
            order, most = (
                "1 DESC, m.time_ms DESC, w.num DESC",
                self._request.limit + len(self._page.returned_nums) + 1,
            )
        rows = self._db.execute(
            f"SELECT {fit}, m.time_ms, w.num FROM words AS w JOIN messages AS m ON m.num = w.num"
            f" WHERE {matches} AND w.num BETWEEN ? AND ? AND {conditions} ORDER BY {order} LIMIT "
            f"{most}",
            (*asked, *found, *self._message_num_range(), *values),
        ).fetchall()
        return (
            (rows, len(rows) == most)
            if self._ranks_all
            else (rows[: search.WINDOW], len(rows) > search.WINDOW)
        )

    def _fit(self) -> tuple[str, list[str]]:
        """How well a message fits, as SQL, and the values bound in it."""
        if not self._query.phrases:
            return "1.0::float8", []
        vector = "coalesce(w.tools, w.vector)" if self._request.in_tools else "w.vector"
        rank = f"ts_rank('{{1,1,1,1}}', {vector}, ?::tsquery) * {_LIMIT}"
        counts = []
        for phrase in self._query.phrases:
            if len(phrase.words) > 1:
                counts.append(f"({vector} @@ ?::tsquery)::int")
            else:  # Of several words with one beginning, the sum grows with each.
                counts.append(
                    f"({rank})" if phrase.prefix else f"width_bucket({rank} + 1e-6, {_SUMS})"
                )
        return self._corpus().fit_in("m.words", counts), [
            _asked(str(phrase)) for phrase in self._query.phrases
        ]

    def _match(self, table: str, words: str) -> tuple[str, list[str]]:
        """What a row of the words of messages matches, and the values bound in it."""
        if not self._request.in_tools:
            return f"{table}.vector @@ ?::tsquery", [_asked(words)]
        return f"({table}.vector @@ ?::tsquery OR {table}.tools @@ ?::tsquery)", [_asked(words)] * 2

    def _corpus(self) -> Corpus:
        """The statistics of the messages that the asker may read."""
        seen, phrases = self._visibility.message_condition, self._query.phrases
        if self._visibility.visible_from_ms:
            totals = f"SELECT count(*), avg(words)::float8 FROM messages AS m WHERE {seen}"
        else:
            counts = "coalesce(sum(entries), 0), sum(words)::float8 / nullif(sum(entries), 0)"
            totals = (
                f"SELECT {counts} FROM capsules AS c WHERE gone = 0 AND "
                f"{self._visibility.conversation_condition}"
            )
        texts, average = self._db.execute(totals).fetchone() or (0, None)
        return corpus_of(
            texts,
            average,
            [self._count_messages_with(phrase, seen) for phrase in phrases],
            phrases,
            (),
        )

    def _count_messages_with(self, phrase: Phrase, seen: str) -> int:
        """How many messages that the asker may read have a phrase."""
        matches, values = self._match("w", str(phrase))
        if not self._visibility.sees_all:
            joined = f"words AS w JOIN messages AS m ON m.num = w.num WHERE {matches} AND {seen}"
            return int(self._first(f"SELECT count(*) FROM {joined}", values))
        some = f"SELECT 1 FROM words AS w WHERE {matches}"
        count = int(
            self._first(f"SELECT count(*) FROM ({some} LIMIT {_COUNTED}) AS max_looked_up", values)
        )
        if count == _COUNTED:
            plan = self._first(f"EXPLAIN (FORMAT JSON) {some}", values)
            count = max(count, int(plan[0]["Plan"]["Plan Rows"]))
        return count

    def _first(self, statement: str, values: list[str]) -> Any:
        row = self._db.execute(statement, values).fetchone()
        return row[0] if row else 0

    def _title_matches(self, conditions: str, values: list[Any], limit: int) -> list[Match]:
        if not self._query.match:
            return super()._title_matches(conditions, values, limit)
        most = "" if limit < 0 else f" LIMIT {limit}"
        rows = self._db.execute(
            "SELECT c.updated_ms, c.num, c.title, c.tags FROM names AS n JOIN capsules AS c ON "
            "c.num = n.num"
            f" WHERE n.vector @@ ?::tsquery AND {conditions} ORDER BY c.num DESC{most}",
            (_asked(self._match_expression), *values),
        ).fetchall()
        if not rows:
            return []
        seen = f"c.gone = 0 AND {self._visibility.conversation_condition}"
        totals = (
            "SELECT count(*), avg(length(c.title || c.tags))::float8 FROM capsules AS c "
            f"WHERE {seen}"
        )
        texts, average = self._db.execute(totals).fetchone() or (0, None)
        joined = (
            "names AS n JOIN capsules AS c ON c.num = n.num WHERE n.vector @@ ?::tsquery "
            f"AND {seen}"
        )
        phrases = self._query.phrases
        having = [
            int(self._first(f"SELECT count(*) FROM {joined}", [_asked(str(phrase))]))
            for phrase in phrases
        ]
        corpus = corpus_of(texts, average, having, phrases, TITLE_WEIGHTS)
        return [
            (corpus.fit(len(title + tags), title, tags), updated_ms, num)
            for updated_ms, num, title, tags in rows
        ]

    def _tools(self, tools: str) -> str:
        return tools_of(layout.entries_in([tools], "the message")[0]) or ""


class PostgresFilterMatcher(FilterMatcher):
    """Finds the messages that match filters."""

    max_looked_up = 1 << 62

    def _compare_values(self, test: FieldCondition) -> set[int]:
        text, values = compared(test)
        if test.operator == "$empty":
            text = (
                f"(type = 0 OR type = {TEXT} AND value = '' OR type IN (4, 5) AND number = 0) "
                "AND ? = 1"
            )
        elif test.operator == "$exists":
            text = "? = 1"
        elif not isinstance(values[-1], str):
            text = text.replace("value", "number")
            values = [Decimal(repr(each)) if isinstance(each, float) else each for each in values]
        return self._numbers(text, [*self._scope, test.path, *values])

    def _numbers(self, condition: str, values: list[Any]) -> set[int]:
        return {
            number
            for (number,) in self._db.execute(
                f"SELECT message FROM {self._source} AND path = ? AND {condition}", values
            )
        }

    def _match_texts(self, test: FieldCondition) -> set[int]:
        condition = f"type IN ({TEXT}, {TEXT + IN_LIST}) AND {self._visible_condition}"
        rows = self._db.execute(
            f"SELECT message, value FROM {self._source} AND path = ? AND {condition}",
            [*self._scope, test.path],
        )
        matches = self._in_time(test)
        return {number for number, value in rows if matches(value)}


def values_of(db: Any, path: str, conversation: str, hidden: VisibilityFilter) -> list[FieldValue]:
    """As `facts.values_of`."""
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
    return [
        FieldValue(
            value if is_text else orjson.loads(value),
            total,
            timestamps.blank_if_unknown(timestamps.from_ms(time_ms)),
        )
        for value, is_text, total, time_ms in rows
    ]
