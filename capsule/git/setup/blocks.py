"""Lines of ours in a file of somebody else's: between two marks, and nowhere else.

What must stay true: what stands outside the marks is kept byte for byte, and without our lines the
file is what it was; adding the same lines twice changes nothing; a file is replaced as a whole or
not at all. Nothing here knows what the lines are for.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

from capsule.disk import whole_files
from capsule.errors import InvalidDocument, Problem, Refused

_BEGIN = b"# >>> capsule git setup >>>"
_END = b"# <<< capsule git setup <<<"
#: Stands behind the first mark when the line before it had no end, so that the end is removed too.
_ENDED = b" (and the line end before)"
#: Stands there when there was no such file.
_MADE = b" (and the file)"
#: The first line of a program that we make.
_SHEBANG = b"#!/bin/sh\n"


class _Block(NamedTuple):
    """Our lines in a file: where they begin and end, in bytes, and the first mark with its line
    end.
    """

    start: int
    end: int
    mark: bytes
    newline: bytes


def has_block(data: bytes | None) -> bool:
    """Whether a file (None: there is none) holds lines of ours."""
    return data is not None and any(line.startswith(_BEGIN) for line in data.splitlines())


def with_block(
    data: bytes | None, lines: Sequence[str], path: str, *, at_top: bool = False
) -> bytes:
    """A file with our lines in it.

    Args:
        data: What it holds; None: there is none.
        lines: Our lines, without line ends. They get the file's.
        path: The file, for the error.
        at_top: Whether new lines stand below the first line instead of at the end.

    Raises:
        InvalidDocument: Our lines begin there and don't end.
    """
    if data is None:
        return (_SHEBANG if at_top else b"") + _joined(_BEGIN + _MADE, lines, b"\n")
    blocks = _blocks(data, path)
    if blocks:
        for block in reversed(blocks[1:]):
            data = data[: block.start] + data[block.end :]
        return (
            data[: blocks[0].start]
            + _joined(blocks[0].mark, lines, blocks[0].newline)
            + data[blocks[0].end :]
        )
    newline = b"\r\n" if data.partition(b"\n")[0].endswith(b"\r") else b"\n"
    at = data.find(b"\n") + 1 if at_top and b"\n" in data else len(data)
    ours = _joined(_BEGIN, lines, newline)
    if data[:at] and not data[:at].endswith(b"\n"):
        ours = newline + _joined(_BEGIN + _ENDED, lines, newline)
    return data[:at] + ours + data[at:]


def without_block(data: bytes, path: str) -> bytes | None:
    """A file without our lines; None: only our beginning of it is left. Raises InvalidDocument: our
    lines don't end.
    """
    is_ours = False
    for block in reversed(_blocks(data, path)):
        start = block.start
        if block.mark.endswith(_ENDED) and block.end == len(data):
            start -= len(
                block.newline
            )  # Unless somebody has gone on behind ours: their line needs it now.
        is_ours = is_ours or block.mark.endswith(_MADE)
        data = data[:start] + data[block.end :]
    return None if is_ours and data in (b"", _SHEBANG) else data


def _blocks(data: bytes, path: str) -> list[_Block]:
    blocks: list[_Block] = []
    begun: tuple[int, _Block] | None = None
    at = 0
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        words = line.rstrip(b"\r\n")
        if words.startswith(_BEGIN) and begun is None:
            begun = number, _Block(at, at, words, line[len(words) :])
        at += len(line)
        if words == _END and begun is not None:
            blocks.append(begun[1]._replace(end=at))
            begun = None
    if begun is not None:
        reason = (
            "the lines of `capsule git setup` begin here and never end; take them out, or "
            "end them with the line: "
        )
        raise InvalidDocument.of([Problem(path, begun[0], 1, "", reason + _END.decode())])
    return blocks


def _joined(mark: bytes, lines: Sequence[str], newline: bytes) -> bytes:
    return b"".join(line + newline for line in (mark, *(line.encode() for line in lines), _END))


def read(path: str) -> bytes | None:
    """The content of a file; None: there is no file.

    Raises:
        Refused: A symlink or something else is in its place, or it may not be read.
        StorageFailed: The system failed.
    """
    with whole_files.naming(path, "read"):
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(mode):
            reason = "is a symlink" if stat.S_ISLNK(mode) else "is no file"
            raise Refused(
                f"{path}: {reason}, and is left alone; put a file in its place", path=path
            )
        with open(path, "rb") as file:
            return file.read()
