"""Read and write the conversations of the web UI of llama.cpp.

Since 2024 it had four forms: an export, lines of sessions and messages, a dump of the browser's
storage, and its tables. All are first brought to one: a conversation and its messages. A text can
have marks around thoughts and calls. The parts between the marks become messages, and are written
with the marks again.

The written form is the JSON of an export, which every version since 2025-09 reads. The messages
form a tree below a root, which the web UI needs and an import leaves out. A damaged conversation or
message is reported and left out. Pure.
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
from capsule.transfer.records import mapping, turns
from capsule.transfer.records.mapping import (
    Column,
    Pair,
    is_on,
    json_of,
    moment,
    object_of,
    objects_of,
    pair_of,
    text_of,
    with_nonempty,
    without,
)
from capsule.transfer.records.turns import Pieces, RecordFieldNames, TurnPair

_ROLES = ("user", "assistant", "system", "tool")
_MARKS = (
    r"(?s)\A\s*<think>(?P<think>.*?)(?:</think>|\Z)"
    r"|<<<reasoning_content_start>>>(?P<reasoning>.*?)(?:<<<reasoning_content_end>>>|\Z)"
    r"|<<<AGENTIC_TOOL_CALL_START>>>\s*<<<TOOL_NAME:(?P<name>[^>\n]*)>>>\s*<<<TOOL_ARGS_START>>>(?P<arguments>.*?)"
    r"(?:<<<TOOL_ARGS_END>>>(?P<result>.*?)(?:<<<AGENTIC_TOOL_CALL_END>>>|\Z)|\Z)"
)
#: The media types of attachments, by their kinds in the source.
_MEDIA_TYPES = {
    "IMAGE": "image",
    "IMAGEFILE": "image",
    "TEXT": "text/plain",
    "TEXTFILE": "text/plain",
    "PDF": "application/pdf",
    "PDFFILE": "application/pdf",
}
#: The layouts of a message with marked text, in `metadata.form`: thoughts in `<think>`, or all
#: marks. `thinking` is a message whose reasoning is in the older field.
_FORM_THINK = "think"
_FORM_MARKS = "marks"
_FORM_OLD_REASONING = "thinking"
#: The messages of a conversation, each with its line.
_Messages = Sequence[tuple[int, Any]]


_OF_THE_HEAD = pair_of(
    Column("id", "id", text_of),
    Column("name", "title"),
    Column("lastModified", "updatedAt", moment, mapping.milliseconds),
    Column("pinned", "metadata.pinned", is_on),
    Column("currNode", "metadata.currentNode", text_of),
    Column("forkedFromConversationId", "metadata.forkedFrom"),
)


def _read_head(conversation: Fields) -> Fields:
    created = re.fullmatch(r"conv-(\d{12,14})", text_of(conversation.get("id")))
    created_at = moment(created[1]) if created else None
    return with_nonempty(_OF_THE_HEAD.read(conversation), createdAt=created_at)


def _steps(pieces: Pieces) -> Iterator[tuple[str, Any]]:
    """Return the steps of a text in pieces, for `turns.turn_messages`."""
    name = ""
    for piece in pieces:
        ((kind, text),) = piece.items()
        if kind == "name":
            name = text
        elif kind == "arguments":
            yield "call", {"name": name, "arguments": json_of(text)}
        elif kind == "result":
            yield "result", {"content": text}
        elif kind == "think":
            yield "reasoning", text
        elif kind != "mark":
            yield kind, text


_NAMES = RecordFieldNames("id", "parent", "timestamp", mapping.milliseconds)


def _read(record: Fields) -> list[Fields]:
    """Return the messages of a record."""
    content = record.get("content")
    role = record.get("role")
    form = ""
    entries: list[Fields]
    if turns.is_pieces(content):
        has_think = any("think" in piece for piece in content)
        form = _FORM_THINK if has_think else _FORM_MARKS
        entries = turns.turn_messages(_steps(content))
    else:
        role = role if role in _ROLES else "assistant"
        entries = [{"role": role, "content": text_of(content)}]
    _add_calls(entries, record)
    if not any("reasoning" in entry for entry in entries):
        old_reasoning = record.get("thinking")
        new_reasoning = record.get("reasoningContent")
        if old_reasoning and not new_reasoning and not form:
            form = _FORM_OLD_REASONING
        reasoning = new_reasoning or old_reasoning
        if isinstance(reasoning, str):
            entries[0]["reasoning"] = reasoning
    if isinstance(record.get("toolCallId"), str) and record["toolCallId"]:
        entries[-1]["toolCallId"] = record["toolCallId"]
    files = [_read_file(item) for item in objects_of(record.get("extra"))]
    usage = _read_usage(object_of(record.get("timings")))
    return _NAMES.read(record, entries, files, usage, form)


def _add_calls(entries: list[Fields], record: Fields) -> None:
    """Give the messages the calls of their record.

    If the text has the same calls between marks, they get the ids from the record, and so do their
    results.
    """
    calls = [mapping.call_of(call) for call in objects_of(record.get("toolCalls"))]
    marked_calls = [call for entry in entries for call in entry.get("toolCalls", ())]
    if calls and not marked_calls:
        entries[-1]["toolCalls"] = calls
        return
    if [without(call, "id") for call in calls] != marked_calls:
        return
    for marked_call, call in zip(marked_calls, calls, strict=True):
        marked_call |= call
    for entry, results in turns.calls_with_results(entries):
        for call, result in zip(entry.get("toolCalls", ()), results, strict=False):
            if "id" in call:
                result["toolCallId"] = call["id"]


def _read_usage(timings: Fields) -> Fields:
    """Return the token counts of an answer. Cached tokens are part of its input."""
    new_tokens = timings.get("prompt_n")
    cached_tokens = timings.get("cache_n")
    output_tokens = timings.get("predicted_n")
    usage: Fields = {}
    if isinstance(new_tokens, int):
        usage["inputTokens"] = new_tokens
        if isinstance(cached_tokens, int):
            usage["inputTokens"] += cached_tokens
    if isinstance(cached_tokens, int):
        usage["cachedTokens"] = cached_tokens
    if isinstance(output_tokens, int):
        usage["outputTokens"] = output_tokens
    return usage


def _read_file(file: Fields) -> Fields:
    """Return the attachment for a file of a message."""
    kind = text_of(file.get("type"))
    media_type = _MEDIA_TYPES.get(kind.upper(), kind)
    mime = file.get("mimeType")
    if isinstance(mime, str):
        media_type = mime
    attachment = {"name": text_of(file.get("name")) or kind or "file", "type": media_type}
    url = file.get("base64Url")
    data = file.get("base64Data")
    if isinstance(url, str):
        if url.startswith("data:") and "/" in url[:20]:
            attachment["type"] = re.split("[;,]", url[5:80])[0]
        attachment |= _data(url)
    elif isinstance(data, str) and data:
        attachment |= _data(f"data:;base64,{data}")
    if isinstance(file.get("content"), str):
        attachment["text"] = file["content"]
    return attachment


def _data(url: str) -> Fields:
    """Return the data of a URL, or the URL itself. Empty: the data is damaged."""
    try:
        data = mapping.data_of(url)
    except ValueError:
        return {}
    return {"url": url} if data is None else {"data": data}


def _write_file(attachment: Fields) -> Fields:
    mime = text_of(attachment.get("type"))
    data = attachment.get("data")
    text = attachment.get("text")
    kind = _file_kind(attachment, mime)
    file: Fields = {"type": kind, "name": attachment.get("name")}
    if kind == "IMAGE":
        if isinstance(data, bytes):
            file["base64Url"] = mapping.data_url(mime, data)
        if isinstance(attachment.get("url"), str):
            file["base64Url"] = attachment["url"]
    elif isinstance(data, bytes):
        file["base64Data"] = b64encode(data).decode()
        if kind != "PDF":
            file["mimeType"] = mime
    if isinstance(text, str):
        file["content"] = text
    return file


def _file_kind(attachment: Fields, mime: str) -> str:
    """Return the kind of a file in the source: a known one, or the beginning of its media type."""
    kind = next((kind for kind, type in _MEDIA_TYPES.items() if mime.startswith(type)), "")
    if not kind:
        kind = mime.partition("/")[0].upper() if "/" in mime else mime
    is_text_only = "text" in attachment and attachment.get("data") is None and "/" in mime
    if is_text_only and kind != "PDF":
        return "TEXT"
    return kind or "FILE"


def _write(entries: list[Fields]) -> Fields:
    """Return the record for messages."""
    head = entries[0]
    last = entries[-1]
    form = last.get("metadata", {}).get("form")
    record: Fields = {
        "type": "system" if last["role"] == "system" else "text",
        "role": "assistant" if len(entries) > 1 else last["role"],
        **_write_texts(entries, form),
    }
    calls = [call for entry in entries for call in entry.get("toolCalls", ())]
    if calls and (form != _FORM_MARKS or all("id" in call for call in calls)):
        record["toolCalls"] = [mapping.record_of_call(call) for call in calls]
    attachments = head.get("attachments")
    if attachments:
        record["extra"] = [_write_file(attachment) for attachment in attachments]
    if "toolCallId" in last and len(entries) == 1:
        record["toolCallId"] = last["toolCallId"]
    return record | _NAMES.write(entries)


def _write_texts(entries: list[Fields], form: Any) -> Fields:
    """Return the text of the record for messages, and its reasoning if it has no marks."""
    if form in (_FORM_THINK, _FORM_MARKS):
        return {"content": _with_marks(entries, form)}
    fields: Fields = {"content": entries[-1]["content"]}
    reasoning = entries[0].get("reasoning")
    if isinstance(reasoning, str):
        name = "thinking" if form == _FORM_OLD_REASONING else "reasoningContent"
        fields[name] = reasoning
    return fields


def _with_marks(entries: list[Fields], form: str) -> Pieces:
    """Return the text of messages in pieces, with marks around reasoning and calls."""
    pieces: Pieces = []
    for entry, results in turns.calls_with_results(entries):
        if isinstance(entry.get("reasoning"), str):
            pieces += _marked_reasoning(entry["reasoning"], form)
        if entry["content"]:
            pieces.append({"text": entry["content"]})
        if form != _FORM_MARKS:
            continue
        for position, call in enumerate(entry.get("toolCalls", ())):
            pieces += _marked_call(call, results[position : position + 1])
    return turns.merge_marks(pieces)


def _marked_reasoning(reasoning: str, form: str) -> Pieces:
    if form == _FORM_THINK:
        return [{"mark": "<think>"}, {"think": reasoning}, {"mark": "</think>"}]
    return [
        {"mark": "<<<reasoning_content_start>>>"},
        {"reasoning": reasoning},
        {"mark": "<<<reasoning_content_end>>>"},
    ]


def _marked_call(call: Fields, results: list[Fields]) -> Pieces:
    return [
        {"mark": "\n\n<<<AGENTIC_TOOL_CALL_START>>>\n<<<TOOL_NAME:"},
        {"name": text_of(call.get("name"))},
        {"mark": ">>>\n<<<TOOL_ARGS_START>>>"},
        {"arguments": text_of(call.get("arguments"))},
        {"mark": "<<<TOOL_ARGS_END>>>\n"},
        *({"result": result["content"]} for result in results),
        {"mark": "\n<<<AGENTIC_TOOL_CALL_END>>>\n\n"},
    ]


def _from_source(record: Fields) -> Fields:
    """Return a record with its marked text in pieces, and its calls as a list."""
    result = dict(record)
    calls = json_of(record.get("toolCalls"))
    if isinstance(calls, list):
        result["toolCalls"] = calls
    text = record.get("content")
    if isinstance(text, str) and record.get("role") == "assistant" and "<" in text:
        matches = re.finditer(_MARKS, text)
        parts = ((match.start(), match.end(), _spans(match)) for match in matches)
        result["content"] = turns.pieces_of(text, parts) or text
    return result


def _to_source(record: Fields) -> Fields:
    """Return a record with its text in one piece, and its calls as a text."""
    result = record | turns.join_pieces(record)
    if isinstance(record.get("toolCalls"), list):
        result["toolCalls"] = text_of(record["toolCalls"])
    return result


_HEAD = Pair(_read_head, _OF_THE_HEAD.write)
_TURN = TurnPair(read=_read, write=_write, from_source=_from_source, to_source=_to_source)


def _normal(message: Fields, conversation: Fields) -> Fields:
    """Return a message in the one form: ids are texts, and empty fields are left out."""
    dropped = [name for name in ("thinking", "toolCalls", "extra") if message.get(name) in ("", [])]
    if message.get("convId") == conversation.get("id"):
        dropped.append("convId")
    record = without(message, "id", "parent", *dropped)
    id = text_of(message.get("id"))
    if id:
        record["id"] = id
    if "timestamp" not in record and id.isdigit() and len(id) == 13:
        record["timestamp"] = int(id)
    if "parent" in message:
        is_root = message["parent"] in (None, -1, "", "-1")
        record["parent"] = None if is_root else text_of(message["parent"])
    if isinstance(message.get("children"), list):
        record["children"] = [text_of(child) for child in message["children"]]
    return {"type": "text", **record}


def _spans(match: re.Match[str]) -> list[tuple[str, int, int]]:
    """Return the kind, begin and end of each text between the marks, without the space around."""
    spans = []
    for kind, text in match.groupdict().items():
        if text is not None:
            begin = match.start(kind) + len(text) - len(text.lstrip())
            spans.append((kind, begin, begin + len(text.strip())))
    return spans


def _root(conversation: Fields) -> Fields:
    """Return the root that a written conversation gets if it has none of its own."""
    return {
        "type": "root",
        "role": "system",
        "content": "",
        "parent": None,
        "id": f"root-{conversation.get('id')}",
    }


def _draft(conversation: Any, messages: _Messages, line: int, source: Source) -> Draft:
    """Return the draft of a conversation and its messages, each with its line."""
    if not isinstance(conversation, dict):
        conversation = {}
    records: list[Fields] = []
    lines: list[int] = []
    for message_line, message in messages:
        if isinstance(message, dict):
            records.append(_normal(message, conversation))
            lines.append(message_line)
        else:
            source.tell("a message that is not an object", message_line)
    turns.without_children(records, "parent", "children")
    roots = _roots(records)
    draft = Draft.of_head(_HEAD, _with_roots(conversation, roots), line)
    root_ids = [root["id"] for root in roots if "id" in root]
    for message_line, record in zip(lines, records, strict=True):
        draft.lines[str(record.get("id"))] = message_line
        if record in roots:
            continue
        if record.get("parent") in root_ids:
            record["parent"] = None
        calls = record.get("toolCalls")
        if isinstance(json_of(calls), str) and calls:
            source.tell("toolCalls that are not valid JSON", message_line)
        if moment(record.get("timestamp")) is None and not draft.is_own:
            source.tell("a message without a time", message_line)
        with reporting_damage(source.tell, "a message", message_line):
            draft.history += _TURN.to_capsule(record)
    turns.choose_newest_message(draft, "currNode", conversation)
    return draft


def _with_roots(conversation: Fields, roots: list[Fields]) -> Fields:
    """Return a conversation with its roots, except those that an export makes in the same way."""
    other_roots = [root for root in roots if not _is_default_root(root, conversation)]
    if not other_roots:
        return conversation
    return conversation | {"roots": other_roots}


def _roots(records: list[Fields]) -> list[Fields]:
    """Return the roots among the messages of a conversation.

    An export of the open conversation lacks its root. Then it is the first parent that is missing.
    """
    roots = [record for record in records if record["type"] == "root" and not record.get("content")]
    ids = {record["id"] for record in records if "id" in record}
    missing_parents = [
        record["parent"]
        for record in records
        if record.get("parent") and record["parent"] not in ids
    ]
    if missing_parents and not roots and missing_parents[0][0] != "#":
        return [{"id": missing_parents[0]}]
    return roots


def _is_default_root(root: Fields, conversation: Fields) -> bool:
    default = _root(conversation)
    return {**root, "timestamp": 0} == {**default, "timestamp": 0}


def _drafts_in_object(record: Fields, line: int, source: Source) -> Iterator[Draft]:
    """Return the conversations in an object.

    It is one conversation, the tables of the browser's database, or a dump of its older storage.
    """
    messages = record.get("messages")
    stored = [json_of(value) for key, value in record.items() if key.startswith("conv-")]
    if isinstance(record.get("conversations"), list):
        for table_row in objects_of(record["conversations"]):
            id = text_of(table_row.get("id"))
            own_messages = [
                (line, message)
                for message in objects_of(messages)
                if text_of(message.get("convId")) == id
            ]
            yield _draft(table_row, own_messages, line, source)
    elif isinstance(messages, list):
        conversation = record.get("conv", record.get("conversation"))
        if conversation is None:
            conversation = without(record, "messages")
        yield _draft(conversation, [(line, message) for message in messages], line, source)
    elif stored:
        for item in stored:
            if isinstance(item, dict):
                yield from _drafts_in_object(item, line, source)
            else:
                source.tell("a conversation that is not an object", line)
    else:
        source.tell("not a conversation: it has no messages", line)


def _read_file_of(source: Source) -> Iterator[Draft]:
    """Return the conversations of a file: objects, or lines of a session and its messages."""
    conversation: Fields | None = None
    first_line = 0
    messages: list[tuple[int, Any]] = []
    for line, record in read_records(source):
        kind = record.get("type")
        if kind == "message":
            if conversation is None and not messages:
                source.tell("a message before the session that it belongs to", line)
                first_line = line
            messages.append((line, record.get("message")))
        elif kind == "session":
            if conversation is not None or messages:
                yield _draft(_session(conversation, messages), messages, first_line, source)
            conversation = without(record, "type")
            if record.get("harness") == "llama.app":
                del conversation["harness"]
            first_line = line
            messages = []
        elif kind is None:
            with reporting_damage(source.tell, "a conversation", line):
                yield from _drafts_in_object(record, line, source)
    if conversation is not None or messages:
        yield _draft(_session(conversation, messages), messages, first_line, source)


def _session(conversation: Fields | None, messages: _Messages) -> Fields:
    """Return the head of a session. If it is missing, its id is taken from the messages."""
    if conversation is not None:
        return conversation
    for _, message in messages:
        if isinstance(message, dict) and "convId" in message:
            return with_nonempty({}, id=message["convId"])
    return {}


def _write_file_of(draft: Draft) -> bytes:
    records, record_ids = turns.records_of(draft, _TURN, lambda entries: False)
    conversation = turns.name_current_record(draft.head_record(_HEAD), "currNode", record_ids)
    roots = conversation.pop("roots", None) or [_root(conversation)]
    for record in records:
        if record.get("parent") is None:
            record["parent"] = roots[0].get("id")
    times = [record.get("timestamp") for record in records]
    first_time = min((time for time in times if isinstance(time, int)), default=0)
    whole_roots = [{"timestamp": first_time, **root} for root in roots if "type" in root]
    messages = [{"convId": conversation.get("id"), **record} for record in whole_roots + records]
    turns.with_children(messages, "parent", "children")
    return orjson.dumps({"conv": conversation, "messages": messages})


def _is_llama_record(record: Fields) -> bool:
    kind = record.get("type")
    if kind == "session" and ("harness" in record or {"currNode", "lastModified"} <= record.keys()):
        return True
    if kind == "message" and "convId" in object_of(record.get("message")):
        return True
    conversation = object_of(record.get("conv", record.get("conversation")))
    if "messages" in record and {"lastModified", "currNode"} & conversation.keys():
        return True
    messages = objects_of(record.get("messages"))
    if any("convId" in message for message in messages[:3]):
        return True
    if text_of(record.get("id")).startswith("conv-") and "messages" in record:
        return True
    return any(key.startswith("conv-") and "messages" in object_of(record[key]) for key in record)


FORMATS = [
    Format(
        "llama-webui",
        "llama.cpp web UI",
        recognizes=recognizes_record(_is_llama_record),
        read=_read_file_of,
        write=_write_file_of,
        joined="array",
        embeds_files=True,
        is_portable=False,
    )
]
