"""Match filters against the facts of messages in the index.

A fact is one value at a path of a message that a filter can ask for: a row of the table `facts`
(see `schema`). `capsule.format.facts` decides which facts a message has. `FilterMatcher` evaluates
a filter from its conditions upwards. Each condition is one SQL query, whose result is a set of
message numbers. Groups combine these sets.

What must stay true: nothing that a caller gives becomes SQL, only a bound value.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

import orjson

from capsule import timestamps
from capsule.engines.index.visibility import VisibilityFilter
from capsule.engines.queries import FieldValue
from capsule.engines.questions.filter_sets import TYPES, TextPatterns, match_set
from capsule.engines.read_marks import MessagePosition
from capsule.format.facts import IN_LIST, LIST, NULL, NUMBER, OBJECT, TEXT
from capsule.format.filters import FieldCondition, Filter, kind_of

# -- Matching --------------------------------------------------------------------------------------

#: Whether a value, or one element of a list, has a type.
_VALUE_OR_ELEMENT = "type IN (?, ?) AND value"
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
_IN_CONVERSATION = "capsule = (SELECT num FROM capsules WHERE id = ?)"
_MESSAGE_IN_CONVERSATION = f"message IN (SELECT num FROM messages WHERE {_IN_CONVERSATION})"


class FilterMatcher:
    """Finds the messages that match filters.

    Args:
        db: The index, within a transaction.
        visibility: The hidden messages. No pattern is compared with their texts, so that the time
            it takes reveals nothing of them.
        conversation: Only messages of this one need be right. None: all.
    """

    #: At most so many messages are looked up by their numbers. If there are more, a function is
    #: called for each message of the index.
    max_looked_up = 5000

    def __init__(
        self, db: sqlite3.Connection, visibility: VisibilityFilter, conversation: str | None = None
    ) -> None:
        self._db = db
        self._patterns = TextPatterns()
        self._scope = [] if conversation is None else [conversation]
        if self._scope:
            self._source = f"facts WHERE {_MESSAGE_IN_CONVERSATION}"
        else:
            self._source = "facts INDEXED BY facts_by_value WHERE TRUE"
        visible = " AND ".join(visibility.conditions("m.capsule", "m.time_ms"))
        self._visible_condition = "TRUE"
        if visible:
            self._visible_condition = (
                f"message IN (SELECT m.num FROM messages AS m WHERE {visible})"
            )

    def condition(self, filter: Filter) -> tuple[str, list[Any]]:
        """Return a filter as a condition on the row `m` of `messages`, and the values bound in it.

        Raises InvalidInput if its patterns take too long.
        """
        numbers, all_but = match_set(filter, self._messages_passing)
        negation = "NOT " if all_but else ""
        if len(numbers) > self.max_looked_up:
            self._db.create_function("fits", 1, numbers.__contains__)
            return f"{negation}fits(m.num)", []
        listed = orjson.dumps(list(numbers)).decode()
        return f"m.num {negation}IN (SELECT CAST(value AS BIGINT) FROM json_each(?))", [listed]

    def _messages_passing(self, test: FieldCondition) -> set[int]:
        """Return the messages that meet one condition."""
        if test.operator in ("$regex", "$text"):
            numbers = self._match_texts(test)
        else:
            numbers = self._compare_values(test)
        if test.path == "thread" and test.operator == "$in":
            numbers |= self._thread_roots(test.value)
        self._patterns.ensure_in_time(test)
        return numbers

    def _thread_roots(self, ids: Iterable[Any]) -> set[int]:
        """Return the messages with these ids. The message that began a thread belongs to it."""
        scope = _IN_CONVERSATION if self._scope else "TRUE"
        listed = orjson.dumps([id for id in ids if isinstance(id, str)]).decode()
        rows = self._db.execute(
            f"SELECT num FROM messages WHERE {scope} AND id IN (SELECT value FROM json_each(?))",
            [*self._scope, listed],
        )
        return {num for (num,) in rows}

    def _compare_values(self, test: FieldCondition) -> set[int]:
        """Return the messages whose value meets a comparison."""
        condition, values = _compared(test)
        row = self._db.execute(
            f"SELECT json_group_array(message) FROM {self._source} AND path = ? AND {condition}",
            [*self._scope, test.path, *values],
        ).fetchone()
        return set(orjson.loads(row[0]))

    def _match_texts(self, test: FieldCondition) -> set[int]:
        """Return the messages whose text matches a pattern.

        SQLite calls a function for each text, at half the cost of returning the texts.
        """
        self._db.create_function("matches", 1, self._patterns.matcher(test))
        # In a CASE, the function is called only if the condition before it is true.
        condition = (
            f"type IN ({TEXT}, {TEXT + IN_LIST}) AND "
            f"CASE WHEN {self._visible_condition} THEN matches(value) END"
        )
        rows = self._db.execute(
            f"SELECT message FROM {self._source} AND path = ? AND {condition}",
            [*self._scope, test.path],
        )
        return {number for (number,) in rows}


def _compared(test: FieldCondition) -> tuple[str, list[Any]]:
    """Return a comparison as a condition on a row of `facts`, and the values bound in it."""
    values = list(test.value) if isinstance(test.value, tuple) else [test.value]
    type = TYPES[kind_of(values[0])]
    match test.operator:
        case "$in":
            bound_values = [0 if value is None else value for value in values]
            marks = ", ".join("?" * len(bound_values))
            return f"{_VALUE_OR_ELEMENT} IN ({marks})", [type, type + IN_LIST, *bound_values]
        case "$element":
            element = 0 if values[0] is None else values[0]
            return "type = ? AND value = ?", [type + IN_LIST, element]
        case "$gt" | "$gte" | "$lt" | "$lte" | "$between":
            order = _ORDERS[test.operator]
            return f"{_VALUE_OR_ELEMENT} {order}", [type, type + IN_LIST, *values]
    return _VALUES[test.operator], values


# -- Queries ---------------------------------------------------------------------------------------


def messages_with(
    db: sqlite3.Connection,
    filter: Filter,
    conversation: str | None,
    visibility: VisibilityFilter,
) -> list[MessagePosition]:
    """Return the messages that match a filter, in the order of their positions.

    Searches one conversation, or all valid ones (None).
    """
    condition, values = FilterMatcher(db, visibility, conversation).condition(filter)
    conditions = [condition, "c.damaged = ''", *visibility.conditions("m.capsule", "m.time_ms")]
    if conversation is not None:
        conditions.append("m.capsule = (SELECT num FROM capsules WHERE id = ?)")
        values.append(conversation)
    rows = db.execute(
        "SELECT c.id, m.at, m.id FROM messages AS m JOIN capsules AS c ON c.num = m.capsule"
        f" WHERE {' AND '.join(conditions)} ORDER BY m.capsule, m.at",
        values,
    )
    return [MessagePosition(*row) for row in rows]


def values_of(
    db: sqlite3.Connection, path: str, conversation: str, visibility: VisibilityFilter
) -> list[FieldValue]:
    """Return the numbers and texts at a path of the messages of a conversation, the last used
    first.
    """
    conditions = ["c.id = ?", "f.path = ?", *visibility.conditions("m.capsule", "m.time_ms")]
    rows = db.execute(
        "SELECT f.value, count(*), max(m.time_ms) FROM capsules AS c "
        "JOIN messages AS m ON m.capsule = c.num JOIN facts AS f ON f.message = m.num "
        f"WHERE {' AND '.join(conditions)} "
        f"AND f.type IN ({NUMBER}, {TEXT}, {NUMBER + IN_LIST}, {TEXT + IN_LIST}) "
        "GROUP BY f.value ORDER BY 3 DESC, 1",
        (conversation, path),
    )
    values = []
    for value, total, time_ms in rows:
        last_time = timestamps.blank_if_unknown(timestamps.from_ms(time_ms))
        values.append(FieldValue(value, total, last_time))
    return values
