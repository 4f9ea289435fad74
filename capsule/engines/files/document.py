"""A document under its mutex: looked at, read, and written in the three ways there are.

What must stay true: a write's records are in the log before the document is touched; the log is
flushed before the write is acknowledged, without the mutex; a whole version is flushed before it
gets its name; a header that can't be written costs the next one a look at the whole file, never an
acknowledged write; and a new version is decided upon a signature, which is checked again at the
moment it takes its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from capsule.disk import whole_files
from capsule.disk.whole_files import SIGNATURE, FlushFailed, Signature
from capsule.engines.files import external_edits
from capsule.engines.files.disk.log import Flushed, deleted_record
from capsule.engines.files.disk.trash import QUARANTINE, TRASH
from capsule.engines.files.note import LoggedDocument, new_tag
from capsule.engines.files.protocols import Known
from capsule.engines.files.rehead import Rehead
from capsule.engines.files.splice import NotAsItWas, Overtaken, splice
from capsule.engines.values import Trashed
from capsule.errors import CapsuleError, Interfered, Refused
from capsule.format.json.anatomy import Anatomy, head_of, survey
from capsule.timestamps import WIDTH

if TYPE_CHECKING:
    from capsule.format.saved.repair import Mended


_NOT_UNDONE = "undo what it began to %s, so that it may still appear in"


class HeldDocument(LoggedDocument):
    """One document of a `FileStorage`, under its mutex. What has no docstring is described in
    `HeldFile`.

    Attributes:
        is_completed: Whether it was brought from its log what a power cut had taken.
    """

    is_completed = False
    _links = 0

    def make_durable(self) -> None:
        """Make durable what was appended, in the log alone when another program has written the
        document since: then whoever looks at it next does the rest."""
        known = self.known()
        if known is None or not self.is_unsettled:
            return
        try:
            if known.doubt != "bytes":
                # First: what a checkpoint counts that a power cut takes is found in the log.
                self.flush_log()
            known = self.look()
            if known is None:
                return
            if known.doubt == "bytes":
                data = whole_files.pread_all(
                    self.sys, self._mutex.document_fd, known.signature.size
                )
                self.replace(known.signature, data, None, [])
            elif known.doubt:
                self.flush(known)
            else:
                flushed = self._flush_document()
                if flushed is not None:
                    self.set_checkpoint(known, flushed, is_other=False)
        except OSError as error:
            raise whole_files.failure(error, self.path, "flush") from error

    def close(self) -> None:
        """Close the document, which otherwise stays open for the next holder of its mutex in this
        process.
        """
        fd, self._mutex.document_fd = self._mutex.document_fd, -1
        if fd >= 0:
            self.sys.close(fd)

    def _open(self) -> os.stat_result:
        self.close()
        self._mutex.document_fd, status = self.storage.open(self.path, self.storage.document_flags)
        self._links = status.st_nlink
        return status

    def look(self) -> Known | None:
        """The document, when it is as the store left it; else None. Costs reading the header of its
        note.
        """
        known = self.known()
        if known is None:
            return None
        if self._mutex.document_fd >= 0:
            # Whatever is done to the path touches the inode's ctime, when the path named this inode
            # before.
            status = self.sys.fstat(self._mutex.document_fd)
            if SIGNATURE(status) == known.signature and status.st_nlink:
                self._links = status.st_nlink
                return known
        with whole_files.naming(self.path, "open"), suppress(FileNotFoundError):
            return known if whole_files.signature(self._open()) == known.signature else None
        return None

    @property
    def is_noted(self) -> bool:
        return self.known() is not None

    @property
    def is_interrupted(self) -> bool:
        return self.under_way

    def is_as_left(self) -> bool:
        return self.look() is not None

    def take_in(self, mend: Callable[[bytes], Mended | None] | None = None) -> Signature:
        return external_edits.take_in(self, mend=mend).signature

    def mended(self, data: bytes, signature: Signature) -> Mended | None:
        return external_edits.mendable(self, data, signature)

    def put(
        self,
        expected: Signature | None,
        data: bytes,
        records: list[bytes],
        *,
        canonical: bool = True,
    ) -> str:
        return self.replace(expected, data, survey(data) if canonical else None, records).tag

    def read(self) -> tuple[bytes, Signature] | None:
        with whole_files.naming(self.path, "read"), suppress(FileNotFoundError):
            status = self._open()
            data = whole_files.pread_all(self.sys, self._mutex.document_fd, status.st_size)
            return data, whole_files.signature(status)
        return None

    def head(self, known: Known) -> bytes:
        """The bytes before `context`, as a JSON document of its own. Costs reading the head."""
        anatomy = self._anatomy(known)
        head = head_of(
            whole_files.pread_all(self.sys, self._mutex.document_fd, anatomy.context + 64)
        )
        if head is None:
            self.distrust(known.doubt)
            raise Interfered
        return head

    def history(self, known: Known, start: int, end: int | None = None) -> bytes:
        """The bytes of `history` between two offsets in the file, by default to the end of its last
        entry.

        Raises `Interfered`. Costs reading what is asked for.
        """
        size = (self._anatomy(known).tail if end is None else end) - start
        data = whole_files.pread_all(self.sys, self._mutex.document_fd, size, start)
        if len(data) != size:
            self.distrust(known.doubt)
            raise Interfered
        return data

    def records(self) -> list[list[bytes]]:
        """The records of a write are durable before it touches the document, and are taken out
        again when it fails and did not change the document; those of one that was interrupted stay.
        Costs reading the log."""
        with whole_files.naming(self.path, "read the log of"):
            return self.logged()

    def adopt(
        self, signature: Signature, anatomy: Anatomy | None, records: list[bytes], newest: str
    ) -> Known:
        """Take the file as it is for known.

        Args:
            signature: The file's signature.
            anatomy: Its anatomy, None when it isn't canonical.
            records: What is to be remembered of it, if anything is remembered of the document.
            newest: The latest `updatedAt` that it is known to have had.
        """
        before = self.known()
        doubt = (
            "bytes"
            if self.under_way or (before is not None and before.doubt == "bytes")
            else "name"
        )
        if doubt == "bytes":
            anatomy = None  # So that the next write writes every byte anew.
        if before is not None and before.doubt == "restored":
            with whole_files.naming(self.path, "flush"), self._heeding_failed_flush():
                whole_files.sync_directory(self.sys, os.path.dirname(self.path))
            doubt = doubt if doubt == "bytes" else ""
        with whole_files.naming(self.path, "log a change of"):
            raw = (
                self.sys.pread(self._mutex.document_fd, WIDTH, anatomy.updated_at)
                if anatomy
                else b""
            )
            self.log_remark(records)
        stamp = raw.decode("ascii", "replace")
        return self.note_down(
            Known(signature, anatomy, new_tag(), stamp, self.storage.boot, doubt, newest)
        )

    def rewrite_records(self, writes: list[list[bytes]]) -> None:
        """Remember these writes and no others, durably; nothing, when there are none."""
        with whole_files.naming(self.path, "rewrite the log of"):
            if writes:
                self.rewrite_log(writes)
            else:
                self.drop_log()

    def _refused(self, error: OSError, doing: str) -> CapsuleError:
        """The error for a write that did not change the document."""
        if not self.withdraw():
            doing = _NOT_UNDONE % doing
        return whole_files.failure(error, self.path, doing)

    def _done_whole(
        self, known: Known, now: Signature, anatomy: Anatomy | None, tag: str, stamp: str, time: str
    ) -> Known:
        """The document as a write left it that put a durable file in its place, noted."""
        newest = max(known.newest, known.stamp, stamp)
        done = Known(now, anatomy, tag, stamp, self.storage.boot, "", newest, time)
        self.note_down(done._replace(doubt="name"))  # Until the log says what file it is.
        with whole_files.naming(self.path, "log a change of"):
            self.set_checkpoint(done, Flushed(anatomy.tail if anatomy else -1), is_other=True)
        self._owes_flush = False
        return done

    def _anatomy(self, known: Known) -> Anatomy:
        if known.anatomy is None:
            raise ValueError(f"{self.path} has another layout: it can only be replaced")
        return known.anatomy

    def splice(
        self, known: Known, entries: list[bytes], stamp: str, records: list[bytes], time: str = ""
    ) -> Known:
        """Append entries, of a time if that is known, in place, and overwrite `updatedAt`.

        Raises `Interfered`, `StorageFailed`. Costs four pwrites, whatever the file's size.
        """
        anatomy = known.anatomy or self._anatomy(known)
        if self.storage.replaces_on_append or self._links > 1:
            head, at = (
                whole_files.pread_all(self.sys, self._mutex.document_fd, anatomy.context),
                anatomy.updated_at,
            )
            head = head[:at] + stamp.encode() + head[at + WIDTH :]
            return self.rehead(known._replace(time=time), head, entries, records)
        if known.doubt:
            known = self.flush(known)
        try:
            self.log_write(records)
            signature, after = splice(
                self.sys, self._mutex.document_fd, self.path, known, anatomy, entries, stamp
            )
        except Overtaken:
            self.distrust(known.doubt, is_done=True)
            raise
        except Interfered:
            self.distrust(known.doubt)
            raise
        except NotAsItWas as error:
            self.distrust(
                known.doubt
            )  # Its line stays in the log: whoever finds it there completes what is torn.
            raise whole_files.failure(error, self.path, _NOT_UNDONE % "append to") from error
        except OSError as error:
            raise self._refused(error, "append to") from error
        newest = max(known.newest, known.stamp, stamp)
        return self.note_down(
            Known(signature, after, known.tag, stamp, self.storage.boot, "", newest, time)
        )

    def flush(self, known: Known) -> Known:
        """Make the document durable, bytes and name, as it is. Raises `Interfered`,
        `StorageFailed`.
        """
        with whole_files.naming(self.path, "flush"):
            try:
                if whole_files.signature(self._open()) != known.signature:
                    raise Interfered
            except (
                FileNotFoundError
            ):  # An editor that moves the old version away first, and puts its own there next.
                raise Interfered from None
            with self._heeding_failed_flush():
                whole_files.flush(self.sys.fsync, self._mutex.document_fd)
                whole_files.sync_directory(self.sys, os.path.dirname(self.path))
            flushed = Flushed(known.anatomy.tail if known.anatomy else -1)
            return self.set_checkpoint(known._replace(doubt=""), flushed, is_other=True)

    def distrust(self, doubt: str, *, is_done: bool = False) -> None:
        """Have the next holder read the whole file, and write it anew after a failed flush.

        `is_done` says whether the write that was begun is in the file all the same.
        """
        note = self.note_down if is_done else self.write_note
        note(Known(Signature(0, 0, 0, 0), None, new_tag(), "", self.storage.boot, doubt))
        self.close()

    def rehead(
        self,
        known: Known,
        head: bytes,
        entries: list[bytes],
        records: list[bytes],
        context: Iterable[bytes] | None = None,
    ) -> Known:
        """Write a new head, and a new context if one is given as `Rehead` takes it, and append
        entries, in a new file.

        Raises `Interfered`, `StorageFailed`. Costs copying the file in the kernel, and reading the
        context it replaces.
        """
        version = Rehead(
            self.sys, self._mutex.document_fd, self._anatomy(known), head, entries, context
        )
        with whole_files.naming(self.path, "log a change of"):
            self.log_write(records)
        try:
            signature = self._put(known.signature, version.write)
        except Interfered:
            self.distrust(known.doubt)
            raise
        stamp = head[version.after.updated_at :][:WIDTH].decode("ascii")
        return self._done_whole(known, signature, version.after, new_tag(), stamp, known.time)

    def replace(
        self, expected: Signature | None, data: bytes, anatomy: Anatomy | None, records: list[bytes]
    ) -> Known:
        """Write the whole document. Costs writing it.

        Args:
            expected: What the caller decided upon; None: there must be no file, and what is
                remembered of one that had this id is dropped.
            data: The document.
            anatomy: Its anatomy, None when it isn't canonical.
            records: What is to be remembered of it; none where nothing is remembered of a new
                document.
        """
        before = self.known()
        if expected is None:
            if self.storage.exists(self.kind, self.id):
                raise Interfered
            before, records = None, []
            with whole_files.naming(self.path, "drop the log of"):
                self.drop_log()
        with whole_files.naming(self.path, "log a change of"):
            self.log_write(records)
        signature = self._put(expected, lambda fd: whole_files.pwrite_all(self.sys, fd, data, 0))
        stamp = data[anatomy.updated_at :][:WIDTH].decode("ascii") if anatomy else ""
        return self._done_whole(
            before or Known(signature, None, "", "", "", ""),
            signature,
            anatomy,
            new_tag(),
            stamp,
            "",
        )

    def _put(self, expected: Signature | None, write: Callable[[int], None]) -> Signature:
        """Write a new version beside the document and give it its name; the signature it
        has there.
        """
        layout = self.storage.layout
        temporary = layout.temporary(self.kind, self.id)
        like = None if expected is None else self.path
        written_new = partial(
            whole_files.write_new, self.sys, temporary, layout.file_mode, write, like=like
        )
        try:
            try:
                fd = written_new()
            except FileExistsError:
                self.storage.clear_temporary(self.kind, self.id)
                fd = written_new()
            except FileNotFoundError:
                layout.ensure(self.sys, layout.directory(self.kind, self.id))
                fd = written_new()
        except OSError as error:
            raise self._refused(error, "write") from error
        except BaseException:
            self.withdraw()
            raise
        try:
            with whole_files.naming(self.path, "put a new version in place of"):
                written = whole_files.signature(self.sys.fstat(fd))
                whole_files.put_in_place(self.sys, temporary, self.path, expected)
                # The rename touched ctime, and nothing else: what else differs, an editor has done
                # since.
                signature = written._replace(ctime_ns=self.sys.fstat(fd).st_ctime_ns)
        except BaseException as error:
            if isinstance(error, Interfered):
                self.withdraw()
            with suppress(OSError):
                self.sys.close(fd)
            self.close()  # What lies at the path is for the next look to find out.
            if isinstance(error.__cause__, FlushFailed):
                self.distrust_all()
            raise
        # From here on the new file is the document, whatever is done to it next under this mutex.
        self.close()
        self._mutex.document_fd, self._links = fd, 1
        return signature

    def is_torn(self, signature: Signature) -> bool:
        """Whether a writer died in the file of this signature. To be asked once the records were
        read.

        A writer that lives says so when an editor was in its way, which may still be saving.
        """
        known = self.known()
        return self.under_way and known is not None and known.signature.inode == signature.inode

    def repair(self, data: bytes, signature: Signature, mended: bytes) -> str:
        """Put a mended file in place of the damaged one, which goes to the quarantine; its path
        there.
        """
        kept = self.quarantine(data, "torn")
        self._put(signature, lambda fd: whole_files.pwrite_all(self.sys, fd, mended, 0))
        return kept

    def quarantine(self, data: bytes, reason: str) -> str:
        with whole_files.naming(self.path, "keep a copy of"):
            return self.storage.keeping.store(data, QUARANTINE, self.kind, self.id, reason)

    def delete(self) -> Trashed:
        with whole_files.naming(self.path, "delete"):
            whole_files.ensure_regular(self.sys, self.path)
            self.make_durable()
            path = self.storage.keeping.move(self.path, TRASH, self.kind, self.id)
        trashed = self.storage.keeping.trashed_as(os.path.basename(path))
        with suppress(
            OSError
        ):  # Without this record the log is dropped when the document is restored.
            self.log_remark([deleted_record(trashed.token)])
        self.forget_note()
        self.close()
        return trashed

    def keep(self, kind: str, data: bytes) -> Trashed:
        """Put bytes into the trash, as a document of `kind` with this one's id."""
        with whole_files.naming(self.path, "keep a copy of"):
            path = self.storage.keeping.store(data, TRASH, kind, self.id)
        return self.storage.keeping.trashed_as(os.path.basename(path))

    def forget(self) -> None:
        """Forget a document that is gone: its note, and its log."""
        self.rewrite_records([])
        self.forget_note()
        self.close()

    def restore(self, token: str) -> None:
        """Move the document back from the trash. Raises `Refused` when its place is taken."""
        with whole_files.naming(self.path, "restore"):
            try:
                if self.storage.exists(self.kind, self.id):
                    raise FileExistsError
                if self.logged()[-1:] != [[deleted_record(token)]]:
                    self.drop_log()  # It is of another document that had this id.
                # Whoever notices the file waits for the mutex, as it is none of the note's, and
                # learns whose it is.
                self.distrust("restored")
                self.storage.keeping.put_back(token, self.path)
            except FileExistsError:
                reason = f"{self.path} is there already; rename it or delete it, then restore again"
                raise Refused(reason, path=self.path) from None
        self.close()
