"""Keep the documents of one store in memory, for tests of the layers above.

`MemoryEngine` has the documents as `MemoryVersion`s, by kind and id. A `MemoryTransaction` writes a
new version. `MemoryTrash`, `MemorySideFiles` and `MemoryLeases` are the other parts of an `Engine`.
The index is the same as for files (`memory/index.py`).

What must stay true: the engine keeps every promise that is not about files. A version that was
returned is never changed: a write makes a new one.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from capsule import timestamps
from capsule.disk.directory_tracker import TouchedNames
from capsule.engines.entries import SIDE_FILE_FOLDERS, entry_with_id, head_fields
from capsule.engines.interface import (
    CONVERSATIONS,
    Document,
    DocumentState,
    DocumentVersion,
    EntriesSince,
    Lease,
    ReadSet,
    Trashed,
    is_instance,
    not_found,
)
from capsule.engines.local_documents import LocalDocuments, MemoryLocalDocuments
from capsule.errors import AlreadyExists, ConcurrentWrite, NotFound, Refused, StoreBusy
from capsule.format import validation
from capsule.format.documents.head import Head, ParsedHead
from capsule.format.json import canonical, codec
from capsule.ids import check_file_name, check_id
from capsule.settings import TEMPLATE

if TYPE_CHECKING:
    from capsule.engines.index.queries import IndexQueries
    from capsule.engines.memory.index import MemoryIndex
    from capsule.engines.queries import HeadField
    from capsule.rules.consent import PolicyInputs
    from capsule.rules.policy import PolicyTarget, Viewer

T = TypeVar("T")


class MemoryVersion:
    """One version of one document.

    Args:
        data: Its bytes. Empty: they are encoded when they are first needed.
        document: The document.
        serial: The number of the engine's write.
        tag, time, ends_active: See `DocumentState`.
    """

    def __init__(
        self, data: bytes, document: Document, serial: int, tag: str, time: str, ends_active: bool
    ) -> None:
        self.document = document
        self.serial = serial
        self.tag = tag
        self.time = time
        self.ends_active = ends_active
        self._data = data

    @property
    def data(self) -> bytes:
        """The bytes of this version."""
        if not self._data:
            self._data = codec.encode(self.document)
        return self._data

    def follow(self, since: tuple[str, int] | None) -> EntriesSince:
        """Return the entries since a position: a tag and a number of entries."""
        history = self.document["history"]
        position = (self.tag, len(history))
        if since is not None and since[0] == self.tag:
            return EntriesSince(position, history[since[1] :], is_complete=False)
        return EntriesSince(position, history, is_complete=True)


class MemoryTransaction:
    """A transaction on a document of a `MemoryEngine`. `Transaction` describes the methods."""

    def __init__(self, engine: MemoryEngine, kind: str, id: str, stored: MemoryVersion) -> None:
        self.id = id
        self.name = engine.name(kind, id)
        self.read_set: ReadSet = {}
        self.waits_for_flush = True
        self.decision_inputs: tuple[PolicyTarget, PolicyInputs] | None = None
        self._kind = kind
        self._engine = engine
        self._current = stored
        self.head = ParsedHead(stored.tag, head_fields(stored.document))

    @property
    def state(self) -> DocumentState:
        updated_at = str(self._current.document["updatedAt"])
        return DocumentState(
            updated_at=updated_at,
            tag=self._current.tag,
            entries=len(self._current.document["history"]),
            size=len(self._current.data),
            ends_active=self._current.ends_active,
            newest_updated_at=updated_at,
            newest_message_time=self._current.time,
        )

    def document(self) -> Document:
        return self._current.document

    def follow(
        self, since: tuple[str, int] | None = None, own_entries: list[Document] | None = None
    ) -> EntriesSince:
        return self._current.follow(since)

    def find(self, id: str) -> tuple[int, Document] | None:
        return entry_with_id(self._current.document["history"], id)

    def appended(self) -> list[Document]:
        return list(self._current.document["history"])

    def ensure_durable(self) -> None:
        """Do nothing: no document outlives the process."""

    def append(
        self,
        entries: list[Document],
        encoded: list[bytes],
        updated_at: str,
        *,
        time: str,
        head: Document | None,
        ends_active: bool,
    ) -> None:
        """Append entries. Cost: a copy of the list of entries."""
        document = self._current.document if head is None else self._with_head(head)
        document = document | {"updatedAt": updated_at, "history": [*document["history"], *entries]}
        self._write(document, new_tag=head is not None, time=time, ends_active=ends_active)

    def set_head(
        self,
        head: Document,
        *,
        context: Callable[[], Iterable[bytes]] | None = None,
        ends_active: bool | None = None,
    ) -> None:
        document = self._with_head(head)
        if context is not None:
            document["context"] = codec.decode(b"".join(context()), "context")
        if ends_active is None:
            ends_active = self._current.ends_active
        self._write(document, ends_active=ends_active)

    def _with_head(self, head: Document) -> Document:
        """Return the document with another head."""
        codec.encode(head)  # Refuses values that no file can have.
        replaced = {*head_fields(self._current.document), *head}
        document = dict(head)
        for key, value in self._current.document.items():
            if key not in replaced:
                document[key] = value
        return canonical.in_order(document)

    def replace(self, document: Document, removed: tuple[str, Document] | None = None) -> None:
        data = codec.encode(document)
        validation.check(document, data, self.name)
        self._engine.ensure_unchanged(self.read_set)
        if removed is not None:
            self._engine.trash.add(removed[0], self.id, codec.encode(removed[1]))
        self._write(document, data=data)

    def _write(
        self,
        document: Document,
        *,
        new_tag: bool = True,
        time: str = "",
        ends_active: bool = False,
        data: bytes = b"",
    ) -> None:
        """Store a new version.

        Args:
            document: The document.
            new_tag: Whether the tag changes: with every write but an append.
            time: The time of an append. Empty: that of the last one stays.
            ends_active: See `DocumentState`.
            data: The encoded document. Empty: it is encoded later.
        """
        self._current = self._engine.store(
            self._kind,
            self.id,
            document,
            data,
            self.read_set,
            tag="" if new_tag else self._current.tag,
            time=time or self._current.time,
            ends_active=ends_active,
        )
        if new_tag:
            self.head = ParsedHead(self._current.tag, head_fields(document))

    def quarantine_copy(self, reason: str) -> str:
        return self._engine.trash.add(reason, self.id, self._current.data).token

    def delete(self) -> Trashed:
        return self._engine.remove(self._kind, self.id, self.read_set)


class MemoryTrash:
    """A trash in memory. `Trash` describes the methods.

    Args:
        restore_document: Writes a document of a kind and an id from its bytes.
    """

    def __init__(self, restore_document: Callable[[str, str, bytes], None]) -> None:
        self._restore_document = restore_document
        #: By token: the entry, its kind, and its bytes.
        self._entries: dict[str, tuple[Trashed, str, bytes]] = {}
        self._number = itertools.count()

    def add(self, kind: str, id: str, data: bytes, deleted_at: str = "") -> Trashed:
        token = f"{kind}~{id}~{next(self._number)}"
        trashed = Trashed(id, deleted_at or timestamps.now(), token, path="")
        self._entries[trashed.token] = trashed, kind, data
        return trashed

    def entries(self, kind: str) -> list[Trashed]:
        newest_first = reversed([*self._entries.values()])
        return [trashed for trashed, other_kind, _ in newest_first if other_kind == kind]

    def read(self, token: str) -> bytes:
        try:
            return self._entries[token][2]
        except KeyError:
            raise NotFound(f"{token} is not in the trash", id=token) from None

    def erase(self, token: str) -> None:
        self._entries.pop(token, None)

    def restore(self, kind: str, id: str, token: str) -> None:
        self._restore_document(kind, id, self.read(token))
        self.erase(token)

    def purge(self, older_than_s: float) -> list[str]:
        now = timestamps.now()
        purged = []
        for token, (trashed, _, _) in [*self._entries.items()]:
            if timestamps.seconds_between(trashed.deleted_at, now) >= older_than_s:
                self.erase(token)
                purged.append(token)
        return purged


class MemorySideFiles:
    """Side files in memory. `SideFiles` describes the methods."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], bytes] = {}

    def write(self, kind: str, id: str, name: str, data: bytes) -> str:
        if self._files.setdefault(self._location(kind, id, name), data) != data:
            raise Refused(
                f"{kind}/{id}/{name} is there already, with another content; choose another name",
                path="",
            )
        return f"{kind}/{id}/{name}"

    def read(self, kind: str, id: str, name: str) -> bytes:
        try:
            return self._files[self._location(kind, id, name)]
        except KeyError:
            raise NotFound(f"there is no {kind}/{id}/{name}", id=name) from None

    def names(self, kind: str, id: str) -> list[str]:
        folder = SIDE_FILE_FOLDERS[kind].format(check_id(id))
        return sorted(name for other_folder, name in [*self._files] if other_folder == folder)

    def erase(self, kind: str, id: str, name: str) -> None:
        self._files.pop(self._location(kind, id, name), None)

    @staticmethod
    def _location(kind: str, id: str, name: str) -> tuple[str, str]:
        return SIDE_FILE_FOLDERS[kind].format(check_id(id)), check_file_name(name)


class MemoryEngine:
    """The documents of one store in memory. `Engine` describes the methods.

    Several threads may use it.

    Args:
        timeout_s: How long to wait for a document that another thread writes, in seconds.
    """

    def __init__(self, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s
        self._thread_lock = threading.RLock()
        self._documents: dict[tuple[str, str], MemoryVersion] = {}
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self.trash = MemoryTrash(self._restore_document)
        self.files = MemorySideFiles()
        self.local: LocalDocuments = MemoryLocalDocuments()
        self.leases = MemoryLeases()
        #: By tracker: the kind that it reports. None: all.
        self._trackers: weakref.WeakKeyDictionary[TouchedNames, str | None] = (
            weakref.WeakKeyDictionary()
        )
        self._serial = 0
        self._index: MemoryIndex | None = None
        self._toml = TEMPLATE.encode()

    # -- One document ------------------------------------------------------------------------------

    @contextmanager
    def _exclusive(self, kind: str, id: str) -> Iterator[MemoryVersion | None]:
        """Lock a document in a `with` block, which gets its version, or None."""
        with self._thread_lock:
            lock = self._locks.setdefault((kind, check_id(id)), threading.Lock())
        _acquire(lock, self._timeout_s, id, self.name(kind, id))
        try:
            yield self._documents.get((kind, id))
        finally:
            lock.release()

    @contextmanager
    def transaction(
        self, kind: str, id: str, *, exclusive: bool = False
    ) -> Iterator[MemoryTransaction]:
        with self._exclusive(kind, id) as stored:
            if stored is None:
                raise not_found(kind, id)
            yield MemoryTransaction(self, kind, id, stored)

    def store(
        self,
        kind: str,
        id: str,
        document: Document,
        data: bytes = b"",
        read_set: ReadSet | None = None,
        *,
        tag: str = "",
        time: str = "",
        ends_active: bool = False,
    ) -> MemoryVersion:
        """Store a version of a document, which the caller has locked.

        Args:
            kind: Its kind.
            id: Its id.
            document: The document.
            data: Its bytes. Empty: they are encoded later.
            read_set: As in `Engine.put`.
            tag: Its tag. Empty: a new one.
            time, ends_active: See `DocumentState`.

        Raises ConcurrentWrite: as `Engine.put`.
        """
        with self._thread_lock:
            self.ensure_unchanged(read_set or {})
            self._serial += 1
            stored = MemoryVersion(
                data, document, self._serial, tag or f"{self._serial:016x}", time, ends_active
            )
            self._documents[kind, id] = stored
            self._report_write(kind, id)
        return stored

    def ensure_unchanged(self, read_set: ReadSet) -> None:
        """Raise ConcurrentWrite if a document has another version, StoreBusy if a lease
        was lost.
        """
        for location, version in read_set.items():
            if isinstance(version, Lease):
                self.leases.ensure_held(version)
            elif self._documents.get(location) is not version:
                raise ConcurrentWrite

    def _report_write(self, kind: str, id: str) -> None:
        """Report a write to the trackers and the index."""
        for tracker, tracked_kind in list(self._trackers.items()):
            if tracked_kind is None:
                tracker.touch([f"{kind}-{id}"])
            elif tracked_kind == kind:
                tracker.touch([id])
        if kind == CONVERSATIONS and self._index is not None:
            self._index.touched_ids.add(id)

    def create(
        self,
        kind: str,
        document: Document,
        on_written: Callable[[str], None] | None = None,
        read_set: ReadSet | None = None,
    ) -> int:
        with self._exclusive(kind, document["id"]) as stored:
            if stored is not None:
                raise AlreadyExists
            stored = self.store(kind, document["id"], document, read_set=read_set)
            if on_written is not None:
                on_written(stored.tag)
            return len(stored.data)

    def put(
        self,
        kind: str,
        id: str,
        data: bytes,
        expected: DocumentVersion | None,
        read_set: ReadSet | None = None,
    ) -> DocumentVersion:
        document = codec.decode(data, self.name(kind, id))
        with self._exclusive(kind, id):
            return self.store(kind, id, document, data, {**(read_set or {}), (kind, id): expected})

    def _restore_document(self, kind: str, id: str, data: bytes) -> None:
        with self._exclusive(kind, id) as stored:
            if stored is not None:
                raise Refused(
                    f"{self.name(kind, id)} is there already; delete it, then restore again",
                    path="",
                )
            self.store(kind, id, codec.decode(data, self.name(kind, id)), data)

    def delete(self, kind: str, id: str) -> Trashed:
        with self._exclusive(kind, id):
            return self.remove(kind, id)

    def remove(self, kind: str, id: str, read_set: ReadSet | None = None) -> Trashed:
        """Move a document, which the caller has locked, to the trash."""
        with self._thread_lock:
            self.ensure_unchanged(read_set or {})
            trashed = self.trash.add(kind, id, self._stored(kind, id).data)
            del self._documents[kind, id]
            self._report_write(kind, id)
            return trashed

    def exists(self, kind: str, id: str) -> bool:
        return (kind, id) in self._documents

    def version(
        self, kind: str, id: str, cached: DocumentVersion | None = None
    ) -> DocumentVersion | None:
        return self._documents.get((kind, id))

    def ids(self, kind: str) -> list[str]:
        with self._thread_lock:
            return sorted(id for other_kind, id in self._documents if other_kind == kind)

    def name(self, kind: str, id: str) -> str:
        return f"{kind}/{id}.json"

    def stored(self, kind: str, id: str) -> MemoryVersion | None:
        """Return the present version of a document. None: it does not exist."""
        return self._documents.get((kind, id))

    def _stored(self, kind: str, id: str) -> MemoryVersion:
        stored = self._documents.get((kind, check_id(id)))
        if stored is None:
            raise not_found(kind, id)
        return stored

    def read(self, kind: str, id: str) -> bytes:
        return self._stored(kind, id).data

    def document(self, kind: str, id: str) -> Document:
        return self._stored(kind, id).document

    def follow(self, kind: str, id: str, since: tuple[str, int] | None = None) -> EntriesSince:
        return self._stored(kind, id).follow(since)

    def parsed(self, id: str, parse: Callable[[bytes, bool], T]) -> T:
        return parse(self._stored(CONVERSATIONS, id).data, True)

    def tail(self, id: str, n: int) -> tuple[bytes, int, str]:
        stored = self._stored(CONVERSATIONS, id)
        history = stored.document["history"]
        return codec.encode_entries(history[-n:] if n > 0 else []), len(history), stored.tag

    def head(self, id: str) -> tuple[Document, int]:
        stored = self._stored(CONVERSATIONS, id)
        return stored.document, len(stored.data)

    def external_edits(self, purpose: str = "this") -> NoReturn:
        raise Refused(f"{purpose} needs a store that keeps files; this one keeps none", path="")

    # -- All conversations -------------------------------------------------------------------------

    def heads_with(self, field: HeadField, value: str) -> list[Head]:
        from capsule.engines.queries import heads_with

        return heads_with(self.queries(), field, value)

    def queries(self, asker: Viewer | None = None) -> IndexQueries:
        """Return the queries of an agent or the owner. The first call makes the index."""
        from capsule.engines.index.queries import IndexQueries
        from capsule.engines.memory.index import MemoryIndex

        with self._thread_lock:
            self._index = self._index or MemoryIndex(self)
            return IndexQueries(self._index, asker, self)

    def tracker(self, kind: str | None = None) -> TouchedNames:
        tracker = TouchedNames()
        with self._thread_lock:
            self._trackers[tracker] = kind
        return tracker

    def flush(self, kind: str = "", id: str = "") -> int:
        """Do nothing: no document outlives the process."""
        return 0

    def toml(self) -> bytes:
        return self._toml

    def set_toml(self, data: bytes, expected: bytes) -> None:
        with self._thread_lock:
            if self._toml != expected:
                raise StoreBusy(
                    "the settings were changed meanwhile; try again", id="", holder="another thread"
                )
            self._toml = data

    def close(self) -> None:
        """Close the index. The documents stay, for other users of the engine."""
        with self._thread_lock:
            index = self._index
            self._index = None
        if index is not None:
            index.close()


class MemoryLeases:
    """The leases of one store in memory. `Leases` describes the methods."""

    boot_id = ""

    def __init__(self) -> None:
        self._thread_lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._leases: dict[str, Lease] = {}
        self._instances: dict[str, dict[str, Any]] = {}
        self._heartbeats: dict[str, str] = {}
        self._fence = 0

    def acquire(
        self, name: str, details: Mapping[str, Any] | None = None, timeout_s: float | None = 0.0
    ) -> Lease:
        if is_instance(name):
            if details is not None or name not in self._instances:
                self._instances[name] = dict(details or {})
            return Lease(self, name, 0)
        with self._thread_lock:
            lock = self._locks.setdefault(check_id(name), threading.Lock())
        _acquire(lock, timeout_s, name, name)
        with self._thread_lock:
            self._fence += 1
            lease = Lease(self, name, self._fence)
            self._leases[name] = lease
        return lease

    def ensure_held(self, lease: Lease) -> None:
        """Raise StoreBusy if a lease was released."""
        if self._leases.get(lease.name) is not lease:
            raise StoreBusy(
                f"{lease.name} now has another holder", id=lease.name, holder="another thread"
            )

    def release(self, name: str) -> None:
        self._instances.pop(name, None)
        if self._leases.pop(name, None) is not None:
            self._locks[name].release()

    def live_instances(self) -> dict[str, dict[str, Any]]:
        instances = self._instances.copy()  # Other threads may change it meanwhile.
        return {instance: dict(details) for instance, details in instances.items()}

    def is_live(self, instance: str, host: str | None = None, boot_id: str = "") -> bool | None:
        if host not in (None, os.uname().nodename):
            return None
        return instance in self._instances

    def record_heartbeat(self, session: str) -> None:
        self._heartbeats[check_id(session)] = timestamps.now()

    def last_heartbeat(self, session: str) -> str | None:
        return self._heartbeats.get(check_id(session))


def _acquire(lock: threading.Lock, timeout_s: float | None, id: str, name: str) -> None:
    """Acquire a lock. `id` and `name` are for the error. Raises StoreBusy."""
    if not lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
        holder = f"another thread of process {os.getpid()}"
        raise StoreBusy(
            f"{name} has been held by {holder} for more than {timeout_s:g} s", id=id, holder=holder
        )
