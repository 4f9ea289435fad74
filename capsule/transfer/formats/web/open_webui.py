"""Read and write the chats of Open WebUI: its exports, and the rows of its database.

A chat is a tree of messages, and names the current one. One message has everything that an agent
did in a turn: as marked parts of its text (`<details type="reasoning">`), or as items in `output`,
and then the text only repeats them. It becomes several messages here. They are written with the
marks, which every version of Open WebUI shows. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from html import escape, unescape
from typing import Any

from capsule.transfer.interface import (
    Draft,
    Format,
    Source,
    first_records,
    read_records,
    read_rows,
    reader_of_items,
    reporting_damage,
)
from capsule.transfer.records import coercion, turns
from capsule.transfer.records.coercion import (
    data_of,
    data_url,
    json_of,
    moment,
    object_of,
    objects_of,
    text_of,
    with_nonempty,
    without,
)
from capsule.transfer.records.round_trip import (
    Column,
    Fields,
    Pair,
    context_of,
    is_on,
    pair_of,
    text_of_context,
)
from capsule.transfer.records.turns import (
    Pieces,
    RecordFieldNames,
    TurnPair,
    calls_with_results,
    merge_marks,
    pieces_of,
)

_DETAILS = (
    r'(?s)<details type="(?P<type>reasoning|tool_calls|code_interpreter)"(?P<attributes>[^<>]*)>'
    r"(?:\s*<summary>[^<]*</summary>)?(?P<body>.*?)(?:</details>|\Z)|\A\s*<think>(?P<think>.*?)(?:</think>|\Z)"
)
_ATTRIBUTE = r'\b(id|name|arguments|result|output)="([^"]*)"'
_CODE = r"(?s)\s*```\w*\n(.*?)(?:\n?```\s*)?\Z"
#: What follows a part if the next message of the agent has no text.
_END = "</details>\n\n\n"
#: The items of an output that say something to us.
ITEMS = ("reasoning", "message", "function_call", "function_call_output")


def pieces(text: str) -> Pieces:
    """A text in pieces; empty: it has no marks."""
    return pieces_of(
        text, ((match.start(), match.end(), _spans(match)) for match in re.finditer(_DETAILS, text))
    )


def _spans(match: re.Match[str]) -> list[tuple[str, int, int]]:
    """What is between the marks of a part: the kind, where it begins and where it ends."""
    kind = match["type"]
    begin, text = (
        (match.start("think"), match["think"])
        if kind is None
        else (match.start("body"), match["body"])
    )
    body = (begin + len(text) - len(text.lstrip()), begin + len(text.rstrip()))
    if kind is None or kind == "reasoning":
        return [(kind or "think", min(body), max(body))]
    at = match.start("attributes")
    spans = [
        (pair[1], at + pair.start(2), at + pair.end(2))
        for pair in re.finditer(_ATTRIBUTE, match["attributes"])
    ]
    if kind == "code_interpreter" and (code := re.match(_CODE, text)):
        spans.append(("code", begin + code.start(1), begin + code.end(1)))
    return spans


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


def steps_of_text(pieces: Pieces) -> Iterator[tuple[str, Any]]:
    """What a text with marks says, step by step."""
    call: dict[str, str] = {}
    for piece in pieces:
        ((kind, text),) = piece.items()
        if kind == "reasoning":
            yield kind, re.sub("^> ?", "", unescape(text), flags=re.MULTILINE)
        elif kind == "think":
            yield "reasoning", text
        elif kind == "text":
            yield kind, text
        elif kind != "mark":
            call[kind] = text if kind == "code" else unescape(text)
        elif call and ("</details>" in text or piece is pieces[-1]):
            made = {
                "name": call.get("name", ""),
                "arguments": json_of(json_of(call.get("arguments", "{}"))),
            }
            if "code" in call or not call.keys() & {"name", "arguments"}:
                made = {"name": "code_interpreter", "arguments": {"code": call.get("code", "")}}
            yield "call", ({"id": call["id"]} if call.get("id") else {}) | made
            if {"result", "output"} & call.keys():
                said = call["output"] if "output" in call else text_of(json_of(call["result"]))
                yield (
                    "result",
                    {"content": said} | ({"toolCallId": call["id"]} if call.get("id") else {}),
                )
            call = {}
        if kind == "mark" and _END in text:
            yield "end", None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def text_with_marks(entries: list[Fields], form: str) -> Pieces:
    """The messages as a text with marks."""
    made: Pieces = []
    for place, (entry, results) in enumerate(calls_with_results(entries)):
        if place and not entry["content"] and "reasoning" not in entry:
            made[-1] = {"mark": made[-1]["mark"].replace("</details>\n", _END)}
        if isinstance(text := entry.get("reasoning"), str):
            marks = (
                '<details type="reasoning" done="true">\n<summary>Thought</summary>\n',
                "\n</details>\n",
            )
            piece = {"reasoning": _quoted(text) if form == "quote" else escape(_quoted(text))}
            if form == "think":
                marks, piece = ("<think>", "</think>\n"), {"think": text}
            made += [{"mark": marks[0]}, piece, {"mark": marks[1]}]
        if entry["content"]:
            made.append({"text": entry["content"]})
        for nth, call in enumerate(entry.get("toolCalls", ())):
            made += [{"mark": "\n"}] if made and "text" in made[-1] else []
            made += _show_call(call, [result["content"] for result in results[nth : nth + 1]])
    return merge_marks(made)


def _show_call(call: Fields, result: list[str]) -> Pieces:
    start, arguments = '<details type="{}" done="true"', call.get("arguments", {})
    if (
        call.get("name") == "code_interpreter"
        and isinstance(arguments, dict)
        and arguments.keys() == {"code"}
    ):
        made: Pieces = [{"mark": start.format("code_interpreter")}]
        made += (
            [{"mark": ' id="'}, {"id": escape(text_of(call["id"]))}, {"mark": '"'}]
            if "id" in call
            else []
        )
        for text in result:
            made += [{"mark": ' output="'}, {"output": escape(text)}, {"mark": '"'}]
        made += [
            {"mark": ">\n<summary>Analyzed</summary>\n```python\n"},
            {"code": text_of(arguments["code"])},
        ]
        return [*made, {"mark": "\n```\n</details>\n"}]
    text = arguments if isinstance(arguments, str) else _json(arguments)
    made = [{"mark": start.format("tool_calls") + ' id="'}, {"id": escape(text_of(call.get("id")))}]
    made += [{"mark": '" name="'}, {"name": escape(text_of(call.get("name")))}]
    made += [{"mark": '" arguments="'}, {"arguments": escape(json.dumps(text))}]
    for text in result:
        made += [{"mark": '" result="'}, {"result": escape(_json(text))}]
    return [*made, {"mark": '">\n<summary>Tool Executed</summary>\n</details>\n'}]


def steps_of_output(items: list[Fields]) -> Iterator[tuple[str, Any]]:
    """What the items of an output say, step by step."""
    for item in items:
        kind, id = (
            item.get("type"),
            {"id": item["call_id"]} if isinstance(item.get("call_id"), str) else {},
        )
        if kind == "function_call":
            yield (
                "call",
                id
                | {"name": text_of(item.get("name")), "arguments": json_of(item.get("arguments"))},
            )
        elif kind == "function_call_output":
            yield (
                "result",
                {"content": text_in(item.get("output"))} | ({"toolCallId": id["id"]} if id else {}),
            )
        else:
            text = text_in(item.get("content") or item.get("summary"))
            yield ("reasoning" if kind == "reasoning" else "text"), text


def text_in(parts: Any) -> str:
    """The text of a content: itself, or its parts."""
    if not isinstance(parts, list):
        return text_of(parts)
    return "\n\n".join(
        text_of(part.get("text") if isinstance(part, dict) else part) for part in parts
    )


def output_items(entries: list[Fields]) -> list[Fields]:
    """The messages as the items of an output."""
    items: list[Fields] = []
    for entry in entries:
        said = [{"type": "output_text", "text": entry["content"]}]
        if entry["role"] == "tool":
            id = {"call_id": entry["toolCallId"]} if "toolCallId" in entry else {}
            output = [{"type": "input_text", "text": entry["content"]}]
            items.append({"type": "function_call_output", **id, "output": output})
            continue
        if "reasoning" in entry:
            items.append(
                {
                    "type": "reasoning",
                    "content": [{"type": "output_text", "text": entry["reasoning"]}],
                }
            )
        if entry["content"] or not ("reasoning" in entry or "toolCalls" in entry):
            items.append({"type": "message", "role": "assistant", "content": said})
        for call in entry.get("toolCalls", ()):
            arguments = call.get("arguments")
            text = arguments if isinstance(arguments, str) else _json(arguments)
            id = {"call_id": call["id"]} if "id" in call else {}
            items.append(
                {"type": "function_call", **id, "name": call.get("name"), "arguments": text}
            )
    return items


def plain(entries: list[Fields]) -> str:
    """What the messages say, without reasoning, calls and results."""
    return "\n\n".join(
        entry["content"] for entry in entries if entry["role"] != "tool" and entry["content"]
    )


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
    return inner | with_nonempty(
        head, metadata=inner.get("metadata", {}) | head.get("metadata", {})
    )


_NAMES = RecordFieldNames("id", "parentId", "timestamp", _time)


def _read(record: Fields) -> list[Fields]:
    content, role, form = record.get("content"), record.get("role"), ""
    entries = [{"role": role if role in _ROLES else "assistant", "content": text_in(content)}]
    if isinstance(record.get("output"), list) and record["output"]:
        entries = turns.turn_messages(steps_of_output(record["output"]))
        form = "text" if content == plain(entries) else "output"
    elif turns.is_pieces(content):
        entries = turns.turn_messages(steps_of_text(content), at_once=True)
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
        record["output"] = output_items(entries)
    if form == "text":
        record["content"] = plain(entries)
    elif is_told and (len(entries) > 1 or "reasoning" in head or "toolCalls" in head):
        record["content"] = text_with_marks(entries, text_of(form))
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
        without(record, "$others")
        | turns.join_pieces(record)
        | ({"output": output} if output else {})
    )


_HEAD = Pair(_read_head, lambda head: _OF_THE_ROW.write(head) | {"chat": _OF_THE_CHAT.write(head)})
_TURN = TurnPair(_read, _write, _opened, _closed)


def _draft(row: Fields, line: int | None, source: Source) -> Draft | None:
    if "chat" not in row:  # A chat of 2023, which is no row.
        row = with_nonempty(
            {"chat": without(row, "id", "title")}, id=row.get("id"), title=row.get("title")
        )
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
    about = row | {"chat": without(chat, "history", "messages")}
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
        with reporting_damage(source.tell, f"message {record.get('id')!r:.60}", line):
            draft.history += _TURN.to_capsule(record)
    turns.choose_newest_message(draft, "currentId", about)
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
    row = turns.name_current_record(draft.head_record(_HEAD), "currentId", homes)
    turns.with_children(records, "parentId", "childrenIds")
    current = {"currentId": records[-1]["id"]} if records else {}
    current |= {"currentId": row.pop("currentId")} if "currentId" in row else {}
    history = current | {"messages": {record["id"]: record for record in records}}
    return coercion.encode_record(
        row | {"chat": {**row["chat"], "history": history, "messages": []}}
    )


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
    return {"auth", "chat", "user"} <= source.tables or any(map(_is_ours, first_records(source)))


_BOTH = (reader_of_items(_draft, _rows), _write_file_of)
FORMATS = [
    Format(
        "open-webui",
        "Open WebUI",
        _recognizes,
        *_BOTH,
        joined="array",
        embeds_files=True,
        is_portable=False,
    )
]
