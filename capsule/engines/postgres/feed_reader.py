"""Reads new rows of the feed on the connection that receives the notices.

A reader has one connection. It registers as a listener, so that writers send notices (NOTIFY), and
reads the rows that are new since the last read. A notice only wakes: if it is lost, the next read is
a second later anyway.

What must stay true: a row is returned as a change only when its transaction is below the horizon,
and the changes of all reads together are in the order of the feed. Whoever gets them from `start` on
has all changes from there to `end`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from capsule.engines.postgres import leases
from capsule.errors import CapsuleError

if TYPE_CHECKING:
    from psycopg import Connection

    from capsule.engines.postgres.database import PostgresDatabase

#: The pause between two reads without a notice, in seconds.
_READ_INTERVAL_S = 1.0
#: The pause between two reads while some rows are not below the horizon: the first one, twice as long
#: each time, and at least so many times as long as a read took.
_PENDING_INTERVAL_S = 0.004
_PENDING_COSTS = 20
#: The shortest pause between two reads.
_GATHER_S = 0.002
#: How long the registration of a listener is valid.
_REGISTRATION_S = 20.0
#: The number of rows that are read at once.
_PAGE_SIZE = 10_000
_REGISTER = (
    "INSERT INTO @listeners VALUES (%s, clock_timestamp() + %s * interval '1 second') "
    "ON CONFLICT (id) DO UPDATE SET expires = excluded.expires"
)
_UNREGISTER = "DELETE FROM @listeners WHERE id = %s OR expires < clock_timestamp()"
#: The generation, the horizon, its place, and the rows from a transaction on. Without rows there is one
#: row, whose other columns are NULL.
_ROWS = """
    SELECT generation, horizon, @in_timeline(horizon), new.*
    FROM (
        SELECT (SELECT value FROM @meta WHERE key = 'generation') AS generation,
            pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS horizon
    ) AS now
    LEFT JOIN LATERAL (
        SELECT xid::text::bigint, kind, place, seq, id, event, told, count, tag, was, @stamp(at)
        FROM @changes WHERE xid >= coalesce(%s::text::xid8, pg_snapshot_xmin(pg_current_snapshot()))
        ORDER BY xid, seq LIMIT %s
    ) AS new ON true
    ORDER BY xid, seq
"""


class FeedRow(NamedTuple):
    """A change of a conversation, as its row in the table `changes`."""

    place: int
    seq: int
    id: str
    event: str
    fields: str
    message_count: int
    tag: int
    previous_tag: int
    time: str


class FeedNews(NamedTuple):
    """What happened in the store since the last news.

    Attributes:
        generation: The generation of the database. Empty: the database could not be asked, and
            anything may have happened.
        end: The place of the horizon: all changes before it were reported.
        start: The place from which on changes are reported. None: they follow the last news.
        changes: The changes that passed the horizon.
        documents: The kinds and ids of documents that were written, perhaps not below the horizon.
    """

    generation: str = ""
    end: int = 0
    start: int | None = None
    changes: Sequence[FeedRow] = ()
    documents: Sequence[tuple[str, str]] = ()


class FeedReader:
    """Reads the feed of a database. One thread uses it.

    Args:
        database: The database.
        channel: The channel of the notices.

    Attributes:
        pause_s: How long to wait for a notice before the next read, in seconds.
    """

    def __init__(self, database: PostgresDatabase, channel: str) -> None:
        self._database = database
        self._channel = channel
        self._id = uuid4()
        self._connection: Connection[Any] | None = None
        self._registered_until_s = 0.0
        #: The rows from this transaction on are read. None: from the horizon on.
        self._first_xid: str | None = None
        #: The numbers of the rows that were reported as documents, and are not below the horizon.
        self._pending: set[int] = set()
        self._pending_pause_s = _PENDING_INTERVAL_S
        self._is_notified = False
        self.pause_s = 0.0

    @property
    def fd(self) -> int | None:
        """The descriptor that is readable when a notice arrived. None: there is no connection."""
        return None if self._connection is None else self._connection.fileno()

    def read(self) -> FeedNews:
        """Return what is new. After an error of the database, the news are empty, and `pause_s` is
        the time until the next try.
        """
        try:
            return self._read()
        except Exception as error:
            if not isinstance(error, (CapsuleError, self._database.Error)):
                raise
            self.close()
            self.pause_s = _READ_INTERVAL_S
            return FeedNews()

    def _read(self) -> FeedNews:
        is_first = self._connection is None
        if self._connection is None:
            self._connection = self._database.connect()
            self._connection.add_notify_handler(self._note_notice)
            with suppress(self._database.Error):  # A standby sends no notices.
                self._connection.execute(f'LISTEN "{self._channel}"')
            # A standby that took over may use numbers again.
            self._first_xid = None
            self._pending = set()
            self._registered_until_s = 0.0
        self._register(self._connection)
        self._take_notices(self._connection)
        began_s = time.monotonic()
        rows = self._connection.execute(
            self._database.with_schema(_ROWS), (self._first_xid, _PAGE_SIZE), binary=True
        ).fetchall()
        read_s = time.monotonic() - began_s
        news = self._news(rows, is_first=is_first)
        has_more = len(rows) == _PAGE_SIZE
        if has_more or self._is_notified:
            self.pause_s = _GATHER_S
        elif self._pending:
            self.pause_s = min(
                max(self._pending_pause_s, _PENDING_COSTS * read_s), _READ_INTERVAL_S
            )
            self._pending_pause_s = 2 * self._pending_pause_s
        else:
            self.pause_s = _READ_INTERVAL_S
        return news

    def renew_leases(self, holders: list[str]) -> dict[str, list[str]]:
        """Renew the leases of some holders, and return the names of each. None are renewed while
        there is no connection.
        """
        names: dict[str, list[str]] = {holder: [] for holder in holders}
        if self._connection is None:
            return {}
        try:
            rows = self._connection.execute(
                self._database.with_schema(leases.RENEW), (leases.TTL_S, holders)
            ).fetchall()
        except self._database.Error:
            self.close()
            return {}
        for holder, name in rows:
            names[holder].append(name)
        return names

    def _register(self, connection: Connection[Any]) -> None:
        """Register this listener for 20 s, so that writers send notices."""
        if time.monotonic() > self._registered_until_s:
            self._registered_until_s = time.monotonic() + _REGISTRATION_S / 2
            # A role that may only read, and a standby, work without notices.
            with suppress(self._database.Error):
                connection.execute(
                    self._database.with_schema(_REGISTER), (self._id, _REGISTRATION_S)
                )
            if connection.closed:
                raise self._database.Error

    def _note_notice(self, _: object) -> None:
        self._is_notified = True

    def _take_notices(self, connection: Connection[Any]) -> None:
        """Take the notices that arrived. Those that arrive during the next read wake again."""
        connection.pgconn.consume_input()
        while connection.pgconn.notifies() is not None:
            pass
        self._is_notified = False

    def _news(self, rows: list[tuple[Any, ...]], *, is_first: bool) -> FeedNews:
        generation, horizon, end, *_ = rows[-1]
        if len(rows) == _PAGE_SIZE and rows[-1][3] < horizon:
            # More rows may follow, from this transaction on.
            horizon = rows[-1][3]
            end = rows[-1][5]
        documents = []
        changes = []
        pending = set()
        for _, _, _, xid, kind, *columns in rows:
            if xid is None:
                break
            row = FeedRow._make(columns)
            if row.seq not in self._pending:
                documents.append((kind, row.id))
            if xid >= horizon:
                pending.add(row.seq)
            elif row.event:
                changes.append(row)
        if documents or len(pending) < len(self._pending):
            self._pending_pause_s = _PENDING_INTERVAL_S
        self._pending = pending
        self._first_xid = str(horizon)
        return FeedNews(generation, end, end if is_first else None, changes, documents)

    def close(self) -> None:
        """Remove the registration, and close the connection. `read` opens another one."""
        connection = self._connection
        self._connection = None
        if connection is None:
            return
        with suppress(self._database.Error):
            if not connection.closed and not connection.broken:
                connection.execute(self._database.with_schema(_UNREGISTER), (self._id,))
        connection.close()
