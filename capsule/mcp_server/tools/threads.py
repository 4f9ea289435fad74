"""The threads that writing calls run in.

What must stay true: calls that wait for one conversation, which another process may hold for seconds, take few of the
threads; so they delay neither calls on other conversations nor calls that read, which run in threads of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

_THREADS = 64
_OF_ONE_CONVERSATION = 4


class Turns:
    """Whose turn it is to write, on one server."""

    def __init__(self) -> None:
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._turns: WeakValueDictionary[str, anyio.CapacityLimiter] = WeakValueDictionary()

    def in_turn(self, call: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """`call` run in a thread when it is its turn. It names its conversation, if any, as `id` or `conversation`."""

        @functools.wraps(call)
        async def run(**arguments: Any) -> Any:
            id = str(arguments.get("id") or arguments.get("conversation") or "")
            turn = self._turns.get(id)
            if turn is None:
                turn = self._turns[id] = anyio.CapacityLimiter(_OF_ONE_CONVERSATION if id else _THREADS)
            async with turn:
                return await anyio.to_thread.run_sync(functools.partial(call, **arguments), limiter=self._threads)

        return run
