"""Line anatomy: where the parts of a canonical capsule lie, in bytes.

The canonical layout is line-addressable, as JSON strings hold no raw newline: a line that is
exactly four
spaces and `{` starts a message, the line `  "context": ` ends what a list needs, and the last three lines
close `history`. What must stay true: nothing here is asked of a file that is not canonical, and
nothing but the storage layer and its callers leans on these offsets.

    {                          <- 0
      "id": ...,
      "updatedAt": "2025...",  <- updated_at: the first digit
      ...
      "context": {             <- context: the first byte of this line
      "history": [             <- history: the byte after the bracket
        {
        }                      <- tail: the byte after the last brace, or `history` when there is none
      ]
    }
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import orjson

from capsule.timestamps import WIDTH

_CLOSING = b"\n  ]\n}\n"
_CLOSING_EMPTY = b"]\n}\n"
_CONTEXT = b'\n  "context": '
_HISTORY = b'\n  "history": ['
_ENTRY = b"\n    {\n"
_ENTRY_END = b"\n    }"
_ID = b'\n      "id": "%s"'
#: A message's id that is a UUIDv5: made of something, not by chance. Ids inside a message stand
#: deeper.
_MADE_ID = _ID % b"([0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"
_CONTEXT_END = b"\n  },\n"
_CONTEXT_EMPTY = b'  "context": {},\n'
#: So many bytes of a piece may belong to the end of a context whose rest is in the next piece.
CONTEXT_END_BYTES = len(_CONTEXT_END) - 1


class FileLayout(NamedTuple):
    """Offsets (bytes) in a canonical capsule; the module's docstring draws them.

    A tuple, as an append makes two of them, and a frozen dataclass costs three times as much to
    make.

    Attributes:
        size: Bytes of the whole file.
        entries: How many entries `history` has.
        ends_active: Whether the last message is known to be the end of the active branch. False:
            not known.
    """

    size: int
    updated_at: int
    context: int
    history: int
    tail: int
    entries: int
    ends_active: bool = False


def survey(data: bytes) -> FileLayout | None:
    """The anatomy of a canonical capsule, or None when `data` lacks a part that the layout needs.

    Costs a scan of `data`. That the whole of it is canonical is for the caller to know.
    """
    context = data.find(_CONTEXT) + 1
    history = data.find(_HISTORY, context - 1) + len(_HISTORY)
    if context == 0 or history < len(_HISTORY):
        return None
    updated_at = _stamp_in(data[:context])
    if updated_at < 0:
        return None
    if data.endswith(_CLOSING) and len(data) - len(_CLOSING) > history:
        tail = len(data) - len(_CLOSING)
    elif len(data) - len(_CLOSING_EMPTY) == history and data.endswith(_CLOSING_EMPTY):
        tail = history
    else:
        return None
    return FileLayout(
        len(data), updated_at, context, history, tail, data.count(_ENTRY, history, tail)
    )


def _stamp_in(head: bytes) -> int:
    """The offset of `updatedAt`, which is overwritten in place; -1 when there is none."""
    key = b'\n  "updatedAt": "'
    at = head.find(key) + len(key)
    return at if at >= len(key) and head[at + WIDTH : at + WIDTH + 1] == b'"' else -1


def head_of(beginning: bytes) -> bytes | None:
    """The head as a JSON document, from the first bytes of a canonical capsule; None when it ends
    further on.
    """
    end = beginning.find(_CONTEXT)
    if end < 0 or not beginning.startswith(b"{\n") or beginning[end - 1 : end] != b",":
        return None
    return beginning[: end - 1] + b"\n}"


def head_prefix(head: bytes) -> bytes:
    """The reverse of `head_of`: a head encoded as a document of its own, as it stands before
    `context`.
    """
    return head.rstrip(b"\n").removesuffix(b"\n}") + b",\n"


def closing_of(anatomy: FileLayout) -> bytes:
    """The bytes from `anatomy.tail` to the end of the file."""
    return _CLOSING if anatomy.tail > anatomy.history else _CLOSING_EMPTY


def append_bytes(anatomy: FileLayout, entries: list[bytes]) -> tuple[bytes, FileLayout]:
    """What to write at `anatomy.tail` to append entries that `codec.encode_entry` gave, and the
    anatomy after it.

    No entries close the file as it was.
    """
    if not entries:
        closing = closing_of(anatomy)
        return closing, anatomy._replace(size=anatomy.tail + len(closing))
    block = (b",\n" if anatomy.tail > anatomy.history else b"\n") + b",\n".join(entries)
    tail = anatomy.tail + len(block)
    size, count = tail + len(_CLOSING), anatomy.entries + len(entries)
    after = FileLayout(
        size, anatomy.updated_at, anatomy.context, anatomy.history, tail, count, anatomy.ends_active
    )
    return block + _CLOSING, after


def with_head(anatomy: FileLayout, head: bytes) -> FileLayout | None:
    """The anatomy once `head` (as `head_prefix` gives it) stands in place of the old one; None if it is
    no head.
    """
    updated_at = _stamp_in(head)
    if updated_at < 0:
        return None
    return with_longer_context(
        anatomy._replace(updated_at=updated_at, context=len(head)), len(head) - anatomy.context
    )


def with_longer_context(anatomy: FileLayout, by: int) -> FileLayout:
    """The anatomy once the context has become so many bytes longer, or shorter (negative)."""
    return anatomy._replace(
        size=anatomy.size + by, history=anatomy.history + by, tail=anatomy.tail + by
    )


def context_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A context as it stands in a capsule, from the first byte of its line to the newline behind
    it.

    The pieces are of a JSON object in the canonical layout, without a newline at its end. They may
    be cut anywhere but within a line's indentation or before it.
    """
    yield b'  "context": '
    for piece in pieces:
        yield piece.replace(b"\n", b"\n  ")
    yield b",\n"


def context_end(block: bytes, *, first: bool) -> int:
    """The offset behind the context in a piece of a canonical capsule; -1 when it ends further on.

    `first` says whether the piece begins where the context does.
    """
    if first and block.startswith(_CONTEXT_EMPTY):
        return len(_CONTEXT_EMPTY)
    # What stands inside the context is indented deeper, and a JSON string holds no raw newline.
    end = block.find(_CONTEXT_END)
    return end + len(_CONTEXT_END) if end >= 0 else -1


def context_in(data: bytes) -> tuple[int, int] | None:
    """Where in a whole canonical capsule the value of its context begins and ends; None when it is
    no object.
    """
    line = data.find(_CONTEXT) + 1
    start = line + len(_CONTEXT) - 1
    if not line or data[start : start + 1] != b"{":
        return None
    if data.startswith(_CONTEXT_EMPTY, line):
        return start, start + 2
    end = data.find(_CONTEXT_END, start)
    return None if end < 0 else (start, end + len(_CONTEXT_END) - 2)


def last_entries(block: bytes, wanted: int) -> tuple[bytes, int]:
    """The JSON array of the last entries in a piece of a canonical history that ends at `tail`, and
    their number: fewer than `wanted` when `block` holds fewer whole ones."""
    at, count = len(block), 0
    while count < wanted and (start := block.rfind(_ENTRY, 0, at)) >= 0:
        at, count = start, count + 1
    return b"[" + block[at:] + b"]", count


def id_line(id: str) -> bytes:
    """The line that holds a message's id in a canonical history; nothing inside a message can look
    like it.
    """
    return b'\n      "id": ' + orjson.dumps(id)


def derived_ids(block: bytes) -> frozenset[bytes]:
    """The ids in a piece of a canonical history that are UUIDv5: of idempotency keys, and of
    migrated messages.
    """
    return frozenset(re.findall(_MADE_ID, block))


def find_entry(history: bytes, id: str) -> tuple[int, bytes] | None:
    """The entry with an id in a piece of the bytes from `history` to `tail`: its position among
    those that begin in the piece, and its bytes as JSON; None also if it begins before the
    piece."""
    line = history.find(id_line(id))
    start = history.rfind(_ENTRY, 0, line + 1) if line >= 0 else -1
    if start < 0:
        return None
    end = history.find(_ENTRY_END, line) + len(_ENTRY_END)
    return history.count(_ENTRY, 0, start), history[start:end]


def count_entries(history: bytes) -> int:
    """How many entries begin in such a piece."""
    return history.count(_ENTRY)
