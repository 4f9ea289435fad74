"""Read and write the chats of Open WebUI: its exports, and the rows of its database.

A chat is a tree of messages, and names the current one. One message has everything that an agent
did in a turn: as marked parts of its text (`<details type="reasoning">`), or as items in `output`,
and then the text only repeats them. It becomes several messages here. They are written with the
marks, which every version of Open WebUI shows.

`metadata.form` of the last message says how its record was laid out: empty for the usual marks, or
a `_FORM_...`. A message that can't be read is reported and left out. Pure.
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
from capsule.transfer.records import mapping, turns
from capsule.transfer.records.mapping import (
    Column,
    Fields,
    Pair,
    context_of,
    data_of,
    data_url,
    is_on,
    json_of,
    moment,
    object_of,
    objects_of,
    pair_of,
    text_of,
    text_of_context,
    with_nonempty,
    without,
)
from capsule.transfer.records.turns import Pieces, RecordFieldNames, TurnPair

_DETAILS = (
    r'(?s)<details type="(?P<type>reasoning|tool_calls|code_interpreter)"(?P<attributes>[^<>]*)>'
    r"(?:\s*<summary>[^<]*</summary>)?(?P<body>.*?)(?:</details>|\Z)|\A\s*<think>(?P<think>.*?)(?:</think>|\Z)"
)
_ATTRIBUTE = r'\b(id|name|arguments|result|output)="([^"]*)"'
_CODE = r"(?s)\s*```\w*\n(.*?)(?:\n?```\s*)?\Z"
#: The end of a part if the next message of the agent has no text.
_END = "</details>\n\n\n"
#: The items of an output that are read.
_OUTPUT_ITEMS = ("reasoning", "message", "function_call", "function_call_output")
#: The layouts of a record: reasoning in `<think>`, quoted lines that are not escaped, items with a
#: text that repeats them, and items with another text.
_FORM_THINK = "think"
_FORM_QUOTE = "quote"
_FORM_TEXT = "text"
_FORM_OUTPUT = "output"


def _pieces(text: str) -> Pieces:
    """Return a text in pieces. Empty: it has no marks."""
    matches = re.finditer(_DETAILS, text)
    parts = ((match.start(), match.end(), _spans(match)) for match in matches)
    return turns.pieces_of(text, parts)


def _spans(match: re.Match[str]) -> list[tuple[str, int, int]]:
    """Return the kind, begin and end of each text between the marks of a part."""
    kind = match["type"]
    group = "think" if kind is None else "body"
    begin = match.start(group)
    text = match[group]
    body_begin = begin + len(text) - len(text.lstrip())
    body_end = begin + len(text.rstrip())
    if kind is None or kind == "reasoning":
        return [(kind or "think", min(body_begin, body_end), max(body_begin, body_end))]
    offset = match.start("attributes")
    spans = [
        (attribute[1], offset + attribute.start(2), offset + attribute.end(2))
        for attribute in re.finditer(_ATTRIBUTE, match["attributes"])
    ]
    code = re.match(_CODE, text) if kind == "code_interpreter" else None
    if code:
        spans.append(("code", begin + code.start(1), begin + code.end(1)))
    return spans


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


def _steps_of_text(pieces: Pieces) -> Iterator[tuple[str, Any]]:
    """Return the steps of a text with marks, for `turns.turn_messages`."""
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
            yield from _steps_of_call(call)
            call = {}
        if kind == "mark" and _END in text:
            yield "end", None


def _steps_of_call(call: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Return a call, and its result if it has one. `call` has the texts between its marks."""
    fields: Fields = {"id": call["id"]} if call.get("id") else {}
    if "code" in call or not call.keys() & {"name", "arguments"}:
        fields["name"] = "code_interpreter"
        fields["arguments"] = {"code": call.get("code", "")}
    else:
        fields["name"] = call.get("name", "")
        fields["arguments"] = json_of(json_of(call.get("arguments", "{}")))
    yield "call", fields
    if "output" in call:
        content = call["output"]
    elif "result" in call:
        content = text_of(json_of(call["result"]))
    else:
        return
    result: Fields = {"content": content}
    if call.get("id"):
        result["toolCallId"] = call["id"]
    yield "result", result


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _arguments_text(arguments: Any) -> str:
    """Return the arguments of a call as a text, which is JSON unless they are a text already."""
    if isinstance(arguments, str):
        return arguments
    return _json(arguments)


def _text_with_marks(entries: list[Fields], form: str) -> Pieces:
    """Return the text of messages in pieces, with marks."""
    pieces: Pieces = []
    for position, (entry, results) in enumerate(turns.calls_with_results(entries)):
        if position and not entry["content"] and "reasoning" not in entry:
            pieces[-1] = {"mark": pieces[-1]["mark"].replace("</details>\n", _END)}
        if isinstance(entry.get("reasoning"), str):
            pieces += _marked_reasoning(entry["reasoning"], form)
        if entry["content"]:
            pieces.append({"text": entry["content"]})
        for number, call in enumerate(entry.get("toolCalls", ())):
            if pieces and "text" in pieces[-1]:
                pieces.append({"mark": "\n"})
            outputs = [result["content"] for result in results[number : number + 1]]
            pieces += _marked_call(call, outputs)
    return turns.merge_marks(pieces)


def _marked_reasoning(reasoning: str, form: str) -> Pieces:
    if form == _FORM_THINK:
        return [{"mark": "<think>"}, {"think": reasoning}, {"mark": "</think>\n"}]
    quoted = _quoted(reasoning)
    return [
        {"mark": '<details type="reasoning" done="true">\n<summary>Thought</summary>\n'},
        {"reasoning": quoted if form == _FORM_QUOTE else escape(quoted)},
        {"mark": "\n</details>\n"},
    ]


def _marked_call(call: Fields, outputs: list[str]) -> Pieces:
    """Return a call with its output in marks. `outputs` has one text, or none."""
    arguments = call.get("arguments", {})
    is_code = call.get("name") == "code_interpreter" and isinstance(arguments, dict)
    if is_code and arguments.keys() == {"code"}:
        return _marked_code(call, text_of(arguments["code"]), outputs)
    pieces: Pieces = [
        {"mark": '<details type="tool_calls" done="true" id="'},
        {"id": escape(text_of(call.get("id")))},
        {"mark": '" name="'},
        {"name": escape(text_of(call.get("name")))},
        {"mark": '" arguments="'},
        {"arguments": escape(json.dumps(_arguments_text(arguments)))},
    ]
    for output in outputs:
        pieces += [{"mark": '" result="'}, {"result": escape(_json(output))}]
    pieces.append({"mark": '">\n<summary>Tool Executed</summary>\n</details>\n'})
    return pieces


def _marked_code(call: Fields, code: str, outputs: list[str]) -> Pieces:
    pieces: Pieces = [{"mark": '<details type="code_interpreter" done="true"'}]
    if "id" in call:
        pieces += [{"mark": ' id="'}, {"id": escape(text_of(call["id"]))}, {"mark": '"'}]
    for output in outputs:
        pieces += [{"mark": ' output="'}, {"output": escape(output)}, {"mark": '"'}]
    pieces += [
        {"mark": ">\n<summary>Analyzed</summary>\n```python\n"},
        {"code": code},
        {"mark": "\n```\n</details>\n"},
    ]
    return pieces


def _steps_of_output(items: list[Fields]) -> Iterator[tuple[str, Any]]:
    """Return the steps of the items of an output, for `turns.turn_messages`."""
    for item in items:
        kind = item.get("type")
        has_id = isinstance(item.get("call_id"), str)
        if kind == "function_call":
            call: Fields = {}
            if has_id:
                call["id"] = item["call_id"]
            call["name"] = text_of(item.get("name"))
            call["arguments"] = json_of(item.get("arguments"))
            yield "call", call
        elif kind == "function_call_output":
            result: Fields = {"content": _text_in(item.get("output"))}
            if has_id:
                result["toolCallId"] = item["call_id"]
            yield "result", result
        else:
            step_kind = "reasoning" if kind == "reasoning" else "text"
            yield step_kind, _text_in(item.get("content") or item.get("summary"))


def _text_in(parts: Any) -> str:
    """Return the text of a content, which is a text or a list of parts."""
    if not isinstance(parts, list):
        return text_of(parts)
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "\n\n".join(map(text_of, texts))


def _output_items(entries: list[Fields]) -> list[Fields]:
    """Return messages as the items of an output."""
    items: list[Fields] = []
    for entry in entries:
        if entry["role"] == "tool":
            result: Fields = {"type": "function_call_output"}
            if "toolCallId" in entry:
                result["call_id"] = entry["toolCallId"]
            result["output"] = [{"type": "input_text", "text": entry["content"]}]
            items.append(result)
            continue
        if "reasoning" in entry:
            reasoning = [{"type": "output_text", "text": entry["reasoning"]}]
            items.append({"type": "reasoning", "content": reasoning})
        if entry["content"] or not ("reasoning" in entry or "toolCalls" in entry):
            text = [{"type": "output_text", "text": entry["content"]}]
            items.append({"type": "message", "role": "assistant", "content": text})
        for call in entry.get("toolCalls", ()):
            items.append(_call_item(call))
    return items


def _call_item(call: Fields) -> Fields:
    item: Fields = {"type": "function_call"}
    if "id" in call:
        item["call_id"] = call["id"]
    item["name"] = call.get("name")
    item["arguments"] = _arguments_text(call.get("arguments"))
    return item


def _plain_text(entries: list[Fields]) -> str:
    """Return the texts of messages without reasoning, calls and results."""
    return "\n\n".join(
        entry["content"] for entry in entries if entry["role"] != "tool" and entry["content"]
    )


_ROLES = ("user", "assistant", "system", "tool")
#: Our names of token counts by the names of OpenAI and Ollama. The last one in a record counts.
_TOKENS = {
    "prompt_tokens": "inputTokens",
    "input_tokens": "inputTokens",
    "prompt_eval_count": "inputTokens",
    "completion_tokens": "outputTokens",
    "output_tokens": "outputTokens",
    "eval_count": "outputTokens",
    "total_tokens": "totalTokens",
}


def _time(time: str) -> int | float:
    """Return a time of a capsule in seconds, as an integer if it can be one."""
    number = mapping.seconds(time) or 0.0
    return int(number) if number.is_integer() else number


def _id(value: Any) -> str:
    return "" if value == "local" else text_of(value)


def _tags(tags: Any) -> list[str]:
    """Return tags, which are texts, or objects with a name."""
    if not isinstance(tags, list):
        return []
    names = []
    for tag in tags:
        name = tag.get("name") if isinstance(tag, dict) else tag
        if isinstance(name, str):
            names.append(name)
    return names


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
    """Return the fields of a row and of its chat. Those of the row have precedence."""
    head = _OF_THE_ROW.read(row)
    chat_head = _OF_THE_CHAT.read(object_of(row.get("chat")))
    metadata = chat_head.get("metadata", {}) | head.get("metadata", {})
    return chat_head | with_nonempty(head, metadata=metadata)


_NAMES = RecordFieldNames("id", "parentId", "timestamp", _time)


def _read(record: Fields) -> list[Fields]:
    """Return the messages of a record."""
    content = record.get("content")
    output = record.get("output")
    form = ""
    entries: list[Fields]
    if isinstance(output, list) and output:
        entries = turns.turn_messages(_steps_of_output(output))
        form = _FORM_TEXT if content == _plain_text(entries) else _FORM_OUTPUT
    elif turns.is_pieces(content):
        entries = turns.turn_messages(_steps_of_text(content), at_once=True)
        form = _form_of_pieces(content)
    else:
        entries = [{"role": "assistant", "content": _text_in(content)}]
        if record.get("role") in _ROLES:
            entries[0]["role"] = record["role"]
    counts = object_of(record.get("usage") or record.get("info"))
    usage = {name: counts[key] for key, name in _TOKENS.items() if isinstance(counts.get(key), int)}
    files = [_read_file(file) for file in objects_of(record.get("files"))]
    return _NAMES.read(record, entries, files, usage, form)


def _form_of_pieces(pieces: Pieces) -> str:
    """Return the layout of a text with marks, by its first piece that is no mark."""
    first_piece = next(piece for piece in pieces if "mark" not in piece)
    if "think" in first_piece:
        return _FORM_THINK
    return _FORM_QUOTE if first_piece.get("reasoning", "").startswith(">") else ""


def _read_file(file: Fields) -> Fields:
    """Return the attachment for a file of a message."""
    stored = object_of(file.get("file"))
    kind = text_of(file.get("type"))
    name = text_of(file.get("name") or stored.get("filename"))
    media_type = text_of(object_of(stored.get("meta")).get("content_type"))
    attachment: Fields = {"name": name or kind or "file", "type": media_type or kind or "file"}
    if isinstance(file.get("id"), str):
        attachment["reference"] = file["id"]
    url = text_of(file.get("url"))
    if url.startswith("data:"):
        with suppress(ValueError):
            attachment["data"] = data_of(url) or b""
            attachment["type"] = re.split("[;,]", url[5:99])[0]
    elif url:
        attachment["url"] = url
    text = object_of(stored.get("data")).get("content")
    if isinstance(text, str):
        attachment["text"] = text
    return attachment


def _write_file(attachment: Fields) -> Fields:
    media_type = text_of(attachment.get("type"))
    data = attachment.get("data")
    file: Fields = {
        "type": "image" if media_type.startswith("image") else "file",
        "name": attachment.get("name"),
    }
    if "reference" in attachment:
        file["id"] = attachment["reference"]
    if isinstance(data, bytes):
        file["url"] = data_url(media_type, data)
    elif "url" in attachment:
        file["url"] = attachment["url"]
    text = attachment.get("text")
    if isinstance(text, str):
        file["file"] = {"data": {"content": text}, "meta": {"content_type": media_type}}
    return file


def _write(entries: list[Fields]) -> Fields:
    """Return the record for messages."""
    head = entries[0]
    last = entries[-1]
    form = text_of(last.get("metadata", {}).get("form"))
    is_answer = len(entries) > 1 or head["role"] == "assistant"
    record: Fields = {
        "role": "assistant" if len(entries) > 1 else last["role"],
        "content": last["content"],
    }
    if form in (_FORM_OUTPUT, _FORM_TEXT) and is_answer:
        record["output"] = _output_items(entries)
    needs_marks = len(entries) > 1 or "reasoning" in head or "toolCalls" in head
    if form == _FORM_TEXT:
        record["content"] = _plain_text(entries)
    elif is_answer and needs_marks:
        record["content"] = _text_with_marks(entries, form)
    if record["role"] == "assistant":
        record["done"] = True
    attachments = head.get("attachments")
    if attachments:
        record["files"] = [_write_file(attachment) for attachment in attachments]
    return record | _NAMES.write(entries)


def _from_source(record: Fields) -> Fields:
    """Return a record with its marked text in pieces, and with the items of its output that are
    read.

    The other items are in `$others`, by their positions.
    """
    result = dict(record)
    text = record.get("content")
    output = record.get("output")
    if isinstance(text, str) and record.get("role") == "assistant" and "<" in text:
        result["content"] = _pieces(text) or text
    if isinstance(output, list):
        others = {}
        items = []
        for position, item in enumerate(output):
            if object_of(item).get("type") in _OUTPUT_ITEMS:
                items.append(item)
            else:
                others[str(position)] = item
        result["output"] = items
        if others:
            result["$others"] = others
    return result


def _to_source(record: Fields) -> Fields:
    """Return the record of Open WebUI, the reverse of `_from_source`."""
    output: list[Any] = []
    if isinstance(record.get("output"), list):
        output += record["output"]
    for position, item in record.get("$others", {}).items():
        output.insert(int(position), item)
    result = without(record, "$others") | turns.join_pieces(record)
    if output:
        result["output"] = output
    return result


_HEAD = Pair(_read_head, lambda head: _OF_THE_ROW.write(head) | {"chat": _OF_THE_CHAT.write(head)})
_TURN = TurnPair(read=_read, write=_write, from_source=_from_source, to_source=_to_source)


def _draft(row: Fields, line: int | None, source: Source) -> Draft | None:
    """Return the draft of a row. None: its chat has no messages."""
    if "chat" not in row:  # A chat of 2023, which is no row.
        chat_2023 = without(row, "id", "title")
        row = with_nonempty({"chat": chat_2023}, id=row.get("id"), title=row.get("title"))
    chat = object_of(row["chat"])
    history = object_of(chat.get("history"))
    messages = _messages_of(chat, history)
    if messages is None:
        source.tell("a chat that has no messages", line)
        return None
    head_row = row | {"chat": without(chat, "history", "messages")}
    if "currentId" in history and text_of(history["currentId"])[:1] != "#":
        head_row["currentId"] = history["currentId"]
    draft = Draft.of_head(_HEAD, head_row, line)
    is_tree = isinstance(history.get("messages"), dict)
    records: list[Fields] = []
    for key, message in messages.items():
        if not isinstance(message, dict) or not ("role" in message or "content" in message):
            source.tell(f"message {key!r:.60} is invalid", line)
            continue
        if is_tree and moment(message.get("timestamp")) is None and not draft.is_own:
            source.tell(f"message {key!r:.60} has no time", line)
        record = message | {"id": key}
        if message.get("parentId") is not None:
            record["parentId"] = text_of(message["parentId"])
        records.append(record)
    turns.without_children(records, "parentId", "childrenIds")
    for record in records:
        with reporting_damage(source.tell, f"message {record.get('id')!r:.60}", line):
            draft.history += _TURN.to_capsule(record)
    turns.choose_newest_message(draft, "currentId", head_row)
    return draft


def _messages_of(chat: Fields, history: Fields) -> dict[str, Any] | None:
    """Return the messages of a chat by their ids: of its tree, or of its older list.

    None: it has no messages.
    """
    if isinstance(history.get("messages"), dict):
        messages: dict[str, Any] = history["messages"]
        return messages
    if history or not isinstance(chat.get("messages"), list):
        return None
    return {
        text_of(object_of(message).get("id")) or f"#{position}": message
        for position, message in enumerate(chat["messages"])
    }


def _rows(source: Source) -> Iterator[tuple[int | None, Fields]]:
    """Return the rows of an export, or those of all users in a database, as an export has them."""
    if not source.tables:
        for line, record in read_records(source):
            rows = [record]
            if isinstance(record.get("chats"), list):
                rows = objects_of(record["chats"])
            for row in rows:
                yield line, row
        return
    with source.database() as database:
        for row in read_rows(database, "SELECT * FROM chat ORDER BY rowid"):
            columns = {
                "archived": row.get("archived") == 1,
                "pinned": row.get("pinned") == 1,
                "chat": object_of(row.get("chat")),
                "meta": object_of(row.get("meta")),
            }
            yield None, row | columns


def _write_file_of(draft: Draft) -> bytes:
    records, record_ids = turns.records_of(draft, _TURN, turns.is_turn)
    row = turns.name_current_record(draft.head_record(_HEAD), "currentId", record_ids)
    turns.with_children(records, "parentId", "childrenIds")
    history: Fields = {}
    if records:
        history["currentId"] = records[-1]["id"]
    if "currentId" in row:
        history["currentId"] = row.pop("currentId")
    history["messages"] = {record["id"]: record for record in records}
    chat = {**row["chat"], "history": history, "messages": []}
    return mapping.encode_record(row | {"chat": chat})


def _is_chat_record(record: Fields) -> bool:
    for row in [record, *objects_of(record.get("chats"))[:3]]:
        chat = row.get("chat", row)
        if isinstance(object_of(object_of(chat).get("history")).get("messages"), dict):
            return True
        if isinstance(row.get("chat"), dict) and "messages" in row["chat"]:
            return True
    return False


def _recognizes(source: Source) -> bool:
    is_database = {"auth", "chat", "user"} <= source.tables
    return is_database or any(map(_is_chat_record, first_records(source)))


FORMATS = [
    Format(
        "open-webui",
        "Open WebUI",
        recognizes=_recognizes,
        read=reader_of_items(_draft, _rows),
        write=_write_file_of,
        joined="array",
        embeds_files=True,
        is_portable=False,
    )
]
