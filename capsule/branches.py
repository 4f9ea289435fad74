"""What is said of branches, and how it is worked out.

What must stay true: nothing here writes; and what is planned for a conversation is worked out from it alone, so that
what a dry run tells is what would be done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capsule.choosing import find_message
from capsule.continuing import lines_of
from capsule.errors import InvalidInput, NotFound
from capsule.format.anatomy import is_orderly
from capsule.format.outline import Outline
from capsule.format.pruning import kept_current, retitle, without
from capsule.format.tree import Tree

if TYPE_CHECKING:
    from capsule.format.lines import Lines
    from capsule.writing import Conversation

__all__ = [
    "Alternatives",
    "Removal",
    "Slot",
    "Switched",
    "Without",
    "alternatives_in",
    "answer_at",
    "like_the_leaf",
    "parent_id",
    "target",
]

Entry = dict[str, Any]
#: As long as the ids that the store gives.
_AN_ID = "00000000-0000-7000-8000-000000000000"


@dataclass(frozen=True, slots=True)
class Alternatives:
    """A message and those that answer the same one.

    Attributes:
        message: The id of the message.
        index: Which of them it is, from 0.
        ids: All of them, in the order of the history.
        leaves: For each, the id of the message at which a branch ends that is switched to it.
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
    """

    message: str
    leaf: str
    changed: bool


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
    """Messages that went, or would go.

    Attributes:
        ids: Theirs, in the order of the history.
        roles: How many there are of each role.
        leaf: The id of the message at which the active branch ends without them; None: no message is left.
    """

    ids: tuple[str, ...]
    roles: dict[str, int]
    leaf: str | None

    def __str__(self) -> str:
        count = len(self.ids)
        of = ", ".join(f"{many} {role}" for role, many in self.roles.items())
        all_of_them = ": all of them" if count and self.leaf is None else ""
        return f"{count} message{'' if count == 1 else 's'}" + (f" ({of})" if of else "") + all_of_them


class Without:
    """A conversation without some of its messages.

    Attributes:
        removal: What goes.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        chosen: Callable[[list[Entry], Tree, str | None], tuple[set[int], int | None]],
    ) -> None:
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
        metadata = {key: value for key, value in document["metadata"].items() if key != "currentNode"}
        if self.current is not None:
            metadata["currentNode"] = self.current
        after = document | {"metadata": metadata, "history": self.history}
        retitle(after, document["history"], self.history)
        return after


def parent_id(history: list[Entry], tree: Tree, place: int) -> str | None:
    above = tree.parents[place]
    return None if above < 0 else str(history[above]["id"])


def answer_at(id: str, history: list[Entry], tree: Tree, current: str | None, message_id: str | None) -> int:
    """The place of an answer, or of the last one of the active branch."""
    if message_id is None:
        for place in reversed(tree.path(current)):
            if history[place]["role"] == "assistant":
                return place
        raise NotFound(f"the active branch of conversation {id} has no answer of an assistant", id=id)
    place = find_message(history, message_id, id)
    if history[place]["role"] != "assistant":
        raise InvalidInput(
            f"message {message_id} is no answer: its role is {history[place]['role']}; "
            "a new version of it is made by editing it in a branch of its own"
        )
    return place


def alternatives_in(lines: Lines, message_id: str) -> Alternatives | None:
    """The message of this full id and those beside it, in an orderly history; None when there is none."""
    outline = Outline()
    at = outline.find(lines, message_id)
    if at < 0:
        return None
    among = outline.siblings(lines, at)
    leaves = [outline.leaf(lines, one) for one in among]
    return Alternatives(message_id, among.index(at), tuple(map(lines.id_at, among)), tuple(map(lines.id_at, leaves)))


def like_the_leaf(conversation: Conversation, message_id: str | None) -> str | None:
    """What is as long as the leaf's id, most likely, where that has to be looked for; None where it is soon found."""
    at = conversation.known.anatomy
    if at is None or not at.is_orderly or conversation.head.outline is not None:
        return None
    if message_id is None:
        return conversation.head.current or _AN_ID
    return None if message_id.startswith("@") else message_id


def target(conversation: Conversation, message_id: str | None, step: int) -> Switched:
    """What a switch leads to; nothing is written yet."""
    anatomy = conversation.known.anatomy
    if anatomy is not None and anatomy.is_orderly:
        found = _target_in_lines(conversation, message_id, step)
        if found is not None:
            return found
    history, current = conversation.document()["history"], conversation.head.current
    if anatomy is not None and not anatomy.is_orderly and is_orderly(history):
        conversation.known = conversation.known._replace(anatomy=anatomy._replace(is_orderly=True))
    tree = Tree(history)
    if message_id is not None:
        place = find_message(history, message_id, conversation.id)
    else:
        place = tree.nearest_fork(tree.active_leaf(current))
        if place < 0:
            raise _alone(conversation.id)
    if step:
        among = tree.siblings_at(place)
        place = among.places[_stepped(among.index, step, len(among.places), message_id or str(history[place]["id"]))]
    leaf_at = tree.leaf_at(place)
    leaf = str(history[leaf_at]["id"])
    is_active = leaf == current or (current is None and leaf_at == len(history) - 1)
    return Switched(str(history[place]["id"]), leaf, not is_active)


def _target_in_lines(conversation: Conversation, message_id: str | None, step: int) -> Switched | None:
    """As `target`, in a history whose lines tell all of it; None when they don't tell which message is meant."""
    lines, current = lines_of(conversation), conversation.head.current
    outline = conversation.head.outline = conversation.head.outline or Outline()
    if message_id is None:
        active = -1 if current is None else outline.find(lines, current)
        at = outline.nearest_fork(lines, lines.last() if active < 0 else outline.leaf(lines, active))
        if at < 0:
            raise _alone(conversation.id)
    elif message_id == "@last":
        at = lines.last()
    else:
        at = -1 if message_id.startswith("@") else outline.find(lines, message_id)
    if at < 0:
        return None
    if step:
        among = outline.siblings(lines, at)
        at = among[_stepped(among.index(at), step, len(among), message_id or lines.id_at(at))]
    leaf_at = outline.leaf(lines, at)
    leaf = lines.id_at(leaf_at)
    is_active = leaf == current or (current is None and leaf_at == lines.last())
    return Switched(lines.id_at(at), leaf, not is_active)


def _alone(id: str) -> InvalidInput:
    return InvalidInput(f"the active branch of conversation {id} has no other beside it")


def _stepped(index: int, step: int, count: int, message_id: str) -> int:
    if not 0 <= index + step < count:
        where = "behind" if step > 0 else "before"
        raise InvalidInput(f"there is no message {where} {message_id}: it is {index + 1} of {count}")
    return index + step
