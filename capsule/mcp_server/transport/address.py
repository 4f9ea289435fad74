"""Where the server over HTTP listens, and the names by which it may be called."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from dataclasses import dataclass

from mcp.server.transport_security import TransportSecuritySettings

from capsule.errors import InvalidInput, Refused

#: Where on the server the protocol is spoken.
PATH = "/mcp"
#: Where on the server the events are.
EVENTS = "/events"
_LOOPBACK = "127.0.0.1"


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
    family, _, _, _, place = min(found, key=lambda one: one[0] != socket.AF_INET)
    try:
        taken = socket.create_server(place[:2], family=family, backlog=128)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            told = f"port {address.port} of {address.host} is taken by another program; choose another, or 0 for any"
            raise Refused(told, path=where) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise InvalidInput(f"{address.host} is no address of this machine") from None
        raise Refused(f"{where}: may not listen there: {os.strerror(error.errno or 0)}", path=where) from None
    host, port = taken.getsockname()[:2]
    return Listener(taken, Address(host, port), ipaddress.ip_address(host.partition("%")[0]).is_loopback)


def security(listener: Listener, hosts: tuple[str, ...]) -> TransportSecuritySettings:
    """Which values of the headers Host and Origin are accepted.

    On loopback that is what keeps out a web page whose name was made to point here (DNS rebinding). Elsewhere the
    server can't know its names, and a page has no token; so there they are checked when `hosts` says them.
    """
    own = ["127.0.0.1", "localhost", "[::1]"] if listener.is_loopback else []
    names = [f"{host}:{listener.address.port}" for host in own]
    names += [name for host in map(str.lower, hosts) for name in (host, f"{host}:*")]
    names += own if listener.address.port == 80 else []
    origins = [f"{scheme}://{name}" for name in names for scheme in ("http", "https")]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=bool(names), allowed_hosts=names, allowed_origins=origins
    )
