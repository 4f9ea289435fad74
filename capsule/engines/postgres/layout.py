"""Split a document into the columns of its rows, and join them to the bytes of its file. Pure.

What must stay true: the rows have the canonical file in pieces, so that joined they are the same
bytes. `updatedAt` has a column of its own, as an append changes only this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from capsule.engines.entries import head_fields
from capsule.engines.interface import DocumentState
from capsule.format.documents.head import ParsedHead
from capsule.format.json import codec

Document = dict[str, Any]
_UPDATED = re.compile(r'(?m)^  "updatedAt": "[^"\n]*"')
_HISTORY = b'  "history": '


class DocumentParts(NamedTuple):
    """The pieces of a document with entries. See `schema.sql`."""

    head: str
    rest: str
    bodies: list[str]


class RowState(NamedTuple):
    """A version of a document in its row.

    `schema.sql` describes the fields, and `Transaction` the head.
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
    """A tag as the Store compares it."""
    return f"{tag:016x}"


def pieces(document: Document) -> DocumentParts:
    """The pieces of a document in canonical order. Raises InvalidInput: JSON can't hold it."""
    head = head_fields(document)
    rest = {key: value for key, value in document.items() if key not in head and key != "history"}
    return DocumentParts(
        fields(head),
        fields(rest),
        [codec.encode_entry(entry).decode() for entry in document["history"]],
    )


def fields(part: Document) -> str:
    """The lines of some fields of a document."""
    return codec.encode(part)[2:-3].decode() if part else ""


def head_of(head: str, updated_at: str, name: str) -> Document:
    """The fields in a head."""
    return codec.decode(b"{\n" + _dated(head, updated_at).encode() + b"\n}\n", name)


def _dated(head: str, updated_at: str) -> str:
    return _UPDATED.sub(lambda _: f'  "updatedAt": "{updated_at}"', head, count=1)


def joined(head: str, rest: str, updated_at: str, bodies: list[str]) -> bytes:
    """The bytes of the file."""
    lines = [part.encode() for part in (_dated(head, updated_at), rest) if part]
    history = b"[\n" + ",\n".join(bodies).encode() + b"\n  ]" if bodies else b"[]"
    return b"{\n" + b",\n".join([*lines, _HISTORY + history]) + b"\n}\n"


def entries_in(bodies: Iterable[str], name: str) -> list[Document]:
    """The entries in these bodies."""
    block = ",\n".join(bodies)
    return codec.decode_entries(b"[" + block.encode() + b"]", name) if block else []
