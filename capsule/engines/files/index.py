"""Keep the index of the files up to date: find the files that may have changed, and correct their
rows.

The object remembers the signature of each file as its row has it. An update compares these with the
files: with those that a tracker reports as touched, or with all of them by a scan. Versions of
other programs are reconciled first, outside of any transaction of the index. Then each file that
differs is read, as little of it as possible (`index_reader`), and its rows are corrected, in
batches of 50 files a transaction. A damaged file gets a row that has the damage.

What must stay true: after an update the index has everything that was acknowledged before it began,
whoever wrote it. The cost depends on what changed. A document's mutex is taken only to reconcile a
version of another program, and no writer waits for an update.
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
    from capsule.engines.index.tables.writer import IndexWriter
    from capsule.engines.questions.parsing import ConversationRow, IndexUpdate


#: The number of files of one transaction, for which other processes wait.
_BATCH = 50
#: Time between two scans without an event. A write through a memory mapping causes none.
_RESCAN_NS = 10_000_000_000
#: How long to wait for a missing file, in seconds: some editors move the old version away before
#: they write the new one. And how often to look for it.
_QUIET_S = 0.15
_POLL_S = 0.002
#: How long the system may delay writing the bytes of a file. After a power cut its times may be
#: newer than its bytes by as much.
_WRITEBACK_NS = 60_000_000_000


class FilesIndex(Index):
    """The index of one kind of document in files.

    Args:
        storage: The files.
        kind: The kind.
        reconcile: Reconciles a version that the store did not write. Raises `NotFound`,
            `InvalidDocument`, `StoreBusy`.
    """

    _tracker: Tracker | None = None

    def __init__(
        self, storage: FileStorage, kind: str, reconcile: Callable[[str], StateHeader | None]
    ) -> None:
        self._storage = storage
        self._kind = kind
        self._reconcile = reconcile
        super().__init__(storage.derived, storage.path(kind, "x").removesuffix("x.json"))

    def _reset(self) -> None:
        super()._reset()
        self._close_tracker()
        #: The signatures of the files, as the rows have them. Each is a plain tuple.
        self._row_signatures: dict[str, tuple[int, int, int, int]] | None = None
        #: Files that may have changed although their signatures did not.
        self._must_recheck: set[str] = set()
        #: Files with several names. A write through another name causes no event.
        self._linked: set[str] = set()
        #: The state headers of the files of this update, read before its transactions. Each is
        #: used once.
        self._headers: dict[str, StateHeader | None] = {}
        self._full_updates = 0
        self._scanned_ns = 0

    def _update_rows(self, ids: Iterable[str] | None, progress: Progress | None) -> None:
        db, is_other_database = self._database.ensure(progress)
        if is_other_database or self._row_signatures is None:
            self._reset()
            self._load_signatures(db)
        started_ns = time.time_ns()
        if ids == ():  # A watcher mostly asks for the rows as they are.
            changed_files = {}
        else:
            changed_files = self._find_changed_files(ids)
        if changed_files:
            # The progress of building the index was reported already.
            reported_progress = None if is_other_database else progress
            self._update_files(
                db, changed_files, started_ns, reported_progress, is_complete=ids is None
            )
        if ids is None:
            self._complete_until_ns = started_ns
            self._full_updates += 1

    def _load_signatures(self, db: sqlite3.Connection) -> None:
        """Read from the rows which version of each file they have."""
        rows = db.execute("SELECT id, version, racy FROM capsules WHERE gone = 0").fetchall()
        # Not by `signature_in`, because there are many.
        self._row_signatures = {id: tuple(orjson.loads(token)) for id, token, _ in rows}
        self._must_recheck = {id for id, _, racy in rows if racy}
        meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
        if meta.get("boot") != self._storage.boot_id:
            since_ns = meta.get("fresh_ns", 0) - _WRITEBACK_NS
            for id, signature in self._row_signatures.items():
                if max(signature[2:]) > since_ns:  # The times of the file.
                    self._must_recheck.add(id)

    # -- Finding the files that may have changed ---------------------------------------------------

    def _find_changed_files(self, ids: Iterable[str] | None) -> dict[str, ScannedFile | None]:
        """Return the files that may differ from their rows, by id. A file that is gone is None.

        Args:
            ids: Look only at these. None: at all.
        """
        if ids is not None:
            files = {id: self._storage.find(self._kind, id) for id in set(ids)}
            return {id: file for id, file in files.items() if self._may_differ(id, file)}
        reported_ids = self._reported_ids()
        if reported_ids is None:
            return self._scan()
        # A file that was young when it was read is not looked at again: a change would have caused
        # an event.
        files = {id: self._storage.find(self._kind, id) for id in reported_ids | self._linked}
        changed_files = {}
        for id, file in files.items():
            is_reported = id in reported_ids and file is not None
            if is_reported or self._may_differ(id, file):
                changed_files[id] = file
        return changed_files

    def _may_differ(self, id: str, file: ScannedFile | None) -> bool:
        assert self._row_signatures is not None
        signature = None if file is None else file.signature
        return id in self._must_recheck or signature != self._row_signatures.get(id)

    def _reported_ids(self) -> set[str] | None:
        """Return the ids whose files were touched since the last call. None: scan all files."""
        if self._tracker is None:
            # A command updates once, and a tracker is of no use to it.
            if self._full_updates:
                self._tracker = self._storage.tracker(self._kind)
            return None
        ids = self._tracker.changed_ids()
        if ids is None and not self._tracker.is_open:
            self._close_tracker()
        if time.monotonic_ns() - self._scanned_ns > _RESCAN_NS:
            return None
        return ids

    def _close_tracker(self) -> None:
        tracker = self._tracker
        self._tracker = None
        if tracker is not None:
            tracker.close()

    def _scan(self) -> dict[str, ScannedFile | None]:
        """Compare all files with their rows. Returns those that may differ, by id."""
        assert self._row_signatures is not None
        self._scanned_ns = time.monotonic_ns()
        signatures = self._row_signatures
        changed_files: dict[str, ScannedFile | None] = {}
        linked = set()
        present_count = 0
        for file in self._storage.scan(self._kind):
            id = file.id
            if signatures.get(id) != file.signature or id in self._must_recheck:
                changed_files[id] = file
            if id in signatures:
                present_count += 1
            if file.links > 1:
                linked.add(id)
        self._linked = linked
        if present_count < len(signatures):  # Some are gone.
            present_ids = {file.id for file in self._storage.scan(self._kind)}
            for id in signatures:
                if id not in present_ids:
                    changed_files[id] = None
        return changed_files

    # -- Correcting the rows -----------------------------------------------------------------------

    def _update_files(
        self,
        db: sqlite3.Connection,
        changed_files: dict[str, ScannedFile | None],
        started_ns: int,
        progress: Progress | None,
        *,
        is_complete: bool,
    ) -> None:
        """Correct the rows of files, in batches.

        Args:
            db: The index.
            changed_files: The files, as `_find_changed_files` returns them.
            started_ns: The time at which the update began.
            progress: Is called with the bytes so far, and all bytes.
            is_complete: Whether these are all files that may differ from their rows.
        """
        from capsule.engines.index.tables.writer import IndexWriter

        if None in changed_files.values():
            self._wait_for_missing(changed_files)
        self._headers = {}
        # Outside of the transactions, because this may reconcile versions of other programs.
        self._headers = {
            id: self._header_of(file) for id, file in changed_files.items() if file is not None
        }
        remaining = list(changed_files.items())
        sizes = []
        if progress is not None:
            sizes = [0 if file is None else file.signature.size for _, file in remaining]
        while remaining:
            batch = remaining[:_BATCH]
            remaining = remaining[_BATCH:]
            db.execute("BEGIN IMMEDIATE")
            try:
                writer = IndexWriter(db)
                updated = [(id, *self._update_row(writer, id, file)) for id, file in batch]
                self._commit(db, writer, started_ns, is_complete=is_complete and not remaining)
            except BaseException:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise
            for id, signature, must_recheck in updated:
                self._remember_signature(id, signature, must_recheck=must_recheck)
            if progress is not None and len(sizes) > 1:
                progress(sum(sizes[: len(sizes) - len(remaining)]), sum(sizes))

    def _commit(
        self, db: sqlite3.Connection, writer: IndexWriter, started_ns: int, *, is_complete: bool
    ) -> None:
        """Add the changes to the journal, and end the transaction.

        Args:
            db, writer: The index, in a transaction.
            started_ns: The time at which the update began.
            is_complete: Whether the index now has everything that was written before that.
        """
        from capsule.engines.index.tables import journal

        meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
        complete_until_ns = meta.get("fresh_ns", 0)
        if writer.changes:
            now_ms = time.time_ns() // 1_000_000
            journal.record(db, writer.changes, now_ms, complete_until_ns // 1_000_000)
        if is_complete:
            db.execute(
                "INSERT OR REPLACE INTO meta VALUES('fresh_ns', ?)",
                (max(started_ns, complete_until_ns),),
            )
            if meta.get("boot") != self._storage.boot_id:
                db.execute(
                    "INSERT OR REPLACE INTO meta VALUES('boot', ?)", (self._storage.boot_id,)
                )
        db.execute("COMMIT")

    def _remember_signature(
        self, id: str, signature: Signature | None, *, must_recheck: bool
    ) -> None:
        """Remember which version of a file its row has. None: it has no row."""
        assert self._row_signatures is not None
        if signature is None:
            self._row_signatures.pop(id, None)
        else:
            self._row_signatures[id] = signature
        if must_recheck:
            self._must_recheck.add(id)
        else:
            self._must_recheck.discard(id)
        self._mark_stale(id)

    def _wait_for_missing(self, changed_files: dict[str, ScannedFile | None]) -> None:
        """Wait a moment for documents that vanished: vim moves the old version away first."""
        missing = {
            id for id, file in changed_files.items() if file is None and self._has_header(id)
        }
        deadline = time.monotonic() + _QUIET_S
        while missing and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            changed_files |= {id: self._storage.find(self._kind, id) for id in missing}
            missing = {id for id in missing if changed_files[id] is None}

    def _has_header(self, id: str) -> bool:
        """Check that the store wrote a document and did not delete it."""
        try:
            return self._storage.recorded_header(self._kind, id) is not None
        except CapsuleError:
            return False

    def _header_of(self, file: ScannedFile) -> StateHeader | None:
        """Return the state header of a file, after reconciling another program's version.

        Returns None if there is none, or if the file can't be reconciled now.
        """
        if not file.is_regular:
            return None
        id = file.id
        header = self._headers.pop(id, None)
        if header is not None and header.signature == file.signature:
            return header
        try:
            # As `FileStorage.current_header`, but with one look at a file without a header. Most
            # files of a fresh clone have none.
            header = self._storage.recorded_header(self._kind, id)
            current = self._storage.find(self._kind, id) if header is not None else file
            if current is None:
                return None
            if header is not None and header.signature != current.signature:
                return self._reconcile(id)
            if header is not None and header.boot_id == self._storage.boot_id:
                return header
            if self._storage.may_be_incomplete(self._kind, id):
                return self._reconcile(id)
            return None
        except CapsuleError:
            return None

    def _update_row(
        self, writer: IndexWriter, id: str, file: ScannedFile | None
    ) -> tuple[Signature | None, bool]:
        """Correct the rows of one file.

        Returns the signature that the row has then, and whether the file must be read again later.
        """
        from capsule.engines.files.index_reader import signature_in

        row = writer.get(id)
        if file is not None:
            file = self._storage.find(self._kind, id)
        if file is None:
            update = None
        elif row is None or row["gone"]:
            update = self._read_when_stable(file, None)
        else:
            is_same = file.signature == signature_in(row["version"])
            if is_same and not row["racy"] and id not in self._must_recheck:
                return file.signature, False  # Another process has updated the row.
            update = self._read_when_stable(file, row, verify=is_same)
            if update is not None and row["racy"] and not is_same and update.start:
                # Only the end was read. What is before it may have changed in the same tick of the
                # clock in which it was read last.
                update = update._replace(must_recheck=True)
        if update is None:
            if row is not None and not row["gone"]:
                is_deleted_by_store = bool(row["tag"]) and not self._has_header(id)
                writer.remove(id, row, by_store=is_deleted_by_store)
            return None, False
        writer.put(id, row, update)
        return signature_in(update.version.token), update.must_recheck

    def _read_when_stable(
        self, file: ScannedFile, row: ConversationRow | None, *, verify: bool = False
    ) -> IndexUpdate | None:
        """Read a file for the index. Returns None if it is gone.

        Repairs a torn write first, and waits briefly for a program that is writing the file in
        place.

        Args:
            file: The file.
            row: Its row in the index.
            verify: See `read_for_index`.
        """
        from capsule.engines.files.index_reader import read_for_index

        deadline = time.monotonic() + _QUIET_S
        was_reconciled = False
        while True:
            update = read_for_index(self._storage, self._kind, file, self._header_of, row, verify)
            if was_reconciled or update is None or not update.damaged or not file.is_regular:
                return update
            if update.repairable or self._has_header(file.id):
                was_reconciled = True
                try:
                    self._reconcile(file.id)
                except CapsuleError:
                    return update
            else:
                if not update.must_recheck or time.monotonic() > deadline:
                    return update
                time.sleep(_POLL_S)
            current = self._storage.find(self._kind, file.id)
            if current is None:
                return None
            file = current

    def _fill(self, db: sqlite3.Connection, progress: Progress | None) -> None:
        from capsule.engines.index.tables.writer import IndexWriter

        started_ns = time.time_ns()
        # Messages get numbers in this order, and a search ranks the highest numbers first. So what
        # changed last comes last.
        files = sorted(self._storage.scan(self._kind), key=lambda file: file.signature.mtime_ns)
        total_bytes = sum(file.signature.size for file in files)

        def updates() -> Iterator[tuple[str, IndexUpdate]]:
            done_bytes = 0
            for file in files:
                update = self._read_when_stable(file, None)
                if update is not None:
                    yield file.id, update
                done_bytes += file.signature.size
                if progress is not None:
                    progress(done_bytes, total_bytes)

        IndexWriter(db).fill(updates())
        db.execute(
            "INSERT INTO meta VALUES('fresh_ns', ?), ('boot', ?)",
            (started_ns, self._storage.boot_id),
        )
