"""Read cursors: how far an agent has read a conversation, or a topic or a thread of it.

What must stay true: a cursor never counts a message as read that the agent was not given; hence who
reads one topic has a cursor for it, beside the one for the conversation. A merge in git may put
messages in front of the last one that was read; then they are read again rather than lost. So a
cursor rests on digests of the ids up to a message, and all that is decided by one is asked of one
state of the conversation. The module knows places, ids and digests, and no agents. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from capsule.engines.marks import first_unread
from capsule.errors import InvalidInput

if TYPE_CHECKING:
    from capsule.engines.marks import Mark

Cursor = dict[str, Any]
#: A part of a conversation: `("topic", its name)`, or `("thread", the id of its root)`.
Part = tuple[str, str]
#: Gives for each of these places where a message stands its id, and the digest of the ids up to it.
MarksAt = Callable[[Iterable[int]], Mapping[int, tuple[str, str]]]


def cursor_at(place: int, mark: str, marks_at: MarksAt) -> Cursor | None:
    """The cursor of an agent that has read everything up to a message; None: the mark does not hold
    at this place.

    Its trail has the digests up to the message, and to those that stand 1, 2, 4, 8 and so on places
    before.

    Args:
        place: The place of the last message that was read.
        mark: The digest of the ids up to it; or its id, whatever stands in front of it now.
        marks_at: The ids and the digests of the conversation, asked once: they are of one state of
            it.
    """
    trail = [place, *(place - (1 << exponent) for exponent in range(place.bit_length()))]
    there = marks_at(trail)
    if mark not in there.get(place, ()):
        return None
    return {
        "message": there[place][0],
        "at": place,
        "trail": {str(at): there[at][1] for at in trail if at in there},
    }


def first_behind(marks: Collection[Mark], marks_at: MarksAt) -> int:
    """The place behind the furthest of these marks that holds; 0: none does. `marks_at` is as for
    `cursor_at`.
    """
    return first_unread(marks, marks_at([at for at, _ in marks])) if marks else 0


def trail_of(marks: Iterable[Mark], last: int) -> tuple[Mark, ...]:
    """Of the marks up to a place the furthest one, and those about 1, 2, 4, 8 and so on places
    before it.
    """
    return tuple(
        {(last - at).bit_length(): (at, mark) for at, mark in sorted(marks) if at <= last}.values()
    )


def marks_of(cursor: Any) -> tuple[Mark, ...]:
    """The marks of a cursor: everything up to any of them that still holds was read.

    What can't be understood is left out.

    Args:
        cursor: As it stands in the agent's document, which a person may have edited; None: nothing
            was read.
    """
    if not isinstance(cursor, dict):
        return ()
    trail = cursor.get("trail")
    trail = trail if isinstance(trail, dict) else {}
    marks: list[Mark] = []
    for position, digest in trail.items():
        if position.isdecimal() and isinstance(digest, str):
            marks.append((int(position), digest))
    return tuple(marks)


def part_named(topic: str | None, thread: str | None) -> Part | None:
    """The part that a caller names; None: all. Raises InvalidInput if it names both."""
    if topic is not None and thread is not None:
        raise InvalidInput("give a topic or a thread, and not both: a thread is of one topic")
    return ("topic", topic) if topic is not None else None if thread is None else ("thread", thread)


def parts_of(entry: Mapping[str, Any]) -> set[Part]:
    """The parts that a message is in. The root of a thread is in it."""
    named = (
        ("topic", entry.get("topic")),
        ("thread", entry.get("thread")),
        ("thread", entry.get("id")),
    )
    return {(path, value) for path, value in named if isinstance(value, str)}


def key_of(conversation: str, part: Part | None) -> str:
    """Under which key of the `cursors` in an agent's document the cursor of a conversation stands,
    or of a part.
    """
    return conversation if part is None else "/".join((conversation, *part))


def named_by(key: str) -> tuple[str, Part | None]:
    """The conversation and the part that a key of `cursors` names, as `key_of` makes it."""
    conversation, *part = key.split("/", 2)
    return conversation, (part[0], part[1]) if len(part) == 2 else None


def parts_in(cursors: Mapping[str, Any]) -> dict[str, dict[Part, Any]]:
    """The cursors of parts, by conversation."""
    parts: dict[str, dict[Part, Any]] = {}
    for key in [key for key in cursors if "/" in key]:  # Few of thousands have one.
        conversation, part = named_by(key)
        if part is not None:
            parts.setdefault(conversation, {})[part] = cursors[key]
    return parts
