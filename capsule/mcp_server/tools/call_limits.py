"""Limit the threads of calls that write, and recognise seconds_since_same_call calls.

What must stay true: calls that wait for one conversation, which another process may hold for
seconds, use few of the threads. So they delay neither calls on other conversations nor calls that
read, which run in threads of their own. A seconds_since_same_call call is recognised but never held back, because
it may be intended. Calls of two agents, of two sessions or of two projects (an agent's id belongs
to one) are never taken for the same. This module knows no tool.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
import orjson

#: Threads for calls that write, in all and for one conversation.
_THREADS = 64
_THREADS_PER_CONVERSATION = 4
#: The seconds after which a call is forgotten, and the most calls that are remembered.
_MEMORY_S, _MAX_CALLS = 600.0, 10_000


class WriteLimiter:
    """The limits for calls that write, on one server."""

    def __init__(self) -> None:
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._limiters: WeakValueDictionary[str, anyio.CapacityLimiter] = WeakValueDictionary()

    def limited(self, call: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """Return `call` as a coroutine that runs it in a thread within the limits. The call names
        its conversation, if any, as `id` or `conversation`.
        """

        @functools.wraps(call)
        async def run(**arguments: Any) -> Any:
            id = str(arguments.get("id") or arguments.get("conversation") or "")
            limiter = self._limiters.get(id)
            if limiter is None:
                limiter = self._limiters[id] = anyio.CapacityLimiter(
                    _THREADS_PER_CONVERSATION if id else _THREADS
                )
            async with limiter:
                return await anyio.to_thread.run_sync(
                    functools.partial(call, **arguments), limiter=self._threads
                )

        return run


class RecentCalls:
    """The calls of the last ten minutes that succeeded. Not thread-safe."""

    def __init__(self) -> None:
        #: The time of each call by the monotonic clock, in seconds, the oldest first.
        self._call_times: dict[tuple[str | None, str, bytes], float] = {}

    def seconds_since_same_call(
        self, agent: str | None, session: str, tool: str, inputs: Mapping[str, Any]
    ) -> float | None:
        """Remember a call that succeeded.

        Args:
            agent: The agent that made it. None: the owner of the store.
            session: The session that it belongs to.
            tool: The name of the tool.
            inputs: Its arguments as JSON.

        Returns:
            The seconds since the same call succeeded before. None: it did not within ten minutes.
        """
        digest = sha256(orjson.dumps([tool, inputs], option=orjson.OPT_SORT_KEYS)).digest()
        now = time.monotonic()
        last_call_s = self._call_times.pop((agent, session, digest), None)
        self._call_times[agent, session, digest] = now
        if len(self._call_times) > _MAX_CALLS:
            del self._call_times[next(iter(self._call_times))]
        if last_call_s is None or now - last_call_s > _MEMORY_S:
            return None
        return now - last_call_s
