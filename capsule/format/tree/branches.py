"""Working out branches: switching, other answers, removals.

What must stay true: nothing here writes, and a plan depends on the conversation alone, so that a
dry run says what would be done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from capsule.errors import InvalidInput, NotFound, Remedy
from capsule.format.references import find_message
from capsule.format.tree.pruning import kept_current, retitle, without
from capsule.format.tree.tree import Tree

Entry = dict[str, Any]
#: Chooses the places of the messages to remove, and gives the place of the requested one, if any.
Choose = Callable[[list[Entry], Tree, str | None], tuple[set[int], int | None]]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """A message, and the others that answer the same message.

    Attributes:
        message: The id of the message.
        index: The position of the message among them, from 0.
        ids: The ids of all of them, in the order of the history.
        leaves: For each of them, the id of the message at which its branch ends.
    """

    message: str
    index: int
    ids: tuple[str, ...]
    leaves: tuple[str, ...]

    @property
    def leaf(self) -> str:
        """The id of the message at which the branch through the message ends."""
        return self.leaves[self.index]


@dataclass(frozen=True, slots=True)
class Switched:
    """What `switch` did.

    Attributes:
        message: The id of the message that was switched to.
        leaf: The id of the message at which the active branch now ends.
        changed: Whether it ended elsewhere before.
        is_last: Whether the leaf is the last message of the history.
    """

    message: str
    leaf: str
    changed: bool
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for another answer.

    Attributes:
        message: The id of the answer that is there.
        parent: The id of the message that it answers; None: it answers none.
    """

    message: str
    parent: str | None


@dataclass(frozen=True, slots=True)
class Removal:
    """Messages that were removed, or would be removed.

    Attributes:
        ids: Their ids, in the order of the history.
        roles: How many there are of each role.
        leaf: The id of the message at which the active branch ends without them; None: no message
            is left.
    """

    ids: tuple[str, ...]
    roles: dict[str, int]
    leaf: str | None

    def __str__(self) -> str:
        count = len(self.ids)
        of = ", ".join(f"{many} {role}" for role, many in self.roles.items())
        all_of_them = ": all of them" if count and self.leaf is None else ""
        return (
            f"{count} message{'' if count == 1 else 's'}" + (f" ({of})" if of else "") + all_of_them
        )


class PrunedHistory:
    """A conversation without some of its messages.

    Attributes:
        removal: What goes.
    """

    def __init__(self, document: Mapping[str, Any], chosen: Choose) -> None:
        history, current = document["history"], document["metadata"].get("currentNode")
        tree = Tree(history)
        gone, removed = chosen(history, tree, current)
        self.history = without(history, tree, gone)
        self.current = kept_current(tree, current, gone, removed, self.history)
        leaf = Tree(self.history).active_leaf(self.current)
        if removed is None and leaf == len(self.history) - 1:
            self.current = None  # What is left is one branch.
        went = [history[place] for place in sorted(gone)]
        self.removal = Removal(
            tuple(entry["id"] for entry in went),
            dict(Counter(entry["role"] for entry in went)),
            self.history[leaf]["id"] if leaf >= 0 else None,
        )

    def applied(self, document: Entry) -> Entry:
        """The document, changed so."""
        metadata = {
            key: value for key, value in document["metadata"].items() if key != "currentNode"
        }
        if self.current is not None:
            metadata["currentNode"] = self.current
        after = document | {"metadata": metadata, "history": self.history}
        retitle(after, document["history"], self.history)
        return after


def answer_at(
    id: str, history: list[Entry], tree: Tree, current: str | None, message_id: str | None
) -> int:
    """The place of an answer, or of the last one of the active branch."""
    if message_id is None:
        for place in reversed(tree.path(current)):
            if history[place]["role"] == "assistant":
                return place
        raise NotFound(
            f"the active branch of conversation {id} has no answer of an assistant", id=id
        )
    place = find_message(history, message_id, id)
    if (role := history[place]["role"]) != "assistant":
        raise InvalidInput(
            f"message {message_id} is no answer: its role is {role}", remedy=Remedy("edit", id)
        )
    return place


def target(
    history: list[Entry], current: str | None, message_id: str | None, step: int, id: str
) -> Switched:
    """What a switch leads to in the conversation `id`; nothing is written yet.

    Args:
        history: The messages.
        current: `currentNode`.
        message_id: The message, as `find_message` takes it; None: the last of the active branch
            that has siblings.
        step: How many siblings further.
    """
    tree = Tree(history)
    if message_id is not None:
        place = find_message(history, message_id, id)
    else:
        place = tree.nearest_fork(tree.active_leaf(current))
        if place < 0:
            raise InvalidInput(f"the active branch of conversation {id} has no other beside it")
    if step:
        siblings = tree.siblings_at(place)
        index = siblings.index(place)
        if not 0 <= index + step < len(siblings):
            where, message = "behind" if step > 0 else "before", message_id or history[place]["id"]
            raise InvalidInput(
                f"there is no message {where} {message}: it is {index + 1} of {len(siblings)}"
            )
        place = siblings[index + step]
    leaf_at = tree.leaf_at(place)
    leaf, is_last = str(history[leaf_at]["id"]), leaf_at == len(history) - 1
    is_active = leaf == current or (current is None and is_last)
    return Switched(str(history[place]["id"]), leaf, not is_active, is_last)
