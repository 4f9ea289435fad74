"""Writes and deletes documents. Each write calls one function of the database (`save` or `remove` in
`schema.sql`), which does all of it or nothing. Small writes of several threads share a commit
(`group_commit.py`).

A write names the version that it was decided on, and the versions and leases that the decision read.
If one of them has changed, the function writes nothing, and this module raises `ConcurrentWrite` or
`StoreBusy`. An append may depend on the head alone: then it is also done if others appended
meanwhile.

What must stay true: all writers lock documents in one order. A write has a random id. If its answer
was lost and it is sent again, the database recognizes the id and does not repeat it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import uuid4

import orjson

from capsule.engines.entries import head_fields
from capsule.engines.interface import Document, Lease, ReadSet, Trashed
from capsule.engines.postgres import layout
from capsule.engines.postgres.change_events import UNREPORTED, Events
from capsule.engines.postgres.group_commit import SAVE, GroupCommit, PendingWrite
from capsule.engines.postgres.layout import RowState
from capsule.errors import AlreadyExists, ConcurrentWrite, NotFound, StoreBusy
from capsule.format.documents.channels import channel_in

if TYPE_CHECKING:
    from capsule.engines.postgres.database import PostgresDatabase, Rows
    from capsule.engines.postgres.exclusive import DocumentLock

#: The fields of an append that may be a plain one: one that changes nothing but what `append` does.
_PLAIN_FIELDS = frozenset(
    {
        "kind",
        "id",
        "tag",
        "version",
        "exact",
        "active",
        "messages",
        "bodies",
        "time",
        "stamp",
        "ends_active",
    }
)
_REMOVE = (
    "SELECT * FROM @remove(%(kind)s, %(id)s, %(kinds)s::text[], %(ids)s::text[], "
    "%(versions)s::bigint[],"
    " %(leases)s::text[], %(fences)s::bigint[], %(version)s::bigint, %(token)s, %(data)s, "
    "%(event)s)"
)


class DocumentWrite(TypedDict, total=False):
    """A write of a document. A column stays unchanged if its field is None or left out.

    Attributes:
        kind, id: The document.
        tag, version: Of the version that the write was decided on. 0: the document must not exist.
        exact: Whether the document must still have this version. If False, appends of others may
            have followed: only the tag must be the same.
        active: With `exact` False, the value that `ends_active` must have. None: any.
        start: The position from which on entries are replaced. None: entries are appended.
        places: The positions of the entries that `messages` and `bodies` replace. All others stay.
        inner_bytes: With `start` or `places`, the size of all entries in the file, in bytes.
        messages: The ids of the new entries, as `message_key` writes them.
        bodies: The new entries, as the file has them.
        time: The time that an append gives its messages. The database moves it forward if the
            document has a later one.
        stamp: The new `updatedAt`. The database moves it forward likewise.
        head: The new head, with `channel` and `forked_from`, as `head_columns` returns them.
        rest, ends_active: New values of these columns.
    """

    kind: str
    id: str
    tag: int
    version: int
    exact: bool
    active: bool
    start: int
    places: list[int]
    inner_bytes: int
    messages: list[str]
    bodies: list[str]
    time: str
    stamp: str | None
    head: str | None
    channel: str | None
    forked_from: str | None
    rest: str | None
    ends_active: bool | None


class DocumentWriter:
    """Writes documents.

    Args:
        database: The database.
        on_written: Called after each write.
    """

    def __init__(self, database: PostgresDatabase, on_written: Callable[[], None]) -> None:
        self._database = database
        self._group_commit = GroupCommit(database)
        self._on_written = on_written

    def save(
        self,
        save: DocumentWrite,
        read_set: ReadSet,
        events: Events = UNREPORTED,
        *,
        data: bytes | None = None,
        trash: tuple[str, bytes] | None = None,
        base: RowState | None = None,
        document_lock: DocumentLock | None = None,
    ) -> RowState:
        """Write a document, and return its new state.

        Args:
            save: The write.
            read_set: The versions and leases that the decision to write was based on.
            events: The events that it adds to the feed of changes.
            data: The bytes of a document without entries.
            trash: A kind and a document that the write adds to the trash.
            base: The state that the write was decided on, if it leaves the head unchanged.
            document_lock: The lock of the document, if the caller has taken it.

        Returns:
            The new state. Its `version` is 0 if an earlier try had done the write, since others may
            have appended after it.

        Raises ConcurrentWrite, AlreadyExists, StoreBusy: nothing was written. Raises StorageFailed,
        whose message tells whether the write is stored, and Refused. Cost: one round trip.
        """
        kind = save["kind"]
        id = save["id"]
        write = {
            **save,
            "write": os.urandom(16).hex(),
            "events": [event for event, _ in events],
            "told": [fields for _, fields in events],
        }
        if read_set:
            write |= _preconditions(kind, id, read_set)
        if trash is not None:
            write |= {"trash_kind": trash[0], "trash_token": new_token(trash[0], id)}
        is_locked = document_lock is not None and document_lock.is_held
        if is_locked or data is not None or trash is not None:
            values = {
                "write": orjson.dumps(write).decode(),
                "again": False,
                "data": data,
                "trash": trash and trash[1],
            }
            ((row,),) = self._write(SAVE, values, "the write", document_lock)
            result = orjson.loads(row)
        else:
            is_plain = save.keys() == _PLAIN_FIELDS and not read_set and len(save["bodies"]) == 1
            result = self._group_commit.save(
                PendingWrite(write, base if is_plain and len(events) == 1 else None)
            )
        status, *columns, head = result
        if status == "taken":
            raise AlreadyExists
        self._check_status(status, read_set)
        if base is not None and head is None:
            return RowState._make((*columns, base.head))
        if head is None:
            head = save.get("head") or ""
        return layout.row_state(columns, head, f"{kind}/{id}.json")

    def remove(
        self,
        kind: str,
        id: str,
        version: int,
        data: bytes,
        event: str,
        read_set: ReadSet,
        document_lock: DocumentLock | None = None,
    ) -> Trashed:
        """Move this version of a document, whose bytes are `data`, to the trash.

        `event` is the kind of the change in the feed. Raises the same as `save`.
        """
        token = new_token(kind, id)
        values: dict[str, Any] = {
            "kind": kind,
            "id": id,
            "version": version,
            "token": token,
            "data": data,
            "event": event,
        }
        values |= _preconditions(kind, id, read_set)
        rows = self._write(_REMOVE, values, "the deletion", document_lock)
        ((status, deleted_at),) = rows
        self._check_status(status, read_set)
        return Trashed(id, deleted_at, token, "")

    def _write(
        self,
        statement: str,
        values: dict[str, Any],
        write_name: str,
        document_lock: DocumentLock | None,
    ) -> Rows:
        """Run a statement that writes: under the lock of the document, if that is held."""
        if document_lock is not None and document_lock.is_held:
            return document_lock.write(statement, values, write_name)
        return self._database.write(statement, named=values, write_name=write_name)

    def _check_status(self, status: str, read_set: ReadSet) -> None:
        """Raise the error of a write that was not done, and report one that was."""
        if status == "lease":
            name = next(lease.name for lease in read_set.values() if isinstance(lease, Lease))
            raise lease_lost(name)
        if status not in ("ok", "done"):
            raise ConcurrentWrite
        self._on_written()


def _preconditions(kind: str, id: str, read_set: ReadSet) -> dict[str, Any]:
    """Return the versions of other documents and the leases that a write requires.

    The written document itself is left out: the write names its version.
    """
    others = {name: item for name, item in read_set.items() if name != (kind, id)}
    leases = [item for item in others.values() if isinstance(item, Lease)]
    versions = {
        name: number_of(item) for name, item in others.items() if not isinstance(item, Lease)
    }
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
    """Return the number of a version of a document: 0 for None, -1 for one of another engine."""
    return 0 if version is None else getattr(version, "number", -1)


def head_columns(document: Document) -> DocumentWrite:
    """Return the fields of a write with the head of this document.

    `Engine.heads_with` finds the document by the values of `channel` and `forked_from`.
    """
    metadata = document.get("metadata")
    channel = forked_from = None
    if isinstance(metadata, dict):
        channel_fields = channel_in(metadata)
        channel = channel_fields and storable(channel_fields.name)
        forked_from = storable(metadata.get("forkedFrom"))
    return {
        "head": layout.encode_fields(head_fields(document)),
        "channel": channel,
        "forked_from": forked_from,
    }


def storable(value: Any) -> str | None:
    """Return a text that can be the value of a column, else None. No valid name or id is another."""
    return value if isinstance(value, str) and value.isprintable() else None


def message_key(id: str) -> str:
    """Return the id of a message as the text of a `bytea`."""
    return "\\x" + id.encode("utf-8", "surrogatepass").hex()


def new_token(kind: str, id: str) -> str:
    """Return a new name in the trash."""
    return f"{kind}~{id}~{uuid4().hex[:16]}"


def lease_lost(name: str) -> StoreBusy:
    """Return the error for a lease that has another holder."""
    return StoreBusy(f"{name} now has another holder", id=name, holder="another process")


def not_in_trash(token: str) -> NotFound:
    """Return the error for a name that is not in the trash."""
    return NotFound(f"{token} is not in the trash", id=token)
