"""The canonical order of keys: the known fields as the format lists them, then the unknown in their own order.

What must stay true: ordering changes no value and loses no key; `history` is the last key of a capsule, so that
the storage layer can append to the file. This module imports nothing heavy, as appending goes through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from capsule.format.fields import PARTS, names

#: The fields of each part whose objects, alone or in a list, are parts themselves, and which.
_INSIDE = {
    part: [(field.name, inside) for field in fields if (inside := f"{part}.{field.name}".lstrip(".")) in PARTS]
    for part, fields in PARTS.items()
}
_MESSAGE = names("history")
#: The objects of entries in documents without a history. Their order says nothing.
_SORTED = ("dm", "requests", "reading", "concerns", "cursors", "links")


def in_order(document: Mapping[str, Any]) -> dict[str, Any]:
    """The same document with its keys in canonical order; `document` itself stays as it is.

    Unknown keys follow the known ones, in their own order; at the top level `history` follows both.
    What is no object where the format wants one stays where it is.
    """
    ordered = _in_order("", document)
    if "history" in ordered:
        ordered["history"] = ordered.pop("history")
    return ordered


def _in_order(part: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    ordered = _ordered(fields, names(part))
    for name, inside in _INSIDE[part]:
        value = ordered.get(name)
        if isinstance(value, dict):
            ordered[name] = _in_order(inside, value)
        elif isinstance(value, list):
            ordered[name] = [_in_order(inside, item) if isinstance(item, dict) else item for item in value]
    return ordered


def order_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The same message with its keys in canonical order, as a new dict."""
    return _ordered(message, _MESSAGE)


def order_record(record: Mapping[str, Any], part: str) -> dict[str, Any]:
    """The same document without a history with its keys in canonical order, as a new dict; its entries are sorted."""
    ordered = _ordered(record, names(part))
    for name in _SORTED:
        if isinstance(entries := ordered.get(name), dict):
            ordered[name] = dict(sorted(entries.items()))
    return ordered


@lru_cache(maxsize=1024)
def is_in_order(keys: tuple[str, ...]) -> bool:
    """Whether the keys of a message stand in canonical order. A conversation has few sets of keys."""
    return tuple(_ordered(dict.fromkeys(keys), _MESSAGE)) == keys


def _ordered(fields: Mapping[str, Any], order: tuple[str, ...]) -> dict[str, Any]:
    ordered = {}
    for key in order:
        if key in fields:
            ordered[key] = fields[key]
    if len(ordered) < len(fields):
        for key, value in fields.items():
            if key not in ordered:
                ordered[key] = value
    return ordered
