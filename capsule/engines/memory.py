"""The engine in memory: documents of one process, with the same index as files, for tests of the layers above.

What must stay true: it keeps every promise that is not about files, and never changes a document that it handed out.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from capsule import timestamps
from capsule.disk.touched import Touched
from capsule.engines.interface import CONVERSATIONS, Document, missing
from capsule.engines.machine import Machine, MemoryMachine
from capsule.engines.memory_beside import MemoryFiles, MemoryTrash
from capsule.engines.memory_source import MemorySource
from capsule.engines.memory_transaction import MemoryTransaction, Stored
from capsule.engines.values import News, Trashed
from capsule.errors import Interfered, Refused, StoreBusy
from capsule.format.json import codec
from capsule.ids import check_id

if TYPE_CHECKING:
    from capsule.engines.index.index import Index

T = TypeVar("T")


class MemoryEngine:
    """The documents of one store in memory. See `Engine`, which describes the methods. Several threads may use it.

    Args:
        timeout_s: How long to wait for a document that another thread writes, in seconds.
    """

    def __init__(self, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s
        self._guard = threading.RLock()
        self._documents: dict[tuple[str, str], Stored] = {}
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self.trash = MemoryTrash(self._put_back)
        self.files = MemoryFiles()
        self.machine: Machine = MemoryMachine()
        self._beats: dict[tuple[str, str], str] = {}
        self._instances: dict[str, dict[str, Any]] = {}
        #: By tracker, which kind it tells of; None: all.
        self._trackers: weakref.WeakKeyDictionary[Touched, str | None] = weakref.WeakKeyDictionary()
        self._serial = 0
        self._index: Index | None = None

    # -- One document ----------------------------------------------------------------------------------------------

    @contextmanager
    def _exclusive(self, kind: str, id: str) -> Iterator[Stored | None]:
        with self._locked(kind, id, self._timeout_s, self.name(kind, id)):
            yield self._documents.get((kind, id))

    @contextmanager
    def _locked(self, kind: str, id: str, timeout_s: float | None, name: str) -> Iterator[None]:
        check_id(id)
        with self._guard:
            lock = self._locks.setdefault((kind, id), threading.Lock())
        if not lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
            holder = f"another thread of process {os.getpid()}"
            raise StoreBusy(f"{name} has been held by {holder} for more than {timeout_s:g} s", id=id, holder=holder)
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def transaction(self, kind: str, id: str) -> Iterator[MemoryTransaction]:
        with self._exclusive(kind, id) as stored:
            if stored is None:
                raise missing(kind, id)
            yield MemoryTransaction(self, kind, id, stored)

    def put(
        self,
        kind: str,
        id: str,
        document: Document,
        data: bytes = b"",
        *,
        tag: str = "",
        time: str = "",
        ends_active: bool = False,
    ) -> Stored:
        """Store a version of a document; the caller has the exclusive right to it."""
        with self._guard:
            self._serial += 1
            stored = Stored(data, document, self._serial, tag or f"{self._serial:016x}", time, ends_active)
            self._documents[kind, id] = stored
            self._touched(kind, id)
        return stored

    def _touched(self, kind: str, id: str) -> None:
        for tracker, of in list(self._trackers.items()):
            if of in (kind, None):
                tracker.touch([id if of else f"{kind}-{id}"])

    def create(self, kind: str, document: Document, written: Callable[[str], None] | None = None) -> int:
        with self._exclusive(kind, document["id"]) as stored:
            if stored is not None:
                raise Interfered
            stored = self.put(kind, document["id"], document)
            if written is not None:
                written(stored.tag)
            return len(stored.data)

    def edit(self, kind: str, id: str, change: Callable[[bytes | None], bytes | None]) -> None:
        with self._exclusive(kind, id) as stored:
            after = change(stored.data if stored else None)
            if after is not None:
                self.put(kind, id, codec.decode(after, self.name(kind, id)), after)

    def _put_back(self, kind: str, id: str, data: bytes) -> None:
        with self._exclusive(kind, id) as stored:
            if stored is not None:
                raise Refused(f"{self.name(kind, id)} is there already; delete it, then restore again", path="")
            self.put(kind, id, codec.decode(data, self.name(kind, id)), data)

    def delete(self, kind: str, id: str) -> Trashed:
        with self._exclusive(kind, id):
            return self.remove(kind, id)

    def remove(self, kind: str, id: str) -> Trashed:
        """Move a document to the trash; the caller has the exclusive right to it."""
        with self._guard:
            trashed = self.trash.keep(kind, id, self._stored(kind, id).data)
            del self._documents[kind, id]
            self._touched(kind, id)
            return trashed

    def exists(self, kind: str, id: str) -> bool:
        return (kind, id) in self._documents

    def version(self, kind: str, id: str) -> object | None:
        stored = self._documents.get((kind, id))
        return stored and stored.serial

    def versions(self, kind: str) -> dict[str, object]:
        with self._guard:
            found = {id: stored.serial for (each, id), stored in self._documents.items() if each == kind}
        return dict(sorted(found.items()))

    def ids(self, kind: str) -> list[str]:
        with self._guard:
            return sorted(id for each, id in self._documents if each == kind)

    def name(self, kind: str, id: str) -> str:
        return f"{kind}/{id}.json"

    def stored(self, kind: str, id: str) -> Stored | None:
        """The present version of a document; None: it does not exist."""
        return self._documents.get((kind, id))

    def _stored(self, kind: str, id: str) -> Stored:
        stored = self._documents.get((kind, check_id(id)))
        if stored is None:
            raise missing(kind, id)
        return stored

    def read(self, kind: str, id: str) -> bytes:
        return self._stored(kind, id).data

    def document(self, kind: str, id: str) -> Document:
        return self._stored(kind, id).document

    def follow(self, kind: str, id: str, since: tuple[str, int] | None = None) -> News:
        return self._stored(kind, id).follow(since)

    def parsed(self, id: str, parse: Callable[[bytes, bool], T]) -> T:
        return parse(self._stored(CONVERSATIONS, id).data, True)

    def tail(self, id: str, n: int) -> tuple[bytes, int]:
        history = self._stored(CONVERSATIONS, id).document["history"]
        return codec.encode_entries(history[-n:] if n > 0 else []), len(history)

    def head(self, id: str) -> tuple[Document, int]:
        stored = self._stored(CONVERSATIONS, id)
        return stored.document, len(stored.data)

    def outside_edits(self, what: str = "this") -> NoReturn:
        raise Refused(f"{what} needs a store that keeps files; this one keeps none", path="")

    # -- All conversations -----------------------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        """The index of the conversations, in memory, made on first use."""
        with self._guard:
            if self._index is None:
                from capsule.engines.index.index import Index

                self._index = Index(MemorySource(self), CONVERSATIONS, lambda id: None)
            return self._index

    def tracker(self, kind: str | None = None) -> Touched:
        tracker = Touched()
        with self._guard:
            self._trackers[tracker] = kind
        return tracker

    def beat(self, kind: str, id: str) -> None:
        self._beats[kind, check_id(id)] = timestamps.now()

    def beaten(self, kind: str, id: str) -> str | None:
        return self._beats.get((kind, check_id(id)))

    def hold(self, name: str, timeout_s: float | None) -> AbstractContextManager[None]:
        return self._locked("hold", name, timeout_s, name)

    # -- Instances ---------------------------------------------------------------------------------------

    def announce(self, instance: str, about: Mapping[str, Any] | None = None) -> None:
        if about is not None or instance not in self._instances:
            self._instances[instance] = dict(about or {})

    def instances(self) -> dict[str, dict[str, Any]]:
        return {instance: dict(about) for instance, about in self._instances.items()}

    def withdraw(self, instance: str) -> None:
        self._instances.pop(instance, None)

    def is_alive(self, instance: str) -> bool:
        return instance in self._instances

    def close(self) -> None:
        """The documents stay, for other users of the engine."""
        with self._guard:
            index, self._index = self._index, None
        if index is not None:
            index.close()
