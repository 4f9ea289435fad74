"""Read and write the rollouts of Codex: a file of JSON lines for each session.

A line of a rollout has a kind, a payload and a time. There are two streams of lines. The items
(`response_item`) are the input and output of the model. The events (`event_msg`) are the texts on
the screen, and mostly repeat the items. Each message is taken once, from the stream that has it
first. The items of one answer, up to the next result, are one message. Turns that the user undid
(`thread_rolled_back`) become a branch.

Messages have no ids in a rollout. Their position in the file is their id, as a file only grows.
A damaged line is reported, and reading continues with the next one.

Invariants: the lines of a message are kept in `metadata.source.lines`, and a reference takes the
place of each long text that the message has: `restore_texts(_with_references(line)) == line`. So a
file that was read is written again line for line. Pure.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import orjson

from capsule.transfer.drafts.conversion import active_path
from capsule.transfer.interface import (
    Draft,
    Fields,
    Format,
    Source,
    read_records,
    recognizes_record,
    reporting_damage,
)
from capsule.transfer.records import mapping
from capsule.transfer.records.mapping import (
    CAPSULE_KEY,
    UUID,
    counts_of,
    encode_records,
    json_of,
    milliseconds,
    moment,
    object_of,
    objects_of,
    text_of,
    uuid_of,
    with_acceptable_calls,
    with_nonempty,
    with_source,
    without_source,
)

#: The beginning of a message of the user that the program wrote.
_PROGRAM_TEXT = (
    r"\s*(<(environment_context|user_instructions|permissions instructions|turn_aborted)>|# "
    r"AGENTS\.md )"
)
#: The events that have a text, with its speaker.
_EVENT_SPEAKERS = {
    "user_message": "user",
    "agent_message": "assistant",
    "agent_reasoning": "reasoning",
    "agent_reasoning_raw_content": "reasoning",
}
_USAGE = {
    "inputTokens": "input_tokens",
    "cachedTokens": "cached_input_tokens",
    "outputTokens": "output_tokens",
    "reasoningTokens": "reasoning_output_tokens",
    "totalTokens": "total_tokens",
}
#: Shorter texts, in characters, stay in the lines.
_MIN_REFERENCED = 32
#: A text with its speaker: `reasoning`, or a role.
_SpokenText = tuple[str, str]


def parts_of(line: Fields) -> tuple[str, Fields, Any]:
    """Return the kind of a line, its payload and its time. The oldest lines have no envelope."""
    time = line.get("timestamp")
    payload = line.get("payload")
    if isinstance(payload, dict):
        return str(line.get("type")), payload, time
    if "type" in line:
        return "response_item", line, time
    if isinstance(line.get("id"), str):
        return "session_meta", line, time
    return "", line, time


def texts_of(kind: str, payload: Fields) -> list[_SpokenText]:
    """Return the texts of an item or an event, each with its speaker.

    An item and the event that repeats it have the same texts.
    """
    name = payload.get("type")
    if kind == "event_msg" and name in _EVENT_SPEAKERS:
        text_key = "message" if "message" in payload else "text"
        return [(_EVENT_SPEAKERS[str(name)], text_of(payload.get(text_key)))]
    if kind != "response_item" or name not in ("message", "reasoning"):
        return []
    parts = [*objects_of(payload.get("summary")), *objects_of(payload.get("content"))]
    speaker = "reasoning" if name == "reasoning" else payload.get("role")
    return [(str(speaker), part["text"]) for part in parts if isinstance(part.get("text"), str)]


def url_of(attachment: Fields) -> str:
    """Return the data of an attachment as a URL. Empty: it has no data."""
    if "data" not in attachment:
        return ""
    return mapping.data_url(attachment.get("type"), attachment["data"])


def _image(part: Fields) -> Fields | None:
    """Return the attachment for a part of a content. None: the part is no image.

    An image whose data can't be written back exactly is kept as a URL.
    """
    url = part.get("image_url")
    if not isinstance(url, str):
        return None
    media_type, base64_mark, data = url.removeprefix("data:").partition(";base64,")
    if not base64_mark:
        return {"name": "image", "type": "image", "url": url}
    try:
        attachment = {
            "name": "image",
            "type": media_type,
            "data": b64decode(data, validate=True),
        }
    except ValueError:
        attachment = {}
    if attachment and url_of(attachment) == url:
        return attachment
    return {"name": "image", "type": "image", "url": ""}


def _images(parts: Any) -> list[Fields]:
    """Return the attachments for the images among the parts of a content."""
    attachments = map(_image, objects_of(parts))
    return [attachment for attachment in attachments if attachment]


def _spellings(call: Fields) -> list[str]:
    """Return the texts that Codex may write for the arguments of a call."""
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        return [arguments]
    return [orjson.dumps(arguments).decode(), json.dumps(arguments, ensure_ascii=False)]


def _item_texts(name: str, item: Fields) -> list[str]:
    """Return the texts that a reference to a tool call or an attachment can stand for."""
    return _spellings(item) if name == "toolCalls" else [url_of(item)]


def _with_references(value: Any, message: Fields) -> Any:
    """Return a value of a line with references in place of the texts that the message has.

    A reference is an object with the key `$`. An object that has this key already is wrapped.
    """
    if isinstance(value, list):
        return [_with_references(item, message) for item in value]
    if isinstance(value, dict):
        if "$" in value:
            return {"$": "value", "value": value}
        return {key: _with_references(item, message) for key, item in value.items()}
    if not isinstance(value, str) or len(value) < _MIN_REFERENCED:
        return value
    return _reference(value, message) or _json_with_references(value, message) or value


def _reference(text: str, message: Fields) -> Fields | None:
    """Return the reference to a text of a message. None: the message does not have the text."""
    for name in ("content", "reasoning"):
        start = message.get(name, "").find(text)
        if start >= 0:
            return {"$": name, "from": start, "to": start + len(text)}
    for name in ("toolCalls", "attachments"):
        for position, item in enumerate(message.get(name, ())):
            texts = _item_texts(name, item)
            if text in texts:
                return {"$": name, "nth": position, "as": texts.index(text)}
    return None


def _json_with_references(text: str, message: Fields) -> Fields | None:
    """Return the reference for a text that is JSON and has texts of the message. None: it has none.

    Only JSON that is encoded again to the same text is replaced.
    """
    if text[0] != "{":
        return None
    inner = json_of(text)
    if not isinstance(inner, dict) or orjson.dumps(inner).decode() != text:
        return None
    replaced = _with_references(inner, message)
    if replaced == inner:
        return None
    return {"$": "json", "value": replaced}


def restore_texts(value: Any, message: Fields) -> Any:
    """Return a value of a line with the texts of the message in place of the references."""
    if isinstance(value, list):
        return [restore_texts(item, message) for item in value]
    if not isinstance(value, dict):
        return value
    name = value.get("$")
    if name == "value":
        return value["value"]
    if name == "json":
        return orjson.dumps(restore_texts(value["value"], message)).decode()
    if name in ("content", "reasoning"):
        return message.get(name, "")[value["from"] : value["to"]]
    if name in ("toolCalls", "attachments"):
        item = message[name][value["nth"]]
        return _item_texts(name, item)[value["as"]]
    return {key: restore_texts(item, message) for key, item in value.items()}


class RolloutReader:
    """Reads the lines of one session, one after the other.

    Attributes:
        preamble: The lines before the first message.
        entries: The messages.
        lines: The lines of each message.
        note: The note of an export, which is under `capsule` before the first message.
        meta: The payload of the first `session_meta`.
        title: The last name of the session.
    """

    def __init__(self, item_texts: Iterable[_SpokenText]) -> None:
        """Begin a session. `item_texts` are the texts of all its items, in advance."""
        self.preamble: list[Fields] = []
        self.entries: list[Fields] = []
        self.lines: list[list[Fields]] = []
        self.meta: Fields = {}
        self.note: Fields = {}
        self.title = ""
        #: The positions of the messages whose lines an export wrote.
        self._exported: set[int] = set()
        #: Lines that belong to the next message.
        self._held: list[Fields] = []
        self._model: Any = None
        #: Whether the last message is an answer that can get more items.
        self._is_open = False
        #: The token counts of the session so far.
        self._total_usage: Fields = {}
        #: The position of the message that the next one answers.
        self._parent_position: int | None = None
        #: For each turn of the user, the position of the message that it answers.
        self._turn_parents: list[int | None] = []
        #: How often each text still comes as an item.
        self._items_to_come = Counter(item_texts)
        #: How often each text came as an item whose event did not come yet.
        self._items_without_event: Counter[_SpokenText] = Counter()
        #: How often each text came as an event whose item did not come yet.
        self._events_before_item: Counter[_SpokenText] = Counter()

    def add(self, record: Fields) -> None:
        """Read the next line."""
        line = {key: value for key, value in record.items() if key != CAPSULE_KEY}
        kind, payload, time = parts_of(line)
        texts = texts_of(kind, payload)

        is_message = self._take_item(kind, payload, texts, time)
        if not is_message and kind == "event_msg":
            is_message = self._take_event(texts, time)
        if is_message:
            self.lines[-1] += [*self._held, line]
            self._held = []
        elif self._held or self._is_early_event(kind, texts):
            self._held.append(line)
        elif self.lines:
            self.lines[-1].append(line)
        else:
            self.preamble.append(line)
        note = record.get(CAPSULE_KEY)
        if not isinstance(note, dict):
            return
        if self.entries:  # The last line of a message that an export wrote.
            self._is_open = False
            self._exported.add(len(self.entries) - 1)
        else:
            self.note = note

    def _take_item(self, kind: str, payload: Fields, texts: list[_SpokenText], time: Any) -> bool:
        """Read a line that is no text event. Return whether it is a message or a part of one."""
        name = str(payload.get("type"))
        if kind == "session_meta":
            self.meta = self.meta or payload
        elif kind == "turn_context":
            self._model = payload.get("model")
        elif kind == "compacted":
            self._start("system", time)["content"] = text_of(payload.get("message"))
            return True
        elif kind == "event_msg":
            self._apply_event(name, payload)
        if kind != "response_item":
            return False
        self._count_item(texts)
        text = "\n\n".join(text for _, text in texts)
        if name == "message":
            self._add_text(str(payload.get("role")), text, time)
            images = _images(payload.get("content"))
            if images:
                self.entries[-1]["attachments"] = images
        elif name == "reasoning":
            if not texts:
                return False
            self._add_reasoning(text, time)
        elif name.endswith("_output"):
            self._add_result(payload, time)
        elif name.endswith("_call"):
            self._add_call(name, payload, time)
        else:
            return False
        return True

    def _is_early_event(self, kind: str, texts: list[_SpokenText]) -> bool:
        """Return whether a line is an event that came before its item."""
        return kind == "event_msg" and bool(texts) and self._events_before_item[texts[0]] != 0

    def _count_item(self, texts: list[_SpokenText]) -> None:
        """Note that the texts came as an item, and which of them wait for their event."""
        for text in texts:
            self._items_to_come[text] -= 1
            if self._events_before_item[text]:
                self._events_before_item[text] -= 1
            else:
                self._items_without_event[text] += 1

    def _take_event(self, texts: list[_SpokenText], time: Any) -> bool:
        """Read a text event. Return whether no item has its text, so that it is a message."""
        if not texts:
            return False
        spoken = texts[0]
        if self._items_without_event[spoken] > 0:
            self._items_without_event[spoken] -= 1
            return False
        if self._items_to_come[spoken] > self._events_before_item[spoken]:
            self._events_before_item[spoken] += 1
            return False
        speaker, text = spoken
        if speaker == "reasoning":
            self._add_reasoning(text, time)
        else:
            self._add_text(speaker, text, time)
        return True

    def _start(self, role: str, time: Any) -> Fields:
        """Begin a message."""
        entry: Fields = {"role": role, "content": ""}
        stamp = moment(time)
        if stamp:
            entry["timestamp"] = stamp
        position = len(self.entries)
        previous_position = position - 1 if position else None
        if self._parent_position is None and previous_position is not None:
            entry["parent"] = None
        elif self._parent_position != previous_position:
            entry["parent"] = f"#{self._parent_position}"
        if role == "assistant" and isinstance(self._model, str):
            entry["model"] = self._model
        self._parent_position = position
        self._is_open = role == "assistant"
        self.entries.append(entry)
        self.lines.append([])

        return entry

    def _answer(self, time: Any, *excluding: str) -> Fields:
        """Return the open answer. If it has one of these fields already, begin a new answer."""
        if self._is_open and not any(self.entries[-1].get(name) for name in excluding):
            return self.entries[-1]
        return self._start("assistant", time)

    def _add_text(self, role: str, text: str, time: Any) -> None:
        if role == "assistant":
            self._answer(time, "content", "toolCalls")["content"] = text
            return
        parent_position = self._parent_position
        entry = self._start("user" if role == "user" else "system", time)
        entry["content"] = text
        if role != "user" or re.match(_PROGRAM_TEXT, text):
            entry["metadata"] = {"hidden": True}
        else:
            self._turn_parents.append(parent_position)

    def _add_reasoning(self, text: str, time: Any) -> None:
        entry = self._answer(time, "content", "toolCalls")
        if "reasoning" in entry:
            text = f"{entry['reasoning']}\n\n{text}"
        entry["reasoning"] = text

    def _add_call(self, name: str, payload: Fields, time: Any) -> None:
        arguments: Any
        if "arguments" in payload:
            arguments = json_of(payload["arguments"])
        else:
            arguments = payload.get("input", payload.get("action"))
        if not isinstance(arguments, dict):
            arguments = text_of(payload.get("arguments", arguments))
        call: Fields = {}
        id = payload.get("call_id") or payload.get("id")
        if isinstance(id, str):
            call["id"] = id
        call["name"] = str(payload.get("name") or name.removesuffix("_call"))
        call["arguments"] = arguments
        self._answer(time).setdefault("toolCalls", []).append(call)

    def _add_result(self, payload: Fields, time: Any) -> None:
        entry = self._start("tool", time)
        output = payload.get("output")
        if isinstance(payload.get("call_id"), str):
            entry["toolCallId"] = payload["call_id"]
        output_fields = object_of(output)
        inner = output_fields.get("output", output_fields.get("content"))
        if isinstance(output, list):
            texts = [part.get("text") for part in objects_of(output)]
            entry["content"] = "\n\n".join(text for text in texts if isinstance(text, str))
            images = _images(output)
            if images:
                entry["attachments"] = images
        elif isinstance(inner, str):
            entry["content"] = inner
        else:
            entry["content"] = text_of(output)
        metadata = output_fields.get("metadata")
        exit_code = metadata.get("exit_code") if isinstance(metadata, dict) else None
        if output_fields.get("success") is False or exit_code not in (None, 0):
            entry["metadata"] = {"isError": True}

    def _apply_event(self, name: str, payload: Fields) -> None:
        """Apply an event that is no message: token counts, a new name, or undone turns."""
        info = payload.get("info")
        if name == "token_count" and isinstance(info, dict):
            self._apply_usage(info)
        elif name == "thread_name_updated" and isinstance(payload.get("thread_name"), str):
            self.title = payload["thread_name"]
        elif name == "thread_rolled_back" and isinstance(payload.get("num_turns"), int):
            count = min(payload["num_turns"], len(self._turn_parents))
            if count > 0:
                self._parent_position = self._turn_parents[-count]
                self._is_open = False
                del self._turn_parents[-count:]

    def _apply_usage(self, info: Fields) -> None:
        """Give the tokens of the last request to the answer among the last three messages."""
        total = counts_of(info.get("total_token_usage"), _USAGE)
        usage = counts_of(info.get("last_token_usage"), _USAGE)
        if not usage:
            usage = {key: number - self._total_usage.get(key, 0) for key, number in total.items()}
        self._total_usage = total
        if not usage:
            return
        for entry in self.entries[:-4:-1]:
            if entry["role"] == "assistant":
                entry["metadata"] = entry.get("metadata", {}) | {"usage": usage}
                return

    def draft(self, default_id: str) -> Draft:
        """Return the session. `default_id` is its id if no line has one."""
        is_own = isinstance(self.note.get("id"), str)
        head = self._head(default_id)
        if not is_own:
            head = with_source(head, {"lines": self.preamble})
        history = []
        for position, (entry, lines) in enumerate(zip(self.entries, self.lines, strict=True)):
            if position in self._exported:
                history.append(entry)
            else:
                references = [_with_references(line, entry) for line in lines]
                history.append(with_source(entry, {"lines": references}))
        return Draft(head, history, line=1, is_own=is_own, export_note=self.note)

    def _head(self, default_id: str) -> Fields:
        """Return the fields of the head that the lines of Codex have."""
        meta_id = self.meta.get("id")
        id = meta_id if isinstance(meta_id, str) and meta_id else default_id
        created = moment(self.meta.get("timestamp"))
        head = with_nonempty({}, id=id, title=self.title, createdAt=created)
        subagent = object_of(object_of(self.meta.get("source")).get("subagent"))
        spawn = object_of(subagent.get("thread_spawn"))
        links = {
            "sourceConversationId": self.meta.get("parent_thread_id")
            or spawn.get("parent_thread_id"),
            "forkedFrom": self.meta.get("forked_from_id"),
        }
        metadata = {name: value for name, value in links.items() if isinstance(value, str)}
        return with_nonempty(head, metadata=metadata)


#: A line with its number in the file.
Line = tuple[int | None, Fields]
#: The fields that an item of each type has at least.
_ITEM_FIELDS: dict[str, set[str]] = {
    "message": {"role", "content"},
    "function_call": {"name", "arguments", "call_id"},
    "function_call_output": {"call_id", "output"},
}
_LINE_KINDS = {"session_meta", "turn_context", "response_item", "event_msg", "compacted"}


def _draft(
    lines: list[Line], report_problem: Callable[[str, int | None], None], default_id: str
) -> Draft | None:
    """Return the draft of the lines of a session. None: they have no message."""
    item_texts: list[_SpokenText] = []
    for _, line in lines:
        kind, payload, _ = parts_of(line)
        if kind != "event_msg":
            item_texts += texts_of(kind, payload)
    reader = RolloutReader(item_texts)
    for number, line in lines:
        with reporting_damage(report_problem, "a line", number):
            kind, _, time = parts_of(line)
            if kind == "response_item" and "payload" in line and moment(time) is None:
                report_problem("a message without its time", number)
            if _is_incomplete(line):
                report_problem("a line that is not understood", number)
            reader.add(line)
    if not reader.entries and not reader.note:
        return None
    return reader.draft(default_id)


def _is_incomplete(line: Fields) -> bool:
    """Return whether a line lacks its kind, its payload or a field that its message needs."""
    kind, payload, _ = parts_of(line)
    if "payload" not in line:  # The oldest lines have none.
        if "type" in line:
            return line["type"] in _LINE_KINDS
        return "role" in line
    if kind not in ("response_item", "event_msg"):
        return "type" not in line
    required = _ITEM_FIELDS.get(str(payload.get("type")), {"type"})
    return not required <= payload.keys()


def _read(source: Source) -> Iterator[Draft]:
    lines: list[Line] = []
    for number, line in read_records(source):
        if isinstance(line.get("session"), dict) and isinstance(line.get("items"), list):
            # The oldest files are one object.
            lines += [(number, item) for item in [line["session"], *objects_of(line["items"])]]
        else:
            lines.append((number, line))
    ids_in_name = re.findall(UUID, source.name)
    default_id = ids_in_name[-1] if ids_in_name else ""
    draft = _draft(lines, source.tell, default_id)
    if draft is not None:
        yield draft


def _default_payloads(message: Fields) -> Iterator[Fields]:
    """Return the payloads of the lines for a message that Codex did not write."""
    if message["role"] == "tool" and isinstance(message.get("toolCallId"), str):
        yield {
            "type": "function_call_output",
            "call_id": message["toolCallId"],
            "output": message["content"],
        }
    elif message["role"] == "assistant":
        yield from _answer_payloads(message)
    else:
        yield from _input_payloads(message)


def _input_payloads(message: Fields) -> Iterator[Fields]:
    """Return the payloads for a message of the user or the system."""
    role = message["role"]
    text = message["content"]
    attachments = message.get("attachments", ()) if role == "user" else ()
    are_images = all(
        "data" in attachment and str(attachment.get("type")).startswith("image/")
        for attachment in attachments
    )
    parts = [{"type": "input_text", "text": text}]
    if are_images:
        for attachment in attachments:
            parts.append({"type": "input_image", "image_url": url_of(attachment)})
    item_role = "developer" if role == "system" else "user"
    yield {"type": "message", "role": item_role, "content": parts}
    if role == "user" and text.strip():
        yield {"type": "user_message", "message": text, "images": [], "kind": "plain"}


def _answer_payloads(message: Fields) -> Iterator[Fields]:
    """Return the payloads for an answer: reasoning, text, and the calls that can be written."""
    text = message["content"]
    reasoning = message.get("reasoning")
    calls = [
        call
        for call in message.get("toolCalls", ())
        if isinstance(call.get("id"), str) and isinstance(call.get("name"), str)
    ]
    if reasoning:
        yield {"type": "agent_reasoning", "text": reasoning}
    if text:
        parts = [{"type": "output_text", "text": text}]
        yield {"type": "message", "role": "assistant", "content": parts}
    if text or not (reasoning or calls):
        yield {"type": "agent_message", "message": text}
    for call in calls:
        yield {
            "type": "function_call",
            "name": call["name"],
            "arguments": text_of(call.get("arguments", {})),
            "call_id": call["id"],
        }


def _lines(draft: Draft, history: list[Fields], clock_ms: int) -> list[list[Fields]]:
    """Return the lines of each message.

    Lines that Codex did not write get increasing times, from `clock_ms` on. The last of them has an
    empty object under `capsule`, so that the reader joins no other line to the message.
    """
    line_groups: list[list[Fields]] = []
    for entry in history:
        message, source = without_source(entry)
        clock_ms = max(clock_ms, milliseconds(message.get("timestamp")) or 0)
        if "lines" in source and entry.get("id") not in draft.edited:
            line_groups.append([restore_texts(line, message) for line in source["lines"]])
            continue
        lines: list[Fields] = []
        for payload in _default_payloads(with_acceptable_calls(message)):
            kind = "event_msg" if payload["type"] in _EVENT_SPEAKERS else "response_item"
            lines.append({"timestamp": moment(clock_ms), "type": kind, "payload": payload})
            clock_ms += 1
        lines[-1][CAPSULE_KEY] = {}
        line_groups.append(lines)
    return line_groups


def _write(draft: Draft) -> bytes:
    """Return a draft as a rollout. A conversation of ours is written as its active branch."""
    history = active_path(draft.head, draft.history) if draft.is_own else draft.history
    _, source = without_source(draft.head)
    preamble = [dict(line) for line in source.get("lines", ())]
    line_groups = _lines(draft, history, milliseconds(draft.head.get("createdAt")) or 0)
    all_lines = chain(preamble, *line_groups)
    has_meta = any(parts_of(line)[0] == "session_meta" for line in all_lines)
    if draft.id and not has_meta:
        preamble.insert(0, _meta(draft))
    if preamble:
        preamble[0] = draft.with_note(preamble[0])
    return encode_records([*preamble, *chain(*line_groups)])


def _start_time(draft: Draft) -> str:
    """Return the time of a draft, or that of its first message."""
    times = [entry["timestamp"] for entry in draft.history if "timestamp" in entry]
    return str(draft.head.get("createdAt") or min(times, default=moment(0)))


def _meta(draft: Draft) -> Fields:
    """Return the first line of a session, with the fields that Codex needs to list it."""
    payload = {
        "id": uuid_of(draft.id),
        "timestamp": _start_time(draft),
        "cwd": draft.folder or "/",
        "originator": "codex_cli_rs",
        "cli_version": "0.0.0",
        "instructions": None,
        "source": "cli",
    }
    return {"timestamp": _start_time(draft), "type": "session_meta", "payload": payload}


def _file_name(draft: Draft) -> str:
    """Return the path of a written file below `~/.codex`."""
    start = _start_time(draft)
    folder = start[:10].replace("-", "/")
    time = start[:19].replace(":", "-")
    return f"sessions/{folder}/rollout-{time}-{uuid_of(draft.id)}.jsonl"


def _is_rollout_line(line: Fields) -> bool:
    if isinstance(line.get("payload"), dict):
        return line.get("type") in _LINE_KINDS
    if isinstance(line.get("session"), dict) and "items" in line:
        return True
    is_old_meta = "timestamp" in line and ("instructions" in line or "git" in line)
    return "id" in line and is_old_meta


_PLACES = (
    "~/.codex/sessions/*/*/*/*.jsonl",
    "~/.codex/archived_sessions/*.jsonl",
    "~/.codex/sessions/*.json",
    "~/.codex/sessions/*/*/*/*.jsonl.zst",
    "~/.codex/archived_sessions/*.jsonl.zst",
)
FORMATS = [
    Format(
        "codex",
        "Codex",
        recognizes=recognizes_record(_is_rollout_line),
        read=_read,
        write=_write,
        extension=".jsonl",
        file_name=_file_name,
        embeds_files=True,
        is_portable=False,
        places=_PLACES,
    )
]
