"""The records of Claude Code: what a message takes of them, and back.

What must stay true: `records_of` gives back what a message was made of. What is left of a record,
and of each block of its content, has no text that the message has; blocks are filled again from the
message, from the last to the first. Pure.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from capsule.transfer.interface import ODD, Fields
from capsule.transfer.records.coercion import counts_of, moment, with_bytes
from capsule.transfer.records.pairs import OWN, applied, difference, with_source

#: The blocks whose text is under the name of their type, and the field of ours that has it.
_SAID = {"text": "content", "thinking": "reasoning"}
_CALLS = ("tool_use", "server_tool_use")
_FILES = {"image": "image", "application": "document"}
#: Stands for a block that is left out.
_GONE = object()
_USAGE = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cachedTokens": "cache_read_input_tokens",
}
#: In a structured result, where it repeats the content.
_SAME = {"$content": True}
APART = frozenset({"message", "parentUuid", OWN})


def _take(block: Any, said: Fields) -> Any:
    """What is left of a block when the message has its part of it."""
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in _SAID:
        name, text = _SAID[kind], block.get(kind)
        if not isinstance(text, str):
            return block | {kind: text}
        rest = {key: value for key, value in block.items() if key != kind}
        if before := said.get(name):
            rest["from"] = len(before) + 2
            text = f"{before}\n\n{text}" if text else before
        if text or name in said:
            said[name] = text
        return rest
    if kind in _CALLS:
        if not _is_call(block, "input"):
            return {"id": None, **block}
        call = {"id": block["id"], "name": block["name"], "arguments": block["input"]}
        said.setdefault("toolCalls", []).append(call)
        return {key: value for key, value in block.items() if key not in ("id", "name", "input")}
    if (
        kind == "tool_result"
        and isinstance(block.get("tool_use_id"), str)
        and "toolCallId" not in said
    ):
        said["toolCallId"] = block["tool_use_id"]
        if block.get("is_error") is True:
            said["metadata"] = said.get("metadata", {}) | {"isError": True}
        content = block.get("content")
        rest = {key: value for key, value in block.items() if key not in ("tool_use_id", "content")}
        if isinstance(content, str):
            said["content"] = content
            return rest
        return rest | {
            "content": [_take(part, said) for part in content]
            if isinstance(content, list)
            else content
        }
    if kind in ("image", "document") and (data := _data(block.get("source"))) is not None:
        name = block.get("title")
        file = {
            "name": name if isinstance(name, str) else kind,
            "type": block["source"].get("media_type") or kind,
        }
        said.setdefault("attachments", []).append(file | {"data": data})
        return block | {
            "source": {key: value for key, value in block["source"].items() if key != "data"}
        }
    if kind == "tool_result":
        return {"tool_use_id": None, **block}
    return (
        block | {"source": block["source"] | {"data": None}} if _lacks_data(kind, block) else block
    )


def _lacks_data(kind: Any, block: Any) -> bool:
    if kind not in ("image", "document") or not isinstance(block.get("source"), dict):
        return False
    return bool(block["source"].keys() == {"type", "media_type"})


def _is_call(call: Fields, arguments: str) -> bool:
    texts = isinstance(call.get("id"), str) and isinstance(call.get("name"), str)
    return texts and isinstance(call.get(arguments), dict | str)


def _data(source: Any) -> bytes | None:
    try:
        if source.keys() != {"type", "media_type", "data"} or source["type"] != "base64":
            return None
        data = b64decode(source["data"], validate=True)
        return data if b64encode(data).decode() == source["data"] else None
    except ODD:
        return None


def _filled(kept: Any, left: Fields) -> Any:
    """The content that `kept` is the rest of; `left` is what the message has, without what later
    blocks have taken.
    """
    if kept == "":
        return left["content"]
    if not isinstance(kept, list):
        return kept
    return [
        block
        for block in [_fill(block, left) for block in reversed(kept)][::-1]
        if block is not _GONE
    ]


def _fill(block: Any, left: Fields) -> Any:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in _SAID and kind not in block:
        name, at = _SAID[kind], block.get("from", 0)
        text = left.get(name, "")
        left[name] = text[: max(at - 2, 0)]
        return {key: value for key, value in block.items() if key != "from"} | {kind: text[at:]}
    if kind in _CALLS and "id" not in block:
        call = left["toolCalls"].pop()
        return block | {"id": call["id"], "name": call["name"], "input": call["arguments"]}
    if kind == "tool_result" and "tool_use_id" not in block:
        return {
            "tool_use_id": left["toolCallId"],
            **block,
            "content": _filled(block.get("content", ""), left),
        }
    if _lacks_data(kind, block):
        data = left["attachments"].pop().get("data")
        return (
            block | {"source": block["source"] | {"data": b64encode(data).decode()}}
            if data is not None
            else _GONE
        )
    return block


def _calls(said: Fields) -> list[Fields]:
    """The calls of a message, if all can be blocks."""
    calls: list[Fields] = said.get("toolCalls", [])
    return calls if all(_is_call(call, "arguments") for call in calls) else []


def _shape(said: Fields) -> Any:
    """What is left of the content of a message that Claude Code did not write."""
    if said["role"] == "assistant":
        called = [{"type": "tool_use"} for _ in _calls(said)]
        return [{"type": "text"}, *called] if said["content"] or not called else called
    files, kept = said.get("attachments"), list[Fields]()
    if (
        files
        and said["role"] in ("user", "tool")
        and all(isinstance(file.get("data"), bytes) for file in files)
    ):
        kinds = [_FILES.get(str(file.get("type")).partition("/")[0]) for file in files]
        if None not in kinds:
            sources = [{"type": "base64", "media_type": file["type"]} for file in files]
            kept = [
                {"type": kind, "source": source}
                for kind, source in zip(kinds, sources, strict=True)
            ]
    content: Any = [*kept, {"type": "text"}] if kept else ""
    if said["role"] != "tool" or "toolCallId" not in said:
        return content
    error = {"is_error": True} if said.get("metadata", {}).get("isError") is True else {}
    return [{"type": "tool_result"} | error | ({"content": content} if content else {})]


def _base(said: Fields, common: Fields) -> Fields:
    """The first record of a message, without its content and its parent."""
    role, about = said["role"], said.get("metadata", {})
    kind = "user" if role == "tool" else role
    base = {**common, "type": kind}
    base |= {
        key: said[name]
        for key, name in (("uuid", "id"), ("timestamp", "timestamp"))
        if name in said
    }
    if about.get("hidden") is True:
        base["isMeta"] = True
    if kind == "system":
        return base | {"subtype": "informational", "level": "info"}
    message = base["message"] = {"role": kind}
    if kind == "assistant":
        counts = about.get("usage", {})
        usage = {key: counts[name] for name, key in _USAGE.items() if counts.get(name) is not None}
        message |= {
            "id": f"msg_{said.get('id')}",
            "type": "message",
            "model": said.get("model", "<synthetic>"),
            "stop_reason": "tool_use" if _calls(said) else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0} | usage,
        }
    return base


class Message:
    """A message, of one record or, if it is an answer, of several.

    Attributes:
        said: The message.
        name: The id of the answer, which its records share.
        parent: The record that it answers.
        last: The record that the next message answers: its own, or that of its last result.
        results: The calls of it that have a result.
    """

    __slots__ = (
        "_blocks",
        "_is_common",
        "_records",
        "before",
        "last",
        "name",
        "parent",
        "results",
        "said",
    )

    def __init__(self, record: Fields, before: list[Fields], *, is_common: bool) -> None:
        kind = record["type"]
        self.said: Fields = {"role": kind, "content": ""}
        self.before, self.parent = before, record.get("parentUuid")
        self._records: list[Fields] = []
        self._blocks: list[Any] = []
        self._is_common = True
        self.name = record["message"].get("id") if kind == "assistant" else None
        self.results: set[Any] = set()
        self.add(record, is_common=is_common)
        said = self.said
        if "toolCallId" in said:
            said["role"] = "tool"
        if isinstance(record.get("uuid"), str):
            said["id"] = record["uuid"]
        if time := record.get("timestamp"):
            said["timestamp"] = moment(time) or time
        if record.get("isMeta") is True or record.get("isVisibleInTranscriptOnly") is True:
            said["metadata"] = said.get("metadata", {}) | {"hidden": True}
        self.last = said.get("id")

    def add(self, record: Fields, *, is_common: bool) -> None:
        """Take one more record; `is_common` is whether it says what all records of the
        session say.
        """
        content = record["message"].get("content") if "message" in record else record["content"]
        if isinstance(content, str):
            self.said["content"], content = content, ""
        elif isinstance(content, list):
            content = [_take(block, self.said) for block in content]
        self._blocks.append(content)
        self._records.append(record)
        self._is_common = self._is_common and is_common

    def _describe(self, message: Fields) -> None:
        if isinstance(message.get("model"), str):
            self.said["model"] = message["model"]
        if usage := counts_of(message.get("usage"), _USAGE):
            self.said["metadata"] = self.said.get("metadata", {}) | {"usage": usage}

    def entry(self, common: Fields, apart: frozenset[str], ends: dict[Any, str]) -> Fields:
        """The message with what its records have besides.

        `common` is what all records of the session say, `apart` the names of it and of what is
        apart in each record, and `ends` are the last records of messages.
        """
        said, records, blocks = self.said, self._records, self._blocks
        if said["role"] == "assistant":
            self._describe(records[-1]["message"])
        rests = [_rest(record, apart if self._is_common else APART) for record in records]
        source = difference(rests[0], _base(said, {} if self._is_common else common))
        if self.parent != ends.get(said["parent"]):
            source["parentUuid"] = self.parent
        if len(rests) > 1 or blocks[0] != _shape(said):
            source["blocks"] = blocks[0]
        if len(rests) > 1:
            for rest, record in zip(rests, records, strict=True):
                rest["parentUuid"] = record.get("parentUuid")
            source["records"] = [
                {**difference(rest, before | {"parentUuid": before.get("uuid")}), "blocks": left}
                for before, rest, left in zip(rests, rests[1:], blocks[1:], strict=False)
            ]
        if self.before:
            source["before"] = self.before
        own = records[-1].get(OWN)
        if isinstance(own, dict):
            said = with_bytes(applied(said, own))
        return with_source(said, source)


def _rest(record: Fields, apart: frozenset[str]) -> Fields:
    """A record without its place, its content and what is apart."""
    rest = {key: value for key, value in record.items() if key not in apart}
    message = record.get("message")
    if message is None:
        rest.pop("content")
        return rest
    rest["message"] = {key: value for key, value in message.items() if key != "content"}
    if "toolUseResult" in record:
        rest["toolUseResult"] = _folded(record["toolUseResult"], _result(message.get("content")))
    return rest


def _result(content: Any) -> Any:
    """The content of the result in a content; None: there is none."""
    block = content[0] if isinstance(content, list) and content else None
    return block.get("content") if isinstance(block, dict) else None


def _folded(result: Any, content: Any) -> Any:
    """A structured result without what repeats the content."""
    if not content or not isinstance(result, dict):
        return _SAME if content and result == content else result
    return {key: _SAME if value == content else value for key, value in result.items()}


def _unfolded(result: Any, content: Any) -> Any:
    if result == _SAME:
        return content
    if not isinstance(result, dict):
        return result
    return {key: content if value == _SAME else value for key, value in result.items()}


def records_of(said: Fields, source: Fields, common: Fields) -> list[Fields]:
    """The records of a message, the first of them without its parent."""
    apart = ("blocks", "records", "before", "parentUuid")
    records = [
        applied(
            _base(said, common), {key: value for key, value in source.items() if key not in apart}
        )
    ]
    blocks = [source.get("blocks", _shape(said))]
    for more in source.get("records", ()):
        before = records[-1] | {"parentUuid": records[-1].get("uuid")}
        records.append(
            applied(before, {key: value for key, value in more.items() if key != "blocks"})
        )
        blocks.append(more["blocks"])
    left = {
        **said,
        "toolCalls": [*said.get("toolCalls", ())],
        "attachments": [*said.get("attachments", ())],
    }
    for record, kept in zip(reversed(records), reversed(blocks), strict=True):
        content = _filled(kept, left)
        if "message" not in record:
            record["content"] = content
            continue
        record["message"] = record["message"] | {"content": content}
        if "toolUseResult" in record:
            record["toolUseResult"] = _unfolded(record["toolUseResult"], _result(content))
    return records
