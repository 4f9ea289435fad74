"""Messages before they are written: their time, id, sender, size and parents, and keyed appends.

What must stay true: a message without a parent goes to the end of the active branch, even if others
wrote meanwhile. A parent is always a message of the conversation. If the last message is known to
be the end of the active branch (`Transaction.state.ends_active`), nothing is read. Else the
conversation is parsed once.

A caller that lost the answer to an append can't know whether the append was made. With an
idempotency key it can ask again: the message's id is made from conversation and key, so every
process finds it in the file, also after derived data was deleted. The transaction that appends also
looks for the keyed message. A plain append pays nothing for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput, Refused, Remedy
from capsule.format.documents.message import check_message
from capsule.format.json import codec
from capsule.format.json.canonical import order_message
from capsule.ids import keyed_message_id, new_message_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capsule.engines.interface import Transaction
    from capsule.format.models import Message
    from capsule.format.tree.tree import Link

Entry = dict[str, Any]
_MAX_KEY_LENGTH = 256
#: The fields that a second request under the same key must repeat.
_REPEATED_FIELDS = ("role", "content", "from", "parent", "replyTo", "thread", "topic")


def completed_message(message: Entry, timestamp: str) -> Entry:
    """Return a checked message in canonical order, with this time and a new id if it has none."""
    if len(message) == 2:  # A role and a text: the common case.
        return {
            "role": message["role"],
            "content": message["content"],
            "timestamp": timestamp,
            "id": new_message_id(),
        }
    if "timestamp" in message and "id" in message:
        return message
    return order_message({"timestamp": timestamp, "id": new_message_id()} | message)


def message_model(entry: Entry, position: int) -> Message:
    """Return a message as callers get it, with its position."""
    from capsule.format.models import Message

    return Message.model_validate(entry).placed(position)


def with_sender(message: Entry, agent: str | None) -> Entry:
    """Return a checked message with the agent as its sender. If `agent` is None, the message is
    unchanged.

    Raises Refused: the message is from another agent.
    """
    if agent is None:
        return message
    if "from" not in message:
        return order_message(message | {"from": agent})
    if message["from"] != agent:
        raise Refused(
            f"a message from {message['from']} can't be written: the store acts for {agent}",
            path="",
        )
    return message


def encoded_within(entry: Entry, limit: int) -> bytes:
    """Return the bytes of an entry.

    Raises InvalidInput: there are more than `limit`, or JSON can't hold the entry.
    """
    if len(entry["content"]) <= limit:
        encoded = codec.encode_entry(entry)
        if len(encoded) <= limit:
            return encoded
    raise InvalidInput(
        f"the message is larger than {limit:,} bytes; split it, or raise limits.message_bytes in "
        "capsule.toml"
    )


def with_parents(transaction: Transaction, entries: list[Entry]) -> tuple[list[Entry], bool]:
    """Return the entries with the parents that they need when they are appended in this order.

    Args:
        transaction: The transaction of the conversation.
        entries: Complete messages. They are not changed.

    Returns:
        The entries, and whether the last entry becomes the end of the active branch.

    Raises:
        InvalidInput: A parent is not a message of the conversation.
    """
    current = transaction.head.current
    if current is None:  # The last message is the end of the active branch, whatever its parent is.
        _check_parents(transaction, entries)
        return entries, True
    if transaction.state.ends_active and not any("parent" in entry for entry in entries):
        return entries, True
    return _with_parents_on_branch(transaction, entries, current)


def _check_parents(transaction: Transaction, entries: list[Entry]) -> None:
    """Raise InvalidInput if a parent is neither in the conversation nor an earlier entry."""
    valid_parents: set[str | None] = {None}
    for entry in entries:
        parent: Any = entry.get("parent")
        if parent not in valid_parents and transaction.find(parent) is None:
            raise _unknown_parent(transaction.id, parent)
        valid_parents.add(entry["id"])


def _with_parents_on_branch(
    transaction: Transaction, entries: list[Entry], current: str
) -> tuple[list[Entry], bool]:
    """Do `with_parents` in a conversation that was switched to the branch of message `current`.

    An entry without a parent continues the active branch. It needs the field only if the end of
    that branch is not the message before it in the file.
    """
    from capsule.format.tree.tree import Tree, link_of

    links: list[Link] = [link_of(entry) for entry in transaction.document()["history"]]
    ids = {id for id, _ in links}
    linked_entries: list[Entry] = []
    leaf = Tree.of_links(links).active_leaf(current)
    for entry in entries:
        linked = entry
        if "parent" in entry:
            if entry["parent"] is not None and entry["parent"] not in ids:
                raise _unknown_parent(transaction.id, entry["parent"])
        elif 0 <= leaf < len(links) - 1:
            linked = order_message(entry | {"parent": links[leaf][0]})
        links.append(link_of(linked))
        ids.add(linked["id"])
        linked_entries.append(linked)
        if "parent" in linked:
            leaf = Tree.of_links(links).active_leaf(current)
        else:
            leaf = len(links) - 1
    return linked_entries, leaf == len(links) - 1


def _unknown_parent(id: str, parent: str) -> InvalidInput:
    return InvalidInput(
        f"message.parent: {parent[:130]!r} is not the id of a message in conversation {id}; "
        "nothing was written",
        remedy=Remedy("messages", id),
    )


def ensure_nothing_newer(transaction: Transaction, seen: str, *, is_active: bool = True) -> None:
    """Check that the last message that a writer read is still the end of the branch that it writes
    to.

    Args:
        transaction: The transaction of the conversation.
        seen: The id of the message.
        is_active: Whether it writes to the active branch, and not to the branch of that message.

    Raises:
        InvalidInput: Messages follow it. The error's field `came` is their number. 0: the message
            is not in that branch any more.

    Cost: finding the message. Reading the document, unless the message is the last one.
    """
    current = transaction.head.current
    position, _ = transaction.find(seen) or (-1, None)
    last_is_leaf = not is_active or current is None or transaction.state.ends_active
    if last_is_leaf and position >= 0 and position == transaction.state.entries - 1:
        return
    from capsule.format.tree.tree import Tree

    tree = Tree(transaction.document()["history"])
    if is_active or position < 0:
        leaf = tree.active_leaf(current)
    else:
        leaf = tree.leaf_at(position)
    branch = tree.path_to(leaf)
    if branch[-1:] == [position]:
        return
    newer = 0
    reason = "the last message that was seen is no longer on the active branch"
    if position in branch:
        newer = len(branch) - 1 - branch.index(position)
        plural = "" if newer == 1 else "s"
        reason = f"{newer} message{plural} came after the last one that was seen"
    raise InvalidInput(
        f"{reason}; nothing was written", remedy=Remedy("show", transaction.id), came=newer
    )


def keyed_message(conversation: str, key: str, message: Entry) -> Entry:
    """Return a checked message with the id for `key`, to be appended once.

    Raises:
        InvalidInput: The key or the message can't be accepted.
    """
    return check_message({**message, "id": keyed_message_id(conversation, check_key(key))})


def check_key(key: str) -> str:
    """Return `key`, if it is valid. Raises InvalidInput."""
    if not key.strip() or len(key) > _MAX_KEY_LENGTH:
        raise InvalidInput(
            f"an idempotency key has 1 to {_MAX_KEY_LENGTH} characters; this one has {len(key)}"
        )
    return key


def earlier_keyed_append(
    transaction: Transaction, message: Entry, repeated_fields: Iterable[str] = _REPEATED_FIELDS
) -> tuple[int, Entry] | None:
    """Return the position of a keyed message and the message, if it was appended before.

    Args:
        transaction: The transaction of the conversation.
        message: As `keyed_message` returns it.
        repeated_fields: The fields that a retry must repeat.

    Raises:
        InvalidInput: The key was used for another message.
    """
    positioned = transaction.find(message["id"])
    if positioned is None:
        return None
    position, entry = positioned
    if "editedAt" not in entry:
        for name in repeated_fields:
            # The store itself adds a parent on another branch, and a topic in a channel with one.
            may_be_added = name in ("parent", "topic") and name not in message
            if not may_be_added and entry.get(name) != message.get(name):
                raise InvalidInput(
                    "this idempotency key was used before in conversation "
                    f"{transaction.id}, for another message (@{position}); "
                    "nothing was written. Use a new key for a new message"
                )
    transaction.ensure_durable()  # The first writer may have died or failed before it was.
    return positioned
