"""The tracker: which files of a directory were touched, asked at once and answered by the kernel (inotify).

What must stay true: a write that was acknowledged before `changed` is called is in its answer, as the kernel queues
the event before the writer's call returns; where that can't be had (another platform, a file system of another
machine, no instance left) there is no tracker, and whoever wants to know scans. Two things no event tells of: writes
through a mapping, and through a second name elsewhere; for these a scan now and then is for the caller to do.

There is one more listener, for the folders of other programs (`capsule.transfer.following`). watchfiles can't stand in
for it: it looks every few milliseconds for what the kernel told it, so that what is heard of soon costs processor time
when nothing happens.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from contextlib import suppress
from functools import cache
from typing import Any

_MODIFY, _ATTRIB = 0x2, 0x4
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _UNMOUNT, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x2000, 0x4000, 0x8000
_ONLYDIR, _DONT_FOLLOW = 0x01000000, 0x02000000
_WANTED = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_NAMED = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_LOST = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _OVERFLOW | _IGNORED
_EVENT = struct.Struct("iIII")
_READ = 64 * 1024

#: Where the kernel sees every write: local, and not a view of another file system.
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "ramfs", "zfs", "bcachefs", "jfs"})


class InotifyTracker:
    """Tells which names in one directory were touched.

    Args:
        directory: The directory, which may come later; the one above it must be there.
        suffix: Of the names that are of interest; it is cut off in the answers.

    Raises:
        OSError: The system doesn't let it.
    """

    def __init__(self, directory: str, suffix: str) -> None:
        self._suffix = suffix.encode()
        self._fd: int = libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise failure()
        self._pid = os.getpid()
        self._directory = directory
        self._name = os.fsencode(os.path.basename(directory))
        # The directory above tells when another one takes the name, and when one goes that somebody has open.
        self._above = self._watch(os.path.dirname(directory), _NAMED)
        self._is_of = _identity(directory)
        if self._is_of is not None:
            self._watch(directory, _WANTED | _DONT_FOLLOW)

    def _watch(self, directory: str, wanted: int) -> int:
        watch: int = libc().inotify_add_watch(self._fd, os.fsencode(directory), wanted | _ONLYDIR)
        if watch < 0:
            error = failure()
            self.close()
            raise error
        return watch

    def changed(self) -> set[str] | None:
        """The names touched since the last call, without the suffix; None when that can't be told any more.

        After a None there may be answers again, but not of what happened before.
        """
        if self._fd < 0 or os.getpid() != self._pid:
            return None
        touched: set[bytes] = set()
        lost = False
        while True:
            try:
                data = os.read(self._fd, _READ)
            except BlockingIOError:
                break
            except InterruptedError:
                continue
            except OSError:
                self.close()
                return None
            at = 0
            while at < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                name = data[at : at + length].rstrip(b"\0")
                at += length
                if watch != self._above:
                    touched.add(name)
                elif name == self._name:
                    mask |= _MOVE_SELF
                if mask & _LOST:
                    lost = True
                    if mask & (_LOST & ~_OVERFLOW):
                        self.close()
                        return None
        if lost:
            return None
        if _identity(self._directory) != self._is_of:
            # Removed while something had it open: then no event tells of it.
            self.close()
            return None
        return {os.fsdecode(id) for id in map(self._id, touched) if id}

    def _id(self, name: bytes) -> bytes:
        """The name without the suffix; empty when it is of no interest."""
        if name.startswith(b"."):
            # A file that was made under its temporary name and linked to its own (see `Layout.temporary`) is written
            # under the first, as the kernel tells it, for as long as its maker has it open.
            return name[1:-4] if name.endswith(b".tmp") else b""
        return name[: len(name) - len(self._suffix)] if name.endswith(self._suffix) else b""

    def fileno(self) -> int:
        """See `Tracker.fileno`."""
        return self._fd

    @property
    def is_open(self) -> bool:
        """Whether there will be answers."""
        return self._fd >= 0

    def close(self) -> None:
        """Give back the descriptor; in a forked child too, where the parent keeps its own."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def __del__(self) -> None:
        with suppress(AttributeError):
            self.close()


def open_tracker(directory: str, suffix: str) -> InotifyTracker | None:
    """A tracker of the directory, where the system can tell; else None."""
    there = directory if os.path.isdir(directory) else os.path.dirname(directory)
    if not sys.platform.startswith("linux") or _file_system(there) not in _LOCAL:
        return None
    try:
        return InotifyTracker(directory, suffix)
    except OSError:
        return None


def _identity(directory: str) -> tuple[int, int] | None:
    """What tells a directory from another that has its name later; None when there is none."""
    try:
        found = os.stat(directory, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@cache
def libc() -> Any:
    """The C library, which has inotify. Raises OSError where it has not."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return libc


def failure() -> OSError:
    """The error of the last call of the C library."""
    import ctypes

    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _file_system(directory: str) -> str:
    """The type of the file system that a directory lies on, as the kernel names it; empty when it can't be told."""
    try:
        device = os.stat(directory).st_dev
        with open("/proc/self/mountinfo", "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return ""
    wanted = b"%d:%d" % (os.major(device), os.minor(device))
    for line in lines:
        fields = line.split(b" ")
        if len(fields) > 6 and fields[2] == wanted and b"-" in fields:
            return fields[fields.index(b"-") + 1].decode("ascii", "replace")
    return _of_longest_mount(os.path.realpath(directory), lines)


def _of_longest_mount(path: str, lines: list[bytes]) -> str:
    """By the mount point above, as btrfs gives each subvolume a device of its own."""
    best, found = -1, ""
    for line in lines:
        fields = line.split(b" ")
        if len(fields) < 7 or b"-" not in fields:
            continue
        mount = os.fsdecode(fields[4].replace(b"\\040", b" "))
        if (path == mount or path.startswith(mount.rstrip("/") + "/")) and len(mount) >= best:
            best, found = len(mount), fields[fields.index(b"-") + 1].decode("ascii", "replace")
    return found
