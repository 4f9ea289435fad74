"""A server of HTTP in a process of its own, from its first answer to its end.

What must stay true: when the process is asked to end it ends, whatever clients still hold open.
What is served, it does not know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn

from capsule.mcp_server.transport.lifetime import finish, signalled

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from capsule.mcp_server.transport.address import Listener


async def _nothing() -> None:
    pass


def run(
    app: ASGIApp,
    listener: Listener,
    ready: Callable[[], None],
    close: Callable[[], None],
    *,
    last_s: float,
    beside: Iterable[Callable[[], Coroutine[Any, Any, None]]] = (),
    ending: Callable[[], Coroutine[Any, Any, None]] = _nothing,
    **options: Any,
) -> None:
    """Serve until a signal comes; never returns.

    Args:
        app: What answers.
        listener: Where the server listens.
        ready: Called when requests are answered.
        close: Releases the locks and closes the stores.
        last_s: Seconds that requests still have when the server ends.
        beside: What runs as long as the server does.
        ending: Called when the server ends, before that.
        options: Further options of uvicorn.
    """
    http = _Uvicorn(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            **options,
        )
    )

    async def serve() -> None:
        codes: list[int] = []
        stopping, stopped = anyio.Event(), anyio.Event()

        def stop(code: int) -> None:
            codes.append(code)
            stopping.set()

        async def listen() -> None:
            await http.serve([listener.socket])
            stopped.set()

        async with anyio.create_task_group() as tasks:
            await tasks.start(signalled, stop)
            tasks.start_soon(listen)
            for work in beside:
                tasks.start_soon(work)
            while not http.started:
                await anyio.sleep(0.005)
            ready()
            await stopping.wait()
            await ending()
            http.should_exit = True
            with anyio.move_on_after(last_s):
                await stopped.wait()
            finish(codes[0], close)

    anyio.run(serve)


class _Uvicorn(uvicorn.Server):
    """uvicorn, without its way of handling signals: it raises them anew when it has ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
