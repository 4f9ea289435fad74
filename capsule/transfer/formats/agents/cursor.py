"""Cursor: `state.vscdb`, a database of keys and values, read while Cursor writes it.

There is one for all workspaces, and one for each. That of a workspace has chats and composers of
older versions, and of newer composers only the names. A composer is a conversation, a bubble one
message of it. The composer lists its bubbles; those that it no longer lists were cut off when it
was set back to a checkpoint, and are branches. A call of a tool and its result are one bubble here,
and two messages for us. What the editor keeps beside the talk, the states of files, is not taken.
Pure, and read-only.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from capsule.transfer.interface import Draft, Fields, Format, Source, read_each, read_rows
from capsule.transfer.records.coercion import (
    filled,
    json_of,
    moment,
    object_of,
    objects_of,
    rest,
    text_of,
)

if TYPE_CHECKING:
    import sqlite3

#: What the database of a workspace has under a key: chats, before composers; and composers, before
#: 2025 with bubbles.
_CHATS, _COMPOSERS = "workbench.panel.aichat.view.aichat.chatdata", "composer.composerData"
#: What has a key with a prefix; the range uses the index, which LIKE does not.
_BELOW = (
    "SELECT {} FROM cursorDiskKV WHERE key >= ? || ':' AND key < ? || ';' AND value NOT NULL "
    "ORDER BY rowid"
)
_AT = "SELECT key, value FROM {} WHERE key = ? AND value NOT NULL"
_OF_A_COMPOSER = (
    *("composerId", "name", "createdAt", "lastUpdatedAt", "isArchived", "text", "richText"),
    *(
        "conversation",
        "conversationMap",
        "fullConversationHeadersOnly",
        "originalFileStates",
        "codeBlockData",
    ),
)
_OF_A_BUBBLE = (
    *(
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
    ),
    *("tokenCount", "images", "attachedCodeChunks", "modelInfo", "modelType"),
)
_TIMES = ("clientRpcSendTime", "clientSettleTime", "clientEndTime", "clientStartTime")
_FAILED = ("error", "cancelled")


def _rest(fields: Fields, *mapped: str) -> Fields:
    """What is not mapped and not empty: most fields of a bubble are empty lists."""
    return filled({}, **rest(fields, *mapped))


def _texts(node: Any) -> Iterator[str]:
    """The texts of a rich text, a line each."""
    nodes = [node]
    while nodes:
        at = object_of(nodes.pop())
        if at.get("text"):
            yield text_of(at["text"])
        nodes += reversed(
            at.get("children") or [at.get("root")] if "children" in at or "root" in at else []
        )


def _time(bubble: Fields) -> str | None:
    """When a bubble was made; older versions noted no time, or one of a clock that starts with the
    program.
    """
    timing = object_of(bubble.get("timingInfo"))
    known = [
        timing[name]
        for name in _TIMES
        if isinstance(timing.get(name), int | float) and timing[name] > 1e12
    ]
    return moment(bubble.get("createdAt", known[0] if known else None))


def _path(item: Fields) -> str:
    uri = object_of(item.get("uri"))
    return text_of(
        uri.get("fsPath")
        or uri.get("path")
        or item.get("relativeWorkspacePath")
        or item.get("path")
    )


def _attachments(bubble: Fields) -> list[Fields]:
    context, files = object_of(bubble.get("context")), list[Fields]()
    for image in objects_of(bubble.get("images")):
        made = filled(
            {"name": text_of(image.get("uuid")) or "image"}, type=image.get("mimeType", "image")
        )
        data = image.get("data")
        files.append(
            made
            | ({"data": b64decode(data)} if isinstance(data, str) else {"reference": _path(image)})
        )
    for item in objects_of(context.get("fileSelections")):
        files.append(
            {"name": _path(item).rpartition("/")[2], "type": "file", "reference": _path(item)}
        )
    chunks = [(chunk, chunk.get("lines")) for chunk in objects_of(bubble.get("attachedCodeChunks"))]
    for item, said in [
        *chunks,
        *((part, part.get("text")) for part in objects_of(context.get("selections"))),
    ]:
        text = "\n".join(map(text_of, said)) if isinstance(said, list) else text_of(said)
        files.append({"name": _path(item).rpartition("/")[2], "type": "selection"})
        files[-1] |= {"reference": _path(item), "text": text}
    return files


def _messages(bubble: Fields) -> list[Fields]:
    """The messages of a bubble: its text and calls, and the answer of its tool."""
    id, time = text_of(bubble.get("bubbleId", bubble.get("id"))), _time(bubble)
    tool = object_of(bubble.get("toolFormerData"))
    text = text_of(bubble.get("text") or bubble.get("rawText"))
    text = text or "\n".join(_texts(bubble.get("richText") or bubble.get("initText")))
    thought = bubble.get("thinking", "")
    thinking = object_of(thought) or {"text": thought}
    tokens = object_of(bubble.get("tokenCount"))
    usage = {name: tokens[name] for name in ("inputTokens", "outputTokens") if tokens.get(name)}
    left = _rest(bubble, *_OF_A_BUBBLE) | filled({}, thinking=_rest(thinking, "text"))
    calls, results = [], []
    if tool:
        call = {"name": text_of(tool.get("name") or tool.get("tool"))}
        call["arguments"] = json_of(tool.get("rawArgs") or tool.get("params") or {})
        calls.append(filled(call, id=tool.get("toolCallId")))
        left |= filled(
            {}, toolFormerData=_rest(tool, "name", "rawArgs", "toolCallId", "result", "error")
        )
        if tool.get("result") or tool.get("error") or tool.get("status") in ("completed", *_FAILED):
            answer = {
                "id": f"{id}/result",
                "role": "tool",
                "content": text_of(tool.get("result") or tool.get("error")),
            }
            is_error = bool(tool.get("error")) or tool.get("status") in _FAILED
            about = {"isError": True} if is_error else {}
            results.append(
                filled(answer, toolCallId=tool.get("toolCallId"), timestamp=time, metadata=about)
            )
    entry = {
        "id": id,
        "role": "user" if bubble.get("type") in (1, "user") else "assistant",
        "content": text,
    }
    model = object_of(bubble.get("modelInfo")).get("modelName") or bubble.get("modelType")
    fields = filled(
        {}, timestamp=time, model=model, reasoning=text_of(thinking.get("text")), toolCalls=calls
    )
    about = filled({}, usage=usage, source=left)
    return [entry | filled(fields, attachments=_attachments(bubble), metadata=about), *results]


def _cut_off(bubbles: list[Fields], entries: list[Fields]) -> Iterator[Fields]:
    """The messages of bubbles that the composer does not list: each answers the last one before it
    by time.
    """
    before = [(entry.get("timestamp") or "", entry["id"]) for entry in entries]
    for bubble in sorted(bubbles, key=lambda bubble: _time(bubble) or ""):
        said = _messages(bubble)
        time = said[0].get("timestamp") or ""
        earlier = [id for at, id in before if at <= time]
        said[0]["parent"] = earlier[-1] if earlier else None
        before.append((time, said[-1]["id"]))
        yield from said


def _value(row: Fields, source: Source) -> Fields:
    value = row.get("value")
    fields = object_of(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
    if not fields:
        source.tell(f"{text_of(row['key'])[:120]} is not a JSON object")
    return fields


def _stored(row: Fields, database: sqlite3.Connection, source: Source) -> Draft | None:
    id = text_of(row["key"]).partition(":")[2]
    bubbles = read_rows(database, _BELOW.format("key, value"), *[f"bubbleId:{id}"] * 2)
    stored = {text_of(bubble["key"]).rpartition(":")[2]: bubble for bubble in bubbles}
    return _composer(_value(row, source) | {"composerId": id}, stored, source)


def _composer(data: Fields, stored: dict[str, Fields], source: Source) -> Draft | None:
    id = text_of(data.get("composerId"))
    inline = {
        text_of(bubble.get("bubbleId")): bubble for bubble in objects_of(data.get("conversation"))
    }
    inline |= {
        key: object_of(bubble) for key, bubble in object_of(data.get("conversationMap")).items()
    }
    listed = [
        text_of(header.get("bubbleId"))
        for header in objects_of(data.get("fullConversationHeadersOnly"))
    ]
    entries: list[Fields] = []
    for key in dict.fromkeys(listed or inline):
        bubble = stored.pop(key, None)
        if bubble is None and key not in inline:
            source.tell(f"bubble {key[:60]} of composer {id[:60]} is not there")
            continue
        fields = inline[key] if bubble is None else _value(bubble, source)
        entries += _messages({"bubbleId": key} | fields) if fields else []
    others = [
        {"bubbleId": key} | fields
        for key, bubble in stored.items()
        if (fields := _value(bubble, source))
    ]
    history = [*entries, *_cut_off(others, entries)]
    if not history:
        return None
    parent = object_of(data.get("subagentInfo")).get("parentComposerId")
    metadata = filled({}, archived=data.get("isArchived") is True, sourceConversationId=parent)
    metadata = filled(metadata, source=_rest(data, *_OF_A_COMPOSER))
    metadata |= {"currentNode": entries[-1]["id"]} if entries else {}
    head = filled(
        {"id": id, "metadata": metadata},
        title=data.get("name"),
        createdAt=moment(data.get("createdAt")),
    )
    return Draft(filled(head, updatedAt=moment(data.get("lastUpdatedAt"))), history)


def _chat(tab: Fields) -> Draft | None:
    """A conversation of the versions before composers."""
    history = [entry for bubble in objects_of(tab.get("bubbles")) for entry in _messages(bubble)]
    about = filled({}, source=_rest(tab, "tabId", "chatTitle", "lastSendTime", "bubbles"))
    head = filled({"id": text_of(tab.get("tabId"))}, title=tab.get("chatTitle"), metadata=about)
    return (
        Draft(filled(head, updatedAt=moment(tab.get("lastSendTime"))), history) if history else None
    )


def _items(
    database: sqlite3.Connection, source: Source, key: str, name: str
) -> Iterator[tuple[None, Fields]]:
    """The objects that a workspace has in a list under a key."""
    for row in (
        read_rows(database, _AT.format("ItemTable"), key) if "ItemTable" in source.tables else ()
    ):
        yield from ((None, item) for item in objects_of(_value(row, source).get(name)))


def _read(source: Source) -> Iterator[Draft]:
    with source.database() as database:
        if "cursorDiskKV" in source.tables:
            keys = [
                row["key"]
                for row in read_rows(database, _BELOW.format("key"), *["composerData"] * 2)
            ]
            rows = (
                (None, row)
                for key in keys
                for row in read_rows(database, _AT.format("cursorDiskKV"), key)
            )
            yield from read_each(source, lambda row, *_: _stored(row, database, source), rows)
        yield from read_each(
            source, lambda tab, *_: _chat(tab), _items(database, source, _CHATS, "tabs")
        )
        listed = _items(database, source, _COMPOSERS, "allComposers")
        yield from read_each(source, lambda data, *_: _composer(data, {}, source), listed)


def _recognizes(source: Source) -> bool:
    if "cursorDiskKV" in source.tables or "ItemTable" not in source.tables:
        return "cursorDiskKV" in source.tables
    with source.database() as database:  # VS Code has the table too.
        return any(
            list(read_rows(database, _AT.format("ItemTable"), key)) for key in (_CHATS, _COMPOSERS)
        )


_FOLDERS = ("~/.config/Cursor", "~/Library/Application Support/Cursor")
_PLACES = tuple(
    f"{folder}/User/{place}/state.vscdb"
    for folder in _FOLDERS
    for place in ("globalStorage", "workspaceStorage/*")
)
FORMATS = [Format("cursor", "Cursor", _recognizes, _read, places=_PLACES)]
