"""The mutex, the state header and the log of a document, and how the three agree.

`LoggedDocument` holds a document's mutex in a `with` block. It reads and writes the state header
(`state.StateHeader`), which is in the mutex file, and adds the records of writes to the log
(`disk.log`). Its only subclass, `HeldDocument`, reads and writes the document's file.

A write goes through these steps: `log_write` adds a pending line to the log. The subclass writes
the file. `commit_write` counts the line and writes the new header. The mutex is released, and the
log is flushed. If the file could not be written, `discard_pending_line` removes the line.

Later the background flusher flushes the document and adds a checkpoint to the log: a line which
records that the document has all writes before it on the disk. After a failed flush, the failure
mark is set, a byte after the header. Then the next holder writes the document and the log anew.

What must stay true:

- The records of a write are in the log before the document is touched. The header counts them once
  the document has them.
- The log is flushed before a write is acknowledged as durable, that is at the end of a block that
  `waits_for_flush`. The flush needs no mutex. Afterwards the failure mark is checked: if it is set,
  the write is not acknowledged.
- No line leaves the log before the document is on the disk with it. The last checkpoint in the log
  says how far that is, whatever happened to the header.
- A header that can't be written costs the next holder a look at the whole file, and never an
  acknowledged write.

The module knows neither the meaning of a record nor conversations.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from capsule.disk.whole_files import (
    FlushFailed,
    as_capsule_error,
    flush,
    stat_key,
    sync_directory,
)
from capsule.engines.files.disk.log import (
    Flushed,
    Log,
    LogEvidence,
    LogPosition,
    split_at_checkpoint,
)
from capsule.engines.files.disk.mutex import CachedHeader, Mutex
from capsule.engines.files.state import (
    HEADER_BYTES,
    MARKED,
    Durability,
    StateHeader,
    decode_header,
    encode_header,
)
from capsule.errors import StorageFailed
from capsule.format.json.layout import FileLayout

if TYPE_CHECKING:
    from capsule.engines.files.storage import FileStorage

_UNFLUSHED = (
    "the write is in the file, but a power cut may remove it, because its flush failed; "
    "repeat it with the same key"
)
#: Another flush of such a document would prove nothing.
_MUST_BE_REWRITTEN = (Durability.UNFLUSHED, Durability.INTERRUPTED)
#: A line that is longer than a checkpoint, to make sure that one has space.
_CHECKPOINT_SPACE = [b" " * 40]


def flushed_with(file_layout: FileLayout | None) -> Flushed:
    """Return the proof that a document was flushed. Call it only after the flush."""
    return Flushed(file_layout.tail if file_layout else -1)


class LoggedDocument:
    """A document whose mutex is held in a `with` block, with its state header and its log.

    What is known to be on the disk is one value, `durability`:

    | event | state after it |
    | --- | --- |
    | the mutex is taken | UNREAD, until the header is read |
    | the failure mark is found | UNFLUSHED |
    | the header is valid | what it records |
    | the header is missing, torn or impossible | UNKNOWN |
    | the header is of an earlier run of the machine | RESTARTED |
    | the log has a line that the header does not count | INTERRUPTED, until the mutex is released |
    | an append succeeds | DURABLE: the log has it, and is flushed before it is acknowledged |
    | a write fails and is undone | as before |
    | a new version is in place, and the log was flushed with its checkpoint | DURABLE |
    | another program's version is accepted | EXTERNAL. After INTERRUPTED, UNFLUSHED: UNFLUSHED |
    | the document is flushed, and the log has the checkpoint | DURABLE |
    | a flush of the document or of its log fails | UNFLUSHED |
    | the document is moved back from the trash | RESTORING, and DURABLE once it is accepted |

    The header always records the state, except for INTERRUPTED: until then its writer has recorded
    what is certain. A checkpoint needs a `Flushed`, which is made only after a flush, and never by
    a holder that found UNFLUSHED, INTERRUPTED or no header: it writes every byte anew instead.

    Args:
        storage: The files of the store.
        kind, id: The document.
        timeout_s: How long to wait for the mutex, in seconds.

    Attributes:
        path: The path of its file.
        waits_for_flush: Whether the end of the block waits until the log is flushed. If not, the
            background flusher does that within a second.
        durability: What is known to be on the disk.
        log_evidence: What the log proves about the document. Set by `read_log`.
        make_base_record: Returns the record that a new log begins with. Set by the transaction.
    """

    _mutex: Mutex

    def __init__(self, storage: FileStorage, kind: str, id: str, timeout_s: float) -> None:
        self.id = id
        self.path = storage.paths.document(kind, id)
        self.kind = kind
        self.storage = storage
        self.sys = storage.sys
        self.waits_for_flush = True
        self._timeout_s = timeout_s
        self.durability = Durability.UNREAD
        self.log_evidence = LogEvidence()
        self.make_base_record: Callable[[], bytes] | None = None
        #: The end of the log up to which the document has every line. None: no header says it.
        self._log_end: LogPosition | None = None
        #: Whether the log of the mutex was compared with the header in this block.
        self._is_log_checked = False
        self._must_flush_log = False

    def __enter__(self) -> Self:
        mutexes = self.storage.mutexes
        name = f"{self.kind}-{self.id}"
        try:
            self._mutex = mutexes.acquire(name, self._timeout_s)
        except OSError as error:
            raise as_capsule_error(error, mutexes.path(name), "open") from error
        if self._mutex.size > HEADER_BYTES:
            try:
                self._check_failure_mark()
            except OSError as error:
                mutexes.release(self._mutex)
                raise as_capsule_error(error, mutexes.path(name), "read") from error
        return self

    def _check_failure_mark(self) -> None:
        """Invalidate the header and the log if the failure mark is set, and the header is of this
        run of the machine.
        """
        header = self.header()
        if self.durability is Durability.RESTARTED:
            return  # The header proves nothing anyway.
        if header is None or header.durability is not Durability.UNFLUSHED:
            self.invalidate_header_and_log()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        mutexes = self.storage.mutexes
        mutex = self._mutex
        log = mutex.log
        if not self._must_flush_log or log is None or error is not None:
            mutexes.release(mutex)
            if isinstance(error, OSError):
                raise as_capsule_error(error, self.path, "read or write") from error
            return
        # Others may write from here on. The log stays open until `leave`.
        mutexes.unlock(mutex)
        try:
            self.storage.flusher.add(self.kind, self.id, self.storage.make_durable)
            if self.waits_for_flush:
                log.flush()
                if self.sys.fstat(mutex.fd).st_size > HEADER_BYTES:  # The failure mark is set.
                    raise FlushFailed(errno.EIO, "another flush of the log failed")
        except OSError as flush_error:
            self.storage.mark_unflushed(self.kind, self.id)
            reason = f"{self.path}: {_UNFLUSHED}: {flush_error.strerror}"
            raise StorageFailed(reason, path=self.path, errno=flush_error.errno) from flush_error
        finally:
            mutexes.leave(mutex)

    # -- The state header --------------------------------------------------------------------------

    def header(self) -> StateHeader | None:
        """Return the state header, or None if it is invalid or of another run of the machine.

        A header that this process read or wrote last is not decoded again.
        """
        mutex = self._mutex
        raw = self.sys.pread(mutex.fd, HEADER_BYTES, 0) if mutex.size >= HEADER_BYTES else b""
        cached = mutex.cached_header
        if cached is None or cached.raw != raw:
            decoded = decode_header(raw)
            if decoded is None or decoded[0].boot_id != self.storage.boot_id:
                # Only the first look decides. Later looks find what this holder wrote.
                if self.durability is Durability.UNREAD:
                    is_valid = decoded is not None
                    self.durability = Durability.RESTARTED if is_valid else Durability.UNKNOWN
                return None
            cached = mutex.cached_header = CachedHeader(raw, *decoded)
        if self.durability is Durability.UNREAD:
            self._log_end = cached.log_end
            self.durability = cached.header.durability
        return cached.header

    def write_header(self, header: StateHeader) -> bool:
        """Write the state header. A pending line stays in the log and is not counted.

        Returns False if the header could not be written. That loses nothing, since it is derived.
        """
        mutex = self._mutex
        raw = encode_header(header, self._log_end)
        mark = MARKED if header.durability is Durability.UNFLUSHED else b""
        if self.durability is not Durability.INTERRUPTED:
            self.durability = header.durability
        try:
            self.sys.pwrite(mutex.fd, raw + mark, 0)
            if mutex.size > HEADER_BYTES and not mark:
                self.sys.ftruncate(mutex.fd, HEADER_BYTES)
        except OSError:
            mutex.cached_header = None
            return False
        mutex.size = HEADER_BYTES + len(mark)
        mutex.cached_header = CachedHeader(raw, header, self._log_end)
        return True

    def commit_write(self, header: StateHeader) -> StateHeader:
        """Count the pending line of the log, and write the state header. Returns the header.

        A header that can't be written is not an error.
        """
        if self._mutex.log is not None and self._log_end is not None:
            self._log_end = self._mutex.log.commit_pending()
        self.write_header(header)
        return header

    def clear_header(self) -> None:
        """Remove the state header. The next holder reads the whole document."""
        with suppress(OSError):
            self.sys.ftruncate(self._mutex.fd, 0)
        self.durability = Durability.UNKNOWN
        self._mutex.size = 0
        self._mutex.cached_header = None

    def invalidate_header(self, durability: Durability, *, is_written: bool = False) -> None:
        """Write a header that no file agrees with, so that the next holder reads the whole file.

        Args:
            durability: What the header records. UNFLUSHED makes the next holder write every byte
                anew.
            is_written: Whether the file has the write that the pending line is about.
        """
        header = StateHeader.of_unknown_file(self.storage.boot_id, durability)
        if is_written:
            self.commit_write(header)
        else:
            self.write_header(header)
        self.close_file()

    def invalidate_header_and_log(self) -> None:
        """Make the next holder, in any process, write every byte and the log anew, because a flush
        has failed.
        """
        self._close_log(is_trusted=False)
        self._log_end = None
        self.write_header(StateHeader.of_unknown_file(self.storage.boot_id, Durability.UNFLUSHED))

    @contextmanager
    def _invalidating_on_failed_flush(self) -> Iterator[None]:
        """Call `invalidate_header_and_log` if a flush in the block fails."""
        try:
            yield
        except FlushFailed:
            self.invalidate_header_and_log()
            raise

    # -- The log -----------------------------------------------------------------------------------

    def read_log(self) -> list[list[bytes]]:
        """Return the records of each write, oldest first, and set `log_evidence`.

        Cost: reading the log.
        """
        log = self._log()
        if log is None:
            return []
        counted_end = self._log_end
        writes, evidence = split_at_checkpoint(log.read())
        if counted_end is None:
            self.log_evidence = evidence
        elif counted_end[:4] != log.position[:4]:  # All but the checkpoint, which may be later.
            self.durability = Durability.INTERRUPTED
            self.log_evidence = self.log_evidence._replace(certain_writes=len(writes) - 1)
        if log.is_reliable:
            self._log_end = log.position
        return writes

    def _log(self) -> Log | None:
        """Return the log, opened and compared with the header, or None if there is none."""
        mutex = self._mutex
        if self._is_log_checked and mutex.log is not None:
            return mutex.log
        header = self.header() if self._log_end is None else None
        if mutex.log is None or not mutex.log.follow_header(self._log_end):
            self._close_log(is_trusted=self._log_end is not None)
            # After a start of the machine, everything that can be read is on the disk.
            is_reliable = (
                self.durability is Durability.RESTARTED
                or self._log_end is not None
                or (header is not None and header.durability is not Durability.UNFLUSHED)
            )
            mutex.log = Log.open(self.sys, self._log_path(), self._log_end, is_reliable=is_reliable)
        self._is_log_checked = True
        return mutex.log

    def _log_path(self) -> str:
        return self.storage.logs.file(self._mutex.name)

    def _close_log(self, *, is_trusted: bool = True) -> None:
        log = self._mutex.log
        self._mutex.log = None
        self._is_log_checked = False
        if log is not None:
            log.close(is_trusted=is_trusted)

    def flush_log(self) -> None:
        """Make the lines of the log durable. Raises `OSError`."""
        log = self._log()
        if log is not None:
            with self._invalidating_on_failed_flush():
                log.flush()

    @property
    def is_durable(self) -> bool:
        """Whether the document is on the disk with every line of its log.

        Cost: reading the log if no header names it, which is so if a writer died or failed while it
        replaced the log.
        """
        log_end = self._log_end
        if log_end is None:
            log = self._log()
            log_end = log.position if log is not None else None
        return log_end is None or log_end.is_durable

    @property
    def has_unflushed_writes(self) -> bool:
        """Whether the log has writes that the document is not known to have on the disk.

        Cost: reading the log if the header is of an earlier run of the machine.
        """
        header = self.header()
        if header is None:
            return len(self.read_log()) > (self.log_evidence.certain_writes or 0)
        return header.durability is not Durability.DURABLE or not self.is_durable

    def require_log_flush(self) -> bool:
        """Let the end of the block flush the log, unless the document is durable already.

        Returns whether the document is durable then. False: there is no log, so the caller must
        flush the document itself.
        """
        if self.is_durable:
            return True
        self._must_flush_log = self._log() is not None
        return self._must_flush_log

    def log_write(self, records: list[bytes]) -> None:
        """Add a pending line with the records of a write that follows. Durable after `Log.flush`,
        which the end of the block calls.
        """
        if not records:
            return
        self._must_flush_log = True
        try:
            log = self._mutex.log
            log_end = self._log_end
            if log is None or log_end is None or not log.write_pending(records, log_end):
                log = self._log_with_space(records)
                log.write_pending(records, log.position)
        except OSError as error:
            self._undo_failed_line(error)
            raise

    def log_observation(self, records: list[bytes]) -> None:
        """Log something that was found in the document, if there is a log. Durable with the next
        write.
        """
        if records and self._log() is not None:
            try:
                log = self._log_with_space(records)
                log.append(records)
            except OSError as error:
                self._undo_failed_line(error)
                raise
            self._log_end = log.position

    def set_checkpoint(
        self, header: StateHeader, flushed: Flushed, *, is_other_file: bool
    ) -> StateHeader:
        """Record in the log and in the header that the document is on the disk. Returns the header.

        Args:
            header: The document's header.
            flushed: The proof that the document was flushed.
            is_other_file: Whether this is another file than at the last checkpoint. If so, the
                checkpoint is flushed at once: a write to the new file could otherwise reach the
                disk before it.
        """
        if self._log() is not None:
            try:
                log = self._log_with_space(_CHECKPOINT_SPACE)
                if log.is_too_large():
                    self._detach_log()
                    log = self._mutex.log = log.compacted([], self.storage.logs.file_mode, flushed)
                else:
                    log.set_checkpoint(flushed)
                    if is_other_file:
                        log.flush()
            except OSError as error:
                self._undo_failed_line(error)
                raise
            self._log_end = log.position
        self.write_header(header)
        return header

    def _undo_failed_line(self, error: OSError) -> None:
        """Remove a line that could not be written. After a failed flush, invalidate the log."""
        if isinstance(error, FlushFailed):
            self.invalidate_header_and_log()
        else:
            self.discard_pending_line()

    def discard_pending_line(self) -> bool:
        """Remove the pending line from the log, because the document does not have its write.

        Returns False if that failed.
        """
        if self._mutex.log is None:
            return True
        try:
            with self._invalidating_on_failed_flush():
                self._mutex.log.discard_pending()
        except OSError:
            return False
        return True

    def _detach_log(self) -> None:
        """Remove the log from the state header before the log file is replaced or deleted.

        A process that has the old file open would otherwise go on writing to it. Raises `OSError`.
        """
        header = self.header()
        self._log_end = None
        if header is not None and not self.write_header(header):
            raise OSError(errno.EIO, f"{self._mutex.name}: its header could not be written")

    def _log_with_space(self, records: list[bytes]) -> Log:
        """Return the log with space for one more write, made, enlarged or compacted if necessary.

        Raises `OSError`, also as `FlushFailed`.
        """
        mutex = self._mutex
        log = self._log()
        mode = self.storage.logs.file_mode
        if log is None:
            self.storage.logs.ensure()
            writes = [[self.make_base_record()]] if self.make_base_record else []
            flushed = self._flush_document()
            self._detach_log()
            log = mutex.log = Log.make(self.sys, self._log_path(), mode, writes, flushed)
        if log.needs_compaction(records):
            flushed = self._flush_document()
            self._detach_log()
            mutex.log = log = log.compacted(records, mode, flushed)
        else:
            log.ensure_space(records)
        # The inode and the size. An enlarged log counts as another file too.
        is_other_file = self._log_end is None or self._log_end[:2] != log.position[:2]
        if is_other_file:
            self._log_end = log.position
            if mutex.cached_header is not None:
                header = self.header()
                if header is not None:
                    # Before the line is written, since only a line after the end in the header
                    # counts as pending.
                    self.write_header(header)
        return log

    def rewrite_log(self, writes: list[list[bytes]]) -> None:
        """Replace the records of the log, durably. The header stays valid."""
        if self._log() is None:
            return
        mode = self.storage.logs.file_mode
        flushed = self._flush_document()
        self._detach_log()
        with self._invalidating_on_failed_flush():
            try:
                new_log = Log.make(self.sys, self._log_path(), mode, writes, flushed)
            except OSError as error:
                if flushed is None or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                # Without the old log there is space. Its texts have to go, most likely because the
                # disk is full.
                self.drop_log()
                new_log = Log.make(
                    self.sys, self._log_path(), mode, writes, flushed, spare_bytes=None
                )
        self._close_log()
        self._mutex.log = new_log
        self._log_end = new_log.position
        header = self.header()
        if header is not None:
            self.write_header(header)

    def drop_log(self) -> None:
        """Delete the log, durably: its records belong to another document."""
        self._close_log()
        self._detach_log()
        try:
            self.sys.unlink(self._log_path())
        except FileNotFoundError:
            return
        with self._invalidating_on_failed_flush():
            sync_directory(self.sys, self.storage.logs.path)

    def _flush_document(self) -> Flushed | None:
        """Make the document durable, so that a line may leave its log. Raises `FlushFailed`.

        Returns None if the document is not known to have what the log has.
        """
        header = self.header()
        fd = self._mutex.document_fd
        if header is None or header.durability in _MUST_BE_REWRITTEN or fd < 0:
            return None
        if self.durability in _MUST_BE_REWRITTEN:  # Perhaps the header could not be written.
            return None
        with self._invalidating_on_failed_flush():
            is_external = (
                header.durability is not Durability.DURABLE
                or stat_key(self.sys.fstat(fd)) != header.signature
            )
            if is_external:
                flush(self.sys.fsync, fd)
                sync_directory(self.sys, os.path.dirname(self.path))
                return Flushed(-1)
            if not self.is_durable:
                flush(self.sys.fdatasync, fd)
        return flushed_with(header.file_layout)

    def close_file(self) -> None:
        """Close the document. Otherwise it stays open for the next holder in this process."""
        fd = self._mutex.document_fd
        self._mutex.document_fd = -1
        if fd >= 0:
            self.sys.close(fd)
