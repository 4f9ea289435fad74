"""The fixtures of the core's tests of the MCP server, for those of this room's tools."""

from tests.core.mcp_server.conftest import agents, anyio_backend, pytest_generate_tests, store

__all__ = ["agents", "anyio_backend", "pytest_generate_tests", "store"]
