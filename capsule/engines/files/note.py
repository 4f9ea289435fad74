"""The note: what the last writer left about a document, beside its mutex; and the log of what it
wrote.

The header is 512 bytes in the mutex file itself, one padded JSON line behind its CRC-32, written
over in place and never flushed. One byte behind it, the mark, says that a flush of the document or
of its log failed: so what was to be made durable is written anew before anything else is. The log
(`log.py`) is a file of its own.

What must stay true: a header that is torn, stale, garbage or gone costs a look at the whole
document and nothing else; a write's records are in the log before the document is touched, and the
header counts them once it is done; no line leaves the log before the document is on the medium, and
the log says how far that is, whatever became of the header; a write that failed leaves all of this
as it was; the header and the log are written under the mutex only, and a reader without it checks
the header by its CRC; and who flushed without the mutex looks at the mark before it acknowledges.
The module knows neither what a record says nor what a conversation is.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Self

import orjson

from capsule.disk.whole_files import (
    SIGNATURE,
    FlushFailed,
    Signature,
    failure,
    flush,
    sync_directory,
)
from capsule.engines.files.disk.log import Flushed, Log, Position, without_checkpoints
from capsule.engines.files.disk.mutex import Mutex
from capsule.engines.files.protocols import Known
from capsule.errors import StorageFailed
from capsule.format.json.anatomy import Anatomy
from capsule.timestamps import WIDTH, sortable

if TYPE_CHECKING:
    from capsule.engines.files.storage import FileStorage

HEADER_BYTES = 512
_VERSION = 5
_MARK = b'{"note":%d,' % _VERSION
#: Stands where earlier versions have the offset of the lock's time: without one they replace the
#: file.
_UNUSED = -1
#: What stands behind a header while something is to be written anew, as a flush of it failed.
MARKED = b"!"
_UNFLUSHED = (
    "what was written is there, but a power cut may take it, as its flush failed; repeat "
    "it under the same key"
)
_DOUBTS = ("", "name", "bytes", "restored")
_described = itemgetter("tag", "stamp", "boot", "doubt", "newest", "time")


def new_tag() -> str:
    """A tag for a head that was written anew."""
    return os.urandom(8).hex()


def encode_header(known: Known, log: Position | None) -> bytes:
    """The header for a document as it is, and where its log ends."""
    fields = {
        "note": _VERSION,
        "file": tuple(known.signature),
        "at": known.anatomy and (*known.anatomy[:2], _UNUSED, *known.anatomy[2:]),
        "tag": known.tag,
        "stamp": known.stamp,
        "boot": known.boot,
        "doubt": known.doubt,
        "newest": known.newest,
        "time": known.time,
        "log": log and tuple(log),
    }
    body = orjson.dumps(fields).ljust(HEADER_BYTES - 10)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode_header(raw: bytes) -> tuple[Known, Position | None] | None:
    """What a header says: the document as the last writer left it, and where the log ended; None
    when it is none.

    A true checksum says nothing of what is below it: a header whose fields can't be is none either.
    """
    body = raw[9 : HEADER_BYTES - 1]
    if not body.startswith(_MARK) or raw[:8] != b"%08x" % zlib.crc32(body):
        return None
    try:
        fields = orjson.loads(body)
        at, log = fields["at"], fields["log"]
        known = Known(
            Signature(*fields["file"]),
            None if at is None else Anatomy(*at[:2], *at[3:]),
            *_described(fields),
        )
        position = None if log is None else Position(*log)
    except (ValueError, KeyError, TypeError):
        return None
    return (known, position) if _can_be(known, position) else None


def _can_be(known: Known, position: Position | None) -> bool:
    """Whether all fields of a header are of their types, and all offsets in it within what they are
    offsets of.
    """
    at, signature = known.anatomy, known.signature
    if not _are_counts(signature[:2]) or not all(type(time) is int for time in signature[2:]):
        return False
    if not all(isinstance(text, str) for text in known[2:]) or known.doubt not in _DOUBTS:
        return False
    if not all(not stamp or sortable(stamp) for stamp in (known.stamp, known.newest, known.time)):
        return False
    if position is not None and not _are_counts(position):
        return False
    if position is not None and not position.durable <= position.end <= position.size:
        return False
    if at is None:
        return True
    if (
        not _are_counts(at[:-1])
        or not isinstance(at.ends_active, bool)
        or len(known.stamp) != WIDTH
    ):
        return False
    is_within = (
        at.updated_at + WIDTH < at.context < at.history <= at.tail < at.size == signature.size
    )
    return is_within and at.entries <= at.tail - at.history


def _are_counts(values: Iterable[object]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


class LoggedDocument:
    """A document whose mutex is held in a `with` block, with its note and its log.

    Args:
        storage: The files of the store.
        kind, id: The document.
        timeout_s: How long to wait for the mutex, in seconds.

    Attributes:
        path: Where it lies.
        waits: Whether the end of the block waits until what was written is on the medium.
        under_way: Whether the log has a write that the header does not count, as its writer died or
            was interrupted. Known once the records were read.
        sure: How many writes are in the document for sure: all but the one under way; when the
            machine was started since, those before the last checkpoint; None: all are. Known
            likewise.
        checkpoint: Where the entries of the document ended at that checkpoint; -1: not known, or
            not needed.
        is_restarted: Whether the header is of another run of the machine.
        base: Gives the record that a new log is to begin with; set by who knows it.
    """

    _mutex: Mutex

    def __init__(self, storage: FileStorage, kind: str, id: str, timeout_s: float) -> None:
        self.id = id
        self.path = storage.layout.document(kind, id)
        self.kind = kind
        self.storage = storage
        self.sys = storage.sys
        self.waits = True
        self._timeout_s = timeout_s
        self._position: Position | None = None
        self._is_looked_up = self._is_log_found = False
        self.under_way = self.is_restarted = self._owes_flush = False
        self.sure: int | None = None
        self.checkpoint = -1
        self.base: Callable[[], bytes] | None = None

    def __enter__(self) -> Self:
        mutexes, name = self.storage.mutexes, f"{self.kind}-{self.id}"
        try:
            self._mutex = mutexes.acquire(name, self._timeout_s)
        except OSError as error:
            raise failure(error, mutexes.path(name), "open") from error
        if self._mutex.size > HEADER_BYTES:
            try:
                self._heed_mark()
            except OSError as error:
                mutexes.release(self._mutex)
                raise failure(error, mutexes.path(name), "read") from error
        return self

    def _heed_mark(self) -> None:
        known = self.known()
        if not self.is_restarted and (known is None or known.doubt != "bytes"):
            self.distrust_all()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        mutexes, mutex, log = self.storage.mutexes, self._mutex, self._mutex.log
        if not self._owes_flush or log is None or error is not None:
            mutexes.release(mutex)
            if isinstance(error, OSError):
                raise failure(error, self.path, "read or write") from error
            return
        mutexes.unlock(mutex)
        try:
            self.storage.behind.add(self.kind, self.id, self.storage.make_durable)
            if self.waits:
                log.flush()
                if self.sys.fstat(mutex.fd).st_size > HEADER_BYTES:
                    raise FlushFailed(errno.EIO, "another flush of it failed")
        except OSError as unflushed:
            self.storage.mark_unflushed(self.kind, self.id)
            reason = f"{self.path}: {_UNFLUSHED}: {unflushed.strerror}"
            raise StorageFailed(reason, path=self.path, errno=unflushed.errno) from unflushed
        finally:
            mutexes.leave(mutex)

    def known(self) -> Known | None:
        """What the header says; one that was read or written here last is not decoded again."""
        mutex = self._mutex
        raw = self.sys.pread(mutex.fd, HEADER_BYTES, 0) if mutex.size >= HEADER_BYTES else b""
        if mutex.memo is None or mutex.memo[0] != raw:
            header = decode_header(raw)
            if header is None or header[0].boot != self.storage.boot:
                self.is_restarted = header is not None
                return None
            mutex.memo = (raw, *header)
        if not self._is_looked_up:
            self._position, self._is_looked_up = mutex.memo[2], True
        return mutex.memo[1]

    def logged(self) -> list[list[bytes]]:
        """The records of each write, oldest first. Costs reading the log."""
        log = self._log()
        if log is None:
            return []
        had = self._position
        writes = log.read()
        writes, before, at = without_checkpoints(writes)
        if had is None:
            self.sure, self.checkpoint = before, at
        elif had[:4] != log.position[:4]:
            self.under_way, self.sure = True, len(writes) - 1
        if log.is_sure:
            self._position = log.position
        return writes

    def _log(self) -> Log | None:
        mutex = self._mutex
        if self._is_log_found and mutex.log is not None:
            return mutex.log
        known = self.known() if not self._is_looked_up or self._position is None else None
        if mutex.log is None or not mutex.log.is_at(self._position):
            self._close_log(is_trusted=self._position is not None)
            # After a start of the machine, what is read is on the medium.
            is_sure = (
                self.is_restarted
                or self._position is not None
                or (known is not None and known.doubt != "bytes")
            )
            mutex.log = Log.open(self.sys, self._path(), self._position, is_sure=is_sure)
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
            with self._heeding_failed_flush():
                log.flush()

    @contextmanager
    def _heeding_failed_flush(self) -> Iterator[None]:
        """After a flush that failed, have every byte and the log be written anew."""
        try:
            yield
        except FlushFailed:
            self.distrust_all()
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
        known, fd = self.known(), self._mutex.document_fd
        if known is None or known.doubt == "bytes" or self.under_way or fd < 0:
            return None
        with self._heeding_failed_flush():
            if (
                known.doubt or SIGNATURE(self.sys.fstat(fd)) != known.signature
            ):  # Another program's version.
                flush(self.sys.fsync, fd)
                sync_directory(self.sys, os.path.dirname(self.path))
                return Flushed(-1)
            if not self.is_durable:
                flush(self.sys.fdatasync, fd)
        return Flushed(known.anatomy.tail if known.anatomy else -1)

    def distrust_all(self) -> None:
        """Have the next holder, in whichever process, write every byte and the log anew: a flush
        has failed.
        """
        self._close_log(is_trusted=False)
        self._position = None
        self.write_note(
            Known(Signature(0, 0, 0, 0), None, new_tag(), "", self.storage.boot, "bytes")
        )

    @property
    def is_unsettled(self) -> bool:
        """Whether writes were logged that the document is not known to have on the medium. Costs
        reading the log of one that nobody has looked at since the machine was started."""
        if (known := self.known()) is None:
            return len(self.logged()) > (self.sure or 0)
        return bool(known.doubt) or not self.is_durable

    def owe_flush(self) -> bool:
        """Have the log be flushed before anything under this mutex is acknowledged, unless the
        document is durable. False: somebody has removed it, so that the document itself must be
        flushed."""
        if self.is_durable:
            return True
        self._owes_flush = self._log() is not None
        return self._owes_flush

    def log_write(self, records: list[bytes]) -> None:
        """Log what is about to be written to the document; durable once `flush` was called without
        the mutex.
        """
        if not records:
            return
        self._owes_flush = True
        try:
            log, position = self._mutex.log, self._position
            if log is None or position is None or not log.put(records, position):
                log = self._roomy(records)
                log.put(records, log.position)
        except OSError as error:
            self._refuse_line(error)
            raise

    def set_checkpoint(self, known: Known, flushed: Flushed, *, is_other: bool) -> Known:
        """Note that the document is on the medium as it is.

        Args:
            known: As it is.
            flushed: That it was flushed.
            is_other: Whether it is another file than at the last checkpoint. Nothing may be written
                to it before the log says so on the medium.
        """
        if self._log() is not None:
            try:
                log = self._roomy([b" " * 40])
                if log.is_too_large():
                    self._leave_log()
                    log = self._mutex.log = log.renewed([], self.storage.logs.file_mode, flushed)
                else:
                    log.set_checkpoint(flushed)
                    if is_other:
                        log.flush()
            except OSError as error:
                self._refuse_line(error)
                raise
            self._position = log.position
        self.write_note(known)
        return known

    def log_remark(self, records: list[bytes]) -> None:
        """Log what was found in the document, when there is a log; durable with the next write's
        records.
        """
        if records and self._log() is not None:
            try:
                log = self._roomy(records)
                log.note(records)
            except OSError as error:
                self._refuse_line(error)
                raise
            self._position = log.position

    def _refuse_line(self, error: OSError) -> None:
        """A line could not be put into the log: none was. The log is as good as before, unless a
        flush failed.
        """
        if isinstance(error, FlushFailed):
            self.distrust_all()
        else:
            self.withdraw()

    def _leave_log(self) -> None:
        """Have the header name no log, before its file goes: another process that has it open would
        write to it.
        """
        known = self.known()
        self._position = None
        if known is not None and not self.write_note(known):
            raise OSError(errno.EIO, f"{self._mutex.name}: its header could not be written")

    def _roomy(self, records: list[bytes]) -> Log:
        """The log, with space for a write."""
        mutex = self._mutex
        log = self._log()
        mode = self.storage.logs.file_mode
        if log is None:
            self.storage.logs.ensure()
            writes = [[self.base()]] if self.base else []
            flushed = self._flush_document()
            self._leave_log()
            log = mutex.log = Log.make(self.sys, self._path(), mode, writes, flushed)
        if log.lacks_room(records):
            flushed = self._flush_document()
            self._leave_log()
            mutex.log = log = log.renewed(records, mode, flushed)
        else:
            log.make_room(records)
        if self._position is None or self._position[:2] != log.position[:2]:
            self._position = log.position
            if mutex.memo is not None and (known := self.known()) is not None:
                self.write_note(
                    known
                )  # Before the line is there: it must lie behind what the header counts.
        return log

    def note_down(self, known: Known) -> Known:
        """Count what was begun for done, and note how the document is now. Fails silently: derived,
        see above.
        """
        if self._mutex.log is not None and self._position is not None:
            self._position = self._mutex.log.take()
        self.write_note(known)
        return known

    def write_note(self, known: Known) -> bool:
        """Note how the document is now; what was begun stays in the log, and is not counted.
        Whether it could be.
        """
        mutex = self._mutex
        raw = encode_header(known, self._position)
        mark = MARKED if known.doubt == "bytes" else b""
        self._is_looked_up = True
        try:
            self.sys.pwrite(mutex.fd, raw + mark, 0)
            if mutex.size > HEADER_BYTES and not mark:
                self.sys.ftruncate(mutex.fd, HEADER_BYTES)
            mutex.size, mutex.memo = HEADER_BYTES + len(mark), (raw, known, self._position)
        except OSError:
            mutex.memo = None
            return False
        return True

    def withdraw(self) -> bool:
        """Take what was begun out of the log: the document does not have it. Whether that could be
        done.
        """
        if self._mutex.log is None:
            return True
        try:
            with self._heeding_failed_flush():
                self._mutex.log.withdraw()
        except OSError:
            return False
        return True

    def rewrite_log(self, writes: list[list[bytes]]) -> None:
        """Have the log hold these records and no others, durably. Known as it is stays known."""
        if self._log() is None:
            return
        mode, flushed = self.storage.logs.file_mode, self._flush_document()
        self._leave_log()
        with self._heeding_failed_flush():
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
        known = self.known()
        if known is not None:
            self.write_note(known)

    def drop_log(self) -> None:
        """Remove the log, durably: what it tells is of another document."""
        self._close_log()
        self._leave_log()
        try:
            self.sys.unlink(self._path())
        except FileNotFoundError:
            return
        with self._heeding_failed_flush():
            sync_directory(self.sys, self.storage.logs.path)

    def forget_note(self) -> None:
        """Drop the header: how the document is must be found out anew."""
        with suppress(OSError):
            self.sys.ftruncate(self._mutex.fd, 0)
        self._mutex.size, self._mutex.memo = 0, None
