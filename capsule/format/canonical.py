"""The canonical order of keys: the known fields as the format lists them, then the unknown in their own order.

What must stay true: ordering changes no value and loses no key; `history` is the last key of a capsule, so that
the storage layer can append to the file. This module imports nothing heavy, as appending goes through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from capsule.format.fields import names

_CAPSULE = names("")[:-1]
_METADATA = names("metadata")
_LOCK = names("metadata.lock")
_MEMBER = names("metadata.participants")
_SUMMARY_OF = names("metadata.summaryOf")
_CONTEXT = names("context")
_CONTEXT_METADATA = names("context.metadata")
_FILE = names("context.metadata.files")
_MESSAGE = names("history")
_CHANNEL = names("metadata.channel")
#: The objects of entries in documents without a history. Their order says nothing.
_SORTED = ("dm", "requests", "reading", "concerns", "cursors", "links")


def in_order(document: Mapping[str, Any]) -> dict[str, Any]:
    """The same document with its keys in canonical order; `document` itself stays as it is.

    Unknown keys follow the known ones, in their own order; at the top level `history` follows both.
    What is no object where the format wants one stays where it is.
    """
    rest = dict(document)
    history = rest.pop("history", None)
    ordered = _ordered(rest, _CAPSULE)
    if isinstance(metadata := ordered.get("metadata"), dict):
        ordered["metadata"] = metadata = _ordered(metadata, _METADATA)
        if isinstance(lock := metadata.get("lock"), dict):
            metadata["lock"] = _ordered(lock, _LOCK)
        if isinstance(channel := metadata.get("channel"), dict):
            metadata["channel"] = _ordered(channel, _CHANNEL)
        if isinstance(members := metadata.get("participants"), list):
            metadata["participants"] = [_ordered(one, _MEMBER) if isinstance(one, dict) else one for one in members]
        if isinstance(summed_up := metadata.get("summaryOf"), dict):
            metadata["summaryOf"] = _ordered(summed_up, _SUMMARY_OF)
    if isinstance(context := ordered.get("context"), dict):
        ordered["context"] = context = _ordered(context, _CONTEXT)
        if isinstance(about := context.get("metadata"), dict):
            context["metadata"] = about = _ordered(about, _CONTEXT_METADATA)
            if isinstance(files := about.get("files"), list):
                about["files"] = [_ordered(file, _FILE) if isinstance(file, dict) else file for file in files]
    if isinstance(history, list):
        history = [order_message(entry) if isinstance(entry, dict) else entry for entry in history]
    if "history" in document:
        ordered["history"] = history
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


def _ordered(found: Mapping[str, Any], order: tuple[str, ...]) -> dict[str, Any]:
    ordered = {key: found[key] for key in order if key in found}
    if len(ordered) < len(found):
        for key, value in found.items():
            if key not in ordered:
                ordered[key] = value
    return ordered
