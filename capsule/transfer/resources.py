"""A conversation as Markdown, over MCP."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from mcp.server.mcpserver import Context

from capsule.errors import InvalidInput
from capsule.mcp_server.resources import CONVERSATIONS, MAX_BYTES
from capsule.mcp_server.stores import store_of
from capsule.transfer.exporting import Export
from capsule.untrusted_text import escaped

if TYPE_CHECKING:
    from capsule.mcp_server.server import CapsuleServer


def conversation_as_markdown(ctx: Context, id: str) -> str:
    """A conversation as Markdown, whole, all branches; refused if it is larger than a megabyte."""
    store, file = store_of(ctx), BytesIO()
    store.inner.object_of(Export)([store.resolve(id)], file, format="markdown")
    if file.tell() > MAX_BYTES:
        raise InvalidInput(
            f"conversation {id} has {file.tell():,} bytes as Markdown, and a resource a megabyte "
            "at most"
        )
    return escaped(file.getvalue().decode())


def register(server: CapsuleServer) -> None:
    """Register the resource on a server."""
    server.resource(CONVERSATIONS + "/{id}/markdown", mime_type="text/markdown")(
        conversation_as_markdown
    )
