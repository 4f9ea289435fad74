"""What an agent reaches: some kinds of documents, and of a group that it joined late, the later part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from capsule.engines.answers import Behind
from capsule.engines.index.journal import Cursor, behind
from capsule.engines.interface import CONVERSATIONS
from capsule.errors import Refused
from capsule.timestamps import sortable

if TYPE_CHECKING:
    from capsule.engines.changes import Change
    from capsule.engines.index.index import Index
    from capsule.engines.interface import Engine

Document = dict[str, Any]
T = TypeVar("T")
#: The kinds of documents that an agent has anything to do with.
_KINDS = frozenset({CONVERSATIONS, "agents", "projects", "overrides", "applied"})
#: What an engine is asked about a kind of documents.
_ASKED = frozenset(
    {"transaction", "create", "edit", "delete", "exists", "version", "versions", "ids", "read", "document"}
)


class OfKinds:
    """An engine that has documents of these kinds only. See `Engine`."""

    def __init__(self, agent: str, engine: Engine) -> None:
        self._agent = agent
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._engine, name)
        return partial(self._of_a_kind, asked) if name in _ASKED else asked

    def _of_a_kind(self, asked: Callable[..., T], kind: str, *args: Any) -> T:
        if kind not in _KINDS:
            raise Refused(f"agent {self._agent} does not reach {kind}, only a person", path="")
        return asked(kind, *args)


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
