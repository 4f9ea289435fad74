"""Make tool calls acceptable to the APIs of models.

Invariants: equal ids stay equal, so that a result still names its call. Accepted values stay
unchanged. Pure.
"""

from __future__ import annotations

import re
from hashlib import sha1
from typing import Any

from capsule.transfer.records.coercion import object_of, text_of
from capsule.transfer.records.round_trip import Fields

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: The longest name of a tool, in characters.
_MAX_NAME_CHARS = 64


def with_acceptable_calls(message: Fields) -> Fields:
    """Return a message whose calls the APIs of models accept.

    Ids and names have letters, digits, `_` and `-` only, and arguments are an object. A call
    without an id gets one.
    """
    result = dict(message)
    if isinstance(message.get("toolCallId"), str):
        result["toolCallId"] = _acceptable_id(message["toolCallId"])
    if "toolCalls" in message:
        result["toolCalls"] = [
            _acceptable_call(call, f"{message.get('id')}:{number}")
            for number, call in enumerate(message["toolCalls"])
        ]
    return result


def _acceptable_call(call: Fields, default_id: str) -> Fields:
    id = call.get("id")
    name = re.sub("[^A-Za-z0-9_-]", "_", text_of(call.get("name")))[:_MAX_NAME_CHARS]
    return {
        "id": _acceptable_id(id if isinstance(id, str) else default_id),
        "name": name or "tool",
        "arguments": _acceptable_arguments(call.get("arguments")),
    }


def _acceptable_id(id: str) -> str:
    """Return an id, or a digest of it if it is not acceptable."""
    if _ID.fullmatch(id):
        return id
    digest = sha1(id.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
    return f"call_{digest[:24]}"


def _acceptable_arguments(arguments: Any) -> Fields:
    """Return an object: the arguments, the object in their text, or one with them as `input`."""
    if isinstance(arguments, dict):
        return arguments
    fields = object_of(arguments)
    if fields or not arguments:
        return fields
    return {"input": arguments}
