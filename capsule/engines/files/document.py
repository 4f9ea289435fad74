"""A document under its mutex: its state header, its log, and the ways to read and write it.

What must stay true:

- The records of a write are in the log before the document is touched. The header counts them once
  the document has them.
- The log is flushed before a write is acknowledged, after the mutex was released. Whoever flushed
  without the mutex then looks for the failure mark, and does not acknowledge if it is there.
- No line leaves the log before the document is on the disk with it. The log says how far that is,
  whatever became of the header.
- A write that fails leaves the document, the header and the log as they were.
- A whole version is flushed before it gets its name. A new version is decided upon a signature,
  which is checked again at the moment the version takes its place.
- A header that can't be written costs the next holder a look at the whole file, never an
  acknowledged write.

The module knows neither what a record says nor what a conversation is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from capsule.disk import whole_files
from capsule.disk.whole_files import (
    FlushFailed,
    Signature,
    as_capsule_error,
    flush,
    stat_key,
    sync_directory,
)
from capsule.engines.files import external_edits
from capsule.engines.files.disk.log import (
    Flushed,
    Log,
    LogPosition,
    deleted_record,
    without_checkpoints,
)
from capsule.engines.files.disk.mutex import Mutex
from capsule.engines.files.disk.trash import QUARANTINE, TRASH
from capsule.engines.files.primitives import FileReplaced, HeadRewrite, UnexpectedContent, splice
from capsule.engines.files.state import (
    HEADER_BYTES,
    MARKED,
    Durability,
    StateHeader,
    decode_header,
    encode_header,
    new_tag,
)
from capsule.engines.interface import Trashed
from capsule.errors import CapsuleError, ConcurrentWrite, Refused, StorageFailed
from capsule.format.json.layout import FileLayout, head_of, survey
from capsule.timestamps import WIDTH

if TYPE_CHECKING:
    from capsule.engines.files.storage import FileStorage
    from capsule.format.recovery.torn_files import RepairedFile


_UNFLUSHED = (
    "the write is in the file, but a power cut may remove it, because its flush failed; "
    "repeat it with the same key"
)


_NOT_UNDONE = "%s it, and could not undo that: the write may still appear in"


class HeldDocument:
    """A document whose mutex is held in a `with` block, with its state header and its log.

    Methods without a docstring are described in `HeldFile`. What is known to be on the disk is one
    value, `durability`:

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
        waits: Whether the end of the block waits until what was written is on the disk.
        durability: What is known to be on the disk.
        certain_writes: Number of logged writes that the document certainly contains. After an
            interrupted write: all but the last. Without a header of this run of the machine: those
            before the last checkpoint. None: all. Set by `read_log`.
        checkpoint_end: The byte at which the entries ended at that checkpoint. -1: it is not known,
            or not needed. Set by `read_log`.
        base: Returns the record that a new log begins with. Set by the transaction, which knows it.
        is_completed: Whether the document got back from its log what a power cut had taken.
    """

    is_completed = False
    _links = 0
    _mutex: Mutex

    def __init__(self, storage: FileStorage, kind: str, id: str, timeout_s: float) -> None:
        self.id = id
        self.path = storage.layout.document(kind, id)
        self.kind = kind
        self.storage = storage
        self.sys = storage.sys
        self.waits_for_flush = True
        self._timeout_s = timeout_s
        self._position: LogPosition | None = None
        self._is_log_found = False
        self._must_flush_log = False
        self.durability = Durability.UNREAD
        self.certain_writes: int | None = None
        self.checkpoint_end = -1
        self.make_base_record: Callable[[], bytes] | None = None

    def __enter__(self) -> Self:
        mutexes, name = self.storage.mutexes, f"{self.kind}-{self.id}"
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
        header = self.header()
        if self.durability is Durability.RESTARTED:
            return  # Nothing that the header says counts.
        if header is None or header.durability is not Durability.UNFLUSHED:
            self.invalidate_header_and_log()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        mutexes, mutex, log = self.storage.mutexes, self._mutex, self._mutex.log
        if not self._must_flush_log or log is None or error is not None:
            mutexes.release(mutex)
            if isinstance(error, OSError):
                raise as_capsule_error(error, self.path, "read or write") from error
            return
        mutexes.unlock(mutex)
        try:
            self.storage.flusher.add(self.kind, self.id, self.storage.make_durable)
            if self.waits_for_flush:
                log.flush()
                if self.sys.fstat(mutex.fd).st_size > HEADER_BYTES:
                    raise FlushFailed(errno.EIO, "another flush of the log failed")
        except OSError as unflushed:
            self.storage.mark_unflushed(self.kind, self.id)
            reason = f"{self.path}: {_UNFLUSHED}: {unflushed.strerror}"
            raise StorageFailed(reason, path=self.path, errno=unflushed.errno) from unflushed
        finally:
            mutexes.leave(mutex)

    def header(self) -> StateHeader | None:
        """What the header says; one that was read or written here last is not decoded again."""
        mutex = self._mutex
        raw = self.sys.pread(mutex.fd, HEADER_BYTES, 0) if mutex.size >= HEADER_BYTES else b""
        if mutex.memo is None or mutex.memo[0] != raw:
            decoded_header = decode_header(raw)
            if decoded_header is None or decoded_header[0].boot_id != self.storage.boot_id:
                if self.durability is Durability.UNREAD:
                    is_valid = decoded_header is not None
                    self.durability = Durability.RESTARTED if is_valid else Durability.UNKNOWN
                return None
            mutex.memo = (raw, *decoded_header)
        if self.durability is Durability.UNREAD:
            self._position = mutex.memo[2]
            self.durability = mutex.memo[1].durability
        return mutex.memo[1]

    def read_log(self) -> list[list[bytes]]:
        """The records of each write, oldest first. Costs reading the log."""
        log = self._log()
        if log is None:
            return []
        had = self._position
        writes = log.read()
        writes, before, at = without_checkpoints(writes)
        if had is None:
            self.certain_writes = before
            self.checkpoint_end = at
        elif had[:4] != log.position[:4]:
            self.durability = Durability.INTERRUPTED
            self.certain_writes = len(writes) - 1
        if log.is_reliable:
            self._position = log.position
        return writes

    def _log(self) -> Log | None:
        mutex = self._mutex
        if self._is_log_found and mutex.log is not None:
            return mutex.log
        header = self.header() if self._position is None else None
        if mutex.log is None or not mutex.log.follow_header(self._position):
            self._close_log(is_trusted=self._position is not None)
            # After a start of the machine, what is read is on the medium.
            is_reliable = (
                self.durability is Durability.RESTARTED
                or self._position is not None
                or (header is not None and header.durability is not Durability.UNFLUSHED)
            )
            mutex.log = Log.open(self.sys, self._path(), self._position, is_reliable=is_reliable)
        self._is_log_found = True
        return mutex.log

    def _path(self) -> str:
        return self.storage.logs.file(self._mutex.name)

    def _close_log(self, *, is_trusted: bool = True) -> None:
        log, self._mutex.log, self._is_log_found = self._mutex.log, None, False
        if log is not None:
            log.close(is_trusted=is_trusted)

    def flush_log(self) -> None:
        """Make the lines of the log durable. Raises `OSError`."""
        log = self._log()
        if log is not None:
            with self._invalidating_on_failed_flush():
                log.flush()

    @contextmanager
    def _invalidating_on_failed_flush(self) -> Iterator[None]:
        """After a flush that failed, have every byte and the log be written anew."""
        try:
            yield
        except FlushFailed:
            self.invalidate_header_and_log()
            raise

    @property
    def is_durable(self) -> bool:
        """Whether the document is on the medium with every line of its log. Costs reading that, if
        no header names it: then a writer died or failed while it put another one in its place."""
        position = self._position
        if position is None:
            log = self._log()
            position = log.position if log is not None else None
        return position is None or position.is_durable

    def _flush_document(self) -> Flushed | None:
        """Make the document durable, so that a line may leave its log. Raises `FlushFailed`.

        None: the document isn't known to have what the log has.
        """
        header, fd = self.header(), self._mutex.document_fd
        must_be_rewritten = (Durability.UNFLUSHED, Durability.INTERRUPTED)
        if header is None or header.durability in must_be_rewritten or fd < 0:
            return None
        if self.durability in must_be_rewritten:  # The header could perhaps not be written.
            return None
        with self._invalidating_on_failed_flush():
            if (
                header.durability is not Durability.DURABLE
                or stat_key(self.sys.fstat(fd)) != header.signature
            ):  # Another program's version.
                flush(self.sys.fsync, fd)
                sync_directory(self.sys, os.path.dirname(self.path))
                return Flushed(-1)
            if not self.is_durable:
                flush(self.sys.fdatasync, fd)
        return Flushed(header.anatomy.tail if header.anatomy else -1)

    def invalidate_header_and_log(self) -> None:
        """Have the next holder, in whichever process, write every byte and the log anew: a flush
        has failed.
        """
        self._close_log(is_trusted=False)
        self._position = None
        self.write_header(StateHeader.of_unknown_file(self.storage.boot_id, Durability.UNFLUSHED))

    @property
    def has_unflushed_writes(self) -> bool:
        """Whether writes were logged that the document is not known to have on the medium. Costs
        reading the log of one that nobody has looked at since the machine was started."""
        if (header := self.header()) is None:
            return len(self.read_log()) > (self.certain_writes or 0)
        return header.durability is not Durability.DURABLE or not self.is_durable

    def require_log_flush(self) -> bool:
        """Have the log be flushed before anything under this mutex is acknowledged, unless the
        document is durable. False: somebody has removed it, so that the document itself must be
        flushed."""
        if self.is_durable:
            return True
        self._must_flush_log = self._log() is not None
        return self._must_flush_log

    def log_write(self, records: list[bytes]) -> None:
        """Log what is about to be written to the document; durable once `flush` was called without
        the mutex.
        """
        if not records:
            return
        self._must_flush_log = True
        try:
            log, position = self._mutex.log, self._position
            if log is None or position is None or not log.write_pending(records, position):
                log = self._log_with_space(records)
                log.write_pending(records, log.position)
        except OSError as error:
            self._refuse_line(error)
            raise

    def set_checkpoint(
        self, header: StateHeader, flushed: Flushed, *, is_other: bool
    ) -> StateHeader:
        """Note that the document is on the medium as it is.

        Args:
            known: As it is.
            flushed: That it was flushed.
            is_other: Whether it is another file than at the last checkpoint. Nothing may be written
                to it before the log says so on the medium.
        """
        if self._log() is not None:
            try:
                log = self._log_with_space([b" " * 40])
                if log.is_too_large():
                    self._detach_log()
                    log = self._mutex.log = log.compacted([], self.storage.logs.file_mode, flushed)
                else:
                    log.set_checkpoint(flushed)
                    if is_other:
                        log.flush()
            except OSError as error:
                self._refuse_line(error)
                raise
            self._position = log.position
        self.write_header(header)
        return header

    def log_observation(self, records: list[bytes]) -> None:
        """Log what was found in the document, when there is a log; durable with the next write's
        records.
        """
        if records and self._log() is not None:
            try:
                log = self._log_with_space(records)
                log.append(records)
            except OSError as error:
                self._refuse_line(error)
                raise
            self._position = log.position

    def _refuse_line(self, error: OSError) -> None:
        """A line could not be put into the log: none was. The log is as good as before, unless a
        flush failed.
        """
        if isinstance(error, FlushFailed):
            self.invalidate_header_and_log()
        else:
            self.discard_pending_line()

    def _detach_log(self) -> None:
        """Have the header name no log, before its file goes: another process that has it open would
        write to it.
        """
        header = self.header()
        self._position = None
        if header is not None and not self.write_header(header):
            raise OSError(errno.EIO, f"{self._mutex.name}: its header could not be written")

    def _log_with_space(self, records: list[bytes]) -> Log:
        """The log, with space for a write."""
        mutex = self._mutex
        log = self._log()
        mode = self.storage.logs.file_mode
        if log is None:
            self.storage.logs.ensure()
            writes = [[self.make_base_record()]] if self.make_base_record else []
            flushed = self._flush_document()
            self._detach_log()
            log = mutex.log = Log.make(self.sys, self._path(), mode, writes, flushed)
        if log.needs_compaction(records):
            flushed = self._flush_document()
            self._detach_log()
            mutex.log = log = log.compacted(records, mode, flushed)
        else:
            log.ensure_space(records)
        if self._position is None or self._position[:2] != log.position[:2]:
            self._position = log.position
            if mutex.memo is not None and (header := self.header()) is not None:
                self.write_header(
                    header
                )  # Before the line is there: it must lie behind what the header counts.
        return log

    def commit_write(self, header: StateHeader) -> StateHeader:
        """Count what was begun for done, and note how the document is now. Fails silently: derived,
        see above.
        """
        if self._mutex.log is not None and self._position is not None:
            self._position = self._mutex.log.commit_pending()
        self.write_header(header)
        return header

    def write_header(self, header: StateHeader) -> bool:
        """Note how the document is now; what was begun stays in the log, and is not counted.
        Whether it could be.
        """
        mutex = self._mutex
        raw = encode_header(header, self._position)
        mark = MARKED if header.durability is Durability.UNFLUSHED else b""
        if self.durability is not Durability.INTERRUPTED:
            self.durability = header.durability
        try:
            self.sys.pwrite(mutex.fd, raw + mark, 0)
            if mutex.size > HEADER_BYTES and not mark:
                self.sys.ftruncate(mutex.fd, HEADER_BYTES)
            mutex.size, mutex.memo = HEADER_BYTES + len(mark), (raw, header, self._position)
        except OSError:
            mutex.memo = None
            return False
        return True

    def discard_pending_line(self) -> bool:
        """Take what was begun out of the log: the document does not have it. Whether that could be
        done.
        """
        if self._mutex.log is None:
            return True
        try:
            with self._invalidating_on_failed_flush():
                self._mutex.log.discard_pending()
        except OSError:
            return False
        return True

    def rewrite_log(self, writes: list[list[bytes]]) -> None:
        """Have the log hold these records and no others, durably. Known as it is stays known."""
        if self._log() is None:
            return
        mode, flushed = self.storage.logs.file_mode, self._flush_document()
        self._detach_log()
        with self._invalidating_on_failed_flush():
            try:
                made = Log.make(self.sys, self._path(), mode, writes, flushed)
            except OSError as error:
                if flushed is None or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                # Its texts have to go, most likely to make space: without the old log there is
                # some.
                self.drop_log()
                made = Log.make(self.sys, self._path(), mode, writes, flushed, None)
        self._close_log()
        self._mutex.log = made
        self._position = made.position
        header = self.header()
        if header is not None:
            self.write_header(header)

    def drop_log(self) -> None:
        """Remove the log, durably: what it tells is of another document."""
        self._close_log()
        self._detach_log()
        try:
            self.sys.unlink(self._path())
        except FileNotFoundError:
            return
        with self._invalidating_on_failed_flush():
            sync_directory(self.sys, self.storage.logs.path)

    def clear_header(self) -> None:
        """Drop the header: how the document is must be found out anew."""
        with suppress(OSError):
            self.sys.ftruncate(self._mutex.fd, 0)
        self.durability = Durability.UNKNOWN
        self._mutex.size, self._mutex.memo = 0, None

    def make_durable(self) -> None:
        """Make durable what was appended, in the log alone when another program has written the
        document since: then whoever looks at it next does the rest."""
        header = self.header()
        if header is None or not self.has_unflushed_writes:
            return
        try:
            if header.durability is not Durability.UNFLUSHED:
                # First: what a checkpoint counts that a power cut takes is found in the log.
                self.flush_log()
            header = self.unchanged_header()
            if header is None:
                return
            if header.durability is Durability.UNFLUSHED:
                data = whole_files.pread_all(
                    self.sys, self._mutex.document_fd, header.signature.size
                )
                self.replace(header.signature, data, None, [])
            elif header.durability is not Durability.DURABLE:
                self.flush(header)
            else:
                flushed = self._flush_document()
                if flushed is not None:
                    self.set_checkpoint(header, flushed, is_other=False)
        except OSError as error:
            raise whole_files.as_capsule_error(error, self.path, "flush") from error

    def close_file(self) -> None:
        """Close the document, which otherwise stays open for the next holder of its mutex in this
        process.
        """
        fd, self._mutex.document_fd = self._mutex.document_fd, -1
        if fd >= 0:
            self.sys.close(fd)

    def _open(self) -> os.stat_result:
        self.close_file()
        self._mutex.document_fd, status = self.storage.open(self.path, self.storage.document_flags)
        self._links = status.st_nlink
        return status

    def unchanged_header(self) -> StateHeader | None:
        """The document, when it is as the store left it; else None. Costs reading the header of its
        note.
        """
        header = self.header()
        if header is None:
            return None
        if self._mutex.document_fd >= 0:
            # Whatever is done to the path touches the inode's ctime, when the path named this inode
            # before.
            status = self.sys.fstat(self._mutex.document_fd)
            if stat_key(status) == header.signature and status.st_nlink:
                self._links = status.st_nlink
                return header
        with whole_files.translate_errors(self.path, "open"), suppress(FileNotFoundError):
            return header if whole_files.signature_of(self._open()) == header.signature else None
        return None

    @property
    def has_header(self) -> bool:
        return self.header() is not None

    @property
    def is_interrupted(self) -> bool:
        return self.durability is Durability.INTERRUPTED

    def is_unchanged(self) -> bool:
        return self.unchanged_header() is not None

    def reconcile_external_edit(
        self, repair: Callable[[bytes], RepairedFile | None] | None = None
    ) -> Signature:
        return external_edits.reconcile_external_edit(self, repair=repair).signature

    def repaired(self, data: bytes, signature: Signature) -> RepairedFile | None:
        return external_edits.repaired_file(self, data, signature)

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
        with whole_files.translate_errors(self.path, "read"), suppress(FileNotFoundError):
            status = self._open()
            data = whole_files.pread_all(self.sys, self._mutex.document_fd, status.st_size)
            return data, whole_files.signature_of(status)
        return None

    def head(self, header: StateHeader) -> bytes:
        """The bytes before `context`, as a JSON document of its own. Costs reading the head."""
        anatomy = self._anatomy(header)
        head = head_of(
            whole_files.pread_all(self.sys, self._mutex.document_fd, anatomy.context + 64)
        )
        if head is None:
            self.invalidate_header(header.durability)
            raise ConcurrentWrite
        return head

    def history(self, header: StateHeader, start: int, end: int | None = None) -> bytes:
        """The bytes of `history` between two offsets in the file, by default to the end of its last
        entry.

        Raises `ConcurrentWrite`. Costs reading what is asked for.
        """
        size = (self._anatomy(header).tail if end is None else end) - start
        data = whole_files.pread_all(self.sys, self._mutex.document_fd, size, start)
        if len(data) != size:
            self.invalidate_header(header.durability)
            raise ConcurrentWrite
        return data

    def records(self) -> list[list[bytes]]:
        """The records of a write are durable before it touches the document, and are taken out
        again when it fails and did not change the document; those of one that was interrupted stay.
        Costs reading the log."""
        with whole_files.translate_errors(self.path, "read the log of"):
            return self.read_log()

    def accept_file(
        self, signature: Signature, anatomy: FileLayout | None, records: list[bytes], newest: str
    ) -> StateHeader:
        """Take the file as it is for known.

        Args:
            signature: The file's signature.
            anatomy: Its anatomy, None when it isn't canonical.
            records: What is to be remembered of it, if anything is remembered of the document.
            newest: The latest `updatedAt` that it is known to have had.
        """
        old_header = self.header()
        old_durability = None if old_header is None else old_header.durability
        if self.durability is Durability.INTERRUPTED or old_durability is Durability.UNFLUSHED:
            durability = Durability.UNFLUSHED
            anatomy = None  # So that the next write writes every byte anew.
        else:
            durability = Durability.EXTERNAL
        if old_durability is Durability.RESTORING:
            with (
                whole_files.translate_errors(self.path, "flush"),
                self._invalidating_on_failed_flush(),
            ):
                whole_files.sync_directory(self.sys, os.path.dirname(self.path))
            if durability is Durability.EXTERNAL:
                durability = Durability.DURABLE
        with whole_files.translate_errors(self.path, "log a change of"):
            raw = (
                self.sys.pread(self._mutex.document_fd, WIDTH, anatomy.updated_at)
                if anatomy
                else b""
            )
            self.log_observation(records)
        stamp = raw.decode("ascii", "replace")
        return self.commit_write(
            StateHeader(
                signature, anatomy, new_tag(), stamp, self.storage.boot_id, durability, newest
            )
        )

    def rewrite_records(self, writes: list[list[bytes]]) -> None:
        """Remember these writes and no others, durably; nothing, when there are none."""
        with whole_files.translate_errors(self.path, "rewrite the log of"):
            if writes:
                self.rewrite_log(writes)
            else:
                self.drop_log()

    def _undo_and_describe(self, error: OSError, doing: str) -> CapsuleError:
        """The error for a write that did not change the document."""
        if not self.discard_pending_line():
            doing = _NOT_UNDONE % doing
        return whole_files.as_capsule_error(error, self.path, doing)

    def _finish_replacement(
        self,
        header: StateHeader,
        now: Signature,
        anatomy: FileLayout | None,
        tag: str,
        stamp: str,
        time: str,
    ) -> StateHeader:
        """The document as a write left it that put a durable file in its place, noted."""
        newest = max(header.newest_updated_at, header.updated_at, stamp)
        done = StateHeader(
            now, anatomy, tag, stamp, self.storage.boot_id, Durability.DURABLE, newest, time
        )
        self.commit_write(
            done._replace(durability=Durability.EXTERNAL)
        )  # Until the log says what file it is.
        with whole_files.translate_errors(self.path, "log a change of"):
            self.set_checkpoint(done, Flushed(anatomy.tail if anatomy else -1), is_other=True)
        self._must_flush_log = False
        return done

    def _anatomy(self, header: StateHeader) -> FileLayout:
        if header.anatomy is None:
            raise ValueError(f"{self.path} has another layout, so it can only be replaced")
        return header.anatomy

    def splice(
        self,
        header: StateHeader,
        entries: list[bytes],
        stamp: str,
        records: list[bytes],
        time: str = "",
    ) -> StateHeader:
        """Append entries, of a time if that is known, in place, and overwrite `updatedAt`.

        Raises `ConcurrentWrite`, `StorageFailed`. Costs four pwrites, whatever the file's size.
        """
        anatomy = header.anatomy or self._anatomy(header)
        if self.storage.replaces_on_append or self._links > 1:
            head, at = (
                whole_files.pread_all(self.sys, self._mutex.document_fd, anatomy.context),
                anatomy.updated_at,
            )
            head = head[:at] + stamp.encode() + head[at + WIDTH :]
            return self.rewrite_head(
                header._replace(newest_message_time=time), head, entries, records
            )
        if header.durability is not Durability.DURABLE:
            header = self.flush(header)
        try:
            self.log_write(records)
            signature, after = splice(
                self.sys, self._mutex.document_fd, self.path, header, anatomy, entries, stamp
            )
        except FileReplaced:
            self.invalidate_header(header.durability, is_done=True)
            raise
        except ConcurrentWrite:
            self.invalidate_header(header.durability)
            raise
        except UnexpectedContent as error:
            self.invalidate_header(
                header.durability
            )  # Its line stays in the log: whoever finds it there completes what is torn.
            raise whole_files.as_capsule_error(
                error, self.path, _NOT_UNDONE % "append to"
            ) from error
        except OSError as error:
            raise self._undo_and_describe(error, "append to") from error
        newest = max(header.newest_updated_at, header.updated_at, stamp)
        return self.commit_write(
            StateHeader(
                signature,
                after,
                header.tag,
                stamp,
                self.storage.boot_id,
                Durability.DURABLE,
                newest,
                time,
            )
        )

    def flush(self, header: StateHeader) -> StateHeader:
        """Make the document durable, bytes and name, as it is. Raises `ConcurrentWrite`,
        `StorageFailed`.
        """
        with whole_files.translate_errors(self.path, "flush"):
            try:
                if whole_files.signature_of(self._open()) != header.signature:
                    raise ConcurrentWrite
            except (
                FileNotFoundError
            ):  # An editor that moves the old version away first, and puts its own there next.
                raise ConcurrentWrite from None
            with self._invalidating_on_failed_flush():
                whole_files.flush(self.sys.fsync, self._mutex.document_fd)
                whole_files.sync_directory(self.sys, os.path.dirname(self.path))
            flushed = Flushed(header.anatomy.tail if header.anatomy else -1)
            return self.set_checkpoint(
                header._replace(durability=Durability.DURABLE), flushed, is_other=True
            )

    def invalidate_header(self, durability: Durability, *, is_done: bool = False) -> None:
        """Have the next holder read the whole file, and write it anew after a failed flush.

        `is_done` says whether the write that was begun is in the file all the same.
        """
        note = self.commit_write if is_done else self.write_header
        note(StateHeader.of_unknown_file(self.storage.boot_id, durability))
        self.close_file()

    def rewrite_head(
        self,
        header: StateHeader,
        head: bytes,
        entries: list[bytes],
        records: list[bytes],
        context: Iterable[bytes] | None = None,
    ) -> StateHeader:
        """Write a new head, and a new context if one is given as `HeadRewrite` takes it, and append
        entries, in a new file.

        Raises `ConcurrentWrite`, `StorageFailed`. Costs copying the file in the kernel, and reading the
        context it replaces.
        """
        version = HeadRewrite(
            self.sys, self._mutex.document_fd, self._anatomy(header), head, entries, context
        )
        with whole_files.translate_errors(self.path, "log a change of"):
            self.log_write(records)
        try:
            signature = self._put_in_place(header.signature, version.write)
        except ConcurrentWrite:
            self.invalidate_header(header.durability)
            raise
        stamp = head[version.after.updated_at :][:WIDTH].decode("ascii")
        return self._finish_replacement(
            header, signature, version.after, new_tag(), stamp, header.newest_message_time
        )

    def replace(
        self,
        expected: Signature | None,
        data: bytes,
        anatomy: FileLayout | None,
        records: list[bytes],
    ) -> StateHeader:
        """Write the whole document. Costs writing it.

        Args:
            expected: What the caller decided upon; None: there must be no file, and what is
                remembered of one that had this id is dropped.
            data: The document.
            anatomy: Its anatomy, None when it isn't canonical.
            records: What is to be remembered of it; none where nothing is remembered of a new
                document.
        """
        before = self.header()
        if expected is None:
            if self.storage.exists(self.kind, self.id):
                raise ConcurrentWrite
            before, records = None, []
            with whole_files.translate_errors(self.path, "drop the log of"):
                self.drop_log()
        with whole_files.translate_errors(self.path, "log a change of"):
            self.log_write(records)
        signature = self._put_in_place(
            expected, lambda fd: whole_files.pwrite_all(self.sys, fd, data, 0)
        )
        stamp = data[anatomy.updated_at :][:WIDTH].decode("ascii") if anatomy else ""
        return self._finish_replacement(
            before or StateHeader(signature, None, "", "", "", Durability.DURABLE),
            signature,
            anatomy,
            new_tag(),
            stamp,
            "",
        )

    def _put_in_place(self, expected: Signature | None, write: Callable[[int], None]) -> Signature:
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
            raise self._undo_and_describe(error, "write") from error
        except BaseException:
            self.discard_pending_line()
            raise
        try:
            with whole_files.translate_errors(self.path, "put a new version in place of"):
                written = whole_files.signature_of(self.sys.fstat(fd))
                whole_files.put_in_place(self.sys, temporary, self.path, expected)
                # The rename touched ctime, and nothing else: what else differs, an editor has done
                # since.
                signature = written._replace(ctime_ns=self.sys.fstat(fd).st_ctime_ns)
        except BaseException as error:
            if isinstance(error, ConcurrentWrite):
                self.discard_pending_line()
            with suppress(OSError):
                self.sys.close(fd)
            self.close_file()  # What lies at the path is for the next look to find out.
            if isinstance(error.__cause__, FlushFailed):
                self.invalidate_header_and_log()
            raise
        # From here on the new file is the document, whatever is done to it next under this mutex.
        self.close_file()
        self._mutex.document_fd, self._links = fd, 1
        return signature

    def is_torn(self, signature: Signature) -> bool:
        """Whether a writer died in the file of this signature. To be asked once the records were
        read.

        A writer that lives says so when an editor was in its way, which may still be saving.
        """
        header = self.header()
        return (
            self.durability is Durability.INTERRUPTED
            and header is not None
            and header.signature.inode == signature.inode
        )

    def repair(self, data: bytes, signature: Signature, mended: bytes) -> str:
        """Put a mended file in place of the damaged one, which goes to the quarantine; its path
        there.
        """
        kept = self.quarantine(data, "torn")
        self._put_in_place(signature, lambda fd: whole_files.pwrite_all(self.sys, fd, mended, 0))
        return kept

    def quarantine(self, data: bytes, reason: str) -> str:
        with whole_files.translate_errors(self.path, "keep a copy of"):
            return self.storage.trash_directories.store(
                data, QUARANTINE, self.kind, self.id, reason
            )

    def delete(self) -> Trashed:
        with whole_files.translate_errors(self.path, "delete"):
            whole_files.ensure_regular(self.sys, self.path)
            self.make_durable()
            path = self.storage.trash_directories.move(self.path, TRASH, self.kind, self.id)
        trashed = self.storage.trash_directories.trashed_as(os.path.basename(path))
        with suppress(
            OSError
        ):  # Without this record the log is dropped when the document is restored.
            self.log_observation([deleted_record(trashed.token)])
        self.clear_header()
        self.close_file()
        return trashed

    def add_to_trash(self, kind: str, data: bytes) -> Trashed:
        """Put bytes into the trash, as a document of `kind` with this one's id."""
        with whole_files.translate_errors(self.path, "keep a copy of"):
            path = self.storage.trash_directories.store(data, TRASH, kind, self.id)
        return self.storage.trash_directories.trashed_as(os.path.basename(path))

    def drop_header_and_log(self) -> None:
        """Forget a document that is gone: its note, and its log."""
        self.rewrite_records([])
        self.clear_header()
        self.close_file()

    def restore(self, token: str) -> None:
        """Move the document back from the trash. Raises `Refused` when its place is taken."""
        with whole_files.translate_errors(self.path, "restore"):
            try:
                if self.storage.exists(self.kind, self.id):
                    raise FileExistsError
                if self.read_log()[-1:] != [[deleted_record(token)]]:
                    self.drop_log()  # It is of another document that had this id.
                # Whoever notices the file waits for the mutex, as it is none of the note's, and
                # learns whose it is.
                self.invalidate_header(Durability.RESTORING)
                self.storage.trash_directories.put_back(token, self.path)
            except FileExistsError:
                reason = f"{self.path} is there already; rename it or delete it, then restore again"
                raise Refused(reason, path=self.path) from None
        self.close_file()
