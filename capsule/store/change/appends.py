"""Messages before they are written: complete, from their agent, not too large, with their parents,
once under a key.

What must stay true: a message without a parent lands at the end of the active branch, whoever wrote
meanwhile. A parent is always a message of the conversation. If the last message is known to be the
end of the active branch (`Transaction.ends_active`), nothing is read; else the conversation is
parsed once.

A caller that lost the answer to an append can't tell whether the append was made. With a key it can
ask again: the message's id is made from conversation and key, so every process finds it in the
file, also after derived data was deleted. The transaction that appends also looks for the keyed
message; a plain append pays nothing for it.
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
_LONGEST_KEY = 256
#: The fields that a second request under the same key must repeat.
_SAME = ("role", "content", "from", "parent", "replyTo", "thread", "topic")


def completed_message(message: Entry, stamp: str) -> Entry:
    """A checked message, with a time and an id if it had none, in canonical order."""
    if len(message) == 2:  # A role and a text: the common case.
        return {
            "role": message["role"],
            "content": message["content"],
            "timestamp": stamp,
            "id": new_message_id(),
        }
    if "timestamp" in message and "id" in message:
        return message
    return order_message({"timestamp": stamp, "id": new_message_id()} | message)


def message_model(entry: Entry, place: int) -> Message:
    """A message as callers get it, with its place."""
    from capsule.format.models import Message

    return Message.model_validate(entry).placed(place)


def with_sender(message: Entry, agent: str | None) -> Entry:
    """A checked message, from this agent. Raises Refused if it is from another one; None:
    as it is.
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
    """The bytes of an entry. Raises InvalidInput if they are more than `limit`, or JSON can't hold
    the entry.
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
    """The entries with the parents they need when they are appended in this order.

    Args:
        transaction: The transaction of the conversation.
        entries: Complete messages; not to be changed in place.

    Returns:
        The entries, and whether the last entry becomes the end of the active branch.

    Raises:
        InvalidInput: A parent is not a message of the conversation.
    """
    current = transaction.head.current
    if current is None:  # The last message is the end of the active branch, whatever it answers.
        there = set[str]()
        for entry in entries:
            parent = entry.get("parent")
            if parent is not None and parent not in there and transaction.find(parent) is None:
                raise _unknown(transaction.id, parent)
            there.add(entry["id"])
        return entries, True
    if transaction.state.ends_active and not any("parent" in entry for entry in entries):
        return entries, True
    from capsule.format.tree.tree import Tree, link_of

    links: list[Link] = [link_of(entry) for entry in transaction.document()["history"]]
    ids = {id for id, _ in links}
    result: list[Entry] = []
    leaf = Tree.of_links(links).active_leaf(current)
    for entry in entries:
        if "parent" in entry:
            if entry["parent"] is not None and entry["parent"] not in ids:
                raise _unknown(transaction.id, entry["parent"])
        elif 0 <= leaf < len(links) - 1:
            entry = order_message(entry | {"parent": links[leaf][0]})
        links.append(link_of(entry))
        ids.add(entry["id"])
        result.append(entry)
        leaf = Tree.of_links(links).active_leaf(current) if "parent" in entry else len(links) - 1
    return result, leaf == len(links) - 1


def _unknown(id: str, parent: str) -> InvalidInput:
    return InvalidInput(
        f"message.parent: {parent[:130]!r} is not the id of a message in conversation {id}; "
        "nothing was written",
        remedy=Remedy("messages", id),
    )


def ensure_nothing_newer(transaction: Transaction, seen: str, *, is_active: bool = True) -> None:
    """Raise InvalidInput if messages stand behind the last one that a writer saw, in the branch
    that it writes to.

    Args:
        transaction: The transaction of the conversation.
        seen: The id of the message.
        is_active: Whether it writes to the active branch, and not to the one of that message.

    Raises:
        InvalidInput: Its field `came` says how many there are; 0: the message is not in that branch
            by now.

    Cost: finding the message; unless it is the last one, reading the document.
    """
    current = transaction.head.current
    place, _ = transaction.find(seen) or (-1, None)
    is_ended = not is_active or current is None or transaction.state.ends_active
    if is_ended and place >= 0 and place == transaction.state.entries - 1:
        return
    from capsule.format.tree.tree import Tree

    tree = Tree(transaction.document()["history"])
    path = tree.path_to(
        tree.active_leaf(current) if is_active or place < 0 else tree.leaf_at(place)
    )
    if path[-1:] == [place]:
        return
    came = len(path) - 1 - path.index(place) if place in path else 0
    what = f"{came} message{'' if came == 1 else 's'} came after the last one that was seen"
    gone = "the last message that was seen is no longer on the active branch"
    raise InvalidInput(
        f"{what if came else gone}; nothing was written",
        remedy=Remedy("show", transaction.id),
        came=came,
    )


def keyed_message(conversation: str, key: str, message: dict[str, Any]) -> dict[str, Any]:
    """A message to be appended once under `key`, checked.

    Raises:
        InvalidInput: The key or the message can't be accepted.
    """
    return check_message({**message, "id": keyed_message_id(conversation, check_key(key))})


def check_key(key: str) -> str:
    """`key`, if it is valid. Raises InvalidInput."""
    if not key.strip() or len(key) > _LONGEST_KEY:
        raise InvalidInput(
            f"an idempotency key has 1 to {_LONGEST_KEY} characters; this one has {len(key)}"
        )
    return key


def earlier_keyed_append(
    transaction: Transaction, message: dict[str, Any], same: Iterable[str] = _SAME
) -> tuple[int, dict[str, Any]] | None:
    """The place of a keyed message and the message, if it was appended before; else None.

    Args:
        transaction: The transaction of the conversation.
        message: As `keyed_message` gives it.
        same: The fields that a retry must repeat.

    Raises:
        InvalidInput: The key was used for another message.
    """
    placed = transaction.find(message["id"])
    if placed is None:
        return None
    at, entry = placed
    # The store itself adds a parent on another branch, and a topic in a channel that has one.
    same = [name for name in same if name not in ("parent", "topic") or name in message]
    if "editedAt" not in entry and any(entry.get(name) != message.get(name) for name in same):
        raise InvalidInput(
            f"this idempotency key was used before in conversation {transaction.id}, for another "
            f"message (@{at}); "
            "nothing was written. Use a new key for a new message"
        )
    transaction.ensure_durable()  # The first writer may have died or failed before it was.
    return placed
