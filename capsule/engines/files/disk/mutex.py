"""The mutex: the short exclusive right to one document, between threads, processes and kill -9.

A kernel lock (flock) on a file that stays, so that it goes with its process however that dies; a
thread lock in front of it, as one open file does not exclude the threads that share it. What must
stay true: whoever holds the mutex holds the lock of the file that the path stands for now (a lock
file that was unlinked, or moved away with its directory, is opened anew), and a forked child shares
nothing with its parent.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

from capsule.disk.syscalls import Syscalls
from capsule.engines.files.disk.layout import StoreDirectory
from capsule.engines.files.disk.log import Log, LogPosition
from capsule.engines.files.state import StateHeader
from capsule.errors import StoreBusy

_KEPT_OPEN = 80
#: An append holds the mutex for a tenth of a millisecond: a sleep is longer than that, so others
#: are let run first.
_YIELDS = 20
_FIRST_WAIT_S = 0.000_05
_SHORT_WAIT_S = 0.000_3
_LONG_S = 0.02
_LONGEST_WAIT_S = 0.002
#: Lets another process run, if one is ready to; much shorter than the shortest sleep.
_pause = getattr(os, "sched_yield", lambda: None)


class Mutex:
    """One mutex of one process.

    Attributes:
        fd: Its file, open while the mutex is held.
        place: The inode and the device of that file.
        size: Bytes of its file, as of taking it or of the holder's last write to it.
        memo: The last header written or read here, in bytes and decoded.
        log: The document's log, kept open likewise; None when it isn't.
        document_fd: The document, kept open from one hold to the next; -1 when it isn't.
    """

    __slots__ = (
        "document_fd",
        "fd",
        "file_id",
        "log",
        "memo",
        "name",
        "size",
        "thread_lock",
        "users",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.thread_lock = threading.Lock()
        self.fd = -1
        self.file_id = 0, 0
        self.size = 0
        self.memo: tuple[bytes, StateHeader, LogPosition | None] | None = None
        self.log: Log | None = None
        self.document_fd = -1
        self.users = 0


class Mutexes:
    """The mutexes of one store in one process; of those beyond 80 the oldest idle ones are closed.

    Args:
        sys: The seam to the system.
        directory: Where the mutex files lie; made at the first one.
    """

    def __init__(self, sys: Syscalls, directory: StoreDirectory) -> None:
        self._sys = sys
        self._directory = directory
        self._registry = threading.Lock()
        self._mutexes: dict[str, Mutex] = {}
        self._is_closed = False

    def path(self, name: str) -> str:
        """Where a mutex file lies, for a message or a comparison."""
        return f"{self._directory.path}/{name}"

    def acquire(self, name: str, timeout_s: float | None) -> Mutex:
        """Take the mutex `name`; `release` gives it back.

        Args:
            name: File name of the mutex.
            timeout_s: How long to wait for it, in seconds; None: for ever, in the kernel.

        Raises:
            StoreBusy: It could not be had in time; the message names the holder where the system
                knows it.
            OSError: The file can't be opened.
        """
        with self._registry:
            mutex = self._mutexes.get(name)
            if mutex is None:
                self._close_idle(_KEPT_OPEN - 1)
                mutex = self._mutexes[name] = Mutex(name)
            mutex.users += 1
        try:
            deadline = time.monotonic() + (timeout_s or 0)
            if not mutex.thread_lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
                raise self._busy(name, timeout_s or 0, f"another thread of process {os.getpid()}")
            try:
                self._lock(mutex, name, deadline, timeout_s)
            except BaseException:
                self._drop(mutex)
                mutex.thread_lock.release()
                raise
        except BaseException:
            self.leave(mutex)
            raise
        return mutex

    def release(self, mutex: Mutex) -> None:
        """Give back a mutex."""
        self.unlock(mutex)
        self.leave(mutex)

    def unlock(self, mutex: Mutex) -> None:
        """Let others have a mutex, and keep what is open with it until `leave`."""
        try:
            self._sys.unlock(mutex.fd)
        except OSError:
            self._drop(mutex)
        finally:
            mutex.thread_lock.release()

    def _drop(self, mutex: Mutex) -> None:
        """Close a mutex's descriptor, which gives back the lock, whatever state it is in."""
        fd, mutex.fd = mutex.fd, -1
        if fd >= 0:
            with suppress(OSError):
                self._sys.close(fd)

    def leave(self, mutex: Mutex) -> None:
        """Need nothing of a mutex any more that was unlocked."""
        with self._registry:
            mutex.users -= 1
            if self._is_closed and not mutex.users:
                self._mutexes.pop(mutex.name, None)
                self._close(mutex)

    def _close_idle(self, most: int = 0) -> bool:
        """Close the oldest mutexes that nobody uses until so many are left; whether there
        were any.
        """
        idle = [name for name, mutex in self._mutexes.items() if not mutex.users][
            : max(0, len(self._mutexes) - most)
        ]
        for name in idle:
            self._close(self._mutexes.pop(name))
        return bool(idle)

    def close_idle(self) -> bool:
        """Close the descriptors that nobody uses just now; whether there were any."""
        with self._registry:
            return self._close_idle()

    def _close(self, mutex: Mutex) -> None:
        for fd in (mutex.fd, mutex.document_fd):
            if fd >= 0:
                self._sys.close(fd)
        mutex.fd = mutex.document_fd = -1
        if mutex.log is not None:
            mutex.log.close()
            mutex.log = None

    def _lock(self, mutex: Mutex, name: str, deadline: float, timeout_s: float | None) -> None:
        yields, wait_s = _YIELDS, _FIRST_WAIT_S
        while True:
            if mutex.fd < 0:
                mutex.fd = self._open(name)
                status = self._sys.fstat(mutex.fd)
                mutex.file_id = status.st_ino, status.st_dev
            if self._sys.try_lock(mutex.fd, False, timeout_s is None):
                try:
                    status = self._sys.lstat(f"{self._directory.path}/{name}")
                    if (status.st_ino, status.st_dev) == mutex.file_id:
                        mutex.size = status.st_size
                        return
                except (FileNotFoundError, NotADirectoryError):
                    pass
                self._sys.close(mutex.fd)
                mutex.fd = -1
                continue
            assert timeout_s is not None
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self._busy(name, timeout_s, _holder(self._sys.fstat(mutex.fd)))
            if yields:
                yields -= 1
                _pause()
                continue
            from random import random  # Seldom needed, and a millisecond of every start.

            time.sleep(min(left_s, wait_s * (0.5 + random())))
            waited_long = timeout_s - left_s > _LONG_S
            wait_s = min(wait_s * 1.25, _LONGEST_WAIT_S if waited_long else _SHORT_WAIT_S)

    def _open(self, name: str) -> int:
        path = self._directory.file(name)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            return self._sys.open(path, flags, self._directory.file_mode)
        except FileNotFoundError:
            self._directory.ensure()
            return self._sys.open(path, flags, self._directory.file_mode)

    def _busy(self, name: str, timeout_s: float, holder: str) -> StoreBusy:
        return StoreBusy(
            f"{name} is being written by {holder}, for longer than {timeout_s:g} s; try again, or "
            "raise "
            "storage.mutex_timeout in capsule.toml",
            id=name.partition("-")[2],
            holder=holder,
        )

    def close(self) -> None:
        """Close every descriptor; those of a mutex that another thread is using, when it has given
        it back.

        Closed under it, the lock would be gone while it writes, and its number could be another
        file's by then.
        """
        with self._registry:
            self._is_closed = True
            self._close_idle()

    def forget(self) -> None:
        """In a forked child: drop the parent's descriptors and thread locks, held or not.

        Closing them does not unlock: the parent's own descriptors keep the locks.
        """
        kept, self._mutexes, self._registry = self._mutexes, {}, threading.Lock()
        for mutex in kept.values():
            if mutex.log is not None:
                mutex.log.close_in_child()
                mutex.log = None
            self._close(mutex)


def _holder(lock_file: os.stat_result) -> str:
    """Who holds the lock of a file, as far as the system tells: for the reader's eye only."""
    wanted = f"{os.major(lock_file.st_dev):02x}:{os.minor(lock_file.st_dev):02x}:{lock_file.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii") as locks:
            for line in locks:
                parts = line.split()
                if wanted in parts and "->" not in parts:
                    return f"process {parts[parts.index(wanted) - 1]}"
    except (OSError, ValueError):
        pass
    return "another process"
