"""Merge two versions of a capsule by meaning; docs/format.md, "Merging", has the laws and the
rules.

The merge has three versions, as diff3 does (Khanna, Kunal, Pierce: A Formal Investigation of Diff3,
2007): the base, which is the common ancestor, and two sides, ours and theirs. The steps of `merge`:

1. Bring each version into its clean form. Equal messages of two versions become one object.
2. Give messages that a person typed without an id the same id on both sides.
3. Merge the head field by field (`capsule.format.merge.fields`), and the messages by id
   (`capsule.format.merge.history`).
4. Find the active branch.

A conflict that no rule decides is recorded in `metadata.conflicts`, for a person. Information that
a merged capsule could not show otherwise is annotated in it (`capsule.format.merge.annotations`).

What must stay true: the difference of each side to the base decides, and never the result of an
earlier merge. The result does not depend on the order of the sides. Pure: no clock, no chance, no
file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from capsule.errors import InvalidDocument, Problem
from capsule.format.documents.creation import FORMAT_VERSION
from capsule.format.json.canonical import in_order
from capsule.format.merge.annotations import MergeResult, deferred_switch
from capsule.format.merge.clean_form import clean_document, is_clean
from capsule.format.merge.fields import HeadMerge
from capsule.format.merge.history import (
    HistoryMerge,
    HistorySide,
    unify_generated_ids,
    with_renamed_ids,
)
from capsule.format.merge.three_way import ABSENT, encode_value, same
from capsule.format.text.escaping import one_line
from capsule.format.tree.branches import current_after_removal

Document = dict[str, Any]
_CURRENT_NODE, _DEFERRED = "currentNode", "currentWanted"
_TEXT_TYPE = frozenset({str})
_EMPTY: Document = {"metadata": {}, "context": {}, "history": []}


def merge(base: Document | None, ours: Document, theirs: Document, path: str = "") -> MergeResult:
    """Merge two versions of a capsule, as `codec.decode` returns and `validation.check` accepts
    them.

    Args:
        base: The common ancestor, or None.
        ours, theirs: The versions.
        path: The name of the file, for the error.

    Raises:
        InvalidDocument: They are not versions of one conversation, or one is of a newer major
            version.

    Cost: about as much as parsing the three versions. Messages that they share are compared once.
    """
    base_version = _EMPTY if base is None else _clean_version(base, path)
    our_version = _clean_version(ours, path, base_version)
    their_version = _clean_version(theirs, path, base_version, our_version)
    _check_ids([base_version, our_version, their_version], path)
    if _is_same_document(our_version, their_version):
        return MergeResult(our_version)
    if _is_same_document(their_version, base_version):
        return MergeResult(our_version)
    if _is_same_document(our_version, base_version):
        return MergeResult(their_version)
    our_names, their_names = unify_generated_ids(
        base_version["history"], our_version["history"], their_version["history"]
    )
    return _merge_changed(
        base_version,
        with_renamed_ids(our_version, our_names),
        with_renamed_ids(their_version, their_names),
        path,
    )


def _check_ids(versions: list[Document], path: str) -> None:
    """Raise InvalidDocument unless all versions are of one conversation."""
    ids = dict.fromkeys(version["id"] for version in versions if version is not _EMPTY)
    if len(ids) > 1:
        names = ", ".join(map(one_line, ids))
        reason = f"these are versions of different conversations: {names}"
        raise InvalidDocument.of([Problem(path, 0, 0, "id", reason)])


def _merge_changed(base: Document, ours: Document, theirs: Document, path: str) -> MergeResult:
    """Merge two versions that both changed."""
    heads = HeadMerge(base, ours, theirs)
    document = heads.merge()
    is_line = document["metadata"].get("type", "chat") != "chat"
    read_side = partial(HistorySide, conversation=ours["id"], is_line=is_line)
    base_side = read_side(base["history"])
    histories = HistoryMerge(
        base_side,
        read_side(ours["history"], base=base_side),
        read_side(theirs["history"], base=base_side),
        ours["id"],
    )
    history, notes = histories.merge()
    document["metadata"] |= _merge_current(base, ours, theirs, histories, history)
    # The messages are clean already.
    merged = clean_document(in_order({**document, "history": []}), path) | {"history": history}
    conflicts = tuple(sorted(heads.conflicts, key=lambda conflict: conflict.field))
    return MergeResult(merged, conflicts, (*sorted(heads.notes), *notes))


# --- Equal parts of the versions ---


def _clean_version(document: Document, path: str, *shared_versions: Document) -> Document:
    """Return the clean form of a version.

    A message that equals one of the shared versions, as nearly all do, becomes that very object.
    """
    if document.get("version") == FORMAT_VERSION:
        history = _share_messages(document["history"], shared_versions)
        pairs = zip(history, document["history"], strict=True)
        # The messages of the shared versions are clean.
        if all(is_clean(message) for message, own_message in pairs if message is own_message):
            return clean_document({**document, "history": []}, path) | {"history": history}
    cleaned = clean_document(document, path)
    return cleaned | {"history": _share_messages(cleaned["history"], shared_versions)}


def _share_messages(history: list[Document], shared_versions: Iterable[Document]) -> list[Document]:
    """Return the history with the objects of the shared versions in place of equal messages."""
    result = history
    for version in shared_versions:
        shared_messages = {message["id"]: message for message in version["history"]}
        own_messages = result
        result = []
        for message in own_messages:
            shared = shared_messages.get(message.get("id"))
            if shared is not None and _is_same_message(message, shared):
                result.append(shared)
            else:
                result.append(message)
    return result


def _is_same_message(a: Document, b: Document) -> bool:
    """Return whether two messages have the same JSON."""
    if a is b:
        return True
    if a != b:
        return False
    # Equal texts have the same JSON. Other equal values may not: 1 and 1.0.
    has_only_texts = _TEXT_TYPE.issuperset(map(type, a.values()))
    return (has_only_texts and [*a] == [*b]) or same(a, b)


def _is_same_document(a: Document, b: Document) -> bool:
    """Return whether two versions have the same JSON."""
    if len(a["history"]) != len(b["history"]):
        return False
    if not all(map(same, a["history"], b["history"])):
        return False
    return same(a | {"history": []}, b | {"history": []})


# --- The active branch ---


def _merge_current(
    base: Document,
    ours: Document,
    theirs: Document,
    histories: HistoryMerge,
    history: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return `currentNode` and `currentWanted` of the merged capsule, if it needs them.

    The side that switched to another branch wins. Of two the one wins that switched to the later
    message. If that message is deleted, the node is set as after a removal in the store.
    """
    base_metadata = base.get("metadata", {})
    switches = []
    for version in (ours, theirs):
        switch = _switch_target(base_metadata, version["metadata"])
        if switch is not None:
            switches.append(switch)
    wanted_message = base_metadata.get(_CURRENT_NODE, ABSENT)
    replacement: Any = ABSENT
    if switches:
        # By the time of the message itself: its branch may have grown on either side since.
        wanted_message, replacement = max(
            switches,
            key=lambda switch: (_message_rank(switch[0], histories), encode_value(switch[1])),
        )
    if not isinstance(wanted_message, str):
        return {}
    present_ids = {message["id"] for message in history}
    base_entries = histories.base.entries
    is_in_base = wanted_message in base_entries
    if wanted_message in present_ids or (not is_in_base and replacement is ABSENT):
        return {_CURRENT_NODE: wanted_message}
    current: str | None = wanted_message if is_in_base else replacement
    if current is not None and current not in present_ids:
        if current in base_entries:
            current = _replacement_for(current, histories.base, present_ids, history)
        else:
            current = None
    result: dict[str, Any] = {}
    if current is not None:
        result[_CURRENT_NODE] = current
    if switches:
        result[_DEFERRED] = {"message": wanted_message, "instead": current}
    return result


def _switch_target(
    base_metadata: Mapping[str, Any], metadata: Mapping[str, Any]
) -> tuple[Any, Any] | None:
    """Return the message that a version switched to, and its replacement if it was deleted.

    The replacement is ABSENT if it was not deleted. None: the version did not switch.
    """
    current = metadata.get(_CURRENT_NODE, ABSENT)
    deferred = deferred_switch(metadata)
    base_deferred = deferred_switch(base_metadata)
    if deferred is not None and deferred != base_deferred:
        return deferred
    if deferred == base_deferred and same(current, base_metadata.get(_CURRENT_NODE, ABSENT)):
        return None
    return current, ABSENT


def _message_rank(current: Any, histories: HistoryMerge) -> tuple[bool, str, bytes]:
    """Return a key that is greater for the later message, and least for no message."""
    message: Mapping[str, Any] = {}
    for side in (histories.base, histories.ours, histories.theirs):
        if current in side.entries:
            message = side.entries[current]
            break
    return isinstance(current, str), message.get("timestamp") or "", encode_value(current)


def _replacement_for(
    current: str,
    base: HistorySide,
    present_ids: set[str],
    history: Sequence[Mapping[str, Any]],
) -> str | None:
    """Return the message that takes the place of a deleted one, as after a removal in the store."""
    removed = {index for index, id in enumerate(base.ids) if id not in present_ids}
    path = base.tree.path_to(base.tree.active_leaf(current))
    removed_end = [*takewhile(removed.__contains__, reversed(path))]
    requested = removed_end[-1] if removed_end else None
    return current_after_removal(base.tree, current, removed, requested, history)
