"""Map a record of another program to our fields and back, without loss for the record.

A format reads a record into our fields, and writes the fields back as a record, as well as they
allow. What the written record lacks is stored in `metadata.source`, and an export puts it back.
`pair_of` makes such a pair of functions from a table, where each field of a record is one of ours.
The other functions convert single values, and build records without empty fields.

Invariants: for any pair of functions, `to_record` gives back the record that `to_capsule` was given.
Tool calls that the APIs of models accept stay unchanged (`with_acceptable_calls`), and equal ids stay
equal, so that a result still names its call. Pure.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha1
from math import inf
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import orjson

from capsule import timestamps

# -- Records and back ------------------------------------------------------------------------------

Fields = dict[str, Any]
#: The key in a file of another program under which an export writes its note.
CAPSULE_KEY = "capsule"
#: The key in a difference for the names of the fields that are to be left out.
ABSENT = "$absent"
#: The key in a difference for the changed items of a list, by their positions.
_ITEMS = "$items"
#: The place of a value that is missing.
_MISSING: Any = object()


def difference(target: Fields, built: Fields) -> Fields:
    """Return the fields from which `apply_difference` makes `target` out of `built`.

    Empty: both are the same. It is JSON, if both are.
    """
    result: Fields = {}
    missing_count = 0
    for key, value in target.items():
        built_value = built.get(key, _MISSING)
        if built_value is value:  # Mostly, since a pair returns the texts that it was given.
            continue
        kind = type(value)
        if kind is not type(built_value):
            missing_count += built_value is _MISSING
            result[key] = value
        elif kind is dict:
            inner = difference(value, built_value) if value or built_value else {}
            if inner:
                result[key] = inner
        elif kind is list:
            changed = _value_difference(value, built_value) if value or built_value else None
            if changed is not None:
                result[key] = changed[0]
        elif value != built_value:
            result[key] = value
    if len(built) + missing_count > len(target):
        result[ABSENT] = [key for key in built if key not in target]
    return result


def _value_difference(target: Any, built: Any) -> tuple[Any] | None:
    """Return the difference of two values in a tuple. None: they and their types are the same."""
    kind = type(target)
    if kind is not type(built):
        return (target,)
    if kind is dict:
        fields = difference(target, built)
        return (fields,) if fields else None
    if kind is list and len(target) == len(built):
        items = {}
        for position, (item, built_item) in enumerate(zip(target, built, strict=True)):
            changed = None if item is built_item else _value_difference(item, built_item)
            if changed is not None:
                items[str(position)] = changed[0]
        return ({_ITEMS: items},) if items else None
    return None if target == built else (target,)


def apply_difference(built: Fields, changes: Fields) -> Fields:
    """Return the fields `built` with a difference applied."""
    absent = changes.get(ABSENT, ())
    result = {key: value for key, value in built.items() if key not in absent}
    for key, value in changes.items():
        if key != ABSENT:
            result[key] = _apply_value(result[key], value) if key in result else value
    return result


def _apply_value(built: Any, change: Any) -> Any:
    """Return a value with its difference applied, which is a new value or a difference in it."""
    if not isinstance(change, dict):
        return change
    if isinstance(built, dict):
        return apply_difference(built, change)
    items = change.get(_ITEMS)
    if not isinstance(built, list) or not isinstance(items, dict):
        return change
    result = list(built)
    for position, item in enumerate(built):
        if str(position) in items:
            result[position] = _apply_value(item, items[str(position)])
    return result


@dataclass(frozen=True, slots=True)
class Pair:
    """Two pure functions that read and write one record: a message, or the head of a conversation.

    Attributes:
        read: Returns our fields of a record, as new objects. It sets neither `metadata.source` nor
            the key `capsule`.
        write: Returns a record with our fields, as well as they allow.
    """

    read: Callable[[Fields], Fields]
    write: Callable[[Fields], Fields]

    def to_capsule(self, record: Fields) -> Fields:
        """Return our fields of a record, with all of it that they lack in `metadata.source`."""
        plain_record = {key: value for key, value in record.items() if key != CAPSULE_KEY}
        fields = self.read(plain_record)
        return with_source(fields, difference(plain_record, self.write(fields)))

    def to_record(self, fields: Fields, *, is_edited: bool = False) -> Fields:
        """Return the record of our fields, with the rest of it from `metadata.source`.

        If the fields are edited, the rest does not replace any field of the written record.
        """
        plain_fields, source = without_source(fields)
        record = self.write(plain_fields)
        if is_edited:
            return {key: value for key, value in source.items() if key != ABSENT} | record
        return apply_difference(record, source)


def is_on(value: Any) -> bool:
    """Return whether a switch is on."""
    return value is True


def context_of(text: Any) -> Fields | None:
    """Return the context for a text of instructions. None: `text` is no text, or empty."""
    return {"fullContext": text} if isinstance(text, str) and text else None


def text_of_context(context: Fields) -> Any:
    """Return the instructions of a context."""
    return context.get("fullContext")


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a record, and the field of ours for it.

    Attributes:
        record_field: Its name in the record.
        capsule_field: Our name. After `metadata.`, it is a field of the metadata. None: it has no
            field of ours.
        read: Returns our value of the record's. An empty one is left out. By default, texts are
            taken unchanged.
        write: Returns the record's value of ours. None: the field is only read.
        default: The record's value if we have none. Without it, the record lacks the field.
    """

    record_field: str
    capsule_field: str | None = None
    read: Callable[[Any], Any] = _text_or_none
    write: Callable[[Any], Any] | None = lambda value: value
    default: Any = _MISSING


def pair_of(*columns: Column) -> Pair:
    """Return the pair of functions of a table.

    If several columns have one field of ours, the first one that is not empty is read.
    """

    def read(record: Fields) -> Fields:
        fields: Fields = {}
        metadata: Fields = {}
        for column in columns:
            if not column.capsule_field:
                continue
            value = column.read(record.get(column.record_field))
            if not value:
                continue
            name = column.capsule_field.removeprefix("metadata.")
            (fields if name == column.capsule_field else metadata).setdefault(name, value)
        return fields | {"metadata": metadata} if metadata else fields

    def write(fields: Fields) -> Fields:
        record: Fields = {}
        metadata = fields.get("metadata", {})
        for column in columns:
            name = (column.capsule_field or "").removeprefix("metadata.")
            holder = fields if name == column.capsule_field else metadata
            if name in holder and column.write is not None:
                record[column.record_field] = column.write(holder[name])
            elif column.default is not _MISSING:
                record[column.record_field] = column.default
        return record

    return Pair(read, write)


def with_source(fields: Fields, source: Fields) -> Fields:
    """Return our fields with this `metadata.source`. An empty one changes nothing."""
    if not source:
        return fields
    return fields | {"metadata": {**fields.get("metadata", {}), "source": source}}


def without_source(fields: Fields) -> tuple[Fields, Fields]:
    """Return our fields without `metadata.source`, and its value."""
    metadata = dict(fields.get("metadata", {}))
    source = metadata.pop("source", {})
    plain_fields = {key: value for key, value in fields.items() if key != "metadata"}
    if metadata:
        plain_fields["metadata"] = metadata
    return plain_fields, source


# -- Values ----------------------------------------------------------------------------------------

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


# -- Tool calls ------------------------------------------------------------------------------------

_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: The longest name of a tool, in characters.
_MAX_NAME_CHARS = 64


def with_acceptable_calls(message: Fields) -> Fields:
    """Return a message whose calls the APIs of models accept.

    Ids and names have letters, digits, `_` and `-` only, and arguments are an object. A call
    without an id gets one.
    """
    result = dict(message)
    if isinstance(message.get("toolCallId"), str):
        result["toolCallId"] = _acceptable_id(message["toolCallId"])
    if "toolCalls" in message:
        result["toolCalls"] = [
            _acceptable_call(call, f"{message.get('id')}:{number}")
            for number, call in enumerate(message["toolCalls"])
        ]
    return result


def _acceptable_call(call: Fields, default_id: str) -> Fields:
    id = call.get("id")
    name = re.sub("[^A-Za-z0-9_-]", "_", text_of(call.get("name")))[:_MAX_NAME_CHARS]
    return {
        "id": _acceptable_id(id if isinstance(id, str) else default_id),
        "name": name or "tool",
        "arguments": _acceptable_arguments(call.get("arguments")),
    }


def _acceptable_id(id: str) -> str:
    """Return an id, or a digest of it if it is not acceptable."""
    if _CALL_ID.fullmatch(id):
        return id
    digest = sha1(id.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
    return f"call_{digest[:24]}"


def _acceptable_arguments(arguments: Any) -> Fields:
    """Return an object: the arguments, the object in their text, or one with them as `input`."""
    if isinstance(arguments, dict):
        return arguments
    fields = object_of(arguments)
    if fields or not arguments:
        return fields
    return {"input": arguments}
