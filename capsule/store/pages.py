"""The messages of one branch of a conversation, a page at a time.

What must stay true: every door pages by this module, so that all of them show the same. Following
cursors shows each message of the branch once, whatever others write: a cursor stands at a message,
not at a number. In a conversation with one branch, a page costs reading from its messages to the
end, not the whole conversation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from capsule.engines.interface import CONVERSATIONS
from capsule.errors import InvalidInput
from capsule.format.json import codec
from capsule.format.references import find_message, parse_position

if TYPE_CHECKING:
    from capsule.engines.interface import Engine
    from capsule.format.tree.tree import Tree

Entry = dict[str, Any]
#: A message's place in the history, and the message as it stands in the file.
Placed = tuple[int, Entry]
#: The number of last messages to search for an id, or for branches, before the whole conversation
#: is read.
_LAST = 256
_CURSOR = re.compile("(older|newer):([0-9]{1,12}):(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Page:
    """Messages of one branch that follow each other.

    Attributes:
        entries: The messages as they stand in the file, oldest first, each with its place there.
        at: The index in `entries` of the requested message: the one around which, at which the
            cursor stands, or the newest; -1: the conversation is empty.
        total: The number of messages in all branches of the conversation.
        on_branch: The number of messages in the branch; `total` if no other branch was met.
        is_active: Whether the branch is the active one.
        tree: The tree of all messages, if the whole file was read; else None, and no other branch
            was met.
    """

    entries: list[tuple[int, dict[str, Any]]]
    at: int
    total: int
    on_branch: int
    is_active: bool
    tree: Tree | None
    _before: Placed | None = field(repr=False)
    _after: Placed | None = field(repr=False)

    def older(self, begin: int = 0) -> str | None:
        """The cursor to the messages before `entries[begin]`, or before the page; None: there are
        none.
        """
        return _cursor("older", [self._before, *self.entries][begin])

    def newer(self, end: int | None = None) -> str | None:
        """The cursor to the messages from `entries[end]` on, or behind the page; None: there are
        none.
        """
        return _cursor(
            "newer", [*self.entries, self._after][len(self.entries) if end is None else end]
        )

    def sibling(self, place: int) -> str | None:
        """Its position among the answers to the same message, as `2/3`; None: it is the only
        answer.
        """
        number = self.tree.forks.get(place) if self.tree else None
        return f"{number[0]}/{number[1]}" if number else None


def tail_entries(engine: Engine, id: str, n: int) -> tuple[int, list[dict[str, Any]]]:
    """The messages that `Store.tail_entries` gives."""
    data, count, _ = engine.tail(id, n)
    entries = codec.decode_entries(data, engine.name(CONVERSATIONS, id))
    return count - len(entries), entries


def page_of(
    engine: Engine,
    id: str,
    limit: int,
    around: str | None,
    cursor: str | None,
    only: Container[str] | None = None,
) -> Page:
    """The page that `Store.page` gives; `only` has the ids of the messages that may be on it."""
    asked = _PageRequest(limit, around, cursor)
    if only is not None:
        return asked.page_in(engine.document(CONVERSATIONS, id), only)
    if engine.head(id)[0]["metadata"].get("currentNode") is not None:
        return asked.page_in(engine.document(CONVERSATIONS, id))
    n = _LAST if around else min(limit + 1, _LAST)
    first, entries = tail_entries(engine, id, n)
    while (at := asked.place(first, entries)) is not None and not any(
        "parent" in entry for entry in entries
    ):
        if first <= max(at - limit, 0):
            break
        if len(entries) < n:  # The agent may not read those before.
            return asked.page_in(engine.document(CONVERSATIONS, id))
        n = first + len(entries) - at + limit
        first, entries = tail_entries(engine, id, n)
    else:
        return asked.page_in(engine.document(CONVERSATIONS, id))
    return asked.page(
        range(first + len(entries)), at, lambda place: (place, entries[place - first])
    )


class _PageRequest:
    """A request for a page; the arguments are those of `Store.page`."""

    def __init__(self, limit: int, around: str | None, cursor: str | None) -> None:
        if limit < 1 or (around is not None and cursor is not None):
            raise InvalidInput(
                "limit: at least one message; and give `around` or a cursor, not both"
            )
        self._limit, self._way, self._wanted, self._near = (
            limit,
            "older" if around is None else "around",
            around,
            -1,
        )
        if cursor is not None:
            match = _CURSOR.fullmatch(cursor)
            if match is None:
                raise InvalidInput(
                    "that is not a cursor; use `older` or `newer` of a page of the same "
                    "conversation"
                )
            self._way, near, self._wanted = match.groups()
            self._near = int(near)

    def place(self, first: int, entries: list[Entry]) -> int | None:
        """The place of the message, as far as the last messages, from place `first` on, tell; else
        None.
        """
        count = first + len(entries)
        if self._wanted is None:
            return count - 1
        if self._way == "around" and self._wanted.startswith("@"):
            return parse_position(self._wanted, count)
        places = (
            place for place, entry in enumerate(entries, first) if entry.get("id") == self._wanted
        )
        return next(places, self._near if 0 <= self._near < first else None)

    def page_in(self, document: dict[str, Any], only: Container[str] | None = None) -> Page:
        """The page of a whole conversation."""
        from capsule.format.tree.tree import Tree

        history = document["history"]
        tree = Tree(history)
        path, is_active = (
            _readable(tree.path(document["metadata"].get("currentNode")), history),
            True,
        )
        if self._wanted is None:
            at = path[-1] if path else -1
        elif self._way == "around":
            at = find_message(history, self._wanted, document["id"])
        elif self._wanted in tree.places:
            at = tree.places[self._wanted]
        else:
            raise InvalidInput(
                "the cursor's message was deleted; read around another one, or without a cursor"
            )
        if path and at not in path:
            path, is_active = _readable(tree.path_to(tree.leaf_at(at)), history), False
        if only is not None:
            asked = None if self._wanted is None else at  # It may have been edited, and stays.
            path = [place for place in path if place == asked or history[place].get("id") in only]
            at = path[-1] if asked is None and path else at
        return self.page(
            path, at, lambda place: (place, history[place]), is_active=is_active, tree=tree
        )

    def page(
        self,
        path: Sequence[int],
        place: int,
        placed: Callable[[int], Placed],
        *,
        is_active: bool = True,
        tree: Tree | None = None,
    ) -> Page:
        """The page at a place of a branch whose messages stand at the places `path`."""
        at, limit, count = path.index(place) if path else -1, self._limit, len(path)
        around = max(0, min(at - limit // 2, count - limit))
        low = {"older": at + 1 - limit, "newer": at, "around": around}[self._way]
        low, high = max(low, 0), low + limit
        before = placed(path[low - 1]) if low else None
        after = placed(path[high]) if high < count else None
        shown = list(map(placed, path[low:high]))
        return Page(
            shown, at - low, len(tree) if tree else count, count, is_active, tree, before, after
        )


def _readable(path: list[int], history: list[Entry]) -> list[int]:
    return path if not history or history[0] else [place for place in path if history[place]]


def _cursor(way: str, placed: Placed | None) -> str | None:
    return placed and f"{way}:{placed[0]}:{placed[1].get('id')}"
