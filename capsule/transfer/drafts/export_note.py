"""Recognize what Capsule exported itself when it is imported again.

A file of another program's format loses what that format has no field for. So an export also writes
a note into the file, under the key `capsule`:

    {"id": the conversation, "type": its type if it is not a chat,
     "title": its title if the format has none, "head": {field: digest},
     "messages": {id in the file: [id here, digest]}}

The digests are those of the fields as an import reads them from the file. A message whose digest
is still the same was not changed by another program, so an import takes nothing from it. The same
holds for a field of the head. A message without an id in the file is named by its place, `#0`.

A conversation that was imported from the same format is exported under the ids of its source. Its
note names no conversation. It lists only the messages that were written here, and with an empty id
those that an import would otherwise take for changed. If nothing differs, there is no note.

Invariant: pure. A note comes from a file, so it is checked like any other data.
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

#: The fields of a message that hold ids, which a recalled message has in another form.
_LINKS = ("replyTo", "thread")
#: The time for drafts without one. No digest depends on it.
_NO_TIME = "1970-01-01T00:00:00.000Z"


def note_of(draft: Draft, reread: Draft, format: str) -> Fields:
    """Return the note for a draft that was written.

    Args:
        draft: The draft as it was given to the writer of the format.
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
    head_digests = digests_of_head(document)
    if not (draft.is_own or marks or head_digests != draft.source_head_digests):
        return {}
    note["messages"] = marks
    note["head"] = head_digests
    return note


def _note_of_head(draft: Draft) -> Fields:
    """Return the part of a note that says which conversation it is. Empty: one of the source."""
    if not draft.is_own:
        return {}
    note: Fields = {"id": draft.id}
    if draft.metadata.get("type") not in (None, "chat"):
        note["type"] = draft.metadata["type"]
    return note


def recall(draft: Draft) -> Draft:
    """Return a draft with the ids that its messages have here, as its note says.

    `exported_messages` and `exported_head` of the result have the digests of the note.
    """
    note = draft.export_note
    if not note:
        return draft
    ids: dict[str, str] = {}
    digests: dict[str, str] = {}
    for id_in_file, mark in object_of(note.get("messages")).items():
        if not (isinstance(mark, list) and len(mark) == 2 and all(type(m) is str for m in mark)):
            continue
        id, digest = mark
        if not id:
            digests[id_in_file] = digest
        elif is_id(id) and id not in digests:
            ids[id_in_file] = id
            digests[id] = digest
    recalled = replace(
        draft,
        head=_recalled_head(draft, ids),
        history=[_recalled_message(entry, place, ids) for place, entry in enumerate(draft.history)],
        lines={ids.get(id, id): line for id, line in draft.lines.items()},
        local_ids=frozenset(ids.values()),
        exported_messages=digests,
    )
    if isinstance(note.get("id"), str):
        recalled.is_own = True
    if isinstance(note.get("head"), dict):
        recalled.exported_head = note["head"]
    return recalled


def unchanged_since_export(draft: Draft, document: Document) -> frozenset[str]:
    """Return the ids of the messages that are as an export of this store wrote them.

    Args:
        draft: A recalled draft.
        document: The capsule that the draft became.
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
    """A message that was written.

    Attributes:
        id_in_file: Its id in the file, or `#` and its place there.
        id: Its id here. Empty: it is a message of the source.
        source_digest: The digest that the last import stored. Empty: it was written here.
    """

    id_in_file: str
    id: str
    source_digest: str


def _messages_in_file(draft: Draft, reread: Draft) -> list[_MessageInFile]:
    """Return the messages of a written draft that are found when it is read again."""
    messages = []
    for read_place, written_place in _pairs_of_places(draft, reread):
        id_in_file = _id_in_file(reread.history[read_place], read_place)
        id = draft.history[written_place].get("id")
        if id in draft.local_ids:
            messages.append(_MessageInFile(id_in_file, id, ""))
        else:
            source_digest = draft.source_digests.get(written_place, "")
            messages.append(_MessageInFile(id_in_file, "", source_digest))
    return messages


def _pairs_of_places(draft: Draft, reread: Draft) -> list[tuple[int, int]]:
    """Return the place of each message in the file, with its place in the draft.

    Messages are in the same order on both sides. Some formats have only the active branch. If there
    are more or fewer messages than before, only equal ids tell which is which.
    """
    read_places = [place for place, entry in enumerate(reread.history) if "role" in entry]
    all_places = [place for place, entry in enumerate(draft.history) if "role" in entry]
    active_places = Tree(draft.history).path(draft.metadata.get("currentNode"))
    for written_places in (all_places, active_places):
        if len(written_places) == len(read_places):
            return list(zip(read_places, written_places, strict=True))
    place_by_id = {draft.history[place].get("id"): place for place in all_places}
    pairs = []
    for place in read_places:
        id_in_file = reread.history[place].get("id")
        if id_in_file is not None and id_in_file in place_by_id:
            pairs.append((place, place_by_id[id_in_file]))
    return pairs


def _id_in_file(entry: Fields, place: int) -> str:
    if entry.get("id") is None:
        return f"#{place}"
    return str(entry["id"])


def _recalled_message(entry: Fields, place: int, ids: dict[str, str]) -> Fields:
    recalled = dict(entry)
    id_in_file = _id_in_file(entry, place)
    if id_in_file in ids:
        recalled["id"] = ids[id_in_file]
    for name in ("parent", *_LINKS):
        if isinstance(entry.get(name), str):
            recalled[name] = ids.get(entry[name], entry[name])
    return recalled


def _recalled_head(draft: Draft, ids: dict[str, str]) -> Fields:
    note = draft.export_note
    head, metadata = dict(draft.head), dict(draft.metadata)
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
    return digest_of_message(without(entry, *_LINKS))


def _ignore_problem(reason: str, id: str) -> None:
    """Ignore what is odd about a record. The import reports it."""


def _digest_of_file(data: bytes | Source) -> tuple[str, int]:
    """Return the SHA-256 and the size of an attachment, without storing it."""
    content = data if isinstance(data, bytes) else read_bytes(data)
    return sha256(content).hexdigest(), len(content)


def write_with_note(draft: Draft, format: Format) -> bytes:
    """Write a draft in a format, with a note if the format does not keep all fields.

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
