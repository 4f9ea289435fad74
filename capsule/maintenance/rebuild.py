"""Rebuilding a file that an editor emptied or a disk damaged, from what is left of it and what else
knows the document.

What must stay true: a file whose damage a person can have typed is left to the person, and so is
any that is JSON. A message that the log or the index has is taken from there, as what is left of
two messages in the file can look like one message. Messages that the log or the index knows as
removed stay out. The report names what is missing. The module writes nothing.
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
#: More bytes than a typing error takes away or overwrites.
_TYPED = 16
#: Control characters that no editor enters. Tabs and line ends are typed.
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_BLOCK = 4096
_HISTORY = re.compile(rb'^  "history": \[', re.M)
_ENTRY = re.compile(rb"^    \{\n(?:      .*\n)+    \}(?=,?$)", re.M)


class RecoverySource(NamedTuple):
    """What a place knows of a document.

    Attributes:
        head: What is not a message; empty: nothing.
        entries: The messages by their ids, in their order.
        partial: The ids of those of which it does not have all fields.
        gone: The ids of messages that were removed.
        number: How many messages there were; 0: it does not know.
    """

    head: Document
    entries: dict[str, Document]
    partial: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    number: int = 0


_NOTHING = RecoverySource({}, {})


def remembered(store: CoreStore, kind: str, file: ScannedFile) -> dict[str, RecoverySource]:
    """What the last commit and the index know of a document. Call it without the mutex, which the
    index may need.
    """
    commit = index = _NOTHING
    with suppress(InvalidDocument):
        data = store.engine.external_edits().committed_version(file.path)
        if data is not None:
            commit = _known(
                migrations.upgrade(decode_checked(data, file.path, file.id), file.path)[0]
            )
    with suppress(CapsuleError):
        if (
            kind == CONVERSATIONS
            and (last_valid := store.queries.last_valid_version(file.id)) is not None
        ):
            index = _known(*last_valid)
    if commit.head and index.head and index.head["updatedAt"] >= commit.head["updatedAt"]:
        commit = commit._replace(
            entries={id: entry for id, entry in commit.entries.items() if id in index.entries}
        )
    elif commit.head:  # The commit came by git since.
        index = RecoverySource(
            {},
            {id: entry for id, entry in index.entries.items() if id not in commit.entries},
            index.partial,
        )
    return {"the last commit": commit, "the index": index}


def _known(document: Document, partial: frozenset[str] = frozenset()) -> RecoverySource:
    head = {name: value for name, value in document.items() if name != "history"}
    return RecoverySource(head, {entry["id"]: entry for entry in document["history"]}, partial)


def rebuilt(held: HeldFile, data: bytes, places: dict[str, RecoverySource]) -> RepairedFile | None:
    """The file rebuilt, and what came from where and is missing, in words; None where it is left to
    a person.

    Args:
        held: The document, under its mutex.
        places: What is `remembered` of it.
    """
    with suppress(InvalidDocument):
        codec.decode(data, held.path)
        return None
    commit, index = places.values()
    log = _logged(held)
    file = _left(data, held, [place.entries for place in (log, index, commit)])
    head: Document = {"id": held.id}
    entries: dict[str, Document] = {}
    order: list[str] = []
    for place in (commit, file, index, log):
        head |= place.head | {"metadata": head.get("metadata", {}) | place.head.get("metadata", {})}
        for id, entry in place.entries.items():
            entries[id] = (
                order_message(entries.get(id, {}) | entry) if id in place.partial else entry
            )
        key = {id: (str(entry.get("timestamp")), id) for id, entry in entries.items()}
        order = merge_order((), order, list(place.entries), key.__getitem__, {})
    head |= log.head  # It has all of a head.
    history = [entries[id] for id in order if id not in log.gone]
    if not history and "createdAt" not in head:
        return None
    try:
        document, _ = migrations.upgrade(head | {"history": history}, held.path)
        whole = codec.encode(document)
        decode_checked(whole, held.path, held.id)
    except InvalidDocument:
        return None
    is_cut = len(whole) - len(data.replace(b"\0", b"").strip()) > _TYPED
    if not is_cut and not _is_overwritten(data, whole):
        return None
    origins = {"the file": file, "the log": log, "the index": index, "the last commit": commit}
    came = Counter(
        next(name for name, place in origins.items() if entry["id"] in place.entries)
        for entry in history
    )
    partial = len(index.partial - {*file.entries, *log.entries, *commit.entries, *log.gone})
    missing = max((log.number or len(index.entries)) - len(history), 0)
    lacking = [
        _messages(missing) if missing else "",
        f"tool calls, attachments and the like of {_messages(partial)}" if partial else "",
        ""
        if "context" in head or held.kind != CONVERSATIONS
        else "the project context, if it had one",
        "" if "createdAt" in head else "the title and the rest of the head",
    ]
    said = (
        f"{_messages(len(history))} "
        f"({', '.join(f'{many} from {name}' for name, many in came.items())})"
    )
    lost = ", ".join(filter(None, lacking))
    return RepairedFile(whole, f"rebuilt with {said}" + (f"; missing: {lost}" if lost else ""))


def _is_overwritten(data: bytes, whole: bytes) -> bool:
    """Return whether bytes of the file were overwritten in place by what nobody types.

    A disk keeps the length of the file. An editor saves UTF-8 without control characters, and keeps
    the length only where it replaced a few characters.
    """
    if len(data) != len(whole):
        return False
    if _CONTROL.search(data):
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    different = 0
    for at in range(0, len(data), _BLOCK):
        block = data[at : at + _BLOCK]
        known = whole[at : at + _BLOCK]
        if block != known:
            different += sum(a != b for a, b in zip(block, known, strict=True))
    return different > _TYPED


def _messages(many: int) -> str:
    return f"{many} message{'' if many == 1 else 's'}"


def _left(data: bytes, held: HeldFile, known: list[dict[str, Document]]) -> RecoverySource:
    """Return what is left in the file itself, if it has the canonical layout.

    Args:
        data: The file.
        held: The document.
        known: The messages that other places have, by their ids. A message without an id in the
            file is the one of the same role and text there, each once. If there is none, it gets an
            id of its own.
    """
    begin = _HISTORY.search(data)
    pieces = []
    for piece in _ENTRY.findall(data, begin.end() if begin else 0):
        with suppress(InvalidDocument, InvalidInput):
            pieces.append(check_message(codec.decode(piece, held.path)))
    ids = {entry["id"] for entry in pieces if "id" in entry}
    free: dict[tuple[str, str], list[str]] = {}
    for place in known:
        for id, entry in place.items():
            if id not in ids:
                ids.add(id)
                free.setdefault((entry["role"], entry["content"]), []).append(id)
    entries = {}
    for n, entry in enumerate(pieces):
        if "id" not in entry:
            same = free.get((entry["role"], entry["content"]))
            id = (
                same.pop(0)
                if same
                else message_id_for(held.id, n, entry["role"], "", entry["content"])
            )
            entry = order_message(entry | {"id": id})
        entries[entry["id"]] = entry
    return RecoverySource(_left_head(data[: begin.start()] if begin else data, held), entries)


def _left_head(data: bytes, held: HeldFile) -> Document:
    """Return what the bytes before the history have of the head: all of it, or else the project
    context.
    """
    with suppress(InvalidDocument):
        head = codec.decode(data.rstrip().removesuffix(b",") + b"\n}", held.path)
        return head if head.get("id") == held.id else {}
    if place := context_in(data):
        with suppress(InvalidDocument):
            return {"context": codec.decode(data[slice(*place)], held.path)}
    return {}


def _logged(held: HeldFile) -> RecoverySource:
    """What the log knows: the last head, and the messages that were written or edited lately."""
    head: Document = {}
    older: dict[str, Document] = {}
    entries: dict[str, Document] = {}
    gone: set[str] = set()
    number = 0
    for write in reconcile.decode_records(held.records()):
        record = write.record
        entries |= {entry["id"]: entry for entry in write.entries}
        if (
            write.kind == "edit"
        ):  # The log does not reach back to the append of one that it doesn't have.
            (entries if record["e"]["id"] in entries else older)[record["e"]["id"]] = record["e"]
        gone |= set(record["was"] if write.kind == "gone" else ())
        gone -= {entry["id"] for entry in write.entries}
        head, number = record.get("h", head) | {"updatedAt": record["u"]}, record.get("n", number)
    return RecoverySource(
        head if "id" in head else {}, older | entries, gone=frozenset(gone), number=number
    )
