"""Gives the page of each store a host name of its own, below `.localhost`.

Browsers send the cookies of a host to all its ports, so no other server may have this name.

What must stay true: the name is random, and stored beside the key of this machine. If it could be
computed from the path of the store, a link to another server at another port of this name would give
that server the cookies.
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capsule.engines.local_documents import LocalDocuments
    from capsule.mcp_server.transport.process import ListeningSocket


def own_name(local: LocalDocuments) -> str:
    """Return the name of the store on this machine. Cost: reading a small file."""
    return f"capsule-{local.key('web-name').hex()[:12]}.localhost"


def address_for_browser(name: str, listener: ListeningSocket, system: str = sys.platform) -> str:
    """Return the address for a browser of this machine, if the server is on loopback without TLS.

    Args:
        name: The name from `own_name`.
        listener: The socket of the server.
        system: The system, as `sys.platform` names it.
    """
    if listener.host not in ("127.0.0.1", "::1"):
        return listener.url  # A name below `.localhost` means these two addresses only.
    # Chromium and Firefox resolve these names themselves, even if the system can't. Safari asks the
    # system.
    if system == "darwin" and not _is_resolved(name, listener.port):
        return listener.url
    return f"http://{name}:{listener.port}"


def _is_resolved(name: str, port: int) -> bool:
    try:
        return bool(socket.getaddrinfo(name, port))
    except OSError:
        return False
