"""Checking one message for writing; the append's hot path.

What must stay true: strict about what is known, open to what is not, and quick: a few microseconds
for a plain message, and no import of pydantic. What unknown fields hold is the encoder's to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capsule.errors import InvalidInput
from capsule.format.fields import PARTS, ROLES
from capsule.format.json.canonical import is_in_order, order_message
from capsule.format.validation import canonical_time, problem_with
from capsule.ids import is_id

_FIELDS = {field.name: field for field in PARTS["history"]}
#: The names of the attributes of the `Message` model that are not those of the file.
_SNAKE = {
    "from_": "from",
    "reply_to": "replyTo",
    "edited_at": "editedAt",
    "tool_calls": "toolCalls",
}
_SNAKE |= {"edited_by": "editedBy", "tool_call_id": "toolCallId"}
_ROLES = frozenset(ROLES)
_TIMES = frozenset({"timestamp", "editedAt"})
_IDS = frozenset({"id", "parent", "replyTo", "thread"})
#: The fields of which nothing but the type of the value counts.
_TYPES = {"text": str, "object": dict}
_TYPED = {
    field.name: _TYPES[field.kind]
    for field in PARTS["history"]
    if field.kind in _TYPES and not field.choices and field.name not in {*_IDS, "from"}
}
#: What a message may differ in and still say the same: Capsule adds it later.
_BESIDE_THE_TEXT = frozenset({"parent", "editedAt", "editedBy"})


def content_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message that make it say what it says."""
    return {name: value for name, value in message.items() if name not in _BESIDE_THE_TEXT}


def check_message(message: Any) -> dict[str, Any]:
    """`message` as it is written: valid, in canonical order, keys as in the file, times in
    canonical form.

    It is a `Message`, or a mapping with names as in the file or as the model has them
    (`edited_at`), and stays unchanged. A field that is None is left out; but a `parent` of None
    says that the message is a root. Costs about two microseconds for a role and a text. Raises
    InvalidInput that names a field.
    """
    given = message if type(message) is dict else _mapping(message)
    checked: dict[str, Any] = {}
    for name, value in given.items():
        key = name
        if key not in _FIELDS:
            if type(key) is not str:
                raise InvalidInput(f"message: the field name {key!r} is not a plain str")
            key = _SNAKE.get(key, key)
        field = _FIELDS.get(key)
        if key in checked:
            raise InvalidInput(
                f"message.{key}: given twice, as {key} and in snake_case; give it once"
            )
        kind = type(value)
        if (
            field is None
            or kind is _TYPED.get(key)
            or (key == "role" and kind is str and value in _ROLES)
        ):
            checked[key] = value
        elif value is not None or key == "parent" or not _FIELDS[key].null:
            checked[key] = _known(key, value)
    for key in ("role", "content"):
        if key not in checked:
            raise InvalidInput(
                f"message.{key}: is missing; a message has at least a role and a content"
            )
    return checked if is_in_order(tuple(checked)) else order_message(checked)


def fields_given(fields: dict[str, Any], extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of a message that a call was given: those of the format by keywords, and others in
    `extra`.

    Raises TypeError: A keyword is no field of the format, or `extra` has one.
    """
    for name in fields:
        if name not in _FIELDS and name not in _SNAKE:
            raise TypeError(
                f"{name!r} is not a field of a message; give your own fields as "
                f"extra={{{name!r}: ...}}"
            )
    for name in extra or ():
        if name in _FIELDS or name in _SNAKE:
            raise TypeError(
                f"{name!r} is a field of every message; give it as a keyword, not in extra"
            )
    return {**fields, **extra} if extra else fields


def _mapping(message: Any) -> dict[str, Any]:
    if isinstance(message, Mapping):
        return dict(message)
    dump = getattr(message, "model_dump", None)
    if dump is None:
        raise InvalidInput(f"a message is a mapping or a Message, not a {type(message).__name__}")
    return dict(dump(by_alias=True, exclude_unset=True))


def _known(key: str, value: Any) -> Any:
    """The value of a known field as it is written."""
    if type(value) is str and value and (key in _IDS or (key == "from" and is_id(value))):
        return value
    if key in _TIMES and isinstance(value, str) and (time := canonical_time(value)) is not None:
        return time
    wrong = problem_with(_FIELDS[key], value)
    if wrong:
        raise InvalidInput(f"message.{key}: {wrong}")
    if not isinstance(value, str):
        return value
    if key in _IDS and not value:
        raise InvalidInput(f"message.{key}: is empty; leave it out")
    if key == "from" and not is_id(value):
        raise InvalidInput(
            f"message.from: {value[:60]!r} is not an agent id: letters, digits and . _ @ -, at most 128"
        )
    # A subclass, an enum's member for example, is written as the text it is.
    return value if type(value) is str else str.__str__(value)
