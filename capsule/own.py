"""What an open store wrote itself, so that its watchers can tell it from what others wrote.

What must stay true: a write counts as own by what was written, never by when; nobody is told of a write that is under
way before it is known whose it is; and a store that nobody watches remembers nothing.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capsule.changes import Change

if TYPE_CHECKING:
    from capsule.writing import Conversation

__all__ = ["Own"]

#: The newest writes that are remembered.
_MOST = 20_000
#: How long a write that is under way is waited for, in seconds; it holds the mutex, so it is done soon.
_PATIENCE_S = 10.0


class Own:
    """The newest writes of one store. Several threads may use it."""

    def __init__(self) -> None:
        self.forget_all()
        _all.add(self)

    def forget_all(self) -> None:
        """Begin anew: a forked child writes as an instance of its own, and has not the threads that hold the guard."""
        self._written: dict[tuple[str, str], None] = {}
        self._under_way: dict[str, int] = {}
        self._done = threading.Condition()

    @contextmanager
    def writing(self, conversation: Conversation) -> Iterator[None]:
        """While the body runs, under the mutex, the conversation is being written: the version it leaves is own."""
        before = conversation.known.tag
        with self.under_way(conversation.id):
            try:
                yield
            finally:
                if conversation.known.tag != before:
                    self.wrote(conversation.id, conversation.known.tag)

    @contextmanager
    def under_way(self, id: str) -> Iterator[None]:
        """While the body runs, under the mutex, nobody is told of a change of the conversation."""
        with self._done:
            self._under_way[id] = self._under_way.get(id, 0) + 1
        try:
            yield
        finally:
            with self._done:
                left = self._under_way[id] - 1
                if left:
                    self._under_way[id] = left
                else:
                    del self._under_way[id]
                self._done.notify_all()

    def wrote(self, id: str, *what: str) -> None:
        """Remember what was written: ids of messages, a version's tag, or "created", "deleted", "restored"."""
        with self._done:
            for one in what:
                self._remember(id, one)

    def appended(self, id: str, entries: Iterable[Mapping[str, Any]]) -> None:
        """Remember appended messages."""
        self.wrote(id, *(str(entry.get("id")) for entry in entries))

    def _remember(self, id: str, what: str) -> None:
        self._written.pop((id, what), None)
        self._written[id, what] = None
        while len(self._written) > _MOST:
            del self._written[next(iter(self._written))]

    def marked(self, changes: list[Change]) -> list[Change]:
        """The changes, own ones marked; they are a store's, whatever could be told by the file alone."""
        return [replace(change, own=True, source="store") if self._is_own(change) else change for change in changes]

    def _is_own(self, change: Change) -> bool:
        with self._done:
            self._done.wait_for(lambda: change.id not in self._under_way, _PATIENCE_S)
            what = change.kind if change.kind in ("created", "deleted", "restored") else change.tag
            if change.kind != "appended" and (change.id, what) not in self._written:
                return False
            # What one noticed at once, several may have written: then it is news.
            parts = change.messages if change.kind in ("created", "appended") else ()
            return all((change.id, message) in self._written for message in parts)


_all: weakref.WeakSet[Own] = weakref.WeakSet()


def _in_forked_child() -> None:
    for own in list(_all):
        own.forget_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)
