"""Match filters against the facts of messages in the tables of the database.

A fact is one value at a path of a message: a row of the table `facts`. `capsule.format.facts`
decides which facts a message has. Each condition of a filter is one SQL query, whose result is a set
of message numbers. `match_set` combines these sets.

What must stay true: nothing that a caller gives becomes SQL, only a bound value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from capsule import timestamps
from capsule.engines.postgres.tables import IndexTables
from capsule.engines.postgres.visibility import Visibility
from capsule.engines.queries import FieldValue
from capsule.engines.questions.filter_sets import TYPES, TextPatterns, match_set
from capsule.engines.read_marks import MessagePosition
from capsule.format.facts import IN_LIST, LIST, NULL, NUMBER, OBJECT, TEXT
from capsule.format.filters import FieldCondition, Filter, kind_of

_IN_CONVERSATION = "capsule = (SELECT num FROM capsules WHERE id = %(conversation)s)"
_ORDERS = {
    "$gt": "> ",
    "$gte": ">= ",
    "$lt": "< ",
    "$lte": "<= ",
}
_IS_EMPTY = (
    f"(type = {NULL} OR type = {TEXT} AND value = '' OR type IN ({LIST}, {OBJECT}) AND number = 0)"
)


class FilterMatcher:
    """Finds the messages that match filters.

    Args:
        tables: The index, within a transaction.
        visibility: What the asker may read. No pattern is compared with hidden texts, so that the
            time it takes reveals nothing of them.
        conversation: Only messages of this one need be right. None: all.
    """

    def __init__(
        self, tables: IndexTables, visibility: Visibility, conversation: str | None = None
    ) -> None:
        self._tables = tables
        self._visibility = visibility
        self._patterns = TextPatterns()
        self._values = {"conversation": conversation}
        self._scope = "TRUE" if conversation is None else _IN_CONVERSATION
        self._source = "facts WHERE path = %(path)s"
        if conversation is not None:
            self._source += f" AND message IN (SELECT num FROM messages WHERE {_IN_CONVERSATION})"

    def condition(self, filter: Filter) -> tuple[str, dict[str, Any]]:
        """Return a filter as a condition on the row `m` of `messages`, and the values in it.

        Raises InvalidInput if its patterns take too long.
        """
        numbers, all_but = match_set(filter, self._messages_passing)
        comparison = "<> ALL" if all_but else "= ANY"
        return f"m.num {comparison}(%(filtered)s::bigint[])", {"filtered": list(numbers)}

    def _messages_passing(self, test: FieldCondition) -> set[int]:
        """Return the messages that meet one condition."""
        if test.operator in ("$regex", "$text"):
            numbers = self._match_texts(test)
        else:
            condition, values = _compared(test)
            rows = self._tables.query_once(
                f"SELECT message FROM {self._source} AND {condition}",
                self._values | values | {"path": test.path},
            )
            numbers = {number for (number,) in rows}
        if test.path == "thread" and test.operator == "$in":
            numbers |= self._thread_roots(test.value)
        self._patterns.ensure_in_time(test)
        return numbers

    def _thread_roots(self, ids: Iterable[Any]) -> set[int]:
        """Return the messages with these ids. The message that began a thread belongs to it."""
        listed = [id for id in ids if isinstance(id, str)]
        rows = self._tables.query_once(
            f"SELECT num FROM messages WHERE {self._scope} AND id = ANY(%(ids)s::text[])",
            self._values | {"ids": listed},
        )
        return {num for (num,) in rows}

    def _match_texts(self, test: FieldCondition) -> set[int]:
        """Return the messages whose text matches a pattern."""
        visible = "TRUE"
        if not self._visibility.sees_all:
            condition = self._visibility.message_condition
            visible = f"message IN (SELECT m.num FROM messages AS m WHERE {condition})"
        rows = self._tables.query_once(
            f"SELECT message, value FROM {self._source} "
            f"AND type IN ({TEXT}, {TEXT + IN_LIST}) AND {visible}",
            self._values | self._visibility.values | {"path": test.path},
        )
        matches = self._patterns.matcher(test)
        return {number for number, value in rows if matches(value)}


def _compared(test: FieldCondition) -> tuple[str, dict[str, Any]]:
    """Return a comparison as a condition on a row of `facts`, and the values in it."""
    if test.operator in ("$exists", "$empty"):
        condition = _IS_EMPTY if test.operator == "$empty" else "TRUE"
        return (condition if test.value else "FALSE"), {}
    if test.operator == "$size":
        return f"type = {LIST} AND number = %(size)s", {"size": test.value}
    if test.operator == "$piece":
        return f"type = {TEXT} AND strpos(value, %(piece)s) > 0", {"piece": test.value}
    operands = list(test.value) if isinstance(test.value, tuple) else [test.value]
    kind = kind_of(operands[0])
    type = TYPES[kind]
    if kind == "text":
        column = "value"
        texts = operands
        sql_type = "text"
    else:
        column = "number"
        texts = [_number_text(operand) for operand in operands]
        sql_type = "text::numeric"
    values: dict[str, Any] = {f"value_{number}": text for number, text in enumerate(texts)}
    names = [f"%({name})s::{sql_type}" for name in values]
    types = f"type IN ({type}, {type + IN_LIST})"
    if test.operator == "$element":
        types = f"type = {type + IN_LIST}"
    if test.operator in _ORDERS:
        return f"{types} AND {column} {_ORDERS[test.operator]}{names[0]}", values
    if test.operator == "$between":
        return f"{types} AND {column} BETWEEN {names[0]} AND {names[1]}", values
    return f"{types} AND {column} IN ({', '.join(names)})", values


def _number_text(value: Any) -> str:
    """Return null, a boolean or a number as the number in its fact, with every digit."""
    if value is None:
        return "0"
    if isinstance(value, bool):
        return str(int(value))
    return repr(value)


def messages_with(
    tables: IndexTables, filter: Filter, conversation: str | None, visibility: Visibility
) -> list[MessagePosition]:
    """Return the messages that match a filter, in the order of their positions.

    Searches one conversation, or all valid ones (None).
    """
    condition, values = FilterMatcher(tables, visibility, conversation).condition(filter)
    conditions = [condition, "c.damaged = ''", visibility.message_condition]
    if conversation is not None:
        conditions.append("c.id = %(conversation)s")
    rows = tables.query_once(
        "SELECT c.id, m.at, m.id FROM messages AS m JOIN capsules AS c ON c.num = m.capsule"
        f" WHERE {' AND '.join(conditions)} ORDER BY m.capsule, m.at",
        values | visibility.values | {"conversation": conversation},
    )
    return [MessagePosition(*row) for row in rows]


def values_of(
    tables: IndexTables, path: str, conversation: str, visibility: Visibility
) -> list[FieldValue]:
    """Return the numbers and texts at a path of the messages of a conversation, the last used
    first.
    """
    rows = tables.query_once(
        "SELECT f.value, f.number IS NULL, count(*), max(m.time_ms) FROM capsules AS c"
        " JOIN messages AS m ON m.capsule = c.num JOIN facts AS f ON f.message = m.num"
        f" WHERE c.id = %(conversation)s AND f.path = %(path)s AND {visibility.message_condition}"
        f" AND f.type IN ({NUMBER}, {TEXT}, {NUMBER + IN_LIST}, {TEXT + IN_LIST})"
        " GROUP BY 1, 2 ORDER BY 4 DESC, 2, 1",
        visibility.values | {"conversation": conversation, "path": path},
    )
    values = []
    for text, is_text, count, time_ms in rows:
        value = text if is_text else orjson.loads(text)
        time = timestamps.blank_if_unknown(timestamps.from_ms(time_ms))
        values.append(FieldValue(value, count, time))
    return values
