"""The index of an engine in memory, made from its documents: no file is looked at, and the engine
says what changed.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from capsule.engines.index.database import Progress
from capsule.engines.index.index import Index
from capsule.engines.index.parsing import IndexedVersion, IndexUpdate, parse_file
from capsule.engines.index.tables import journal
from capsule.engines.index.tables.writer import IndexWriter
from capsule.engines.interface import CONVERSATIONS

if TYPE_CHECKING:
    from capsule.engines.memory.engine import MemoryEngine
    from capsule.engines.memory.transaction import MemoryVersion


class MemoryIndex(Index):
    """The index of the conversations of an engine in memory."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        #: The conversations that changed since they were read.
        self.touched: set[str] = set()
        super().__init__(None, engine.name(CONVERSATIONS, "x").removesuffix("x.json"))

    def _update_rows(self, ids: Iterable[str] | None, progress: Progress | None) -> None:
        db, is_other = self._database.ensure(progress)
        if is_other:
            self._reset()
        since_ms, self._complete_until_ns = self._complete_until_ns // 1_000_000, time.time_ns()
        if not self.touched:
            return
        db.execute("BEGIN")
        rows = IndexWriter(db)
        with suppress(KeyError):
            while id := self.touched.pop():
                row, stored = rows.get(id), self._engine.stored(CONVERSATIONS, id)
                if stored is not None:
                    rows.put(id, row, self._found(id, stored))
                elif row is not None and not row["gone"]:
                    rows.remove(id, row, by_store=True)
                self._mark_stale(id)
        journal.record(db, rows.changes, self._complete_until_ns // 1_000_000, since_ms)
        db.execute("COMMIT")

    def _fill(self, db: sqlite3.Connection, progress: Progress | None) -> None:
        self.touched = set()
        documents = {
            id: self._engine.stored(CONVERSATIONS, id) for id in self._engine.ids(CONVERSATIONS)
        }
        there = [
            (stored.serial, id, stored) for id, stored in documents.items() if stored is not None
        ]
        IndexWriter(db).fill(
            (id, self._found(id, stored))
            for _, id, stored in sorted(there, key=lambda each: each[0])
        )

    def _found(self, id: str, stored: MemoryVersion) -> IndexUpdate:
        version = IndexedVersion(str(stored.serial), len(stored.data), stored.serial)
        name = self._engine.name(CONVERSATIONS, id)
        update = parse_file(stored.data, version, name, id)
        return update._replace(tag=stored.tag, by_store=True)
