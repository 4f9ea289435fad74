"""The mutex: the short exclusive right to one document, between threads, processes and kill -9.

A mutex is a kernel lock (flock) on a file that is never deleted, so the lock ends with its process,
however that dies. A thread lock comes before it, because threads that share an open file do not
exclude each other. The process keeps what it opened for the document (the mutex file, the log, the
document) from one hold to the next.

What must stay true: a holder has the lock of the file that the path names now. A mutex file that
was unlinked, or moved away with its directory, is opened anew. A forked child shares nothing with
its parent.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from capsule.disk.syscalls import Syscalls
from capsule.engines.files.disk.log import Log, LogPosition
from capsule.engines.files.disk.store_paths import StoreDirectory
from capsule.engines.files.state import StateHeader
from capsule.errors import StoreBusy

#: The number of mutexes that stay open.
_MAX_OPEN = 80
#: How often a waiter lets other threads run before it sleeps. An append holds the mutex for a tenth
#: of a millisecond, and a sleep is longer than that.
_YIELDS = 20
#: The first sleep of a waiter, and the longest ones in and after the first `_LONG_WAIT_S`.
_FIRST_SLEEP_S = 0.000_05
_SHORT_SLEEP_S = 0.000_3
_LONG_SLEEP_S = 0.002
_LONG_WAIT_S = 0.02
_SLEEP_GROWTH = 1.25
#: Lets another process run, if one is ready to. Much shorter than the shortest sleep.
_yield_processor = getattr(os, "sched_yield", lambda: None)


class CachedHeader(NamedTuple):
    """The state header that was read or written last, so that it is not decoded again.

    Attributes:
        raw: Its bytes.
        header, log_end: The decoded state, and the end of the log.
    """

    raw: bytes
    header: StateHeader
    log_end: LogPosition | None


class Mutex:
    """One mutex of one process. All but `users` belongs to the holder.

    Attributes:
        name: The name of its file: kind and id of the document.
        thread_lock: Held by the thread that has the mutex.
        fd: Its file. -1: not open.
        file_id: The inode and the device of that file.
        size: The bytes of its file, as of taking it or of the holder's last write to it.
        cached_header: The state header that was read or written last.
        log: The document's log. None: not open.
        document_fd: The document. -1: not open.
        users: The number of threads that hold it, wait for it, or still flush its log.
    """

    __slots__ = (
        "cached_header",
        "document_fd",
        "fd",
        "file_id",
        "log",
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
        self.cached_header: CachedHeader | None = None
        self.log: Log | None = None
        self.document_fd = -1
        self.users = 0


class Mutexes:
    """The mutexes of one store in one process. At most 80 stay open: the oldest idle ones are
    closed.

    Args:
        sys: The system calls.
        directory: The directory of the mutex files. The first mutex makes it.
    """

    def __init__(self, sys: Syscalls, directory: StoreDirectory) -> None:
        self._sys = sys
        self._directory = directory
        #: Guards `_mutexes` and the `users` of each.
        self._registry_lock = threading.Lock()
        self._mutexes: dict[str, Mutex] = {}
        self._is_closed = False

    def path(self, name: str) -> str:
        """Return the path of a mutex file, for a message or a comparison."""
        return f"{self._directory.path}/{name}"

    def acquire(self, name: str, timeout_s: float | None) -> Mutex:
        """Take a mutex. `release` gives it back.

        Args:
            name: The file name of the mutex.
            timeout_s: How long to wait for it, in seconds. None: without a limit, in the kernel.

        Raises:
            StoreBusy: It was not free in time. The message names the holder if the system knows it.
            OSError: The file can't be opened.
        """
        with self._registry_lock:
            mutex = self._mutexes.get(name)
            if mutex is None:
                self._close_oldest_idle(_MAX_OPEN - 1)
                mutex = self._mutexes[name] = Mutex(name)
            mutex.users += 1
        try:
            deadline = time.monotonic() + (timeout_s or 0)
            if not mutex.thread_lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
                raise self._busy(name, timeout_s or 0, f"another thread of process {os.getpid()}")
            try:
                self._lock_file(mutex, name, deadline, timeout_s)
            except BaseException:
                self._close_file(mutex)
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
        """Let others take a mutex. Its files stay open until `leave`."""
        try:
            self._sys.unlock(mutex.fd)
        except OSError:
            self._close_file(mutex)
        finally:
            mutex.thread_lock.release()

    def leave(self, mutex: Mutex) -> None:
        """Stop using a mutex that was unlocked, so that it may be closed."""
        with self._registry_lock:
            mutex.users -= 1
            if self._is_closed and not mutex.users:
                self._mutexes.pop(mutex.name, None)
                self._close(mutex)

    def _close_file(self, mutex: Mutex) -> None:
        """Close the mutex file, which ends its kernel lock in any case."""
        fd = mutex.fd
        mutex.fd = -1
        if fd >= 0:
            with suppress(OSError):
                self._sys.close(fd)

    def _close_oldest_idle(self, max_open: int = 0) -> bool:
        """Close the oldest idle mutexes until `max_open` are open. Returns whether any was closed."""
        idle_names = [name for name, mutex in self._mutexes.items() if not mutex.users]
        excess = max(0, len(self._mutexes) - max_open)
        names = idle_names[:excess]
        for name in names:
            self._close(self._mutexes.pop(name))
        return bool(names)

    def close_idle(self) -> bool:
        """Close all mutexes that nobody uses now. Returns whether any was closed."""
        with self._registry_lock:
            return self._close_oldest_idle()

    def _close(self, mutex: Mutex) -> None:
        for fd in (mutex.fd, mutex.document_fd):
            if fd >= 0:
                self._sys.close(fd)
        mutex.fd = -1
        mutex.document_fd = -1
        if mutex.log is not None:
            mutex.log.close()
            mutex.log = None

    def _lock_file(self, mutex: Mutex, name: str, deadline: float, timeout_s: float | None) -> None:
        """Take the kernel lock of the file that the path names now. Raises `StoreBusy`, `OSError`."""
        yields_left = _YIELDS
        sleep_s = _FIRST_SLEEP_S
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
                # The path names another file now, or none: open it anew.
                self._sys.close(mutex.fd)
                mutex.fd = -1
                continue
            assert timeout_s is not None
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise self._busy(name, timeout_s, _lock_holder(self._sys.fstat(mutex.fd)))
            if yields_left:
                yields_left -= 1
                _yield_processor()
                continue
            from random import random  # Seldom needed, and it costs a millisecond of every start.

            time.sleep(min(remaining_s, sleep_s * (0.5 + random())))
            waited_long = timeout_s - remaining_s > _LONG_WAIT_S
            sleep_s = min(sleep_s * _SLEEP_GROWTH, _LONG_SLEEP_S if waited_long else _SHORT_SLEEP_S)

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
            "raise storage.mutex_timeout in capsule.toml",
            id=name.partition("-")[2],
            holder=holder,
        )

    def close(self) -> None:
        """Close every mutex. One that another thread uses is closed when that thread leaves it.

        If it were closed at once, its lock would end during a write, and its descriptor could be
        another file's by then.
        """
        with self._registry_lock:
            self._is_closed = True
            self._close_oldest_idle()

    def forget_parent(self) -> None:
        """In a forked child: close the parent's descriptors, and drop its thread locks.

        The parent's own descriptors keep the kernel locks.
        """
        mutexes = self._mutexes
        self._mutexes = {}
        self._registry_lock = threading.Lock()
        for mutex in mutexes.values():
            if mutex.log is not None:
                mutex.log.close_in_child()
                mutex.log = None
            self._close(mutex)


def _lock_holder(lock_file: os.stat_result) -> str:
    """Name the process that holds the lock of a file, for a message, if the system knows it."""
    device = f"{os.major(lock_file.st_dev):02x}:{os.minor(lock_file.st_dev):02x}"
    file_id = f"{device}:{lock_file.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii") as locks:
            for line in locks:
                fields = line.split()
                if file_id in fields and "->" not in fields:  # "->" marks a waiter.
                    return f"process {fields[fields.index(file_id) - 1]}"
    except (OSError, ValueError):
        pass
    return "another process"
