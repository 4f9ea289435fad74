"""Recognize a conversation that is here already (`recall`), and merge a new version of it (`merge`).

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

A merge has the `present` document of the store, and the `incoming` one of the source. Both may have
changed since the last import, which stored a digest of each message and of each field of the head in
the provenance (`metadata.imported`). A side with the same digest as then did not change the message
or field. A capsule that was exported from this store has no such digests. There `editedAt` decides
for a message, and the note for the head.

Invariants:
- A note from a file is checked like any other data, and invalid parts are ignored.
- A message or field that only the source added or changed is taken from the source. One that only
  this store changed or removed stays. If both sides changed it, `OnConflict` decides, and the store
  moves the replaced version to the trash. Nothing is removed because the source lacks it.
- A version of the source that is older than the last imported one replaces nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha256
from io import BytesIO
from typing import Any, Literal, NamedTuple

from capsule.errors import InvalidInput
from capsule.format.json.canonical import order_message
from capsule.format.tree.tree import Tree
from capsule.ids import imported_message_id, is_id
from capsule.transfer.drafts.conversion import document_of
from capsule.transfer.drafts.digests import (
    IMPORTED,
    digest_of_message,
    digests_of_head,
    is_edited,
    provenance_of,
)
from capsule.transfer.interface import Draft, Fields, Format, Source, read_bytes
from capsule.transfer.reading.files import Problems, SourceFile
from capsule.transfer.records.mapping import object_of, without

# -- The note of an export -------------------------------------------------------------------------

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


# -- Merging ---------------------------------------------------------------------------------------

Document = dict[str, Any]
#: What an import does if the source and this store changed the same message or field: keep the
#: version of the store, take the version of the source, or make a second conversation.
OnConflict = Literal["skip", "update", "copy"]
#: The merged fields of the head that are not in its metadata.
_OUTSIDE_METADATA = ("title", "context")


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """The result of merging a source into a conversation.

    Attributes:
        document: The merged conversation. It is `present` itself if nothing changes.
        conflicts: The number of fields and messages that both sides changed.
        kept_title: Whether the source has another title, but the title from a person stays.
    """

    document: Document
    conflicts: int
    kept_title: bool = False


def contradicts(present: Document, incoming: Document) -> bool:
    """Return whether the source changed a message without a later time of its conversation.

    Messages that were changed in the store do not count, and neither do fields besides the text.
    """
    if _time_of(incoming) != _time_of(present):
        return False
    current_entries = {entry["id"]: entry for entry in present["history"]}
    for source_entry in incoming["history"]:
        current_entry = current_entries.get(source_entry["id"])
        if current_entry is None or _spoken_fields(current_entry) == _spoken_fields(source_entry):
            continue
        if _change_of(current_entry, source_entry, is_own=False) is _Change.AT_SOURCE:
            return True
    return False


def _spoken_fields(entry: Document) -> tuple[Any, ...]:
    """Return the fields of a message that a reader sees."""
    return entry["role"], entry["content"], entry.get("toolCalls")


def merge(
    present: Document,
    incoming: Document,
    removed: Collection[str],
    *,
    prefer_source: bool,
    is_own: bool,
    is_other_source: bool = False,
    is_trusted: bool = False,
    unchanged: Collection[str] = (),
    exported_head: Mapping[str, str] | None = None,
) -> MergeOutcome:
    """Merge the version of a source into a conversation. Neither document is changed.

    Args:
        present: The conversation in the store, with the time of this write as its `updatedAt`.
        incoming: The conversation of the source, from `document_of`, with the same id.
        removed: The ids of messages that were removed in the store. They are not added again.
        prefer_source: Whether the version of the source is taken if both sides changed it.
        is_own: Whether the source is a capsule with this id.
        is_other_source: Whether the last import was from another source. Then this one replaces
            something only if its time is later.
        is_trusted: Whether the source may replace a title that a person gave.
        unchanged: The ids of the source's messages that nobody changed since this store exported
            them. They replace nothing.
        exported_head: The digests of the fields of the head when this store exported it. None: the
            source is no such export.
    """
    is_outdated = not is_own and _is_older(present, incoming, is_other_source=is_other_source)
    result = present | {
        "history": list(present["history"]),
        "metadata": dict(present["metadata"]),
    }
    conflicts = 0
    if not is_outdated:
        conflicts += _merge_messages(
            result, incoming, unchanged, prefer_source=prefer_source, is_own=is_own
        )
        conflicts += _merge_head(
            result,
            present,
            incoming,
            prefer_source=prefer_source,
            is_own=is_own,
            is_trusted=is_trusted,
            exported_head=exported_head,
        )
    added_ids = _add_messages(result["history"], incoming, removed)
    _choose_active_leaf(result, _leaf(present), _leaf(incoming), added_ids)
    kept_title = _keeps_title_of_person(present, incoming, result, exported_head)
    if result == present:
        result = present
    return MergeOutcome(result, conflicts, kept_title)


def _is_older(present: Document, incoming: Document, *, is_other_source: bool) -> bool:
    """Return whether the source has an older version than the last import had.

    Another source must be later: at the same time, the version that was imported first wins.
    """
    present_time = _time_of(present)
    source_time = _time_of(incoming)
    if is_other_source:
        return source_time <= present_time
    return source_time < present_time


def _add_messages(
    history: list[Document], incoming: Document, removed: Collection[str]
) -> set[str]:
    """Append the messages of the source that `history` lacks, and return their ids."""
    source_tree = Tree(incoming["history"])
    known_ids = {entry["id"] for entry in history}
    added_ids: set[str] = set()
    for source_position, entry in enumerate(incoming["history"]):
        if entry["id"] in known_ids or entry["id"] in removed:
            continue
        _append(history, entry, _parent(source_tree, source_position, known_ids))
        known_ids.add(entry["id"])
        added_ids.add(entry["id"])
    return added_ids


def _merge_messages(
    result: Document,
    incoming: Document,
    unchanged: Collection[str],
    *,
    prefer_source: bool,
    is_own: bool,
) -> int:
    """Replace the messages of `result` that the source changed. Return the number of conflicts."""
    history = result["history"]
    positions = {entry["id"]: position for position, entry in enumerate(history)}
    conflicts = 0
    for entry in incoming["history"]:
        position = positions.get(entry["id"])
        if position is None or entry["id"] in unchanged:
            continue
        change = _change_of(history[position], entry, is_own=is_own)
        if change is _Change.IN_BOTH:
            conflicts += 1
        if change is _Change.AT_SOURCE or (change is _Change.IN_BOTH and prefer_source):
            history[position] = _replaced(history[position], entry, result["updatedAt"])
    return conflicts


def _keeps_title_of_person(
    present: Document,
    incoming: Document,
    result: Document,
    exported_head: Mapping[str, str] | None,
) -> bool:
    """Return whether a title from a person stays although the source has another one."""
    if present["metadata"].get("titleSetBy") == "auto" or result["title"] != present["title"]:
        return False
    if exported_head and exported_head.get("title") == digests_of_head(incoming)["title"]:
        return False  # The source has the title that this store exported.
    return bool(incoming["title"] != result["title"])


def _replaced(current_entry: Document, source_entry: Document, stamp: str) -> Document:
    """Return the message of the source with the parent of the current one, edited at `stamp`."""
    fields = without(source_entry, "parent") | {"editedAt": stamp}
    if "parent" in current_entry:
        fields["parent"] = current_entry["parent"]
    return order_message(fields)


def _time_of(document: Document) -> str:
    """Return when the source changed the conversation, by its provenance. Empty: unknown."""
    time = provenance_of(document).get("updatedAt")
    return time if isinstance(time, str) else ""


class _Change(Enum):
    """What happened to a message since the last import, as far as the source matters."""

    NOT_AT_SOURCE = "the source did not change it, or has an older version"
    AT_SOURCE = "only the source changed it"
    IN_BOTH = "the source and this store changed it"


def _change_of(current_entry: Document, source_entry: Document, *, is_own: bool) -> _Change:
    """Return which sides changed a message. `is_own`: the source is a capsule with the same id."""
    if not is_own:
        source_digest = source_entry["metadata"][IMPORTED]["digest"]
        if provenance_of(current_entry).get("digest") == source_digest:
            return _Change.NOT_AT_SOURCE
        return _Change.IN_BOTH if is_edited(current_entry) else _Change.AT_SOURCE
    if digest_of_message(source_entry) == digest_of_message(current_entry):
        return _Change.NOT_AT_SOURCE
    source_time = source_entry.get("editedAt") or ""
    current_time = current_entry.get("editedAt") or ""
    if source_time == current_time:
        return _Change.IN_BOTH  # Nothing shows which version is newer.
    return _Change.AT_SOURCE if source_time > current_time else _Change.NOT_AT_SOURCE


def _merge_head(
    result: Document,
    current: Document,
    incoming: Document,
    *,
    prefer_source: bool,
    is_own: bool,
    is_trusted: bool,
    exported_head: Mapping[str, str] | None,
) -> int:
    """Copy the fields of the head that the source changed into `result`.

    Returns the number of fields that both sides changed. These are copied only if `prefer_source`.
    The provenance of `result` gets the digests of the fields for the next import. A field that was
    not copied keeps its digest, so that the next import reports the conflict again.
    """
    current_digests = digests_of_head(current)
    source_digests = digests_of_head(incoming)
    if exported_head == source_digests:
        return 0
    if exported_head is None or not is_own:
        base_digests = _base_digests(
            current, incoming, current_digests, is_own=is_own, is_trusted=is_trusted
        )
    else:
        base_digests = dict(exported_head)
    stored_digests = dict(source_digests)
    conflicts = 0
    for name in {**base_digests, **source_digests}:
        if source_digests.get(name) in (current_digests.get(name), base_digests.get(name)):
            continue  # Both sides have the same value, or the source did not change it.
        is_conflict = base_digests.get(name) != current_digests.get(name)
        if is_conflict:
            conflicts += 1
        if is_conflict and not prefer_source:
            stored_digests.pop(name, None)
            if name in base_digests:
                stored_digests[name] = base_digests[name]
            continue
        _copy_head_field(name, incoming, result)
    if not is_own:
        result["metadata"][IMPORTED] = {**incoming["metadata"][IMPORTED], "digest": stored_digests}
    return conflicts


def _base_digests(
    current: Document,
    incoming: Document,
    current_digests: dict[str, str],
    *,
    is_own: bool,
    is_trusted: bool,
) -> dict[str, str]:
    """Return the digests of the head that both sides began with. Empty: they are not known.

    For a conversation of another program, the last import stored them. A capsule (`is_own`) with a
    later time and all messages of the current conversation is a later version of it.
    """
    if not is_own:
        imported_digests: dict[str, str] = object_of(provenance_of(current).get("digest"))
        return imported_digests
    incoming_ids = {entry["id"] for entry in incoming["history"]}
    has_all = all(entry["id"] in incoming_ids for entry in current["history"])
    if not has_all or incoming["updatedAt"] <= current["updatedAt"]:
        return {}
    base_digests = dict(current_digests)
    has_title_of_person = current["metadata"].get("titleSetBy") != "auto"
    if has_title_of_person and not is_trusted:
        del base_digests["title"]  # Only a person may replace a title that a person gave.
    return base_digests


def _copy_head_field(name: str, incoming: Document, result: Document) -> None:
    """Give a field of the head the value that the source has. Remove it if the source has none."""
    if name in _OUTSIDE_METADATA:
        source_fields = incoming
        target_fields = result
    else:
        source_fields = incoming["metadata"]
        target_fields = result["metadata"]
    target_fields.pop(name, None)
    if name in source_fields:
        target_fields[name] = source_fields[name]
    if name == "title":
        result["metadata"]["titleSetBy"] = incoming["metadata"].get("titleSetBy", "auto")


def _parent(source_tree: Tree, position: int, known_ids: Collection[str]) -> str | None:
    """Return the nearest ancestor of a source's message that is in `known_ids`. None: none is."""
    ancestor = source_tree.parents[position]
    while ancestor >= 0 and source_tree.ids[ancestor] not in known_ids:
        ancestor = source_tree.parents[ancestor]
    if ancestor < 0:
        return None
    return source_tree.ids[ancestor]


def _append(history: list[Document], entry: Document, parent: str | None) -> None:
    """Append a message. It needs the field `parent` only if it does not answer the last message."""
    previous_id = history[-1]["id"] if history else None
    fields = without(entry, "parent")
    if parent != previous_id:
        fields["parent"] = parent
    history.append(order_message(fields))


def _leaf(document: Document) -> str | None:
    """Return the id of the last message of the active branch. None: there is no message."""
    history = document["history"]
    leaf = Tree(history).active_leaf(document["metadata"].get("currentNode"))
    if leaf < 0:
        return None
    leaf_id: str = history[leaf]["id"]
    return leaf_id


def _choose_active_leaf(
    document: Document, old_leaf: str | None, source_leaf: str | None, added_ids: Collection[str]
) -> None:
    """Make the source's branch the active one if it ends in a new message.

    If the active branch ended in a message that was written in this store (`old_leaf`), the branch
    of the source must continue from it. Otherwise the old branch stays active.

    Args:
        document: The merged conversation. Its `currentNode` is changed.
        old_leaf: The last message of the active branch before the merge. None: it had no message.
        source_leaf: The last message of the active branch of the source.
        added_ids: The ids of the messages that the merge added.
    """
    history = document["history"]
    positions = {entry["id"]: position for position, entry in enumerate(history)}
    new_leaf = old_leaf
    if source_leaf is not None and source_leaf in added_ids:
        path = [history[n]["id"] for n in Tree(history).path_to(positions[source_leaf])]
        is_written_here = old_leaf is not None and not provenance_of(history[positions[old_leaf]])
        if not is_written_here or old_leaf in path:
            new_leaf = source_leaf
    if new_leaf == _leaf(document):
        return
    document["metadata"] = without(document["metadata"], "currentNode")
    # Without this field, the last message is the leaf.
    if new_leaf is not None and new_leaf != _leaf(document):
        document["metadata"]["currentNode"] = new_leaf
