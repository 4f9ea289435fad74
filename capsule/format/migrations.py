"""Bringing a capsule to the version that is written, one step after the other.

What must stay true: a migration reads no clock and draws no random number, so that two clones of a
file migrate to the same bytes; it is idempotent, changes only what it names, and never touches its
argument. A newer minor version keeps its number; a newer major one is refused.
"""

from __future__ import annotations

import re
from typing import Any

from capsule import timestamps
from capsule.errors import InvalidDocument, Problem
from capsule.format.documents.creation import CURRENT, empty_context, new_metadata
from capsule.format.json.canonical import in_order
from capsule.format.text.titles import title_from
from capsule.ids import message_id_for

Version = tuple[int, int]
Document = dict[str, Any]

#: `CURRENT` as numbers.
LATEST_VERSION: Version = (2, 1)
_VERSION = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,4}))?(?:\.[0-9]{1,4})*")
_EPOCH = "1970-01-01T00:00:00.000Z"


def parse_version(version: object) -> Version | None:
    """Major and minor number of a version as it stands in a file; None when it is none."""
    match = _VERSION.fullmatch(version) if isinstance(version, str) else None
    return (int(match[1]), int(match[2] or 0)) if match else None


def is_newer(document: Document) -> bool:
    """Whether a document is of a newer major version, which is left alone."""
    version = parse_version(document.get("version"))
    return version is not None and version[0] > LATEST_VERSION[0]


def newer_version_message(version: str) -> str:
    """What is said of a file of a newer major version."""
    return (
        f"version {version} was written by a newer version of Capsule; the file stays "
        "unchanged; upgrade Capsule"
    )


def upgrade(document: Document, path: str = "") -> tuple[Document, list[str]]:
    """The document as this version writes it, and what was changed for it, in words; none when
    nothing was.

    Besides the version, messages without an id or a time get one, and known times get their
    canonical form. The keys come in canonical order, which does not count as a change. `document`
    is one that `validation.check` accepts, and stays unchanged; `path` is the name of its file, for
    the error.

    Raises:
        InvalidDocument: It is of a newer major version, or so old that it needs an id and a
            history, and has none.
    """
    had = document.get("version", "1.0")
    version = parse_version(had)
    if version is None or version[0] > LATEST_VERSION[0]:
        reason = (
            newer_version_message(str(had)) if version else f'must be a text like "2.1", is {had!r}'
        )
        raise InvalidDocument.of([Problem(path, 0, 0, "version", reason)])
    if missing := [name for name in ("id", "history") if name not in document]:
        raise InvalidDocument.of([Problem(path, 0, 0, name, "is missing") for name in missing])
    changes: list[str] = []
    result = document if version >= (2, 0) else _to_2_0(document)
    if (
        version < LATEST_VERSION
    ):  # 2.1 is 2.0 and optional fields; ids come with the tidying of every write.
        result = {**result, "version": CURRENT}
        changes.append(f"version {document.get('version', 'missing')} -> {CURRENT}")
    return in_order(_tidy(result, changes)), changes


def _to_2_0(document: Document) -> Document:
    """From no version, or one before 2.0: fill in what a reader of 2.0 needs."""
    history = document["history"]
    times = [entry["timestamp"] for entry in history if entry.get("timestamp")]
    created = document.get("createdAt") or (
        times[0] if times else document.get("updatedAt") or _EPOCH
    )
    first = next((entry["content"] for entry in history if entry.get("role") == "user"), "")
    about = {**new_metadata(), **document.get("metadata", {})}
    return {
        "title": title_from(first),
        **document,
        "createdAt": created,
        "updatedAt": document.get("updatedAt") or (times[-1] if times else created),
        "metadata": about,
        "context": {**empty_context(), **document.get("context", {})},
    }


def _tidy(document: Document, changes: list[str]) -> Document:
    """What any document may need, whatever its version, as a person may have typed into it."""
    counts = {"id": 0, "time": 0, "form": 0}
    result = dict(document)
    for name, default in (("metadata", new_metadata), ("context", empty_context)):
        if name not in result:
            result[name] = default()
            changes.append(f"{name} added")
    for name in ("createdAt", "updatedAt"):
        if name in result:
            result[name] = _in_form(result[name], counts)
    lock = result.get("metadata", {}).get("lock")
    if isinstance(lock, dict) and lock.get("timestamp"):
        stamp = _in_form(lock["timestamp"], counts)
        result["metadata"] = {**result["metadata"], "lock": {**lock, "timestamp": stamp}}
    result["history"] = _tidy_history(
        document["id"], result.get("createdAt", _EPOCH), result["history"], counts
    )
    singular = {
        "id": "message got an id",
        "time": "message got a time",
        "form": "time was put in canonical form",
    }
    plural = {
        "id": "messages got an id",
        "time": "messages got a time",
        "form": "times were put in canonical form",
    }
    changes += [
        f"{count} {(singular if count == 1 else plural)[name]}"
        for name, count in counts.items()
        if count
    ]
    return result


def _tidy_history(
    conversation: str, created: str, history: list[Any], counts: dict[str, int]
) -> list[Any]:
    """The messages, each with an id and a canonical time."""
    stamp = created
    tidied = []
    used = {entry.get("id") for entry in history}
    for position, entry in enumerate(history):
        had = entry.get("timestamp")
        if had:
            stamp = _in_form(had, counts)
        else:
            counts["time"] += 1
        edited = entry.get("editedAt")
        if stamp != had:
            entry = {**entry, "timestamp": stamp}
        if edited and (form := _in_form(edited, counts)) != edited:
            entry = {**entry, "editedAt": form}
        if not entry.get("id"):
            counts["id"] += 1
            id, turn = "", position
            while (
                not id or id in used
            ):  # The same words may have stood in this place before, and have moved.
                id = message_id_for(conversation, turn, entry["role"], stamp, entry["content"])
                turn += len(history)
            used.add(id)
            entry = {**entry, "id": id}
        tidied.append(entry)
    return tidied


def _in_form(time: str, counts: dict[str, int]) -> str:
    form = timestamps.sortable(time)
    if form in ("", time):
        return time
    counts["form"] += 1
    return form
