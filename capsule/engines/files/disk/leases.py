"""Leases by kernel locks: instance files, which show that a process is alive, and mutexes by name.

Before a process records a lock, it makes `.capsule/instances/{uuid}` and holds an exclusive kernel
lock on that file as long as it lives. The kernel frees the lock when the process dies, however it
dies. So "is that instance alive?" means "can its file be locked?", without pids or heartbeats. The
file also has a few details that the instance publishes, such as the agent that it serves. They are
never flushed, since they hold only while the file is locked. Every other lease is a mutex.

The worker of a session also leaves heartbeats: each sets the mtime of a file.

What must stay true: an instance file gets its name only once it is locked, and that is before any
record names the instance. A process that checks or deletes an instance file takes a shared lock, so
only the exclusive lock of the owner ever refuses one.
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
from capsule.engines.files.disk.mutex import Mutex, Mutexes
from capsule.engines.files.disk.store_paths import StoreDirectory, StorePaths
from capsule.engines.interface import Lease, is_instance
from capsule.errors import CapsuleError, StoreBusy
from capsule.ids import check_id

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_HEARTBEAT_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_BYTES = 4096
_READ_TRIES = 3


class FileLeases:
    """The leases of one store. See `Leases`, which describes the methods. Several threads may use
    it.

    A lease is lost only if somebody deletes or moves its file.

    Args:
        sys: The system calls.
        paths: The paths of the store.
        mutexes: The mutexes of the store.
    """

    def __init__(self, sys: Syscalls, paths: StorePaths, mutexes: Mutexes) -> None:
        self._sys = sys
        self._paths = paths
        self._mutexes = mutexes
        self._directory = StoreDirectory(paths, sys, "instances")
        #: Guards the two dictionaries of instances.
        self._thread_lock = threading.Lock()
        #: The descriptors of the locked files, and the details, of this process's instances.
        self._own_instance_fds: dict[str, int] = {}
        self._own_details: dict[str, Mapping[str, Any]] = {}
        self._leases: dict[str, tuple[Lease, Mutex]] = {}

    @cached_property
    def boot_id(self) -> str:
        return self._sys.boot()

    # -- Taking and releasing ----------------------------------------------------------------------

    def acquire(
        self, name: str, details: Mapping[str, Any] | None = None, timeout_s: float | None = 0.0
    ) -> Lease:
        """Waiting without a limit costs no processor time."""
        if is_instance(name):
            self._publish_instance(name, details)
            return Lease(self, name, fence=0)  # No other holder ever has this name.
        with translate_errors(self._path(check_id(name)), "lock"):
            try:
                mutex = self._mutexes.acquire(f"hold-{name}", timeout_s)
            except StoreBusy as busy:
                raise StoreBusy(
                    f"{name} is held by {busy.holder}", id=name, holder=busy.holder
                ) from None
        # All processes of the machine have this clock, and no lease outlives the machine's run.
        lease = Lease(self, name, fence=time.monotonic_ns())
        self._leases[name] = lease, mutex
        return lease

    def _path(self, name: str) -> str:
        return self._mutexes.path(f"hold-{name}")

    def ensure_held(self, lease: Lease) -> None:
        """Cost: an lstat."""
        current_lease, mutex = self._leases.get(lease.name) or (None, None)
        path = self._path(lease.name)
        if (
            current_lease is not lease
            or mutex is None
            or not status_if_named(self._sys, path, mutex.fd)
        ):
            raise StoreBusy(
                f"{lease.name} now has another holder", id=lease.name, holder="another process"
            )

    def release(self, name: str) -> None:
        """Deletes the file of an instance."""
        if name in self._leases:
            _, mutex = self._leases.pop(name)
            self._mutexes.release(mutex)
        with self._thread_lock:
            fd = self._own_instance_fds.pop(name, None)
            self._own_details.pop(name, None)
            if fd is not None:
                path = f"{self._directory.path}/{name}"
                with suppress(OSError):
                    if status_if_named(self._sys, path, fd):
                        self._sys.unlink(path)
                self._sys.close(fd)

    def close(self) -> None:
        """Delete this process's instance files. If it had any, delete those of the dead too."""
        instances = list(self._own_instance_fds)
        for instance in instances:
            self.release(instance)
        if instances:
            with suppress(OSError, CapsuleError):
                for dead in self.dead():
                    self.sweep(dead)

    def forget_parent(self) -> None:
        """In a forked child: close the parent's instance files. Its own descriptors keep them
        locked.
        """
        fds = list(self._own_instance_fds.values())
        self._own_instance_fds = {}
        self._own_details = {}
        self._thread_lock = threading.Lock()
        for fd in fds:
            os.close(fd)

    # -- The instance files of this process --------------------------------------------------------

    def _publish_instance(self, instance: str, details: Mapping[str, Any] | None) -> None:
        """Make the file of an instance, locked, or write its new details.

        The file is made anew if somebody moved it away.
        """
        path = f"{self._directory.path}/{instance}"
        with self._thread_lock, translate_errors(path, "make"):
            has_new_details = details not in (None, self._own_details.get(instance))
            if details is not None:
                self._own_details[instance] = details
            fd = self._own_instance_fds.get(instance, -1)
            if fd >= 0:
                if status_if_named(self._sys, path, fd):
                    if has_new_details:
                        self._write_details(fd, instance)
                    return
                del self._own_instance_fds[instance]
                self._sys.close(fd)
            self._directory.ensure()
            self._own_instance_fds[instance] = self._create_locked_file(instance)

    def _create_locked_file(self, instance: str) -> int:
        """Make the file of an instance, and return its descriptor.

        The file is locked under a temporary name, and then renamed.
        """
        path = self._directory.file(instance)
        temporary = self._directory.file(f".{instance}")
        while True:
            fd = self._sys.open(temporary, _FLAGS | os.O_CREAT, self._directory.file_mode)
            try:
                if self._sys.try_lock(fd):
                    self._write_details(fd, instance)
                    # It is gone if somebody deleted it as a dead instance's before it was locked.
                    with suppress(FileNotFoundError):
                        self._sys.rename(temporary, path)
                        return fd
            except BaseException:
                self._sys.close(fd)
                raise
            self._sys.close(fd)

    def _write_details(self, fd: int, instance: str) -> None:
        """Write the details over the old ones with one call, so that no reader gets half of them."""
        details = self._own_details.get(instance, {})
        data = orjson.dumps({"pid": os.getpid(), "about": details})
        with suppress(OSError):
            old_size = self._sys.fstat(fd).st_size
            self._sys.pwrite(fd, data.ljust(old_size - 1) + b"\n", 0)

    # -- All instances -----------------------------------------------------------------------------

    def live_instances(self) -> dict[str, dict[str, Any]]:
        """Cost: two opens an instance file."""
        names = [
            name for name in self._directory.files() if is_instance(name) and self._is_locked(name)
        ]
        return {name: self._read_details(name) for name in names}

    def _read_details(self, name: str) -> dict[str, Any]:
        """Return the details of an instance. Empty: they can't be read."""
        for _ in range(_READ_TRIES):  # Some file systems let a read see half of a write.
            with (
                suppress(OSError, ValueError, LookupError, TypeError),
                open_file(self._sys, self._directory.file(name), _FLAGS) as fd,
            ):
                return dict(orjson.loads(self._sys.pread(fd, _MAX_BYTES, 0))["about"])
        return {}

    def is_live(self, instance: str, host: str | None = None, boot_id: str = "") -> bool | None:
        """Cost: one try of a kernel lock.

        A container has a host name of its own, but the kernel of its machine, which knows the locks
        of all containers.
        """
        has_same_kernel = bool(boot_id) and boot_id == self.boot_id
        if not has_same_kernel and host not in (None, os.uname().nodename):
            return None
        if instance in self._own_instance_fds:
            return True
        return is_instance(instance) and self._is_locked(instance)

    def _is_locked(self, name: str) -> bool:
        """Check if a process holds the lock of an instance file. A file that can't be opened counts
        as locked.
        """
        try:
            with open_file(self._sys, self._directory.file(name), _FLAGS) as fd:
                return not self._sys.try_lock(fd, True)
        except OSError as error:
            return not isinstance(error, FileNotFoundError)

    def dead(self) -> list[str]:
        """Return the names of the instance files that no process holds."""
        names = []
        for name in self._directory.files():
            if not is_instance(name.removeprefix(".")) or name in self._own_instance_fds:
                continue
            if not self._is_locked(name):
                names.append(name)
        return names

    def sweep(self, name: str) -> None:
        """Delete the file of a dead instance. The file of a live one stays."""
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

    # -- Heartbeats --------------------------------------------------------------------------------

    def record_heartbeat(self, session: str) -> None:
        """Cost: an open and a write, which is not flushed."""
        path = self._heartbeat_path(session)
        with translate_errors(path, "write"):
            self._paths.ensure(self._sys, os.path.dirname(path))
            with open_file(self._sys, path, _HEARTBEAT_FLAGS, self._paths.file_mode) as fd:
                self._sys.pwrite(fd, b"\n", 0)

    def last_heartbeat(self, session: str) -> str | None:
        """Cost: an lstat."""
        path = self._heartbeat_path(session)
        with translate_errors(path, "look at"), suppress(FileNotFoundError, NotADirectoryError):
            return timestamps.from_ms(self._sys.lstat(path).st_mtime_ns // 1_000_000)
        return None

    def _heartbeat_path(self, session: str) -> str:
        return f"{self._paths.documents('sessions')}/{check_id(session)}/heartbeat"
