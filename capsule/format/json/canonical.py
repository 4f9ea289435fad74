"""The canonical order of keys: the known fields as the format lists them, then the unknown in their
own order.

What must stay true: ordering changes no value and loses no key; `history` is the last key of a
capsule, so that the storage layer can append to the file. This module imports nothing heavy, as
appending goes through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from capsule.format.fields import PARTS, field_names

#: The fields of each part whose objects, alone or in a list, are parts themselves, and which.
_INSIDE = {
    part: [
        (field.name, inside)
        for field in fields
        if (inside := f"{part}.{field.name}".lstrip(".")) in PARTS
    ]
    for part, fields in PARTS.items()
}
_MESSAGE = field_names("history")
#: The objects of entries in documents without a history. Their order says nothing.
_SORTED = ("dm", "requests", "reading", "concerns", "cursors", "links")


def in_order(document: Mapping[str, Any]) -> dict[str, Any]:
    """The same document with its keys in canonical order; `document` itself stays as it is.

    Unknown keys follow the known ones, in their own order; at the top level `history` follows both.
    What is no object where the format wants one stays where it is.
    """
    return _in_order("", document)


def _in_order(part: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    ordered = _ordered(part, fields)
    for name, inside in _INSIDE[part]:
        value = ordered.get(name)
        if isinstance(value, dict):
            ordered[name] = _in_order(inside, value)
        elif isinstance(value, list):
            ordered[name] = [
                _in_order(inside, item) if isinstance(item, dict) else item for item in value
            ]
    return ordered


def order_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The same message with its keys in canonical order, as a new dict."""
    return _ordered("history", message)


def order_record(record: Mapping[str, Any], part: str) -> dict[str, Any]:
    """The same document without a history with its keys in canonical order, as a new dict; its
    entries are sorted.
    """
    ordered = _ordered(part, record)
    for name in _SORTED:
        if isinstance(entries := ordered.get(name), dict):
            ordered[name] = dict(sorted(entries.items()))
    return ordered


def is_in_order(keys: tuple[str, ...], part: str = "history") -> bool:
    """Whether the keys of a message, or of another part, stand in canonical order."""
    return _order_of(part, keys) == keys


def _ordered(part: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: fields[key] for key in _order_of(part, tuple(fields))}


@lru_cache(maxsize=256)
def _order_of(part: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    """The keys of an object in canonical order. The objects of a part have few sets of keys."""
    last = tuple(key for key in keys if key == "history" and not part)
    known = dict.fromkeys(name for name in field_names(part) if name in keys and name not in last)
    return (*known, *(key for key in keys if key not in known and key not in last), *last)
