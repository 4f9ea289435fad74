"""Bringing the index up to date: finding the files that may have changed, and correcting their
rows.

What must stay true: afterwards the index has what was acknowledged before it began, whoever wrote
it; the cost follows what changed; a document's mutex is taken only to settle a version of another
program, and no writer waits for it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import orjson

from capsule.disk.whole_files import Signature
from capsule.engines.files.state import StateHeader
from capsule.engines.index.database import Progress
from capsule.engines.index.index import Index
from capsule.engines.interface import ScannedFile, Tracker
from capsule.errors import CapsuleError

if TYPE_CHECKING:
    from capsule.engines.files.storage import FileStorage
    from capsule.engines.index.parsing import ConversationRow, IndexUpdate
    from capsule.engines.index.tables.writer import IndexWriter


#: Files taken in within one transaction, for which other processes wait.
_BATCH = 50
#: Time between two scans without an event: a write through a memory mapping causes none.
_RESCAN_NS = 10_000_000_000
#: Some editors move the old version away before they write the new one; this long a missing file is
#: waited for.
_QUIET_S, _POLL_S = 0.15, 0.002
#: After a power cut a file may have newer times than bytes, by as long as the system delays writing
#: them.
_WRITTEN_BACK_NS = 60_000_000_000


class FilesIndex(Index):
    """The index of one kind of document in files.

    Args:
        storage: Where the documents are read.
        kind: The kind.
        settle: Takes in a version that the store did not write; raises `NotFound`,
            `InvalidDocument`, `StoreBusy`.
    """

    _tracker: Tracker | None = None

    def __init__(
        self, storage: FileStorage, kind: str, settle: Callable[[str], StateHeader | None]
    ) -> None:
        self._storage = storage
        self._kind = kind
        self._settle = settle
        super().__init__(storage.derived, storage.path(kind, "x").removesuffix("x.json"))

    def _reset(self) -> None:
        super()._reset()
        self._close_tracker()
        #: The files as the rows have them: each a `Signature`, as a plain tuple.
        self._seen: dict[str, tuple[int, int, int, int]] | None = None
        #: Files that may have changed although their signatures did not; and those with several
        #: names.
        self._again: set[str] = set()
        self._linked: set[str] = set()
        #: What the store knew of files that are being taken in; each counts once.
        self._met: dict[str, StateHeader | None] = {}
        self._refreshes = 0
        self._scanned_ns = 0

    def _update_rows(self, ids: Iterable[str] | None, progress: Progress | None) -> None:
        db, is_other = self._database.ensure(progress)
        if is_other or self._seen is None:
            self._reset()
            self._load(db)
        started_ns = time.time_ns()
        touched = (
            {} if ids == () else self._touched(ids)
        )  # Most of what a listener asks: the rows as they are.
        if touched:
            # The progress of building the index was reported already.
            self._take_in(
                db, touched, started_ns, None if is_other else progress, whole=ids is None
            )
        if ids is None:
            self._complete_until_ns = started_ns
            self._refreshes += 1

    def _load(self, db: sqlite3.Connection) -> None:
        """What the rows say of the files."""
        rows = db.execute("SELECT id, version, racy FROM capsules WHERE gone = 0").fetchall()
        self._seen = {
            id: tuple(orjson.loads(token)) for id, token, _ in rows
        }  # As `signature_in`: there are many.
        self._again = {id for id, _, racy in rows if racy}
        meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
        if meta.get("boot") != self._storage.boot_id:
            since = meta.get("fresh_ns", 0) - _WRITTEN_BACK_NS
            self._again |= {id for id, file in self._seen.items() if max(file[2:]) > since}

    def _touched(self, ids: Iterable[str] | None) -> dict[str, ScannedFile | None]:
        """The files that may differ from their rows."""
        assert self._seen is not None
        if ids is not None:
            scanned = {id: self._storage.find(self._kind, id) for id in set(ids)}
            return {id: file for id, file in scanned.items() if self._differs(id, file)}
        names = self._tracked()
        if names is None:
            return self._scan()
        # What was young when it was read is not looked at here: a change would have been an event.
        scanned = {id: self._storage.find(self._kind, id) for id in names | self._linked}
        return {
            id: file
            for id, file in scanned.items()
            if (id in names and file) or self._differs(id, file)
        }

    def _differs(self, id: str, file: ScannedFile | None) -> bool:
        assert self._seen is not None
        seen = self._seen.get(id)
        return id in self._again or (None if file is None else file.signature) != seen

    def _tracked(self) -> set[str] | None:
        """The ids whose files were touched since the last time, where that can be told."""
        if self._tracker is None:
            # A command asks once and has no use for a tracker.
            if self._refreshes:
                self._tracker = self._storage.tracker(self._kind)
            return None
        names = self._tracker.changed_ids()
        if names is None and not self._tracker.is_open:
            self._close_tracker()
        if time.monotonic_ns() - self._scanned_ns > _RESCAN_NS:
            return None
        return names

    def _close_tracker(self) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.close()

    def _scan(self) -> dict[str, ScannedFile | None]:
        assert self._seen is not None
        self._scanned_ns = time.monotonic_ns()
        seen, again = self._seen, self._again
        touched: dict[str, ScannedFile | None] = {}
        linked = set()
        count = 0
        for file in self._storage.scan(self._kind):
            id = file[0]
            if seen.get(id) != file[2] or id in again:
                touched[id] = file
            if id in seen:
                count += 1
            if file.links > 1:
                linked.add(id)
        self._linked = linked
        if count < len(seen):
            there = {file.id for file in self._storage.scan(self._kind)}
            touched |= {id: None for id in seen if id not in there}
        return touched

    def _take_in(
        self,
        db: sqlite3.Connection,
        touched: dict[str, ScannedFile | None],
        started_ns: int,
        progress: Progress | None,
        *,
        whole: bool,
    ) -> None:
        """Bring the rows of these files up to date."""
        from capsule.engines.index.tables.writer import IndexWriter

        if None in touched.values():
            self._await_the_missing(touched)
        self._met = {}
        # Takes in other programs' versions outside of the transaction.
        self._met = {id: self._known(file) for id, file in touched.items() if file is not None}
        left = list(touched.items())
        sizes = (
            []
            if progress is None
            else [0 if file is None else file.signature.size for file in touched.values()]
        )
        while left:
            now, left = left[:_BATCH], left[_BATCH:]
            db.execute("BEGIN IMMEDIATE")
            try:
                rows = IndexWriter(db)
                noted = [(id, *self._one(rows, id, file)) for id, file in now]
                self._commit(db, rows, started_ns, whole=whole and not left)
            except BaseException:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise
            for id, signature, again in noted:
                self._note(id, signature, again=again)
            if progress is not None and len(sizes) > 1:
                progress(sum(sizes[: len(sizes) - len(left)]), sum(sizes))

    def _commit(
        self, db: sqlite3.Connection, rows: IndexWriter, started_ns: int, *, whole: bool
    ) -> None:
        from capsule.engines.index.tables import journal

        meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
        fresh_ns = meta.get("fresh_ns", 0)
        if rows.changes:
            journal.record(db, rows.changes, time.time_ns() // 1_000_000, fresh_ns // 1_000_000)
        if whole:
            db.execute(
                "INSERT OR REPLACE INTO meta VALUES('fresh_ns', ?)", (max(started_ns, fresh_ns),)
            )
            if meta.get("boot") != self._storage.boot_id:
                db.execute(
                    "INSERT OR REPLACE INTO meta VALUES('boot', ?)", (self._storage.boot_id,)
                )
        db.execute("COMMIT")

    def _note(self, id: str, signature: Signature | None, *, again: bool) -> None:
        assert self._seen is not None
        if signature is None:
            self._seen.pop(id, None)
        else:
            self._seen[id] = signature
        (self._again.add if again else self._again.discard)(id)
        self._mark_stale(id)

    def _await_the_missing(self, touched: dict[str, ScannedFile | None]) -> None:
        """Give documents that vanished a moment to come back: vim moves the old version
        away first.
        """
        missing = {id for id, file in touched.items() if file is None and self._remembers(id)}
        deadline = time.monotonic() + _QUIET_S
        while missing and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            touched |= {id: self._storage.find(self._kind, id) for id in missing}
            missing = {id for id in missing if touched[id] is None}

    def _remembers(self, id: str) -> bool:
        try:
            return self._storage.recorded_header(self._kind, id) is not None
        except CapsuleError:
            return False

    def _known(self, file: ScannedFile) -> StateHeader | None:
        """What the store knows of a file; one that changed since the store wrote it is taken in
        first.
        """
        if not file.is_regular:
            return None
        id = file.id
        if (met := self._met.pop(id, None)) is not None and met.signature == file.signature:
            return met
        try:
            # As `FileStorage.current_header` says it; but most files of a fresh clone have no note, and one
            # look tells that.
            noted = self._storage.recorded_header(self._kind, id)
            now = self._storage.find(self._kind, id) if noted is not None else file
            if now is None:
                return None
            if noted is not None and noted.signature != now.signature:
                return self._settle(id)
            if noted is not None and noted.boot_id == self._storage.boot_id:
                return noted
            return self._settle(id) if self._storage.may_be_incomplete(self._kind, id) else None
        except CapsuleError:
            return None

    def _one(
        self, rows: IndexWriter, id: str, file: ScannedFile | None
    ) -> tuple[Signature | None, bool]:
        """Bring the rows of one file up to date; its signature there, and whether to look again."""
        from capsule.engines.files.index_reader import signature_in

        row = rows.get(id)
        file = self._storage.find(self._kind, id) if file is not None else None
        state = None
        if file is not None:
            if row is None or row["gone"]:
                state = self._found(file, None)
            else:
                is_same = file.signature == signature_in(row["version"])
                if is_same and not row["racy"] and id not in self._again:
                    return file.signature, False  # Another process was here first.
                state = self._found(file, row, verify=is_same)
                if state is not None and row["racy"] and not is_same and state.start:
                    # Only the end was read: what lies before may have changed within the same tick
                    # as the last time.
                    state = state._replace(must_recheck=True)
        if state is None:
            if row is not None and not row["gone"]:
                rows.remove(id, row, by_store=bool(row["tag"]) and not self._remembers(id))
            return None, False
        rows.put(id, row, state)
        return signature_in(state.version.token), state.must_recheck

    def _found(
        self, file: ScannedFile, before: ConversationRow | None, *, verify: bool = False
    ) -> IndexUpdate | None:
        """A file as it is, once the tear of a crash is mended and a program that writes it in place
        is done.
        """
        from capsule.engines.files.index_reader import read_for_index

        deadline, is_ours, now = time.monotonic() + _QUIET_S, False, file
        while True:
            state = read_for_index(self._storage, self._kind, now, self._known, before, verify)
            if is_ours or state is None or not state.damaged or not file.is_regular:
                return state
            is_ours = state.repairable or self._remembers(file.id)
            if is_ours:
                try:
                    self._settle(file.id)
                except CapsuleError:
                    return state
            else:
                if not state.must_recheck or time.monotonic() > deadline:
                    return state
                time.sleep(_POLL_S)
            again = self._storage.find(self._kind, file.id)
            if again is None:
                return None
            now = again

    def _fill(self, db: sqlite3.Connection, progress: Progress | None) -> None:
        """Fill an empty index with all there is."""
        from capsule.engines.index.tables.writer import IndexWriter

        started_ns = time.time_ns()
        # Messages are numbered as they come, and a search ranks the newest numbers: what changed
        # last comes last.
        files = sorted(self._storage.scan(self._kind), key=lambda file: file.signature.mtime_ns)
        total = sum(file.signature.size for file in files)

        def states() -> Iterator[tuple[str, IndexUpdate]]:
            done = 0
            for file in files:
                state = self._found(file, None)
                if state is not None:
                    yield file.id, state
                done += file.signature.size
                if progress is not None:
                    progress(done, total)

        IndexWriter(db).fill(states())
        db.execute(
            "INSERT INTO meta VALUES('fresh_ns', ?), ('boot', ?)",
            (started_ns, self._storage.boot_id),
        )
