"""The hub of an open store, which wakes its waiters when a document changes.

What must stay true: the system's notices only wake. Each waiter reads the changes from the journal,
from its own cursor: a lost, late or doubled notice loses and doubles no change, and a slow waiter
neither delays the others nor costs memory. A failure in the hub's thread reaches the waiters. The
module does not know the store; it calls the functions it is given. Only watching imports it.
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
from typing import TYPE_CHECKING

from capsule.process_forks import call_in_child

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from capsule.engines.changes import Changes
    from capsule.engines.interface import Tracker

_log = logging.getLogger("capsule")

#: How long to wait for further notices after the first, in seconds: one write causes several.
_GATHER_S = 0.002
#: Seconds between two scans without a notice: writes through a memory mapping cause none.
_RESCAN_S = 10.0
#: The shortest time between two such scans, as a multiple of a scan's duration: at most 0.1 % of
#: the time.
_RESCAN_COSTS = 1000
#: Seconds between two calls of `check`.
_CHECK_S = 2.0
#: Seconds before the thread begins again after a failure.
_AGAIN_S = 0.2
#: Seconds that the thread stays without a waiter: a long poll comes back soon.
_LINGER_S = 10.0


class Waiter:
    """A reader that waits for changes.

    Args:
        ids: The documents that it waits for; None: all.
        wake: Called from the hub's thread; must return at once.

    Attributes:
        unsure: Whether it was woken without a change in the journal, so that it must update the
            index itself.
    """

    def __init__(self, ids: frozenset[str] | None, wake: Callable[[], None]) -> None:
        self.ids = ids
        self.wake = wake
        self.must_refresh = True

    def wants(self, ids: Collection[str]) -> bool:
        """Whether it waits for one of these documents."""
        return self.ids is None or not self.ids.isdisjoint(ids)


class ChangeHub:
    """Wakes the waiters of one open store.

    Its thread runs while there is a waiter and for a while after. When it begins to listen, it
    wakes every waiter.

    Args:
        listen: Opens a tracker of the documents.
        look: Returns the changes after a cursor (None: no changes), and the cursor after them.
        check: Called at intervals, for changes without a notice: a program that has ended writes
            nothing.
        most: The largest number of changes that `look` returns; if it returns as many, there may be
            more.
    """

    def __init__(
        self,
        listen: Callable[[], Tracker],
        look: Callable[[str | None], Changes],
        check: Callable[[], None],
        most: int,
    ) -> None:
        self._open_tracker = listen
        self._read_changes = look
        self._on_interval = check
        self.max_changes = most
        self.is_closed = False
        self._begin()
        _hubs.add(self)
        call_in_child(self, ChangeHub.forget_parent)

    def _begin(self) -> None:
        self._condition = threading.Condition()
        self._is_stopping = False
        self._waiters: weakref.WeakSet[Waiter] = weakref.WeakSet()
        self._listener_count = 0
        self._thread: threading.Thread | None = None
        #: A byte sent into the second socket ends a wait for the first.
        self._wake_sockets: tuple[socket.socket, socket.socket] | None = None
        self._pool: ThreadPoolExecutor | None = None

    @property
    def running(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Two threads that read the journal for event loops, as a loop's own threads may all be
        waiting.
        """
        with self._condition:
            if self.is_closed:
                raise RuntimeError("the store is closed")
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor

                self._pool = ThreadPoolExecutor(2, "capsule-changes")
            return self._pool

    def waiter(self, ids: frozenset[str] | None, wake: Callable[[], None]) -> Waiter:
        """A new waiter. The hub forgets it when nothing else refers to it."""
        waiter = Waiter(ids, wake)
        with self._condition:
            self._waiters.add(waiter)
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter, so that it is woken no more."""
        with self._condition:
            self._waiters.discard(waiter)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen while the body runs."""
        with self._condition:
            if self._thread is None and not self.is_closed:
                self._is_stopping = False
                # A daemon, as it must not keep the process alive; `_stop_all` ends it before the
                # interpreter does.
                thread = threading.Thread(target=self._run, name="capsule-watch", daemon=True)
                thread.start()
                self._thread = thread
            self._listener_count += 1
            self._condition.notify_all()
        changed = self._condition
        try:
            yield
        finally:
            if changed is self._condition:  # Else this is a forked child, whose count began anew.
                with changed:
                    self._listener_count -= 1

    def close(self) -> None:
        """End its thread, and wake every waiter for the last time."""
        self.is_closed = True
        self._end()
        self._wake(None)

    def _end(self) -> None:
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()
            thread, pool, self._pool = self._thread, self._pool, None
            if self._wake_sockets is not None:
                self._wake_sockets[1].send(b".")
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if pool is not None:
            pool.shutdown()

    def _has_listener(self) -> bool:
        """Wait for a waiter; False when the thread has to end."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._listener_count > 0 or self._is_stopping, _LINGER_S
            )
            if self._listener_count > 0 and not self._is_stopping:
                return True
            self._thread = None
            return False

    def _run(self) -> None:
        """The hub's thread. A failure is logged and wakes all waiters, which then look themselves;
        the thread starts over."""
        while True:
            try:
                with self._open_wake_sockets() as bell:
                    self._follow(bell)
                return
            except Exception:
                _log.exception("watching was interrupted, and starts again")
                self._wake(None)
                with self._condition:
                    if self._condition.wait_for(lambda: self._is_stopping, _AGAIN_S):
                        self._thread = None
                        return

    @contextmanager
    def _open_wake_sockets(self) -> Iterator[socket.socket]:
        heard, rung = socket.socketpair()
        with heard, rung:
            with self._condition:
                self._wake_sockets = heard, rung
            try:
                yield heard
            finally:
                with self._condition:
                    if self._wake_sockets == (
                        heard,
                        rung,
                    ):  # Another thread may have begun already.
                        self._wake_sockets = None

    def _follow(self, bell: socket.socket) -> None:
        """Look whenever a document was touched, until there is no waiter."""
        cursor: str | None = None
        tracker: Tracker | None = None
        try:
            while True:
                tracker = (
                    tracker or self._open_tracker()
                )  # Before the look, so that nothing happens in between.
                began = time.monotonic()
                cursor = self._wake_for_changes(cursor)
                look_s = time.monotonic() - began
                if not self._has_listener():
                    return
                self._await_touch(bell, tracker, max(_RESCAN_S, _RESCAN_COSTS * look_s))
                tracker = tracker if tracker.is_open else None
        finally:
            if tracker is not None:
                tracker.close()

    def _await_touch(self, bell: socket.socket, tracker: Tracker, timeout_s: float) -> None:
        """Return when a document was touched, when the tracker can't tell,
        and after `timeout_s`.
        """
        until = time.monotonic() + timeout_s
        while not self._is_stopping:
            left_s = until - time.monotonic()
            is_touched = _wait(bell, tracker, min(left_s, _CHECK_S))
            if is_touched:
                _wait(bell, None, _GATHER_S)
            else:
                self._on_interval()
            if tracker.changed_ids() != set() or left_s <= _CHECK_S:
                return

    def _wake_for_changes(self, cursor: str | None) -> str | None:
        """Read the changes after a cursor, and wake the waiters for them; the cursor after the
        changes.
        """
        while not self._is_stopping:
            try:
                news = self._read_changes(cursor)
            except Exception as error:
                # Every waiter looks for itself, and gets the error in its own thread.
                _log.debug("looking for changes failed: %s", error)
                self._wake(None)
                return cursor
            if cursor is None:
                self._wake(None)  # Changes before it listened may have woken no waiter.
            elif news.changes:
                self._wake({change.id for change in news.changes})
            cursor = news.cursor
            if len(news.changes) < self.max_changes:
                break
        return cursor

    def _wake(self, ids: Collection[str] | None) -> None:
        with self._condition:
            waiters = [waiter for waiter in self._waiters if ids is None or waiter.wants(ids)]
        for waiter in waiters:
            if ids is None:
                waiter.must_refresh = True
            waiter.wake()

    def forget_parent(self) -> None:
        """Start over in a forked child, which has none of the parent's threads, with descriptors of
        its own.
        """
        _left.append(self._pool)
        for end in self._wake_sockets or ():
            end.close()
        self._begin()


def _wait(bell: socket.socket, tracker: Tracker | None, timeout_s: float) -> bool:
    """Wait for a notice of the tracker, for the bell, or until the timeout; whether the tracker has
    a notice.
    """
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    if tracker is not None:
        poll.register(tracker, select.POLLIN)
    return any(fd != bell.fileno() for fd, _ in poll.poll(max(0, round(timeout_s * 1000))))


_hubs: weakref.WeakSet[ChangeHub] = weakref.WeakSet()
#: Pools of a parent process, kept so that a forked child does not wait for their threads.
_left: list[object] = []


def _stop_all() -> None:
    for hub in list(_hubs):
        hub.close()


atexit.register(_stop_all)
