"""One version of a history, as merging sees it: what each message says, and which message it
answers.

What must stay true: the parent of a message does not depend on which other messages were deleted.
If the common ancestor has the message, its parent there counts, unless a person moved it; else what
earlier merges noted counts. So a merged version says as much as the versions it was made from. No
clock, no chance. Pure.

Messages are compared by their parents, not by the field `parent`, which may be absent. In a
conversation with many writers the messages that only follow each other form a *line*, whose parents
result from the order. So what two wrote at once stands in one line, by time, where in a `chat` it
becomes two branches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import orjson

from capsule.format.json.canonical import order_message
from capsule.format.merge.notes import (
    ORIGINAL_PARENT,
    VERSION_OF,
    bare,
    digest,
    has_original_parent,
    version_of,
)
from capsule.format.merge.values import ABSENT
from capsule.format.tree.tree import Tree
from capsule.ids import version_id_for

Message = Mapping[str, Any]
#: The parent of a message: an id; None: none; `LINE`: the message before it in the line; `BESIDE`:
#: the parent of the message of which this one is a version that lost.
Parent = Any
LINE: Parent = type("Line", (), {"__slots__": ()})()
BESIDE: Parent = type("Beside", (), {"__slots__": ()})()


class HistorySide:
    """One version of the history.

    Attributes:
        ids: The messages' ids, in order.
        entries: The messages by their ids; if two have one id, the second has a new one here.
        above: The id of the message that each answers; None: none.
        parents: The same, or `LINE` or `BESIDE`. A parent may be missing: it was deleted, perhaps
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
            dict.fromkeys(ids, LINE) if is_all_line else dict(self.above)
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
                    self.parents[id] = BESIDE

    def written(self, id: str) -> bytes | None:
        """What is written for a message, without its `parent`; None: it is not there."""
        if (message := self.entries.get(id)) is None:
            return None
        return orjson.dumps(bare(message) if "parent" in message else message)

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
        beside = {id for id, parent in was.items() if parent is not LINE} | self.answered.keys()
        self.parents.update(dict.fromkeys(self._line(beside, is_strict=base is not None), LINE))
        for id, parent in was.items():
            if parent is LINE or self.parents[id] is LINE:
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


def same_ids(
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


def renamed_in(document: dict[str, Any], renamed: Renamed) -> dict[str, Any]:
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
