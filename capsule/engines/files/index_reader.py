"""Read a file for the index, and as little of it as possible.

If the state header proves that the store only appended since the index was updated, only the new
part of the file is read. Otherwise the whole file is read, and only its head and new messages are
parsed if a checksum shows that the old messages are the same.

What must stay true: reading takes no mutex. A file that changed while it was read, or may have
changed within the same tick of the clock, is marked to be read again.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson

from capsule.disk.whole_files import NO_SIGNATURE, Signature
from capsule.engines.files.state import Durability, StateHeader
from capsule.engines.index.parsing import (
    ConversationRow,
    IndexedVersion,
    IndexUpdate,
    messages_of,
    parse_file,
    pieces_of,
    with_head,
)
from capsule.engines.interface import ScannedFile
from capsule.errors import CapsuleError, InvalidDocument
from capsule.format.documents.head import Head
from capsule.format.json import layout
from capsule.format.merge.copy_names import original_of
from capsule.ids import check_id

if TYPE_CHECKING:
    from capsule.engines.files.storage import FileStorage


#: The signature that no file has.
#: More than a tick of the clock (10 ms); and for file systems that store only whole seconds (FAT:
#: two).
_YOUNG_NS = 50_000_000
_YOUNG_COARSE_NS = 2_100_000_000
_SECOND_NS = 1_000_000_000
_TRIES = 5


def version_of(file: Signature) -> IndexedVersion:
    """The version in a file, whose token `signature_in` reads."""
    token = orjson.dumps([*file]).decode()
    return IndexedVersion(token, file.size, file.mtime_ns, max(file.mtime_ns, file.ctime_ns))


def signature_in(token: str) -> Signature:
    """The signature of a file in the token that `version_of` gave it."""
    return Signature(*orjson.loads(token))


def is_young(signature: Signature, now_ns: int) -> bool:
    """Whether a file is so young at `now_ns` that a change within the same tick of the clock may
    still come.
    """
    latest = max(signature.mtime_ns, signature.ctime_ns)
    coarse = signature.ctime_ns % _SECOND_NS == 0
    return latest > now_ns - (_YOUNG_COARSE_NS if coarse else _YOUNG_NS)


def read_for_index(
    storage: FileStorage,
    kind: str,
    scanned: ScannedFile,
    know: Callable[[ScannedFile], StateHeader | None],
    before: ConversationRow | None,
    verify: bool = False,
) -> IndexUpdate | None:
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

    def damaged(problem: str) -> IndexUpdate:
        return IndexUpdate(
            version_of(scanned.signature), is_young(scanned.signature, started), damaged=problem
        )

    if (original := original_of(id)) is not None:
        return damaged(f"{path}: a conflict copy of conversation {original}; a repair merges it")
    data = b""
    try:
        check_id(id)
        if not scanned.is_regular:
            storage.read(kind, id)  # Says what is wrong with it.
        for _ in range(_TRIES):
            known = know(scanned)
            started = time.time_ns()
            if known is not None and before is not None and not verify:
                grown = _read_appended(storage, kind, id, known, before)
                if grown is not None:
                    return grown._replace(must_recheck=is_young(known.signature, started))
            got = storage.read(kind, id)
            if got is None:
                return None
            data, signature = got
            if signature == NO_SIGNATURE or (
                known is not None and (signature != known.signature or not known.ends(data))
            ):
                continue
            file = parse_with_header(data, version_of(signature), path, id, known, before, verify)
            return file._replace(
                must_recheck=is_young(signature, started),
                repairable=bool(file.damaged) and _is_mendable(data),
            )
    except CapsuleError as error:
        return damaged(error.message)
    # It is written all the time: take what was read last, and read the file again later.
    return parse_with_header(data, version_of(NO_SIGNATURE), path, id, None, None, True)._replace(
        must_recheck=True
    )


def _is_mendable(data: bytes) -> bool:
    from capsule.format.recovery import (
        torn_files,  # Its patterns take a millisecond, and nearly no file is damaged.
    )

    return torn_files.repair_torn(data) is not None


def _read_appended(
    storage: FileStorage, kind: str, id: str, known: StateHeader, before: ConversationRow
) -> IndexUpdate | None:
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
    return _parse_appended(
        version_of(known.signature), known, before, got[0][: at.tail - before["tail"]]
    )


def _is_continued(before: ConversationRow) -> bool:
    """Whether the index has the messages of a file in the canonical layout, and so can read on
    behind them.
    """
    return not before["damaged"] and None not in (
        before["tail"],
        before["history"],
        before["digest"],
    )


def _parse_appended(
    version: IndexedVersion, known: StateHeader, before: ConversationRow, block: bytes
) -> IndexUpdate | None:
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
    return IndexUpdate(
        version,
        False,
        tag=known.tag,
        by_store=known.durability is not Durability.EXTERNAL,
        updated_at=known.updated_at,
        start=before["entries"],
        messages=messages,
        entries=at.entries,
        history_span=(at.history, at.tail, zlib.crc32(block, before["digest"])),
    )


def parse_with_header(
    data: bytes,
    version: IndexedVersion,
    path: str,
    id: str,
    header: StateHeader | None,
    row: ConversationRow | None,
    verify: bool,
) -> IndexUpdate:
    """Parse a whole file. What the header and the row vouch for is not parsed again."""
    is_vouched = not verify and header is not None and header.anatomy is not None
    try:
        if header is not None and row is not None:
            update = _parse_new_head(data, version, path, header, row)
            if update is not None:
                return update
    except InvalidDocument as error:
        return IndexUpdate(version, False, damaged=error.message)
    update = parse_file(data, version, path, id, is_vouched=is_vouched)
    if header is None or verify or update.damaged:
        return update
    return update._replace(tag=header.tag, by_store=header.durability is not Durability.EXTERNAL)


def _parse_new_head(
    data: bytes, version: IndexedVersion, path: str, known: StateHeader, before: ConversationRow
) -> IndexUpdate | None:
    """A file to whose history the store has only appended since, whatever it did to the head; else
    None.
    """
    at = known.anatomy
    if at is None or not _is_continued(before):
        return None
    tail = at.history + before["tail"] - before["history"]
    if tail > at.tail or zlib.crc32(memoryview(data)[at.history : tail]) != before["digest"]:
        return None
    file = _parse_appended(version, known, before, data[tail : at.tail])
    try:
        document = orjson.loads(layout.head_of(data[: at.context + 64]) or b"")
        document |= orjson.loads(
            b"{" + data[at.context : data.rfind(b",", at.context, at.history)] + b"}"
        )
        head = Head.of(document, path, version.size)
    except (ValueError, KeyError, TypeError):
        return None
    return None if file is None or head is None else with_head(file, document, head)
