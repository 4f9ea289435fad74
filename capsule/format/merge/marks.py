"""What a merge notes in the `metadata` of a message, for the merges that come after it.

What must stay true: what was noted says where a message belongs and nothing of what it says, so no version is told from
another by it; and a field of the same name that holds something else is somebody's own, and left alone. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import orjson

Message = Mapping[str, Any]
#: Of a version that gave way: the id of the message that it is a version of.
VERSION_OF = "versionOf"
#: The id of the one that a message answers, or null, where a merge had to have it answer another, as that one was
#: deleted; or where it stands beside a line, and would be taken for a part of it.
ORIGINAL_PARENT = "originalParent"


def version_of(message: Message) -> str | None:
    """The message that this is a version of that gave way; None: it is none."""
    about = message.get("metadata")
    other = about.get(VERSION_OF) if about else None
    return other if isinstance(other, str) and other else None


def has_original_parent(message: Message) -> bool:
    """Whether a merge noted whom the message answers."""
    about = message.get("metadata")
    return about is not None and isinstance(about.get(ORIGINAL_PARENT, 0), str | None)


def noted(message: Message, parent: str | None) -> dict[str, Any]:
    """The message with this noted, where nobody has a field of that name."""
    about = {**(message.get("metadata") or {})}
    about.setdefault(ORIGINAL_PARENT, parent)
    return {**message, "metadata": about}


def bare(message: Message) -> dict[str, Any]:
    """The message without what says whom it answers."""
    result = {name: value for name, value in message.items() if name != "parent"}
    if has_original_parent(message):
        result["metadata"] = {name: value for name, value in message["metadata"].items() if name != ORIGINAL_PARENT}
        if not result["metadata"]:
            del result["metadata"]
    return result


def digest(message: Message) -> str:
    """What tells one version of a message from another, in hexadecimal."""
    return sha256(orjson.dumps({name: value for name, value in bare(message).items() if name != "id"})).hexdigest()
