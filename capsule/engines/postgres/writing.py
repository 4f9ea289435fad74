"""Write documents: each write is one call of a function in the database, all or nothing.

What must stay true: a write names the version that it was decided on, and the versions of the other
documents of its read set. All writers lock documents in the same order. A write that is sent again,
because its result was lost, is done once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import uuid4

import orjson

from capsule.engines.interface import Lease, ReadSet, Trashed
from capsule.engines.postgres import layout
from capsule.engines.postgres.layout import RowState
from capsule.engines.postgres.told import PLAIN, Events
from capsule.errors import AlreadyExists, ConcurrentWrite, NotFound, StoreBusy
from capsule.format.documents.head import ParsedHead

if TYPE_CHECKING:
    from capsule.engines.postgres.database import PostgresDatabase

_SAVE = "SELECT @save(%(write)s, %(again)s, %(data)s, %(trash)s)"
_REMOVE = (
    "SELECT * FROM @remove(%(kind)s, %(id)s, %(kinds)s::text[], %(ids)s::text[], "
    "%(versions)s::bigint[],"
    " %(leases)s::text[], %(fences)s::bigint[], %(version)s::bigint, %(token)s, %(data)s, "
    "%(event)s)"
)

_FIRST, _LAST = itemgetter(0), itemgetter(1)


class DocumentWrite(TypedDict, total=False):
    """A write of a document. A field that is None or left out stays as it is.

    Attributes:
        tag, version: Of the version that it was decided on; 0: there must be no document.
        exact: Whether it must still be that version; else only its head; see `save` in
            `schema.sql`.
        active: What `ends_active` must be; None: anything.
        start: The place from which on entries are replaced; None: entries are appended.
        inner_bytes: With `start`, what all entries take in the file.
        messages, bodies: The new entries: their ids as `message_key` writes them, and how they
            stand in the file.
        time: The time that an append gives its messages.
        stamp: The new `updatedAt`.
        head, rest, ends_active: Columns of the document.
    """

    kind: str
    id: str
    tag: int
    version: int
    exact: bool
    active: bool
    start: int
    inner_bytes: int
    messages: list[str]
    bodies: list[str]
    time: str
    stamp: str | None
    head: str | None
    rest: str | None
    ends_active: bool | None


class DocumentWriter:
    """Writes documents.

    Args:
        database: Where.
        wrote: Called after each write.
    """

    def __init__(self, database: PostgresDatabase, wrote: Callable[[], None]) -> None:
        self._database = database
        self._wrote = wrote

    def save(
        self,
        save: DocumentWrite,
        read_set: ReadSet,
        events: Events = PLAIN,
        *,
        data: bytes | None = None,
        trash: tuple[str, bytes] | None = None,
        parsed: ParsedHead | None = None,
    ) -> RowState:
        """Do a write; the document as it is then.

        Args:
            save: The write.
            read_set: The other documents and leases that it was decided on.
            events: What it tells of a conversation: kinds of changes with their fields.
            data: A document without entries.
            trash: A kind, and what goes to the trash.
            parsed: The head as it is then, if it stays as it is.

        Raises Interfered, Taken, StoreBusy: nothing was written. StorageFailed, Refused.
        """
        kind, id = save["kind"], save["id"]
        write = {
            **save,
            "write": os.urandom(16).hex(),
            "events": [*map(_FIRST, events)],
            "told": [*map(_LAST, events)],
        }
        if read_set:
            write |= _guard(kind, id, read_set)
        if trash is not None:
            write |= {"trash_kind": trash[0], "trash_token": new_token(trash[0], id)}
        values = {
            "write": orjson.dumps(write).decode(),
            "again": False,
            "data": data,
            "trash": trash and trash[1],
        }
        ((row,),) = self._database.write(_SAVE, named=values, what="the write")
        status, version, tag, era, entries, size, updated_at, newest, time, ends_active, head = (
            orjson.loads(row)
        )
        if status == "taken":
            raise AlreadyExists
        self._ensure_done(status, read_set)
        if parsed is None or head is not None:
            text = head if head is not None else save.get("head") or ""
            name = f"{kind}/{id}.json"
            parsed = ParsedHead(
                layout.tag_of(tag), layout.head_of(text, updated_at, name) if text else {}
            )
        return RowState(
            version, tag, era, entries, size, updated_at, newest, time, ends_active, parsed
        )

    def remove(
        self, kind: str, id: str, version: int, data: bytes, event: str, read_set: ReadSet
    ) -> Trashed:
        """Move a version of a document to the trash. Raises as `save`."""
        token = new_token(kind, id)
        values = {
            "kind": kind,
            "id": id,
            "version": version,
            "token": token,
            "data": data,
            "event": event,
        }
        rows = self._database.write(
            _REMOVE, named=values | _guard(kind, id, read_set), what="the deletion"
        )
        ((status, at),) = rows
        self._ensure_done(status, read_set)
        return Trashed(id, at, token, "")

    def _ensure_done(self, status: str, read_set: ReadSet) -> None:
        if status == "lease":
            name = next(lease.name for lease in read_set.values() if isinstance(lease, Lease))
            raise lost(name)
        if status not in ("ok", "done"):
            raise ConcurrentWrite
        self._wrote()


def _guard(kind: str, id: str, read_set: ReadSet) -> dict[str, Any]:
    """What must be as it was: other documents by their versions, and leases."""
    others = [read for at, read in read_set.items() if at != (kind, id)]
    versions = {
        at: number_of(read)
        for at, read in read_set.items()
        if at != (kind, id) and not isinstance(read, Lease)
    }
    leases = [read for read in others if isinstance(read, Lease)]
    return {
        "kinds": [kind for kind, _ in versions],
        "ids": [id for _, id in versions],
        "versions": [*versions.values()],
        "leases": [lease.name for lease in leases],
        "fences": [lease.fence for lease in leases],
    }


class PostgresVersion:
    """A version of a document without entries. See `DocumentVersion`."""

    def __init__(self, data: bytes, number: int) -> None:
        self.data = data
        self.number = number


def number_of(version: Any) -> int:
    """The number of a version of a document; 0: there is none; -1: of another engine."""
    return 0 if version is None else getattr(version, "number", -1)


def message_key(id: str) -> str:
    """The id of a message as a `bytea` is written."""
    return "\\x" + id.encode("utf-8", "surrogatepass").hex()


def new_token(kind: str, id: str) -> str:
    """A name in the trash."""
    return f"{kind}~{id}~{uuid4().hex[:16]}"


def lost(name: str) -> StoreBusy:
    """The error that a lease has another holder."""
    return StoreBusy(f"{name} now has another holder", id=name, holder="another process")


def not_in_trash(token: str) -> NotFound:
    """The error that there is no such document in the trash."""
    return NotFound(f"{token} is not in the trash", id=token)
