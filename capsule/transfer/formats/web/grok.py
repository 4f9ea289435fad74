"""The export of Grok: `prod-grok-backend.json`, conversations with their responses, each a wrapper
around its fields.

Responses form a tree. An attached file lies in a folder beside the export, under its id. Pure, and
read-only.
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
from capsule.transfer.records.coercion import (
    is_string,
    moment,
    object_of,
    objects_of,
    text_of,
    with_nonempty,
    without,
)

_OF_A_CONVERSATION = ("id", "title", "create_time", "modify_time", "leaf_response_id")
_OF_A_RESPONSE = (
    *(
        "_id",
        "conversation_id",
        "parent_response_id",
        "message",
        "sender",
        "create_time",
        "model",
        "thinking_trace",
    ),
    *("file_attachments", "generated_image_urls"),
)


def _time(value: Any) -> str | None:
    """A time: ISO 8601, or as MongoDB exports it."""
    date = value.get("$date") if isinstance(value, dict) else value
    return moment(date.get("$numberLong") if isinstance(date, dict) else date)


def _files(response: Fields, source: Source) -> Iterator[Fields]:
    for id in filter(is_string, response.get("file_attachments") or ()):
        data = next(source.near(f"prod-mc-asset-server/{id}/content"), None)
        yield {"name": id, "type": "file"} | ({"reference": id} if data is None else {"data": data})
    for url in filter(is_string, response.get("generated_image_urls") or ()):
        yield {"name": url.rpartition("/")[2] or "image", "type": "image", "url": url}


def _entry(response: Fields, source: Source) -> Fields:
    role = "user" if text_of(response.get("sender")).lower() == "human" else "assistant"
    entry: Fields = {"role": role, "content": text_of(response.get("message"))}
    if "parent_response_id" in response:
        entry["parent"] = text_of(response["parent_response_id"]) or None
    about = with_nonempty({}, source=with_nonempty({}, **without(response, *_OF_A_RESPONSE)))
    entry = with_nonempty(
        entry,
        id=text_of(response.get("_id")),
        timestamp=_time(response.get("create_time")),
        metadata=about,
    )
    model, reasoning = text_of(response.get("model")), text_of(response.get("thinking_trace"))
    entry = with_nonempty(entry, model=role == "assistant" and model, reasoning=reasoning)
    return with_nonempty(entry, attachments=[*_files(response, source)])


def _draft(item: Fields, line: int, source: Source) -> Draft:
    about = object_of(item["conversation"])
    responses = []
    for wrapper in objects_of(item["responses"]):
        if isinstance(wrapper.get("response"), dict):
            responses.append(wrapper["response"])
        else:
            source.tell("a response that is no object", line)
    metadata = with_nonempty(
        {}, currentNode=about.get("leaf_response_id"), source=without(about, *_OF_A_CONVERSATION)
    )
    times = {
        "createdAt": _time(about.get("create_time")),
        "updatedAt": _time(about.get("modify_time")),
    }
    head = with_nonempty(
        {"id": text_of(about.get("id"))},
        title=text_of(about.get("title")),
        metadata=metadata,
        **times,
    )
    return Draft(head, [_entry(response, source) for response in responses], line)


def _is_ours(record: Fields) -> bool:
    listed = objects_of(record.get("conversations"))
    return any(
        "responses" in entry and isinstance(entry.get("conversation"), dict) for entry in listed
    )


def _items(source: Source) -> Iterator[tuple[int, Fields]]:
    return (
        (line, item)
        for line, record in read_records(source)
        for item in objects_of(record.get("conversations"))
    )


FORMATS = [
    Format("grok", "Grok export", recognizes_record(_is_ours), reader_of_items(_draft, _items))
]
