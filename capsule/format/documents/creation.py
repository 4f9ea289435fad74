"""Make new capsules, and the parts of which a capsule without content consists.

What must stay true: valid arguments give a valid capsule in the canonical layout, with every field
that version 2.0 requires. The arguments are not checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from capsule.format.json.canonical import in_order

#: The version of the format that is written into every document, also of agents and projects.
FORMAT_VERSION = "2.1"


def inactive_lock() -> dict[str, Any]:
    """Return the lock of a conversation that nobody holds."""
    return {"active": False, "instanceId": None, "timestamp": None, "user": None, "host": None}


def new_metadata() -> dict[str, Any]:
    """Return the metadata of a conversation without any properties."""
    return {
        "mode": "api",
        "tags": [],
        "isSummary": False,
        "sourceConversationId": None,
        "lock": inactive_lock(),
    }


def empty_context() -> dict[str, Any]:
    """Return the context of a conversation without a project context."""
    metadata = {"projectPath": None, "filesIncluded": 0, "estimatedTokens": 0, "contextHash": None}
    return {"fullContext": "", "metadata": metadata}


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
    """Return the document of a new conversation, in canonical order.

    Args:
        id, title, mode, type, tags, title_set_by: Fields of the conversation. The type `chat` is
            the default of the format, and is not written.
        stamp: The time of `createdAt` and `updatedAt`, as the format writes times.
        lock: The lock, if an instance holds the conversation from the start.
        messages: Its first messages, as `check_message` returns them.
        context: The project context. None: none.
        is_summary, source_conversation_id: The same fields of the metadata.
        metadata: More fields of the metadata, by their names in the file. Those that are None are
            omitted.
    """
    fields = new_metadata() | {
        "mode": mode,
        "tags": list(tags),
        "isSummary": is_summary,
        "titleSetBy": title_set_by,
        "sourceConversationId": source_conversation_id,
    }
    if lock is not None:
        fields["lock"] = dict(lock)
    if type != "chat":
        fields["type"] = type
    for name, value in (metadata or {}).items():
        if value is not None:
            fields[name] = value
    document = {
        "id": id,
        "title": title,
        "version": FORMAT_VERSION,
        "createdAt": stamp,
        "updatedAt": stamp,
        "metadata": fields,
    }
    document["context"] = empty_context() if context is None else dict(context)
    return in_order(document | {"history": list(messages)})
