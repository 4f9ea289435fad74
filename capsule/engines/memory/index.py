"""Fill the index of an engine in memory from its documents.

No file is read: the engine reports which conversations changed.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from capsule.engines.index.database import Progress
from capsule.engines.index.index import Index
from capsule.engines.index.tables import journal
from capsule.engines.index.tables.writer import IndexWriter
from capsule.engines.interface import CONVERSATIONS
from capsule.engines.questions.parsing import IndexedVersion, IndexUpdate, parse_file

if TYPE_CHECKING:
    from capsule.engines.memory.engine import MemoryEngine, MemoryVersion


class MemoryIndex(Index):
    """The index of the conversations of an engine in memory.

    Attributes:
        touched_ids: The conversations that changed since they were read. The engine adds them.
    """

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self.touched_ids: set[str] = set()
        super().__init__(None, engine.name(CONVERSATIONS, "x").removesuffix("x.json"))

    def _update_rows(self, ids: Iterable[str] | None, progress: Progress | None) -> None:
        db, is_other = self._database.ensure(progress)
        if is_other:
            self._reset()
        since_ms = self._complete_until_ns // 1_000_000
        self._complete_until_ns = time.time_ns()
        if not self.touched_ids:
            return
        db.execute("BEGIN")
        writer = IndexWriter(db)
        with suppress(KeyError):
            while True:
                id = self.touched_ids.pop()  # Raises KeyError at the end.
                row = writer.get(id)
                version = self._engine.stored(CONVERSATIONS, id)
                if version is not None:
                    writer.put(id, row, self._parse(id, version))
                elif row is not None and not row["gone"]:
                    writer.remove(id, row, by_store=True)
                self._mark_stale(id)
        journal.record(db, writer.changes, self._complete_until_ns // 1_000_000, since_ms)
        db.execute("COMMIT")

    def _fill(self, db: sqlite3.Connection, progress: Progress | None) -> None:
        self.touched_ids = set()
        versions = []
        for id in self._engine.ids(CONVERSATIONS):
            version = self._engine.stored(CONVERSATIONS, id)
            if version is not None:
                versions.append((version.serial, id, version))
        versions.sort(key=lambda item: item[0])
        IndexWriter(db).fill((id, self._parse(id, version)) for _, id, version in versions)

    def _parse(self, id: str, document_version: MemoryVersion) -> IndexUpdate:
        data = document_version.data
        serial = document_version.serial
        name = self._engine.name(CONVERSATIONS, id)
        version = IndexedVersion(str(serial), len(data), order=serial)
        update = parse_file(data, version, name, id)
        return update._replace(tag=document_version.tag, by_store=True)
