"""The export of Claude.ai: `conversations.json`, and `projects.json` beside it.

An answer with calls and results is one record there and several messages here. The last of them has
the record's id, since what answers the record answers it. A project is the context of its
conversations; the export mostly names none, so a project is a capsule without messages too. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from capsule.transfer.interface import (
    Draft,
    Fields,
    Format,
    Source,
    read_items,
    read_records,
    recognizes_record,
    reporting_damage,
)
from capsule.transfer.records.coercion import moment, text_of, with_nonempty, without
from capsule.transfer.records.round_trip import Column, is_on, pair_of, with_source
from capsule.transfer.records.turns import with_turn_ids

#: The parent of a first message, besides null.
_ROOTS = ("", "00000000-0000-4000-8000-000000000000", "00000000-0000-0000-0000-000000000000")
#: What of a record, and of a part of its content, has a field of ours.
_MESSAGE = {
    "uuid",
    "text",
    "content",
    "sender",
    "created_at",
    "parent_message_uuid",
    "attachments",
    "files",
    "model",
}
_PARTS = {
    "text": {"type", "text"},
    "thinking": {"type", "thinking"},
    "tool_use": {"type", "id", "name", "input"},
    "tool_result": {"type", "tool_use_id", "content", "is_error"},
}
#: What has a field of ours of the files of a message.
_FILES = {
    "attachments": {
        "name": "file_name",
        "type": "file_type",
        "text": "extracted_content",
        "bytes": "file_size",
    },
    "files": {"name": "file_name", "type": "file_kind", "reference": "file_uuid"},
}
_HEAD = pair_of(
    Column("uuid", "id"),
    Column("name", "title"),
    Column("created_at", "createdAt", moment),
    Column("updated_at", "updatedAt", moment),
    Column("current_leaf_message_uuid", "metadata.currentNode"),
    Column("is_starred", "metadata.pinned", is_on),
    Column("summary", "metadata.description"),
)


def _messages(record: Fields) -> list[Fields]:
    """The messages of one record, each the answer to the one before; the last one has its id."""
    role = "user" if record.get("sender") == "human" else "assistant"
    entries, said = _pieces(
        record.get("content"), "system" if record.get("sender") == "system" else role
    )
    text = text_of(record.get("text"))
    if not said:
        entries[-1]["content"], text = text, ""
    left = without(record, *_MESSAGE)
    if text.strip() != "\n\n".join(said).strip() and text:
        left["text"] = text
    if record.get("updated_at") == record.get("created_at"):
        left.pop("updated_at", None)
    time, id, model = moment(record.get("created_at")), record.get("uuid"), record.get("model")
    if attachments := _attachments(record):
        entries[0]["attachments"] = attachments
    for entry in entries:
        entry |= ({"timestamp": time} if time else {}) | (
            {"model": model} if isinstance(model, str) else {}
        )
    if isinstance(id, str):
        entries[-1]["id"] = id
    if "parent_message_uuid" in record:
        parent = record["parent_message_uuid"]
        entries[0]["parent"] = None if parent is None or parent in _ROOTS else parent
    entries[-1] = with_source(
        entries[-1], {**entries[-1].get("metadata", {}).get("source", {}), **left}
    )
    return with_turn_ids(entries)


def _pieces(content: Any, role: str) -> tuple[list[Fields], list[str]]:
    """The messages that the parts of a content make, one at least, and all texts among them."""
    entries: list[Fields] = [{"role": role, "content": ""}]
    said: list[str] = []
    for part in content if isinstance(content, list) else ():
        kind = part.get("type")
        entry = entries[-1]
        if kind == "tool_result":
            entry = {"role": "tool", "content": _result(part.get("content"))}
            if call := part.get("tool_use_id") or _unanswered(entries, part.get("name")):
                entry["toolCallId"] = call
            if part.get("is_error") is True:
                entry["metadata"] = {"isError": True}
            entries.append(entry)
        elif entry["role"] == "tool" or (kind in ("text", "thinking") and "toolCalls" in entry):
            entry = {"role": role, "content": ""}
            entries.append(entry)
        if kind == "text":
            said.append(text_of(part.get("text")))
            entry["content"] = f"{entry['content']}\n\n{said[-1]}" if entry["content"] else said[-1]
        elif kind == "thinking":
            entry["reasoning"] = "\n\n".join(
                filter(None, [entry.get("reasoning"), text_of(part.get("thinking"))])
            )
        elif kind == "tool_use":
            call = {"name": text_of(part.get("name")), "arguments": part.get("input") or {}}
            entry.setdefault("toolCalls", []).append(
                ({"id": part["id"]} if part.get("id") else {}) | call
            )
        known = _PARTS.get(str(kind), {"type"})
        if left := with_nonempty({}, **without(part, *known)):
            source = entry.setdefault("metadata", {}).setdefault("source", {})
            source.setdefault("content", []).append({"type": kind, **left})
    return [entry for entry in entries if len(entry) > 2 or entry["content"]] or entries[:1], said


def _unanswered(entries: list[Fields], name: Any) -> str:
    """The id of the last call of this name; old exports have none."""
    calls = [
        call for entry in entries for call in entry.get("toolCalls", ()) if call["name"] == name
    ]
    return str(calls[-1].get("id") or "") if calls else ""


def _result(content: Any) -> str:
    """The text of a result, of whose parts those without a text are there as JSON."""
    if not isinstance(content, list):
        return text_of(content)
    texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "\n\n".join(
        text_of(part if text is None else text) for text, part in zip(texts, content, strict=True)
    )


def _attachments(record: Fields) -> list[Fields]:
    return [
        {name: file[key] for name, key in names.items() if key in file}
        | without(file, *names.values())
        for where, names in _FILES.items()
        for file in record.get(where) or ()
    ]


def _context(project: Fields) -> Fields:
    """The instructions and the documents of a project as a context."""
    parts = [text_of(project.get("prompt_template"))]
    for document in project.get("docs") or ():
        parts.append(f"--- {document.get('filename')} ---\n{text_of(document.get('content'))}")
    return {"fullContext": "\n\n".join(filter(None, parts))}


def _draft(record: Fields, line: int, source: Source, projects: dict[str, Fields]) -> Draft | None:
    if isinstance(record.get("chat_messages"), list):
        head = _HEAD.to_capsule(without(record, "chat_messages"))
        named = record.get("project_uuid") or (record.get("project") or {}).get("uuid")
        if named in projects:
            head["context"] = _context(projects[named])
        history: list[Fields] = []
        for nth, message in enumerate(record["chat_messages"]):
            with reporting_damage(source.tell, f"message {nth}", line):
                history += _messages(message)
        if not moment(record.get("created_at")):
            source.tell("a conversation without the time at which it began", line)
        return Draft(head, history, line)
    if "prompt_template" in record or "docs" in record:
        head = _HEAD.to_capsule(without(record, "prompt_template", "docs"))
        return Draft(head | {"context": _context(record)}, [], line)
    if "full_name" not in record:
        source.tell("no conversation: it has no chat_messages", line)
    return None


def _read(source: Source) -> Iterator[Draft]:
    projects: dict[str, Fields] = {}
    for pattern in ("projects.json", "projects/*.json"):
        for file in source.near(pattern):
            projects |= {
                entry["uuid"]: entry
                for _, entry in read_records(file)
                if isinstance(entry.get("uuid"), str)
            }
    yield from read_items(
        source, lambda record, line, source: _draft(record, line, source, projects)
    )


def _is_ours(record: Fields) -> bool:
    is_project = "uuid" in record and ("prompt_template" in record or "docs" in record)
    return isinstance(record.get("chat_messages"), list) or is_project


#: Whether a file says whose export it is.
_is_part = recognizes_record(lambda record: "full_name" in record and "email_address" in record)
FORMATS = [
    Format("claude-ai", "Claude.ai export", recognizes_record(_is_ours), _read, is_part=_is_part)
]
