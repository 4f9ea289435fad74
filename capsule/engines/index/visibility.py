"""Keep messages that an agent may not read out of queries, by conditions on the rows of the index.

`capsule.rules.policy` decides what an agent may read. `hide` makes SQL conditions of it.

What must stay true: a hidden message counts in no result.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

import orjson

#: A time before all messages, in milliseconds since 1970.
ALWAYS_MS = -(1 << 62)


class VisibilityFilter(NamedTuple):
    """The conversations that are hidden from an agent, by their row numbers, and SQL conditions.

    Attributes:
        hidden_nums: The conversations that the agent may not read at all.
        visible_from_ms: The conversations that the agent reads from a time on, each with this time
            in milliseconds since 1970.
        sees_all: Whether the owner asks, from whom nothing is hidden.
        visible_from_sql: An SQL expression for the time in `visible_from_ms`. `{}` is the place of
            the conversation's number.
        message_condition: The condition that a visible row `m` of `messages` meets.
        conversation_condition: The condition that a visible row `c` of `capsules` meets.
    """

    hidden_nums: list[int]
    visible_from_ms: dict[int, int]
    sees_all: bool = False
    visible_from_sql: str = ""
    message_condition: str = "TRUE"
    conversation_condition: str = "TRUE"

    @classmethod
    def with_conditions(
        cls, hidden_nums: list[int], visible_from_ms: dict[int, int], visible_from_sql: str
    ) -> VisibilityFilter:
        """Return a filter with its SQL conditions."""
        plain = cls(hidden_nums, visible_from_ms, visible_from_sql=visible_from_sql)
        for_messages = plain.conditions("m.capsule", "m.time_ms")
        for_conversations = plain.conditions("c.num")
        return plain._replace(
            message_condition=" AND ".join(["TRUE", *for_messages]),
            conversation_condition=" AND ".join(["TRUE", *for_conversations]),
        )

    def conditions(self, conversation_column: str, time_column: str = "") -> list[str]:
        """Return the SQL conditions that a visible row meets.

        Args:
            conversation_column: The column with the number of the conversation.
            time_column: The column with the time of the message. Empty: the row is a conversation.
        """
        conditions = []
        if self.hidden_nums:
            nums = ", ".join(map(str, self.hidden_nums))
            conditions.append(f"{conversation_column} NOT IN ({nums})")
        if self.visible_from_ms and time_column:
            visible_from = self.visible_from_sql.format(conversation_column)
            conditions.append(f"{time_column} >= {visible_from}")
        return conditions


#: The filter of the owner.
SEES_ALL = VisibilityFilter([], {}, sees_all=True)


def hide(db: sqlite3.Connection, hidden: Mapping[str, int | None]) -> VisibilityFilter:
    """Return a filter for the next queries on a connection.

    Args:
        db: The connection. It gets an SQL function `seen_from`, in place of an earlier one.
        hidden: The hidden conversations by id. None: the whole conversation. A time in
            milliseconds since 1970: the messages before it.
    """
    hidden_nums, visible_from_ms = hidden_numbers(db, hidden)
    if visible_from_ms:
        db.create_function("seen_from", 1, lambda num: visible_from_ms.get(num, ALWAYS_MS))
    return VisibilityFilter.with_conditions(hidden_nums, visible_from_ms, "seen_from({})")


def hidden_numbers(
    db: sqlite3.Connection, hidden: Mapping[str, int | None]
) -> tuple[list[int], dict[int, int]]:
    """Return the row numbers of wholly hidden conversations, and the times of the others by number.

    Args:
        db: The connection.
        hidden: As in `hide`.
    """
    hidden_nums: list[int] = []
    visible_from_ms: dict[int, int] = {}
    if not hidden:
        return hidden_nums, visible_from_ms
    statement = "SELECT num, id FROM capsules WHERE id IN (SELECT value FROM json_each(?))"
    ids = orjson.dumps(list(hidden)).decode()
    for num, id in db.execute(statement, (ids,)).fetchall():
        time_ms = hidden[id]
        if time_ms is None:
            hidden_nums.append(num)
        else:
            visible_from_ms[num] = time_ms
    return hidden_nums, visible_from_ms


def count_visible(
    db: sqlite3.Connection, num: int, visible_from_ms: int
) -> tuple[int, int, int, int]:
    """Count the messages of conversation `num` from a time on, in milliseconds since 1970.

    Returns: the number of messages, and of their words, bytes and tokens.
    """
    statement = (
        "SELECT count(*), coalesce(sum(words), 0), "
        "coalesce(sum(length(CAST(content AS BLOB))), 0), coalesce(sum(tokens), 0) "
        "FROM messages WHERE capsule = ? AND time_ms >= ?"
    )
    counts: tuple[int, int, int, int] = db.execute(statement, (num, visible_from_ms)).fetchone()
    return counts
