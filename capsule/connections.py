"""The connections of an HTTP server that strangers can reach: how many at once, and how long a
request may take.

What must stay true: a stranger keeps nobody out, neither by opening many connections nor by sending
half of a request. A connection counts as a stranger's until the server calls `trust`; when there
are too many strangers, the oldest one's connection is closed. Over TLS this begins after the
handshake.
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

#: Seconds in which the head of a request must come, and then its body, if it is a stranger's.
_HEAD_S = 10.0
_BODY_S = 30.0


class Connections:
    """The connections of one server.

    Args:
        most: Connections at once, of whomever. Requests beyond are answered with 503.
        strangers: Connections of strangers at once.
        of_one: Of these, those of one address. It is more than clients open at once, as each begins
            as a stranger.
    """

    def __init__(self, most: int, strangers: int, of_one: int) -> None:
        self._most, self._most_strangers, self._most_of_one = most, strangers, of_one
        self._strangers: dict[tuple[Any, ...], asyncio.Transport] = {}

    def options(self) -> dict[str, Any]:
        """Return the options of uvicorn with which a server keeps these limits."""
        return {"http": partial(_Connection, self), "limit_concurrency": self._most}

    def trust(self, client: Sequence[Any] | None) -> None:
        """Stop counting a connection as a stranger's.

        Args:
            client: Its address and port, as a request has them.
        """
        self._strangers.pop(tuple(client or ()), None)

    def add(self, client: Sequence[Any] | None, transport: asyncio.Transport) -> None:
        """Count a new connection, and close the oldest one of a stranger if there are too many."""
        address = tuple(client or ())  # The kernel does not name a client that is gone again.
        self._strangers[address] = transport
        of_one = [each for each in self._strangers if each[:1] == address[:1]]
        if len(of_one) > self._most_of_one:
            self._strangers.pop(of_one[0]).abort()
        elif len(self._strangers) > self._most_strangers:
            self._strangers.pop(next(iter(self._strangers))).abort()


class _Connection(H11Protocol):
    """One connection. uvicorn itself does not limit the time in which the head of a
    request comes.
    """

    def __init__(self, connections: Connections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._of = connections
        self._is_limited = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._of.add(self.client, transport)
        self._limit_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # What comes after an answer is the beginning of the next request, or the rest of one that
        # was refused.
        if self.cycle is not None and self.cycle.response_complete and not self._is_limited:
            self._limit_head()

    def _limit_head(self) -> None:
        self._is_limited = True
        self.loop.call_later(_HEAD_S, self._end_without_head, self.cycle)

    def _end_without_head(self, last_request: object) -> None:
        self._is_limited = False
        if self.cycle is last_request:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._of.trust(self.client)
        super().connection_lost(exc)


async def read_body(request: Request, most: int) -> bytes:
    """Read the body of a stranger's request.

    Args:
        request: The request. Its answer must close the connection, as bytes may be left in it.
        most: Bytes that the body may have.

    Raises:
        ValueError: It has more.
        TimeoutError: It did not come in time, or the client went away.
    """
    body = b""
    try:
        async with asyncio.timeout(_BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise ValueError(f"the body has more than {most} bytes")
    except ClientDisconnect:
        raise TimeoutError("the client went away") from None
    return body
