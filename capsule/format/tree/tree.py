"""The tree of messages: which message each one answers, and which of them lie on the active branch.

What must stay true: a conversation without branches costs nothing here; every file has a tree (an
unknown parent, a circle and an id that stands twice included), the same each time, in linear time;
and times play no part, so that an edited message does not move. Pure.

Messages are named by their places in `history`: an id may be missing, or stand twice, and then the
first is meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from capsule.errors import NotFound

T = TypeVar("T")

#: Stands for `"parent": null`.
ROOT = ""

#: Id and parent of a message. A parent of None: the message before; `ROOT`: none.
Link = tuple[str | None, str | None]


def link_of(message: Mapping[str, Any]) -> Link:
    """Id and parent of a message as it stands in a file."""
    if "parent" not in message:
        return message.get("id"), None
    return message.get("id"), message["parent"] or ROOT


class Tree:
    """The messages of one conversation as a tree.

    Attributes:
        ids: The messages' ids, by their places.
        places: The place of each id.
        parents: The place of the message that each answers; -1: none.
    """

    def __init__(self, history: Iterable[Mapping[str, Any]]) -> None:
        self._set([link_of(message) for message in history])

    @classmethod
    def of_links(cls, links: Sequence[Link]) -> Tree:
        """The tree of messages of which no more is known than this."""
        tree = cls.__new__(cls)
        tree._set(links)
        return tree

    def _set(self, links: Sequence[Link]) -> None:
        self._links = links
        self.ids = [id for id, _ in links]
        self.places = _places(self.ids)
        self.parents = _parents(links, self.places)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """The messages that answer each, in the order of the history; under -1 those that answer
        none.
        """
        children: dict[int, list[int]] = {}
        for place, parent in enumerate(self.parents):
            if parent in children:
                children[parent].append(place)
            else:
                children[parent] = [place]
        return children

    @cached_property
    def forks(self) -> dict[int, tuple[int, int]]:
        """Of each message that has siblings: which of them it is, from 1, and how many they are."""
        # Counted first, as few have siblings, and a list for each that has none costs more than all
        # the rest.
        several = {parent for parent, count in Counter(self.parents).items() if count > 1}
        answers: dict[int, list[int]] = {parent: [] for parent in several}
        for place, parent in enumerate(self.parents):
            if parent in several:
                answers[parent].append(place)
        return {
            place: (at, len(places))
            for places in answers.values()
            for at, place in enumerate(places, 1)
        }

    def id_at(self, place: int) -> str | None:
        """The id of the message at a place; None: it has none, or the place is that of no message
        (-1).
        """
        return None if place < 0 else self.ids[place]

    def leaf_at(self, place: int) -> int:
        """The leaf that is reached by following the newest child, which is the last in
        the history.
        """
        children, seen = self.children, set[int]()
        while place in children and place not in seen:
            seen.add(place)
            place = children[place][-1]
        return place

    def leaf(self, id: str) -> int:
        """As `leaf_at`, of a message by its id. Raises NotFound."""
        if id not in self.places:
            raise NotFound(f"no message {id[:130]} in this conversation", id=id)
        return self.leaf_at(self.places[id])

    def active_leaf(self, current: str | None) -> int:
        """The end of the active branch: the leaf under `current`, or the last message; -1: there is
        none.
        """
        if current is not None and current in self.places:
            return self.leaf_at(self.places[current])
        return len(self.ids) - 1

    def path_to(self, place: int) -> list[int]:
        """The messages from the root to this one; of a circle, each once."""
        path, seen = [], set[int]()
        while place >= 0 and place not in seen:
            seen.add(place)
            path.append(place)
            place = self.parents[place]
        path.reverse()
        return path

    def path(self, current: str | None = None) -> list[int]:
        """The active branch, from its root to its leaf. A `current` that is no message here counts
        as none.
        """
        return self.path_to(self.active_leaf(current))

    def descendants_at(self, place: int) -> list[int]:
        """All that answers this message, and what answers that, breadth first; it itself is not
        among them.
        """
        below, seen = [place], {place}
        for parent in below:
            new = [child for child in self.children.get(parent, ()) if child not in seen]
            seen.update(new)
            below += new
        return below[1:]

    def siblings_at(self, place: int) -> list[int]:
        """The messages that answer the same one as this, itself among them, in the order of the
        history.
        """
        return self.children[self.parents[place]]

    def nearest_fork(self, place: int) -> int:
        """The nearest message that has siblings, from this one towards the root, itself among them;
        -1: none.
        """
        return next((at for at in reversed(self.path_to(place)) if at in self.forks), -1)

    def problems(self) -> list[tuple[int, str]]:
        """What is odd about the parents, by place: unknown ones, and circles (each once, at its
        first message that names its parent). What is odd counts as absent, but for a circle, which
        is walked once."""
        problems = [
            (min(place for place in circle if self._links[place][1] is not None), _CIRCLE)
            for circle in find_cycles(dict(enumerate(self.parents)))
        ]
        for place, (id, parent) in enumerate(self._links):
            if parent and parent not in self.places:
                problems.append(
                    (
                        place,
                        f"{parent[:60]!r} is not the id of a message here; correct or remove it",
                    )
                )
            elif parent and parent == id and self.places[parent] == place:
                problems.append((place, "is the message's own id; correct or remove it"))
        return sorted(problems)


_CIRCLE = "closes a circle of messages that answer each other; correct or remove it"


def find_cycles(above: Mapping[T, Any]) -> Iterator[list[T]]:
    """The circles of messages that answer each other, of messages and what each answers. Passes
    each twice at most.
    """
    passed: dict[Any, T] = {}
    for start in above:
        at: Any = start
        while at in above and at not in passed:
            passed[at] = start
            at = above[at]
        if at in above and passed[at] == start:
            circle = [at]
            while (before := above[circle[-1]]) != at:
                circle.append(before)
            yield circle


def active_flags(messages: Sequence[Link], current: str | None) -> list[bool]:
    """Which messages lie on the active branch that `current` (`metadata.currentNode`) names."""
    on = [False] * len(messages)
    for place in Tree.of_links(messages).path(current):
        on[place] = True
    return on


def active_path(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of the active branch of a capsule whose messages have ids, in the order of the
    answers.
    """
    history: list[dict[str, Any]] = document["history"]
    return [history[place] for place in Tree(history).path(document["metadata"].get("currentNode"))]


def _places(ids: list[str | None]) -> dict[str, int]:
    places = {id: at for at, id in enumerate(ids) if id}
    if len(places) < len(ids):  # One has none, or it stands twice: the first is meant.
        places = {id: at for at, id in reversed(list(enumerate(ids))) if id}
    return places


def _parents(links: Sequence[Link], places: dict[str, int]) -> list[int]:
    """The place of the message that each answers; -1: none. An unknown one counts as absent."""
    parents = list(range(-1, len(links) - 1))
    for at, (_, parent) in enumerate(links):
        if parent == ROOT:
            parents[at] = -1
        elif parent is not None and (named := places.get(parent, at)) != at:
            parents[at] = named
    return parents
