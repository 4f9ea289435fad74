"""Upgrade a capsule to the current version of the format, and fill in what a person left out.

`upgrade` brings an older version to the current one, and then normalizes any version: messages get
ids and times, times get their canonical form, and keys their canonical order.

What must stay true: a migration reads no clock and draws no random number, so two clones of a file
migrate to the same bytes. It is idempotent, changes only what it names, and never changes its
argument. A newer minor version keeps its number. A newer major one is refused.
"""

from __future__ import annotations

import re
from typing import Any

from capsule import timestamps
from capsule.errors import InvalidDocument, Problem
from capsule.format.documents.creation import FORMAT_VERSION, empty_context, new_metadata
from capsule.format.json.canonical import in_order
from capsule.format.text.titles import title_from
from capsule.ids import message_id_for

#: Major and minor number.
Version = tuple[int, int]
Document = dict[str, Any]

#: `FORMAT_VERSION` as numbers.
LATEST_VERSION: Version = (2, 1)
_VERSION = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,4}))?(?:\.[0-9]{1,4})*")
_EPOCH = "1970-01-01T00:00:00.000Z"


def parse_version(version: object) -> Version | None:
    """Return major and minor number of a version in a file. None: it is no version."""
    if not isinstance(version, str):
        return None
    match = _VERSION.fullmatch(version)
    if match is None:
        return None
    return int(match[1]), int(match[2] or 0)


def is_newer(document: Document) -> bool:
    """Return whether a document is of a newer major version, which is left alone."""
    version = parse_version(document.get("version"))
    return version is not None and version[0] > LATEST_VERSION[0]


def newer_version_message(version: str) -> str:
    """Return the message about a file of a newer major version."""
    return (
        f"version {version} was written by a newer version of Capsule; the file stays "
        "unchanged; upgrade Capsule"
    )


def upgrade(document: Document, path: str = "") -> tuple[Document, list[str]]:
    """Return a document of the current version, and what was changed, in words.

    Messages without an id or a time get one, and times their canonical form. The canonical order of
    keys does not count as a change.

    Args:
        document: A document that `validation.check` accepts. It stays unchanged.
        path: The name of its file, for the error.

    Raises:
        InvalidDocument: It is of a newer major version, or so old that it need not have an id and a
            history, and lacks one of them.
    """
    stated_version = document.get("version", "1.0")
    version = parse_version(stated_version)
    if version is None:
        reason = f'must be a text like "2.1", is {stated_version!r}'
        raise InvalidDocument.of([Problem(path, 0, 0, "version", reason)])
    if version[0] > LATEST_VERSION[0]:
        reason = newer_version_message(str(stated_version))
        raise InvalidDocument.of([Problem(path, 0, 0, "version", reason)])
    missing = [name for name in ("id", "history") if name not in document]
    if missing:
        raise InvalidDocument.of([Problem(path, 0, 0, name, "is missing") for name in missing])
    changes: list[str] = []
    result = document if version >= (2, 0) else _upgrade_to_2_0(document)
    if version < LATEST_VERSION:  # 2.1 added only optional fields.
        result = {**result, "version": FORMAT_VERSION}
        changes.append(f"version {document.get('version', 'missing')} -> {FORMAT_VERSION}")
    return in_order(_normalize(result, changes)), changes


def _upgrade_to_2_0(document: Document) -> Document:
    """Fill in what a reader of version 2.0 needs, in a document without a version or before 2.0."""
    history = document["history"]
    times = [entry["timestamp"] for entry in history if entry.get("timestamp")]
    updated_at = document.get("updatedAt")
    created_at = document.get("createdAt")
    if not created_at:
        created_at = times[0] if times else updated_at or _EPOCH
    if not updated_at:
        updated_at = times[-1] if times else created_at
    user_texts = (entry["content"] for entry in history if entry.get("role") == "user")
    return {
        "title": title_from(next(user_texts, "")),
        **document,
        "createdAt": created_at,
        "updatedAt": updated_at,
        "metadata": {**new_metadata(), **document.get("metadata", {})},
        "context": {**empty_context(), **document.get("context", {})},
    }


class _ChangeCounts:
    """How many messages got an id or a time, and how many times got their canonical form."""

    def __init__(self) -> None:
        self.ids = 0
        self.times = 0
        self.forms = 0

    def in_words(self) -> list[str]:
        """Return the counts that are not 0 in words."""
        phrases = []
        if self.ids:
            phrases.append(f"{self.ids} {'message' if self.ids == 1 else 'messages'} got an id")
        if self.times:
            noun = "message" if self.times == 1 else "messages"
            phrases.append(f"{self.times} {noun} got a time")
        if self.forms:
            verb = "time was" if self.forms == 1 else "times were"
            phrases.append(f"{self.forms} {verb} put in canonical form")
        return phrases


def _normalize(document: Document, changes: list[str]) -> Document:
    """Return a document of any version with what a person left out. Add to `changes`."""
    counts = _ChangeCounts()
    result = dict(document)
    for name, default in (("metadata", new_metadata), ("context", empty_context)):
        if name not in result:
            result[name] = default()
            changes.append(f"{name} added")
    for name in ("createdAt", "updatedAt"):
        if name in result:
            result[name] = _canonical_time(result[name], counts)
    lock = result["metadata"].get("lock")
    if isinstance(lock, dict) and lock.get("timestamp"):
        timestamp = _canonical_time(lock["timestamp"], counts)
        result["metadata"] = {**result["metadata"], "lock": {**lock, "timestamp": timestamp}}
    created_at = result.get("createdAt", _EPOCH)
    result["history"] = _normalize_history(document["id"], created_at, result["history"], counts)
    changes += counts.in_words()
    return result


def _normalize_history(
    conversation: str, created_at: str, history: list[Any], counts: _ChangeCounts
) -> list[Any]:
    """Return the messages, each with an id and a canonical time.

    A message without a time gets that of the message before it; the first gets `created_at`.
    """
    timestamp = created_at
    used_ids = {entry.get("id") for entry in history}
    result = []
    for index, entry in enumerate(history):
        new_fields: dict[str, Any] = {}
        if entry.get("timestamp"):
            timestamp = _canonical_time(entry["timestamp"], counts)
        else:
            counts.times += 1
        if timestamp != entry.get("timestamp"):
            new_fields["timestamp"] = timestamp
        if entry.get("editedAt"):
            edited_at = _canonical_time(entry["editedAt"], counts)
            if edited_at != entry["editedAt"]:
                new_fields["editedAt"] = edited_at
        if not entry.get("id"):
            counts.ids += 1
            new_fields["id"] = _free_id(
                conversation, index, len(history), entry, timestamp, used_ids
            )
            used_ids.add(new_fields["id"])
        result.append({**entry, **new_fields} if new_fields else entry)
    return result


def _free_id(
    conversation: str,
    index: int,
    count: int,
    entry: Document,
    timestamp: str,
    used_ids: set[Any],
) -> str:
    """Return an id that is made of a message's index, role, time and text, and is not used.

    A message with the same words may have been at this index before, and have moved. Then the index
    is increased by the number of messages until the id is free.
    """
    number = index
    while True:
        id = message_id_for(conversation, number, entry["role"], timestamp, entry["content"])
        if id not in used_ids:
            return id
        number += count


def _canonical_time(time: str, counts: _ChangeCounts) -> str:
    """Return a time in canonical form, and count the change. A text that is no time stays."""
    canonical = timestamps.sortable(time)
    if canonical in ("", time):
        return time
    counts.forms += 1
    return canonical
