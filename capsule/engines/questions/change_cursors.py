"""Cursors of changes, and the part of a change that an agent may know of.

A cursor names the generation of the index or database, the last change that was read, and a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from capsule.errors import InvalidInput
from capsule.timestamps import from_ms

if TYPE_CHECKING:
    from capsule.engines.changes import Change
    from capsule.rules.policy import Viewer

_CURSOR = re.compile(r"(\w+)\.(\d{1,19})\.(\d{1,19})(?:\.(\d{1,19}))?", re.ASCII)
#: The longest piece of an invalid cursor in an error.
_MAX_SHOWN = 60


class ChangeCursor(NamedTuple):
    """A position in the journal.

    Attributes:
        generation: The generation of the index.
        seq: The last change that was read.
        time_ms: Everything before this time was read, in milliseconds since 1970.
        skip: The number of messages of the next change that were read, too.
    """

    generation: str
    seq: int
    time_ms: int
    skip: int = 0

    def __str__(self) -> str:
        text = f"{self.generation}.{self.seq}.{self.time_ms}"
        return f"{text}.{self.skip}" if self.skip else text

    @classmethod
    def parse(cls, text: str) -> ChangeCursor:
        """Parse a cursor. Raises InvalidInput if `text` is none."""
        match = _CURSOR.fullmatch(text)
        if match is not None:
            seq, time_ms, skip = (int(number or 0) for number in match.groups()[1:])
            if seq < 2**62 and time_ms < 2**62:
                return cls(match[1], seq, time_ms, skip)
        excerpt = text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
        raise InvalidInput(
            f"{excerpt!r} is not a cursor of changes; use the cursor of a change, or none"
        )


def advance(cursor: str, messages: int) -> str:
    """Return a cursor that skips so many more messages of the next change."""
    parsed = ChangeCursor.parse(cursor)
    return str(parsed._replace(skip=parsed.skip + messages))


def is_same_position(cursor: str, other_cursor: str) -> bool:
    """Return whether two cursors have the same next change, whatever they skip of it."""
    return ChangeCursor.parse(cursor)[:3] == ChangeCursor.parse(other_cursor)[:3]


class ChangeBatch(NamedTuple):
    """Changes, with what an agent may read of their conversations.

    Attributes:
        changes: The changes of all conversations.
        cursor: The cursor after them.
        hidden: For each changed conversation that the agent may not read as a whole: the time from
            which on it may read it, in milliseconds since 1970. None: it may read nothing.
        positions: For each conversation that the agent reads in part: the positions of the
            messages that it may read, by their ids.
    """

    changes: list[Change]
    cursor: str
    hidden: dict[str, int | None]
    positions: dict[str, dict[str, int]]

    def hide_deleted(
        self, ids: Iterable[str], documents: Mapping[str, dict[str, Any]], asker: Viewer
    ) -> None:
        """Hide what an agent could not read of deleted conversations.

        Args:
            ids: The deleted conversations.
            documents: Their versions in the trash. One that is not there is hidden.
            asker: The agent.
        """
        for id in ids:
            if id not in documents:
                self.hidden[id] = None
                continue
            visible_from_ms = asker.readable_from_ms_in(documents[id])
            if visible_from_ms != 0:
                self.hidden[id] = visible_from_ms

    def visible_parts(self, change: Change) -> list[Change]:
        """Return what the agent may know of a change, as one change or none."""
        if change.id not in self.hidden:
            return [change]
        visible_from_ms = self.hidden[change.id]
        if visible_from_ms is None:
            return []
        return visible_part(change, visible_from_ms, self.positions.get(change.id, {}))


class JournalEnd(NamedTuple):
    """How far changes were read for an agent.

    A change that the agent may not know of does not move its cursor.

    Attributes:
        read_until: The position up to which the agent has no further change.
        last_cursor: The cursor that it was given last.
    """

    read_until: str = ""
    last_cursor: str = ""


def visible_changes(
    read: Callable[[str | None, int], ChangeBatch],
    since: str | None,
    limit: int,
    end: JournalEnd,
) -> tuple[list[Change], JournalEnd]:
    """Return the changes that an agent may know of, and how far changes were read.

    Args:
        read: Returns at most so many changes after a cursor.
        since: The cursor of the agent. None: its changes begin now.
        limit: The largest number of changes.
        end: How far changes were read the last time.
    """
    visible: list[Change] = []
    begin = end.read_until if since == end.last_cursor else since
    position = begin
    while True:
        count = limit - len(visible)
        batch = read(position, count)
        for change in batch.changes:
            visible += batch.visible_parts(change)
        if len(batch.changes) < count or len(visible) == limit:
            break
        position = batch.cursor
    cursor = batch.cursor if visible or since is None else since
    has_moved = visible and begin is not None and not is_same_position(visible[-1].cursor, begin)
    if has_moved:  # Otherwise the changes were found by file times, and have no position.
        cursor = visible[-1].cursor
    return visible, JournalEnd(batch.cursor, cursor)


def visible_part(
    change: Change, visible_from_ms: int, visible_positions: dict[str, int]
) -> list[Change]:
    """Return the part of a change for an agent that reads the conversation from a time on.

    Args:
        change: The change.
        visible_from_ms: The time, in milliseconds since 1970.
        visible_positions: The positions of the messages since then, by id.

    Returns: one change, or none. It names no removed messages.
    """
    from dataclasses import replace

    messages = tuple(message for message in change.messages if message in visible_positions)
    if change.at < from_ms(visible_from_ms):
        return []
    if change.kind == "appended" and not messages:
        return []
    # The hidden messages come first.
    cursor_before = advance(change.before, len(change.messages) - len(messages))
    first_position = min(visible_positions.values(), default=change.count)
    count = max(0, change.count - first_position)
    return [replace(change, messages=messages, removed=(), before=cursor_before, count=count)]
