"""JSONL for training and for tools: a conversation a line, as OpenAI's chat, ShareGPT or ChatML have it.

A line has the active branch, in the very form of these formats. Everything else of a capsule (ids, times, other
branches) is under the key `capsule` of the line, and none of it in a message. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from capsule.transfer.branches import active_line
from capsule.transfer.interface import Draft, Fields, Format, Pair, Source, first, json_of, read_records, text_of
from capsule.transfer.pairs import OWN, applied, difference, with_source

_ROLES = {"developer": "system", "function": "tool", "model": "assistant"}
_PEOPLE = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "system": "system",
    "tool": "tool",
    "function_response": "tool",
    "observation": "tool",
}
_SPOKEN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>\n?|\Z)", re.DOTALL)


def _read_openai(record: Fields) -> Fields:
    role, content = record.get("role"), record.get("content")
    fields: Fields = {"role": _ROLES.get(str(role), role if role in ("user", "system", "tool") else "assistant")}
    if isinstance(content, list):
        fields["content"] = "\n\n".join(text for part in content if isinstance(text := part_text(part), str))
        files = [part for part in content if part_text(part) is None]
        if files:
            fields["attachments"] = [_attachment(part) for part in files]
    else:
        fields["content"] = text_of(content)
    calls = record.get("tool_calls")
    if isinstance(calls, list) and all(isinstance(call, dict) for call in calls) and calls:
        fields["toolCalls"] = [_read_call(call) for call in calls]
    if isinstance(record.get("tool_call_id"), str):
        fields["toolCallId"] = record["tool_call_id"]
    if isinstance(record.get("reasoning_content"), str):
        fields["reasoning"] = record["reasoning_content"]
    return fields


def part_text(part: Any) -> str | None:
    """The text of a part of a content; None: it is something else."""
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None


def _attachment(part: Any) -> Fields:
    kind = str(part.get("type") or "file") if isinstance(part, dict) else "file"
    value = part.get(kind) if isinstance(part, dict) else None
    url = value.get("url") if isinstance(value, dict) else value
    return {"name": kind, "type": kind} | ({"url": url} if isinstance(url, str) and url[:5] != "data:" else {})


def _read_call(call: Fields) -> Fields:
    function = call["function"] if isinstance(call.get("function"), dict) else {}
    arguments = json_of(function.get("arguments"))
    return {"name": text_of(function.get("name")), "arguments": arguments} | (
        {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    )


def _write_openai(fields: Fields) -> Fields:
    record: Fields = {"role": fields["role"], "content": fields["content"]}
    if "reasoning" in fields:
        record["reasoning_content"] = fields["reasoning"]
    if "toolCalls" in fields:
        record["tool_calls"] = [_write_call(call) for call in fields["toolCalls"]]
    if "toolCallId" in fields:
        record["tool_call_id"] = fields["toolCallId"]
    return record


def _write_call(call: Fields) -> Fields:
    function = {"name": text_of(call.get("name")), "arguments": text_of(call.get("arguments", {}))}
    return {"type": "function", "function": function} | ({"id": call["id"]} if "id" in call else {})


def _read_sharegpt(record: Fields) -> Fields:
    who = str(record.get("from"))
    if who == "function_call" and isinstance(call := json_of(record.get("value")), dict):
        return {"role": "assistant", "content": "", "toolCalls": [call]}
    return {"role": _PEOPLE.get(who, "assistant"), "content": text_of(record.get("value"))}


def _write_sharegpt(fields: Fields) -> Fields:
    calls = fields.get("toolCalls")
    if calls and not fields["content"]:
        return {"from": "function_call", "value": orjson.dumps(calls[0]).decode()}
    people = {"user": "human", "assistant": "gpt", "tool": "tool"}
    return {"from": people.get(fields["role"], "system"), "value": fields["content"]}


def _messages_of(record: Fields, key: str, message: Pair) -> list[Fields]:
    if key == "text":
        return [{"role": _ROLES.get(role, role), "content": text} for role, text in _SPOKEN.findall(record[key])]
    return [message.taken(one) for one in record[key] if isinstance(one, dict)]


def _chatml(messages: list[Fields]) -> str:
    return "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages)


def _read_head(record: Fields) -> Fields:
    return {key: record[key] for key in ("id", "title") if isinstance(record.get(key), str) and record[key]}


def _write_head(fields: Fields) -> Fields:
    return {key: fields[key] for key in ("id", "title") if key in fields}


_HEAD = Pair(_read_head, _write_head)
_OPENAI = Pair(_read_openai, _write_openai)
_SHAREGPT = Pair(_read_sharegpt, _write_sharegpt)


def _taken(record: Fields, key: str, message: Pair) -> Fields:
    """The head and the history of a record, without what is under `capsule`."""
    about = {name: value for name, value in record.items() if name not in (key, OWN)}
    head, messages = _HEAD.taken(about), _messages_of(record, key, message)
    if key == "text" and (text := record[key]) != _chatml(messages):
        head = with_source(head, {**head.get("metadata", {}).get("source", {}), "text": text})
    return {"head": head, "history": messages}


def _reader(key: str, message: Pair) -> Callable[[Source], Iterator[Draft]]:
    def read(source: Source) -> Iterator[Draft]:
        for line, record in read_records(source):
            if not isinstance(record.get(key), str if key == "text" else list):
                source.tell(f"no conversation: it has no {key}", line)
                continue
            whole, own = _taken(record, key, message), record.get(OWN)
            if isinstance(own, dict):
                whole = applied(whole, own)
            is_own = isinstance(own, dict) and "id" in own.get("head", {})
            yield Draft(whole["head"], whole["history"], line, is_own)

    return read


def _writer(key: str, message: Pair) -> Callable[[Draft], bytes]:
    def write(draft: Draft) -> bytes:
        record, line = _HEAD.given(draft.head), active_line(draft.head, draft.history)
        if draft.is_own or key == "text":
            record.pop("id", None)
        if key == "text":
            record = {key: _chatml(line), **record}
        else:
            made = [message.given(one, is_edited=one.get("id") in draft.edited) for one in line]
            record = {key: [{name: one[name] for name in one if name != OWN} for one in made], **record}
        record.pop(OWN, None)
        own = difference({"head": draft.head, "history": draft.history}, _taken(record, key, message))
        if own:
            record[OWN] = own
        return orjson.dumps(record) + b"\n"

    return write


def _has(key: str, of: str) -> Callable[[Source], bool]:
    def recognizes(source: Source) -> bool:
        return any(
            isinstance(messages := record.get(key), list)
            and messages
            and isinstance(messages[0], dict)
            and of in messages[0]
            for record in first(source)
        )

    return recognizes


def _has_chatml(source: Source) -> bool:
    return any("<|im_start|>" in text_of(record.get("text")) for record in first(source))


def _format(name: str, title: str, key: str, message: Pair, recognizes: Callable[[Source], bool]) -> Format:
    return Format(name, title, recognizes, _reader(key, message), _writer(key, message), ".jsonl", "lines")


FORMATS = [
    _format("sharegpt", "ShareGPT (JSONL)", "conversations", _SHAREGPT, _has("conversations", "from")),
    _format("chatml", "ChatML (JSONL)", "text", _OPENAI, _has_chatml),
    _format("jsonl", "OpenAI chat (JSONL)", "messages", _OPENAI, _has("messages", "role")),
]
