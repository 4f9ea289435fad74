"""Merging two versions of a capsule by meaning, three ways; docs/format.md, "Merging", has the laws
and the rules.

What must stay true besides: what decides is what the versions say of their ancestor, never what an
earlier merge made of it. What a merged capsule could not show otherwise is noted in it: the deleted
message that a message answered (`metadata.originalParent` of the message), and the message that a
version switched to (`metadata.currentWanted`).

The steps: what each version says, with the same ids for what was typed (`side`); the messages by id
(`history`) and their order (`order`); the active branch (below); the head field by field (`head`).
`values` merges single values, and `conflicts` holds what a person has to settle. The three ways are
those of diff3 (Khanna, Kunal, Pierce: A Formal Investigation of Diff3, 2007). Pure: no clock, no
chance, no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from capsule.errors import InvalidDocument, Problem
from capsule.format.documents.creation import CURRENT
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
_NODE, _WANTED = "currentNode", "currentWanted"
_TEXTS = frozenset({str})
_EMPTY: Document = {"metadata": {}, "context": {}, "history": []}


def merge(base: Document | None, ours: Document, theirs: Document, path: str = "") -> MergeResult:
    """Merge two versions of a capsule, as `codec.decode` gave them and `validation.check` accepts
    them.

    `base` is the version that both began from; None: there is none. `path` names the file in the
    error.

    Raises:
        InvalidDocument: They are not versions of one conversation, or one is of a newer major
            version.

    Cost: about that of parsing the three; what they share is compared once.
    """
    was = _EMPTY if base is None else _version(base, path)
    ours = _version(ours, path, was)
    theirs = _version(theirs, path, was, ours)
    ids = dict.fromkeys(side["id"] for side in (was, ours, theirs) if side is not _EMPTY)
    if len(ids) > 1:
        reason = f"these are versions of different conversations: {', '.join(map(one_line, ids))}"
        raise InvalidDocument.of([Problem(path, 0, 0, "id", reason)])
    if _are_alike(ours, theirs) or _are_alike(theirs, was):
        return MergeResult(ours)
    if _are_alike(ours, was):
        return MergeResult(theirs)
    names = unify_generated_ids(was["history"], ours["history"], theirs["history"])
    ours, theirs = (
        with_renamed_ids(side, renamed) for side, renamed in zip((ours, theirs), names, strict=True)
    )
    heads = HeadMerge(was, ours, theirs)
    document = heads.merged()
    is_line = document["metadata"].get("type", "chat") != "chat"
    side = partial(HistorySide, conversation=ours["id"], is_line=is_line)
    first = side(was["history"])
    histories = HistoryMerge(
        first, side(ours["history"], base=first), side(theirs["history"], base=first), ours["id"]
    )
    history, notes = histories.merged()
    document["metadata"] |= _merged_current(was, ours, theirs, histories, history)
    # The messages are as they should be by now.
    document = clean_document(in_order({**document, "history": []}), path) | {"history": history}
    conflicts = tuple(sorted(heads.conflicts, key=lambda each: each.field))
    return MergeResult(document, conflicts, (*sorted(heads.notes), *notes))


def _version(document: Document, path: str, *known: Document) -> Document:
    """The clean form. A message that is written as in one of the known versions, as nearly all are,
    is the very one.
    """
    if document.get("version") == CURRENT:
        history = _shared(document["history"], known)
        if all(
            is_clean(now)
            for now, had in zip(history, document["history"], strict=True)
            if now is had
        ):
            return clean_document({**document, "history": []}, path) | {"history": history}
    document = clean_document(document, path)
    return document | {"history": _shared(document["history"], known)}


def _shared(history: list[Document], known: Iterable[Document]) -> list[Document]:
    for version in known:
        there = {message["id"]: message for message in version["history"]}
        pairs = [(message, there.get(message.get("id"))) for message in history]
        history = [
            other
            if other is not message and other == message and _is_alike(message, other)
            else message
            for message, other in pairs
        ]
    return history


def _is_alike(left: Document, right: Document) -> bool:
    """Whether two equal messages are written alike; of texts Python's equality says enough."""
    return ([*left] == [*right] and _TEXTS.issuperset(map(type, left.values()))) or same(
        left, right
    )


def _are_alike(left: Document, right: Document) -> bool:
    """Whether two versions are written alike."""
    histories = left["history"], right["history"]
    are_same = len(histories[0]) == len(histories[1]) and all(map(same, *histories))
    return are_same and same(left | {"history": []}, right | {"history": []})


# -- The active branch -----------------------------------------------------------------------------


def _merged_current(
    base: Document,
    ours: Document,
    theirs: Document,
    histories: HistoryMerge,
    history: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """`currentNode` and `currentWanted` of the merged capsule, as far as it needs them.

    The side that switched to another branch wins, and of two the one that switched to the later
    message. If that message is gone, the node is set as after a deletion in the store.
    """
    was = base.get("metadata", {})
    # Later is what the message says itself: the leaf under it may have grown on either side since.
    went = [place for side in (ours, theirs) if (place := _went(was, side["metadata"]))]
    wanted, instead = was.get(_NODE, ABSENT), ABSENT
    if went:
        wanted, instead = max(
            went, key=lambda each: (_lateness(each[0], histories), encode_value(each[1]))
        )
    if not isinstance(wanted, str):
        return {}
    there = {message["id"] for message in history}
    known = histories.base.entries
    if wanted in there or (wanted not in known and instead is ABSENT):
        return {_NODE: wanted}
    now: str | None = wanted if wanted in known else instead
    if now is not None and now not in there:
        now = _made_good(now, histories.base, there, history) if now in known else None
    current = {} if now is None else {_NODE: now}
    return {**current, _WANTED: {"message": wanted, "instead": now}} if went else current


def _went(was: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Where a version went; and, when that was gone by then, what took its place, if anything did.
    None: nowhere.
    """
    current, wanted = now.get(_NODE, ABSENT), deferred_switch(now)
    if wanted is not None and wanted != deferred_switch(was):
        return wanted
    return (
        None
        if wanted == deferred_switch(was) and same(current, was.get(_NODE, ABSENT))
        else (current, ABSENT)
    )


def _lateness(current: Any, histories: HistoryMerge) -> tuple[bool, str, bytes]:
    sides = (histories.base, histories.ours, histories.theirs)
    message = next((side.entries[current] for side in sides if current in side.entries), {})
    return isinstance(current, str), message.get("timestamp") or "", encode_value(current)


def _made_good(
    current: str, base: HistorySide, there: set[str], history: Sequence[Mapping[str, Any]]
) -> str | None:
    """The message that takes the place of a deleted one, as in the store."""
    gone = {at for at, id in enumerate(base.ids) if id not in there}
    path = base.tree.path_to(base.tree.active_leaf(current))
    removed = [*takewhile(gone.__contains__, reversed(path))]
    return current_after_removal(
        base.tree, current, gone, removed[-1] if removed else None, history
    )
