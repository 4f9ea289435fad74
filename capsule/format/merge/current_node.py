"""Which branch is the active one when two versions are merged: `metadata.currentNode`.

What must stay true: the side that went to another branch is followed, and of two the one that went to the later
message; what would name a message that is gone is made good as when it is deleted in the store. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capsule.format.merge.history import Histories
from capsule.format.merge.side import Side
from capsule.format.merge.values import ABSENT, bytes_of, same
from capsule.format.tree.pruning import kept_current

Document = Mapping[str, Any]
CURRENT, WANTED = "currentNode", "currentWanted"


def merged_current(
    base: Document, ours: Document, theirs: Document, histories: Histories, history: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """`currentNode` and `currentWanted` of the merged capsule, as far as it needs them.

    Args:
        base: The common ancestor; an empty one when there is none.
        ours: One side.
        theirs: The other.
        histories: Their histories.
        history: The merged one.
    """
    was = base.get("metadata", {})
    # Later is what the message says itself: the leaf under it may have grown on either side since.
    went = [_went(was, side["metadata"]) for side in (ours, theirs) if _has_gone(was, side["metadata"])]
    wanted, instead = was.get(CURRENT, ABSENT), ABSENT
    if went:
        wanted, instead = max(went, key=lambda one: (_lateness(one[0], histories), bytes_of(one[1])))
    if not isinstance(wanted, str):
        return {}
    there = {message["id"] for message in history}
    known = histories.base.entries
    if wanted in there or (wanted not in known and instead is ABSENT):
        return {CURRENT: wanted}
    now: str | None = wanted if wanted in known else instead
    if now is not None and now not in there:
        now = _made_good(now, histories.base, there, history) if now in known else None
    current = {} if now is None else {CURRENT: now}
    return {**current, WANTED: {"message": wanted, "instead": now}} if went else current


def _has_gone(was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a version went to another branch than the ancestor."""
    return not same(now.get(CURRENT, ABSENT), was.get(CURRENT, ABSENT)) or _wanted(now) != _wanted(was)


def _went(was: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Any, Any]:
    """Where it went; and, when that was gone by then, what took its place, if anything did."""
    wanted = _wanted(now)
    return (now.get(CURRENT, ABSENT), ABSENT) if wanted is None or wanted == _wanted(was) else wanted


def _wanted(about: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """What an earlier merge noted there, unless somebody went elsewhere since."""
    noted = about.get(WANTED)
    if not isinstance(noted, dict) or not isinstance(noted.get("message"), str):
        return None
    instead = noted.get("instead")
    return (noted["message"], instead) if instead == about.get(CURRENT) else None


def _lateness(current: Any, histories: Histories) -> tuple[bool, str, bytes]:
    sides = (histories.base, histories.ours, histories.theirs)
    message = next((side.entries[current] for side in sides if current in side.entries), {})
    return isinstance(current, str), message.get("timestamp") or "", bytes_of(current)


def _made_good(current: str, base: Side, there: set[str], history: Sequence[Mapping[str, Any]]) -> str | None:
    """What takes the place of a message that was deleted, as in the store: see `kept_current`."""
    gone = {at for at, id in enumerate(base.ids) if id not in there}
    path = base.tree.path_to(base.tree.active_leaf(current))
    removed = None
    for place in reversed(path):
        if place not in gone:
            break
        removed = place
    return kept_current(base.tree, current, gone, removed, history)
