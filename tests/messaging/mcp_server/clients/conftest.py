"""The fixtures of the core's tests of clients, for those of their hooks."""

from tests.core.mcp_server.clients.conftest import capsule, places

__all__ = ["capsule", "places"]
