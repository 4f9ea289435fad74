"""A new capsule, as the format writes it.

What must stay true: what comes out of here is valid, canonical, and complete for a reader of
version 2.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from capsule.format.json.canonical import in_order

#: The version of the format that is written.
CURRENT = "2.1"


def inactive_lock() -> dict[str, Any]:
    """The lock of a conversation that nobody holds."""
    return {"active": False, "instanceId": None, "timestamp": None, "user": None, "host": None}


def new_metadata() -> dict[str, Any]:
    """The metadata of a conversation of which nothing is known."""
    return {
        "mode": "api",
        "tags": [],
        "isSummary": False,
        "sourceConversationId": None,
        "lock": inactive_lock(),
    }


def empty_context() -> dict[str, Any]:
    """The context of a conversation that was given none."""
    about = {"projectPath": None, "filesIncluded": 0, "estimatedTokens": 0, "contextHash": None}
    return {"fullContext": "", "metadata": about}


def new_capsule(
    id: str,
    title: str,
    stamp: str,
    mode: str = "api",
    type: str = "chat",
    tags: Iterable[str] = (),
    title_set_by: str = "auto",
    lock: Mapping[str, Any] | None = None,
    messages: Iterable[Mapping[str, Any]] = (),
    *,
    context: Mapping[str, Any] | None = None,
    is_summary: bool = False,
    source_conversation_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document of a new conversation, in canonical order.

    Args:
        stamp: When it is made, as the format writes times.
        lock: The lock, when an instance holds the conversation from the start.
        messages: Its first messages, as `check_message` gives them.
        metadata: More fields of the metadata, by their names in the file; None leaves one out.
    """
    about = new_metadata() | {
        "mode": mode,
        "tags": list(tags),
        "isSummary": is_summary,
        "titleSetBy": title_set_by,
    }
    about["sourceConversationId"] = source_conversation_id
    if lock is not None:
        about["lock"] = dict(lock)
    if type != "chat":
        about["type"] = type
    about.update({key: value for key, value in (metadata or {}).items() if value is not None})
    document = {
        "id": id,
        "title": title,
        "version": CURRENT,
        "createdAt": stamp,
        "updatedAt": stamp,
        "metadata": about,
    }
    document["context"] = empty_context() if context is None else dict(context)
    return in_order(document | {"history": list(messages)})
