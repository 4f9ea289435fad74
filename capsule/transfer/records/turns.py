"""A record of a source that holds a whole turn of an agent, as the messages it consists of, and
back.

The last message of a turn has the record's id, since what answers the record answers it; the
earlier ones are `ID:0`, `ID:1` and so on. What the messages lack of the record stands in
`metadata.source` of the last one, with their number.

What must stay true: as for a pair; and the record's texts are kept once. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeGuard

from capsule.transfer.interface import Draft, Fields
from capsule.transfer.records.coercion import moment, with_nonempty
from capsule.transfer.records.round_trip import (
    CAPSULE_KEY,
    apply_difference,
    difference,
    with_source,
    without_source,
)

#: The key of the number of messages in `metadata.source` of the last.
_MESSAGES = "$messages"
#: A text with marks, in pieces: each an object of one key, what it is, and `mark` for what lies
#: between.
Pieces = list[dict[str, str]]


def with_turn_ids(entries: list[Fields]) -> list[Fields]:
    """The messages of a record, each the answer to the one before; the last one has the id."""
    id = entries[-1].get("id")
    for nth, entry in enumerate(entries):
        if id is not None:
            entry["id"] = id if nth == len(entries) - 1 else f"{id}:{nth}"
            if nth:
                entry["parent"] = entries[nth - 1]["id"]
    return entries


def join_pieces(record: Fields, key: str = "content") -> Fields:
    """What a record has under a key as one text, if it is in pieces."""
    if not is_pieces(content := record.get(key)):
        return {}
    return {key: "".join(text for piece in content for text in piece.values())}


def is_pieces(content: Any) -> TypeGuard[Pieces]:
    """Whether a content is a text in pieces."""
    return (
        isinstance(content, list)
        and isinstance(begun := next(iter(content), None), dict)
        and "mark" in begun
    )


def merge_marks(pieces: Iterable[dict[str, str]]) -> Pieces:
    """Pieces with one mark, which may be empty, before, between and after the others."""
    made: Pieces = [{"mark": ""}]
    for piece in pieces:
        if "mark" in piece:
            made[-1] = {"mark": made[-1]["mark"] + piece["mark"]}
        else:
            made += [piece, {"mark": ""}]
    return made


def pieces_of(text: str, parts: Iterable[tuple[int, int, list[tuple[str, int, int]]]]) -> Pieces:
    """A text with marks in pieces. Empty: it has no marks.

    Args:
        parts: The marked parts: where each begins and ends, and what is in it: the kind, where it
            begins and ends.
    """
    made: Pieces = []
    at = 0
    for start, end, spans in [*parts, (len(text), len(text), [])]:
        between = text[at:start]
        turn_messages = (
            between.strip() if made and spans else between.lstrip() if made else between.rstrip()
        )
        before, _, after = between.partition(turn_messages) if turn_messages else (between, "", "")
        made += [
            {"mark": before},
            *([{"text": turn_messages}] if turn_messages else []),
            {"mark": after},
        ]
        at = start
        for kind, begin, stop in spans:
            made += [{"mark": text[at:begin]}, {kind: text[begin:stop]}]
            at = stop
        made.append({"mark": text[at:end]})
        at = end
    return merge_marks(made) if any(len({*piece} - {"mark", "text"}) for piece in made) else []


def turn_messages(steps: Iterable[tuple[str, Any]], *, at_once: bool = False) -> list[Fields]:
    """The messages of a turn, one at least, of what follows each other in it.

    Args:
        steps: A `text`, a `reasoning`, a `call`, a `result` (the fields of its message), or an
            `end` of a message.
        at_once: Whether calls that only have results between them were made at once.
    """
    entries: list[Fields] = [{"role": "assistant", "content": ""}]
    for kind, value in steps:
        entry = entries[-1]
        if kind == "result":
            entries.append({"role": "tool", "content": "", **value})
            continue
        if kind == "call" and at_once and entry["role"] == "tool":
            entry = next(earlier for earlier in reversed(entries) if earlier["role"] != "tool")
        elif (
            entry["role"] == "tool"
            or (kind != "call" and "toolCalls" in entry)
            or (kind == "reasoning" and entry["content"])
        ):
            entry = {"role": "assistant", "content": ""}
            entries.append(entry)
        if kind == "call":
            entry.setdefault("toolCalls", []).append(value)
        elif kind in ("text", "reasoning"):
            name = "content" if kind == "text" else kind
            entry[name] = "\n\n".join(filter(None, [entry.get(name), value]))
    return entries


@dataclass(frozen=True, slots=True)
class RecordFieldNames:
    """The names of the fields of a record that hold its id, the id of the record it answers, and
    its time.

    Attributes:
        id, parent, time: The names.
        written_time: Makes the record's time of ours.
    """

    id: str
    parent: str
    time: str
    written_time: Callable[[str], Any]

    def read(
        self, record: Fields, entries: list[Fields], files: list[Fields], usage: Fields, form: str
    ) -> list[Fields]:
        """The messages of a record, with the fields that it has for all of them together.

        The entries are changed. `form` names the layout of the record; empty: the usual one.
        """
        time, model = moment(record.get(self.time)), record.get("model")
        for entry in entries:
            entry |= with_nonempty({}, timestamp=time)
            if isinstance(model, str) and entry["role"] != "tool":
                entry["model"] = model
        entries[0] |= with_nonempty({}, attachments=files)
        entries[-1] |= with_nonempty({}, metadata=with_nonempty({}, usage=usage, form=form))
        if self.id in record:
            entries[-1]["id"] = record[self.id]
        if self.parent in record:
            entries[0]["parent"] = record[self.parent]
        return entries

    def write(self, entries: list[Fields]) -> Fields:
        """The fields that a record has for all its messages together, as `read` reads them, without
        the attachments.
        """
        head, last = entries[0], entries[-1]
        record = {self.time: self.written_time(last["timestamp"])} if "timestamp" in last else {}
        if model := next((entry["model"] for entry in entries if "model" in entry), None):
            record["model"] = model
        record |= {self.id: last["id"]} if "id" in last else {}
        return record | ({self.parent: head["parent"]} if "parent" in head else {})


def calls_with_results(entries: list[Fields]) -> list[tuple[Fields, list[Fields]]]:
    """The messages of a turn, each call with the messages of its results."""
    made: list[tuple[Fields, list[Fields]]] = []
    for entry in entries:
        if entry["role"] == "tool" and made:
            made[-1][1].append(entry)
        else:
            made.append((entry, []))
    return made


def is_turn(entries: list[Fields]) -> bool:
    """Whether messages are a turn: an agent that calls, what came back in the order of the calls,
    and so on.
    """
    *earlier, (last, results) = calls_with_results(entries)
    return all(
        entry["role"] == "assistant"
        and (results or entry is last)
        and [result.get("toolCallId") for result in results]
        == [call.get("id") for call in entry.get("toolCalls", ())][: len(results)]
        for entry, results in [*earlier, (last, results)]
    )


@dataclass(frozen=True, slots=True)
class TurnPair:
    """Two pure functions that read and write a record that holds several messages.

    Attributes:
        read: Our fields of the messages of a record, one at least. The last has its id, the first
            the parent.
        write: The record of such messages, as well as it can be made of them.
        from_source: A record of the source with its texts in pieces, which `read` takes.
        to_source: What `write` gives, as a record of the source. Neither changes what it is given.
    """

    read: Callable[[Fields], list[Fields]]
    write: Callable[[list[Fields]], Fields]
    from_source: Callable[[Fields], Fields]
    to_source: Callable[[Fields], Fields]

    def to_capsule(self, record: Fields) -> list[Fields]:
        """The messages of a record, with what they lack in `metadata.source` of the last."""
        record = self.from_source(
            {name: value for name, value in record.items() if name != CAPSULE_KEY}
        )
        entries = with_turn_ids(self.read(record))
        rest = difference(record, self._written(entries))
        if len(entries) > 1 and entries[0].get("id") in (None, f"{entries[-1].get('id')}:0"):
            rest[_MESSAGES] = len(entries)
        entries[-1] = with_source(entries[-1], rest)
        return entries

    def _written(self, entries: list[Fields]) -> Fields:
        return self.from_source(self.to_source(self.write(entries)))

    def to_record(self, entries: list[Fields], parent: Any, *, is_edited: bool) -> Fields:
        """The record of messages, with what a source had besides.

        Args:
            parent: The id of the record that the first one answers.
            is_edited: Whether they were changed here. What the source had then only fills gaps.
        """
        plain = [without_source(entry)[0] for entry in entries]
        rest = dict(without_source(entries[-1])[1])
        count = rest.pop(_MESSAGES, 1)
        record = self._written([plain[0] | {"parent": parent}, *plain[1:]])
        if is_edited or count != len(entries):
            record = {name: value for name, value in rest.items() if name[:1] != "$"} | record
        else:
            record = apply_difference(record, rest)
        return self.to_source(record)


def records_of(
    draft: Draft, turn: TurnPair, is_turn: Callable[[list[Fields]], bool]
) -> tuple[list[Fields], dict[Any, Any]]:
    """The records of a draft, in its order, each with an id and a parent; and the record's id for
    each message's id.

    `is_turn` says whether messages that no record had go into one.
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
            group, own = [entry], (f"{entry['id']}:", "#")
            while len(group) < count and groups and len(groups[-1]) == 1:
                if groups[-1][0]["id"] != group[0]["parent"] or not group[0]["parent"].startswith(
                    own
                ):
                    break
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
        records.append(turn.to_record(group, homes.get(parent, parent), is_edited=is_edited))
    return records, homes


def name_current_record(record: Fields, key: str, homes: dict[Any, Any]) -> Fields:
    """The head of a conversation; under `key` it names the record that holds the
    current message.
    """
    inner = record.get(key)
    if not isinstance(inner, str) or homes.get(inner, inner) == inner:
        return record
    return record | {key: homes[inner]}


def newest_message_id(history: list[Fields]) -> str | None:
    """The id of the newest message; None: there is none, or some have no id."""
    turn_messages = [entry for entry in history if "role" in entry]
    if not turn_messages or not all("id" in entry for entry in turn_messages):
        return None
    place = max(
        range(len(turn_messages)),
        key=lambda place: (turn_messages[place].get("timestamp") or "", place),
    )
    return str(turn_messages[place]["id"])


def choose_newest_message(draft: Draft, key: str, record: Fields) -> None:
    """Make the newest message the current one of a draft, if the source has none, under `key`, that
    is there.
    """
    if draft.metadata.get("currentNode") in {
        entry["id"] for entry in draft.history if "id" in entry
    }:
        return
    metadata = {name: value for name, value in draft.metadata.items() if name != "currentNode"}
    if id := newest_message_id(draft.history):
        metadata["currentNode"] = id
    if key in record:
        metadata["source"] = {**metadata.get("source", {}), key: record[key]}
    draft.head["metadata"] = metadata


def _children(records: list[Fields], parent: str) -> dict[Any, list[Any]]:
    children: dict[Any, list[Any]] = {}
    for record in records:
        if isinstance(record.get(parent), str) and "id" in record:
            children.setdefault(record[parent], []).append(record["id"])
    return children


def with_children(records: list[Fields], parent: str, children: str) -> None:
    """Give each record a list of its children, under `children`, unless it has one."""
    by_parent = _children(records, parent)
    for record in records:
        record.setdefault(children, by_parent.get(record.get("id"), []))


def without_children(records: list[Fields], parent: str, children: str) -> None:
    """Take out what can be made again: lists of children, unless their order is special, and ids of
    places.
    """
    by_parent = _children(records, parent)
    for record in records:
        known, listed = by_parent.get(record.get("id"), []), record.get(children)
        if (
            listed == known
            or not isinstance(listed, list)
            or sorted(map(str, listed)) != sorted(known)
        ):
            record.pop(children, None)
        if str(record.get("id"))[:1] == "#":
            del record["id"]
