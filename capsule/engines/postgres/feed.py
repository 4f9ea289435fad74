"""The feed of changes, in the order of their transactions, and the notices that wake its readers.

Each write of a document adds rows to the table `changes`. A row has a place (the number of its
transaction and the timeline of the server) and a number (`seq`). A cursor names a row. The horizon
is the number below which no transaction is open any more.

Two threads of a process serve those who wait. After a commit, `_CommitNotifier` sends a notice
(NOTIFY) if any process listens. `FeedHub` gets the new changes, by its own connection or from
another process of this machine, keeps the latest of them (`FeedWindow`), and touches the trackers
of this process. If the database can't be reached, it reports that anything may have changed.

What must stay true:
- A reader of the feed gets only rows below the horizon, so no row appears later before one that it
  has read. The timeline keeps this true if a standby takes over that lacks the last transactions and
  uses their numbers again: places of the new timeline are greater than all earlier ones.
- A cursor is accepted only if the change that it names is in the feed. So a database that was
  restored from an earlier copy of its files, and uses the same numbers for other changes, refuses it.
- A notice is sent after the commit, and at most every few milliseconds. In the transaction of the
  write, it would make all writers wait for each other.
"""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

from capsule.disk.directory_tracker import TouchedNames
from capsule.engines.changes import Change, Interest
from capsule.engines.interface import CONVERSATIONS
from capsule.engines.postgres.feed_hub import Demand, FeedHub
from capsule.engines.postgres.feed_reader import FeedNews, FeedRow
from capsule.engines.postgres.feed_window import FeedWindow
from capsule.engines.postgres.layout import tag_of
from capsule.engines.questions.change_cursors import ChangeCursor as Cursor
from capsule.errors import CapsuleError, InvalidInput
from capsule.process_forks import call_in_child

if TYPE_CHECKING:
    from capsule.engines.postgres.database import PostgresDatabase

#: The pause between two notices of one process, in seconds.
_NOTICE_INTERVAL_S = 0.005
#: How often it is checked whether anybody listens.
_CHECK_INTERVAL_S = 1.0
#: How long a notice waits for the writes of other processes, which it reports too.
_SHARED_S = 0.003
#: How long a new tracker waits until the hub follows the feed.
_READY_TIMEOUT_S = 10.0
#: How long a query waits until all acknowledged changes are below the horizon.
_HORIZON_TIMEOUT_S = 0.5
#: The state of the feed, and the changes after a cursor. Without changes there is one row, whose other
#: columns are NULL. The state is the generation, the place of the last change that was pruned, the
#: place up to which the feed is read, and whether it has the change that the cursor names. A cursor
#: from before a change has the number before it, and one that an agent got from the owner has none.
#: Changes that were pruned, or that a standby lacked when it took over, are not looked for.
_CHANGES_AFTER = """
    SELECT generation, pruned, @in_timeline(horizon::text::bigint), is_in_feed,
        place, seq, id, event, told, count, tag, was, @stamp(at)
    FROM (
        SELECT *, %(place)s <= pruned OR %(place)s < @in_timeline(0) OR EXISTS (
            SELECT FROM @changes WHERE place = %(place)s AND event <> ''
            AND (%(seq)s = 0 OR seq BETWEEN %(seq)s AND %(seq)s + 1)
        ) AS is_in_feed
        FROM (
            SELECT
                (SELECT value FROM @meta WHERE key = 'generation') AS generation,
                (SELECT value::bigint FROM @meta WHERE key = 'pruned') AS pruned,
                pg_snapshot_xmin(
                    coalesce(%(snapshot)s::pg_snapshot, pg_current_snapshot())
                ) AS horizon
        ) AS state
    ) AS of_cursor
    LEFT JOIN LATERAL (
        SELECT * FROM @changes
        WHERE (place, seq) > (%(place)s, %(seq)s) AND xid < of_cursor.horizon
            AND kind = %(kind)s AND event <> ''
        ORDER BY place, seq LIMIT %(limit)s
    ) AS new ON true
    ORDER BY place, seq
"""
#: The generation, and the last change. Without changes the other columns are NULL.
_LAST_CHANGE = """
    SELECT generation, @in_timeline(horizon::text::bigint), place, seq
    FROM (
        SELECT (SELECT value FROM @meta WHERE key = 'generation') AS generation,
            pg_snapshot_xmin(coalesce(%s::pg_snapshot, pg_current_snapshot())) AS horizon
    ) AS state
    LEFT JOIN LATERAL (
        SELECT place, seq FROM @changes WHERE xid < state.horizon AND event <> ''
        ORDER BY place DESC, seq DESC LIMIT 1
    ) AS last ON true
"""


class FeedTracker(TouchedNames):
    """Collects the documents of one kind, or of all, that are written. See `JournalTracker`.

    Args:
        kind: The kind. None: all kinds.
        feed: The feed.
    """

    def __init__(self, kind: str | None, feed: Feed) -> None:
        super().__init__()
        self.kind = kind
        self.interest = Interest()
        self._feed = feed

    @property
    def is_following(self) -> bool:
        return self._feed.is_following

    def want(self, interest: Interest) -> None:
        self.interest = interest
        self._feed.update_demand()


class Feed:
    """The feed of one store. Several threads may use it.

    Args:
        database: The database.
        directory: The directory of this machine's files of the store, in which the processes that
            wait for changes meet. None: each reads the feed itself.
    """

    def __init__(self, database: PostgresDatabase, directory: str | None = None) -> None:
        self.database = self._database = database
        self.channel = f"capsule_{database.address.schema}"
        self._directory = directory
        self._hub: FeedHub | None = None
        self._reset_after_fork()
        call_in_child(self, Feed._reset_after_fork)

    def _reset_after_fork(self) -> None:
        self._thread_lock = threading.Lock()
        self._trackers: weakref.WeakSet[FeedTracker] = weakref.WeakSet()
        if self._hub is not None:
            self._hub.close_in_child()
        self._hub = None
        self._notifier: _CommitNotifier | None = None
        self._window = FeedWindow()

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
        self, since: str | None, limit: int, snapshot: str | None = None
    ) -> tuple[list[Change], str]:
        """Return the changes of conversations after a cursor, and the cursor after the last one.

        Args:
            since: The cursor. None: no changes, but the cursor of the last one.
            limit: The largest number of changes.
            snapshot: A snapshot of PostgreSQL. Its horizon is used, so that the changes fit to what
                was read in this snapshot. None: the present one.

        Raises InvalidInput if the cursor is of an earlier generation, older than the feed, or names
        a change that the feed lacks. Cost: one round trip.
        """
        if since is None:
            ((generation, end, place, seq),) = self._database.read(_LAST_CHANGE, snapshot)
            cursor = str(Cursor(generation, seq or 0, place or 0))
            self._note_cursor(cursor, end)
            return [], cursor
        cursor_of = Cursor.parse(since)
        # The beginning is the same in all generations.
        is_at_beginning = cursor_of.seq <= 1 and cursor_of.time_ms == 0
        seq = 0 if is_at_beginning else cursor_of.seq
        values: dict[str, Any] = {
            "place": cursor_of.time_ms,
            "seq": seq,
            "snapshot": snapshot,
            "kind": CONVERSATIONS,
            "limit": limit,
        }
        rows = self._database.read(_CHANGES_AFTER, named=values)
        generation, pruned_place, end, is_in_feed, *_ = rows[0]
        if not is_at_beginning:
            if cursor_of.generation != generation:
                raise InvalidInput(
                    "that cursor is of an earlier state of this database, which was restored "
                    "since; take a new one"
                )
            if 0 < cursor_of.time_ms < pruned_place:
                raise InvalidInput(
                    "that cursor is older than the changes that the database keeps; take a new one"
                )
            if not is_in_feed:
                raise InvalidInput(
                    "that cursor names a change that this database does not have: it was "
                    "restored from an earlier copy; take a new cursor, and read again what "
                    "you follow"
                )
        position = cursor_of._replace(generation=generation, seq=seq)
        changes = [row[4:] for row in rows if row[4] is not None]
        found = _with_cursors(position, [FeedRow._make(row) for row in changes])
        if len(changes) < limit:
            self._note_cursor(found[1], end)
        return found

    def new_changes(self, since: str, limit: int) -> tuple[list[Change], str] | None:
        """Return changes as `changes`, from those that the hub of this process was told of.

        They are complete for what the trackers of this process want. Returns None if they do not
        reach back to the cursor: then the database must be asked. Cost: no round trip.
        """
        cursor = Cursor.parse(since)
        with self._thread_lock:
            rows = self._window.rows_after(cursor, limit)
            if rows is None:
                return None
            found = _with_cursors(cursor, rows)
            if len(rows) < limit:
                self._window.note_cursor(found[1], self._window.end)
            return found

    def _note_cursor(self, cursor: str, read_until: int) -> None:
        with self._thread_lock:
            self._window.note_cursor(cursor, read_until)

    # -- Notices -----------------------------------------------------------------------------------

    def notify_soon(self) -> None:
        """Have a thread send a notice that something was committed. Returns at once."""
        with self._thread_lock:
            if self._notifier is None:
                self._notifier = _CommitNotifier(self._database, self.channel)
            if time.monotonic() > self._notifier.quiet_until_s:
                self._notifier.is_due.set()

    def tracker(self, kind: str | None) -> FeedTracker:
        """Return an object that collects the documents that are written from now on.

        See `Engine.tracker`. The first one starts the thread of the hub, and waits until it follows
        the feed.
        """
        tracker = FeedTracker(kind, self)
        with self._thread_lock:
            self._trackers.add(tracker)
            if self._hub is None:
                self._hub = FeedHub(
                    self._database, self.channel, self._directory, self._demand, self._deliver
                )
            hub = self._hub
        hub.update_demand()
        if hub.is_ready.wait(_READY_TIMEOUT_S):
            tracker.changed_ids()  # What happened before.
        return tracker

    @property
    def is_following(self) -> bool:
        """Whether another process of this machine reads the feed for this one."""
        hub = self._hub
        return hub is not None and hub.is_following

    def renew_leases(self, holder: str) -> set[str] | None:
        """Have the process that reads the feed for this one renew the leases of a holder. See
        `FeedHub.renew_leases`.
        """
        hub = self._hub
        return None if hub is None else hub.renew_leases(holder)

    def update_demand(self) -> None:
        """Tell the hub that a tracker wants something else."""
        hub = self._hub
        if hub is not None:
            hub.update_demand()

    def _demand(self) -> Demand:
        """Return what the trackers of this process want."""
        with self._thread_lock:
            trackers = [tracker for tracker in self._trackers if tracker.is_open]
        interest: Interest | None = None
        has_documents = False
        for tracker in trackers:
            if tracker.kind == CONVERSATIONS:
                interest = (
                    tracker.interest if interest is None else interest.union(tracker.interest)
                )
            else:
                has_documents = True
        return Demand(interest, has_documents)

    def _deliver(self, news: FeedNews) -> None:
        """Keep new changes, and touch the trackers that want them. The hub's thread calls it."""
        with self._thread_lock:
            self._window.add(news)
            trackers = [*self._trackers]
        is_unsure = not news.generation or news.start is not None
        for tracker in trackers:
            if is_unsure:
                tracker.touch(None)
            if tracker.kind == CONVERSATIONS:
                includes = tracker.interest.includes
                tracker.touch([row.id for row in news.changes if includes(row.event, row.id)])
            elif tracker.kind is None:
                tracker.touch([f"{kind}-{id}" for kind, id in news.documents])
            else:
                tracker.touch([id for kind, id in news.documents if kind == tracker.kind])

    def close(self) -> None:
        """End the threads. A notice that is due is sent first."""
        with self._thread_lock:
            notifier = self._notifier
            hub = self._hub
            self._notifier = None
            self._hub = None
            self._window = FeedWindow()
        if notifier is not None:
            notifier.close()
        if hub is not None:
            hub.close()


def _with_cursors(cursor: Cursor, rows: list[FeedRow]) -> tuple[list[Change], str]:
    """Return the changes of the rows after a cursor, and the cursor after the last of them."""
    changes = []
    skip = cursor.skip
    for row in rows:
        changes.append(_change(cursor.generation, skip, row))
        skip = 0  # Only the first change was returned in part before.
    return changes, changes[-1].cursor if changes else str(cursor)


def _change(generation: str, skip: int, row: FeedRow) -> Change:
    """Return the change of a row. `skip`: this many of its messages were returned before."""
    event = row.event
    fields = orjson.loads(row.fields)
    for name in ("messages", "removed", "fields"):
        if name in fields:
            fields[name] = tuple(fields[name])
    if skip and "messages" in fields:
        # This is the rest of a change. Its beginning was returned as a change of its own.
        event = "appended"
        fields["messages"] = fields["messages"][skip:]
    if event != "appended":
        fields |= {"tag": tag_of(row.tag), "was": tag_of(row.previous_tag)}
    before = str(Cursor(generation, row.seq - 1, row.place, skip))
    cursor = str(Cursor(generation, row.seq, row.place))
    return Change(event, row.id, row.time, cursor, count=row.message_count, before=before, **fields)


class _CommitNotifier:
    """A thread that sends notices after commits: the first at once, further ones after a pause."""

    def __init__(self, database: PostgresDatabase, channel: str) -> None:
        self._database = database
        self._channel = channel
        #: No notices are sent until then, as nobody listened a moment ago. A new listener looks each
        #: second anyway.
        self.quiet_until_s = 0.0
        self._checked_at_s = -_CHECK_INTERVAL_S
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
        if time.monotonic() - self._checked_at_s >= _CHECK_INTERVAL_S:
            self._checked_at_s = time.monotonic()
            statement = "SELECT 1 FROM @listeners WHERE expires > clock_timestamp() LIMIT 1"
            if self._database.first_row(statement) is None:
                self.quiet_until_s = self._checked_at_s + _CHECK_INTERVAL_S
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
