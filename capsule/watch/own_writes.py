"""The writes of an open store itself, so that its watchers can distinguish them from the writes of
others.

It remembers the ids of messages and the tags of versions that the store wrote, with the tag of the
version before each. A change whose messages, or whose chain of tags, are all remembered is own.

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

#: The number of newest writes that are remembered.
_MAX_WRITES = 20_000
#: How long to wait for a write in progress, in seconds. It holds the mutex, so it ends soon.
_PATIENCE_S = 10.0


class OwnWrites:
    """The newest writes of one store. Several threads may use it."""

    def __init__(self) -> None:
        self.forget_all()
        call_in_child(self, OwnWrites.forget_all)

    def forget_all(self) -> None:
        """Start again: a forked child is an instance of its own.

        The lock is new too, since a thread of the parent may hold the old one.
        """
        #: The writes, by conversation and message id, tag or mark. The value is the tag of the
        #: version before a tag. None: not known, or not a tag.
        self._previous_tags: dict[tuple[str, str], str | None] = {}
        self._in_progress: dict[str, int] = {}
        self._condition = threading.Condition()

    @contextmanager
    def writing(self, transaction: Transaction) -> Iterator[None]:
        """Remember the version that the block writes under the mutex."""
        old_tag = transaction.state.tag
        with self.hold_reports(transaction.id):
            try:
                yield
            finally:
                if transaction.state.tag != old_tag:
                    with self._condition:
                        self._remember(transaction.id, transaction.state.tag, old_tag)

    @contextmanager
    def hold_reports(self, id: str) -> Iterator[None]:
        """Hold back reports of changes of the conversation while the block runs."""
        with self._condition:
            self._in_progress[id] = self._in_progress.get(id, 0) + 1
        try:
            yield
        finally:
            with self._condition:
                remaining_count = self._in_progress[id] - 1
                if remaining_count:
                    self._in_progress[id] = remaining_count
                else:
                    del self._in_progress[id]
                self._condition.notify_all()

    def remember(self, id: str, *marks: str) -> None:
        """Remember writes.

        Args:
            id: The conversation.
            marks: Ids of messages, tags of versions, or "created", "deleted", "restored".
        """
        with self._condition:
            for mark in marks:
                self._remember(id, mark)

    def remember_appended(self, id: str, entries: Iterable[Mapping[str, Any]]) -> None:
        """Remember appended messages."""
        self.remember(id, *(str(entry.get("id")) for entry in entries))

    def _remember(self, id: str, mark: str, previous_tag: str | None = None) -> None:
        self._previous_tags.pop((id, mark), None)
        self._previous_tags[id, mark] = previous_tag
        while len(self._previous_tags) > _MAX_WRITES:
            del self._previous_tags[next(iter(self._previous_tags))]

    def with_own_marked(
        self, changes: list[Change], advance: Callable[[str, int], str]
    ) -> list[Change]:
        """Mark the changes that this store wrote. A change by several authors is split into one for
        each.

        Args:
            changes: The changes.
            advance: As `Queries.advance`: returns the cursor after so many messages of a change.

        Waits until writes of these conversations that are in progress have ended.
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
                return [_with_author(change, is_own=self._is_own(change))]
            for message in change.messages:
                is_own = (change.id, message) in self._previous_tags
                if not runs or runs[-1][0] != is_own:
                    runs.append((is_own, []))
                runs[-1][1].append(message)
        if len(runs) < 2:
            return [_with_author(change, is_own=bool(runs) and runs[0][0])]
        parts = []
        message_count = 0
        for number, (is_own, messages) in enumerate(runs):
            message_count += len(messages)
            kind = change.kind if number == 0 else "appended"
            cursor = (
                advance(change.before, message_count) if number < len(runs) - 1 else change.cursor
            )
            parts.append(
                replace(
                    _with_author(change, is_own=is_own),
                    kind=kind,
                    messages=tuple(messages),
                    cursor=cursor,
                )
            )
        return parts

    def _is_own(self, change: Change) -> bool:
        """Check that this store wrote all versions from the last reported one to this one."""
        if change.kind in ("deleted", "restored"):
            return (change.id, change.kind) in self._previous_tags
        tag: str | None = change.tag
        while tag is not None and (change.id, tag) in self._previous_tags:
            tag = self._previous_tags[change.id, tag]
            if tag == change.was or not change.was:
                return True
        return tag is None


def _with_author(change: Change, *, is_own: bool) -> Change:
    return replace(change, own=True, source="store") if is_own else change
