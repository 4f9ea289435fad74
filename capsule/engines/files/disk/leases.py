"""Leases by kernel locks: instance files, by which one process knows whether another still lives,
and mutexes by name.

A process that records a lock first makes `.capsule/instances/{uuid}` and locks it, for as long as
it lives; the kernel frees the lock when the process dies, however it dies. So "is that instance
alive?" is "can I lock its file?": no pids, no heartbeats. What must stay true: a file has its name
only once it is locked, and is locked before any record names the instance; and whoever asks or
tidies up takes a shared lock, so that only the owner's, which is exclusive, ever refuses one.

An instance may say something about itself, as which agent it serves: that stands in its file, is as
true as the file is locked, and is never durable.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

import orjson

from capsule import timestamps
from capsule.disk.syscalls import Syscalls
from capsule.disk.whole_files import open_file, status_if_named, translate_errors, unlink_if_exists
from capsule.engines.files.disk.layout import StoreDirectory, StorePaths
from capsule.engines.files.disk.mutex import Mutex, Mutexes
from capsule.engines.interface import Lease, is_instance
from capsule.errors import CapsuleError, StoreBusy
from capsule.ids import check_id

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_BYTES = 4096
_TRIES = 3


class FileLeases:
    """The leases of one store, and those of this process. Lost are only those whose files are
    removed or moved away.

    Args:
        sys: The seam to the system.
        layout: The paths of the store.
        mutexes: Its mutexes.
    """

    def __init__(self, sys: Syscalls, layout: StorePaths, mutexes: Mutexes) -> None:
        self._sys, self._layout, self._mutexes = sys, layout, mutexes
        self._directory = StoreDirectory(layout, sys, "instances")
        self._guard = threading.Lock()
        self._mine: dict[str, int] = {}
        self._about: dict[str, Mapping[str, Any]] = {}
        self._held: dict[str, tuple[Lease, Mutex]] = {}

    def acquire(
        self, name: str, details: Mapping[str, Any] | None = None, timeout_s: float | None = 0.0
    ) -> Lease:
        """Waiting without a limit costs no processor time."""
        if is_instance(name):
            self._announce(name, details)
            return Lease(self, name, 0)  # No other holder ever has this name.
        with translate_errors(self._path(check_id(name)), "lock"):
            try:
                mutex = self._mutexes.acquire(f"hold-{name}", timeout_s)
            except StoreBusy as busy:
                raise StoreBusy(
                    f"{name} is held by {busy.holder}", id=name, holder=busy.holder
                ) from None
        # One clock for all processes of the machine; no lease outlives its boot.
        lease = Lease(self, name, time.monotonic_ns())
        self._held[name] = lease, mutex
        return lease

    def _path(self, name: str) -> str:
        return self._mutexes.path(f"hold-{name}")

    def ensure_held(self, lease: Lease) -> None:
        """Raise StoreBusy if a lease was released or lost. Costs an lstat."""
        held, mutex = self._held.get(lease.name) or (None, None)
        path = self._path(lease.name)
        if held is not lease or mutex is None or not status_if_named(self._sys, path, mutex.fd):
            raise StoreBusy(
                f"{lease.name} now has another holder", id=lease.name, holder="another process"
            )

    def _announce(self, instance: str, about: Mapping[str, Any] | None) -> None:
        """Make this instance's file and hold it locked; made anew where it was moved away. At most
        4,000 bytes.
        """
        with self._guard, translate_errors(f"{self._directory.path}/{instance}", "make"):
            is_new = about not in (None, self._about.get(instance))
            if about is not None:
                self._about[instance] = about
            fd = self._mine.get(instance, -1)
            if fd >= 0:
                if status_if_named(self._sys, f"{self._directory.path}/{instance}", fd):
                    if is_new:
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
                    with suppress(
                        FileNotFoundError
                    ):  # Somebody took it for a dead one's before it was locked.
                        self._sys.rename(new, path)
                        return fd
            except BaseException:
                self._sys.close(fd)
                raise
            self._sys.close(fd)

    def _write(self, fd: int, instance: str) -> None:
        """Write what an instance says in one call over what it said, so that no reader meets half
        of it.
        """
        data = orjson.dumps({"pid": os.getpid(), "about": self._about.get(instance, {})})
        with suppress(OSError):
            self._sys.pwrite(fd, data.ljust(self._sys.fstat(fd).st_size - 1) + b"\n", 0)

    def live_instances(self) -> dict[str, dict[str, Any]]:
        """Costs two opens an instance file."""
        names = [
            name for name in self._directory.files() if is_instance(name) and self._is_held(name)
        ]
        return {name: self._read(name) for name in names}

    def _read(self, name: str) -> dict[str, Any]:
        for _ in range(_TRIES):  # A file system may show a read the halves of two writes.
            fine = suppress(OSError, ValueError, LookupError, TypeError)
            with fine, open_file(self._sys, self._directory.file(name), _FLAGS) as fd:
                return dict(orjson.loads(self._sys.pread(fd, _MOST_BYTES, 0))["about"])
        return {}

    @cached_property
    def boot_id(self) -> str:
        return self._sys.boot()

    def is_live(self, instance: str, host: str | None = None, boot_id: str = "") -> bool | None:
        """Costs a try at a kernel lock.

        A container has a host name of its own, and the kernel of its machine, which knows the locks
        of all of them.
        """
        has_our_kernel = bool(boot_id) and boot_id == self.boot_id
        if not has_our_kernel and host not in (None, os.uname().nodename):
            return None
        return instance in self._mine or (is_instance(instance) and self._is_held(instance))

    def _is_held(self, name: str) -> bool:
        try:
            with open_file(self._sys, self._directory.file(name), _FLAGS) as fd:
                return not self._sys.try_lock(fd, True)
        except OSError as error:
            return not isinstance(error, FileNotFoundError)

    def dead(self) -> list[str]:
        """The names of the instance files that nobody holds; no other file in the directory counts
        as one.
        """
        names = (name for name in self._directory.files() if is_instance(name.removeprefix(".")))
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
                unlink_if_exists(self._sys, path)
        finally:
            with suppress(OSError):
                self._sys.close(fd)

    def release(self, name: str) -> None:
        """The file of an instance is unlinked."""
        if name in self._held:
            self._mutexes.release(self._held.pop(name)[1])
        with self._guard:
            fd = self._mine.pop(name, None)
            self._about.pop(name, None)
            if fd is not None:
                path = f"{self._directory.path}/{name}"
                with suppress(OSError):
                    if status_if_named(self._sys, path, fd):
                        self._sys.unlink(path)
                self._sys.close(fd)

    def close(self) -> None:
        """Unlink and free this process's instance files, and tidy up those of the dead, when it had
        one itself.
        """
        mine = list(self._mine)
        for instance in mine:
            self.release(instance)
        if mine:
            with suppress(OSError, CapsuleError):
                for dead in self.dead():
                    self.sweep(dead)

    def forget(self) -> None:
        """In a forked child: drop the parent's instance files; its own descriptors keep them
        locked.
        """
        mine, self._mine, self._about, self._guard = self._mine, {}, {}, threading.Lock()
        for fd in mine.values():
            os.close(fd)

    def record_heartbeat(self, session: str) -> None:
        """Costs an open and a write, which nobody flushes."""
        directory, path = self._heartbeat(session)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with translate_errors(path, "write"):
            self._layout.ensure(self._sys, directory)
            with open_file(self._sys, path, flags, self._layout.file_mode) as fd:
                self._sys.pwrite(fd, b"\n", 0)

    def last_heartbeat(self, session: str) -> str | None:
        """Costs an lstat."""
        _, path = self._heartbeat(session)
        with translate_errors(path, "look at"), suppress(FileNotFoundError, NotADirectoryError):
            return timestamps.from_ms(self._sys.lstat(path).st_mtime_ns // 1_000_000)
        return None

    def _heartbeat(self, session: str) -> tuple[str, str]:
        directory = f"{self._layout.documents('sessions')}/{check_id(session)}"
        return directory, f"{directory}/heartbeat"
