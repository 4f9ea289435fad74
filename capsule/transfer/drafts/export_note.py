"""Recognize a file that an export wrote when it is imported again.

The format of another program has no field for some of what a capsule has. So an export also writes
a note into the file, under the key `capsule`:

    {"id": the conversation, "type": its type if it is not a chat,
     "title": its title if the format has none, "head": {field: digest},
     "messages": {id in the file: [id in this store, digest]}}

How an export makes the note (`write_with_note`): it writes the draft, reads the file as an import
would, and computes the digest of each message and each field of the head that it read. Then it
writes the file with the note.

How an import uses it: `recall` gives the messages the ids that they have in this store. A message
whose digest is still the one in the note was not changed by another program
(`unchanged_since_export`), so the import takes nothing from it. The same holds for a field of the
head. A message without an id in the file is named by its position, such as `#0`.

A conversation that was imported from the same format is exported with the ids of its source. Then
the note has no `id`, and lists only two kinds of messages: those that were written in this store,
and, with an empty id, those that an import would otherwise take for changed at the source. If there
is none, and no field of the head differs, the file gets no note.

Invariants: a note from a file is checked like any other data, and invalid parts are ignored. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from typing import NamedTuple

from capsule.errors import InvalidInput
from capsule.format.tree.tree import Tree
from capsule.ids import imported_message_id, is_id
from capsule.transfer.drafts.conversion import Document, document_of
from capsule.transfer.drafts.digests import digest_of_message, digests_of_head, provenance_of
from capsule.transfer.interface import Draft, Fields, Format, Source, read_bytes
from capsule.transfer.reading.files import Problems, SourceFile
from capsule.transfer.records.coercion import object_of, without

#: The fields of a message with ids of other messages. `recall` changes them, so no digest has them.
_LINKS = ("replyTo", "thread")
#: The time for drafts without one. No digest depends on it.
_NO_TIME = "1970-01-01T00:00:00.000Z"


def note_of(draft: Draft, reread: Draft, format: str) -> Fields:
    """Return the note for a draft that was written. Empty: the file needs no note.

    Args:
        draft: The draft that the writer of the format got.
        reread: The draft that the reader of the format makes of the written file.
        format: The name of the format.

    Cost: as an import of the draft, without writing.
    """
    messages = _messages_in_file(draft, reread)
    note = _note_of_head(draft)
    if draft.is_own and draft.head.get("title") and not reread.head.get("title"):
        note["title"] = draft.head["title"]
    note["messages"] = {message.id_in_file: [message.id, ""] for message in messages}
    recalled = recall(replace(reread, export_note=note))
    try:
        document = document_of(
            recalled, format, _NO_TIME, _ignore_problem, _digest_of_file, is_trusted=True
        )
    except InvalidInput:  # It has no message and no title.
        return _note_of_head(draft)
    marks = _marks(messages, document)
    head_digests = digests_of_head(document)
    is_as_source = not marks and head_digests == draft.source_head_digests
    if is_as_source and not draft.is_own:
        return {}
    note["messages"] = marks
    note["head"] = head_digests
    return note


def _marks(messages: list[_MessageInFile], document: Document) -> dict[str, list[str]]:
    """Return the messages of a note: the id in this store and the digest, by the id in the file.

    `document` is the capsule that an import makes of the file. A message of the source that is as
    the last import stored it needs no mark.
    """
    entries = {entry["id"]: entry for entry in document["history"]}
    marks = {}
    for message in messages:
        id_here = message.id or imported_message_id(document["id"], message.id_in_file)
        entry = entries.get(id_here)
        if entry is None:
            continue
        is_as_imported = provenance_of(entry).get("digest") == message.source_digest
        if message.id or not is_as_imported:
            marks[message.id_in_file] = [message.id, _digest_as_read(entry)]
    return marks


def _note_of_head(draft: Draft) -> Fields:
    """Return the id and type for a note. Empty: the draft has the ids of its source."""
    if not draft.is_own:
        return {}
    note: Fields = {"id": draft.id}
    if draft.metadata.get("type") not in (None, "chat"):
        note["type"] = draft.metadata["type"]
    return note


def recall(draft: Draft) -> Draft:
    """Return a draft with the ids of this store that its note names.

    `exported_messages` and `exported_head` of the result have the digests of the note. A draft
    without a note is returned unchanged.
    """
    note = draft.export_note
    if not note:
        return draft
    ids, digests = _ids_and_digests(note)
    recalled = replace(
        draft,
        head=_recalled_head(draft, ids),
        history=[_recalled_message(entry, n, ids) for n, entry in enumerate(draft.history)],
        lines={ids.get(id, id): line for id, line in draft.lines.items()},
        local_ids=frozenset(ids.values()),
        exported_messages=digests,
    )
    if isinstance(note.get("id"), str):
        recalled.is_own = True
    if isinstance(note.get("head"), dict):
        recalled.exported_head = note["head"]
    return recalled


def _ids_and_digests(note: Fields) -> tuple[dict[str, str], dict[str, str]]:
    """Return the ids of a note by the ids in the file, and the digests of its messages.

    The digest of a message that has no id in this store is under its id in the file. Invalid
    entries are ignored, and so is the second one with an id.
    """
    ids: dict[str, str] = {}
    digests: dict[str, str] = {}
    for id_in_file, mark in object_of(note.get("messages")).items():
        is_pair = isinstance(mark, list) and len(mark) == 2
        if not is_pair or not all(isinstance(text, str) for text in mark):
            continue
        id, digest = mark
        if not id:
            digests[id_in_file] = digest
        elif is_id(id) and id not in digests:
            ids[id_in_file] = id
            digests[id] = digest
    return ids, digests


def unchanged_since_export(draft: Draft, document: Document) -> frozenset[str]:
    """Return the ids of the messages that nobody changed in the file since it was exported.

    Args:
        draft: A draft from `recall`.
        document: The capsule that `document_of` made of the draft.
    """
    exported_digests = dict(draft.exported_messages)
    for id_in_source, digest in draft.exported_messages.items():
        exported_digests[imported_message_id(document["id"], id_in_source)] = digest
    unchanged = set()
    for entry in document["history"]:
        if exported_digests.get(entry["id"]) == _digest_as_read(entry):
            unchanged.add(entry["id"])
    return frozenset(unchanged)


class _MessageInFile(NamedTuple):
    """A message in a written file.

    Attributes:
        id_in_file: The id in the file, or `#` and the position in the file.
        id: The id in this store. Empty: the message has the id of its source.
        source_digest: The digest that the last import stored. Empty: the message was written in
            this store.
    """

    id_in_file: str
    id: str
    source_digest: str


def _messages_in_file(draft: Draft, reread: Draft) -> list[_MessageInFile]:
    """Return the messages of a draft that the written file has."""
    messages = []
    for read_position, written_position in _position_pairs(draft, reread):
        id_in_file = _id_in_file(reread.history[read_position], read_position)
        id = draft.history[written_position].get("id")
        if id in draft.local_ids:
            messages.append(_MessageInFile(id_in_file, id, ""))
        else:
            source_digest = draft.source_digests.get(written_position, "")
            messages.append(_MessageInFile(id_in_file, "", source_digest))
    return messages


def _position_pairs(draft: Draft, reread: Draft) -> list[tuple[int, int]]:
    """Return the position of each message in the file, with its position in the draft.

    A format writes all messages, or those of the active branch, in the order of the draft. So equal
    numbers of messages are paired in order. If the numbers differ, messages with equal ids are
    paired.
    """
    read_positions = [n for n, entry in enumerate(reread.history) if "role" in entry]
    all_positions = [n for n, entry in enumerate(draft.history) if "role" in entry]
    active_positions = Tree(draft.history).path(draft.metadata.get("currentNode"))
    for written_positions in (all_positions, active_positions):
        if len(written_positions) == len(read_positions):
            return list(zip(read_positions, written_positions, strict=True))
    position_by_id = {draft.history[n].get("id"): n for n in all_positions}
    pairs = []
    for position in read_positions:
        id_in_file = reread.history[position].get("id")
        if id_in_file is not None and id_in_file in position_by_id:
            pairs.append((position, position_by_id[id_in_file]))
    return pairs


def _id_in_file(entry: Fields, position: int) -> str:
    if entry.get("id") is None:
        return f"#{position}"
    return str(entry["id"])


def _recalled_message(entry: Fields, position: int, ids: dict[str, str]) -> Fields:
    """Return a message with ids of this store. `ids` has them by the ids in the file."""
    recalled = dict(entry)
    id_in_file = _id_in_file(entry, position)
    if id_in_file in ids:
        recalled["id"] = ids[id_in_file]
    for name in ("parent", *_LINKS):
        if isinstance(entry.get(name), str):
            recalled[name] = ids.get(entry[name], entry[name])
    return recalled


def _recalled_head(draft: Draft, ids: dict[str, str]) -> Fields:
    """Return the head of a draft with the id, type and title that its note has.

    The title of the note is used only if the file has none. `ids` has the ids of messages in this
    store by those in the file.
    """
    note = draft.export_note
    head = dict(draft.head)
    metadata = dict(draft.metadata)
    current = metadata.get("currentNode")
    if isinstance(current, str):
        metadata["currentNode"] = ids.get(current, current)
    if isinstance(note.get("id"), str):
        head["id"] = note["id"]
        if isinstance(note.get("type"), str):
            metadata["type"] = note["type"]
        if isinstance(note.get("title"), str) and not head.get("title"):
            head["title"] = note["title"]
    if metadata:
        head["metadata"] = metadata
    return head


def _digest_as_read(entry: Fields) -> str:
    """Return the digest of a message in a note. It is the same with the ids of the file."""
    return digest_of_message(without(entry, *_LINKS))


def _ignore_problem(reason: str, id: str) -> None:
    """Ignore a problem of a record. The import of the file will report it."""


def _digest_of_file(data: bytes | Source) -> tuple[str, int]:
    """Return the SHA-256 and the size of an attachment, without storing it."""
    if isinstance(data, bytes):
        content = data
    else:
        content = read_bytes(data)
    return sha256(content).hexdigest(), len(content)


def write_with_note(draft: Draft, format: Format) -> bytes:
    """Return a draft in a format, with a note if the format does not keep all fields.

    Cost: writing the draft twice and reading it once.
    """
    assert format.write is not None
    if format.is_portable or format.read is None:
        return format.write(draft)
    data = format.write(replace(draft, export_note=_note_of_head(draft)))
    source = SourceFile("", len(data), lambda: BytesIO(data), Problems())
    for reread in format.read(source):
        return format.write(replace(draft, export_note=note_of(draft, reread, format.name)))
    return data
