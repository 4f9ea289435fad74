"""Find the parts of a canonical capsule by their offsets in bytes, and build pieces of it.

The canonical layout is line-addressable, because JSON strings hold no raw newline. A line of four
spaces and `{` begins a message. The line `  "context": ` ends the head, which is all that a list
needs. The last three lines close `history`. An append writes at `tail` and overwrites the closing.

    {                          <- 0
      "id": ...,
      "updatedAt": "2025...",  <- updated_at: the first digit
      ...
      "context": {             <- context: the first byte of this line
      "history": [             <- history: the byte after the bracket
        {
        }                      <- tail: the byte after the last brace; without messages: `history`
      ]
    }

What must stay true: only a file that is canonical is read by these offsets, which the caller has to
know. Only the storage layer and its callers use them.
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
_UPDATED_AT = b'\n  "updatedAt": "'
_ENTRY = b"\n    {\n"
_ENTRY_END = b"\n    }"
_ID = b'\n      "id": "%s"'
#: The line of a message's id that is a UUIDv5, which is derived and not random. Ids inside a
#: message are indented deeper.
_DERIVED_ID = _ID % b"([0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"
_CONTEXT_END = b"\n  },\n"
_CONTEXT_EMPTY = b'  "context": {},\n'
#: How many bytes at the end of a piece can be the beginning of a context's end.
CONTEXT_END_BYTES = len(_CONTEXT_END) - 1


class FileLayout(NamedTuple):
    """The offsets in a canonical capsule that the module draws, in bytes.

    It is a tuple, because an append makes two, and a frozen dataclass costs three times as much.

    Attributes:
        size: The bytes of the whole file.
        entries: The number of messages.
        ends_active: Whether the last message is known to end the active branch. False: unknown.
    """

    size: int
    updated_at: int
    context: int
    history: int
    tail: int
    entries: int
    ends_active: bool = False


def survey(data: bytes) -> FileLayout | None:
    """Return the layout of a canonical capsule. None: `data` lacks a part of it.

    Cost: one scan of `data`. It is not checked whether all of it is canonical.
    """
    context = data.find(_CONTEXT) + 1
    history = data.find(_HISTORY, context - 1) + len(_HISTORY)
    if context == 0 or history < len(_HISTORY):
        return None
    updated_at = _find_updated_at(data[:context])
    if updated_at < 0:
        return None
    if data.endswith(_CLOSING) and len(data) - len(_CLOSING) > history:
        tail = len(data) - len(_CLOSING)
    elif len(data) - len(_CLOSING_EMPTY) == history and data.endswith(_CLOSING_EMPTY):
        tail = history
    else:
        return None
    return FileLayout(
        size=len(data),
        updated_at=updated_at,
        context=context,
        history=history,
        tail=tail,
        entries=data.count(_ENTRY, history, tail),
    )


def _find_updated_at(head: bytes) -> int:
    """Return the offset of the time in `updatedAt`. -1: none of the width that is overwritten."""
    offset = head.find(_UPDATED_AT) + len(_UPDATED_AT)
    if offset < len(_UPDATED_AT) or head[offset + WIDTH : offset + WIDTH + 1] != b'"':
        return -1
    return offset


# --- The head ---


def head_of(beginning: bytes) -> bytes | None:
    """Return the head as a JSON document, from the first bytes of a capsule. None: it goes on."""
    end = beginning.find(_CONTEXT)
    if end < 0 or not beginning.startswith(b"{\n") or beginning[end - 1 : end] != b",":
        return None
    return beginning[: end - 1] + b"\n}"


def head_prefix(head: bytes) -> bytes:
    """Return the bytes of a capsule before `context`, from its head as a JSON document."""
    return head.rstrip(b"\n").removesuffix(b"\n}") + b",\n"


def with_head(parts: FileLayout, head: bytes) -> FileLayout | None:
    """Return the layout with another head, as `head_prefix` returns it. None: it is no head."""
    updated_at = _find_updated_at(head)
    if updated_at < 0:
        return None
    changed = parts._replace(updated_at=updated_at, context=len(head))
    return with_longer_context(changed, len(head) - parts.context)


# --- The context ---


def with_longer_context(parts: FileLayout, added: int) -> FileLayout:
    """Return the layout with a context that has `added` bytes more; negative: fewer."""
    return parts._replace(
        size=parts.size + added, history=parts.history + added, tail=parts.tail + added
    )


def context_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a context in a capsule, up to the newline behind it.

    The pieces are those of a JSON object in the canonical layout, without a newline at its end. They
    may be cut anywhere but within or before the indentation of a line.
    """
    yield b'  "context": '
    for piece in pieces:
        yield piece.replace(b"\n", b"\n  ")
    yield b",\n"


def context_end(block: bytes, *, first: bool) -> int:
    """Return the offset behind the context in a piece of a capsule. -1: it goes on.

    `first` says whether the piece begins where the context does.
    """
    if first and block.startswith(_CONTEXT_EMPTY):
        return len(_CONTEXT_EMPTY)
    # Lines inside the context are indented deeper.
    end = block.find(_CONTEXT_END)
    return end + len(_CONTEXT_END) if end >= 0 else -1


def context_in(data: bytes) -> tuple[int, int] | None:
    """Return where the value of `context` begins and ends in a whole capsule.

    None: it is no object.
    """
    line = data.find(_CONTEXT) + 1
    start = line + len(_CONTEXT) - 1
    if not line or data[start : start + 1] != b"{":
        return None
    if data.startswith(_CONTEXT_EMPTY, line):
        return start, start + 2
    end = data.find(_CONTEXT_END, start)
    if end < 0:
        return None
    return start, end + len(_CONTEXT_END) - 2


# --- The history ---


def closing_of(parts: FileLayout) -> bytes:
    """Return the bytes from `parts.tail` to the end of the file."""
    return _CLOSING if parts.tail > parts.history else _CLOSING_EMPTY


def append_bytes(parts: FileLayout, entries: list[bytes]) -> tuple[bytes, FileLayout]:
    """Return the bytes to write at `parts.tail` to append entries, and the layout after that.

    The entries are as `codec.encode_entry` returns them. Without entries the bytes close the file.
    """
    if not entries:
        closing = closing_of(parts)
        return closing, parts._replace(size=parts.tail + len(closing))
    separator = b",\n" if parts.tail > parts.history else b"\n"
    block = separator + b",\n".join(entries)
    tail = parts.tail + len(block)
    layout_after = FileLayout(
        size=tail + len(_CLOSING),
        updated_at=parts.updated_at,
        context=parts.context,
        history=parts.history,
        tail=tail,
        entries=parts.entries + len(entries),
        ends_active=parts.ends_active,
    )
    return block + _CLOSING, layout_after


def last_entries(block: bytes, limit: int) -> tuple[bytes, int]:
    """Return the last entries in a piece of a history that ends at `tail`, and their number.

    The entries are a JSON array. They are fewer than `limit` if the piece has fewer whole ones.
    """
    offset = len(block)
    count = 0
    while count < limit:
        start = block.rfind(_ENTRY, 0, offset)
        if start < 0:
            break
        offset = start
        count += 1
    return b"[" + block[offset:] + b"]", count


def id_line(id: str) -> bytes:
    """Return the line of a message's id in a history. No other bytes of a history are like it."""
    return b'\n      "id": ' + orjson.dumps(id)


def derived_ids(block: bytes) -> frozenset[bytes]:
    """Return the ids in a piece of a history that are UUIDv5: of idempotency keys and migrations."""
    return frozenset(re.findall(_DERIVED_ID, block))


def find_entry(history: bytes, id: str) -> tuple[int, bytes] | None:
    """Find the entry with an id in a piece of the bytes from `history` to `tail`.

    Returns:
        Its number among the entries that begin in the piece, from 0, and its bytes as JSON. None:
        it is not there, or it begins before the piece.
    """
    line = history.find(id_line(id))
    if line < 0:
        return None
    start = history.rfind(_ENTRY, 0, line + 1)
    if start < 0:
        return None
    end = history.find(_ENTRY_END, line) + len(_ENTRY_END)
    return history.count(_ENTRY, 0, start), history[start:end]


def count_entries(history: bytes) -> int:
    """Return how many entries begin in a piece of a history."""
    return history.count(_ENTRY)
