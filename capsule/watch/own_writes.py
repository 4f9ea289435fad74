"""The writes of an open store itself, so that its watchers can distinguish them from the writes of
others.

What must stay true: the content of a write decides whether it is own, never its time. A reported
change has one author. A write in progress is reported only after its author is known. A store
without watchers remembers no writes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capsule.engines.changes import Change
from capsule.process_forks import call_in_child

if TYPE_CHECKING:
    from capsule.engines.interface import Transaction

#: The number of writes that are remembered, the newest ones.
_MOST = 20_000
#: How long to wait for a write in progress, in seconds; it holds the mutex, so it ends soon.
_PATIENCE_S = 10.0


class OwnWrites:
    """The newest writes of one store. Several threads may use it."""

    def __init__(self) -> None:
        self.forget_all()
        call_in_child(self, OwnWrites.forget_all)

    def forget_all(self) -> None:
        """Start over: a forked child is an instance of its own, without the threads that hold the
        guard.
        """
        #: The writes: message ids, tags and marks; for a tag, the tag of the version before (None:
        #: unknown).
        self._previous_tags: dict[tuple[str, str], str | None] = {}
        self._in_progress: dict[str, int] = {}
        self._condition = threading.Condition()

    @contextmanager
    def writing(self, transaction: Transaction) -> Iterator[None]:
        """Remember the version that the body writes, under the mutex, as own."""
        before = transaction.state.tag
        with self.hold_reports(transaction.id):
            try:
                yield
            finally:
                if transaction.state.tag != before:
                    with self._condition:
                        self._remember(transaction.id, transaction.state.tag, before)

    @contextmanager
    def hold_reports(self, id: str) -> Iterator[None]:
        """Hold back reports of changes of the conversation while the body runs, under the mutex."""
        with self._condition:
            self._in_progress[id] = self._in_progress.get(id, 0) + 1
        try:
            yield
        finally:
            with self._condition:
                left = self._in_progress[id] - 1
                if left:
                    self._in_progress[id] = left
                else:
                    del self._in_progress[id]
                self._condition.notify_all()

    def remember(self, id: str, *marks: str) -> None:
        """Remember own writes: ids of messages, a version's tag, or "created", "deleted",
        "restored".
        """
        with self._condition:
            for mark in marks:
                self._remember(id, mark)

    def remember_appended(self, id: str, entries: Iterable[Mapping[str, Any]]) -> None:
        """Remember appended messages."""
        self.remember(id, *(str(entry.get("id")) for entry in entries))

    def _remember(self, id: str, mark: str, before: str | None = None) -> None:
        self._previous_tags.pop((id, mark), None)
        self._previous_tags[id, mark] = before
        while len(self._previous_tags) > _MOST:
            del self._previous_tags[next(iter(self._previous_tags))]

    def with_own_marked(
        self, changes: list[Change], advance: Callable[[str, int], str]
    ) -> list[Change]:
        """The changes, with own ones marked. A change by several authors is split into one change
        for each.

        Args:
            changes: The changes.
            advance: As `Questions.advance`.
        """
        return [part for change in changes for part in self._split_by_author(change, advance)]

    def _split_by_author(self, change: Change, advance: Callable[[str, int], str]) -> list[Change]:
        with self._condition:
            self._condition.wait_for(lambda: change.id not in self._in_progress, _PATIENCE_S)
            if change.kind == "appended":
                runs: list[tuple[bool, list[str]]] = []
            elif change.kind == "created":
                runs = [((change.id, "created") in self._previous_tags, [])]
            else:
                return [_with_author(change, own=self._is_own(change))]
            for message in change.messages:
                own = (change.id, message) in self._previous_tags
                if not runs or runs[-1][0] != own:
                    runs.append((own, []))
                runs[-1][1].append(message)
        if len(runs) < 2:
            return [_with_author(change, own=bool(runs) and runs[0][0])]
        parts, given = [], 0
        for number, (own, messages) in enumerate(runs):
            given += len(messages)
            kind = change.kind if number == 0 else "appended"
            cursor = advance(change.before, given) if number < len(runs) - 1 else change.cursor
            parts.append(
                replace(
                    _with_author(change, own=own),
                    kind=kind,
                    messages=tuple(messages),
                    cursor=cursor,
                )
            )
        return parts

    def _is_own(self, change: Change) -> bool:
        """Whether this store alone remember every version after the one known before, up to the one
        that was read.
        """
        if change.kind in ("deleted", "restored"):
            return (change.id, change.kind) in self._previous_tags
        tag: str | None = change.tag
        while tag is not None and (change.id, tag) in self._previous_tags:
            tag = self._previous_tags[change.id, tag]
            if tag == change.was or not change.was:
                return True
        return tag is None


def _with_author(change: Change, *, own: bool) -> Change:
    return replace(change, own=True, source="store") if own else change
