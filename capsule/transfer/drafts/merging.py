"""Merge a new version of an imported conversation into the one in the store (`merge`).

The `present` document is in the store, the `incoming` one comes from the source. Both may have
changed since the last import. The last import stored a digest of each message and of each field of
the head in the provenance (`metadata.imported`). A side with the same digest as then did not change
the message or field. A capsule that was exported from this store has no such digests. There
`editedAt` decides for a message, and the note of the export for the head (`export_note`).

Invariants: a message or field that only the source added or changed is taken from the source. One
that only this store changed or removed stays. If both sides changed it, `OnConflict` decides, and
the store moves the replaced version to the trash. Nothing is removed because the source lacks it.
A version of the source that is older than the last imported one replaces nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from capsule.format.json.canonical import order_message
from capsule.format.tree.tree import Tree
from capsule.transfer.drafts.digests import (
    IMPORTED,
    digest_of_message,
    digests_of_head,
    is_edited,
    provenance_of,
)
from capsule.transfer.records.coercion import object_of, without

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
