"""Where an append goes: what its messages answer.

What must stay true: a message that names no parent lands at the end of the active branch, whoever wrote meanwhile, and
one that names a parent names a message of the conversation; a conversation without `currentNode` pays nothing for it;
and in one with it the file is read back only to where the branch's own messages begin, once for each open store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput
from capsule.format.canonical import order_message
from capsule.format.lines import Lines, Named, Strand
from capsule.format.tree import ROOT, Link, Tree, link_of

if TYPE_CHECKING:
    from capsule.writing import Conversation

__all__ = ["continued", "lines_of"]

Entry = dict[str, Any]


def lines_of(conversation: Conversation) -> Lines:
    """The lines of a conversation's canonical history."""
    held, known = conversation.held, conversation.known
    at = known.anatomy
    assert at is not None
    return Lines(lambda start, end: held.history(known, at.history + start, at.history + end), at.tail - at.history)


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
    at, strand = conversation.known.anatomy, conversation.head.strand
    if at is None:
        return _continued_tree(conversation, entries)
    named = any("parent" in entry for entry in entries)
    if strand is not None and strand.is_open and not named and strand.seen == at.tail - at.history:
        return entries, True  # As after an append of this store.
    lines, current = lines_of(conversation), conversation.head.current
    strand = None if current is None else _strand(conversation, lines, current)
    if strand is None:  # The last message is the end of the active branch, whatever it answers.
        there: set[str] = set()
        for entry in entries:
            parent = entry.get("parent")
            if parent is not None and parent not in there and lines.at(parent) < 0:
                raise _unknown(conversation.id, parent)
            there.add(entry["id"])
        return entries, True
    if strand.is_open and not named:
        return entries, True
    return _tried(conversation.id, lines, strand.copy(), entries)


def _strand(conversation: Conversation, lines: Lines, current: str) -> Strand | None:
    """The active branch, as it is now; None when `currentNode` is no message."""
    head = conversation.head
    if head.strand is None:
        head.strand = Strand.ending(lines, current)
    else:
        head.strand.follow(lines)
    return head.strand


def _tried(id: str, lines: Lines, strand: Strand, entries: list[Entry]) -> tuple[list[Entry], bool]:
    """As `continued`, on a strand that may be changed: the entries are taken as if they stood behind the file."""
    result, leaf, there = [], strand.leaf(lines), dict[str, int]()
    for at, entry in enumerate(entries, lines.size):
        if "parent" not in entry and not strand.is_open:
            entry = order_message(entry | {"parent": leaf})
        if "parent" in entry:
            parent = entry["parent"] or ROOT
            parent_at = there.get(parent, -1)
            if parent_at < 0:
                parent_at = strand.find(lines, parent, lines.size)
                if parent_at < 0 and parent not in (ROOT, strand.top) and lines.at(parent) < 0:
                    raise _unknown(id, parent)
            strand.take(lines, Named(at, entry["id"], parent), parent_at)
        there[entry["id"]] = at
        leaf = entry["id"] if strand.is_open else leaf
        result.append(entry)
    return result, strand.is_open


def _continued_tree(conversation: Conversation, entries: list[Entry]) -> tuple[list[Entry], bool]:
    """As `continued`, in a file of another layout, which is read as a whole."""
    links: list[Link] = [link_of(entry) for entry in conversation.document()["history"]]
    there = {id for id, _ in links}
    current = conversation.head.current
    result: list[Entry] = []
    leaf = Tree.of_links(links).active_leaf(current)
    for entry in entries:
        if "parent" in entry:
            if entry["parent"] is not None and entry["parent"] not in there:
                raise _unknown(conversation.id, entry["parent"])
        elif 0 <= leaf < len(links) - 1:
            entry = order_message(entry | {"parent": links[leaf][0]})
        links.append(link_of(entry))
        there.add(entry["id"])
        result.append(entry)
        leaf = Tree.of_links(links).active_leaf(current) if "parent" in entry else len(links) - 1
    return result, leaf == len(links) - 1


def _unknown(id: str, parent: str) -> InvalidInput:
    return InvalidInput(
        f"message.parent: {parent[:130]!r} is the id of no message in conversation {id}; nothing was written. "
        f"See the ids with: capsule show {id} --json"
    )
