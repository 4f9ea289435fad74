"""What an import changes in a conversation that is there.

What must stay true: what was added or changed at the source is taken, and what was changed or
removed here stays. Where both changed the same, a choice decides, and nothing is lost by it: the
store keeps what is replaced in the trash. Nothing is removed because the source lacks it, and an
older export takes nothing back. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
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
from capsule.transfer.records.coercion import object_of, rest

Document = dict[str, Any]
#: Where the source and this store changed the same: leave it, take what the source has, or make a
#: second conversation.
OnConflict = Literal["skip", "update", "copy"]
_OF_HEAD = ("title", "context")


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """A conversation with what an import brings.

    Attributes:
        document: The conversation; it is the present one if nothing changes.
        conflicts: How many fields and messages both had changed.
        kept_title: Whether the source has another title, and that of a person here stays.
    """

    document: Document
    conflicts: int
    kept_title: bool = False


def contradicts(present: Document, incoming: Document) -> bool:
    """Whether a source has other words for a message that was left as it was here, and is not dated
    later.
    """
    if _time_of(incoming) != _time_of(present):
        return False
    there = {entry["id"]: entry for entry in present["history"]}
    pairs = ((there[entry["id"]], entry) for entry in incoming["history"] if entry["id"] in there)
    return any(
        _spoken_fields(mine) != _spoken_fields(other) and _is_newer(mine, other, is_own=False)
        for mine, other in pairs
    )


def _spoken_fields(entry: Document) -> tuple[Any, ...]:
    return entry["role"], entry["content"], entry.get("toolCalls")


def merge(
    present: Document,
    incoming: Document,
    removed: Collection[str],
    *,
    theirs: bool,
    is_own: bool,
    is_other: bool = False,
    is_trusted: bool = False,
) -> MergeOutcome:
    """What becomes of a conversation.

    Args:
        present: The conversation as it is, with the `updatedAt` of the write.
        incoming: What the source has now, as `document_of` makes it; of the same id.
        removed: The ids of messages that were removed here.
        theirs: Whether the source's version is taken where both changed.
        is_own: Whether the source is a capsule of this id.
        is_other: Whether another source brought it. Then this one takes nothing back, unless it is
            dated later.
        is_trusted: Whether the source may replace a title that a person gave.
    """
    conflicts = 0
    before, after = _time_of(present), _time_of(incoming)
    is_older = not is_own and (after < before or (is_other and after == before))
    history = list(present["history"])
    places = {entry["id"]: place for place, entry in enumerate(history)}
    tree, added = Tree(incoming["history"]), list[Document]()
    leaf = _leaf(present)
    for place, entry in enumerate(incoming["history"]):
        at = places.get(entry["id"])
        if at is None:
            if entry["id"] not in removed:
                added.append(entry)
                _append(history, entry, _parent(tree, place, places))
                places[entry["id"]] = len(history) - 1
        elif (
            not is_older and (is_taken := _is_newer(history[at], entry, is_own=is_own)) is not False
        ):
            conflicts += is_taken is None
            if is_taken or theirs:
                link = {"parent": history[at]["parent"]} if "parent" in history[at] else {}
                history[at] = order_message(
                    rest(entry, "parent") | {"editedAt": present["updatedAt"]} | link
                )
    result = present | {"history": history, "metadata": dict(present["metadata"])}
    if not is_older:
        conflicts += _merge_head(
            result, present, incoming, theirs=theirs, is_own=is_own, is_trusted=is_trusted
        )
    _choose_active_leaf(result, leaf, _leaf(incoming), {entry["id"] for entry in added})
    is_named = present["metadata"].get("titleSetBy") != "auto"
    kept_title = is_named and incoming["title"] != result["title"] == present["title"]
    return MergeOutcome(present if result == present else result, conflicts, kept_title)


def _time_of(document: Document) -> str:
    """When the source changed it, as it was imported; empty: it does not say."""
    time = provenance_of(document).get("updatedAt")
    return time if isinstance(time, str) else ""


def _is_newer(present: Document, entry: Document, *, is_own: bool) -> bool | None:
    """Whether a message of the source replaces the present one; None: both were changed."""
    if is_own:
        if digest_of_message(entry) == digest_of_message(present):
            return False
        theirs, ours = entry.get("editedAt") or "", present.get("editedAt") or ""
        return None if theirs == ours else theirs > ours
    if provenance_of(present).get("digest") == entry["metadata"][IMPORTED]["digest"]:
        return False
    return None if is_edited(present) else True


def _merge_head(
    result: Document,
    present: Document,
    incoming: Document,
    *,
    theirs: bool,
    is_own: bool,
    is_trusted: bool,
) -> int:
    """Take what the source changed of the head. The number of fields that were changed here too."""
    now, wanted = digests_of_head(present), digests_of_head(incoming)
    base = {} if is_own else object_of(provenance_of(present).get("digest"))
    has_all = {entry["id"] for entry in incoming["history"]}.issuperset(
        entry["id"] for entry in present["history"]
    )
    if is_own and incoming["updatedAt"] > present["updatedAt"] and has_all:
        base = dict(now)  # It is the same conversation, later.
        if present["metadata"].get("titleSetBy") != "auto" and not is_trusted:
            base.pop(
                "title"
            )  # A title that a person gave here is replaced only if a person says so.
    conflicts, known = 0, dict(wanted)
    for name in {**base, **wanted}:
        if wanted.get(name) in (now.get(name), base.get(name)):
            continue
        if base.get(name) != now.get(name):
            conflicts += 1
            if not theirs:
                known.pop(name, None)
                known |= {name: base[name]} if name in base else {}
                continue
        there, here = (
            (incoming, result) if name in _OF_HEAD else (incoming["metadata"], result["metadata"])
        )
        here.pop(name, None)
        here |= {name: there[name]} if name in there else {}
        if name == "title":
            result["metadata"]["titleSetBy"] = incoming["metadata"].get("titleSetBy", "auto")
    if not is_own:
        result["metadata"][IMPORTED] = {**incoming["metadata"][IMPORTED], "digest": known}
    return conflicts


def _parent(tree: Tree, place: int, places: dict[str, int]) -> str | None:
    """The nearest message above one that is there."""
    above = tree.parents[place]
    while above >= 0 and tree.ids[above] not in places:
        above = tree.parents[above]
    return None if above < 0 else tree.ids[above]


def _append(history: list[Document], entry: Document, parent: str | None) -> None:
    before = history[-1]["id"] if history else None
    history.append(
        order_message(rest(entry, "parent") | ({} if parent == before else {"parent": parent}))
    )


def _leaf(document: Document) -> str | None:
    history = document["history"]
    leaf = Tree(history).active_leaf(document["metadata"].get("currentNode"))
    return None if leaf < 0 else history[leaf]["id"]


def _choose_active_leaf(
    document: Document, leaf: str | None, theirs: str | None, added: Collection[str]
) -> None:
    """Let the active branch be that of the source if it ends in a new message.

    If somebody went on here, it must go on from there.
    """
    history = document["history"]
    places = {entry["id"]: place for place, entry in enumerate(history)}
    here = None if leaf is None else history[places[leaf]]
    is_free = here is None or bool(provenance_of(here))
    wanted = leaf
    if theirs is not None and theirs in added:
        above = [history[place]["id"] for place in Tree(history).path_to(places[theirs])]
        if is_free or leaf in above:
            wanted = theirs
    if wanted == _leaf(document):
        return
    metadata = document["metadata"] = rest(document["metadata"], "currentNode")
    if wanted is not None and wanted != _leaf(document):
        metadata["currentNode"] = wanted
