"""Serving one client over stdin and stdout.

What must stay true: nothing but the protocol reaches the client's end of stdout, whatever a library prints; the locks
are released as soon as the client has closed its end of stdin; and what it had asked by then is answered, when that
takes no longer than an instant, so that requests can be piped in.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from mcp.server.stdio import stdio_server

if TYPE_CHECKING:
    from capsule.mcp_server.lifetime import Lifetime
    from capsule.mcp_server.server import CapsuleServer

__all__ = ["serve"]

#: How long the requests in flight may take when the client has closed its end, in seconds; then they are cancelled.
_LAST_ANSWERS_S = 0.5
#: A pipe or socket that can take anything takes this many bytes at once (POSIX: PIPE_BUF).
_AT_ONCE = getattr(select, "PIPE_BUF", 0)


def serve(server: CapsuleServer, stdout: int, lifetime: Lifetime) -> None:
    """Serve until the client has gone away.

    Args:
        server: The server.
        stdout: The descriptor of the client's end. Descriptor 1 is not it any more by now, see `own_stdout`.
        lifetime: Is told when the client has gone.
    """

    async def run() -> None:
        wire: Any = _Wire(stdout, lifetime.finish)
        async with stdio_server(stdout=wire) as (read, write):
            # What `run_stdio_async` does, with an eye on what comes and goes.
            low = server._lowlevel_server
            flow = _Flow(lifetime.begin)
            told: Any = _Read(read, flow)
            answered: Any = _Write(write, flow)
            await low.run(told, answered, low.create_initialization_options())

    anyio.run(run)


class _Wire:
    """The client's end of stdout: a message a call of `flush`.

    A short message is written without a hop to another thread when the pipe can take it, which halves what an answer
    costs. A client that doesn't read any more has gone away.
    """

    def __init__(self, fd: int, lost: Callable[[], object]) -> None:
        self._fd = fd
        self._lost = lost
        self._data = b""
        self._poll = select.poll() if _AT_ONCE else None
        if self._poll is not None:
            self._poll.register(fd, select.POLLOUT)

    async def write(self, text: str) -> None:
        self._data += text.encode()

    async def flush(self) -> None:
        data, self._data = self._data, b""
        try:
            if self._poll is not None and len(data) <= _AT_ONCE and self._poll.poll(0):
                self._write_all(data)
            else:
                await anyio.to_thread.run_sync(self._write_all, data)
        except OSError:
            self._lost()

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:  # Who shares the pipe made it so.
                select.select([], [self._fd], [])


class _Flow:
    """The requests that came, and of them those that are not answered yet."""

    def __init__(self, left: Callable[[], None]) -> None:
        self._left = left
        self._open: set[Any] = set()
        self._all_answered = anyio.Event()
        self._is_over = False

    def came(self, item: Any) -> None:
        message: Any = getattr(item, "message", None)
        # A subscription is answered by its end only.
        if getattr(message, "method", None) not in (None, "subscriptions/listen") and hasattr(message, "id"):
            self._open.add(message.id)

    def went(self, item: Any) -> None:
        message = item.message
        if not hasattr(message, "method"):
            self._open.discard(message.id)
            if self._is_over and not self._open:
                self._all_answered.set()

    async def over(self) -> None:
        """The client has closed its end."""
        self._left()
        self._is_over = True
        if self._open:
            with anyio.move_on_after(_LAST_ANSWERS_S):
                await self._all_answered.wait()


class _Read:
    """The SDK's stream of what the client sends."""

    def __init__(self, stream: Any, flow: _Flow) -> None:
        self._stream = stream
        self._flow = flow

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> _Read:
        return self

    async def __anext__(self) -> Any:
        try:
            item = await self._stream.__anext__()
        except StopAsyncIteration:
            await self._flow.over()
            raise
        self._flow.came(item)
        return item

    async def __aenter__(self) -> _Read:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> Any:
        return await self._stream.__aexit__(*raised)


class _Write:
    """The SDK's stream of what goes to the client."""

    def __init__(self, stream: Any, flow: _Flow) -> None:
        self._stream = stream
        self._flow = flow

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def send(self, item: Any) -> None:
        await self._stream.send(item)
        self._flow.went(item)

    async def __aenter__(self) -> _Write:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> Any:
        return await self._stream.__aexit__(*raised)
