"""The writes of documents: each is one call of a function in the database, which does all of it or nothing.

What must stay true: a write says on which version it was decided, and on which versions of other documents; documents
are locked in one order by all writers; and a write that is asked for again after its answer was lost is done once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from capsule.engines.leases import Lease
from capsule.engines.postgres import layout
from capsule.engines.postgres.layout import State
from capsule.engines.values import Reads, Trashed
from capsule.errors import Interfered, NotFound, StoreBusy, Taken
from capsule.format.documents.head import ParsedHead

if TYPE_CHECKING:
    from capsule.engines.postgres.database import Database

_SAVE = (
    "SELECT * FROM @save(%(kind)s, %(id)s, %(write)s, %(again)s, %(locks)s::bigint[], %(shared)s::boolean[],"
    " %(kinds)s::text[], %(ids)s::text[], %(versions)s::bigint[], %(leases)s::text[], %(fences)s::bigint[],"
    " %(tag)s::bigint, %(version)s::bigint, %(exact)s, %(active)s::boolean, %(start)s::integer,"
    " %(messages)s::bytea[], %(bodies)s::text[], %(inner)s::bigint, %(time)s, %(stamp)s,"
    " %(head)s::text, %(rest)s::text, %(ends_active)s::boolean, %(data)s::bytea,"
    " %(trash_kind)s::text, %(trash_token)s::text, %(trash_data)s::bytea, %(events)s::text[], %(told)s::text[])"
)
_REMOVE = (
    "SELECT * FROM @remove(%(kind)s, %(id)s, %(locks)s::bigint[], %(shared)s::boolean[], %(kinds)s::text[],"
    " %(ids)s::text[], %(versions)s::bigint[], %(leases)s::text[], %(fences)s::bigint[],"
    " %(version)s::bigint, %(token)s, %(data)s, %(event)s)"
)
#: An empty array: at a tenth of the cost of an empty list.
_NONE = "{}"


@dataclass(frozen=True, slots=True)
class Save:
    """A write of a document.

    Attributes:
        tag, version: Of the version that it was decided on; 0: there must be no document.
        exact: Whether it must still be that version; else only its head; see `save` in `schema.sql`.
        active: What `ends_active` must be; None: anything.
        start: The place from which on entries are replaced; None: entries are appended.
        ids, bodies: The new entries: their ids, and their bytes as they stand in the file.
        inner: What they take in the file; with `start`, what all entries do.
        stamp: The new `updatedAt`; empty: as it is.
        trash: A kind, and what goes to the trash.
        events: What it tells of a conversation: kinds of changes with their fields; a document without entries: none.
    """

    kind: str
    id: str
    tag: int = 0
    version: int = 0
    exact: bool = True
    active: bool | None = None
    start: int | None = None
    ids: Iterable[str] = ()
    bodies: list[bytes] = field(default_factory=list)
    inner: int = 0
    time: str = ""
    stamp: str = ""
    head: str | None = None
    rest: str | None = None
    ends_active: bool | None = None
    data: bytes | None = None
    trash: tuple[str, bytes] | None = None
    events: tuple[tuple[str, str], ...] = (("", "{}"),)
    reads: Reads = field(default_factory=dict)


class Writing:
    """Writes documents.

    Args:
        database: Where.
        wrote: Called after each write.
    """

    def __init__(self, database: Database, wrote: Callable[[], None]) -> None:
        self._database = database
        self._wrote = wrote
        self._schema = database.address.schema

    def save(self, save: Save, parsed: ParsedHead | None = None) -> State:
        """Do a write; the document as it is then.

        Args:
            save: The write.
            parsed: The head as it is then, if it stays as it is.

        Raises Interfered, Taken, StoreBusy: nothing was written. StorageFailed, Refused.
        """
        keeps = save.trash
        values = self._guarded(save.kind, save.id, save.reads) | {
            "write": uuid4(),
            "again": False,
            "tag": save.tag,
            "version": save.version,
            "exact": save.exact,
            "active": save.active,
            "start": save.start,
            "messages": [message_key(id) for id in save.ids] or _NONE,
            "bodies": [body.decode() for body in save.bodies] or _NONE,
            "inner": save.inner,
            "time": save.time,
            "stamp": save.stamp,
            "head": save.head,
            "rest": save.rest,
            "ends_active": save.ends_active,
            "data": save.data,
            "trash_kind": keeps and keeps[0],
            "trash_token": keeps and new_token(keeps[0], save.id),
            "trash_data": keeps and keeps[1],
            "events": [event for event, _ in save.events],
            "told": [told for _, told in save.events],
        }
        ((status, *columns, head),) = self._database.write(_SAVE, named=values, what="the write")
        if status == "taken":
            raise Taken
        self._ensure_done(status, save.reads)
        version, tag, era, entries, size, updated_at, newest, time, ends_active = columns
        if parsed is None or head is not None:
            name = f"{save.kind}/{save.id}.json"
            text = head if head is not None else save.head or ""
            parsed = ParsedHead(layout.tag_of(tag), layout.head_of(text, updated_at, name) if text else {})
        return State(version, tag, era, entries, size, updated_at, newest, time, ends_active, parsed)

    def remove(self, kind: str, id: str, version: int, data: bytes, event: str, reads: Reads) -> Trashed:
        """Move a version of a document to the trash. Raises as `save`."""
        token = new_token(kind, id)
        values = {"version": version, "token": token, "data": data, "event": event}
        rows = self._database.write(_REMOVE, named=self._guarded(kind, id, reads) | values, what="the deletion")
        ((status, at),) = rows
        self._ensure_done(status, reads)
        return Trashed(id, at, token, "")

    def _ensure_done(self, status: str, reads: Reads) -> None:
        if status == "lease":
            name = next(lease.name for lease in reads.values() if isinstance(lease, Lease))
            raise lost(name)
        if status not in ("ok", "done"):
            raise Interfered
        self._wrote()

    def _guarded(self, kind: str, id: str, reads: Reads) -> dict[str, Any]:
        """The values that say what is locked, and what must be as it was."""
        others = {at: read for at, read in reads.items() if at != (kind, id)}
        versions = {at: number_of(read) for at, read in others.items() if not isinstance(read, Lease)}
        leases = [read for read in others.values() if isinstance(read, Lease)]
        keys = {self._key(*at): True for at in versions} | {self._key(kind, id): False}
        return {
            "kind": kind,
            "id": id,
            "locks": sorted(keys),
            "shared": [keys[key] for key in sorted(keys)],
            "kinds": [kind for kind, _ in versions] or _NONE,
            "ids": [id for _, id in versions] or _NONE,
            "versions": [*versions.values()] or _NONE,
            "leases": [lease.name for lease in leases] or _NONE,
            "fences": [lease.fence for lease in leases] or _NONE,
        }

    def _key(self, kind: str, id: str) -> int:
        """The number by which a document is locked. Two documents of one number only wait for each other."""
        digest = hashlib.blake2b(f"{self._schema}\0{kind}\0{id}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, signed=True)


class PostgresVersion:
    """A version of a document without entries. See `Version`."""

    def __init__(self, data: bytes, number: int) -> None:
        self.data = data
        self.number = number


def number_of(version: Any) -> int:
    """The number of a version of a document; 0: there is none; -1: of another engine."""
    return 0 if version is None else getattr(version, "number", -1)


def message_key(id: str) -> bytes:
    """The id of a message as the rows have it."""
    return id.encode("utf-8", "surrogatepass")


def new_token(kind: str, id: str) -> str:
    """A name in the trash."""
    return f"{kind}~{id}~{uuid4().hex[:16]}"


def lost(name: str) -> StoreBusy:
    """The error that a lease has another holder."""
    return StoreBusy(f"{name} has another holder by now", id=name, holder="another process")


def not_in_trash(token: str) -> NotFound:
    """The error that there is no such document in the trash."""
    return NotFound(f"{token} is not in the trash", id=token)
