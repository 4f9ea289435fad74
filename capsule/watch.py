"""Hearing of changes: one hub of an open store, which wakes whoever waits for one.

What must stay true: the system's notices only wake. What changed is asked of the journal, by each from a cursor of
its own: so a notice that is lost, late or doubled loses and doubles nothing, and who is slow holds up nobody and
makes nothing grow. The module does not know the store; it calls what it is given. It is imported by who watches only.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

# Not in the thread: a signal that ends an import in the main thread may leave the lock that all imports take.
from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

from capsule.changes import Change

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["Hub", "Notices", "Waiter"]

_log = logging.getLogger("capsule")

# watchfiles looks for what the system told it every `step` milliseconds, and gives it out at the second look: one
# millisecond is heard of after 1.6 and costs 1.6 % of a processor, four after 6.4 for 0.7 %, its default after 70.
_EAGER_STEP_MS = 1
_CALM_STEP_MS = 4
#: How long it goes on listening closely after a change, in seconds: one seldom comes alone.
_EAGER_S = 2.0
#: A look without a notice, in seconds: when the system's queue runs over it drops notices, and nobody is told.
_RESCAN_S = 10.0
#: How many times as long as it takes: such a look costs a scan, and it is to cost 0.3 % of the time at most.
_RESCAN_COSTS = 300
#: Without notices: the shortest time between two looks, and how many times as long as a look takes, for at most 2 %.
_POLL_S = 0.2
_POLL_COSTS = 50
#: How long the hub stays ready with nobody waiting: a long poll comes back soon.
_LINGER_S = 10.0


class Notices:
    """The system's notices that documents of one directory changed; the clock's, where the system gives none.

    The directory need not exist: the one above it, which must, tells when it comes, goes or is another.

    Args:
        root: The directory above.
        directory: The directory whose documents are watched.
        stop: Set to end a wait at once.
    """

    def __init__(self, root: str, directory: str, stop: threading.Event) -> None:
        self._root = root
        self._directory = directory
        self._name = os.path.basename(directory)
        self._stop = stop
        self._notify: RustNotify | None = None
        self._whole = False
        self._armed_at = -_RESCAN_S
        self.polling = False

    def arm(self) -> None:
        """Begin to listen. What changed before is not told: look once after this."""

        def listen(*paths: str) -> RustNotify:
            # Not recursive: neither directory holds documents further below. Never a file: a rename over it, as
            # every editor does, leaves a watch on the old one.
            return RustNotify(list(paths), False, False, 0, False, True)

        self.disarm()
        self._armed_at = time.monotonic()
        try:
            try:
                self._notify = listen(self._root, self._directory)
            except FileNotFoundError:
                self._notify = listen(self._root)
                # It may have been made in between, with nobody listening yet.
                try:
                    self._notify = listen(self._root, self._directory)
                except FileNotFoundError:
                    self._whole = False
                    return
            self._whole = True
        except (OSError, WatchfilesRustInternalError) as error:
            # Too many watches of one user, most likely (fs.inotify.max_user_instances); or a platform without any.
            if not self.polling:
                _log.warning(
                    "the system gives no notices of changes (%s): looking for them now and then, so that they are "
                    "heard of later",
                    error,
                )
            self.polling = True
            return
        self.polling = False

    def disarm(self) -> None:
        """End listening."""
        notify, self._notify = self._notify, None
        if notify is not None:
            notify.close()

    def wait(self, *, eager: bool, look_s: float) -> None:
        """Return when a document may have changed, when `stop` is set, and now and then.

        Args:
            eager: Whether a change is likely to come soon.
            look_s: How long the last look took, in seconds.
        """
        if self._notify is None:
            self._stop.wait(max(_POLL_S, _POLL_COSTS * look_s))
            if time.monotonic() - self._armed_at > _RESCAN_S:
                self.arm()
            return
        step_ms = _EAGER_STEP_MS if eager else _CALM_STEP_MS
        until = time.monotonic() + (_EAGER_S if eager else max(_RESCAN_S, _RESCAN_COSTS * look_s))
        while (left_s := until - time.monotonic()) > 0:
            try:
                told = self._notify.watch(step_ms, step_ms, max(int(left_s * 1000), 1), self._stop)
            except WatchfilesRustInternalError as error:  # A name that is no text, for example; it would stay so.
                _log.debug("watching was interrupted: %s", error)
                self.arm()
                return
            if isinstance(told, str):
                # Stop or time-out: what was told in the very last moment is dropped with it, so one looks.
                return
            names = [os.path.basename(path) for _, path in told]
            if self._name in names:  # It came, went, or is another.
                self.arm()
                return
            # A filter of our own: the default one is deaf below any directory called .git or node_modules. The store's
            # temporary names count: a file is written under the name it was made with by who has it open since.
            if any(name.endswith((".json", ".tmp")) for name in names):
                return
        if not self._whole:
            self.arm()

    def leave(self) -> RustNotify | None:
        """In a forked child: what listens for the parent, to be kept and never closed."""
        notify, self._notify = self._notify, None
        return notify


class Waiter:
    """One who waits for changes.

    Args:
        ids: The documents that matter to it; None: all.
        wake: Called from the hub's thread; must return at once.

    Attributes:
        unsure: Whether what woke it was no change of the journal, so that it should look for itself.
    """

    def __init__(self, ids: frozenset[str] | None, wake: Callable[[], None]) -> None:
        self.ids = ids
        self.wake = wake
        self.unsure = True

    def wants(self, ids: Collection[str]) -> bool:
        """Whether one of the changed documents matters to it."""
        return self.ids is None or not self.ids.isdisjoint(ids)


class Hub:
    """Wakes the waiters of one open store.

    Its thread runs while somebody waits and for a while after; every waiter is woken when it has begun to listen.

    Args:
        root: The store's directory.
        directory: The directory of its documents.
        look: What changed after a cursor (None: nothing, but the cursor now), brought up to date; and the
            cursor after that.
        most: How many changes `look` gives at once; when it gives as many there may be more.
    """

    def __init__(
        self, root: str, directory: str, look: Callable[[str | None], tuple[Sequence[Change], str]], most: int
    ) -> None:
        self._root = root
        self._directory = directory
        self._look_up = look
        self.most = most
        self.closed = False
        self._begin()
        _hubs.add(self)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._waiters: weakref.WeakSet[Waiter] = weakref.WeakSet()
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._notices: Notices | None = None
        self._pool: ThreadPoolExecutor | None = None

    @property
    def running(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Threads in which event loops let the journal be read: two, as a loop's own may be taken by what waits."""
        with self._changed:
            if self.closed:
                raise RuntimeError("the store is closed")
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor

                self._pool = ThreadPoolExecutor(2, "capsule-changes")
            return self._pool

    def waiter(self, ids: frozenset[str] | None, wake: Callable[[], None]) -> Waiter:
        """One more who is woken from now on; see `Waiter`. It is forgotten when nobody else holds it."""
        waiter = Waiter(ids, wake)
        with self._changed:
            self._waiters.add(waiter)
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """Wake it no more."""
        with self._changed:
            self._waiters.discard(waiter)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While the body runs somebody waits, and the hub listens."""
        with self._changed:
            self._waiting += 1
            if self._thread is None and not self.closed:
                self._stop.clear()
                # A daemon, as it must not keep the process alive; `_stop_all` ends it before the interpreter does,
                # which can't end a thread inside watchfiles.
                self._thread = threading.Thread(target=self._run, name="capsule-watch", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        changed = self._changed
        try:
            yield
        finally:
            if changed is self._changed:  # Else this is a forked child, whose count began anew.
                with changed:
                    self._waiting -= 1

    def close(self) -> None:
        """End its thread, and wake everybody for the last time."""
        self.closed = True
        self._end()
        self._wake(None)

    def _end(self) -> None:
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
            thread, pool = self._thread, self._pool
            self._pool = None
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if pool is not None:
            pool.shutdown()

    def _is_wanted(self) -> bool:
        """Wait until somebody waits; False when the thread is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting > 0 or self._stop.is_set(), _LINGER_S)
            if self._waiting > 0 and not self._stop.is_set():
                return True
            self._thread = None
            return False

    def _run(self) -> None:
        notices = self._notices = Notices(self._root, self._directory, self._stop)
        cursor: str | None = None
        eager_until, look_s = 0.0, 0.0
        try:
            notices.arm()
            while True:
                began = time.monotonic()
                cursor, heard = self._look(cursor)
                look_s = time.monotonic() - began
                if heard:
                    eager_until = began + _EAGER_S
                if not self._is_wanted():
                    return
                notices.wait(eager=time.monotonic() < eager_until, look_s=look_s)
        finally:
            notices.disarm()

    def _look(self, cursor: str | None) -> tuple[str | None, bool]:
        """Look what changed, and wake whom it matters to; the cursor after it, and whether anything did."""
        heard = False
        while not self._stop.is_set():
            try:
                changes, after = self._look_up(cursor)
            except Exception as error:
                # Whoever waits looks for itself, and is told what is wrong in its own thread.
                _log.debug("looking for changes failed: %s", error)
                self._wake(None)
                return cursor, heard
            if cursor is None:
                self._wake(None)  # What happened before it listened may have woken nobody.
            elif changes:
                heard = True
                self._wake({change.id for change in changes})
            cursor = after
            if len(changes) < self.most:
                break
        return cursor, heard

    def _wake(self, ids: Collection[str] | None) -> None:
        with self._changed:
            waiters = [waiter for waiter in self._waiters if ids is None or waiter.wants(ids)]
        for waiter in waiters:
            if ids is None:
                waiter.unsure = True
            waiter.wake()

    def forget_parent(self) -> None:
        """In a forked child: it has none of the parent's threads, and must not end what listens for the parent."""
        if self._notices is not None:
            _left.append(self._notices.leave())
        _left.append(self._pool)
        self._begin()


_hubs: weakref.WeakSet[Hub] = weakref.WeakSet()
#: What a forked child has of its parent's, kept so that nothing is closed.
_left: list[object] = []


def _stop_all() -> None:
    for hub in list(_hubs):
        hub.close()


def _in_forked_child() -> None:
    for hub in list(_hubs):
        hub.forget_parent()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)
