"""Directories that the kernel watches (inotify, Linux): which names in them were touched, asked without waiting.

watchfiles can't stand in for it: it looks every few milliseconds for what the kernel told it, so that what is heard of
soon costs processor time when nothing happens.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

MODIFY, ATTRIB = 0x2, 0x4
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF, UNMOUNT, OVERFLOW, IGNORED = 0x400, 0x800, 0x2000, 0x4000, 0x8000
DONT_FOLLOW = 0x02000000
_ONLYDIR = 0x01000000
_EVENT = struct.Struct("iIII")
_READ = 64 * 1024


class Inotify:
    """Watched directories. Raises OSError: the system has no such thing, or no more to give."""

    def __init__(self) -> None:
        self._fd: int = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _failure()

    def watch(self, directory: str, wanted: int) -> int:
        """Watch a directory; the number that its events have. Raises OSError.

        Args:
            directory: The directory, and none that is in it.
            wanted: The events, as flags.
        """
        number: int = _libc().inotify_add_watch(self._fd, os.fsencode(directory), wanted | _ONLYDIR)
        if number < 0:
            raise _failure()
        return number

    def events(self) -> Iterator[tuple[int, int, bytes]]:
        """What happened since the last call: the number of the directory, flags, and the name, empty for the directory.

        An event with `OVERFLOW` says that some are missing; its number is of none. Raises OSError.
        """
        while True:
            try:
                data = os.read(self._fd, _READ)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                number, flags, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                yield number, flags, data[at - length : at].rstrip(b"\0")

    def fileno(self) -> int:
        """The descriptor, which is readable when there are events; below 0: it is closed."""
        return self._fd

    @property
    def is_open(self) -> bool:
        """Whether there will be events."""
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


@cache
def _libc() -> Any:
    """The C library, which has inotify. Raises OSError where it has not."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return libc


def _failure() -> OSError:
    """The error of the last call of the C library."""
    import ctypes

    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
