"""The log of one document: what the store is about to write, one line a write, in a file of its own.

A line is a checksum and the records of the write. The checksum continues the one of the line
before, so bytes that an earlier line left after the end never count. The file consists of zeros
that were flushed, and grows in such pieces: flushing a line needs neither space nor metadata. A
*checkpoint* is a line that says: the document is on the disk with every write before this line, and
its entries end at this byte. The last checkpoint is the only statement of how far the document is
durable. Everything else that says so repeats it.

What must stay true: a line is whole or it does not count; a line whose write failed is removed
again; only who has flushed the document writes a checkpoint (`Flushed`); a line leaves the log only
after a checkpoint; the log keeps at least the newest 256 KiB of messages, whatever else was
written. The module knows of a record only whether it is about a head.

`BackgroundFlusher` makes documents durable within a second of an append, which waited for its log alone.
One thread does it for all stores of a process, once there is something to flush. What must stay
true: no promise to a caller depends on it; it holds no mutex while it sleeps, and keeps no flushed
store alive; no thread of ours runs while the process forks; a forked child shares nothing with its
parent.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import stat
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from capsule.disk.syscalls import Syscalls
from capsule.disk.whole_files import FlushFailed, pread_all, pwrite_all, sync_directory, write_new
from capsule.errors import CapsuleError, StoreBusy

#: A record that begins so is about a head: many of them never push a message out of the log.
_HEAD_RECORDS = (b'{"k":"head"', b'{"k":"lock"')
#: What stays at least, in bytes, when the log is written anew.
MESSAGE_BYTES, HEAD_BYTES = 256 << 10, 64 << 10
_SMALLEST, _LARGEST = 4 << 10, 512 << 10
_CHUNK = 1 << 20
_CHECKPOINT = b'{"k":"checkpoint","at":%d}'
_CHECKPOINT_MARK = _CHECKPOINT[: _CHECKPOINT.index(b"%")]

Records = list[bytes]


class LogPosition(NamedTuple):
    """Where a log ends.

    Attributes:
        inode: Its inode.
        size: Its bytes, preallocated.
        end: Where its last line ends.
        crc: The checksum of that line.
        durable: Where its last checkpoint ends: the document is on the medium with every line up to
            there.
    """

    inode: int
    size: int
    end: int
    crc: int
    durable: int

    @property
    def is_durable(self) -> bool:
        """Whether the document is on the medium with every line of the log."""
        return self.durable == self.end


class Flushed(NamedTuple):
    """The word of whoever flushed a document that it is on the medium, with every line of its log.

    Attributes:
        tail: The byte at which its entries end; -1: that is not known.
    """

    tail: int


def without_checkpoints(writes: list[Records]) -> tuple[list[Records], int, int]:
    """The writes alone; how many of them stand before the last checkpoint; and the byte of that, -1
    without one.
    """
    count, at = 0, -1
    result: list[Records] = []
    for records in writes:
        if records[0].startswith(_CHECKPOINT_MARK):
            count, at = len(result), int(records[0][len(_CHECKPOINT_MARK) : -1])
        else:
            result.append(records)
    return result, count, at


def _line(records: Records, crc: int) -> tuple[bytes, int]:
    body = b"\t".join(records)
    crc = zlib.crc32(body, crc)
    return b"%08x %b\n" % (crc, body), crc


class Log:
    """One log, open. Its lines are written under the document's mutex, and flushed without it.

    Attributes:
        fd: Its file.
        position: Where it ends.
    """

    __slots__ = (
        "_failure",
        "_flush_lock",
        "_flushed_end",
        "_is_reliable",
        "_path",
        "_pending_end",
        "_sys",
        "fd",
        "position",
    )

    def __init__(
        self,
        sys: Syscalls,
        path: str,
        fd: int,
        position: LogPosition | None,
        *,
        is_reliable: bool = True,
    ) -> None:
        status = sys.fstat(fd)
        self._sys, self._path, self.fd = sys, path, fd
        self._pending_end: LogPosition | None = None
        self._is_reliable = is_reliable
        self._flush_lock = threading.Lock()
        self._flushed_end = 0
        self._failure: FlushFailed | None = None
        if (
            position is not None
            and position.inode == status.st_ino
            and position.size <= status.st_size
        ):
            self.position = position
        else:
            self.position = LogPosition(status.st_ino, status.st_size, 0, 0, 0)
            self.read()

    @classmethod
    def open(
        cls, sys: Syscalls, path: str, position: LogPosition | None, *, is_reliable: bool = True
    ) -> Log | None:
        """The log of this path; None when there is none. Costs a look at the whole of it, unless
        its end is known.

        Args:
            sys: The seam to the system.
            path: Its path.
            position: Where it ended, when that is known.
            is_reliable: Whether all of it is on the medium; else it is written anew before anything is
                added.
        """
        try:
            fd = sys.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            if not stat.S_ISREG(sys.fstat(fd).st_mode):
                raise FileExistsError(17, "it is not a regular file", path)
            return cls(sys, path, fd, position, is_reliable=is_reliable)
        except BaseException:
            sys.close(fd)
            raise

    @classmethod
    def make(
        cls,
        sys: Syscalls,
        path: str,
        mode: int,
        writes: list[Records],
        flushed: Flushed | None,
        room: int | None = 0,
    ) -> Log:
        """A new log with these writes and a checkpoint, durable; it takes the place of the one
        there is.

        Raises `FlushFailed` if it has its name, but that may not be durable; any other OSError: the
        old one is there.

        Args:
            sys: The seam to the system.
            path: Its path.
            mode: The permission bits of its file.
            writes: The records of each write, oldest first.
            flushed: That the document is on the medium with all of them. None: it may not be, so
                that the checkpoints among the writes stay, and there is no other one.
            room: How many bytes it is to have space for besides; None: none at all, as there is
                little.
        """
        if flushed is not None:
            writes = [*without_checkpoints(writes)[0], [_CHECKPOINT % flushed.tail]]
        lines = list[bytes]()
        end = crc = durable = 0
        for records in writes:
            line, crc = _line(records, crc)
            lines.append(line)
            end += len(line)
            if records[0].startswith(_CHECKPOINT_MARK):
                durable = end
        size = max(_SMALLEST, end) if room is None else _size_for(end + room)
        directory, name = os.path.split(path)
        temporary = f"{directory}/.{name}.tmp"

        def write(fd: int) -> None:
            pwrite_all(sys, fd, b"".join(lines).ljust(size, b"\0"), 0)

        try:
            fd = write_new(sys, temporary, mode, write)
        except FileExistsError:  # Of a writer that is dead.
            sys.unlink(temporary)
            fd = write_new(sys, temporary, mode, write)
        try:
            sys.rename(temporary, path)
            sync_directory(sys, directory)
            return cls(sys, path, fd, LogPosition(sys.fstat(fd).st_ino, size, end, crc, durable))
        except BaseException:
            sys.close(fd)
            with suppress(OSError):
                sys.unlink(temporary)
            raise

    def read(self) -> list[Records]:
        """The records of each write, oldest first. The end of the last whole line is the end from
        here on.
        """
        data = b""
        while piece := pread_all(self._sys, self.fd, _CHUNK, len(data)):
            data += piece
            if b"\0" in piece:
                break
        writes: list[Records] = []
        at = crc = durable = 0
        for line in data.split(b"\n")[:-1]:
            body = line[9:]
            seeded = zlib.crc32(body, crc)
            if line[:9] != b"%08x " % seeded:
                break
            writes.append(body.split(b"\t"))
            at, crc = at + len(line) + 1, seeded
            if body.startswith(_CHECKPOINT_MARK):
                durable = at
        self.position, self._pending_end = (
            self.position._replace(end=at, crc=crc, durable=durable),
            None,
        )
        return writes

    @property
    def is_reliable(self) -> bool:
        """Whether all of it is on the medium, or will be with the next flush."""
        return self._is_reliable

    def needs_compaction(self, records: Records) -> bool:
        """Whether it must be written anew before one more write: what is old has to go, or it isn't
        sure.
        """
        return not self._is_reliable or self._end_after(records) > max(_LARGEST, self.position.size)

    def _end_after(self, records: Records) -> int:
        return self.position.end + sum(map(len, records)) + len(records) + 9

    def compacted(self, records: Records, mode: int, flushed: Flushed | None) -> Log:
        """A new log in the place of this one, with space for one more write, from which what is old
        has gone.

        Args:
            records: Of that write; none, if it is made for none.
            mode: The permission bits of its file.
            flushed: As `make` takes it; if it is None, nothing goes.
        """
        kept = self.read()
        if flushed is not None:
            kept = _newest(without_checkpoints(kept)[0], records)
        made = Log.make(
            self._sys, self._path, mode, kept, flushed, self._end_after(records) - self.position.end
        )
        self.close()
        return made

    def is_too_large(self) -> bool:
        """Whether it is larger than usual, and would be smaller if it were `compacted`. Costs reading
        a large one.
        """
        if self.position.size <= _LARGEST:
            return False
        kept = _newest(without_checkpoints(self.read())[0], [])
        checkpoint = len(_CHECKPOINT) + 64
        return (
            _size_for(sum(len(_line(records, 0)[0]) for records in kept) + checkpoint)
            < self.position.size
        )

    def ensure_space(self, records: Records) -> None:
        """Make space for one more write, unless it `needs_compaction`."""
        had, wanted = self.position.size, self._end_after(records)
        if wanted <= had:
            return
        size = max(had, _SMALLEST)
        while size < wanted:
            size *= 2
        try:
            pwrite_all(self._sys, self.fd, bytes(size - had), had)
        except OSError:
            with suppress(OSError):
                self._sys.ftruncate(self.fd, had)
            raise
        try:
            self._sys.fsync(self.fd)
        except OSError as error:
            raise self._failed(error) from error
        self.position = self.position._replace(size=size)

    def write_pending(self, records: Records, position: LogPosition) -> bool:
        """Write a line behind the end, which is there once `take` is called, and durable after
        `flush`.

        Args:
            records: Of one write.
            position: Where the log ends, as the header of the note has it.

        Returns:
            False: it ends in another file, or there is no room (`ensure_space`); nothing was written
                then.
        """
        inode, size, at, crc, durable = position
        line, crc = _line(records, crc)
        end = at + len(line)
        if inode != self.position.inode or end > size or not self._is_reliable:
            return False
        if at < self._flushed_end:  # A line that was counted by nobody stood here.
            with self._flush_lock:
                self._flushed_end = at
        self.position, self._pending_end = position, LogPosition(inode, size, end, crc, durable)
        pwrite_all(self._sys, self.fd, line, at)
        return True

    def flush(self) -> None:
        """Make every line durable that is there. The threads that wait meanwhile need no flush of
        their own.

        Raises `FlushFailed`, and does so ever after: once a flush has failed, another one proves
        nothing.
        """
        with self._flush_lock:
            if self._failure is not None:
                raise self._failure
            end = self.position.end
            if self._flushed_end < end and self.fd >= 0:
                try:
                    self._sys.fdatasync(self.fd)
                except OSError as error:
                    raise self._failed(error) from error
                self._flushed_end = end

    def _failed(self, error: OSError) -> FlushFailed:
        self._failure = FlushFailed(error.errno, error.strerror)
        return self._failure

    def append(self, records: Records) -> None:
        """Write a line behind the end, durable with the next one that is `put`."""
        self.write_pending(records, self.position)
        self.commit_pending()

    def set_checkpoint(self, flushed: Flushed) -> None:
        """Add a checkpoint. Durable with `flush`."""
        self.append([_CHECKPOINT % flushed.tail])
        self.position = self.position._replace(durable=self.position.end)

    def commit_pending(self) -> LogPosition:
        """Take the line that was put for written: the document has it. Where the log ends then."""
        self.position, self._pending_end = self._pending_end or self.position, None
        return self.position

    def discard_pending(self) -> None:
        """Take the line that was put out again, durably: the document does not have it."""
        if self._pending_end is not None:
            self._pending_end = None
            self._sys.pwrite(self.fd, b"\0", self.position.end)
            try:
                self._sys.fdatasync(self.fd)
            except OSError as error:
                raise self._failed(error) from error

    def follow_header(self, position: LogPosition | None) -> bool:
        """Whether this is still the file that its name stands for, as the header of the note has
        it: that names none when the store removes a file, but somebody else may have done so."""
        status = self._sys.fstat(self.fd)
        if (
            position is None
            or position.inode != status.st_ino
            or status.st_size < position.size
            or not status.st_nlink
        ):
            return False
        self.position = position
        return True

    def close_in_child(self) -> None:
        """In a forked child: close it. A thread that only the parent has may hold its lock."""
        self._flush_lock = threading.Lock()
        self.close()

    def close(self, *, is_trusted: bool = True) -> None:
        """Close it. Who waits to flush it learns that it can't be known, unless it `is_trusted`:
        another one then has its lines, durably, or they are not needed."""
        with self._flush_lock:
            fd, self.fd = self.fd, -1
            if not is_trusted and self._failure is None:
                self._failure = FlushFailed(errno.EIO, "its log could not be kept")
            self._sys.close(fd)


def _size_for(wanted: int) -> int:
    """How large the file of a log is that needs so many bytes: so large that the next one is some
    way off.
    """
    size = _SMALLEST
    while size < wanted * 3 // 2:
        size *= 2
    return size


def _newest(writes: list[Records], following: Records) -> list[Records]:
    """What stays of these writes if this one follows: the newest records. Those about heads have a
    budget of their own."""
    heads = messages = 0
    kept: list[Records] = []
    for records in [following, *reversed(writes)]:
        chosen = []
        for record in reversed(records):
            if record.startswith(_HEAD_RECORDS):
                if heads < HEAD_BYTES:
                    chosen.append(record)
                heads += len(record)
            else:
                if messages < MESSAGE_BYTES:
                    chosen.append(record)
                messages += len(record)
        kept.append(chosen[::-1])
    return [records for records in reversed(kept[1:]) if records]


def deleted_record(token: str) -> bytes:
    """The record of a deletion: without it behind all others, the log is not of the document that
    is brought back.
    """
    return b'{"k":"deleted","token":"%b"}' % token.encode()


_log = logging.getLogger("capsule")
#: How long after an append: the flush itself may take a while, and a second was promised.
_DELAY_S = 0.5


class BackgroundFlusher:
    """The documents of one store that this process appended to and that are not flushed yet."""

    def __init__(self) -> None:
        self._documents: dict[tuple[str, str], Callable[[str, str, float], None]] = {}
        self._flush_lock = threading.Lock()

    def add(self, kind: str, id: str, make_durable: Callable[[str, str, float], None]) -> None:
        """Have a document flushed within a second.

        Args:
            kind, id: The document.
            make_durable: Its store's method, which also takes how long to wait for its mutex, in
                seconds.
        """
        self._documents[kind, id] = make_durable
        _thread.pending[self] = None
        if not _thread.wake.is_set():
            _thread.start()

    def flush(self, timeout_s: float = 10.0) -> None:
        """Flush them now. One whose mutex can't be had in so many seconds stays for later; an error
        is logged.
        """
        self.flush_available(timeout_s)
        if self._documents:
            _thread.start()

    def flush_available(self, timeout_s: float) -> None:
        """As `flush`, but what stays for later stays until somebody else starts the thread."""
        with self._flush_lock:
            busy = {}
            while self._documents:
                (kind, id), make_durable = self._documents.popitem()
                try:
                    make_durable(kind, id, timeout_s)
                except StoreBusy:
                    busy[kind, id] = make_durable
                except CapsuleError as error:
                    _log.warning("%s %s is not flushed: %s", kind, id, error)
            self._documents.update(busy)
        if busy:
            _thread.pending[self] = None


class _FlushThread:
    """The thread, which ends before a fork, and is started by the next append.

    Attributes:
        waiting: The stores that have something to flush.
        wake: Set while it has something to do.
    """

    def __init__(self) -> None:
        self.pending: dict[BackgroundFlusher, None] = {}
        self.wake, self._is_ending = threading.Event(), threading.Event()
        self._starting = threading.Lock()
        self._running: threading.Thread | None = None
        self._ident = 0
        self._forks = 0

    def start(self) -> None:
        """Have it flush what is waiting, in a while; at the end of the process where no thread can
        be started.
        """
        if threading.get_ident() == self._ident:
            # Not under the lock: who holds that may be waiting for this thread to end.
            self.wake.set()
            return
        with self._starting, suppress(RuntimeError):  # The interpreter is shutting down.
            if self._forks:
                return  # `after_fork` does it.
            if self._running is None:
                self._is_ending.clear()
                running = threading.Thread(target=self._run, name="capsule-flush", daemon=True)
                running.start()
                self._running = running
            self.wake.set()

    def _run(self) -> None:
        self._ident = threading.get_ident()
        while not self._is_ending.is_set():
            self.wake.wait()
            if not self._is_ending.wait(_DELAY_S):
                self.wake.clear()
                self.flush()
        self._ident = 0  # It may be another thread's next.

    def flush(self, timeout_s: float = 10.0) -> None:
        """Flush all that is waiting now."""
        for behind in list(self.pending):
            self.pending.pop(behind, None)
            behind.flush(timeout_s)

    def stop(self) -> None:
        """Flush what can be had at once, and end."""
        with self._starting:
            running, self._running = self._running, None
            if running is not None:
                self._is_ending.set()
                self.wake.set()
                running.join()
                self.wake.clear()
        for behind in list(self.pending):
            self.pending.pop(behind, None)
            behind.flush_available(timeout_s=0)

    def before_fork(self) -> None:
        """Stop, and stay so until `after_fork`."""
        with self._starting:
            self._forks += 1
        self.stop()

    def after_fork(self) -> None:
        """In the parent: go on with what could not be flushed before the fork."""
        with self._starting:
            self._forks -= 1
        if self.pending:
            self.start()


_thread = _FlushThread()
atexit.register(lambda: _thread.flush(timeout_s=1))


def _in_forked_child() -> None:
    global _thread
    _thread = _FlushThread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _thread.before_fork(),
        after_in_parent=lambda: _thread.after_fork(),
        after_in_child=_in_forked_child,
    )
