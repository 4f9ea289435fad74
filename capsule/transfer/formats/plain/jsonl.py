"""Read and write JSONL for training and tools: a conversation a line, as OpenAI's chat, ShareGPT or
ChatML have it.

A plain text of ChatML is read too, as one conversation. A written line has the active branch in the
exact form of its format. All other fields of a capsule (ids, times, other branches) are lost in
this form, so they are under the key `capsule` of the line, and an import takes them from there. A
plain line lacks this key. Pure.
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
from capsule.transfer.records.mapping import (
    CAPSULE_KEY,
    Column,
    Pair,
    apply_difference,
    call_of,
    difference,
    is_string,
    json_of,
    objects_of,
    pair_of,
    record_of_call,
    text_of,
    text_of_part,
    with_source,
    without,
)

_ROLES = {"developer": "system", "function": "tool", "model": "assistant"}
#: The roles of ShareGPT.
_SHAREGPT_ROLES = {
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
_SHAREGPT_SPEAKERS = {"user": "human", "assistant": "gpt", "tool": "tool"}
#: The key of a record that has its messages as a text of ChatML. Under any other key is a list.
_TEXT_KEY = "text"
_CHATML_MESSAGE = r"(?s)<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>\n?|\Z)"


def _read_openai(record: Fields) -> Fields:
    fields: Fields = {"role": _openai_role(record.get("role"))}
    fields |= _openai_content(record.get("content"))
    calls = record.get("tool_calls")
    if isinstance(calls, list) and all(isinstance(call, dict) for call in calls) and calls:
        fields["toolCalls"] = [call_of(call) for call in calls]
    if isinstance(record.get("tool_call_id"), str):
        fields["toolCallId"] = record["tool_call_id"]
    if isinstance(record.get("reasoning_content"), str):
        fields["reasoning"] = record["reasoning_content"]
    return fields


def _openai_content(content: Any) -> Fields:
    """Return the text of a content, and the attachments for its parts that are no text."""
    if not isinstance(content, list):
        return {"content": text_of(content)}
    texts: list[str] = []
    attachments: list[Fields] = []
    for part in content:
        text = text_of_part(part)
        if text is None:
            attachments.append(_attachment(part))
        else:
            texts.append(text)
    fields: Fields = {"content": "\n\n".join(texts)}
    if attachments:
        fields["attachments"] = attachments
    return fields


def _openai_role(role: Any) -> str:
    default = role if role in ("user", "system", "tool") else "assistant"
    return _ROLES.get(str(role), default)


def _attachment(part: Any) -> Fields:
    """Return the attachment for a part of a content that is no text."""
    if not isinstance(part, dict):
        return {"name": "file", "type": "file"}
    kind = str(part.get("type") or "file")
    value = part.get(kind)
    url = value.get("url") if isinstance(value, dict) else value
    attachment = {"name": kind, "type": kind}
    if isinstance(url, str) and not url.startswith("data:"):
        attachment["url"] = url
    return attachment


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
    speaker = str(record.get("from"))
    value = record.get("value")
    call = json_of(value) if speaker == "function_call" else None
    if isinstance(call, dict):
        return {"role": "assistant", "content": "", "toolCalls": [call]}
    return {"role": _SHAREGPT_ROLES.get(speaker, "assistant"), "content": text_of(value)}


def _write_sharegpt(fields: Fields) -> Fields:
    calls = fields.get("toolCalls")
    if calls and not fields["content"]:
        return {"from": "function_call", "value": orjson.dumps(calls[0]).decode()}
    return {
        "from": _SHAREGPT_SPEAKERS.get(fields["role"], "system"),
        "value": fields["content"],
    }


def _messages_of(record: Fields, key: str, pair: Pair) -> list[Fields]:
    """Return the messages that a record has under a key."""
    if key == _TEXT_KEY:
        return [
            {"role": _ROLES.get(role, role), "content": text}
            for role, text in re.findall(_CHATML_MESSAGE, record[key])
        ]
    return [pair.to_capsule(entry) for entry in record[key] if isinstance(entry, dict)]


def _chatml(messages: list[Fields]) -> str:
    return "".join(
        f"<|im_start|>{entry['role']}\n{entry['content']}<|im_end|>\n" for entry in messages
    )


_HEAD = pair_of(Column("id", "id"), Column("title", "title"))
_OPENAI = Pair(_read_openai, _write_openai)
_SHAREGPT = Pair(_read_sharegpt, _write_sharegpt)


def _plain_draft(record: Fields, line: int | None, key: str, pair: Pair) -> Draft:
    """Return the draft of a record, without the fields under `capsule`."""
    head = _HEAD.to_capsule(without(record, key, CAPSULE_KEY))
    messages = _messages_of(record, key, pair)
    if key == _TEXT_KEY and record[key] != _chatml(messages):
        source = head.get("metadata", {}).get("source", {})
        head = with_source(head, {**source, _TEXT_KEY: record[key]})
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


def _is_chatml(source: Source) -> bool:
    """Return whether a file is one conversation as the plain text of ChatML."""
    return source.head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<|im_start|>")


def _reader(key: str, pair: Pair) -> Callable[[Source], Iterator[Draft]]:
    """Return the reader of a format whose records have their messages under a key."""
    content_type = str if key == _TEXT_KEY else list

    def make_draft(record: Fields, line: int, source: Source) -> Draft | None:
        if isinstance(record.get(key), content_type):
            draft = _plain_draft(record, line, key, pair)
            return _with_lost_fields(draft, record.get(CAPSULE_KEY))
        source.tell(f"not a conversation: it has no {key}", line)
        return None

    def items(source: Source) -> list[tuple[int, Fields]] | None:
        return [(1, {key: read_text(source)})] if _is_chatml(source) else None

    return reader_of_items(make_draft, items)


def _writer(key: str, pair: Pair) -> Callable[[Draft], bytes]:
    """Return the writer of a format, with the fields that its form loses under `capsule`."""

    def write(draft: Draft) -> bytes:
        branch = active_path(draft.head, draft.history)
        head = _HEAD.to_record(draft.head)
        if draft.is_own or key == _TEXT_KEY:
            head = without(head, "id")
        record: Fields
        if key == _TEXT_KEY:
            record = {key: _chatml(branch), **head}
        else:
            messages = [
                pair.to_record(entry, is_edited=entry.get("id") in draft.edited) for entry in branch
            ]
            record = {key: messages, **head}
        lost_fields = _lost_fields(draft, _plain_draft(record, None, key, pair))
        if lost_fields:
            record[CAPSULE_KEY] = lost_fields
        return orjson.dumps(record) + b"\n"

    return write


def _plain_writer(key: str, pair: Pair) -> Callable[[Draft], bytes]:
    """Return the writer of the plain form of a format: the messages of the active branch."""

    def write(draft: Draft) -> bytes:
        branch = active_path(draft.head, draft.history)
        content = _chatml(branch) if key == _TEXT_KEY else [pair.write(entry) for entry in branch]
        return orjson.dumps({key: content}) + b"\n"

    return write


def _recognizes_messages(key: str, field: str) -> Callable[[Source], bool]:
    """Return the recognizer of a file whose lists of messages, under `key`, have this field."""
    return recognizes_record(lambda record: field in next(iter(objects_of(record.get(key))), ()))


_has_chatml = recognizes_record(lambda record: "<|im_start|>" in text_of(record.get(_TEXT_KEY)))


def _format(
    name: str, title: str, key: str, pair: Pair, recognizes: Callable[[Source], bool]
) -> Format:
    return Format(
        name,
        title,
        recognizes=recognizes,
        read=_reader(key, pair),
        write=_writer(key, pair),
        extension=".jsonl",
        joined="lines",
        plain=_plain_writer(key, pair),
    )


FORMATS = [
    _format(
        "sharegpt",
        "ShareGPT (JSONL)",
        "conversations",
        _SHAREGPT,
        _recognizes_messages("conversations", "from"),
    ),
    _format(
        "chatml",
        "ChatML (JSONL, text)",
        _TEXT_KEY,
        _OPENAI,
        lambda source: _is_chatml(source) or _has_chatml(source),
    ),
    _format(
        "jsonl",
        "OpenAI chat (JSONL)",
        "messages",
        _OPENAI,
        _recognizes_messages("messages", "role"),
    ),
]
