"""Merging two versions of an agent's document, field by field.

What must stay true: a read cursor never goes back; the result does not depend on the order of the sides; and unknown
fields survive. The module knows only the `cursors`, by conversation, and the times of the document. Pure.
"""

from __future__ import annotations

from typing import Any

from capsule.format.codec import decode, encode
from capsule.format.merge.clean_form import AGENTS, clean
from capsule.format.merge.conflicts import Conflict, Merged
from capsule.format.merge.values import ABSENT, bytes_of, merged, merged_object, same
from capsule.format.migrations import parse_version
from capsule.timestamps import from_ms, sortable

Document = dict[str, Any]
_TIMES = ("at", "time", "timestamp", "readAt", "updatedAt")


def merge_agents(base: Document | None, ours: Document, theirs: Document) -> Merged:
    """Merge two versions of an agent's document. `base` is the version that both began from; None: there is none."""
    base, ours, theirs = None if base is None else _clean(base), _clean(ours), _clean(theirs)
    conflicts: list[Conflict] = []

    def clash(where: tuple[str, ...], mine: Any, yours: Any) -> Any:
        kept = max(mine, yours, key=bytes_of)
        conflicts.append(Conflict.of(where, mine, yours, kept))
        return kept

    def each(name: str, was: Any, mine: Any, yours: Any) -> Any:
        if isinstance(mine, str) and isinstance(yours, str):
            if name == "updatedAt":
                return max(mine, yours, key=lambda one: (sortable(one), one))
            if name == "createdAt":
                return min(mine, yours, key=lambda one: (sortable(one), one))
            if name == "version":
                return max(mine, yours, key=lambda one: (parse_version(one) or (0, 0), one))
        if name == "cursors" and isinstance(mine, dict) and isinstance(yours, dict):
            return merged_object(was, mine, yours, lambda _, *cursors: _further(*cursors))
        return merged(was, mine, yours, clash, (name,))

    if same(ours, theirs) or (base is not None and same(theirs, base)):
        return Merged(ours)
    if base is not None and same(ours, base):
        return Merged(theirs)
    document = merged_object(base, ours, theirs, each)
    return Merged(document, tuple(sorted(conflicts, key=lambda one: one.field)))


def _clean(document: Document) -> Document:
    """Locked by nobody."""
    return decode(clean(encode(document), "", AGENTS), "")


def _further(base: Any, ours: Any, theirs: Any) -> Any:
    """The further of two cursors; one that a side took away is gone, unless the other went on."""
    if ours is ABSENT or theirs is ABSENT:
        there = theirs if ours is ABSENT else ours
        return ABSENT if same(there, base) else there
    return max(ours, theirs, key=_distance)


def _distance(cursor: Any) -> tuple[str, str, bytes]:
    """How far a cursor is: its time, else the one in the id of the message (UUIDv7), then the id."""
    message, time = cursor, ""
    if isinstance(cursor, dict):
        message = cursor.get("message")
        time = next((sortable(cursor[name]) for name in _TIMES if isinstance(cursor.get(name), str)), "")
    if not isinstance(message, str):
        return time, "", bytes_of(cursor)
    return time or _time_in(message), message, bytes_of(cursor)


def _time_in(id: str) -> str:
    """The time in a UUIDv7 (RFC 9562, section 5.7: the first 48 bits are milliseconds since 1970); else nothing."""
    digits = id.replace("-", "")
    if len(id) != 36 or len(digits) != 32 or digits[12] != "7":
        return ""
    try:
        return from_ms(int(digits[:12], 16))
    except (ValueError, OverflowError):
        return ""
