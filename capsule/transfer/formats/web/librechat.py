"""Read and write the export of a conversation of LibreChat.

It is a tree of messages, or a list of messages with their parents. A message has a text, or parts
in `content`: texts, thoughts, and calls with their results. Such a message becomes several messages
here. A message that can't be read is reported and left out.

The written form is the list, since a tree can be nested too deep for readers. Fields that describe
the export itself are not kept. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson

from capsule.transfer.interface import (
    FORMAT_ERRORS,
    Draft,
    Format,
    Source,
    read_bytes,
    read_items,
    recognizes_record,
    reporting_damage,
)
from capsule.transfer.records import turns
from capsule.transfer.records.mapping import (
    Column,
    Fields,
    context_of,
    is_string,
    json_of,
    moment,
    object_of,
    objects_of,
    pair_of,
    text_of,
    text_of_context,
    without,
)
from capsule.transfer.records.turns import Pieces, RecordFieldNames, TurnPair

#: The parent of a first message.
_ROOT = "00000000-0000-0000-0000-000000000000"
#: The fields that describe the export.
_EXPORT_FIELDS = ("messages", "messagesTree", "exportAt", "branches", "recursive")
#: The title of a conversation without a title.
_DEFAULT_TITLE = "New Chat"
_THINKING = r"(?s)\A\s*:::thinking[^\S\n]*\n(?P<reasoning>.*?)(?:\n:::|\Z)"
#: The parts of a content with a text under the name of their type.
_TEXT_PARTS = ("text", "think", "reasoning")
#: The layouts of a message, in `metadata.form`: its text is one part of a list, or has marked
#: reasoning.
_FORM_PARTS = "parts"
_FORM_THINKING = "thinking"
#: A file with more nested messages than this is parsed by `_parsed`, which has no limit of depth.
_MAX_NESTED = 250
_TOKEN = r'(?s)\s*("(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+)'


_HEAD = pair_of(
    Column("conversationId", "id", text_of),
    Column("endpoint", default="openAI"),
    Column(
        "title",
        "title",
        lambda title: title if is_string(title) and title != _DEFAULT_TITLE else "",
        default=_DEFAULT_TITLE,
    ),
    Column(
        "options",
        "context",
        lambda options: context_of(object_of(options).get("promptPrefix")),
        lambda context: {"promptPrefix": text_of_context(context)},
    ),
)
_ATTACHED = pair_of(
    Column("filename", "name"),
    Column("type", "type"),
    Column("file_id", "reference"),
    Column("filepath", "url"),
    Column("text", "text"),
)


def _steps(parts: list[Fields]) -> Iterator[tuple[str, Any]]:
    """Return the steps of the parts of a content, for `turns.turn_messages`."""
    for part in parts:
        kind = part["type"]
        if kind == "text":
            yield "text", part[kind]
        elif kind != "tool_call":
            yield "reasoning", part[kind]
        else:
            yield from _call_steps(object_of(part.get("tool_call")))


def _call_steps(call: Fields) -> Iterator[tuple[str, Any]]:
    """Return the call of a part, and its result if it has one.

    A call has its fields in it, or under the name of its type.
    """
    kind = text_of(call.get("type"))
    typed_fields = object_of(call.get(kind))
    inner = typed_fields or call
    default_arguments = inner.get("arguments", {"input": inner.get("input")})
    fields: Fields = {}
    id = call["id"] if isinstance(call.get("id"), str) else None
    if id is not None:
        fields["id"] = id
    fields["name"] = text_of(inner.get("name")) or kind
    fields["arguments"] = json_of(inner.get("args", default_arguments))
    if typed_fields:
        fields["type"] = kind
    yield "call", fields
    logs = "\n".join(text_of(run.get("logs")) for run in objects_of(inner.get("outputs")))
    output = inner.get("output", logs or None)
    if isinstance(output, str):
        result: Fields = {"content": output}
        if id is not None:
            result["toolCallId"] = id
        yield "result", result


def _parts(entries: list[Fields]) -> list[Fields]:
    """Return the parts of the content for messages."""
    parts: list[Fields] = []
    for position, (entry, results) in enumerate(turns.calls_with_results(entries)):
        if "reasoning" in entry:
            parts.append({"type": "think", "think": entry["reasoning"]})
        if entry["content"] or (position and "reasoning" not in entry):
            parts.append({"type": "text", "text": entry["content"]})
        for number, call in enumerate(entry.get("toolCalls", ())):
            outputs = [result["content"] for result in results[number : number + 1]]
            parts.append({"type": "tool_call", "tool_call": _write_call(call, outputs)})
    return parts


def _write_call(call: Fields, outputs: list[str]) -> Fields:
    """Return a call with its output. `outputs` has one text, or none."""
    name = text_of(call.get("name"))
    arguments = call.get("arguments", {})
    fields: Fields = {"id": call["id"]} if "id" in call else {}
    kind = call.get("type")
    if kind == "function":
        function = {"name": name, "arguments": text_of(arguments)}
        if outputs:
            function["output"] = outputs[0]
        return fields | {"type": "function", "function": function}
    if isinstance(kind, str):
        inner = dict(arguments) if isinstance(arguments, dict) else {}
        inner["outputs"] = [{"type": "logs", "logs": text} for text in outputs]
        return fields | {"type": kind, kind: inner}
    fields |= {"name": name, "args": text_of(arguments), "type": "tool_call", "progress": 1}
    if outputs:
        fields["output"] = outputs[0]
    return fields


_NAMES = RecordFieldNames("messageId", "parentMessageId", "createdAt", lambda time: time)


def _read(record: Fields) -> list[Fields]:
    """Return the messages of a record."""
    text = record.get("text")
    parts = record.get("content")
    role = _role(record)
    form = ""
    entries: list[Fields]
    if isinstance(parts, list) and parts:
        entries = turns.turn_messages(_steps(parts), at_once=True)
        if len(entries) == 1 and not {"reasoning", "toolCalls"} & entries[0].keys():
            form = _FORM_PARTS
    elif turns.is_pieces(text):
        form = _FORM_THINKING
        steps = [next(iter(piece.items())) for piece in text if "mark" not in piece]
        entries = turns.turn_messages(steps)
    else:
        entries = [{"role": role, "content": text if isinstance(text, str) else ""}]
    for entry in entries:
        if entry["role"] != "tool":
            entry["role"] = role
    usage = _usage(record, role)
    files = [{"name": "file", **_ATTACHED.read(file)} for file in objects_of(record.get("files"))]
    entries = _NAMES.read(record, entries, files, usage, form)
    if entries[0].get("parent") in ("", _ROOT):
        entries[0]["parent"] = None
    return entries


def _usage(record: Fields, role: str) -> Fields:
    """Return the token counts of a record. `tokenCount` counts the tokens of its own text."""
    counts = {"inputTokens": record.get("promptTokens")}
    counts["inputTokens" if role == "user" else "outputTokens"] = record.get("tokenCount")
    return {name: count for name, count in counts.items() if isinstance(count, int)}


def _role(record: Fields) -> str:
    if record.get("isCreatedByUser") is True:
        return "user"
    return "system" if record.get("sender") == "System" else "assistant"


def _write(entries: list[Fields]) -> Fields:
    """Return the record for messages."""
    head = entries[0]
    last = entries[-1]
    form = last.get("metadata", {}).get("form")
    role = "assistant" if len(entries) > 1 else last["role"]
    record = _NAMES.write(entries)
    if "parent" in head:
        record["parentMessageId"] = head["parent"] or _ROOT
    record["isCreatedByUser"] = role == "user"
    record["text"] = last["content"]
    default_sender = record.get("model", "Assistant")
    record["sender"] = {"user": "User", "system": "System"}.get(role, default_sender)
    has_parts = len(entries) > 1 or {"reasoning", "toolCalls"} & head.keys()
    if form == _FORM_THINKING:
        record["text"] = _with_thinking(head)
    elif form == _FORM_PARTS or has_parts:
        del record["text"]
        record["content"] = _parts(entries)
    attachments = head.get("attachments", ())
    if attachments:
        record["files"] = [_ATTACHED.write(attachment) for attachment in attachments]
    return record


def _with_thinking(entry: Fields) -> Pieces:
    """Return the text of a message in pieces, with marks around its reasoning."""
    pieces: Pieces = [
        {"mark": ":::thinking\n"},
        {"reasoning": entry.get("reasoning", "")},
        {"mark": "\n:::\n"},
    ]
    if entry["content"]:
        pieces.append({"text": entry["content"]})
    return turns.merge_marks(pieces)


def _from_source(record: Fields) -> Fields:
    """Return a record whose content has only parts that are read.

    Neighbouring texts of one type are joined, with the places of the cuts in `$cuts`. A text in an
    object is taken out, with the rest of the object in `$value`. Other parts are in `$others`, by
    their places. A marked text is in pieces. `text` is True if it repeats the parts.
    """
    result = dict(record)
    text = record.get("text")
    content = record.get("content")
    if isinstance(text, str) and not content:
        matches = re.finditer(_THINKING, text)
        marks = (
            (match.start(), match.end(), [("reasoning", *match.span("reasoning"))])
            for match in matches
        )
        result["text"] = turns.pieces_of(text, marks) or text
    if not isinstance(content, list) or not content:
        return result
    parts: list[Fields] = []
    others: Fields = {}
    for position, part in enumerate(content):
        if not _add_part(parts, part):
            others[str(position)] = part
    result["content"] = parts
    if others:
        result["$others"] = others
    if text == "":
        del result["text"]
    elif isinstance(text, str) and text == _joined_texts(parts):
        result["text"] = True
    return result


def _joined_texts(parts: list[Any]) -> str:
    return "\n\n".join(part["text"] for part in parts if part["type"] == "text")


def _add_part(parts: list[Fields], part: Any) -> bool:
    """Add a part to the parts that are read. Return whether it is such a part."""
    kind = text_of(part.get("type")) if isinstance(part, dict) else ""
    if kind == "tool_call" and isinstance(part.get(kind), dict):
        parts.append(dict(part))
        return True
    if kind not in _TEXT_PARTS:
        return False
    item = dict(part)
    value = item.get(kind)
    if isinstance(value, dict):
        item |= {kind: value.get("value"), "$value": without(value, "value")}
    if not isinstance(item.get(kind), str) or not (item[kind] or parts):
        return False
    if parts and kind == parts[-1]["type"]:
        previous = parts[-1]
        cut = [len(previous[kind]), without(item, kind)]
        previous.setdefault("$cuts", []).append(cut)
        previous[kind] += f"\n\n{item[kind]}"
    else:
        parts.append(item)
    return True


def _to_source(record: Fields) -> Fields:
    """Return the record of LibreChat, the reverse of `_from_source`."""
    if not isinstance(record.get("content"), list):
        return record | turns.join_pieces(record, "text")
    content: list[Any] = []
    for part in record["content"]:
        content += _cut_part(part)
    for position, part in record.get("$others", {}).items():
        content.insert(int(position), part)
    text = record.get("text", "")
    if text is True:
        text = _joined_texts(record["content"])
    return without(record, "$others") | {"content": content, "text": text}


def _cut_part(part: Fields) -> Iterator[Fields]:
    """Return the parts that were joined into one."""
    kind = part["type"]
    whole = part[kind]
    cuts = part.get("$cuts", [])
    start = 0
    rest = without(part, kind, "$cuts")
    whole_end = len(whole) if isinstance(whole, str) else 0
    for end, next_rest in [*cuts, [whole_end, {}]]:
        value = whole[start:end] if cuts else whole
        if "$value" in rest:
            value = {"value": value, **rest["$value"]}
        yield {**without(rest, "$value"), kind: value}
        start = end + len("\n\n")
        rest = next_rest


_TURN = TurnPair(read=_read, write=_write, from_source=_from_source, to_source=_to_source)


def _flat(messages: Any, source: Source, line: int) -> list[Fields]:
    """Return the messages of a tree, or of a list, each with an id.

    A message inside another one gets that one as its parent. Contradictions are reported.
    """
    stack: list[tuple[Any, str | None]] = [(item, None) for item in reversed(messages)]
    records: list[Fields] = []
    while stack:
        message, parent = stack.pop()
        if not isinstance(message, dict):
            source.tell("a message that is not an object", line)
            continue
        id = text_of(message.get("messageId")) or f"#{len(records)}"
        record = {**without(message, "children"), "messageId": id}
        if record.get("parentMessageId") is not None:
            record["parentMessageId"] = text_of(record["parentMessageId"])
        if parent is not None:
            if record.get("parentMessageId", parent) != parent:
                source.tell(f"message {id[:80]} is under another parent than it names", line)
            record["parentMessageId"] = parent
        for name, value in without(record, "files").items():
            if any("parentMessageId" in item for item in objects_of(value)):
                source.tell(f"message {id[:80]} has messages under {name[:80]!r}, not read", line)
        children = message.get("children")
        if isinstance(children, list):
            stack += [(child, id) for child in reversed(children)]
        records.append(record)
    return records


def _by_time(records: list[Fields]) -> list[Fields]:
    """Return the messages from the oldest to the newest. If one has no time, the order stays."""
    times = [moment(record.get("createdAt")) for record in records]
    if None in times:
        return records
    positions = sorted(range(len(records)), key=lambda position: text_of(times[position]))
    return [records[position] for position in positions]


def _draft(record: Fields, line: int, source: Source) -> Draft | None:
    messages = record.get("messagesTree", record.get("messages"))
    if isinstance(messages, dict):
        messages = [messages]
    if not isinstance(messages, list):
        source.tell("not a conversation: it has no messages", line)
        return None
    draft = Draft.of_head(_HEAD, without(record, *_EXPORT_FIELDS), line)
    records = _flat(messages, source, line)
    if not draft.is_own:
        records = _by_time(records)
    ids = {message["messageId"] for message in records}
    if records and records[0].get("parentMessageId") not in ids:
        # The first message answers a root without a text.
        root_id = records[0].get("parentMessageId") or _ROOT
        draft.history.append({"id": root_id, "parent": None})
    for message in records:
        title = f"message {message['messageId'][:80]}"
        if message.get("conversationId") == record.get("conversationId"):
            message.pop("conversationId", None)
        # A message has no time until it is stored.
        time = message.get("createdAt")
        if time is not None and moment(time) is None:
            source.tell(f"{title} has a createdAt that is not a time", line)
        with reporting_damage(source.tell, title, line):
            draft.history += _TURN.to_capsule(message)
    turns.choose_newest_message(draft, "", {})
    return draft


def _read_file_of(source: Source) -> Iterator[Draft]:
    """Return the conversations of a file. A tree that is nested very deep is parsed apart."""
    data = read_bytes(source) if b'"children"' in source.head else b""
    if data.count(b'"children"') > _MAX_NESTED:
        try:
            draft = _draft(_parsed(data.decode("utf-8-sig")), 1, source)
        except FORMAT_ERRORS:  # It is damaged, and is read around the damage below.
            pass
        else:
            if draft:
                yield draft
            return
    yield from read_items(source, _draft)


def _parsed(text: str) -> Fields:
    """Return an object of JSON, however deep it is. Raises one of `FORMAT_ERRORS`."""
    whole: list[Any] = []
    containers: list[Any] = [whole]
    #: For each open object the key of the next value. None: the next token is a key.
    keys: list[Any] = [None]
    for token in re.findall(_TOKEN, text):
        if token in "}]":
            containers.pop()
            keys.pop()
            continue
        if token in (":", ","):
            continue
        container = containers[-1]
        if isinstance(container, dict) and keys[-1] is None:
            keys[-1] = orjson.loads(token)
            continue
        value: Any
        if token == "{":
            value = {}
        elif token == "[":
            value = []
        else:
            value = orjson.loads(token)
        if isinstance(container, list):
            container.append(value)
        else:
            container[keys[-1]] = value
            keys[-1] = None
        if token in "{[":
            containers.append(value)
            keys.append(None)
    if len(containers) != 1:
        raise ValueError("the end is missing")
    result: Fields = whole[0]
    return result


def _write_file_of(draft: Draft) -> bytes:
    metadata = draft.metadata
    if metadata.get("currentNode") == turns.newest_message_id(draft.history):
        metadata = without(metadata, "currentNode")
    records, _ = turns.records_of(draft, _TURN, turns.is_turn)
    head = without(draft.head, "metadata")
    if metadata:
        head["metadata"] = metadata
    record = replace(draft, head=head).head_record(_HEAD)
    messages = [{"conversationId": record.get("conversationId"), **message} for message in records]
    return orjson.dumps(record | {"branches": True, "recursive": False, "messages": messages})


def _is_conversation(record: Fields) -> bool:
    return "conversationId" in record and ("messages" in record or "messagesTree" in record)


FORMATS = [
    Format(
        "librechat",
        "LibreChat",
        recognizes=recognizes_record(_is_conversation),
        read=_read_file_of,
        write=_write_file_of,
        is_portable=False,
    )
]
