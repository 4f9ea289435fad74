"""Rebuild a file that an editor emptied or a disk damaged.

`collect_sources` reads the document from the last git commit and the index. `rebuild_file` adds the
log of the store and what the damaged file still has, and joins the messages of the four sources.
The result names the origin of the messages, and what is missing. The module writes nothing.

What must stay true: a file whose damage a person can have typed is left to the person, and so is
any file that is valid JSON. A message that the log or the index has is taken from there, as the
remains of two messages in the file can look like one message. Messages that were removed stay out.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from typing import Any, NamedTuple

from capsule.engines.interface import CONVERSATIONS, HeldFile, ScannedFile
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput
from capsule.format import migrations
from capsule.format.documents.message import check_message
from capsule.format.json import codec
from capsule.format.json.canonical import order_message
from capsule.format.json.layout import context_in
from capsule.format.merge.history import merge_order
from capsule.format.recovery import reconcile
from capsule.format.recovery.torn_files import RepairedFile
from capsule.format.validation import decode_checked
from capsule.ids import message_id_for
from capsule.store.store import CoreStore

Document = dict[str, Any]
#: A typing error removes or overwrites at most so many bytes.
_MAX_TYPED = 16
#: Control characters that no editor enters, unlike tabs and line ends.
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_BLOCK = 4096
_HISTORY = re.compile(rb'^  "history": \[', re.M)
_ENTRY = re.compile(rb"^    \{\n(?:      .*\n)+    \}(?=,?$)", re.M)


class RecoverySource(NamedTuple):
    """The parts of a document that one source has.

    Attributes:
        head: The document without its messages. Empty: the source has none of it.
        entries: The messages by their ids, in their order.
        partial_ids: The ids of messages of which the source lacks fields.
        removed_ids: The ids of messages that were removed.
        message_count: The number of messages of the document. 0: unknown.
    """

    head: Document
    entries: dict[str, Document]
    partial_ids: frozenset[str] = frozenset()
    removed_ids: frozenset[str] = frozenset()
    message_count: int = 0


_NO_SOURCE = RecoverySource({}, {})


def collect_sources(store: CoreStore, kind: str, file: ScannedFile) -> dict[str, RecoverySource]:
    """Return the document in the last commit and in the index, in this order.

    If both have it, the newer one decides which messages there are. Call this without the mutex,
    which the index may need.
    """
    commit = _NO_SOURCE
    index = _NO_SOURCE
    with suppress(InvalidDocument):
        data = store.engine.external_edits().committed_version(file.path)
        if data is not None:
            document, _ = migrations.upgrade(decode_checked(data, file.path, file.id), file.path)
            commit = _document_source(document)
    with suppress(CapsuleError):
        last_valid = None
        if kind == CONVERSATIONS:
            last_valid = store.queries.last_valid_version(file.id)
        if last_valid is not None:
            index = _document_source(*last_valid)
    if commit.head and index.head and index.head["updatedAt"] >= commit.head["updatedAt"]:
        present = {id: entry for id, entry in commit.entries.items() if id in index.entries}
        commit = commit._replace(entries=present)
    elif commit.head:  # Git brought the commit after the index was updated.
        additional = {id: entry for id, entry in index.entries.items() if id not in commit.entries}
        index = RecoverySource({}, additional, index.partial_ids)
    return {"the last commit": commit, "the index": index}


def _document_source(
    document: Document, partial_ids: frozenset[str] = frozenset()
) -> RecoverySource:
    head = {name: value for name, value in document.items() if name != "history"}
    return RecoverySource(head, {entry["id"]: entry for entry in document["history"]}, partial_ids)


def rebuild_file(
    held_file: HeldFile, data: bytes, sources: dict[str, RecoverySource]
) -> RepairedFile | None:
    """Rebuild a damaged file.

    Args:
        held_file: The document, under its mutex.
        data: Its damaged bytes.
        sources: The result of `collect_sources`.

    Returns: the file, and in words the origin of the messages and what is missing. None: the file
        is left to a person, or there is too little to rebuild it.
    """
    with suppress(InvalidDocument):
        codec.decode(data, held_file.path)
        return None  # It is JSON.
    commit, index = sources.values()
    log = _log_source(held_file)
    file = _file_source(data, held_file, [source.entries for source in (log, index, commit)])
    head, entries, order = _joined_sources(held_file.id, (commit, file, index, log))
    head |= log.head  # The log has either all of a head or nothing.
    history = [entries[id] for id in order if id not in log.removed_ids]
    if not history and "createdAt" not in head:
        return None
    try:
        document, _ = migrations.upgrade(head | {"history": history}, held_file.path)
        rebuilt = codec.encode(document)
        decode_checked(rebuilt, held_file.path, held_file.id)
    except InvalidDocument:
        return None
    is_cut = len(rebuilt) - len(data.replace(b"\0", b"").strip()) > _MAX_TYPED
    if not is_cut and not _is_overwritten(data, rebuilt):
        return None
    by_priority = {"the file": file, "the log": log, "the index": index, "the last commit": commit}
    description = f"rebuilt with {_origins(history, by_priority)}"
    missing = []
    missing_count = (log.message_count or len(index.entries)) - len(history)
    if missing_count > 0:
        missing.append(_messages(missing_count))
    whole_ids = {*file.entries, *log.entries, *commit.entries, *log.removed_ids}
    partial_count = len(index.partial_ids - whole_ids)
    if partial_count:
        missing.append(f"tool calls, attachments and the like of {_messages(partial_count)}")
    if "context" not in head and held_file.kind == CONVERSATIONS:
        missing.append("the project context, if it had one")
    if "createdAt" not in head:
        missing.append("the title and the rest of the head")
    if missing:
        description += f"; missing: {', '.join(missing)}"
    return RepairedFile(rebuilt, description)


def _joined_sources(
    id: str, sources: tuple[RecoverySource, ...]
) -> tuple[Document, dict[str, Document], list[str]]:
    """Join sources; a later one replaces fields of the earlier ones.

    Returns: the head, the messages by their ids, and the ids in their order.
    """
    head: Document = {"id": id}
    entries: dict[str, Document] = {}
    order: list[str] = []
    for source in sources:
        metadata = head.get("metadata", {}) | source.head.get("metadata", {})
        head |= source.head
        head["metadata"] = metadata
        for entry_id, entry in source.entries.items():
            if entry_id in source.partial_ids:
                entries[entry_id] = order_message(entries.get(entry_id, {}) | entry)
            else:
                entries[entry_id] = entry
        keys = {
            entry_id: (str(entry.get("timestamp")), entry_id) for entry_id, entry in entries.items()
        }
        order = merge_order((), order, list(source.entries), keys.__getitem__, {})
    return head, entries, order


def _origins(history: list[Document], by_priority: dict[str, RecoverySource]) -> str:
    """Return in words how many messages come from which source. The first that has one counts."""
    counts = Counter[str]()
    for entry in history:
        for name, source in by_priority.items():
            if entry["id"] in source.entries:
                counts[name] += 1
                break
    details = ", ".join(f"{count} from {name}" for name, count in counts.items())
    return f"{_messages(len(history))} ({details})"


def _is_overwritten(data: bytes, rebuilt: bytes) -> bool:
    """Return whether bytes of the file were overwritten in place, in a way that nobody types.

    A disk keeps the length of the file. An editor saves UTF-8 without control characters, and keeps
    the length only where it replaced a few characters.
    """
    if len(data) != len(rebuilt):
        return False
    if _CONTROL.search(data):
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    differences = 0
    for start in range(0, len(data), _BLOCK):
        block = data[start : start + _BLOCK]
        rebuilt_block = rebuilt[start : start + _BLOCK]
        if block != rebuilt_block:
            differences += sum(a != b for a, b in zip(block, rebuilt_block, strict=True))
    return differences > _MAX_TYPED


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"


def _file_source(
    data: bytes, held_file: HeldFile, other_sources: list[dict[str, Document]]
) -> RecoverySource:
    """Return what the damaged file still has, if it had the canonical layout.

    Args:
        data: The file.
        held_file: The document.
        other_sources: The messages of the other sources, by their ids. A message without an id in
            the file gets the id of one with the same role and text, each once. If there is none, it
            gets a new id.
    """
    history = _HISTORY.search(data)
    pieces = []
    for piece in _ENTRY.findall(data, history.end() if history else 0):
        with suppress(InvalidDocument, InvalidInput):
            pieces.append(check_message(codec.decode(piece, held_file.path)))
    used_ids = {entry["id"] for entry in pieces if "id" in entry}
    ids_by_content: dict[tuple[str, str], list[str]] = {}
    for other_entries in other_sources:
        for id, entry in other_entries.items():
            if id not in used_ids:
                used_ids.add(id)
                ids_by_content.setdefault((entry["role"], entry["content"]), []).append(id)
    entries = {}
    for number, piece_entry in enumerate(pieces):
        entry = piece_entry
        if "id" not in entry:
            role = entry["role"]
            content = entry["content"]
            candidates = ids_by_content.get((role, content))
            if candidates:
                id = candidates.pop(0)
            else:
                id = message_id_for(held_file.id, number, role, "", content)
            entry = order_message(entry | {"id": id})
        entries[entry["id"]] = entry
    head_bytes = data[: history.start()] if history else data
    return RecoverySource(_file_head(head_bytes, held_file), entries)


def _file_head(data: bytes, held_file: HeldFile) -> Document:
    """Return the head from the bytes before the history, or else only the project context."""
    with suppress(InvalidDocument):
        head = codec.decode(data.rstrip().removesuffix(b",") + b"\n}", held_file.path)
        return head if head.get("id") == held_file.id else {}
    span = context_in(data)
    if span:
        with suppress(InvalidDocument):
            return {"context": codec.decode(data[slice(*span)], held_file.path)}
    return {}


def _log_source(held_file: HeldFile) -> RecoverySource:
    """Return what the log has: the last head, and the messages that were written recently."""
    head: Document = {}
    #: Edited messages whose append is older than the log.
    older: dict[str, Document] = {}
    entries: dict[str, Document] = {}
    removed_ids: set[str] = set()
    message_count = 0
    for write in reconcile.decode_records(held_file.records()):
        record = write.record
        for entry in write.entries:
            entries[entry["id"]] = entry
        if write.kind == "edit":
            edited = record["e"]
            if edited["id"] in entries:
                entries[edited["id"]] = edited
            else:
                older[edited["id"]] = edited
        if write.kind == "gone":
            removed_ids |= set(record["was"])
        removed_ids -= {entry["id"] for entry in write.entries}
        head = record.get("h", head) | {"updatedAt": record["u"]}
        message_count = record.get("n", message_count)
    return RecoverySource(
        head if "id" in head else {},
        older | entries,
        removed_ids=frozenset(removed_ids),
        message_count=message_count,
    )
