"""Merging two orders of messages: each side's order is kept, and between the sides the earlier message comes first.

What must stay true: the result does not depend on the order of the sides, nor on which two of three are merged first;
contradictions have one result too, in linear time. Pure.

Both lists are passed once, as when sorted lists are merged. A message that both sides have waits until both lists have
come to it. Of two messages that wait for nothing, the one with the lower key goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

Key = tuple[str, str]


def in_one_order(
    base: Sequence[str],
    ours: Sequence[str],
    theirs: Sequence[str],
    key: Callable[[str], Key],
    parents: Mapping[str, object],
) -> list[str]:
    """The ids of both sides in one order.

    Args:
        base: The common ancestor's ids, in its order.
        ours: One side's.
        theirs: The other's.
        key: Of a message: its time, then its id.
        parents: The parent of each message; used only where the two orders contradict each other.
    """
    begun = 0  # Most begin alike.
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            break
        begun += 1
    result: list[str] = [*ours[:begun]]
    done: set[str] = set(result)
    base = [id for id in base if id not in done]
    ours, theirs = _moved(base, ours[begun:], theirs[begun:])
    mine, yours = set(ours), set(theirs)
    i = j = 0
    while i < len(ours) and j < len(theirs):
        one, other = ours[i], theirs[j]
        if one == other:
            next_one = one
            i, j = i + 1, j + 1
        elif one in done:
            i += 1
            continue
        elif other in done:
            j += 1
            continue
        elif one in yours and other in mine:
            # Each side has the other's message first: the one whose parent stands already, then the earlier.
            def waiting(id: str) -> bool:
                return parents.get(id) in (mine | yours) - done

            next_one = min((one, other), key=lambda id: (waiting(id), key(id)))
        elif one in yours:
            next_one, j = other, j + 1
        elif other in mine or key(one) < key(other):
            next_one, i = one, i + 1
        else:
            next_one, j = other, j + 1
        if next_one not in done:
            result.append(next_one)
            done.add(next_one)
    result += [id for id in (*ours[i:], *theirs[j:]) if id not in done]
    return result


def _moved(base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The sides, the one that moved nothing brought into the order of the other, when that moved something."""
    shared = set(ours) & set(theirs)
    mine, yours = ([id for id in side if id in shared] for side in (ours, theirs))
    if mine == yours:
        return ours, theirs
    known = set(base)
    was = [id for id in base if id in shared]
    stood = [[id for id in side if id in known] == was for side in (mine, yours)]
    if stood == [True, False]:
        return _like(yours, ours, shared), theirs
    if stood == [False, True]:
        return ours, _like(mine, theirs, shared)
    return ours, theirs


def _like(order: Sequence[str], side: Sequence[str], shared: set[str]) -> list[str]:
    """`side` with what is shared in this order; what only it has stays behind what it stood behind."""
    behind: dict[str, list[str]] = {}
    at = ""
    for id in side:
        if id in shared:
            at = id
        else:
            behind.setdefault(at, []).append(id)
    result = list(behind.get("", []))
    for id in order:
        result += [id, *behind.get(id, [])]
    return result
