"""The exports of Open WebUI: rows of chats, each a tree of messages with the current one.

A message holds all that an agent did: as marked parts of its text, or as items in `output`, of which the text is only
a picture then. It becomes several messages, and is written with the marks that every version shows. Pure.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from capsule.transfer import turns
from capsule.transfer.formats.open_webui_text import ITEMS, do, done, pieces, plain, show, shown, text_in
from capsule.transfer.interface import (
    ODD,
    Draft,
    Fields,
    Format,
    Pair,
    Source,
    first,
    given,
    moment,
    read_records,
    seconds,
    taken,
    text_of,
)
from capsule.transfer.rows import data_of, filled, object_of, objects_of, rest
from capsule.transfer.turns import Turn

_ROLES = ("user", "assistant", "system", "tool")
_TOKENS = {"prompt_tokens": "inputTokens", "input_tokens": "inputTokens", "prompt_eval_count": "inputTokens"}
_TOKENS |= {"completion_tokens": "outputTokens", "output_tokens": "outputTokens", "eval_count": "outputTokens"}
_TOKENS |= {"total_tokens": "totalTokens"}


def _time(time: str) -> int | float:
    found = seconds(time) or 0.0
    return int(found) if found.is_integer() else found


def _read_head(row: Fields) -> Fields:
    chat = object_of(row.get("chat"))
    tags = object_of(row.get("meta")).get("tags", chat.get("tags"))
    names = [tag.get("name") if isinstance(tag, dict) else tag for tag in tags] if isinstance(tags, list) else []
    switches = {name: row.get(name) is True for name in ("archived", "pinned")}
    current, forked = text_of(row.get("currentId")), text_of(chat.get("originalChatId"))
    metadata = filled({}, tags=[name for name in names if isinstance(name, str)], **switches)
    id = text_of(row.get("id")) or text_of(chat.get("id"))
    head = filled({}, id="" if id == "local" else id, title=text_of(row.get("title") or chat.get("title")))
    head = filled(head, createdAt=moment(row.get("created_at")) or moment(chat.get("timestamp")))
    system = chat.get("system") or object_of(chat.get("params")).get("system")
    return filled(
        head,
        updatedAt=moment(row.get("updated_at")),
        context={"fullContext": system} if isinstance(system, str) and system else {},
        metadata=filled(metadata, currentNode=current, forkedFrom=forked),
    )


def _write_head(head: Fields) -> Fields:
    metadata, chat, row = head.get("metadata", {}), dict[str, Any](), dict[str, Any]()
    if "id" in head:
        row["id"] = head["id"]
    if "title" in head:
        row["title"] = chat["title"] = head["title"]
    if isinstance(context := head.get("context"), dict) and isinstance(context.get("fullContext"), str):
        chat["system"] = context["fullContext"]
    if "forkedFrom" in metadata:
        chat["originalChatId"] = metadata["forkedFrom"]
    for key, name in {"created_at": "createdAt", "updated_at": "updatedAt"}.items():
        if name in head:
            row[key] = _time(head[name])
    for name in ("archived", "pinned"):
        row[name] = metadata.get(name, False)
    row["meta"] = {"tags": metadata["tags"]} if "tags" in metadata else {}
    return row | {"chat": chat} | ({"currentId": metadata["currentNode"]} if "currentNode" in metadata else {})


def _read(record: Fields) -> list[Fields]:
    content, role, form = record.get("content"), record.get("role"), ""
    entries = [{"role": role if role in _ROLES else "assistant", "content": text_in(content)}]
    if isinstance(record.get("output"), list) and record["output"]:
        entries = turns.said(done(record["output"]))
        form = "text" if content == plain(entries) else "output"
    elif turns.is_pieces(content):
        entries = turns.said(shown(content), at_once=True)
        begun = next(piece for piece in content if "mark" not in piece)
        form = "think" if "think" in begun else "quote" if begun.get("reasoning", "").startswith(">") else ""
    if files := [_read_file(file) for file in objects_of(record.get("files"))]:
        entries[0]["attachments"] = files
    counts = object_of(record.get("usage") or record.get("info"))
    usage = {ours: counts[name] for name, ours in _TOKENS.items() if isinstance(counts.get(name), int)}
    if metadata := filled({}, usage=usage, form=form):
        entries[-1]["metadata"] = metadata
    for entry in entries:
        if time := moment(record.get("timestamp")):
            entry["timestamp"] = time
        if isinstance(record.get("model"), str) and entry["role"] != "tool":
            entry["model"] = record["model"]
    if "id" in record:
        entries[-1]["id"] = record["id"]
    if "parentId" in record:
        entries[0]["parent"] = record["parentId"]
    return entries


def _read_file(file: Fields) -> Fields:
    stored, url = object_of(file.get("file")), text_of(file.get("url"))
    meta, kind = object_of(stored.get("meta")), text_of(file.get("type"))
    made: Fields = {"name": text_of(file.get("name") or stored.get("filename")) or kind or "file"}
    made["type"] = text_of(meta.get("content_type")) or kind or "file"
    if isinstance(file.get("id"), str):
        made["reference"] = file["id"]
    if url.startswith("data:"):
        with suppress(ValueError):
            made |= {"data": data_of(url) or b"", "type": re.split("[;,]", url[5:99])[0]}
    elif url:
        made["url"] = url
    text = object_of(stored.get("data")).get("content")
    return made | ({"text": text} if isinstance(text, str) else {})


def _write_file(file: Fields) -> Fields:
    kind, data = text_of(file.get("type")), file.get("data")
    made: Fields = {"type": "image" if kind.startswith("image") else "file", "name": file.get("name")}
    if "reference" in file:
        made["id"] = file["reference"]
    if isinstance(data, bytes):
        made["url"] = f"data:{kind};base64,{b64encode(data).decode()}"
    elif "url" in file:
        made["url"] = file["url"]
    if isinstance(file.get("text"), str):
        made["file"] = {"data": {"content": file["text"]}, "meta": {"content_type": kind}}
    return made


def _write(entries: list[Fields]) -> Fields:
    head, last = entries[0], entries[-1]
    form, is_told = last.get("metadata", {}).get("form"), len(entries) > 1 or head["role"] == "assistant"
    record: Fields = {"role": "assistant" if len(entries) > 1 else last["role"], "content": last["content"]}
    if form in ("output", "text") and is_told:
        record["output"] = do(entries)
    if form == "text":
        record["content"] = plain(entries)
    elif is_told and (len(entries) > 1 or "reasoning" in head or "toolCalls" in head):
        record["content"] = show(entries, text_of(form))
    if record["role"] == "assistant":
        record["done"] = True
    if files := head.get("attachments"):
        record["files"] = [_write_file(file) for file in files]
    if "timestamp" in last:
        record["timestamp"] = _time(last["timestamp"])
    if model := next((one["model"] for one in entries if "model" in one), None):
        record["model"] = model
    record |= {"id": last["id"]} if "id" in last else {}
    return record | ({"parentId": head["parent"]} if "parent" in head else {})


def _opened(record: Fields) -> Fields:
    """A message with its marked text in pieces, and the items of its output without those that say nothing to us."""
    record, text, output = dict(record), record.get("content"), record.get("output")
    if isinstance(text, str) and record.get("role") == "assistant" and "<" in text:
        record["content"] = pieces(text) or text
    if isinstance(output, list):
        places = {str(n): item for n, item in enumerate(output)}
        others = {n: item for n, item in places.items() if object_of(item).get("type") not in ITEMS}
        record["output"] = [item for n, item in places.items() if n not in others]
        record |= {"$others": others} if others else {}
    return record


def _closed(record: Fields) -> Fields:
    output = list(found) if isinstance(found := record.get("output"), list) else []
    for place, item in record.get("$others", {}).items():
        output.insert(int(place), item)
    return rest(record, "$others") | turns.with_text(record) | ({"output": output} if output else {})


_HEAD, _TURN = Pair(_read_head, _write_head), Turn(_read, _write, _opened, _closed)


def _draft(row: Fields, line: int, source: Source) -> Draft | None:
    if "chat" not in row:  # A chat of 2023, which is no row.
        row = filled({"chat": rest(row, "id", "title")}, id=row.get("id"), title=row.get("title"))
    chat, messages = object_of(row["chat"]), dict[str, Any]()
    history = object_of(chat.get("history"))
    is_tree = isinstance(history.get("messages"), dict)
    if is_tree:
        messages = history["messages"]
    elif isinstance(chat.get("messages"), list):
        messages = {text_of(object_of(one).get("id")) or f"#{n}": one for n, one in enumerate(chat["messages"])}
    else:
        source.tell("a chat that has no messages", line)
        return None
    about = row | {"chat": rest(chat, "history", "messages")}
    if "currentId" in history and text_of(history["currentId"])[:1] != "#":
        about["currentId"] = history["currentId"]
    draft, records = taken(_HEAD, about, _HEAD, [], line), []
    for key, message in messages.items():
        if not isinstance(message, dict) or not ("role" in message or "content" in message):
            source.tell(f"message {key!r:.60} is none", line)
            continue
        if is_tree and moment(message.get("timestamp")) is None and not draft.is_own:
            source.tell(f"message {key!r:.60} has no time", line)
        parent = message.get("parentId")
        records.append(message | {"id": key} | ({} if parent is None else {"parentId": text_of(parent)}))
    turns.without_children(records, "parentId", "childrenIds")
    for record in records:
        try:
            draft.history += _TURN.taken(record)
        except ODD as error:
            source.tell(f"message {record.get('id')!r:.60} is not understood: {error!r}"[:200], line)
    turns.with_current(draft, "currentId", about)
    return draft


def _read_file_of(source: Source) -> Iterator[Draft]:
    for line, record in read_records(source):
        for row in objects_of(record["chats"]) if isinstance(record.get("chats"), list) else [record]:
            try:
                draft = _draft(row, line, source)
            except ODD as error:
                source.tell(f"not understood: {type(error).__name__}: {error}"[:200], line)
                continue
            if draft is not None:
                yield draft


def _write_file_of(draft: Draft) -> bytes:
    records, homes = turns.records_of(draft, _TURN, turns.is_turn)
    row = turns.with_home(given(_HEAD, _HEAD, replace(draft, history=[]))[0], "currentId", homes)
    turns.with_children(records, "parentId", "childrenIds")
    current = {"currentId": records[-1]["id"]} if records else {}
    current |= {"currentId": row.pop("currentId")} if "currentId" in row else {}
    history = current | {"messages": {one["id"]: one for one in records}}
    return orjson.dumps(row | {"chat": {**row["chat"], "history": history, "messages": []}})


def _recognizes(source: Source) -> bool:
    def is_ours(record: Fields) -> bool:
        chats = [record, *objects_of(record.get("chats"))[:3]]
        histories = [object_of(object_of(one.get("chat", one)).get("history")) for one in chats]
        is_row = any(isinstance(one.get("chat"), dict) and "messages" in one["chat"] for one in chats)
        return is_row or any(isinstance(history.get("messages"), dict) for history in histories)

    return any(map(is_ours, first(source)))


_NAMES = ("open-webui", "Open WebUI")
FORMATS = [Format(*_NAMES, _recognizes, _read_file_of, _write_file_of, joined="array", embeds_files=True)]
