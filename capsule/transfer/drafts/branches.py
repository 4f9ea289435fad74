"""The messages of a draft as a tree: parents before children, gaps closed, and the line that is
active.

What must stay true: every set of messages has an order, the same each time. What is odd (an unknown
parent, a circle, an id that stands twice) is reported and read around; no message is lost. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from capsule.format.tree.tree import Tree
from capsule.transfer.records.pairs import Fields

#: The parent of a root.
_ROOT = ""


def active_line(head: Fields, history: list[Fields]) -> list[Fields]:
    """The messages of the active branch, from its root, of a draft that is written."""
    return [
        history[place] for place in Tree(history).path(head.get("metadata", {}).get("currentNode"))
    ]


def ordered(history: list[Fields], tell: Callable[[str, str], None]) -> list[Fields]:
    """The messages with an `id` and a `parent` each, parents before children; else in the order of
    the source.

    A message without an id gets its place, after `#`. A parent of None is a root.

    `tell` takes what is odd, and the id of the message.
    """
    if (quick := _in_order(history)) is not None:
        return quick
    parents: dict[str, str] = {}
    entries: dict[str, Fields] = {}
    last = _ROOT
    for place, entry in enumerate(history):
        id = str(entry["id"]) if entry.get("id") is not None else f"#{place}"
        if id in entries:
            if entries[id] == entry:
                continue
            tell(f"two messages have the id {id[:80]}", id)
            id = f"{id}#{place}"
        parent = entry.get("parent", last)
        parents[id] = _ROOT if parent is None else str(parent)
        entries[id], last = entry, id
    before = _ROOT
    for id, entry in entries.items():
        if parents[id] not in parents and parents[id] != _ROOT:
            if "role" in entry:
                tell(f"message {id[:80]} answers one that is not there", id)
            parents[id] = before
        before = id
    result: dict[str, Fields] = {}
    for id in entries:
        chain = dict[str, None]()
        above = id
        while above != _ROOT and above not in result and above not in chain:
            chain[above] = None
            above = parents[above]
        if above in chain:
            tell(f"messages answer each other in a circle, at {above[:80]}", above)
            parents[next(reversed(chain))] = _ROOT
        for member in reversed(chain):
            if "role" in entries[member]:
                result[member] = entries[member] | {
                    "id": member,
                    "parent": _nearest(parents[member], parents, result),
                }
    return list(result.values())


def _in_order(history: list[Fields]) -> list[Fields] | None:
    """Order messages whose parents all come before them, as most do; None: some do not."""
    result: list[Fields] = []
    #: By each id, the message that is there of it: itself, or the nearest above it.
    nearest: dict[str | None, str | None] = {None: None}
    last: str | None = None
    for entry in history:
        id, parent = entry.get("id"), entry.get("parent", last)
        if (
            type(id) is not str
            or id in nearest
            or not isinstance(parent, str | None)
            or parent not in nearest
        ):
            return None
        last, nearest[id] = id, id if "role" in entry else nearest[parent]
        if "role" in entry:
            result.append({**entry, "parent": nearest[parent]})
    return result


def _nearest(above: str, parents: dict[str, str], messages: dict[str, Fields]) -> str | None:
    """The nearest message from `above` upwards; None: there is none."""
    while above != _ROOT and above not in messages:
        above = parents[above]
    return above or None
