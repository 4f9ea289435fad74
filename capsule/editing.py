"""Editing a conversation as a whole: what a person saved, merged with what was written meanwhile.

What must stay true: the person's text is validated as any file is, and a message that was appended while the editor
was open is in the result, as the person never saw it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capsule.format import migrations
from capsule.settling import decoded

__all__ = ["merged_edit"]


def merged_edit(data: bytes, read: bytes, id: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What makes the edited document out of the one there is now.

    Args:
        data: The file as the person left it.
        read: The file as it was given to them.
        id: The conversation.

    Raises:
        InvalidDocument: `data` is no capsule, or another's; it is named as `{id}.json`.
    """
    path = f"{id}.json"
    edited, _ = migrations.current(decoded(data, path, id), path)
    seen, _ = migrations.current(decoded(read, path, id), path)
    seen_ids = {message.get("id") for message in seen["history"]}

    def merge(now: dict[str, Any]) -> dict[str, Any]:
        there = {message.get("id") for message in edited["history"]}
        unseen = [
            message for message in now["history"] if message.get("id") not in seen_ids and message["id"] not in there
        ]
        title_set_by = "user" if edited["title"] != seen["title"] else edited["metadata"].get("titleSetBy")
        metadata = edited["metadata"] | ({"titleSetBy": title_set_by} if title_set_by else {})
        return edited | {"metadata": metadata, "history": [*edited["history"], *unseen]}

    return merge
