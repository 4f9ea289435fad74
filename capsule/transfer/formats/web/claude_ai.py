"""Read the export of Claude.ai: `conversations.json`, and `projects.json` beside it.

An answer with calls and results is one record there and several messages here. The last of them has
the record's id, since the next record answers it. A project is the context of its conversations.
Since the export mostly names no project, a project is also a capsule without messages. A message
that can't be read is reported and left out. Pure.
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
from capsule.transfer.records.mapping import (
    Column,
    is_on,
    moment,
    pair_of,
    text_of,
    with_nonempty,
    with_source,
    without,
)
from capsule.transfer.records.turns import with_turn_ids

#: The parents of a first message, besides null.
_ROOT_IDS = ("", "00000000-0000-4000-8000-000000000000", "00000000-0000-0000-0000-000000000000")
#: The fields of a record, and of a part of its content by its type, with a field of ours.
_RECORD_FIELDS = {
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
_PART_FIELDS = {
    "text": {"type", "text"},
    "thinking": {"type", "thinking"},
    "tool_use": {"type", "id", "name", "input"},
    "tool_result": {"type", "tool_use_id", "content", "is_error"},
}
#: Our fields of the two kinds of files of a message, with the names in the record.
_FILE_FIELDS = {
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
    """Return the messages of a record, each an answer to the one before. The last has its id."""
    role = {"human": "user", "system": "system"}.get(text_of(record.get("sender")), "assistant")
    entries, texts = _entries_of_parts(record.get("content"), role)
    unmapped = without(record, *_RECORD_FIELDS)
    text = text_of(record.get("text"))
    if not texts:
        entries[-1]["content"] = text
    elif text and text.strip() != "\n\n".join(texts).strip():
        unmapped["text"] = text
    if record.get("updated_at") == record.get("created_at"):
        unmapped.pop("updated_at", None)
    attachments = _attachments(record)
    if attachments:
        entries[0]["attachments"] = attachments
    time = moment(record.get("created_at"))
    model = record.get("model")
    for entry in entries:
        if time:
            entry["timestamp"] = time
        if isinstance(model, str):
            entry["model"] = model
    if isinstance(record.get("uuid"), str):
        entries[-1]["id"] = record["uuid"]
    if "parent_message_uuid" in record:
        parent = record["parent_message_uuid"]
        entries[0]["parent"] = None if parent in (None, *_ROOT_IDS) else parent
    source = {**entries[-1].get("metadata", {}).get("source", {}), **unmapped}
    entries[-1] = with_source(entries[-1], source)
    return with_turn_ids(entries)


def _entries_of_parts(content: Any, role: str) -> tuple[list[Fields], list[str]]:
    """Return the messages for the parts of a content, at least one, and all texts among them."""
    entries: list[Fields] = [{"role": role, "content": ""}]
    texts: list[str] = []
    for part in content if isinstance(content, list) else ():
        kind = part.get("type")
        entry = entries[-1]
        if kind == "tool_result":
            entry = _result_entry(part, entries)
            entries.append(entry)
        elif entry["role"] == "tool" or (kind in ("text", "thinking") and "toolCalls" in entry):
            entry = {"role": role, "content": ""}
            entries.append(entry)
        if kind == "text":
            text = text_of(part.get("text"))
            texts.append(text)
            entry["content"] = f"{entry['content']}\n\n{text}" if entry["content"] else text
        elif kind == "thinking":
            thoughts = [entry.get("reasoning"), text_of(part.get("thinking"))]
            entry["reasoning"] = "\n\n".join(filter(None, thoughts))
        elif kind == "tool_use":
            entry.setdefault("toolCalls", []).append(_call(part))
        unmapped = with_nonempty({}, **without(part, *_PART_FIELDS.get(str(kind), {"type"})))
        if unmapped:
            source = entry.setdefault("metadata", {}).setdefault("source", {})
            source.setdefault("content", []).append({"type": kind, **unmapped})
    nonempty = [entry for entry in entries if len(entry) > 2 or entry["content"]]
    return nonempty or entries[:1], texts


def _call(part: Fields) -> Fields:
    call: Fields = {"id": part["id"]} if part.get("id") else {}
    call["name"] = text_of(part.get("name"))
    call["arguments"] = part.get("input") or {}
    return call


def _result_entry(part: Fields, entries: list[Fields]) -> Fields:
    """Return the message for the result of a call in earlier messages."""
    entry: Fields = {"role": "tool", "content": _result_text(part.get("content"))}
    call_id = part.get("tool_use_id") or _last_call_id(entries, part.get("name"))
    if call_id:
        entry["toolCallId"] = call_id
    if part.get("is_error") is True:
        entry["metadata"] = {"isError": True}
    return entry


def _last_call_id(entries: list[Fields], name: Any) -> str:
    """Return the id of the last call of a tool. Empty: the call has none, as in old exports."""
    calls = [
        call for entry in entries for call in entry.get("toolCalls", ()) if call["name"] == name
    ]
    return str(calls[-1].get("id") or "") if calls else ""


def _result_text(content: Any) -> str:
    """Return the text of a result. A part without a text is in it as JSON."""
    if not isinstance(content, list):
        return text_of(content)
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        texts.append(text_of(part if text is None else text))
    return "\n\n".join(texts)


def _attachments(record: Fields) -> list[Fields]:
    """Return the attachments of a record. Unknown fields of a file are kept under their names."""
    attachments = []
    for list_name, names in _FILE_FIELDS.items():
        for file in record.get(list_name) or ():
            attachment = {name: file[key] for name, key in names.items() if key in file}
            attachments.append(attachment | without(file, *names.values()))
    return attachments


def _context(project: Fields) -> Fields:
    """Return the instructions and the documents of a project as a context."""
    parts = [text_of(project.get("prompt_template"))]
    for document in project.get("docs") or ():
        parts.append(f"--- {document.get('filename')} ---\n{text_of(document.get('content'))}")
    return {"fullContext": "\n\n".join(filter(None, parts))}


def _draft(record: Fields, line: int, source: Source, projects: dict[str, Fields]) -> Draft | None:
    """Return the draft of a conversation, or of a project. None: the record is neither.

    `projects` are the projects of the export by their ids.
    """
    if isinstance(record.get("chat_messages"), list):
        head = _HEAD.to_capsule(without(record, "chat_messages"))
        project_id = record.get("project_uuid") or (record.get("project") or {}).get("uuid")
        if project_id in projects:
            head["context"] = _context(projects[project_id])
        history: list[Fields] = []
        for position, message in enumerate(record["chat_messages"]):
            with reporting_damage(source.tell, f"message {position}", line):
                history += _messages(message)
        if not moment(record.get("created_at")):
            source.tell("a conversation without the time at which it began", line)
        return Draft(head, history, line)
    if "prompt_template" in record or "docs" in record:
        head = _HEAD.to_capsule(without(record, "prompt_template", "docs"))
        return Draft(head | {"context": _context(record)}, [], line)
    if "full_name" not in record:
        source.tell("not a conversation: it has no chat_messages", line)
    return None


def _read(source: Source) -> Iterator[Draft]:
    projects: dict[str, Fields] = {}
    for pattern in ("projects.json", "projects/*.json"):
        for file in source.near(pattern):
            for _, project in read_records(file):
                if isinstance(project.get("uuid"), str):
                    projects[project["uuid"]] = project
    yield from read_items(
        source, lambda record, line, source: _draft(record, line, source, projects)
    )


def _is_conversation_or_project(record: Fields) -> bool:
    is_project = "uuid" in record and ("prompt_template" in record or "docs" in record)
    return isinstance(record.get("chat_messages"), list) or is_project


#: Whether a file says whose export it is.
def _is_owner(record: Fields) -> bool:
    return "full_name" in record and "email_address" in record


FORMATS = [
    Format(
        "claude-ai",
        "Claude.ai export",
        recognizes=recognizes_record(_is_conversation_or_project),
        read=_read,
        is_part=recognizes_record(_is_owner),
    )
]
