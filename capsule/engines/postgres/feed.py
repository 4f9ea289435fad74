"""Read the feed of changes in the order of their transactions, and wait for new ones.

A follower reads up to the horizon: the first transaction that is still in progress. So no change
can appear before a position that it has read. After a failover, the standby may lack the last
transactions and use their numbers again. A position therefore names the timeline, and the changes
of a new timeline come after all earlier ones.

What must stay true: a change is notified after its commit, as a notification within it would make
writers wait for each other, and at most every few milliseconds. A follower that gets no
notification looks each second. A notification only wakes: it carries no data.
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
#: Between two notices of one process; between two looks, while something is not behind the horizon
#: yet and else.
_NOTICE_S, _PENDING_S, _LOOK_S = 0.005, 0.02, 1.0
#: For so long a notice waits for the writes of other processes.
_SHARED_S = 0.003
#: For so long a question waits until what was acknowledged is behind the horizon.
_SETTLE_S = 0.5
#: For so long a listener counts as one after it said so.
_LISTENS_S = 20.0
_PAGE = 10_000


class Feed:
    """The feed of one store. Several threads may use it."""

    def __init__(self, database: PostgresDatabase) -> None:
        self.database = self._database = database
        self.channel = f"capsule_{database.address.schema}"
        self._begin()
        call_in_child(self, Feed._begin)

    def _begin(self) -> None:
        self._guard = threading.Lock()
        self._trackers: weakref.WeakKeyDictionary[TouchedNames, str | None] = (
            weakref.WeakKeyDictionary()
        )
        self._follower: _ChangeListener | None = None
        self._bell: _CommitNotifier | None = None

    # -- Reading it --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until what is there now is behind the horizon, but not for long: any transaction can
        stall that.
        """
        statement = (
            "SELECT xid::text::bigint FROM @changes WHERE xid >= "
            "pg_snapshot_xmin(pg_current_snapshot())"
            " ORDER BY xid DESC LIMIT 1"
        )
        newest, deadline, pause_s = (
            self._database.one(statement),
            time.monotonic() + _SETTLE_S,
            0.001,
        )
        while newest is not None and time.monotonic() < deadline:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)
            row = self._database.one("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
            if row is None or row[0] > newest[0]:
                return

    def changes(
        self, generation: str, snapshot: str, cursor: Cursor | None, limit: int
    ) -> tuple[list[Change], str]:
        """The changes of conversations behind a cursor, and the cursor behind them.

        Args:
            generation: Of the database.
            snapshot: What else the asker knows is as it was then.
            cursor: None: no changes, but the cursor of now.
            limit: The largest number of changes.

        Raises InvalidInput: The cursor is of a database that this one was restored from.
        """
        if cursor is None:
            row = self._database.one(
                "SELECT place, seq FROM @changes WHERE xid < pg_snapshot_xmin(%s::pg_snapshot) "
                "AND event <> ''"
                " ORDER BY place DESC, seq DESC LIMIT 1",
                snapshot,
            )
            place, seq = row or (0, 0)
            return [], str(Cursor(generation, seq, place))
        is_at_beginning = cursor.seq <= 1 and cursor.time_ms == 0  # That of all generations.
        if cursor.generation != generation and not is_at_beginning:
            raise InvalidInput(
                "that cursor is of an earlier state of this database, which was restored since; "
                "take a new one"
            )
        place, seq = (0, 0) if is_at_beginning else (cursor.time_ms, cursor.seq)
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
        for number, row in enumerate(rows):
            changes.append(_change(generation, cursor.skip if number == 0 else 0, *row))
        after = changes[-1].cursor if changes else str(Cursor(generation, seq, place, cursor.skip))
        return changes, after

    # -- Being told of it --------------------------------------------------------------------------

    def ring(self) -> None:
        """Tell whoever waits that something was written."""
        with self._guard:
            self._bell = self._bell or _CommitNotifier(self._database, self.channel)
            if time.monotonic() > self._bell.quiet_until_s:
                self._bell.rung.set()

    def tracker(self, kind: str | None) -> TouchedNames:
        """What tells of documents that are written from now on; see `Engine.tracker`."""
        tracker = TouchedNames()
        with self._guard:
            self._trackers[tracker] = kind
            if self._follower is None:
                self._follower = _ChangeListener(self._database, self.channel, self._touch)
        return tracker

    def _touch(self, documents: list[tuple[str, str]] | None, *, again: bool = False) -> None:
        with self._guard:
            trackers = [each for each in self._trackers.items() if each[1] or not again]
        for tracker, of in trackers:
            if documents is None:
                tracker.touch(None)
            else:
                tracker.touch(
                    [id if of else f"{kind}-{id}" for kind, id in documents if of in (kind, None)]
                )

    def close(self) -> None:
        """End the threads; a notice that is due is given first."""
        with self._guard:
            bell, follower, self._bell, self._follower = self._bell, self._follower, None, None
        for thread in (bell, follower):
            if thread is not None:
                thread.close()


def _change(
    generation: str, skip: int, place: int, seq: int, id: str, event: str, *columns: Any
) -> Change:
    text, count, tag, was, at = columns
    fields = orjson.loads(text)
    for name in ("messages", "removed", "fields"):
        if name in fields:
            fields[name] = tuple(fields[name])
    if skip and "messages" in fields:
        # The rest of a change whose beginning was reported by itself.
        event, fields["messages"] = "appended", fields["messages"][skip:]
    if event != "appended":
        fields |= {"tag": tag_of(tag), "was": tag_of(was)}
    before, cursor = (
        str(Cursor(generation, seq - 1, place, skip)),
        str(Cursor(generation, seq, place)),
    )
    return Change(event, id, at, cursor, count=count, before=before, **fields)


class _CommitNotifier:
    """A thread that sends notifications after commits, the first one at once."""

    def __init__(self, database: PostgresDatabase, channel: str) -> None:
        self._database, self._channel = database, channel
        #: Nobody listened a moment ago; whoever begins to looks each second by itself.
        self.quiet_until_s = 0.0
        self._looked_s = -_LOOK_S
        self.rung = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="capsule-notices", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self.rung.wait()
            if self.rung.is_set():
                self.rung.clear()
                with suppress(CapsuleError):  # Others look each second.
                    self._give_notice()
            if self._is_closed and not self.rung.is_set():
                return
            time.sleep(_NOTICE_S)

    def _give_notice(self) -> None:
        if time.monotonic() - self._looked_s >= _LOOK_S:
            self._looked_s = time.monotonic()
            statement = "SELECT 1 FROM @listeners WHERE expires > clock_timestamp() LIMIT 1"
            if self._database.one(statement) is None:
                self.quiet_until_s = self._looked_s + _LOOK_S
        if time.monotonic() > self.quiet_until_s:
            # One process at a time gives notice for all: it is heard when its transaction ends,
            # behind what was written meanwhile. Nobody waits for the medium for this.
            self._database.read(
                "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, ''), "
                "pg_sleep(%s)"
                " WHERE pg_try_advisory_xact_lock(hashtextextended(%s, 1))",
                *(self._channel, _SHARED_S, self._channel),
            )

    def close(self) -> None:
        self._is_closed = True
        self.rung.set()
        self._thread.join()


class _ChangeListener:
    """A thread that reports which documents any machine wrote."""

    def __init__(self, database: PostgresDatabase, channel: str, touch: Any) -> None:
        self._database, self._channel, self._touch = database, channel, touch
        self._wake, self._waker = os.pipe()
        self._id, self._known_until_s = uuid4(), 0.0
        #: Everything from this transaction on is looked at; what of it was told, and what of that
        #: will be once more.
        self._floor = self._horizon()
        self._told: set[int] = {row[1] for row in self._rows()}
        self._pending: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="capsule-feed", daemon=True)
        self._thread.start()

    def _horizon(self) -> int:
        row = self._database.one("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
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
                if is_lost:  # A standby that took over may give numbers again.
                    self._floor, self._told, self._pending = self._horizon(), set(), set()
                self._be_known()
                self._look()
                if is_lost:
                    self._touch(None)
                    is_lost = False
            except (
                Exception
            ) as error:  # Whatever it is: those who wait look themselves, and it begins again.
                _log.debug("the feed is interrupted: %s", type(error).__name__)
                self._touch(None)
                is_lost = True
                if connection is not None:
                    connection.close()
                connection = None
            waits = [self._wake, *([] if connection is None else [connection.fileno()])]
            ready, _, _ = select.select(waits, [], [], _PENDING_S if self._pending else _LOOK_S)
            if self._wake in ready:
                break
        if connection is not None:
            connection.close()
        os.close(self._wake)

    def _be_known(self) -> None:
        """Say that there is a listener, for a while."""
        if time.monotonic() > self._known_until_s:
            self._known_until_s = time.monotonic() + _LISTENS_S / 2
            with suppress(Refused):  # A role that may only read looks each second.
                self._database.write(
                    "INSERT INTO @listeners VALUES (%s, clock_timestamp() + %s * interval '1 "
                    "second')"
                    " ON CONFLICT (id) DO UPDATE SET expires = excluded.expires",
                    *(self._id, _LISTENS_S),
                )

    def _look(self) -> None:
        """Tell what was written since the last look; and once more what is behind the horizon only
        now, as nobody who follows the feed could see it before."""
        rows = self._rows()
        if not rows:
            return
        horizon = min(rows[-1][4], rows[-1][0] if len(rows) == _PAGE else rows[-1][4])
        touched = [(kind, id) for _, seq, kind, id, _ in rows if seq not in self._told]
        passed = [
            (kind, id) for xid, seq, kind, id, _ in rows if seq in self._pending and xid < horizon
        ]
        self._floor = horizon
        self._told = {seq for xid, seq, *_ in rows if xid >= horizon}
        self._pending = set(self._told)
        if touched:
            self._touch(touched)
        if passed:
            self._touch(passed, again=True)

    def _rows(self) -> list[tuple[Any, ...]]:
        return self._database.read(
            "SELECT xid::text::bigint, seq, kind, id, "
            "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
            " FROM @changes WHERE xid >= %s::text::xid8 ORDER BY xid, seq LIMIT %s",
            str(self._floor),
            _PAGE,
        )

    def close(self) -> None:
        os.write(self._waker, b"x")
        self._thread.join()
        with suppress(CapsuleError):
            self._database.write(
                "DELETE FROM @listeners WHERE id = %s OR expires < clock_timestamp()", self._id
            )
        os.close(self._waker)
