"""The questions to the facts of messages: which messages a filter fits, and which values there are.

What must stay true: nothing that a caller gives becomes SQL, only a bound value. `facts` in
`schema` says what a row is, and `capsule.format.facts` which rows a message has.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import orjson

from capsule import timestamps
from capsule.engines.index.search.query import composed, tokens
from capsule.engines.index.visibility import VisibilityFilter
from capsule.engines.queries import FieldValue
from capsule.engines.read_marks import MessagePosition
from capsule.errors import InvalidInput
from capsule.format import filters
from capsule.format.facts import BOOL, IN_LIST, LIST, NULL, NUMBER, OBJECT, TEXT
from capsule.format.filters import FieldCondition, Filter, kind_of

#: All texts of a question together are compared with its patterns for this long, in seconds.
_MATCHED_S = 1.0


# -- What a filter fits ----------------------------------------------------------------------------

_TYPES = {"null": NULL, "boolean": BOOL, "number": NUMBER, "text": TEXT}
_EITHER = "type IN (?, ?) AND value"
_ORDERS = {
    "$gt": "> ?",
    "$gte": ">= ?",
    "$lt": "< ?",
    "$lte": "<= ?",
    "$between": "BETWEEN ? AND ?",
}
_VALUES = {
    "$piece": f"type = {TEXT} AND instr(value, ?) > 0",
    "$size": f"type = {LIST} AND value = ?",
    "$exists": "?",
    "$empty": f"(type = {NULL} OR type = {TEXT} AND value = '' OR type IN ({LIST}, {OBJECT}) AND "
    "value = 0) AND ?",
}
_IS_IT = "capsule = (SELECT num FROM capsules WHERE id = ?)"
_IN_IT = f"message IN (SELECT num FROM messages WHERE {_IS_IT})"
_HAS_ID = "id IN (SELECT value FROM json_each(?))"


class MatchSet(NamedTuple):
    """The numbers of the messages that a filter fits; or, if `all_but`, of those that it
    does not.
    """

    numbers: set[int]
    all_but: bool = False


class FilterMatcher:
    """Finds what filters fit.

    Args:
        db: The index, within a transaction.
        hidden: The conversations whose texts no pattern is compared with, so that no time it takes
            tells of them.
        conversation: Only messages of this one need be right; None: all.
    """

    #: So few messages are looked up by their numbers; where there are more, each message is asked
    #: whether it is one.
    few = 5000

    def __init__(
        self, db: sqlite3.Connection, hidden: VisibilityFilter, conversation: str | None = None
    ) -> None:
        self._db = db
        self._until, self._is_late = time.monotonic() + _MATCHED_S, False
        self._scope = [] if conversation is None else [conversation]
        self._at = (
            f"facts WHERE {_IN_IT}" if self._scope else "facts INDEXED BY facts_by_value WHERE TRUE"
        )
        seen = " AND ".join(hidden.conditions("m.capsule", "m.time_ms"))
        #: In a CASE, nothing is called before what stands in front of it was found true.
        self._seen = (
            f"message IN (SELECT m.num FROM messages AS m WHERE {seen})" if seen else "TRUE"
        )

    def of(self, filter: Filter) -> MatchSet:
        """The messages that a filter fits. Raises InvalidInput if its patterns take too long."""
        if isinstance(filter, FieldCondition):
            return MatchSet(self._passing(filter))
        # One of several fits unless none does.
        flipped = filter.kind == "or"
        parts = [
            MatchSet(numbers, all_but != flipped) for numbers, all_but in map(self.of, filter.parts)
        ]
        without = set[int]().union(*(part.numbers for part in parts if part.all_but))
        fitting = [part.numbers for part in parts if not part.all_but]
        both = (
            MatchSet(set.intersection(*fitting) - without) if fitting else MatchSet(without, True)
        )
        return both._replace(all_but=both.all_but != (filter.kind != "and"))

    def condition(self, filter: Filter) -> tuple[str, list[Any]]:
        """What a filter fits, as a condition about the row `m` of `messages`, and the values bound
        in it.
        """
        numbers, all_but = self.of(filter)
        negated = "NOT " if all_but else ""
        if len(numbers) > self.few:
            self._db.create_function("fits", 1, numbers.__contains__)
            return f"{negated}fits(m.num)", []
        return f"m.num {negated}IN (SELECT CAST(value AS BIGINT) FROM json_each(?))", [
            orjson.dumps(list(numbers)).decode()
        ]

    def _passing(self, test: FieldCondition) -> set[int]:
        numbers = (
            self._matched(test) if test.operator in ("$regex", "$text") else self._compared(test)
        )
        if (test.path, test.operator) == (
            "thread",
            "$in",
        ):  # The message that began a thread is in it.
            question = (
                f"SELECT num FROM messages WHERE {_IS_IT if self._scope else 'TRUE'} AND {_HAS_ID}"
            )
            ids = orjson.dumps([id for id in test.value if isinstance(id, str)]).decode()
            numbers.update(num for (num,) in self._db.execute(question, [*self._scope, ids]))
        if self._is_late:
            raise InvalidInput(
                f"the filter was stopped: {test.operator} on {test.path!r} takes longer than "
                f"{_MATCHED_S:.0f} s; give a"
                " simpler pattern"
            )
        return numbers

    def _compared(self, test: FieldCondition) -> set[int]:
        text, values = compared(test)
        question = f"SELECT json_group_array(message) FROM {self._at} AND path = ? AND {text}"
        return set(
            orjson.loads(
                self._db.execute(question, [*self._scope, test.path, *values]).fetchone()[0]
            )
        )

    def _matched(self, test: FieldCondition) -> set[int]:
        """Those with a pattern: SQLite calls a function of ours at half the cost of giving us the
        texts.
        """
        self._db.create_function("matches", 1, self._in_time(test))
        condition = (
            f"type IN ({TEXT}, {TEXT + IN_LIST}) AND CASE WHEN {self._seen} THEN matches(value) END"
        )
        rows = self._db.execute(
            f"SELECT message FROM {self._at} AND path = ? AND {condition}",
            [*self._scope, test.path],
        )
        return {number for (number,) in rows}

    def _in_time(self, test: FieldCondition) -> Callable[[str], bool]:
        """Whether a text matches the pattern of a test, as long as there is time."""
        matches = (
            filters.compile_pattern(test.value)
            if test.operator == "$regex"
            else partial(_has_words, _words(test.value))
        )

        def in_time(text: str) -> bool:
            if time.monotonic() > self._until:
                self._is_late = True
                return False
            return matches(text)

        return in_time


def compared(test: FieldCondition) -> tuple[str, list[Any]]:
    """A comparison as a condition about a row of `facts`, and what is bound in it."""
    values = list(test.value) if isinstance(test.value, tuple) else [test.value]
    type = _TYPES[kind_of(values[0])]
    match test.operator:
        case "$in":
            plain = [0 if value is None else value for value in values]
            return f"{_EITHER} IN ({', '.join('?' * len(plain))})", [type, type + IN_LIST, *plain]
        case "$element":
            return "type = ? AND value = ?", [type + IN_LIST, 0 if values[0] is None else values[0]]
        case "$gt" | "$gte" | "$lt" | "$lte" | "$between":
            return f"{_EITHER} {_ORDERS[test.operator]}", [type, type + IN_LIST, *values]
    return _VALUES[test.operator], values


def _words(text: str) -> set[str]:
    return {word for word, _, _ in tokens(composed(text))}


def _has_words(words: set[str], text: str) -> bool:
    # Most texts have none of the words, which takes long to find out by splitting them.
    return not (
        text.isascii() and any(word not in text.lower() for word in words)
    ) and words <= _words(text)


# -- Questions -------------------------------------------------------------------------------------


def messages_with(
    db: sqlite3.Connection,
    filter: Filter,
    conversation: str | None,
    hidden: VisibilityFilter,
    finds: type[FilterMatcher] = FilterMatcher,
) -> list[MessagePosition]:
    """The places of the messages that a filter lets through, of one conversation or of all (None),
    in their order.
    """
    fits, values = finds(db, hidden, conversation).condition(filter)
    conditions = [fits, "c.damaged = ''", *hidden.conditions("m.capsule", "m.time_ms")]
    if conversation is not None:
        conditions.append("m.capsule = (SELECT num FROM capsules WHERE id = ?)")
        values.append(conversation)
    question = (
        "SELECT c.id, m.at, m.id FROM messages AS m JOIN capsules AS c ON c.num = m.capsule"
        f" WHERE {' AND '.join(conditions)} ORDER BY m.capsule, m.at"
    )
    return [MessagePosition(*row) for row in db.execute(question, values)]


def values_of(
    db: sqlite3.Connection, path: str, conversation: str, hidden: VisibilityFilter
) -> list[FieldValue]:
    """The values of a field in a conversation, the last used first: each with its number of
    messages and last time.
    """
    conditions = " AND ".join(
        ["c.id = ?", "f.path = ?", *hidden.conditions("m.capsule", "m.time_ms")]
    )
    question = (
        "SELECT f.value, count(*), max(m.time_ms) FROM capsules AS c JOIN messages AS m ON "
        "m.capsule = c.num"
        f" JOIN facts AS f ON f.message = m.num WHERE {conditions}"
        f" AND f.type IN ({NUMBER}, {TEXT}, {NUMBER + IN_LIST}, {TEXT + IN_LIST})"
        " GROUP BY f.value ORDER BY 3 DESC, 1"
    )
    rows = db.execute(question, (conversation, path))
    return [
        FieldValue(value, total, timestamps.blank_if_unknown(timestamps.from_ms(time_ms)))
        for value, total, time_ms in rows
    ]
