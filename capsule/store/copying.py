"""Copying a store into another one, of another kind or of the same: whole, and again.

What must stay true: what only the source has, the target has afterwards, with the bytes that a
store writes; and no document of the target is replaced that is not an earlier version of the
source's: it is named, and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
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
#: The kinds of documents that a store shares, those first on which others depend.
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
#: What belongs to this machine, and is as true of the copy. Not the keys of cursors, which name
#: places in an index.
LOCAL = ("commands", "doorbells", "homes", "imports", "webhooks")
#: The kinds of what is in the trash.
_TRASHED = (*KINDS, REMOVED)
#: The files beside documents, by the kind of document whose ids they have.
_FILES = {"inbox": INBOUND, "outbox": OUTBOUND}


@dataclass(slots=True)
class CopyResult:
    """What a copy did.

    Attributes:
        written, same: How many documents and files were written, and how many were there already.
        kept: Documents of the target that are not an earlier version of the source's, and stayed:
            kind and id.
        failed: Documents that could not be read or written: kind, id and the reason.
    """

    written: int = 0
    same: int = 0
    kept: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str, str]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        kept = [{"kind": kind, "id": id} for kind, id in self.kept]
        failed = [{"kind": kind, "id": id, "error": error} for kind, id, error in self.failed]
        return {"written": self.written, "same": self.same, "kept": kept, "failed": failed}


def copy_store(
    source: CoreStore, target: CoreStore, progress: Progress | None = None
) -> CopyResult:
    """Copy everything of a store into another one. What is there already in the same words is left.

    Args:
        source: The store to copy. It may be in use: what is written meanwhile comes with the next
            copy.
        target: The other store. What it alone has stays.
        progress: Called with the number of documents done, and of all.

    Raises Refused: a store acts for an agent. Cost: reading every document of both.
    """
    for store in (source, target):
        if store.agent is not None:
            raise Refused(f"agent {store.agent} may not do this, only a person", path="")
    before, after = source.engine, target.engine
    jobs = [(kind, id) for kind in SHARED for id in before.ids(kind)]
    done = CopyResult()
    _copy_settings(done, before, after)
    for number, (kind, id) in enumerate(jobs, 1):
        copy = _copy_history if kind in WITH_ENTRIES else _copy_plain
        try:
            _count(done, kind, id, retry(partial(copy, before, after, kind, id)))
        except NotFound:
            continue  # It was deleted meanwhile.
        except CapsuleError as error:
            done.failed.append((kind, id, error.message))
        if progress is not None:
            progress(number, len(jobs))
    for place in _files(before):
        _count(done, *place[:2], _copy_file(before, after, *place))
    for kind in _TRASHED:
        _copy_trash(done, before, after, kind)
    for kind in LOCAL:
        for id in before.local.ids(kind):
            document = before.local.read(kind, id)
            after.local.edit(kind, id, partial(_unless_present, document))
    return done


def _unless_present(document: Document | None, existing: Document | None) -> Document | None:
    return document if existing is None else None


def _copy_settings(done: CopyResult, before: Engine, after: Engine) -> None:
    """Copy the settings, unless they are the defaults, or the target has its own."""
    data, there = before.toml(), after.toml()
    if data == TEMPLATE.encode():
        return
    if there == TEMPLATE.encode():
        after.set_toml(data, there)
    _count(
        done,
        "settings",
        FILE_NAME,
        there == TEMPLATE.encode() or (None if there != data else False),
    )


def _count(done: CopyResult, kind: str, id: str, is_written: bool | None) -> None:
    """Count a document that was written (True), was there (False), or is another one
    there (None).
    """
    if is_written is None:
        done.kept.append((kind, id))
    elif is_written:
        done.written += 1
    else:
        done.same += 1


def _copy_history(before: Engine, after: Engine, kind: str, id: str) -> bool | None:
    new = canonical.in_order(before.document(kind, id))
    if not after.exists(kind, id):
        after.create(kind, new)
        return True
    with after.transaction(kind, id) as transaction:
        there = transaction.document()
        if codec.encode(there) == codec.encode(new):
            return False
        was = [codec.encode_entry(entry) for entry in there["history"]]
        now = [codec.encode_entry(entry) for entry in new["history"]]
        if now[: len(was)] != was or str(there["updatedAt"]) > str(new["updatedAt"]):
            return None
        transaction.replace(new)
        return True


def _copy_plain(before: Engine, after: Engine, kind: str, id: str) -> bool | None:
    data, there = before.read(kind, id), after.version(kind, id)
    if there is not None and there.data == data:
        return False
    if there is not None and _time(there.data) > _time(data):
        return None
    after.put(kind, id, data, there)
    return True


def _time(data: bytes) -> str:
    """When a document says that it was changed; empty: it does not say."""
    return str(codec.decode(data, "").get("updatedAt", ""))


def _files(engine: Engine) -> Iterator[tuple[str, str, str]]:
    """The files beside the documents: kind, id and name of each."""
    for name in engine.files.names("attachments", "all"):
        yield "attachments", name, name
    for kind, of in _FILES.items():
        for id in engine.ids(of):
            for name in engine.files.names(kind, id):
                yield kind, id, name


def _copy_file(before: Engine, after: Engine, kind: str, id: str, name: str) -> bool | None:
    data = before.files.read(kind, id, name)
    with suppress(NotFound):
        return False if after.files.read(kind, id, name) == data else None
    after.files.write(kind, id, name, data)
    return True


def _copy_trash(done: CopyResult, before: Engine, after: Engine, kind: str) -> None:
    there: dict[tuple[str, str], list[str]] = {}
    for trashed in after.trash.entries(kind):
        there.setdefault((trashed.id, trashed.deleted_at), []).append(trashed.token)
    for trashed in reversed(before.trash.entries(kind)):
        data, tokens = (
            before.trash.read(trashed.token),
            there.get((trashed.id, trashed.deleted_at), []),
        )
        is_there = any(after.trash.read(token) == data for token in tokens)
        if not is_there:
            after.trash.add(kind, trashed.id, data, trashed.deleted_at)
        _count(done, kind, trashed.id, not is_there)
