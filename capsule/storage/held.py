"""A document under its mutex: looked at, read, and written in the three ways there are.

What must stay true: every write is durable before its note says so; a note that can't be written costs the next
one a look at the whole file, never an acknowledged write; and a new version is decided upon a signature, which is
checked again at the moment it takes its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from capsule.errors import Refused
from capsule.format.anatomy import Anatomy, head_of, reheaded, spliced
from capsule.storage import files, note, repair
from capsule.storage.interface import Interfered, Known, Signature, Trashed
from capsule.storage.keeping import TRASH
from capsule.storage.splice import splice, stamp_in_place
from capsule.timestamps import WIDTH

if TYPE_CHECKING:
    from capsule.storage.engine import FileStorage

__all__ = ["HeldDocument"]


class HeldDocument:
    """One document of a `FileStorage`, from the taking of its mutex to the giving back."""

    def __init__(self, storage: FileStorage, kind: str, id: str, mutex_fd: int) -> None:
        self.id = id
        self.path = storage.layout.document(kind, id)
        self._kind = kind
        self._storage = storage
        self._sys = storage.sys
        self._mutex_fd = mutex_fd
        self._note: note.Note | None = None
        self._fd = -1
        self._links = 0

    def close(self) -> None:
        if self._fd >= 0:
            self._sys.close(self._fd)
            self._fd = -1

    def _open(self) -> os.stat_result:
        self.close()
        self._fd, found = files.open_document(self._sys, self.path, self._storage.document_flags)
        self._links = found.st_nlink
        return found

    def look(self) -> Known | None:
        """See `Held.look`. Costs reading the note's header; nothing of the document is read."""
        self._note = note.decode_header(self._sys.pread(self._mutex_fd, note.HEADER_BYTES, 0))
        if self._note is None:
            return None
        try:
            found = self._open()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise files.failure(error, self.path, "open") from error
        known = self._note.known
        return known if files.signature(found) == known.signature else None

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
            raise Interfered
        return head

    def stamp(self, known: Known) -> str:
        """See `Held.stamp`."""
        return self._sys.pread(self._fd, WIDTH, self._anatomy(known).updated_at).decode("ascii", "replace")

    def records(self) -> list[bytes]:
        """See `Held.records`."""
        if self._note is None:
            self._note = note.decode_header(self._sys.pread(self._mutex_fd, note.HEADER_BYTES, 0))
        return note.read_records(self._sys, self._mutex_fd, self._note.log) if self._note else []

    def adopt(self, signature: Signature, anatomy: Anatomy | None, records: list[bytes]) -> Known:
        """See `Held.adopt`."""
        return self._write_note(Known(signature, anatomy, note.new_tag()), records, keep=False)

    def _write_note(self, known: Known, records: list[bytes], *, keep: bool) -> Known:
        """Log the records and write the header; a full disk costs the note, not the write before it."""
        log = self._note.log if self._note else 0
        with suppress(OSError):
            if keep and self._note:
                for record in records:
                    log = note.add_record(self._sys, self._mutex_fd, log, record)
            else:
                log = note.write_records(self._sys, self._mutex_fd, records)
            note.write_note(self._sys, self._mutex_fd, known, log)
            self._note = note.Note(known, log)
        return known

    def _anatomy(self, known: Known) -> Anatomy:
        if known.anatomy is None:
            raise ValueError(f"{self.path} has another layout: it can only be replaced")
        return known.anatomy

    def splice(self, known: Known, entries: list[bytes], stamp: str, records: list[bytes]) -> Known:
        """See `Held.splice`. Costs two pwrites and an fdatasync, whatever the file's size."""
        anatomy = self._anatomy(known)
        if self._storage.replaces_on_append or self._links > 1:
            head = self._sys.pread(self._fd, anatomy.context, 0)
            at = anatomy.updated_at
            return self.rehead(known, head[:at] + stamp.encode() + head[at + WIDTH :], entries, records)
        try:
            signature, after = splice(self._sys, self._fd, self.path, anatomy, entries, stamp)
        except OSError as error:
            raise files.failure(error, self.path, "append to") from error
        return self._write_note(Known(signature, after, known.tag), records, keep=True)

    def restamp(self, known: Known, lock_stamp: str) -> Known:
        """See `Held.restamp`."""
        anatomy = self._anatomy(known)
        with files.naming(self.path, "refresh the lock of"):
            signature = stamp_in_place(self._sys, self._fd, self.path, anatomy, anatomy.lock_at, lock_stamp)
        return self._write_note(Known(signature, anatomy, note.new_tag()), [], keep=True)

    def rehead(self, known: Known, head: bytes, entries: list[bytes], records: list[bytes]) -> Known:
        """See `Held.rehead`. Costs copying the file, in the kernel."""
        old = self._anatomy(known)
        new = reheaded(old, head)
        if new is None:
            raise ValueError("not the head of a capsule")
        block, after = spliced(new, entries)

        def write(fd: int) -> None:
            files.pwrite_all(self._sys, fd, head, 0)
            at, to = old.context, len(head)
            while at < old.tail:
                copied = self._sys.copy(self._fd, fd, at, old.tail - at, to)
                if not copied:
                    raise Interfered
                at, to = at + copied, to + copied
            files.pwrite_all(self._sys, fd, block, to)

        signature = self._put(known.signature, write)
        return self._write_note(Known(signature, after, note.new_tag()), records, keep=True)

    def replace(
        self, expected: Signature | None, data: bytes, anatomy: Anatomy | None, records: list[bytes], *, keep: bool
    ) -> Known:
        """See `Held.replace`. Costs writing the document."""
        signature = self._put(expected, lambda fd: files.pwrite_all(self._sys, fd, data, 0))
        return self._write_note(Known(signature, anatomy, note.new_tag()), records, keep=keep)

    def _put(self, expected: Signature | None, write: Callable[[int], None]) -> Signature:
        """Write a new version beside the document and give it its name; the signature it has there."""
        layout = self._storage.layout
        temporary = layout.temporary(self._kind, self.id)
        with files.naming(self.path, "write"):
            mode = layout.file_mode
            if expected is not None:
                with suppress(FileNotFoundError):
                    mode = self._sys.lstat(self.path).st_mode & 0o777
            try:
                fd = files.write_new(self._sys, temporary, mode, write)
            except FileExistsError:
                self._storage.clear_temporary(self._kind, self.id)
                fd = files.write_new(self._sys, temporary, mode, write)
            except FileNotFoundError:
                layout.ensure_directory(self._sys, layout.documents(self._kind))
                fd = files.write_new(self._sys, temporary, mode, write)
            try:
                files.put_in_place(self._sys, temporary, self.path, expected)
                return files.signature(self._sys.fstat(fd))
            finally:
                self._sys.close(fd)

    def repair(self, data: bytes, signature: Signature) -> str | None:
        """See `Held.repair`."""
        mended = repair.mend(data)
        if mended is None:
            return None
        kept = self.quarantine(data, "torn")
        self._put(signature, lambda fd: files.pwrite_all(self._sys, fd, mended.data, 0))
        return f"{mended.what}; the damaged original is kept as {kept}"

    def quarantine(self, data: bytes, reason: str) -> str:
        """See `Held.quarantine`."""
        with files.naming(self.path, "keep a copy of"):
            return self._storage.keeping.quarantine(data, self._kind, self.id, reason)

    def delete(self) -> Trashed:
        """See `Held.delete`."""
        with files.naming(self.path, "delete"):
            path = self._storage.keeping.move(self.path, TRASH, self._kind, self.id)
        self.forget()
        token = os.path.basename(path)
        return next(trashed for trashed in self._storage.trash(self._kind) if trashed.token == token)

    def forget(self) -> None:
        """Drop the note: nothing is known of the document any more."""
        with suppress(OSError):
            self._sys.ftruncate(self._mutex_fd, 0)
        self._note = None

    def restore(self, token: str) -> None:
        """See `Held.restore`."""
        with files.naming(self.path, "restore"):
            try:
                self._storage.keeping.put_back(token, self.path)
            except FileExistsError:
                raise Refused(
                    f"{self.path} is there already; rename it or delete it, then restore again", path=self.path
                ) from None
        self.forget()
