"""The messages of one branch of a conversation, a page at a time.

A *position* is the index of a message in the history of the file. A *branch* is the list of the
positions of its messages, oldest first. A cursor is the direction, the position and the id of a
message, as `older:41:ID`. The position only tells where to look for the id.

`page_of` reads the end of the file first, and more of it until the page is complete. It reads the
whole conversation in these cases:

- Only some messages are asked for (`chosen_ids`).
- Somebody chose a branch (`currentNode` is set), or a branch begins in what was read.
- The message `around` which the page is, named by its id, is not among the last `_MAX_TAIL` ones.

What must stay true: every door pages by this module, so that all of them show the same. Following
cursors shows each message of the branch once, whatever others write. In any other case than those,
a page costs reading from its messages to the end of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from capsule.engines.interface import CONVERSATIONS
from capsule.errors import InvalidInput
from capsule.format.json import codec
from capsule.format.references import find_message, parse_position

if TYPE_CHECKING:
    from capsule.engines.interface import Engine
    from capsule.format.tree.tree import Tree

Entry = dict[str, Any]
#: A message's position in the history, and the message as it is in the file.
PositionedEntry = tuple[int, Entry]
#: The largest number of messages that are read first. If the message `around` is not among this
#: number of last messages, the whole conversation is read.
_MAX_TAIL = 256
#: The number of messages that `entry_at` reads first.
_FIRST_TAIL = 16
_CURSOR = re.compile("(older|newer):([0-9]{1,12}):(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Page:
    """Messages of one branch that follow each other.

    Attributes:
        entries: The messages as they are in the file, oldest first, each with its position there.
        at: The index in `entries` of the requested message: the `around` message, the message of
            the cursor, or the newest. -1: the conversation is empty.
        total: The number of messages in all branches of the conversation.
        on_branch: The number of messages in the branch. It is `total` if the file was not read far
            enough to find another branch.
        is_active: Whether the branch is the active one.
        tree: The tree of all messages, if the whole file was read. None: what was read has one
            branch.
    """

    entries: list[tuple[int, dict[str, Any]]]
    at: int
    total: int
    on_branch: int
    is_active: bool
    tree: Tree | None
    _previous: PositionedEntry | None = field(repr=False)
    _following: PositionedEntry | None = field(repr=False)

    def older(self, begin: int = 0) -> str | None:
        """Return the cursor to the messages before `entries[begin]`. The default is the first
        message of the page. None: no message is before it.
        """
        message_before = self.entries[begin - 1] if begin > 0 else self._previous
        return _cursor("older", message_before)

    def newer(self, end: int | None = None) -> str | None:
        """Return the cursor to the messages from `entries[end]` on. The default is the end of the
        page. None: no message follows.
        """
        if end is None or end == len(self.entries):
            return _cursor("newer", self._following)
        return _cursor("newer", self.entries[end])

    def sibling(self, place: int) -> str | None:
        """Return the number of the message at a position among the answers to the same message, as
        `2/3`. None: it is the only answer.
        """
        number = self.tree.forks.get(place) if self.tree else None
        return f"{number[0]}/{number[1]}" if number else None


def tail_entries(engine: Engine, id: str, n: int) -> tuple[int, list[dict[str, Any]]]:
    """Return the last `n` messages and the position of the first one, for `Store.tail_entries`."""
    data, count, _ = engine.tail(id, n)
    entries = codec.decode_entries(data, engine.name(CONVERSATIONS, id))
    return count - len(entries), entries


def entry_at(engine: Engine, id: str, position: int) -> dict[str, Any]:
    """Return the message at a position. Empty: there is none that the user of the engine may read.

    Cost: reading back to it. Messages that others append meanwhile change nothing.
    """
    size = _FIRST_TAIL
    while True:
        first, entries = tail_entries(engine, id, size)
        if position >= first:
            return next(iter(entries[position - first :]), {})
        if len(entries) < size:
            return {}  # `engine` is the view of an agent, which may not read the messages before.
        distance = first + len(entries) - position
        # More than needed, because others may append before the next read.
        size = distance + max(distance // 8, _FIRST_TAIL)


def page_of(
    engine: Engine,
    id: str,
    limit: int,
    around: str | None,
    cursor: str | None,
    chosen_ids: Container[str] | None = None,
) -> Page:
    """Return the page for `Store.page`. `chosen_ids` are the ids of the messages that fit the
    caller's filter, or None for all. They only filter: what may be read, `engine` decides.
    """
    request = _PageRequest(limit, around, cursor)
    if chosen_ids is not None:
        return request.page_in(engine.document(CONVERSATIONS, id), chosen_ids)
    has_chosen_branch = engine.head(id)[0]["metadata"].get("currentNode") is not None
    if has_chosen_branch:
        return request.page_in(engine.document(CONVERSATIONS, id))
    size = _MAX_TAIL if around else min(limit + 1, _MAX_TAIL)
    while True:
        first, entries = tail_entries(engine, id, size)
        position = request.position_in_tail(first, entries)
        if position is None or any("parent" in entry for entry in entries):
            break  # The message is further up, or these messages have several branches.
        # Whatever its direction, a page begins at most `limit - 1` messages before the requested
        # one. The cursor to older messages needs one more.
        first_needed = max(position - limit, 0)
        if first <= first_needed:
            count = first + len(entries)
            return request.page(range(count), position, partial(_entry_in_tail, first, entries))
        if len(entries) < size:
            break  # `engine` is the view of an agent, which may not read the messages before.
        size = first + len(entries) - position + limit
    return request.page_in(engine.document(CONVERSATIONS, id))


def _entry_in_tail(first: int, entries: list[Entry], position: int) -> PositionedEntry:
    return position, entries[position - first]


class _PageRequest:
    """A request for a page. The arguments are those of `Store.page`.

    It names a message and the place of that message on the page: `older` pages end with it, `newer`
    pages begin with it, and `around` pages have it in the middle. Without `around` and a cursor,
    the page ends with the newest message.
    """

    def __init__(self, limit: int, around: str | None, cursor: str | None) -> None:
        if limit < 1 or (around is not None and cursor is not None):
            raise InvalidInput(
                "limit: at least one message; and give `around` or a cursor, not both"
            )
        self._limit = limit
        self._direction = "older" if around is None else "around"
        #: The message: an id, or `@` and a position. None: the newest.
        self._message = around
        #: Where a cursor last saw the message. -1: not known.
        self._likely_position = -1
        if cursor is not None:
            match = _CURSOR.fullmatch(cursor)
            if match is None:
                raise InvalidInput(
                    "that is not a cursor; use `older` or `newer` of a page of the same conversation"
                )
            self._direction, position, self._message = match.groups()
            self._likely_position = int(position)

    def position_in_tail(self, first: int, entries: list[Entry]) -> int | None:
        """Return the position of the message, if the last messages are enough to find it. They are
        `entries`, and begin at position `first`.

        For a cursor whose message is further up, the position that the cursor names is returned, so
        that the caller reads from there on. None also for an `@` with a position outside the
        conversation: `find_message` then raises.
        """
        count = first + len(entries)
        if self._message is None:
            return count - 1
        if self._direction == "around" and self._message.startswith("@"):
            return parse_position(self._message, count)
        for position, entry in enumerate(entries, first):
            if entry.get("id") == self._message:
                return position
        return self._likely_position if 0 <= self._likely_position < first else None

    def page_in(self, document: dict[str, Any], chosen_ids: Container[str] | None = None) -> Page:
        """Return the page of a whole conversation.

        The page is of the active branch, or of the branch through the message if it is not on the
        active one. A message of an `around` or cursor request stays on the page even if it is not
        in `chosen_ids`, because it may have been edited since.
        """
        from capsule.format.tree.tree import Tree

        history = document["history"]
        tree = Tree(history)
        branch = _readable(tree.path(document["metadata"].get("currentNode")), history)
        is_active = True
        position = self._position(document, tree, branch)
        if branch and position not in branch:
            branch = _readable(tree.path_to(tree.leaf_at(position)), history)
            is_active = False
        if chosen_ids is not None:
            requested = None if self._message is None else position
            branch = [
                index
                for index in branch
                if index == requested or history[index].get("id") in chosen_ids
            ]
            if requested is None and branch:
                position = branch[-1]
        return self.page(
            branch,
            position,
            lambda index: (index, history[index]),
            is_active=is_active,
            tree=tree,
        )

    def _position(self, document: dict[str, Any], tree: Tree, branch: list[int]) -> int:
        """Return the position of the message in a whole conversation, whose active branch is given.
        -1: it is empty.
        """
        if self._message is None:
            return branch[-1] if branch else -1
        if self._direction == "around":
            return find_message(document["history"], self._message, document["id"])
        if self._message in tree.places:
            return tree.places[self._message]
        raise InvalidInput(
            "the cursor's message was deleted; read around another one, or without a cursor"
        )

    def page(
        self,
        branch: Sequence[int],
        position: int,
        entry_at: Callable[[int], PositionedEntry],
        *,
        is_active: bool = True,
        tree: Tree | None = None,
    ) -> Page:
        """Return the page of a branch.

        Args:
            branch: The positions of the messages of the branch.
            position: The position of the requested message.
            entry_at: Returns a position and the message at it.
            is_active: As `Page` has it.
            tree: As `Page` has it.
        """
        index = branch.index(position) if branch else -1
        if self._direction == "older":  # The page ends with the message.
            start = index + 1 - self._limit
        elif self._direction == "newer":  # The page begins with it.
            start = index
        else:  # It is in the middle, except near an end of the branch.
            last_start = max(0, len(branch) - self._limit)
            start = min(max(0, index - self._limit // 2), last_start)
        end = start + self._limit
        # Only now, because `end` counts from the start before: the oldest page may be shorter.
        start = max(start, 0)
        return Page(
            entries=list(map(entry_at, branch[start:end])),
            at=index - start,
            total=len(tree) if tree else len(branch),
            on_branch=len(branch),
            is_active=is_active,
            tree=tree,
            _previous=entry_at(branch[start - 1]) if start > 0 else None,
            _following=entry_at(branch[end]) if end < len(branch) else None,
        )


def _readable(branch: list[int], history: list[Entry]) -> list[int]:
    """Return the positions without those whose message the agent may not read. The view shows such
    a message as an empty object, and only at the beginning of the history.
    """
    if not history or history[0]:
        return branch
    return [position for position in branch if history[position]]


def _cursor(direction: str, message: PositionedEntry | None) -> str | None:
    if message is None:
        return None
    position, entry = message
    return f"{direction}:{position}:{entry.get('id')}"
