"""A document under its mutex: looked at, read, and written in the three ways there are.

What must stay true: a write's records are in the log before the document is touched, and both are durable before its
note says so; a header that can't be written costs the next one a look at the whole file, never an acknowledged write;
and a new version is decided upon a signature, which is checked again at the moment it takes its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from capsule.engines.files.disk import whole_files
from capsule.engines.files.disk.log import deleted_record
from capsule.engines.files.disk.mutex import Mutex
from capsule.engines.files.disk.trash import QUARANTINE, TRASH
from capsule.engines.files.note import Note, new_tag
from capsule.engines.files.protocols import Interfered, Known, Signature, Splice, Trashed
from capsule.engines.files.splice import Unflushed, splice, stamp_in_place
from capsule.errors import CapsuleError, Refused
from capsule.format.anatomy import CONTEXT_END_BYTES, Anatomy, context_end, head_of, moved, reheaded, spliced
from capsule.timestamps import WIDTH

if TYPE_CHECKING:
    from capsule.engines.files.storage import FileStorage

#: An old context is looked through in pieces of this size, in bytes, which stay in the processor's cache.
_CHUNK = 256 << 10


class HeldDocument:
    """One document of a `FileStorage`, from the taking of its mutex to the giving back."""

    def __init__(self, storage: FileStorage, kind: str, id: str, path: str, mutex: Mutex) -> None:
        self.id = id
        self.path = path
        self._kind = kind
        self._storage = storage
        self._sys = storage.sys
        self._mutex = mutex
        self._links = 0
        self._device = -1
        self._note = Note(self._sys, mutex, storage.logs, storage.boot)

    @property
    def _fd(self) -> int:
        return self._mutex.document_fd

    def close(self) -> None:
        """Close the document, which is otherwise kept open for the next one who holds its mutex here."""
        fd, self._mutex.document_fd = self._mutex.document_fd, -1
        if fd >= 0:
            self._sys.close(fd)

    def _open(self) -> os.stat_result:
        self.close()
        self._mutex.document_fd, found = self._storage.open(self.path, self._storage.document_flags)
        self._links, self._device = found.st_nlink, found.st_dev
        return found

    def begin_log_with(self, records: Callable[[], list[bytes]]) -> None:
        """See `Held.begin_log_with`."""
        self._note.base = records

    def look(self) -> Known | None:
        """See `Held.look`. Costs reading the note's header; nothing of the document is read."""
        known = self._note.known()
        if known is None:
            return None
        if self._mutex.document_fd >= 0:
            # Whatever is done to the path touches the inode's ctime, when the path named this inode before.
            found = self._sys.fstat(self._mutex.document_fd)
            if whole_files.signature(found) == known.signature and found.st_nlink:
                self._links, self._device = found.st_nlink, found.st_dev
                return known
        try:
            found = self._open()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise whole_files.failure(error, self.path, "open") from error
        return known if whole_files.signature(found) == known.signature else None

    def read(self) -> tuple[bytes, Signature] | None:
        """See `Held.read`."""
        try:
            found = self._open()
            return whole_files.pread_all(self._sys, self._fd, found.st_size), whole_files.signature(found)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise whole_files.failure(error, self.path, "read") from error

    def head(self, known: Known) -> bytes:
        """See `Held.head`. Costs reading the head."""
        anatomy = self._anatomy(known)
        head = head_of(whole_files.pread_all(self._sys, self._fd, anatomy.context + 64))
        if head is None:
            self._distrust(known.doubt)
            raise Interfered
        return head

    def history(self, known: Known, start: int, end: int | None = None) -> bytes:
        """See `Held.history`. Costs reading what is asked for."""
        size = (self._anatomy(known).tail if end is None else end) - start
        data = whole_files.pread_all(self._sys, self._fd, size, start)
        if len(data) != size:
            self._distrust(known.doubt)
            raise Interfered
        return data

    def was_known(self) -> bool:
        """See `Held.was_known`."""
        return self._note.known() is not None

    def records(self) -> list[list[bytes]]:
        """See `Held.records`. Costs reading the log."""
        with whole_files.naming(self.path, "read the log of"):
            return self._note.records()

    def adopt(self, signature: Signature, anatomy: Anatomy | None, records: list[bytes], newest: str) -> Known:
        """See `Held.adopt`."""
        before = self._note.known()
        doubt = "bytes" if self._note.under_way or (before is not None and before.doubt == "bytes") else "name"
        if doubt == "bytes":
            anatomy = None  # So that the next write writes every byte anew.
        if before is not None and before.doubt == "restored":
            with whole_files.naming(self.path, "flush"):
                whole_files.sync_directory(self._sys, os.path.dirname(self.path))
            doubt = doubt if doubt == "bytes" else ""
        with whole_files.naming(self.path, "log a change of"):
            stamp = self._sys.pread(self._fd, WIDTH, anatomy.updated_at).decode("ascii", "replace") if anatomy else ""
            self._note.remark(records)
        return self._note.write(Known(signature, anatomy, new_tag(), stamp, self._storage.boot, doubt, newest))

    def rewrite_records(self, writes: list[list[bytes]]) -> None:
        """See `Held.rewrite_records`."""
        with whole_files.naming(self.path, "rewrite the log of"):
            if writes:
                self._note.rewrite(writes)
            else:
                self._note.drop_log()

    def _begin(self, records: list[bytes], *, land: bool = True) -> None:
        """Log what is about to be written; `land`: the drive has it on return."""
        try:
            self._note.begin(records, self._device)
            if land:
                self._note.land()
        except OSError as error:
            raise self._refused(error, "log a change of") from error

    def _refused(self, error: OSError, doing: str) -> CapsuleError:
        """The error for a write that did not change the document."""
        if not self._note.withdraw():
            doing = f"undo what it began to {doing}, so that it may still appear in"
        return whole_files.failure(error, self.path, doing)

    def _done(self, known: Known, found: Signature, anatomy: Anatomy | None, tag: str, stamp: str, time: str) -> Known:
        """The document as a durable write left it, noted."""
        newest = max(known.newest, known.stamp, stamp)
        return self._note.write(Known(found, anatomy, tag, stamp, self._storage.boot, "", newest, time))

    def _anatomy(self, known: Known) -> Anatomy:
        if known.anatomy is None:
            raise ValueError(f"{self.path} has another layout: it can only be replaced")
        return known.anatomy

    def splice(self, known: Known, entries: list[bytes], stamp: str, records: list[bytes], time: str = "") -> Known:
        """See `Held.splice`. Costs three pwrites and an fdatasync, whatever the file's size."""
        anatomy = known.anatomy or self._anatomy(known)
        if self._storage.replaces_on_append or self._links > 1:
            return self._restamped(known._replace(time=time), anatomy.updated_at, stamp, entries, records)
        if known.doubt:
            with whole_files.naming(os.path.dirname(self.path), "flush"):
                whole_files.sync_directory(self._sys, os.path.dirname(self.path))
        self._begin(records, land=False)
        try:
            signature, after = splice(self._sys, self._fd, self.path, known, anatomy, entries, stamp, self._note.land)
        except Interfered:
            self._distrust(known.doubt)
            raise
        except OSError as error:
            raise self._failed(error, "append to") from error
        return self._done(known, signature, after, known.tag, stamp, time)

    def _failed(self, error: OSError, doing: str) -> CapsuleError:
        """The error for a write in place that failed; after a flush that did, the file is not trusted any more."""
        if isinstance(error, Unflushed):
            self._distrust("bytes")
            return whole_files.failure(error, self.path, f"{doing} and flush")
        return self._refused(error, doing)

    def flush(self, known: Known) -> Known:
        """See `Held.flush`."""
        with whole_files.naming(self.path, "flush"):
            try:
                if whole_files.signature(self._open()) != known.signature:
                    raise Interfered
            except FileNotFoundError:  # An editor that moves the old version away first, and puts its own there next.
                raise Interfered from None
            self._sys.fsync(self._fd)
            whole_files.sync_directory(self._sys, os.path.dirname(self.path))
        return self._note.write(known._replace(doubt=""))

    def _distrust(self, doubt: str) -> None:
        """Have the next one look at the whole file; after a flush that failed also have it written anew."""
        self._note.doubt(Known(Signature(0, 0, 0, 0), None, new_tag(), "", self._storage.boot, doubt))
        self.close()

    def _restamped(self, known: Known, at: int, stamp: str, entries: list[bytes], records: list[bytes]) -> Known:
        """Overwrite a timestamp of the head, and append, in a new file."""
        head = whole_files.pread_all(self._sys, self._fd, self._anatomy(known).context)
        return self.rehead(known, head[:at] + stamp.encode() + head[at + WIDTH :], entries, records)

    def restamp(self, known: Known, lock_stamp: str) -> Known:
        """See `Held.restamp`."""
        anatomy = self._anatomy(known)
        if self._storage.replaces_on_append or self._links > 1:
            return self._restamped(known, anatomy.lock_at, lock_stamp, [], [])
        try:
            signature = stamp_in_place(self._sys, self._fd, self.path, known, anatomy.lock_at, lock_stamp)
        except Interfered:
            self._distrust(known.doubt)
            raise
        except OSError as error:
            raise self._failed(error, "refresh the lock of") from error
        return self._note.write(known._replace(signature=signature, tag=new_tag()))

    def rehead(
        self,
        known: Known,
        head: bytes,
        entries: list[bytes],
        records: list[bytes],
        context: Iterable[bytes] | None = None,
    ) -> Known:
        """See `Held.rehead`. Costs copying the file, in the kernel; for a new context also reading the old one."""
        old = self._anatomy(known)
        new = reheaded(old, head)
        if new is None:
            raise ValueError("not the head of a capsule")
        block, after = spliced(new, entries)

        def write(fd: int) -> None:
            nonlocal after
            whole_files.pwrite_all(self._sys, fd, head, 0)
            at, to = old.context, len(head)
            if context is not None:
                at = self._behind_context(known)
                to = whole_files.pour(self._sys, fd, context, to)
                after = moved(after, (to - len(head)) - (at - old.context))
            to = whole_files.copy_range(self._sys, self._fd, fd, at, old.tail, to)
            whole_files.pwrite_all(self._sys, fd, block, to)

        self._begin(records)
        signature = self._put(known.signature, write)
        return self._done(
            known, signature, after, new_tag(), head[after.updated_at :][:WIDTH].decode("ascii"), known.time
        )

    def _behind_context(self, known: Known) -> int:
        """The offset of the line behind `context`, wherever that ends."""
        old = self._anatomy(known)
        at, rest = old.context, b""
        while at < old.history:
            data = whole_files.pread_all(self._sys, self._fd, min(_CHUNK, old.history - at), at)
            if not data:
                break
            # The text is one line, and most of the pieces lie within it.
            end = context_end(rest + data, first=at == old.context) if b"\n" in rest or b"\n" in data else -1
            if end >= 0:
                return at - len(rest) + end
            at, rest = at + len(data), (rest + data[-CONTEXT_END_BYTES:])[-CONTEXT_END_BYTES:]
        self._distrust(known.doubt)
        raise Interfered

    def replace(self, expected: Signature | None, data: bytes, anatomy: Anatomy | None, records: list[bytes]) -> Known:
        """See `Held.replace`. Costs writing the document."""
        before = self._note.known()
        if expected is None:
            if self._storage.exists(self._kind, self.id):
                raise Interfered
            before, records = None, []
            with whole_files.naming(self.path, "drop the log of"):
                self._note.drop_log()
        self._begin(records)
        signature = self._put(expected, lambda fd: whole_files.pwrite_all(self._sys, fd, data, 0))
        stamp = data[anatomy.updated_at :][:WIDTH].decode("ascii") if anatomy else ""
        return self._done(before or Known(signature, None, "", "", "", ""), signature, anatomy, new_tag(), stamp, "")

    def _put(self, expected: Signature | None, write: Callable[[int], None]) -> Signature:
        """Write a new version beside the document and give it its name; the signature it has there."""
        layout = self._storage.layout
        temporary = layout.temporary(self._kind, self.id)
        try:
            mode, like = layout.file_mode, None if expected is None else self.path
            try:
                fd = whole_files.write_new(self._sys, temporary, mode, write, like=like)
            except FileExistsError:
                self._storage.clear_temporary(self._kind, self.id)
                fd = whole_files.write_new(self._sys, temporary, mode, write, like=like)
            except FileNotFoundError:
                layout.ensure_directory(self._sys, layout.documents(self._kind))
                fd = whole_files.write_new(self._sys, temporary, mode, write, like=like)
        except OSError as error:
            raise self._refused(error, "write") from error
        except BaseException:
            self._note.withdraw()
            raise
        try:
            with whole_files.naming(self.path, "put a new version in place of"):
                written = whole_files.signature(self._sys.fstat(fd))
                whole_files.put_in_place(self._sys, temporary, self.path, expected)
                # The rename touched ctime, and nothing else: what else differs, an editor has done since.
                signature = written._replace(ctime_ns=self._sys.fstat(fd).st_ctime_ns)
        except BaseException as error:
            if isinstance(error, Interfered):
                self._note.withdraw()
            with suppress(OSError):
                self._sys.close(fd)
            self.close()  # What lies at the path is for the next look to find out.
            raise
        # From here on the new file is the document, whatever is done to it next under this mutex.
        self.close()
        self._mutex.document_fd, self._links = fd, 1
        return signature

    def mended(
        self, data: bytes, signature: Signature, splices: list[Splice], *, asked: bool
    ) -> tuple[bytes, str] | None:
        """See `Held.mended`."""
        from capsule.engines.files import repair

        # Whoever saved it before the machine was started is done with it.
        is_left = asked or signature.mtime_ns < self._sys.booted_ns()
        # A writer died in it. One that lives says so when an editor was in its way, which may still be saving.
        known = self._note.known()
        is_torn = self._note.under_way and known is not None and known.signature.inode == signature.inode
        for place, splice_ in enumerate(splices):
            whole = repair.redo(data, splice_, cut=is_left or (place == 0 and is_torn))
            if whole is not None:
                return whole, "completed where a write was interrupted"
        return repair.mend(data) if is_left else None

    def repair(self, data: bytes, signature: Signature, mended: bytes) -> str:
        """See `Held.repair`."""
        kept = self.quarantine(data, "torn")
        self._put(signature, lambda fd: whole_files.pwrite_all(self._sys, fd, mended, 0))
        return kept

    def quarantine(self, data: bytes, reason: str) -> str:
        """See `Held.quarantine`."""
        with whole_files.naming(self.path, "keep a copy of"):
            return self._storage.keeping.store(data, QUARANTINE, self._kind, self.id, reason)

    def delete(self) -> Trashed:
        """See `Held.delete`."""
        with whole_files.naming(self.path, "delete"):
            whole_files.ensure_regular(self._sys, self.path)
            path = self._storage.keeping.move(self.path, TRASH, self._kind, self.id)
        trashed = self._storage.keeping.trashed_as(os.path.basename(path))
        with suppress(OSError):  # Without this record the log is dropped when the document is restored.
            self._note.remark([deleted_record(trashed.token)])
        self.forget()
        return trashed

    def keep(self, kind: str, data: bytes) -> Trashed:
        """See `Held.keep`."""
        with whole_files.naming(self.path, "keep a copy of"):
            path = self._storage.keeping.store(data, TRASH, kind, self.id)
        return self._storage.keeping.trashed_as(os.path.basename(path))

    def drop_kept(self, kept: Trashed) -> None:
        """See `Held.drop_kept`."""
        with whole_files.naming(kept.path, "drop"):
            self._storage.keeping.drop(kept.token)

    def forget(self) -> None:
        """Drop the header of the note: how the document is must be found out anew."""
        self._note.forget()
        self.close()

    def restore(self, token: str) -> None:
        """See `Held.restore`."""
        with whole_files.naming(self.path, "restore"):
            try:
                if self._storage.exists(self._kind, self.id):
                    raise FileExistsError
                if self._note.records()[-1:] != [[deleted_record(token)]]:
                    self._note.drop_log()  # It is of another document that had this id.
                # Whoever notices the file waits for the mutex, as it is none of the note's, and learns whose it is.
                self._distrust("restored")
                self._storage.keeping.put_back(token, self.path)
            except FileExistsError:
                what = f"{self.path} is there already; rename it or delete it, then restore again"
                raise Refused(what, path=self.path) from None
        self.close()
