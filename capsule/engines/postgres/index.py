"""The index of the conversations in tables of the database, and the queries of it.

The tables have a row for each conversation, message, field and so on, derived from the documents.
The row in `indexed` has the snapshot of PostgreSQL in which the index was last up to date. A query
looks for changes that this snapshot does not show. If there are some, it first reads their
conversations and updates the rows: about 4 MiB in each transaction, under a lock that all machines
share. Then it is answered in one transaction that only reads. All queries of SQLite run through
`IndexTables`.

A process caches the heads of conversations. Each transaction that updates the index gives its rows a
new stamp, and heads with a newer stamp are read again.

What must stay true:
- The index is derived, and can be dropped at any time.
- A query sees all that was committed before it began, by any process. A number of a row would not
  show what is missing, since transactions commit in another order.
- A query is answered from one state of the database.
- Changes for the owner are read from the feed alone, without updating the index. The next query
  makes up for it (`needs_update`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import orjson

from capsule.engines.index.index import Index
from capsule.engines.index.parsing import (
    IndexedVersion,
    IndexUpdate,
    lines_of,
    messages_of,
    parse_file,
    with_head,
)
from capsule.engines.index.queries import IndexQueries
from capsule.engines.index.tables import journal
from capsule.engines.index.visibility import ALWAYS_MS, VisibilityFilter, hidden_numbers
from capsule.engines.interface import CONVERSATIONS
from capsule.engines.postgres import layout
from capsule.engines.postgres.rows import PostgresIndexWriter
from capsule.engines.postgres.tables import IndexTables
from capsule.errors import CapsuleError
from capsule.format.documents.head import Head

if TYPE_CHECKING:
    from capsule.engines.changes import Change, Changes
    from capsule.engines.index.database import Progress
    from capsule.engines.index.search.search import SearchPage
    from capsule.engines.index.tables.filters import FilterMatcher
    from capsule.engines.postgres.feed import Feed
    from capsule.engines.queries import FieldValue
    from capsule.rules.policy import Viewer

T = TypeVar("T")
_PREFIX = f"{CONVERSATIONS}/"
#: How many conversations, and about how many bytes, one transaction brings into the index.
_BATCH_CONVERSATIONS = 500
_BATCH_BYTES = 4 << 20
#: The snapshot is renewed after this many transactions, even if no conversation was written.
_MAX_SNAPSHOT_AGE = 1_000
#: Greater than all stamps.
_LAST_STAMP = 1 << 62
#: A snapshot that shows no transaction.
_EMPTY_SNAPSHOT = "1:1:"
#: Waits for another process that updates the index, up to the timeout in `_WRITE`.
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(current_schema(), 0))"
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL search_path = {}"
_WRITE = (
    "BEGIN; SET LOCAL search_path = {}; SET LOCAL synchronous_commit = off; SET LOCAL "
    "lock_timeout = '600s';"
    " SET LOCAL idle_in_transaction_session_timeout = '60s'"
)
#: The changes that a snapshot does not show. The floor is the first transaction that it may not show,
#: and is a value of its own: with it, the key of the table finds the newest changes. The same
#: number taken from a column would have PostgreSQL read the whole table.
_UNINDEXED = f"""FROM changes WHERE xid >= %s::text::xid8
    AND NOT pg_visible_in_snapshot(xid, %s::text::pg_snapshot) AND kind = '{CONVERSATIONS}'"""
#: Describes the index and the database: generation, stamp, snapshots, and the conversations with a newer
#: stamp than a given one.
_INDEX_STATE = """SELECT generation || in_timeline(0), stamp, snapshot, pg_current_snapshot()::text,
    ARRAY(SELECT id FROM capsules WHERE stamp > %s) FROM indexed"""
_LACKS_NOTHING = f"SELECT (SELECT xid {_UNINDEXED} ORDER BY xid LIMIT 1) IS NULL"
#: The conversations that changed since the snapshot of the index, and all of them, each as an SQL
#: query for ids.
_CHANGED_IDS = f"SELECT id {_UNINDEXED}"
_ALL_IDS = f"""SELECT id FROM documents WHERE kind = '{CONVERSATIONS}'
    UNION SELECT id FROM capsules"""
#: The conversations to be indexed, with the bytes to be read. `{}` is a query for ids.
_BACKLOG = f"""SELECT id, CASE WHEN era = row_era THEN size - row_size ELSE coalesce(size, 0) END
    FROM (
        SELECT ids.id, d.version, d.era, size(d) AS size, c.version AS row_version,
            split_part(c.version, '.', 2)::bigint AS row_era, c.size AS row_size, c.gone
        FROM (SELECT DISTINCT id FROM ({{}}) AS changed) AS ids
        LEFT JOIN documents AS d ON d.kind = '{CONVERSATIONS}' AND d.id = ids.id
        LEFT JOIN capsules AS c ON c.id = ids.id
    ) AS of_ids
    WHERE version || '.' || era IS DISTINCT FROM row_version AND (version IS NOT NULL OR gone = 0)
    ORDER BY version"""
#: Those conversations of a list that the index does not have in their present version, each with its
#: entries from the first one that is missing. A deleted conversation has no version.
_READ_CONVERSATIONS = f"""SELECT ids.id, d.version, d.tag, d.era, d.entries, size(d), d.updated_at, d.head, d.rest,
    ARRAY(SELECT body FROM entries WHERE doc = d.num AND place >= first.place ORDER BY place), first.place
    FROM unnest(%s::text[]) AS ids (id)
    LEFT JOIN documents AS d ON d.kind = '{CONVERSATIONS}' AND d.id = ids.id
    LEFT JOIN capsules AS c ON c.id = ids.id
    CROSS JOIN LATERAL (SELECT CASE WHEN NOT %s AND d.era = split_part(c.version, '.', 2)::bigint
        THEN c.entries ELSE 0 END) AS first (place)
    WHERE d.num IS NULL OR d.version || '.' || d.era IS DISTINCT FROM c.version ORDER BY d.version"""
_TABLES = ("capsules", "members", "messages", "facts", "words", "names")


class _Freshness(IntEnum):
    """How fresh the index is, or must be for a query. Each includes the ones before."""

    #: It may lack anything.
    STALE_OK = 0
    #: It was complete at some time, and may lack later writes.
    COMPLETE_ONCE = 1
    #: It has all that is committed.
    UP_TO_DATE = 2


class _ConversationRow(NamedTuple):
    """A conversation in the database; see `schema.sql`.

    `start` is the position of the first entry in `bodies`. The index has the entries before it.
    """

    id: str
    version: int
    tag: int
    era: int
    entries: int
    size: int
    updated_at: str
    head: str
    rest: str
    bodies: list[str]
    start: int

    @property
    def token(self) -> IndexedVersion:
        """The version that the index records."""
        return IndexedVersion(f"{self.version}.{self.era}", self.size, self.version)


class _Backlog(NamedTuple):
    """The conversations that an update of the index has still to read.

    Attributes:
        documents: Their ids, each with the number of bytes to be read.
        snapshot: The snapshot that the index has when all of them are indexed.
        generation: The generation of the index.
        indexed: The snapshot that the index had before, or None.
    """

    documents: list[tuple[str, int]]
    snapshot: str
    generation: str
    indexed: str | None

    @property
    def size(self) -> int:
        """The bytes to be read, at least one for each conversation."""
        return sum(max(bytes, 1) for _, bytes in self.documents)

    def split(self) -> tuple[_Backlog, _Backlog]:
        """Return the part for one transaction, and the rest."""
        size = 0
        count = 0
        for _, bytes in self.documents:
            is_full = count == _BATCH_CONVERSATIONS or size + bytes > _BATCH_BYTES
            if count and is_full:
                break
            size += bytes
            count += 1
        part = self._replace(documents=self.documents[:count])
        return part, self._replace(documents=self.documents[count:])


def _xmin(snapshot: str) -> int:
    """Return the number of the first transaction that may not be in a snapshot."""
    return int(snapshot.partition(":")[0])


class PostgresIndex(Index):
    """The index of the conversations in a database.

    Args:
        feed: The feed of the database.
    """

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._source = feed.database
        super().__init__(None, _PREFIX)

    def _reset(self) -> None:
        super()._reset()
        self.generation = ""
        self._stamp = 0
        #: The snapshot of the index.
        self._snapshot = ""
        #: Whether the feed was read without the index, so that the next query must update that.
        self.needs_update = False

    def _with_current_rows(
        self,
        act: Callable[[], T],
        ids: Iterable[str] | None = None,
        progress: Progress | None = None,
    ) -> T:
        """Run a query on the index, which is updated first. `ids`: () needs no update."""
        if os.getpid() != self._pid:
            self._after_fork()
        with self._thread_lock:
            required = _Freshness.UP_TO_DATE
            if ids == () and not self.needs_update:
                required = _Freshness.STALE_OK
            while True:
                answer = self._source.retry(partial(self._try_query, act, required))
                if answer is not None:
                    break
                self._update(progress)
                # Now the index has all that was committed before the query. If others write without
                # a pause, it would never be up to date.
                required = _Freshness.COMPLETE_ONCE
            if required != _Freshness.STALE_OK:
                self.needs_update = False
            return answer[0]

    def _try_query(self, act: Callable[[], T], required: _Freshness) -> tuple[T] | None:
        """Return the result of `act`, run in one transaction. None: the index is not fresh enough."""
        with self._transaction(_READ) as tables:
            self._reader = threading.get_ident(), tables
            try:
                if self._load_index_state(tables) < required:
                    return None
                return (act(),)
            finally:
                self._reader = 0, None

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[IndexTables]:
        with self._source.transaction(
            begin.format(f'"{self._source.address.schema}"')
        ) as connection:
            yield IndexTables(connection)

    def _load_index_state(self, tables: IndexTables) -> _Freshness:
        """Read the state of the index, and mark the cached heads that have changed as stale."""
        # Without cached heads, none of them is stale.
        since = _LAST_STAMP if self._heads is None else self._stamp
        ((*row, stale_ids),) = tables.query(_INDEX_STATE, since)
        generation, stamp, indexed, current = row
        if generation != self.generation:
            self._reset()
        self.generation = generation
        self._stamp = stamp
        self._stale_ids.update(stale_ids)
        # The feed is read up to the snapshot of the index, which has the permissions of its readers.
        if indexed is None:  # It was never complete.
            self._snapshot = _EMPTY_SNAPSHOT
            return _Freshness.STALE_OK
        ((lacks_nothing,),) = tables.query_once(_LACKS_NOTHING, str(_xmin(indexed)), indexed)
        if not lacks_nothing:
            self._snapshot = indexed
            return _Freshness.COMPLETE_ONCE
        self._snapshot = current
        if _xmin(current) >= _xmin(indexed) + _MAX_SNAPSHOT_AGE:
            return _Freshness.COMPLETE_ONCE  # The snapshot must be renewed.
        return _Freshness.UP_TO_DATE

    # -- Bringing it up to date --------------------------------------------------------------------

    def _update(self, progress: Progress | None) -> None:
        """Index all that is missing, in several transactions: a long one would hold up the feed.

        What is missing is looked up once. `progress` gets the bytes that are indexed, and the bytes
        in all.
        """
        indexed_bytes = 0
        backlog: _Backlog | None = None
        while backlog is None or backlog.documents:
            size, backlog = self._source.retry(partial(self._index_part, backlog))
            indexed_bytes += size
            if progress is not None and size:
                progress(indexed_bytes, indexed_bytes + backlog.size)
        if indexed_bytes > _BATCH_BYTES:
            # PostgreSQL would go on planning for the few rows that the tables had before.
            for table in _TABLES:
                with suppress(CapsuleError):  # Otherwise the autovacuum does it later.
                    self._source.write(f"ANALYZE @{table}")

    def _index_part(self, backlog: _Backlog | None) -> tuple[int, _Backlog]:
        """Index a part of a backlog. None: look up first what is missing.

        Returns: the size of the part in bytes, and the rest of the backlog.
        """
        with self._transaction(_WRITE) as tables:
            tables.query(_LOCK)
            part, rest = (backlog or self._find_backlog(tables)).split()
            if part.documents:
                self._index_documents(tables, [id for id, _ in part.documents])
            if not rest.documents:
                # Not if another process has recorded a later snapshot, or emptied the index.
                tables.query(
                    "UPDATE indexed SET snapshot = %s WHERE generation = %s "
                    "AND snapshot IS NOT DISTINCT FROM %s::text",
                    *(rest.snapshot, rest.generation, rest.indexed),
                )
        return part.size, rest

    @staticmethod
    def _find_backlog(tables: IndexTables) -> _Backlog:
        """Look up what is missing. Cost: a pass over the changes since the last update."""
        ((generation, indexed, current),) = tables.query(
            "SELECT generation, snapshot, pg_current_snapshot()::text FROM indexed"
        )
        if indexed is None:
            documents = tables.query_once(_BACKLOG.format(_ALL_IDS))
        else:
            documents = tables.query_once(
                _BACKLOG.format(_CHANGED_IDS), str(_xmin(indexed)), indexed
            )
        return _Backlog(documents, current, generation, indexed)

    def _index_documents(self, tables: IndexTables, ids: list[str]) -> None:
        """Update the rows of conversations. Those that are up to date by now stay."""
        ((stamp,),) = tables.query("UPDATE indexed SET stamp = stamp + 1 RETURNING stamp")
        documents = tables.query(_READ_CONVERSATIONS, ids, False)
        writer = PostgresIndexWriter(tables, stamp, ids)
        with tables.pipeline():
            for id, version, *columns in documents:
                row = writer.get(id)
                if version is not None:
                    document = _ConversationRow(id, version, *columns)
                    update = _index_input(document) or self._read_from_start(tables, id)
                    writer.put(id, row, update)
                elif row is not None and not row["gone"]:
                    writer.remove(id, row, by_store=True)

    @staticmethod
    def _read_from_start(tables: IndexTables, id: str) -> IndexUpdate:
        """Read a conversation with all entries, as its new ones are not enough."""
        ((*columns,),) = tables.query(_READ_CONVERSATIONS, [id], True)
        update = _index_input(_ConversationRow(*columns))
        assert update is not None, f"{id}: it was read from its first entry on"
        return update

    def drop(self) -> None:
        """Empty the tables. The next query fills them. Raises Refused, StorageFailed, StoreBusy."""

        def empty() -> None:
            with self._transaction(_WRITE) as tables:
                tables.query(_LOCK)
                for table in _TABLES:
                    tables.query(f"DELETE FROM {table}")
                tables.query(
                    "UPDATE indexed SET generation = %s, snapshot = NULL", os.urandom(8).hex()
                )

        with self._thread_lock:
            self._source.retry(empty)

    def close(self) -> None:
        """Drop the cached heads."""
        with self._thread_lock:
            self._reset()

    def query(
        self,
        asker: Viewer | None,
        ask: Callable[[Any, VisibilityFilter], T],
        ids: Iterable[str] | None = None,
        progress: Progress | None = None,
    ) -> T:
        if self._reader[0] == threading.get_ident():
            return super().query(asker, ask)
        return self._with_current_rows(
            lambda: super(PostgresIndex, self).query(asker, ask), ids, progress
        )

    # -- Queries -----------------------------------------------------------------------------------

    def hide(self, db: Any, hidden: Mapping[str, int | None]) -> VisibilityFilter:
        hidden_nums, visible_from_ms = hidden_numbers(db, hidden)
        times = orjson.dumps({str(num): time_ms for num, time_ms in visible_from_ms.items()})
        since = times.decode().replace("{", "{{").replace("}", "}}")
        return VisibilityFilter.with_conditions(
            hidden_nums,
            visible_from_ms,
            f"coalesce(('{since}'::jsonb ->> ({{}})::text)::bigint, {ALWAYS_MS})",
        )

    def changes(self, db: Any, since: str | None, limit: int) -> tuple[list[Change], str]:
        """Return the changes that are indexed; see `Index.changes`."""
        return self.feed.changes(since, limit, self._snapshot)


class PostgresQueries(IndexQueries):
    """The queries of one asker. See `Queries`, which describes the methods."""

    _index: PostgresIndex

    def _search_classes(self) -> tuple[type[SearchPage], type[FilterMatcher]]:
        from capsule.engines.postgres.search import PostgresFilterMatcher, PostgresSearchPage

        return PostgresSearchPage, PostgresFilterMatcher

    def values(self, path: str, conversation: str) -> list[FieldValue]:
        from capsule.engines.postgres.search import values_of

        return self._index.query(
            self._asker, lambda db, hidden: values_of(db, path, conversation, hidden)
        )

    def changes(self, since: str | None, limit: int, *, refresh: bool = True) -> Changes:
        """Waits up to 0.5 s for transactions that are open in the database.

        Without `refresh`, the owner gets what the hub of this process was told of.
        """
        feed = self._index.feed
        if refresh:
            feed.wait_for_horizon()
        if self._asker is not None:
            return super().changes(since, limit, refresh=refresh)
        from capsule.engines.changes import Changes

        found = None
        if since is not None and not refresh:
            found = feed.new_changes(since, limit)
        if found is None:
            found = feed.changes(since, limit)
        changes = Changes(*found)
        is_behind = refresh or bool(changes.changes)
        self._index.needs_update = self._index.needs_update or is_behind
        return changes

    def _journal_cursor(self, cursor: str) -> str:
        """Return the cursor for the feed.

        If an agent gives an owner's cursor, only its transaction is used: the number of a row would
        reveal how many changes the agent may not see.
        """
        if self._asker is None or "." not in cursor:
            return self._unsealed(cursor)
        return str(journal.Cursor.parse(cursor)._replace(seq=0, skip=0))

    def last_valid_version(self, conversation: str) -> tuple[dict[str, Any], frozenset[str]] | None:
        """Return the conversation itself for the owner: no document in a database is damaged."""
        if self._asker is None and self._engine.exists(CONVERSATIONS, conversation):
            return self._engine.document(CONVERSATIONS, conversation), frozenset()
        return None


def _index_input(document: _ConversationRow) -> IndexUpdate | None:
    """Return the update of the index for a conversation.

    Returns None if the entries from `start` on are not enough, so that all must be read.
    """
    name = f"{_PREFIX}{document.id}.json"
    tag = layout.tag_of(document.tag)
    if not document.start:
        data = layout.join_document(
            document.head, document.rest, document.updated_at, document.bodies
        )
        file = parse_file(data, document.token, name, document.id)
        return file._replace(tag=tag, by_store=True)
    entries = layout.entries_in(document.bodies, name)
    messages = messages_of(entries, map(lines_of, entries))
    if messages is None:
        return None
    fields = layout.head_of(document.head, document.updated_at, name)
    if document.rest:
        fields |= layout.head_of(document.rest, document.updated_at, name)
    file = IndexUpdate(
        document.token, False, tag=tag, by_store=True, start=document.start, messages=messages
    )
    return with_head(
        file._replace(entries=document.entries), fields, Head.of(fields, name, document.size)
    )
