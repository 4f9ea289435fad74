"""The log of one document: what the store is about to write, one line a write, in a file of its own.

A line is a checksum and the records of the write. The checksum continues the one of the line
before, so bytes that an earlier line left after the end never count. The file ends with zeros that
were flushed, and it grows in such pieces. So flushing a line needs neither space nor metadata.

A write first adds a *pending line*. It counts once the document has the write
(`Log.commit_pending`), and is removed if the write fails (`Log.discard_pending`). A *checkpoint* is
a line that says: the document is on the disk with every write before this line, and its entries end
at this byte. The last checkpoint is the only proof of how far the document is durable.

`BackgroundFlusher` flushes documents within a second of an append, which waited for its log alone.
One thread does it for all stores of a process, and runs only while there is something to flush.

What must stay true:

- A line is whole or it does not count.
- A checkpoint is written only after a flush of the document (`Flushed`), and a line leaves the log
  only after a checkpoint.
- The log keeps at least the newest 256 KiB of messages, whatever else was written.
- No promise to a caller depends on the flusher. It holds no mutex while it sleeps, and it keeps no
  store alive that has nothing to flush. Its thread does not run while the process forks, and a
  forked child shares nothing with its parent.

The module knows of a record only whether it is about a head.
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

#: A record that begins so is about a head. However many of them there are, no message leaves the
#: log because of them.
_HEAD_RECORDS = (b'{"k":"head"', b'{"k":"lock"')
#: The bytes of records about messages and about heads that a compacted log keeps at least.
MESSAGE_BYTES = 256 << 10
HEAD_BYTES = 64 << 10
#: The smallest size of a log, and the one from which it is compacted, in bytes.
_SMALLEST = 4 << 10
_LARGEST = 512 << 10
_READ_BYTES = 1 << 20
_CHECKPOINT = b'{"k":"checkpoint","at":%d}'
_CHECKPOINT_MARK = _CHECKPOINT[: _CHECKPOINT.index(b"%")]
#: Bytes of a line besides its records and the separators between them: the checksum, the space and
#: the line feed, less the separator that one record does not need.
_LINE_OVERHEAD = 9
#: More bytes than the number in a checkpoint and the rest of its line.
_CHECKPOINT_MARGIN = 64

Records = list[bytes]


class LogPosition(NamedTuple):
    """The end of a log.

    Attributes:
        inode: The inode of its file.
        size: The bytes of its file, most of them preallocated.
        end: The byte after its last line.
        crc: The checksum of that line.
        durable: The byte after its last checkpoint. The document is on the disk with every line up
            to there.
    """

    inode: int
    size: int
    end: int
    crc: int
    durable: int

    @property
    def is_durable(self) -> bool:
        """Whether the document is on the disk with every line of the log."""
        return self.durable == self.end


class Flushed(NamedTuple):
    """The proof that a document was flushed with every line of its log. Made only after the flush.

    Attributes:
        entries_end: The byte where its entries end. -1: it is not known.
    """

    entries_end: int


class LogEvidence(NamedTuple):
    """What a log proves about its document.

    Attributes:
        certain_writes: The number of logged writes that the document certainly contains. After an
            interrupted write: all but the last. Without a header of this run of the machine: those
            before the last checkpoint. None: all.
        checkpoint_end: The byte where the entries of the document ended at the last checkpoint.
            -1: it is not known, or a header says more.
    """

    certain_writes: int | None = None
    checkpoint_end: int = -1


def split_at_checkpoint(writes: list[Records]) -> tuple[list[Records], LogEvidence]:
    """Remove the checkpoints from the lines of a log.

    Returns the writes, and what the last checkpoint proves. Without one, no write is certain.
    """
    durable_count = 0
    entries_end = -1
    result: list[Records] = []
    for records in writes:
        if records[0].startswith(_CHECKPOINT_MARK):
            durable_count = len(result)
            entries_end = int(records[0][len(_CHECKPOINT_MARK) : -1])
        else:
            result.append(records)
    return result, LogEvidence(durable_count, entries_end)


def _encode_line(records: Records, previous_crc: int) -> tuple[bytes, int]:
    """Return a line and its checksum."""
    body = b"\t".join(records)
    crc = zlib.crc32(body, previous_crc)
    return b"%08x %b\n" % (crc, body), crc


class Log:
    """An open log. Its lines are written under the document's mutex, and flushed without it.

    Several threads may call `flush` at once.

    Args:
        sys: The system calls.
        path, fd: The file, open for reading and writing.
        position: Its end, if that is known. Otherwise the whole log is read.
        is_reliable: Whether every line that can be read is on the disk.

    Attributes:
        fd: The descriptor of its file. -1: closed.
        position: Its end, without the pending line.
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
        self._sys = sys
        self._path = path
        self.fd = fd
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
            self.position = LogPosition(status.st_ino, status.st_size, end=0, crc=0, durable=0)
            self.read()

    @classmethod
    def open(
        cls, sys: Syscalls, path: str, position: LogPosition | None, *, is_reliable: bool = True
    ) -> Log | None:
        """Open the log at a path. Returns None if there is none.

        Args:
            sys: The system calls.
            path: The path of the log.
            position: Its end, if that is known. Otherwise the whole log is read.
            is_reliable: Whether every line that can be read is on the disk. If not, the log is
                compacted before a line is added.

        Raises `OSError`, also if the path is not a regular file.
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
        spare_bytes: int | None = 0,
    ) -> Log:
        """Write a new log, durably. It replaces the log at the path, if there is one.

        Args:
            sys: The system calls.
            path: The path of the log.
            mode: The permission bits of its file.
            writes: The records of each write, oldest first.
            flushed: The proof that the document is on the disk with all of them: the new log ends
                with a checkpoint. None: the checkpoints among the writes stay, and none is added.
            spare_bytes: The bytes that it has space for besides. None: no space at all, because the
                disk is full.

        Raises `FlushFailed` if the new log has the name, but perhaps not durably. After any other
        `OSError` the old log is still there.
        """
        if flushed is not None:
            writes = [*split_at_checkpoint(writes)[0], [_CHECKPOINT % flushed.entries_end]]
        lines = list[bytes]()
        end = 0
        crc = 0
        durable = 0
        for records in writes:
            line, crc = _encode_line(records, crc)
            lines.append(line)
            end += len(line)
            if records[0].startswith(_CHECKPOINT_MARK):
                durable = end
        if spare_bytes is None:
            size = max(_SMALLEST, end)
        else:
            size = _size_for(end + spare_bytes)
        directory, name = os.path.split(path)
        temporary = f"{directory}/.{name}.tmp"

        def write(fd: int) -> None:
            pwrite_all(sys, fd, b"".join(lines).ljust(size, b"\0"), 0)

        try:
            fd = write_new(sys, temporary, mode, write)
        except FileExistsError:  # A writer that died left it.
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
        """Return the records of each line, checkpoints and a pending line included, oldest first.

        `position` is then the end of the last whole line.
        """
        data = b""
        while piece := pread_all(self._sys, self.fd, _READ_BYTES, len(data)):
            data += piece
            if b"\0" in piece:
                break
        writes: list[Records] = []
        end = 0
        crc = 0
        durable = 0
        for line in data.split(b"\n")[:-1]:
            body = line[9:]
            next_crc = zlib.crc32(body, crc)
            if line[:9] != b"%08x " % next_crc:
                break
            writes.append(body.split(b"\t"))
            end += len(line) + 1
            crc = next_crc
            if body.startswith(_CHECKPOINT_MARK):
                durable = end
        self.position = self.position._replace(end=end, crc=crc, durable=durable)
        self._pending_end = None
        return writes

    @property
    def is_reliable(self) -> bool:
        """Whether every line is on the disk, or will be with the next flush."""
        return self._is_reliable

    # -- Space -------------------------------------------------------------------------------------

    def _end_after(self, records: Records) -> int:
        """Return the end of the log after one more line."""
        separators = len(records)
        return self.position.end + sum(map(len, records)) + separators + _LINE_OVERHEAD

    def needs_compaction(self, records: Records) -> bool:
        """Check if the log must be written anew before one more line: it would get too large, or it
        is not reliable.
        """
        return not self._is_reliable or self._end_after(records) > max(_LARGEST, self.position.size)

    def compacted(self, records: Records, mode: int, flushed: Flushed | None) -> Log:
        """Replace the log by one that has only its newest records, and close this one.

        Args:
            records: The records of the next write, which the new log has space for. May be empty.
            mode: The permission bits of the new file.
            flushed: As `make` takes it. None: no record is removed.

        Returns the new log. Raises what `make` raises.
        """
        writes = self.read()
        if flushed is not None:
            writes = _newest(split_at_checkpoint(writes)[0], records)
        spare_bytes = self._end_after(records) - self.position.end
        new_log = Log.make(self._sys, self._path, mode, writes, flushed, spare_bytes)
        self.close()
        return new_log

    def is_too_large(self) -> bool:
        """Check if the log is larger than usual, and would get smaller if it were compacted.

        Cost: reading the log if it is large.
        """
        if self.position.size <= _LARGEST:
            return False
        writes = _newest(split_at_checkpoint(self.read())[0], [])
        bytes_of_writes = sum(len(_encode_line(records, 0)[0]) for records in writes)
        checkpoint_bytes = len(_CHECKPOINT) + _CHECKPOINT_MARGIN
        return _size_for(bytes_of_writes + checkpoint_bytes) < self.position.size

    def ensure_space(self, records: Records) -> None:
        """Enlarge the file for one more line, durably. Not for a log that `needs_compaction`."""
        old_size = self.position.size
        end = self._end_after(records)
        if end <= old_size:
            return
        size = max(old_size, _SMALLEST)
        while size < end:
            size *= 2
        try:
            pwrite_all(self._sys, self.fd, bytes(size - old_size), old_size)
        except OSError:
            with suppress(OSError):
                self._sys.ftruncate(self.fd, old_size)
            raise
        try:
            self._sys.fsync(self.fd)
        except OSError as error:
            raise self._remember_failure(error) from error
        self.position = self.position._replace(size=size)

    # -- Lines -------------------------------------------------------------------------------------

    def write_pending(self, records: Records, position: LogPosition) -> bool:
        """Write a pending line at the end. It counts after `commit_pending`, and is durable after
        `flush`.

        Args:
            records: The records of one write.
            position: The end of the log according to the state header.

        Returns False, and writes nothing, if the position is in another file, if there is no space
        (`ensure_space`), or if the log is not reliable.
        """
        inode, size, start, previous_crc, durable = position
        line, crc = _encode_line(records, previous_crc)
        end = start + len(line)
        if inode != self.position.inode or end > size or not self._is_reliable:
            return False
        if start < self._flushed_end:  # A discarded line was flushed here.
            with self._flush_lock:
                self._flushed_end = start
        self.position = position
        self._pending_end = LogPosition(inode, size, end, crc, durable)
        pwrite_all(self._sys, self.fd, line, start)
        return True

    def commit_pending(self) -> LogPosition:
        """Count the pending line, because the document has its write. Returns the new end."""
        self.position = self._pending_end or self.position
        self._pending_end = None
        return self.position

    def discard_pending(self) -> None:
        """Remove the pending line, durably, because the document does not have its write.

        Raises `FlushFailed`, `OSError`.
        """
        if self._pending_end is not None:
            self._pending_end = None
            self._sys.pwrite(self.fd, b"\0", self.position.end)
            try:
                self._sys.fdatasync(self.fd)
            except OSError as error:
                raise self._remember_failure(error) from error

    def append(self, records: Records) -> None:
        """Write a line that counts at once. It is durable with the next line that is flushed."""
        self.write_pending(records, self.position)
        self.commit_pending()

    def set_checkpoint(self, flushed: Flushed) -> None:
        """Add a checkpoint. Durable after `flush`."""
        self.append([_CHECKPOINT % flushed.entries_end])
        self.position = self.position._replace(durable=self.position.end)

    def flush(self) -> None:
        """Make every line durable. Threads that wait meanwhile need no flush of their own.

        Raises `FlushFailed`. Once a flush has failed, every later one raises it too, since another
        flush would prove nothing.
        """
        with self._flush_lock:
            if self._failure is not None:
                raise self._failure
            end = self.position.end
            if self._flushed_end < end and self.fd >= 0:
                try:
                    self._sys.fdatasync(self.fd)
                except OSError as error:
                    raise self._remember_failure(error) from error
                self._flushed_end = end

    def _remember_failure(self, error: OSError) -> FlushFailed:
        self._failure = FlushFailed(error.errno, error.strerror)
        return self._failure

    def follow_header(self, position: LogPosition | None) -> bool:
        """Check that the open file is the log that the state header names, and take over its end
        from there.

        Returns False if somebody replaced or removed the file.
        """
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

    def close(self, *, is_trusted: bool = True) -> None:
        """Close the log.

        Args:
            is_trusted: Whether its lines are durable in another log, or not needed. If not, a
                thread that waits to flush it gets `FlushFailed`.
        """
        with self._flush_lock:
            fd = self.fd
            self.fd = -1
            if not is_trusted and self._failure is None:
                self._failure = FlushFailed(errno.EIO, "its log could not be kept")
            self._sys.close(fd)

    def close_in_child(self) -> None:
        """Close the log in a forked child. A thread of the parent may hold its lock for ever."""
        self._flush_lock = threading.Lock()
        self.close()


def _size_for(used_bytes: int) -> int:
    """Return the file size for so many bytes: at least half as much again, and a power of two."""
    size = _SMALLEST
    while size < used_bytes * 3 // 2:
        size *= 2
    return size


def _newest(writes: list[Records], following: Records) -> list[Records]:
    """Return the newest records of these writes, within the two budgets.

    Args:
        writes: The records of each write, oldest first.
        following: The records of the next write, which count towards the budgets.
    """
    head_bytes = 0
    message_bytes = 0
    newest_first: list[Records] = []
    for records in [following, *reversed(writes)]:
        chosen = []
        for record in reversed(records):
            if record.startswith(_HEAD_RECORDS):
                if head_bytes < HEAD_BYTES:
                    chosen.append(record)
                head_bytes += len(record)
            else:
                if message_bytes < MESSAGE_BYTES:
                    chosen.append(record)
                message_bytes += len(record)
        newest_first.append(chosen[::-1])
    return [records for records in reversed(newest_first[1:]) if records]


def deleted_record(token: str) -> bytes:
    """Return the record of a deletion.

    It is the last record of a document in the trash. If it isn't, the log belongs to another
    document of the same id.
    """
    return b'{"k":"deleted","token":"%b"}' % token.encode()


# -- Flushing in the background --------------------------------------------------------------------

_log = logging.getLogger("capsule")
#: Seconds from an append to its flush. The flush takes a while, and a second was promised.
_DELAY_S = 0.5

#: Makes the document of a kind and an id durable, waiting so many seconds for its mutex.
MakeDurable = Callable[[str, str, float], None]


class BackgroundFlusher:
    """The documents of one store that this process appended to and did not flush yet."""

    def __init__(self) -> None:
        self._documents: dict[tuple[str, str], MakeDurable] = {}
        self._flush_lock = threading.Lock()

    def add(self, kind: str, id: str, make_durable: MakeDurable) -> None:
        """Have a document flushed within a second, by the method of its store."""
        self._documents[kind, id] = make_durable
        _thread.pending[self] = None
        if not _thread.wake.is_set():
            _thread.start()

    def flush(self, timeout_s: float = 10.0) -> None:
        """Flush all documents now. Errors are logged.

        A document whose mutex is not free within `timeout_s` seconds is flushed later.
        """
        self.flush_available(timeout_s)
        if self._documents:
            _thread.start()

    def flush_available(self, timeout_s: float) -> None:
        """Flush all documents now, as `flush` does, but do not start the thread for the rest."""
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
    """The thread that flushes. It ends before a fork, and the next append starts it again.

    Attributes:
        pending: The flushers of stores that have something to flush.
        wake: Set while the thread has something to do.
    """

    def __init__(self) -> None:
        self.pending: dict[BackgroundFlusher, None] = {}
        self.wake = threading.Event()
        self._is_ending = threading.Event()
        self._start_lock = threading.Lock()
        self._running: threading.Thread | None = None
        self._ident = 0
        self._fork_count = 0

    def start(self) -> None:
        """Have pending documents flushed soon, or at the end of the process if no thread can be
        started.
        """
        if threading.get_ident() == self._ident:
            # Without the lock, since its holder may be waiting for this thread to end.
            self.wake.set()
            return
        with self._start_lock, suppress(RuntimeError):  # The interpreter is shutting down.
            if self._fork_count:
                return  # `after_fork` starts it.
            if self._running is None:
                self._is_ending.clear()
                thread = threading.Thread(target=self._run, name="capsule-flush", daemon=True)
                thread.start()
                self._running = thread
            self.wake.set()

    def _run(self) -> None:
        self._ident = threading.get_ident()
        while not self._is_ending.is_set():
            self.wake.wait()
            if not self._is_ending.wait(_DELAY_S):
                self.wake.clear()
                self.flush()
        self._ident = 0  # Another thread may get the number next.

    def flush(self, timeout_s: float = 10.0) -> None:
        """Flush everything that is pending now."""
        for flusher in list(self.pending):
            self.pending.pop(flusher, None)
            flusher.flush(timeout_s)

    def stop(self) -> None:
        """End the thread, and flush the documents whose mutex is free."""
        with self._start_lock:
            thread = self._running
            self._running = None
            if thread is not None:
                self._is_ending.set()
                self.wake.set()
                thread.join()
                self.wake.clear()
        for flusher in list(self.pending):
            self.pending.pop(flusher, None)
            flusher.flush_available(timeout_s=0)

    def before_fork(self) -> None:
        """Stop, and do not start again until `after_fork`."""
        with self._start_lock:
            self._fork_count += 1
        self.stop()

    def after_fork(self) -> None:
        """In the parent: continue with what could not be flushed before the fork."""
        with self._start_lock:
            self._fork_count -= 1
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
