"""The mutex: the short exclusive right to one document, between threads, processes and kill -9.

A kernel lock (flock) on a file that stays, so that it goes with its process however that dies; a thread lock
in front of it, as one open file does not exclude the threads that share it. What must stay true: whoever
holds the mutex holds the lock of the file that the name stands for now (a lock file that was unlinked meanwhile
has no links left, and is opened anew), and a forked child shares nothing with its parent.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from capsule.errors import StoreBusy
from capsule.storage.syscalls import Syscalls

__all__ = ["Mutexes"]

_KEPT_OPEN = 128
_FIRST_WAIT_S = 0.000_05
_LONGEST_WAIT_S = 0.002


class _Mutex:
    __slots__ = ("fd", "guard", "users")

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.fd = -1
        self.users = 0


class Mutexes:
    """The mutexes of one store in one process; the least used descriptors beyond 128 are closed.

    Args:
        sys: The seam to the system.
        directory: Where the mutex files lie; made, by `prepare`, at the first one.
        prepare: Makes the directory.
        mode: Permission bits of a new mutex file.
    """

    def __init__(self, sys: Syscalls, directory: str, prepare: Callable[[], None], mode: int) -> None:
        self._sys = sys
        self._directory = directory
        self._prepare = prepare
        self._mode = mode
        self._registry = threading.Lock()
        self._kept: OrderedDict[str, _Mutex] = OrderedDict()

    def path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    @contextmanager
    def hold(self, name: str, timeout_s: float) -> Iterator[int]:
        """Hold the mutex `name`; gives the descriptor of its file.

        Args:
            name: File name of the mutex.
            timeout_s: How long to wait for it, in seconds.

        Raises:
            StoreBusy: It could not be had in time; the message names the holder where the system knows it.
            OSError: The file can't be opened.
        """
        deadline = time.monotonic() + timeout_s
        mutex = self._enter(name)
        try:
            if not mutex.guard.acquire(timeout=timeout_s):
                raise self._busy(name, timeout_s, f"another thread of process {os.getpid()}")
            try:
                yield self._lock(mutex, name, deadline, timeout_s)
            finally:
                if mutex.fd >= 0:
                    self._sys.unlock(mutex.fd)
                mutex.guard.release()
        finally:
            self._leave(mutex)

    def _enter(self, name: str) -> _Mutex:
        with self._registry:
            mutex = self._kept.get(name)
            if mutex is None:
                mutex = self._kept[name] = _Mutex()
                self._shrink()
            self._kept.move_to_end(name)
            mutex.users += 1
            return mutex

    def _leave(self, mutex: _Mutex) -> None:
        with self._registry:
            mutex.users -= 1

    def _shrink(self) -> None:
        for name in list(self._kept):
            if len(self._kept) <= _KEPT_OPEN:
                return
            if not self._kept[name].users and self._kept[name].fd >= 0:
                self._sys.close(self._kept.pop(name).fd)

    def _lock(self, mutex: _Mutex, name: str, deadline: float, timeout_s: float) -> int:
        wait_s = _FIRST_WAIT_S
        while True:
            if mutex.fd < 0:
                mutex.fd = self._open(name)
            if self._sys.try_lock(mutex.fd):
                if self._sys.fstat(mutex.fd).st_nlink:
                    return mutex.fd
                self._sys.close(mutex.fd)
                mutex.fd = -1
                continue
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self._busy(name, timeout_s, _holder(self._sys.fstat(mutex.fd)))
            time.sleep(min(left_s, wait_s * (0.5 + random.random())))
            wait_s = min(wait_s * 1.5, _LONGEST_WAIT_S)

    def _open(self, name: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return self._sys.open(self.path(name), flags, self._mode)
        except FileNotFoundError:
            self._prepare()
            return self._sys.open(self.path(name), flags, self._mode)

    def _busy(self, name: str, timeout_s: float, holder: str) -> StoreBusy:
        return StoreBusy(
            f"{name} is being written by {holder}, for longer than {timeout_s:g} s; try again, or raise "
            "storage.mutex_timeout in capsule.toml",
            id=name.partition("-")[2],
            holder=holder,
        )

    def close(self) -> None:
        """Close every descriptor. No mutex may be held."""
        with self._registry:
            for mutex in self._kept.values():
                if mutex.fd >= 0:
                    self._sys.close(mutex.fd)
            self._kept.clear()

    def forget(self) -> None:
        """In a forked child: drop the parent's descriptors and thread locks, held or not.

        Closing them does not unlock: the parent's own descriptors keep the locks.
        """
        kept, self._kept, self._registry = self._kept, OrderedDict(), threading.Lock()
        for mutex in kept.values():
            if mutex.fd >= 0:
                os.close(mutex.fd)


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
