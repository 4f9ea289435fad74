"""Making a conversation: from a document, and once under an idempotency key.

The id of a keyed conversation is made from the key, the operation and the source. So a retry finds
the conversation that the first call made, and returns its head if it fits the request.

What must stay true: the new conversation is valid, and durable when its head is returned. An
existing conversation is never overwritten. A key makes one conversation, even if several processes
use it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capsule.engines.interface import CONVERSATIONS, retry
from capsule.errors import AlreadyExists, ConcurrentWrite, InvalidInput, NotFound
from capsule.format import validation
from capsule.ids import keyed_conversation_id
from capsule.store.change.appends import check_key, encoded_within
from capsule.store.change.conversation import checked_read_set

if TYPE_CHECKING:
    from collections.abc import Callable

    from capsule.format.documents.head import Head
    from capsule.store.internals import StoreInternals


def write_new(
    inner: StoreInternals[Any], document: dict[str, Any], *, has_checked_messages: bool = False
) -> Head:
    """Check and write a new conversation, and return its head.

    Args:
        inner: The inner interface of the store.
        document: The conversation, in canonical order. If it has a lock, this instance holds it.
        has_checked_messages: Whether each message is known to be valid, and not too large.

    Raises:
        ConversationExists: A conversation has this id already.

    Raises also the errors of `Store.create`.
    """
    from capsule.rules import policy  # A command that only reads needs no rules.

    id = document["id"]
    entries = document["history"]
    target = policy.PolicyTarget.from_document(document)
    if has_checked_messages:
        validation.check_arguments(document | {"history": []})
    else:
        for entry in entries:
            encoded_within(entry, inner.settings.message_bytes)
        validation.check_arguments(document)

    def remember_write(tag: str) -> None:
        inner.remember_own_write(id, "created", tag, entries=entries)

    def create() -> int:
        read_set = checked_read_set(
            inner.agent, "create", target, inner.inputs_for, target.present_ids
        )
        try:
            return inner.engine.create(CONVERSATIONS, document, remember_write, read_set)
        except AlreadyExists:
            raise ConversationExists(
                f"conversation {id} exists already; append to it, or choose another id"
            ) from None
        except ConcurrentWrite:
            inner.guard.read_again()
            raise

    with inner.hold_reports(id):
        size = retry(create, f"conversation {id}", id)
    inner.instance_locks.remember(id, document["metadata"]["lock"])
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
    first_message: dict[str, Any] | None = None,
) -> Head:
    """Return the head of the conversation of a key. If it does not exist, make it.

    Args:
        inner: The inner interface of the store.
        made_by, source: As `keyed_conversation_id` takes them.
        key: The key.
        make: Makes the conversation under an id. Raises `ConversationExists` if it exists by now.
        title: The requested title, if any. Another title shows that the key was used for another
            request.
        first_message: Fields of the requested first message, if any. They are compared likewise.

    Raises the errors of `make`, and InvalidInput if the key was used for another conversation or a
    deleted one.

    Cost: as `make`, and listing the trash. For an existing conversation, reading and flushing it.
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
                    raise  # It exists, and is hidden from the agent.
                continue
        if not _fits_request(inner.engine.document(CONVERSATIONS, id), title, first_message):
            raise InvalidInput(
                f"this idempotency key was used before for conversation {id}, which has another "
                "title or first "
                "message; nothing was made. Use a new key for a new conversation"
            )
        with inner.engine.transaction(CONVERSATIONS, id) as transaction:
            transaction.ensure_durable()  # The first caller may have died before it was.
        return head


def _fits_request(
    document: dict[str, Any], title: str | None, first_message: dict[str, Any] | None
) -> bool:
    """Return whether a conversation has a requested title and first message. Either counts as
    fitting if somebody changed it since.
    """
    present: dict[str, Any] = next(filter(None, document["history"]), {})
    if first_message and "editedAt" not in present:
        for name, value in first_message.items():
            if present.get(name) != value:
                return False
    is_renamed = "titleSetAt" in document["metadata"]
    return title is None or is_renamed or document["title"] == title
