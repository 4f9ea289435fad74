"""Parse a document for the index: what its rows need of the head and of each message, or its
damage.

Every kind of engine uses it. `parse_file` parses a whole document. The files engine also parses
only the appended part, in `engines/files/index_reader.py`.

What must stay true: the index accepts what `Store.load` accepts, and reports damage in the same
words. Equal entries have equal digests, in whatever layout. Nothing here reads a file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import orjson

from capsule.engines.questions.query import count as count_words
from capsule.errors import InvalidDocument
from capsule.format import migrations, validation
from capsule.format.documents.head import Head
from capsule.format.facts import Fact, facts_of
from capsule.format.json import canonical, codec, layout
from capsule.format.text.tokens import estimate
from capsule.format.tree.tree import ROOT
from capsule.format.validation import decode_checked
from capsule.timestamps import ms_of

_FILE_OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
#: The bytes around and between the entries of a canonical history.
_HISTORY_START = b"\n    {\n"
_HISTORY_END = b"\n    }"
_SEPARATOR = b"\n    },\n    {\n"
#: The indentation of values nested deeper than a capsule's own fields. A file with such values is
#: read strictly.
_DEEP = b"\n" + b" " * 120
#: A row of the table of conversations, by the names of its columns.
ConversationRow = dict[str, Any]


class IndexedMessage(NamedTuple):
    """One message for the table `messages`. See `tables/schema.py` for its columns and
    for facts.
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


#: Makes a message from a tuple, at a third of the cost of the class.
_message = partial(tuple.__new__, IndexedMessage)


class IndexedVersion(NamedTuple):
    """A version of a conversation.

    Attributes:
        token: Identifies the version. The index only compares it.
        size: The size in bytes.
        order: Of two versions of one millisecond, the later one has the greater number.
        changed_ns: The time of the change by the clock of the file system, in nanoseconds since
            1970. 0: unknown.
    """

    token: str
    size: int
    order: int = 0
    changed_ns: int = 0


class IndexUpdate(NamedTuple):
    """The parsed document of a conversation, or the part of it that changed.

    Attributes:
        must_recheck: Whether it must be read again later, as it may change without another version.
        tag: The tag of the state header, if the header belongs to this version. Otherwise empty.
        by_store: Whether a store wrote this version.
        head: The head. None: only `updated_at` changed.
        current: `metadata.currentNode`.
        head_checksums: Checksums of the other fields of the head, and of the context.
        start: The position of the first of `messages`. The messages before it did not change.
        messages: The messages from `start` on. None: no message changed.
        entries: The number of all messages.
        history_span: The offsets of the history and of its end, and the checksum of the bytes
            between them, in the canonical layout. None: another layout.
        damaged: The damage. The other fields are not set then.
        repairable: Whether a crash of a write can be the cause.
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
    """Parse a whole document. If it is damaged, the result has the damage.

    Args:
        data: The document.
        version: Its version.
        path: Its name in errors.
        id: Its id.
        is_vouched: Whether the store wrote exactly these bytes in the canonical layout. Then they
            are not validated.
    """
    try:
        return _parse_valid(data, version, path, id, is_vouched=is_vouched)
    except InvalidDocument as error:
        return IndexUpdate(version, False, damaged=error.message)


def _parse_valid(
    data: bytes, version: IndexedVersion, path: str, id: str, *, is_vouched: bool
) -> IndexUpdate:
    document, is_canonical = _document(data, path, id, is_vouched=is_vouched)
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


def with_head(update: IndexUpdate, document: dict[str, Any], head: Head | None) -> IndexUpdate:
    """Return an update with the head of a document."""
    current = document.get("metadata", {}).get("currentNode")
    return update._replace(
        head=head,
        updated_at=head.updated_at if head else "",
        current=current if isinstance(current, str) else None,
        head_checksums=_head_checksums(document),
    )


def _document(data: bytes, path: str, id: str, *, is_vouched: bool) -> tuple[dict[str, Any], bool]:
    """Decode and check a document.

    orjson accepts a second key of one name, and any depth. A file that it encodes to the same bytes
    has no second key. Any other file is decoded strictly.

    Returns: the document, and whether its layout is canonical (the order of its keys may differ).
    """
    try:
        document = orjson.loads(data)
        is_plain = is_vouched or orjson.dumps(document, option=_FILE_OPTIONS) == data
    except (orjson.JSONDecodeError, TypeError):
        is_plain = False
    if not is_plain or type(document) is not dict:
        return decode_checked(data, path, id), False
    if is_vouched:
        return document, True
    is_other_id = document.get("id") != id
    is_other_version = not str(document.get("version")).startswith("2.")
    if is_other_id or is_other_version or _DEEP in data:
        return decode_checked(data, path, id), True
    validation.check(document, data, path)
    return document, True


def _head_checksums(document: dict[str, Any]) -> tuple[int, int]:
    """Checksums of the head, without lock and `updatedAt`, and of the context."""
    metadata = {key: value for key, value in document.get("metadata", {}).items() if key != "lock"}
    head = {}
    for key, value in document.items():
        if key not in ("history", "context", "updatedAt", "metadata"):
            head[key] = value
    head_checksum = zlib.crc32(orjson.dumps([head, metadata]))
    return head_checksum, zlib.crc32(orjson.dumps(document.get("context")))


# -- Messages --------------------------------------------------------------------------------------


def pieces_of(history: bytes) -> list[bytes]:
    """Split the bytes of a canonical history into the lines of each entry, without its braces."""
    if not history:
        return []
    return history[len(_HISTORY_START) : -len(_HISTORY_END)].split(_SEPARATOR)


def lines_of(entry: dict[str, Any]) -> bytes:
    """Return the canonical lines of an entry, without its braces."""
    return codec.encode_entry(entry).removeprefix(b"    {\n").removesuffix(b"\n    }")


def messages_of(
    entries: list[dict[str, Any]], pieces: Iterable[bytes]
) -> list[IndexedMessage] | None:
    """Return the messages for the index.

    Args:
        entries: The entries of the history.
        pieces: The canonical lines of each entry.

    Returns: None if an entry has no id or no time, or its keys are in another order. Then the
        document must be migrated first.
    """
    messages = []
    for entry, piece in zip(entries, pieces, strict=True):
        role = entry["role"]
        content = entry["content"]
        timestamp = entry.get("timestamp")
        id = entry.get("id")
        if not id or not timestamp or not canonical.is_in_order(tuple(entry)):
            return None
        parent = None
        if "parent" in entry:
            parent = entry["parent"] or ROOT
        digest = zlib.crc32(piece) << 31 | len(piece) & 0x7FFFFFFF
        tools = tools_of(entry)
        tokens = _tokens(content)
        if tools:
            tokens += _tokens(tools)
        # In the order of the fields of `IndexedMessage`.
        values = (
            id,
            parent,
            role,
            entry.get("from"),
            ms_of(timestamp),
            count_words(content),
            tokens,
            content,
            tools,
            digest,
            facts_of(entry),
        )
        messages.append(_message(values))
    return messages


def _tokens(text: str) -> int:
    return estimate(text.encode("utf-8", "surrogatepass"))


def tools_of(entry: dict[str, Any]) -> str | None:
    """Return tool calls and reasoning as text, or None."""
    if "reasoning" not in entry and "toolCalls" not in entry:
        return None
    parts = []
    if isinstance(entry.get("reasoning"), str):
        parts.append(entry["reasoning"])
    if entry.get("toolCalls"):
        parts.append(orjson.dumps(entry["toolCalls"]).decode())
    return "\n".join(part for part in parts if part) or None
