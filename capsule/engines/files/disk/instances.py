"""Instance files: how one process knows whether another still lives.

A process that records a lock first makes `.capsule/instances/{uuid}` and locks it, for as long as it lives; the
kernel frees the lock when the process dies, however it dies. So "is that instance alive?" is "can I lock its
file?": no pids, no heartbeats. What must stay true: a file has its name only once it is locked, and is locked before
any record names the instance; and whoever asks or tidies up takes a shared lock, so that only the owner's, which is
exclusive, ever refuses one.

An instance may say something about itself, as which agent it serves: that stands in its file, is as true as the file is
locked, and is never durable.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from capsule.disk.syscalls import Syscalls
from capsule.disk.whole_files import drop_name, names_file, naming, opened
from capsule.engines.files.disk.layout import Directory
from capsule.errors import CapsuleError

_INSTANCE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_BYTES = 4096
_TRIES = 3


class Instances:
    """The instance files of one store, and those of this process.

    Args:
        sys: The seam to the system.
        directory: Where they lie.
    """

    def __init__(self, sys: Syscalls, directory: Directory) -> None:
        self._sys = sys
        self._directory = directory
        self._guard = threading.Lock()
        self._mine: dict[str, int] = {}
        self._about: dict[str, Mapping[str, Any]] = {}

    def announce(self, instance: str, about: Mapping[str, Any] | None = None) -> None:
        """Make this instance's file and hold it locked; idempotent, and made anew where it was moved away.

        Args:
            instance: The instance.
            about: What it says about itself, as JSON of at most 4,000 bytes; None: what it said before.

        Raises:
            StorageFailed, Refused: It can't be made.
        """
        with self._guard, naming(f"{self._directory.path}/{instance}", "make"):
            if about is not None:
                self._about[instance] = about
            fd = self._mine.get(instance, -1)
            if fd >= 0:
                if names_file(self._sys, f"{self._directory.path}/{instance}", fd):
                    if about is not None:
                        self._write(fd, instance)
                    return
                del self._mine[instance]
                self._sys.close(fd)
            self._directory.ensure()
            self._mine[instance] = self._made(instance)

    def _made(self, instance: str) -> int:
        """A new instance file, locked; under a name that nobody asks for until it is."""
        path = self._directory.file(instance)
        new = self._directory.file(f".{instance}")
        while True:
            fd = self._sys.open(new, _FLAGS | os.O_CREAT, self._directory.file_mode)
            try:
                if self._sys.try_lock(fd):
                    self._write(fd, instance)
                    with suppress(FileNotFoundError):  # Somebody took it for a dead one's before it was locked.
                        self._sys.rename(new, path)
                        return fd
            except BaseException:
                self._sys.close(fd)
                raise
            self._sys.close(fd)

    def _write(self, fd: int, instance: str) -> None:
        """Write what an instance says in one call over what it said, so that no reader meets half of it."""
        data = orjson.dumps({"pid": os.getpid(), "about": self._about.get(instance, {})})
        with suppress(OSError):
            self._sys.pwrite(fd, data.ljust(self._sys.fstat(fd).st_size - 1) + b"\n", 0)

    def live(self) -> dict[str, dict[str, Any]]:
        """What each live instance says about itself, this process's among them. Costs two opens an instance file."""
        names = [name for name in self._directory.files() if _INSTANCE.fullmatch(name) and self._is_held(name)]
        return {name: self._read(name) for name in names}

    def _read(self, name: str) -> dict[str, Any]:
        for _ in range(_TRIES):  # A file system may show a read the halves of two writes.
            fine = suppress(OSError, ValueError, LookupError, TypeError)
            with fine, opened(self._sys, self._directory.file(name), _FLAGS) as fd:
                return dict(orjson.loads(self._sys.pread(fd, _MOST_BYTES, 0))["about"])
        return {}

    def alive(self, instance: str) -> bool:
        """Whether a process holds that instance's file; True as well when that can't be found out."""
        if instance in self._mine:
            return True
        return _INSTANCE.fullmatch(instance) is not None and self._is_held(instance)

    def _is_held(self, name: str) -> bool:
        try:
            with opened(self._sys, self._directory.file(name), _FLAGS) as fd:
                return not self._sys.try_lock(fd, True)
        except OSError as error:
            return not isinstance(error, FileNotFoundError)

    def dead(self) -> list[str]:
        """The names of the instance files that nobody holds; no other file in the directory counts as one."""
        names = (name for name in self._directory.files() if _INSTANCE.fullmatch(name.removeprefix(".")))
        return [name for name in names if name not in self._mine and not self._is_held(name)]

    def sweep(self, name: str) -> None:
        """Unlink the file of a dead instance; nothing happens to a live one's."""
        path = self._directory.file(name)
        try:
            fd = self._sys.open(path, _FLAGS)
        except OSError:
            return
        try:
            if self._sys.try_lock(fd, True):
                drop_name(self._sys, path)
        finally:
            with suppress(OSError):
                self._sys.close(fd)

    def withdraw(self, instance: str) -> None:
        """Unlink and free the file of one instance of this process, when it has one."""
        with self._guard:
            fd = self._mine.pop(instance, None)
            self._about.pop(instance, None)
            if fd is not None:
                path = f"{self._directory.path}/{instance}"
                with suppress(OSError):
                    if names_file(self._sys, path, fd):
                        self._sys.unlink(path)
                self._sys.close(fd)

    def close(self) -> None:
        """Unlink and free this process's instance files, and tidy up those of the dead, when it had one itself."""
        mine = list(self._mine)
        for instance in mine:
            self.withdraw(instance)
        if mine:
            with suppress(OSError, CapsuleError):
                for dead in self.dead():
                    self.sweep(dead)

    def forget(self) -> None:
        """In a forked child: drop the parent's instance files; its own descriptors keep them locked."""
        mine, self._mine, self._about, self._guard = self._mine, {}, {}, threading.Lock()
        for fd in mine.values():
            os.close(fd)
