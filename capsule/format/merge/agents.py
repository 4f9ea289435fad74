"""Merging two versions of an agent's document, field by field.

What must stay true: of two read cursors that both moved the further one stands, whole; the result does not depend on
the order of the sides; and unknown fields survive. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capsule.format.canonical import order_agent
from capsule.format.fields import names
from capsule.format.merge.conflicts import Conflict, Merged
from capsule.format.merge.values import bytes_of, merged, merged_object, same
from capsule.format.migrations import parse_version
from capsule.timestamps import sortable

Document = dict[str, Any]
_KNOWN = frozenset(names("agent"))


def merge_agents(base: Document | None, ours: Document, theirs: Document) -> Merged:
    """Merge two versions of an agent's document. `base` is the version that both began from; None: there is none."""
    base, ours, theirs = (order_agent(side) for side in (base or {}, ours, theirs))
    conflicts: list[Conflict] = []

    def clash(where: tuple[str, ...], mine: Any, yours: Any) -> Any:
        if where[0] in _RULES:
            return _RULES[where[0]](mine, yours)
        kept = max(mine, yours, key=bytes_of)
        conflicts.append(Conflict.of(where, mine, yours, kept))
        return kept

    def each(name: str, was: Any, mine: Any, yours: Any) -> Any:
        if name == "cursors" and isinstance(mine, dict) and isinstance(yours, dict):
            return merged_object(was, mine, yours, lambda _, *cursors: _further(*cursors))
        return merged(was, mine, yours, clash, (name,))

    if same(ours, theirs) or same(theirs, base):
        return Merged(ours)
    if same(ours, base):
        return Merged(theirs)
    document = order_agent(merged_object(base, ours, theirs, each, _KNOWN))
    return Merged(document, tuple(sorted(conflicts, key=lambda one: one.field)))


def _time(text: Any) -> tuple[str, bytes]:
    return sortable(text) if isinstance(text, str) else "", bytes_of(text)


def _version(text: Any) -> tuple[tuple[int, int], bytes]:
    return parse_version(text) or (0, 0), bytes_of(text)


#: Which value stands where both sides changed a field.
_RULES: dict[str, Callable[[Any, Any], Any]] = {
    "createdAt": lambda mine, yours: min(mine, yours, key=_time),
    "updatedAt": lambda mine, yours: max(mine, yours, key=_time),
    "lastSeen": lambda mine, yours: max(mine, yours, key=_time),
    "version": lambda mine, yours: max(mine, yours, key=_version),
}


def _further(base: Any, ours: Any, theirs: Any) -> Any:
    """The cursor that moved; if both did, the further one. One that a side took away is gone, unless it moved too."""
    if same(ours, theirs) or same(theirs, base):
        return ours
    return theirs if same(ours, base) else max(ours, theirs, key=_distance)


def _distance(cursor: Any) -> tuple[int, str, bytes]:
    """How far a cursor is: its place, then its message, as ids sort by time."""
    fields = cursor if isinstance(cursor, dict) else {}
    place, message = fields.get("at"), fields.get("message")
    return place if type(place) is int else -1, message if isinstance(message, str) else "", bytes_of(cursor)
