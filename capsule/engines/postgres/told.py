"""Compute the changes that a write of a conversation reports to followers. Pure.

What must stay true: they are the kinds and fields of `Change` that the index of a store of files
would have noticed of the same write.
"""

from __future__ import annotations

from typing import Any

import orjson

from capsule.engines.interface import CONVERSATIONS, Document
from capsule.format.documents.head import Head

Events = tuple[tuple[str, str], ...]
#: Of a document that nobody lists, and of a change that nobody asks for.
PLAIN: Events = (("", "{}"),)


def created(kind: str, document: Document, event: str = "created") -> Events:
    """Of a new document, or one that came back."""
    if kind != CONVERSATIONS:
        return PLAIN
    events = [_event(event, messages=[entry.get("id", "") for entry in document["history"]])]
    lock = _lock(document)
    return (*events, *([_event("locked", lock=lock)] if lock else []))


def appended(
    kind: str, ids: list[str], before: Document | None = None, after: Document | None = None
) -> Events:
    """Of appended messages, and of the heads if that changed too."""
    if kind != CONVERSATIONS:
        return PLAIN
    return (
        _event("appended", messages=ids),
        *(_of_heads(before, after) if before and after else ()),
    )


def reheaded(kind: str, before: Document, after: Document, *, has_context: bool) -> Events:
    """Of another head, or another context."""
    if kind != CONVERSATIONS:
        return PLAIN
    return _of_heads(before, after, ["context"] if has_context else []) or PLAIN


def replaced(
    kind: str, before: Document, after: Document, old: list[str], new: list[str]
) -> Events:
    """Of another version; `old` and `new` are the entries as they stand in the file."""
    if kind != CONVERSATIONS:
        return PLAIN
    was = dict(zip(map(_id, before["history"]), old, strict=True))
    now = [*zip(map(_id, after["history"]), new, strict=True)]
    kept = [at for at, (id, _) in enumerate(now) if id in was]
    end = kept[-1] + 1 if kept else 0
    added = [id for id, _ in now[end:] if id not in was]
    edited = [id for id, body in now[:end] if was.get(id) != body]
    there = {id for id, _ in now}
    removed = [id for id in was if id not in there]
    if not (added or edited or removed) and old != new:
        edited = [id for id, _ in now]  # Only their order changed.
    events: list[tuple[str, str]] = []
    if edited or removed:
        events.append(_event("edited", messages=edited, removed=removed))
    if added:
        events.append(_event("appended", messages=added))
    rest = ["context"] if _undated(before.get("context")) != _undated(after.get("context")) else []
    return (*events, *_of_heads(before, after, rest)) or PLAIN


def _of_heads(before: Document, after: Document, more: list[str] | None = None) -> Events:
    from capsule.engines.index.heads import HEAD_FIELDS, encode_head

    old, new = (Head.of(document, "", 0) for document in (before, after))
    events, fields = [], []
    if old is not None and new is not None:
        pairs = zip(
            HEAD_FIELDS, orjson.loads(encode_head(old)), orjson.loads(encode_head(new)), strict=True
        )
        fields = [name for name, was, now in pairs if was != now]
    if _metadata(before).get("currentNode") != _metadata(after).get("currentNode"):
        fields.append("current_node")
    if not fields and _rest(before) != _rest(after):
        fields.append("metadata")
    fields += more or []
    if fields:
        events.append(_event("head", fields=fields))
    was, now = _lock(before), _lock(after)
    if _owner(was) != _owner(now):
        events.append(_event("locked" if now else "unlocked", lock=now or was))
    return tuple(events)


def _event(event: str, **told: Any) -> tuple[str, str]:
    return event, orjson.dumps({name: value for name, value in told.items() if value}).decode()


def _id(entry: Document) -> str:
    return str(entry.get("id", ""))


def _metadata(document: Document) -> Document:
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _rest(document: Document) -> bytes:
    head = {
        key: value
        for key, value in document.items()
        if key not in ("history", "context", "updatedAt", "metadata")
    }
    return _undated(
        [head, {key: value for key, value in _metadata(document).items() if key != "lock"}]
    )


def _undated(value: Any) -> bytes:
    return orjson.dumps(value)


def _lock(document: Document) -> Document | None:
    lock = _metadata(document).get("lock")
    return lock if isinstance(lock, dict) and lock.get("active") is True else None


def _owner(lock: Document | None) -> Any:
    return None if lock is None else (lock.get("instanceId"), lock.get("host"), lock.get("name"))
