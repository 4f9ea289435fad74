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
from capsule.format.merge.annotations import MergeResult, Switch, deferred_switch
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
_CURRENT_NODE, _CURRENT_WANTED = "currentNode", "currentWanted"
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
    # Conversations with many writers have a line (see `capsule.format.merge.history`).
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

    The side that switched to another branch wins. Of two switches the one to the later message
    wins. If that message is deleted, the node is set as after a removal in the store.
    """
    base_metadata = base.get("metadata", {})
    switches = []
    for version in (ours, theirs):
        switch = _switch_since(base_metadata, version["metadata"])
        if switch is not None:
            switches.append(switch)
    if switches:
        winner = max(switches, key=lambda switch: _switch_rank(switch, histories))
    else:
        winner = Switch(base_metadata.get(_CURRENT_NODE, ABSENT), ABSENT)
    message = winner.message
    if not isinstance(message, str):
        return {}  # No branch was chosen.
    present_ids = {entry["id"] for entry in history}
    if message in present_ids:
        return {_CURRENT_NODE: message}
    if message not in histories.base.entries and winner.instead is ABSENT:
        # It was not deleted: no version has the message that this one names. The name is kept.
        return {_CURRENT_NODE: message}
    instead = _message_instead(winner, histories.base, present_ids, history)
    result: dict[str, Any] = {}
    if instead is not None:
        result[_CURRENT_NODE] = instead
    if switches:
        # The next merge compares this switch with those of its sides, and not what is active
        # instead. So all orders of merges agree.
        result[_CURRENT_WANTED] = {"message": message, "instead": instead}
    return result


def _switch_since(base_metadata: Mapping[str, Any], metadata: Mapping[str, Any]) -> Switch | None:
    """Return the switch to another branch that a version made since the base, or None."""
    current = metadata.get(_CURRENT_NODE, ABSENT)
    deferred = deferred_switch(metadata)
    base_deferred = deferred_switch(base_metadata)
    if deferred is not None and deferred != base_deferred:
        # An earlier merge found this switch, and that its message is deleted.
        return deferred
    if deferred == base_deferred and same(current, base_metadata.get(_CURRENT_NODE, ABSENT)):
        return None
    return Switch(current, ABSENT)


def _switch_rank(switch: Switch, histories: HistoryMerge) -> tuple[Any, ...]:
    """Return a key that is greater for a switch to a later message, and least for one to none.

    The time is that of the message itself: its branch may have grown on either side since.
    """
    entry: Mapping[str, Any] = {}
    for side in (histories.base, histories.ours, histories.theirs):
        if switch.message in side.entries:
            entry = side.entries[switch.message]
            break
    names_message = isinstance(switch.message, str)
    time = entry.get("timestamp") or ""
    return names_message, time, encode_value(switch.message), encode_value(switch.instead)


def _message_instead(
    switch: Switch,
    base: HistorySide,
    present_ids: set[str],
    history: Sequence[Mapping[str, Any]],
) -> str | None:
    """Return the message that is active instead of the deleted one of a switch, or None."""
    # An earlier merge may have deleted it before the base. Then that merge's choice counts, which
    # may be deleted by now as well.
    candidate: str | None = switch.message if switch.message in base.entries else switch.instead
    if candidate is None or candidate in present_ids:
        return candidate
    if candidate not in base.entries:
        return None
    removed = {index for index, id in enumerate(base.ids) if id not in present_ids}
    branch = base.tree.path_to(base.tree.active_leaf(candidate))
    removed_end = [*takewhile(removed.__contains__, reversed(branch))]
    # The store would have been asked to remove the topmost removed message at the branch's end.
    topmost = removed_end[-1] if removed_end else None
    return current_after_removal(base.tree, candidate, removed, topmost, history)
