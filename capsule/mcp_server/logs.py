"""Sends the store's warnings to clients of 2025: `logging/setLevel`, and `notifications/message`
after it.

The protocol of 2026 has no such method; its clients ask for it with each request, and the SDK sees
to that. What must stay true: a client that set no level hears nothing; and a warning never waits
for a client.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from mcp_types import EmptyResult, SetLevelRequestParams

from capsule.mcp_server import sdk
from capsule.untrusted_text import visible

if TYPE_CHECKING:
    from mcp.server.connection import Connection
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server

#: The protocol's levels (RFC 5424), each with the first of Python's that it lets through.
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL + 1,
    "emergency": logging.CRITICAL + 1,
}
_NAMES = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
}


class ClientLogHandler(logging.Handler):
    """The levels that the clients of one server set, and the handler that sends them what is
    logged.

    It belongs to one event loop of asyncio, and listens to the logger `capsule` while a client has
    set a level.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._levels: dict[Connection, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def serve(self, server: Server[Any]) -> None:
        """Answer `logging/setLevel` of this server."""
        server.add_request_handler("logging/setLevel", SetLevelRequestParams, self._set_level)

    async def _set_level(
        self, ctx: ServerRequestContext[Any], params: SetLevelRequestParams
    ) -> EmptyResult:
        connection = sdk.connection_of(ctx.session)
        if connection not in self._levels:
            connection.exit_stack.callback(self._forget, connection)
        self._levels[connection] = _LEVELS[params.level]
        self._loop = asyncio.get_running_loop()
        logging.getLogger("capsule").addHandler(self)
        return EmptyResult()

    def _forget(self, connection: Connection) -> None:
        self._levels.pop(connection, None)
        if not self._levels:
            logging.getLogger("capsule").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Hand the record to the loop, from whatever thread it comes."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._send, record.levelno, visible(record.getMessage()))

    def _send(self, level: int, message: str) -> None:
        name = _NAMES.get(level, "critical" if level > logging.ERROR else "debug")
        params = {"level": name, "logger": "capsule", "data": message}
        for connection, least in self._levels.items():
            if level >= least:
                task = asyncio.ensure_future(connection.notify("notifications/message", params))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
