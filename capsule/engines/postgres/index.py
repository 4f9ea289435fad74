"""The index that a machine keeps of the conversations in a database, and the questions to it.

What must stay true: it is derived and can be deleted. Before it answers it has all that was committed before the
question: it asks for what the snapshot of its last look did not show, and not for what lies behind a number. Changes
come from the database's feed, as far as the index knows the conversations that they are about.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from capsule.engines.index.asking import Asking
from capsule.engines.index.database import Progress
from capsule.engines.index.index import Index
from capsule.engines.index.reading import Found, Version, _with_head, lines_of, messages_of, whole
from capsule.engines.index.tables import journal
from capsule.engines.index.tables.rows import Rows
from capsule.engines.interface import CONVERSATIONS
from capsule.engines.postgres import layout, schema
from capsule.errors import InvalidInput
from capsule.format.documents.head import Head

if TYPE_CHECKING:
    from capsule.engines.changes import Change, Changes
    from capsule.engines.files.disk.derived import Derived
    from capsule.engines.index.reading import Row
    from capsule.engines.postgres.feed import Feed

_PREFIX = f"{CONVERSATIONS}/"
#: Conversations, with their entries from a place on.
_SELECT = (
    "SELECT id, version, tag, era, entries, @size(d), updated_at, head, rest,"
    " ARRAY(SELECT body FROM @entries WHERE doc = d.num AND place >= {} ORDER BY place) FROM @documents AS d"
)
#: Conversations of which the entries come together, in bytes.
_BATCH_BYTES = 4 << 20
#: After so many transactions the snapshot is kept, also if no conversation was written.
_FAR = 10_000


class _Document(NamedTuple):
    """A conversation as the database has it; see `schema.sql`."""

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

    @property
    def token(self) -> Version:
        """What tells its version from others."""
        return Version(f"{self.version}.{self.era}", self.size, self.version)


def _xmin(snapshot: str) -> int:
    """The first transaction that may not be in a snapshot."""
    return int(snapshot.partition(":")[0])


class PostgresIndex(Index):
    """The index of the conversations in a database.

    Args:
        feed: The feed of the database.
        derived: Where it lies; None: in memory.
    """

    def __init__(self, feed: Feed, derived: Derived | None) -> None:
        self.feed = feed
        self._source = feed.database
        super().__init__(derived, _PREFIX)

    def _reset(self) -> None:
        super()._reset()
        #: What the rows have: everything that this snapshot of the database showed.
        self._snapshot = ""
        self._of = ""
        self._pruned = 0

    # -- Bringing it up to date ------------------------------------------------------------------------------------

    def _bring(self, ids: Iterable[str] | None, progress: Progress | None) -> None:
        db, is_other = self._database.ensure(progress)
        if is_other or not self._snapshot:
            self._reset()
            meta = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('snapshot', 'of')").fetchall())
            self._snapshot, self._of = meta.get("snapshot", ""), meta.get("of", "")
            if self._of != schema.meta(self._source).generation:  # The database was restored from a dump.
                self._throw_away()
                return self._bring(ids, progress)
        if ids == ():  # The rows as they are.
            return None
        snapshot, touched, pruned = self._touched()
        if _xmin(self._snapshot) <= pruned % 2**40:  # The feed does not reach back so far.
            self._throw_away()
            return self._bring(ids, progress)
        self._pruned = pruned
        if touched or _xmin(snapshot) > _xmin(self._snapshot) + _FAR:
            self._take_in(db, snapshot, touched, progress)
        self._snapshot = snapshot
        return None

    def _touched(self) -> tuple[str, list[str], int]:
        """A snapshot of now, the conversations that were written since the last one, and the last transaction that the
        feed forgot."""
        statement = (
            "SELECT pg_current_snapshot()::text, ARRAY(SELECT DISTINCT id FROM @changes"
            " WHERE xid >= pg_snapshot_xmin(%s::pg_snapshot) AND NOT pg_visible_in_snapshot(xid, %s::pg_snapshot)"
            " AND kind = %s), (SELECT value::bigint FROM @meta WHERE key = 'pruned')"
        )
        ((snapshot, touched, pruned),) = self._source.read(statement, self._snapshot, self._snapshot, CONVERSATIONS)
        return snapshot, touched, pruned

    def _take_in(self, db: sqlite3.Connection, snapshot: str, touched: list[str], progress: Progress | None) -> None:
        db.execute("BEGIN IMMEDIATE")  # Before the database is read, so that no process puts an older version there.
        try:
            rows = Rows(db)
            for number, id in enumerate(touched):
                row = rows.get(id)
                is_there = row is not None and not row["gone"]
                found = self._one(id, row if is_there else None)
                if found is not None:
                    if row is None or not is_there or row["version"] != found.version.token:
                        rows.put(id, row, found)
                elif row is not None and is_there:
                    rows.remove(id, row, by_store=True)
                self._changed(id)
                if progress is not None and len(touched) > 1:
                    progress(number + 1, len(touched))
            db.execute("INSERT OR REPLACE INTO meta VALUES('snapshot', ?)", (snapshot,))
            db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    def _one(self, id: str, row: Row | None) -> Found | None:
        """A conversation, of which only the new entries come if the row's were appended to; None: it is gone."""
        era, count = "-1", 0
        if row is not None and not row["damaged"]:
            era, count = row["version"].rpartition(".")[2], row["entries"]
        begin = "CASE WHEN era = %s AND entries >= %s THEN %s ELSE 0 END"
        statement = f"{_SELECT.format(begin)} WHERE kind = %s AND id = %s"
        columns = self._source.one(statement, int(era), count, count, CONVERSATIONS, id)
        if columns is None:
            return None
        document = _Document(*columns)
        start = count if str(document.era) == era and document.entries >= count else 0
        return _found(document, start) or self._one(id, None)

    def _fill(self, db: sqlite3.Connection, progress: Progress | None) -> None:
        """Fill an empty index. What is written meanwhile is not in the snapshot, and comes with the next look."""
        generation = schema.meta(self._source).generation
        ((snapshot, total),) = self._source.read(
            "SELECT pg_current_snapshot()::text, (SELECT coalesce(sum(@size(d)), 0)::bigint FROM @documents AS d"
            " WHERE kind = %s)",
            CONVERSATIONS,
        )

        def states() -> Iterator[tuple[str, Found]]:
            met: set[str] = set()
            done = last = 0
            while batch := self._batch(last):
                last = batch[-1].version
                for document in batch:
                    found = _found(document, 0)
                    if document.id not in met and found is not None:  # Else it was written meanwhile.
                        met.add(document.id)
                        yield document.id, found
                    done += document.size
                if progress is not None:
                    progress(min(done, total), total)

        Rows(db).fill(states())
        db.execute("INSERT INTO meta VALUES('snapshot', ?), ('of', ?)", (snapshot, generation))

    def _batch(self, after: int) -> list[_Document]:
        """The next conversations in the order of their versions, as a search ranks the newest numbers."""
        statement = (
            "WITH next AS (SELECT num, sum(inner_bytes) OVER (ORDER BY version) - inner_bytes AS before"
            " FROM @documents WHERE kind = %s AND version > %s ORDER BY version LIMIT 500) "
            f"{_SELECT.format('0')} JOIN next USING (num) WHERE before < %s ORDER BY version"
        )
        rows = self._source.read(statement, CONVERSATIONS, after, _BATCH_BYTES)
        return [_Document(*row) for row in rows]

    # -- Changes ---------------------------------------------------------------------------------------------------

    def changes(self, db: sqlite3.Connection, since: str | None, limit: int) -> tuple[list[Change], str]:
        cursor = None if since is None else journal.Cursor.of(since)
        if cursor is not None and 0 < cursor.time_ms < self._pruned:
            raise InvalidInput("that cursor is older than what the database keeps of changes; take a new one")
        return self.feed.changes(self._of, self._snapshot, cursor, limit)


class PostgresAsking(Asking):
    """The questions of one asker. See `Questions`, which describes the methods."""

    _index: PostgresIndex

    def changes(self, since: str | None, limit: int, *, refresh: bool = True) -> Changes:
        """Where a transaction is under way anywhere in the database, it is waited for a moment."""
        if refresh:
            self._index.feed.settle()
        return super().changes(since, limit, refresh=refresh)


def _found(document: _Document, start: int) -> Found | None:
    """What the index needs of a conversation, which has its entries from place `start` on; None: that is not enough."""
    name, tag = f"{_PREFIX}{document.id}.json", layout.tag_of(document.tag)
    if not start:
        data = layout.joined(document.head, document.rest, document.updated_at, document.bodies)
        file = whole(data, document.token, name, document.id, None, None, True)
        return file._replace(tag=tag, by_store=True)
    entries = layout.entries_in(document.bodies, name)
    messages = messages_of(entries, map(lines_of, entries))
    if messages is None:
        return None
    fields = layout.head_of(document.head, document.updated_at, name)
    if document.rest:
        fields |= layout.head_of(document.rest, document.updated_at, name)
    file = Found(document.token, False, tag=tag, by_store=True, start=start, messages=messages)
    return _with_head(file._replace(entries=document.entries), fields, Head.of(fields, name, document.size))
