"""What the SDK does not offer: its private interfaces that have no public counterpart, and JSON-RPC
that answers malformed bytes.

The private interfaces were tested with `mcp` 2.3, to which `pyproject.toml` pins it.
tests/test_source.py checks that no other module uses a private name.

What must stay true: an invalid request is answered, with its id if JSON-RPC permits that id. The
SDK's own readers drop an invalid request, take it for a notification, or answer without an id.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
from mcp.server.lowlevel.server import NotificationOptions
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    JSONRPCMessage,
    JSONRPCNotification,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

if TYPE_CHECKING:
    from mcp.server.connection import Connection
    from mcp.server.lowlevel.server import Server
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.tools import Tool
    from mcp.server.session import ServerSession


# -- Private interfaces ----------------------------------------------------------------------------


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


# -- The bytes of JSON-RPC -------------------------------------------------------------------------

if TYPE_CHECKING:
    pass


_RULE: Final = 'jsonrpc is "2.0", id a text or a whole number, method a text, and params an object'


_LONE_SURROGATE: Final = (
    "the text is not valid Unicode: it has half a character (a lone surrogate, or invalid UTF-8)"
)


class MalformedMessage(Exception):
    """Bytes that are no message.

    Attributes:
        answer: The encoded error for their sender.
    """

    def __init__(self, id: Any, code: int, reason: str) -> None:
        super().__init__(reason)
        self.answer = encode_error(id, code, reason)


def parse_message(data: bytes) -> JSONRPCMessage:
    """Return the message in these bytes. Raises MalformedMessage: they are none."""
    value = _value(data)
    message: JSONRPCMessage | None = None
    with suppress(ValidationError, RecursionError):
        message = jsonrpc_message_adapter.validate_python(value, by_name=False)
    if message is None or (isinstance(message, JSONRPCNotification) and "id" in value):
        raise MalformedMessage(_id(value), INVALID_REQUEST, f"Invalid Request: {_RULE}")
    return message


def _value(data: bytes) -> Any:
    """Return the JSON in these bytes. Raises MalformedMessage: they are no JSON, or have an invalid
    text or number.
    """
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(data)
    # orjson refuses a wrong text or number too, but the answer needs the id of the request.
    infinite_numbers: list[str] = []

    def number(text: str) -> float:
        if math.isinf(value := float(text)):
            infinite_numbers.append(text)
        return value

    try:
        value = json.loads(
            data.decode("utf-8", "replace"), parse_constant=_no_number, parse_float=number
        )
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(None, PARSE_ERROR, f"Parse error: {str(error)[:200]}") from None
    reason = (
        f"{infinite_numbers[0][:40]} is too large for a number of 64 bits"
        if infinite_numbers
        else _LONE_SURROGATE
    )
    raise MalformedMessage(_id(value), INVALID_PARAMS, reason)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def _id(value: Any) -> Any:
    """Return the id to answer to. None: the message has none that JSON-RPC permits."""
    if not isinstance(value, dict) or {"result", "error"} & value.keys():
        return None  # A response of the client, whose id is the id of a request of the server.
    id = value.get("id")
    is_id = (
        isinstance(id, str | int | float)
        and not isinstance(id, bool)
        and id not in (math.inf, -math.inf)
    )
    return id if is_id else None


def encode_error(id: Any, code: int, message: str) -> bytes:
    """Return the bytes of an error. An id with a lone surrogate is returned escaped."""
    answer = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}
    return json.dumps(answer, separators=(",", ":")).encode()
