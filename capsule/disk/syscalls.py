"""The system calls of everything that touches a file. This is the only way to the operating system.

What must stay true: nothing else in the package writes files. So a test can inject a fault or
record the calls by wrapping this object, and need not patch a builtin. The methods are the system's
own calls, or the next best call where a platform lacks one. They decide nothing.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import cached_property

from capsule.disk import kernel_locks

_AT_FDCWD = -100  # linux/fcntl.h
_RENAME_EXCHANGE = 2  # linux/fs.h
_RENAME_SWAP = 2  # sys/stdio.h of macOS
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h
_COPY_CHUNK = 1 << 30


class Syscalls:
    """The system's calls, by their names. All raise `OSError` as the system does.

    Attributes:
        close_idle: Returns a function that closes descriptors which nobody uses now, and returns
            whether there were any. It is called if the process has no descriptor left. May return
            None.
    """

    close_idle: Callable[[], Callable[[], bool] | None] = staticmethod(lambda: None)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """Open a file and return its descriptor."""
        try:
            return os.open(path, flags, mode)
        except OSError as error:
            close_idle = self.close_idle()
            if (
                error.errno not in (errno.EMFILE, errno.ENFILE)
                or close_idle is None
                or not close_idle()
            ):
                raise
        return os.open(path, flags, mode)

    close = staticmethod(os.close)
    dup = staticmethod(os.dup)
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    fstat = staticmethod(os.fstat)
    lstat = staticmethod(os.lstat)
    ftruncate = staticmethod(os.ftruncate)
    rename = staticmethod(os.rename)
    link = staticmethod(os.link)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    fchmod = staticmethod(os.fchmod)
    fchown = staticmethod(os.fchown)

    if sys.platform == "darwin":

        @staticmethod
        def fsync(fd: int) -> None:
            """Flush bytes and metadata to the disk. On macOS, fsync reaches only the drive's cache,
            and F_FULLFSYNC the disk.
            """
            import fcntl

            try:
                fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            except OSError:
                os.fsync(fd)

        fdatasync = fsync
    else:
        fsync = staticmethod(os.fsync)
        fdatasync = staticmethod(getattr(os, "fdatasync", os.fsync))

    def copy(self, source: int, target: int, offset: int, size: int, target_offset: int) -> int:
        """Copy up to `size` bytes between two files in the kernel. Returns their number, which is 0
        at the end of `source`.
        """
        size = min(size, _COPY_CHUNK)
        if hasattr(os, "copy_file_range"):
            try:
                return os.copy_file_range(source, target, size, offset, target_offset)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                    raise
        return self.pwrite(target, self.pread(source, min(size, 1 << 20), offset), target_offset)

    def begin_flush(self, fd: int, offset: int, size: int) -> None:
        """Make the system begin to write a part of a file to the disk, if it has such a call.

        It proves nothing and never fails. The next fsync reports errors of the disk.
        """
        if self._sync_range is not None:
            self._sync_range(fd, offset, size, _SYNC_FILE_RANGE_WRITE)

    @cached_property
    def _sync_range(self) -> Callable[[int, int, int, int], int] | None:
        return _load_sync_range()

    def exchange(self, path: str, other: str) -> bool:
        """Exchange the files of two names, atomically. Returns False if the system can't.

        With it, a replacement can see which version it replaced. A rename would silently delete a
        version that an editor saved an instant before.
        """
        return self._swap(path, other)

    @cached_property
    def _swap(self) -> Callable[[str, str], bool]:
        return _load_exchange()

    def attributes(self, file: str | int) -> dict[str, bytes]:
        """Return the extended attributes of a file that a user may keep. Empty if the system has
        none.

        Checksums and capabilities of the kernel's security modules depend on the bytes, and are
        left out.
        """
        if not hasattr(os, "listxattr"):
            return {}
        follow = isinstance(file, int)
        attributes = {}
        try:
            for name in os.listxattr(file, follow_symlinks=follow):
                if not name.startswith("security.") or name == "security.selinux":
                    attributes[name] = os.getxattr(file, name, follow_symlinks=follow)
        except OSError as error:
            if error.errno not in (
                errno.ENOTSUP,
                errno.EOPNOTSUPP,
                errno.ENODATA,
                errno.EPERM,
                errno.EACCES,
            ):
                raise
        return attributes

    def set_attribute(self, fd: int, name: str, value: bytes) -> None:
        """Set an extended attribute of an open file."""
        if hasattr(os, "setxattr"):
            os.setxattr(fd, name, value)

    def remove_attribute(self, fd: int, name: str) -> None:
        """Remove an extended attribute of an open file."""
        if hasattr(os, "removexattr"):
            os.removexattr(fd, name)

    def boot(self) -> str:
        """Return the identity of this run of the system. Empty: not known."""
        return _boot()

    def device(self, path: str) -> int:
        """Return the device number of a file's disk. 0: there is no file.

        It may be another one after the disk was removed and attached again.
        """
        try:
            return os.lstat(path).st_dev
        except OSError:
            return 0

    def booted_ns(self) -> int:
        """Return the time at which this run of the system began, in nanoseconds since 1970."""
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.time_ns() - time.clock_gettime_ns(clock)

    #: Take and release the lock of an open file. See `kernel_locks`.
    try_lock = staticmethod(kernel_locks.lock)
    unlock = staticmethod(kernel_locks.unlock)

    def listdir(self, directory: str) -> list[str]:
        """Return the names in a directory."""
        return os.listdir(directory)

    def names(self, directory: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield each name in a directory with its lstat. One that vanishes meanwhile is left out."""
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    yield entry.name, entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue


def _boot() -> str:
    if sys.platform == "darwin":
        import ctypes

        buffer, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
        failed = ctypes.CDLL(None).sysctlbyname(
            b"kern.bootsessionuuid", buffer, ctypes.byref(size), None, 0
        )
        return "" if failed else buffer.value.decode("ascii", "replace")
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _load_sync_range() -> Callable[[int, int, int, int], int] | None:
    """Return sync_file_range(2), which takes descriptor, offset, size and flags. None: the system
    has none.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "sync_file_range"):
        return None
    call: Callable[[int, int, int, int], int] = libc.sync_file_range
    libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


def _load_exchange() -> Callable[[str, str], bool]:
    """Return the system's atomic exchange of two names, or a function that returns False."""
    import ctypes

    def no_exchange(path: str, other: str) -> bool:
        return False

    libc = ctypes.CDLL(None, use_errno=True)
    call: Callable[[bytes, bytes], int]
    if hasattr(libc, "renameat2"):

        def call(path: bytes, other: bytes) -> int:
            return int(libc.renameat2(_AT_FDCWD, path, _AT_FDCWD, other, _RENAME_EXCHANGE))

    elif hasattr(libc, "renamex_np"):

        def call(path: bytes, other: bytes) -> int:
            return int(libc.renamex_np(path, other, _RENAME_SWAP))

    else:
        return no_exchange

    def exchange(path: str, other: str) -> bool:
        if call(os.fsencode(path), os.fsencode(other)) == 0:
            return True
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
            return False
        raise OSError(number, os.strerror(number), path, None, other)

    return exchange
