"""The conversations changed last, in pages that hold while others write.

What must stay true: a cursor is a place in the order of changes, not a number of rows; a conversation that changes
while somebody pages moves to the front, and none of the others is left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING

from capsule import timestamps

if TYPE_CHECKING:
    from capsule.head import Head

__all__ = ["newest", "place"]


def place(head: Head) -> str:
    """The place of a conversation in the order of changes: a cursor."""
    return f"{timestamps.sortable(head.updated_at)}/{head.id}"


def newest(heads: Iterable[Head], most: int, cursor: str | None = None) -> tuple[list[Head], str | None]:
    """The `most` conversations changed last, newest first, from a cursor on; and the cursor of what is left, if any."""
    places = ((place(head), head) for head in heads)
    older = (pair for pair in places if not cursor or pair[0] < cursor)
    found = heapq.nlargest(most + 1, older, key=lambda pair: pair[0])
    shown = [head for _, head in found[:most]]
    return shown, found[most - 1][0] if len(found) > most else None
