"""Plan and make changes of branches: switch, remove messages, restore removed ones.

A history is a list of messages, and its `Tree` names messages by their indexes. A message without a
`parent` answers the entry before it. So when entries are removed or inserted, the parents of some
messages must be named, and the module names as few as possible. `currentNode` in the metadata names
a message of the active branch. Without it the last message ends the active branch.

What must stay true: every other message keeps its parent, and nothing else of it changes. What a
write removes or changes is recorded, so that it can be restored. A plan depends only on the
conversation, so a dry run returns what would be done. Pure: nothing here writes.
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
Entry = dict[str, Any]
#: Chooses messages to remove, from the history, its tree and `currentNode`. Returns their indexes,
#: and that of the message whose removal was requested. None: no single message was.
Choose = Callable[[list[Entry], Tree, str | None], tuple[set[int], int | None]]


# --- Removing messages ---


def remove_messages(history: Sequence[Message], tree: Tree, removed: Set[int]) -> list[Document]:
    """Return the history without the messages at these indexes.

    An answer to a removed message then answers the nearest message above that stays.

    Raises:
        InvalidInput: The parent to be named has an id that two messages have.
    """
    kept_indexes = [index for index in range(len(history)) if index not in removed]
    new_index = {old: new for new, old in enumerate(kept_indexes)}
    parents = [new_index.get(_nearest_kept(tree, old, removed), -1) for old in kept_indexes]
    result = [dict(history[index]) for index in kept_indexes]
    _name_parents(result, parents, {tree.ids[index] for index in removed})
    return result


def _name_parents(
    history: list[Document], parents: Sequence[int], removed_ids: Set[str | None]
) -> None:
    """Name the parent of each message that would otherwise get another one.

    Args:
        history: The messages. Those that name a parent now are replaced in place.
        parents: The index of each message's parent. -1: none.
        removed_ids: Ids that no message may name any more.
    """
    tree = Tree(history)
    forbidden_ids = removed_ids - {*tree.ids, None}
    for index, parent in enumerate(parents):
        is_right = tree.parents[index] == parent
        if is_right and history[index].get("parent") not in forbidden_ids:
            continue
        if parent >= 0 and tree.places.get(str(tree.ids[parent])) != parent:
            raise InvalidInput(
                f"two messages have the id {tree.ids[parent]}, so it is unclear which one is "
                "answered",
                remedy=Remedy("repair"),
            )
        history[index] = order_message(history[index] | {"parent": tree.id_at(parent)})


def _nearest_kept(tree: Tree, index: int, removed: Set[int]) -> int:
    """Return the index of the nearest message above that stays. -1: none."""
    ancestor = tree.parents[index]
    visited = {index}
    while ancestor in removed and ancestor not in visited:
        visited.add(ancestor)
        ancestor = tree.parents[ancestor]
    return -1 if ancestor in visited else ancestor


def current_after_removal(
    tree_before: Tree,
    current: str | None,
    removed: Set[int],
    requested: int | None,
    history_after: Sequence[Message],
) -> str | None:
    """Return the `currentNode` after a removal, so that the active branch is the expected one.

    The active branch stays. If its end was removed, the branch of the newest sibling of the
    requested message becomes active. Without a sibling it ends at the parent of that message.

    Args:
        tree_before, current: The tree and `currentNode` before the removal.
        removed: The indexes of the removed messages.
        requested: The index of the message whose removal was requested. None: the end of the active
            branch stays.
        history_after: The history after the removal.

    Returns:
        None if no `currentNode` is needed, and the old one if it leads to the same branch.
    """
    if not history_after:
        return None
    tree = Tree(history_after)
    leaf = tree_before.active_leaf(current)
    if leaf in removed and requested is not None:
        siblings = [index for index in tree_before.siblings_at(requested) if index not in removed]
        nearest = _nearest_kept(tree_before, requested, removed)
        if siblings:
            nearest = siblings[-1]
        new_leaf = len(tree) - 1
        if nearest >= 0:
            new_leaf = tree.leaf(str(tree_before.ids[nearest]))
    else:
        new_leaf = tree.places[str(tree_before.ids[leaf])]
    new_current = current if current in tree.places else None
    if tree.active_leaf(new_current) == new_leaf:
        return new_current
    return str(tree.ids[new_leaf])


def retitle(document: Document, before: Sequence[Message], after: Sequence[Message]) -> None:
    """Let an automatic title follow the messages. A title that would become empty stays."""
    if document["metadata"].get("titleSetBy") != "auto":
        return
    if document["title"] == automatic_title(before):
        document["title"] = automatic_title(after) or document["title"]


def mark_edited(entry: Message, time: str, editor: str | None) -> Document:
    """Return a message that was edited at `time`. `editor` is an agent's id; None: a person."""
    edited_entry = {**entry, "editedAt": time}
    edited_entry.pop("editedBy", None)
    if editor is not None:
        edited_entry["editedBy"] = editor
    return order_message(edited_entry)


# --- The record of a removal, and restoring ---


def removal_record(
    before: Mapping[str, Any], after: Mapping[str, Any], reason: str
) -> Document | None:
    """Return the trash record of what a write removes from a conversation. None: nothing.

    Args:
        before, after: The conversation before and after the write.
        reason: `deleted`, `pruned`, `edited` or `restored`.

    Returns:
        A document of its own. Its `history` has the removed messages and the former versions of the
        changed ones, each naming its parent. Its `removed` has for each the id of the entry before
        it (`after`), the former parent of each answer to a removed message (`answers`), and the end
        of the active branch before and after the write (`leaf`, `leafNow`).
    """
    contents_after: dict[Any, list[Document]] = {}
    for entry in after["history"]:
        contents_after.setdefault(entry.get("id"), []).append(content_fields(entry))
    history = before["history"]
    changed = []
    for index, entry in enumerate(history):
        if content_fields(entry) not in contents_after.get(entry.get("id"), ()):
            changed.append(index)
    if not changed:
        return None
    tree = Tree(history)
    tree_after = Tree(after["history"])
    answers = {}
    for index in changed:
        if tree.ids[index] in contents_after:
            continue  # It was edited, and not removed.
        for child in tree.children.get(index, ()):
            if tree.ids[child] in contents_after:
                answers[tree.ids[child]] = tree.id_at(index)
    entries = []
    for index in changed:
        parent = tree.id_at(tree.parents[index])
        entries.append(order_message(history[index] | {"parent": parent}))
    leaf = tree.active_leaf(before["metadata"].get("currentNode"))
    leaf_after = tree_after.active_leaf(after["metadata"].get("currentNode"))
    return {
        "version": before["version"],
        "id": before["id"],
        "title": before["title"],
        "removed": {
            "at": after["updatedAt"],
            "reason": reason,
            "after": [tree.id_at(index - 1) for index in changed],
            "answers": answers,
            "leaf": tree.id_at(leaf),
            "leafNow": tree_after.id_at(leaf_after),
        },
        "history": entries,
    }


def restore_removed(
    document: Document, record: Mapping[str, Any], editor: str | None = None
) -> Document:
    """Return the conversation with the messages of a record that `removal_record` made.

    A removed message gets back its place, its parent and its answers. A message that is present
    gets its former text, as an edit. The active branch ends where it ended before the removal,
    unless somebody continued it since.

    Args:
        document: The conversation. Its `updatedAt` is the time of the edits.
        record: The record.
        editor: The agent that restores; None: a person.

    Raises:
        InvalidInput: The parent to be named has an id that two messages have.
    """
    return _Restoration(document, record, editor).restore()


class _Restoration:
    """The restoring of removed messages.

    Attributes:
        removal: The `removed` of the record.
        tree_before: The tree before the restoring.
        history: The messages, which grow.
        parent_ids: The id of each message's parent, by id.
        deleted_entries: The messages to insert, each with the id of the entry before it.
    """

    def __init__(self, document: Document, record: Mapping[str, Any], editor: str | None) -> None:
        self.document = document
        self.record = record
        self.editor = editor
        self.removal = record["removed"]
        self.tree_before = Tree(document["history"])
        self.history: list[Document] = [dict(entry) for entry in document["history"]]
        self.parent_ids: dict[str, str | None] = {}
        for entry, parent in zip(self.history, self.tree_before.parents, strict=True):
            self.parent_ids[entry["id"]] = self.tree_before.id_at(parent)
        self.deleted_entries: list[tuple[Document, str | None]] = []

    def restore(self) -> Document:
        """Return the conversation after the restoring."""
        self._restore_texts()
        parents_of_deleted = {entry["id"]: entry["parent"] for entry, _ in self.deleted_entries}
        self._reattach_answers(parents_of_deleted)
        for entry, predecessor in self.deleted_entries:
            self._insert(entry, predecessor, parents_of_deleted)
        places = Tree(self.history).places
        parents = []
        for entry in self.history:
            parents.append(places.get(str(self.parent_ids[entry["id"]]), -1))
        _name_parents(self.history, parents, set())
        metadata = {
            name: value
            for name, value in self.document["metadata"].items()
            if name != "currentNode"
        }
        current = self._new_current(places)
        if current is not None:
            metadata["currentNode"] = current
        result = self.document | {"metadata": metadata, "history": self.history}
        retitle(result, self.document["history"], self.history)
        return result

    def _restore_texts(self) -> None:
        """Give present messages their former content. Collect the others."""
        for entry, predecessor in zip(self.record["history"], self.removal["after"], strict=True):
            index = self.tree_before.places.get(entry["id"])
            if index is None:
                self.deleted_entries.append((dict(entry), predecessor))
                continue
            present_entry = self.history[index]
            if content_fields(entry) != content_fields(present_entry):
                parent = {}
                if "parent" in present_entry:
                    parent = {"parent": present_entry["parent"]}
                former = {**content_fields(entry), **parent}
                self.history[index] = mark_edited(former, self.document["updatedAt"], self.editor)

    def _reattach_answers(self, parents_of_deleted: Mapping[str, str | None]) -> None:
        """Let answers answer a restored message again, unless they were moved since the removal."""
        for child, parent in self.removal["answers"].items():
            if parent not in parents_of_deleted or child not in self.parent_ids:
                continue
            # After the removal the child answered the nearest message that was not removed.
            ancestor: str | None = parent
            visited: set[str] = set()
            while ancestor is not None and ancestor in parents_of_deleted:
                if ancestor in visited:
                    break
                visited.add(ancestor)
                ancestor = parents_of_deleted[ancestor]
            parent_after_removal = ancestor if ancestor in self.parent_ids else None
            if self.parent_ids[child] == parent_after_removal:
                self.parent_ids[child] = parent

    def _insert(
        self,
        entry: Document,
        predecessor: str | None,
        parents_of_deleted: Mapping[str, str | None],
    ) -> None:
        """Insert a message behind its predecessor; at the end if that is missing."""
        ids = [present["id"] for present in self.history]
        if predecessor in ids:
            index = ids.index(predecessor) + 1
        elif predecessor is None:
            index = 0
        else:
            index = len(ids)
        parent = entry["parent"]
        is_known = parent in parents_of_deleted or parent in self.parent_ids
        if parent is not None and not is_known:
            entry["parent"] = predecessor if predecessor in ids else None
        self.history.insert(index, entry)
        self.parent_ids[entry["id"]] = entry["parent"]

    def _new_current(self, places: Mapping[str, int]) -> str | None:
        """Return the `currentNode` for the expected active branch. None: it needs none."""
        current = self.document["metadata"].get("currentNode")
        leaf = self.tree_before.id_at(self.tree_before.active_leaf(current))
        if leaf == self.removal["leafNow"] and self.removal["leaf"] in places:
            leaf = self.removal["leaf"]  # Nobody continued the branch since.
        tree = Tree(self.history)
        for candidate in (current, None):
            if tree.ids[tree.active_leaf(candidate)] == leaf:
                return candidate
        return leaf


# --- Plans ---


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
        text = "1 message" if count == 1 else f"{count} messages"
        if self.roles:
            roles = ", ".join(f"{number} {role}" for role, number in self.roles.items())
            text += f" ({roles})"
        if count and self.leaf is None:
            text += ": all of them"
        return text


class PrunedHistory:
    """A conversation without some of its messages.

    Attributes:
        removal: The messages that are removed.
        history: The messages that stay.
        current: The new `currentNode`; None: it needs none.
    """

    def __init__(self, document: Mapping[str, Any], choose: Choose) -> None:
        history = document["history"]
        current = document["metadata"].get("currentNode")
        tree = Tree(history)
        removed, requested = choose(history, tree, current)
        self.history = remove_messages(history, tree, removed)
        self.current = current_after_removal(tree, current, removed, requested, self.history)
        leaf = Tree(self.history).active_leaf(self.current)
        if requested is None and leaf == len(self.history) - 1:
            self.current = None  # Only one branch is left.
        removed_entries = [history[index] for index in sorted(removed)]
        self.removal = Removal(
            ids=tuple(entry["id"] for entry in removed_entries),
            roles=dict(Counter(entry["role"] for entry in removed_entries)),
            leaf=self.history[leaf]["id"] if leaf >= 0 else None,
        )

    def apply_to(self, document: Entry) -> Entry:
        """Return the document without the messages."""
        metadata = {
            name: value for name, value in document["metadata"].items() if name != "currentNode"
        }
        if self.current is not None:
            metadata["currentNode"] = self.current
        result = document | {"metadata": metadata, "history": self.history}
        retitle(result, document["history"], self.history)
        return result


def find_answer(
    id: str, history: list[Entry], tree: Tree, current: str | None, message_id: str | None
) -> int:
    """Return the index of an answer of an assistant.

    Args:
        id: The conversation, for errors.
        history, tree, current: Its messages, their tree and `currentNode`.
        message_id: The answer, as `find_message` takes it. None: the last one of the active branch.

    Raises:
        NotFound: There is no such message, or no answer on the active branch.
        InvalidInput: The message is no answer of an assistant.
    """
    if message_id is None:
        for index in reversed(tree.path(current)):
            if history[index]["role"] == "assistant":
                return index
        raise NotFound(
            f"the active branch of conversation {id} has no answer of an assistant", id=id
        )
    index = find_message(history, message_id, id)
    role = history[index]["role"]
    if role != "assistant":
        raise InvalidInput(
            f"message {message_id} is not an answer: its role is {role}", remedy=Remedy("edit", id)
        )
    return index


def plan_switch(
    history: list[Entry], current: str | None, message_id: str | None, step: int, id: str
) -> Switched:
    """Return the result of a switch in the conversation `id`, without making it.

    Args:
        history: The messages.
        current: `currentNode`.
        message_id: The message, as `find_message` takes it. None: the last one of the active branch
            that has siblings.
        step: How many siblings further; negative: back.

    Raises:
        NotFound: The message does not exist.
        InvalidInput: There is no such sibling, or no other branch.
    """
    tree = Tree(history)
    if message_id is not None:
        index = find_message(history, message_id, id)
    else:
        index = tree.nearest_fork(tree.active_leaf(current))
        if index < 0:
            raise InvalidInput(f"conversation {id} has only one branch")
    if step:
        siblings = tree.siblings_at(index)
        number = siblings.index(index)
        if not 0 <= number + step < len(siblings):
            direction = "behind" if step > 0 else "before"
            message = message_id or history[index]["id"]
            raise InvalidInput(
                f"there is no message {direction} {message}: it is {number + 1} of {len(siblings)}"
            )
        index = siblings[number + step]
    leaf_index = tree.leaf_at(index)
    leaf = str(history[leaf_index]["id"])
    is_last = leaf_index == len(history) - 1
    is_active = leaf == current or (current is None and is_last)
    return Switched(
        message=str(history[index]["id"]), leaf=leaf, changed=not is_active, is_last=is_last
    )
