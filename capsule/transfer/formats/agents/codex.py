"""Read and write the rollouts of Codex: a file of JSON lines for each session.

A rollout has two streams. The items (`response_item`) are what the model gets. The events
(`event_msg`) are what the screen shows, and mostly repeat the items. Each message is taken once,
from the stream that has it first. The items of one answer, up to the next result, are one message.
Turns that were undone (`thread_rolled_back`) are a branch.

Messages have no ids in a rollout. Their place in the file is their id, as a file only grows.

Invariants: the lines of a message are kept in `metadata.source.lines` without the texts that the
message has, and `unfolded(_folded(line)) == line`. So a file that was read is written
again line for line. The writer reads what it wrote, and keeps what would be lost under `capsule`,
on the last line of the message. Pure.
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
    by_record,
    read_records,
    reporting_damage,
)
from capsule.transfer.records import coercion
from capsule.transfer.records.calls import acceptable
from capsule.transfer.records.coercion import (
    UUID,
    counts_of,
    encoded_lines,
    filled,
    json_of,
    milliseconds,
    moment,
    object_of,
    objects_of,
    text_of,
    uuid_of,
)
from capsule.transfer.records.round_trip import (
    CAPSULE_KEY,
    with_source,
    without_source,
)

#: What a message of the user begins with that the program made.
_MADE = (
    r"\s*(<(environment_context|user_instructions|permissions instructions|turn_aborted)>|# "
    r"AGENTS\.md )"
)
EVENTS = {"user_message": "user", "agent_message": "assistant", "agent_reasoning": "reasoning"}
EVENTS["agent_reasoning_raw_content"] = "reasoning"
_USAGE = {
    "inputTokens": "input_tokens",
    "cachedTokens": "cached_input_tokens",
    "outputTokens": "output_tokens",
}
_USAGE |= {"reasoningTokens": "reasoning_output_tokens", "totalTokens": "total_tokens"}
#: Texts that are shorter stay in the lines.
_SHORT = 32


def parts_of(line: Fields) -> tuple[str, Fields, Any]:
    """The kind of a line, what it says, and its time; the oldest lines have no envelope."""
    payload = line.get("payload")
    if isinstance(payload, dict):
        return str(line.get("type")), payload, line.get("timestamp")
    if "type" in line:
        return "response_item", line, line.get("timestamp")
    return "session_meta" if isinstance(line.get("id"), str) else "", line, line.get("timestamp")


def texts_of(kind: str, said: Fields) -> list[tuple[str, str]]:
    """The texts of an item or an event, each with who says it: what both streams have in common."""
    name = said.get("type")
    if kind == "event_msg" and name in EVENTS:
        return [(EVENTS[str(name)], text_of(said.get("message" if "message" in said else "text")))]
    if kind != "response_item" or name not in ("message", "reasoning"):
        return []
    parts = [*objects_of(said.get("summary")), *objects_of(said.get("content"))]
    who = "reasoning" if name == "reasoning" else said.get("role")
    return [(str(who), part["text"]) for part in parts if isinstance(part.get("text"), str)]


def url_of(file: Fields) -> str:
    """The data of an attachment as a URL; empty: it has none."""
    return coercion.data_url(file.get("type"), file["data"]) if "data" in file else ""


def _image(part: Fields) -> Fields | None:
    """The attachment that a part of a content is."""
    url = part.get("image_url")
    if not isinstance(url, str):
        return None
    kind, mark, data = url.removeprefix("data:").partition(";base64,")
    try:
        file = (
            {"name": "image", "type": kind, "data": b64decode(data, validate=True)} if mark else {}
        )
    except ValueError:
        file = {}
    return (
        file
        if file and url_of(file) == url
        else {"name": "image", "type": "image", "url": url if not mark else ""}
    )


def _spellings(call: Fields) -> list[str]:
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        return [arguments]
    return [orjson.dumps(arguments).decode(), json.dumps(arguments, ensure_ascii=False)]


def _folded(value: Any, said: Fields) -> Any:
    """A value of a line without the texts that the message has."""
    if isinstance(value, list):
        return [_folded(item, said) for item in value]
    if isinstance(value, dict):
        plain = {key: _folded(item, said) for key, item in value.items()}
        return {"$": "value", "value": value} if "$" in value else plain
    if not isinstance(value, str) or len(value) < _SHORT:
        return value
    for name in ("content", "reasoning"):
        if (at := said.get(name, "").find(value)) >= 0:
            return {"$": name, "from": at, "to": at + len(value)}
    for name, spelled in (("toolCalls", _spellings), ("attachments", lambda file: [url_of(file)])):
        for nth, item in enumerate(said.get(name, ())):
            if value in (texts := spelled(item)):
                return {"$": name, "nth": nth, "as": texts.index(value)}
    if (
        value[0] == "{"
        and isinstance(inner := json_of(value), dict)
        and orjson.dumps(inner).decode() == value
    ):
        return (
            {"$": "json", "value": folded} if (folded := _folded(inner, said)) != inner else value
        )
    return value


def unfolded(value: Any, said: Fields) -> Any:
    """A value of a line with the texts that the message has."""
    if isinstance(value, list):
        return [unfolded(item, said) for item in value]
    if not isinstance(value, dict):
        return value
    name = value.get("$")
    if name == "value":
        return value["value"]
    if name == "json":
        return orjson.dumps(unfolded(value["value"], said)).decode()
    if name in ("content", "reasoning"):
        return said.get(name, "")[value["from"] : value["to"]]
    if name in ("toolCalls", "attachments"):
        item = said[name][value["nth"]]
        return (_spellings(item) if name == "toolCalls" else [url_of(item)])[value["as"]]
    return {key: unfolded(item, said) for key, item in value.items()}


class RolloutReader:
    """The lines of one session, as they come.

    Attributes:
        about: The lines before the first message.
        entries: The messages.
        lines: The lines of each.
        note: The note of the export under `capsule`.
    """

    def __init__(self, texts: Iterable[tuple[str, str]]) -> None:
        self.about, self.entries = list[Fields](), list[Fields]()
        self.lines: list[list[Fields]] = []
        #: The places of the messages whose lines an export wrote.
        self._exported: set[int] = set()
        self.meta, self.note, self.title = Fields(), Fields(), ""
        #: Lines that belong to what comes.
        self._held: list[Fields] = []
        self._model: Any = None
        self._is_open = False
        self._total: Fields = {}
        #: The place of the message that the next one answers, and for each turn of the user the
        #: place that it answers.
        self._above: int | None = None
        self._turns: list[int | None] = []
        #: How often each text still comes as an item, came without its event, and will come after
        #: its event.
        self._ahead, self._behind, self._early = Counter(texts), Counter[Any](), Counter[Any]()

    def add(self, whole: Fields) -> None:
        """Take the next line."""
        line = {key: value for key, value in whole.items() if key != CAPSULE_KEY}
        kind, said, time = parts_of(line)
        texts = texts_of(kind, said)
        is_taken = self._is_item(kind, said, texts, time) or (
            kind == "event_msg" and self._is_event(said, texts, time)
        )
        if is_taken:
            self.lines[-1] += [*self._held, line]
            self._held = []
        elif kind == "event_msg" and texts and self._early[texts[0]]:
            self._held.append(line)
        else:
            (self._held or (self.lines[-1] if self.lines else self.about)).append(line)
        note = whole.get(CAPSULE_KEY)
        if isinstance(note, dict):
            if self.entries:  # The last line of a message that an export wrote.
                self._is_open = False
                self._exported.add(len(self.entries) - 1)
            else:
                self.note = note

    def _is_item(self, kind: str, said: Fields, texts: list[tuple[str, str]], time: Any) -> bool:
        """Whether a line is a message or a part of one, which is taken then."""
        name = str(said.get("type"))
        if kind == "session_meta":
            self.meta = self.meta or said
        elif kind == "turn_context":
            self._model = said.get("model")
        elif kind == "compacted":
            self._start("system", time)["content"] = text_of(said.get("message"))
            return True
        elif kind == "event_msg":
            self._tell_event(name, said)
        if kind != "response_item":
            return False
        for text in texts:
            self._ahead[text] -= 1
            (self._early if self._early[text] else self._behind)[text] += (
                -1 if self._early[text] else 1
            )
        if name == "message":
            self._say(str(said.get("role")), "\n\n".join(text for _, text in texts), time)
            if files := [
                file for part in objects_of(said.get("content")) if (file := _image(part))
            ]:
                self.entries[-1]["attachments"] = files
        elif name == "reasoning":
            if not texts:
                return False
            self._think("\n\n".join(text for _, text in texts), time)
        elif name.endswith("_output"):
            self._result(said, time)
        elif name.endswith("_call"):
            self._call(name, said, time)
        else:
            return False
        return True

    def _is_event(self, said: Fields, texts: list[tuple[str, str]], time: Any) -> bool:
        """Whether an event says what no item says; it is a message then."""
        if not texts:
            return False
        text = texts[0]
        if self._behind[text] > 0:
            self._behind[text] -= 1
        elif self._ahead[text] > self._early[text]:
            self._early[text] += 1
        elif text[0] == "reasoning":
            self._think(text[1], time)
            return True
        else:
            self._say(text[0], text[1], time)
            return True
        return False

    def _start(self, role: str, time: Any) -> Fields:
        entry: Fields = {"role": role, "content": ""}
        if stamp := moment(time):
            entry["timestamp"] = stamp
        place = len(self.entries)
        if self._above != (place - 1 if place else None):
            entry["parent"] = None if self._above is None else f"#{self._above}"
        if role == "assistant" and isinstance(self._model, str):
            entry["model"] = self._model
        self._above, self._is_open = place, role == "assistant"
        self.entries.append(entry)
        self.lines.append([])
        return entry

    def _answer(self, time: Any, *taken: str) -> Fields:
        """The answer that is open, if it has none of the fields yet; else a new one."""
        if self._is_open and not any(self.entries[-1].get(name) for name in taken):
            return self.entries[-1]
        return self._start("assistant", time)

    def _say(self, role: str, text: str, time: Any) -> None:
        if role == "assistant":
            self._answer(time, "content", "toolCalls")["content"] = text
            return
        above = self._above
        entry = self._start("user" if role == "user" else "system", time)
        entry["content"] = text
        if role != "user" or re.match(_MADE, text):
            entry["metadata"] = {"hidden": True}
        else:
            self._turns.append(above)

    def _think(self, text: str, time: Any) -> None:
        entry = self._answer(time, "content", "toolCalls")
        entry["reasoning"] = f"{entry['reasoning']}\n\n{text}" if "reasoning" in entry else text

    def _call(self, name: str, said: Fields, time: Any) -> None:
        arguments: Any = (
            json_of(said["arguments"])
            if "arguments" in said
            else said.get("input", said.get("action"))
        )
        if not isinstance(arguments, dict):
            arguments = text_of(said.get("arguments", arguments))
        call = {"name": str(said.get("name") or name.removesuffix("_call")), "arguments": arguments}
        id = said.get("call_id") or said.get("id")
        call = ({"id": id} if isinstance(id, str) else {}) | call
        self._answer(time).setdefault("toolCalls", []).append(call)

    def _result(self, said: Fields, time: Any) -> None:
        entry, output = self._start("tool", time), said.get("output")
        if isinstance(said.get("call_id"), str):
            entry["toolCallId"] = said["call_id"]
        about = object_of(output)
        inner = about.get("output", about.get("content"))
        if isinstance(output, list):
            texts = (
                item["text"] for item in objects_of(output) if isinstance(item.get("text"), str)
            )
            entry["content"] = "\n\n".join(texts)
            if files := [file for part in objects_of(output) if (file := _image(part))]:
                entry["attachments"] = files
        else:
            entry["content"] = inner if isinstance(inner, str) else text_of(output)
        metadata = about.get("metadata")
        if about.get("success") is False or (
            isinstance(metadata, dict) and metadata.get("exit_code") not in (None, 0)
        ):
            entry["metadata"] = {"isError": True}

    def _tell_event(self, name: str, said: Fields) -> None:
        info = said.get("info")
        if name == "token_count" and isinstance(info, dict):
            total = counts_of(info.get("total_token_usage"), _USAGE)
            used = counts_of(info.get("last_token_usage"), _USAGE)
            used = used or {key: number - self._total.get(key, 0) for key, number in total.items()}
            self._total = total
            for entry in [
                entry for entry in self.entries[:-4:-1] if used and entry["role"] == "assistant"
            ][:1]:
                entry["metadata"] = entry.get("metadata", {}) | {"usage": used}
        elif name == "thread_name_updated" and isinstance(said.get("thread_name"), str):
            self.title = said["thread_name"]
        elif name == "thread_rolled_back" and isinstance(said.get("num_turns"), int):
            number = min(said["num_turns"], len(self._turns))
            if number > 0:
                self._above, self._is_open = self._turns[-number], False
                del self._turns[-number:]

    def draft(self, id: str) -> Draft:
        """The session; `id` is what it is called if no line says it."""
        is_own = isinstance(self.note.get("id"), str)
        id = said if isinstance(said := self.meta.get("id"), str) and said else id
        head = filled({}, id=id, title=self.title, createdAt=moment(self.meta.get("timestamp")))
        spawned = object_of(object_of(self.meta.get("source")).get("subagent")).get("thread_spawn")
        parent = self.meta.get("parent_thread_id") or object_of(spawned).get("parent_thread_id")
        links = {"sourceConversationId": parent, "forkedFrom": self.meta.get("forked_from_id")}
        if named := {name: value for name, value in links.items() if isinstance(value, str)}:
            head = head | {"metadata": named}
        if not is_own:
            head = with_source(head, {"lines": self.about})
        history = list(self.entries)
        for place, (entry, lines) in enumerate(zip(self.entries, self.lines, strict=True)):
            if place not in self._exported:
                folded = [_folded(line, entry) for line in lines]
                history[place] = with_source(entry, {"lines": folded})
        return Draft(head, history, 1, is_own, export_note=self.note)


Line = tuple[int | None, Fields]
#: The fields that an item of each type has at least.
_OF_AN_ITEM: dict[str, set[str]] = {
    "message": {"role", "content"},
    "function_call": {"name", "arguments", "call_id"},
    "function_call_output": {"call_id", "output"},
}
_KINDS = {"session_meta", "turn_context", "response_item", "event_msg", "compacted"}


def _draft(lines: list[Line], tell: Callable[[str, int | None], None], id: str) -> Draft | None:
    talk = RolloutReader(
        text
        for _, line in lines
        for kind, said, _ in [parts_of(line)]
        if kind != "event_msg"
        for text in texts_of(kind, said)
    )
    for number, line in lines:
        with reporting_damage(tell, "a line", number):
            kind, _, time = parts_of(line)
            if kind == "response_item" and "payload" in line and moment(time) is None:
                tell("a message without its time", number)
            if _is_odd(line):
                tell("a line that is not understood", number)
            talk.add(line)
    return talk.draft(id) if talk.entries or talk.note else None


def _is_odd(line: Fields) -> bool:
    """Whether a line lacks its kind, its payload, or a field that such an item has: then its
    message is not found.
    """
    kind, said, _ = parts_of(line)
    if "payload" not in line:  # The oldest lines have none.
        return line.get("type") in _KINDS or ("type" not in line and "role" in line)
    if kind not in ("response_item", "event_msg"):
        return "type" not in line
    return not _OF_AN_ITEM.get(str(said.get("type")), {"type"}) <= said.keys()


def _read(source: Source) -> Iterator[Draft]:
    lines: list[Line] = []
    for number, line in read_records(source):
        if isinstance(line.get("session"), dict) and isinstance(line.get("items"), list):
            lines += [(number, item) for item in [line["session"], *objects_of(line["items"])]]
        else:
            lines.append((number, line))
    named = re.findall(UUID, source.name)
    if (draft := _draft(lines, source.tell, named[-1] if named else "")) is not None:
        yield draft


def _default_payloads(said: Fields) -> Iterator[Fields]:
    """The payloads of the lines for a message that Codex did not write."""
    role, text, calls = said["role"], said["content"], said.get("toolCalls", ())
    if role == "tool" and isinstance(said.get("toolCallId"), str):
        yield {"type": "function_call_output", "call_id": said["toolCallId"], "output": text}
        return
    if role != "assistant":
        files = said.get("attachments", ()) if role == "user" else ()
        is_shown = all(
            "data" in file and str(file.get("type")).startswith("image/") for file in files
        )
        images = (
            [{"type": "input_image", "image_url": url_of(file)} for file in files]
            if is_shown
            else []
        )
        parts = [{"type": "input_text", "text": text}, *images]
        yield {
            "type": "message",
            "role": "developer" if role == "system" else "user",
            "content": parts,
        }
        if role == "user" and text.strip():
            yield {"type": "user_message", "message": text, "images": [], "kind": "plain"}
        return
    named = [
        call
        for call in calls
        if isinstance(call.get("id"), str) and isinstance(call.get("name"), str)
    ]
    if said.get("reasoning"):
        yield {"type": "agent_reasoning", "text": said["reasoning"]}
    if text:
        yield {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": text}],
        }
    if text or not (said.get("reasoning") or named):
        yield {"type": "agent_message", "message": text}
    for call in named:
        arguments = text_of(call.get("arguments", {}))
        yield {
            "type": "function_call",
            "name": call["name"],
            "arguments": arguments,
            "call_id": call["id"],
        }


def _lines(draft: Draft, history: list[Fields], clock: int) -> list[list[Fields]]:
    """The lines of each message. Those that Codex did not write end with a mark, so that nothing is
    joined to them.
    """
    made: list[list[Fields]] = []
    for entry in history:
        said, source = without_source(entry)
        clock = max(clock, milliseconds(said.get("timestamp")) or 0)
        if "lines" in source and entry.get("id") not in draft.edited:
            made.append([unfolded(line, said) for line in source["lines"]])
            continue
        made.append([])
        for payload in _default_payloads(acceptable(said)):
            kind = "event_msg" if payload["type"] in EVENTS else "response_item"
            made[-1].append({"timestamp": moment(clock), "type": kind, "payload": payload})
            clock += 1
        made[-1][-1][CAPSULE_KEY] = {}
    return made


def _write(draft: Draft) -> bytes:
    history = active_path(draft.head, draft.history) if draft.is_own else draft.history
    _, source = without_source(draft.head)
    about = [dict(line) for line in source.get("lines", ())]
    made = _lines(draft, history, milliseconds(draft.head.get("createdAt")) or 0)
    if draft.id and not any(parts_of(line)[0] == "session_meta" for line in chain(about, *made)):
        about.insert(0, _meta(draft))
    if about:
        about[0] = draft.with_note(about[0])
    return encoded_lines([*about, *chain(*made)])


def _began(draft: Draft) -> str:
    times = [entry["timestamp"] for entry in draft.history if "timestamp" in entry]
    return str(draft.head.get("createdAt") or min(times, default=moment(0)))


def _meta(draft: Draft) -> Fields:
    """The first line of a session, with what Codex needs to list it."""
    folder = draft.folder or "/"
    about = {
        "cwd": folder,
        "originator": "codex_cli_rs",
        "cli_version": "0.0.0",
        "instructions": None,
        "source": "cli",
    }
    payload = {"id": uuid_of(draft.id), "timestamp": _began(draft), **about}
    return {"timestamp": _began(draft), "type": "session_meta", "payload": payload}


def _file_name(draft: Draft) -> str:
    """Its place below `~/.codex`."""
    day, time = _began(draft)[:10], _began(draft)[:19].replace(":", "-")
    return f"sessions/{day.replace('-', '/')}/rollout-{time}-{uuid_of(draft.id)}.jsonl"


def _is_ours(line: Fields) -> bool:
    if isinstance(line.get("payload"), dict):
        return line.get("type") in _KINDS
    is_old = "timestamp" in line and ("instructions" in line or "git" in line)
    return ("id" in line and is_old) or (isinstance(line.get("session"), dict) and "items" in line)


_PLACES = (
    *(
        "~/.codex/sessions/*/*/*/*.jsonl",
        "~/.codex/archived_sessions/*.jsonl",
        "~/.codex/sessions/*.json",
    ),
    *("~/.codex/sessions/*/*/*/*.jsonl.zst", "~/.codex/archived_sessions/*.jsonl.zst"),
)
_ABOUT: Fields = {
    "file_name": _file_name,
    "embeds_files": True,
    "is_portable": False,
    "places": _PLACES,
}
FORMATS = [Format("codex", "Codex", by_record(_is_ours), _read, _write, ".jsonl", **_ABOUT)]
