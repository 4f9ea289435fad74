"""Read a file for the index, and as little of it as possible.

If the state header proves that the store only appended since the index was updated, only the new
part of the file is read. Otherwise the whole file is read. If a checksum shows that the old
messages are the same, only its head and its new messages are parsed.

What must stay true: reading takes no mutex. A file that changed while it was read, or may have
changed within the same tick of the clock, is marked to be read again (`must_recheck`).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson

from capsule.disk.whole_files import NO_SIGNATURE, Signature
from capsule.engines.files.state import Durability, StateHeader
from capsule.engines.interface import ScannedFile
from capsule.engines.questions.parsing import (
    ConversationRow,
    IndexedVersion,
    IndexUpdate,
    messages_of,
    parse_file,
    pieces_of,
    with_head,
)
from capsule.errors import CapsuleError, InvalidDocument
from capsule.format.documents.head import Head
from capsule.format.json import layout
from capsule.format.merge.copy_names import original_of
from capsule.ids import check_id

if TYPE_CHECKING:
    from capsule.engines.files.storage import FileStorage


#: A file that is younger may change without another signature: more than a tick of the clock
#: (10 ms).
_YOUNG_NS = 50_000_000
#: The same for file systems that store only whole seconds (FAT: two).
_YOUNG_COARSE_NS = 2_100_000_000
_SECOND_NS = 1_000_000_000
_TRIES = 5
#: More bytes than there are between the offset of the context and the end of the head.
_CONTEXT_START_BYTES = 64


def version_of(signature: Signature) -> IndexedVersion:
    """Return the version for the index of a file with this signature."""
    token = orjson.dumps([*signature]).decode()
    changed_ns = max(signature.mtime_ns, signature.ctime_ns)
    return IndexedVersion(token, signature.size, signature.mtime_ns, changed_ns)


def signature_in(token: str) -> Signature:
    """Return the signature of a file from the token that `version_of` made."""
    return Signature(*orjson.loads(token))


def is_young(signature: Signature, now_ns: int) -> bool:
    """Check if a file is so young at `now_ns` that it may still change within the same tick."""
    changed_ns = max(signature.mtime_ns, signature.ctime_ns)
    has_whole_seconds = signature.ctime_ns % _SECOND_NS == 0
    return changed_ns > now_ns - (_YOUNG_COARSE_NS if has_whole_seconds else _YOUNG_NS)


def read_for_index(
    storage: FileStorage,
    kind: str,
    scanned: ScannedFile,
    read_header: Callable[[ScannedFile], StateHeader | None],
    row: ConversationRow | None,
    verify: bool = False,
) -> IndexUpdate | None:
    """Read a file, and as little of it as possible. Returns None if it is gone.

    Args:
        storage: The files.
        kind: The kind of document.
        scanned: The file, as the scan found it.
        read_header: Returns the state header of a file if it describes the file.
        row: The row of the index for the file.
        verify: Whether the file may have changed without another signature. Then the whole file is
            read and parsed.
    """
    id = scanned.id
    path = scanned.path
    started_ns = time.time_ns()

    def damaged(problem: str) -> IndexUpdate:
        signature = scanned.signature
        return IndexUpdate(version_of(signature), is_young(signature, started_ns), damaged=problem)

    original = original_of(id)
    if original is not None:
        return damaged(f"{path}: a conflict copy of conversation {original}; a repair merges it")
    data = b""
    try:
        check_id(id)
        if not scanned.is_regular:
            storage.read(kind, id)  # Raises the error that describes it.
        for _ in range(_TRIES):
            header = read_header(scanned)
            started_ns = time.time_ns()
            if header is not None and row is not None and not verify:
                appended = _read_appended(storage, kind, id, header, row)
                if appended is not None:
                    return appended._replace(must_recheck=is_young(header.signature, started_ns))
            content = storage.read(kind, id)
            if content is None:
                return None
            data, signature = content
            if signature == NO_SIGNATURE:
                continue
            if header is not None and (signature != header.signature or not header.ends(data)):
                continue
            version = version_of(signature)
            update = parse_with_header(data, version, path, id, header, row, verify)
            return update._replace(
                must_recheck=is_young(signature, started_ns),
                repairable=bool(update.damaged) and _is_repairable(data),
            )
    except CapsuleError as error:
        return damaged(error.message)
    # The file is written all the time: take the bytes that were read last, and read it again later.
    update = parse_with_header(data, version_of(NO_SIGNATURE), path, id, None, None, True)
    return update._replace(must_recheck=True)


def _is_repairable(data: bytes) -> bool:
    # Its patterns take a millisecond, and nearly no file is damaged.
    from capsule.format.recovery import torn_files

    return torn_files.repair_torn(data) is not None


def _read_appended(
    storage: FileStorage, kind: str, id: str, header: StateHeader, row: ConversationRow
) -> IndexUpdate | None:
    """Read the messages that the store appended since the row was written.

    Returns None if that is not all that changed: every write except a plain append has a new tag.
    """
    file_layout = header.file_layout
    if file_layout is None or not _has_canonical_messages(row):
        return None
    inode = signature_in(row["version"]).inode
    if (row["tag"], inode) != (header.tag, header.signature.inode):
        return None
    if row["history"] != file_layout.history or row["tail"] > file_layout.tail:
        return None
    content = storage.read(kind, id, row["tail"])
    if content is None or content.signature != header.signature:
        return None
    if not header.ends(content.data):
        return None
    block = content.data[: file_layout.tail - row["tail"]]
    return _parse_appended(version_of(header.signature), header, row, block)


def _has_canonical_messages(row: ConversationRow) -> bool:
    """Check that the row has the messages of a file in the canonical layout, so that reading can
    continue after them.
    """
    return not row["damaged"] and None not in (row["tail"], row["history"], row["digest"])


def _parse_appended(
    version: IndexedVersion, header: StateHeader, row: ConversationRow, block: bytes
) -> IndexUpdate | None:
    """Parse the entries that follow those in the row. Returns None if they are not of the canonical
    layout.

    Args:
        version: The version of the file.
        header: The file's state header, of a canonical file.
        row: The row of the index for the file.
        block: The bytes from the end of the row's entries to the end of the last entry.
    """
    file_layout = header.file_layout
    assert file_layout is not None
    lines = block.removeprefix(b",")
    try:
        messages = messages_of(orjson.loads(b"[" + lines + b"]"), pieces_of(lines))
    except (ValueError, KeyError, TypeError):
        return None
    if messages is None or len(messages) != file_layout.entries - row["entries"]:
        return None
    checksum = zlib.crc32(block, row["digest"])
    return IndexUpdate(
        version,
        must_recheck=False,
        tag=header.tag,
        by_store=_is_by_store(header),
        updated_at=header.updated_at,
        start=row["entries"],
        messages=messages,
        entries=file_layout.entries,
        history_span=(file_layout.history, file_layout.tail, checksum),
    )


def _is_by_store(header: StateHeader) -> bool:
    return header.durability is not Durability.EXTERNAL


def parse_with_header(
    data: bytes,
    version: IndexedVersion,
    path: str,
    id: str,
    header: StateHeader | None,
    row: ConversationRow | None,
    verify: bool,
) -> IndexUpdate:
    """Parse a whole file. What the header and the row vouch for is not parsed again.

    Args:
        data, version: The file.
        path, id: Its path and id.
        header: Its state header, if it describes the file.
        row: The row of the index for the file.
        verify: Whether the header vouches for nothing.
    """
    is_vouched = not verify and header is not None and header.file_layout is not None
    try:
        if header is not None and row is not None:
            update = _parse_new_head(data, version, path, header, row)
            if update is not None:
                return update
    except InvalidDocument as error:
        return IndexUpdate(version, must_recheck=False, damaged=error.message)
    update = parse_file(data, version, path, id, is_vouched=is_vouched)
    if header is None or verify or update.damaged:
        return update
    return update._replace(tag=header.tag, by_store=_is_by_store(header))


def _parse_new_head(
    data: bytes, version: IndexedVersion, path: str, header: StateHeader, row: ConversationRow
) -> IndexUpdate | None:
    """Parse the head and the appended messages of a file whose other messages are the same.

    Returns None if they are not the same, or if the row has none of the canonical layout.
    """
    file_layout = header.file_layout
    if file_layout is None or not _has_canonical_messages(row):
        return None
    start = file_layout.history
    row_end = start + row["tail"] - row["history"]
    if row_end > file_layout.tail:
        return None
    if zlib.crc32(memoryview(data)[start:row_end]) != row["digest"]:
        return None
    update = _parse_appended(version, header, row, data[row_end : file_layout.tail])
    context_offset = file_layout.context
    try:
        encoded_head = layout.head_of(data[: context_offset + _CONTEXT_START_BYTES])
        document = orjson.loads(encoded_head or b"")
        context_end = data.rfind(b",", context_offset, file_layout.history)
        document |= orjson.loads(b"{" + data[context_offset:context_end] + b"}")
        head = Head.of(document, path, version.size)
    except (ValueError, KeyError, TypeError):
        return None
    if update is None or head is None:
        return None
    return with_head(update, document, head)
