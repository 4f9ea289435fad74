"""JSONL for training and for tools: a conversation a line, as OpenAI's chat, ShareGPT or ChatML
have it.

A plain text of ChatML is read too, as one conversation.

A line has the active branch, in the very form of these formats. Everything else of a capsule (ids,
times, other branches) is under the key `capsule` of the line, and none of it in a message; a plain
line lacks it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from capsule.transfer.drafts.conversion import active_path
from capsule.transfer.interface import (
    Draft,
    Fields,
    Format,
    Source,
    read_text,
    reader_of_items,
    recognizes_record,
)
from capsule.transfer.records.coercion import (
    call_of,
    is_string,
    json_of,
    objects_of,
    record_of_call,
    text_of,
    text_of_part,
    without,
)
from capsule.transfer.records.round_trip import (
    CAPSULE_KEY,
    Column,
    Pair,
    apply_difference,
    difference,
    pair_of,
    with_source,
)

_ROLES = {"developer": "system", "function": "tool", "model": "assistant"}
_PEOPLE = dict.fromkeys(("human", "user"), "user") | dict.fromkeys(
    ("gpt", "assistant", "chatgpt"), "assistant"
)
_PEOPLE |= {"system": "system"} | dict.fromkeys(
    ("tool", "function_response", "observation"), "tool"
)
_SPOKEN = r"(?s)<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>\n?|\Z)"


def _read_openai(record: Fields) -> Fields:
    role, content = record.get("role"), record.get("content")
    fields: Fields = {
        "role": _ROLES.get(str(role), role if role in ("user", "system", "tool") else "assistant")
    }
    if isinstance(content, list):
        fields["content"] = "\n\n".join(
            text for part in content if isinstance(text := text_of_part(part), str)
        )
        files = [part for part in content if text_of_part(part) is None]
        if files:
            fields["attachments"] = [_attachment(part) for part in files]
    else:
        fields["content"] = text_of(content)
    calls = record.get("tool_calls")
    if isinstance(calls, list) and all(isinstance(call, dict) for call in calls) and calls:
        fields["toolCalls"] = [call_of(call) for call in calls]
    if isinstance(record.get("tool_call_id"), str):
        fields["toolCallId"] = record["tool_call_id"]
    if isinstance(record.get("reasoning_content"), str):
        fields["reasoning"] = record["reasoning_content"]
    return fields


def _attachment(part: Any) -> Fields:
    kind = str(part.get("type") or "file") if isinstance(part, dict) else "file"
    value = part.get(kind) if isinstance(part, dict) else None
    url = value.get("url") if isinstance(value, dict) else value
    return {"name": kind, "type": kind} | (
        {"url": url} if isinstance(url, str) and url[:5] != "data:" else {}
    )


def _write_openai(fields: Fields) -> Fields:
    record: Fields = {"role": fields["role"], "content": fields["content"]}
    if "reasoning" in fields:
        record["reasoning_content"] = fields["reasoning"]
    if "toolCalls" in fields:
        record["tool_calls"] = [record_of_call(call) for call in fields["toolCalls"]]
    if "toolCallId" in fields:
        record["tool_call_id"] = fields["toolCallId"]
    return record


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
        return [
            {"role": _ROLES.get(role, role), "content": text}
            for role, text in re.findall(_SPOKEN, record[key])
        ]
    return [message.to_capsule(entry) for entry in record[key] if isinstance(entry, dict)]


def _chatml(messages: list[Fields]) -> str:
    return "".join(
        f"<|im_start|>{entry['role']}\n{entry['content']}<|im_end|>\n" for entry in messages
    )


_HEAD = pair_of(Column("id", "id"), Column("title", "title"))
_OPENAI = Pair(_read_openai, _write_openai)
_SHAREGPT = Pair(_read_sharegpt, _write_sharegpt)


def _plain_draft(record: Fields, line: int | None, key: str, message: Pair) -> Draft:
    """The draft of a record, without what is under `capsule`."""
    head, messages = (
        _HEAD.to_capsule(without(record, key, CAPSULE_KEY)),
        _messages_of(record, key, message),
    )
    if key == "text" and (text := record[key]) != _chatml(messages):
        head = with_source(head, {**head.get("metadata", {}).get("source", {}), "text": text})
    return Draft(head, messages, line)


def _lost_fields(draft: Draft, reread: Draft) -> Fields:
    """Return the fields of a draft that its record has no place for.

    `reread` is the draft that the record is read as.
    """
    lost = difference(
        {"head": draft.head, "history": draft.history},
        {"head": reread.head, "history": reread.history},
    )
    if draft.is_own:
        lost["head"] = lost.get("head", {}) | {"id": draft.id}
    elif draft.local_ids:
        lost["local"] = sorted(draft.local_ids)
    return lost


def _with_lost_fields(draft: Draft, lost: Any) -> Draft:
    """Return a draft with the fields that `_lost_fields` returned for it."""
    if not isinstance(lost, dict):
        return draft
    whole = apply_difference({"head": draft.head, "history": draft.history}, lost)
    local_ids = lost.get("local", [])
    return Draft(
        whole["head"],
        whole["history"],
        draft.line,
        is_own="id" in lost.get("head", {}),
        local_ids=frozenset(filter(is_string, local_ids)),
    )


def _is_text(source: Source) -> bool:
    """Whether a file is one conversation as the plain text of ChatML."""
    return source.head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<|im_start|>")


def _reader(key: str, message: Pair) -> Callable[[Source], Iterator[Draft]]:
    def draft(record: Fields, line: int, source: Source) -> Draft | None:
        if isinstance(record.get(key), str if key == "text" else list):
            return _with_lost_fields(
                _plain_draft(record, line, key, message), record.get(CAPSULE_KEY)
            )
        source.tell(f"no conversation: it has no {key}", line)
        return None

    return reader_of_items(
        draft, lambda source: [(1, {key: read_text(source)})] if _is_text(source) else None
    )


def _writer(key: str, message: Pair, *, is_plain: bool = False) -> Callable[[Draft], bytes]:
    def write(draft: Draft) -> bytes:
        line = active_path(draft.head, draft.history)
        if is_plain:
            return (
                orjson.dumps({key: _chatml(line) if key == "text" else [*map(message.write, line)]})
                + b"\n"
            )
        record = without(
            _HEAD.to_record(draft.head), *(["id"] if draft.is_own or key == "text" else [])
        )
        if key == "text":
            record = {key: _chatml(line), **record}
        else:
            made = [
                message.to_record(entry, is_edited=entry.get("id") in draft.edited)
                for entry in line
            ]
            record = {key: made, **record}
        lost_fields = _lost_fields(draft, _plain_draft(record, None, key, message))
        if lost_fields:
            record[CAPSULE_KEY] = lost_fields
        return orjson.dumps(record) + b"\n"

    return write


def _has(key: str, of: str) -> Callable[[Source], bool]:
    """What recognizes a file of records whose lists of messages have a field."""
    return recognizes_record(lambda record: of in next(iter(objects_of(record.get(key))), ()))


_has_chatml = recognizes_record(lambda record: "<|im_start|>" in text_of(record.get("text")))


def _format(
    name: str, title: str, key: str, message: Pair, recognizes: Callable[[Source], bool]
) -> Format:
    read, write, plain = (
        _reader(key, message),
        _writer(key, message),
        _writer(key, message, is_plain=True),
    )
    return Format(name, title, recognizes, read, write, ".jsonl", "lines", plain=plain)


FORMATS = [
    _format(
        "sharegpt", "ShareGPT (JSONL)", "conversations", _SHAREGPT, _has("conversations", "from")
    ),
    _format(
        "chatml",
        "ChatML (JSONL, text)",
        "text",
        _OPENAI,
        lambda it: _is_text(it) or _has_chatml(it),
    ),
    _format("jsonl", "OpenAI chat (JSONL)", "messages", _OPENAI, _has("messages", "role")),
]
