"""Merging two orders of messages: each side's order is kept, and between the sides the earlier
message comes first.

What must stay true: the result does not depend on the order of the sides, nor on which two of three
are merged first; contradictions have one result too, in linear time. Pure.

Both lists are passed once, as when sorted lists are merged. A message that both sides have waits
until both lists have come to it. Of two messages that wait for nothing, the one with the lower key
goes first.

[joined: side] One version of a history, as merging sees it: what each message says, and which message it
answers.

What must stay true: the parent of a message does not depend on which other messages were deleted.
If the common ancestor has the message, its parent there counts, unless a person moved it; else what
earlier merges noted counts. So a merged version says as much as the versions it was made from. No
clock, no chance. Pure.

Messages are compared by their parents, not by the field `parent`, which may be absent. In a
conversation with many writers the messages that only follow each other form a *line*, whose parents
result from the order. So what two wrote at once stands in one line, by time, where in a `chat` it
becomes two branches.

[joined: history] Merging two histories: which messages there are, what is in them, and which message each one
answers.

What must stay true: a message vanishes only if one side deleted it and the other left it alone; a
message that both edited is kept in both versions; a message keeps its parent, and while that is
deleted it has the parent's parent; what the two sides say decides, not what was merged before; and
the result does not depend on the order of the sides. No clock, no chance. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
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


def merge_order(
    base: Sequence[str],
    ours: Sequence[str],
    theirs: Sequence[str],
    key: Callable[[str], Key],
    parents: Mapping[str, object],
) -> list[str]:
    """The ids of both sides in one order.

    `base` is the common ancestor's order. The key of a message is its time, then its id. `parents`
    are used only where the two orders contradict each other.
    """
    begun = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
    )
    result = [*ours[:begun]]  # Most begin alike.
    done = set(result)
    base = [id for id in base if id not in done]
    ours, theirs = _moved(base, ours[begun:], theirs[begun:])
    mine, yours = set(ours), set(theirs)

    def in_contradiction(id: str) -> tuple[bool, Key]:
        return parents.get(id) in (mine | yours) - done, key(id)

    i = j = 0
    while i < len(ours) and j < len(theirs):
        left, right = ours[i], theirs[j]
        if left in done or left == right:
            i += 1
            if left in done:
                continue
            following = left
        elif right in done:
            j += 1
            continue
        elif left in yours and right in mine:
            # Each side has the other's message first: the one whose parent stands already, then the
            # earlier.
            following = min(left, right, key=in_contradiction)
        elif left in yours or not (right in mine or key(left) < key(right)):
            following = right
        else:
            following = left
        result.append(following)
        done.add(following)
    return result + [id for id in (*ours[i:], *theirs[j:]) if id not in done]


def _moved(
    base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """The sides, the one that moved nothing brought into the order of the other, when that moved
    something.
    """
    shared = set(ours) & set(theirs)
    mine, yours = ([id for id in side if id in shared] for side in (ours, theirs))
    if mine == yours:
        return ours, theirs
    known = set(base)
    was = [id for id in base if id in shared]
    stood = [[id for id in side if id in known] == was for side in (mine, yours)]
    if stood == [True, False]:
        return insert_missing(yours, ours), theirs
    if stood == [False, True]:
        return ours, insert_missing(mine, theirs)
    return ours, theirs


def insert_missing(order: Sequence[str], side: Sequence[str]) -> list[str]:
    """`order`, and in it what only `side` has, behind what it stands behind there."""
    there, at = set(order), ""
    behind: dict[str, list[str]] = {}
    for id in side:
        if id in there:
            at = id
        else:
            behind.setdefault(at, []).append(id)
    return [*behind.get("", ()), *(placed for id in order for placed in (id, *behind.get(id, ())))]


Message = Mapping[str, Any]
#: The parent of a message: an id; None: none; `IN_LINE`: the message before it in the line; `NEXT_TO_WINNER`:
#: the parent of the message of which this one is a version that lost.
Parent = Any
IN_LINE: Parent = type("Line", (), {"__slots__": ()})()
NEXT_TO_WINNER: Parent = type("Beside", (), {"__slots__": ()})()


class HistorySide:
    """One version of the history.

    Attributes:
        ids: The messages' ids, in order.
        entries: The messages by their ids; if two have one id, the second has a new one here.
        above: The id of the message that each answers; None: none.
        parents: The same, or `IN_LINE` or `NEXT_TO_WINNER`. A parent may be missing: it was deleted, perhaps
            before an earlier merge.
        answered: The parents that `metadata.originalParent` names.
        noted: All messages that have this field, whether it counts or not.
    """

    def __init__(
        self,
        history: Sequence[Message],
        conversation: str,
        *,
        is_line: bool,
        base: HistorySide | None = None,
    ) -> None:
        self.ids: list[str] = [message["id"] for message in history]
        if len(set(self.ids)) < len(self.ids):
            history = _told_apart(history, conversation)
            self.ids = [message["id"] for message in history]
        ids = self.ids
        self.entries = dict(zip(ids, history, strict=True))
        naming = [message for message in history if "parent" in message]
        self.above: dict[str, str | None] = dict(zip(ids, [None, *ids], strict=False))
        if naming:
            parents = self.tree.parents
            self.above = {
                id: ids[at] if at >= 0 else None for id, at in zip(ids, parents, strict=True)
            }
        self.is_line, self.is_plain = is_line, not naming
        is_all_line = is_line and self.is_plain and (base is None or base.is_plain)
        self.parents: dict[str, Parent] = (
            dict.fromkeys(ids, IN_LINE) if is_all_line else dict(self.above)
        )
        self.answered: dict[str, str | None] = {}
        self.noted: set[str] = set()
        for message in naming:
            id, named = message["id"], message["parent"]
            if named and named not in self.entries:
                self.parents[id] = named
            if has_original_parent(message):
                self.noted.add(id)
                self._take_answered(id, message["metadata"][ORIGINAL_PARENT], base)
        if is_line and not is_all_line:
            self._set_line(base)
        if naming and base is not None:
            for id in self.ids:
                other = None if id in base.entries else version_of(self.entries[id])
                if (
                    other is not None
                    and other != id
                    and self.above.get(other, ABSENT) == self.above[id]
                ):
                    self.parents[id] = NEXT_TO_WINNER

    def written(self, id: str) -> bytes | None:
        """What is written for a message, without its `parent`; None: it is not there."""
        if (message := self.entries.get(id)) is None:
            return None
        return orjson.dumps(without_parent(message) if "parent" in message else message)

    def lifted(self, parent: str | None, there: Container[str]) -> str | None:
        """The nearest message from this one up that is there."""
        seen: set[str] = set()
        while parent is not None and parent not in there:
            if parent in seen:
                return None
            seen.add(parent)
            parent = self.above.get(parent)
        return parent

    def _take_answered(self, id: str, answered: str | None, base: HistorySide | None) -> None:
        """Believe what an earlier merge noted, unless the message was moved since."""
        known: Mapping[str, Message] = {} if base is None else base.entries
        nearest = answered if base is None else base.lifted(answered, self.entries)
        is_unknown = answered is not None and answered not in self.entries and answered not in known
        if is_unknown or nearest == self.above[id]:
            self.answered[id] = answered
            if base is not None and id not in known:
                self.parents[id] = answered

    def _set_line(self, base: HistorySide | None) -> None:
        """Find the line. What the ancestor has is in it when it is there, so that it doesn't matter
        who is gone.
        """
        was = {
            id: parent
            for id, parent in (base.parents.items() if base is not None else ())
            if base
            and id in self.entries
            and self.above[id] == base.lifted(base.above[id], self.entries)
        }
        beside = {id for id, parent in was.items() if parent is not IN_LINE} | self.answered.keys()
        self.parents.update(dict.fromkeys(self._line(beside, is_strict=base is not None), IN_LINE))
        for id, parent in was.items():
            if parent is IN_LINE or self.parents[id] is IN_LINE:
                self.parents[id] = parent

    @cached_property
    def tree(self) -> Tree:
        """Its tree."""
        return Tree(self.entries.values())

    def _line(self, beside: Container[str], *, is_strict: bool) -> Iterable[str]:
        """The messages of the line from the first on: each time the entry behind it, unless that
        names another parent, else the oldest answer. Versions that lost are not in it; messages
        beside it are if no other answer exists."""
        at, children = -1, self.tree.children
        while True:
            answers = [
                place
                for place in children.get(at, ())
                if place > at and not version_of(self.entries[self.ids[place]])
            ]
            first = next((place for place in answers if self.ids[place] not in beside), -1)
            if first < 0 and (is_strict or not answers):
                return
            at = first if first >= 0 else answers[0]
            yield self.ids[at]


def _told_apart(history: Sequence[Message], conversation: str) -> Sequence[Message]:
    """The messages with different ids: the second of one id gets another one, always the same."""
    used = {message["id"] for message in history}
    apart: dict[str, Message] = {}
    for message in history:
        id, number = message["id"], 0
        if id in apart:
            while id in used:
                id = version_id_for(conversation, message["id"], f"{number} {digest(message)}")
                number += 1
            used.add(id)
            message = {**message, "id": id}
        apart[id] = message
    return [*apart.values()]


# -- Messages that a person typed without an id
# ------------------------------------------------------------------------ Their ids come from their
# places and words, so two clones can give one message two ids. A message of the same role, words
# and time is taken for it, unless one side has both. An id that somebody gave is never changed.

#: Ids to take instead of others.
Renamed = dict[str, str]


def unify_generated_ids(
    base: Sequence[Message], ours: Sequence[Message], theirs: Sequence[Message]
) -> tuple[Renamed, Renamed]:
    """The ids that messages of ours and of theirs are to have instead: that of the base where it
    has the message, else the lower one."""
    typed = [
        # Mostly none; to ask the first question here is quicker.
        {
            message["id"]: message
            for message in side
            if message["id"][14:15] == "5" and _is_typed(message)
        }
        for side in (ours, theirs)
    ]
    if not typed[0] and not typed[1]:
        return {}, {}
    ids = [{message["id"] for message in side} for side in (base, ours, theirs)]
    was = {message["id"]: message for message in base if _is_typed(message)}
    names: tuple[Renamed, Renamed] = ({}, {})
    for side, there, renamed in zip(typed, ids[1:], names, strict=True):
        gone = [message for id, message in was.items() if id not in there]
        renamed.update(_pairs([side[id] for id in side if id not in ids[0]], gone))
    left = [
        [side[id] for id in side if id not in ids[0] and id not in renamed and id not in others]
        for side, renamed, others in zip(typed, names, (ids[2], ids[1]), strict=True)
    ]
    for id, other in _pairs(left[0], left[1]):
        names[0 if id > other else 1][max(id, other)] = min(id, other)
    return names


def with_renamed_ids(document: dict[str, Any], renamed: Renamed) -> dict[str, Any]:
    """The capsule with these ids for messages, and with them where they are named."""
    if not renamed:
        return document
    history = []
    for message in document["history"]:
        changed = _renamed(message, ("id", "parent"), renamed)
        about = message.get("metadata") or {}
        if noted := _renamed(about, (VERSION_OF, ORIGINAL_PARENT), renamed):
            changed["metadata"] = {**about, **noted}
        history.append(order_message({**message, **changed}) if changed else message)
    about = document["metadata"]
    return {
        **document,
        "metadata": {**about, **_renamed(about, ["currentNode"], renamed)},
        "history": history,
    }


def _renamed(fields: Mapping[str, Any], names: Iterable[str], renamed: Renamed) -> dict[str, Any]:
    there = ((name, fields.get(name)) for name in names)
    return {name: renamed[id] for name, id in there if isinstance(id, str) and id in renamed}


def _is_typed(message: Message) -> bool:
    """Whether its id was made of its words: a UUIDv5 (RFC 9562, section 5.5), and no version that
    gave way.
    """
    id = message["id"]
    return id[14:15] == "5" and len(id) == 36 and id.count("-") == 4 and version_of(message) is None


def _pairs(some: Sequence[Message], others: Sequence[Message]) -> list[tuple[str, str]]:
    """The ids of what says the same, in order; each once."""
    waiting: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for message in reversed(others):
        waiting[_said(message)].append(message["id"])
    return [
        (message["id"], waiting[_said(message)].pop())
        for message in some
        if waiting.get(_said(message))
    ]


def _said(message: Message) -> tuple[Any, ...]:
    return message["role"], message["content"], message.get("timestamp")


_KNOWN = frozenset(field_names("history"))


class HistoryMerge:
    """The three versions of a history of a conversation, and what becomes of them. `base` is empty
    if there is none.
    """

    def __init__(
        self, base: HistorySide, ours: HistorySide, theirs: HistorySide, conversation: str
    ) -> None:
        self.base, self.ours, self.theirs = base, ours, theirs
        self.conversation = conversation
        self.kept: dict[str, Message] = {}
        self.parents: dict[str, Parent] = {}
        #: Versions that did not win, each with its id, by the message they are versions of.
        self.beside: dict[str, dict[str, Message]] = {}
        #: The deleted parents of messages, by the messages' ids.
        self.answered: dict[str, str | None] = {}
        self.notes: list[str] = []

    def merged(self) -> tuple[list[dict[str, Any]], list[str]]:
        """The one history, and what was decided besides, in words; sorted, as neither side comes
        first.
        """
        mine, yours = self.ours, self.theirs
        for id in dict.fromkeys((*mine.ids, *yours.ids)):
            message = mine.entries.get(id)
            if message is None or message is not yours.entries.get(id):
                message = self._message(id)
            if message is not None:
                self.kept[id] = message
        for id in self.kept:
            parent = mine.parents.get(id, ABSENT)
            if parent != yours.parents.get(id, ABSENT) or (
                parent is not IN_LINE and parent not in self.kept
            ):
                parent = self._parent(id)
            self.parents[id] = parent
        for id, versions in self.beside.items():
            self.beside[id] = new = {
                beside: entry for beside, entry in versions.items() if beside not in self.kept
            }
            self.kept |= new
            self.parents |= dict.fromkeys(new, NEXT_TO_WINNER)
        base, ours, theirs = (self._order(side) for side in (self.base, mine, yours))
        order = merge_order(
            base,
            ours,
            theirs,
            key=lambda id: (self.kept[id].get("timestamp") or "", id),
            parents=self.parents,
        )
        return self._linked(order), sorted(self.notes)

    # -- Which messages, and what is in them -------------------------------------------------------

    def _message(self, id: str) -> Message | None:
        """What becomes of a message of either side; None: it vanishes."""
        base, ours, theirs = (side.written(id) for side in (self.base, self.ours, self.theirs))
        if ours is not None and theirs is not None:
            if ours == theirs or theirs == base:
                return self.ours.entries[id]
            if ours == base:
                return self.theirs.entries[id]
            return self._both_changed(id)
        side, written = (self.ours, ours) if ours is not None else (self.theirs, theirs)
        if base is not None:
            if written == base:
                return None
            self.notes.append(
                f"message {_named(id)} was deleted on one side and edited on the other; it is kept"
            )
        return side.entries[id]

    def _both_changed(self, id: str) -> Message:
        base = without_parent(self.base.entries[id]) if id in self.base.entries else {}
        ours, theirs = (without_parent(side.entries[id]) for side in (self.ours, self.theirs))
        winner, loser = sorted((ours, theirs), key=_lateness, reverse=True)
        clashes: list[tuple[str, ...]] = []

        def each(name: str, was: Any, mine: Any, yours: Any) -> Any:
            if name == "editedAt" and not (same(mine, was) or same(yours, was)):
                return max(
                    (time for time in (mine, yours) if time is not ABSENT),
                    key=lambda time: time or "",
                )
            if name == "editedBy":
                return mine  # That of the later edit.
            return merge_value(was, mine, yours, clash, (name,))

        def clash(where: tuple[str, ...], mine: Any, _: Any) -> Any:
            clashes.append(where)
            return mine

        combined = merge_object(base, winner, loser, each, _KNOWN)
        if not clashes:
            return order_message(combined)
        beside = version_id_for(self.conversation, id, digest(loser))
        about = {**(loser.get("metadata") or {}), VERSION_OF: id}
        self.beside.setdefault(id, {})[beside] = order_message(
            {**loser, "id": beside, "metadata": about}
        )
        self.notes.append(
            f"message {_named(id)} was edited on both sides; both are kept, as branches"
        )
        return order_message(combined)

    def _order(self, side: HistorySide) -> list[str]:
        """The kept messages in the order of a side. A version that lost stands before the one that
        won.
        """
        ids: Sequence[str] = side.ids
        if any(id in self.kept and id not in side.entries for id in self.base.ids):
            # What it deleted and the other side keeps stands in its old place.
            ids = insert_missing(
                ids, [id for id in self.base.ids if id in side.entries or id in self.kept]
            )
        if not self.beside:
            return [id for id in ids if id in self.kept]
        order: list[str] = []
        for id in ids:
            if id not in self.kept:
                continue
            versions = list(self.beside.get(id, ()))
            while versions and order and version_of(self.kept[order[-1]]) == id:
                versions.append(order.pop())
            order += [*sorted(versions), id]
        return order

    # -- The parents -------------------------------------------------------------------------------

    def _parent(self, id: str) -> Parent:
        """The parent of a message that is in the result."""
        ours, theirs = (side.parents.get(id, ABSENT) for side in (self.ours, self.theirs))
        if ours is theirs or ours == theirs:
            if isinstance(ours, str) and ours not in self.kept and ours not in self.base.entries:
                return self._latest_parent(
                    id
                )  # No message there; what stands before it may differ.
            return self._there(id, ours, self.ours)
        if id not in self.base.parents:
            if ours is ABSENT or theirs is ABSENT:
                side, parent = (self.theirs, theirs) if ours is ABSENT else (self.ours, ours)
                return self._there(id, parent, side, is_new=True)
            return self._latest_parent(id)
        was, sides = self.base.parents[id], (self.ours, self.theirs)
        # A side that only deleted the parent moved nothing.
        moved = [
            side
            for side in sides
            if (parent := side.parents.get(id, ABSENT)) is not ABSENT
            and parent != was
            and (was is IN_LINE or parent != self.base.lifted(was, side.entries))
        ]
        if not moved:
            return self._there(id, was, self.base)
        if len(moved) == 1:
            return self._there(id, moved[0].parents[id], moved[0])
        return self._latest_parent(id)

    def _latest_parent(self, id: str) -> Parent:
        """The later of two parents that the sides gave it."""
        candidates = {self._there(id, side.parents[id], side) for side in (self.ours, self.theirs)}

        def lateness(parent: Parent) -> tuple[bool, str, str]:
            if not isinstance(parent, str):
                return parent is IN_LINE, "", ""
            return True, self.kept[parent].get("timestamp") or "", parent

        return max(candidates, key=lateness)

    def _there(self, id: str, parent: Parent, side: HistorySide, *, is_new: bool = False) -> Parent:
        """The parent, or the nearest one above it that is in the result."""
        if not isinstance(parent, str) or parent in self.kept:
            return parent
        is_known = parent in self.base.entries
        if id not in self.base.entries and (is_known or id in side.answered):
            self.answered[id] = parent
        if not is_known:  # A hand wrote it, and it counts as absent; or it was gone long before.
            parent = side.above[id]
        elif is_new:
            self.notes.append(
                f"message {_named(id)} answers message {_named(parent)}, which was deleted on "
                "the other side; it now answers the message above that one"
            )
        return self.base.lifted(parent, self.kept)

    def _linked(self, order: list[str]) -> list[dict[str, Any]]:
        """The messages in this order. Each names its parent where that is not the message before
        it.
        """
        answered: dict[str, str | None] = {}
        end: str | None = None
        line: set[str | None] = set()
        for id in order:
            parent = self.parents[id]
            if parent is IN_LINE:
                answered[id], end = end, id
                line.add(id)
            else:
                answered[id] = parent
        for id in [id for id in order if answered[id] is NEXT_TO_WINNER]:
            other = self._that_won(id)
            answered[id] = answered[other] if other else None
            if other in self.answered:
                self.answered[id] = self.answered[other]
        if len(line) < len(order):
            self._open_circles(answered)
            if line:
                line.add(None)
            if self.base.is_line:
                self._mark_beside(order, answered)
        history = []
        before: str | None = None
        self._note_again()
        marked = self.answered.keys() | self.ours.noted | self.theirs.noted
        for id in order:
            message, parent = self.kept[id], answered[id]
            if id in marked:
                message = without_parent(message)
                if id in self.answered:
                    message = with_original_parent(message, self.answered[id])
            # Who answers one of the line from beside it always says so, so as not to be taken for
            # the line.
            if (
                parent != before
                or (parent in line and self.parents[id] is not IN_LINE)
                or id in self.answered
            ):
                message = order_message({**message, "parent": parent})
            elif "parent" in message:
                message = {name: value for name, value in message.items() if name != "parent"}
            history.append(message if isinstance(message, dict) else dict(message))
            before = id
        return history

    def _that_won(self, id: str) -> str | None:
        """The message that this one is a version of; None: there is none."""
        seen: set[str] = set()
        while self.parents[id] is NEXT_TO_WINNER:
            seen.add(id)
            other = version_of(self.kept[id])
            if other in seen or other not in self.parents:
                return None
            id = other
        return id

    def _note_again(self) -> None:
        """Keep the notes of both sides about parents that are still deleted."""
        for side in (self.ours, self.theirs):
            for id, parent in side.answered.items():
                is_gone = (
                    parent is not None and parent not in side.entries and parent not in self.kept
                )
                if is_gone and id in self.kept and self.parents[id] is not IN_LINE:
                    self.answered[id] = max(str(parent), self.answered.get(id) or "")

    def _mark_beside(self, order: Sequence[str], answered: Mapping[str, str | None]) -> None:
        """Note the parent of messages beside the line that stand before the next message of the
        line: without the note, a reader would take them for the line."""
        ended: set[str | None] = set()  # Those of the line whose follower stands already.
        passed: set[str | None] = {None}
        for id in order:
            parent = answered[id]
            if self.parents[id] is IN_LINE:
                ended.add(parent)
                passed.add(id)
            elif parent in passed and parent not in ended and not version_of(self.kept[id]):
                self.answered.setdefault(id, parent)

    def _open_circles(self, answered: dict[str, str | None]) -> None:
        """Make the first message of each circle a root, where only both sides together made the
        circle.
        """
        if new := list(map(set, find_cycles(answered))):
            new = [
                circle
                for circle in new
                if all(
                    circle not in map(set, find_cycles(side.above))
                    for side in (self.ours, self.theirs)
                )
            ]
        for circle in new:
            first = next(id for id in answered if id in circle)
            answered[first] = None
            self.notes.append(
                f"message {_named(first)} would answer itself after the changes of both sides; "
                "it becomes a root"
            )


def _lateness(message: Message) -> tuple[str, bytes]:
    return message.get("editedAt") or "", encode_value(message)


def _named(id: str) -> str:
    """An id as messages show it: the beginning of a long one."""
    return one_line(id if len(id) <= 16 else f"{id[:13]}…")
