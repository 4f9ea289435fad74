"""Waiting for the changes of an open store.

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
_MOST = 500

_log = logging.getLogger("capsule")


class StoreWatchers:
    """The watchers of a store. Nothing is started before the first watch."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._guard = threading.Lock()
        #: None until the first watch. Stores made by `beside` share the hub of their main store.
        self.hub: ChangeHub | None = None
        #: The active locks that the hub has seen; only its thread uses them.
        self._locks: dict[str, dict[str, Any]] = {}

    def watch(self, since: str | None, ids: Iterable[str] | None, stop: StopEvent | None) -> Watch:
        """See `Store.watch`."""
        from capsule.watch.stream import Watch

        wanted = _wanted(ids)
        if since is not None:
            self._store.queries.advance(since)
        hub = self.ensure_hub()
        return Watch(
            hub, self._read, self._store.changes().cursor if since is None else since, wanted, stop
        )

    def wait(
        self, since: str | None, ids: Iterable[str] | None, timeout_s: float | None
    ) -> Changes:
        """See `Store.wait_for_changes`."""
        wanted = _wanted(ids)
        hub = self.ensure_hub()
        until = None if timeout_s is None else time.monotonic() + timeout_s
        woken = threading.Event()
        waiter = hub.waiter(wanted, woken.set)
        try:
            answer = self._read(waiter, self._store.changes().cursor if since is None else since)
            with hub.listening():
                while not answer.changes and not hub.is_closed:
                    if (
                        not woken.wait(None if until is None else until - time.monotonic())
                        or hub.is_closed
                    ):
                        break
                    woken.clear()
                    answer = self._read(waiter, answer.cursor)
            return answer
        finally:
            hub.remove(waiter)

    async def wait_in_loop(
        self, since: str | None, ids: Iterable[str] | None, timeout_s: float | None
    ) -> Changes:
        """See `Store.await_changes`."""
        if since is None:
            import asyncio

            loop, pool = asyncio.get_running_loop(), self.ensure_hub().pool
            since = (await loop.run_in_executor(pool, self._store.changes)).cursor
        async with self.watch(since, ids, None) as watch:
            return await watch.batch(timeout_s)

    def remember_own(self) -> None:
        """See `Store.remember_own`."""
        from capsule.watch.own_writes import OwnWrites

        with self._guard:
            if self._store.inner.own_writes is None:
                self._store.inner.own_writes = OwnWrites()

    def ensure_hub(self) -> ChangeHub:
        """The hub. From now on the store remembers its own writes."""
        if self.hub is None:
            self.remember_own()
            if (main := self._store.inner.main) is not None:
                self.hub = main.object_of(StoreWatchers).ensure_hub()
                return self.hub
            from capsule.watch.hub import ChangeHub

            with self._guard:
                if self.hub is None:
                    track = partial(self._store.engine.tracker, CONVERSATIONS)
                    self.hub = ChangeHub(track, self._look, self._free_the_dead, _MOST)
        return self.hub

    def close(self) -> None:
        """End every watch."""
        if self.hub is not None and self._store.inner.main is None:
            self.hub.close()

    def _look(self, since: str | None) -> Changes:
        questions = (
            self._store.inner.whole_engine.queries()
        )  # Other agents' stores wait on this hub too.
        news = questions.changes(since, _MOST)
        if since is None:
            from capsule.engines.queries import Filter, ListRequest

            locked = questions.conversations(ListRequest(Filter(archived=None, locked=True))).heads
            self._locks = {head.id: head.lock for head in locked if head.lock is not None}
        for change in news.changes:
            if change.kind == "locked" and change.lock is not None:
                self._locks[change.id] = change.lock
            elif change.kind in ("unlocked", "deleted"):
                self._locks.pop(change.id, None)
        return news

    def _free_the_dead(self) -> None:
        """Release the locks of programs that have ended, so that instances that wait for a lock see
        a change.
        """

        def act(conversation: Conversation) -> None:
            lock = conversation.head.lock
            if lock is not None and self._store.inner.instance_locks.is_dead(lock):
                conversation.set_lock(None)

        for id in [
            id for id, lock in self._locks.items() if self._store.inner.instance_locks.is_dead(lock)
        ]:
            try:
                self._store.inner.change(
                    id, act, admit_any_instance, is_own=False
                )  # No caller asked for it.
            except CapsuleError as error:
                _log.debug(
                    "the lock on %s, whose holder is gone, could not be released: %s", id, error
                )
            else:
                self._locks.pop(id, None)

    def _read(self, waiter: Waiter, since: str) -> Changes:
        """The changes since a cursor; the index is brought up to date first, unless the hub has
        just done so.
        """
        refresh, waiter.must_refresh = waiter.must_refresh, False
        while True:
            news = self._store.queries.changes(since, _MOST, refresh=refresh)
            wanted = [change for change in news.changes if waiter.wants((change.id,))]
            if wanted or len(news.changes) < _MOST:
                return self._store.inner.with_own_marked(wanted, news.cursor)
            since = news.cursor


def _wanted(ids: Iterable[str] | None) -> frozenset[str] | None:
    if ids is None:
        return None
    if isinstance(ids, str):
        raise InvalidInput("ids: give a list of ids, not one text")
    return frozenset(check_id(id) for id in ids)
