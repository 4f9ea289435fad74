"""Send the log of the logger `capsule` to clients: `logging/setLevel`, and then
`notifications/message`.

Only clients of the protocol of 2025 call this method. Clients of 2026 ask for it with each request,
and the SDK answers them.

What must stay true: a client that set no level gets nothing. The code that logs a warning never
waits for a client.
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

#: For each level of the protocol (RFC 5424) the lowest level of Python's logging that is sent.
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
    """Sends log records to the clients of one server that set a level.

    It belongs to one event loop of asyncio. It listens to the logger `capsule` while at least one
    client has set a level. Every such client gets the records of all requests of the process.
    """

    def __init__(self) -> None:
        # Each client has a level of its own, which `_send` compares. Records below the level of the
        # logger itself do not arrive here.
        super().__init__(logging.DEBUG)
        self._levels: dict[Connection, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, server: Server[Any]) -> None:
        """Register the handler of `logging/setLevel` on this server. Call it once."""
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
        """Pass the record to the event loop, from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._send, record.levelno, visible(record.getMessage()))

    def _send(self, level: int, message: str) -> None:
        # Above ERROR everything is critical. A level below, without a name there, counts as debug.
        name = _NAMES.get(level, "critical" if level > logging.ERROR else "debug")
        params = {"level": name, "logger": "capsule", "data": message}
        for connection, minimum in self._levels.items():
            if level >= minimum:
                task = asyncio.ensure_future(connection.notify("notifications/message", params))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
