"""The tracker: which files of a directory were touched, asked at once and answered by the kernel (inotify).

What must stay true: a write that was acknowledged before `changed` is called is in its answer, as the kernel queues
the event before the writer's call returns; where that can't be had (another platform, a file system of another
machine, no instance left) there is no tracker, and whoever wants to know scans. Two things no event tells of: writes
through a mapping, and through a second name elsewhere; for these a scan now and then is for the caller to do.
"""

from __future__ import annotations

import os
import sys

from capsule.engines.files.disk import inotify
from capsule.engines.files.disk.inotify import Inotify

_NAMED = inotify.MOVED_FROM | inotify.MOVED_TO | inotify.CREATE | inotify.DELETE
_WANTED = _NAMED | inotify.MODIFY | inotify.ATTRIB | inotify.DELETE_SELF | inotify.MOVE_SELF
#: After these the directory is another one, or none.
_ENDED = inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.UNMOUNT | inotify.IGNORED

#: Where the kernel sees every write: local, and not a view of another file system.
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "ramfs", "zfs", "bcachefs", "jfs"})


class InotifyTracker(Inotify):
    """Tells which names in one directory were touched.

    Args:
        directory: The directory, which may come later; the one above it must be there.
        suffix: Of the names that are of interest; it is cut off in the answers.

    Raises:
        OSError: The system doesn't let it.
    """

    def __init__(self, directory: str, suffix: str) -> None:
        super().__init__()
        self._suffix = suffix.encode()
        self._pid = os.getpid()
        self._directory = directory
        self._name = os.fsencode(os.path.basename(directory))
        # The directory above tells when another one takes the name, and when one goes that somebody has open.
        self._above = self.watch(os.path.dirname(directory), _NAMED)
        self._is_of = _identity(directory)
        if self._is_of is not None:
            self.watch(directory, _WANTED | inotify.DONT_FOLLOW)

    def changed(self) -> set[str] | None:
        """The names touched since the last call, without the suffix; None when that can't be told any more.

        After a None there may be answers again, but not of what happened before.
        """
        if not self.is_open or os.getpid() != self._pid:
            return None
        touched: set[bytes] = set()
        all_flags = 0
        try:
            for number, flags, name in self.events():
                if number != self._above:
                    touched.add(name)
                elif name == self._name:
                    flags |= inotify.MOVE_SELF
                all_flags |= flags
        except OSError:
            all_flags |= inotify.UNMOUNT
        if all_flags & _ENDED:
            self.close()
            return None
        if all_flags & inotify.OVERFLOW:
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
