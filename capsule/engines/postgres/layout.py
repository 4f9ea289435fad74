"""Splits a document into the columns and rows of the database, and joins them to its file again.

A document with entries (a conversation) has one row in `documents` and one row for each entry in
`entries`. They hold text of the canonical file: `head` has the lines of the fields before the
context, `rest` those from the context to the history, and `body` is one entry. Other documents are
one column of bytes, which this module does not touch.

What must stay true: the joined parts are the bytes of the canonical file. Because an append changes
only `updatedAt`, the time is in a column of its own, and replaces the one in `head` when a document
is read. This module reads and writes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from capsule.engines.entries import head_fields
from capsule.engines.interface import DocumentState
from capsule.format.documents.head import ParsedHead
from capsule.format.json import codec

Document = dict[str, Any]
_UPDATED_AT_LINE = re.compile(r'(?m)^  "updatedAt": "[^"\n]*"')
_HISTORY_KEY = b'  "history": '


class DocumentParts(NamedTuple):
    """The texts of a document with entries: its head, its other fields, and its entries."""

    head: str
    rest: str
    bodies: list[str]


class RowState(NamedTuple):
    """A version of a document, as its row describes it.

    Attributes:
        version: Increases with each write of the document.
        tag: Changes with each write but an append.
        era: Changes with each write that changes entries other than by an append. Within one era, a
            position always means the same entry.
        entries: The number of entries.
        size: The size of its file, in bytes.
        updated_at: The time of the last change.
        newest: The greatest `updated_at` that the document ever had.
        time: The greatest time of an append.
        ends_active: Whether the last entry is on the active branch.
        head: The parsed head; see `Transaction.head`.
    """

    version: int
    tag: int
    era: int
    entries: int
    size: int
    updated_at: str
    newest: str
    time: str
    ends_active: bool
    head: ParsedHead

    @property
    def public(self) -> DocumentState:
        """The same for the Store."""
        tag = tag_of(self.tag)
        return DocumentState(
            self.updated_at, tag, self.entries, self.size, self.ends_active, self.newest, self.time
        )


def tag_of(tag: int) -> str:
    """Return a tag as the text that the Store compares."""
    return f"{tag:016x}"


def split_document(document: Document) -> DocumentParts:
    """Return the texts of a document in canonical order. Raises InvalidInput if JSON can't hold it."""
    head = head_fields(document)
    rest = {key: value for key, value in document.items() if key not in head and key != "history"}
    bodies = [codec.encode_entry(entry).decode() for entry in document["history"]]
    return DocumentParts(encode_fields(head), encode_fields(rest), bodies)


def encode_fields(fields: Document) -> str:
    """Return the lines of some fields of a document, without the braces around them."""
    if not fields:
        return ""
    return codec.encode(fields)[2:-3].decode()


def head_of(head: str, updated_at: str, name: str) -> Document:
    """Return the fields of a text that `encode_fields` made. `name` names the document in errors."""
    return codec.decode(b"{\n" + _with_time(head, updated_at).encode() + b"\n}\n", name)


def row_state(columns: Sequence[Any], head: str, name: str) -> RowState:
    """Return the state of a document from its row.

    Args:
        columns: The fields of `RowState` without the last one, in their order.
        head: The text of the head. Empty: documents of this kind have none.
        name: The name of the document, for errors.
    """
    _, tag, _, _, _, updated_at, *_ = columns
    fields = head_of(head, updated_at, name) if head else {}
    return RowState._make((*columns, ParsedHead(tag_of(tag), fields)))


def _with_time(head: str, updated_at: str) -> str:
    return _UPDATED_AT_LINE.sub(lambda _: f'  "updatedAt": "{updated_at}"', head, count=1)


def join_document(head: str, rest: str, updated_at: str, bodies: list[str]) -> bytes:
    """Return the bytes of the file."""
    lines = [part.encode() for part in (_with_time(head, updated_at), rest) if part]
    history = b"[]"
    if bodies:
        history = b"[\n" + ",\n".join(bodies).encode() + b"\n  ]"
    return b"{\n" + b",\n".join([*lines, _HISTORY_KEY + history]) + b"\n}\n"


def entries_in(bodies: Iterable[str], name: str) -> list[Document]:
    """Return the parsed entries. `name` names the document in errors."""
    block = ",\n".join(bodies)
    if not block:
        return []
    return codec.decode_entries(b"[" + block.encode() + b"]", name)
