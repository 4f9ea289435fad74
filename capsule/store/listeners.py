"""Following an open store: what `Store` has for those who wait for changes.

What must stay true: from one cursor to the next nothing is left out and nothing comes twice; the journal is the only
buffer, so that who is slow costs no memory; and a store that nobody watches imports and runs nothing for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from capsule.errors import CapsuleError, InvalidInput
from capsule.format.new import inactive_lock
from capsule.ids import check_id
from capsule.store.change import Changing, unasked
from capsule.store.reading import Reading

if TYPE_CHECKING:
    from capsule.engines.changes import Change, Changes
    from capsule.store.change import Conversation
    from capsule.watch.hub import Hub, Waiter
    from capsule.watch.stream import Event, Watch

#: The most changes that are read at once.
_MOST = 500


T = TypeVar("T")
_log = logging.getLogger("capsule")


class Watching(Changing):
    """What an open store tells of changes as they come. A base of `Store`."""

    root: str
    _hub: Hub | None = None
    _main_store: Watching | None = None
    #: The active locks, as far as the hub has heard of them; only its thread uses them.
    _locks: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - replaced, never changed, before it is used

    def changes(self, since: str | None = None, *, ids: Iterable[str] | None = None, limit: int = 1000) -> Changes:
        found = super().changes(since, ids=ids, limit=limit)
        if self._own is None or not found.changes:
            return found
        from capsule.engines.changes import Changes

        return Changes(self._own.marked(found.changes), found.cursor)

    changes.__doc__ = Reading.changes.__doc__

    def watch(self, since: str | None = None, *, ids: Iterable[str] | None = None, stop: Event | None = None) -> Watch:
        """Changes as they come, by any process and any editor: `async for change in store.watch()`.

        Any number of loops may watch, in any number of threads and event loops of asyncio (and so of anyio on it);
        each has its own cursor, and one that is slow holds up no other. It ends with `aclose`, with `stop`, and when
        the store is closed. `Change.own` tells what this very store wrote, of the newest thousands of its writes
        since it was first watched.

        Args:
            since: A cursor: what changed after it comes first. None: from this call on; that costs as `changes`, so
                in an event loop make the call in a thread when the index may have to be built.
            ids: These conversations only.
            stop: An event of the loop that ends it.

        Raises:
            InvalidInput: `since` is no cursor, or an id is none.
        """
        from capsule.engines.index.journal import Cursor
        from capsule.watch.stream import Watch

        wanted = _wanted(ids)
        if since is not None:
            Cursor.of(since)
        hub = self._watched()
        return Watch(hub, self._read, self.changes().cursor if since is None else since, wanted, stop)

    def wait_for_changes(
        self, since: str | None = None, *, ids: Iterable[str] | None = None, timeout_s: float | None = None
    ) -> Changes:
        """Wait for changes after a cursor, and return them; at once if something changed meanwhile.

        Args:
            since: The cursor. None: now.
            ids: Only these conversations.
            timeout_s: Seconds after which it returns no changes, and a cursor to go on from. None: it waits on. It also
                returns when the store is closed.

        Raises as `changes`. Cost: as `changes` for each change; waiting costs next to nothing.
        """
        wanted = _wanted(ids)
        hub = self._watched()
        until = None if timeout_s is None else time.monotonic() + timeout_s
        woken = threading.Event()
        waiter = hub.waiter(wanted, woken.set)
        try:
            found = self._read(waiter, self.changes().cursor if since is None else since)
            with hub.listening():
                while not found.changes and not hub.closed:
                    if not woken.wait(None if until is None else until - time.monotonic()) or hub.closed:
                        break
                    woken.clear()
                    found = self._read(waiter, found.cursor)
            return found
        finally:
            hub.remove(waiter)

    async def await_changes(
        self, since: str | None = None, *, ids: Iterable[str] | None = None, timeout_s: float | None = None
    ) -> Changes:
        """Wait for changes as `wait_for_changes` does, in an event loop. It takes no thread while it waits.

        Args:
            since, ids, timeout_s: As `wait_for_changes` takes them.

        Raises and costs as `wait_for_changes`.
        """
        if since is None:
            import asyncio

            since = (await asyncio.get_running_loop().run_in_executor(self._watched().pool, self.changes)).cursor
        async with self.watch(since, ids=ids) as watch:
            return await watch.batch(timeout_s)

    def remember_own(self) -> None:
        """Remember from now on what this store writes (the newest 20,000 writes), for `Change.own`.

        A store does so by itself as soon as it is watched. Raises nothing. Cost: a little memory.
        """
        from capsule.watch.own_writes import Own

        with self._guard:
            if self._own is None:
                self._own = Own()

    def _watched(self) -> Hub:
        """The hub. From now on the store remembers what it writes itself."""
        if self._hub is None:
            from capsule.watch.hub import Hub

            self.remember_own()
            with self._guard:
                if self._hub is None:
                    main = self._main_store
                    self._hub = (
                        Hub(self.engine.tracker, self._look, self._free_the_dead, _MOST)
                        if main is None
                        else main._watched()
                    )
        return self._hub

    def _look(self, since: str | None) -> tuple[list[Change], str]:
        found, cursor = self.index.changes(since, _MOST)
        if since is None:
            self._locks = self.index.locks()
        for change in found:
            if change.kind == "locked" and change.lock is not None:
                self._locks[change.id] = change.lock
            elif change.kind in ("unlocked", "deleted"):
                self._locks.pop(change.id, None)
        return found, cursor

    def _free_the_dead(self) -> None:
        """Release the locks of programs that have ended: for whoever waits for one, that is the change to hear of."""

        def act(conversation: Conversation) -> None:
            lock = conversation.head.lock
            if lock is not None and self._holder.is_dead(lock):
                conversation.change_head(lambda head: head["metadata"].update(lock=inactive_lock()))

        for id in [id for id, lock in self._locks.items() if self._holder.is_dead(lock)]:
            try:
                self._change(id, act, unasked, is_own=False)  # Nobody here did it: it is news to all.
            except CapsuleError as error:
                _log.debug("the lock on %s, whose holder is gone, could not be released: %s", id, error)
            else:
                self._locks.pop(id, None)

    def _read(self, waiter: Waiter, since: str) -> Changes:
        """What changed since; brought up to date, unless the hub has just done so."""
        refresh, waiter.unsure = waiter.unsure, False
        while True:
            found, cursor = self.index.changes(since, _MOST, refresh=refresh)
            told = [change for change in found if waiter.wants((change.id,))]
            if told or len(found) < _MOST:
                from capsule.engines.changes import Changes

                return Changes(self._own.marked(told) if self._own is not None else told, cursor)
            since = cursor

    def _end_watching(self) -> None:
        """Tell everybody who watches the end."""
        if self._hub is not None and self._main_store is None:
            self._hub.close()


def _wanted(ids: Iterable[str] | None) -> frozenset[str] | None:
    if ids is None:
        return None
    if isinstance(ids, str):
        raise InvalidInput("ids: give a list of ids, not one text")
    return frozenset(check_id(id) for id in ids)
