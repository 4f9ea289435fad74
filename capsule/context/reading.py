"""Files of a project, read safely.

What must stay true: nothing but a regular file is read; no symlink in its place is followed, and a FIFO doesn't block.
"""

from __future__ import annotations

import io
import os
import stat

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def read_regular(path: str | bytes, most: int) -> bytes | None:
    """The content of a regular file of no more than `most` bytes; None for everything else, and what can't be read."""
    try:
        fd = os.open(path, _FLAGS)
    except (OSError, ValueError):
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most:
            return None
        data = io.FileIO(fd, closefd=False).readall()
        return data if len(data) <= most else None
    except OSError:
        return None
    finally:
        os.close(fd)


class Inside:
    """A project, and in it what no symlink leads to."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._directories = {"": True}

    def size(self, path: str) -> int | None:
        """The size of a regular file, in bytes; None for everything else."""
        if not self.has_directory_of(path):
            return None
        try:
            found = os.lstat(f"{self.root}/{path}")
        except (OSError, ValueError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def has_directory_of(self, path: str) -> bool:
        """Whether the directory of a file is there. Looked at once for all files in it."""
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
        """The content of a regular file of at most `most` bytes; None for everything else, and what can't be read."""
        return read_regular(f"{self.root}/{path}", most) if self.has_directory_of(path) else None
