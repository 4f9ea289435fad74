"""The private interfaces of the SDK, for which it has no public ones. No other module uses any.

They were tried with `mcp` 2.3, to which `pyproject.toml` holds it; tests/test_source.py looks for
others.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mcp.server.lowlevel.server import NotificationOptions

if TYPE_CHECKING:
    from mcp.server.connection import Connection
    from mcp.server.lowlevel.server import Server
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.tools import Tool
    from mcp.server.session import ServerSession


def server_of(server: MCPServer[Any]) -> Server[Any]:
    """The low-level server: what further methods are registered on, and what runs over streams of
    ours.
    """
    return server._lowlevel_server


def tool_of(server: MCPServer[Any], name: str) -> Tool | None:
    """A registered tool, whose schemas can be replaced; None: there is none of that name."""
    return server._tool_manager.get_tool(name)


def connection_of(session: ServerSession) -> Connection:
    """The connection of a request: its session's id, and what is to be done when it ends."""
    return session._connection


def say_that_lists_change(server: Server[Any]) -> None:
    """Have every handshake say that the list of resources changes; the transports ask without a
    word about it.
    """
    lists = NotificationOptions(resources_changed=True)
    options = partial(server.create_initialization_options, notification_options=lists)
    server.create_initialization_options = options  # type: ignore[method-assign]
