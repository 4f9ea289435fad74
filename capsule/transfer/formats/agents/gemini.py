"""The chats of Gemini CLI: one file for a session, JSONL or one object.

A record of JSONL is a message, or changes what was said: a repeated id replaces a message,
`$rewindTo` drops the last ones, and `$set` with messages begins the talk anew. What is dropped
stays as a branch. What was called and what came back are one record there, and several messages
here. Pure.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

from capsule.transfer.interface import Draft, Fields, Format, Source, by_record, read_records
from capsule.transfer.records.coercion import (
    counts_of,
    filled,
    moment,
    object_of,
    objects_of,
    rest,
    text_of,
)
from capsule.transfer.records.turns import numbered

_TYPES = {"user": "user", "gemini": "assistant"}
_TOKENS = {"inputTokens": "input", "outputTokens": "output", "cachedTokens": "cached"}
_TOKENS |= {"reasoningTokens": "thoughts", "totalTokens": "total"}
#: What of the head has a field of ours.
_HEAD = ("sessionId", "startTime", "lastUpdated", "summary", "messages")


def _parts(content: Any) -> Fields:
    """What a content says: texts, thoughts, files, calls, results, and the parts that are something
    else.
    """
    kinds: Fields = {
        name: [] for name in ("texts", "thoughts", "files", "calls", "results", "rest")
    }
    for part in content if isinstance(content, list) else [content]:
        left = {"text": part} if isinstance(part, str) else object_of(part)
        response, call = left.get("functionResponse"), left.get("functionCall")
        if isinstance(left.get("text"), str):
            kinds["thoughts" if left.get("thought") is True else "texts"].append(left["text"])
            left = rest(left, "text", "thought")
        elif file := _file(left):
            kinds["files"].append(file)
            left = rest(left, "inlineData", "fileData")
        elif isinstance(call, dict):
            kinds["calls"].append(
                filled({"name": text_of(call.get("name"))}, id=call.get("id")) | _arguments(call)
            )
            left = rest(left, "functionCall")
        elif isinstance(response, dict):
            kinds["results"].append(response)
            left = rest(left, "functionResponse")
        kinds["rest"] += [left] if left else []
    return kinds


def _arguments(call: Fields) -> Fields:
    return {"arguments": call["args"] if isinstance(call.get("args"), dict | str) else {}}


def _file(part: Fields) -> Fields:
    data, link = object_of(part.get("inlineData")), object_of(part.get("fileData"))
    if isinstance(data.get("data"), str):
        try:
            content = b64decode(data["data"], validate=True)
        except (binascii.Error, ValueError):
            return {}
        kind = text_of(data.get("mimeType"))
        return filled(
            {"name": text_of(data.get("displayName")) or kind or "file", "data": content}, type=kind
        )
    if isinstance(url := link.get("fileUri"), str):
        return filled(
            {"name": url.rpartition("/")[2] or url, "url": url}, type=link.get("mimeType")
        )
    return {}


def _messages(record: Fields) -> list[Fields]:
    """The messages that a record holds, one at least."""
    kind, said = text_of(record.get("type")), _parts(record.get("content"))
    entry: Fields = {"role": _TYPES.get(kind, "system"), "content": "\n\n".join(said["texts"])}
    listed = objects_of(record.get("thoughts"))
    parts = (map(text_of, map(thought.get, ("subject", "description"))) for thought in listed)
    thoughts = [": ".join(filter(None, texts)) for texts in parts]
    tokens = object_of(record.get("tokens"))
    usage = counts_of(tokens, _TOKENS)
    calls = objects_of(record.get("toolCalls"))
    mapped = ["id", "timestamp", "content", "thoughts", "toolCalls", "model", "tokens"]
    if kind in _TYPES:
        mapped.append("type")
    if _parts(record.get("displayContent"))["texts"] == said["texts"]:
        mapped.append("displayContent")
    source = filled(
        rest(record, *mapped), tokens=rest(tokens, *_TOKENS.values()), content=said["rest"]
    )
    source = {name: value for name, value in source.items() if value is not None}
    is_tool = bool(said["results"]) and not said["texts"]
    metadata = filled({}, usage=usage, hidden=kind not in _TYPES, source={} if is_tool else source)
    entries = [
        filled(
            entry,
            model=record.get("model") if isinstance(record.get("model"), str) else None,
            reasoning="\n\n".join(filter(None, [*said["thoughts"], *thoughts])),
            toolCalls=said["calls"] + [_call(call) for call in calls],
            attachments=said["files"],
            metadata=metadata,
        )
    ]
    entries += [
        _result({"id": answer.get("id")}, [{"functionResponse": answer}])
        for answer in said["results"]
    ]
    entries += [_result(call, call["result"]) for call in calls if _has_result(call)]
    if is_tool:
        entries = entries[1:]
        entries[-1] |= {
            "metadata": {**entries[-1].get("metadata", {}), **filled({}, source=source)}
        }
    for made in entries:
        if record["timestamp"]:
            made.setdefault("timestamp", record["timestamp"])
    entries[-1]["id"] = record["id"]
    return numbered(entries)


def _has_result(call: Fields) -> bool:
    return call.get("result") not in (None, [])


def _call(call: Fields) -> Fields:
    """A call, with what its result doesn't say."""
    left = rest(call, "id", "name", "args", "result")
    left = rest(left, "resultDisplay", "status", "timestamp") if _has_result(call) else left
    made = filled({"name": text_of(call.get("name"))}, id=call.get("id")) | _arguments(call)
    return made | {
        name: value for name, value in left.items() if name not in made and value is not None
    }


def _result(call: Fields, result: Any) -> Fields:
    """The message of a result, which is a list of parts."""
    said = _parts(result)
    texts, files, left = list(said["texts"]), said["files"], said["rest"]
    is_error = call.get("status") == "error"
    for response in said["results"]:
        value = response.get("response")
        named = next((name for name in ("output", "error") if name in object_of(value)), "")
        is_error = is_error or named == "error"
        texts.append(text_of(object_of(value)[named] if named else value))
        inner = _parts(response.get("parts", []))
        files, left = files + inner["files"], left + inner["rest"]
    text = "\n\n".join(filter(None, texts))
    source = filled(
        {}, result=left, status="" if call.get("status") == "success" else call.get("status")
    )
    if call.get("resultDisplay") not in (None, text):
        source["resultDisplay"] = call["resultDisplay"]
    metadata = filled({}, isError=is_error, source=source)
    entry = {"role": "tool", "content": text}
    time = {"timestamp": call["timestamp"]} if moment(call.get("timestamp")) else {}
    return filled(entry | time, toolCallId=call.get("id"), attachments=files, metadata=metadata)


class _GeminiChatReader:
    """What is said by a file, record by record.

    Attributes:
        head: The head of the file, as its records set it.
        said: The messages of each record, by the record's id.
        line: The ids of the records that are the talk now.
    """

    def __init__(self, source: Source) -> None:
        self.source, self.head, self.unknown = source, dict[str, Any](), list[Fields]()
        self.said: dict[str, list[Fields]] = {}
        self.line: dict[str, None] = {}

    def take(self, record: Fields, line: int) -> None:
        """Take the next record."""
        if "$rewindTo" in record:
            known = text_of(record["$rewindTo"]) in self.line
            if not known:
                self.source.tell(
                    f"goes back to message {text_of(record['$rewindTo'])!r:.80}, which is not "
                    "there",
                    line,
                )
            ids = list(self.line) if known else []
            self.line = dict.fromkeys(
                ids[: ids.index(text_of(record["$rewindTo"]))] if known else ()
            )
        elif isinstance(record.get("id"), str) and record["id"]:
            self._say(record, line)
        elif isinstance(record.get("$set"), dict):
            self._set(record["$set"], line)
        elif "sessionId" in record and "projectHash" in record:
            self._set(record, line)
        elif record.get("type") in (*_TYPES, "info", "warning", "error"):
            self._say(record, line)
        else:
            self.unknown.append(record)

    def _set(self, fields: Fields, line: int) -> None:
        self.head |= rest(fields, "messages")
        if isinstance(fields.get("messages"), list):
            self.line = {}
            for message in fields["messages"]:
                if isinstance(message, dict):
                    self._say(message, line)
                else:
                    self.source.tell("a message that is no object", line)

    def _say(self, record: Fields, line: int) -> None:
        id, time = text_of(record.get("id")), moment(record.get("timestamp"))
        if not id:
            self.source.tell("a message without an id", line)
            id = f"#{len(self.said)}"
        if time is None:
            self.source.tell(f"message {id[:80]} has no time", line)
        if record.get("type") in _TYPES and not ({"content", "toolCalls"} & record.keys()):
            self.source.tell(f"message {id[:80]} has no content", line)
        entries = _messages(record | {"id": id, "timestamp": time})
        former = self.said.get(id)
        entries[0]["parent"] = former[0]["parent"] if former else next(reversed(self.line), None)
        if former and "attachments" in former[0]:
            entries[0].setdefault("attachments", former[0]["attachments"])
        self.said[id] = entries
        self.line.setdefault(id)

    def draft(self) -> Draft:
        """All of it as one draft."""
        head = self.head
        history = [entry for entries in self.said.values() for entry in entries]
        metadata: Fields = filled({}, source=filled(rest(head, *_HEAD), records=self.unknown))
        if self.line:
            metadata["currentNode"] = next(reversed(self.line))
        if head.get("kind") == "subagent" and len(path := self.source.name.split("/")) > 1:
            metadata["sourceConversationId"] = path[-2]
        id = head.get("sessionId") or next(iter(self.said), None)
        times = {
            "createdAt": moment(head.get("startTime")),
            "updatedAt": moment(head.get("lastUpdated")),
        }
        return Draft(
            filled({}, id=id, title=head.get("summary"), metadata=metadata, **times), history, 1
        )


def _read(source: Source) -> Iterator[Draft]:
    talk = _GeminiChatReader(source)
    for line, record in read_records(source):
        talk.take(record, line)
    if "sessionId" not in talk.head:
        source.tell("the record that says which session it is is not there", 1)
    if talk.head or talk.said:
        yield talk.draft()


def _is_ours(record: Fields) -> bool:
    is_head = isinstance(record.get("sessionId"), str) and isinstance(
        record.get("projectHash"), str
    )
    is_message = (
        record.get("type") == "gemini" and isinstance(record.get("id"), str) and "content" in record
    )
    return (is_head and "uuid" not in record) or is_message or "$rewindTo" in record


_PLACES = tuple(f"~/.gemini/tmp/*/chats/{name}" for name in ("*.json", "*.jsonl", "*/*.jsonl"))
FORMATS = [Format("gemini", "Gemini CLI", by_record(_is_ours), _read, places=_PLACES)]
