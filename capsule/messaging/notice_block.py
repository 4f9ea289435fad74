"""The block in a project's CLAUDE.md that says how much mail waits for an agent: where it stands,
and what it may say.

What must stay true: the bytes around the block stay as they are. A new block stands first, behind a
byte order mark, so that the file without it is again the file that was there before. Each of its
lines is one line, and nothing that somebody else named can look like its end, import a file or name
an address. The module knows no files.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from capsule.errors import InvalidDocument, Problem

_BOM = b"\xef\xbb\xbf"
_PUNCTUATION = " -_.,'()+&"
_MOST_OF_A_NAME = 60


def plain(name: str) -> str:
    """A name that others chose, as the block shows it: letters, digits and harmless punctuation, in
    one line.
    """
    kept = (
        char if char in _PUNCTUATION or unicodedata.category(char)[0] in "LMN" else " "
        for char in name
    )
    return " ".join("".join(kept).split())[:_MOST_OF_A_NAME].rstrip()


def has_block(data: bytes | None, agent: str, path: str) -> bool:
    """Whether a file has a block for an agent. Takes and raises what `edited` does."""
    start, end, _ = _block(data or b"", agent, path)
    return end > start


def edited(data: bytes | None, agent: str, lines: Sequence[str], path: str) -> bytes | None:
    """What a file is to hold, so that the block for an agent has certain lines.

    Args:
        data: What the file holds; None: there is no file.
        agent: The agent's id. Each agent has a block of its own.
        lines: The lines; none: there is to be no block.
        path: The file's name in errors.

    Returns:
        `data`, if nothing changes. None: there is to be no file, because there was none before the
        block.

    Raises:
        InvalidDocument: The block lacks its beginning or its end, or has one twice; or the file is
            no text.
    """
    start, end, made = _block(data or b"", agent, path)
    if not lines and (data is None or (made and len(data.removeprefix(_BOM)) == end - start)):
        return None
    text, block = data or b"", ""
    if lines:
        mark = " (made this file)" if made or data is None else ""
        first, last = (
            f"<!-- capsule: unread by {agent}{mark} -->",
            f"<!-- capsule: end of unread by {agent} -->",
        )
        block = ("\r\n" if b"\r\n" in text else "\n").join((first, *lines, last, ""))
    return text[:start] + block.encode() + text[end:]


def _block(data: bytes, agent: str, path: str) -> tuple[int, int, bool]:
    """Where the block begins and ends, and whether the file was made for it. Without a block: twice
    where it would.
    """
    if b"\0" in data:
        raise _broken(path, 0, "is no text of UTF-8, so no block can be put into it")
    start = len(_BOM) if data.startswith(_BOM) else 0
    begins = list(_line(rf"capsule: unread by {agent}( \(made this file\))?").finditer(data))
    ends = list(_line(rf"capsule: end of unread by {agent}").finditer(data))
    if not begins and not ends:
        return start, start, False
    if len(begins) != 1 or len(ends) != 1 or begins[0].end() > ends[0].start():
        line = data.count(b"\n", 0, (begins or ends)[0].start()) + 1
        reason = (
            f"the block for {agent} has not one beginning and one end: correct it, or remove "
            "what is left of it"
        )
        raise _broken(path, line, reason)
    return begins[0].start(), ends[0].end(), begins[0][1] is not None


def _line(pattern: str) -> re.Pattern[bytes]:
    return re.compile(
        rf"(?:^|(?<=\A\xef\xbb\xbf))<!-- {pattern} -->(?:\r?\n|\Z)".encode(), re.MULTILINE
    )


def _broken(path: str, line: int, reason: str) -> InvalidDocument:
    return InvalidDocument.of([Problem(path, line, 1 if line else 0, "", reason)])
