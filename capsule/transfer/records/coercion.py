"""Values of a source as values of ours, and records without what is empty or mapped. Pure."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable
from math import inf
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import orjson

from capsule import timestamps
from capsule.transfer.records.round_trip import Fields

UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def moment(value: Any) -> str | None:
    """A time as the format of capsules writes it, of ISO 8601 or of seconds, milli-, micro- or
    nanoseconds since 1970.

    None: `value` is not a time.
    """
    try:
        if isinstance(value, str) and not value.replace(".", "", 1).isdigit():
            return timestamps.canonical(value)
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            return None
        number = float(value)
        while 1e11 <= abs(number) < inf:
            number /= 1000
        return timestamps.from_ms(round(number * 1000))
    except (ValueError, OverflowError, OSError):
        return None


def seconds(time: str | None) -> float | None:
    """A time of a capsule as seconds since 1970."""
    return timestamps.ms_of(time) / 1000 if time else None


def milliseconds(time: str | None) -> int | None:
    """A time of a capsule as milliseconds since 1970."""
    return timestamps.ms_of(time) if time else None


def is_string(value: Any) -> bool:
    """Whether a value is a text."""
    return isinstance(value, str)


def text_of(value: Any) -> str:
    """A value as a text: itself if it is one, empty for None, else its JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()


def text_of_part(part: Any) -> str | None:
    """The text of a part of a content; None: it is something else."""
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None


def json_of(value: Any) -> Any:
    """The value that a text holds as JSON; the text itself if it holds none."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except ValueError:
        return value


def without(fields: Fields, *mapped: str) -> Fields:
    """The fields that are not mapped."""
    return {name: value for name, value in fields.items() if name not in mapped}


def with_nonempty(fields: Fields, /, **others: Any) -> Fields:
    """The fields, and those of the others that are not empty."""
    return fields | {name: value for name, value in others.items() if value}


def object_of(value: Any) -> Fields:
    """An object, or the one that a text holds; else an empty one."""
    fields = value if isinstance(value, dict) else json_of(value)
    return fields if isinstance(fields, dict) else {}


def objects_of(value: Any) -> list[Fields]:
    """The objects of a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def data_of(url: str) -> bytes | None:
    """What a `data:` URL has in base64. None: it is another URL. Raises ValueError."""
    head, comma, data = url.partition(",")
    return (
        b64decode(data) if comma and head.startswith("data:") and head.endswith(";base64") else None
    )


def encode_record(record: Fields) -> bytes:
    """A record as JSON, with bytes in base64."""
    return orjson.dumps(record, default=lambda data: b64encode(data).decode())


def encode_records(records: Iterable[Fields]) -> bytes:
    """Records as lines of JSON, with bytes in base64."""
    return b"".join(encode_record(record) + b"\n" for record in records)


def uuid_of(id: str) -> str:
    """A UUID for an id: the id itself, if it is one."""
    return id if re.fullmatch(UUID, id) else str(uuid5(NAMESPACE_URL, f"capsule:{id}"))


def data_url(type: Any, data: bytes) -> str:
    """A `data:` URL in base64."""
    return f"data:{type};base64,{b64encode(data).decode()}"


def counts_of(record: Any, names: dict[str, str]) -> Fields:
    """The numbers that a record has under names, by our names of them; `names` has theirs
    by ours.
    """
    counts = object_of(record)
    return {ours: counts[name] for ours, name in names.items() if type(counts.get(name)) is int}


def call_of(record: Fields) -> Fields:
    """The tool call of a record as the chat API of OpenAI has it."""
    function = object_of(record.get("function"))
    call = {"name": text_of(function.get("name")), "arguments": json_of(function.get("arguments"))}
    return call | ({"id": record["id"]} if isinstance(record.get("id"), str) else {})


def record_of_call(call: Fields) -> Fields:
    """A tool call as the chat API of OpenAI has it."""
    function = {"name": text_of(call.get("name")), "arguments": text_of(call.get("arguments", {}))}
    return ({"id": call["id"]} if "id" in call else {}) | {"type": "function", "function": function}
