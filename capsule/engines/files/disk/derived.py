"""Files that are derived from the documents, and can be deleted: made, put into place, dropped,
locked.

What must stay true: a derived file has the permissions of the store's files; and the kernel lock on
one goes with its process, however that dies.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress

from capsule.disk import whole_files
from capsule.disk.syscalls import Syscalls
from capsule.engines.files.disk.layout import StoreDirectory, StorePaths
from capsule.errors import CapsuleError, Refused

#: The file of the index.
INDEX = "index.sqlite3"
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class DerivedFiles:
    """The derived files of one store, by their names in `.capsule/`."""

    def __init__(self, layout: StorePaths, sys: Syscalls) -> None:
        self._directory = StoreDirectory(layout, sys)
        self._sys = sys

    def path(self, name: str) -> str:
        """Where the file lies; whether it is there, and what, is for `inode` to say."""
        return f"{self._directory.path}/{name}"

    def inode(self, name: str) -> int:
        """What tells the file of this name from another that had it before; 0 when there is none,
        or no file.
        """
        try:
            status = self._sys.lstat(self._directory.file(name))
        except (OSError, Refused):
            return 0
        return status.st_ino if stat.S_ISREG(status.st_mode) else 0

    @property
    def has_index(self) -> bool:
        """Whether the index is in its file; else each process makes its own in memory, once it
        needs one.
        """
        return bool(self.inode(INDEX))

    def make(self, name: str) -> str:
        """Make an empty file, and the directory around it; the path. Raises `Refused`,
        `StorageFailed`.
        """
        path = self.path(name)
        with whole_files.translate_errors(path, "make"):
            self._directory.ensure()
            self._sys.close(self._open(path, os.O_EXCL))
        return path

    def _close(self, fd: int) -> None:
        """Close a descriptor, which gives back its lock whatever the system says."""
        with suppress(OSError):
            self._sys.close(fd)

    def _open(self, path: str, flags: int = 0) -> int:
        flags |= os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return self._sys.open(path, flags, self._directory.file_mode)

    def put(self, new: str, name: str) -> None:
        """Give a finished file its name, durable before it has it. Raises `Refused`,
        `StorageFailed`.
        """
        path = self.path(name)
        with whole_files.translate_errors(path, "put into place"):
            self._directory.check()
            with whole_files.open_file(
                self._sys, self.path(new), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
            ) as fd:
                self._sys.fdatasync(fd)
            self._sys.rename(self.path(new), path)

    def drop(self, *names: str) -> None:
        """Unlink files, as far as they are there. Raises `Refused`, `StorageFailed`."""
        for name in names:
            with whole_files.translate_errors(self.path(name), "drop"):
                whole_files.unlink_if_exists(self._sys, self._directory.file(name))

    def mark(self, name: str, boot: str, at_ns: int) -> None:
        """Leave a mark: what it stands for was so at this time, in ns since 1970, in this run of
        the machine.
        """
        with (
            suppress(OSError, Refused),
            whole_files.open_file(self._sys, self._directory.file(name), _WRITE, 0o600) as fd,
        ):
            text = f"{at_ns} {boot}".encode()
            self._sys.ftruncate(fd, 0)
            self._sys.pwrite(fd, text, 0)

    def marked(self, name: str, boot: str) -> int:
        """The time of a mark; 0 if there is none of this run of the machine."""
        with suppress(OSError, Refused, CapsuleError, ValueError):
            at, _, of = (
                whole_files.read_regular(self._sys, self._directory.file(name), 200)
                .decode()
                .partition(" ")
            )
            return int(at) if of == boot else 0
        return 0

    def names(self) -> list[str]:
        """The names of all derived files."""
        with suppress(OSError, Refused):
            return self._directory.files()
        return []

    def try_lock(self, name: str) -> Callable[[], None] | None:
        """Take the exclusive lock of a file, which is made when missing and stays; what gives it
        back.

        Returns:
            None when another holds it.

        Raises:
            Refused, StorageFailed: The system did not let it.
        """
        path = self.path(name)
        with whole_files.translate_errors(path, "lock"):
            self._directory.ensure()
            while True:
                fd = self._open(path)
                try:
                    if not self._sys.try_lock(fd):
                        self._sys.close(fd)
                        return None
                    if whole_files.status_if_named(self._sys, path, fd):
                        return lambda: self._close(fd)
                except BaseException:
                    self._close(fd)
                    raise
                self._close(fd)
