"""A document under its mutex: the ways to read and write its file.

A splice (`primitives.splice`) appends in place. Any other change writes a new file beside the
document, flushes it, and renames it over the document. `LoggedDocument`, the base class, has the
state header and the log: the records of a write go into the log first, and the header records the
new version afterwards.

What must stay true:

- A write that fails leaves the document and the log as they were. If that is not certain, the
  header is invalidated or fits no file, so that the next holder compares the file with the log.
- A new version is flushed before it gets its name. It replaces only the version with the expected
  signature, which is checked again at that moment.

The module knows neither the meaning of a record nor conversations.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from capsule.disk import whole_files
from capsule.disk.whole_files import (
    FileContent,
    FlushFailed,
    Signature,
    as_capsule_error,
    flush,
    pread_all,
    signature_of,
    stat_key,
    sync_directory,
    translate_errors,
)
from capsule.engines.files import external_edits
from capsule.engines.files.disk.log import deleted_record
from capsule.engines.files.disk.trash import QUARANTINE, TRASH
from capsule.engines.files.logged_document import LoggedDocument, flushed_with
from capsule.engines.files.primitives import FileReplaced, HeadRewrite, UnexpectedContent, splice
from capsule.engines.files.state import Durability, StateHeader, new_tag
from capsule.engines.interface import Trashed
from capsule.errors import CapsuleError, ConcurrentWrite, Refused
from capsule.format.json.layout import FileLayout, head_of, survey
from capsule.timestamps import WIDTH

if TYPE_CHECKING:
    from capsule.format.recovery.torn_files import RepairedFile

#: What failed, for an error that ends with the path: "could not append to it, and ...".
_NOT_UNDONE = "%s it, and could not undo that: the write may still appear in"


class HeldDocument(LoggedDocument):
    """A document whose mutex is held in a `with` block, with the ways to read and write its file.

    Methods without a docstring are described in `HeldFile`. For the arguments, see
    `LoggedDocument`.

    Attributes:
        is_completed: Whether the document got back from its log what a power cut had taken.
    """

    is_completed = False
    #: The number of names (hard links) of the open file.
    _link_count = 0

    # -- Reading -----------------------------------------------------------------------------------

    def _open(self) -> os.stat_result:
        """Open the document anew, and return its status. Raises `OSError`, `InvalidDocument`."""
        self.close_file()
        self._mutex.document_fd, status = self.storage.open(self.path, self.storage.document_flags)
        self._link_count = status.st_nlink
        return status

    def unchanged_header(self) -> StateHeader | None:
        """Return the header if the file is unchanged since the store's last write, otherwise None.

        Cost: reading the state header.
        """
        header = self.header()
        if header is None:
            return None
        if self._mutex.document_fd >= 0:
            # No lookup of the path is necessary: whatever is done to it changes the ctime or the
            # link count of the file that is open.
            status = self.sys.fstat(self._mutex.document_fd)
            if stat_key(status) == header.signature and status.st_nlink:
                self._link_count = status.st_nlink
                return header
        with translate_errors(self.path, "open"), suppress(FileNotFoundError):
            if signature_of(self._open()) == header.signature:
                return header
        return None

    @property
    def has_header(self) -> bool:
        return self.header() is not None

    @property
    def is_interrupted(self) -> bool:
        return self.durability is Durability.INTERRUPTED

    def is_unchanged(self) -> bool:
        return self.unchanged_header() is not None

    def is_torn(self, signature: Signature) -> bool:
        """Return whether a writer died while it wrote the file with this signature.

        Call `read_log` before: it finds the line that the header does not count. A writer that is
        alive changes the header if an editor was in its way. Such an editor may still be saving.
        """
        header = self.header()
        return (
            self.durability is Durability.INTERRUPTED
            and header is not None
            and header.signature.inode == signature.inode
        )

    def read(self) -> FileContent | None:
        with translate_errors(self.path, "read"), suppress(FileNotFoundError):
            status = self._open()
            data = pread_all(self.sys, self._mutex.document_fd, status.st_size)
            return FileContent(data, signature_of(status))
        return None

    def head(self, header: StateHeader) -> bytes:
        """Return the bytes before `context` as a JSON document. Cost: reading the head.

        Raises `ConcurrentWrite`.
        """
        layout = self._file_layout(header)
        # The name of the field `context` must be among the bytes: `head_of` looks for it.
        head = head_of(pread_all(self.sys, self._mutex.document_fd, layout.context + 64))
        if head is None:
            # The file is another one than the header says: another program wrote it.
            self.invalidate_header(header.durability)
            raise ConcurrentWrite
        return head

    def history(self, header: StateHeader, start: int, end: int | None = None) -> bytes:
        """Return the bytes of `history` between two offsets in the file. Cost: reading them.

        Args:
            header: The document's header.
            start, end: The offsets. Without `end`, to the end of the last entry.

        Raises `ConcurrentWrite`.
        """
        if end is None:
            end = self._file_layout(header).tail
        data = pread_all(self.sys, self._mutex.document_fd, end - start, start)
        if len(data) != end - start:
            self.invalidate_header(header.durability)
            raise ConcurrentWrite
        return data

    def records(self) -> list[list[bytes]]:
        """Return the records of each write, oldest first. Cost: reading the log.

        The records of a write that failed without changing the document are removed. Those of an
        interrupted write stay.
        """
        with translate_errors(self.path, "read the log of"):
            return self.read_log()

    def _file_layout(self, header: StateHeader) -> FileLayout:
        """Return the layout of the file. Callers don't ask for it if the header has none."""
        if header.file_layout is None:
            raise ValueError(f"{self.path} has another layout, so it can only be replaced")
        return header.file_layout

    def reconcile_external_edit(
        self, repair: Callable[[bytes], RepairedFile | None] | None = None
    ) -> Signature:
        return external_edits.reconcile_external_edit(self, repair=repair).signature

    def repaired(self, data: bytes, signature: Signature) -> RepairedFile | None:
        return external_edits.repaired_file(self, data, signature)

    def accept_file(
        self,
        signature: Signature,
        file_layout: FileLayout | None,
        records: list[bytes],
        newest_updated_at: str,
    ) -> StateHeader:
        """Accept the version that another program wrote, unchanged. Returns its header.

        Args:
            signature: The file's signature.
            file_layout: The offsets of its parts. None if its layout isn't canonical. The header
                gets none either if the file is not known to be on the disk after a failure: a
                document without a layout can only be replaced.
            records: The records of what the version changed, for the log if there is one.
            newest_updated_at: The latest `updatedAt` that it is known to have had.
        """
        old_header = self.header()
        old_durability = None if old_header is None else old_header.durability
        if self.durability is Durability.INTERRUPTED or old_durability is Durability.UNFLUSHED:
            durability = Durability.UNFLUSHED
            file_layout = None  # So that the next write writes every byte anew.
        else:
            durability = Durability.EXTERNAL
        if old_durability is Durability.RESTORING:  # Its bytes were flushed, its name was not.
            with translate_errors(self.path, "flush"), self._invalidating_on_failed_flush():
                sync_directory(self.sys, os.path.dirname(self.path))
            if durability is Durability.EXTERNAL:
                durability = Durability.DURABLE
        updated_at = b""
        with translate_errors(self.path, "log a change of"):
            if file_layout:
                updated_at = self.sys.pread(self._mutex.document_fd, WIDTH, file_layout.updated_at)
            self.log_observation(records)
        header = StateHeader(
            signature=signature,
            file_layout=file_layout,
            tag=new_tag(),
            updated_at=updated_at.decode("ascii", "replace"),
            boot_id=self.storage.boot_id,
            durability=durability,
            newest_updated_at=newest_updated_at,
        )
        return self.commit_write(header)

    def repair(self, data: bytes, signature: Signature, repaired: bytes) -> str:
        """Replace a damaged file by its repaired bytes. Returns the path of the damaged one in the
        quarantine.
        """
        quarantine_path = self.quarantine(data, "torn")
        self._put_in_place(signature, lambda fd: whole_files.pwrite_all(self.sys, fd, repaired, 0))
        return quarantine_path

    def quarantine(self, data: bytes, reason: str) -> str:
        with translate_errors(self.path, "keep a copy of"):
            return self.storage.trash_directories.store(
                data, QUARANTINE, self.kind, self.id, reason
            )

    def flush(self, header: StateHeader) -> StateHeader:
        """Flush the document, bytes and name, and set a checkpoint. Returns the new header.

        Raises `ConcurrentWrite`, `StorageFailed`.
        """
        with translate_errors(self.path, "flush"):
            try:
                signature = signature_of(self._open())
            except FileNotFoundError:
                # Some editors move the old version away before they write the new one.
                raise ConcurrentWrite from None
            if signature != header.signature:
                raise ConcurrentWrite
            with self._invalidating_on_failed_flush():
                flush(self.sys.fsync, self._mutex.document_fd)
                sync_directory(self.sys, os.path.dirname(self.path))
            return self.set_checkpoint(
                header._replace(durability=Durability.DURABLE),
                flushed_with(header.file_layout),
                is_other_file=True,
            )

    def make_durable(self) -> None:
        """Flush what was appended.

        If another program has written the document since, flush only the log. The next
        reconciliation then restores from the log. Raises `CapsuleError`.
        """
        header = self.header()
        if header is None or not self.has_unflushed_writes:
            return
        try:
            if header.durability is not Durability.UNFLUSHED:
                # First, so that the log has whatever a power cut takes from the document.
                self.flush_log()
            header = self.unchanged_header()
            if header is None:
                return
            if header.durability is Durability.UNFLUSHED:  # Every byte is written anew.
                data = pread_all(self.sys, self._mutex.document_fd, header.signature.size)
                self.replace(header.signature, data, None, [])
            elif header.durability is not Durability.DURABLE:
                self.flush(header)
            else:
                flushed = self._flush_document()
                if flushed is not None:
                    self.set_checkpoint(header, flushed, is_other_file=False)
        except OSError as error:
            raise as_capsule_error(error, self.path, "flush") from error

    # -- Writing -----------------------------------------------------------------------------------

    def splice(
        self,
        header: StateHeader,
        entries: list[bytes],
        updated_at: str,
        records: list[bytes],
        message_time: str = "",
    ) -> StateHeader:
        """Append entries in place and overwrite `updatedAt`. Returns the new header.

        A file with several names is replaced instead, as is every file of a store that is set so.

        Args:
            header: The document's header.
            entries: The encoded entries, at least one.
            updated_at: The new `updatedAt`.
            records: The records of the write.
            message_time: The time of the newest message. Empty: not known.

        Raises `ConcurrentWrite`, `StorageFailed`. Cost: four pwrites, whatever the file's size.
        """
        layout = header.file_layout or self._file_layout(header)
        if self.storage.replaces_on_append or self._link_count > 1:
            head = pread_all(self.sys, self._mutex.document_fd, layout.context)
            start = layout.updated_at
            head = head[:start] + updated_at.encode() + head[start + WIDTH :]
            header = header._replace(newest_message_time=message_time)
            return self.rewrite_head(header, head, entries, records)
        if header.durability is not Durability.DURABLE:
            header = self.flush(header)
        try:
            self.log_write(records)
            signature, new_layout = splice(
                self.sys,
                self._mutex.document_fd,
                self.path,
                header,
                layout,
                entries,
                updated_at,
            )
        except FileReplaced:
            # The file that was replaced has the write, so the pending line is counted.
            self.invalidate_header(header.durability, is_written=True)
            raise
        except ConcurrentWrite:
            self.invalidate_header(header.durability)
            raise
        except UnexpectedContent as error:
            # The pending line stays in the log: the next holder completes the torn file from it.
            self.invalidate_header(header.durability)
            raise as_capsule_error(error, self.path, _NOT_UNDONE % "append to") from error
        except OSError as error:
            raise self._undo_and_describe(error, "append to") from error
        new_header = StateHeader(
            signature=signature,
            file_layout=new_layout,
            tag=header.tag,
            updated_at=updated_at,
            boot_id=self.storage.boot_id,
            durability=Durability.DURABLE,
            newest_updated_at=max(header.newest_updated_at, header.updated_at, updated_at),
            newest_message_time=message_time,
        )
        return self.commit_write(new_header)

    def rewrite_head(
        self,
        header: StateHeader,
        head: bytes,
        entries: list[bytes],
        records: list[bytes],
        context: Iterable[bytes] | None = None,
    ) -> StateHeader:
        """Write a new file with another head, and append entries. Returns the new header.

        Args:
            header: The document's header.
            head: The new head, as `HeadRewrite` takes it.
            entries: The encoded entries to append.
            records: The records of the write.
            context: A new context, as `HeadRewrite` takes it. None: the old one stays.

        Raises `ConcurrentWrite`, `StorageFailed`. Cost: the kernel copies the file, and a context
        that is replaced is read.
        """
        version = HeadRewrite(
            self.sys, self._mutex.document_fd, self._file_layout(header), head, entries, context
        )
        with translate_errors(self.path, "log a change of"):
            self.log_write(records)
        try:
            signature = self._put_in_place(header.signature, version.write)
        except ConcurrentWrite:
            self.invalidate_header(header.durability)
            raise
        return self._finish_replacement(
            signature, version.new_layout, head, header, header.newest_message_time
        )

    def put(
        self,
        expected: Signature | None,
        data: bytes,
        records: list[bytes],
        *,
        canonical: bool = True,
    ) -> str:
        return self.replace(expected, data, survey(data) if canonical else None, records).tag

    def replace(
        self,
        expected: Signature | None,
        data: bytes,
        file_layout: FileLayout | None,
        records: list[bytes],
    ) -> StateHeader:
        """Write the whole document. Returns the new header. Cost: writing the document.

        Args:
            expected: The signature of the version that it replaces. None: there must be no file,
                and the log of an earlier document with this id is deleted.
            data: The document.
            file_layout: The offsets of its parts. None if its layout isn't canonical.
            records: The records of the write. Not used for a new document.

        Raises `ConcurrentWrite`, `StorageFailed`, `Refused`.
        """
        old_header = self.header()
        if expected is None:
            if self.storage.exists(self.kind, self.id):
                raise ConcurrentWrite
            old_header = None
            records = []
            with translate_errors(self.path, "drop the log of"):
                self.drop_log()
        with translate_errors(self.path, "log a change of"):
            self.log_write(records)
        signature = self._put_in_place(
            expected, lambda fd: whole_files.pwrite_all(self.sys, fd, data, 0)
        )
        return self._finish_replacement(signature, file_layout, data, old_header)

    def _put_in_place(self, expected: Signature | None, write: Callable[[int], None]) -> Signature:
        """Write and flush a new version beside the document, and give it the document's name.

        Args:
            expected: The signature of the version that it replaces. None: there must be no file.
            write: Writes the version to a descriptor.

        Returns its signature. If it fails and nothing was replaced, the pending line is removed
        from the log.
        """
        replaced_path = None if expected is None else self.path
        try:
            fd = self.storage.write_temporary(self.kind, self.id, write, replaced_path)
        except OSError as error:
            raise self._undo_and_describe(error, "write") from error
        except BaseException:
            self.discard_pending_line()
            raise
        try:
            with translate_errors(self.path, "put a new version in place of"):
                written = signature_of(self.sys.fstat(fd))
                temporary = self.storage.paths.temporary(self.kind, self.id)
                whole_files.put_in_place(self.sys, temporary, self.path, expected)
                # The rename changes ctime only. Any other difference is the edit of another
                # program, and must not become part of the signature.
                signature = written._replace(ctime_ns=self.sys.fstat(fd).st_ctime_ns)
        except BaseException as error:
            # After any other error the new version may have the name. So the line stays.
            if isinstance(error, ConcurrentWrite):
                self.discard_pending_line()
            with suppress(OSError):
                self.sys.close(fd)
            self.close_file()  # The next look finds out which version has the name.
            if isinstance(error.__cause__, FlushFailed):
                self.invalidate_header_and_log()
            raise
        # The new file is the document for everything that follows under this mutex.
        self.close_file()
        self._mutex.document_fd = fd
        self._link_count = 1
        return signature

    def _finish_replacement(
        self,
        signature: Signature,
        file_layout: FileLayout | None,
        beginning: bytes,
        old_header: StateHeader | None,
        message_time: str = "",
    ) -> StateHeader:
        """Commit a new version that is durable and in place, and set its checkpoint. Returns its
        header.

        Args:
            signature, file_layout: The new version.
            beginning: Its first bytes, at least to the end of `updatedAt`.
            old_header: The header of the version that it replaced. None: it is a new document.
            message_time: The time of the newest message. Empty: not known.
        """
        updated_at = ""
        if file_layout:
            updated_at = beginning[file_layout.updated_at :][:WIDTH].decode("ascii")
        newest_updated_at = updated_at
        if old_header is not None:
            newest_updated_at = max(old_header.newest_updated_at, old_header.updated_at, updated_at)
        header = StateHeader(
            signature=signature,
            file_layout=file_layout,
            tag=new_tag(),
            updated_at=updated_at,
            boot_id=self.storage.boot_id,
            durability=Durability.DURABLE,
            newest_updated_at=newest_updated_at,
            newest_message_time=message_time,
        )
        # EXTERNAL until the log has the checkpoint, because the last one is about another file.
        self.commit_write(header._replace(durability=Durability.EXTERNAL))
        with translate_errors(self.path, "log a change of"):
            self.set_checkpoint(header, flushed_with(file_layout), is_other_file=True)
        self._must_flush_log = False
        return header

    def _undo_and_describe(self, error: OSError, operation: str) -> CapsuleError:
        """Discard the pending line, and return the error for a write that did not change the
        document.
        """
        if not self.discard_pending_line():
            operation = _NOT_UNDONE % operation
        return as_capsule_error(error, self.path, operation)

    def rewrite_records(self, writes: list[list[bytes]]) -> None:
        """Replace the records of the log, durably. Without any, delete the log."""
        with translate_errors(self.path, "rewrite the log of"):
            if writes:
                self.rewrite_log(writes)
            else:
                self.drop_log()

    def delete(self) -> Trashed:
        trash = self.storage.trash_directories
        with translate_errors(self.path, "delete"):
            whole_files.ensure_regular(self.sys, self.path)
            self.make_durable()
            path = trash.move(self.path, TRASH, self.kind, self.id)
        trashed = trash.entry_of(os.path.basename(path))
        # Without this record, a restoration deletes the log.
        with suppress(OSError):
            self.log_observation([deleted_record(trashed.token)])
        self.clear_header()
        self.close_file()
        return trashed

    def add_to_trash(self, kind: str, data: bytes) -> Trashed:
        """Write bytes into the trash, as a document of `kind` with this one's id."""
        trash = self.storage.trash_directories
        with translate_errors(self.path, "keep a copy of"):
            return trash.add(kind, self.id, data)

    def drop_header_and_log(self) -> None:
        """Delete the header and the log of a document whose file is gone."""
        self.rewrite_records([])
        self.clear_header()
        self.close_file()

    def restore(self, token: str) -> None:
        """Move the document back from the trash. Raises `Refused` if there is a document already."""
        with translate_errors(self.path, "restore"):
            try:
                if self.storage.exists(self.kind, self.id):
                    raise FileExistsError
                if self.read_log()[-1:] != [[deleted_record(token)]]:
                    self.drop_log()  # It belongs to another document that had this id.
                # The header fits no file. So whoever notices the file waits for this mutex, and
                # then reads the whole.
                self.invalidate_header(Durability.RESTORING)
                self.storage.trash_directories.put_back(token, self.path)
            except FileExistsError:
                reason = f"{self.path} is there already; rename it or delete it, then restore again"
                raise Refused(reason, path=self.path) from None
        self.close_file()
