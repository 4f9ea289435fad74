"""The engine of a store in PostgreSQL, which any number of machines can open.

It puts the parts together: documents (`transaction`, `writing`), leases, trash, files beside
documents, the feed of changes, and the index. A document is read with one statement. A write goes
through a transaction, which begins with the state that this process saw last, so that a plain append
costs one round trip.

What must stay true: every later call of every machine sees what a call acknowledged. Nothing is
answered from a cached state that the database has not confirmed. Documents that belong to this
machine alone never reach the database.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from capsule.engines.interface import (
    CONVERSATIONS,
    WITH_ENTRIES,
    Document,
    DocumentVersion,
    EntriesSince,
    ReadSet,
    Trashed,
    not_found,
    retry,
)
from capsule.engines.postgres import change_events, layout, schema
from capsule.engines.postgres.beside import PostgresFiles, PostgresTrash
from capsule.engines.postgres.change_events import Events
from capsule.engines.postgres.exclusive import DocumentLock, lock_document
from capsule.engines.postgres.feed import Feed, FeedTracker
from capsule.engines.postgres.layout import RowState
from capsule.engines.postgres.leases import PostgresLeases
from capsule.engines.postgres.transaction import Place, PostgresTransaction
from capsule.engines.postgres.writing import (
    DocumentWrite,
    DocumentWriter,
    PostgresVersion,
    head_columns,
    message_key,
    number_of,
    storable,
)
from capsule.errors import (
    CapsuleError,
    ConcurrentWrite,
    InvalidInput,
    Refused,
    Remedy,
    StorageFailed,
    StoreBusy,
)
from capsule.format.documents.head import Head
from capsule.format.json import codec
from capsule.ids import check_id
from capsule.process_forks import call_in_child

if TYPE_CHECKING:
    from capsule.engines.local_documents import LocalDocuments
    from capsule.engines.postgres.database import PostgresDatabase
    from capsule.engines.postgres.index import PostgresIndex
    from capsule.engines.queries import HeadField, Queries
    from capsule.rules.policy import Viewer

T = TypeVar("T")
_STATE = (
    "SELECT version, tag, era, entries, @size(d), updated_at, newest, time, ends_active, head "
    "FROM @documents AS d"
    " WHERE kind = %s AND id = %s"
)
_WHOLE = (
    "SELECT version, head, rest, updated_at, data, ARRAY("
    "SELECT body FROM @entries WHERE doc = d.num ORDER BY place) FROM @documents AS d WHERE kind "
    "= %s AND id = %s"
)
_HEADS_WITH = (
    "SELECT id, head, updated_at, @size(d) FROM @documents AS d WHERE kind = %s AND {} = %s "
    "ORDER BY id"
)
_UNREADABLE = "its head has a field of another type than the format says"
_COLUMN_OF: dict[HeadField, str] = {"channel": "channel", "forkedFrom": "forked_from"}
#: Documents whose row does not match their entries, and entries without a document.
_FLAWS = (
    "SELECT d.kind, coalesce(d.id, e.doc::text), d.entries, coalesce(e.count, 0), "
    "coalesce(e.last, -1),"
    " coalesce(e.bytes, 0), d.inner_bytes FROM @documents AS d FULL JOIN ("
    "SELECT doc, count(*) AS count, max(place) AS last, sum(octet_length(body) + 2)::bigint AS "
    "bytes FROM @entries"
    " GROUP BY doc) AS e ON e.doc = d.num WHERE d.num IS NULL OR coalesce(e.count, 0) <> d.entries"
    " OR coalesce(e.last, -1) <> d.entries - 1 OR coalesce(e.bytes, 0) <> d.inner_bytes ORDER BY "
    "1, 2"
)
#: The number of documents whose last state this process caches.
_MAX_CACHED_STATES = 1024
#: The number of exclusive transactions of one process. Each keeps a connection, and takes others to
#: read: it must be far below the number of connections.
_MAX_EXCLUSIVE = 4
_UNLOCKED: AbstractContextManager[None] = nullcontext()


class PostgresEngine:
    """The documents of one store in a database. See `Engine`, which describes the methods.

    Several threads may use it.

    Args:
        database: The database. The caller has checked its schema.
        local: The documents of this machine.
        timeout_s: How long to wait for a document that another thread writes, in seconds.
        directory: The directory of this machine's files of the store. See `Feed`.
    """

    def __init__(
        self,
        database: PostgresDatabase,
        local: LocalDocuments,
        timeout_s: float = 10.0,
        directory: str | None = None,
    ) -> None:
        self.database = database
        self.local = local
        local.of_store = {"cursors": lambda: schema.key(database)}
        self._timeout_s = timeout_s
        self.feed = Feed(database, directory)
        self.leases = PostgresLeases(database, self.feed.renew_leases)
        self.files = PostgresFiles(database)
        self.trash = PostgresTrash(database, self._restore, lambda: self.index.refresh())
        self._writer = DocumentWriter(database, self.feed.notify_soon)
        self._reset_after_fork()
        call_in_child(self, PostgresEngine._reset_after_fork)

    def _reset_after_fork(self) -> None:
        self._thread_lock = threading.RLock()
        self._locks: weakref.WeakValueDictionary[tuple[str, str], Any] = (
            weakref.WeakValueDictionary()
        )
        self._cached_states: OrderedDict[tuple[str, str], RowState] = OrderedDict()
        self._exclusive_turns = threading.BoundedSemaphore(_MAX_EXCLUSIVE)
        self._index: PostgresIndex | None = None

    # -- One document ------------------------------------------------------------------------------

    @contextmanager
    def transaction(
        self, kind: str, id: str, *, exclusive: bool = False
    ) -> Iterator[PostgresTransaction]:
        """Cost: a round trip, unless this process has a cached state of the document. Four for an
        exclusive one.
        """
        key = kind, check_id(id)
        with self._thread_lock:
            lock = self._locks.get(key) or self._locks.setdefault(key, _WeakLock())
        if not lock.acquire(timeout=self._timeout_s):
            holder = "another thread of this process"
            reason = (
                f"{self.name(kind, id)} has been held by {holder} for more than "
                f"{self._timeout_s:g} s"
            )
            raise StoreBusy(reason, id=id, holder=holder)
        try:
            with self._exclusive(kind, id) if exclusive else _UNLOCKED as document_lock:
                cached_state = self._cached_states.get(key)
                state = cached_state or self._load_state(kind, id)
                transaction = PostgresTransaction(
                    self,
                    kind,
                    id,
                    state,
                    is_verified=cached_state is None,
                    document_lock=document_lock,
                )
                try:
                    yield transaction
                    transaction.ensure_unchanged()
                except (ConcurrentWrite, StorageFailed):
                    self._forget_state(key)
                    raise
                except CapsuleError:
                    self._forget_state(key)
                    # The refusal may be based on an outdated state. ConcurrentWrite replaces it then.
                    transaction.ensure_unchanged()
                    raise
        finally:
            lock.release()

    @contextmanager
    def _exclusive(self, kind: str, id: str) -> Iterator[DocumentLock]:
        """Keep out the writers of all processes while the body runs, or until its first write."""
        with (
            self._exclusive_turns,
            lock_document(self.database, kind, id, self._timeout_s) as document_lock,
        ):
            self._forget_state((kind, id))
            yield document_lock

    def _load_state(self, kind: str, id: str) -> RowState:
        row = self.database.first_row(_STATE, kind, id)
        if row is None:
            raise not_found(kind, id)
        *columns, head = row
        state = layout.row_state(columns, head, self.name(kind, id))
        return self._remember_state(kind, id, state)

    def _remember_state(self, kind: str, id: str, state: RowState) -> RowState:
        with self._thread_lock:
            self._cached_states[kind, id] = state
            self._cached_states.move_to_end((kind, id))
            while len(self._cached_states) > _MAX_CACHED_STATES:
                self._cached_states.popitem(last=False)
        return state

    def _forget_state(self, key: tuple[str, str]) -> None:
        with self._thread_lock:
            self._cached_states.pop(key, None)

    def save(
        self, save: DocumentWrite, read_set: ReadSet, events: Events, **options: Any
    ) -> RowState:
        """Call `DocumentWriter.save`, and cache the new state."""
        state = self._writer.save(save, read_set, events, **options)
        if not state.version:  # An earlier try wrote it, and its answer was lost.
            self._forget_state((save["kind"], save["id"]))
            return state
        return self._remember_state(save["kind"], save["id"], state)

    def remove(
        self,
        kind: str,
        id: str,
        version: int,
        data: bytes,
        read_set: ReadSet,
        document_lock: DocumentLock | None = None,
    ) -> Trashed:
        """Call `DocumentWriter.remove`, and drop the cached state."""
        self._forget_state((kind, id))
        event = "deleted" if kind == CONVERSATIONS else ""
        return self._writer.remove(kind, id, version, data, event, read_set, document_lock)

    def create(
        self,
        kind: str,
        document: Document,
        on_written: Callable[[str], None] | None = None,
        read_set: ReadSet | None = None,
    ) -> int:
        state = self._create(kind, document, read_set or {}, "created")
        if on_written is not None:
            on_written(layout.tag_of(state.tag))
        return state.size

    def _create(self, kind: str, document: Document, read_set: ReadSet, event: str) -> RowState:
        """Write a new document with entries. `event` is the kind of the change in the feed."""
        parts = layout.split_document(document)
        ids = [str(entry.get("id", "")) for entry in document["history"]]
        save: DocumentWrite = {
            "kind": kind,
            "id": check_id(document["id"]),
            "tag": 0,
            "messages": [message_key(id) for id in ids],
            "bodies": parts.bodies,
            "stamp": str(document.get("updatedAt", "")),
            "rest": parts.rest,
            **head_columns(document),
        }
        return self.save(save, read_set, change_events.creation_events(kind, document, event))

    def put(
        self,
        kind: str,
        id: str,
        data: bytes,
        expected: DocumentVersion | None,
        read_set: ReadSet | None = None,
    ) -> DocumentVersion:
        codec.decode(data, self.name(kind, id))
        number = number_of(expected)
        try:
            save: DocumentWrite = {
                "kind": kind,
                "id": check_id(id),
                "tag": number,
                "version": number,
                "exact": True,
            }
            saved = self._writer.save(save, read_set or {}, data=data)
        finally:
            self._forget_state((kind, id))
        return PostgresVersion(data, saved.version)

    def _restore(self, kind: str, id: str, data: bytes) -> None:
        """Write a document of the trash again. Raises Refused if there is one with this id."""
        document = codec.decode(data, self.name(kind, id))
        try:
            if kind in WITH_ENTRIES:
                self._create(kind, document | {"id": id}, {}, "restored")
            else:
                self.put(kind, id, data, None)
        except ConcurrentWrite:
            raise Refused(
                f"{self.name(kind, id)} is there already; delete it, then restore again", path=""
            ) from None

    def delete(self, kind: str, id: str) -> Trashed:
        def delete_this_version() -> Trashed:
            stored = self.read_version(kind, check_id(id))
            if stored is None:
                raise not_found(kind, id)
            version, data, _ = stored
            return self.remove(kind, id, version, data, {})

        return retry(delete_this_version, self.name(kind, id), id)

    def exists(self, kind: str, id: str) -> bool:
        return self.version_number(kind, id) != 0

    def version_number(self, kind: str, id: str) -> int:
        """Return the number of the present version of a document, or 0 if it does not exist."""
        row = self.database.first_row(
            "SELECT version FROM @documents WHERE kind = %s AND id = %s", kind, id
        )
        return row[0] if row else 0

    def version(
        self, kind: str, id: str, cached: DocumentVersion | None = None
    ) -> DocumentVersion | None:
        """Cost: a round trip. The document is transferred only if `cached` is another version."""
        statement = (
            "SELECT version, CASE WHEN version <> %s THEN data END FROM @documents WHERE "
            "kind = %s AND id = %s"
        )
        row = self.database.first_row(statement, number_of(cached), kind, id)
        if row is None:
            return None
        return cached if row[0] == number_of(cached) else PostgresVersion(row[1], row[0])

    def ids(self, kind: str) -> list[str]:
        rows = self.database.read("SELECT id FROM @documents WHERE kind = %s ORDER BY id", kind)
        return [id for (id,) in rows]

    def name(self, kind: str, id: str) -> str:
        return f"{kind}/{id}.json"

    def read_version(self, kind: str, id: str) -> tuple[int, bytes, list[str]] | None:
        """Return the number of a document's version, its bytes, and its entries as text.

        Returns None if the document does not exist.
        """
        row = self.database.first_row(_WHOLE, kind, id)
        if row is None:
            return None
        version, head, rest, updated_at, data, bodies = row
        if data is None:
            data = layout.join_document(head, rest, updated_at, bodies)
        return version, data, bodies

    def read(self, kind: str, id: str) -> bytes:
        stored = self.read_version(kind, check_id(id))
        if stored is None:
            raise not_found(kind, id)
        _, data, _ = stored
        return data

    def document(self, kind: str, id: str) -> Document:
        return codec.decode(self.read(kind, id), self.name(kind, id))

    def follow(self, kind: str, id: str, since: Place | None = None) -> EntriesSince:
        """Cost: a round trip. Only the new entries are transferred."""
        known_era, count = since or (-1, 0)
        row = self.database.first_row(
            "SELECT era, entries, ARRAY(SELECT body FROM @entries WHERE doc = d.num"
            " AND place >= CASE WHEN d.era = %s THEN %s ELSE 0 END ORDER BY place)"
            " FROM @documents AS d WHERE kind = %s AND id = %s",
            known_era,
            count,
            kind,
            check_id(id),
        )
        if row is None:
            raise not_found(kind, id)
        era, total, bodies = row
        entries = layout.entries_in(bodies, self.name(kind, id))
        return EntriesSince((era, total), entries, is_complete=era != known_era)

    def entry(self, kind: str, id: str, message: str) -> tuple[int, Document] | None:
        """Return the position of the entry with an id, and the entry. None: it has no such entry."""
        row = self.database.first_row(
            "SELECT place, body FROM @entries WHERE message = %s::bytea"
            " AND doc = (SELECT num FROM @documents WHERE kind = %s AND id = %s) ORDER BY place "
            "LIMIT 1",
            message_key(message),
            kind,
            id,
        )
        if row is None:
            return None
        position, body = row
        return position, layout.entries_in([body], self.name(kind, id))[0]

    def parsed(self, id: str, parse: Callable[[bytes, bool], T]) -> T:
        return parse(self.read(CONVERSATIONS, id), True)

    def tail(self, id: str, n: int) -> tuple[bytes, int, str]:
        """Cost: a round trip. Only these entries are transferred."""
        row = self.database.first_row(
            "SELECT entries, tag, ARRAY(SELECT body FROM @entries WHERE doc = d.num AND place >= "
            "d.entries - %s"
            " ORDER BY place) FROM @documents AS d WHERE kind = %s AND id = %s",
            max(n, 0),
            CONVERSATIONS,
            check_id(id),
        )
        if row is None:
            raise not_found(CONVERSATIONS, id)
        entries, tag, bodies = row
        return b"[\n" + ",\n".join(bodies).encode() + b"]", entries, layout.tag_of(tag)

    def head(self, id: str) -> tuple[Document, int]:
        statement = (
            "SELECT head, updated_at, @size(d) FROM @documents AS d WHERE kind = %s AND id = %s"
        )
        row = self.database.first_row(statement, CONVERSATIONS, check_id(id))
        if row is None:
            raise not_found(CONVERSATIONS, id)
        head, updated_at, size = row
        return layout.head_of(head, updated_at, self.name(CONVERSATIONS, id)), size

    def heads_with(self, field: HeadField, value: str) -> list[Head]:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidInput("half a character (a lone surrogate) cannot be stored") from None
        if storable(value) is None:
            return []
        rows = self.database.read(_HEADS_WITH.format(_COLUMN_OF[field]), CONVERSATIONS, value)
        heads = []
        for id, head, updated_at, size in rows:
            name = self.name(CONVERSATIONS, id)
            parsed = Head.of(layout.head_of(head, updated_at, name), name, size)
            heads.append(parsed or Head(id, path=name, bytes=size, damaged=_UNREADABLE))
        return heads

    def external_edits(self, purpose: str = "this") -> NoReturn:
        reason = f"{purpose} needs a store that keeps files; this one keeps none"
        raise Refused(reason, remedy=Remedy("copy", str(self.database.address)), path="")

    def flaws(self) -> Iterator[tuple[str, str, str]]:
        for row in self.database.read(_FLAWS):
            kind, id, entries, count, last, bytes, recorded_bytes = row
            if kind is None:
                yield "", "", f"{count} entries of document {id} exist, but the document does not"
            elif (count, last) != (entries, entries - 1):
                yield (
                    kind,
                    id,
                    f"it has {count} entries up to position {last}, but its row says {entries}",
                )
            else:
                yield kind, id, f"its entries take {bytes} bytes, but its row says {recorded_bytes}"

    def durability(self) -> str:
        return schema.durability(self.database)

    # -- All conversations -------------------------------------------------------------------------

    def queries(self, asker: Viewer | None = None) -> Queries:
        """Return the queries of an asker. Each brings the index up to date before it answers."""
        from capsule.engines.postgres.queries import PostgresQueries

        return PostgresQueries(self.index, asker, self)

    @property
    def index(self) -> PostgresIndex:
        """The index of the conversations."""
        from capsule.engines.postgres.index import PostgresIndex

        with self._thread_lock:
            self._index = self._index or PostgresIndex(self.feed)
            return self._index

    def tracker(self, kind: str | None = None) -> FeedTracker:
        return self.feed.tracker(kind)

    def flush(self, kind: str = "", id: str = "") -> int:
        """Return 0: a commit is durable."""
        return 0

    def toml(self) -> bytes:
        return schema.meta(self.database).settings.encode()

    def set_toml(self, data: bytes, expected: bytes) -> None:
        schema.set_settings(self.database, data.decode(), expected.decode())

    def close(self) -> None:
        with self._thread_lock:
            index = self._index
            self._index = None
        if index is not None:
            index.close()
        with self.database.without_retries():
            self.leases.close()
            self.feed.close()
        self.database.close()


class _WeakLock:
    """A lock that can be referred to weakly."""

    def __init__(self) -> None:
        lock = threading.Lock()
        self.acquire = lock.acquire
        self.release = lock.release
