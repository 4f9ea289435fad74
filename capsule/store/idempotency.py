"""Making a message or a conversation once, however often it is asked for.

Whoever lost the answer to an append can't tell whether it was done. With a key they ask again: the message's id is made
of conversation and key, so the file itself says whether it is there, to every process, after every restart, also when
all that is derived was deleted. The id of a conversation is made of the key and of what it is made from. What must
stay true: whether the id is there is decided in the transaction that appends; and a plain append pays nothing for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput, NotFound
from capsule.format.message import check_message
from capsule.ids import keyed_conversation_id, keyed_message_id
from capsule.store.reading import KIND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from capsule.format.head import Head
    from capsule.store.change import Conversation
    from capsule.store.reading import Reading

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
            if any(trashed.id == id for trashed in store.engine.trash(KIND)):
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
        with store.engine.transaction(KIND, id) as transaction:
            transaction.ensure_durable()  # Whoever made it may have died before it was.
        return head


def appended(
    conversation: Conversation, message: dict[str, Any], same: Iterable[str] = _SAME
) -> tuple[int, dict[str, Any]] | None:
    """The place of a keyed message and itself, when it was appended before; else None.

    Args:
        conversation: In its transaction.
        message: As `keyed_message` gives it.
        same: What a retry has in common with the first request.

    Raises:
        InvalidInput: The key was used for another message.
    """
    found = conversation.transaction.find_made(message["id"])
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
    conversation.transaction.ensure_durable()  # Whoever appended it may have died, or failed, before it was.
    return found
