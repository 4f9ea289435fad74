"""The messages of JSON-RPC as a client sends them, and the error for what is none.

What must stay true: an invalid request is answered, to its id if JSON-RPC allows that id.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import orjson
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    JSONRPCMessage,
    JSONRPCNotification,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError


class Unacceptable(Exception):
    """Bytes or a value that are no message. Arguments: the id to answer to, the code, the reason."""


def parsed(data: bytes) -> Any:
    """The value of a message's bytes. Raises Unacceptable: no JSON, or a wrong text or number in it."""
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(data)
    # orjson refuses such a text or number too, but the answer needs the id of the request.
    infinite: list[str] = []

    def number(text: str) -> float:
        if math.isinf(value := float(text)):
            infinite.append(text)
        return value

    try:
        value = json.loads(data.decode("utf-8", "replace"), parse_constant=_no_number, parse_float=number)
    except (ValueError, RecursionError) as error:
        raise Unacceptable(None, PARSE_ERROR, f"Parse error: {str(error)[:200]}") from None
    reason = "the text is no Unicode: a character of it was cut in two (a lone surrogate, or invalid UTF-8)"
    if infinite:
        reason = f"{infinite[0][:40]} is too large for a number of 64 bits"
    raise Unacceptable(_id(value), INVALID_PARAMS, reason)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def message_of(value: Any) -> JSONRPCMessage:
    """The message that a value is. Raises Unacceptable: it is none."""
    try:
        message: JSONRPCMessage | None = jsonrpc_message_adapter.validate_python(value, by_name=False)
    except (ValidationError, RecursionError):
        message = None
    if message is None or (isinstance(message, JSONRPCNotification) and "id" in value):
        rule = 'jsonrpc is "2.0", id a text or a whole number, method a text, and params an object'
        raise Unacceptable(_id(value), INVALID_REQUEST, f"Invalid Request: {rule}")
    return message


def _id(value: Any) -> Any:
    """The id to answer to: the request's, when it can be one."""
    if not isinstance(value, dict) or {"result", "error"} & value.keys():
        return None  # It is an answer of the client, and its id is that of a request of the server.
    id = value.get("id")
    is_id = isinstance(id, str | int | float) and not isinstance(id, bool) and id not in (math.inf, -math.inf)
    return id if is_id else None


def error_of(id: Any, code: int, message: str) -> bytes:
    """The bytes of an error. An id with a lone surrogate comes back as it came, escaped."""
    answer = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}
    return json.dumps(answer, separators=(",", ":")).encode()
