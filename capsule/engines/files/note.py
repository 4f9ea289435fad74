"""The note: what the last writer left about a document, beside its mutex; and the log of what it wrote.

The header is 512 bytes in the mutex file itself, one padded JSON line behind its CRC-32, written over in place and
never flushed. The log (`log.py`) is a file of its own. What must stay true: a header that is torn, stale, garbage or
gone costs a look at the whole document and nothing else; a write's records are in the log before the document is
touched, and the header counts them once it is done; no line leaves the log before the document is on the medium; both
are written under the mutex only, and a reader without it checks the header by its CRC. The module knows neither what a
record says nor what a conversation is.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Self

import orjson

from capsule.disk.whole_files import SIGNATURE, Signature, failure, sync_directory
from capsule.engines.files.disk.log import Log, Position, without_checkpoints
from capsule.engines.files.disk.mutex import Mutex
from capsule.engines.files.protocols import Known
from capsule.errors import CapsuleError, StorageFailed
from capsule.format.json.anatomy import Anatomy

if TYPE_CHECKING:
    from capsule.engines.files.storage import FileStorage

HEADER_BYTES = 512
_VERSION = 5
_MARK = b'{"note":%d,' % _VERSION
#: Stands where earlier versions have the offset of the lock's time: without one they replace the file.
_UNUSED = -1
_UNFLUSHED = "what was written is there, but a power cut may take it, as its flush failed; repeat it under the same key"
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
    """What a header says: the document as the last writer left it, and where the log ended; None when it is none."""
    body = raw[9:-1]
    if not body.startswith(_MARK) or raw[:8] != b"%08x" % zlib.crc32(body):
        return None
    fields = orjson.loads(body)
    at, log = fields["at"], fields["log"]
    known = Known(
        Signature(*fields["file"]),
        None if at is None else Anatomy(*at[:2], *at[3:]),
        *_described(fields),
    )
    return known, None if log is None else Position(*log)


class LoggedDocument:
    """A document whose mutex is held in a `with` block, with its note and its log.

    Args:
        storage: The files of the store.
        kind, id: The document.
        timeout_s: How long to wait for the mutex, in seconds.

    Attributes:
        path: Where it lies.
        waits: Whether the end of the block waits until what was written is on the medium.
        under_way: Whether the log has a write that the header does not count, as its writer died or was interrupted.
            Known once the records were read.
        sure: How many writes are in the document for sure: all but the one under way; when the machine was started
            since, those before the last checkpoint; None: all are. Known likewise.
        checkpoint: Where the entries of the document ended at that checkpoint; -1: not known, or not needed.
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
        self._is_looked_up = False
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
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
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
        except OSError as unflushed:
            self.mark_unflushed()
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
        self._position = log.position
        return writes

    def _log(self) -> Log | None:
        mutex = self._mutex
        if not self._is_looked_up:
            self.known()
        if mutex.log is None or not mutex.log.is_at(self._position):
            self._close_log(is_trusted=self._position is not None)
            # After a start of the machine, what is read is on the medium.
            is_sure = self.is_restarted or self._position is not None
            mutex.log = Log.open(self.sys, self._path(), self._position, is_sure=is_sure)
        return mutex.log

    def _path(self) -> str:
        return self.storage.logs.file(self._mutex.name)

    def _close_log(self, *, is_trusted: bool = True) -> None:
        log, self._mutex.log = self._mutex.log, None
        if log is not None:
            log.close(is_trusted=is_trusted)

    def flush_log(self) -> None:
        """Make the lines of the log durable. Raises `OSError`."""
        log = self._log()
        if log is not None:
            log.flush()

    @property
    def is_checkpoint(self) -> bool:
        """Whether the document is known to be on the medium, with all that was written to it."""
        return self._position is None or self._position.is_checkpoint

    def _secure(self) -> int | None:
        """Make the document durable before a line leaves its log; where its entries end, -1 if that is not known.

        None: the document isn't known to have what the log has, so that no line may leave that.
        """
        known, fd = self.known(), self._mutex.document_fd
        if known is None or known.doubt == "bytes" or self.under_way or fd < 0:
            return None
        if known.doubt or SIGNATURE(self.sys.fstat(fd)) != known.signature:  # Another program's version.
            self.sys.fsync(fd)
            sync_directory(self.sys, os.path.dirname(self.path))
            return -1
        if not self.is_checkpoint:
            self.sys.fdatasync(fd)
        return known.anatomy.tail if known.anatomy else -1

    def mark_unflushed(self) -> None:
        """Have the next holder, in whichever process, write every byte and the log anew. Takes the mutex."""
        with suppress(CapsuleError, OSError), self.storage.hold(self.kind, self.id) as held:
            held.distrust_all()

    def distrust_all(self) -> None:
        """As `mark_unflushed`, under the mutex: a flush has failed."""
        self.give_up_log()
        self.write_note(Known(Signature(0, 0, 0, 0), None, new_tag(), "", self.storage.boot, "bytes"))

    @property
    def is_unsettled(self) -> bool:
        """Whether writes were logged that the document is not known to have on the medium. Costs reading the log of
        one that nobody has looked at since the machine was started."""
        if (known := self.known()) is None:
            return len(self.logged()) > (self.sure or 0)
        return bool(known.doubt) or not self.is_checkpoint

    def owe_flush(self) -> None:
        """Have the log be flushed before anything under this mutex is acknowledged, unless the document is durable."""
        if not self.is_checkpoint:
            self._log()
            self._owes_flush = True

    def log_write(self, records: list[bytes]) -> None:
        """Log what is about to be written to the document; durable once `flush` was called without the mutex."""
        if not records:
            return
        self._owes_flush = True
        try:
            log, position = self._mutex.log, self._position
            if log is None or position is None or not log.put(records, position):
                log = self._roomy(records)
                log.put(records, log.position)
        except OSError:
            self.give_up_log()
            raise

    def set_checkpoint(self, known: Known, *, is_other: bool) -> Known:
        """Note that the document is on the medium as it is.

        Args:
            known: As it is.
            is_other: Whether it is another file than at the last checkpoint. Nothing may be written to it before the
                log says so on the medium.
        """
        if self._log() is not None:
            try:
                log = self._roomy([b" " * 40])
                log.set_checkpoint(known.anatomy.tail if known.anatomy else -1)
                if is_other:
                    log.flush()
            except OSError:
                self.give_up_log()
                raise
            self._position = log.position
        self.write_note(known)
        return known

    def log_remark(self, records: list[bytes]) -> None:
        """Log what was found in the document, when there is a log; durable with the next write's records."""
        if records and self._log() is not None:
            try:
                log = self._roomy(records)
                log.note(records)
            except OSError:
                self.give_up_log()
                raise
            self._position = log.position

    def give_up_log(self) -> None:
        """Have the log written anew by the next one: after a flush that failed, another one proves nothing."""
        log, self._mutex.log = self._mutex.log, None
        if log is not None:
            with suppress(OSError):
                log.withdraw()
            with suppress(OSError):
                log.close(is_trusted=False)
        self._leave_log()

    def _leave_log(self) -> None:
        """Have the header name no log, before its file goes: another process that has it open would write to it."""
        known = self.known()
        self._position = None
        if known is not None:
            self.write_note(known)

    def _roomy(self, records: list[bytes]) -> Log:
        """The log, with space for a write."""
        mutex = self._mutex
        log = self._log()
        mode = self.storage.logs.file_mode
        if log is None:
            self.storage.logs.ensure()
            writes, at = [[self.base()]] if self.base else [], self._secure()
            self._leave_log()
            log = mutex.log = Log.make(self.sys, self._path(), mode, writes, at)
        if log.lacks_room(records):
            at = self._secure()
            self._leave_log()
            mutex.log = log = log.renewed(records, mode, at)
        else:
            log.make_room(records)
        if self._position is None or self._position[:2] != log.position[:2]:
            self._position = log.position
            if mutex.memo is not None and (known := self.known()) is not None:
                self.write_note(known)  # Before the line is there: it must lie behind what the header counts.
        return log

    def note_down(self, known: Known) -> Known:
        """Count what was begun for done, and note how the document is now. Fails silently: derived, see above."""
        if self._mutex.log is not None and self._position is not None:
            self._position = self._mutex.log.take()
        self.write_note(known)
        return known

    def write_note(self, known: Known) -> None:
        """Note how the document is now; what was begun stays in the log, and is not counted."""
        mutex = self._mutex
        raw = encode_header(known, self._position)
        self._is_looked_up = True
        try:
            self.sys.pwrite(mutex.fd, raw, 0)
            if mutex.size > HEADER_BYTES:  # A note of an earlier version of Capsule.
                self.sys.ftruncate(mutex.fd, HEADER_BYTES)
            mutex.size, mutex.memo = HEADER_BYTES, (raw, known, self._position)
        except OSError:
            mutex.memo = None

    def withdraw(self) -> bool:
        """Take what was begun out of the log: the document does not have it. Whether that could be done."""
        if self._mutex.log is None:
            return True
        try:
            self._mutex.log.withdraw()
        except OSError:
            return False
        return True

    def rewrite_log(self, writes: list[list[bytes]]) -> None:
        """Have the log hold these records and no others, durably. Known as it is stays known."""
        if self._log() is None:
            return
        mode, at = self.storage.logs.file_mode, self._secure()
        self._leave_log()
        try:
            made = Log.make(self.sys, self._path(), mode, writes, at)
        except OSError as error:
            if at is None or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # Its texts have to go, most likely to make space: without the old log there is some.
            self.drop_log()
            made = Log.make(self.sys, self._path(), mode, writes, at, None)
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
        sync_directory(self.sys, self.storage.logs.path)

    def forget_note(self) -> None:
        """Drop the header: how the document is must be found out anew."""
        with suppress(OSError):
            self.sys.ftruncate(self._mutex.fd, 0)
        self._mutex.size, self._mutex.memo = 0, None
