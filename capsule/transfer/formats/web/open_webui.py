"""The exports of Open WebUI, and its database: rows of chats, each a tree of messages with the
current one.

A message holds all that an agent did: as marked parts of its text, or as items in `output`, of
which the text is only a picture then. It becomes several messages, and is written with the marks
that every version shows. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from capsule.transfer.formats.web.open_webui_text import (
    ITEMS,
    do,
    done,
    pieces,
    plain,
    show,
    shown,
    text_in,
)
from capsule.transfer.interface import (
    Draft,
    Format,
    Source,
    around,
    each,
    first,
    read_records,
    read_rows,
)
from capsule.transfer.records import coercion, turns
from capsule.transfer.records.coercion import (
    data_of,
    data_url,
    filled,
    moment,
    object_of,
    objects_of,
    rest,
    text_of,
)
from capsule.transfer.records.pairs import (
    Column,
    Fields,
    Pair,
    context_of,
    is_on,
    pair_of,
    text_of_context,
)
from capsule.transfer.records.turns import Names, Turn

_ROLES = ("user", "assistant", "system", "tool")
_TOKENS = {
    "prompt_tokens": "inputTokens",
    "input_tokens": "inputTokens",
    "prompt_eval_count": "inputTokens",
}
_TOKENS |= {
    "completion_tokens": "outputTokens",
    "output_tokens": "outputTokens",
    "eval_count": "outputTokens",
}
_TOKENS |= {"total_tokens": "totalTokens"}


def _time(time: str) -> int | float:
    number = coercion.seconds(time) or 0.0
    return int(number) if number.is_integer() else number


def _id(value: Any) -> str:
    return "" if value == "local" else text_of(value)


def _tags(tags: Any) -> list[str]:
    names = (
        [tag.get("name") if isinstance(tag, dict) else tag for tag in tags]
        if isinstance(tags, list)
        else []
    )
    return [name for name in names if isinstance(name, str)]


_OF_THE_ROW = pair_of(
    Column("id", "id", _id),
    Column("title", "title", text_of),
    Column("created_at", "createdAt", moment, _time),
    Column("updated_at", "updatedAt", moment, _time),
    Column("archived", "metadata.archived", is_on, default=False),
    Column("pinned", "metadata.pinned", is_on, default=False),
    Column(
        "meta",
        "metadata.tags",
        lambda meta: _tags(object_of(meta).get("tags")),
        lambda tags: {"tags": tags},
        {},
    ),
    Column("currentId", "metadata.currentNode", text_of),
)
_OF_THE_CHAT = pair_of(
    Column("id", "id", _id, None),
    Column("title", "title", text_of),
    Column("timestamp", "createdAt", moment, None),
    Column("tags", "metadata.tags", _tags, None),
    Column("system", "context", context_of, text_of_context),
    Column("params", "context", lambda params: context_of(object_of(params).get("system")), None),
    Column("originalChatId", "metadata.forkedFrom", text_of),
)


def _read_head(row: Fields) -> Fields:
    head, inner = _OF_THE_ROW.read(row), _OF_THE_CHAT.read(object_of(row.get("chat")))
    return inner | filled(head, metadata=inner.get("metadata", {}) | head.get("metadata", {}))


_NAMES = Names("id", "parentId", "timestamp", _time)


def _read(record: Fields) -> list[Fields]:
    content, role, form = record.get("content"), record.get("role"), ""
    entries = [{"role": role if role in _ROLES else "assistant", "content": text_in(content)}]
    if isinstance(record.get("output"), list) and record["output"]:
        entries = turns.said(done(record["output"]))
        form = "text" if content == plain(entries) else "output"
    elif turns.is_pieces(content):
        entries = turns.said(shown(content), at_once=True)
        begun = next(piece for piece in content if "mark" not in piece)
        form = (
            "think"
            if "think" in begun
            else "quote"
            if begun.get("reasoning", "").startswith(">")
            else ""
        )
    counts = object_of(record.get("usage") or record.get("info"))
    usage = {
        ours: counts[name] for name, ours in _TOKENS.items() if isinstance(counts.get(name), int)
    }
    return _NAMES.read(
        record, entries, [_read_file(file) for file in objects_of(record.get("files"))], usage, form
    )


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
    made: Fields = {
        "type": "image" if kind.startswith("image") else "file",
        "name": file.get("name"),
    }
    if "reference" in file:
        made["id"] = file["reference"]
    if isinstance(data, bytes):
        made["url"] = data_url(kind, data)
    elif "url" in file:
        made["url"] = file["url"]
    if isinstance(file.get("text"), str):
        made["file"] = {"data": {"content": file["text"]}, "meta": {"content_type": kind}}
    return made


def _write(entries: list[Fields]) -> Fields:
    head, last = entries[0], entries[-1]
    form, is_told = (
        last.get("metadata", {}).get("form"),
        len(entries) > 1 or head["role"] == "assistant",
    )
    record: Fields = {
        "role": "assistant" if len(entries) > 1 else last["role"],
        "content": last["content"],
    }
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
    return record | _NAMES.write(entries)


def _opened(record: Fields) -> Fields:
    """A message with its marked text in pieces, and only the items of its output that are read."""
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
    output = list(items) if isinstance(items := record.get("output"), list) else []
    for place, item in record.get("$others", {}).items():
        output.insert(int(place), item)
    return (
        rest(record, "$others") | turns.with_text(record) | ({"output": output} if output else {})
    )


_HEAD = Pair(_read_head, lambda head: _OF_THE_ROW.write(head) | {"chat": _OF_THE_CHAT.write(head)})
_TURN = Turn(_read, _write, _opened, _closed)


def _draft(row: Fields, line: int | None, source: Source) -> Draft | None:
    if "chat" not in row:  # A chat of 2023, which is no row.
        row = filled({"chat": rest(row, "id", "title")}, id=row.get("id"), title=row.get("title"))
    chat, messages = object_of(row["chat"]), dict[str, Any]()
    history = object_of(chat.get("history"))
    is_tree = isinstance(history.get("messages"), dict)
    if is_tree:
        messages = history["messages"]
    elif isinstance(chat.get("messages"), list):
        messages = {
            text_of(object_of(entry).get("id")) or f"#{n}": entry
            for n, entry in enumerate(chat["messages"])
        }
    if not is_tree and (history or not isinstance(chat.get("messages"), list)):
        source.tell("a chat that has no messages", line)
        return None
    about = row | {"chat": rest(chat, "history", "messages")}
    if "currentId" in history and text_of(history["currentId"])[:1] != "#":
        about["currentId"] = history["currentId"]
    draft, records = Draft.of_head(_HEAD, about, line), []
    for key, message in messages.items():
        if not isinstance(message, dict) or not ("role" in message or "content" in message):
            source.tell(f"message {key!r:.60} is none", line)
            continue
        if is_tree and moment(message.get("timestamp")) is None and not draft.is_own:
            source.tell(f"message {key!r:.60} has no time", line)
        parent = message.get("parentId")
        records.append(
            message | {"id": key} | ({} if parent is None else {"parentId": text_of(parent)})
        )
    turns.without_children(records, "parentId", "childrenIds")
    for record in records:
        with around(source.tell, f"message {record.get('id')!r:.60}", line):
            draft.history += _TURN.to_capsule(record)
    turns.with_current(draft, "currentId", about)
    return draft


def _rows(source: Source) -> Iterator[tuple[int | None, Fields]]:
    """The rows of an export; of a database the rows of all users, in the form of an export."""
    if source.tables:
        with source.database() as database:
            for row in read_rows(database, "SELECT * FROM chat ORDER BY rowid"):
                flags = {name: row.get(name) == 1 for name in ("archived", "pinned")}
                yield (
                    None,
                    row
                    | flags
                    | {"chat": object_of(row.get("chat")), "meta": object_of(row.get("meta"))},
                )
        return
    for line, record in read_records(source):
        listed = record.get("chats")
        yield from (
            (line, row) for row in (objects_of(listed) if isinstance(listed, list) else [record])
        )


def _write_file_of(draft: Draft) -> bytes:
    records, homes = turns.records_of(draft, _TURN, turns.is_turn)
    row = turns.with_home(draft.head_record(_HEAD), "currentId", homes)
    turns.with_children(records, "parentId", "childrenIds")
    current = {"currentId": records[-1]["id"]} if records else {}
    current |= {"currentId": row.pop("currentId")} if "currentId" in row else {}
    history = current | {"messages": {record["id"]: record for record in records}}
    return coercion.encoded(row | {"chat": {**row["chat"], "history": history, "messages": []}})


def _is_ours(record: Fields) -> bool:
    chats = [record, *objects_of(record.get("chats"))[:3]]
    histories = [
        object_of(object_of(listed.get("chat", listed)).get("history")) for listed in chats
    ]
    is_row = any(
        isinstance(listed.get("chat"), dict) and "messages" in listed["chat"] for listed in chats
    )
    return is_row or any(isinstance(history.get("messages"), dict) for history in histories)


def _recognizes(source: Source) -> bool:
    return {"auth", "chat", "user"} <= source.tables or any(map(_is_ours, first(source)))


_BOTH = (each(_draft, _rows), _write_file_of)
FORMATS = [
    Format("open-webui", "Open WebUI", _recognizes, *_BOTH, joined="array", embeds_files=True)
]
