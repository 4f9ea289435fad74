"""The export of a conversation of LibreChat: a tree of messages, or a list of them with their
parents.

A message has a text, or parts in `content`: texts, thoughts, calls with what came back. Such a
message is several messages here. Written is the list, which has no depth; what only tells how a
file was exported is not kept. Pure.
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
from capsule.transfer.records.coercion import (
    is_string,
    json_of,
    moment,
    object_of,
    objects_of,
    text_of,
    without,
)
from capsule.transfer.records.round_trip import Column, Fields, context_of, pair_of, text_of_context
from capsule.transfer.records.turns import (
    Pieces,
    RecordFieldNames,
    TurnPair,
    calls_with_results,
    merge_marks,
    pieces_of,
)

_ROOT = "00000000-0000-0000-0000-000000000000"
#: What tells how the file was made.
_OF_THE_FILE = ("messages", "messagesTree", "exportAt", "branches", "recursive")
_UNNAMED = "New Chat"
_THINKING = r"(?s)\A\s*:::thinking[^\S\n]*\n(?P<reasoning>.*?)(?:\n:::|\Z)"
_SPOKEN = ("text", "think", "reasoning")
#: So many levels of messages in messages are read as they are.
_DEEP = 250
_TOKEN = r'(?s)\s*("(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+)'


_HEAD = pair_of(
    Column("conversationId", "id", text_of),
    Column("endpoint", default="openAI"),
    Column(
        "title",
        "title",
        lambda title: title if is_string(title) and title != _UNNAMED else "",
        default=_UNNAMED,
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
    for part in parts:
        kind = part["type"]
        if kind != "tool_call":
            yield ("text" if kind == "text" else "reasoning"), part[kind]
            continue
        call = object_of(part.get("tool_call"))
        inner = object_of(call.get(kind := text_of(call.get("type")))) or call
        arguments = json_of(
            inner.get("args", inner.get("arguments", {"input": inner.get("input")}))
        )
        made = {"name": text_of(inner.get("name")) or kind, "arguments": arguments}
        made |= {"type": kind} if inner is not call else {}
        id = call["id"] if isinstance(call.get("id"), str) else None
        yield "call", ({"id": id} if id is not None else {}) | made
        logs = "\n".join(text_of(run.get("logs")) for run in objects_of(inner.get("outputs")))
        if isinstance(output := inner.get("output", logs or None), str):
            yield "result", {"content": output} | ({"toolCallId": id} if id is not None else {})


def _parts(entries: list[Fields]) -> list[Fields]:
    parts: list[Fields] = []
    for place, (entry, results) in enumerate(calls_with_results(entries)):
        if "reasoning" in entry:
            parts.append({"type": "think", "think": entry["reasoning"]})
        if entry["content"] or (place and "reasoning" not in entry):
            parts.append({"type": "text", "text": entry["content"]})
        for nth, call in enumerate(entry.get("toolCalls", ())):
            output = [result["content"] for result in results[nth : nth + 1]]
            made: Fields = {"id": call["id"]} if "id" in call else {}
            name, arguments = text_of(call.get("name")), call.get("arguments", {})
            if call.get("type") == "function":
                inner = {"name": name, "arguments": text_of(arguments)} | (
                    {"output": output[0]} if output else {}
                )
                made |= {"type": "function", "function": inner}
            elif isinstance(call.get("type"), str):
                inner = dict(arguments) if isinstance(arguments, dict) else {}
                inner |= {"outputs": [{"type": "logs", "logs": text} for text in output]}
                made |= {"type": call["type"], call["type"]: inner}
            else:
                made |= {
                    "name": name,
                    "args": text_of(arguments),
                    "type": "tool_call",
                    "progress": 1,
                }
                made |= {"output": output[0]} if output else {}
            parts.append({"type": "tool_call", "tool_call": made})
    return parts


_NAMES = RecordFieldNames("messageId", "parentMessageId", "createdAt", lambda time: time)


def _read(record: Fields) -> list[Fields]:
    text, parts, form = record.get("text"), record.get("content"), ""
    role = "user" if record.get("isCreatedByUser") is True else "assistant"
    role = "system" if record.get("sender") == "System" and role == "assistant" else role
    entries: list[Fields] = [{"role": role, "content": text if isinstance(text, str) else ""}]
    if isinstance(parts, list) and parts:
        entries = turns.turn_messages(_steps(parts), at_once=True)
        form = "" if len(entries) > 1 or {"reasoning", "toolCalls"} & entries[0].keys() else "parts"
    elif turns.is_pieces(text):
        form = "thinking"
        entries = turns.turn_messages(
            (kind, said) for piece in text for kind, said in piece.items() if kind != "mark"
        )
    for entry in entries:
        if entry["role"] != "tool":
            entry["role"] = role
    counts = {"inputTokens": record.get("promptTokens")}
    counts |= {"inputTokens" if role == "user" else "outputTokens": record.get("tokenCount")}
    usage = {name: count for name, count in counts.items() if isinstance(count, int)}
    files = [{"name": "file", **_ATTACHED.read(file)} for file in objects_of(record.get("files"))]
    entries = _NAMES.read(record, entries, files, usage, form)
    if entries[0].get("parent") in ("", _ROOT):
        entries[0]["parent"] = None
    return entries


def _write(entries: list[Fields]) -> Fields:
    head, last = entries[0], entries[-1]
    form, role = (
        last.get("metadata", {}).get("form"),
        "assistant" if len(entries) > 1 else last["role"],
    )
    record = _NAMES.write(entries)
    if "parent" in head:
        record["parentMessageId"] = head["parent"] or _ROOT
    record |= {"isCreatedByUser": role == "user", "text": last["content"]}
    record["sender"] = {"user": "User", "system": "System"}.get(
        role, record.get("model", "Assistant")
    )
    if form == "thinking":
        record["text"] = _thinking(head)
    elif form == "parts" or len(entries) > 1 or {"reasoning", "toolCalls"} & head.keys():
        del record["text"]
        record["content"] = _parts(entries)
    files = [_ATTACHED.write(file) for file in head.get("attachments", ())]
    return record | ({"files": files} if files else {})


def _thinking(entry: Fields) -> Pieces:
    made: Pieces = [
        {"mark": ":::thinking\n"},
        {"reasoning": entry.get("reasoning", "")},
        {"mark": "\n:::\n"},
    ]
    return merge_marks([*made, *([{"text": entry["content"]}] if entry["content"] else [])])


def _opened(record: Fields) -> Fields:
    """A message with only the parts that are read, each with its text, and with its
    thoughts apart.
    """
    record, text, content = dict(record), record.get("text"), record.get("content")
    if isinstance(text, str) and not content:
        hits = re.finditer(_THINKING, text)
        marks = ((hit.start(), hit.end(), [("reasoning", *hit.span("reasoning"))]) for hit in hits)
        record["text"] = pieces_of(text, marks) or text
    if not isinstance(content, list) or not content:
        return record
    parts, others = list[Fields](), dict[str, Any]()
    for place, part in enumerate(content):
        kind = text_of(part.get("type")) if isinstance(part, dict) else ""
        item = dict(part) if kind else {}
        if kind in _SPOKEN and isinstance(item.get(kind), dict):
            value = item[kind]
            item |= {kind: value.get("value"), "$value": without(value, "value")}
        is_said = (
            isinstance(item.get(kind), str) and kind in _SPOKEN and (item[kind] or bool(parts))
        )
        if not is_said and not (kind == "tool_call" and isinstance(item.get(kind), dict)):
            others[str(place)] = part
        elif parts and kind in _SPOKEN and kind == parts[-1]["type"]:
            former = parts[-1]
            former.setdefault("$cuts", []).append([len(former[kind]), without(item, kind)])
            former[kind] += f"\n\n{item[kind]}"
        else:
            parts.append(item)
    record["content"] = parts
    record |= {"$others": others} if others else {}
    if text == "":
        del record["text"]
    elif isinstance(text, str) and text == "\n\n".join(
        item["text"] for item in parts if item["type"] == "text"
    ):
        record["text"] = True
    return record


def _closed(record: Fields) -> Fields:
    if not isinstance(record.get("content"), list):
        return record | turns.join_pieces(record, "text")
    content: list[Any] = []
    for part in record["content"]:
        kind, start = part["type"], 0
        whole, cuts = part[kind], part.get("$cuts", [])
        ends = [*cuts, [len(whole) if isinstance(whole, str) else 0, {}]]
        beside = without(part, kind, "$cuts")
        for end, next_beside in ends:
            value = whole[start:end] if cuts else whole
            if "$value" in beside:
                value = {"value": value, **beside["$value"]}
            content.append({**without(beside, "$value"), kind: value})
            start, beside = end + 2, next_beside
    for place, part in record.get("$others", {}).items():
        content.insert(int(place), part)
    said = "\n\n".join(part["text"] for part in record["content"] if part["type"] == "text")
    text = said if record.get("text") is True else record.get("text", "")
    return without(record, "$others") | {"content": content, "text": text}


_TURN = TurnPair(_read, _write, _opened, _closed)


def _flat(messages: Any, source: Source, line: int) -> list[Fields]:
    """The messages of a tree, or of a list, each with an id; those in others have these
    as parents.
    """
    stack: list[tuple[Any, str | None]] = [(item, None) for item in reversed(messages)]
    records: list[Fields] = []
    while stack:
        message, above = stack.pop()
        if not isinstance(message, dict):
            source.tell("a message that is no object", line)
            continue
        id = text_of(message.get("messageId")) or f"#{len(records)}"
        record = {**without(message, "children"), "messageId": id}
        if record.get("parentMessageId") is not None:
            record["parentMessageId"] = text_of(record["parentMessageId"])
        if above is not None:
            if record.get("parentMessageId", above) != above:
                source.tell(f"message {id[:80]} stands under another one than it names", line)
            record["parentMessageId"] = above
        for name, value in without(record, "files").items():
            if any("parentMessageId" in item for item in objects_of(value)):
                source.tell(f"message {id[:80]} has messages under {name[:80]!r}, not read", line)
        children = message.get("children")
        stack += [(item, id) for item in reversed(children)] if isinstance(children, list) else []
        records.append(record)
    return records


def _by_time(records: list[Fields]) -> list[Fields]:
    """The messages from the oldest to the newest; as they are, if one has no time."""
    times = [moment(record.get("createdAt")) for record in records]
    if None in times:
        return records
    return [
        records[place]
        for place in sorted(range(len(records)), key=lambda place: text_of(times[place]))
    ]


def _draft(record: Fields, line: int, source: Source) -> Draft | None:
    messages = record.get("messagesTree", record.get("messages"))
    messages = [messages] if isinstance(messages, dict) else messages
    if not isinstance(messages, list):
        source.tell("no conversation: it has no messages", line)
        return None
    draft = Draft.of_head(_HEAD, without(record, *_OF_THE_FILE), line)
    records = _flat(messages, source, line)
    records = records if draft.is_own else _by_time(records)
    known = {entry["messageId"] for entry in records}
    for place, message in enumerate(records):
        if message.get("conversationId") == record.get("conversationId"):
            message = without(message, "conversationId")
        if (time := message.get("createdAt")) is not None and moment(
            time
        ) is None:  # It has none until it is stored.
            source.tell(
                f"message {message['messageId'][:80]} has a createdAt that is not a time", line
            )
        if not place and message.get("parentMessageId") not in known:
            draft.history.append({"id": message.get("parentMessageId") or _ROOT, "parent": None})
        with reporting_damage(source.tell, f"message {message['messageId'][:80]}", line):
            draft.history += _TURN.to_capsule(message)
    turns.choose_newest_message(draft, "", {})
    return draft


def _read_file_of(source: Source) -> Iterator[Draft]:
    data = read_bytes(source) if b'"children"' in source.head else b""
    if data.count(b'"children"') > _DEEP:
        try:
            draft = _draft(_parsed(data.decode("utf-8-sig")), 1, source)
        except FORMAT_ERRORS:  # It is damaged.
            pass
        else:
            yield from [draft] if draft else []
            return
    yield from read_items(source, _draft)


def _parsed(text: str) -> Fields:
    """An object of JSON, however deep. Raises ValueError, or another one of `FORMAT_ERRORS`."""
    whole: list[Any] = []
    stack: list[Any] = [whole]
    keys: list[Any] = [None]
    for token in re.findall(_TOKEN, text):
        if token in "}]":
            stack.pop()
            keys.pop()
        elif token == ":" or token == ",":
            continue
        elif isinstance(stack[-1], dict) and keys[-1] is None:
            keys[-1] = orjson.loads(token)
        else:
            value: Any = {} if token == "{" else [] if token == "[" else orjson.loads(token)
            if isinstance(stack[-1], list):
                stack[-1].append(value)
            else:
                stack[-1][keys[-1]], keys[-1] = value, None
            if token in "{[":
                stack.append(value)
                keys.append(None)
    if len(stack) != 1:
        raise ValueError("the end is missing")
    result: Fields = whole[0]
    return result


def _write_file_of(draft: Draft) -> bytes:
    metadata = draft.metadata
    if metadata.get("currentNode") == turns.newest_message_id(draft.history):
        metadata = without(metadata, "currentNode")
    records, _ = turns.records_of(draft, _TURN, turns.is_turn)
    head = without(draft.head, "metadata") | ({"metadata": metadata} if metadata else {})
    record = replace(draft, head=head).head_record(_HEAD)
    messages = [{"conversationId": record.get("conversationId"), **entry} for entry in records]
    return orjson.dumps(record | {"branches": True, "recursive": False, "messages": messages})


_recognizes = recognizes_record(
    lambda it: "conversationId" in it and not {"messages", "messagesTree"}.isdisjoint(it)
)
FORMATS = [
    Format("librechat", "LibreChat", _recognizes, _read_file_of, _write_file_of, is_portable=False)
]
