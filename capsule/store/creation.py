"""Making a conversation: from a document, and once under a key.

What must stay true: the result is a valid capsule, and durable when it is returned. An existing
conversation is never overwritten. A key makes one conversation: its id is made from the key, the
operation and the source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capsule.engines.interface import CONVERSATIONS, retry
from capsule.errors import AlreadyExists, InvalidInput, NotFound
from capsule.format import validation
from capsule.format.documents.head import Head
from capsule.ids import keyed_conversation_id
from capsule.store.change.appends import check_key, encoded_within
from capsule.store.change.conversation import ensure_permitted

if TYPE_CHECKING:
    from collections.abc import Callable

    from capsule.format.documents.head import Head
    from capsule.store.internals import StoreInternals


def write_new(
    inner: StoreInternals[Any], document: dict[str, Any], *, has_checked_messages: bool = False
) -> Head:
    """Write a new conversation. Its lock, if any, is this instance's. Raises the errors of
    `create`.

    Args:
        inner: The inner interface of the store.
        document: The conversation, in canonical order.
        has_checked_messages: Whether each message is known to be valid, and none to be too large.
    """
    from capsule.rules import policy  # A command that only reads has no use for it.

    id, entries, lock = document["id"], document["history"], document["metadata"]["lock"]
    object = policy.PolicyTarget.from_document(document)
    if has_checked_messages:
        validation.check_arguments(document | {"history": []})
    else:
        for entry in entries:
            encoded_within(entry, inner.settings.message_bytes)
        validation.check_arguments(document)

    def written(tag: str) -> None:
        inner.remember_own_write(id, "created", tag, entries=entries)

    def make() -> int:
        reads = ensure_permitted(inner.agent, "create", object, inner.state_of, object.present_ids)
        try:
            return inner.engine.create(CONVERSATIONS, document, written, reads)
        except AlreadyExists:
            raise ConversationExists(
                f"conversation {id} exists already; append to it, or choose another id"
            ) from None

    with inner.hold_reports(id):
        size = retry(make, f"conversation {id}", id)
    inner.instance_locks.remember(id, lock)
    return inner.parsed_head(id, document, size)


class ConversationExists(InvalidInput):
    """A conversation with this id exists."""


def create_once(
    inner: StoreInternals[Any],
    made_by: str,
    source: str,
    key: str,
    make: Callable[[str], Head],
    title: str | None = None,
    first: dict[str, Any] | None = None,
) -> Head:
    """The conversation of a key; it is made if it does not exist.

    Args:
        inner: The inner interface of the store.
        made_by, source: As `keyed_conversation_id` takes them.
        key: The key.
        make: Makes the conversation under an id; raises `ConversationExists` if it exists by now.
        title: The requested title, if any; another title shows that the key was used for another
            request.
        first: Fields of the requested first message, likewise.

    Raises the errors of `make`, and InvalidInput if the key was used for another conversation or a
    deleted one.

    Cost: as `make`, and listing the trash; for an existing conversation, reading and flushing it.
    """
    id = keyed_conversation_id(made_by, source, check_key(key))
    while True:
        try:
            head = inner.parsed_head(id, *inner.engine.head(id))
        except NotFound:
            if any(trashed.id == id for trashed in inner.engine.trash.entries(CONVERSATIONS)):
                raise InvalidInput(
                    f"conversation {id} was made under this idempotency key and deleted since; "
                    "nothing was made. Use "
                    "a new key for a new conversation"
                ) from None
            try:
                return make(id)
            except ConversationExists:
                if not inner.engine.exists(CONVERSATIONS, id):
                    raise  # It is there, and hidden from the agent by now.
                continue
        document = inner.engine.document(CONVERSATIONS, id)
        begin: dict[str, Any] = next(filter(None, document["history"]), {})
        is_other = (
            first
            and "editedAt" not in begin
            and any(begin.get(name) != value for name, value in first.items())
        )
        is_renamed = "titleSetAt" in document["metadata"]
        if is_other or (title is not None and not is_renamed and document["title"] != title):
            raise InvalidInput(
                f"this idempotency key was used before for conversation {id}, which has another "
                "title or first "
                "message; nothing was made. Use a new key for a new conversation"
            )
        with inner.engine.transaction(CONVERSATIONS, id) as transaction:
            transaction.ensure_durable()  # The first caller may have died before it was.
        return head
