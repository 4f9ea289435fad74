"""Read and write capsules: files, folders and archives of version 2.1 and 2.0.

A file of version 2.1 is the capsule as the store has it, without its lock. One of 2.0 has the
active branch in the fields of 2.0, for older readers, and the note of an export under `capsule`.
Ids are kept. A sound file is read with the exact digits of its numbers. A damaged one is read
around the damage, which is reported. Pure.
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
from capsule.transfer.records.mapping import CAPSULE_KEY, is_string, object_of, without

_SHA256 = r"[0-9a-f]{64}"
#: The metadata of 2.0, with the values for a capsule without them.
_DEFAULT_METADATA = creation.new_metadata()
#: The roles of 2.0 for those that it does not have.
_OLD_ROLES = {"system": "user", "tool": "assistant"}
#: The largest file that is read with exact digits, in bytes.
_MAX_EXACT_BYTES = 1 << 28


def _is_capsule(record: Fields) -> bool:
    history = record.get("history")
    if not isinstance(record.get("id"), str):
        return False
    if isinstance(history, list) and history:
        entry = history[0]
        return isinstance(entry, dict) and "role" in entry and "event" not in entry
    return {"title", "version", "createdAt", "updatedAt"} <= record.keys()


def _read(source: Source) -> Iterator[Draft]:
    if json_shape(source) == "object":
        data = read_bytes(source, _MAX_EXACT_BYTES)
        try:
            draft = _draft(codec.decode(data, source.name), source, 1)
        except CapsuleError:
            pass  # It is damaged, and is read around the damage below.
        else:
            yield draft
            return
    for line, record in read_records(source):
        try:
            draft = _draft(record, source, line)
        except CapsuleError as error:
            source.tell(error.message[:300], line)
        else:
            yield draft


def _draft(record: Fields, source: Source, line: int) -> Draft:
    """Return the draft of a capsule, with its attachments. Raises InvalidDocument."""
    note = object_of(record.get(CAPSULE_KEY))
    capsule = without(record, CAPSULE_KEY) if note else record
    if isinstance(capsule.get("history"), list):
        history = [entry for entry in capsule["history"] if _is_message(entry, source, line)]
        capsule = capsule | {"history": history}
    validation.check(capsule, codec.encode(capsule), source.name)
    document, _ = migrations.upgrade(capsule, source.name)
    head = without(document, "history", "version")
    head["metadata"] = without(head.get("metadata", {}), "lock")
    for entry in document["history"]:
        for attachment in entry.get("attachments", ()):
            digest = attachment.get("sha256")
            if isinstance(digest, str) and re.fullmatch(_SHA256, digest):
                for file in source.near(f"../attachments/{digest}"):
                    attachment["data"] = file
    return Draft(head, document["history"], line, is_own=True, export_note=note)


def _is_message(entry: Any, source: Source, line: int) -> bool:
    """Return whether an entry is a message. Report any other one."""
    if isinstance(entry, dict) and is_string(entry.get("role")) and is_string(entry.get("content")):
        return True
    source.tell("an entry of history is not a message", line)
    return False


def _refuse_file(data: bytes | Source) -> tuple[str, int]:
    raise ValueError("an attachment was not stored")


def _ignore_problem(reason: str, id: str) -> None:
    """Ignore a problem: a stored conversation was accepted already."""


def _write(draft: Draft) -> bytes:
    document = document_of(
        draft,
        "capsule",
        draft.head["updatedAt"],
        _ignore_problem,
        _refuse_file,
        is_trusted=True,
    )
    return codec.encode(document)


def _write_2_0(draft: Draft) -> bytes:
    metadata = draft.metadata
    context = draft.head.get("context", {})
    context_metadata = context.get("metadata", {})
    default_context_metadata = creation.empty_context()["metadata"]
    record: Fields = {
        "id": draft.head["id"],
        "title": draft.head["title"],
        "version": "2.0",
        "createdAt": draft.head["createdAt"],
        "updatedAt": draft.head["updatedAt"],
        "metadata": {
            name: metadata.get(name, default) for name, default in _DEFAULT_METADATA.items()
        },
        "context": {
            "fullContext": context.get("fullContext", ""),
            "metadata": {
                name: context_metadata.get(name, default)
                for name, default in default_context_metadata.items()
            },
        },
        "history": [_old_message(entry) for entry in active_path(draft.head, draft.history)],
    }
    return codec.encode(draft.with_note(record))


def _old_message(entry: Fields) -> Fields:
    """Return the fields of a message that 2.0 has."""
    message: Fields = {
        name: entry[name] for name in ("role", "content", "timestamp") if name in entry
    }
    message["role"] = _OLD_ROLES.get(entry["role"], entry["role"])
    return message


def _file_name(draft: Draft) -> str:
    return f"conversations/{draft.id}.json"


FORMATS = [
    Format(
        "capsule",
        "Capsules, version 2.1",
        recognizes=recognizes_record(_is_capsule),
        read=_read,
        write=_write,
        file_name=_file_name,
        has_files_beside=True,
    ),
    Format(
        "capsule-2.0",
        "Capsules, version 2.0",
        recognizes=lambda source: False,  # The format above reads both versions.
        read=_read,
        write=_write_2_0,
        file_name=_file_name,
        has_files_beside=True,
        is_portable=False,
    ),
]
