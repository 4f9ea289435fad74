"""What was written before, changed: one message, the whole conversation as a person saved it, or its file's layout.

What must stay true: a message that is edited stays where it is; a file that a person edited is validated as any file
is, and a message that was appended while the editor was open is in the result, as the person never saw it. What
changed says when (`editedAt`), and that is later than all that was there before, whatever the clock says: by it a
summary knows what changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from capsule.engines.files.external_edits import decoded
from capsule.format import canonical, codec, migrations
from capsule.format.message import check_message
from capsule.format.references import find_message
from capsule.format.tree.pruning import retitle
from capsule.store.change import encoded_within
from capsule.store.reading import KIND

if TYPE_CHECKING:
    from capsule.format.head import Head
    from capsule.format.models import Message
    from capsule.store.change import Conversation
    from capsule.store.store import Store

Whose = Literal["own", "agent", "person"]


class Edits:
    """Changes of what was written before."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def message(self, id: str, message_id: str, content: str) -> Message:
        """Change the text of one message in place. `editedAt` says when, and the former text goes to the trash.

        Args:
            id: The conversation.
            message_id: The message's id, a unique prefix of it of 4 characters or more, `@N` or `@last`.
            content: The new text.

        Raises as `append`. Cost: reading and writing the whole file.
        """
        check_message({"role": "user", "content": content})

        def act(conversation: Conversation) -> dict[str, Any]:
            place = find_message(conversation.document()["history"], message_id, id)

            def change(document: dict[str, Any]) -> None:
                history = document["history"]
                if history[place]["content"] != content:
                    history[place] |= {"content": content, "editedAt": document["updatedAt"]}
                encoded_within(history[place], self._store.settings.message_bytes)
                retitle(document, conversation.document()["history"], history)

            after = conversation.rewrite(change, reason="edited")
            return {"at": place, "entry": after["history"][place]}

        done = self._store._change(id, act)
        from capsule.format.models import Message

        return Message.model_validate(done["entry"]).placed(done["at"])

    def rewrite(self, id: str, data: bytes, read: bytes) -> Head:
        """Save a conversation that a person edited as a whole. What they removed or changed goes to the trash.

        Args:
            id: The conversation.
            data: The file as the person left it.
            read: The file as they got it. What was written since is merged into theirs.

        Raises as `append`; also
            InvalidDocument: `data` is no capsule, or that of another conversation; nothing was written.

        Cost: reading and writing the whole file.
        """
        edited = _merged_edit(data, read, id)

        def change(document: dict[str, Any]) -> dict[str, Any]:
            after = edited(document)
            after["metadata"]["lock"] = document["metadata"]["lock"]
            return after

        def act(conversation: Conversation) -> dict[str, Any]:
            return conversation.rewrite(change, reason="edited")

        return self._store._head_of(id, self._store._change(id, act))

    def migrate(self, id: str, *, check: bool = False) -> list[str]:
        """Bring a file to the current version and to the canonical layout.

        Args:
            id: The conversation.
            check: Only say what would be done.

        Returns:
            What was changed, in words; empty if there was nothing to do.

        Raises as `append`. Cost: reading the whole file, and writing it if it changes.
        """
        path = self._store.engine.name(KIND, id)
        data = self._store.read(id)
        document, changes = migrations.current(codec.decode(data, path), path)
        if not changes and codec.encode(canonical.in_order(document)) != data:
            changes = ["brought into the canonical layout"]
        if changes and not check:
            self._store._change(id, lambda conversation: conversation.rewrite(lambda document: None, stamp=None))
        return changes


def _merged_edit(data: bytes, read: bytes, id: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
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
    seen_by_id = {message.get("id"): message for message in seen["history"]}

    def merge(now: dict[str, Any]) -> dict[str, Any]:
        there = {message.get("id") for message in edited["history"]}
        unseen = [
            message for message in now["history"] if message.get("id") not in seen_by_id and message["id"] not in there
        ]
        stamp = now["updatedAt"]
        history = [_dated(message, seen_by_id.get(message.get("id")), stamp) for message in edited["history"]]
        title_set_by = "user" if edited["title"] != seen["title"] else edited["metadata"].get("titleSetBy")
        metadata = edited["metadata"] | ({"titleSetBy": title_set_by} if title_set_by else {})
        return edited | {"metadata": metadata, "history": [*history, *unseen]}

    return merge


def _dated(message: dict[str, Any], seen: dict[str, Any] | None, stamp: str) -> dict[str, Any]:
    """A message as a person left it; it says when it was edited, unless they said so."""
    if seen is None or message["content"] == seen["content"] or message.get("editedAt") != seen.get("editedAt"):
        return message
    return message | {"editedAt": stamp}


def whose(message: Mapping[str, Any], me: str | None) -> Whose:
    """Whose words a message is, for whoever wants to change or remove it. Every door that acts for an agent asks this.

    What a person wrote is changed at that person's word alone, and what an agent wrote by that agent.

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
