"""Read the export of Grok: `prod-grok-backend.json`, with conversations and their responses.

Each response is a wrapper around its fields, and the responses form a tree. An attached file is in
a folder beside the export, under its id. Pure, and read-only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from capsule.transfer.interface import (
    Draft,
    Fields,
    Format,
    Source,
    read_records,
    reader_of_items,
    recognizes_record,
)
from capsule.transfer.records.mapping import (
    is_string,
    moment,
    object_of,
    objects_of,
    text_of,
    with_nonempty,
    without,
)

#: The fields of a conversation and of a response with a field of ours.
_CONVERSATION_FIELDS = ("id", "title", "create_time", "modify_time", "leaf_response_id")
_RESPONSE_FIELDS = (
    "_id",
    "conversation_id",
    "parent_response_id",
    "message",
    "sender",
    "create_time",
    "model",
    "thinking_trace",
    "file_attachments",
    "generated_image_urls",
)


def _time(value: Any) -> str | None:
    """Return a time in ISO 8601, or as MongoDB exports it. None: it is no time."""
    date = value.get("$date") if isinstance(value, dict) else value
    return moment(date.get("$numberLong") if isinstance(date, dict) else date)


def _files(response: Fields, source: Source) -> Iterator[Fields]:
    """Return the attachments of a response, with the data of the files that are found."""
    for id in filter(is_string, response.get("file_attachments") or ()):
        attachment: Fields = {"name": id, "type": "file"}
        data = next(source.near(f"prod-mc-asset-server/{id}/content"), None)
        if data is None:
            attachment["reference"] = id
        else:
            attachment["data"] = data
        yield attachment
    for url in filter(is_string, response.get("generated_image_urls") or ()):
        yield {"name": url.rpartition("/")[2] or "image", "type": "image", "url": url}


def _entry(response: Fields, source: Source) -> Fields:
    """Return the message of a response."""
    is_user = text_of(response.get("sender")).lower() == "human"
    entry: Fields = {
        "role": "user" if is_user else "assistant",
        "content": text_of(response.get("message")),
    }
    if "parent_response_id" in response:
        entry["parent"] = text_of(response["parent_response_id"]) or None
    unmapped = with_nonempty({}, **without(response, *_RESPONSE_FIELDS))
    return with_nonempty(
        entry,
        id=text_of(response.get("_id")),
        timestamp=_time(response.get("create_time")),
        metadata=with_nonempty({}, source=unmapped),
        model="" if is_user else text_of(response.get("model")),
        reasoning=text_of(response.get("thinking_trace")),
        attachments=[*_files(response, source)],
    )


def _draft(item: Fields, line: int, source: Source) -> Draft:
    conversation = object_of(item["conversation"])
    history = []
    for wrapper in objects_of(item["responses"]):
        if isinstance(wrapper.get("response"), dict):
            history.append(_entry(wrapper["response"], source))
        else:
            source.tell("a response that is not an object", line)
    metadata = with_nonempty(
        {},
        currentNode=conversation.get("leaf_response_id"),
        source=without(conversation, *_CONVERSATION_FIELDS),
    )
    head = with_nonempty(
        {"id": text_of(conversation.get("id"))},
        title=text_of(conversation.get("title")),
        metadata=metadata,
        createdAt=_time(conversation.get("create_time")),
        updatedAt=_time(conversation.get("modify_time")),
    )
    return Draft(head, history, line)


def _is_export(record: Fields) -> bool:
    return any(
        "responses" in item and isinstance(item.get("conversation"), dict)
        for item in objects_of(record.get("conversations"))
    )


def _items(source: Source) -> Iterator[tuple[int, Fields]]:
    """Return the conversations of an export, each with its line."""
    for line, record in read_records(source):
        for item in objects_of(record.get("conversations")):
            yield line, item


FORMATS = [
    Format(
        "grok",
        "Grok export",
        recognizes=recognizes_record(_is_export),
        read=reader_of_items(_draft, _items),
    )
]
