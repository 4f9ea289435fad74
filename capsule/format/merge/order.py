"""Merging two orders of messages: each side's order is kept, and between the sides the earlier
message comes first.

What must stay true: the result does not depend on the order of the sides, nor on which two of three
are merged first; contradictions have one result too, in linear time. Pure.

Both lists are passed once, as when sorted lists are merged. A message that both sides have waits
until both lists have come to it. Of two messages that wait for nothing, the one with the lower key
goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

Key = tuple[str, str]


def in_one_order(
    base: Sequence[str],
    ours: Sequence[str],
    theirs: Sequence[str],
    key: Callable[[str], Key],
    parents: Mapping[str, object],
) -> list[str]:
    """The ids of both sides in one order.

    `base` is the common ancestor's order. The key of a message is its time, then its id. `parents`
    are used only where the two orders contradict each other.
    """
    begun = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
    )
    result = [*ours[:begun]]  # Most begin alike.
    done = set(result)
    base = [id for id in base if id not in done]
    ours, theirs = _moved(base, ours[begun:], theirs[begun:])
    mine, yours = set(ours), set(theirs)

    def in_contradiction(id: str) -> tuple[bool, Key]:
        return parents.get(id) in (mine | yours) - done, key(id)

    i = j = 0
    while i < len(ours) and j < len(theirs):
        left, right = ours[i], theirs[j]
        if left in done or left == right:
            i += 1
            if left in done:
                continue
            following = left
        elif right in done:
            j += 1
            continue
        elif left in yours and right in mine:
            # Each side has the other's message first: the one whose parent stands already, then the
            # earlier.
            following = min(left, right, key=in_contradiction)
        elif left in yours or not (right in mine or key(left) < key(right)):
            following = right
        else:
            following = left
        result.append(following)
        done.add(following)
    return result + [id for id in (*ours[i:], *theirs[j:]) if id not in done]


def _moved(
    base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """The sides, the one that moved nothing brought into the order of the other, when that moved
    something.
    """
    shared = set(ours) & set(theirs)
    mine, yours = ([id for id in side if id in shared] for side in (ours, theirs))
    if mine == yours:
        return ours, theirs
    known = set(base)
    was = [id for id in base if id in shared]
    stood = [[id for id in side if id in known] == was for side in (mine, yours)]
    if stood == [True, False]:
        return filled(yours, ours), theirs
    if stood == [False, True]:
        return ours, filled(mine, theirs)
    return ours, theirs


def filled(order: Sequence[str], side: Sequence[str]) -> list[str]:
    """`order`, and in it what only `side` has, behind what it stands behind there."""
    there, at = set(order), ""
    behind: dict[str, list[str]] = {}
    for id in side:
        if id in there:
            at = id
        else:
            behind.setdefault(at, []).append(id)
    return [*behind.get("", ()), *(placed for id in order for placed in (id, *behind.get(id, ())))]
