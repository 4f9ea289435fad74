"""Capsules: files, folders and archives of version 2.0 and 2.1, and out as either.

A file of version 2.1 is the capsule as the store has it, without its lock. One of 2.0 has the
active branch in the fields of 2.0 and nothing else, for older readers; what they have no field for
is under the one key `capsule`. Ids are kept. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from capsule.errors import CapsuleError
from capsule.format import migrations, validation
from capsule.format.documents import creation
from capsule.format.json import codec
from capsule.transfer.drafts.conversion import active_path, document_of
from capsule.transfer.interface import (
    Draft,
    Fields,
    Format,
    Source,
    json_shape,
    read_bytes,
    read_records,
    recognizes_record,
)
from capsule.transfer.records.coercion import is_string, object_of, without
from capsule.transfer.records.round_trip import CAPSULE_KEY

_SHA256 = r"[0-9a-f]{64}"
_HEAD = ("id", "title", "createdAt", "updatedAt")
#: The metadata of 2.0, and what it is where a capsule has none.
_METADATA = creation.new_metadata()
#: What stands for the roles that 2.0 does not have.
_ROLES = {"system": "user", "tool": "assistant"}


def _is_capsule(record: Fields) -> bool:
    history = record.get("history")
    if not isinstance(record.get("id"), str):
        return False
    if isinstance(history, list) and history:
        return all(
            isinstance(entry, dict) and "role" in entry and "event" not in entry
            for entry in history[:1]
        )
    return {"title", "version", "createdAt", "updatedAt"} <= record.keys()


def _read(source: Source) -> Iterator[Draft]:
    if json_shape(source) == "object":
        data = read_bytes(source, 1 << 28)
        try:  # Digit for digit, where it can be.
            yield _draft(codec.decode(data, source.name), source, 1)
            return
        except CapsuleError:
            pass  # Read again, around the damage.
    for line, record in read_records(source):
        try:
            yield _draft(record, source, line)
        except CapsuleError as error:
            source.tell(error.message[:300], line)


def _draft(record: Fields, source: Source, line: int) -> Draft:
    """The draft of a capsule. Raises InvalidDocument."""
    note = object_of(record.get(CAPSULE_KEY))
    if note:
        record = without(record, CAPSULE_KEY)
    if isinstance(record.get("history"), list):
        record = record | {
            "history": [entry for entry in record["history"] if _is_message(entry, source, line)]
        }
    validation.check(record, codec.encode(record), source.name)
    document, _ = migrations.upgrade(record, source.name)
    history = document["history"]
    head = without(document, "history", "version")
    head["metadata"] = without(head.get("metadata", {}), "lock")
    for attached in (file for entry in history for file in entry.get("attachments", ())):
        if isinstance(digest := attached.get("sha256"), str) and re.fullmatch(_SHA256, digest):
            for file in source.near(f"../attachments/{digest}"):
                attached["data"] = file
    return Draft(head, history, line, is_own=True, export_note=note)


def _is_message(entry: Any, source: Source, line: int) -> bool:
    is_message = (
        isinstance(entry, dict) and is_string(entry.get("role")) and is_string(entry.get("content"))
    )
    if not is_message:
        source.tell("an entry of history is no message", line)
    return is_message


def _no_file(data: bytes | Source) -> tuple[str, int]:
    raise ValueError("an attachment was not stored")


def _write(draft: Draft) -> bytes:
    nothing: Any = lambda reason, id: None  # noqa: E731
    return codec.encode(
        document_of(draft, "capsule", draft.head["updatedAt"], nothing, _no_file, is_trusted=True)
    )


def _write_2_0(draft: Draft) -> bytes:
    about, context = draft.metadata, draft.head.get("context", {})
    metadata = {name: about.get(name, _METADATA[name]) for name in _METADATA}
    empty = creation.empty_context()
    files = context.get("metadata", {})
    record: Fields = {
        **{name: draft.head[name] for name in _HEAD},
        "metadata": metadata,
        "context": {
            "fullContext": context.get("fullContext", ""),
            "metadata": {name: files.get(name, value) for name, value in empty["metadata"].items()},
        },
        "history": [_message(entry) for entry in active_path(draft.head, draft.history)],
    }
    first_fields = {name: record[name] for name in _HEAD[:2]}
    return codec.encode(draft.with_note(first_fields | {"version": "2.0"} | record))


def _message(entry: Fields) -> Fields:
    said = {name: entry[name] for name in ("role", "content", "timestamp") if name in entry}
    return said | {"role": _ROLES.get(said["role"], said["role"])}


_ABOUT: Fields = {
    "read": _read,
    "file_name": lambda draft: f"conversations/{draft.id}.json",
    "has_files_beside": True,
}
FORMATS = [
    Format(
        "capsule", "Capsules, version 2.1", recognizes_record(_is_capsule), write=_write, **_ABOUT
    ),
    # The format above reads both versions.
    Format(
        "capsule-2.0",
        "Capsules, version 2.0",
        lambda source: False,
        write=_write_2_0,
        is_portable=False,
        **_ABOUT,
    ),
]
