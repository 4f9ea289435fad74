"""Values and pure functions that every kind of engine shares."""

from __future__ import annotations

from typing import Any

from capsule.format.fields import field_names

Document = dict[str, Any]
#: The folder of each kind of side files: files beside the documents that are no documents. The
#: inbox and the outbox belong to one session, `attachments` to the whole store.
SIDE_FILE_FOLDERS = {
    "inbox": "sessions/{}/inbox",
    "outbox": "sessions/{}/outbox",
    "attachments": "attachments",
}
#: The fields that a canonical file has before the context. Unknown fields are behind the context.
_HEAD = frozenset(field_names("")) - {"context", "history"}


def head_fields(document: Document) -> Document:
    """Return the fields of a conversation that a file has before its context."""
    return {key: value for key, value in document.items() if key in _HEAD}


def entry_with_id(history: list[Document], id: str) -> tuple[int, Document] | None:
    """Return the position of the entry with an id, and the entry, or None."""
    for position, entry in enumerate(history):
        if entry.get("id") == id:
            return position, entry
    return None
