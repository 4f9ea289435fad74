"""Read the sessions of OpenCode: its folder, its later database, and `opencode export`.

A session is one line of messages. A message has parts: texts, reasoning, files and calls. A call
and its result are one part there, and two messages here. Texts after a result are an answer of
their own, with the id of its first part.

In the folder, a session, a message and a part have a file each. The messages of a session are found
through the names of the folders, and a message whose session is missing leads the session instead.
A part without its message and a message without its session or its time are reported. Pure, and
read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from capsule.transfer.interface import (
    Draft,
    Fields,
    Format,
    Source,
    first_records,
    json_shape,
    read_items,
    read_records,
    read_rows,
)
from capsule.transfer.records.mapping import (
    counts_of,
    data_of,
    moment,
    object_of,
    objects_of,
    text_of,
    with_nonempty,
    without,
)

#: The record of a message, and its parts.
_Message = tuple[Fields, list[Fields]]
#: The paths of messages and parts from the file of their session: today, and in 2025. `{0}` is the
#: id of the session, `{1}` that of the message.
_MESSAGE_PATHS = ("../../message/{0}/*.json", "../message/{0}/*.json")
_PART_PATHS = ("../../part/{1}/*.json", "../part/{0}/{1}/*.json")
#: The keys of the other files in the folder: a part, a project, a list of tasks, a list of changes.
_OTHER_FILES = (
    {"messageID", "type"},
    {"worktree", "time"},
    {"content", "status", "priority"},
    {"file", "additions", "deletions"},
)
_TOKENS = {
    "inputTokens": "input",
    "outputTokens": "output",
    "reasoningTokens": "reasoning",
    "totalTokens": "total",
}
#: The beginnings of titles that OpenCode gave itself.
_DEFAULT_TITLES = ("New session - ", "Child session - ")
#: The fields of a session with a field of ours.
_SESSION_FIELDS = (
    "id",
    "parentID",
    "parent_id",
    "fork_session_id",
    "time",
    "time_created",
    "time_updated",
)


def _file(part: Fields) -> Fields:
    """Return the attachment for a part, or for a file of a result."""
    url = text_of(part.get("url") or part.get("uri"))
    name = text_of(part.get("filename") or part.get("name")) or url[:200].rpartition("/")[2]
    attachment = with_nonempty({"name": name}, type=part.get("mime"))
    data = data_of(url)
    if data is None:
        attachment["url"] = url
    else:
        attachment["data"] = data
    return attachment


def _has_result(part: Fields) -> bool:
    status = object_of(part.get("state")).get("status")
    return part.get("type") == "tool" and status in ("completed", "error")


def _messages(info: Fields, parts: list[Fields]) -> list[Fields]:
    """Return the messages of a record: its texts, the results of its tools, the next texts."""
    groups: list[list[Fields]] = [[]]
    for part in parts:
        is_text = part.get("type") in ("text", "reasoning")
        if is_text and any(map(_has_result, groups[-1])):
            groups.append([])
        groups[-1].append(part)
    id = text_of(info.get("id"))
    is_answer = info.get("role") == "assistant"
    model = info.get("modelID") if is_answer else None
    entries: list[Fields] = []
    for position, group in enumerate(groups):
        source: Fields = {}
        metadata: Fields = {}
        if position == 0:
            entry_id = id
            start = object_of(info.get("time")).get("created")
            tokens = object_of(info.get("tokens"))
            cached = counts_of(tokens.get("cache"), {"cachedTokens": "read"})
            metadata = with_nonempty({}, usage=counts_of(tokens, _TOKENS) | cached)
            source = without(info, "id", "sessionID", "role", "modelID", "tokens", "parts")
        else:
            entry_id = f"{id}/{group[0].get('id')}"
            start = object_of(group[0].get("time")).get("start")
        entry = {"id": entry_id, "role": "assistant" if is_answer else "user"}
        entry = with_nonempty(entry, timestamp=moment(start), model=model, metadata=metadata)
        entries.append(_with_parts(entry, group, source))
        entries += [_result(id, part) for part in group if _has_result(part)]
    return entries


def _with_parts(entry: Fields, parts: list[Fields], source: Fields) -> Fields:
    """Return a message with its parts. A message with synthetic texts only is hidden.

    `source` are the fields of the record without a field of ours.
    """
    texts: list[str] = []
    synthetic_texts: list[str] = []
    reasoning: list[str] = []
    files: list[Fields] = []
    calls: list[Fields] = []
    unmapped_parts: list[Fields] = []
    for part in parts:
        kind = text_of(part.get("type"))
        unmapped = without(part, "id", "sessionID", "messageID")
        if kind in ("text", "reasoning"):
            text = text_of(part.get("text"))
            if part.get("synthetic"):
                synthetic_texts.append(text)
            else:
                (texts if kind == "text" else reasoning).append(text)
                unmapped = without(unmapped, "type", "text", "time")
        elif kind == "file":
            files.append(_file(part))
            unmapped = without(unmapped, "type", "mime", "filename", "url", "name", "uri")
        elif kind == "tool":
            calls.append(
                {
                    "id": text_of(part.get("callID")),
                    "name": text_of(part.get("tool")),
                    "arguments": object_of(part.get("state")).get("input", {}),
                }
            )
            unmapped = without(unmapped, "type", "callID", "tool")
            if _has_result(part):
                unmapped = without(unmapped, "state")
        if unmapped:
            unmapped_parts.append(unmapped)
    is_hidden = bool(synthetic_texts) and not (texts or files or calls)
    entry["content"] = "\n\n".join(synthetic_texts if is_hidden else texts)
    source = with_nonempty(source, parts=unmapped_parts)
    return with_nonempty(
        entry,
        reasoning="\n\n".join(filter(None, reasoning)),
        toolCalls=calls,
        attachments=files,
        metadata=with_nonempty(entry.get("metadata", {}), hidden=is_hidden, source=source),
    )


def _result(message_id: str, part: Fields) -> Fields:
    """Return the message for the result in a part."""
    state = object_of(part["state"])
    is_error = state["status"] == "error"
    source = without(state, "status", "input", "output", "error", "attachments")
    end = object_of(state.get("time")).get("end")
    entry = {
        "id": f"{message_id}/{part.get('id')}/result",
        "role": "tool",
        "toolCallId": text_of(part.get("callID")),
        "content": text_of(state.get("error" if is_error else "output")),
    }
    return with_nonempty(
        entry,
        timestamp=moment(end),
        attachments=[_file(file) for file in objects_of(state.get("attachments"))],
        metadata=with_nonempty({}, isError=is_error, source=source),
    )


def _draft(
    session: Fields,
    messages: Iterable[_Message],
    report_problem: Callable[[str], None],
    line: int | None = None,
) -> Draft | None:
    """Return the draft of a session. None: it has no messages.

    Messages from the one on that `revert` names were undone: the message before it is the current
    one.
    """
    time = object_of(session.get("time"))
    title = text_of(session.get("title"))
    first_undone_id = text_of(object_of(session.get("revert")).get("messageID"))
    history: list[Fields] = []
    current = ""
    for info, parts in messages:
        message_id = text_of(info.get("id"))
        if first_undone_id and history and message_id >= first_undone_id:
            current = current or history[-1]["id"]
        if moment(object_of(info.get("time")).get("created")) is None:
            report_problem(f"message {message_id} has no time")
        history += _messages(info, parts)
    if not history:
        return None
    unmapped = without(session, *_SESSION_FIELDS)
    if title.startswith(_DEFAULT_TITLES):
        title = ""
    else:
        unmapped = without(unmapped, "title")
    metadata = with_nonempty(
        {},
        archived="archived" in time,
        currentNode=current,
        source=with_nonempty(unmapped, time=time),
        sourceConversationId=session.get("parentID"),
        forkedFrom=session.get("fork_session_id"),
    )
    head = with_nonempty(
        {"id": text_of(session["id"])},
        title=title,
        createdAt=moment(time.get("created")),
        metadata=metadata,
        updatedAt=moment(time.get("updated")),
    )
    return Draft(head, history, line)


# The folder


def _is_session(record: Fields) -> bool:
    is_current = {"id", "projectID", "directory"} <= record.keys()
    return is_current or {"id", "version", "time", "title"} <= record.keys()


def _is_message(record: Fields) -> bool:
    return {"id", "sessionID", "role"} <= record.keys()


def _is_object(source: Source) -> bool:
    """Return whether a file is one object, which may be on one line."""
    shape = json_shape(source)
    return shape == "object" or (shape == "lines" and len(first_records(source)) == 1)


def _neighbours(source: Source, patterns: Iterable[str], *ids: str) -> Iterator[Source]:
    """Return the other files of the folder at these paths, for the ids of session and message."""
    for pattern in patterns:
        yield from source.near(pattern.format(*ids))


def _leads_session(source: Source, message: Fields) -> bool:
    """Return whether a message is the first of a session whose own file is missing."""
    paths = ("../../session/*/{0}.json", "../../info/{0}.json")
    for session in _neighbours(source, paths, text_of(message["sessionID"])):
        if any(map(_is_session, first_records(session))):
            return False
    first_name = next((file.name for file in source.near("*.json")), "")
    return first_name == source.name


def _is_part(source: Source) -> bool:
    """Return whether a file belongs to a session in another file, or has no session."""
    record = next(iter(first_records(source)), {})
    is_object = _is_object(source)
    if is_object and _is_message(record):
        return not _leads_session(source, record)
    is_json = is_object or json_shape(source) == "array"
    return is_json and any(record.keys() >= keys for keys in _OTHER_FILES)


def _messages_in(files: Iterable[Source], source: Source) -> Iterator[_Message]:
    """Return the messages in files of the folder, with their parts from other files."""
    for file in files:
        for _, info in read_records(file):
            session_id = text_of(info.get("sessionID"))
            part_files = _neighbours(source, _PART_PATHS, session_id, text_of(info.get("id")))
            parts = [part for part_file in part_files for _, part in read_records(part_file)]
            yield info, parts or objects_of(info.get("parts"))


# The database


def _rows(database: Any, table: str, session: Fields) -> Iterator[Fields]:
    """Return the rows of a session in their order, with the fields of their `data`."""
    sql = f"SELECT * FROM {table} WHERE session_id = ? ORDER BY id"
    rows = read_rows(database, sql, session["id"])
    for row in sorted(rows, key=lambda row: row.get("seq", 0)):
        columns = without(row, "data", "session_id", "seq", "time_created", "time_updated")
        yield object_of(row.get("data")) | columns


def _read_database(source: Source) -> Iterator[Draft]:
    def draft_of_row(row: Fields, line: int | None, source: Source) -> Draft | None:
        session = row | {"parentID": row.get("parent_id")}
        session["time"] = {
            name.removeprefix("time_"): value
            for name, value in row.items()
            if name.startswith("time_")
        }
        parts: dict[str, list[Fields]] = {}
        messages: list[_Message] = []
        if {"message", "part"} <= source.tables:
            for part in _rows(database, "part", row):
                parts.setdefault(part.pop("message_id"), []).append(part)
            for info in _rows(database, "message", row):
                messages.append((info, parts.pop(info["id"], [])))
        for id in parts:
            source.tell(f"parts of message {id}, which is missing")
        if not messages and "session_message" in source.tables:
            records = _rows(database, "session_message", row)
            messages = [_from_new_version(record) for record in records]
        return _draft(session, messages, source.tell)

    with source.database() as database:
        sessions = read_rows(database, "SELECT * FROM session ORDER BY id")
        yield from read_items(source, draft_of_row, ((None, row) for row in sessions))


def _from_new_version(record: Fields) -> _Message:
    """Return a record of the later database as a message with parts."""
    kind = text_of(record.get("type"))
    info = without(record, "type")
    parts = [
        {"type": "file", **part} for part in objects_of(record.get("content", record.get("files")))
    ]
    if kind == "assistant":
        model = object_of(record.get("model"))
        info = without(info, "content", "model")
        info |= {"role": kind, "modelID": model.get("id")} | without(model, "id")
        return info, [
            _tool_from_new_version(part) if part["type"] == "tool" else part for part in parts
        ]
    if kind == "shell":
        tool = {
            "id": kind,
            "type": "tool",
            "callID": record.get("callID"),
            "tool": kind,
            "state": {
                "status": "completed",
                "input": {"command": record.get("command")},
                "output": record.get("output"),
            },
        }
        return without(info, "callID", "command", "output"), [tool]
    text: Fields = {"type": "text", "text": text_of(record.get("summary", record.get("text")))}
    if kind != "user":
        text |= {"synthetic": True, "kind": kind}
    return without(info, "text", "summary", "files"), [text, *parts]


def _tool_from_new_version(part: Fields) -> Fields:
    state = object_of(part.get("state"))
    output = "\n".join(text_of(item.get("text")) for item in objects_of(state.get("content")))
    error = object_of(state.get("error")).get("message", state.get("error"))
    state = without(state, "content") | with_nonempty({"output": output}, error=error)
    return without(part, "name", "state") | {
        "callID": part.get("id"),
        "tool": part.get("name"),
        "state": state,
    }


def _recognizes(source: Source) -> bool:
    tables = source.tables
    if tables:
        has_parts = {"session", "message", "part"} <= tables
        return has_parts or {"session", "session_message"} <= tables
    record = next(iter(first_records(source)), {})
    if "messages" in record:
        return _is_session(object_of(record.get("info")))
    return _is_object(source) and (_is_session(record) or _is_message(record))


def _read(source: Source) -> Iterator[Draft]:
    if source.tables:
        return _read_database(source)
    return read_items(source, _draft_of_record)


def _draft_of_record(record: Fields, line: int, source: Source) -> Draft | None:
    """Return the draft of an export, of a session in the folder, or of a message without one."""
    if "info" in record:
        messages = (
            (object_of(item.get("info")), objects_of(item.get("parts")))
            for item in objects_of(record["messages"])
        )
        return _draft(object_of(record["info"]), messages, source.tell, line)
    if _is_message(record):
        source.tell(f"session {record['sessionID']} is missing")
        session = {"id": record["sessionID"]}
        return _draft(session, _messages_in(source.near("*.json"), source), source.tell)
    files = _neighbours(source, _MESSAGE_PATHS, text_of(record["id"]))
    return _draft(record, _messages_in(files, source), source.tell)


_PLACES = (
    "~/.local/share/opencode/opencode.db",
    "~/.local/share/opencode/storage/session/*/*.json",
)
FORMATS = [
    Format(
        "opencode",
        "OpenCode",
        recognizes=_recognizes,
        read=_read,
        is_part=_is_part,
        places=_PLACES,
    )
]
