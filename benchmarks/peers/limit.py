"""The limit: the system calls that a durable append can't do without, and nothing around them."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["SplicedFile"]

_CLOSING_BYTES = 7
_LOG_BYTES = 1 << 20
_STAMP_AT = 130
_STAMP = b"2025-01-12T10:00:00.000Z"


class SplicedFile:
    """A file that grows as a capsule does: a block over its closing, and 24 bytes near its head.

    The same block is first written to a log, which is flushed at the end; the file itself is not.

    Args:
        source: A capsule, whose size the file has at the beginning.
        path: The file; made.
        growth: Bytes that it grows by at each append.
        flushes: Whether the log is flushed.
    """

    def __init__(self, source: Path, path: Path, growth: int, *, flushes: bool = True) -> None:
        path.write_bytes(source.read_bytes())
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        os.fsync(self._fd)
        self._end = os.fstat(self._fd).st_size
        self._growth = growth
        self._block = b"x" * (growth + _CLOSING_BYTES)
        self._log, self._log_end, self._flushes = (
            os.open(f"{path}.log", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC),
            0,
            flushes,
        )
        os.posix_fallocate(self._log, 0, _LOG_BYTES)
        os.pwrite(self._log, bytes(_LOG_BYTES), 0)
        os.fsync(self._log)

    def append(self) -> None:
        os.pwrite(self._log, self._block, self._log_end)
        self._log_end = (self._log_end + len(self._block)) % (_LOG_BYTES - len(self._block))
        os.pwrite(self._fd, self._block, self._end - _CLOSING_BYTES)
        os.pwrite(self._fd, _STAMP, _STAMP_AT)
        if self._flushes:
            os.fdatasync(self._log)
        self._end += self._growth

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._log)
