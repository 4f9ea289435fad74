"""The hub of an open store, which wakes its waiters when a document changes.

A thread waits for a tracker of the documents. When it reports something, the thread reads the new
changes from the journal, and wakes the waiters of the changed documents. The thread runs while
somebody listens, and a few seconds longer.

What must stay true: the notices of the system only wake. Each waiter reads the changes from the
journal itself, from its own cursor. So a lost, late or doubled notice loses and doubles no change,
and a slow waiter neither delays the others nor costs memory. A failure in the hub's thread reaches
the waiters. The module does not know the store, and calls the functions that it is given. Only
watching imports it.
"""

from __future__ import annotations

import atexit
import logging
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from capsule.engines.changes import Interest
from capsule.engines.interface import JournalTracker
from capsule.errors import InvalidInput
from capsule.process_forks import call_in_child

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from capsule.engines.changes import Change, Changes
    from capsule.engines.interface import Tracker

_log = logging.getLogger("capsule")

#: How long to wait for further notices after the first, in seconds: one write causes several.
_GATHER_S = 0.002
#: Seconds between two scans without a notice. Writes through a memory mapping cause none.
_RESCAN_S = 10.0
#: The shortest time between two such scans, as a multiple of a scan's duration: at most 0.1 % of
#: the time.
_RESCAN_COSTS = 1000
#: Seconds between two calls of `on_interval`.
_CHECK_S = 2.0
#: Seconds between two looks whether the process that watches for this one is still there.
_FOLLOWING_CHECK_S = 60.0
#: Seconds before the thread begins again after a failure.
_RESTART_S = 0.2
#: Seconds that the thread stays without a waiter: a long poll comes back soon.
_LINGER_S = 10.0


class Waiter:
    """A reader that waits for changes.

    Attributes:
        interest: The changes that it waits for.
        wake: Is called in the hub's thread, and must return at once.
        must_refresh: Whether it was woken without a known change, so that it must update the index
            itself.
    """

    def __init__(self, interest: Interest, wake: Callable[[], None]) -> None:
        self.interest = interest
        self.wake = wake
        self.must_refresh = True

    def wants(self, change: Change) -> bool:
        """Check if it waits for a change."""
        return self.interest.includes(change.kind, change.id)


class ChangeHub:
    """Wakes the waiters of one open store. Several threads may use it.

    When its thread starts, it wakes every waiter.

    Args:
        open_tracker: Opens a tracker of the documents.
        read_changes: Returns the changes after a cursor, and the next cursor. Without a cursor: no
            changes, and the present cursor. The second argument: whether it must look at the
            documents first, as the journal may lack changes.
        on_interval: Is called every two seconds, to find changes without a notice: a program that
            was killed writes nothing.
        max_changes: The largest number of changes that `read_changes` returns. If it returns as
            many, there may be more.

    Attributes:
        max_changes: The argument.
        is_closed: Whether `close` was called.
    """

    def __init__(
        self,
        open_tracker: Callable[[], Tracker],
        read_changes: Callable[[str | None, bool], Changes],
        on_interval: Callable[[], None],
        max_changes: int,
    ) -> None:
        self._open_tracker = open_tracker
        self._read_changes = read_changes
        self._on_interval = on_interval
        self.max_changes = max_changes
        self.is_closed = False
        self._begin()
        _hubs.add(self)
        call_in_child(self, ChangeHub.forget_parent)

    def _begin(self) -> None:
        self._condition = threading.Condition()
        self._is_stopping = False
        self._waiters: weakref.WeakSet[Waiter] = weakref.WeakSet()
        #: The tracker while the thread runs, if it can choose, and what it is to report: what any
        #: waiter wanted since then.
        self._journal_tracker: JournalTracker | None = None
        self._interest: Interest | None = None
        self._listener_count = 0
        self._thread: threading.Thread | None = None
        #: Receiver and sender. A byte wakes the thread that waits for the receiver.
        self._wake_sockets: tuple[socket.socket, socket.socket] | None = None
        self._pool: ThreadPoolExecutor | None = None

    @property
    def running(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Two threads that read the journal for event loops, since all threads of a loop's own pool
        may be waiting.
        """
        with self._condition:
            if self.is_closed:
                raise RuntimeError("the store is closed")
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor

                self._pool = ThreadPoolExecutor(2, "capsule-changes")
            return self._pool

    def waiter(
        self, interest: Interest, wake: Callable[[], None], *, must_refresh: bool = True
    ) -> Waiter:
        """Return a new waiter. The hub drops it when nothing else refers to it.

        Args:
            interest: The changes that it waits for.
            wake: See `Waiter`.
            must_refresh: Whether its first read has all that was written before. Otherwise it may
                have less, if the hub will wake the waiter for the rest.
        """
        waiter = Waiter(interest, wake)
        with self._condition:
            self._waiters.add(waiter)
            if self._journal_tracker is not None and self._interest is not None:
                waiter.must_refresh = must_refresh or not self._interest.covers(interest)
            # What nobody waits for any more stays, since most waiters soon wait again.
            if self._interest is None:
                self._interest = interest
            elif not self._interest.covers(interest):
                self._interest = self._interest.union(interest)
            self._choose(self._interest)
        return waiter

    def _choose(self, interest: Interest) -> None:
        tracker = self._journal_tracker
        if tracker is not None and tracker.interest != interest:
            tracker.want(interest)

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter, so that it is no longer woken."""
        with self._condition:
            self._waiters.discard(waiter)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Run the thread while the block runs."""
        with self._condition:
            if self._thread is None and not self.is_closed:
                self._is_stopping = False
                # A daemon, so that it does not keep the process alive. `_stop_all` ends it before
                # the interpreter does.
                thread = threading.Thread(target=self._run, name="capsule-watch", daemon=True)
                thread.start()
                self._thread = thread
            self._listener_count += 1
            self._condition.notify_all()
        condition = self._condition
        try:
            yield
        finally:
            if (
                condition is self._condition
            ):  # Otherwise this is a forked child, which has no count.
                with condition:
                    self._listener_count -= 1

    def close(self) -> None:
        """End the thread, and wake every waiter for the last time."""
        self.is_closed = True
        self._end()
        self._wake(None)

    def _end(self) -> None:
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()
            thread = self._thread
            pool = self._pool
            self._pool = None
            if self._wake_sockets is not None:
                self._wake_sockets[1].send(b".")
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if pool is not None:
            pool.shutdown()

    def _has_listener(self) -> bool:
        """Wait a few seconds until somebody listens. Returns False if the thread must end."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._listener_count > 0 or self._is_stopping, _LINGER_S
            )
            if self._listener_count > 0 and not self._is_stopping:
                return True
            self._thread = None
            return False

    def _run(self) -> None:
        """Run in the hub's thread. After a failure, log it, wake all waiters, and start again.

        The waiters then read the changes themselves, and get the error if it persists.
        """
        while True:
            try:
                with self._open_wake_sockets() as receiver:
                    self._follow(receiver)
                return
            except Exception:
                _log.exception("watching was interrupted, and starts again")
                self._wake(None)
                with self._condition:
                    if self._condition.wait_for(lambda: self._is_stopping, _RESTART_S):
                        self._thread = None
                        return

    @contextmanager
    def _open_wake_sockets(self) -> Iterator[socket.socket]:
        receiver, sender = socket.socketpair()
        with receiver, sender:
            with self._condition:
                self._wake_sockets = receiver, sender
            try:
                yield receiver
            finally:
                with self._condition:
                    if self._wake_sockets == (
                        receiver,
                        sender,
                    ):  # Another thread may have begun already.
                        self._wake_sockets = None

    def _follow(self, receiver: socket.socket) -> None:
        """Read the changes whenever a document was touched, until nobody listens."""
        cursor: str | None = None
        tracker: Tracker | None = None
        is_following = False
        must_look = True
        try:
            while True:
                # Opened before the changes are read, so that none is missed in between.
                if tracker is None:
                    tracker = self._open_tracker()
                    self._begin_tracking(tracker)
                if isinstance(tracker, JournalTracker) and tracker.is_following != is_following:
                    is_following = tracker.is_following
                    cursor = None  # From now on this process watches what another one did.
                began_s = time.monotonic()
                cursor = self._wake_for_changes(cursor, must_look)
                read_s = time.monotonic() - began_s
                if not self._has_listener():
                    return
                must_look = self._await_touch(
                    receiver, tracker, max(_RESCAN_S, _RESCAN_COSTS * read_s)
                )
                tracker = tracker if tracker.is_open else None
        finally:
            with self._condition:
                self._journal_tracker = None
                self._interest = None
            if tracker is not None:
                tracker.close()

    def _begin_tracking(self, tracker: Tracker) -> None:
        """Tell a new tracker what the waiters want, if it can choose."""
        with self._condition:
            if isinstance(tracker, JournalTracker):
                self._journal_tracker = tracker
                interests = [waiter.interest for waiter in self._waiters]
                self._interest = None
                if interests:
                    self._interest = reduce(Interest.union, interests)
                    self._choose(self._interest)

    def _await_touch(self, receiver: socket.socket, tracker: Tracker, timeout_s: float) -> bool:
        """Wait until a document was touched, the tracker no longer knows, or `timeout_s` is over.

        Returns whether the journal may lack changes. One that a tracker of the journal reports is
        there.
        """
        deadline = time.monotonic() + timeout_s
        journal_tracker = tracker if isinstance(tracker, JournalTracker) else None
        while not self._is_stopping:
            remaining_s = deadline - time.monotonic()
            is_following = journal_tracker is not None and journal_tracker.is_following
            pause_s = _FOLLOWING_CHECK_S if is_following else min(max(remaining_s, 0.0), _CHECK_S)
            is_touched = _wait(receiver, tracker, pause_s)
            if is_touched and journal_tracker is None:
                _wait(receiver, None, _GATHER_S)
            elif not (is_touched or is_following):
                self._on_interval()
            ids = tracker.changed_ids()
            if ids != set():
                return ids is None or journal_tracker is None
            if remaining_s <= _CHECK_S and journal_tracker is None:
                return True
        return True

    def _wake_for_changes(self, cursor: str | None, must_look: bool) -> str | None:
        """Read the changes after a cursor, and wake the waiters for them. Returns the next
        cursor.
        """
        while not self._is_stopping:
            try:
                changes = self._read_changes(cursor, must_look)
            except InvalidInput:
                # The store was restored, and refuses the cursors of before. Each waiter reads with its
                # own cursor, and gets the error.
                self._wake(None)
                return None
            except Exception as error:
                # Every waiter reads for itself then, and gets the error in its own thread.
                _log.debug("looking for changes failed: %s", error)
                self._wake(None)
                return cursor
            if cursor is None:
                self._wake(None)  # Earlier changes may have woken no waiter.
            elif changes.changes:
                self._wake(changes.changes)
            cursor = changes.cursor
            if len(changes.changes) < self.max_changes:
                break
        return cursor

    def _wake(self, changes: Collection[Change] | None) -> None:
        """Wake the waiters for changes. None: all of them, for changes that are not known."""
        with self._condition:
            waiters = [
                waiter
                for waiter in self._waiters
                if changes is None or any(map(waiter.wants, changes))
            ]
        for waiter in waiters:
            if changes is None:
                waiter.must_refresh = True
            waiter.wake()

    def forget_parent(self) -> None:
        """Start again in a forked child, which has none of the parent's threads."""
        _parent_pools.append(self._pool)
        for end in self._wake_sockets or ():
            end.close()
        self._begin()


def _wait(receiver: socket.socket, tracker: Tracker | None, timeout_s: float) -> bool:
    """Wait for the tracker, for a byte at the receiver, or until the timeout.

    Returns whether the tracker reported something.
    """
    poll = select.poll()
    poll.register(receiver, select.POLLIN)
    if tracker is not None:
        poll.register(tracker, select.POLLIN)
    return any(fd != receiver.fileno() for fd, _ in poll.poll(max(0, round(timeout_s * 1000))))


_hubs: weakref.WeakSet[ChangeHub] = weakref.WeakSet()
#: Pools of a parent process, kept so that a forked child does not wait for their threads.
_parent_pools: list[object] = []


def _stop_all() -> None:
    for hub in list(_hubs):
        hub.close()


atexit.register(_stop_all)
