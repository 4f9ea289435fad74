"""Messages that a person typed, without an id, known again where they stand in another place.

What must stay true: such a message gets its id of its place and its words, so that one before which something else was
typed has another id than in the other clone; of these only what has the same role, words and time is taken for one, and
only where neither side has both. What somebody gave an id is never touched. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from capsule.format.canonical import order_message
from capsule.format.merge.marks import ORIGINAL_PARENT, VERSION_OF, version_of

Message = Mapping[str, Any]
#: Ids to take instead of others.
Renamed = dict[str, str]


def same_ids(base: Sequence[Message], ours: Sequence[Message], theirs: Sequence[Message]) -> tuple[Renamed, Renamed]:
    """The ids that messages of ours and of theirs are to have instead: that of the base where it has the message, else
    the lower one.

    Args:
        base: The common ancestor's messages, each with an id.
        ours: One side's.
        theirs: The other's.
    """
    typed = [
        # Mostly none; to ask the first question here is quicker.
        {message["id"]: message for message in side if message["id"][14:15] == "5" and _is_typed(message)}
        for side in (ours, theirs)
    ]
    if not typed[0] and not typed[1]:
        return {}, {}
    ids = [{message["id"] for message in side} for side in (base, ours, theirs)]
    was = {message["id"]: message for message in base if _is_typed(message)}
    names: tuple[Renamed, Renamed] = ({}, {})
    for side, there, renamed in zip(typed, ids[1:], names, strict=True):
        gone = [message for id, message in was.items() if id not in there]
        for one, other in _pairs([side[id] for id in side if id not in ids[0]], gone):
            renamed[one] = other
    left = [
        [side[id] for id in side if id not in ids[0] and id not in renamed and id not in others]
        for side, renamed, others in zip(typed, names, (ids[2], ids[1]), strict=True)
    ]
    for one, other in _pairs(left[0], left[1]):
        names[0 if one > other else 1][max(one, other)] = min(one, other)
    return names


def renamed_in(history: Sequence[Message], renamed: Renamed) -> list[dict[str, Any]]:
    """The messages with these ids, and with them where they are named."""
    result = []
    for message in history:
        changed: dict[str, Any] = {
            name: renamed[message[name]] for name in ("id", "parent") if message.get(name) in renamed
        }
        about = message.get("metadata") or {}
        noted = {name: renamed[about[name]] for name in (VERSION_OF, ORIGINAL_PARENT) if _is_in(about, name, renamed)}
        if noted:
            changed["metadata"] = {**about, **noted}
        result.append(order_message({**message, **changed}) if changed else dict(message))
    return result


def _is_in(about: Mapping[str, Any], name: str, renamed: Collection[str]) -> bool:
    return isinstance(about.get(name), str) and about[name] in renamed


def _is_typed(message: Message) -> bool:
    """Whether its id was made of its words: a UUIDv5 (RFC 9562, section 5.5), and no version that gave way."""
    id = message["id"]
    return id[14:15] == "5" and len(id) == 36 and id.count("-") == 4 and version_of(message) is None


def _pairs(some: Sequence[Message], others: Sequence[Message]) -> list[tuple[str, str]]:
    """The ids of what says the same, in order; each once."""
    waiting: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for message in reversed(others):
        waiting[_said(message)].append(message["id"])
    return [(message["id"], waiting[_said(message)].pop()) for message in some if waiting.get(_said(message))]


def _said(message: Message) -> tuple[Any, ...]:
    return message["role"], message["content"], message.get("timestamp")
