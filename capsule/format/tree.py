"""The tree of messages: which of them lie on the active branch.

What must stay true: a conversation in which nobody branched off costs nothing here; and whatever stands in the file
(a parent that isn't there, a circle), there is an answer, the same for the same file. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ROOT", "active"]

#: Stands for `"parent": null`.
ROOT = ""


def active(messages: Sequence[tuple[str, str | None]], current: str | None) -> list[bool]:
    """Which messages lie on the active branch.

    The active leaf is reached from `current` by following the newest child; without it, it is the last message. The
    branch is the leaf and all it answers, up to a root.

    Args:
        messages: Id and parent of each, in the order of `history`. A parent of None: the message before; `ROOT`: none.
        current: `metadata.currentNode`; one that is no message here counts as none.
    """
    places: dict[str, int] = {}
    for at, (id, _) in enumerate(messages):
        places.setdefault(id, at)
    parents = [_parent(at, parent, places) for at, (_, parent) in enumerate(messages)]
    on = [False] * len(messages)
    leaf = len(messages) - 1
    if current is not None and current in places:
        leaf = _newest_below(places[current], parents)
    while leaf >= 0 and not on[leaf]:
        on[leaf] = True
        leaf = parents[leaf]
    return on


def _parent(at: int, parent: str | None, places: dict[str, int]) -> int:
    """The place of the message that the one at `at` answers; -1: none. An unknown one counts as absent."""
    if parent == ROOT:
        return -1
    if parent is None or places.get(parent, at) == at:
        return at - 1
    return places[parent]


def _newest_below(at: int, parents: list[int]) -> int:
    """The leaf that is reached from `at` by following the newest child, which is the last in the history."""
    newest: dict[int, int] = {}
    for child, parent in enumerate(parents):
        newest[parent] = child
    seen = set()
    while at in newest and at not in seen:
        seen.add(at)
        at = newest[at]
    return at
