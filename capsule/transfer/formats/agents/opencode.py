"""OpenCode: its folder of sessions, messages and parts, its later database, and what `opencode
export` gives.

A session is one line of messages. A message has parts: its texts, thoughts, files and calls. What
was called and what came back are one part here, and two messages for us; texts after a result are
an answer of their own, under the id of its first part. Pure, and read-only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from capsule.transfer.interface import (
    Draft,
    Fields,
    Format,
    Source,
    first,
    read_each,
    read_records,
    read_rows,
    shape,
)
from capsule.transfer.records.coercion import (
    counts_of,
    data_of,
    filled,
    moment,
    object_of,
    objects_of,
    rest,
    text_of,
)

_Message = tuple[Fields, list[Fields]]
#: Where the messages of a session lie, from its file, and the parts of a message: today, and in
#: 2025.
_MESSAGES = ("../../message/{0}/*.json", "../message/{0}/*.json")
_PARTS = ("../../part/{1}/*.json", "../part/{0}/{1}/*.json")
#: What files beside them have: a part, a project, a list of tasks, and one of changes.
_BESIDE = ("messageID type", "worktree time", "content status priority", "file additions deletions")
_TOKENS = {
    "inputTokens": "input",
    "outputTokens": "output",
    "reasoningTokens": "reasoning",
    "totalTokens": "total",
}
_UNNAMED = ("New session - ", "Child session - ")
_OF_A_SESSION = (
    "id",
    "parentID",
    "parent_id",
    "fork_session_id",
    "time",
    "time_created",
    "time_updated",
)


def _file(part: Fields) -> Fields:
    url = text_of(part.get("url") or part.get("uri"))
    name = text_of(part.get("filename") or part.get("name")) or url[:200].rpartition("/")[2]
    made = filled({"name": name}, type=part.get("mime"))
    return made | ({"url": url} if (data := data_of(url)) is None else {"data": data})


def _is_done(part: Fields) -> bool:
    return part.get("type") == "tool" and object_of(part.get("state")).get("status") in (
        "completed",
        "error",
    )


def _said(info: Fields, parts: list[Fields]) -> list[Fields]:
    """The messages of a record: its texts, the answers of its tools, the texts after that, and so
    on.
    """
    groups: list[list[Fields]] = [[]]
    for part in parts:
        if part.get("type") in ("text", "reasoning") and any(map(_is_done, groups[-1])):
            groups.append([])
        groups[-1].append(part)
    id, time, is_answer = (
        text_of(info.get("id")),
        object_of(info.get("time")),
        info.get("role") == "assistant",
    )
    entries: list[Fields] = []
    for place, group in enumerate(groups):
        ids = {
            "id": f"{id}/{group[0].get('id')}" if place else id,
            "role": "assistant" if is_answer else "user",
        }
        began = object_of(group[0].get("time")).get("start") if place else time.get("created")
        entry = filled(ids, timestamp=moment(began), model=is_answer and info.get("modelID"))
        source: Fields = {}
        if not place:
            tokens = object_of(info.get("tokens"))
            usage = counts_of(tokens, _TOKENS) | counts_of(
                tokens.get("cache"), {"cachedTokens": "read"}
            )
            source = rest(info, "id", "sessionID", "role", "modelID", "tokens", "parts")
            entry |= {"metadata": {"usage": usage}} if usage else {}
        entries += [
            _spoken(entry, group, source),
            *(_result(id, part) for part in group if _is_done(part)),
        ]
    return entries


def _spoken(entry: Fields, parts: list[Fields], source: Fields) -> Fields:
    """A message with what parts of it say."""
    pieces: dict[str, list[Any]] = {
        kind: [] for kind in ("text", "made", "reasoning", "file", "tool", "rest")
    }
    for part in parts:
        kind, left = text_of(part.get("type")), rest(part, "id", "sessionID", "messageID")
        if kind in ("text", "reasoning"):
            pieces["made" if part.get("synthetic") else kind].append(text_of(part.get("text")))
            left = left if part.get("synthetic") else rest(left, "type", "text", "time")
        elif kind == "file":
            pieces[kind].append(_file(part))
            left = rest(left, "type", "mime", "filename", "url", "name", "uri")
        elif kind == "tool":
            call = {"id": text_of(part.get("callID")), "name": text_of(part.get("tool"))}
            pieces[kind].append(call | {"arguments": object_of(part.get("state")).get("input", {})})
            left = rest(left, "type", "callID", "tool", *(("state",) if _is_done(part) else ()))
        pieces["rest"] += [left] if left else []
    is_hidden = bool(pieces["made"]) and not (pieces["text"] or pieces["file"] or pieces["tool"])
    entry["content"] = "\n\n".join(pieces["made" if is_hidden else "text"])
    metadata = filled(
        entry.get("metadata", {}), hidden=is_hidden, source=filled(source, parts=pieces["rest"])
    )
    reasoning = "\n\n".join(filter(None, pieces["reasoning"]))
    return filled(
        entry,
        reasoning=reasoning,
        toolCalls=pieces["tool"],
        attachments=pieces["file"],
        metadata=metadata,
    )


def _result(id: str, part: Fields) -> Fields:
    state = object_of(part["state"])
    is_error = state["status"] == "error"
    source = rest(state, "status", "input", "output", "error", "attachments")
    entry = {
        "id": f"{id}/{part.get('id')}/result",
        "role": "tool",
        "toolCallId": text_of(part.get("callID")),
    }
    entry["content"] = text_of(state.get("error" if is_error else "output"))
    files, time = (
        [*map(_file, objects_of(state.get("attachments")))],
        object_of(state.get("time")).get("end"),
    )
    metadata = filled({}, isError=is_error, source=source)
    return filled(entry, timestamp=moment(time), attachments=files, metadata=metadata)


def _draft(
    session: Fields, messages: Iterable[_Message], tell: Any, line: int | None = None
) -> Draft | None:
    id, time, title = (
        text_of(session["id"]),
        object_of(session.get("time")),
        text_of(session.get("title")),
    )
    history: list[Fields] = []
    current, undone = "", text_of(object_of(session.get("revert")).get("messageID"))
    for info, parts in messages:
        if undone and history and text_of(info.get("id")) >= undone:
            current = current or history[-1]["id"]
        if moment(object_of(info.get("time")).get("created")) is None:
            tell(f"message {text_of(info.get('id'))} has no time")
        history += _said(info, parts)
    if not history:
        return None
    is_named = not title.startswith(_UNNAMED)
    left = rest(session, *_OF_A_SESSION, *(("title",) if is_named else ())) | filled({}, time=time)
    metadata = filled({}, archived="archived" in time, currentNode=current, source=left)
    metadata = filled(
        metadata,
        sourceConversationId=session.get("parentID"),
        forkedFrom=session.get("fork_session_id"),
    )
    head = filled(
        {"id": id},
        title=is_named and title,
        createdAt=moment(time.get("created")),
        metadata=metadata,
    )
    return Draft(filled(head, updatedAt=moment(time.get("updated"))), history, line)


# The folder


def _is_session(record: Fields) -> bool:
    return {"id", "projectID", "directory"} <= record.keys() or {
        "id",
        "version",
        "time",
        "title",
    } <= record.keys()


def _is_message(record: Fields) -> bool:
    return {"id", "sessionID", "role"} <= record.keys()


def _is_object(source: Source) -> bool:
    """Whether a file is one object, which may stand on one line."""
    return shape(source) == "object" or (shape(source) == "lines" and len(first(source)) == 1)


def _neighbours(source: Source, patterns: Iterable[str], *ids: str) -> Iterator[Source]:
    for pattern in patterns:
        yield from source.near(pattern.format(*ids))


def _leads(source: Source, message: Fields) -> bool:
    """Whether a message is the first of a session that is not there."""
    paths = ("../../session/*/{0}.json", "../../info/{0}.json")
    sessions = _neighbours(source, paths, text_of(message["sessionID"]))
    if any(map(_is_session, (record for session in sessions for record in first(session)))):
        return False
    return next((other.name for other in source.near("*.json")), "") == source.name


def _is_part(source: Source) -> bool:
    record = next(iter(first(source)), {})
    if _is_object(source) and _is_message(record):
        return not _leads(source, record)
    is_whole = shape(source) == "array" or _is_object(source)
    return is_whole and any(record.keys() >= {*keys.split()} for keys in _BESIDE)


def _messages(files: Iterable[Source], source: Source) -> Iterator[_Message]:
    for file in files:
        for _, info in read_records(file):
            ids = text_of(info.get("sessionID")), text_of(info.get("id"))
            parts = [
                part for file in _neighbours(source, _PARTS, *ids) for _, part in read_records(file)
            ]
            yield info, parts or objects_of(info.get("parts"))


# The database


def _rows(database: Any, table: str, of: Fields) -> Iterator[Fields]:
    """The rows of a session in their order, with what their `data` holds."""
    rows = read_rows(database, f"SELECT * FROM {table} WHERE session_id = ? ORDER BY id", of["id"])
    for row in sorted(rows, key=lambda row: row.get("seq", 0)):
        yield object_of(row.get("data")) | rest(
            row, "data", "session_id", "seq", "time_created", "time_updated"
        )


def _stored(source: Source) -> Iterator[Draft]:
    def made(row: Fields, line: int | None, source: Source) -> Draft | None:
        session = row | {"parentID": row.get("parent_id")}
        session["time"] = {
            name[5:]: value for name, value in row.items() if name.startswith("time_")
        }
        parts: dict[str, list[Fields]] = {}
        messages: list[_Message] = []
        if {"message", "part"} <= source.tables:
            for part in _rows(database, "part", row):
                parts.setdefault(part.pop("message_id"), []).append(part)
            messages = [
                (info, parts.pop(info["id"], [])) for info in _rows(database, "message", row)
            ]
        for id in parts:
            source.tell(f"parts of message {id}, which is not there")
        if not messages and "session_message" in source.tables:
            messages = [
                _from_new_version(record) for record in _rows(database, "session_message", row)
            ]
        return _draft(session, messages, source.tell)

    with source.database() as database:
        sessions = read_rows(database, "SELECT * FROM session ORDER BY id")
        yield from read_each(source, made, ((None, row) for row in sessions))


def _from_new_version(record: Fields) -> _Message:
    """A record of the later store as a message with parts."""
    kind, info = text_of(record.get("type")), rest(record, "type")
    parts = [
        {"type": "file", **part} for part in objects_of(record.get("content", record.get("files")))
    ]
    if kind == "assistant":
        model = object_of(record.get("model"))
        info = (
            rest(info, "content", "model")
            | {"role": kind, "modelID": model.get("id")}
            | rest(model, "id")
        )
        return info, [_later_part(part) if part["type"] == "tool" else part for part in parts]
    if kind == "shell":
        state = {
            "status": "completed",
            "input": {"command": record.get("command")},
            "output": record.get("output"),
        }
        tool = {
            "id": kind,
            "type": "tool",
            "callID": record.get("callID"),
            "tool": kind,
            "state": state,
        }
        return rest(info, "callID", "command", "output"), [tool]
    text: Fields = {"type": "text", "text": text_of(record.get("summary", record.get("text")))}
    text |= {} if kind == "user" else {"synthetic": True, "kind": kind}
    return rest(info, "text", "summary", "files"), [text, *parts]


def _later_part(part: Fields) -> Fields:
    state = object_of(part.get("state"))
    output = "\n".join(text_of(item.get("text")) for item in objects_of(state.get("content")))
    error = object_of(state.get("error")).get("message", state.get("error"))
    state = rest(state, "content") | filled({"output": output}, error=error)
    return rest(part, "name", "state") | {
        "callID": part.get("id"),
        "tool": part.get("name"),
        "state": state,
    }


def _recognizes(source: Source) -> bool:
    if source.tables:
        return {"session", "message", "part"} <= source.tables or {
            "session",
            "session_message",
        } <= source.tables
    record = next(iter(first(source)), {})
    if "messages" in record:
        return _is_session(object_of(record.get("info")))
    return _is_object(source) and (_is_session(record) or _is_message(record))


def _read(source: Source) -> Iterator[Draft]:
    if source.tables:
        yield from _stored(source)
        return

    def made(record: Fields, line: int, source: Source) -> Draft | None:
        if "info" in record:
            items = objects_of(record["messages"])
            listed = (
                (object_of(item.get("info")), objects_of(item.get("parts"))) for item in items
            )
            return _draft(object_of(record["info"]), listed, source.tell, line)
        if _is_message(record):
            source.tell(f"session {record['sessionID']} is not there")
            return _draft(
                {"id": record["sessionID"]}, _messages(source.near("*.json"), source), source.tell
            )
        files = _neighbours(source, _MESSAGES, text_of(record["id"]))
        return _draft(record, _messages(files, source), source.tell)

    yield from read_each(source, made)


_PLACES = (
    "~/.local/share/opencode/opencode.db",
    "~/.local/share/opencode/storage/session/*/*.json",
)
FORMATS = [Format("opencode", "OpenCode", _recognizes, _read, is_part=_is_part, places=_PLACES)]
