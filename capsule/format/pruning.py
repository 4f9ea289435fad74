"""Taking messages out of a history, so that all others go on answering whom they answered.

What must stay true: a message that names no parent answers the entry before it, so whatever goes from between two
entries is made good by naming the parent; nothing else of what stays is touched. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from capsule.errors import InvalidInput
from capsule.format.tree import Tree

__all__ = ["kept_current", "without"]

Message = Mapping[str, Any]


def without(history: Sequence[Message], tree: Tree, gone: Set[int]) -> list[dict[str, Any]]:
    """The history without these messages; what answered one of them answers what that one answered.

    Args:
        history: The messages, each with an id.
        tree: Its tree.
        gone: The places of those that go.

    Raises:
        InvalidInput: An answer to a message whose id stands twice can't be put in words.
    """
    stays = [place for place in range(len(history)) if place not in gone]
    wanted = {place: _above(tree, place, gone) for place in stays}
    result = [dict(history[place]) for place in stays]
    # Only what names its parent wrongly, by the history as it will be, is touched: mostly nothing.
    now = Tree(result)
    went = {tree.ids[place] for place in gone} - {*now.ids, None}
    for at, place in enumerate(stays):
        above = wanted[place]
        names_one_gone = result[at].get("parent") in went
        if (stays[now.parents[at]] if now.parents[at] >= 0 else -1) == above and not names_one_gone:
            continue
        if above >= 0 and tree.places.get(str(tree.ids[above])) != above:
            raise InvalidInput(
                f"two messages have the id {tree.ids[above]}, so it can't be said which is answered; "
                "have that mended first: capsule doctor --repair"
            )
        result[at] = _answering(result[at], None if above < 0 else tree.ids[above])
    return result


def _above(tree: Tree, place: int, gone: Set[int]) -> int:
    """The nearest message above that stays; -1: none."""
    above, seen = tree.parents[place], {place}
    while above in gone and above not in seen:
        seen.add(above)
        above = tree.parents[above]
    return -1 if above in seen else above


def _answering(message: dict[str, Any], parent: str | None) -> dict[str, Any]:
    """The message with another parent, in the place where the format has it."""
    from capsule.format.canonical import order_message

    return order_message(message | {"parent": parent})


def kept_current(
    before: Tree, current: str | None, gone: Set[int], removed: int | None, after: Sequence[Message]
) -> str | None:
    """What `currentNode` must be when messages have gone, so that the active branch is what a person expects.

    It stays the branch that it was. When its end is gone, it is the one that the removed message's newest sibling
    leads to, else it ends at what that message answered.

    Args:
        before: The tree as it was.
        current: `currentNode` as it was.
        gone: The places of those that went.
        removed: The one that was asked to be removed; None: the end of the active branch stays.
        after: The history as it is now.

    Returns:
        The value; None: none is needed. The old one, wherever that does as well.
    """
    if not after:
        return None
    tree = Tree(after)
    leaf = before.active_leaf(current)
    if leaf in gone and removed is not None:
        siblings = [place for place in before.children[before.parents[removed]] if place not in gone]
        if siblings:
            leaf = _leaf_now(tree, before, siblings[-1])
        else:
            above = _above(before, removed, gone)
            leaf = _leaf_now(tree, before, above) if above >= 0 else len(tree) - 1
    else:
        leaf = tree.places[str(before.ids[leaf])]
    wanted = current if current in tree.places else None
    return wanted if tree.active_leaf(wanted) == leaf else str(tree.ids[leaf])


def _leaf_now(tree: Tree, before: Tree, place: int) -> int:
    return tree.leaf(str(before.ids[place]))
