"""Merge what an import brings into a conversation that is here (`merge`).

Both sides may have changed since the last import, which stored a digest of each message and of each
field of the head. A side whose digest is still the stored one changed nothing.

Invariants: what was added or changed at the source is taken. What was changed or removed here
stays. Where both sides changed the same, `OnConflict` decides, and the store moves what is replaced
to the trash. Nothing is removed because the source lacks it. An older export replaces nothing.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
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
#: Where the source and this store changed the same: leave it, take what the source has, or make a
#: second conversation.
OnConflict = Literal["skip", "update", "copy"]
_OF_HEAD = ("title", "context")


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """The result of merging a source into a conversation.

    Attributes:
        document: The merged conversation. It is the present one if nothing changes.
        conflicts: How many fields and messages both sides had changed.
        kept_title: Whether the source has another title, and the one that a person gave here stays.
    """

    document: Document
    conflicts: int
    kept_title: bool = False


def contradicts(present: Document, incoming: Document) -> bool:
    """Return whether a source has another text for a message that was not changed here, and is not
    dated later.
    """
    if _time_of(incoming) != _time_of(present):
        return False
    current_entries = {entry["id"]: entry for entry in present["history"]}
    for source_entry in incoming["history"]:
        current_entry = current_entries.get(source_entry["id"])
        if current_entry is None or _spoken_fields(current_entry) == _spoken_fields(source_entry):
            continue
        if _is_newer(current_entry, source_entry, is_own=False):
            return True
    return False


def _spoken_fields(entry: Document) -> tuple[Any, ...]:
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
    """Merge what a source has into a conversation.

    Args:
        present: The conversation as it is, with the `updatedAt` of the write.
        incoming: What the source has now, as `document_of` makes it, with the same id.
        removed: The ids of messages that were removed here. They are not added again.
        prefer_source: Whether the source's version is taken where both sides changed.
        is_own: Whether the source is a capsule of this id.
        is_other_source: Whether another source brought the conversation. Then this one replaces
            nothing, unless it is dated later.
        is_trusted: Whether the source may replace a title that a person gave.
        unchanged: The ids of messages that the source has as an export of this store wrote them.
            They replace nothing.
        exported_head: The digests of the fields of the head as an export of this store wrote them.
            None: the source is not such an export.
    """
    conflicts = 0
    present_time, source_time = _time_of(present), _time_of(incoming)
    is_older = source_time < present_time or (is_other_source and source_time == present_time)
    is_outdated = is_older and not is_own
    history = list(present["history"])
    places = {entry["id"]: place for place, entry in enumerate(history)}
    source_tree = Tree(incoming["history"])
    added_ids: set[str] = set()
    old_leaf = _leaf(present)
    for source_place, entry in enumerate(incoming["history"]):
        place = places.get(entry["id"])
        if place is None:
            if entry["id"] not in removed:
                added_ids.add(entry["id"])
                _append(history, entry, _parent(source_tree, source_place, places))
                places[entry["id"]] = len(history) - 1
            continue
        if is_outdated or entry["id"] in unchanged:
            continue
        is_newer = _is_newer(history[place], entry, is_own=is_own)
        conflicts += is_newer is None
        if is_newer or (is_newer is None and prefer_source):
            history[place] = _replaced(history[place], entry, present["updatedAt"])
    result = present | {"history": history, "metadata": dict(present["metadata"])}
    if not is_outdated:
        conflicts += _merge_head(
            result,
            present,
            incoming,
            prefer_source=prefer_source,
            is_own=is_own,
            is_trusted=is_trusted,
            exported_head=exported_head,
        )
    _choose_active_leaf(result, old_leaf, _leaf(incoming), added_ids)
    is_named = present["metadata"].get("titleSetBy") != "auto"
    kept_title = is_named and incoming["title"] != result["title"] == present["title"]
    if exported_head and exported_head.get("title") == digests_of_head(incoming)["title"]:
        kept_title = False  # The source has the title that the export had.
    if result == present:
        result = present
    return MergeOutcome(result, conflicts, kept_title)


def _replaced(current_entry: Document, source_entry: Document, stamp: str) -> Document:
    """Return the message of the source in the place that the current one has in the tree."""
    fields = without(source_entry, "parent") | {"editedAt": stamp}
    if "parent" in current_entry:
        fields["parent"] = current_entry["parent"]
    return order_message(fields)


def _time_of(document: Document) -> str:
    """Return when the source changed the conversation, as stored by the import. Empty: unknown."""
    time = provenance_of(document).get("updatedAt")
    return time if isinstance(time, str) else ""


def _is_newer(current_entry: Document, source_entry: Document, *, is_own: bool) -> bool | None:
    """Return whether a message of the source replaces the current one. None: both were changed."""
    if is_own:
        if digest_of_message(source_entry) == digest_of_message(current_entry):
            return False
        source_time = source_entry.get("editedAt") or ""
        current_time = current_entry.get("editedAt") or ""
        if source_time == current_time:
            return None
        return bool(source_time > current_time)
    if provenance_of(current_entry).get("digest") == source_entry["metadata"][IMPORTED]["digest"]:
        return False
    if is_edited(current_entry):
        return None
    return True


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

    Returns the number of fields that were changed here too. They are copied only if the source is
    preferred.
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
    taken_digests = dict(source_digests)
    conflicts = 0
    for name in {**base_digests, **source_digests}:
        if source_digests.get(name) in (current_digests.get(name), base_digests.get(name)):
            continue  # The source has what is here, or did not change it.
        is_changed_here = base_digests.get(name) != current_digests.get(name)
        conflicts += is_changed_here
        if is_changed_here and not prefer_source:
            taken_digests.pop(name, None)
            if name in base_digests:
                taken_digests[name] = base_digests[name]
            continue
        _copy_head_field(name, incoming, result)
    if not is_own:
        result["metadata"][IMPORTED] = {**incoming["metadata"][IMPORTED], "digest": taken_digests}
    return conflicts


def _base_digests(
    current: Document,
    incoming: Document,
    current_digests: dict[str, str],
    *,
    is_own: bool,
    is_trusted: bool,
) -> dict[str, str]:
    """Return the digests of the version that both sides began with, as far as it is known.

    The digests of another program's conversation were stored by the last import. A capsule with all
    messages that are here, and a later time, is a later version of the present one.
    """
    if not is_own:
        stored: dict[str, str] = object_of(provenance_of(current).get("digest"))
        return stored
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
    source_fields, target_fields = incoming["metadata"], result["metadata"]
    if name in _OF_HEAD:
        source_fields, target_fields = incoming, result
    target_fields.pop(name, None)
    if name in source_fields:
        target_fields[name] = source_fields[name]
    if name == "title":
        result["metadata"]["titleSetBy"] = incoming["metadata"].get("titleSetBy", "auto")


def _parent(source_tree: Tree, place: int, places: dict[str, int]) -> str | None:
    """Return the nearest ancestor of a message of the source that is here. None: there is none."""
    ancestor = source_tree.parents[place]
    while ancestor >= 0 and source_tree.ids[ancestor] not in places:
        ancestor = source_tree.parents[ancestor]
    return None if ancestor < 0 else source_tree.ids[ancestor]


def _append(history: list[Document], entry: Document, parent: str | None) -> None:
    previous_id = history[-1]["id"] if history else None
    fields = without(entry, "parent")
    if parent != previous_id:
        fields["parent"] = parent
    history.append(order_message(fields))


def _leaf(document: Document) -> str | None:
    """Return the id of the last message of the active branch. None: there is no message."""
    history = document["history"]
    leaf = Tree(history).active_leaf(document["metadata"].get("currentNode"))
    return None if leaf < 0 else history[leaf]["id"]


def _choose_active_leaf(
    document: Document, old_leaf: str | None, source_leaf: str | None, added_ids: Collection[str]
) -> None:
    """Make the source's branch the active one if it ends in a new message.

    If somebody continued the conversation here, the new branch must continue from that message.
    """
    history = document["history"]
    places = {entry["id"]: place for place, entry in enumerate(history)}
    is_continued_here = old_leaf is not None and not provenance_of(history[places[old_leaf]])
    new_leaf = old_leaf
    if source_leaf is not None and source_leaf in added_ids:
        path = [history[place]["id"] for place in Tree(history).path_to(places[source_leaf])]
        if not is_continued_here or old_leaf in path:
            new_leaf = source_leaf
    if new_leaf == _leaf(document):
        return
    document["metadata"] = without(document["metadata"], "currentNode")
    if new_leaf is not None and new_leaf != _leaf(document):
        document["metadata"]["currentNode"] = new_leaf
