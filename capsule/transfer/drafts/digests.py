"""Compute the digests by which an import recognizes what changed here since the last one.

Invariant: the digest of a message depends on its content alone. It does not depend on its id, its
parent, or a time that the source does not have. If the computation changed, all imported messages
would count as changed here. Pure.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import orjson

from capsule.format.documents import creation
from capsule.transfer.records.mapping import Fields

Document = dict[str, Any]
#: The field of the metadata with the provenance.
IMPORTED = "imported"
#: The field of the metadata with the source's fields that have no field of ours.
SOURCE = "source"
#: The fields of a message that are no part of its content.
_NO_CONTENT = frozenset({"id", "parent", "editedAt", "editedBy"})
#: The fields of a head that name other conversations.
RELATED = ("sourceConversationId", "forkedFrom")
#: The fields of the metadata that are taken from a source.
OF_METADATA = (
    "mode",
    "tags",
    "type",
    "archived",
    "pinned",
    "description",
    "isSummary",
    *RELATED,
    SOURCE,
)


def provenance_of(fields: Fields) -> Fields:
    """Return the provenance of a message or a head. Empty: it was made here."""
    provenance = fields.get("metadata", {}).get(IMPORTED)
    return provenance if isinstance(provenance, dict) else {}


def digest_of(value: Any) -> str:
    """Return a short digest of a JSON value. Raises TypeError for any other value."""
    return blake2b(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


def digest_of_message(entry: Fields) -> str:
    """Return the digest of the content of a message, without its provenance."""
    content = {name: value for name, value in entry.items() if name not in _NO_CONTENT}
    if "metadata" in content:
        metadata = {name: value for name, value in content["metadata"].items() if name != IMPORTED}
        if metadata:
            content["metadata"] = metadata
        else:
            del content["metadata"]
    return digest_of(content)


def digests_of_head(document: Document) -> dict[str, str]:
    """Return the digest of each field of a head that its source may have."""
    metadata = document["metadata"]
    source_metadata = {name: metadata[name] for name in OF_METADATA if name in metadata}
    source_metadata = without_defaults(source_metadata, creation.new_metadata())
    fields = {"title": document["title"], **source_metadata}
    empty_context = creation.empty_context()
    if document.get("context", empty_context) != empty_context:
        fields["context"] = document["context"]
    return {name: digest_of(value) for name, value in fields.items()}


def digest_of_document(document: Document, *, is_own: bool) -> str:
    """Return the digest of a conversation that is imported. `is_own`: it keeps its id."""
    head: list[Any] = [document["title"], document["metadata"], document["context"]]
    if is_own:
        return digest_of([*head, document["history"]])
    messages = [
        [entry["id"], entry.get("parent"), entry["metadata"][IMPORTED]["digest"]]
        for entry in document["history"]
    ]
    return digest_of([*head, messages])


def is_edited(entry: Fields) -> bool:
    """Return whether a message was changed here since the last import, or was made here."""
    provenance = provenance_of(entry)
    is_as_imported = provenance.get("digest") == digest_of_message(entry)
    return not is_as_imported and not is_undated(entry, provenance)


def is_undated(entry: Fields, provenance: Fields) -> bool:
    """Return whether a message is as imported but for a time that its source does not have."""
    fields = {name: value for name, value in entry.items() if name != "timestamp"}
    return bool(provenance.get("digest") == digest_of_message(fields))


def without_defaults(fields: Fields, defaults: Fields) -> Fields:
    """Return the fields that differ from their defaults, without the lock."""
    result = {}
    for name, value in fields.items():
        is_default = name in defaults and (name == "lock" or defaults[name] == value)
        if not is_default:
            result[name] = value
    return result
