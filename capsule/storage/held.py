"""A document under its mutex: looked at, read, and written in the three ways there are.

What must stay true: every write is durable before its note says so; a note that can't be written costs the next
one a look at the whole file, never an acknowledged write; and a new version is decided upon a signature, which is
checked again at the moment it takes its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from capsule.errors import CapsuleError, Refused
from capsule.format.anatomy import CONTEXT_END_BYTES, Anatomy, context_end, head_of, moved, reheaded, spliced
from capsule.storage import files, note
from capsule.storage.interface import Interfered, Known, Signature, Trashed
from capsule.storage.keeping import QUARANTINE, TRASH
from capsule.storage.mutex import Mutex
from capsule.storage.splice import Unflushed, splice, stamp_in_place
from capsule.timestamps import WIDTH

if TYPE_CHECKING:
    from capsule.storage.engine import FileStorage

__all__ = ["HeldDocument"]

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
        self._links = found.st_nlink
        return found

    def look(self) -> Known | None:
        """See `Held.look`. Costs reading the note's header; nothing of the document is read."""
        known = self._noted()
        if known is None:
            return None
        if self._mutex.document_fd >= 0:
            # Whatever is done to the path touches the inode's ctime, when the path named this inode before.
            found = self._sys.fstat(self._mutex.document_fd)
            if files.signature(found) == known.signature and found.st_nlink:
                self._links = found.st_nlink
                return known
        try:
            found = self._open()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise files.failure(error, self.path, "open") from error
        return known if files.signature(found) == known.signature else None

    def _noted(self) -> Known | None:
        """What the note's header says; one that was read or written here last is not decoded again."""
        mutex = self._mutex
        size = mutex.size
        if size < note.HEADER_BYTES:
            return None
        raw = self._sys.pread(mutex.fd, note.HEADER_BYTES, size - note.HEADER_BYTES)
        if mutex.memo is not None and mutex.memo[0] == raw:
            return mutex.memo[1]
        known = note.decode_header(raw)
        if known is None or known.boot != self._storage.boot:
            return None
        mutex.memo = (raw, known)
        return known

    def read(self) -> tuple[bytes, Signature] | None:
        """See `Held.read`."""
        try:
            found = self._open()
            return files.pread_all(self._sys, self._fd, found.st_size), files.signature(found)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise files.failure(error, self.path, "read") from error

    def head(self, known: Known) -> bytes:
        """See `Held.head`. Costs reading the head."""
        anatomy = self._anatomy(known)
        head = head_of(files.pread_all(self._sys, self._fd, anatomy.context + 64))
        if head is None:
            self._distrust(known.doubt)
            raise Interfered
        return head

    def history(self, known: Known, start: int, end: int | None = None) -> bytes:
        """See `Held.history`. Costs reading what is asked for."""
        size = (self._anatomy(known).tail if end is None else end) - start
        data = files.pread_all(self._sys, self._fd, size, start)
        if len(data) != size:
            self._distrust(known.doubt)
            raise Interfered
        return data

    def rebooted(self) -> bool:
        """See `Held.rebooted`."""
        return self._noted() is None

    def records(self) -> list[bytes]:
        """See `Held.records`."""
        return note.read_records(self._sys, self._mutex.fd, self._mutex.size)

    def adopt(self, signature: Signature, anatomy: Anatomy | None, records: list[bytes]) -> Known:
        """See `Held.adopt`."""
        before = self._noted()
        if before is not None and before.doubt == "bytes":
            anatomy = None  # So that the next write writes every byte anew.
        stamp = self._sys.pread(self._fd, WIDTH, anatomy.updated_at).decode("ascii", "replace") if anatomy else ""
        doubt = "bytes" if before is not None and before.doubt == "bytes" else "name"
        if before is not None and before.doubt == "restored":
            with files.naming(self.path, "flush"):
                files.sync_directory(self._sys, os.path.dirname(self.path))
            doubt = ""
        known = Known(signature, anatomy, note.new_tag(), stamp, self._storage.boot, doubt)
        return self._write_note(known, records, keep=False)

    def _durable(self, signature: Signature, anatomy: Anatomy | None, tag: str, stamp: str) -> Known:
        return Known(signature, anatomy, tag, stamp, self._storage.boot, "")

    def _write_note(self, known: Known, records: list[bytes], *, keep: bool) -> Known:
        """Log the records and write the header; a full disk costs the note, not the write before it."""
        mutex = self._mutex
        try:
            if keep:
                mutex.size, raw = note.add(self._sys, mutex.fd, mutex.size, known, records)
            else:
                mutex.size, raw = note.rewrite(self._sys, mutex.fd, known, records)
            mutex.memo = (raw, known)
        except OSError:
            mutex.memo = None
        return known

    def _anatomy(self, known: Known) -> Anatomy:
        if known.anatomy is None:
            raise ValueError(f"{self.path} has another layout: it can only be replaced")
        return known.anatomy

    def splice(self, known: Known, entries: list[bytes], stamp: str, records: list[bytes]) -> Known:
        """See `Held.splice`. Costs two pwrites and an fdatasync, whatever the file's size."""
        anatomy = self._anatomy(known)
        if self._storage.replaces_on_append or self._links > 1:
            return self._restamped(known, anatomy.updated_at, stamp, entries, records)
        inode = known.signature.inode
        try:
            if known.doubt:
                files.sync_directory(self._sys, os.path.dirname(self.path))
            stamps = known.stamp, stamp
            signature, after = splice(self._sys, self._fd, self.path, inode, anatomy, entries, stamps)
        except Interfered:
            self._distrust(known.doubt)
            raise
        except OSError as error:
            raise self._failed(error, "append to") from error
        return self._write_note(self._durable(signature, after, known.tag, stamp), records, keep=True)

    def _failed(self, error: OSError, doing: str) -> CapsuleError:
        """The error for a write in place that failed; after a flush that did, the file is not trusted any more."""
        if isinstance(error, Unflushed):
            self._distrust("bytes")
        return files.failure(error, self.path, doing)

    def flush(self) -> None:
        """See `Held.flush`."""
        with files.naming(self.path, "flush"):
            try:
                self._open()
            except FileNotFoundError:  # An editor that moves the old version away first, and puts its own there next.
                raise Interfered from None
            self._sys.fsync(self._fd)
            files.sync_directory(self._sys, os.path.dirname(self.path))

    def _distrust(self, doubt: str) -> None:
        """Have the next one look at the whole file, whatever its signature says; after a flush that failed also have
        it written anew, as a second flush proves nothing."""
        nothing = Known(Signature(0, 0, 0, 0), None, note.new_tag(), "", self._storage.boot, doubt)
        self._write_note(nothing, [], keep=True)
        self.close()

    def _restamped(self, known: Known, at: int, stamp: str, entries: list[bytes], records: list[bytes]) -> Known:
        """Overwrite a timestamp of the head, and append, in a new file."""
        head = files.pread_all(self._sys, self._fd, self._anatomy(known).context)
        return self.rehead(known, head[:at] + stamp.encode() + head[at + WIDTH :], entries, records)

    def restamp(self, known: Known, lock_stamp: str) -> Known:
        """See `Held.restamp`."""
        anatomy = self._anatomy(known)
        if self._storage.replaces_on_append or self._links > 1:
            return self._restamped(known, anatomy.lock_at, lock_stamp, [], [])
        inode = known.signature.inode
        try:
            signature = stamp_in_place(self._sys, self._fd, self.path, inode, anatomy, anatomy.lock_at, lock_stamp)
        except Interfered:
            self._distrust(known.doubt)
            raise
        except OSError as error:
            raise self._failed(error, "refresh the lock of") from error
        after = self._durable(signature, anatomy, note.new_tag(), known.stamp)._replace(doubt=known.doubt)
        return self._write_note(after, [], keep=True)

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
            files.pwrite_all(self._sys, fd, head, 0)
            at, to = old.context, len(head)
            if context is not None:
                at = self._behind_context(known)
                to = files.pour(self._sys, fd, context, to)
                after = moved(after, (to - len(head)) - (at - old.context))
            files.pwrite_all(self._sys, fd, block, files.copy_range(self._sys, self._fd, fd, at, old.tail, to))

        signature = self._put(known.signature, write)
        stamp = head[after.updated_at :][:WIDTH].decode("ascii")
        return self._write_note(self._durable(signature, after, note.new_tag(), stamp), records, keep=True)

    def _behind_context(self, known: Known) -> int:
        """The offset of the line behind `context`, wherever that ends."""
        old = self._anatomy(known)
        at, rest = old.context, b""
        while at < old.history:
            data = files.pread_all(self._sys, self._fd, min(_CHUNK, old.history - at), at)
            if not data:
                break
            # The text is one line, and most of the pieces lie within it.
            end = context_end(rest + data, first=at == old.context) if b"\n" in rest or b"\n" in data else -1
            if end >= 0:
                return at - len(rest) + end
            at, rest = at + len(data), (rest + data[-CONTEXT_END_BYTES:])[-CONTEXT_END_BYTES:]
        self._distrust(known.doubt)
        raise Interfered

    def replace(
        self, expected: Signature | None, data: bytes, anatomy: Anatomy | None, records: list[bytes], *, keep: bool
    ) -> Known:
        """See `Held.replace`. Costs writing the document."""
        signature = self._put(expected, lambda fd: files.pwrite_all(self._sys, fd, data, 0))
        stamp = data[anatomy.updated_at :][:WIDTH].decode("ascii") if anatomy else ""
        return self._write_note(self._durable(signature, anatomy, note.new_tag(), stamp), records, keep=keep)

    def _put(self, expected: Signature | None, write: Callable[[int], None]) -> Signature:
        """Write a new version beside the document and give it its name; the signature it has there."""
        layout = self._storage.layout
        temporary = layout.temporary(self._kind, self.id)
        with files.naming(self.path, "write"):
            mode, like = layout.file_mode, None if expected is None else self.path
            try:
                fd = files.write_new(self._sys, temporary, mode, write, like=like)
            except FileExistsError:
                self._storage.clear_temporary(self._kind, self.id)
                fd = files.write_new(self._sys, temporary, mode, write, like=like)
            except FileNotFoundError:
                layout.ensure_directory(self._sys, layout.documents(self._kind))
                fd = files.write_new(self._sys, temporary, mode, write, like=like)
            try:
                written = files.signature(self._sys.fstat(fd))
                files.put_in_place(self._sys, temporary, self.path, expected)
                # The rename touched ctime, and nothing else: what else differs, an editor has done since.
                signature = written._replace(ctime_ns=self._sys.fstat(fd).st_ctime_ns)
            except BaseException:
                with suppress(OSError):
                    self._sys.close(fd)
                self.close()  # What lies at the path is for the next look to find out.
                raise
            # From here on the new file is the document, whatever is done to it next under this mutex.
            self.close()
            self._mutex.document_fd, self._links = fd, 1
            return signature

    def repair(self, data: bytes, signature: Signature, accepts: Callable[[bytes], bool]) -> str | None:
        """See `Held.repair`."""
        from capsule.storage import repair

        mended = repair.mend(data)
        if mended is None or not accepts(mended.data):
            return None
        kept = self.quarantine(data, "torn")
        self._put(signature, lambda fd: files.pwrite_all(self._sys, fd, mended.data, 0))
        return f"{mended.what}; the damaged original is kept as {kept}"

    def quarantine(self, data: bytes, reason: str) -> str:
        """See `Held.quarantine`."""
        with files.naming(self.path, "keep a copy of"):
            return self._storage.keeping.store(data, QUARANTINE, self._kind, self.id, reason)

    def delete(self) -> Trashed:
        """See `Held.delete`."""
        with files.naming(self.path, "delete"):
            files.ensure_regular(self._sys, self.path)
            path = self._storage.keeping.move(self.path, TRASH, self._kind, self.id)
        self.forget()
        return self._storage.keeping.trashed_as(os.path.basename(path))

    def keep(self, kind: str, data: bytes) -> Trashed:
        """See `Held.keep`."""
        with files.naming(self.path, "keep a copy of"):
            path = self._storage.keeping.store(data, TRASH, kind, self.id)
        return self._storage.keeping.trashed_as(os.path.basename(path))

    def drop_kept(self, kept: Trashed) -> None:
        """See `Held.drop_kept`."""
        with files.naming(kept.path, "drop"):
            self._storage.keeping.drop(kept.token)

    def forget(self) -> None:
        """Drop the note: nothing is known of the document any more."""
        with suppress(OSError):
            self._sys.ftruncate(self._mutex.fd, 0)
        self._mutex.size, self._mutex.memo = 0, None
        self.close()

    def restore(self, token: str) -> None:
        """See `Held.restore`."""
        with files.naming(self.path, "restore"):
            try:
                with suppress(FileNotFoundError):
                    self._sys.lstat(self.path)
                    raise FileExistsError
                # Whoever notices the file waits for the mutex, as it is none of the note's, and learns whose it is.
                nothing = Known(Signature(0, 0, 0, 0), None, note.new_tag(), "", self._storage.boot, "restored")
                self._write_note(nothing, [], keep=False)
                self._storage.keeping.put_back(token, self.path)
            except FileExistsError:
                raise Refused(
                    f"{self.path} is there already; rename it or delete it, then restore again", path=self.path
                ) from None
