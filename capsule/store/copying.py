"""Copying a store into another one, of the same kind or of another kind, once or repeatedly.

Every document of the source is compared with the one of the same id in the target. It is written if
the target lacks it, or has an earlier version of it. Else it is counted as the same, or as kept.

What must stay true: afterwards the target has everything that only the source had, in the layout
that a store writes. No document of the target is replaced unless it is an earlier version of the
source's document. Such a document stays, and the result names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from capsule.engines.interface import CONVERSATIONS, INBOUND, OUTBOUND, WITH_ENTRIES, Engine, retry
from capsule.errors import CapsuleError, NotFound, Refused
from capsule.format.json import canonical, codec
from capsule.format.validation import KINDS
from capsule.settings import FILE_NAME, TEMPLATE
from capsule.store.change.conversation import REMOVED
from capsule.store.store import CoreStore

Document = dict[str, Any]
Progress = Callable[[int, int], None]
#: The kinds of documents that a store shares. A kind comes after the kinds that it depends on.
SHARED = (
    "projects",
    "agents",
    "overrides",
    "applied",
    "sessions",
    INBOUND,
    OUTBOUND,
    CONVERSATIONS,
)
#: The kinds of documents that belong to this machine, and are also valid for the copy. The keys of
#: cursors are not: they name places in an index.
LOCAL = ("commands", "doorbells", "homes", "imports", "webhooks")
#: The kinds of entries in the trash.
_TRASHED = (*KINDS, REMOVED)
#: The kinds of side files, by the kind of document whose ids they have.
_SIDE_FILES = {"inbox": INBOUND, "outbox": OUTBOUND}


class _Outcome(Enum):
    """What a copy did with one document or file."""

    WRITTEN = "the target has it now"
    SAME = "the target had it already"
    KEPT = "the target has another one, which stays"


@dataclass(slots=True)
class CopyResult:
    """The result of a copy.

    Attributes:
        written, same: The number of documents and files that were written, and that were in the
            target already.
        kept: Documents of the target that are not an earlier version of the source's, and stayed:
            kind and id.
        failed: Documents that could not be read or written: kind, id and the reason.
    """

    written: int = 0
    same: int = 0
    kept: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str, str]] = field(default_factory=list)

    def count(self, kind: str, id: str, outcome: _Outcome) -> None:
        """Count a document or file."""
        if outcome is _Outcome.WRITTEN:
            self.written += 1
        elif outcome is _Outcome.SAME:
            self.same += 1
        else:
            self.kept.append((kind, id))

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "written": self.written,
            "same": self.same,
            "kept": [{"kind": kind, "id": id} for kind, id in self.kept],
            "failed": [{"kind": kind, "id": id, "error": error} for kind, id, error in self.failed],
        }


def copy_store(
    source: CoreStore, target: CoreStore, progress: Progress | None = None
) -> CopyResult:
    """Copy everything of a store into another one.

    Args:
        source: The store to copy. It may be in use: what is written meanwhile comes with the next
            copy.
        target: The other store. What it alone has stays.
        progress: Called with the number of copied documents, and the number of all.

    Raises Refused: a store acts for an agent. Cost: reading every document of both.
    """
    for store in (source, target):
        if store.agent is not None:
            raise Refused(f"agent {store.agent} may not do this, only a person", path="")
    source_engine = source.engine
    target_engine = target.engine
    documents = [(kind, id) for kind in SHARED for id in source_engine.ids(kind)]
    result = CopyResult()
    settings_outcome = _copy_settings(source_engine, target_engine)
    if settings_outcome is not None:
        result.count("settings", FILE_NAME, settings_outcome)
    for number, (kind, id) in enumerate(documents, 1):
        copy = _copy_history if kind in WITH_ENTRIES else _copy_plain
        try:
            result.count(kind, id, retry(partial(copy, source_engine, target_engine, kind, id)))
        except NotFound:
            continue  # It was deleted meanwhile.
        except CapsuleError as error:
            result.failed.append((kind, id, error.message))
        if progress is not None:
            progress(number, len(documents))
    for kind, id, name in _side_files(source_engine):
        result.count(kind, id, _copy_file(source_engine, target_engine, kind, id, name))
    for kind in _TRASHED:
        _copy_trash(result, source_engine, target_engine, kind)
    for kind in LOCAL:
        for id in source_engine.local.ids(kind):
            document = source_engine.local.read(kind, id)
            target_engine.local.edit(kind, id, partial(_unless_present, document))
    return result


def _unless_present(document: Document | None, existing: Document | None) -> Document | None:
    return document if existing is None else None


def _copy_settings(source: Engine, target: Engine) -> _Outcome | None:
    """Copy the settings, unless the target has its own. None: those of the source are the default
    ones, which are not counted.
    """
    data = source.toml()
    existing = target.toml()
    if data == TEMPLATE.encode():
        return None
    if existing == TEMPLATE.encode():
        target.set_toml(data, existing)
        return _Outcome.WRITTEN
    return _Outcome.SAME if existing == data else _Outcome.KEPT


def _copy_history(source: Engine, target: Engine, kind: str, id: str) -> _Outcome:
    """Copy a document with messages. The one in the target is an earlier version if its messages
    are the first ones of the source's, and it was not changed later.
    """
    new = canonical.in_order(source.document(kind, id))
    if not target.exists(kind, id):
        target.create(kind, new)
        return _Outcome.WRITTEN
    with target.transaction(kind, id) as transaction:
        existing = transaction.document()
        if codec.encode(existing) == codec.encode(new):
            return _Outcome.SAME
        old_entries = [codec.encode_entry(entry) for entry in existing["history"]]
        new_entries = [codec.encode_entry(entry) for entry in new["history"]]
        has_other_entries = new_entries[: len(old_entries)] != old_entries
        if has_other_entries or str(existing["updatedAt"]) > str(new["updatedAt"]):
            return _Outcome.KEPT
        transaction.replace(new)
        return _Outcome.WRITTEN


def _copy_plain(source: Engine, target: Engine, kind: str, id: str) -> _Outcome:
    """Copy a document without messages. The one in the target is an earlier version if it was not
    changed later.
    """
    data = source.read(kind, id)
    existing = target.version(kind, id)
    if existing is not None and existing.data == data:
        return _Outcome.SAME
    if existing is not None and _updated_at(existing.data) > _updated_at(data):
        return _Outcome.KEPT
    target.put(kind, id, data, existing)
    return _Outcome.WRITTEN


def _updated_at(data: bytes) -> str:
    """Return the `updatedAt` of a document, or an empty text."""
    return str(codec.decode(data, "").get("updatedAt", ""))


def _side_files(engine: Engine) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, id and name of each side file: attachments, and files of messages."""
    for name in engine.files.names("attachments", "all"):
        yield "attachments", name, name
    for kind, document_kind in _SIDE_FILES.items():
        for id in engine.ids(document_kind):
            for name in engine.files.names(kind, id):
                yield kind, id, name


def _copy_file(source: Engine, target: Engine, kind: str, id: str, name: str) -> _Outcome:
    data = source.files.read(kind, id, name)
    with suppress(NotFound):
        existing = target.files.read(kind, id, name)
        return _Outcome.SAME if existing == data else _Outcome.KEPT
    target.files.write(kind, id, name, data)
    return _Outcome.WRITTEN


def _copy_trash(result: CopyResult, source: Engine, target: Engine, kind: str) -> None:
    """Copy the entries of the trash that the target lacks. An entry is the same if id, time and
    bytes are.
    """
    tokens: dict[tuple[str, str], list[str]] = {}
    for trashed in target.trash.entries(kind):
        tokens.setdefault((trashed.id, trashed.deleted_at), []).append(trashed.token)
    for trashed in reversed(source.trash.entries(kind)):
        data = source.trash.read(trashed.token)
        candidates = tokens.get((trashed.id, trashed.deleted_at), [])
        outcome = _Outcome.SAME
        if not any(target.trash.read(token) == data for token in candidates):
            target.trash.add(kind, trashed.id, data, trashed.deleted_at)
            outcome = _Outcome.WRITTEN
        result.count(kind, trashed.id, outcome)
