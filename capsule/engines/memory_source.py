"""Documents in memory as the index and the watchers see them: versions, their bytes, and notices of changes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from capsule.engines.files.protocols import Known, Scanned, Signature

if TYPE_CHECKING:
    from capsule.engines.memory import MemoryEngine

#: Stands for the machine's boot id, which means nothing in memory.
BOOT = "memory"


class MemorySource:
    """The index's view of the documents, as files give it."""

    boot = BOOT
    derived = None

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine

    def path(self, kind: str, id: str) -> str:
        return self._engine.name(kind, id)

    def find(self, kind: str, id: str) -> Scanned | None:
        stored = self._engine.stored(kind, id)
        return None if stored is None else Scanned(id, self.path(kind, id), stored.known.signature, True)

    def scan(self, kind: str) -> Iterator[Scanned]:
        return filter(None, (self.find(kind, id) for id in self._engine.ids(kind)))

    def noted(self, kind: str, id: str) -> Known | None:
        stored = self._engine.stored(kind, id)
        return None if stored is None else stored.known

    def read(self, kind: str, id: str) -> tuple[bytes, Signature] | None:
        stored = self._engine.stored(kind, id)
        return None if stored is None else (stored.data, stored.known.signature)

    def read_from(self, kind: str, id: str, offset: int) -> tuple[bytes, Signature] | None:
        got = self.read(kind, id)
        return None if got is None else (got[0][offset:], got[1])

    def tracker(self, kind: str) -> MemoryTracker:
        return self._engine.tracker()


class MemoryTracker:
    """Notices of changed conversations. See `Tracker`."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._ids: set[str] = set()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self.is_open = True

    def touch(self, id: str) -> None:
        """Note that a conversation changed."""
        with self._guard:
            self._ids.add(id)
            if self.is_open:
                with suppress(BlockingIOError):
                    os.write(self._write, b"x")

    def changed(self) -> set[str] | None:
        """See `Tracker.changed`."""
        with self._guard:
            if not self.is_open:
                return None
            with suppress(BlockingIOError):
                while os.read(self._read, 4096):
                    pass
            ids, self._ids = self._ids, set()
            return ids

    def fileno(self) -> int:
        """See `Tracker.fileno`."""
        return self._read

    def close(self) -> None:
        """See `Tracker.close`."""
        with self._guard:
            if self.is_open:
                self.is_open = False
                os.close(self._read)
                os.close(self._write)
