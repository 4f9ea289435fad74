"""Read the conversations of Cursor from `state.vscdb`, a database of keys and values.

Cursor has one database for all workspaces, and one for each. That of a workspace has chats and
composers of older versions, and only the names of newer composers. A composer is a conversation,
and a bubble is a message of it. The composer lists its bubbles. Bubbles that it no longer lists
were cut off when the user returned to a checkpoint, and become branches. A tool call and its result
are one bubble there, and two messages here. The states of files are not imported. A missing or
damaged bubble is reported.

The database is read while Cursor writes it. Pure, and read-only.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from capsule.transfer.interface import Draft, Fields, Format, Source, read_items, read_rows
from capsule.transfer.records.mapping import (
    json_of,
    moment,
    object_of,
    objects_of,
    text_of,
    with_nonempty,
    without,
)

if TYPE_CHECKING:
    import sqlite3

#: Keys in the database of a workspace: chats, which came before composers, and composers, which had
#: their bubbles in them before 2025.
_CHATS_KEY = "workbench.panel.aichat.view.aichat.chatdata"
_COMPOSERS_KEY = "composer.composerData"
#: The rows whose key has a prefix. The range uses the index, which LIKE does not.
_ROWS_WITH_PREFIX = (
    "SELECT {} FROM cursorDiskKV WHERE key >= ? || ':' AND key < ? || ';' AND value NOT NULL "
    "ORDER BY rowid"
)
_ROW_OF_KEY = "SELECT key, value FROM {} WHERE key = ? AND value NOT NULL"
#: The fields of a composer and of a bubble that are mapped, or left out on purpose.
_COMPOSER_FIELDS = (
    "composerId",
    "name",
    "createdAt",
    "lastUpdatedAt",
    "isArchived",
    "text",
    "richText",
    "conversation",
    "conversationMap",
    "fullConversationHeadersOnly",
    "originalFileStates",
    "codeBlockData",
)
_BUBBLE_FIELDS = (
    "type",
    "bubbleId",
    "id",
    "text",
    "rawText",
    "richText",
    "initText",
    "createdAt",
    "thinking",
    "toolFormerData",
    "tokenCount",
    "images",
    "attachedCodeChunks",
    "modelInfo",
    "modelType",
)
#: The fields of a bubble's timing that may have its time.
_TIMING_FIELDS = ("clientRpcSendTime", "clientSettleTime", "clientEndTime", "clientStartTime")
#: An earlier time, in milliseconds, is of a clock that starts with the program.
_MIN_TIME_MS = 1e12
_ERROR_STATES = ("error", "cancelled")


def _unmapped(fields: Fields, *mapped: str) -> Fields:
    """Return the fields that are not mapped and not empty: most of a bubble are empty lists."""
    return with_nonempty({}, **without(fields, *mapped))


def _texts(node: Any) -> Iterator[str]:
    """Return the texts of a rich text, a line each."""
    nodes = [node]
    while nodes:
        fields = object_of(nodes.pop())
        if fields.get("text"):
            yield text_of(fields["text"])
        if "children" in fields or "root" in fields:
            nodes += reversed(fields.get("children") or [fields.get("root")])


def _time(bubble: Fields) -> str | None:
    """Return the time of a bubble. None: an older version noted none."""
    timing = object_of(bubble.get("timingInfo"))
    times = [
        timing[name]
        for name in _TIMING_FIELDS
        if isinstance(timing.get(name), int | float) and timing[name] > _MIN_TIME_MS
    ]
    return moment(bubble.get("createdAt", times[0] if times else None))


def _path(item: Fields) -> str:
    uri = object_of(item.get("uri"))
    return text_of(
        uri.get("fsPath")
        or uri.get("path")
        or item.get("relativeWorkspacePath")
        or item.get("path")
    )


def _attachments(bubble: Fields) -> list[Fields]:
    """Return images, files, and selections of code that a bubble has."""
    context = object_of(bubble.get("context"))
    attachments: list[Fields] = []
    for image in objects_of(bubble.get("images")):
        name = text_of(image.get("uuid")) or "image"
        attachment = with_nonempty({"name": name}, type=image.get("mimeType", "image"))
        data = image.get("data")
        if isinstance(data, str):
            attachment["data"] = b64decode(data)
        else:
            attachment["reference"] = _path(image)
        attachments.append(attachment)
    for file in objects_of(context.get("fileSelections")):
        attachments.append(_reference(file, "file"))
    for chunk in objects_of(bubble.get("attachedCodeChunks")):
        text = _text_of_lines(chunk.get("lines"))
        attachments.append(_reference(chunk, "selection") | {"text": text})
    for selection in objects_of(context.get("selections")):
        text = _text_of_lines(selection.get("text"))
        attachments.append(_reference(selection, "selection") | {"text": text})
    return attachments


def _text_of_lines(lines: Any) -> str:
    """Return a text that is stored as a list of lines, or as a text."""
    if isinstance(lines, list):
        return "\n".join(map(text_of, lines))
    return text_of(lines)


def _reference(item: Fields, kind: str) -> Fields:
    path = _path(item)
    return {"name": path.rpartition("/")[2], "type": kind, "reference": path}


def _messages(bubble: Fields) -> list[Fields]:
    """Return the messages of a bubble: its text and call, and the result of its tool."""
    id = text_of(bubble.get("bubbleId", bubble.get("id")))
    time = _time(bubble)
    text = text_of(bubble.get("text") or bubble.get("rawText"))
    if not text:
        text = "\n".join(_texts(bubble.get("richText") or bubble.get("initText")))
    thinking = bubble.get("thinking", "")
    thinking_fields = object_of(thinking) or {"text": thinking}
    tokens = object_of(bubble.get("tokenCount"))
    usage = {name: tokens[name] for name in ("inputTokens", "outputTokens") if tokens.get(name)}
    tool = object_of(bubble.get("toolFormerData"))
    source = with_nonempty(
        _unmapped(bubble, *_BUBBLE_FIELDS),
        thinking=_unmapped(thinking_fields, "text"),
        toolFormerData=_unmapped(tool, "name", "rawArgs", "toolCallId", "result", "error"),
    )
    entry = {
        "id": id,
        "role": "user" if bubble.get("type") in (1, "user") else "assistant",
        "content": text,
    }
    entry = with_nonempty(
        entry,
        timestamp=time,
        model=object_of(bubble.get("modelInfo")).get("modelName") or bubble.get("modelType"),
        reasoning=text_of(thinking_fields.get("text")),
        toolCalls=[_call(tool)] if tool else [],
        attachments=_attachments(bubble),
        metadata=with_nonempty({}, usage=usage, source=source),
    )
    result = _result(tool, f"{id}/result", time)
    return [entry, result] if result else [entry]


def _call(tool: Fields) -> Fields:
    call = {
        "name": text_of(tool.get("name") or tool.get("tool")),
        "arguments": json_of(tool.get("rawArgs") or tool.get("params") or {}),
    }
    return with_nonempty(call, id=tool.get("toolCallId"))


def _result(tool: Fields, id: str, time: str | None) -> Fields | None:
    """Return the message for the result of a tool. None: it has no result."""
    output = tool.get("result") or tool.get("error")
    status = tool.get("status")
    if not output and status != "completed" and status not in _ERROR_STATES:
        return None
    is_error = bool(tool.get("error")) or status in _ERROR_STATES
    return with_nonempty(
        {"id": id, "role": "tool", "content": text_of(output)},
        toolCallId=tool.get("toolCallId"),
        timestamp=time,
        metadata=with_nonempty({}, isError=is_error),
    )


def _cut_off(bubbles: list[Fields], entries: list[Fields]) -> Iterator[Fields]:
    """Return the messages of bubbles that the composer does not list.

    Each answers the last message of the list whose time is not later than its own.
    """
    earlier_messages = [(entry.get("timestamp") or "", entry["id"]) for entry in entries]
    for bubble in sorted(bubbles, key=lambda bubble: _time(bubble) or ""):
        messages = _messages(bubble)
        time = messages[0].get("timestamp") or ""
        earlier_ids = [id for earlier_time, id in earlier_messages if earlier_time <= time]
        messages[0]["parent"] = earlier_ids[-1] if earlier_ids else None
        earlier_messages.append((time, messages[-1]["id"]))
        yield from messages


def _value(row: Fields, source: Source) -> Fields:
    """Return the JSON object of a row. Anything else is reported, and empty."""
    value = row.get("value")
    fields = object_of(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
    if not fields:
        source.tell(f"{text_of(row['key'])[:120]} is not a JSON object")
    return fields


def _stored_composer(row: Fields, database: sqlite3.Connection, source: Source) -> Draft | None:
    """Return the draft of a composer whose bubbles have rows of their own."""
    id = text_of(row["key"]).partition(":")[2]
    prefix = f"bubbleId:{id}"
    bubbles = read_rows(database, _ROWS_WITH_PREFIX.format("key, value"), prefix, prefix)
    bubble_rows = {text_of(bubble["key"]).rpartition(":")[2]: bubble for bubble in bubbles}
    return _composer(_value(row, source) | {"composerId": id}, bubble_rows, source)


def _composer(data: Fields, bubble_rows: dict[str, Fields], source: Source) -> Draft | None:
    """Return the draft of a composer. None: it has no messages.

    `bubble_rows` are the rows of its bubbles by their ids. Those that it lists are removed. The
    remaining ones are branches.
    """
    id = text_of(data.get("composerId"))
    inline: dict[str, Fields] = {}
    for bubble in objects_of(data.get("conversation")):
        inline[text_of(bubble.get("bubbleId"))] = bubble
    for key, bubble in object_of(data.get("conversationMap")).items():
        inline[key] = object_of(bubble)
    headers = objects_of(data.get("fullConversationHeadersOnly"))
    listed_ids = [text_of(header.get("bubbleId")) for header in headers]
    entries: list[Fields] = []
    for key in dict.fromkeys(listed_ids or inline):
        row = bubble_rows.pop(key, None)
        if row is not None:
            fields = _value(row, source)
        elif key in inline:
            fields = inline[key]
        else:
            source.tell(f"bubble {key[:60]} of composer {id[:60]} is missing")
            continue
        if fields:
            entries += _messages({"bubbleId": key} | fields)
    unlisted = []
    for key, row in bubble_rows.items():
        fields = _value(row, source)
        if fields:
            unlisted.append({"bubbleId": key} | fields)
    history = [*entries, *_cut_off(unlisted, entries)]
    if not history:
        return None
    metadata = with_nonempty(
        {},
        archived=data.get("isArchived") is True,
        sourceConversationId=object_of(data.get("subagentInfo")).get("parentComposerId"),
        source=_unmapped(data, *_COMPOSER_FIELDS),
    )
    if entries:
        metadata["currentNode"] = entries[-1]["id"]
    head = with_nonempty(
        {"id": id, "metadata": metadata},
        title=data.get("name"),
        createdAt=moment(data.get("createdAt")),
        updatedAt=moment(data.get("lastUpdatedAt")),
    )
    return Draft(head, history)


def _chat(tab: Fields) -> Draft | None:
    """Return the draft of a chat of the versions before composers. None: it has no messages."""
    history = [entry for bubble in objects_of(tab.get("bubbles")) for entry in _messages(bubble)]
    if not history:
        return None
    source = _unmapped(tab, "tabId", "chatTitle", "lastSendTime", "bubbles")
    head = with_nonempty(
        {"id": text_of(tab.get("tabId"))},
        title=tab.get("chatTitle"),
        metadata=with_nonempty({}, source=source),
        updatedAt=moment(tab.get("lastSendTime")),
    )
    return Draft(head, history)


def _items(
    database: sqlite3.Connection, source: Source, key: str, name: str
) -> Iterator[tuple[None, Fields]]:
    """Return the objects in the list `name` of the value of a key of a workspace."""
    if "ItemTable" not in source.tables:
        return
    for row in read_rows(database, _ROW_OF_KEY.format("ItemTable"), key):
        for item in objects_of(_value(row, source).get(name)):
            yield None, item


def _read(source: Source) -> Iterator[Draft]:
    with source.database() as database:
        if "cursorDiskKV" in source.tables:
            sql = _ROWS_WITH_PREFIX.format("key")
            keys = [row["key"] for row in read_rows(database, sql, "composerData", "composerData")]
            # Pairs of a line and a record, as `read_items` takes them. A database has no lines.
            rows = (
                (None, row)
                for key in keys
                for row in read_rows(database, _ROW_OF_KEY.format("cursorDiskKV"), key)
            )
            yield from read_items(
                source, lambda row, *_: _stored_composer(row, database, source), rows
            )
        chats = _items(database, source, _CHATS_KEY, "tabs")
        yield from read_items(source, lambda tab, *_: _chat(tab), chats)
        composers = _items(database, source, _COMPOSERS_KEY, "allComposers")
        yield from read_items(source, lambda data, *_: _composer(data, {}, source), composers)


def _recognizes(source: Source) -> bool:
    if "cursorDiskKV" in source.tables:
        return True
    if "ItemTable" not in source.tables:
        return False
    with source.database() as database:  # VS Code has this table too.
        sql = _ROW_OF_KEY.format("ItemTable")
        return any(list(read_rows(database, sql, key)) for key in (_CHATS_KEY, _COMPOSERS_KEY))


_FOLDERS = ("~/.config/Cursor", "~/Library/Application Support/Cursor")
_PLACES = tuple(
    f"{folder}/User/{place}/state.vscdb"
    for folder in _FOLDERS
    for place in ("globalStorage", "workspaceStorage/*")
)
FORMATS = [
    Format("cursor", "Cursor", recognizes=_recognizes, read=_read, places=_PLACES),
]
