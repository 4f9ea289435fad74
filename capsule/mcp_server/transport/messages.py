"""The messages of JSON-RPC as a client sends them, and the error for what is none.

What must stay true: whatever has an id and is no valid request is answered, to its id where that can be one.
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
    """What is no message. Arguments: the id to answer to, the code, the words."""


def parsed(data: bytes) -> Any:
    """The value of a message's bytes. Raises Unacceptable: it is no JSON, or holds what can't be kept."""
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(data)
    # A request in which only a text or a number is wrong can be told by its id.
    infinite: list[str] = []

    def number(text: str) -> float:
        if math.isinf(value := float(text)):
            infinite.append(text)
        return value

    try:
        value = json.loads(data.decode("utf-8", "replace"), parse_constant=_no_number, parse_float=number)
    except (ValueError, RecursionError) as error:
        raise Unacceptable(None, PARSE_ERROR, f"Parse error: {str(error)[:200]}") from None
    told = "the text is no Unicode: a character of it was cut in two (a lone surrogate, or invalid UTF-8)"
    if infinite:
        told = f"{infinite[0][:40]} is a larger number than there can be"
    raise Unacceptable(_id(value), INVALID_PARAMS, told)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def message_of(value: Any) -> JSONRPCMessage:
    """The message that a value is. Raises Unacceptable: it is none."""
    try:
        message: JSONRPCMessage | None = jsonrpc_message_adapter.validate_python(value, by_name=False)
    except (ValidationError, RecursionError):
        message = None
    if message is None or (isinstance(message, JSONRPCNotification) and "id" in value):
        told = 'jsonrpc is "2.0", id a text or a whole number, method a text, and params an object'
        raise Unacceptable(_id(value), INVALID_REQUEST, f"Invalid Request: {told}")
    return message


def _id(value: Any) -> Any:
    """The id to answer to: the request's, when it can be one."""
    if not isinstance(value, dict) or {"result", "error"} & value.keys():
        return None  # An answer of the client's: its id is one of ours.
    id = value.get("id")
    is_id = isinstance(id, str | int | float) and not isinstance(id, bool) and id not in (math.inf, -math.inf)
    return id if is_id else None


def error_of(id: Any, code: int, message: str) -> bytes:
    """The bytes of an error. An id with half a character comes back as it came, escaped."""
    told = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}
    return json.dumps(told, separators=(",", ":")).encode()
