"""Serve one client over stdin and stdout, with one JSON-RPC message in each line.

This module reads and writes the lines, and the loop of the SDK handles the messages. The SDK's own
`stdio_server` is not used: it drops a malformed line without an answer, and its loop cancels open
requests at the end of stdin.

What must stay true: stdout gets nothing but the protocol. Every request is answered, also a
malformed one. When the client closes its stdin, the locks are released at once, waiting calls and
questions end, and all other open requests are performed and answered.
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
from capsule.mcp_server.sdk import MalformedMessage, encode_error, parse_message
from capsule.mcp_server.transport.process import call_on_signal, finish, run_in_daemon_thread

if TYPE_CHECKING:
    from capsule.mcp_server.server import CapsuleServer
    from capsule.store.store import CoreStore

#: Seconds for open requests after the client has closed its end. A host that doesn't wait so long
#: sends a signal.
_LAST_ANSWERS_S = 60.0
_CLOSED = ErrorData(code=CONNECTION_CLOSED, message="Connection closed")


def serve(server: CapsuleServer, store: CoreStore, stdin: BinaryIO, stdout: int) -> None:
    """Serve a client until it disconnects or a signal comes. Then close the store and end the
    process.

    Args:
        server: The server.
        store: The store.
        stdin: The input, as `claim_stdio` returns it.
        stdout: The descriptor of the output.
    """
    anyio.run(_StdioConnection(server, store, stdin, stdout).run)


class _StdioConnection:
    """Both directions of the connection, and the requests that are not answered yet."""

    def __init__(
        self, server: CapsuleServer, store: CoreStore, stdin: BinaryIO, stdout: int
    ) -> None:
        self._server = server
        self._store = store
        self._stdin = stdin
        self._stdout = stdout
        self._close = partial(server.close_client_store, store)
        self._incoming, self._server_input = anyio.create_memory_object_stream[
            SessionMessage | Exception
        ](0)
        self._server_output, self._outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        # Reading and writing have their own threads, because calls may occupy all the others.
        self._read_limiter = anyio.CapacityLimiter(1)
        self._write_limiter = anyio.CapacityLimiter(1)
        #: The ids of requests of the client that are not answered.
        self._open_client_requests: set[Any] = set()
        #: The ids of requests of the server that are not answered.
        self._open_server_requests: set[Any] = set()
        self._has_input_ended = False
        self._all_answered = anyio.Event()

    async def run(self) -> None:
        """Serve until the process ends."""
        lowlevel_server: Any = sdk.server_of(self._server)
        async with anyio.create_task_group() as tasks:
            await tasks.start(call_on_signal, lambda code: finish(code, self._close))
            tasks.start_soon(self._receive_loop)
            tasks.start_soon(self._send_loop)
            for task in self._server.background_tasks():
                tasks.start_soon(task)
            await lowlevel_server.run(
                self._server_input,
                self._server_output,
                lowlevel_server.create_initialization_options(),
            )

    async def _receive_loop(self) -> None:
        """Pass the client's messages to the server until the client closes its end. Then end the
        process.
        """
        readline = self._stdin.readline
        while line := await anyio.to_thread.run_sync(
            readline, limiter=self._read_limiter, abandon_on_cancel=True
        ):
            if line.strip():
                try:
                    await self._pass_on(line)
                except MalformedMessage as error:
                    await self._send(error.answer)
        self._has_input_ended = True
        self._server.stores.ended.set()
        run_in_daemon_thread(self._store.release)
        for id in list(self._open_server_requests):
            await self._reject_server_request(id)
        if self._open_client_requests:
            with anyio.move_on_after(_LAST_ANSWERS_S):
                await self._all_answered.wait()
        for id in list(self._open_client_requests):
            await self._send(encode_error(id, _CLOSED.code, _CLOSED.message))
        finish(0, self._close)

    async def _pass_on(self, line: bytes) -> None:
        """Pass a message to the server, and note whether it opens or answers a request.

        Raises MalformedMessage: the line is no message.
        """
        message = parse_message(line)
        # A subscription is answered by its end only.
        if isinstance(message, JSONRPCRequest) and message.method != "subscriptions/listen":
            self._open_client_requests.add(message.id)
        elif (
            isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled"
        ):
            self._open_client_requests.discard((message.params or {}).get("requestId"))
        elif not isinstance(message, JSONRPCNotification):
            self._open_server_requests.discard(message.id)
        await self._incoming.send(SessionMessage(message))

    async def _reject_server_request(self, id: Any) -> None:
        """Answer a request of the server, such as a question to the user, for a client that has
        closed its input.
        """
        self._open_server_requests.discard(id)
        await self._incoming.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=id, error=_CLOSED)))

    async def _send_loop(self) -> None:
        """Send the messages of the server."""
        async for item in self._outgoing:
            message = item.message
            id = getattr(message, "id", None)
            is_answer = not hasattr(message, "method")
            try:
                data = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            except ValueError:  # A text that can't be encoded as JSON.
                if not is_answer:
                    continue
                data = encode_error(id, INTERNAL_ERROR, "the answer can't be written as JSON")
            if isinstance(message, JSONRPCRequest):
                self._open_server_requests.add(id)
                if self._has_input_ended:
                    await self._reject_server_request(id)
                    continue
            await self._send(data)
            if is_answer:
                self._open_client_requests.discard(id)
                if self._has_input_ended and not self._open_client_requests:
                    self._all_answered.set()

    async def _send(self, data: bytes) -> None:
        try:
            await anyio.to_thread.run_sync(
                _write_all, self._stdout, data + b"\n", limiter=self._write_limiter
            )
        except OSError:  # The client has closed stdout.
            finish(0, self._close)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # Another process that shares the pipe made it non-blocking.
            select.select([], [fd], [])
