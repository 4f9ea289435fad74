"""The private interfaces of the SDK that have no public counterpart. No other module uses one.

They were tested with `mcp` 2.3, to which `pyproject.toml` pins it. tests/test_source.py checks that
no other module uses a private name.
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
    """Return the low-level server, on which further methods are registered and which runs over
    streams.
    """
    return server._lowlevel_server


def tool_of(server: MCPServer[Any], name: str) -> Tool | None:
    """Return a registered tool, whose schemas can be replaced. None: there is no such tool."""
    return server._tool_manager.get_tool(name)


def connection_of(session: ServerSession) -> Connection:
    """Return the connection of a request, which has the id of its session and callbacks for its
    end.
    """
    return session._connection


def announce_list_changes(server: Server[Any]) -> None:
    """Let every handshake announce that the list of resources may change. The transports don't do
    that.
    """
    lists = NotificationOptions(resources_changed=True)
    options = partial(server.create_initialization_options, notification_options=lists)
    server.create_initialization_options = options  # type: ignore[method-assign]
