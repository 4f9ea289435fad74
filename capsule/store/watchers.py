"""Waiting for the changes of an open store.

A store has one `ChangeHub`, whose thread reads the journal of changes while somebody waits. It is
made at the first watch. A watch or a wait registers a `Waiter` with the hub, sleeps until it is
woken, and then reads the changes after its own cursor.

What must stay true: from one cursor to the next no change is missing and none comes twice. The
journal is the only buffer, so that a slow reader costs no memory. A store without watchers imports
and runs nothing for them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from capsule.engines.changes import Interest
from capsule.engines.interface import CONVERSATIONS
from capsule.errors import CapsuleError, InvalidInput
from capsule.ids import check_id
from capsule.store.change.conversation import admit_any_instance

if TYPE_CHECKING:
    from capsule.engines.changes import Changes
    from capsule.store.base import BaseStore
    from capsule.store.change.conversation import Conversation
    from capsule.watch.hub import ChangeHub, Waiter
    from capsule.watch.stream import StopEvent, Watch


#: The largest number of changes that are read at once.
_MAX_CHANGES = 500
#: A wait shorter than this, in seconds, looks for itself.
_SHORT_S = 1.0

_log = logging.getLogger("capsule")


class StoreWatchers:
    """The watchers of a store. The first watch makes the hub.

    Attributes:
        hub: Wakes the waiters. None until the first watch. Stores made by `beside` share the hub of
            their main store.
    """

    def __init__(self, store: BaseStore) -> None:
        self.hub: ChangeHub | None = None
        self._store = store
        self._is_closed = False
        self._thread_lock = threading.Lock()
        #: The active locks that the hub has seen, by conversation. Only its thread uses them.
        self._locks: dict[str, dict[str, Any]] = {}

    def watch(self, since: str | None, ids: Iterable[str] | None, stop: StopEvent | None) -> Watch:
        """See `Store.watch`."""
        return self._watch(_interest(ids), since, stop)

    def _watch(
        self,
        interest: Interest,
        since: str | None,
        stop: StopEvent | None,
        *,
        must_refresh: bool = True,
    ) -> Watch:
        from capsule.watch.stream import Watch

        if since is not None:
            self._store.queries.advance(since)
        hub = self.ensure_hub()
        cursor = self._cursor(since)
        return Watch(hub, self._read, cursor, interest, stop, must_refresh=must_refresh)

    def wait(
        self, since: str | None, ids: Iterable[str] | None, timeout_s: float | None
    ) -> Changes:
        """See `Store.wait_for_changes`."""
        return self.wait_for(_interest(ids), since, timeout_s)

    def wait_for(self, interest: Interest, since: str | None, timeout_s: float | None) -> Changes:
        """Wait for the changes of an interest. See `Store.wait_for_changes`."""
        hub = self.ensure_hub()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        woken = threading.Event()
        waiter = hub.waiter(interest, woken.set, must_refresh=_is_short(timeout_s))
        try:
            result = self._read(waiter, self._cursor(since))
            with hub.listening():
                while not result.changes and not hub.is_closed:
                    remaining_s = None if deadline is None else deadline - time.monotonic()
                    if not woken.wait(remaining_s) or hub.is_closed:
                        break
                    woken.clear()
                    result = self._read(waiter, result.cursor)
            return result
        finally:
            hub.remove(waiter)

    async def wait_in_loop(
        self, since: str | None, ids: Iterable[str] | None, timeout_s: float | None
    ) -> Changes:
        """See `Store.await_changes`."""
        return await self.wait_for_in_loop(_interest(ids), since, timeout_s)

    async def wait_for_in_loop(
        self, interest: Interest, since: str | None, timeout_s: float | None
    ) -> Changes:
        """Wait for the changes of an interest, in an event loop. See `Store.await_changes`."""
        if since is None:
            import asyncio

            loop = asyncio.get_running_loop()
            since = (await loop.run_in_executor(self.ensure_hub().pool, self._store.changes)).cursor
        async with self._watch(interest, since, None, must_refresh=_is_short(timeout_s)) as watch:
            return await watch.batch(timeout_s)

    def _cursor(self, since: str | None) -> str:
        """Return a given cursor, or the current one."""
        return self._store.changes().cursor if since is None else since

    def remember_own(self) -> None:
        """See `Store.remember_own`."""
        from capsule.watch.own_writes import OwnWrites

        with self._thread_lock:
            if self._store.inner.own_writes is None:
                self._store.inner.own_writes = OwnWrites()

    def ensure_hub(self) -> ChangeHub:
        """Return the hub. From the first call on the store remembers its own writes."""
        if self.hub is None:
            self.remember_own()
            main = self._store.inner.main
            if main is not None:
                self.hub = main.object_of(StoreWatchers).ensure_hub()
                return self.hub
            from capsule.watch.hub import ChangeHub

            with self._thread_lock:
                if self.hub is None:
                    open_tracker = partial(self._store.engine.tracker, CONVERSATIONS)
                    self.hub = ChangeHub(
                        open_tracker, self._read_for_hub, self._release_dead_locks, _MAX_CHANGES
                    )
                    if self._is_closed:  # While another thread was about to wait.
                        self.hub.close()
        return self.hub

    def close(self) -> None:
        """End every watch, and each that begins later."""
        with self._thread_lock:
            self._is_closed = True
        if self.hub is not None and self._store.inner.main is None:
            self.hub.close()

    def _read_for_hub(self, since: str | None, must_look: bool) -> Changes:
        """Return the changes after a cursor for the hub, and remember the active locks.

        `must_look`: the index may lack changes.
        """
        # Of the whole store: the stores of other agents wait on this hub too.
        queries = self._store.inner.whole_engine.queries()
        changes = queries.changes(since, _MAX_CHANGES, refresh=must_look or since is None)
        if since is None:
            from capsule.engines.queries import Filter, ListRequest

            request = ListRequest(Filter(archived=None, locked=True))
            locked = queries.conversations(request).heads
            self._locks = {head.id: head.lock for head in locked if head.lock is not None}
        for change in changes.changes:
            if change.kind == "locked" and change.lock is not None:
                self._locks[change.id] = change.lock
            elif change.kind in ("unlocked", "deleted"):
                self._locks.pop(change.id, None)
        return changes

    def _release_dead_locks(self) -> None:
        """Release the locks of programs that have ended, so that instances that wait for a lock see
        a change.
        """
        is_dead = self._store.inner.instance_locks.is_dead

        def release_if_dead(conversation: Conversation) -> None:
            lock = conversation.head.lock
            if lock is not None and is_dead(lock):
                conversation.set_lock(None)

        for id in [id for id, lock in self._locks.items() if is_dead(lock)]:
            try:
                # Not marked as this store's own: no caller asked for it.
                self._store.inner.change(id, release_if_dead, admit_any_instance, is_own=False)
            except CapsuleError as error:
                _log.debug(
                    "the lock on %s, whose holder is gone, could not be released: %s", id, error
                )
            else:
                self._locks.pop(id, None)

    def _read(self, waiter: Waiter, since: str) -> Changes:
        """Return the changes after a cursor that a waiter waits for. The index is brought up to
        date first, unless the hub has just done so.
        """
        refresh = waiter.must_refresh
        waiter.must_refresh = False
        cursor = since
        while True:
            changes = self._store.queries.changes(cursor, _MAX_CHANGES, refresh=refresh)
            relevant = [change for change in changes.changes if waiter.wants(change)]
            if relevant or len(changes.changes) < _MAX_CHANGES:
                return self._store.inner.with_own_marked(relevant, changes.cursor)
            cursor = changes.cursor


def _is_short(timeout_s: float | None) -> bool:
    """Return whether a wait may end before the hub wakes it for what was written before."""
    return timeout_s is not None and timeout_s < _SHORT_S


def _interest(ids: Iterable[str] | None) -> Interest:
    """Return the interest in all changes of conversations. None: of all conversations."""
    if ids is None:
        return Interest()
    if isinstance(ids, str):
        raise InvalidInput("ids: give a list of ids, not one text")
    checked_ids = frozenset(check_id(id) for id in ids)
    return Interest(checked_ids, checked_ids)
