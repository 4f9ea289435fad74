"""Limits for an HTTP server that strangers can reach: the number of connections, and the time of a
request.

A connection counts as a stranger's until the server calls `trust`. It does so when it knows who
sends the request, or when it has the whole request and closes the connection after the response. If
strangers have too many connections, the oldest of them is closed. Over TLS a connection counts from
the end of the handshake.

What must stay true: a stranger can't keep others out, neither with many connections nor with half
of a request. The time of a body is limited only if the server reads it with `read_body`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

#: The seconds in which the head of a request must arrive.
_HEAD_S = 10.0
#: The seconds in which the body of a stranger's request must arrive.
_BODY_S = 30.0


class Connections:
    """The connections of one server.

    Args:
        limit: The number of all connections at once, and also of all running requests
            (`limit_concurrency` of uvicorn). Further requests get the status 503.
        stranger_limit: The number of connections of strangers at once.
        address_limit: The number of connections of strangers from one address. It must be greater
            than the number that one client opens at once, because each begins as a stranger's.
    """

    def __init__(self, limit: int, stranger_limit: int, address_limit: int) -> None:
        self._limit = limit
        self._stranger_limit = stranger_limit
        self._address_limit = address_limit
        #: The connections of strangers by address and port, the oldest first.
        self._strangers: dict[tuple[Any, ...], asyncio.Transport] = {}

    def options(self) -> dict[str, Any]:
        """Return the options with which uvicorn keeps these limits."""
        return {"http": partial(_Connection, self), "limit_concurrency": self._limit}

    def trust(self, client: Sequence[Any] | None) -> None:
        """Stop counting a connection as a stranger's, or a connection that has ended.

        Args:
            client: Its address and port, as a request has them. Any other connection is ignored.
        """
        self._strangers.pop(tuple(client or ()), None)

    def add(self, client: Sequence[Any] | None, transport: asyncio.Transport) -> None:
        """Count a new connection, and close the oldest one of a stranger if there are too many."""
        # The system reports no address of a client that has already closed the connection. Such
        # connections share one key. That is harmless, because they end at once.
        address = tuple(client or ())
        self._strangers[address] = transport
        same_host = [stranger for stranger in self._strangers if stranger[:1] == address[:1]]
        if len(same_host) > self._address_limit:
            self._strangers.pop(same_host[0]).abort()
        elif len(self._strangers) > self._stranger_limit:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest).abort()


class _Connection(H11Protocol):
    """One connection. uvicorn itself does not limit the time in which the head of a request must
    arrive.
    """

    def __init__(self, connections: Connections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._connections = connections
        #: Whether a timer for the head of the next request runs.
        self._is_head_timer_running = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connections.add(self.client, transport)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Data after a response is the beginning of the next request, or the rest of one that was
        # refused before its body had arrived.
        is_answered = self.cycle is not None and self.cycle.response_complete
        if is_answered and not self._is_head_timer_running:
            self._start_head_timer()

    def _start_head_timer(self) -> None:
        """Close the connection after some time, unless the head of a request arrives."""
        self._is_head_timer_running = True
        self.loop.call_later(_HEAD_S, self._abort_without_head, self.cycle)

    def _abort_without_head(self, last_request: object) -> None:
        """Close the connection if no request began since the timer started.

        `cycle` is uvicorn's object of a request, a new one for each.
        """
        self._is_head_timer_running = False
        if self.cycle is last_request:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.trust(self.client)  # It has ended, so it does not count anymore.
        super().connection_lost(exc)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read the body of a stranger's request.

    Args:
        request: The request. Its response must close the connection, because the rest of the body
            may still arrive there.
        max_bytes: The size that the body may have.

    Raises:
        ValueError: It is larger.
        TimeoutError: It did not arrive in time, or the client closed the connection.
    """
    body = b""
    try:
        async with asyncio.timeout(_BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > max_bytes:
                    raise ValueError(f"the body has more than {max_bytes} bytes")
    except ClientDisconnect:
        raise TimeoutError("the client went away") from None
    return body
