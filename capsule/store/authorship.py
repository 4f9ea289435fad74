"""Whose words a message is, for whoever wants to change or remove it.

What must stay true: one rule, asked by every door that acts for an agent; what a person wrote is changed at that
person's word alone, and what an agent wrote by that agent. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Whose = Literal["own", "agent", "person"]


def whose(message: Mapping[str, Any], me: str | None) -> Whose:
    """Whose words a message is.

    Args:
        message: As it stands in the file.
        me: The agent that asks; None: one that has no name, to which every agent's words may be its own.

    Returns:
        `own`; `agent`: another agent's; `person`: a person's, or of somebody who can't be told from one.
    """
    author = message.get("from")
    if me is not None and author == me:
        return "own"
    if message.get("role") == "user":
        return "person"
    if me is None:
        return "own"
    return "agent" if author else "person"
