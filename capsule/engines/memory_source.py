"""Documents in memory as the index and the watchers see them: versions, their bytes, and notices of changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from capsule.disk.touched import Touched
from capsule.disk.whole_files import Signature
from capsule.engines.files.protocols import Known, Scanned

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

    def tracker(self, kind: str) -> Touched:
        return self._engine.tracker(kind)
