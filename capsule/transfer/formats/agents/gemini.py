"""Read the chats of Gemini CLI: a file for each session, JSONL or one object.

A record is a message, or it changes the earlier ones: a repeated id replaces a message, `$rewindTo`
removes the last ones, and `$set` with messages begins the chat anew. Removed messages stay as a
branch. A record with tool calls and their results becomes several messages: the last has the
record's id. A record that can't be read is kept in the head's source. Pure.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterator
from typing import Any, NamedTuple

from capsule.transfer.interface import (
    Draft,
    Fields,
    Format,
    Source,
    read_records,
    recognizes_record,
)
from capsule.transfer.records.mapping import (
    counts_of,
    moment,
    object_of,
    objects_of,
    text_of,
    with_nonempty,
    without,
)
from capsule.transfer.records.turns import with_turn_ids

_TYPES = {"user": "user", "gemini": "assistant"}
_TOKENS = {
    "inputTokens": "input",
    "outputTokens": "output",
    "cachedTokens": "cached",
    "reasoningTokens": "thoughts",
    "totalTokens": "total",
}
#: The fields of the head with a field of ours.
_HEAD_FIELDS = ("sessionId", "startTime", "lastUpdated", "summary", "messages")


class _ContentParts(NamedTuple):
    """The parts of a content by their kinds.

    Attributes:
        texts, thoughts: Texts.
        files: Attachments.
        calls: Tool calls in our fields.
        results: Responses of functions, as they are in the content.
        unmapped: Parts, or remainders of parts, without a field of ours.
    """

    texts: list[str]
    thoughts: list[str]
    files: list[Fields]
    calls: list[Fields]
    results: list[Fields]
    unmapped: list[Fields]


def _parts(content: Any) -> _ContentParts:
    """Return the parts of a content, which is a list of parts, or one of them."""
    parts = _ContentParts(texts=[], thoughts=[], files=[], calls=[], results=[], unmapped=[])
    for item in content if isinstance(content, list) else [content]:
        part = {"text": item} if isinstance(item, str) else object_of(item)
        text = part.get("text")
        call = part.get("functionCall")
        response = part.get("functionResponse")
        file = _file(part)
        if isinstance(text, str):
            (parts.thoughts if part.get("thought") is True else parts.texts).append(text)
            unmapped = without(part, "text", "thought")
        elif file:
            parts.files.append(file)
            unmapped = without(part, "inlineData", "fileData")
        elif isinstance(call, dict):
            parts.calls.append(_named_call(call))
            unmapped = without(part, "functionCall")
        elif isinstance(response, dict):
            parts.results.append(response)
            unmapped = without(part, "functionResponse")
        else:
            unmapped = part
        if unmapped:
            parts.unmapped.append(unmapped)
    return parts


def _named_call(call: Fields) -> Fields:
    """Return name, id and arguments of a call in our fields."""
    arguments = call["args"] if isinstance(call.get("args"), dict | str) else {}
    fields = with_nonempty({"name": text_of(call.get("name"))}, id=call.get("id"))
    return fields | {"arguments": arguments}


def _file(part: Fields) -> Fields:
    """Return the attachment for a part. Empty: the part is no file, or is damaged."""
    inline = object_of(part.get("inlineData"))
    if isinstance(inline.get("data"), str):
        try:
            content = b64decode(inline["data"], validate=True)
        except (binascii.Error, ValueError):
            return {}
        media_type = text_of(inline.get("mimeType"))
        name = text_of(inline.get("displayName")) or media_type or "file"
        return with_nonempty({"name": name, "data": content}, type=media_type)
    link = object_of(part.get("fileData"))
    url = link.get("fileUri")
    if isinstance(url, str):
        name = url.rpartition("/")[2] or url
        return with_nonempty({"name": name, "url": url}, type=link.get("mimeType"))
    return {}


def _messages(record: Fields) -> list[Fields]:
    """Return the messages of a record, at least one: its text and calls, then the results."""
    parts = _parts(record.get("content"))
    calls = objects_of(record.get("toolCalls"))
    source = _message_source(record, parts)
    # A record with nothing but results has no message of its own.
    has_results_only = bool(parts.results) and not parts.texts
    entries: list[Fields] = []
    if not has_results_only:
        entries.append(_text_message(record, parts, calls, source))
    for response in parts.results:
        entries.append(_result({"id": response.get("id")}, [{"functionResponse": response}]))
    entries += [_result(call, call["result"]) for call in calls if _has_result(call)]
    if has_results_only:
        metadata = entries[-1].get("metadata", {})
        entries[-1]["metadata"] = with_nonempty(metadata, source=source)
    for entry in entries:
        if record["timestamp"]:
            entry.setdefault("timestamp", record["timestamp"])
    entries[-1]["id"] = record["id"]
    return with_turn_ids(entries)


def _text_message(
    record: Fields, parts: _ContentParts, calls: list[Fields], source: Fields
) -> Fields:
    """Return the message for the texts, the reasoning, the calls and the files of a record."""
    kind = text_of(record.get("type"))
    thoughts = list(parts.thoughts)
    for thought in objects_of(record.get("thoughts")):
        thought_texts = [text_of(thought.get(name)) for name in ("subject", "description")]
        thoughts.append(": ".join(filter(None, thought_texts)))
    usage = counts_of(object_of(record.get("tokens")), _TOKENS)
    model = record.get("model")
    return with_nonempty(
        {"role": _TYPES.get(kind, "system"), "content": "\n\n".join(parts.texts)},
        model=model if isinstance(model, str) else None,
        reasoning="\n\n".join(filter(None, thoughts)),
        toolCalls=parts.calls + [_call(call) for call in calls],
        attachments=parts.files,
        metadata=with_nonempty({}, usage=usage, hidden=kind not in _TYPES, source=source),
    )


def _message_source(record: Fields, parts: _ContentParts) -> Fields:
    """Return the fields of a record without a field of ours."""
    unmapped = without(
        record, "id", "timestamp", "content", "thoughts", "toolCalls", "model", "tokens"
    )
    if text_of(record.get("type")) in _TYPES:
        unmapped.pop("type", None)
    if _parts(record.get("displayContent")).texts == parts.texts:
        unmapped.pop("displayContent", None)
    tokens = without(object_of(record.get("tokens")), *_TOKENS.values())
    source = with_nonempty(unmapped, tokens=tokens, content=parts.unmapped)
    return {name: value for name, value in source.items() if value is not None}


def _has_result(call: Fields) -> bool:
    return call.get("result") not in (None, [])


def _call(call: Fields) -> Fields:
    """Return a call in our fields, with the fields that the message of its result lacks."""
    unmapped = without(call, "id", "name", "args", "result")
    if _has_result(call):
        unmapped = without(unmapped, "resultDisplay", "status", "timestamp")
    fields = _named_call(call)
    for name, value in unmapped.items():
        if name not in fields and value is not None:
            fields[name] = value
    return fields


def _result(call: Fields, result: Any) -> Fields:
    """Return the message for the result of a call, which is a list of parts."""
    parts = _parts(result)
    texts = list(parts.texts)
    files = list(parts.files)
    unmapped = list(parts.unmapped)
    is_error = call.get("status") == "error"
    for response in parts.results:
        value = response.get("response")
        fields = object_of(value)
        if "output" in fields:
            texts.append(text_of(fields["output"]))
        elif "error" in fields:
            texts.append(text_of(fields["error"]))
            is_error = True
        else:
            texts.append(text_of(value))
        inner = _parts(response.get("parts", []))
        files += inner.files
        unmapped += inner.unmapped
    text = "\n\n".join(filter(None, texts))
    status = call.get("status")
    source = with_nonempty({}, result=unmapped, status="" if status == "success" else status)
    if call.get("resultDisplay") not in (None, text):
        source["resultDisplay"] = call["resultDisplay"]
    entry = {"role": "tool", "content": text}
    if moment(call.get("timestamp")):
        entry["timestamp"] = call["timestamp"]
    metadata = with_nonempty({}, isError=is_error, source=source)
    return with_nonempty(entry, toolCallId=call.get("id"), attachments=files, metadata=metadata)


class _GeminiChatReader:
    """Reads the records of a file, one after the other.

    Attributes:
        head: The head of the file, as its records set it.
        messages_by_record: The messages of each record, by the record's id.
        current_ids: The ids of the records that the chat has now, in their order.
        unknown: The records that can't be read.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.head: Fields = {}
        self.unknown: list[Fields] = []
        self.messages_by_record: dict[str, list[Fields]] = {}
        self.current_ids: dict[str, None] = {}

    def add(self, record: Fields, line: int) -> None:
        """Read the next record."""
        if "$rewindTo" in record:
            self._rewind(text_of(record["$rewindTo"]), line)
        elif isinstance(record.get("id"), str) and record["id"]:
            self._add_message(record, line)
        elif isinstance(record.get("$set"), dict):
            self._set(record["$set"], line)
        elif "sessionId" in record and "projectHash" in record:
            self._set(record, line)
        elif record.get("type") in (*_TYPES, "info", "warning", "error"):
            self._add_message(record, line)
        else:
            self.unknown.append(record)

    def _rewind(self, id: str, line: int) -> None:
        """Remove the message with this id and all later ones. Without it, remove all messages."""
        ids = list(self.current_ids)
        if id in self.current_ids:
            self.current_ids = dict.fromkeys(ids[: ids.index(id)])
        else:
            self.source.tell(f"goes back to message {id!r:.80}, which is missing", line)
            self.current_ids = {}

    def _set(self, fields: Fields, line: int) -> None:
        """Set fields of the head, and begin the chat anew if messages are among them."""
        self.head |= without(fields, "messages")
        if isinstance(fields.get("messages"), list):
            self.current_ids = {}
            for message in fields["messages"]:
                if isinstance(message, dict):
                    self._add_message(message, line)
                else:
                    self.source.tell("a message that is not an object", line)

    def _add_message(self, record: Fields, line: int) -> None:
        """Add a message. If its id is there already, replace that message in its place."""
        id = text_of(record.get("id"))
        time = moment(record.get("timestamp"))
        if not id:
            self.source.tell("a message without an id", line)
            id = f"#{len(self.messages_by_record)}"
        if time is None:
            self.source.tell(f"message {id[:80]} has no time", line)
        if record.get("type") in _TYPES and not ({"content", "toolCalls"} & record.keys()):
            self.source.tell(f"message {id[:80]} has no content", line)
        entries = _messages(record | {"id": id, "timestamp": time})
        replaced = self.messages_by_record.get(id)
        if replaced:
            entries[0]["parent"] = replaced[0]["parent"]
            if "attachments" in replaced[0]:
                entries[0].setdefault("attachments", replaced[0]["attachments"])
        else:
            entries[0]["parent"] = next(reversed(self.current_ids), None)
        self.messages_by_record[id] = entries
        self.current_ids.setdefault(id)

    def draft(self) -> Draft:
        """Return the whole file as one draft."""
        head = self.head
        history = [entry for entries in self.messages_by_record.values() for entry in entries]
        source = with_nonempty(without(head, *_HEAD_FIELDS), records=self.unknown)
        metadata: Fields = with_nonempty({}, source=source)
        if self.current_ids:
            metadata["currentNode"] = next(reversed(self.current_ids))
        path = self.source.name.split("/")
        if head.get("kind") == "subagent" and len(path) > 1:
            metadata["sourceConversationId"] = path[-2]
        draft_head = with_nonempty(
            {},
            id=head.get("sessionId") or next(iter(self.messages_by_record), None),
            title=head.get("summary"),
            metadata=metadata,
            createdAt=moment(head.get("startTime")),
            updatedAt=moment(head.get("lastUpdated")),
        )
        return Draft(draft_head, history, line=1)


def _read(source: Source) -> Iterator[Draft]:
    reader = _GeminiChatReader(source)
    for line, record in read_records(source):
        reader.add(record, line)
    if "sessionId" not in reader.head:
        source.tell("the record with the id of the session is missing", 1)
    if reader.head or reader.messages_by_record:
        yield reader.draft()


def _is_chat_record(record: Fields) -> bool:
    if "$rewindTo" in record:
        return True
    if record.get("type") == "gemini" and isinstance(record.get("id"), str) and "content" in record:
        return True
    has_ids = all(isinstance(record.get(name), str) for name in ("sessionId", "projectHash"))
    return has_ids and "uuid" not in record


_PLACES = tuple(f"~/.gemini/tmp/*/chats/{name}" for name in ("*.json", "*.jsonl", "*/*.jsonl"))
FORMATS = [
    Format(
        "gemini",
        "Gemini CLI",
        recognizes=recognizes_record(_is_chat_record),
        read=_read,
        places=_PLACES,
    )
]
