"""Who is in a store, over MCP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp.server.mcpserver import Context

from capsule.errors import NotFound
from capsule.mcp_server.resources import JSON, as_json
from capsule.mcp_server.stores import store_of

if TYPE_CHECKING:
    from capsule.mcp_server.server import CapsuleServer

DIRECTORY = ("agents", "channels", "projects")


def directory(ctx: Context, what: str) -> str:
    """The agents, channels or projects of the store (`what`), for an agent those that it may find."""
    if what not in DIRECTORY:
        raise NotFound(f"there is nothing called {what[:40]!r}; there is: {', '.join(DIRECTORY)}", id=what[:40])
    return as_json({what: [each.as_json() for each in getattr(store_of(ctx), what).list()]})


def register(server: CapsuleServer) -> None:
    """Register the resource on a server, with the values of its argument."""
    server.resource("capsule://directory/{what}", mime_type=JSON)(directory)
    server.choices["what"] = DIRECTORY
