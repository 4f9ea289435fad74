"""The values that an engine gives: what lies in the trash, what is new in a document, who tells of
writes.

What must stay true: nothing here belongs to one kind of engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from capsule.engines.leases import Lease


class Version(Protocol):
    """One version of a document of a kind without entries. Only its engine can compare it with
    another one.
    """

    @property
    def data(self) -> bytes:
        """The bytes of this version."""


#: The documents without entries that a decision read, by kind and id, each with its version; None:
#: there was none. And the lease that it needs, under `LEASES` and its name: a write after that was
#: lost raises StoreBusy.
Reads = Mapping[tuple[str, str], Version | Lease | None]


class Trashed(NamedTuple):
    """A document in the trash: a deleted conversation, or messages that were taken out of one.

    Attributes:
        id: The conversation's id.
        deleted_at: When it came into the trash.
        token: Its name in the trash.
        path: Where it lies.
    """

    id: str
    deleted_at: str
    token: str
    path: str


class Tracker(Protocol):
    """Tells which documents were touched."""

    def changed(self) -> set[str] | None:
        """The ids whose files were touched since the last call, every acknowledged write among
        them.

        None when that can't be told: scan. Writes through a mapping or a second name of a file are
        not seen.
        """

    def fileno(self) -> int:
        """The descriptor that can be read when there is an answer to be had, for `select.poll`."""

    @property
    def is_open(self) -> bool:
        """Whether there will be answers."""

    def close(self) -> None:
        """Give back what it holds."""


class Notices:
    """Tells which documents of any kind a store wrote.

    Args:
        track: `Engine.tracker`. It is called again when the tracker that it gave ends.
    """

    def __init__(self, track: Callable[[], Tracker]) -> None:
        self._track = track
        self._tracker = track()

    def changed(self) -> set[tuple[str, str]] | None:
        """The kind and id of each document that was written since the last call, every acknowledged
        write among them.

        None when that can't be told: look at all. Raises `StorageFailed`, `Refused`.
        """
        names = self._tracker.changed()
        if not self._tracker.is_open:
            self._tracker, names = self._track(), None
        parts = (name.partition("-") for name in names or ())
        return None if names is None else {(kind, id) for kind, _, id in parts}

    def fileno(self) -> int:
        """The descriptor that can be read when there is an answer to be had; it may be another one
        after `changed`.
        """
        return self._tracker.fileno()

    def close(self) -> None:
        """Give back what it holds."""
        self._tracker.close()


class News(NamedTuple):
    """What became of the entries of a document since an earlier look.

    Attributes:
        place: What the next look begins from.
        entries: The entries that were appended since; or all, if `is_all`.
        is_all: Whether it is the first look, or the document was changed otherwise than by
            appending.
    """

    place: Any
    entries: list[dict[str, Any]]
    is_all: bool
