"""What an agent is shown of a conversation that it reads from a time on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capsule.engines.index.journal import Cursor, behind
from capsule.engines.index.participation import Behind
from capsule.timestamps import sortable

if TYPE_CHECKING:
    from capsule.engines.changes import Change
    from capsule.engines.index.index import Index

Document = dict[str, Any]


def places_since(index: Index, id: str, since_ms: int) -> dict[str, int]:
    """The messages of a conversation since a time, in milliseconds since 1970, with their places."""
    return {place.message: place.place for place in index.behind(Behind(since_ms=since_ms), id, refresh=False)}


def told_since(change: Change, since: str, said: dict[str, int]) -> list[Change]:
    """What an agent hears of a change that reads the conversation from a time on; `said` are the messages since."""
    messages = tuple(message for message in change.messages if message in said)
    if change.at < since or (change.kind == "appended" and not messages):
        return []
    place = behind(change.before, len(change.messages) - len(messages))  # What it may not read comes first.
    count = max(0, change.count - min(said.values(), default=change.count))
    return [replace(change, messages=messages, removed=(), before=place, count=count)]


def later(since: str, created_at: str) -> str:
    """`since`, unless it is the time when the conversation was made, or earlier: nothing was said before."""
    return since if since > sortable(created_at) else ""


def before(entries: list[Document], since: str) -> int:
    """The number of entries that come before the first one of this time or later."""
    times = (sortable(str(entry.get("timestamp"))) for entry in entries)
    return next((place for place, time in enumerate(times) if time >= since), len(entries))


def is_at(cursor: str, place: str) -> bool:
    """Whether a cursor stands at a place in the journal, whatever part of the next change was told there."""
    return Cursor.of(cursor)[:3] == Cursor.of(place)[:3]
