"""The form in which a document enters git: canonical, of the version that is written, and locked by
nobody.

What must stay true: cleaning a clean document changes no byte; a lock does not change the clean
form, and nothing but the lock is lost; what is no document is refused. A capsule of a newer major
version is left alone. No clock, no chance: two clones clean alike. Pure.
"""

from __future__ import annotations

from functools import lru_cache
from types import NoneType
from typing import Any, NamedTuple

import orjson

from capsule.format import migrations
from capsule.format.documents.creation import CURRENT, inactive_lock
from capsule.format.fields import PARTS, Field
from capsule.format.json import codec
from capsule.format.json.canonical import in_order, is_in_order
from capsule.format.validation import KINDS, problem_with
from capsule.ids import is_id
from capsule.timestamps import is_canonical

_FILE = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
#: What a document gets where it has none, besides the fields that it needs to be valid.
_FILLED_IN = {"": ("metadata", "context"), "metadata": ("lock",), "history": ("timestamp", "id")}
#: The types that tell all values of a kind.
_TYPES: dict[str, type] = {"text": str, "object": dict, "yes or no": bool, "whole": int}


def clean(data: bytes, path: str, kind: str) -> bytes:
    """The clean form of the document in `data`: the whole file, of a kind by its name in `KINDS`.

    Raises:
        InvalidDocument: It is no document of its kind; with `path`, line and column.

    Cost: of a file that the store wrote, locked or not, orjson's reading and writing it, and a look
    at each message, which is a twentieth of a second for 10 MB; of any other a strict parse, some
    three times as much.
    """
    quick = _quick(data) if KINDS[kind].has_entries else None
    if quick is not None:
        return quick
    document = codec.decode(data, path)
    if migrations.is_newer(document):
        return data
    KINDS[kind].check(document, path, data)
    return codec.encode(
        clean_document(document, path) if KINDS[kind].has_entries else KINDS[kind].ordered(document)
    )


def clean_document(document: dict[str, Any], path: str = "") -> dict[str, Any]:
    """As `clean`, of a capsule that `validation.check` accepts; it stays as it is. Raises
    InvalidDocument.
    """
    document = migrations.upgrade(document, path)[0]
    about = document["metadata"]
    document = {**document, "metadata": {**about, "lock": inactive_lock()}}
    return (
        document if "lock" in about else in_order(document)
    )  # What came without a lock gets it where it belongs.


def _quick(data: bytes) -> bytes | None:
    """The clean form of a file in the layout of the store, of the version that is written; None:
    look closer.

    That orjson gives back the very bytes says as much as `codec.decode` would, so only the fields
    are left to check.
    """
    try:
        document = orjson.loads(data)
        if orjson.dumps(document, option=_FILE) != data:
            return None
    except (orjson.JSONDecodeError, TypeError):
        return None
    if not is_clean(document, "") or document["version"] != CURRENT or not is_id(document["id"]):
        return None
    about, lock = document["metadata"], inactive_lock()
    if about["lock"] == lock:
        return data
    return orjson.dumps({**document, "metadata": {**about, "lock": lock}}, option=_FILE)


def is_clean(entry: Any, part: str = "history") -> bool:
    """Whether a message, or another part of a capsule, is as this version writes it: cleaning would
    leave it alone.
    """
    if type(entry) is not dict:
        return type(entry) is str and part == "metadata.participants"
    shape = _shape(part, tuple(entry), tuple(map(type, entry.values())))
    if shape is None or entry.get("id") == "":
        return False
    times, choices, inside, others = shape
    for name in times:
        if not is_canonical(entry[name]):
            return False
    for name, known in choices:
        if entry[name] not in known:
            return False
    for name, within in inside:
        value = entry[name]
        for item in value if type(value) is list else (value,):
            if not is_clean(item, within):
                return False
    return not others or not any(problem_with(field, entry[field.name]) for field in others)


class _RemainingChecks(NamedTuple):
    """What of an object is left to be looked at when its keys are known, and the types of their
    values.
    """

    times: tuple[str, ...]
    choices: tuple[tuple[str, tuple[str, ...]], ...]
    inside: tuple[tuple[str, str], ...]
    others: tuple[Field, ...]


@lru_cache(maxsize=256)
def _shape(part: str, keys: tuple[str, ...], types: tuple[type, ...]) -> _RemainingChecks | None:
    """The shape of the objects with these keys and types; None: none of them is clean."""
    required = {*_FILLED_IN.get(part, ()), *(field.name for field in PARTS[part] if field.required)}
    there = dict(zip(keys, types, strict=True))
    if not required.issubset(keys) or not is_in_order(keys, part):
        return None
    times, choices, inside, others = [], [], [], []
    for field in PARTS[part]:
        name, kind, path = field.name, there.get(field.name), f"{part}.{field.name}".lstrip(".")
        if kind is NoneType and name in required:
            return None
        if kind is str and field.kind == "time":
            times.append(name)
        elif kind is str and field.choices:
            choices.append((name, field.choices))
        elif path in PARTS and kind is (dict if field.kind == "part" else list):
            inside.append((name, path))
        elif kind is not None and kind is not _TYPES.get(field.kind):
            others.append(field)
    return _RemainingChecks(tuple(times), tuple(choices), tuple(inside), tuple(others))
