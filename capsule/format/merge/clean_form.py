"""Bring a document into its clean form, in which git stores it.

The clean form is canonical, of the current version, and has an inactive lock. A file that the store
wrote is checked by a quick way: orjson gives back the same bytes, and each object has a set of keys
and types that was found clean before, so only a few values are left to check.

What must stay true: cleaning a clean document changes no byte. A lock does not change the clean
form, and only the lock is lost. A file that is no document is refused. A capsule of a newer major
version is left alone. No clock, no chance: two clones clean alike. Pure.
"""

from __future__ import annotations

from functools import lru_cache
from types import NoneType
from typing import Any, NamedTuple

import orjson

from capsule.format import migrations
from capsule.format.documents.creation import FORMAT_VERSION, inactive_lock
from capsule.format.fields import PARTS, Field
from capsule.format.json import codec
from capsule.format.json.canonical import in_order, is_in_order
from capsule.format.validation import KINDS, problem_with
from capsule.ids import is_id
from capsule.timestamps import is_canonical

_FILE = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
#: The fields that cleaning adds where they are missing, besides the required ones.
_FILLED_IN = {"": ("metadata", "context"), "metadata": ("lock",), "history": ("timestamp", "id")}
#: The kinds of fields of which every value of the type is valid.
_SUFFICIENT_TYPES: dict[str, type] = {"text": str, "object": dict, "yes or no": bool, "whole": int}


def clean(data: bytes, path: str, kind: str) -> bytes:
    """Return the clean form of the document in `data`, the whole file.

    Args:
        data: The file.
        path: Its name, for the error.
        kind: The name of its kind in `KINDS`.

    Raises:
        InvalidDocument: It is no document of its kind; with line and column.

    Cost: for a file that the store wrote, locked or not, orjson's reading and writing it and a look
    at each message: a twentieth of a second for 10 MB. For others a strict parse, about three times
    as much.
    """
    document_kind = KINDS[kind]
    if document_kind.has_entries:
        quick = _clean_quickly(data)
        if quick is not None:
            return quick
    document = codec.decode(data, path)
    if migrations.is_newer(document):
        return data
    document_kind.check(document, path, data)
    if document_kind.has_entries:
        return codec.encode(clean_document(document, path))
    return codec.encode(document_kind.ordered(document))


def clean_document(document: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return the clean form of a capsule that `validation.check` accepts, as a new dict.

    Raises InvalidDocument if it is of a newer major version. `path` names the file in the error.
    """
    upgraded, _ = migrations.upgrade(document, path)
    metadata = upgraded["metadata"]
    result = {**upgraded, "metadata": {**metadata, "lock": inactive_lock()}}
    if "lock" in metadata:
        return result
    return in_order(result)  # The lock that was added gets its place.


def _clean_quickly(data: bytes) -> bytes | None:
    """Return the clean form of a file in the layout of the store. None: it needs a closer look.

    If orjson writes the same bytes again, `codec.decode` would accept them. So only the fields are
    left to check.
    """
    try:
        document = orjson.loads(data)
        if orjson.dumps(document, option=_FILE) != data:
            return None
    except (orjson.JSONDecodeError, TypeError):
        return None
    if (
        not is_clean(document, "")
        or document["version"] != FORMAT_VERSION
        or not is_id(document["id"])
    ):
        return None
    metadata = document["metadata"]
    lock = inactive_lock()
    if metadata["lock"] == lock:
        return data
    return orjson.dumps({**document, "metadata": {**metadata, "lock": lock}}, option=_FILE)


def is_clean(entry: Any, part: str = "history") -> bool:
    """Return whether cleaning would leave a message, or another part of a capsule, unchanged."""
    if type(entry) is not dict:
        return type(entry) is str and part == "metadata.participants"
    checks = _remaining_checks(part, tuple(entry), tuple(map(type, entry.values())))
    if checks is None or entry.get("id") == "":
        return False
    for name in checks.times:
        if not is_canonical(entry[name]):
            return False
    for name, allowed in checks.choices:
        if entry[name] not in allowed:
            return False
    for name, child_part in checks.children:
        value = entry[name]
        for item in value if type(value) is list else (value,):
            if not is_clean(item, child_part):
                return False
    return not any(problem_with(field, entry[field.name]) for field in checks.other_fields)


class _RemainingChecks(NamedTuple):
    """The checks of an object that are left when its keys and their types are known.

    Attributes:
        times: The fields that must be canonical times.
        choices: The fields with a choice of values.
        children: The fields with parts inside, and the names of these parts.
        other_fields: The fields of which `problem_with` must look at the value.
    """

    times: tuple[str, ...]
    choices: tuple[tuple[str, tuple[str, ...]], ...]
    children: tuple[tuple[str, str], ...]
    other_fields: tuple[Field, ...]


def _needed_names(part: str) -> set[str]:
    """Return the fields that a clean object of this part has."""
    names = {field.name for field in PARTS[part] if field.required}
    names.update(_FILLED_IN.get(part, ()))
    return names


@lru_cache(maxsize=256)
def _remaining_checks(
    part: str, keys: tuple[str, ...], types: tuple[type, ...]
) -> _RemainingChecks | None:
    """Return the checks of objects with these keys and types. None: none of them is clean."""
    required = _needed_names(part)
    types_by_key = dict(zip(keys, types, strict=True))
    if not required.issubset(keys) or not is_in_order(keys, part):
        return None
    if any(types_by_key.get(name) is NoneType for name in required):
        return None
    times = []
    choices = []
    children = []
    other_fields = []
    for field in PARTS[part]:
        type_ = types_by_key.get(field.name)
        child_part = f"{part}.{field.name}".lstrip(".")
        if type_ is str and field.kind == "time":
            times.append(field.name)
        elif type_ is str and field.choices:
            choices.append((field.name, field.choices))
        elif child_part in PARTS and type_ is (dict if field.kind == "part" else list):
            children.append((field.name, child_part))
        elif type_ is not None and type_ is not _SUFFICIENT_TYPES.get(field.kind):
            other_fields.append(field)
    return _RemainingChecks(
        times=tuple(times),
        choices=tuple(choices),
        children=tuple(children),
        other_fields=tuple(other_fields),
    )
