"""Appending a message once, however often it is asked for.

Whoever lost the answer to an append can't tell whether it was done. With a key they ask again: the message's id is made
of conversation and key, so the file itself says whether it is there, to every process, after every restart, also when
all that is derived was deleted. What must stay true: whether the id is there is decided under the mutex, from the
file as it then is; and a plain append pays nothing for it.

To know that an id is *not* there, all ids must have been seen. They are looked for once in the bytes of the history,
as the canonical layout has a message's id on a line of its own; after that only in what was appended since. A file
that was written anew is looked through anew, so this never costs more than what was paid for writing it, and a
process's first look at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput
from capsule.format import anatomy, codec
from capsule.format.message import check_message
from capsule.ids import keyed_message_id

if TYPE_CHECKING:
    from capsule.writing import Conversation

__all__ = ["Keyed", "keyed_message"]

_LONGEST_KEY = 256
#: What must be the same in a second request under the same key.
_SAME = ("role", "content", "from", "parent")


def keyed_message(conversation: str, key: str, message: dict[str, Any]) -> dict[str, Any]:
    """A message to be appended once under `key`, checked.

    Raises:
        InvalidInput: Key or message can't be accepted.
    """
    if not key.strip() or len(key) > _LONGEST_KEY:
        raise InvalidInput(f"an idempotency key has 1 to {_LONGEST_KEY} characters; this one has {len(key)}")
    return check_message({**message, "id": keyed_message_id(conversation, key)})


class Keyed:
    """The made ids of the conversations that keys were used on. Several threads may use it."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, int, frozenset[bytes]]] = {}

    def appended(self, conversation: Conversation, message: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        """The place of the message and itself, when it was appended before; else None.

        Args:
            conversation: Under its mutex.
            message: As `keyed_message` gives it.

        Raises:
            InvalidInput: The key was used for another message.
        """
        found = self._found(conversation, message["id"])
        if found is None:
            return None
        at, entry = found
        same = _SAME if "parent" in message else _SAME[:-1]  # The store names a parent by itself, on another branch.
        if "editedAt" not in entry and any(entry.get(name) != message.get(name) for name in same):
            raise InvalidInput(
                f"this idempotency key was used before in conversation {conversation.id}, for another message (@{at}); "
                "nothing was written. Use a new key for a new message"
            )
        conversation.held.flush()  # Whoever appended it may have died before it was durable.
        return found

    def _found(self, conversation: Conversation, id: str) -> tuple[int, dict[str, Any]] | None:
        known = conversation.known
        if known.anatomy is None:
            history = conversation.document()["history"]
            return next(((at, entry) for at, entry in enumerate(history) if entry.get("id") == id), None)
        if id.encode() not in self._ids(conversation):
            return None
        found = anatomy.entry_with(conversation.held.history(known, known.anatomy.history), id)
        if found is None:
            return None
        at, entry = found
        return at, codec.decode(b'{"history":[' + entry + b"]}", conversation.held.path)["history"][0]

    def _ids(self, conversation: Conversation) -> frozenset[bytes]:
        """All made ids in the history of a canonical file."""
        known = conversation.known
        assert known.anatomy is not None
        tag, start, ids = self._seen.get(conversation.id, ("", 0, frozenset[bytes]()))
        if tag != known.tag or start > known.anatomy.tail:
            start, ids = known.anatomy.history, frozenset()
        if start < known.anatomy.tail:
            ids |= anatomy.made_ids(conversation.held.history(known, start))
            if len(self._seen) >= 1024:
                self._seen.clear()
            self._seen[conversation.id] = (known.tag, known.anatomy.tail, ids)
        return ids
