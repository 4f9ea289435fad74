"""Map a record that holds a whole turn of an agent to its messages, and back.

A turn is a line of messages: an answer with calls, the results, the next answer, and so on. The
last message has the record's id, since the next record answers it. The earlier ones are `ID:0`,
`ID:1` and so on. The rest of the record is in `metadata.source` of the last message, with the
number of messages.

A text with marks is handled in pieces (`Pieces`), so that the marks are kept and the texts between
them become fields.

Invariants: as for a `Pair`. The texts of a record are stored once. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeGuard

from capsule.transfer.interface import Draft, Fields
from capsule.transfer.records.mapping import (
    CAPSULE_KEY,
    apply_difference,
    difference,
    moment,
    with_nonempty,
    with_source,
    without_source,
)

#: The key for the number of messages, in `metadata.source` of the last one.
_MESSAGES = "$messages"
#: A text in pieces. Each piece is an object with one key, its kind. `mark` is the text between.
Pieces = list[dict[str, str]]


def with_turn_ids(entries: list[Fields]) -> list[Fields]:
    """Return the messages of a record with their ids and parents. The last one has an id or none.

    The messages are changed.
    """
    id = entries[-1].get("id")
    if id is None:
        return entries
    last = len(entries) - 1
    for position, entry in enumerate(entries):
        entry["id"] = id if position == last else f"{id}:{position}"
        if position:
            entry["parent"] = entries[position - 1]["id"]
    return entries


def join_pieces(record: Fields, key: str = "content") -> Fields:
    """Return the field of a record with its pieces joined to one text. Empty: it has no pieces."""
    content = record.get(key)
    if not is_pieces(content):
        return {}
    return {key: "".join(text for piece in content for text in piece.values())}


def is_pieces(content: Any) -> TypeGuard[Pieces]:
    """Return whether a content is a text in pieces."""
    if not isinstance(content, list):
        return False
    first_piece = next(iter(content), None)
    return isinstance(first_piece, dict) and "mark" in first_piece


def merge_marks(pieces: Iterable[dict[str, str]]) -> Pieces:
    """Return pieces with one mark before, between and after the others. It may be empty."""
    result: Pieces = [{"mark": ""}]
    for piece in pieces:
        if "mark" in piece:
            result[-1] = {"mark": result[-1]["mark"] + piece["mark"]}
        else:
            result += [piece, {"mark": ""}]
    return result


def pieces_of(text: str, parts: Iterable[tuple[int, int, list[tuple[str, int, int]]]]) -> Pieces:
    """Return a text with marks in pieces. Empty: it has no marks.

    Args:
        text: The text.
        parts: The marked parts: begin and end of each, and the texts in it, each with its kind,
            begin and end. All are offsets in characters.
    """
    pieces: Pieces = []
    offset = 0
    for start, end, spans in [*parts, (len(text), len(text), [])]:
        pieces += _plain_pieces(text[offset:start], is_first=not pieces, is_last=not spans)
        offset = start
        for kind, span_start, span_end in spans:
            pieces += [{"mark": text[offset:span_start]}, {kind: text[span_start:span_end]}]
            offset = span_end
        pieces.append({"mark": text[offset:end]})
        offset = end
    has_marked_text = any(piece.keys() - {"mark", "text"} for piece in pieces)
    return merge_marks(pieces) if has_marked_text else []


def _plain_pieces(text: str, *, is_first: bool, is_last: bool) -> Pieces:
    """Return the text between two marked parts. Space at a marked part belongs to the marks."""
    if is_first:
        plain_text = text.rstrip()
    elif is_last:
        plain_text = text.lstrip()
    else:
        plain_text = text.strip()
    if not plain_text:
        return [{"mark": text}, {"mark": ""}]
    space_before, _, space_after = text.partition(plain_text)
    return [{"mark": space_before}, {"text": plain_text}, {"mark": space_after}]


def turn_messages(steps: Iterable[tuple[str, Any]], *, at_once: bool = False) -> list[Fields]:
    """Return the messages of a turn, at least one.

    Args:
        steps: What follows each other in the turn, each with its kind: a `text`, a `reasoning`, a
            `call`, a `result` (the fields of its message), or the `end` of a message.
        at_once: Whether calls with only results between them were made by one message.
    """
    entries: list[Fields] = [{"role": "assistant", "content": ""}]
    for kind, value in steps:
        entry = entries[-1]
        if kind == "result":
            entries.append({"role": "tool", "content": "", **value})
            continue
        if kind == "call" and at_once and entry["role"] == "tool":
            entry = next(earlier for earlier in reversed(entries) if earlier["role"] != "tool")
        elif _begins_message(kind, entry):
            entry = {"role": "assistant", "content": ""}
            entries.append(entry)
        if kind == "call":
            entry.setdefault("toolCalls", []).append(value)
        elif kind in ("text", "reasoning"):
            name = "content" if kind == "text" else kind
            entry[name] = "\n\n".join(filter(None, [entry.get(name), value]))
    return entries


def _begins_message(kind: str, entry: Fields) -> bool:
    """Return whether a step begins a new message after this one."""
    if entry["role"] == "tool":
        return True
    if kind != "call" and "toolCalls" in entry:
        return True
    return kind == "reasoning" and bool(entry["content"])


@dataclass(frozen=True, slots=True)
class RecordFieldNames:
    """The names of the fields that a record has for all of its messages together.

    Attributes:
        id: The name of its id.
        parent: The name of the id of the record that it answers.
        time: The name of its time.
        write_time: Returns the record's time for a time of ours.
    """

    id: str
    parent: str
    time: str
    write_time: Callable[[str], Any]

    def read(
        self, record: Fields, entries: list[Fields], files: list[Fields], usage: Fields, form: str
    ) -> list[Fields]:
        """Return the messages of a record, with the fields that it has for all of them together.

        Args:
            record: The record.
            entries: Its messages, which are changed.
            files: Its attachments. The first message gets them.
            usage: Its token counts. The last message gets them.
            form: The layout of the record, for `metadata.form` of the last message. Empty: the
                usual one.
        """
        time = moment(record.get(self.time))
        model = record.get("model")
        for entry in entries:
            if time:
                entry["timestamp"] = time
            if isinstance(model, str) and entry["role"] != "tool":
                entry["model"] = model
        entries[0] |= with_nonempty({}, attachments=files)
        metadata = with_nonempty({}, usage=usage, form=form)
        entries[-1] |= with_nonempty({}, metadata=metadata)
        if self.id in record:
            entries[-1]["id"] = record[self.id]
        if self.parent in record:
            entries[0]["parent"] = record[self.parent]
        return entries

    def write(self, entries: list[Fields]) -> Fields:
        """Return the fields of the record that `read` reads, without attachments and usage."""
        head = entries[0]
        last = entries[-1]
        record: Fields = {}
        if "timestamp" in last:
            record[self.time] = self.write_time(last["timestamp"])
        model = next((entry["model"] for entry in entries if "model" in entry), None)
        if model:
            record["model"] = model
        if "id" in last:
            record[self.id] = last["id"]
        if "parent" in head:
            record[self.parent] = head["parent"]
        return record


def calls_with_results(entries: list[Fields]) -> list[tuple[Fields, list[Fields]]]:
    """Return the answers of a turn, each with the messages of its results."""
    answers: list[tuple[Fields, list[Fields]]] = []
    for entry in entries:
        if entry["role"] == "tool" and answers:
            answers[-1][1].append(entry)
        else:
            answers.append((entry, []))
    return answers


def is_turn(entries: list[Fields]) -> bool:
    """Return whether messages are a turn: answers, each with results in the order of its calls.

    Only the last answer may have no results.
    """
    answers = calls_with_results(entries)
    for position, (entry, results) in enumerate(answers):
        is_last = position == len(answers) - 1
        if entry["role"] != "assistant" or not (results or is_last):
            return False
        call_ids = [call.get("id") for call in entry.get("toolCalls", ())]
        result_ids = [result.get("toolCallId") for result in results]
        if result_ids != call_ids[: len(results)]:
            return False
    return True


@dataclass(frozen=True, slots=True)
class TurnPair:
    """Pure functions that read and write a record with several messages.

    Attributes:
        read: Returns our fields of the messages of a record, at least one. The last has its id, the
            first the parent.
        write: Returns the record for such messages, as well as they allow.
        from_source: Returns a record of the source in the form that `read` takes, with its texts
            in pieces. It does not change its argument.
        to_source: Returns a record that `write` made in the form of the source. It does not change
            its argument.
    """

    read: Callable[[Fields], list[Fields]]
    write: Callable[[list[Fields]], Fields]
    from_source: Callable[[Fields], Fields]
    to_source: Callable[[Fields], Fields]

    def to_capsule(self, record: Fields) -> list[Fields]:
        """Return the messages of a record, with the rest of it in the last `metadata.source`."""
        plain_record = {name: value for name, value in record.items() if name != CAPSULE_KEY}
        source_record = self.from_source(plain_record)
        entries = with_turn_ids(self.read(source_record))
        rest = difference(source_record, self._write_opened(entries))
        if len(entries) > 1 and entries[0].get("id") in (None, f"{entries[-1].get('id')}:0"):
            rest[_MESSAGES] = len(entries)
        entries[-1] = with_source(entries[-1], rest)
        return entries

    def _write_opened(self, entries: list[Fields]) -> Fields:
        """Return the record for messages, in the form that `read` takes."""
        return self.from_source(self.to_source(self.write(entries)))

    def to_record(self, entries: list[Fields], parent: Any, *, is_edited: bool) -> Fields:
        """Return the record for messages, with the rest of it from `metadata.source`.

        Args:
            entries: The messages.
            parent: The id of the record that the first one answers.
            is_edited: Whether they were changed here. Then the rest does not replace any field of
                the written record.
        """
        plain_entries = [without_source(entry)[0] for entry in entries]
        plain_entries[0] = plain_entries[0] | {"parent": parent}
        rest = dict(without_source(entries[-1])[1])
        count = rest.pop(_MESSAGES, 1)
        record = self._write_opened(plain_entries)
        if is_edited or count != len(entries):
            record = {name: value for name, value in rest.items() if name[:1] != "$"} | record
        else:
            record = apply_difference(record, rest)
        return self.to_source(record)


def records_of(
    draft: Draft, turn: TurnPair, is_turn: Callable[[list[Fields]], bool]
) -> tuple[list[Fields], dict[Any, Any]]:
    """Return the records of a draft, in its order, each with an id and a parent.

    Also returns the id of the record of each message, by the message's id. `is_turn` decides
    whether messages that no record had go into one record.
    """
    entries = _with_all_ids(draft.history)
    groups = _record_groups(draft, entries, is_turn)
    record_ids = {entry["id"]: group[-1]["id"] for group in groups for entry in group}
    records = []
    for group in groups:
        parent = group[0]["parent"]
        is_edited = any(entry["id"] in draft.edited for entry in group)
        record_parent = record_ids.get(parent, parent)
        records.append(turn.to_record(group, record_parent, is_edited=is_edited))
    return records, record_ids


def _with_all_ids(history: list[Fields]) -> list[Fields]:
    """Return messages that all have an id and a parent. A missing id is `#` and the position."""
    entries = []
    previous_id: Any = None
    for position, entry in enumerate(history):
        id = entry.get("id", f"#{position}")
        entries.append(entry | {"id": id, "parent": entry.get("parent", previous_id)})
        previous_id = id
    return entries


def _record_groups(
    draft: Draft, entries: list[Fields], is_turn: Callable[[list[Fields]], bool]
) -> list[list[Fields]]:
    """Return the messages of each record.

    Messages that were one record are one again. Messages that were written here are joined, if each
    is the only answer to the one before, and `is_turn`.
    """
    child_counts = Counter(entry["parent"] for entry in entries)
    current = draft.metadata.get("currentNode")
    groups: list[list[Fields]] = []
    for entry in entries:
        count = without_source(entry)[1].get(_MESSAGES, 1)
        if count > 1:
            groups.append(_take_turn(groups, entry, count))
            continue
        last_id = groups[-1][-1]["id"] if groups else None
        continues_last = (
            bool(groups)
            and entry["parent"] == last_id != current
            and child_counts[last_id] == 1
            and (draft.is_own or {last_id, entry["id"]} <= draft.edited)
        )
        if continues_last and is_turn([*groups[-1], entry]):
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


def _take_turn(groups: list[list[Fields]], last: Fields, count: int) -> list[Fields]:
    """Remove the earlier messages of a record from the groups, and return all of its messages.

    `last` is its last message, and `count` the number of its messages.
    """
    group = [last]
    own_prefixes = (f"{last['id']}:", "#")
    while len(group) < count and groups and len(groups[-1]) == 1:
        parent = group[0]["parent"]
        if groups[-1][0]["id"] != parent or not parent.startswith(own_prefixes):
            break
        group[:0] = groups.pop()
    return group


def name_current_record(record: Fields, key: str, record_ids: dict[Any, Any]) -> Fields:
    """Return the head of a conversation, with the record of the current message under `key`.

    `record_ids` has the ids of the records by those of messages.
    """
    message_id = record.get(key)
    if not isinstance(message_id, str) or record_ids.get(message_id, message_id) == message_id:
        return record
    return record | {key: record_ids[message_id]}


def newest_message_id(history: list[Fields]) -> str | None:
    """Return the id of the newest message. None: there is none, or a message has no id."""
    messages = [entry for entry in history if "role" in entry]
    if not messages or not all("id" in entry for entry in messages):
        return None
    newest = max(
        range(len(messages)),
        key=lambda position: (messages[position].get("timestamp") or "", position),
    )
    return str(messages[newest]["id"])


def choose_newest_message(draft: Draft, key: str, record: Fields) -> None:
    """Make the newest message the current one of a draft, if the source names none that exists.

    The value of the record under `key` is kept in the source of the head.
    """
    ids = {entry["id"] for entry in draft.history if "id" in entry}
    if draft.metadata.get("currentNode") in ids:
        return
    metadata = {name: value for name, value in draft.metadata.items() if name != "currentNode"}
    newest_id = newest_message_id(draft.history)
    if newest_id:
        metadata["currentNode"] = newest_id
    if key in record:
        metadata["source"] = {**metadata.get("source", {}), key: record[key]}
    draft.head["metadata"] = metadata


def _children(records: list[Fields], parent: str) -> dict[Any, list[Any]]:
    """Return the ids of the children of each record. `parent` is the field with the parent's id."""
    children: dict[Any, list[Any]] = {}
    for record in records:
        if isinstance(record.get(parent), str) and "id" in record:
            children.setdefault(record[parent], []).append(record["id"])
    return children


def with_children(records: list[Fields], parent: str, children: str) -> None:
    """Give each record a list of its children under `children`, unless it has one."""
    by_parent = _children(records, parent)
    for record in records:
        record.setdefault(children, by_parent.get(record.get("id"), []))


def without_children(records: list[Fields], parent: str, children: str) -> None:
    """Remove lists of children and ids that are made again by a writer.

    A list is kept if its order is not that of the records. Ids that are positions are removed.
    """
    by_parent = _children(records, parent)
    for record in records:
        expected = by_parent.get(record.get("id"), [])
        listed = record.get(children)
        is_reordered = (
            isinstance(listed, list)
            and listed != expected
            and sorted(map(str, listed)) == sorted(expected)
        )
        if not is_reordered:
            record.pop(children, None)
        if str(record.get("id"))[:1] == "#":
            del record["id"]
