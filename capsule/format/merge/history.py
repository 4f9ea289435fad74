"""Merging two histories: which messages there are, what is in them, and which message each one
answers.

What must stay true: a message vanishes only if one side deleted it and the other left it alone; a
message that both edited is kept in both versions; a message keeps its parent, and while that is
deleted it has the parent's parent; what the two sides say decides, not what was merged before; and
the result does not depend on the order of the sides. No clock, no chance. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capsule.format.fields import names
from capsule.format.json.canonical import order_message
from capsule.format.merge.notes import VERSION_OF, bare, digest, version_of, with_original_parent
from capsule.format.merge.order import filled, in_one_order
from capsule.format.merge.side import BESIDE, LINE, HistorySide, Parent
from capsule.format.merge.values import ABSENT, bytes_of, merged, merged_object, same
from capsule.format.text.shown import one_line
from capsule.format.tree.tree import circles
from capsule.ids import version_id_for

Message = Mapping[str, Any]
_KNOWN = frozenset(names("history"))


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
                parent is not LINE and parent not in self.kept
            ):
                parent = self._parent(id)
            self.parents[id] = parent
        for id, versions in self.beside.items():
            self.beside[id] = new = {
                beside: entry for beside, entry in versions.items() if beside not in self.kept
            }
            self.kept |= new
            self.parents |= dict.fromkeys(new, BESIDE)
        base, ours, theirs = (self._order(side) for side in (self.base, mine, yours))
        order = in_one_order(
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
        base = bare(self.base.entries[id]) if id in self.base.entries else {}
        ours, theirs = (bare(side.entries[id]) for side in (self.ours, self.theirs))
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
            return merged(was, mine, yours, clash, (name,))

        def clash(where: tuple[str, ...], mine: Any, _: Any) -> Any:
            clashes.append(where)
            return mine

        combined = merged_object(base, winner, loser, each, _KNOWN)
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
            ids = filled(ids, [id for id in self.base.ids if id in side.entries or id in self.kept])
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
            and (was is LINE or parent != self.base.lifted(was, side.entries))
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
                return parent is LINE, "", ""
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
                f"message {_named(id)} answers message {_named(parent)}, which was deleted on the "
                "other side; "
                "it answers now whom that one answered"
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
            if parent is LINE:
                answered[id], end = end, id
                line.add(id)
            else:
                answered[id] = parent
        for id in [id for id in order if answered[id] is BESIDE]:
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
                message = bare(message)
                if id in self.answered:
                    message = with_original_parent(message, self.answered[id])
            # Who answers one of the line from beside it always says so, so as not to be taken for
            # the line.
            if (
                parent != before
                or (parent in line and self.parents[id] is not LINE)
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
        while self.parents[id] is BESIDE:
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
                if is_gone and id in self.kept and self.parents[id] is not LINE:
                    self.answered[id] = max(str(parent), self.answered.get(id) or "")

    def _mark_beside(self, order: Sequence[str], answered: Mapping[str, str | None]) -> None:
        """Note the parent of messages beside the line that stand before the next message of the
        line: without the note, a reader would take them for the line."""
        ended: set[str | None] = set()  # Those of the line whose follower stands already.
        passed: set[str | None] = {None}
        for id in order:
            parent = answered[id]
            if self.parents[id] is LINE:
                ended.add(parent)
                passed.add(id)
            elif parent in passed and parent not in ended and not version_of(self.kept[id]):
                self.answered.setdefault(id, parent)

    def _open_circles(self, answered: dict[str, str | None]) -> None:
        """Make the first message of each circle a root, where only both sides together made the
        circle.
        """
        if new := list(map(set, circles(answered))):
            new = [
                circle
                for circle in new
                if all(
                    circle not in map(set, circles(side.above)) for side in (self.ours, self.theirs)
                )
            ]
        for circle in new:
            first = next(id for id in answered if id in circle)
            answered[first] = None
            self.notes.append(
                f"message {_named(first)} would answer itself by what both sides changed; it "
                "begins anew"
            )


def _lateness(message: Message) -> tuple[str, bytes]:
    return message.get("editedAt") or "", bytes_of(message)


def _named(id: str) -> str:
    """An id as messages show it: the beginning of a long one."""
    return one_line(id if len(id) <= 16 else f"{id[:13]}…")
