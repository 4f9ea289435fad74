"""Convert values of a source to values of ours, and build records without empty fields. Pure."""

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

#: The pattern of a UUID.
UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


#: A number that is not smaller is in a smaller unit than seconds.
_MAX_SECONDS = 1e11


def moment(value: Any) -> str | None:
    """Return a time in the format of capsules. None: `value` is no time.

    `value` is in ISO 8601, or in seconds, milli-, micro- or nanoseconds since 1970.
    """
    try:
        if isinstance(value, str) and not value.replace(".", "", 1).isdigit():
            return timestamps.canonical(value)
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            return None
        number = float(value)
        while _MAX_SECONDS <= abs(number) < inf:
            number /= 1000
        return timestamps.from_ms(round(number * 1000))
    except (ValueError, OverflowError, OSError):
        return None


def seconds(time: str | None) -> float | None:
    """Return a time of a capsule in seconds since 1970. None: it is not known."""
    return timestamps.ms_of(time) / 1000 if time else None


def milliseconds(time: str | None) -> int | None:
    """Return a time of a capsule in milliseconds since 1970. None: it is not known."""
    return timestamps.ms_of(time) if time else None


def is_string(value: Any) -> bool:
    """Return whether a value is a text."""
    return isinstance(value, str)


def text_of(value: Any) -> str:
    """Return a value as a text: a text unchanged, an empty one for None, or JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()


def text_of_part(part: Any) -> str | None:
    """Return the text of a part of a content. None: it has no text."""
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None


def json_of(value: Any) -> Any:
    """Return the value that a text has as JSON. A text that is no JSON is returned itself."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except ValueError:
        return value


def without(fields: Fields, *mapped: str) -> Fields:
    """Return the fields without those with these names."""
    return {name: value for name, value in fields.items() if name not in mapped}


def with_nonempty(fields: Fields, /, **optional: Any) -> Fields:
    """Return the fields, with the optional ones that are not empty."""
    return fields | {name: value for name, value in optional.items() if value}


def object_of(value: Any) -> Fields:
    """Return an object, or the one that a text has as JSON. Otherwise it is empty."""
    fields = value if isinstance(value, dict) else json_of(value)
    return fields if isinstance(fields, dict) else {}


def objects_of(value: Any) -> list[Fields]:
    """Return the objects of a list. Empty: `value` is no list."""
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, dict)]


def data_of(url: str) -> bytes | None:
    """Return the data of a `data:` URL in base64. None: it is another URL. Raises ValueError."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return b64decode(data)


def encode_record(record: Fields) -> bytes:
    """Return a record as JSON, with bytes in base64."""
    return orjson.dumps(record, default=lambda data: b64encode(data).decode())


def encode_records(records: Iterable[Fields]) -> bytes:
    """Return records as lines of JSON, with bytes in base64."""
    return b"".join(encode_record(record) + b"\n" for record in records)


def uuid_of(id: str) -> str:
    """Return a UUID for an id: the id itself, if it is one."""
    return id if re.fullmatch(UUID, id) else str(uuid5(NAMESPACE_URL, f"capsule:{id}"))


def data_url(type: Any, data: bytes) -> str:
    """Return data as a `data:` URL in base64."""
    return f"data:{type};base64,{b64encode(data).decode()}"


def counts_of(record: Any, keys: dict[str, str]) -> Fields:
    """Return the integers of a record by our names. `keys` has their keys by our names."""
    counts = object_of(record)
    return {name: counts[key] for name, key in keys.items() if type(counts.get(key)) is int}


def call_of(record: Fields) -> Fields:
    """Return the tool call of a record of OpenAI's chat API."""
    function = object_of(record.get("function"))
    call = {"name": text_of(function.get("name")), "arguments": json_of(function.get("arguments"))}
    if isinstance(record.get("id"), str):
        call["id"] = record["id"]
    return call


def record_of_call(call: Fields) -> Fields:
    """Return a tool call as a record of OpenAI's chat API."""
    record: Fields = {"id": call["id"]} if "id" in call else {}
    record["type"] = "function"
    record["function"] = {
        "name": text_of(call.get("name")),
        "arguments": text_of(call.get("arguments", {})),
    }
    return record
