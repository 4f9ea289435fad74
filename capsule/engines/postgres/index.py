"""Keep the index of the conversations in tables of the database, and query it.

The tables are derived from the documents. A query first takes in all changes that were committed
before it, whoever wrote them: those that the snapshot of the last update did not show. It does this
in parts, each in a transaction of its own, under a lock of all machines. Then it reads one state of
the database. A process keeps heads in memory, and reads again those with a newer stamp.

What must stay true: a result has all that was committed before the query. Changes for the owner
come from the feed alone, without an update of the index. The next query does that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
from capsule.errors import CapsuleError, InvalidInput
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
#: What is taken in together: so many conversations, and about so many bytes.
_MOST, _BATCH_BYTES = 500, 4 << 20
#: After so many transactions the snapshot is kept, also if no conversation was written.
_FAR = 10_000
#: Behind all stamps; and a snapshot that shows nothing.
_LAST_STAMP, _EMPTY = 1 << 62, "1:1:"
#: What a question needs of the index: that it is as it is; that it once had all; that it has all.
_AS_IT_IS, _ONCE_ALL, _ALL = range(3)
#: In place of conversations: only the feed is asked.
_FEED: frozenset[str] = frozenset()
#: Who takes in waits for another who does, for as long as `_WRITE` says.
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(current_schema(), 0))"
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL search_path = {}"
_WRITE = (
    "BEGIN; SET LOCAL search_path = {}; SET LOCAL synchronous_commit = off; SET LOCAL "
    "lock_timeout = '600s';"
    " SET LOCAL idle_in_transaction_session_timeout = '60s'"
)
_IS_NEW = (
    "NOT pg_visible_in_snapshot(xid, snapshot::pg_snapshot) AND xid >= "
    "pg_snapshot_xmin(snapshot::pg_snapshot)"
)
_CHANGED = f"SELECT id FROM changes WHERE {_IS_NEW} AND kind = '{CONVERSATIONS}'"
_LOOK = f"""SELECT generation || in_timeline(0), (SELECT value FROM meta WHERE key = 'generation'), stamp,
    snapshot, pg_current_snapshot()::text, NOT EXISTS ({_CHANGED}),
    (SELECT value::bigint FROM meta WHERE key = 'pruned'), ARRAY(SELECT id FROM capsules WHERE stamp > %s)
    FROM indexed"""
#: What is to be taken in: ids, the places behind what the rows have, and the bytes that are to be
#: read.
_MISSING = f"""SELECT id, CASE WHEN era = row_era THEN row_entries ELSE 0 END,
    CASE WHEN era = row_era THEN size - row_size ELSE coalesce(size, 0) END
    FROM (
        SELECT ids.id, d.version, d.era, size(d) AS size, c.version AS row_version,
            split_part(c.version, '.', 2)::bigint AS row_era, c.entries AS row_entries, c.size AS row_size, c.gone
        FROM (
            SELECT id FROM indexed, LATERAL ({_CHANGED}) AS changed
            UNION SELECT id FROM indexed, documents WHERE snapshot IS NULL AND kind = '{CONVERSATIONS}'
            UNION SELECT id FROM indexed, capsules WHERE snapshot IS NULL
        ) AS ids
        LEFT JOIN documents AS d ON d.kind = '{CONVERSATIONS}' AND d.id = ids.id
        LEFT JOIN capsules AS c ON c.id = ids.id
    ) AS of_ids
    WHERE version || '.' || era IS DISTINCT FROM row_version AND (version IS NOT NULL OR gone = 0)
    ORDER BY version"""
#: Conversations, with their entries from a place on.
_READ_THESE = """SELECT d.id, version, tag, era, entries, size(d), updated_at, head, rest,
    ARRAY(SELECT body FROM entries WHERE doc = d.num AND place >= k.place ORDER BY place), k.place
    FROM documents AS d JOIN unnest(%s::text[], %s::integer[]) AS k(id, place) ON k.id = d.id
    WHERE kind = 'conversations' ORDER BY version"""
_TABLES = ("capsules", "members", "messages", "facts", "words", "names")


class _ConversationRow(NamedTuple):
    """A conversation in the database. See `schema.sql`.

    `start` is the position of the first of `bodies`.
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
        """What tells its version from others."""
        return IndexedVersion(f"{self.version}.{self.era}", self.size, self.version)


def _xmin(snapshot: str) -> int:
    """The first transaction that may not be in a snapshot."""
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
        self.generation, self._stamp = "", 0
        #: Of the question that is asked: the generation of the database, a snapshot, and the last
        #: change that is gone.
        self._of, self._now, self._snapshot, self._pruned = "", "", "", 0
        #: Whether the feed was asked, and not the index, so that the next question has to bring
        #: that up to date.
        self.is_owing = False

    def _with_current_rows(
        self,
        act: Callable[[], T],
        ids: Iterable[str] | None = None,
        progress: Progress | None = None,
    ) -> T:
        if os.getpid() != self._pid:
            self._after_fork()
        with self._thread_lock:
            is_feed = ids is _FEED
            needs = _AS_IT_IS if is_feed or (ids == () and not self.is_owing) else _ALL
            while (answer := self._source.trying(partial(self._asked, act, needs))) is None:
                self._take_in(progress)
                # All of before the question is there, and others may write without a pause.
                needs = _ONCE_ALL
            self.is_owing = self.is_owing and needs == _AS_IT_IS
            return answer[0]

    def _asked(self, act: Callable[[], T], needs: int) -> tuple[T] | None:
        """What `act` gives, asked of one state of the database; None: something is missing in the
        index.
        """
        with self._transaction(_READ) as tables:
            self._reader = threading.get_ident(), tables
            try:
                has = (
                    _ALL
                    if self._look(tables)
                    else _AS_IT_IS
                    if self._snapshot == _EMPTY
                    else _ONCE_ALL
                )
                return (act(),) if has >= needs else None
            finally:
                self._reader = 0, None

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[IndexTables]:
        with self._source.transaction(
            begin.format(f'"{self._source.address.schema}"')
        ) as connection:
            yield IndexTables(connection)

    def _look(self, tables: IndexTables) -> bool:
        """Whether all is in the index. What was kept of rows that changed is forgotten."""
        since = (
            _LAST_STAMP if self._heads is None else self._stamp
        )  # Whoever has read no heads has none to read again.
        ((*row, stale),) = tables.query(_LOOK, since)
        generation, of, stamp, taken, now, has_all, pruned = row
        has_all = has_all and taken is not None
        if generation != self.generation:
            self._reset()
        self.generation, self._of, self._stamp, self._pruned = generation, of, stamp, pruned
        #: The feed goes as far as the index, as who may hear of a change is known from there.
        self._now, self._snapshot = now, now if has_all else taken or _EMPTY
        self._stale_ids.update(stale)
        return has_all and _xmin(now) < _xmin(taken) + _FAR

    # -- Bringing it up to date --------------------------------------------------------------------

    def _take_in(self, progress: Progress | None) -> None:
        """Take in what is missing, a part in each transaction: an open one would stall the feed."""
        done, left = 0, 1
        while left:
            size, left = self._source.trying(self._take_in_some)
            done += size
            if progress is not None and size:
                progress(done, done + left)
        if done > _BATCH_BYTES:  # Else PostgreSQL plans for the few rows that there were.
            for table in _TABLES:
                with suppress(CapsuleError):  # The owner's autovacuum does it else.
                    self._source.write(f"ANALYZE @{table}")

    def _take_in_some(self) -> tuple[int, int]:
        """Take in a part of what is missing; its size, and that of what is left, in bytes."""
        with self._transaction(_WRITE) as tables:
            tables.query(_LOCK)
            ((snapshot,),) = tables.query("SELECT pg_current_snapshot()::text")
            missing = tables.query(_MISSING)
            some, size = list[tuple[str, int]](), 0
            for id, place, bytes in missing:
                if some and (len(some) == _MOST or size + bytes > _BATCH_BYTES):
                    break
                some.append((id, place))
                size += max(bytes, 1)
            if some:
                self._put(tables, some)
            if len(some) == len(missing):
                tables.query("UPDATE indexed SET snapshot = %s", snapshot)
        return size, sum(max(bytes, 1) for *_, bytes in missing[len(some) :])

    def _put(self, tables: IndexTables, some: list[tuple[str, int]]) -> None:
        ((stamp,),) = tables.query("UPDATE indexed SET stamp = stamp + 1 RETURNING stamp")
        ids, places = [id for id, _ in some], [place for _, place in some]
        documents = {
            row[0]: _ConversationRow(*row) for row in tables.query(_READ_THESE, ids, places)
        }
        rows = PostgresIndexWriter(tables, stamp, ids)
        with tables.pipeline():
            for id in ids:
                row, document = rows.get(id), documents.get(id)
                state = document and (_found(document) or self._read_anew(tables, id))
                if state:
                    rows.put(id, row, state)
                elif row is not None and not row["gone"]:
                    rows.remove(id, row, by_store=True)

    @staticmethod
    def _read_anew(tables: IndexTables, id: str) -> IndexUpdate | None:
        return next(
            (_found(_ConversationRow(*row)) for row in tables.query(_READ_THESE, [id], [0])), None
        )

    def drop(self) -> None:
        """Empty the tables; the next question has them filled. Raises Refused, StorageFailed,
        StoreBusy.
        """

        def empty() -> None:
            with self._transaction(_WRITE) as tables:
                tables.query(_LOCK)
                for table in _TABLES:
                    tables.query(f"DELETE FROM {table}")
                tables.query(
                    "UPDATE indexed SET generation = %s, snapshot = NULL", os.urandom(8).hex()
                )

        with self._thread_lock:
            self._source.trying(empty)

    def close(self) -> None:
        """Forget what is known of the rows."""
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

    # -- Questions ---------------------------------------------------------------------------------

    def hide(self, db: Any, hidden: Mapping[str, int | None]) -> VisibilityFilter:
        wholly, partly = hidden_numbers(db, hidden)
        since = orjson.dumps({str(num): since for num, since in partly.items()}).decode()
        since = since.replace("{", "{{").replace("}", "}}")
        return VisibilityFilter.with_conditions(
            wholly, partly, f"coalesce(('{since}'::jsonb ->> ({{}})::text)::bigint, {ALWAYS_MS})"
        )

    def changes(
        self, db: Any, since: str | None, limit: int, *, of_all: bool = False
    ) -> tuple[list[Change], str]:
        """As `Index.changes`; `of_all`: whatever the index has, as nobody is asked who may hear of
        them.
        """
        cursor = None if since is None else journal.Cursor.parse(since)
        if cursor is not None and 0 < cursor.time_ms < self._pruned:
            raise InvalidInput(
                "that cursor is older than the changes that the database keeps; take a new one"
            )
        return self.feed.changes(self._of, self._now if of_all else self._snapshot, cursor, limit)


class PostgresQueries(IndexQueries):
    """The queries of the owner or of one agent. `Queries` describes the methods."""

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
        """Where a transaction is under way anywhere in the database, it is waited for a moment."""
        if refresh:
            self._index.feed.settle()
        if self._asker is not None:
            return super().changes(since, limit, refresh=refresh)
        from capsule.engines.changes import Changes

        place = None if since is None else self._journal_cursor(since)
        read = partial(self._index.changes, since=place, limit=limit, of_all=True)
        changes = Changes(*self._index.query(None, lambda db, _: read(db), _FEED))
        self._index.is_owing = self._index.is_owing or refresh
        return changes

    def _journal_cursor(self, cursor: str) -> str:
        """The place in the feed. Of an owner's cursor an agent uses the transaction: its number is
        a count.
        """
        if self._asker is None or "." not in cursor:
            return self._unsealed(cursor)
        return str(journal.Cursor.parse(cursor)._replace(seq=0, skip=0))

    def last_valid_version(self, conversation: str) -> tuple[dict[str, Any], frozenset[str]] | None:
        """The conversation as it is: no document in a database is damaged."""
        if self._asker is None and self._engine.exists(CONVERSATIONS, conversation):
            return self._engine.document(CONVERSATIONS, conversation), frozenset()
        return None


def _found(document: _ConversationRow) -> IndexUpdate | None:
    """What the index needs of a conversation, of which it has the entries before `start`; None:
    that is not enough.
    """
    name, tag = f"{_PREFIX}{document.id}.json", layout.tag_of(document.tag)
    if not document.start:
        data = layout.joined(document.head, document.rest, document.updated_at, document.bodies)
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
