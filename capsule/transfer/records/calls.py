"""Tool calls as the APIs of models accept them.

What must stay true: equal ids stay equal, so that a result still names its call. What is accepted
already stays as it is. Pure.
"""

from __future__ import annotations

import re
from hashlib import sha1
from typing import Any

from capsule.transfer.records.coercion import object_of, text_of
from capsule.transfer.records.round_trip import Fields

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: The most characters of the name of a tool.
_LONGEST_NAME = 64


def with_acceptable_calls(said: Fields) -> Fields:
    """Return a message whose calls the APIs of models accept.

    Ids and names have letters, digits, `_` and `-` only, and arguments are an object. A call
    without an id gets one.
    """
    result = dict(said)
    if isinstance(said.get("toolCallId"), str):
        result["toolCallId"] = _acceptable_id(said["toolCallId"])
    if "toolCalls" in said:
        result["toolCalls"] = [
            _acceptable_call(call, f"{said.get('id')}:{nth}")
            for nth, call in enumerate(said["toolCalls"])
        ]
    return result


def _acceptable_call(call: Fields, place: str) -> Fields:
    id = call.get("id")
    name = re.sub("[^A-Za-z0-9_-]", "_", text_of(call.get("name")))[:_LONGEST_NAME]
    return {
        "id": _acceptable_id(id if isinstance(id, str) else place),
        "name": name or "tool",
        "arguments": _acceptable_arguments(call.get("arguments")),
    }


def _acceptable_id(id: str) -> str:
    if _ID.fullmatch(id):
        return id
    return (
        f"call_{sha1(id.encode('utf-8', 'surrogatepass'), usedforsecurity=False).hexdigest()[:24]}"
    )


def _acceptable_arguments(arguments: Any) -> Fields:
    """An object of arguments: itself, the one that a text holds, or one with any other value as its
    `input`.
    """
    if isinstance(arguments, dict):
        return arguments
    return object_of(arguments) or ({"input": arguments} if arguments else {})
