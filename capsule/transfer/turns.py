"""A record of a source that holds a whole turn of an agent, as the messages it consists of, and back.

The last message of a turn has the record's id, since what answers the record answers it; the earlier ones are `ID:0`,
`ID:1` and so on. What the messages lack of the record stands in `metadata.source` of the last one, with their number.

What must stay true: as for a pair; and the record's texts are kept once. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capsule.transfer.interface import Draft, Fields
from capsule.transfer.pairs import OWN, applied, difference, with_source, without_source

#: The key of the number of messages in `metadata.source` of the last.
_MESSAGES = "$messages"
#: A text with marks, in pieces: each an object of one key, what it is, and `mark` for what lies between.
Pieces = list[dict[str, str]]


def numbered(entries: list[Fields]) -> list[Fields]:
    """The messages of a record, each the answer to the one before; the last one has the id."""
    id = entries[-1].get("id")
    for nth, entry in enumerate(entries):
        if id is not None:
            entry["id"] = id if nth == len(entries) - 1 else f"{id}:{nth}"
            if nth:
                entry["parent"] = entries[nth - 1]["id"]
    return entries


@dataclass(frozen=True, slots=True)
class Turn:
    """Two pure functions that read and write a record that holds several messages.

    Attributes:
        read: Our fields of the messages of a record, one at least. The last has its id, the first the parent.
        write: The record of such messages, as well as it can be made of them.
    """

    read: Callable[[Fields], list[Fields]]
    write: Callable[[list[Fields]], Fields]

    def taken(self, record: Fields) -> list[Fields]:
        """The messages of a record, with what they lack in `metadata.source` of the last."""
        own = record.get(OWN)
        record = {name: value for name, value in record.items() if name != OWN}
        entries = numbered(self.read(record))
        if isinstance(own, dict):
            entries = applied({"messages": entries}, own)["messages"]
        rest = difference(record, self.write(entries))
        if len(entries) > 1 and entries[0].get("id") in (None, f"{entries[-1].get('id')}:0"):
            rest[_MESSAGES] = len(entries)
        entries[-1] = with_source(entries[-1], rest)
        return entries

    def given(self, entries: list[Fields], parent: Any, *, is_edited: bool) -> Fields:
        """The record of messages, with what a source had besides.

        Args:
            entries: The messages.
            parent: The id of the record that the first one answers.
            is_edited: Whether they were changed here. What the source had then only fills gaps.
        """
        plain, rest = map(list, zip(*map(without_source, entries), strict=True))
        count = rest[-1].pop(_MESSAGES, 1)
        record = self.write([plain[0] | {"parent": parent}, *plain[1:]])
        if is_edited or count != len(entries):
            record = {name: value for name, value in rest[-1].items() if name[:1] != "$"} | record
        else:
            record = applied(record, rest[-1])
        own = difference({"messages": plain}, {"messages": numbered(self.read(record))})
        return record | {OWN: own} if own else record


def records_of(draft: Draft, turn: Turn, is_turn: Callable[[list[Fields]], bool]) -> list[Fields]:
    """The records of a draft, in its order, each with an id and a parent.

    Args:
        draft: The draft.
        turn: The pair of functions.
        is_turn: Whether messages that no record had go into one.
    """
    groups: list[list[Fields]] = []
    before: Any = None
    children: dict[Any, int] = {}
    entries = []
    for place, entry in enumerate(draft.history):
        known = {"id": entry.get("id", f"#{place}"), "parent": entry.get("parent", before)}
        entries.append(entry | known)
        before = known["id"]
        children[known["parent"]] = children.get(known["parent"], 0) + 1
    current = draft.metadata.get("currentNode")
    for entry in entries:
        count = without_source(entry)[1].get(_MESSAGES, 1)
        last = groups[-1][-1] if groups else {}
        if count > 1:
            group = [entry]
            while len(group) < count and groups and groups[-1][-1]["id"] == group[0]["parent"] and len(groups[-1]) == 1:
                group[:0] = groups.pop()
            groups.append(group)
        elif (
            groups
            and entry["parent"] == last["id"] != current
            and children[last["id"]] == 1
            and (draft.is_own or {last["id"], entry["id"]} <= draft.edited)
            and is_turn([*groups[-1], entry])
        ):
            groups[-1].append(entry)
        else:
            groups.append([entry])
    homes = {entry["id"]: group[-1]["id"] for group in groups for entry in group}
    records = []
    for group in groups:
        parent = group[0]["parent"]
        is_edited = any(entry["id"] in draft.edited for entry in group)
        records.append(turn.given(group, homes.get(parent, parent), is_edited=is_edited))
    return records
