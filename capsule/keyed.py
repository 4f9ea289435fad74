"""Making a message or a conversation once, however often it is asked for.

Whoever lost the answer to an append can't tell whether it was done. With a key they ask again: the message's id is made
of conversation and key, so the file itself says whether it is there, to every process, after every restart, also when
all that is derived was deleted. The id of a conversation is made of the key and of what it is made from. What must
stay true: whether the id is there is decided under the mutex, from the file as it then is; and a plain append pays
nothing for it.

To know that an id is *not* there, all ids must have been seen. They are looked for once in the bytes of the history,
as the canonical layout has a message's id on a line of its own; after that only in what was appended since. A file
that was written anew is looked through anew, so this never costs more than what was paid for writing it, and a
process's first look at it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput, NotFound
from capsule.format import anatomy, codec
from capsule.format.message import check_message
from capsule.ids import keyed_conversation_id, keyed_message_id
from capsule.reading import KIND
from capsule.settling import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from capsule.head import Head
    from capsule.reading import Reading
    from capsule.writing import Conversation

__all__ = ["Keyed", "TakenId", "check_key", "keyed_message", "made_once"]

_LONGEST_KEY = 256
#: What must be the same in a second request under the same key.
_SAME = ("role", "content", "from", "parent")


def keyed_message(conversation: str, key: str, message: dict[str, Any]) -> dict[str, Any]:
    """A message to be appended once under `key`, checked.

    Raises:
        InvalidInput: Key or message can't be accepted.
    """
    return check_message({**message, "id": keyed_message_id(conversation, check_key(key))})


def check_key(key: str) -> str:
    """`key`, when it may be one. Raises InvalidInput."""
    if not key.strip() or len(key) > _LONGEST_KEY:
        raise InvalidInput(f"an idempotency key has 1 to {_LONGEST_KEY} characters; this one has {len(key)}")
    return key


class TakenId(InvalidInput):
    """A conversation of this id exists."""


def made_once(
    store: Reading,
    made_by: str,
    source: str,
    key: str,
    make: Callable[[str], Head],
    title: str | None = None,
    first: dict[str, Any] | None = None,
) -> Head:
    """The conversation that is made under a key; it is made when it is not there.

    Args:
        store: Where it is looked for.
        made_by, source: As `keyed_conversation_id` takes them.
        key: The key.
        make: Makes it under an id; raises `TakenId` when somebody was faster.
        title: The title that is asked for, when one is: it tells another request under the same key.
        first: What its first message has, likewise.

    Raises as `make`; also
        InvalidInput: The key was used for another conversation, or for one that lies in the trash.

    Cost: as `make`, and a look into the trash; when it is there, reading and flushing it.
    """
    id = keyed_conversation_id(made_by, source, check_key(key))
    while True:
        try:
            head = store.head(id)
        except NotFound:
            if any(trashed.id == id for trashed in store.storage.trash(KIND)):
                raise InvalidInput(
                    f"conversation {id} was made under this idempotency key and deleted since; nothing was made. Use "
                    "a new key for a new conversation"
                ) from None
            try:
                return make(id)
            except TakenId:
                continue
        document = store.document(id)
        there: dict[str, Any] = next(iter(document["history"]), {})
        is_other = first and "editedAt" not in there and any(there.get(name) != value for name, value in first.items())
        is_renamed = "titleSetAt" in document["metadata"]
        if is_other or (title is not None and not is_renamed and document["title"] != title):
            raise InvalidInput(
                f"this idempotency key was used before, for conversation {id}, which began otherwise; nothing was "
                "made. Use a new key for a new conversation"
            )
        with store.storage.mutex(KIND, id) as held:
            known = settle(held)
            if known.doubt:
                held.flush(known)  # Whoever made it may have died before it was durable.
        return head


class _Seen:
    """The made ids of one conversation, as far as its history was looked through; used under its mutex."""

    __slots__ = ("ids", "start", "tag")

    def __init__(self, tag: str, start: int) -> None:
        self.tag = tag
        self.start = start
        self.ids: set[bytes] = set()


class Keyed:
    """The made ids of the conversations that keys were used on last. Several threads may use it.

    Args:
        limit: How many ids are kept, of all conversations together, but for the one that was asked about last.
    """

    def __init__(self, limit: int = 1_000_000) -> None:
        self._limit = limit
        self._guard = threading.Lock()
        self._seen: dict[str, _Seen] = {}
        self._total = 0

    def appended(
        self, conversation: Conversation, message: dict[str, Any], same: Iterable[str] = _SAME
    ) -> tuple[int, dict[str, Any]] | None:
        """The place of the message and itself, when it was appended before; else None.

        Args:
            conversation: Under its mutex.
            message: As `keyed_message` gives it.
            same: What a retry has in common with the first request.

        Raises:
            InvalidInput: The key was used for another message.
        """
        found = self._found(conversation, message["id"])
        if found is None:
            return None
        at, entry = found
        # The store names a parent by itself, on another branch.
        same = [name for name in same if name != "parent" or name in message]
        if "editedAt" not in entry and any(entry.get(name) != message.get(name) for name in same):
            raise InvalidInput(
                f"this idempotency key was used before in conversation {conversation.id}, for another message (@{at}); "
                "nothing was written. Use a new key for a new message"
            )
        conversation.make_durable()  # Whoever appended it may have died, or failed, before it was.
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

    def _ids(self, conversation: Conversation) -> set[bytes]:
        """All made ids in the history of a canonical file."""
        known = conversation.known
        assert known.anatomy is not None
        with self._guard:
            seen = self._drop(conversation.id)
        if seen is None or seen.tag != known.tag or seen.start > known.anatomy.tail:
            seen = _Seen(known.tag, known.anatomy.history)
        if seen.start < known.anatomy.tail:
            seen.ids |= anatomy.made_ids(conversation.held.history(known, seen.start))
            seen.start = known.anatomy.tail
        with self._guard:
            self._seen[conversation.id] = seen  # The last one that was used is the last to go.
            self._total += 1 + len(seen.ids)
            while self._total > self._limit and len(self._seen) > 1:
                self._drop(next(iter(self._seen)))
        return seen.ids

    def _drop(self, id: str) -> _Seen | None:
        seen = self._seen.pop(id, None)
        self._total -= 1 + len(seen.ids) if seen is not None else 0
        return seen
