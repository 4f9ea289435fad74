"""Strangers hold no connection by sending half of a request, and a request under way is not cut
short.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from capsule import connections
from capsule.connections import Connections, read_body
from tests.processes import until

WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
REFUSED = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"


@contextmanager
def serving(*routes: Route) -> Iterator[tuple[str, int]]:
    """A server with limited connections: its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    options: dict[str, Any] = {
        "log_config": None,
        "lifespan": "off",
        "timeout_graceful_shutdown": 1,
    }
    app = Starlette(routes=[*routes, Route("/", lambda _: PlainTextResponse("answered"))])
    server = uvicorn.Server(uvicorn.Config(app, **options, **Connections(500, 128, 32).options()))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield listening.getsockname()
    finally:
        server.should_exit = True
        thread.join()


def rest(connection: socket.socket) -> bytes:
    """All that comes on a connection until the server closes it."""
    came = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(4096):
            came += piece
    return came


def answer(connection: socket.socket) -> bytes:
    """The answer to a request, of a connection that stays open."""
    came = b""
    while b"\r\n\r\n" not in came or not came.endswith((b"answered", b"Not Allowed")):
        came += connection.recv(4096)
    return came


@pytest.mark.parametrize("first", [b"", WHOLE, REFUSED])
def test_a_connection_that_sends_half_of_a_request_is_closed(
    monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(connections, "_HEAD_S", 0.2)
    with serving() as address, socket.create_connection(address) as connection:
        if first:
            connection.sendall(first)
            assert answer(connection)
        stopped = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not stopped.wait(
                    0.05
                ):  # So that the server, which closes silent connections, has no reason to.
                    connection.sendall(b"x")

        dripping = threading.Thread(target=drip)
        connection.sendall(b"GET / HT" if first != REFUSED else b"a part of the body")
        dripping.start()
        try:
            assert b"answered" not in rest(connection)
        finally:
            stopped.set()
            dripping.join()


def test_a_request_that_takes_long_and_the_next_one_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_HEAD_S", 0.2)
    done = threading.Event()

    async def slow(_: Request) -> Response:
        await asyncio.to_thread(done.wait)
        return PlainTextResponse("answered")

    with serving(Route("/slow", slow)) as address, socket.create_connection(address) as connection:
        connection.sendall(WHOLE.replace(b"/ ", b"/slow ", 1))
        with socket.create_connection(
            address
        ) as silent:  # When this one is closed, the time is over for both.
            assert rest(silent) == b""
        done.set()
        assert answer(connection)
        connection.sendall(WHOLE)
        assert answer(connection)


def test_the_oldest_connection_of_a_stranger_makes_room_and_a_trusted_one_stays() -> None:
    class Transport:
        is_closed = False

        def abort(self) -> None:
            self.is_closed = True

    limited, made = Connections(500, 128, 32), [Transport() for _ in range(200)]
    for at, transport in enumerate(made):
        limited.add(("10.0.0.1", at), transport)  # type: ignore[arg-type]
        if at == 0:
            limited.trust(["10.0.0.1", 0])
    assert [transport.is_closed for transport in made] == [False, *[True] * 167, *[False] * 32]
    others = [Transport() for _ in range(97)]
    for at, transport in enumerate(others):
        limited.add((f"10.0.1.{at}", 1), transport)  # type: ignore[arg-type]
    assert [transport.is_closed for transport in made[-32:]] == [True, *[False] * 31]


def test_a_body_that_is_too_large_or_too_slow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_BODY_S", 0.2)
    refused: list[str] = []

    async def take(request: Request) -> Response:
        try:
            return PlainTextResponse(str(len(await read_body(request, 10))))
        except (ValueError, TimeoutError) as error:
            refused.append(type(error).__name__)
            return PlainTextResponse("refused", 400, {"connection": "close"})

    head = b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    with serving(Route("/take", take, methods=["POST"])) as address:
        for sent in (head % 20 + b"x" * 20, head % 5 + b"x"):
            with socket.create_connection(address) as connection:
                connection.sendall(sent)
                assert rest(connection).endswith(b"refused")
        with socket.create_connection(address) as connection:
            connection.sendall(head % 5)
        until(lambda: len(refused) == 3)
    assert refused == ["ValueError", "TimeoutError", "TimeoutError"]
