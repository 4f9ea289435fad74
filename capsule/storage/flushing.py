"""Group commit: where several wait to write one document, one flush serves all who wrote before it began.

A writer that had to wait for the mutex gives it back before it flushes, so that the next can write meanwhile. It then
takes the flush lock of the document, finds out whether a flush that began after its own write has succeeded by now,
and flushes itself only if none has. What must stay true: nobody takes a flush for theirs that began before their write
ended, was of another file, or of another boot of the machine; and a flush that failed serves nobody.

Group commit is as old as transaction logs (Gawlick and Kinkade, "Varieties of Concurrency Control in IMS/VS Fast
Path", 1985); that the mark is a time of the clock that all processes of one boot share is this project's own.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from capsule.storage.syscalls import Syscalls

__all__ = ["FlushLock", "Pending", "Unflushed", "flush", "flush_once", "pause"]

_MARK_BYTES = 128
_FAILED = b"failed"
_YIELDS = 40
_POLL_S = 0.000_1
_PATIENCE_S = 0.2


class Unflushed(OSError):
    """A flush failed: what the kernel has of the file may never reach the medium, and a second flush can't tell."""


def flush(sys: Syscalls, fd: int) -> None:
    """Make the bytes of an open file durable. Raises `Unflushed`."""
    try:
        sys.fdatasync(fd)
    except OSError as error:
        raise Unflushed(error.errno, error.strerror) from error


@dataclass(frozen=True, slots=True)
class Pending:
    """A write that is still to be flushed.

    Attributes:
        fd: The document, open; a descriptor of its own.
        inode: Its inode number.
        written_ns: When the write had ended, by the monotonic clock, in nanoseconds.
    """

    fd: int
    inode: int
    written_ns: int


class FlushLock:
    """The flush lock of one document in one process: the lock of a file of its own, and a thread lock in front."""

    __slots__ = ("fd", "guard")

    def __init__(self) -> None:
        self.fd = -1
        self.guard = threading.Lock()


def flush_once(sys: Syscalls, lock: FlushLock, pending: Pending, boot: str) -> None:
    """Make a write durable, unless somebody's flush has done it.

    Args:
        sys: The seam to the system.
        lock: The document's flush lock, its file open.
        pending: The write.
        boot: The boot of the machine.

    Raises:
        Unflushed: The flush failed, or somebody's did since the file was made.
        OSError: The lock can't be had.
    """
    key = b"%d %b " % (pending.inode, boot.encode())
    with lock.guard:
        if not _taken(sys, lock.fd):
            flush(sys, pending.fd)
            return
        try:
            mark = sys.pread(lock.fd, _MARK_BYTES, 0)
            told = mark.removeprefix(key).removesuffix(b"\n")
            whole = len(told) == len(mark) - len(key) - 1
            if whole and told == _FAILED:
                raise Unflushed(errno.EIO, os.strerror(errno.EIO))
            if whole and told.isdigit() and int(told) >= pending.written_ns:
                return
            began_ns = time.monotonic_ns()
            try:
                flush(sys, pending.fd)
            except Unflushed:
                _mark(sys, lock.fd, key + _FAILED + b"\n", len(mark))
                raise
            _mark(sys, lock.fd, b"%b%d\n" % (key, began_ns), len(mark))
        finally:
            try:
                sys.unlock(lock.fd)
            except OSError:
                fd, lock.fd = lock.fd, -1  # Closing it gives the lock back as well.
                with suppress(OSError):
                    sys.close(fd)


def _taken(sys: Syscalls, fd: int) -> bool:
    """Take the flush lock; False when whoever has it takes too long over it, stopped perhaps: then each for himself."""
    deadline = time.monotonic() + _PATIENCE_S
    yields = _YIELDS
    while not sys.try_lock(fd):
        if yields:
            yields -= 1
            pause()
        elif time.monotonic() > deadline:
            return False
        else:
            time.sleep(_POLL_S)
    return True


def pause() -> None:
    """Let another process run, if one is ready to; much shorter than the shortest sleep."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()


def _mark(sys: Syscalls, fd: int, mark: bytes, size: int) -> None:
    """Write the mark over one of `size` bytes. One that can't be written costs the next one a flush, no more."""
    with suppress(OSError):
        sys.pwrite(fd, mark, 0)
        if size > len(mark):
            sys.ftruncate(fd, len(mark))
