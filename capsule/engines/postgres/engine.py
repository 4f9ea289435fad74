"""Implement the engine of a store in PostgreSQL, which many machines can open.

A write is one call of a function in the database (`writing.py`). Reads ask the database. The engine
caches states of documents only as a first guess for writes, which the database then checks.

What must stay true: every later call of every machine sees what a call acknowledged. No result is
based on the cache alone. Local documents never get into the database.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from capsule.engines.postgres import layout, schema, told
from capsule.engines.postgres.beside import PostgresFiles, PostgresTrash
from capsule.engines.postgres.feed import Feed
from capsule.engines.postgres.layout import RowState
from capsule.engines.postgres.leases import PostgresLeases
from capsule.engines.postgres.told import Events
from capsule.engines.postgres.transaction import Place, PostgresTransaction
from capsule.engines.postgres.writing import (
    DocumentWrite,
    DocumentWriter,
    PostgresVersion,
    message_key,
    number_of,
)
from capsule.errors import CapsuleError, ConcurrentWrite, Refused, Remedy, StorageFailed, StoreBusy
from capsule.format.documents.head import ParsedHead
from capsule.format.json import codec
from capsule.ids import check_id
from capsule.process_forks import call_in_child

if TYPE_CHECKING:
    from capsule.disk.directory_tracker import TouchedNames
    from capsule.engines.index.queries import IndexQueries
    from capsule.engines.local_documents import LocalDocuments
    from capsule.engines.postgres.database import PostgresDatabase
    from capsule.engines.postgres.index import PostgresIndex
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
#: Documents whose rows do not agree with those of their entries, and entries without a document.
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
#: Documents of which this process remembers what it saw last.
_MOST = 1024


class PostgresEngine:
    """The documents of one store in a database. `Engine` describes the methods.

    Several threads may use it.

    Args:
        database: The database, whose schema was checked.
        local: The local documents of this machine.
        timeout_s: How long to wait for a document that another thread writes, in seconds.
    """

    def __init__(
        self, database: PostgresDatabase, local: LocalDocuments, timeout_s: float = 10.0
    ) -> None:
        self.database = database
        self.local = local
        local.of_store = {"cursors": lambda: schema.key(database)}
        self._timeout_s = timeout_s
        self.feed = Feed(database)
        self.leases = PostgresLeases(database)
        self.files = PostgresFiles(database)
        self.trash = PostgresTrash(database, self._put_back, lambda: self.index.refresh())
        self._writing = DocumentWriter(database, self.feed.ring)
        self._begin()
        call_in_child(self, PostgresEngine._begin)

    def _begin(self) -> None:
        self._guard = threading.RLock()
        self._locks: weakref.WeakValueDictionary[tuple[str, str], Any] = (
            weakref.WeakValueDictionary()
        )
        self._seen: OrderedDict[tuple[str, str], RowState] = OrderedDict()
        self._index: PostgresIndex | None = None

    # -- One document ------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, kind: str, id: str) -> Iterator[PostgresTransaction]:
        """Costs a round trip unless this process saw the document before."""
        place = kind, check_id(id)
        with self._guard:
            lock = self._locks.get(place) or self._locks.setdefault(place, _WeakLock())
        if not lock.acquire(timeout=self._timeout_s):
            holder = "another thread of this process"
            why = (
                f"{self.name(kind, id)} has been held by {holder} for more than "
                f"{self._timeout_s:g} s"
            )
            raise StoreBusy(why, id=id, holder=holder)
        try:
            guess = self._seen.get(place)
            transaction = PostgresTransaction(
                self, kind, id, guess or self._state(kind, id), is_sure=guess is None
            )
            try:
                yield transaction
                transaction.ensure_sure()
            except (ConcurrentWrite, StorageFailed):
                self._forget(place)
                raise
            except CapsuleError:
                self._forget(place)
                transaction.ensure_sure()  # Else it may have been refused on what was so once.
                raise
        finally:
            lock.release()

    def _state(self, kind: str, id: str) -> RowState:
        row = self.database.one(_STATE, kind, id)
        if row is None:
            raise not_found(kind, id)
        version, tag, era, entries, size, updated_at, newest, time, ends_active, head = row
        fields = layout.head_of(head, updated_at, self.name(kind, id)) if head else {}
        parsed = ParsedHead(layout.tag_of(tag), fields)
        return self._noted(
            kind,
            id,
            RowState(
                version, tag, era, entries, size, updated_at, newest, time, ends_active, parsed
            ),
        )

    def _noted(self, kind: str, id: str, state: RowState) -> RowState:
        with self._guard:
            self._seen[kind, id] = state
            self._seen.move_to_end((kind, id))
            while len(self._seen) > _MOST:
                self._seen.popitem(last=False)
        return state

    def _forget(self, place: tuple[str, str]) -> None:
        with self._guard:
            self._seen.pop(place, None)

    def save(self, save: DocumentWrite, read_set: ReadSet, events: Events, **more: Any) -> RowState:
        """As `DocumentWriter.save`, and remember what is there then."""
        state = self._writing.save(save, read_set, events, **more)
        if not state.version:  # It was written by a try whose answer was lost.
            self._forget((save["kind"], save["id"]))
            return state
        return self._noted(save["kind"], save["id"], state)

    def remove(self, kind: str, id: str, version: int, data: bytes, read_set: ReadSet) -> Trashed:
        """As `DocumentWriter.remove`, and forget it."""
        self._forget((kind, id))
        event = "deleted" if kind == CONVERSATIONS else ""
        return self._writing.remove(kind, id, version, data, event, read_set)

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
        new, history = layout.pieces(document), document["history"]
        save: DocumentWrite = {
            "kind": kind,
            "id": check_id(document["id"]),
            "tag": 0,
            "messages": [message_key(str(entry.get("id", ""))) for entry in history],
            "bodies": new.bodies,
            "stamp": str(document.get("updatedAt", "")),
            "head": new.head,
            "rest": new.rest,
        }
        return self.save(save, read_set, told.created(kind, document, event))

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
            saved = self._writing.save(save, read_set or {}, data=data)
        finally:
            self._forget((kind, id))
        return PostgresVersion(data, saved.version)

    def _put_back(self, kind: str, id: str, data: bytes) -> None:
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
        def act() -> Trashed:
            found = self.whole(kind, check_id(id))
            if found is None:
                raise not_found(kind, id)
            return self.remove(kind, id, found[0], found[1], {})

        return retry(act, self.name(kind, id), id)

    def exists(self, kind: str, id: str) -> bool:
        return self.number(kind, id) != 0

    def number(self, kind: str, id: str) -> int:
        """The number of the present version of a document; 0: there is none."""
        row = self.database.one(
            "SELECT version FROM @documents WHERE kind = %s AND id = %s", kind, id
        )
        return row[0] if row else 0

    def version(
        self, kind: str, id: str, cached: DocumentVersion | None = None
    ) -> DocumentVersion | None:
        """Costs a round trip, in which the document comes only if it is another one."""
        statement = (
            "SELECT version, CASE WHEN version <> %s THEN data END FROM @documents WHERE "
            "kind = %s AND id = %s"
        )
        row = self.database.one(statement, number_of(cached), kind, id)
        if row is None:
            return None
        return cached if row[0] == number_of(cached) else PostgresVersion(row[1], row[0])

    def ids(self, kind: str) -> list[str]:
        return [
            id
            for (id,) in self.database.read(
                "SELECT id FROM @documents WHERE kind = %s ORDER BY id", kind
            )
        ]

    def name(self, kind: str, id: str) -> str:
        return f"{kind}/{id}.json"

    def whole(self, kind: str, id: str) -> tuple[int, bytes, list[str]] | None:
        """A document as it is: the number of its version, its bytes, and its entries; None: there
        is none.
        """
        row = self.database.one(_WHOLE, kind, id)
        if row is None:
            return None
        version, head, rest, updated_at, data, bodies = row
        return (
            version,
            layout.joined(head, rest, updated_at, bodies) if data is None else data,
            bodies,
        )

    def read(self, kind: str, id: str) -> bytes:
        found = self.whole(kind, check_id(id))
        if found is None:
            raise not_found(kind, id)
        return found[1]

    def document(self, kind: str, id: str) -> Document:
        return codec.decode(self.read(kind, id), self.name(kind, id))

    def follow(self, kind: str, id: str, since: Place | None = None) -> EntriesSince:
        """Costs a round trip, in which only what is new comes."""
        era, count = since or (-1, 0)
        row = self.database.one(
            "SELECT era, entries, ARRAY(SELECT body FROM @entries WHERE doc = d.num"
            " AND place >= CASE WHEN d.era = %s THEN %s ELSE 0 END ORDER BY place)"
            " FROM @documents AS d WHERE kind = %s AND id = %s",
            era,
            count,
            kind,
            check_id(id),
        )
        if row is None:
            raise not_found(kind, id)
        return EntriesSince(
            (row[0], row[1]), layout.entries_in(row[2], self.name(kind, id)), row[0] != era
        )

    def entry(self, kind: str, id: str, message: str) -> tuple[int, Document] | None:
        """The place of an entry, and the entry; None: there is none of this id."""
        row = self.database.one(
            "SELECT place, body FROM @entries WHERE message = %s::bytea"
            " AND doc = (SELECT num FROM @documents WHERE kind = %s AND id = %s) ORDER BY place "
            "LIMIT 1",
            message_key(message),
            kind,
            id,
        )
        return (
            None if row is None else (row[0], layout.entries_in([row[1]], self.name(kind, id))[0])
        )

    def parsed(self, id: str, parse: Callable[[bytes, bool], T]) -> T:
        return parse(self.read(CONVERSATIONS, id), True)

    def tail(self, id: str, n: int) -> tuple[bytes, int, str]:
        """Costs a round trip, in which only these entries come."""
        row = self.database.one(
            "SELECT entries, tag, ARRAY(SELECT body FROM @entries WHERE doc = d.num AND place >= "
            "d.entries - %s"
            " ORDER BY place) FROM @documents AS d WHERE kind = %s AND id = %s",
            max(n, 0),
            CONVERSATIONS,
            check_id(id),
        )
        if row is None:
            raise not_found(CONVERSATIONS, id)
        return b"[\n" + ",\n".join(row[2]).encode() + b"]", row[0], layout.tag_of(row[1])

    def head(self, id: str) -> tuple[Document, int]:
        statement = (
            "SELECT head, updated_at, @size(d) FROM @documents AS d WHERE kind = %s AND id = %s"
        )
        row = self.database.one(statement, CONVERSATIONS, check_id(id))
        if row is None:
            raise not_found(CONVERSATIONS, id)
        return layout.head_of(row[0], row[1], self.name(CONVERSATIONS, id)), row[2]

    def external_edits(self, purpose: str = "this") -> NoReturn:
        why = f"{purpose} needs a store that keeps files; this one keeps none"
        raise Refused(why, remedy=Remedy("copy", str(self.database.address)), path="")

    def flaws(self) -> Iterator[tuple[str, str, str]]:
        for kind, id, entries, count, last, bytes, said in self.database.read(_FLAWS):
            if kind is None:
                yield "", "", f"{count} entries of document {id} exist, but the document does not"
            elif (count, last) != (entries, entries - 1):
                yield (
                    kind,
                    id,
                    f"it has {count} entries up to position {last}, but its row says {entries}",
                )
            else:
                yield kind, id, f"its entries take {bytes} bytes, but its row says {said}"

    def durability(self) -> str:
        return schema.durability(self.database)

    # -- All conversations -------------------------------------------------------------------------

    def queries(self, asker: Viewer | None = None) -> IndexQueries:
        """The questions of an asker; each takes into the index what was written since the last one
        of anybody.
        """
        from capsule.engines.postgres.index import PostgresQueries

        return PostgresQueries(self.index, asker, self)

    @property
    def index(self) -> PostgresIndex:
        """The index of the conversations."""
        from capsule.engines.postgres.index import PostgresIndex

        with self._guard:
            self._index = self._index or PostgresIndex(self.feed)
            return self._index

    def tracker(self, kind: str | None = None) -> TouchedNames:
        return self.feed.tracker(kind)

    def flush(self, kind: str = "", id: str = "") -> int:
        """What was committed is durable."""
        return 0

    def toml(self) -> bytes:
        return schema.meta(self.database).settings.encode()

    def set_toml(self, data: bytes, expected: bytes) -> None:
        schema.set_settings(self.database, data.decode(), expected.decode())

    def close(self) -> None:
        with self._guard:
            index, self._index = self._index, None
        if index is not None:
            index.close()
        with self.database.hurried():
            self.leases.close()
            self.feed.close()
        self.database.close()


class _WeakLock:
    """A lock that can be referred to weakly."""

    def __init__(self) -> None:
        lock = threading.Lock()
        self.acquire, self.release = lock.acquire, lock.release
