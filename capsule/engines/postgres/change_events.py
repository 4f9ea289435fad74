"""The events of a write of a conversation: the rows that it adds to the table of changes.

An event is a kind of `Change` with its further fields as JSON. The functions compare the versions of
a document before and after the write. The transaction passes the events to the database, which
stores them together with the write.

What must stay true: the events are those that the index of a store of files would derive from the
same write. This module reads and writes nothing.
"""

from __future__ import annotations

from typing import Any

import orjson

from capsule.engines.interface import CONVERSATIONS, Document
from capsule.format.documents.head import Head

#: Pairs of the kind of a change and its fields as JSON.
Events = tuple[tuple[str, str], ...]
#: One event without a kind: the document is no conversation, or nobody lists this change. Its row
#: still wakes trackers.
UNREPORTED: Events = (("", "{}"),)


def creation_events(kind: str, document: Document, event: str = "created") -> Events:
    """Return the events of a new or a restored document; `event` is the kind of the first."""
    if kind != CONVERSATIONS:
        return UNREPORTED
    ids = [entry.get("id", "") for entry in document["history"]]
    events = [_event(event, messages=ids)]
    lock = _lock(document)
    if lock:
        events.append(_event("locked", lock=lock))
    return tuple(events)


def append_events(
    kind: str, ids: list[str], old_head: Document | None = None, new_head: Document | None = None
) -> Events:
    """Return the events of appended messages.

    Args:
        kind: The kind of the document.
        ids: The ids of the messages.
        old_head, new_head: The heads, if the write changes the head too.
    """
    if kind != CONVERSATIONS:
        return UNREPORTED
    events = (_event("appended", messages=ids),)
    if old_head and new_head:
        return (*events, *_head_events(old_head, new_head))
    return events


def head_change_events(
    kind: str, old_head: Document, new_head: Document, *, has_context: bool
) -> Events:
    """Return the events of a new head. `has_context`: the write replaces the context too."""
    if kind != CONVERSATIONS:
        return UNREPORTED
    other_fields = ["context"] if has_context else []
    return _head_events(old_head, new_head, other_fields) or UNREPORTED


def replacement_events(
    kind: str, old: Document, new: Document, old_bodies: list[str], new_bodies: list[str]
) -> Events:
    """Return the events of a write that replaces the document.

    Args:
        kind: The kind of the document.
        old, new: The document.
        old_bodies, new_bodies: Its entries as the file has them.
    """
    if kind != CONVERSATIONS:
        return UNREPORTED
    old_entries = list(zip(map(_id, old["history"]), old_bodies, strict=True))
    new_entries = list(zip(map(_id, new["history"]), new_bodies, strict=True))
    events = _entry_events(old_entries, new_entries)
    other_fields = []
    if _encoded(old.get("context")) != _encoded(new.get("context")):
        other_fields.append("context")
    return (*events, *_head_events(old, new, other_fields)) or UNREPORTED


def _entry_events(
    old_entries: list[tuple[str, str]], new_entries: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the events of changed entries, which are pairs of an id and a text."""
    old_body_of = dict(old_entries)
    new_ids = {id for id, _ in new_entries}
    surviving = [position for position, (id, _) in enumerate(new_entries) if id in old_body_of]
    # A new entry before a surviving one counts as edited.
    append_start = surviving[-1] + 1 if surviving else 0
    added = [id for id, _ in new_entries[append_start:]]
    edited = [id for id, body in new_entries[:append_start] if old_body_of.get(id) != body]
    removed = [id for id in old_body_of if id not in new_ids]
    old_bodies = [body for _, body in old_entries]
    new_bodies = [body for _, body in new_entries]
    is_only_reordered = not (added or edited or removed) and old_bodies != new_bodies
    if is_only_reordered:
        edited = [id for id, _ in new_entries]
    events: list[tuple[str, str]] = []
    if edited or removed:
        events.append(_event("edited", messages=edited, removed=removed))
    if added:
        events.append(_event("appended", messages=added))
    return events


def _head_events(old: Document, new: Document, other_fields: list[str] | None = None) -> Events:
    """Return the events of a changed head and a changed lock. `other_fields` changed as well."""
    events = []
    fields = _changed_head_fields(old, new)
    if _metadata(old).get("currentNode") != _metadata(new).get("currentNode"):
        fields.append("current_node")
    if not fields and _unlisted_fields(old) != _unlisted_fields(new):
        fields.append("metadata")
    fields += other_fields or []
    if fields:
        events.append(_event("head", fields=fields))
    old_lock = _lock(old)
    new_lock = _lock(new)
    if _owner(old_lock) != _owner(new_lock):
        if new_lock:
            events.append(_event("locked", lock=new_lock))
        else:
            events.append(_event("unlocked", lock=old_lock))
    return tuple(events)


def _changed_head_fields(old: Document, new: Document) -> list[str]:
    """Return the names of the fields of lists that differ. Without valid heads, there are none."""
    from capsule.engines.questions.heads import HEAD_FIELDS, encode_head

    old_head = Head.of(old, "", 0)
    new_head = Head.of(new, "", 0)
    if old_head is None or new_head is None:
        return []
    old_values = orjson.loads(encode_head(old_head))
    new_values = orjson.loads(encode_head(new_head))
    fields = zip(HEAD_FIELDS, old_values, new_values, strict=True)
    return [name for name, old_value, new_value in fields if old_value != new_value]


def _event(event: str, **fields: Any) -> tuple[str, str]:
    return event, orjson.dumps({name: value for name, value in fields.items() if value}).decode()


def _id(entry: Document) -> str:
    return str(entry.get("id", ""))


def _metadata(document: Document) -> Document:
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _unlisted_fields(document: Document) -> bytes:
    """Return the head without its time and its lock, as JSON, to be compared."""
    separate = ("history", "context", "updatedAt", "metadata")
    head = {key: value for key, value in document.items() if key not in separate}
    metadata = {key: value for key, value in _metadata(document).items() if key != "lock"}
    return _encoded([head, metadata])


def _encoded(value: Any) -> bytes:
    return orjson.dumps(value)


def _lock(document: Document) -> Document | None:
    """Return the active lock of a conversation."""
    lock = _metadata(document).get("lock")
    return lock if isinstance(lock, dict) and lock.get("active") is True else None


def _owner(lock: Document | None) -> Any:
    """Return what identifies the owner of a lock."""
    if lock is None:
        return None
    return lock.get("instanceId"), lock.get("host"), lock.get("name")
