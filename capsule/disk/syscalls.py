"""The one seam to the operating system: every call of the storage layer that touches a file.

What must stay true: nothing else in the package writes, so that a fault or a recorder can be put in
by wrapping this object, and no builtin need be patched. The methods are the system's own calls,
with the next best call where a platform lacks one; deciding what to call is not done here.
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
        close_idle: Closes descriptors that are open for later only, and says whether there were
            any; asked when the system has no more to give.
    """

    close_idle: Callable[[], Callable[[], bool] | None] = staticmethod(lambda: None)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """A descriptor of a file."""
        try:
            return os.open(path, flags, mode)
        except OSError as error:
            give_up = self.close_idle()
            if error.errno not in (errno.EMFILE, errno.ENFILE) or give_up is None or not give_up():
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
            """Bytes and metadata on the medium. macOS: fsync stops at the drive's cache,
            F_FULLFSYNC doesn't.
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
        """Copy up to `size` bytes between two files in the kernel; the count copied, 0 at the end
        of `source`.
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
        """Have the system begin to write a part of a file to the medium. It vouches for nothing,
        and never fails: an error of the medium is told by the next fsync. Where the system has no
        such call nothing is done."""
        if self._sync_range is not None:
            self._sync_range(fd, offset, size, _SYNC_FILE_RANGE_WRITE)

    @cached_property
    def _sync_range(self) -> Callable[[int, int, int, int], int] | None:
        return _load_sync_range()

    def exchange(self, path: str, other: str) -> bool:
        """Swap what two names stand for, atomically. False where the system can't.

        This is what lets a replace see *what* it replaced: a rename over a name drops a version
        that an editor put there an instant before, without a word.
        """
        return self._swap(path, other)

    @cached_property
    def _swap(self) -> Callable[[str, str], bool]:
        return _load_exchange()

    def attributes(self, file: str | int) -> dict[str, bytes]:
        """The extended attributes of a file that are a user's to keep; none where the system has
        none.

        Checksums and capabilities of the kernel's security modules speak of the bytes, and aren't
        among them.
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
        """What tells this run of the system from the one before a crash or a power cut; empty when
        it can't.
        """
        return _boot()

    def device(self, path: str) -> int:
        """The number of the device that a file lies on; 0 where there is none. Another one if the
        disk came back.
        """
        try:
            return os.lstat(path).st_dev
        except OSError:
            return 0

    def booted_ns(self) -> int:
        """When this run of the system began, in nanoseconds since 1970."""
        return time.time_ns() - time.clock_gettime_ns(
            getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        )

    #: Take the lock of an open file, and give it back; False when another's stands in the way.
    try_lock = staticmethod(kernel_locks.lock)
    unlock = staticmethod(kernel_locks.unlock)

    def listdir(self, directory: str) -> list[str]:
        """The names in a directory."""
        return os.listdir(directory)

    def names(self, directory: str) -> Iterator[tuple[str, os.stat_result]]:
        """The names in a directory, each with its lstat; one that vanishes meanwhile is
        left out.
        """
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
    """sync_file_range(2): a descriptor, an offset, a size, what to do; None where the system has
    none.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "sync_file_range"):
        return None
    call: Callable[[int, int, int, int], int] = libc.sync_file_range
    libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


def _load_exchange() -> Callable[[str, str], bool]:
    """The system's atomic swap of two names, or a function that says it has none."""
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
