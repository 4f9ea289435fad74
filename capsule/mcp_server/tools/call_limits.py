"""The calls of tools on one server: the threads that those which write run in, and those that were
made before.

What must stay true: calls that wait for one conversation, which another process may hold for
seconds, take few of the threads; so they delay neither calls on other conversations nor calls that
read, which run in threads of their own. A call that was made before is recognised, never held back,
because what looks the same may be meant; and calls of two agents, of two sessions or of two
projects (an agent's id belongs to one) are never taken for one. This knows no tool.
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

_THREADS = 64
_THREADS_PER_CONVERSATION = 4
#: How long a call is known, in seconds; and how many calls are.
_MEMORY_S, _MAX_CALLS = 600.0, 10_000


class WriteLimiter:
    """Whose turn it is to write, on one server."""

    def __init__(self) -> None:
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._turns: WeakValueDictionary[str, anyio.CapacityLimiter] = WeakValueDictionary()

    def in_turn(self, call: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """`call` run in a thread when it is its turn. It names its conversation, if any, as `id` or
        `conversation`.
        """

        @functools.wraps(call)
        async def run(**arguments: Any) -> Any:
            id = str(arguments.get("id") or arguments.get("conversation") or "")
            turn = self._turns.get(id)
            if turn is None:
                turn = self._turns[id] = anyio.CapacityLimiter(
                    _THREADS_PER_CONVERSATION if id else _THREADS
                )
            async with turn:
                return await anyio.to_thread.run_sync(
                    functools.partial(call, **arguments), limiter=self._threads
                )

        return run


class RecentCalls:
    """The calls of the last ten minutes that were carried out. Not thread-safe."""

    def __init__(self) -> None:
        #: When each was made last, the oldest first, by the monotonic clock.
        self._made: dict[tuple[str | None, str, bytes], float] = {}

    def repeated(
        self, agent: str | None, session: str, tool: str, inputs: Mapping[str, Any]
    ) -> float | None:
        """Note a call that was carried out.

        Args:
            agent: Who made it; None: the store's owner.
            session: The session that it belongs to.
            tool: The name of the tool.
            inputs: Its arguments, as JSON.

        Returns:
            The seconds since the same call was carried out before; None: it was not, or more than
            ten minutes ago.
        """
        inside = sha256(orjson.dumps([tool, inputs], option=orjson.OPT_SORT_KEYS)).digest()
        now = time.monotonic()
        before = self._made.pop((agent, session, inside), None)
        self._made[agent, session, inside] = now
        if len(self._made) > _MAX_CALLS:
            del self._made[next(iter(self._made))]
        return now - before if before is not None and now - before <= _MEMORY_S else None
