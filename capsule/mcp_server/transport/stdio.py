"""Serving one client over stdin and stdout: a line is a JSON-RPC message.

What must stay true: nothing but the protocol reaches the client's end of stdout; every request is
answered, also one that is no valid JSON or no valid request, and the server goes on after it; and
when the client has closed its end of stdin, the locks are released at once, waits and questions
end, and what it had asked by then is done and answered.

The SDK's own `stdio_server` drops a line that it can't parse without an answer, and its loop
cancels the requests in flight at the end of stdin. So the lines are read and written here; the
SDK's loop does the rest.
"""

from __future__ import annotations

import os
import select
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
    JSONRPCNotification,
    JSONRPCRequest,
)

from capsule.mcp_server import sdk
from capsule.mcp_server.transport.jsonrpc import MalformedMessage, encode_error, parse_message
from capsule.mcp_server.transport.process_exit import call_on_signal, finish, run_in_daemon_thread

if TYPE_CHECKING:
    from capsule.mcp_server.server import CapsuleServer
    from capsule.store.store import CoreStore

#: How long the requests in flight may take when the client has closed its end, in seconds. A host
#: that does not want that sends a signal.
_LAST_ANSWERS_S = 60.0
_CLOSED = ErrorData(code=CONNECTION_CLOSED, message="Connection closed")


def serve(server: CapsuleServer, store: CoreStore, stdin: BinaryIO, stdout: int) -> None:
    """Serve over the two ends of `claim_stdio` until the client has gone away or a signal comes.

    The store is closed, and the process ends.
    """
    anyio.run(_StdioConnection(server, store, stdin, stdout).run)


class _StdioConnection:
    """Both ends of the connection, and the requests that are not answered yet."""

    def __init__(
        self, server: CapsuleServer, store: CoreStore, stdin: BinaryIO, stdout: int
    ) -> None:
        self._server, self._store, self._stdin, self._stdout = server, store, stdin, stdout
        self._close = partial(server.close_client_store, store)
        self._incoming, self._read = anyio.create_memory_object_stream[SessionMessage | Exception](
            0
        )
        self._written, self._outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        # Threads of their own: reading and writing must not wait for calls that take all the
        # others.
        self._reading, self._writing = anyio.CapacityLimiter(1), anyio.CapacityLimiter(1)
        #: The requests of the client that the server has not answered, and the other way round.
        self._open: set[Any] = set()
        self._asked: set[Any] = set()
        self._is_over = False
        self._all_answered = anyio.Event()

    async def run(self) -> None:
        """Serve; ends with the process."""
        low: Any = sdk.server_of(self._server)
        async with anyio.create_task_group() as tasks:
            await tasks.start(call_on_signal, lambda code: finish(code, self._close))
            tasks.start_soon(self._receive)
            tasks.start_soon(self._deliver)
            for work in self._server.background_tasks():
                tasks.start_soon(work)
            await low.run(self._read, self._written, low.create_initialization_options())

    async def _receive(self) -> None:
        """Pass on what the client sends, until it closes its end; then end the process."""
        readline = self._stdin.readline
        while line := await anyio.to_thread.run_sync(
            readline, limiter=self._reading, abandon_on_cancel=True
        ):
            if line.strip():
                try:
                    await self._pass_on(line)
                except MalformedMessage as error:
                    await self._send(error.answer)
        self._is_over = True
        self._server.stores.ended.set()
        run_in_daemon_thread(self._store.release)
        for id in list(self._asked):
            await self._say_no(id)
        if self._open:
            with anyio.move_on_after(_LAST_ANSWERS_S):
                await self._all_answered.wait()
        for id in list(self._open):
            await self._send(encode_error(id, _CLOSED.code, _CLOSED.message))
        finish(0, self._close)

    async def _pass_on(self, line: bytes) -> None:
        message = parse_message(line)
        # A subscription is answered by its end only.
        if isinstance(message, JSONRPCRequest) and message.method != "subscriptions/listen":
            self._open.add(message.id)
        elif (
            isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled"
        ):
            self._open.discard((message.params or {}).get("requestId"))
        elif not isinstance(message, JSONRPCNotification):
            self._asked.discard(message.id)
        await self._incoming.send(SessionMessage(message))

    async def _say_no(self, id: Any) -> None:
        """Answer a request of the server, such as a question to the user, in place of a client that
        can't any more.
        """
        self._asked.discard(id)
        await self._incoming.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=id, error=_CLOSED)))

    async def _deliver(self) -> None:
        """Send what the server says."""
        async for item in self._outgoing:
            message = item.message
            id, is_answer = getattr(message, "id", None), not hasattr(message, "method")
            try:
                data = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            except ValueError:  # A text that no JSON can hold.
                if not is_answer:
                    continue
                data = encode_error(id, INTERNAL_ERROR, "the answer can't be written as JSON")
            if isinstance(message, JSONRPCRequest):
                self._asked.add(id)
                if self._is_over:
                    await self._say_no(id)
                    continue
            await self._send(data)
            if is_answer:
                self._open.discard(id)
                if self._is_over and not self._open:
                    self._all_answered.set()

    async def _send(self, data: bytes) -> None:
        try:
            await anyio.to_thread.run_sync(
                _write_all, self._stdout, data + b"\n", limiter=self._writing
            )
        except OSError:  # A client that doesn't read any more has gone away.
            finish(0, self._close)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # Somebody who shares the pipe made it so.
            select.select([], [fd], [])
