"""Reading what the index needs from a file: its head, its messages, or its damage.

What must stay true: the index accepts what `Store.load` accepts, and reports damage in the same
words; reading takes no mutex; and a file that changed while it was read, or may have, is marked to
be read again.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from capsule.disk.whole_files import Signature
from capsule.engines.files.state import Known, Scanned
from capsule.engines.index.search.query import count as count_words
from capsule.errors import CapsuleError, InvalidDocument
from capsule.format import migrations, validation
from capsule.format.documents.head import Head
from capsule.format.facts import Fact, facts_of
from capsule.format.json import anatomy, canonical, codec
from capsule.format.merge.copy_names import original_of
from capsule.format.text.tokens import estimate
from capsule.format.tree.tree import ROOT
from capsule.format.validation import decoded
from capsule.ids import check_id
from capsule.timestamps import ms_of

if TYPE_CHECKING:
    from capsule.engines.files.storage import FileStorage

#: The signature that no file has.
NOTHING = Signature(0, 0, 0, 0)
#: More than a tick of the clock (10 ms); and for file systems that store only whole seconds (FAT:
#: two).
_YOUNG_NS, _YOUNG_COARSE_NS = 50_000_000, 2_100_000_000
_SECOND_NS = 1_000_000_000
_TRIES = 5

_FILE = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
_BETWEEN = b"\n    },\n    {\n"
_FIRST, _LAST = len(b"\n    {\n"), len(b"\n    }")


#: A row of the table of conversations, by the names of its columns.
Row = dict[str, Any]


class Message(NamedTuple):
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
_message = partial(tuple.__new__, Message)


class Version(NamedTuple):
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


def version_of(file: Signature) -> Version:
    """The version in a file, whose token `signature_in` reads."""
    token = orjson.dumps([*file]).decode()
    return Version(token, file.size, file.mtime_ns, max(file.mtime_ns, file.ctime_ns))


def signature_in(token: str) -> Signature:
    """The signature of a file in the token that `version_of` gave it."""
    return Signature(*orjson.loads(token))


class Found(NamedTuple):
    """A conversation as it was found.

    Attributes:
        young: Whether it must be read again, as it may change without its version showing it.
        tag: The note's, when that vouches for the file; else empty.
        by_store: Whether a store wrote this version.
        head: None: only `updated_at` changed.
        current: `metadata.currentNode`.
        rest: Checksums of what else is in the head, and of the context.
        messages: Those from position `start` on; what lies before is as it was. None: all are as
            they were.
        place: Offsets of the history and of its end, and the checksum of what lies between; in the
            canonical layout.
        damaged: What is wrong; nothing else is known then.
        mendable: Whether a crash can have left it so.
    """

    version: Version
    young: bool
    tag: str = ""
    by_store: bool = False
    head: Head | None = None
    updated_at: str = ""
    current: str | None = None
    rest: tuple[int, int] = (0, 0)
    start: int = 0
    messages: list[Message] | None = None
    entries: int = 0
    place: tuple[int, int, int] | None = None
    damaged: str = ""
    mendable: bool = False


def is_young(signature: Signature, now_ns: int) -> bool:
    """Whether a file is so young at `now_ns` that a change within the same tick of the clock may
    still come.
    """
    latest = max(signature.mtime_ns, signature.ctime_ns)
    coarse = signature.ctime_ns % _SECOND_NS == 0
    return latest > now_ns - (_YOUNG_COARSE_NS if coarse else _YOUNG_NS)


def look(
    storage: FileStorage,
    kind: str,
    scanned: Scanned,
    know: Callable[[Scanned], Known | None],
    before: Row | None,
    verify: bool = False,
) -> Found | None:
    """Read a file, as little of it as will do.

    Args:
        storage: Where the documents are read.
        kind: The kind of document.
        scanned: The file as it was met.
        know: Says what the store knows of it, when it is as the store left it.
        before: What the index knows of it.
        verify: Whether a change may have left the signature as it was, so that it vouches for
            nothing.

    Returns:
        None when it is gone.
    """
    id, path = scanned.id, scanned.path
    started = time.time_ns()

    def damaged(problem: str) -> Found:
        return Found(
            version_of(scanned.signature), is_young(scanned.signature, started), damaged=problem
        )

    if (original := original_of(id)) is not None:
        return damaged(f"{path}: a conflict copy of conversation {original}; a repair merges it")
    data = b""
    try:
        check_id(id)
        if not scanned.regular:
            storage.read(kind, id)  # Says what is wrong with it.
        for _ in range(_TRIES):
            known = know(scanned)
            started = time.time_ns()
            if known is not None and before is not None and not verify:
                grown = _grown(storage, kind, id, known, before)
                if grown is not None:
                    return grown._replace(young=is_young(known.signature, started))
            got = storage.read(kind, id)
            if got is None:
                return None
            data, signature = got
            if signature == NOTHING or (
                known is not None and (signature != known.signature or not known.ends(data))
            ):
                continue
            file = whole(data, version_of(signature), path, id, known, before, verify)
            return file._replace(
                young=is_young(signature, started),
                mendable=bool(file.damaged) and _is_mendable(data),
            )
    except CapsuleError as error:
        return damaged(error.message)
    # It is written all the time: take what was read last, and read the file again later.
    return whole(data, version_of(NOTHING), path, id, None, None, True)._replace(young=True)


def _is_mendable(data: bytes) -> bool:
    from capsule.format.saved import (
        repair,
    )  # Its patterns take a millisecond, and nearly no file is damaged.

    return repair.mend(data) is not None


def _grown(storage: FileStorage, kind: str, id: str, known: Known, before: Row) -> Found | None:
    """A file to which the store has only appended since, read from where the index stopped; else
    None.

    The note's tag tells: every other write gets a new one.
    """
    at = known.anatomy
    if (
        at is None
        or not _is_continued(before)
        or (before["tag"], signature_in(before["version"]).inode)
        != (known.tag, known.signature.inode)
        or before["history"] != at.history
        or before["tail"] > at.tail
    ):
        return None
    got = storage.read(kind, id, before["tail"])
    if got is None or got[1] != known.signature or not known.ends(got[0]):
        return None
    return _appended(version_of(known.signature), known, before, got[0][: at.tail - before["tail"]])


def _is_continued(before: Row) -> bool:
    """Whether the index has the messages of a file in the canonical layout, and so can read on
    behind them.
    """
    return not before["damaged"] and None not in (
        before["tail"],
        before["history"],
        before["digest"],
    )


def _appended(version: Version, known: Known, before: Row, block: bytes) -> Found | None:
    """What was found where these lines of entries stand behind those that the index has; None when
    they can't be.
    """
    assert known.anatomy is not None
    at, lines = known.anatomy, block.removeprefix(b",")
    try:
        messages = messages_of(orjson.loads(b"[" + lines + b"]"), pieces_of(lines))
    except (ValueError, KeyError, TypeError):
        return None
    if messages is None or len(messages) != at.entries - before["entries"]:
        return None
    return Found(
        version,
        False,
        tag=known.tag,
        by_store=known.doubt != "name",
        updated_at=known.stamp,
        start=before["entries"],
        messages=messages,
        entries=at.entries,
        place=(at.history, at.tail, zlib.crc32(block, before["digest"])),
    )


def whole(
    data: bytes,
    version: Version,
    path: str,
    id: str,
    known: Known | None,
    before: Row | None,
    verify: bool,
) -> Found:
    """A file read as a whole."""
    try:
        file = (
            _reheaded(data, version, path, known, before)
            if known is not None and before is not None
            else None
        )
        return file or _sound(data, version, path, id, None if verify else known)
    except InvalidDocument as error:
        return Found(version, False, damaged=error.message)


def _sound(data: bytes, version: Version, path: str, id: str, known: Known | None) -> Found:
    vouched = known is not None and known.anatomy is not None
    document, canonical_layout = _document(data, path, id, vouched=vouched)
    # As `Store.head` does: if the head is in its usual place, list it as it stands in the file.
    is_usual = data.endswith(b"]\n}\n") and anatomy.head_of(data) is not None
    head = Head.of(document, path, version.size) if is_usual else None
    at = anatomy.survey(data) if canonical_layout else None
    messages: list[Message] | None = None
    block = b""
    if at is not None:
        block = data[at.history : at.tail]
        pieces = pieces_of(block)
        if len(pieces) == len(document["history"]):
            messages = messages_of(document["history"], pieces)
    if messages is None or head is None:
        document, _ = migrations.current(document, path)
        head = head or Head.of(document, path, version.size)
    if messages is None:
        history = document["history"]
        messages = messages_of(history, map(lines_of, history))
        at = None
        if messages is None:
            raise ValueError(f"{path}: a migrated message without an id")
    file = Found(
        version,
        False,
        tag=known.tag if known is not None else "",
        by_store=known is not None and known.doubt != "name",
        messages=messages,
        entries=len(messages),
        place=(at.history, at.tail, zlib.crc32(block)) if at is not None else None,
    )
    return _with_head(file, document, head)


def _reheaded(data: bytes, version: Version, path: str, known: Known, before: Row) -> Found | None:
    """A file to whose history the store has only appended since, whatever it did to the head; else
    None.
    """
    at = known.anatomy
    if at is None or not _is_continued(before):
        return None
    tail = at.history + before["tail"] - before["history"]
    if tail > at.tail or zlib.crc32(memoryview(data)[at.history : tail]) != before["digest"]:
        return None
    file = _appended(version, known, before, data[tail : at.tail])
    try:
        document = orjson.loads(anatomy.head_of(data[: at.context + 64]) or b"")
        document |= orjson.loads(
            b"{" + data[at.context : data.rfind(b",", at.context, at.history)] + b"}"
        )
        head = Head.of(document, path, version.size)
    except (ValueError, KeyError, TypeError):
        return None
    return None if file is None or head is None else _with_head(file, document, head)


def _with_head(file: Found, document: dict[str, Any], head: Head | None) -> Found:
    current = document.get("metadata", {}).get("currentNode")
    return file._replace(
        head=head,
        updated_at=head.updated_at if head else "",
        current=current if isinstance(current, str) else None,
        rest=_rest(document),
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
        return decoded(data, path, id), False
    if not vouched:
        if (
            _DEEP in data
            or document.get("id") != id
            or not str(document.get("version")).startswith("2.")
        ):
            return decoded(data, path, id), True
        validation.check(document, data, path)
    return document, True


#: The indentation of what is nested deeper than a capsule's own fields ever are; such a file is
#: read strictly.
_DEEP = b"\n" + b" " * 120


def _rest(document: dict[str, Any]) -> tuple[int, int]:
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


def messages_of(entries: list[dict[str, Any]], pieces: Iterable[bytes]) -> list[Message] | None:
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
