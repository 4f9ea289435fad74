"""Changes as an async iterator.

The hub wakes a `Watch` when documents change. The `Watch` then reads the changes after its cursor
from the journal, in a thread of the hub, and hands them out one by one or as a batch.

What must stay true: no event loop waits for a file, and no reader of a file waits for an event
loop. The cursor moves only past changes that were handed out, so that an interrupted caller misses
none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from capsule.engines.changes import Change, Changes, Interest
from capsule.watch.hub import ChangeHub, Waiter


class StopEvent(Protocol):
    """An event of asyncio or anyio."""

    def is_set(self) -> bool:
        """Whether the event is set."""

    async def wait(self) -> object:
        """Wait until the event is set."""


class Watch:
    """The changes of a store, as an async iterator and an async context manager, which ends it.

    One task at a time may iterate. `Store.watch` makes it. The hub forgets it when it is closed, or
    when nothing refers to it any more.

    Args:
        hub: The hub that wakes it.
        read: Reads the changes after a cursor. Is called in a thread of the hub. It updates the
            index of the store first, if the waiter has `must_refresh`.
        cursor: The cursor to start from.
        interest: The changes that it reports.
        stop: The event that ends it.
        must_refresh: See `ChangeHub.waiter`.
    """

    def __init__(
        self,
        hub: ChangeHub,
        read: Callable[[Waiter, str], Changes],
        cursor: str,
        interest: Interest,
        stop: StopEvent | None,
        *,
        must_refresh: bool = True,
    ) -> None:
        self._hub = hub
        self._read = read
        #: The cursor after the changes that were read. Those not handed out yet are in `_ready`.
        self._read_to = cursor
        #: The cursor after the change that was handed out last.
        self._handed_out_to = cursor
        self._stop = stop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._woken.set()  # The first call reads without waiting.
        self._ready: deque[Change] = deque()
        self._is_ended = False
        self._waiter = hub.waiter(interest, self._wake, must_refresh=must_refresh)

    @property
    def cursor(self) -> str:
        """The cursor after the changes handed out so far. If nothing waits to be handed out, it is
        after all that was read, also after changes of other documents.
        """
        return self._handed_out_to if self._ready else self._read_to

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        while not self._ready:
            if not await self._fill():
                raise StopAsyncIteration
        if self._is_over():
            raise StopAsyncIteration
        change = self._ready.popleft()
        self._handed_out_to = change.cursor
        return change

    async def batch(self, timeout_s: float | None = None) -> Changes:
        """Wait for a change, and return all changes until now.

        Returns no changes after `timeout_s` seconds, or if the watch ends.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._ready and await self._fill():
                    pass
        changes = list(self._ready)
        self._handed_out_to = self._read_to
        self._ready.clear()
        return Changes(changes, self._read_to)

    async def _fill(self) -> bool:
        """Wait until it is woken, and read the changes. Returns False if the watch has ended."""
        self._loop = asyncio.get_running_loop()
        if not self._is_over() and not self._woken.is_set():
            with self._hub.listening():  # The hub's thread runs meanwhile.
                await self._wait()
        if self._is_over():
            return False
        self._woken.clear()
        try:
            read = await self._loop.run_in_executor(
                self._hub.pool, self._read, self._waiter, self._read_to
            )
        except BaseException as error:
            # This read consumed the wake-up. So the next call reads without waiting, and its `read`
            # updates the index itself.
            self._waiter.must_refresh = True
            self._woken.set()
            if self._hub.is_closed and isinstance(error, Exception):
                return False
            raise
        self._ready.extend(read.changes)
        self._read_to = read.cursor
        if len(read.changes) >= self._hub.max_changes:
            self._woken.set()
        return True

    async def _wait(self) -> None:
        """Wait until it is woken or stopped."""
        if self._stop is None:
            await self._woken.wait()
            return
        tasks = [asyncio.ensure_future(event.wait()) for event in (self._woken, self._stop)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def _is_over(self) -> bool:
        return (
            self._is_ended
            or self._hub.is_closed
            or (self._stop is not None and self._stop.is_set())
        )

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # The loop is closed, so no task waits there.
                loop.call_soon_threadsafe(self._woken.set)

    async def aclose(self) -> None:
        """End the watch."""
        self._is_ended = True
        self._woken.set()
        self._hub.remove(self._waiter)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
