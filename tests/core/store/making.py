"""Closed conversations for the tests of what agents may do."""

from __future__ import annotations

from typing import Any

from capsule import Store
from capsule.format.documents import creation
from capsule.format.documents.channels import Channel
from capsule.format.json.canonical import order_message
from capsule.store.creation import write_new

#: Earlier than any message, and later.
EARLY, LATE = "2020-01-01T00:00:00.000Z", "2020-06-01T00:00:00.000Z"


def make(store: Store, id: str, *participants: Any, type: str = "group", **metadata: Any) -> str:
    """Make a conversation of these participants, with the message "first" of anna."""
    return _made(store, id, type, participants, metadata, [_message(id, "first", role="user")])


def branched(
    store: Store, id: str, *participants: Any, type: str = "group", **metadata: Any
) -> str:
    """As `make`, with two answers to the message; the second is the end of the active branch."""
    answers = [
        _message(id, answer, role="assistant", parent=f"{id}-first") for answer in ("one", "two")
    ]
    return _made(
        store, id, type, participants, metadata, [_message(id, "first", role="user"), *answers]
    )


def _message(id: str, content: str, **fields: Any) -> dict[str, Any]:
    return {
        "content": content,
        "timestamp": EARLY,
        "id": f"{id}-{content}",
        "from": "anna",
        **fields,
    }


def _made(
    store: Store,
    id: str,
    type: str,
    participants: Any,
    metadata: Any,
    messages: list[dict[str, Any]],
) -> str:
    about = {"participants": list(participants), **metadata}
    messages = [order_message(message) for message in messages]
    write_new(
        store.inner,
        creation.new_capsule(id, id.title(), EARLY, type=type, messages=messages, metadata=about),
    )
    return id


def channel(store: Store, id: str, *participants: Any, **settings: Any) -> str:
    """Make an empty channel of these participants, with the settings of `Channel`."""
    _, scope, name = id.split("_")
    about = {
        "participants": list(participants),
        "channel": Channel(name, scope, **settings).as_json(),
    }
    write_new(
        store.inner,
        creation.new_capsule(id, name, EARLY, type="channel", title_set_by="user", metadata=about),
    )
    return id


def set_fields(store: Store, agent: str, **fields: Any) -> None:
    """Change the document of an agent."""
    store.agents._documents.edit(agent, lambda document: document.update(fields))
