"""Reading files of a project safely.

What must stay true: only regular files are read. No symlink is followed, and a FIFO doesn't block.
"""

from __future__ import annotations

import io
import os
import stat

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def read_regular(path: str | bytes, most: int) -> bytes | None:
    """The content of a regular file of at most `most` bytes; None: it is none, or can't be read."""
    try:
        fd = os.open(path, _FLAGS)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        data = io.FileIO(fd, closefd=False).readall()
        return data if len(data) <= most else None
    except OSError:
        return None
    finally:
        os.close(fd)


class Inside:
    """The files of a project that no symlink leads to."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._directories = {"": True}

    def size(self, path: str) -> int | None:
        """The size of a regular file, in bytes; None: it is no regular file."""
        if not self.has_directory_of(path):
            return None
        try:
            status = os.lstat(f"{self.root}/{path}")
        except (OSError, ValueError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def has_directory_of(self, path: str) -> bool:
        """Whether the directory of a file exists; checked once for all files in it."""
        directory = path.rpartition("/")[0]
        known = self._directories.get(directory)
        if known is None:
            try:
                known = self.has_directory_of(directory) and stat.S_ISDIR(os.lstat(f"{self.root}/{directory}").st_mode)
            except (OSError, ValueError):
                known = False
            self._directories[directory] = known
        return known

    def read(self, path: str, most: int) -> bytes | None:
        """The content of a regular file of at most `most` bytes; None: it is none, or can't be read."""
        return read_regular(f"{self.root}/{path}", most) if self.has_directory_of(path) else None
