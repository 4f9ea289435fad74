"""Put the keys of a document in canonical order: known fields as the format lists them, then others.

`capsule.format.fields` lists the fields by part: "" is a capsule, "metadata" the object in it, and
so on. Ordering an object also orders the parts inside it.

What must stay true: ordering changes no value and loses no key. `history` is the last key of a
capsule, so that the storage layer can append to the file. This module imports nothing heavy, as
every append uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from capsule.format.fields import PARTS, field_names


def _child_parts() -> dict[str, list[tuple[str, str]]]:
    """Return, by part, the fields whose objects are parts themselves, each with its part."""
    children: dict[str, list[tuple[str, str]]] = {}
    for part, fields in PARTS.items():
        children[part] = []
        for field in fields:
            child_part = f"{part}.{field.name}".lstrip(".")
            if child_part in PARTS:
                children[part].append((field.name, child_part))
    return children


_CHILD_PARTS = _child_parts()
#: Fields of documents without a history that hold objects by name. These are sorted by name.
_SORTED = ("dm", "requests", "reading", "concerns", "cursors", "links")


def in_order(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a capsule with its keys in canonical order, as a new dict.

    Unknown keys follow the known ones, in their own order. At the top level `history` follows both.
    A value that should be an object and is none stays unchanged.
    """
    return _in_order("", document)


def _in_order(part: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    ordered = _ordered(part, fields)
    for name, child_part in _CHILD_PARTS[part]:
        value = ordered.get(name)
        if isinstance(value, dict):
            ordered[name] = _in_order(child_part, value)
        elif isinstance(value, list):
            items = []
            for item in value:
                if isinstance(item, dict):
                    items.append(_in_order(child_part, item))
                else:
                    items.append(item)
            ordered[name] = items
    return ordered


def order_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its keys in canonical order, as a new dict."""
    return _ordered("history", message)


def order_record(record: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Return a document without a history with its keys and entries in order, as a new dict."""
    ordered = _ordered(part, record)
    for name in _SORTED:
        entries = ordered.get(name)
        if isinstance(entries, dict):
            ordered[name] = dict(sorted(entries.items()))
    return ordered


def is_in_order(keys: tuple[str, ...], part: str = "history") -> bool:
    """Return whether the keys of a message, or of another part, are in canonical order."""
    return _order_of(part, keys) == keys


def _ordered(part: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: fields[key] for key in _order_of(part, tuple(fields))}


# Cached, because the objects of a part have few different sets of keys.
@lru_cache(maxsize=256)
def _order_of(part: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys of an object in canonical order."""
    last = tuple(key for key in keys if key == "history" and not part)
    known_names = [name for name in field_names(part) if name in keys and name not in last]
    other_names = [key for key in keys if key not in known_names and key not in last]
    return (*known_names, *other_names, *last)
