"""Turn the records of one message of Claude Code into a message, and back.

A record is a line of a transcript. Its content is a text or a list of blocks (text, thinking, a
tool call, a result, an image). An answer of the model has as many records as blocks, and is one
message here.

Each block is split: the text goes into the message, and the remainder of the block, its template,
into `metadata.source`. To restore the records, the templates are filled from the message in reverse
order. A template lacks the field that was moved (`text`, `id`, `tool_use_id`, `data`). A block that
is stored whole has this field, with null if it had none.

What must stay true: `records_of` gives back each record as Claude Code writes it, except for the
parent of the first one, which the caller sets. (A record that it does not write may change: a field
that a block lacks becomes null. A text block with a field `from`, and an answer of several records
whose content is not in blocks, may lose text.) A template has no text that the message has. An
answer that grows keeps its id, the id of its first record. Nothing here reads or writes a file.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from capsule.transfer.interface import FORMAT_ERRORS
from capsule.transfer.records.mapping import (
    CAPSULE_KEY,
    Fields,
    apply_difference,
    counts_of,
    difference,
    moment,
    with_source,
    without,
)

#: The types of blocks with a text, which they have under the name of their type. For each the field
#: of a message for this text.
_TEXT_BLOCKS = {"text": "content", "thinking": "reasoning"}
_CALL_BLOCKS = ("tool_use", "server_tool_use")
#: The type of the block for an attachment, by the first part of its media type.
_FILE_BLOCKS = {"image": "image", "application": "document"}
#: Stands for a block that is left out.
_NO_BLOCK = object()
#: The template of content that is one text, without blocks.
_WHOLE_TEXT = ""
#: The counts of tokens in a message, with their names in a record.
_USAGE = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cachedTokens": "cache_read_input_tokens",
}
#: Stands for a value of `toolUseResult` that repeats the content of the result.
_SAME_AS_CONTENT = {"$content": True}
#: Between the texts of two blocks in one field of a message.
_SEPARATOR = "\n\n"
#: The fields of a record that are stored apart from the rest of it.
SEPARATE_FIELDS = frozenset({"message", "parentUuid", CAPSULE_KEY})


def _split_block(block: Any, message: Fields) -> Any:
    """Move the text, the call, the result or the file of a block into `message`, which is changed.

    Return the template of the block, from which `_restore_block` makes the block again. A block
    that can't be read is stored whole: it is its own template.
    """
    if not isinstance(block, dict):
        return block
    kind = block.get("type")
    if kind in _TEXT_BLOCKS:
        return _split_text(block, kind, message)
    if kind in _CALL_BLOCKS:
        return _split_call(block, message)
    if kind == "tool_result":
        return _split_result(block, message)
    if kind in ("image", "document"):
        return _split_file(block, kind, message)
    return block


def _split_text(block: Fields, kind: str, message: Fields) -> Fields:
    """Append the text of a block to the message, and return its template.

    If the message has an earlier text, `from` in the template is the offset of this one.
    """
    name = _TEXT_BLOCKS[kind]
    text = block.get(kind)
    if not isinstance(text, str):
        return block | {kind: text}  # Stored whole.
    template = without(block, kind)
    earlier_text = message.get(name)
    if earlier_text:
        template["from"] = len(earlier_text) + len(_SEPARATOR)
        text = f"{earlier_text}{_SEPARATOR}{text}" if text else earlier_text
    if text or name in message:
        message[name] = text
    return template


def _split_call(block: Fields, message: Fields) -> Fields:
    """Append the call of a block to the message, and return its template."""
    if not _is_call(block, "input"):
        return {"id": None, **block}  # Stored whole.
    call = {"id": block["id"], "name": block["name"], "arguments": block["input"]}
    message.setdefault("toolCalls", []).append(call)
    return without(block, "id", "name", "input")


def _split_result(block: Fields, message: Fields) -> Fields:
    """Make the message the result of its call, and return the template of the block.

    A message is the result of one call only: a further result is stored whole.
    """
    if not isinstance(block.get("tool_use_id"), str) or "toolCallId" in message:
        return {"tool_use_id": None, **block}
    message["toolCallId"] = block["tool_use_id"]
    if block.get("is_error") is True:
        message["metadata"] = message.get("metadata", {}) | {"isError": True}
    content = block.get("content")
    template = without(block, "tool_use_id", "content")
    if isinstance(content, str):
        message["content"] = content
        return template
    if isinstance(content, list):
        content = [_split_block(part, message) for part in content]
    return template | {"content": content}


def _split_file(block: Fields, kind: str, message: Fields) -> Fields:
    """Attach the image or document of a block to the message, and return its template."""
    source = block.get("source")
    data = _data(source)
    if data is None:
        if _lacks_data(kind, block):  # Stored whole, so it may not look like a template.
            return block | {"source": block["source"] | {"data": None}}
        return block
    title = block.get("title")
    name = title if isinstance(title, str) else kind
    media_type = block["source"].get("media_type") or kind
    attachment = {"name": name, "type": media_type, "data": data}
    message.setdefault("attachments", []).append(attachment)
    return block | {"source": without(block["source"], "data")}


def _lacks_data(kind: Any, block: Any) -> bool:
    """Return whether a block is the template of an image or a document."""
    if kind not in ("image", "document") or not isinstance(block.get("source"), dict):
        return False
    return bool(block["source"].keys() == {"type", "media_type"})


def _is_call(call: Fields, arguments_key: str) -> bool:
    """Return whether a call has its id, its name, and its arguments under a key."""
    has_texts = isinstance(call.get("id"), str) and isinstance(call.get("name"), str)
    return has_texts and isinstance(call.get(arguments_key), dict | str)


def _data(source: Any) -> bytes | None:
    """Return the data of the source of a block. None: it can't be written back exactly."""
    try:
        if source.keys() != {"type", "media_type", "data"} or source["type"] != "base64":
            return None
        data = b64decode(source["data"], validate=True)
        return data if b64encode(data).decode() == source["data"] else None
    except FORMAT_ERRORS:
        return None


def _restore_content(template: Any, remaining: Fields) -> Any:
    """Return the content of a record from its template.

    Args:
        template: `_WHOLE_TEXT`, a list of the templates of blocks, or any other content as stored.
        remaining: The message without the parts that later blocks have. The parts of this content
            are removed from it.
    """
    if template == _WHOLE_TEXT:
        return remaining["content"]
    if not isinstance(template, list):
        return template
    blocks = [_restore_block(block, remaining) for block in reversed(template)]
    return [block for block in reversed(blocks) if block is not _NO_BLOCK]


def _restore_block(block: Any, remaining: Fields) -> Any:
    """Return the block of a template, and remove its parts from `remaining`.

    `_NO_BLOCK`: its attachment has no data anymore.
    """
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in _TEXT_BLOCKS and kind not in block:
        name = _TEXT_BLOCKS[kind]
        offset = block.get("from", 0)
        text = remaining.get(name, "")
        remaining[name] = text[: max(offset - len(_SEPARATOR), 0)]
        return without(block, "from") | {kind: text[offset:]}
    if kind in _CALL_BLOCKS and "id" not in block:
        call = remaining["toolCalls"].pop()
        return block | {"id": call["id"], "name": call["name"], "input": call["arguments"]}
    if kind == "tool_result" and "tool_use_id" not in block:
        content = _restore_content(block.get("content", _WHOLE_TEXT), remaining)
        return {"tool_use_id": remaining["toolCallId"], **block, "content": content}
    if _lacks_data(kind, block):
        data = remaining["attachments"].pop().get("data")
        if data is None:
            return _NO_BLOCK
        return block | {"source": block["source"] | {"data": b64encode(data).decode()}}
    return block


def _calls(message: Fields) -> list[Fields]:
    """Return the calls of a message. Empty: one of them can't be a block."""
    calls: list[Fields] = message.get("toolCalls", [])
    return calls if all(_is_call(call, "arguments") for call in calls) else []


def _default_template(message: Fields) -> Any:
    """Return the template of the first record of a message whose source has no template.

    Claude Code did not write the message, or it has just these blocks.
    """
    if message["role"] == "assistant":
        call_blocks = [{"type": "tool_use"} for _ in _calls(message)]
        if message["content"] or not call_blocks:
            return [{"type": "text"}, *call_blocks]
        return call_blocks
    content: Any = _WHOLE_TEXT
    file_blocks = _default_file_blocks(message)
    if file_blocks:
        content = [*file_blocks, {"type": "text"}]
    if message["role"] != "tool" or "toolCallId" not in message:
        return content
    result: Fields = {"type": "tool_result"}
    if message.get("metadata", {}).get("isError") is True:
        result["is_error"] = True
    if content != _WHOLE_TEXT:
        result["content"] = content
    return [result]


def _default_file_blocks(message: Fields) -> list[Fields]:
    """Return the templates for the attachments of a message. Empty: not all can be blocks."""
    attachments = message.get("attachments", ())
    if message["role"] not in ("user", "tool"):
        return []
    blocks = []
    for attachment in attachments:
        kind = _FILE_BLOCKS.get(str(attachment.get("type")).partition("/")[0])
        if kind is None or not isinstance(attachment.get("data"), bytes):
            return []
        source = {"type": "base64", "media_type": attachment["type"]}
        blocks.append({"type": kind, "source": source})
    return blocks


def _default_record(message: Fields, common: Fields) -> Fields:
    """Return the first record that a message should have, without its content and its parent.

    Only what differs from it is stored in the source.
    """
    role = message["role"]
    metadata = message.get("metadata", {})
    kind = "user" if role == "tool" else role
    record = {**common, "type": kind}
    if "id" in message:
        record["uuid"] = message["id"]
    if "timestamp" in message:
        record["timestamp"] = message["timestamp"]
    if metadata.get("hidden") is True:
        record["isMeta"] = True
    if kind == "system":
        return record | {"subtype": "informational", "level": "info"}
    inner: Fields = {"role": kind}
    if kind == "assistant":
        counts = metadata.get("usage", {})
        usage = {key: counts[name] for name, key in _USAGE.items() if counts.get(name) is not None}
        inner |= {
            "id": f"msg_{message.get('id')}",
            "type": "message",
            "model": message.get("model", "<synthetic>"),
            "stop_reason": "tool_use" if _calls(message) else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0} | usage,
        }
    return record | {"message": inner}


class ClaudeMessage:
    """A message of one record or, if it is an answer, of several records.

    The reader of the transcript links the messages: it sets `fields["parent"]`, `last` and
    `answered_calls`.

    Attributes:
        fields: The fields of the message, which has no `metadata.source` yet.
        answer_id: The id that the records of an answer share. None: the message is no answer.
        parent: The `parentUuid` of its first record.
        last: The id of the record that the next message answers: its own, or the last result of
            its calls.
        answered_calls: The ids of its calls that have a result.
        preceding_records: The records without a message before it.
    """

    __slots__ = (
        "_has_common_fields",
        "_records",
        "_templates",
        "answer_id",
        "answered_calls",
        "fields",
        "last",
        "parent",
        "preceding_records",
    )

    def __init__(
        self, record: Fields, preceding_records: list[Fields], *, has_common_fields: bool
    ) -> None:
        """Begin a message with its first record. For `has_common_fields` see `add`."""
        kind = record["type"]
        self.fields: Fields = {"role": kind, "content": ""}
        self.preceding_records = preceding_records
        self.parent = record.get("parentUuid")
        self.answer_id = record["message"].get("id") if kind == "assistant" else None
        self.answered_calls: set[Any] = set()
        self._records: list[Fields] = []
        self._templates: list[Any] = []
        self._has_common_fields = True
        self.add(record, has_common_fields=has_common_fields)
        if "toolCallId" in self.fields:
            self.fields["role"] = "tool"
        if isinstance(record.get("uuid"), str):
            self.fields["id"] = record["uuid"]
        time = record.get("timestamp")
        if time:
            self.fields["timestamp"] = moment(time) or time
        if record.get("isMeta") is True or record.get("isVisibleInTranscriptOnly") is True:
            self._add_metadata({"hidden": True})
        self.last = self.fields.get("id")

    def add(self, record: Fields, *, has_common_fields: bool) -> None:
        """Add the next record of an answer, or the only one of a message.

        Args:
            record: The record.
            has_common_fields: Whether its common fields have the values that the session has.
        """
        content = record["message"].get("content") if "message" in record else record["content"]
        template = content
        if isinstance(content, str):
            self.fields["content"] = content
            template = _WHOLE_TEXT
        elif isinstance(content, list):
            template = [_split_block(block, self.fields) for block in content]
        self._templates.append(template)
        self._records.append(record)
        self._has_common_fields = self._has_common_fields and has_common_fields

    def _add_metadata(self, metadata: Fields) -> None:
        self.fields["metadata"] = self.fields.get("metadata", {}) | metadata

    def _describe(self, inner: Fields) -> None:
        """Take model and token counts from the answer in the last record."""
        if isinstance(inner.get("model"), str):
            self.fields["model"] = inner["model"]
        usage = counts_of(inner.get("usage"), _USAGE)
        if usage:
            self._add_metadata({"usage": usage})

    def entry(
        self, common: Fields, separate_fields: frozenset[str], last_uuids: dict[Any, str]
    ) -> Fields:
        """Return the message, with the rest of its records in `metadata.source`.

        Call it once, after the last record.

        Args:
            common: The fields that all records of the session share, with their values.
            separate_fields: The names of these fields, and SEPARATE_FIELDS. The source does not
                repeat them.
            last_uuids: For the id of each message, the id of its last record.
        """
        fields = self.fields
        records = self._records
        templates = self._templates
        if fields["role"] == "assistant":
            self._describe(records[-1]["message"])
        if self._has_common_fields:
            # Both sides of the difference lack the common fields. `records_of` adds them again.
            default_record = _default_record(fields, {})
            omitted_fields = separate_fields
        else:
            default_record = _default_record(fields, common)
            omitted_fields = SEPARATE_FIELDS
        rests = [_rest(record, omitted_fields) for record in records]
        source = difference(rests[0], default_record)
        if self.parent != last_uuids.get(fields["parent"]):
            source["parentUuid"] = self.parent
        if len(rests) > 1 or templates[0] != _default_template(fields):
            source["blocks"] = templates[0]
        if len(rests) > 1:
            for rest, record in zip(rests, records, strict=True):
                rest["parentUuid"] = record.get("parentUuid")
            source["records"] = [
                {
                    **difference(rest, _next_record(previous_rest)),
                    "blocks": template,
                }
                for previous_rest, rest, template in zip(
                    rests, rests[1:], templates[1:], strict=False
                )
            ]
        if self.preceding_records:
            source["before"] = self.preceding_records

        return with_source(fields, source)


def _next_record(record: Fields) -> Fields:
    """Return the expected next record of an answer: the same one, as an answer to the record."""
    return record | {"parentUuid": record.get("uuid")}


def _rest(record: Fields, omitted_fields: frozenset[str]) -> Fields:
    """Return a record without its content and some of its fields."""
    rest = {key: value for key, value in record.items() if key not in omitted_fields}
    message = record.get("message")
    if message is None:
        rest.pop("content")
        return rest
    rest["message"] = without(message, "content")
    if "toolUseResult" in record:
        result_content = _result_content(message.get("content"))
        rest["toolUseResult"] = _without_repetition(record["toolUseResult"], result_content)
    return rest


def _result_content(content: Any) -> Any:
    """Return the content of the result with which a content begins. None: no result."""
    block = content[0] if isinstance(content, list) and content else None
    return block.get("content") if isinstance(block, dict) else None


def _without_repetition(result: Any, content: Any) -> Any:
    """Return a structured result with marks in place of the values that repeat the content."""
    if not content:
        return result
    if not isinstance(result, dict):
        return _SAME_AS_CONTENT if result == content else result
    return {key: _SAME_AS_CONTENT if value == content else value for key, value in result.items()}


def _with_repetition(result: Any, content: Any) -> Any:
    """Return a structured result with the content in place of the marks."""
    if result == _SAME_AS_CONTENT:
        return content
    if not isinstance(result, dict):
        return result
    return {key: content if value == _SAME_AS_CONTENT else value for key, value in result.items()}


def records_of(message: Fields, source: Fields, common: Fields) -> list[Fields]:
    """Return the records of a message, without the parent of the first one.

    The records before the message (`source["before"]`) are not among them.

    Args:
        message: The message, without its `metadata.source`.
        source: Its `metadata.source`. Empty: Claude Code did not write it.
        common: The fields that all records of the session share.
    """
    first_difference = without(source, "blocks", "records", "before", "parentUuid")
    records = [apply_difference(_default_record(message, common), first_difference)]
    templates = [source.get("blocks", _default_template(message))]
    for next_source in source.get("records", ()):
        next_difference = without(next_source, "blocks")
        records.append(apply_difference(_next_record(records[-1]), next_difference))
        templates.append(next_source["blocks"])
    remaining = {
        **message,
        "toolCalls": [*message.get("toolCalls", ())],
        "attachments": [*message.get("attachments", ())],
    }
    # Backwards, because each block has its parts at the end of what remains of the message.
    for record, template in zip(reversed(records), reversed(templates), strict=True):
        content = _restore_content(template, remaining)
        if "message" not in record:
            record["content"] = content
            continue
        record["message"] = record["message"] | {"content": content}
        if "toolUseResult" in record:
            result_content = _result_content(content)
            record["toolUseResult"] = _with_repetition(record["toolUseResult"], result_content)
    return records
