"""Serving one client over stdin and stdout: a line is a JSON-RPC message.

What must stay true: nothing but the protocol reaches the client's end of stdout; every request is answered, also one
that is no valid JSON or no valid request, and the server goes on after it; and when the client has closed its end of
stdin, the locks are released at once, waits and questions end, and what it had asked by then is done and answered.

The SDK's own reader drops what it can't parse without an answer, so the lines are read and written here.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import anyio
import anyio.to_thread
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
)

from capsule.mcp_server import sdk
from capsule.mcp_server.transport.lifetime import beside, finish, signalled
from capsule.mcp_server.transport.messages import Unacceptable, error_of, message_of, parsed

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from capsule.mcp_server.server import CapsuleServer
    from capsule.public import Store

#: How long the requests in flight may take when the client has closed its end, in seconds. A host that does not want
#: that sends a signal.
_LAST_ANSWERS_S = 60.0
_CLOSED = ErrorData(code=CONNECTION_CLOSED, message="Connection closed")


def serve(server: CapsuleServer, store: Store, stdin: BinaryIO, stdout: int) -> None:
    """Serve until the client has gone away or a signal comes; the process ends with it.

    Args:
        server: The server.
        store: Its store, which is closed at the end.
        stdin: What the client sends.
        stdout: The descriptor that the client reads, see `own_streams`.
    """

    close = partial(server.leave, store)

    def ended() -> None:
        server.stores.ended.set()
        beside(store.release)

    async def run() -> None:
        incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        wire = _Wire(stdin, stdout, incoming, ended, close)
        low: Any = sdk.server_of(server)
        async with anyio.create_task_group() as tasks:
            await tasks.start(signalled, lambda code: finish(code, close))
            tasks.start_soon(wire.read)
            tasks.start_soon(wire.write, outgoing)
            for work in server.beside():
                tasks.start_soon(work)
            await low.run(read, write, low.create_initialization_options())

    anyio.run(run)


class _Wire:
    """Both ends of the connection, and the requests that are not answered yet."""

    def __init__(
        self,
        stdin: BinaryIO,
        stdout: int,
        incoming: MemoryObjectSendStream[SessionMessage | Exception],
        ended: Callable[[], None],
        close: Callable[[], None],
    ) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._incoming = incoming
        self._ended = ended
        self._close = close
        # Threads of their own: reading and writing must not wait for calls that take all the others.
        self._reading = anyio.CapacityLimiter(1)
        self._writing = anyio.CapacityLimiter(1)
        self._open: set[Any] = set()
        #: The requests of the server that the client has not answered.
        self._asked: set[Any] = set()
        self._is_over = False
        self._changed = anyio.Event()

    async def read(self) -> None:
        """Pass on what the client sends, until it closes its end; then end the process."""
        readline: Callable[[], bytes] = self._stdin.readline
        while line := await anyio.to_thread.run_sync(readline, limiter=self._reading, abandon_on_cancel=True):
            if line.strip():
                await self._take(line)
        self._is_over = True
        self._ended()
        for id in list(self._asked):
            await self._say_no(id)
        with anyio.move_on_after(_LAST_ANSWERS_S):
            while self._open:
                await self._changed.wait()
        for id in list(self._open):
            await self._answer(id, error_of(id, _CLOSED.code, _CLOSED.message))
        finish(0, self._close)

    async def _take(self, line: bytes) -> None:
        try:
            await self._pass_on(message_of(parsed(line)))
        except Unacceptable as error:
            await self._send(error_of(*error.args))

    async def _pass_on(self, message: JSONRPCMessage) -> None:
        # A subscription is answered by its end only.
        if isinstance(message, JSONRPCRequest) and message.method != "subscriptions/listen":
            self._open.add(message.id)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._open.discard((message.params or {}).get("requestId"))
        elif not isinstance(message, JSONRPCNotification):
            self._asked.discard(message.id)
        await self._incoming.send(SessionMessage(message))

    async def _say_no(self, id: Any) -> None:
        """Answer a request of the server, such as a question to the user, in place of a client that can't any more."""
        self._asked.discard(id)
        await self._incoming.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=id, error=_CLOSED)))

    async def write(self, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Send what the server says."""
        async for item in outgoing:
            message = item.message
            id = getattr(message, "id", None)
            try:
                data = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            except ValueError:  # A text that no JSON can hold.
                if id is None or hasattr(message, "method"):
                    continue
                data = error_of(id, INTERNAL_ERROR, "the answer can't be written as JSON")
            if isinstance(message, JSONRPCRequest):
                self._asked.add(id)
                if self._is_over:
                    await self._say_no(id)
                    continue
            if hasattr(message, "method"):
                await self._send(data)
                continue
            await self._answer(id, data)

    async def _answer(self, id: Any, data: bytes) -> None:
        await self._send(data)
        self._open.discard(id)
        self._changed.set()
        self._changed = anyio.Event()

    async def _send(self, data: bytes) -> None:
        try:
            await anyio.to_thread.run_sync(_write_all, self._stdout, data + b"\n", limiter=self._writing)
        except OSError:  # A client that doesn't read any more has gone away.
            finish(0, self._close)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # Somebody who shares the pipe made it so.
            select.select([], [fd], [])
