"""The name under which browsers open the page of a store: one of its own below `.localhost`.

What must stay true: browsers send the cookies of a name to each of its ports, so no other server
may have this one. It is random and kept beside the key: a name that could be computed from the
store's path could be served at another port too, by whoever leads the browser there.
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capsule.engines.local_documents import LocalDocuments
    from capsule.mcp_server.transport.http_process import ListeningSocket


def own_name(machine: LocalDocuments) -> str:
    """Return the name of the store on this machine. Cost: reading a small file."""
    return f"capsule-{machine.key('web-name').hex()[:12]}.localhost"


def address_for_browser(name: str, listener: ListeningSocket, system: str = sys.platform) -> str:
    """Return the address at which a browser of this machine finds a server on loopback, without
    TLS.

    Args:
        name: What `own_name` returns.
        listener: Where the server listens.
        system: The system, as `sys.platform` names it.
    """
    if listener.host not in ("127.0.0.1", "::1"):
        return listener.url  # A name below `.localhost` stands for these two only.
    # Chromium and Firefox resolve these names themselves, also where the system can't. Safari asks
    # the system.
    if system == "darwin" and not _is_resolved(name, listener.port):
        return listener.url
    return f"http://{name}:{listener.port}"


def _is_resolved(name: str, port: int) -> bool:
    try:
        return bool(socket.getaddrinfo(name, port))
    except OSError:
        return False
