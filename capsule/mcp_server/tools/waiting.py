"""Wait in a call without occupying a thread, and notify the client that the call goes on.

What must stay true: the wait ends with the call: at once if the client cancels it or closes its
input, and within seconds if the client disconnects.
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
    """Wait, and send a progress notification at once and then every five seconds.

    Args:
        ctx: The context of the call.
        seconds: The longest wait.
        purpose: What the call waits for, in words for the user: "waiting for changes".
        wait: Waits for `timeout_s` seconds. It is called again with 0 if the client has closed its
            input.

    Raises:
        ExplainedError: The client has disconnected.
        CapsuleError: As `wait` does.
    """
    result: T | None = None
    input_ended = stores_of(ctx).ended
    failure: CapsuleError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_report_progress, ctx, seconds, purpose, tasks.cancel_scope)
        tasks.start_soon(_cancel_after, input_ended, tasks.cancel_scope)
        try:
            result = await wait(timeout_s=seconds)
        except CapsuleError as error:  # A task group would wrap it.
            failure = error
        tasks.cancel_scope.cancel()
    if result is None and failure is None and input_ended.is_set():
        result = await wait(timeout_s=0)
    if result is None:
        raise failure or ExplainedError("the client has left")
    return result


async def is_disconnected(ctx: Context[Any, Any]) -> bool:
    """Return whether nobody waits for the result of a call any more, because an HTTP connection
    broke.
    """
    request: Any = ctx.request_context.request
    return request is not None and await request.is_disconnected()


async def _cancel_after(input_ended: anyio.Event, wait: anyio.CancelScope) -> None:
    await input_ended.wait()
    wait.cancel()


async def _report_progress(
    ctx: Context[Any, Any], seconds: float, purpose: str, wait: anyio.CancelScope
) -> None:
    start_s = time.monotonic()
    while True:
        if await is_disconnected(ctx):
            wait.cancel()
        elapsed_s = time.monotonic() - start_s
        await ctx.report_progress(round(elapsed_s, 1), seconds, purpose)
        await anyio.sleep(_PROGRESS_S)
