"""Instance files: how one process knows whether another still lives.

A process that records a lock first makes `.capsule/instances/{uuid}` and locks it, for as long as it lives; the
kernel frees the lock when the process dies, however it dies. So "is that instance alive?" is "can I lock its
file?": no pids, no heartbeats. What must stay true: the file is locked before any record names the instance,
and a live instance's file is never unlinked.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import orjson

from capsule.ids import is_id
from capsule.storage.syscalls import Syscalls

__all__ = ["Instances"]


class Instances:
    """The instance files of one store, and the one of this process.

    Args:
        sys: The seam to the system.
        directory: Where they lie.
        prepare: Makes the directory.
        mode: Permission bits of a new instance file.
    """

    def __init__(self, sys: Syscalls, directory: str, prepare: Callable[[], None], mode: int) -> None:
        self._sys = sys
        self._directory = directory
        self._prepare = prepare
        self._mode = mode
        self._guard = threading.Lock()
        self._mine: dict[str, int] = {}

    def _path(self, instance: str) -> str:
        return f"{self._directory}/{instance}"

    def announce(self, instance: str) -> None:
        """Make this instance's file and hold it locked; idempotent. The dead ones' files are swept on the way.

        Raises:
            OSError: It can't be made.
        """
        with self._guard:
            if instance in self._mine:
                return
            self._prepare()
            while True:
                fd = self._sys.open(
                    self._path(instance), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, self._mode
                )
                if self._sys.try_lock(fd) and self._sys.fstat(fd).st_nlink:
                    break
                self._sys.close(fd)  # A sweeper had it for an instant, or took it away.
            with suppress(OSError):
                self._sys.pwrite(fd, orjson.dumps({"pid": os.getpid()}) + b"\n", 0)
            self._mine[instance] = fd
        for dead in self.dead():
            self.sweep(dead)

    def alive(self, instance: str) -> bool:
        """Whether a process holds that instance's file; True as well when that can't be found out."""
        if instance in self._mine:
            return True
        if not is_id(instance):
            return False
        try:
            fd = self._sys.open(self._path(instance), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            # One that tidies up holds a dead one's file for an instant: only a live one's stays locked.
            for wait_s in (0.0005, 0.001, 0.002):
                if self._sys.try_lock_shared(fd):
                    return False
                time.sleep(wait_s)
            return not self._sys.try_lock_shared(fd) and self._sys.fstat(fd).st_nlink > 0
        except OSError:
            return True
        finally:
            with suppress(OSError):
                self._sys.close(fd)

    def dead(self) -> list[str]:
        """The instances whose files are there and held by nobody."""
        try:
            names = [name for name, _ in self._sys.names(self._directory)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [name for name in names if not self.alive(name)]

    def sweep(self, instance: str) -> None:
        """Unlink the file of a dead instance; nothing happens to a live one's."""
        try:
            fd = self._sys.open(self._path(instance), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return
        try:
            # Without a link it was another's to tidy up, and the name may be a live one's by now.
            if self._sys.try_lock(fd) and self._sys.fstat(fd).st_nlink:
                with suppress(OSError):
                    self._sys.unlink(self._path(instance))
        finally:
            with suppress(OSError):
                self._sys.close(fd)

    def close(self) -> None:
        """Unlink and free this process's instance files."""
        with self._guard:
            mine, self._mine = self._mine, {}
            for instance, fd in mine.items():
                with suppress(OSError):
                    self._sys.unlink(self._path(instance))
                self._sys.close(fd)

    def forget(self) -> None:
        """In a forked child: drop the parent's instance files; its own descriptors keep them locked."""
        mine, self._mine, self._guard = self._mine, {}, threading.Lock()
        for fd in mine.values():
            os.close(fd)
