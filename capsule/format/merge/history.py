"""Merge two histories: which messages the result has, in which order, and whose answer each one is.

The data: three `HistorySide`s (the base, which is the common ancestor, ours and theirs) give each
message by id, and its parent, which is the message that it answers. `HistoryMerge` decides by id
about the content and the parent of each message. `merge_order` puts the ids into one order. At last
each message names its parent in the file, unless that is the entry before it.

Terms:

- In a conversation with many writers, the messages that only follow each other form the *line*.
  Their parents result from the order. So messages that two people wrote at the same time are in one
  line, by time. In a `chat`, which has no line, they become two branches.
- If both sides edited a message differently, the later edit wins. The other one is a *lost
  version*: it gets an id of its own, and stays as a branch next to the winner.
- An earlier merge may have *noted* the parent of a message (`metadata.originalParent`), because the
  parent was deleted, or because the message is next to the line and looks like a part of it.

What must stay true: a message vanishes only if one side deleted it and the other left it alone. A
message that both sides edited is kept in both versions. A message keeps its parent, and while that
is deleted it answers the parent's parent. So the parent does not depend on which other messages
were deleted: that of the base counts, unless a side moved the message. What the sides contain
decides, and not what was merged earlier. The result does not depend on which side is called ours.
The order of the messages does not depend on which two of three versions are merged first. If the
orders of the sides contradict each other, the result still has one order. Linear time. No clock, no
chance. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

import orjson

from capsule.format.fields import field_names
from capsule.format.json.canonical import order_message
from capsule.format.merge.annotations import (
    ORIGINAL_PARENT,
    VERSION_OF,
    digest,
    has_original_parent,
    version_of,
    with_original_parent,
    without_parent,
)
from capsule.format.merge.three_way import ABSENT, encode_value, merge_object, merge_value, same
from capsule.format.text.escaping import one_line
from capsule.format.tree.tree import Tree, find_cycles
from capsule.ids import version_id_for

Key = tuple[str, str]
Message = Mapping[str, Any]
#: A parent: an id; None: the message is a root; `IN_LINE`: the message before it in the line;
#: `NEXT_TO_WINNER`: the parent of the message of which this one is a lost version.
Parent = Any
IN_LINE: Parent = type("Line", (), {"__slots__": ()})()
NEXT_TO_WINNER: Parent = type("Beside", (), {"__slots__": ()})()
#: The ids that messages get instead of their own.
RenamedIds = dict[str, str]
_KNOWN_FIELDS = frozenset(field_names("history"))


# --- The order ---


def merge_order(
    base: Sequence[str],
    ours: Sequence[str],
    theirs: Sequence[str],
    key: Callable[[str], Key],
    parents: Mapping[str, object],
) -> list[str]:
    """Return the ids of both sides in one order.

    Each side's order is kept. Both lists are passed once, as when sorted lists are merged: an id
    that both have waits until both lists have come to it. Of two ids that need not wait, the one
    with the lower key comes first.

    Args:
        base: The ids in the order of the common ancestor.
        ours, theirs: The ids in the orders of the sides.
        key: Returns the time of a message, then its id.
        parents: The parent of each message. Only contradictory orders need them.
    """
    common_count = _common_prefix_length(ours, theirs)  # Most histories begin alike.
    result = [*ours[:common_count]]
    placed_ids = set(result)
    our_rest, their_rest = _align_sides(
        [id for id in base if id not in placed_ids], ours[common_count:], theirs[common_count:]
    )
    our_ids = set(our_rest)
    their_ids = set(their_rest)
    all_ids = our_ids | their_ids

    def contradiction_rank(id: str) -> tuple[bool, Key]:
        """Prefer a message whose parent is placed, then the earlier one."""
        parent = parents.get(id)
        return parent in all_ids and parent not in placed_ids, key(id)

    i = j = 0
    while i < len(our_rest) and j < len(their_rest):
        our_id = our_rest[i]
        their_id = their_rest[j]
        if our_id in placed_ids:
            i += 1
            continue
        if our_id != their_id and their_id in placed_ids:
            j += 1
            continue
        is_our_id_shared = our_id in their_ids
        is_their_id_shared = their_id in our_ids
        if our_id == their_id:
            next_id = our_id
        elif is_our_id_shared and is_their_id_shared:  # Each side has the other's id further on.
            next_id = min(our_id, their_id, key=contradiction_rank)
        elif is_our_id_shared:
            next_id = their_id
        elif is_their_id_shared or key(our_id) < key(their_id):
            next_id = our_id
        else:
            next_id = their_id
        result.append(next_id)
        placed_ids.add(next_id)
    return result + [id for id in (*our_rest[i:], *their_rest[j:]) if id not in placed_ids]


def _common_prefix_length(ours: Sequence[str], theirs: Sequence[str]) -> int:
    pairs = zip(ours, theirs, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _align_sides(
    base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """Return both orders. If one side alone moved messages, the other one gets its order."""
    shared_ids = set(ours) & set(theirs)
    our_shared = _only(ours, shared_ids)
    their_shared = _only(theirs, shared_ids)
    if our_shared == their_shared:
        return ours, theirs
    base_ids = set(base)
    base_shared = _only(base, shared_ids)
    is_our_order_old = _only(our_shared, base_ids) == base_shared
    is_their_order_old = _only(their_shared, base_ids) == base_shared
    if is_our_order_old and not is_their_order_old:
        return insert_missing(their_shared, ours), theirs
    if is_their_order_old and not is_our_order_old:
        return ours, insert_missing(our_shared, theirs)
    return ours, theirs


def _only(ids: Sequence[str], allowed: Container[str]) -> list[str]:
    return [id for id in ids if id in allowed]


def insert_missing(order: Sequence[str], side: Sequence[str]) -> list[str]:
    """Return `order` with the ids that only `side` has, each behind its predecessor in `side`."""
    ordered_ids = set(order)
    predecessor = ""
    followers: dict[str, list[str]] = {}
    for id in side:
        if id in ordered_ids:
            predecessor = id
        else:
            followers.setdefault(predecessor, []).append(id)
    result = [*followers.get("", ())]
    for id in order:
        result.append(id)
        result += followers.get(id, ())
    return result


# --- One version of a history ---


class HistorySide:
    """One version of a history: its messages, and the parent of each.

    Attributes:
        ids: The messages' ids, in order.
        entries: The messages by id. If two have one id, the second has a new id here.
        is_line: Whether the conversation has a line.
        is_plain: Whether no message names a parent.
        parent_ids: The parent of each message in this version. None: the message is a root.
        parents: The same, or `IN_LINE` or `NEXT_TO_WINNER`. A parent may be absent from `entries`:
            it was deleted, perhaps before an earlier merge.
        noted_parents: The parents from `metadata.originalParent` that still count.
        ids_with_note: The messages that have this field, whether it counts or not.
    """

    def __init__(
        self,
        history: Sequence[Message],
        conversation: str,
        *,
        is_line: bool,
        base: HistorySide | None = None,
    ) -> None:
        """Read a history, in which `with_renamed_ids` has unified the generated ids.

        Args:
            history: The messages of the version.
            conversation: The id of the conversation.
            is_line: Whether the conversation has a line. It is the same for all three versions.
            base: The common ancestor, for a side. None: this is the common ancestor itself.
        """
        self.ids: list[str] = [message["id"] for message in history]
        if len(set(self.ids)) < len(self.ids):
            history = _with_unique_ids(history, conversation)
            self.ids = [message["id"] for message in history]
        self.entries = dict(zip(self.ids, history, strict=True))
        naming = [message for message in history if "parent" in message]
        self.is_line = is_line
        self.is_plain = not naming
        self.parent_ids = self._find_parent_ids()
        is_all_line = is_line and self.is_plain and (base is None or base.is_plain)
        self.parents: dict[str, Parent] = dict(self.parent_ids)
        if is_all_line:
            self.parents = dict.fromkeys(self.ids, IN_LINE)
        self.noted_parents: dict[str, str | None] = {}
        self.ids_with_note: set[str] = set()
        for message in naming:
            self._read_parent(message, base)
        if is_line and not is_all_line:
            self._mark_line(base)
        if naming and base is not None:
            self._mark_lost_versions(base)

    def _find_parent_ids(self) -> dict[str, str | None]:
        if self.is_plain:  # Each answers the one before it.
            return dict(zip(self.ids, [None, *self.ids], strict=False))
        parent_ids: dict[str, str | None] = {}
        for id, index in zip(self.ids, self.tree.parents, strict=True):
            parent_ids[id] = self.ids[index] if index >= 0 else None
        return parent_ids

    def _read_parent(self, message: Message, base: HistorySide | None) -> None:
        """Read the parent that a message names, and the one that an earlier merge noted."""
        id = message["id"]
        named_parent = message["parent"]
        if named_parent and named_parent not in self.entries:
            self.parents[id] = named_parent
        if has_original_parent(message):
            self.ids_with_note.add(id)
            self._accept_noted_parent(id, message["metadata"][ORIGINAL_PARENT], base)

    def _accept_noted_parent(
        self, id: str, noted_parent: str | None, base: HistorySide | None
    ) -> None:
        """Accept the parent that an earlier merge noted, unless the message was moved since."""
        base_entries: Mapping[str, Message] = {}
        nearest = noted_parent
        if base is not None:
            base_entries = base.entries
            nearest = base.nearest_ancestor(noted_parent, self.entries)
        is_unknown = (
            noted_parent is not None
            and noted_parent not in self.entries
            and noted_parent not in base_entries
        )
        if is_unknown or nearest == self.parent_ids[id]:
            self.noted_parents[id] = noted_parent
            if base is not None and id not in base_entries:
                self.parents[id] = noted_parent

    def _mark_line(self, base: HistorySide | None) -> None:
        """Mark the messages of the line.

        A message of the base that nobody moved keeps its status there. So deletions do not change
        the line.
        """
        base_parents: dict[str, Parent] = {}
        if base is not None:
            for id, parent in base.parents.items():
                if id not in self.entries:
                    continue
                if self.parent_ids[id] == base.nearest_ancestor(base.parent_ids[id], self.entries):
                    base_parents[id] = parent
        next_to_line = {id for id, parent in base_parents.items() if parent is not IN_LINE}
        next_to_line |= self.noted_parents.keys()
        for id in list(self._walk_line(next_to_line, is_strict=base is not None)):
            self.parents[id] = IN_LINE
        for id, parent in base_parents.items():
            # What the base has in the line stays in it, and what the base has next to it stays out.
            if parent is IN_LINE or self.parents[id] is IN_LINE:
                self.parents[id] = parent

    def _walk_line(self, next_to_line: Container[str], *, is_strict: bool) -> Iterator[str]:
        """Yield the messages of the line.

        It goes from each message to its first answer that is further on in the history. Lost
        versions are not in it. A message of `next_to_line` is only if there is no other answer, and
        never if `is_strict`.
        """
        index = -1
        children = self.tree.children
        while True:
            answers = []
            for child in children.get(index, ()):
                if child > index and not version_of(self.entries[self.ids[child]]):
                    answers.append(child)
            candidates = [child for child in answers if self.ids[child] not in next_to_line]
            if candidates:
                index = candidates[0]
            elif answers and not is_strict:
                index = answers[0]
            else:
                return
            yield self.ids[index]

    def _mark_lost_versions(self, base: HistorySide) -> None:
        """Mark the new messages that are lost versions, and have the parent of the winner."""
        for id in self.ids:
            if id in base.entries:
                continue
            winner = version_of(self.entries[id])
            if winner is None or winner == id:
                continue
            if self.parent_ids.get(winner, ABSENT) == self.parent_ids[id]:
                self.parents[id] = NEXT_TO_WINNER

    @cached_property
    def tree(self) -> Tree:
        """The messages as a tree, by index."""
        return Tree(self.entries.values())

    def content_of(self, id: str) -> bytes | None:
        """Return the JSON of a message without its `parent`. None: it is not in this version."""
        message = self.entries.get(id)
        if message is None:
            return None
        return orjson.dumps(without_parent(message) if "parent" in message else message)

    def nearest_ancestor(self, parent: str | None, present_ids: Container[str]) -> str | None:
        """Return the first of `parent`, its parent and so on that is in `present_ids`, or None."""
        visited: set[str] = set()
        ancestor = parent
        while ancestor is not None and ancestor not in present_ids:
            if ancestor in visited:
                return None
            visited.add(ancestor)
            ancestor = self.parent_ids.get(ancestor)
        return ancestor


def _with_unique_ids(history: Sequence[Message], conversation: str) -> Sequence[Message]:
    """Return the messages. The second with one id gets another id, which is always the same."""
    used_ids = {message["id"] for message in history}
    entries: dict[str, Message] = {}
    for message in history:
        id = message["id"]
        if id not in entries:
            entries[id] = message
            continue
        number = 0
        while id in used_ids:
            id = version_id_for(conversation, message["id"], f"{number} {digest(message)}")
            number += 1
        used_ids.add(id)
        entries[id] = {**message, "id": id}
    return [*entries.values()]


# --- Ids that were made of words ---
# A message that a person typed without an id gets one that is made of its place and its words. So
# two clones can give one message two ids. A message of the same role, text and time is the same
# one, unless one side has both. An id that somebody gave is never changed.


def unify_generated_ids(
    base: Sequence[Message], ours: Sequence[Message], theirs: Sequence[Message]
) -> tuple[RenamedIds, RenamedIds]:
    """Return the ids that messages of ours and of theirs get instead of generated ones.

    That is the id of the base if it has the message, else the lower of the two.
    """
    our_typed = _typed_messages(ours)
    their_typed = _typed_messages(theirs)
    if not our_typed and not their_typed:
        return {}, {}
    base_ids = {message["id"] for message in base}
    our_ids = {message["id"] for message in ours}
    their_ids = {message["id"] for message in theirs}
    base_typed = _typed_messages(base)
    our_names = _names_from_base(base_typed, base_ids, our_typed, our_ids)
    their_names = _names_from_base(base_typed, base_ids, their_typed, their_ids)
    our_new = _unmatched(our_typed, (base_ids, our_names, their_ids))
    their_new = _unmatched(their_typed, (base_ids, their_names, our_ids))
    for our_id, their_id in _match_by_content(our_new, their_new):
        if our_id > their_id:
            our_names[our_id] = their_id
        else:
            their_names[their_id] = our_id
    return our_names, their_names


def _names_from_base(
    base_typed: Mapping[str, Message],
    base_ids: set[str],
    side_typed: Mapping[str, Message],
    side_ids: set[str],
) -> RenamedIds:
    """Return the ids of the base for messages that a side has under another generated id."""
    missing = [message for id, message in base_typed.items() if id not in side_ids]
    new = [message for id, message in side_typed.items() if id not in base_ids]
    return dict(_match_by_content(new, missing))


def _unmatched(
    typed: Mapping[str, Message], exclusions: tuple[Container[str], ...]
) -> list[Message]:
    result = []
    for id, message in typed.items():
        if not any(id in excluded for excluded in exclusions):
            result.append(message)
    return result


def _typed_messages(history: Sequence[Message]) -> dict[str, Message]:
    """Return the messages whose ids were made of their words, by id. There are mostly none."""
    # The first condition is a part of the second, and spares most of the calls.
    return {
        message["id"]: message
        for message in history
        if message["id"][14:15] == "5" and _is_typed(message)
    }


def _is_typed(message: Message) -> bool:
    """Return whether an id is a UUIDv5 (RFC 9562, section 5.5), and not that of a lost version."""
    id = message["id"]
    is_uuid5 = id[14:15] == "5" and len(id) == 36 and id.count("-") == 4
    return is_uuid5 and version_of(message) is None


def _match_by_content(
    messages: Sequence[Message], candidates: Sequence[Message]
) -> list[tuple[str, str]]:
    """Return pairs of ids of messages with the same role, text and time, in order, each once."""
    waiting: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for candidate in reversed(candidates):
        waiting[_content_key(candidate)].append(candidate["id"])
    pairs = []
    for message in messages:
        ids = waiting.get(_content_key(message))
        if ids:
            pairs.append((message["id"], ids.pop()))
    return pairs


def _content_key(message: Message) -> tuple[Any, ...]:
    return message["role"], message["content"], message.get("timestamp")


def with_renamed_ids(document: dict[str, Any], new_ids: RenamedIds) -> dict[str, Any]:
    """Return the capsule with other ids for messages, also where they are named."""
    if not new_ids:
        return document
    history = []
    for message in document["history"]:
        changed = _renamed_fields(message, ("id", "parent"), new_ids)
        metadata = message.get("metadata") or {}
        renamed_notes = _renamed_fields(metadata, (VERSION_OF, ORIGINAL_PARENT), new_ids)
        if renamed_notes:
            changed["metadata"] = {**metadata, **renamed_notes}
        history.append(order_message({**message, **changed}) if changed else message)
    metadata = document["metadata"]
    current = _renamed_fields(metadata, ("currentNode",), new_ids)
    return {**document, "metadata": {**metadata, **current}, "history": history}


def _renamed_fields(
    fields: Mapping[str, Any], names: tuple[str, ...], new_ids: RenamedIds
) -> dict[str, Any]:
    """Return the fields of these names that hold a renamed id, with the new id."""
    renamed = {}
    for name in names:
        id = fields.get(name)
        if isinstance(id, str) and id in new_ids:
            renamed[name] = new_ids[id]
    return renamed


# --- The merge ---


class HistoryMerge:
    """The merge of two histories of a conversation. `base` is empty if there is no ancestor.

    `ours` and `theirs` were read with this `base`. An object serves for one call of `merge`.

    Attributes:
        result_entries: The messages of the result by id, without an order.
        parents: Their parents, as in `HistorySide.parents`.
        lost_versions: By the id of the winner, its lost versions by their ids.
        parents_to_note: By the ids of messages of the result, the parents to note in them as
            `metadata.originalParent`: a deleted parent, or the present parent of a message that is
            next to the line and would be taken for a part of it. None: such a message is a root.
        notes: Decisions that a person may want to know, in words.
    """

    def __init__(
        self, base: HistorySide, ours: HistorySide, theirs: HistorySide, conversation: str
    ) -> None:
        self.base = base
        self.ours = ours
        self.theirs = theirs
        self.conversation = conversation
        self.result_entries: dict[str, Message] = {}
        self.parents: dict[str, Parent] = {}
        self.lost_versions: dict[str, dict[str, Message]] = {}
        self.parents_to_note: dict[str, str | None] = {}
        self.notes: list[str] = []

    def merge(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the merged history, and the notes, sorted, as neither side comes first."""
        self._collect_entries()
        self._collect_parents()
        self._add_lost_versions()
        order = merge_order(
            self._order_of(self.base),
            self._order_of(self.ours),
            self._order_of(self.theirs),
            key=lambda id: (self.result_entries[id].get("timestamp") or "", id),
            parents=self.parents,
        )
        return self._with_parents(order), sorted(self.notes)

    def _collect_entries(self) -> None:
        for id in dict.fromkeys((*self.ours.ids, *self.theirs.ids)):
            message = self.ours.entries.get(id)
            if message is None or message is not self.theirs.entries.get(id):
                message = self._merge_message(id)
            if message is not None:
                self.result_entries[id] = message

    def _collect_parents(self) -> None:
        for id in self.result_entries:
            parent = self.ours.parents.get(id, ABSENT)
            is_same = parent == self.theirs.parents.get(id, ABSENT)
            if not is_same or (parent is not IN_LINE and parent not in self.result_entries):
                parent = self._merge_parent(id)
            self.parents[id] = parent

    def _add_lost_versions(self) -> None:
        for winner, versions in self.lost_versions.items():
            new = {}
            for id, entry in versions.items():
                if id not in self.result_entries:
                    new[id] = entry
            self.lost_versions[winner] = new
            self.result_entries |= new
            self.parents |= dict.fromkeys(new, NEXT_TO_WINNER)

    # --- The messages ---

    def _merge_message(self, id: str) -> Message | None:
        """Return a message of either side as the result has it. None: it was deleted."""
        base_content = self.base.content_of(id)
        our_content = self.ours.content_of(id)
        their_content = self.theirs.content_of(id)
        if our_content is None or their_content is None:
            if our_content is None:
                return self._merge_half_deleted(id, self.theirs, their_content, base_content)
            return self._merge_half_deleted(id, self.ours, our_content, base_content)
        if their_content in (our_content, base_content):
            return self.ours.entries[id]
        if our_content == base_content:
            return self.theirs.entries[id]
        return self._merge_edits(id)

    def _merge_half_deleted(
        self, id: str, side: HistorySide, content: bytes | None, base_content: bytes | None
    ) -> Message | None:
        """Return a message that only one side has. None: it was deleted, and not edited."""
        if base_content is not None:
            if content == base_content:
                return None
            self.notes.append(
                f"message {_short_id(id)} was deleted on one side and edited on the other; "
                "it is kept"
            )
        return side.entries[id]

    def _merge_edits(self, id: str) -> Message:
        """Return the later of two edits, with the fields that only the other one changed.

        If both changed one field, the other version becomes a lost version.
        """
        base = without_parent(self.base.entries[id]) if id in self.base.entries else {}
        versions = [without_parent(side.entries[id]) for side in (self.ours, self.theirs)]
        winner, loser = sorted(versions, key=_edit_rank, reverse=True)
        conflicts: list[tuple[str, ...]] = []

        def merge_field(name: str, base_value: Any, winner_value: Any, loser_value: Any) -> Any:
            if name == "editedAt":
                is_one_side = same(winner_value, base_value) or same(loser_value, base_value)
                if not is_one_side:
                    times = [time for time in (winner_value, loser_value) if time is not ABSENT]
                    return max(times, key=lambda time: time or "")
            if name == "editedBy":
                return winner_value  # That of the later edit.
            return merge_value(base_value, winner_value, loser_value, take_winner, (name,))

        def take_winner(json_path: tuple[str, ...], winner_value: Any, _: Any) -> Any:
            conflicts.append(json_path)
            return winner_value

        combined = merge_object(base, winner, loser, merge_field, _KNOWN_FIELDS)
        if conflicts:
            self._keep_lost_version(id, loser)
        return order_message(combined)

    def _keep_lost_version(self, id: str, loser: Message) -> None:
        lost_id = version_id_for(self.conversation, id, digest(loser))
        metadata = {**(loser.get("metadata") or {}), VERSION_OF: id}
        entry = order_message({**loser, "id": lost_id, "metadata": metadata})
        self.lost_versions.setdefault(id, {})[lost_id] = entry
        self.notes.append(
            f"message {_short_id(id)} was edited on both sides; both are kept, as branches"
        )

    def _order_of(self, side: HistorySide) -> list[str]:
        """Return the ids of the result in the order of a side. Lost versions precede the winner."""
        ids: Sequence[str] = side.ids
        if any(id in self.result_entries and id not in side.entries for id in self.base.ids):
            # A message that this side deleted and the other one keeps gets its old place.
            old_ids = [
                id for id in self.base.ids if id in side.entries or id in self.result_entries
            ]
            ids = insert_missing(ids, old_ids)
        if not self.lost_versions:
            return [id for id in ids if id in self.result_entries]
        order: list[str] = []
        for id in ids:
            if id not in self.result_entries:
                continue
            versions = list(self.lost_versions.get(id, ()))
            while versions and order and version_of(self.result_entries[order[-1]]) == id:
                versions.append(order.pop())
            order += [*sorted(versions), id]
        return order

    # --- The parents ---

    def _merge_parent(self, id: str) -> Parent:
        """Return the parent of a message of the result."""
        our_parent = self.ours.parents.get(id, ABSENT)
        their_parent = self.theirs.parents.get(id, ABSENT)
        if our_parent is their_parent or our_parent == their_parent:
            if isinstance(our_parent, str) and self._is_unknown(our_parent):
                # It names no message. Then the entry before counts, which may differ on the sides.
                return self._latest_parent(id)
            return self._surviving_parent(id, our_parent, self.ours)
        if id in self.base.parents:
            return self._merge_moved_parent(id)
        if our_parent is ABSENT:
            return self._surviving_parent(id, their_parent, self.theirs, is_new=True)
        if their_parent is ABSENT:
            return self._surviving_parent(id, our_parent, self.ours, is_new=True)
        return self._latest_parent(id)

    def _is_unknown(self, parent: str) -> bool:
        return parent not in self.result_entries and parent not in self.base.entries

    def _merge_moved_parent(self, id: str) -> Parent:
        """Return the parent of a message of the base, which at least one side changed."""
        base_parent = self.base.parents[id]
        moving_sides = [side for side in (self.ours, self.theirs) if self._has_moved(side, id)]
        if not moving_sides:
            return self._surviving_parent(id, base_parent, self.base)
        if len(moving_sides) == 1:
            return self._surviving_parent(id, moving_sides[0].parents[id], moving_sides[0])
        return self._latest_parent(id)

    def _has_moved(self, side: HistorySide, id: str) -> bool:
        """Return whether a side gave a message another parent, and did not only delete the old."""
        base_parent = self.base.parents[id]
        parent = side.parents.get(id, ABSENT)
        if parent is ABSENT or parent == base_parent:
            return False
        if base_parent is IN_LINE:
            return True
        return bool(parent != self.base.nearest_ancestor(base_parent, side.entries))

    def _latest_parent(self, id: str) -> Parent:
        """Return the later of the two parents that the sides gave a message."""
        candidates = {
            self._surviving_parent(id, side.parents[id], side) for side in (self.ours, self.theirs)
        }

        def rank(parent: Parent) -> tuple[bool, str, str]:
            if not isinstance(parent, str):
                return parent is IN_LINE, "", ""
            return True, self.result_entries[parent].get("timestamp") or "", parent

        return max(candidates, key=rank)

    def _surviving_parent(
        self, id: str, parent: Parent, side: HistorySide, *, is_new: bool = False
    ) -> Parent:
        """Return the parent, or its nearest ancestor that is in the result.

        Records a deleted parent of a message that the base does not have. If `is_new`, only `side`
        has the message, and a note for a person reports the deleted parent.
        """
        if not isinstance(parent, str) or parent in self.result_entries:
            return parent
        is_in_base = parent in self.base.entries
        if id not in self.base.entries and (is_in_base or id in side.noted_parents):
            self.parents_to_note[id] = parent
        if not is_in_base:  # A person typed it, and it names nothing; or it was deleted long ago.
            return self.base.nearest_ancestor(side.parent_ids[id], self.result_entries)
        if is_new:
            self.notes.append(
                f"message {_short_id(id)} answers message {_short_id(parent)}, which was deleted "
                "on the other side; it now answers the message above that one"
            )
        return self.base.nearest_ancestor(parent, self.result_entries)

    # --- Writing the parents ---

    def _with_parents(self, order: list[str]) -> list[dict[str, Any]]:
        """Return the messages in this order. Each names its parent if another entry precedes it."""
        parent_ids, line_ids = self._resolve_parents(order)
        if len(line_ids) < len(order):
            self._break_new_cycles(parent_ids)
            if line_ids:
                line_ids.add(None)  # A root next to the line must name its parent, which is null.
            if self.base.is_line:
                self._note_parents_next_to_line(order, parent_ids)
        self._keep_notes_of_sides()
        noted_ids = (
            self.parents_to_note.keys() | self.ours.ids_with_note | self.theirs.ids_with_note
        )
        history = []
        previous_id: str | None = None
        for id in order:
            message = self.result_entries[id]
            parent = parent_ids[id]
            if id in noted_ids:
                message = without_parent(message)
                if id in self.parents_to_note:
                    message = with_original_parent(message, self.parents_to_note[id])
            # A message next to the line that answers one of the line always names its parent.
            # Otherwise it would be taken for a part of the line. A noted parent counts only in a
            # message that names one.
            is_next_to_line = parent in line_ids and self.parents[id] is not IN_LINE
            if parent != previous_id or is_next_to_line or id in self.parents_to_note:
                message = order_message({**message, "parent": parent})
            elif "parent" in message:
                message = {name: value for name, value in message.items() if name != "parent"}
            history.append(message if isinstance(message, dict) else dict(message))
            previous_id = id
        return history

    def _resolve_parents(self, order: list[str]) -> tuple[dict[str, str | None], set[str | None]]:
        """Return the id of the parent of each message, and the ids of the line."""
        parent_ids: dict[str, str | None] = {}
        line_ids: set[str | None] = set()
        line_end: str | None = None
        lost_ids = []
        for id in order:
            parent = self.parents[id]
            if parent is IN_LINE:
                parent_ids[id] = line_end
                line_end = id
                line_ids.add(id)
            else:
                parent_ids[id] = parent
            if parent is NEXT_TO_WINNER:
                lost_ids.append(id)
        for id in lost_ids:
            winner = self._winner_of(id)
            parent_ids[id] = parent_ids[winner] if winner else None
            if winner in self.parents_to_note:
                self.parents_to_note[id] = self.parents_to_note[winner]
        return parent_ids, line_ids

    def _winner_of(self, id: str) -> str | None:
        """Return the message of which this one is a lost version, or None."""
        visited: set[str] = set()
        candidate = id
        while self.parents[candidate] is NEXT_TO_WINNER:
            visited.add(candidate)
            winner = version_of(self.result_entries[candidate])
            if winner in visited or winner not in self.parents:
                return None
            candidate = winner
        return candidate

    def _keep_notes_of_sides(self) -> None:
        """Keep the notes of both sides about parents that are still deleted."""
        for side in (self.ours, self.theirs):
            for id, parent in side.noted_parents.items():
                if parent is None or parent in side.entries or parent in self.result_entries:
                    continue
                if id in self.result_entries and self.parents[id] is not IN_LINE:
                    self.parents_to_note[id] = max(parent, self.parents_to_note.get(id) or "")

    def _note_parents_next_to_line(
        self, order: Sequence[str], parent_ids: Mapping[str, str | None]
    ) -> None:
        """Note the parent of a message next to the line that precedes the line's next message.

        Without the note a reader would take it for a part of the line.
        """
        continued_ids: set[str | None] = set()  # Of the line, those whose follower has passed.
        passed_ids: set[str | None] = {None}
        for id in order:
            parent = parent_ids[id]
            if self.parents[id] is IN_LINE:
                continued_ids.add(parent)
                passed_ids.add(id)
                continue
            precedes_next = parent in passed_ids and parent not in continued_ids
            if precedes_next and not version_of(self.result_entries[id]):
                self.parents_to_note.setdefault(id, parent)

    def _break_new_cycles(self, parent_ids: dict[str, str | None]) -> None:
        """Make the first message of each cycle a root, unless the cycle is in one of the sides."""
        cycles = [set(cycle) for cycle in find_cycles(parent_ids)]
        if not cycles:
            return
        old_cycles: list[set[str]] = []
        for side in (self.ours, self.theirs):
            old_cycles += [set(cycle) for cycle in find_cycles(side.parent_ids)]
        for cycle in cycles:
            if cycle in old_cycles:
                continue
            first = next(id for id in parent_ids if id in cycle)
            parent_ids[first] = None
            self.notes.append(
                f"message {_short_id(first)} would answer itself after the changes of both sides; "
                "it becomes a root"
            )


def _edit_rank(message: Message) -> tuple[str, bytes]:
    return message.get("editedAt") or "", encode_value(message)


def _short_id(id: str) -> str:
    """Return an id for a message to a person: of a long one the beginning."""
    return one_line(id if len(id) <= 16 else f"{id[:13]}…")
