"""Files that are derived from the documents, such as the index, in `.capsule/`.

They can be deleted at any time. A new one is made under a name of its own, filled, and then renamed
over the old one. A derived file can also be a lock, or a mark with a time.

What must stay true: a derived file has the permissions of the store's files. The kernel lock of one
ends with its process, however that dies.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress

from capsule.disk import whole_files
from capsule.disk.syscalls import Syscalls
from capsule.disk.whole_files import open_file, translate_errors
from capsule.engines.files.disk.store_paths import StoreDirectory, StorePaths
from capsule.errors import CapsuleError, Refused

#: The file of the index.
INDEX = "index.sqlite3"
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_UPDATE_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_MARK_BYTES = 200


class DerivedFiles:
    """The derived files of one store, by their names in `.capsule/`."""

    def __init__(self, paths: StorePaths, sys: Syscalls) -> None:
        self._directory = StoreDirectory(paths, sys)
        self._sys = sys

    def path(self, name: str) -> str:
        """Return the path of a derived file, whether it exists or not."""
        return f"{self._directory.path}/{name}"

    def inode(self, name: str) -> int:
        """Return the inode of a derived file. 0: there is no regular file of this name.

        It distinguishes the file from one that has the name later.
        """
        try:
            status = self._sys.lstat(self._directory.file(name))
        except (OSError, Refused):
            return 0
        return status.st_ino if stat.S_ISREG(status.st_mode) else 0

    @property
    def has_index(self) -> bool:
        """Whether the index has a file. If not, each process makes one in memory when it needs it."""
        return bool(self.inode(INDEX))

    def names(self) -> list[str]:
        """Return the names of all derived files."""
        with suppress(OSError, Refused):
            return self._directory.files()
        return []

    def make(self, name: str) -> str:
        """Make an empty file, and return its path. Raises `Refused`, `StorageFailed`."""
        path = self.path(name)
        with translate_errors(path, "make"):
            self._directory.ensure()
            self._sys.close(self._open(path, os.O_EXCL))
        return path

    def _open(self, path: str, flags: int = 0) -> int:
        flags |= os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return self._sys.open(path, flags, self._directory.file_mode)

    def install(self, new_name: str, name: str) -> None:
        """Flush a finished file, and rename it. It replaces the file of this name.

        Raises `Refused`, `StorageFailed`.
        """
        path = self.path(name)
        new_path = self.path(new_name)
        with translate_errors(path, "put into place"):
            self._directory.check()
            with open_file(self._sys, new_path, _UPDATE_FLAGS) as fd:
                self._sys.fdatasync(fd)
            self._sys.rename(new_path, path)

    def remove(self, *names: str) -> None:
        """Delete the files of these names that exist. Raises `Refused`, `StorageFailed`."""
        for name in names:
            with translate_errors(self.path(name), "drop"):
                whole_files.unlink_if_exists(self._sys, self._directory.file(name))

    def write_time(self, name: str, boot_id: str, time_ns: int) -> None:
        """Write a mark with a time, in ns since 1970, that holds in one run of the machine.

        A mark that can't be written is not an error.
        """
        with (
            suppress(OSError, Refused),
            open_file(self._sys, self._directory.file(name), _WRITE_FLAGS, 0o600) as fd,
        ):
            text = f"{time_ns} {boot_id}".encode()
            self._sys.ftruncate(fd, 0)
            self._sys.pwrite(fd, text, 0)

    def read_time(self, name: str, boot_id: str) -> int:
        """Return the time of a mark, in ns since 1970. 0: none is valid in this run of the machine."""
        with suppress(OSError, Refused, CapsuleError, ValueError):
            path = self._directory.file(name)
            text = whole_files.read_regular(self._sys, path, _MAX_MARK_BYTES).decode()
            time_ns, _, marked_boot_id = text.partition(" ")
            return int(time_ns) if marked_boot_id == boot_id else 0
        return 0

    def try_lock(self, name: str) -> Callable[[], None] | None:
        """Take the exclusive lock of a file, which is made if it does not exist.

        Returns a function that releases the lock. None: another process holds it. Raises `Refused`,
        `StorageFailed`.
        """
        path = self.path(name)
        with translate_errors(path, "lock"):
            self._directory.ensure()
            while True:
                fd = self._open(path)
                try:
                    if not self._sys.try_lock(fd):
                        self._sys.close(fd)
                        return None
                    # The file may have been deleted between the open and the lock.
                    if whole_files.status_if_named(self._sys, path, fd):
                        return lambda: self._close(fd)
                except BaseException:
                    self._close(fd)
                    raise
                self._close(fd)

    def _close(self, fd: int) -> None:
        """Close a descriptor, which also ends its lock. Errors are ignored."""
        with suppress(OSError):
            self._sys.close(fd)
