"""The web UI of llama.cpp, in all four shapes since 2024, brought to one: a conversation and its
messages.

Written is the JSON of an export, which every version since 2025-09 reads; with a root, which the
web UI needs. Texts with marks of thoughts and calls become messages, and are written with their
marks again. Pure.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from capsule.transfer.interface import (
    Draft,
    Fields,
    Format,
    Source,
    read_records,
    recognizes_record,
    reporting_damage,
)
from capsule.transfer.records import coercion, turns
from capsule.transfer.records.coercion import (
    json_of,
    moment,
    object_of,
    objects_of,
    text_of,
    with_nonempty,
    without,
)
from capsule.transfer.records.round_trip import Column, Pair, is_on, pair_of
from capsule.transfer.records.turns import (
    Pieces,
    RecordFieldNames,
    TurnPair,
    calls_with_results,
    merge_marks,
    pieces_of,
)

_ROLES = ("user", "assistant", "system", "tool")
_MARKS = (
    r"(?s)\A\s*<think>(?P<think>.*?)(?:</think>|\Z)"
    r"|<<<reasoning_content_start>>>(?P<reasoning>.*?)(?:<<<reasoning_content_end>>>|\Z)"
    r"|<<<AGENTIC_TOOL_CALL_START>>>\s*<<<TOOL_NAME:(?P<name>[^>\n]*)>>>\s*<<<TOOL_ARGS_START>>>(?P<arguments>.*?)"
    r"(?:<<<TOOL_ARGS_END>>>(?P<result>.*?)(?:<<<AGENTIC_TOOL_CALL_END>>>|\Z)|\Z)"
)
#: The types of attachments that have a text, or data in base64 beside it.
_TYPES = {"IMAGE": "image", "IMAGEFILE": "image", "TEXT": "text/plain", "TEXTFILE": "text/plain"}
_TYPES |= {"PDF": "application/pdf", "PDFFILE": "application/pdf"}


_OF_THE_HEAD = pair_of(
    Column("id", "id", text_of),
    Column("name", "title"),
    Column("lastModified", "updatedAt", moment, coercion.milliseconds),
    Column("pinned", "metadata.pinned", is_on),
    Column("currNode", "metadata.currentNode", text_of),
    Column("forkedFromConversationId", "metadata.forkedFrom"),
)


def _read_head(conv: Fields) -> Fields:
    began = re.fullmatch(r"conv-(\d{12,14})", text_of(conv.get("id")))
    return with_nonempty(_OF_THE_HEAD.read(conv), createdAt=moment(began[1]) if began else None)


def _steps(pieces: Pieces) -> Iterator[tuple[str, Any]]:
    name = ""
    for piece in pieces:
        ((kind, text),) = piece.items()
        if kind == "name":
            name = text
        elif kind == "arguments":
            yield "call", {"name": name, "arguments": json_of(text)}
        elif kind == "result":
            yield "result", {"content": text}
        elif kind != "mark":
            yield kind.replace("think", "reasoning"), text


_NAMES = RecordFieldNames("id", "parent", "timestamp", coercion.milliseconds)


def _read(record: Fields) -> list[Fields]:
    content, role = record.get("content"), record.get("role")
    form, entries = (
        "",
        [{"role": role if role in _ROLES else "assistant", "content": text_of(content)}],
    )
    if turns.is_pieces(content):
        form = "think" if any("think" in piece for piece in content) else "marks"
        entries = turns.turn_messages(_steps(content))
    calls = [coercion.call_of(call) for call in objects_of(record.get("toolCalls"))]
    marked = [call for entry in entries for call in entry.get("toolCalls", ())]
    if calls and not marked:
        entries[-1]["toolCalls"] = calls
    elif [without(call, "id") for call in calls] == marked:
        for call, item in zip(marked, calls, strict=True):
            call |= item
        for entry, results in calls_with_results(entries):
            for call, item in zip(entry.get("toolCalls", ()), results, strict=False):
                item |= {"toolCallId": call["id"]} if "id" in call else {}
    if not any("reasoning" in entry for entry in entries):
        old, new = record.get("thinking"), record.get("reasoningContent")
        form = form or ("thinking" if old and not new else "")
        if isinstance(text := new or old, str):
            entries[0]["reasoning"] = text
    if isinstance(record.get("toolCallId"), str) and record["toolCallId"]:
        entries[-1]["toolCallId"] = record["toolCallId"]
    files = [_read_file(item) for item in objects_of(record.get("extra"))]
    return _NAMES.read(record, entries, files, _read_usage(object_of(record.get("timings"))), form)


def _read_usage(timings: Fields) -> Fields:
    new, cached, made = (timings.get(name) for name in ("prompt_n", "cache_n", "predicted_n"))
    usage = (
        {"inputTokens": new + (cached if isinstance(cached, int) else 0)}
        if isinstance(new, int)
        else {}
    )
    usage |= {"cachedTokens": cached} if isinstance(cached, int) else {}
    return usage | ({"outputTokens": made} if isinstance(made, int) else {})


def _read_file(file: Fields) -> Fields:
    kind, text = text_of(file.get("type")), file.get("content")
    made = {
        "name": text_of(file.get("name")) or kind or "file",
        "type": _TYPES.get(kind.upper(), kind),
    }
    if isinstance(mime := file.get("mimeType"), str):
        made["type"] = mime
    if isinstance(url := file.get("base64Url"), str):
        if url.startswith("data:") and "/" in url[:20]:
            made["type"] = re.split("[;,]", url[5:80])[0]
        made |= _data(url)
    elif isinstance(data := file.get("base64Data"), str) and data:
        made |= _data(f"data:;base64,{data}")
    return made | ({"text": text} if isinstance(text, str) else {})


def _data(url: str) -> Fields:
    try:
        data = coercion.data_of(url)
    except ValueError:
        return {}
    return {"url": url} if data is None else {"data": data}


def _write_file(file: Fields) -> Fields:
    mime, data = text_of(file.get("type")), file.get("data")
    kind = next((kind for kind, type in _TYPES.items() if mime.startswith(type)), "")
    kind = kind or (mime.partition("/")[0].upper() if "/" in mime else mime) or "FILE"
    if "text" in file and data is None and "/" in mime:
        kind = "PDF" if kind == "PDF" else "TEXT"
    made: Fields = {"type": kind, "name": file.get("name")}
    if kind == "IMAGE":
        made |= {"base64Url": coercion.data_url(mime, data)} if isinstance(data, bytes) else {}
        made |= {"base64Url": file["url"]} if isinstance(file.get("url"), str) else {}
    elif isinstance(data, bytes):
        made |= {"base64Data": b64encode(data).decode()} | (
            {} if kind == "PDF" else {"mimeType": mime}
        )
    return made | ({"content": file["text"]} if isinstance(file.get("text"), str) else {})


def _write(entries: list[Fields]) -> Fields:
    head, last = entries[0], entries[-1]
    form = last.get("metadata", {}).get("form")
    record: Fields = {"type": "system" if last["role"] == "system" else "text"}
    record["role"] = "assistant" if len(entries) > 1 else last["role"]
    record["content"] = last["content"]
    if form in ("think", "marks"):
        record["content"] = _marked(entries, form)
    elif isinstance(text := head.get("reasoning"), str):
        record["thinking" if form == "thinking" else "reasoningContent"] = text
    calls = [call for entry in entries for call in entry.get("toolCalls", ())]
    if calls and (form != "marks" or all("id" in call for call in calls)):
        record["toolCalls"] = [coercion.record_of_call(call) for call in calls]
    if files := head.get("attachments"):
        record["extra"] = [_write_file(file) for file in files]
    if "toolCallId" in last and len(entries) == 1:
        record["toolCallId"] = last["toolCallId"]
    return record | _NAMES.write(entries)


def _marked(entries: list[Fields], form: str) -> Pieces:
    made: Pieces = []
    start, end = "<<<reasoning_content_start>>>", "<<<reasoning_content_end>>>"
    for entry, results in calls_with_results(entries):
        if isinstance(text := entry.get("reasoning"), str):
            marks = ("<think>", "</think>") if form == "think" else (start, end)
            made += [
                {"mark": marks[0]},
                {"think" if form == "think" else "reasoning": text},
                {"mark": marks[1]},
            ]
        if entry["content"]:
            made.append({"text": entry["content"]})
        for nth, call in enumerate(entry.get("toolCalls", ()) if form == "marks" else ()):
            made += [
                {"mark": "\n\n<<<AGENTIC_TOOL_CALL_START>>>\n<<<TOOL_NAME:"},
                {"name": text_of(call.get("name"))},
            ]
            made += [
                {"mark": ">>>\n<<<TOOL_ARGS_START>>>"},
                {"arguments": text_of(call.get("arguments"))},
            ]
            result = results[nth : nth + 1]
            made += [
                {"mark": "<<<TOOL_ARGS_END>>>\n"},
                *({"result": answer["content"]} for answer in result),
            ]
            made += [{"mark": "\n<<<AGENTIC_TOOL_CALL_END>>>\n\n"}]
    return merge_marks(made)


def _opened(record: Fields) -> Fields:
    """A message with its marked text in pieces, and its calls as a list."""
    record, text = dict(record), record.get("content")
    if isinstance(calls := json_of(record.get("toolCalls")), list):
        record["toolCalls"] = calls
    if isinstance(text, str) and record.get("role") == "assistant" and "<" in text:
        marks = ((match.start(), match.end(), _spans(match)) for match in re.finditer(_MARKS, text))
        record["content"] = pieces_of(text, marks) or text
    return record


def _closed(record: Fields) -> Fields:
    calls = (
        {"toolCalls": text_of(record["toolCalls"])}
        if isinstance(record.get("toolCalls"), list)
        else {}
    )
    return record | turns.join_pieces(record) | calls


_HEAD, _TURN = Pair(_read_head, _OF_THE_HEAD.write), TurnPair(_read, _write, _opened, _closed)


def _normal(message: Fields, conv: Fields) -> Fields:
    """A message in the one shape: ids as text, calls as a list, nothing that is empty, marks in
    pieces.
    """
    dropped = [name for name in ("thinking", "toolCalls", "extra") if message.get(name) in ("", [])]
    dropped += ["convId"] if message.get("convId") == conv.get("id") else []
    record = without(message, "id", "parent", *dropped)
    id = text_of(message.get("id"))
    record |= {"id": id} if id else {}
    if "timestamp" not in record and id.isdigit() and len(id) == 13:
        record["timestamp"] = int(id)
    if "parent" in message:
        record["parent"] = (
            None if message["parent"] in (None, -1, "", "-1") else text_of(message["parent"])
        )
    if isinstance(message.get("children"), list):
        record["children"] = [text_of(child) for child in message["children"]]
    return {"type": "text", **record}


def _spans(match: re.Match[str]) -> list[tuple[str, int, int]]:
    """What is between the marks, without the space around it."""
    spans = []
    for kind, text in match.groupdict().items():
        if text is not None:
            begin = match.start(kind) + len(text) - len(text.lstrip())
            spans.append((kind, begin, begin + len(text.strip())))
    return spans


def _root(conv: Fields) -> Fields:
    """The root that a written conversation gets if it has none of its own."""
    return {
        "type": "root",
        "role": "system",
        "content": "",
        "parent": None,
        "id": f"root-{conv.get('id')}",
    }


def _draft(conv: Any, messages: Sequence[tuple[int, Any]], line: int, source: Source) -> Draft:
    conv = conv if isinstance(conv, dict) else {}
    records, lines = [], []
    for at, message in messages:
        if isinstance(message, dict):
            records.append(_normal(message, conv))
            lines.append(at)
        else:
            source.tell("a message that is no object", at)
    turns.without_children(records, "parent", "children")
    known = {record["id"] for record in records if "id" in record}
    roots = [record for record in records if record["type"] == "root" and not record.get("content")]
    above = [
        record["parent"]
        for record in records
        if record.get("parent") and record["parent"] not in known
    ]
    if (
        above and not roots and above[0][0] != "#"
    ):  # An export of the conversation that is open lacks its root.
        roots = [{"id": above[0]}]
    kept = [root for root in roots if {**root, "timestamp": 0} != {**_root(conv), "timestamp": 0}]
    draft = Draft.of_head(_HEAD, conv | ({"roots": kept} if kept else {}), line)
    tops = [root["id"] for root in roots if "id" in root]
    for at, record in zip(lines, records, strict=True):
        draft.lines[str(record.get("id"))] = at
        if record in roots:
            continue
        if record.get("parent") in tops:
            record["parent"] = None
        if isinstance(json_of(calls := record.get("toolCalls")), str) and calls:
            source.tell("toolCalls that are no JSON", at)
        if moment(record.get("timestamp")) is None and not draft.is_own:
            source.tell("a message without a time", at)
        with reporting_damage(source.tell, "a message", at):
            draft.history += _TURN.to_capsule(record)
    turns.choose_newest_message(draft, "currNode", conv)
    return draft


def _stored(record: Fields, line: int, source: Source) -> Iterator[Draft]:
    """The conversations in an object, which is one, a dump of the browser's storage,
    or its tables.
    """
    conv, messages = record.get("conv", record.get("conversation")), record.get("messages")
    if isinstance(record.get("conversations"), list):
        for item in objects_of(record["conversations"]):
            id = text_of(item.get("id"))
            of_it = [
                (line, message)
                for message in objects_of(messages)
                if text_of(message.get("convId")) == id
            ]
            yield _draft(item, of_it, line, source)
    elif isinstance(messages, list):
        about = {name: value for name, value in record.items() if name != "messages"}
        yield _draft(
            conv if conv is not None else about, [(line, item) for item in messages], line, source
        )
    elif stored := [json_of(value) for key, value in record.items() if key.startswith("conv-")]:
        for item in stored:
            if isinstance(item, dict):
                yield from _stored(item, line, source)
            else:
                source.tell("a conversation that is no object", line)
    else:
        source.tell("no conversation: it has no messages", line)


def _read_file_of(source: Source) -> Iterator[Draft]:
    conv: Fields | None = None
    began, messages = 0, list[tuple[int, Any]]()
    for line, record in read_records(source):
        kind = record.get("type")
        if kind == "message":
            if conv is None and not messages:
                source.tell("a message before the session that it belongs to", line)
                began = line
            messages.append((line, record.get("message")))
        elif kind == "session":
            if conv is not None or messages:
                yield _draft(_session(conv, messages), messages, began, source)
            dropped = ("type", "harness") if record.get("harness") == "llama.app" else ("type",)
            conv, began, messages = without(record, *dropped), line, []
        elif kind is None:
            with reporting_damage(source.tell, "a conversation", line):
                yield from _stored(record, line, source)
    if conv is not None or messages:
        yield _draft(_session(conv, messages), messages, began, source)


def _session(conv: Fields | None, messages: Sequence[tuple[int, Any]]) -> Fields:
    """The head of a session; of one whose head is not there, what its messages say."""
    named = next(
        (entry["convId"] for _, entry in messages if isinstance(entry, dict) and "convId" in entry),
        None,
    )
    return conv if conv is not None else with_nonempty({}, id=named)


def _write_file_of(draft: Draft) -> bytes:
    records, homes = turns.records_of(draft, _TURN, lambda entries: False)
    conv = turns.name_current_record(draft.head_record(_HEAD), "currNode", homes)
    roots = conv.pop("roots", None) or [_root(conv)]
    for record in records:
        if record.get("parent") is None:
            record["parent"] = roots[0].get("id")
    began = min(
        (time for entry in records if isinstance(time := entry.get("timestamp"), int)), default=0
    )
    whole = [{"timestamp": began, **root} for root in roots if "type" in root]
    records = [{"convId": conv.get("id"), **record} for record in whole + records]
    turns.with_children(records, "parent", "children")
    return orjson.dumps({"conv": conv, "messages": records})


def _is_ours(record: Fields) -> bool:
    conv, messages = (
        record.get("conv", record.get("conversation")),
        objects_of(record.get("messages")),
    )
    kind, message = record.get("type"), object_of(record.get("message"))
    return (
        (
            kind == "session"
            and ("harness" in record or {"currNode", "lastModified"} <= record.keys())
        )
        or (kind == "message" and "convId" in message)
        or (
            isinstance(conv, dict)
            and "messages" in record
            and bool({"lastModified", "currNode"} & conv.keys())
        )
        or any("convId" in message for message in messages[:3])
        or (text_of(record.get("id")).startswith("conv-") and "messages" in record)
        or any(key.startswith("conv-") and "messages" in object_of(record[key]) for key in record)
    )


_BOTH = (_read_file_of, _write_file_of)
FORMATS = [
    Format(
        "llama-webui",
        "llama.cpp web UI",
        recognizes_record(_is_ours),
        *_BOTH,
        joined="array",
        embeds_files=True,
        is_portable=False,
    )
]
