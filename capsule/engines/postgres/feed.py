"""The feed of changes, in the order of their transactions, and the notices that wake its readers.

Each write of a document adds rows to the table `changes`. A row has a place (the number of its
transaction and the timeline of the server) and a number (`seq`). A cursor names a row. The horizon
is the number below which no transaction is open any more.

Two threads of a process serve those who wait. After a commit, `_CommitNotifier` sends a notice
(NOTIFY) if any process listens. `_ChangeListener` receives the notices of all processes, reads the
new rows, and touches the trackers of this process. A notice only wakes: if it is lost, the listener
looks each second anyway. After an error, the listener connects again, and reports that anything may
have changed.

What must stay true:
- A reader of the feed gets only rows below the horizon, so no row appears later before one that it
  has read. The timeline keeps this true if a standby takes over that lacks the last transactions and
  uses their numbers again: places of the new timeline are greater than all earlier ones.
- A notice is sent after the commit, and at most every few milliseconds. In the transaction of the
  write, it would make all writers wait for each other.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson

from capsule.disk.directory_tracker import TouchedNames
from capsule.engines.changes import Change
from capsule.engines.index.tables.journal import Cursor
from capsule.engines.interface import CONVERSATIONS
from capsule.engines.postgres.layout import tag_of
from capsule.errors import CapsuleError, InvalidInput, Refused
from capsule.process_forks import call_in_child

if TYPE_CHECKING:
    from capsule.engines.postgres.database import PostgresDatabase

_log = logging.getLogger("capsule")
#: The pause between two notices of one process, in seconds.
_NOTICE_INTERVAL_S = 0.005
#: The pause between two reads of a listener: while some rows are not below the horizon, and else.
_PENDING_INTERVAL_S = 0.02
_READ_INTERVAL_S = 1.0
#: How long a notice waits for the writes of other processes, which it reports too.
_SHARED_S = 0.003
#: How long a query waits until all acknowledged changes are below the horizon.
_HORIZON_TIMEOUT_S = 0.5
#: How long the registration of a listener is valid.
_REGISTRATION_S = 20.0
#: The number of rows that a listener reads at once.
_PAGE_SIZE = 10_000


class Feed:
    """The feed of one store. Several threads may use it."""

    def __init__(self, database: PostgresDatabase) -> None:
        self.database = self._database = database
        self.channel = f"capsule_{database.address.schema}"
        self._reset_after_fork()
        call_in_child(self, Feed._reset_after_fork)

    def _reset_after_fork(self) -> None:
        self._thread_lock = threading.Lock()
        self._trackers: weakref.WeakKeyDictionary[TouchedNames, str | None] = (
            weakref.WeakKeyDictionary()
        )
        self._listener: _ChangeListener | None = None
        self._notifier: _CommitNotifier | None = None

    # -- Reading it --------------------------------------------------------------------------------

    def wait_for_horizon(self) -> None:
        """Wait until all changes so far are below the horizon, but at most 0.5 s.

        Any open transaction in the database can hold up the horizon.
        """
        statement = (
            "SELECT xid::text::bigint FROM @changes WHERE xid >= "
            "pg_snapshot_xmin(pg_current_snapshot())"
            " ORDER BY xid DESC LIMIT 1"
        )
        newest = self._database.first_row(statement)
        deadline = time.monotonic() + _HORIZON_TIMEOUT_S
        pause_s = 0.001
        while newest is not None and time.monotonic() < deadline:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)
            row = self._database.first_row(
                "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
            )
            if row is None or row[0] > newest[0]:
                return

    def changes(
        self, generation: str, snapshot: str, cursor: Cursor | None, limit: int
    ) -> tuple[list[Change], str]:
        """Return the changes of conversations after a cursor, and the cursor after the last one.

        Args:
            generation: The generation of the database.
            snapshot: A snapshot of PostgreSQL. Its horizon is used, so that the changes fit to the
                index that was read in this snapshot.
            cursor: The cursor. None: no changes, but the cursor of the last one.
            limit: The largest number of changes.

        Raises InvalidInput if the cursor is of an earlier generation. Cost: one round trip.
        """
        if cursor is None:
            row = self._database.first_row(
                "SELECT place, seq FROM @changes WHERE xid < pg_snapshot_xmin(%s::pg_snapshot) "
                "AND event <> ''"
                " ORDER BY place DESC, seq DESC LIMIT 1",
                snapshot,
            )
            place, seq = row or (0, 0)
            return [], str(Cursor(generation, seq, place))
        # The beginning is the same in all generations.
        is_at_beginning = cursor.seq <= 1 and cursor.time_ms == 0
        if cursor.generation != generation and not is_at_beginning:
            raise InvalidInput(
                "that cursor is of an earlier state of this database, which was restored since; "
                "take a new one"
            )
        place = 0 if is_at_beginning else cursor.time_ms
        seq = 0 if is_at_beginning else cursor.seq
        rows = self._database.read(
            "SELECT place, seq, id, event, told, count, tag, was, @stamp(at) FROM @changes"
            " WHERE (place, seq) > (%s, %s) AND xid < pg_snapshot_xmin(%s::pg_snapshot)"
            " AND kind = %s AND event <> '' ORDER BY place, seq LIMIT %s",
            place,
            seq,
            snapshot,
            CONVERSATIONS,
            limit,
        )
        changes = []
        skip = cursor.skip
        for row in rows:
            changes.append(_change(generation, skip, *row))
            skip = 0  # Only the first change was returned in part before.
        if not changes:
            return [], str(Cursor(generation, seq, place, cursor.skip))
        return changes, changes[-1].cursor

    # -- Notices -----------------------------------------------------------------------------------

    def notify_soon(self) -> None:
        """Have a thread send a notice that something was committed. Returns at once."""
        with self._thread_lock:
            if self._notifier is None:
                self._notifier = _CommitNotifier(self._database, self.channel)
            if time.monotonic() > self._notifier.quiet_until_s:
                self._notifier.is_due.set()

    def tracker(self, kind: str | None) -> TouchedNames:
        """Return an object that collects the documents that are written from now on.

        See `Engine.tracker`. The first one starts the thread of the listener.
        """
        tracker = TouchedNames()
        with self._thread_lock:
            self._trackers[tracker] = kind
            if self._listener is None:
                self._listener = _ChangeListener(self._database, self.channel, self._touch)
        return tracker

    def _touch(
        self, documents: list[tuple[str, str]] | None, *, is_second_report: bool = False
    ) -> None:
        """Pass changed documents (kinds and ids) to the trackers. None: any may have changed.

        A second report goes only to trackers of one kind, as these wake readers of the feed.
        """
        with self._thread_lock:
            trackers = [
                (tracker, kind_filter)
                for tracker, kind_filter in self._trackers.items()
                if kind_filter or not is_second_report
            ]
        for tracker, kind_filter in trackers:
            if documents is None:
                tracker.touch(None)
            elif kind_filter is None:
                tracker.touch([f"{kind}-{id}" for kind, id in documents])
            else:
                tracker.touch([id for kind, id in documents if kind == kind_filter])

    def close(self) -> None:
        """End the threads. A notice that is due is sent first."""
        with self._thread_lock:
            notifier = self._notifier
            listener = self._listener
            self._notifier = None
            self._listener = None
        if notifier is not None:
            notifier.close()
        if listener is not None:
            listener.close()


def _change(
    generation: str, skip: int, place: int, seq: int, id: str, event: str, *columns: Any
) -> Change:
    """Return the change of a row. `skip`: this many of its messages were returned before."""
    encoded_fields, count, tag, previous_tag, time_at = columns
    fields = orjson.loads(encoded_fields)
    for name in ("messages", "removed", "fields"):
        if name in fields:
            fields[name] = tuple(fields[name])
    if skip and "messages" in fields:
        # This is the rest of a change. Its beginning was returned as a change of its own.
        event = "appended"
        fields["messages"] = fields["messages"][skip:]
    if event != "appended":
        fields |= {"tag": tag_of(tag), "was": tag_of(previous_tag)}
    before = str(Cursor(generation, seq - 1, place, skip))
    cursor = str(Cursor(generation, seq, place))
    return Change(event, id, time_at, cursor, count=count, before=before, **fields)


class _CommitNotifier:
    """A thread that sends notices after commits: the first at once, further ones after a pause."""

    def __init__(self, database: PostgresDatabase, channel: str) -> None:
        self._database = database
        self._channel = channel
        #: No notices are sent until then, as nobody listened a moment ago. A new listener looks each
        #: second anyway.
        self.quiet_until_s = 0.0
        self._checked_at_s = -_READ_INTERVAL_S
        #: Set if something was committed since the last notice.
        self.is_due = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="capsule-notices", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self.is_due.wait()
            if self.is_due.is_set():
                self.is_due.clear()
                with suppress(CapsuleError):  # Listeners look each second anyway.
                    self._notify_listeners()
            if self._is_closed and not self.is_due.is_set():
                return
            time.sleep(_NOTICE_INTERVAL_S)

    def _notify_listeners(self) -> None:
        """Send a notice. Once a second, check first whether anybody listens."""
        if time.monotonic() - self._checked_at_s >= _READ_INTERVAL_S:
            self._checked_at_s = time.monotonic()
            statement = "SELECT 1 FROM @listeners WHERE expires > clock_timestamp() LIMIT 1"
            if self._database.first_row(statement) is None:
                self.quiet_until_s = self._checked_at_s + _READ_INTERVAL_S
        if time.monotonic() > self.quiet_until_s:
            # One process at a time sends a notice for all. It arrives when its transaction ends,
            # after the writes of the meantime. Its commit need not be durable.
            self._database.read(
                "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, ''), "
                "pg_sleep(%s)"
                " WHERE pg_try_advisory_xact_lock(hashtextextended(%s, 1))",
                *(self._channel, _SHARED_S, self._channel),
            )

    def close(self) -> None:
        """End the thread, after a notice that is due."""
        self._is_closed = True
        self.is_due.set()
        self._thread.join()


class _ChangeListener:
    """A thread that reports which documents any process has written.

    It reports a change when it is committed, and again when its transaction is below the horizon.
    """

    def __init__(self, database: PostgresDatabase, channel: str, touch: Any) -> None:
        self._database = database
        self._channel = channel
        self._touch = touch
        self._wake_fd, self._wake_write_fd = os.pipe()
        self._id = uuid4()
        self._registered_until_s = 0.0
        #: The rows from this transaction on are read each time.
        self._first_xid = self._horizon()
        #: The numbers of the rows that were reported, and of those to be reported a second time.
        self._reported: set[int] = {row[1] for row in self._rows()}
        self._pending: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="capsule-feed", daemon=True)
        self._thread.start()

    def _horizon(self) -> int:
        row = self._database.first_row(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
        )
        return int(row[0]) if row else 0

    def _run(self) -> None:
        connection: Any = None
        is_lost = False
        while True:
            try:
                if connection is None:
                    connection = self._database.connect()
                    connection.execute(f'LISTEN "{self._channel}"')
                list(connection.notifies(timeout=0))
                if is_lost:  # A standby that took over may use numbers again.
                    self._first_xid = self._horizon()
                    self._reported = set()
                    self._pending = set()
                self._register_listener()
                self._report_changes()
                if is_lost:
                    self._touch(None)
                    is_lost = False
            except Exception as error:
                # After any error, the owners of trackers look themselves, and the loop connects again.
                _log.debug("the feed is interrupted: %s", type(error).__name__)
                self._touch(None)
                is_lost = True
                if connection is not None:
                    connection.close()
                connection = None
            fds = [self._wake_fd]
            if connection is not None:
                fds.append(connection.fileno())
            timeout_s = _PENDING_INTERVAL_S if self._pending else _READ_INTERVAL_S
            ready, _, _ = select.select(fds, [], [], timeout_s)
            if self._wake_fd in ready:
                break
        if connection is not None:
            connection.close()
        os.close(self._wake_fd)

    def _register_listener(self) -> None:
        """Register this listener for 20 s, so that writers send notices."""
        if time.monotonic() > self._registered_until_s:
            self._registered_until_s = time.monotonic() + _REGISTRATION_S / 2
            with suppress(Refused):  # A role that may only read works without notices.
                self._database.write(
                    "INSERT INTO @listeners VALUES (%s, clock_timestamp() + %s * interval '1 "
                    "second')"
                    " ON CONFLICT (id) DO UPDATE SET expires = excluded.expires",
                    *(self._id, _REGISTRATION_S),
                )

    def _report_changes(self) -> None:
        """Report documents that were written since the last call.

        Report a change again when its transaction passes the horizon: only then can readers of the
        feed see it.
        """
        rows = self._rows()
        if not rows:
            return
        last_xid, _, _, _, horizon = rows[-1]
        if len(rows) == _PAGE_SIZE:  # More rows may follow from this transaction on.
            horizon = min(horizon, last_xid)
        written = [(kind, id) for _, seq, kind, id, _ in rows if seq not in self._reported]
        passed = [
            (kind, id) for xid, seq, kind, id, _ in rows if seq in self._pending and xid < horizon
        ]
        self._first_xid = horizon
        self._reported = {seq for xid, seq, *_ in rows if xid >= horizon}
        self._pending = set(self._reported)
        if written:
            self._touch(written)
        if passed:
            self._touch(passed, is_second_report=True)

    def _rows(self) -> list[tuple[Any, ...]]:
        """Return transaction, number, kind and id of the next rows, each with the horizon."""
        return self._database.read(
            "SELECT xid::text::bigint, seq, kind, id, "
            "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
            " FROM @changes WHERE xid >= %s::text::xid8 ORDER BY xid, seq LIMIT %s",
            str(self._first_xid),
            _PAGE_SIZE,
        )

    def close(self) -> None:
        """End the thread, and remove its registration and those that expired."""
        os.write(self._wake_write_fd, b"x")
        self._thread.join()
        with suppress(CapsuleError):
            self._database.write(
                "DELETE FROM @listeners WHERE id = %s OR expires < clock_timestamp()", self._id
            )
        os.close(self._wake_write_fd)
