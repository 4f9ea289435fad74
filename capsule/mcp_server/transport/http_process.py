"""Run an HTTP server in this process, from listening at a port to the end of the process.

What must stay true: a signal ends the process, whatever clients keep open. This module knows
nothing about the application that it serves.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn

from capsule.errors import InvalidInput, Refused
from capsule.mcp_server.transport.process_exit import call_on_signal, finish

if TYPE_CHECKING:
    from starlette.types import ASGIApp


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """A socket that listens. On loopback only this machine can reach it."""

    socket: socket.socket
    host: str
    port: int
    is_loopback: bool

    @property
    def url(self) -> str:
        """Return its address as clients write it."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def names(self, hosts: Iterable[str], *local: str) -> list[str]:
        """Return the accepted values of the header `Host`. On loopback they keep out a web page
        whose name was made to point here.

        Args:
            hosts: Further names by which clients may call the server.
            local: Further names of loopback, without the port.
        """
        loopback_names = ["127.0.0.1", "localhost", "[::1]", *local] if self.is_loopback else []
        return [
            *(f"{host}:{self.port}" for host in loopback_names),
            *map(str.lower, hosts),
            *(loopback_names if self.port == 80 else []),
        ]


def parse(text: str) -> tuple[str, int]:
    """Return the host and the port of `[HOST:]PORT` or `[IPv6]:PORT`. Without a host it is
    loopback.

    Raises InvalidInput: it is not an address.
    """
    match = re.fullmatch(
        r"(?:(?P<host>[^\[\]:]*|\[[0-9A-Fa-f:.]+(?:%[^\[\]]+)?\]):)?(?P<port>[0-9]{1,5})", text
    )
    if match is None or int(match["port"]) > 65535:
        raise InvalidInput(
            f"{text!r} is not an address: write a port, such as 8765, or a host and a port, "
            "such as 127.0.0.1:8765 or [::1]:8765; port 0 takes any free one"
        )
    return (match["host"] or "127.0.0.1").strip("[]"), int(match["port"])


def listen(host: str, port: int) -> ListeningSocket:
    """Listen at a port. 0 is any free port.

    Raises:
        Refused: The port is taken, or not permitted.
        InvalidInput: The host is not an address of this machine.
    """
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidInput(f"the host {host!r} is unknown here: {error.strerror}") from None
    # IPv4 first, where a name such as `localhost` stands for both.
    family, _, _, _, socket_address = min(places, key=lambda address: address[0] != socket.AF_INET)
    try:
        listening = socket.create_server(socket_address[:2], family=family, backlog=128)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise InvalidInput(f"{host} is not an address of this machine") from None
        problem = f"{host}:{port}: could not listen there: {os.strerror(error.errno or 0)}"
        if error.errno == errno.EADDRINUSE:
            problem = (
                f"port {port} of {host} is taken by another program; choose another, or 0 for any"
            )
        raise Refused(problem, path=f"{host}:{port}") from None
    # Connections inherit this option. Without it the body of a response waits 40 ms, until the
    # client has confirmed the head. asyncio sets it only for a socket that names its protocol.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    host, port = listening.getsockname()[:2]
    return ListeningSocket(
        listening, host, port, ipaddress.ip_address(host.partition("%")[0]).is_loopback
    )


async def _do_nothing() -> None:
    pass


def run(
    app: ASGIApp,
    listener: ListeningSocket,
    ready: Callable[[], None],
    close: Callable[[], None],
    *,
    last_s: float,
    background_tasks: Iterable[Callable[[], Coroutine[Any, Any, None]]] = (),
    ending: Callable[[], Coroutine[Any, Any, None]] = _do_nothing,
    **options: Any,
) -> None:
    """Serve until a signal comes, then end the process. Never returns.

    Args:
        app: The application.
        listener: The socket.
        ready: Called when requests are answered.
        close: Releases the locks and closes the stores.
        last_s: Seconds for open requests at the end.
        background_tasks: Tasks that run as long as the server.
        ending: Called when the server ends, before the last requests are answered.
        options: Further options of uvicorn.
    """
    http = _UvicornWithoutSignals(
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
            await tasks.start(call_on_signal, stop)
            tasks.start_soon(listen)
            for work in background_tasks:
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


class _UvicornWithoutSignals(uvicorn.Server):
    """uvicorn without its handling of signals, which raises them again at the end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
