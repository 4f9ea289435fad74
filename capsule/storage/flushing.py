"""Group commit: where several wait to write one document, one flush serves all who wrote before it began.

A writer that had to wait for the mutex gives it back before it flushes, so that the next can write meanwhile. It then
takes the flush lock of the document, finds out whether a flush that began after its own write has succeeded by now,
and flushes itself only if none has. What must stay true: nobody takes a flush for theirs that began before their write
ended, was of another file, or of another boot of the machine; and a flush that failed serves nobody.

Group commit is as old as transaction logs (Gawlick and Kinkade, "Varieties of Concurrency Control in IMS/VS Fast
Path", 1985); that the mark is a time of the clock that all processes of one boot share is this project's own.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from capsule.storage.syscalls import Syscalls

__all__ = ["FlushLock", "Pending", "Unflushed", "flush", "flush_once"]

_MARK_BYTES = 128


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
        Unflushed: The flush failed.
        OSError: The lock can't be had.
    """
    key = b"%d %b " % (pending.inode, boot.encode())
    with lock.guard:
        sys.wait_lock(lock.fd)
        try:
            mark = sys.pread(lock.fd, _MARK_BYTES, 0)
            told = mark.removeprefix(key).removesuffix(b"\n")
            if len(told) == len(mark) - len(key) - 1 and told.isdigit() and int(told) >= pending.written_ns:
                return
            began_ns = time.monotonic_ns()
            flush(sys, pending.fd)
            told = b"%b%d\n" % (key, began_ns)
            # A mark that can't be written costs the next one a flush; this write is durable.
            with suppress(OSError):
                sys.pwrite(lock.fd, told, 0)
                if len(mark) > len(told):
                    sys.ftruncate(lock.fd, len(told))
        finally:
            try:
                sys.unlock(lock.fd)
            except OSError:
                fd, lock.fd = lock.fd, -1  # Closing it gives the lock back as well.
                with suppress(OSError):
                    sys.close(fd)
