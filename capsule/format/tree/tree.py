"""The tree of messages: which message each one answers, and which of them are on the active branch.

Messages are named by their places, which are indexes of `history`, because an id may be missing or
occur twice. Of two messages with one id the first is meant. A message without a `parent` answers
the one before it. An unknown parent counts as absent.

What must stay true: a conversation without branches costs nothing here. Every file has a tree, also
with unknown parents, cycles and repeated ids, and always the same one, in linear time. Times play no
part, so an edited message does not move. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from capsule.errors import NotFound

T = TypeVar("T")

#: The parent in a `Link` for `"parent": null`: the message is a root.
ROOT = ""

#: Id and parent of a message. A parent of None: the message before.
Link = tuple[str | None, str | None]


def link_of(message: Mapping[str, Any]) -> Link:
    """Return id and parent of a message of a file."""
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
        """Return the tree of messages of which only the links are known."""
        tree = cls.__new__(cls)
        tree._set(links)
        return tree

    def _set(self, links: Sequence[Link]) -> None:
        self._links = links
        self.ids = [id for id, _ in links]
        self.places = _places_by_id(self.ids)
        self.parents = _parent_places(links, self.places)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """The answers to each message, in the order of the history; under -1 the roots."""
        children: dict[int, list[int]] = {}
        for place, parent in enumerate(self.parents):
            if parent in children:
                children[parent].append(place)
            else:
                children[parent] = [place]
        return children

    @cached_property
    def forks(self) -> dict[int, tuple[int, int]]:
        """For each message that has siblings, its number among them, from 1, and their count."""
        # Counted first: few messages have siblings, and a list for each that has none would cost
        # more than all the rest.
        counts = Counter(self.parents)
        answers: dict[int, list[int]] = {
            parent: [] for parent, count in counts.items() if count > 1
        }
        for place, parent in enumerate(self.parents):
            if parent in answers:
                answers[parent].append(place)
        forks = {}
        for siblings in answers.values():
            for number, place in enumerate(siblings, 1):
                forks[place] = number, len(siblings)
        return forks

    def id_at(self, place: int) -> str | None:
        """Return the id of the message at a place. None: it has none, or the place is -1."""
        return None if place < 0 else self.ids[place]

    def leaf_at(self, place: int) -> int:
        """Return the leaf below a message: from each message to its last answer in the history."""
        children = self.children
        leaf = place
        visited = set[int]()
        while leaf in children and leaf not in visited:
            visited.add(leaf)
            leaf = children[leaf][-1]
        return leaf

    def leaf(self, id: str) -> int:
        """Return the leaf below the message with this id, as `leaf_at`. Raises NotFound."""
        if id not in self.places:
            raise NotFound(f"no message {id[:130]} in this conversation", id=id)
        return self.leaf_at(self.places[id])

    def active_leaf(self, current: str | None) -> int:
        """Return the end of the active branch: the leaf below `current`, or the last message.

        -1: there is no message.
        """
        if current is not None and current in self.places:
            return self.leaf_at(self.places[current])
        return len(self.ids) - 1

    def path_to(self, place: int) -> list[int]:
        """Return the messages from the root to this one. Of a cycle each is there once."""
        path = []
        visited = set[int]()
        ancestor = place
        while ancestor >= 0 and ancestor not in visited:
            visited.add(ancestor)
            path.append(ancestor)
            ancestor = self.parents[ancestor]
        path.reverse()
        return path

    def path(self, current: str | None = None) -> list[int]:
        """Return the active branch, from its root to its leaf.

        A `current` that is no message counts as none.
        """
        return self.path_to(self.active_leaf(current))

    def descendants_at(self, place: int) -> list[int]:
        """Return the answers to a message, their answers and so on, breadth first."""
        result = [place]
        visited = {place}
        for parent in result:  # It grows while it is read.
            new = [child for child in self.children.get(parent, ()) if child not in visited]
            visited.update(new)
            result += new
        return result[1:]

    def siblings_at(self, place: int) -> list[int]:
        """Return the messages with the same parent, this one included, as in the history."""
        return self.children[self.parents[place]]

    def nearest_fork(self, place: int) -> int:
        """Return the nearest message towards the root that has siblings, perhaps this one.

        -1: none has.
        """
        for ancestor in reversed(self.path_to(place)):
            if ancestor in self.forks:
                return ancestor
        return -1

    def problems(self) -> list[tuple[int, str]]:
        """Return what is odd about the parents, by place: unknown ones, and cycles.

        A cycle is reported once, at its first message that names its parent.
        """
        problems = []
        for cycle in find_cycles(dict(enumerate(self.parents))):
            naming = [place for place in cycle if self._links[place][1] is not None]
            problems.append((min(naming), _CYCLE))
        for place, (id, parent) in enumerate(self._links):
            if not parent:
                continue
            if parent not in self.places:
                problems.append(
                    (
                        place,
                        f"{parent[:60]!r} is not the id of a message here; correct or remove it",
                    )
                )
            elif parent == id and self.places[parent] == place:
                problems.append((place, "is the message's own id; correct or remove it"))
        return sorted(problems)


_CYCLE = "closes a circle of messages that answer each other; correct or remove it"


def find_cycles(parents: Mapping[T, Any]) -> Iterator[list[T]]:
    """Yield the cycles of messages that answer each other, from each message and its parent.

    Looks at each message at most twice.
    """
    start_of_walk: dict[Any, T] = {}
    for start in parents:
        current: Any = start
        while current in parents and current not in start_of_walk:
            start_of_walk[current] = start
            current = parents[current]
        if current in parents and start_of_walk[current] == start:
            cycle = [current]
            while parents[cycle[-1]] != current:
                cycle.append(parents[cycle[-1]])
            yield cycle


def active_flags(messages: Sequence[Link], current: str | None) -> list[bool]:
    """Return for each message whether it is on the active branch.

    `current` is `metadata.currentNode`.
    """
    flags = [False] * len(messages)
    for place in Tree.of_links(messages).path(current):
        flags[place] = True
    return flags


def active_path(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of the active branch of a capsule, from the root on.

    All messages must have ids.
    """
    history: list[dict[str, Any]] = document["history"]
    current = document["metadata"].get("currentNode")
    return [history[place] for place in Tree(history).path(current)]


def _places_by_id(ids: list[str | None]) -> dict[str, int]:
    """Return the place of each id. An id that occurs twice means the first place."""
    places = {id: place for place, id in enumerate(ids) if id}
    if len(places) < len(ids):  # An id is missing, or occurs twice.
        places = {id: place for place, id in reversed(list(enumerate(ids))) if id}
    return places


def _parent_places(links: Sequence[Link], places: dict[str, int]) -> list[int]:
    """Return the place of each message's parent. -1: it is a root."""
    parents = list(range(-1, len(links) - 1))
    for place, (_, parent) in enumerate(links):
        if parent == ROOT:
            parents[place] = -1
        elif parent is not None:
            named_place = places.get(parent, place)
            if named_place != place:  # Else it is unknown, or the message itself.
                parents[place] = named_place
    return parents
