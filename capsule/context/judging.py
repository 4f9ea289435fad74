"""What a file is: a text to be taken, with all that is said of it, or why not.

What must stay true: each file is read once, and what is said of it (digest, size, tokens) is said of the very bytes
that are taken. Files are judged some at a time, as most of what is asked is asked of all of them at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from capsule.context import document, secrets
from capsule.context.files import Inside, LeftOut, Selection, too_large
from capsule.context.reading import read_regular
from capsule.context.tokens import estimate

__all__ = ["Judged", "Taken", "examine", "judge"]

#: So many bytes of files are judged at once: so many that a call costs nothing, so few that they stay in the
#: processor's cache; and so many files, so that those that are small don't make one batch.
_BATCH_BYTES = 128 << 10
_BATCH_FILES = 200


class Taken(NamedTuple):
    """One file as it was read.

    Attributes:
        data: Its text, as UTF-8.
        tokens: Those of the text, estimated.
        before, behind: What stands around it in the document.
    """

    path: str
    data: bytes
    sha256: str
    tokens: int
    before: bytes
    behind: bytes

    @property
    def overhead(self) -> int:
        """The tokens of what stands around it: mostly a path, of which 3 bytes take one or less."""
        return (len(self.before) + len(self.behind)) // 3


class Judged(NamedTuple):
    """What was judged at once.

    Attributes:
        taken: The files that are texts, in their order.
        left_out: Those that are not, or too large, and why.
        done: How many paths this is about.
        size: The bytes of all that was read.
        has_sign: Whether there may be a secret token in one of the texts.
    """

    taken: list[Taken]
    left_out: list[LeftOut]
    done: int
    size: int
    has_sign: bool


def examine(root: str, path: str, most: int) -> Taken | None:
    """Read one file of at most so many bytes; None when it isn't there, or no text that can be taken."""
    taken = next(judge(Inside(root), [path], Selection(file_bytes=most))).taken
    return taken[0] if taken else None


def judge(inside: Inside, paths: Iterable[str], selection: Selection) -> Iterator[Judged]:
    """Read the files at these paths, and say what they are, some at a time. What is no file is passed over."""
    read: list[tuple[str, bytes | None]] = []
    size, root, most = 0, inside.root, selection.file_bytes
    for path in paths:
        data = read_regular(f"{root}/{path}", most) if inside.has_directory_of(path) else None
        read.append((path, data))
        size += 0 if data is None else len(data)
        if size >= _BATCH_BYTES or len(read) == _BATCH_FILES:
            yield _judged(inside, read, size, selection)
            read, size = [], 0
    if read:
        yield _judged(inside, read, size, selection)


def _judged(inside: Inside, read: list[tuple[str, bytes | None]], size: int, selection: Selection) -> Judged:
    # No character of UTF-8 goes on behind a newline: all are texts together only when each of them is one.
    text = _text(b"\n".join([data for _, data in read if data is not None]))
    backticks = text is None or "`" in text
    taken, left_out = [], []
    for path, data in read:
        if data is None:
            left_out += _unread(inside, path, selection)
        elif text is None and (why := _no_text(data)):
            left_out.append(LeftOut(path, why))
        else:
            before, behind = document.block_around(path, data, backticks=backticks)
            taken.append(Taken(path, data, hashlib.sha256(data).hexdigest(), estimate(data), before, behind))
    if text is None:
        text = b"\n".join([file.data for file in taken]).decode()
    return Judged(taken, left_out, len(read), size, secrets.may_hold_tokens(text))


def _unread(inside: Inside, path: str, selection: Selection) -> list[LeftOut]:
    """What is said of a path that was not read: nothing when there is no file."""
    size = inside.size(path)
    if size is None:
        return []
    return [too_large(path, size, selection) if size > selection.file_bytes else LeftOut(path, "can't be read")]


def _text(data: bytes) -> str | None:
    """The text that these bytes are; None when they are none, or there is a binary file that could pass for one."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _no_text(data: bytes) -> str:
    """Why a file is no text; empty when it is one."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16; save it as UTF-8"
    try:
        data.decode()
    except UnicodeDecodeError:
        return "binary, or a text that is no UTF-8"
    return "binary" if b"\0" in data else ""
