"""Taking messages out of a history, and putting them back.

What must stay true: every other message keeps its parent, and nothing else of it changes; and what
a write takes out or changes is recorded so that it can be put back. Pure.

A message without a `parent` answers the entry before it. So when entries go or come, some parents
must be named.

[joined: branches] Working out branches: switching, other answers, removals.

What must stay true: nothing here writes, and a plan depends on the conversation alone, so that a
dry run says what would be done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from capsule.errors import InvalidInput, NotFound, Remedy
from capsule.format.documents.message import content_fields
from capsule.format.json.canonical import order_message
from capsule.format.references import find_message
from capsule.format.text.titles import automatic_title
from capsule.format.tree.tree import Tree

Message = Mapping[str, Any]
Document = dict[str, Any]


def remove_messages(history: Sequence[Message], tree: Tree, gone: Set[int]) -> list[Document]:
    """The history without the messages at these places; their answers answer what they answered.

    Raises:
        InvalidInput: An answer to a message whose id stands twice can't be put in words.
    """
    stays = [place for place in range(len(history)) if place not in gone]
    now = {place: at for at, place in enumerate(stays)}
    parents = [now.get(_above(tree, place, gone), -1) for place in stays]
    result = [dict(history[place]) for place in stays]
    _name_parents(result, parents, {tree.ids[place] for place in gone})
    return result


def _name_parents(history: list[Document], parents: Sequence[int], gone: Set[str | None]) -> None:
    """Name the parent of each message where the history would say another one. Changes `history` in
    place.

    `parents` holds places (-1: no parent), and `gone` ids that must not be named any more.
    """
    tree = Tree(history)
    gone = gone - {*tree.ids, None}
    for at, above in enumerate(parents):
        if tree.parents[at] == above and history[at].get("parent") not in gone:
            continue
        if above >= 0 and tree.places.get(str(tree.ids[above])) != above:
            raise InvalidInput(
                f"two messages have the id {tree.ids[above]}, so it is unclear which one is "
                "answered",
                remedy=Remedy("repair"),
            )
        history[at] = order_message(history[at] | {"parent": tree.id_at(above)})


def _above(tree: Tree, place: int, gone: Set[int]) -> int:
    """The nearest message above that stays; -1: none."""
    above, seen = tree.parents[place], {place}
    while above in gone and above not in seen:
        seen.add(above)
        above = tree.parents[above]
    return -1 if above in seen else above


def current_after_removal(
    before: Tree, current: str | None, gone: Set[int], asked: int | None, after: Sequence[Message]
) -> str | None:
    """What `currentNode` must be when messages have gone, so that the active branch is what a
    person expects.

    It stays the branch that it was. When its end is gone, it is the one that the removed message's
    newest sibling leads to, else it ends at what that message answered.

    Args:
        before, current: The tree and `currentNode` as they were.
        gone: The places of the messages that went.
        asked: The one that was asked to be removed; None: the end of the active branch stays.
        after: The history as it is now.

    Returns:
        The value; None: none is needed. The old one, wherever that does as well.
    """
    if not after:
        return None
    tree = Tree(after)
    leaf = before.active_leaf(current)
    if leaf in gone and asked is not None:
        siblings = [place for place in before.siblings_at(asked) if place not in gone]
        nearest = siblings[-1] if siblings else _above(before, asked, gone)
        leaf = tree.leaf(str(before.ids[nearest])) if nearest >= 0 else len(tree) - 1
    else:
        leaf = tree.places[str(before.ids[leaf])]
    wanted = current if current in tree.places else None
    return wanted if tree.active_leaf(wanted) == leaf else str(tree.ids[leaf])


def retitle(document: Document, before: Sequence[Message], after: Sequence[Message]) -> None:
    """Let a title that was made by rule follow the messages; one that would be empty stays."""
    if document["metadata"].get("titleSetBy") == "auto" and document["title"] == automatic_title(
        before
    ):
        document["title"] = automatic_title(after) or document["title"]


def removal_record(
    before: Mapping[str, Any], after: Mapping[str, Any], reason: str
) -> Document | None:
    """What a write takes out of a conversation, as the trash keeps it; None when it takes nothing.

    Args:
        before, after: The conversation before and after the write.
        reason: `deleted`, `pruned`, `edited` or `restored`.

    Returns:
        The messages that went and the former versions of those that changed, each naming its
        parent; behind which message each stood (`after`), which message each answer to one of them
        answered (`answers`), and at which message the active branch ended, before and after the
        write (`leaf`, `leafNow`).
    """
    now: dict[Any, list[Document]] = {}
    for entry in after["history"]:
        now.setdefault(entry.get("id"), []).append(content_fields(entry))
    history = before["history"]
    gone = [
        place
        for place, entry in enumerate(history)
        if content_fields(entry) not in now.get(entry.get("id"), ())
    ]
    if not gone:
        return None
    tree = Tree(history)
    lost = {place for place in gone if tree.ids[place] not in now}
    id_at = tree.id_at
    answers = {
        tree.ids[child]: id_at(place) for place in lost for child in tree.children.get(place, ())
    }
    left = Tree(after["history"])
    return {
        "version": before["version"],
        "id": before["id"],
        "title": before["title"],
        "removed": {
            "at": after["updatedAt"],
            "reason": reason,
            "after": [id_at(place - 1) for place in gone],
            "answers": {child: parent for child, parent in answers.items() if child in now},
            "leaf": id_at(tree.active_leaf(before["metadata"].get("currentNode"))),
            "leafNow": left.id_at(left.active_leaf(after["metadata"].get("currentNode"))),
        },
        "history": [
            order_message(history[place] | {"parent": id_at(tree.parents[place])}) for place in gone
        ],
    }


def mark_edited(entry: Message, at: str, by: str | None) -> Document:
    """Return a message that was changed just now.

    Args:
        entry: The message with its new text.
        at: When it was changed.
        by: The agent that changed it; None: a person.
    """
    changed = {**entry, "editedAt": at}
    changed.pop("editedBy", None)
    if by is not None:
        changed["editedBy"] = by
    return order_message(changed)


def restore_removed(document: Document, kept: Mapping[str, Any], by: str | None = None) -> Document:
    """The conversation with messages put back that `removal_record` recorded.

    One that is gone returns to its place, under the message that it answered, and has its answers
    again. One that is there gets its former text, as an edit. The active branch ends where it ended
    before the removal, unless somebody has gone on since.

    Args:
        document: The conversation; its `updatedAt` is that of the edits.
        kept: What `removal_record` gave.
        by: The agent that puts it back; None: a person.

    Raises:
        InvalidInput: An answer to a message whose id stands twice can't be put in words.
    """
    about, current = kept["removed"], document["metadata"].get("currentNode")
    before = Tree(document["history"])
    history, parents = [dict(entry) for entry in document["history"]], {}
    for entry, above in zip(history, before.parents, strict=True):
        parents[entry["id"]] = before.id_at(above)
    lost: list[tuple[Document, str | None]] = []
    for entry, behind in zip(kept["history"], about["after"], strict=True):
        at = before.places.get(entry["id"])
        if at is None:
            lost.append((dict(entry), behind))
        elif content_fields(entry) != content_fields(history[at]):
            parent = {"parent": history[at]["parent"]} if "parent" in history[at] else {}
            history[at] = mark_edited(
                {**content_fields(entry), **parent}, document["updatedAt"], by
            )
    came = {entry["id"]: entry["parent"] for entry, _ in lost}
    for child, parent in about["answers"].items():
        above, seen = parent, set()
        while (
            above is not None and above in came and above not in seen
        ):  # The nearest that was not removed with it.
            seen.add(above)
            above = came[above]
        if (
            parent in came
            and child in parents
            and parents[child] == (above if above in parents else None)
        ):
            parents[child] = parent
    for entry, behind in lost:
        ids = [there["id"] for there in history]
        at = ids.index(behind) + 1 if behind in ids else 0 if behind is None else len(ids)
        if entry["parent"] is not None and entry["parent"] not in {**came, **parents}:
            entry["parent"] = behind if behind in ids else None
        history.insert(at, entry)
        parents[entry["id"]] = entry["parent"]
    places = Tree(history).places
    _name_parents(history, [places.get(str(parents[entry["id"]]), -1) for entry in history], set())
    after = Tree(history)
    leaf = before.id_at(before.active_leaf(current))
    if leaf == about["leafNow"] and about["leaf"] in places:
        leaf = about["leaf"]
    metadata = {
        name: value for name, value in document["metadata"].items() if name != "currentNode"
    }
    wanted = next(
        (node for node in (current, None) if after.ids[after.active_leaf(node)] == leaf), leaf
    )
    if wanted is not None:
        metadata["currentNode"] = wanted
    result = document | {"metadata": metadata, "history": history}
    retitle(result, document["history"], history)
    return result


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
        self.history = remove_messages(history, tree, gone)
        self.current = current_after_removal(tree, current, gone, removed, self.history)
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


def find_answer(
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
            f"message {message_id} is not an answer: its role is {role}", remedy=Remedy("edit", id)
        )
    return place


def plan_switch(
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
            raise InvalidInput(f"conversation {id} has only one branch")
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
