"""Serving many clients over streamable HTTP.

What must stay true: beyond this machine nobody is answered without a token; the server ends within two seconds of
being told to, whatever long-polls and streams are open, and those end as an answer that is complete or a stream that is
closed, not as a broken connection; and which requests come in is decided in one place, `door`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings

from capsule.errors import InvalidInput, Refused
from capsule.mcp_server.door import Door
from capsule.mcp_server.lifetime import Lifetime

if TYPE_CHECKING:
    from capsule.mcp_server.server import CapsuleServer
    from capsule.mcp_server.sessions import HttpStores
    from capsule.mcp_server.tokens import Tokens

__all__ = ["PATH", "Address", "Listener", "listen", "parse", "serve"]

#: Where on the server the protocol is spoken.
PATH = "/mcp"
_LOOPBACK = "127.0.0.1"
_MOST_SESSIONS = 500
#: How often the streams of revoked holders and the stores of idle ones are looked for, in seconds.
_TIDY_S = 2.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen.

    Attributes:
        port: 0 for any that is free.
    """

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens.

    Attributes:
        is_loopback: Whether this machine alone can reach it.
    """

    socket: socket.socket
    address: Address
    is_loopback: bool

    @property
    def url(self) -> str:
        """Where clients find the server."""
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        return f"http://{host}:{self.address.port}{PATH}"


def parse(text: str) -> Address:
    """The address in `PORT`, `:PORT`, `HOST:PORT` or `[IPv6]:PORT`; without a host it is loopback.

    Raises:
        InvalidInput: It is none of these.
    """
    match = re.fullmatch(r"(?:(?P<host>[^\[\]:]*|\[[0-9A-Fa-f:.]+(?:%[^\[\]]+)?\]):)?(?P<port>[0-9]{1,5})", text)
    if match is None or int(match["port"]) > 65535:
        raise InvalidInput(
            f"{text!r} is no address: write a port, such as 8765, or a host and a port, such as 127.0.0.1:8765 or "
            f"[::1]:8765; port 0 takes any that is free"
        )
    return Address((match["host"] or _LOOPBACK).strip("[]"), int(match["port"]))


def listen(address: Address) -> Listener:
    """Take the port.

    Raises:
        Refused: It is taken, or not for everyone.
        InvalidInput: The host is none of this machine.
    """
    where = f"{address.host}:{address.port}"
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidInput(f"{address.host!r} is no host that is known here: {error.strerror}") from None
    # What a name stands for first in IPv4, as `localhost` does in both.
    family, kind, protocol, _, place = min(found, key=lambda one: one[0] != socket.AF_INET)
    taken = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(place)
        taken.listen(128)
    except OSError as error:
        taken.close()
        if error.errno == errno.EADDRINUSE:
            told = f"port {address.port} of {address.host} is taken by another program; choose another, or 0 for any"
            raise Refused(told, path=where) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise InvalidInput(f"{address.host} is no address of this machine") from None
        raise Refused(f"{where}: may not listen there: {error.strerror}", path=where) from None
    host, port = taken.getsockname()[:2]
    return Listener(taken, Address(host, port), ipaddress.ip_address(host.partition("%")[0]).is_loopback)


def security(listener: Listener, hosts: tuple[str, ...]) -> TransportSecuritySettings:
    """Which values of the headers Host and Origin are accepted.

    On loopback that is what keeps out a web page whose name was made to point here (DNS rebinding). Elsewhere the
    server can't know its names, and a page has no token; so there they are checked when `hosts` says them.
    """
    own = ["127.0.0.1", "localhost", "[::1]"] if listener.is_loopback else []
    names = [f"{host}:{listener.address.port}" for host in own]
    names += [name for host in hosts for name in (host, f"{host}:*")]
    names += own if listener.address.port == 80 else []
    origins = [f"{scheme}://{name}" for name in names for scheme in ("http", "https")]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=bool(names), allowed_hosts=names, allowed_origins=origins
    )


def serve(
    server: CapsuleServer,
    stores: HttpStores,
    listener: Listener,
    *,
    tokens: Tokens,
    require_token: bool,
    hosts: tuple[str, ...] = (),
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal comes; never returns.

    Args:
        server: The server.
        stores: The stores behind it.
        listener: Where it listens.
        tokens: Who may come in.
        require_token: Whether nobody is answered without one, on loopback too; so it is when there is any, and
            elsewhere than on loopback in any case.
        hosts: Further names by which clients may call the server, such as that of a proxy before it.
        ready: Called when requests are answered.
    """
    settings = stores.main().settings
    checks = security(listener, hosts)
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        transport_security=checks,
        # A session is a lease: one that is idle for as long as a lock may be has gone, and its locks with it.
        session_idle_timeout=settings.lock_ttl_s,
        max_sessions=_MOST_SESSIONS,
        # A message of the largest size, with every letter beyond ASCII escaped, and room for what is around it.
        max_request_body_size=3 * settings.message_bytes + (1 << 20),
    )
    door = Door(app, tokens, checks, require_token=require_token or not listener.is_loopback, ended=stores.end)
    # No time-outs of its own: the door ends what is open, and `Lifetime` the process.
    config = uvicorn.Config(
        door, log_config=None, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=1
    )
    http = _Uvicorn(config)

    async def run() -> None:
        stopping = anyio.Event()
        loop = asyncio.get_running_loop()
        lifetime = Lifetime(stores.release, stores.close, stop=lambda: loop.call_soon_threadsafe(stopping.set))
        lifetime.listen()
        async with anyio.create_task_group() as beside:
            beside.start_soon(_tidy, door, stores)
            async with anyio.create_task_group() as serving:
                serving.start_soon(http.serve, [listener.socket])
                while not http.started:
                    await anyio.sleep(0.005)
                ready()
                await stopping.wait()
                await door.close()
                # As a client's DELETE does; cancelled from outside, a session would wait for a reader that is gone.
                for transport in list(server.session_manager._server_instances.values()):
                    await transport.terminate()
                door.drop_all()
                http.should_exit = True
            beside.cancel_scope.cancel()
        lifetime.finish()

    _raise_limit_of_files()
    anyio.run(run)


async def _tidy(door: Door, stores: HttpStores) -> None:
    while True:
        await anyio.sleep(_TIDY_S)
        holders = door.holders()
        door.drop_all_but(holders)
        await anyio.to_thread.run_sync(stores.tidy, holders)


def _raise_limit_of_files() -> None:
    """Let the process have as many files open as it may: each session has some."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 65536 if most == resource.RLIM_INFINITY else min(most, 65536)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


class _Uvicorn(uvicorn.Server):
    """uvicorn, without its way of handling signals: it raises them anew when it has ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
