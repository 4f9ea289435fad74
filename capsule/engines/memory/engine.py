"""The engine in memory: documents of one process, with the same index as files, for tests of the
layers above.

What must stay true: it keeps every promise that is not about files, and never changes a document
that it handed out.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from capsule import timestamps
from capsule.disk.directory_tracker import TouchedNames
from capsule.engines.interface import (
    CONVERSATIONS,
    Document,
    DocumentVersion,
    EntriesSince,
    Lease,
    ReadSet,
    Trashed,
    is_instance,
    not_found,
)
from capsule.engines.local_documents import LocalDocuments, MemoryLocalDocuments
from capsule.engines.memory.beside import MemoryFiles, MemoryTrash
from capsule.engines.memory.transaction import MemoryTransaction, MemoryVersion
from capsule.errors import AlreadyExists, ConcurrentWrite, Refused, StoreBusy
from capsule.format.json import codec
from capsule.ids import check_id
from capsule.settings import TEMPLATE

if TYPE_CHECKING:
    from capsule.engines.index.queries import IndexQueries
    from capsule.engines.memory.index import MemoryIndex
    from capsule.rules.policy import Viewer

T = TypeVar("T")


class MemoryEngine:
    """The documents of one store in memory. See `Engine`, which describes the methods. Several
    threads may use it.

    Args:
        timeout_s: How long to wait for a document that another thread writes, in seconds.
    """

    def __init__(self, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s
        self._guard = threading.RLock()
        self._documents: dict[tuple[str, str], MemoryVersion] = {}
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self.trash = MemoryTrash(self._put_back)
        self.files = MemoryFiles()
        self.local: LocalDocuments = MemoryLocalDocuments()
        self.leases = MemoryLeases()
        #: By tracker, which kind it tells of; None: all.
        self._trackers: weakref.WeakKeyDictionary[TouchedNames, str | None] = (
            weakref.WeakKeyDictionary()
        )
        self._serial = 0
        self._index: MemoryIndex | None = None
        self._toml = TEMPLATE.encode()

    # -- One document ------------------------------------------------------------------------------

    @contextmanager
    def _exclusive(self, kind: str, id: str) -> Iterator[MemoryVersion | None]:
        with self._guard:
            lock = self._locks.setdefault((kind, check_id(id)), threading.Lock())
        _acquire(lock, self._timeout_s, id, self.name(kind, id))
        try:
            yield self._documents.get((kind, id))
        finally:
            lock.release()

    @contextmanager
    def transaction(self, kind: str, id: str) -> Iterator[MemoryTransaction]:
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
        """Store a version of a document. The caller has the exclusive right to it; Interfered: as
        in `Engine.put`.
        """
        with self._guard:
            self.ensure_unchanged(read_set or {})
            self._serial += 1
            stored = MemoryVersion(
                data, document, self._serial, tag or f"{self._serial:016x}", time, ends_active
            )
            self._documents[kind, id] = stored
            self._touched(kind, id)
        return stored

    def ensure_unchanged(self, read_set: ReadSet) -> None:
        """Raise Interfered if a document has another version."""
        for place, version in read_set.items():
            if isinstance(version, Lease):
                self.leases.ensure_held(version)
            elif self._documents.get(place) is not version:
                raise ConcurrentWrite

    def _touched(self, kind: str, id: str) -> None:
        for tracker, of in list(self._trackers.items()):
            if of in (kind, None):
                tracker.touch([id if of else f"{kind}-{id}"])
        if kind == CONVERSATIONS and self._index is not None:
            self._index.touched.add(id)

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

    def _put_back(self, kind: str, id: str, data: bytes) -> None:
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
        """Move a document to the trash; the caller has the exclusive right to it."""
        with self._guard:
            self.ensure_unchanged(read_set or {})
            trashed = self.trash.add(kind, id, self._stored(kind, id).data)
            del self._documents[kind, id]
            self._touched(kind, id)
            return trashed

    def exists(self, kind: str, id: str) -> bool:
        return (kind, id) in self._documents

    def version(
        self, kind: str, id: str, cached: DocumentVersion | None = None
    ) -> DocumentVersion | None:
        return self._documents.get((kind, id))

    def ids(self, kind: str) -> list[str]:
        with self._guard:
            return sorted(id for each, id in self._documents if each == kind)

    def name(self, kind: str, id: str) -> str:
        return f"{kind}/{id}.json"

    def stored(self, kind: str, id: str) -> MemoryVersion | None:
        """The present version of a document; None: it does not exist."""
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

    def queries(self, asker: Viewer | None = None) -> IndexQueries:
        """The questions of an asker; the first one makes the index."""
        from capsule.engines.index.queries import IndexQueries
        from capsule.engines.memory.index import MemoryIndex

        with self._guard:
            self._index = self._index or MemoryIndex(self)
            return IndexQueries(self._index, asker, self)

    def tracker(self, kind: str | None = None) -> TouchedNames:
        tracker = TouchedNames()
        with self._guard:
            self._trackers[tracker] = kind
        return tracker

    def flush(self, kind: str = "", id: str = "") -> int:
        """Nothing here outlives the process."""
        return 0

    def toml(self) -> bytes:
        return self._toml

    def set_toml(self, data: bytes, expected: bytes) -> None:
        with self._guard:
            if self._toml != expected:
                raise StoreBusy(
                    "the settings were changed meanwhile; try again", id="", holder="another thread"
                )
            self._toml = data

    def close(self) -> None:
        """Close the index. The documents stay, for other users of the engine."""
        with self._guard:
            index, self._index = self._index, None
        if index is not None:
            index.close()


class MemoryLeases:
    """The leases of one store in memory. See `Leases`, which describes the methods."""

    boot_id = ""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._held: dict[str, Lease] = {}
        self._instances: dict[str, dict[str, Any]] = {}
        self._beats: dict[str, str] = {}
        self._fence = 0

    def acquire(
        self, name: str, details: Mapping[str, Any] | None = None, timeout_s: float | None = 0.0
    ) -> Lease:
        if is_instance(name):
            if details is not None or name not in self._instances:
                self._instances[name] = dict(details or {})
            return Lease(self, name, 0)
        with self._guard:
            lock = self._locks.setdefault(check_id(name), threading.Lock())
        _acquire(lock, timeout_s, name, name)
        with self._guard:
            self._fence += 1
            self._held[name] = lease = Lease(self, name, self._fence)
        return lease

    def ensure_held(self, lease: Lease) -> None:
        """Raise StoreBusy if a lease was released."""
        if self._held.get(lease.name) is not lease:
            raise StoreBusy(
                f"{lease.name} now has another holder", id=lease.name, holder="another thread"
            )

    def release(self, name: str) -> None:
        self._instances.pop(name, None)
        if self._held.pop(name, None) is not None:
            self._locks[name].release()

    def live_instances(self) -> dict[str, dict[str, Any]]:
        return {instance: dict(details) for instance, details in self._instances.items()}

    def is_live(self, instance: str, host: str | None = None, boot_id: str = "") -> bool | None:
        return instance in self._instances if host in (None, os.uname().nodename) else None

    def record_heartbeat(self, session: str) -> None:
        self._beats[check_id(session)] = timestamps.now()

    def last_heartbeat(self, session: str) -> str | None:
        return self._beats.get(check_id(session))


def _acquire(lock: threading.Lock, timeout_s: float | None, id: str, name: str) -> None:
    """Take a lock. Raises StoreBusy."""
    if not lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
        holder = f"another thread of process {os.getpid()}"
        raise StoreBusy(
            f"{name} has been held by {holder} for more than {timeout_s:g} s", id=id, holder=holder
        )
