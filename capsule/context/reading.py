"""Files of a project, read safely.

What must stay true: nothing but a regular file is read; no symlink in its place is followed, and a FIFO doesn't block.
"""

from __future__ import annotations

import os
import stat

__all__ = ["read_regular"]

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
        # One byte more, to see that this is the end.
        data = os.read(fd, found.st_size + 1)
        if len(data) == found.st_size:
            return data
        parts, size = [data], len(data)
        while data and size <= most:
            data = os.read(fd, 1 << 20)
            parts.append(data)
            size += len(data)
        return b"".join(parts) if size <= most else None
    except OSError:
        return None
    finally:
        os.close(fd)
