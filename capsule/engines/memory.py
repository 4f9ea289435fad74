"""The engine in memory: documents of one process, with the same index as files, for tests of the layers above.

What must stay true: it keeps every promise that is not about files, and never changes a document that it handed out.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from capsule import timestamps
from capsule.engines.files.protocols import Interfered, Known, Signature, Trashed
from capsule.engines.files.transaction import head_in
from capsule.engines.interface import CONVERSATIONS, Document
from capsule.engines.memory_source import BOOT, MemorySource, MemoryTracker
from capsule.errors import NotFound, Refused, Remedy, StoreBusy
from capsule.format import canonical, codec, validation
from capsule.format.head import ParsedHead
from capsule.ids import check_id

if TYPE_CHECKING:
    from capsule.engines.index.index import Index

T = TypeVar("T")


class _Stored:
    """One version of one document; `serial` is the number of the engine's write."""

    def __init__(self, data: bytes, document: Document, serial: int, tag: str, time: str, ends_active: bool) -> None:
        self.document = document
        self.serial = serial
        self.tag = tag
        self.time = time
        self.ends_active = ends_active
        self._data = data

    @property
    def data(self) -> bytes:
        if not self._data:
            self._data = codec.encode(self.document)
        return self._data

    @property
    def known(self) -> Known:
        # The serial number stands for the file's time: it orders changes within one millisecond.
        signature = Signature(1, len(self.data), self.serial, 1)
        return Known(signature, None, self.tag, "", BOOT, "")


class MemoryTransaction:
    """The exclusive right to a conversation of a `MemoryEngine`. See `Transaction`."""

    def __init__(self, engine: MemoryEngine, id: str, stored: _Stored) -> None:
        self.id = id
        self.name = engine.name(CONVERSATIONS, id)
        self._engine = engine
        self._now = stored
        self.head = ParsedHead(stored.tag, head_in(stored.document))

    @property
    def updated_at(self) -> str:
        return str(self._now.document["updatedAt"])

    newest = updated_at

    @property
    def tag(self) -> str:
        return self._now.tag

    @property
    def count(self) -> int:
        return len(self._now.document["history"])

    @property
    def size(self) -> int:
        return len(self._now.data)

    @property
    def ends_active(self) -> bool:
        return self._now.ends_active

    @property
    def time(self) -> str:
        return self._now.time

    def document(self) -> Document:
        """See `Transaction.document`."""
        return self._now.document

    def has(self, id: str) -> bool:
        """See `Transaction.has`."""
        return any(entry.get("id") == id for entry in self._now.document["history"])

    def find_made(self, id: str) -> tuple[int, Document] | None:
        """See `Transaction.find_made`."""
        return next(((at, entry) for at, entry in enumerate(self.document()["history"]) if entry.get("id") == id), None)

    def appended(self) -> list[Document]:
        """See `Transaction.appended`."""
        return list(self._now.document["history"])

    def ensure_durable(self) -> None:
        """See `Transaction.ensure_durable`. Nothing here outlives the process."""

    def append(
        self,
        entries: list[Document],
        encoded: list[bytes],
        stamp: str,
        *,
        time: str,
        head: Document | None,
        ends_active: bool,
    ) -> None:
        """See `Transaction.append`. Cost: a copy of the list of entries."""
        document = self._now.document if head is None else self._with_head(head)
        document = document | {"updatedAt": stamp, "history": [*document["history"], *entries]}
        self._write(document, new_tag=head is not None, time=time, ends_active=ends_active)

    def set_head(
        self, head: Document, *, context: Callable[[], Iterable[bytes]] | None = None, ends_active: bool | None = None
    ) -> None:
        """See `Transaction.set_head`."""
        document = self._with_head(head)
        if context is not None:
            document["context"] = codec.decode(b"".join(context()), "context")
        self._write(document, ends_active=self.ends_active if ends_active is None else ends_active)

    def _with_head(self, head: Document) -> Document:
        kept = head_in(self._now.document)
        return canonical.in_order(
            head | {key: value for key, value in self._now.document.items() if key not in kept | head}
        )

    def refresh_lock(self, stamp: str) -> bool:
        """See `Transaction.refresh_lock`."""
        return False

    def replace(self, document: Document) -> None:
        """See `Transaction.replace`."""
        data = codec.encode(document)
        validation.check(document, data, self.name)
        self._write(document, data=data)

    def _write(
        self, document: Document, *, new_tag: bool = True, time: str = "", ends_active: bool = False, data: bytes = b""
    ) -> None:
        tag = "" if new_tag else self.tag
        self._now = self._engine.put(
            CONVERSATIONS, self.id, document, data, tag=tag, time=time or self.time, ends_active=ends_active
        )
        if new_tag:
            self.head = ParsedHead(self._now.tag, head_in(document))

    def keep(self, kind: str, document: Document) -> Trashed:
        """See `Transaction.keep`."""
        return self._engine.discard(kind, self.id, codec.encode(document))

    def drop_kept(self, kept: Trashed) -> None:
        """See `Transaction.drop_kept`."""
        self._engine.drop(kept)

    def set_aside(self, reason: str) -> str:
        """See `Transaction.set_aside`."""
        return self._engine.discard(reason, self.id, self._now.data).token

    def delete(self) -> Trashed:
        """See `Transaction.delete`."""
        return self._engine.delete(CONVERSATIONS, self.id)


class MemoryEngine:
    """The documents of one store in memory. See `Engine`. Several threads may use it.

    Args:
        timeout_s: How long to wait for a document that another thread writes, in seconds.
    """

    capabilities: frozenset[str] = frozenset()

    def __init__(self, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s
        self._guard = threading.RLock()
        self._documents: dict[tuple[str, str], _Stored] = {}
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._trash: dict[str, tuple[Trashed, str, bytes]] = {}
        self._instances: set[str] = set()
        self._trackers: weakref.WeakSet[MemoryTracker] = weakref.WeakSet()
        self._serial = 0
        self._index: Index | None = None

    # -- One document ----------------------------------------------------------------------------------------------

    @contextmanager
    def _exclusive(self, kind: str, id: str) -> Iterator[_Stored | None]:
        check_id(id)
        with self._guard:
            lock = self._locks.setdefault((kind, id), threading.Lock())
        if not lock.acquire(timeout=self._timeout_s):
            raise StoreBusy(
                f"{self.name(kind, id)} has been locked by a writer for more than {self._timeout_s:g} s; try again",
                id=id,
                holder=f"another thread of process {os.getpid()}",
            )
        try:
            yield self._documents.get((kind, id))
        finally:
            lock.release()

    @contextmanager
    def transaction(self, kind: str, id: str) -> Iterator[MemoryTransaction]:
        """See `Engine.transaction`."""
        with self._exclusive(kind, id) as stored:
            if stored is None:
                raise NotFound(f"no conversation {id}", remedy=Remedy("list"), id=id)
            yield MemoryTransaction(self, id, stored)

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
    ) -> _Stored:
        """Store a version of a document; the caller has the exclusive right to it."""
        with self._guard:
            self._serial += 1
            stored = _Stored(data, document, self._serial, tag or f"{self._serial:016x}", time, ends_active)
            self._documents[kind, id] = stored
            self._touched(kind, id)
        return stored

    def _touched(self, kind: str, id: str) -> None:
        if kind == CONVERSATIONS:
            for tracker in list(self._trackers):
                tracker.touch(id)

    def create(self, kind: str, document: Document, written: Callable[[str], None] | None = None) -> int:
        """See `Engine.create`."""
        with self._exclusive(kind, document["id"]) as stored:
            if stored is not None:
                raise Interfered
            stored = self.put(kind, document["id"], document)
            if written is not None:
                written(stored.tag)
            return len(stored.data)

    def edit(self, kind: str, id: str, change: Callable[[bytes | None], bytes | None]) -> None:
        """See `Engine.edit`."""
        with self._exclusive(kind, id) as stored:
            after = change(stored.data if stored else None)
            if after is not None:
                self.put(kind, id, codec.decode(after, self.name(kind, id)), after)

    def exists(self, kind: str, id: str) -> bool:
        """See `Engine.exists`."""
        return (kind, id) in self._documents

    def ids(self, kind: str) -> list[str]:
        """See `Engine.ids`."""
        with self._guard:
            return sorted(id for each, id in self._documents if each == kind)

    def name(self, kind: str, id: str) -> str:
        """See `Engine.name`."""
        return f"{kind}/{id}.json"

    def stored(self, kind: str, id: str) -> _Stored | None:
        """The present version of a document; None: it does not exist."""
        return self._documents.get((kind, id))

    def _stored(self, kind: str, id: str) -> _Stored:
        stored = self._documents.get((kind, check_id(id)))
        if stored is None:
            raise NotFound(f"no conversation {id}", remedy=Remedy("list"), id=id)
        return stored

    def read(self, kind: str, id: str) -> bytes:
        """See `Engine.read`."""
        return self._stored(kind, id).data

    def document(self, kind: str, id: str) -> Document:
        """See `Engine.document`."""
        return self._stored(kind, id).document

    def parsed(self, id: str, parse: Callable[[bytes, bool], T]) -> T:
        """See `Engine.parsed`."""
        return parse(self._stored(CONVERSATIONS, id).data, True)

    def tail(self, id: str, n: int) -> tuple[bytes, int]:
        """See `Engine.tail`."""
        history = self._stored(CONVERSATIONS, id).document["history"]
        return codec.encode_entries(history[-n:] if n > 0 else []), len(history)

    def head(self, id: str) -> tuple[Document, int]:
        """See `Engine.head`."""
        stored = self._stored(CONVERSATIONS, id)
        return stored.document, len(stored.data)

    # -- All conversations -----------------------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        """The index of the conversations, in memory, made on first use."""
        with self._guard:
            if self._index is None:
                from capsule.engines.index.index import Index

                self._index = Index(MemorySource(self), CONVERSATIONS, lambda id: None)
            return self._index

    def tracker(self) -> MemoryTracker:
        """See `Engine.tracker`."""
        tracker = MemoryTracker()
        with self._guard:
            self._trackers.add(tracker)
        return tracker

    # -- Trash and instances ---------------------------------------------------------------------------------------

    def discard(self, kind: str, id: str, data: bytes) -> Trashed:
        """Put a document into the trash."""
        with self._guard:
            self._serial += 1
            trashed = Trashed(id, timestamps.now(), f"{kind}~{id}~{self._serial}", "")
            self._trash[trashed.token] = trashed, kind, data
            return trashed

    def delete(self, kind: str, id: str) -> Trashed:
        """Move a document to the trash; the caller has the exclusive right to it."""
        with self._guard:
            trashed = self.discard(kind, id, self._stored(kind, id).data)
            del self._documents[kind, id]
            self._touched(kind, id)
            return trashed

    def drop(self, trashed: Trashed) -> None:
        """Erase a document from the trash."""
        self._trash.pop(trashed.token, None)

    def trash(self, kind: str) -> list[Trashed]:
        """See `Engine.trash`."""
        with self._guard:
            return [trashed for trashed, each, _ in reversed(self._trash.values()) if each == kind]

    def trashed(self, token: str) -> bytes:
        """See `Engine.trashed`."""
        try:
            return self._trash[token][2]
        except KeyError:
            raise NotFound(f"{token} is not in the trash", id=token) from None

    def restore(self, kind: str, id: str, token: str) -> None:
        """See `Engine.restore`."""
        with self._exclusive(kind, id) as stored:
            if stored is not None:
                raise Refused(f"{self.name(kind, id)} is there already; delete it, then restore again", path="")
            data = self.trashed(token)
            self.put(kind, id, codec.decode(data, self.name(kind, id)), data)
            del self._trash[token]

    def purge(self, older_than_s: float) -> list[str]:
        """See `Engine.purge`."""
        now = timestamps.now()
        with self._guard:
            times = {token: trashed.deleted_at for token, (trashed, *_) in self._trash.items()}
            erased = [token for token, at in times.items() if timestamps.seconds_between(at, now) >= older_than_s]
            self._trash = {token: entry for token, entry in self._trash.items() if token not in erased}
            return erased

    def announce(self, instance: str) -> None:
        """See `Engine.announce`."""
        self._instances.add(instance)

    def withdraw(self, instance: str) -> None:
        """See `Engine.withdraw`."""
        self._instances.discard(instance)

    def is_alive(self, instance: str) -> bool:
        """See `Engine.is_alive`."""
        return instance in self._instances

    def close(self) -> None:
        """See `Engine.close`. The documents stay, for other users of the engine."""
        with self._guard:
            index, self._index = self._index, None
        if index is not None:
            index.close()
