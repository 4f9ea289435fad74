"""The messages of a conversation's active branch, as they answer each other.

What must stay true: the order is that of ancestry, root first, and never that of times. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capsule.format.tree.tree import Tree


def active_path(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages from the root to the active leaf.

    Args:
        document: A capsule whose messages have ids, as `Store.document` gives it.
    """
    history: list[dict[str, Any]] = document["history"]
    return [history[place] for place in Tree(history).path(document["metadata"].get("currentNode"))]
