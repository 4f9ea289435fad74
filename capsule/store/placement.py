"""Where an append goes: what its messages answer.

What must stay true: a message that names no parent lands at the end of the active branch, whoever wrote meanwhile, and
one that names a parent names a message of the conversation. Where the last message is known to be the end of the
active branch (`Transaction.ends_active`), nothing is read; elsewhere the conversation is parsed once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput, Remedy
from capsule.format.canonical import order_message
from capsule.format.tree.tree import Link, Tree, link_of

if TYPE_CHECKING:
    from capsule.store.change import Conversation

Entry = dict[str, Any]


def continued(conversation: Conversation, entries: list[Entry]) -> tuple[list[Entry], bool]:
    """The entries, each with the parent it needs when they are appended in this order.

    Args:
        conversation: Under its mutex.
        entries: Complete messages; not to be changed in place.

    Returns:
        The entries, and whether the last one is then the end of the active branch.

    Raises:
        InvalidInput: One names a parent that is no message here.
    """
    current = conversation.head.current
    if current is None:  # The last message is the end of the active branch, whatever it answers.
        there = set[str]()
        for entry in entries:
            parent = entry.get("parent")
            if parent is not None and parent not in there and not conversation.has(parent):
                raise _unknown(conversation.id, parent)
            there.add(entry["id"])
        return entries, True
    if conversation.transaction.ends_active and not any("parent" in entry for entry in entries):
        return entries, True
    links: list[Link] = [link_of(entry) for entry in conversation.document()["history"]]
    ids = {id for id, _ in links}
    result: list[Entry] = []
    leaf = Tree.of_links(links).active_leaf(current)
    for entry in entries:
        if "parent" in entry:
            if entry["parent"] is not None and entry["parent"] not in ids:
                raise _unknown(conversation.id, entry["parent"])
        elif 0 <= leaf < len(links) - 1:
            entry = order_message(entry | {"parent": links[leaf][0]})
        links.append(link_of(entry))
        ids.add(entry["id"])
        result.append(entry)
        leaf = Tree.of_links(links).active_leaf(current) if "parent" in entry else len(links) - 1
    return result, leaf == len(links) - 1


def _unknown(id: str, parent: str) -> InvalidInput:
    return InvalidInput(
        f"message.parent: {parent[:130]!r} is the id of no message in conversation {id}; nothing was written",
        remedy=Remedy("messages", id),
    )
