"""Waiting in a call: it occupies no thread, and the client is notified meanwhile that the call goes
on.

What must stay true: the wait ends with the call: at once when the client cancels it or has said all
that it will say, within seconds when it leaves.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from capsule.errors import CapsuleError
from capsule.mcp_server.errors import ExplainedError
from capsule.mcp_server.stores import stores_of

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

T = TypeVar("T")
_PROGRESS_S = 5


async def wait_with_progress(
    ctx: Context[Any, Any], seconds: float, purpose: str, wait: Callable[..., Awaitable[T]]
) -> T:
    """Wait, with a progress notification now and every five seconds.

    Args:
        seconds: How long it takes at most.
        purpose: What is waited for, for the client's user: "waiting for changes".
        wait: Waits for `timeout_s` seconds. When the input of the client has ended, it is asked
            again, for none.

    Raises what `wait` raises. ExplainedError: the client has left.
    """
    result: T | None = None
    ended = stores_of(ctx).ended
    failed: CapsuleError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_report_progress, ctx, seconds, purpose, tasks.cancel_scope)
        tasks.start_soon(_cancel_after, ended, tasks.cancel_scope)
        try:
            result = await wait(timeout_s=seconds)
        except CapsuleError as error:  # A task group would wrap it.
            failed = error
        tasks.cancel_scope.cancel()
    if result is None and failed is None and ended.is_set():
        result = await wait(timeout_s=0)
    if result is None:
        raise failed or ExplainedError("the client has left")
    return result


async def is_disconnected(ctx: Context[Any, Any]) -> bool:
    """Whether nobody waits for the answer of a call: over HTTP, a client's connection may break
    meanwhile.
    """
    request: Any = ctx.request_context.request
    return request is not None and await request.is_disconnected()


async def _cancel_after(ended: anyio.Event, wait: anyio.CancelScope) -> None:
    await ended.wait()
    wait.cancel()


async def _report_progress(
    ctx: Context[Any, Any], seconds: float, purpose: str, wait: anyio.CancelScope
) -> None:
    begun = time.monotonic()
    while True:
        if await is_disconnected(ctx):
            wait.cancel()
        wait_with_progress = time.monotonic() - begun
        await ctx.report_progress(round(wait_with_progress, 1), seconds, purpose)
        await anyio.sleep(_PROGRESS_S)
