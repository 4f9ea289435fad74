"""What an import remembers of its source: digests of what was taken, by which it is known what
changed here.

What must stay true: a digest depends on what is said alone, and not on its place, nor on a time
that the source has not. Changing one makes every imported message look changed here. Pure.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import orjson

from capsule.format.documents import creation
from capsule.transfer.records.round_trip import Fields

Document = dict[str, Any]
#: In metadata: what is remembered of the source, and what the source had besides.
IMPORTED, SOURCE = "imported", "source"
_BESIDE = frozenset({"id", "parent", "editedAt", "editedBy"})
#: The conversations that a head names.
RELATED = ("sourceConversationId", "forkedFrom")
#: What a source says of a conversation in its metadata.
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
    """What a message or the head of a conversation remembers of its source; empty: it was made
    here.
    """
    about = fields.get("metadata", {}).get(IMPORTED)
    return about if isinstance(about, dict) else {}


def digest_of(value: Any) -> str:
    """A short digest of a JSON value. Raises TypeError for any other value."""
    return blake2b(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


def digest_of_message(entry: Fields) -> str:
    """The digest of what a message says, and not of its place."""
    said = {name: value for name, value in entry.items() if name not in _BESIDE}
    if "metadata" in said and (IMPORTED in said["metadata"] or not said["metadata"]):
        said["metadata"] = {
            name: value for name, value in said["metadata"].items() if name != IMPORTED
        }
        if not said["metadata"]:
            del said["metadata"]
    return digest_of(said)


def digests_of_head(document: Document) -> dict[str, str]:
    """The digest of each field of a conversation that its source has, besides its messages."""
    said = {
        name: document["metadata"][name] for name in OF_METADATA if name in document["metadata"]
    }
    said = without_defaults(said, creation.new_metadata())
    if document.get("context", creation.empty_context()) != creation.empty_context():
        said["context"] = document["context"]
    return {name: digest_of(value) for name, value in {"title": document["title"], **said}.items()}


def digest_of_document(document: Document, *, is_own: bool) -> str:
    """The digest of a conversation as an import brings it; `is_own`: under its own id."""
    said: list[Any] = [document["title"], document["metadata"], document["context"]]
    if is_own:
        return digest_of([*said, document["history"]])
    marks = [
        [entry["id"], entry.get("parent"), entry["metadata"][IMPORTED]["digest"]]
        for entry in document["history"]
    ]
    return digest_of([*said, marks])


def is_edited(entry: Fields) -> bool:
    """Whether a message was changed or made here since the last import."""
    about = provenance_of(entry)
    return about.get("digest") != digest_of_message(entry) and not is_undated(entry, about)


def is_undated(entry: Fields, about: Fields) -> bool:
    """Whether the source has no time for a message, which has one here."""
    rest = {name: value for name, value in entry.items() if name != "timestamp"}
    return bool(about.get("digest") == digest_of_message(rest))


def without_defaults(fields: Fields, defaults: Fields) -> Fields:
    """The fields that say more than the defaults; never the lock."""
    return {
        name: value
        for name, value in fields.items()
        if (name != "lock" and defaults.get(name, value) != value) or name not in defaults
    }
