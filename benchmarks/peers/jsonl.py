"""A JSONL file a conversation, as scripts and agents log: one line a message, appended with one
write.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks.fixtures import STAMP, history

__all__ = ["LineFiles", "open_flushed", "open_unflushed"]


def open_flushed(directory: Path) -> LineFiles:
    """Open a directory of such files; an append is flushed before it returns."""
    return LineFiles(directory / "flushed", flushed=True)


def open_unflushed(directory: Path) -> LineFiles:
    """Open a directory of such files; an append is left to the system to write."""
    return LineFiles(directory / "unflushed", flushed=False)


class LineFiles:
    """A directory of JSONL files. Each stays open, as a logger keeps it.

    Args:
        directory: Where they lie; made, if need be.
        flushed: Whether each append is followed by an fdatasync.
    """

    def __init__(self, directory: Path, *, flushed: bool) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._flushed = flushed
        self._open: dict[str, int] = {}

    def _path(self, conversation: str) -> Path:
        return self._directory / f"{conversation}.jsonl"

    def fill(self, conversation: str, count: int) -> None:
        with self._path(conversation).open("w", encoding="utf-8") as file:
            file.writelines(
                json.dumps(message, ensure_ascii=False) + "\n" for message in history(count)
            )
            os.fsync(file.fileno())

    def append(self, conversation: str, text: str) -> None:
        fd = self._open.get(conversation)
        if fd is None:
            fd = os.open(self._path(conversation), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self._open[conversation] = fd
        line = (
            json.dumps({"role": "user", "content": text, "timestamp": STAMP}, ensure_ascii=False)
            + "\n"
        )
        os.write(fd, line.encode())
        if self._flushed:
            os.fdatasync(fd)

    def texts(self, conversation: str) -> list[str]:
        return [
            json.loads(line)["content"]
            for line in self._path(conversation).read_text("utf-8").splitlines()
        ]

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()
