"""The index of the conversations in tables of the database, and how it is brought up to date.

The tables have a row for each conversation, message, field and so on, derived from the documents.
The row in `indexed` has the snapshot of PostgreSQL in which the index was last up to date. A query
looks for changes that this snapshot does not show. If there are some, it first reads their
conversations and updates the rows: about 4 MiB in each transaction, under a lock that all machines
share. Then it is answered in one transaction that only reads.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from capsule.engines.interface import CONVERSATIONS
from capsule.engines.postgres import layout
from capsule.engines.postgres.tables import IndexTables
from capsule.engines.questions.heads import HEAD_COLUMNS, MAX_REPLACED, HeadCache, head_of
from capsule.errors import CapsuleError
from capsule.process_forks import call_in_child

if TYPE_CHECKING:
    from capsule.engines.changes import Change
    from capsule.engines.cursor_seal import CursorSeal
    from capsule.engines.local_documents import LocalDocuments
    from capsule.engines.postgres.feed import Feed
    from capsule.engines.queries import Progress
    from capsule.engines.questions.change_cursors import JournalEnd
    from capsule.engines.questions.parsing import IndexUpdate
    from capsule.format.documents.head import Head

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
_UNINDEXED = f"""FROM changes WHERE xid >= %(floor)s::text::xid8
    AND NOT pg_visible_in_snapshot(xid, %(snapshot)s::text::pg_snapshot)
    AND kind = '{CONVERSATIONS}'"""
_LACKS_NOTHING = f"SELECT (SELECT xid {_UNINDEXED} ORDER BY xid LIMIT 1) IS NULL"
#: Describes the index and the database: generation, stamp, snapshots, and the conversations with a newer
#: stamp than a given one.
_INDEX_STATE = """SELECT generation || in_timeline(0), stamp, snapshot, pg_current_snapshot()::text,
    ARRAY(SELECT id FROM capsules WHERE stamp > %(since)s) FROM indexed"""
#: The conversations that changed since the snapshot of the index, and all of them, each as an SQL
#: query for ids.
_CHANGED_IDS = f"SELECT id {_UNINDEXED}"
_ALL_IDS = f"SELECT id FROM documents WHERE kind = '{CONVERSATIONS}' UNION SELECT id FROM capsules"
#: The conversations to be indexed, with the bytes to be read. `{}` is a query for ids.
_BACKLOG = f"""SELECT ids.id, coalesce(size(d), 0) - CASE WHEN d.era = c.era THEN c.size ELSE 0 END
    FROM (SELECT DISTINCT id FROM ({{}}) AS changed) AS ids
    LEFT JOIN documents AS d ON d.kind = '{CONVERSATIONS}' AND d.id = ids.id
    LEFT JOIN capsules AS c ON c.id = ids.id
    WHERE d.version IS DISTINCT FROM c.version AND (d.num IS NOT NULL OR c.gone = 0)
    ORDER BY d.version"""
#: Those conversations of a list that the index does not have in their present version, each with its
#: entries from the first one that is missing. A deleted conversation has no version.
_READ_CONVERSATIONS = f"""SELECT ids.id, d.version, d.tag, d.era, d.entries, size(d), d.updated_at, d.head, d.rest,
    ARRAY(SELECT body FROM entries WHERE doc = d.num AND place >= first.place ORDER BY place), first.place
    FROM unnest(%(ids)s::text[]) AS ids (id)
    LEFT JOIN documents AS d ON d.kind = '{CONVERSATIONS}' AND d.id = ids.id
    LEFT JOIN capsules AS c ON c.id = ids.id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN d.era = c.era AND NOT %(is_whole)s THEN c.entries ELSE 0 END
    ) AS first (place)
    WHERE d.version IS DISTINCT FROM c.version ORDER BY d.version"""
_TABLES = ("capsules", "members", "messages", "facts", "words", "names")


class Freshness(IntEnum):
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


class PostgresIndex:
    """The index of the conversations in a database. Several threads may use it.

    Args:
        feed: The feed of the database.

    Attributes:
        generation: Identifies one build of the index.
        journal_ends: By agent: how far the feed was read for it.
        needs_update: Whether the feed was read without the index, so that the next query must
            update that.
    """

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._database = feed.database
        self._reset_after_fork()
        call_in_child(self, PostgresIndex._reset_after_fork)

    def _reset_after_fork(self) -> None:
        self._thread_lock = threading.RLock()
        #: The thread that reads within a transaction (0: none), and its tables.
        self._reader: tuple[int, IndexTables | None] = 0, None
        self._reset()

    def _reset(self) -> None:
        """Forget everything about the rows."""
        self.generation = ""
        self.needs_update = False
        self.journal_ends: dict[str, JournalEnd] = {}
        self._head_cache: HeadCache | None = None
        #: The conversations whose rows changed since their heads were read.
        self._stale_ids: set[str] = set()
        self._seals: dict[str, CursorSeal] = {}
        self._stamp = 0
        #: The snapshot of the index.
        self._snapshot = ""

    # -- Queries -----------------------------------------------------------------------------------

    def query(
        self,
        run: Callable[[IndexTables], T],
        required: Freshness = Freshness.UP_TO_DATE,
        progress: Progress | None = None,
    ) -> T:
        """Read the index within one transaction, after bringing it up to date as required.

        A query within another one reads the same state of the rows.

        Args:
            run: The query. It runs again if the connection is lost.
            required: How fresh the index must be.
            progress: Called with the bytes read so far and their total, if there is much to read.
        """
        reader, tables = self._reader
        if tables is not None and reader == threading.get_ident():
            return run(tables)
        with self._thread_lock:
            while (answer := self._database.retry(partial(self._try, run, required))) is None:
                self._update(progress)
                # Now the index has all that was committed before the query. If others write without
                # a pause, it would never be up to date.
                required = Freshness.COMPLETE_ONCE
            if required != Freshness.STALE_OK:
                self.needs_update = False
            return answer[0]

    def _try(self, run: Callable[[IndexTables], T], required: Freshness) -> tuple[T] | None:
        """Return the result of a query, in one transaction. None: the index is not fresh enough."""
        with self._transaction(_READ) as tables:
            self._reader = threading.get_ident(), tables
            try:
                if self._load_index_state(tables) < required:
                    return None
                return (run(tables),)
            finally:
                self._reader = 0, None

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[IndexTables]:
        statement = begin.format(f'"{self._database.address.schema}"')
        with self._database.transaction(statement) as connection:
            yield IndexTables(connection)

    def _load_index_state(self, tables: IndexTables) -> Freshness:
        """Read the state of the index, and mark the cached heads that have changed as stale."""
        # Without cached heads, none of them is stale.
        since = _LAST_STAMP if self._head_cache is None else self._stamp
        ((*row, stale_ids),) = tables.query(_INDEX_STATE, {"since": since})
        generation, stamp, indexed, current = row
        if generation != self.generation:
            self._reset()
        self.generation = generation
        self._stamp = stamp
        self._stale_ids.update(stale_ids)
        # The feed is read up to the snapshot of the index, which has the permissions of its readers.
        if indexed is None:  # It was never complete.
            self._snapshot = _EMPTY_SNAPSHOT
            return Freshness.STALE_OK
        snapshot = {"floor": str(_xmin(indexed)), "snapshot": indexed}
        ((lacks_nothing,),) = tables.query_once(_LACKS_NOTHING, snapshot)
        if not lacks_nothing:
            self._snapshot = indexed
            return Freshness.COMPLETE_ONCE
        self._snapshot = current
        if _xmin(current) >= _xmin(indexed) + _MAX_SNAPSHOT_AGE:
            return Freshness.COMPLETE_ONCE  # The snapshot must be renewed.
        return Freshness.UP_TO_DATE

    # -- Heads in memory. Call these within `query` only -------------------------------------------

    def head_cache(self, tables: IndexTables) -> HeadCache:
        """Return the heads of all conversations, after reading those again that changed."""
        if self._head_cache is None:
            self._head_cache = HeadCache(_numbered_heads(tables, "TRUE", {}))
        elif self._stale_ids:
            if len(self._stale_ids) > MAX_REPLACED:
                self._head_cache.forget_orders()
            rows = _numbered_heads(
                tables, "id = ANY(%(ids)s::text[])", {"ids": list(self._stale_ids)}
            )
            present = {head.id: (num, head) for num, head in rows}
            for id in self._stale_ids:
                num, head = present.get(id, (0, None))
                self._head_cache.replace(id, num, head)
        self._stale_ids = set()
        return self._head_cache

    def changes(self, since: str | None, limit: int) -> tuple[list[Change], str]:
        """Return the changes that are indexed since a cursor, and the cursor after them."""
        return self.feed.changes(since, limit, self._snapshot)

    def seal(self, agent: str, local: LocalDocuments) -> CursorSeal:
        """Return the seal of an agent's cursors."""
        if agent not in self._seals:
            from capsule.engines.cursor_seal import CursorSeal

            self._seals[agent] = CursorSeal(agent, local)
        return self._seals[agent]

    # -- Bringing it up to date --------------------------------------------------------------------

    def refresh(self, progress: Progress | None = None) -> None:
        """Bring the index up to date. Raises StoreBusy, Refused, StorageFailed."""
        self.query(lambda _: None, progress=progress)

    def _update(self, progress: Progress | None) -> None:
        """Index all that is missing, in several transactions: a long one would hold up the feed.

        What is missing is looked up once. `progress` gets the bytes that are indexed, and the bytes
        in all.
        """
        indexed_bytes = 0
        backlog: _Backlog | None = None
        while backlog is None or backlog.documents:
            size, backlog = self._database.retry(partial(self._index_part, backlog))
            indexed_bytes += size
            if progress is not None and size:
                progress(indexed_bytes, indexed_bytes + backlog.size)
        if indexed_bytes > _BATCH_BYTES:
            # PostgreSQL would go on planning for the few rows that the tables had before.
            for table in _TABLES:
                with suppress(CapsuleError):  # Otherwise the autovacuum does it later.
                    self._database.write(f"ANALYZE @{table}")

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
                    "UPDATE indexed SET snapshot = %(snapshot)s WHERE generation = %(generation)s "
                    "AND snapshot IS NOT DISTINCT FROM %(indexed)s::text",
                    rest._asdict(),
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
                _BACKLOG.format(_CHANGED_IDS), {"floor": str(_xmin(indexed)), "snapshot": indexed}
            )
        return _Backlog([(id, size) for id, size in documents], current, generation, indexed)

    @staticmethod
    def _index_documents(tables: IndexTables, ids: list[str]) -> None:
        """Update the rows of conversations. Those that are up to date by now stay."""
        # Imported here, as a query mostly finds the index up to date.
        from capsule.engines.postgres.rows import DocumentVersionRow, RowWriter

        documents = tables.query(_READ_CONVERSATIONS, {"ids": ids, "is_whole": False})
        if not documents:
            return
        ((stamp,),) = tables.query("UPDATE indexed SET stamp = stamp + 1 RETURNING stamp")
        writer = RowWriter(tables, stamp, [id for id, *_ in documents])
        for id, version, *columns in documents:
            if version is None:
                writer.remove(id)
                continue
            document = _ConversationRow(id, version, *columns)
            update = _index_input(document) or _read_from_start(tables, id)
            writer.put(id, DocumentVersionRow(version, document.era, document.size), update)
        writer.flush()

    # -- The whole index ---------------------------------------------------------------------------

    def rebuild(self, progress: Progress | None = None) -> None:
        """Build the index again from the documents. Raises Refused, StorageFailed, StoreBusy."""
        with self._thread_lock:
            self.drop()
            self.refresh(progress)

    def drop(self) -> None:
        """Empty the tables. The next query fills them. Raises Refused, StorageFailed, StoreBusy."""

        def empty() -> None:
            with self._transaction(_WRITE) as tables:
                tables.query(_LOCK)
                for table in _TABLES:
                    tables.query(f"DELETE FROM {table}")
                tables.query(
                    "UPDATE indexed SET generation = %(generation)s, snapshot = NULL, "
                    "texts = 0, text_words = 0, titles = 0, title_words = 0",
                    {"generation": os.urandom(8).hex()},
                )

        with self._thread_lock:
            self._database.retry(empty)

    def close(self) -> None:
        """Drop the cached heads."""
        with self._thread_lock:
            self._reset()


def heads_where(tables: IndexTables, condition: str, values: Mapping[str, Any] = {}) -> list[Head]:
    """Return the heads of conversations that meet a condition on their row `c`. It may go on with
    an order.
    """
    return [head for _, head in _numbered_heads(tables, condition, values)]


def _numbered_heads(
    tables: IndexTables, condition: str, values: Mapping[str, Any]
) -> list[tuple[int, Head]]:
    """Return the heads of conversations that meet a condition, each with the number of its row."""
    rows = tables.query(
        f"SELECT num, {HEAD_COLUMNS} FROM capsules AS c WHERE gone = 0 AND {condition}", values
    )
    return [(num, head_of(tuple(columns), _PREFIX)) for num, *columns in rows]


def _read_from_start(tables: IndexTables, id: str) -> IndexUpdate:
    """Read a conversation with all entries, as its new ones are not enough."""
    ((*columns,),) = tables.query(_READ_CONVERSATIONS, {"ids": [id], "is_whole": True})
    update = _index_input(_ConversationRow(*columns))
    assert update is not None, f"{id}: it was read from its first entry on"
    return update


def _index_input(document: _ConversationRow) -> IndexUpdate | None:
    """Return the update of the index for a conversation.

    Returns None if the entries from `start` on are not enough, so that all must be read.
    """
    from capsule.engines.questions.parsing import (
        IndexedVersion,
        IndexUpdate,
        lines_of,
        messages_of,
        parse_file,
        with_head,
    )
    from capsule.format.documents.head import Head

    name = f"{_PREFIX}{document.id}.json"
    tag = layout.tag_of(document.tag)
    version = IndexedVersion(str(document.version), document.size, document.version)
    if not document.start:
        data = layout.join_document(
            document.head, document.rest, document.updated_at, document.bodies
        )
        return parse_file(data, version, name, document.id)._replace(tag=tag, by_store=True)
    entries = layout.entries_in(document.bodies, name)
    messages = messages_of(entries, map(lines_of, entries))
    if messages is None:
        return None
    fields = layout.head_of(document.head, document.updated_at, name)
    if document.rest:
        fields |= layout.head_of(document.rest, document.updated_at, name)
    update = IndexUpdate(
        version,
        False,
        tag=tag,
        by_store=True,
        start=document.start,
        messages=messages,
        entries=document.entries,
    )
    return with_head(update, fields, Head.of(fields, name, document.size))
