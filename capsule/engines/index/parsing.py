"""Parse a document for the index: what its rows need of the head and of each message, or its damage.

Every kind of engine uses it. `parse_file` parses a whole document. The files engine also parses
what was appended alone, in `engines/files/index_reader.py`.

What must stay true: the index accepts what `Store.load` accepts, and reports damage in the same
words. Nothing here reads a file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import orjson

from capsule.engines.index.search.query import count as count_words
from capsule.errors import InvalidDocument
from capsule.format import migrations, validation
from capsule.format.documents.head import Head
from capsule.format.facts import Fact, facts_of
from capsule.format.json import canonical, codec, layout
from capsule.format.text.tokens import estimate
from capsule.format.tree.tree import ROOT
from capsule.format.validation import decode_checked
from capsule.timestamps import ms_of

_FILE = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
_BETWEEN = b"\n    },\n    {\n"
_FIRST, _LAST = len(b"\n    {\n"), len(b"\n    }")


#: A row of the table of conversations, by the names of its columns.
ConversationRow = dict[str, Any]


class IndexedMessage(NamedTuple):
    """One message as the index has it; see `schema` for the columns of the same names, and for the
    table of facts.
    """

    id: str
    parent: str | None
    role: str
    sender: str | None
    time_ms: int
    words: int
    tokens: int
    content: str
    tools: str | None
    digest: int
    facts: tuple[Fact, ...]


#: Makes a message of a tuple, at a third of the cost.
_message = partial(tuple.__new__, IndexedMessage)


class IndexedVersion(NamedTuple):
    """A version of a conversation, as its engine tells it from others.

    Attributes:
        token: Another version has another one; the index compares it, and knows no more of it.
        size: In bytes.
        order: Of two versions of one millisecond, the later one has the greater.
        changed_ns: When the system says that it changed, in nanoseconds since 1970; 0: nothing says
            so.
    """

    token: str
    size: int
    order: int = 0
    changed_ns: int = 0


class IndexUpdate(NamedTuple):
    """A conversation as it was found.

    Attributes:
        must_recheck: Whether it must be read again, as it may change without its version showing it.
        tag: The note's, when that vouches for the file; else empty.
        by_store: Whether a store wrote this version.
        head: None: only `updated_at` changed.
        current: `metadata.currentNode`.
        head_checksums: Checksums of what else is in the head, and of the context.
        messages: Those from position `start` on; what lies before is as it was. None: all are as
            they were.
        history_span: Offsets of the history and of its end, and the checksum of what lies between; in the
            canonical layout.
        damaged: What is wrong; nothing else is known then.
        repairable: Whether a crash can have left it so.
    """

    version: IndexedVersion
    must_recheck: bool
    tag: str = ""
    by_store: bool = False
    head: Head | None = None
    updated_at: str = ""
    current: str | None = None
    head_checksums: tuple[int, int] = (0, 0)
    start: int = 0
    messages: list[IndexedMessage] | None = None
    entries: int = 0
    history_span: tuple[int, int, int] | None = None
    damaged: str = ""
    repairable: bool = False


def parse_file(
    data: bytes, version: IndexedVersion, path: str, id: str, *, is_vouched: bool = False
) -> IndexUpdate:
    """Parse a whole document for the index. If it is damaged, the result says how.

    Args:
        data: The document.
        version: Its version.
        path: Its name in errors.
        id: Its id.
        is_vouched: Whether the store wrote exactly these bytes in the canonical layout, so that
            they need no validation.
    """
    try:
        return _parse_valid(data, version, path, id, is_vouched=is_vouched)
    except InvalidDocument as error:
        return IndexUpdate(version, False, damaged=error.message)


def _parse_valid(
    data: bytes, version: IndexedVersion, path: str, id: str, *, is_vouched: bool
) -> IndexUpdate:
    document, is_canonical = _document(data, path, id, vouched=is_vouched)
    # As `Store.head` does: if the head is in its usual place, list it as the file has it.
    is_usual = data.endswith(b"]\n}\n") and layout.head_of(data) is not None
    head = Head.of(document, path, version.size) if is_usual else None
    file_layout = layout.survey(data) if is_canonical else None
    messages: list[IndexedMessage] | None = None
    history_bytes = b""
    if file_layout is not None:
        history_bytes = data[file_layout.history : file_layout.tail]
        pieces = pieces_of(history_bytes)
        if len(pieces) == len(document["history"]):
            messages = messages_of(document["history"], pieces)
    if messages is None or head is None:
        document, _ = migrations.upgrade(document, path)
        head = head or Head.of(document, path, version.size)
    if messages is None:
        history = document["history"]
        messages = messages_of(history, map(lines_of, history))
        file_layout = None
        if messages is None:
            raise ValueError(f"{path}: a migrated message without an id")
    history_span = None
    if file_layout is not None:
        history_span = (file_layout.history, file_layout.tail, zlib.crc32(history_bytes))
    update = IndexUpdate(
        version, False, messages=messages, entries=len(messages), history_span=history_span
    )
    return with_head(update, document, head)


def with_head(file: IndexUpdate, document: dict[str, Any], head: Head | None) -> IndexUpdate:
    current = document.get("metadata", {}).get("currentNode")
    return file._replace(
        head=head,
        updated_at=head.updated_at if head else "",
        current=current if isinstance(current, str) else None,
        head_checksums=_head_checksums(document),
    )


def _document(data: bytes, path: str, id: str, *, vouched: bool) -> tuple[dict[str, Any], bool]:
    """The checked document in a file, and whether its layout is that of the store (its order of
    keys may not be).

    orjson accepts a second key of one name and any depth. A file that it writes back byte for byte
    has no second key.
    """
    try:
        document = orjson.loads(data)
        is_plain = vouched or orjson.dumps(document, option=_FILE) == data
    except (orjson.JSONDecodeError, TypeError):
        is_plain = False
    if not is_plain or type(document) is not dict:
        return decode_checked(data, path, id), False
    if not vouched:
        if (
            _DEEP in data
            or document.get("id") != id
            or not str(document.get("version")).startswith("2.")
        ):
            return decode_checked(data, path, id), True
        validation.check(document, data, path)
    return document, True


#: The indentation of what is nested deeper than a capsule's own fields ever are; such a file is
#: read strictly.
_DEEP = b"\n" + b" " * 120


def _head_checksums(document: dict[str, Any]) -> tuple[int, int]:
    """Checksums of the head, without lock and `updatedAt`, and of the context."""
    metadata = {key: value for key, value in document.get("metadata", {}).items() if key != "lock"}
    head = {
        key: value
        for key, value in document.items()
        if key not in ("history", "context", "updatedAt", "metadata")
    }
    return zlib.crc32(orjson.dumps([head, metadata])), zlib.crc32(
        orjson.dumps(document.get("context"))
    )


# -- Messages
# --------------------------------------------------------------------------------------------------------
# Equal entries have equal digests, wherever they stand and in whatever layout; an entry without an
# id or a time is refused, and migrating the document gives it both.


def pieces_of(block: bytes) -> list[bytes]:
    """The lines of each entry in the bytes of a canonical history, without its braces."""
    return block[_FIRST:-_LAST].split(_BETWEEN) if block else []


def lines_of(entry: dict[str, Any]) -> bytes:
    """The same of one entry, wherever it stands."""
    return codec.encode_entry(entry).removeprefix(b"    {\n").removesuffix(b"\n    }")


def messages_of(
    entries: list[dict[str, Any]], pieces: Iterable[bytes]
) -> list[IndexedMessage] | None:
    """The messages, each with the lines it stands in; None when one has no id, no time or an order
    of its own.
    """
    made = []
    for entry, piece in zip(entries, pieces, strict=True):
        get = entry.get
        role, content, stamp, id = entry["role"], entry["content"], get("timestamp"), get("id")
        parent = (entry["parent"] or ROOT) if "parent" in entry else None
        if not id or not stamp or not canonical.is_in_order(tuple(entry)):
            return None
        digest = zlib.crc32(piece) << 31 | len(piece) & 0x7FFFFFFF
        words, tools = count_words(content), tools_of(entry)
        tokens = _tokens(content) + (_tokens(tools) if tools else 0)
        said = words, tokens, content, tools, digest, facts_of(entry)
        made.append(_message((id, parent, role, get("from"), ms_of(stamp), *said)))
    return made


def _tokens(text: str) -> int:
    return estimate(text.encode("utf-8", "surrogatepass"))


def tools_of(entry: dict[str, Any]) -> str | None:
    """Tool calls and reasoning as text; None when there are none."""
    if "reasoning" not in entry and "toolCalls" not in entry:
        return None
    parts = [entry["reasoning"]] if isinstance(entry.get("reasoning"), str) else []
    if entry.get("toolCalls"):
        parts.append(orjson.dumps(entry["toolCalls"]).decode())
    return "\n".join(part for part in parts if part) or None
