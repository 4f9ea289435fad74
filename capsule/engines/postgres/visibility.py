"""Keeps messages that an agent may not read out of queries, by conditions on the rows of the index.

`capsule.rules.policy` decides what an agent may read, and `HeadCache.hidden` has the result.

What must stay true: a hidden message counts in no result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from capsule.engines.questions.heads import HeadCache

#: A time before all messages, in milliseconds since 1970.
_ALWAYS_MS = -(1 << 62)


class Visibility(NamedTuple):
    """What an asker may read, as conditions in SQL and the values in them.

    Attributes:
        values: The values in the conditions.
        message_condition: The condition that a visible row `m` of `messages` meets.
        conversation_condition: The condition that a visible row `c` of `capsules` meets.
        visible_from_ms: The conversations that the asker reads from a time on, by the numbers of
            their rows, each with this time in milliseconds since 1970.
        sees_all: Whether the owner asks, from whom nothing is hidden.
    """

    values: dict[str, Any]
    message_condition: str = "TRUE"
    conversation_condition: str = "TRUE"
    visible_from_ms: Mapping[int, int] = {}
    sees_all: bool = False


#: What the owner sees.
SEES_ALL = Visibility({}, sees_all=True)


def visibility_of(cache: HeadCache, hidden: Mapping[str, int | None]) -> Visibility:
    """Return what an agent may read.

    Args:
        cache: All conversations.
        hidden: As `HeadCache.hidden`.
    """
    hidden_nums = []
    visible_from_ms = {}
    for id, time_ms in hidden.items():
        if time_ms is None:
            hidden_nums.append(cache.nums[id])
        else:
            visible_from_ms[cache.nums[id]] = time_ms
    conversation_condition = "{} <> ALL(%(hidden_nums)s::bigint[])"
    values: dict[str, Any] = {"hidden_nums": hidden_nums}
    if 2 * len(hidden_nums) > len(cache.heads):
        # The shorter list is quicker to compare, and with it PostgreSQL can look up the messages.
        conversation_condition = "{} = ANY(%(visible_nums)s::bigint[])"
        visible = [cache.nums[id] for id in cache.heads if hidden.get(id, 0) is not None]
        values = {"visible_nums": visible}
    message_condition = conversation_condition.format("m.capsule")
    if visible_from_ms:
        times = {str(num): time_ms for num, time_ms in visible_from_ms.items()}
        values["visible_from_ms"] = orjson.dumps(times).decode()
        message_condition += (
            " AND m.time_ms >= coalesce((%(visible_from_ms)s::text::jsonb ->> m.capsule::text)"
            f"::bigint, {_ALWAYS_MS})"
        )
    return Visibility(
        values, message_condition, conversation_condition.format("c.num"), visible_from_ms
    )
