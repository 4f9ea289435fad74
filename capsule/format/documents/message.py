"""Check one message before it is written. Every append does this.

What must stay true: strict about known fields, open to unknown ones, whose values the encoder
checks. Quick: a few microseconds for a plain message, and no import of pydantic.
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
#: The names of attributes of the `Message` model that differ from those in a file.
_NAMES_BY_ATTRIBUTE = {
    "from_": "from",
    "reply_to": "replyTo",
    "edited_at": "editedAt",
    "edited_by": "editedBy",
    "tool_calls": "toolCalls",
    "tool_call_id": "toolCallId",
}
_ROLES = frozenset(ROLES)
_TIMES = frozenset({"timestamp", "editedAt"})
_IDS = frozenset({"id", "parent", "replyTo", "thread"})
_SUFFICIENT_TYPES = {"text": str, "object": dict}
#: The fields of which every value of a type is valid.
_TYPE_BY_NAME = {
    field.name: _SUFFICIENT_TYPES[field.kind]
    for field in PARTS["history"]
    if field.kind in _SUFFICIENT_TYPES and not field.choices and field.name not in {*_IDS, "from"}
}
#: Fields that are no content, because Capsule adds them later.
_NO_CONTENT = frozenset({"parent", "editedAt", "editedBy"})


def content_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are the content of a message."""
    return {name: value for name, value in message.items() if name not in _NO_CONTENT}


def check_message(message: Any) -> dict[str, Any]:
    """Return a message as it is written: valid, in canonical order, with canonical times.

    Args:
        message: A `Message`, or a mapping with names as in the file or as in the model
            (`edited_at`). It stays unchanged. A field that is None is omitted, but a `parent` of
            None makes the message a root.

    Raises:
        InvalidInput: A field is wrong; the error names it.

    Cost: about two microseconds for a role and a text.
    """
    fields = message if type(message) is dict else _as_mapping(message)
    checked: dict[str, Any] = {}
    for name, value in fields.items():
        key = name if name in _FIELDS else _file_name(name)
        if key in checked:
            raise InvalidInput(
                f"message.{key}: given twice, as {key} and in snake_case; give it once"
            )
        kind = type(value)
        # The type of most values is enough to accept them. Inline, because this is called often.
        is_plain = kind is _TYPE_BY_NAME.get(key) or (
            key == "role" and kind is str and value in _ROLES
        )
        if is_plain or key not in _FIELDS:
            checked[key] = value
        elif value is not None or key == "parent" or not _FIELDS[key].null:
            checked[key] = _checked_value(key, value)
    _check_required(checked)
    if is_in_order(tuple(checked)):
        return checked
    return order_message(checked)


def _check_required(checked: dict[str, Any]) -> None:
    for key in ("role", "content"):
        if key not in checked:
            raise InvalidInput(
                f"message.{key}: is missing; a message has at least a role and a content"
            )


def _file_name(name: Any) -> str:
    """Return the name in the file of a field that has another name."""
    if type(name) is not str:
        raise InvalidInput(f"message: the field name {name!r} is not a plain str")
    return _NAMES_BY_ATTRIBUTE.get(name, name)


def fields_given(fields: dict[str, Any], extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a message that a call got: keywords, and fields of its own in `extra`.

    Raises TypeError if a keyword is no field of the format, or `extra` has one.
    """
    for name in fields:
        if name not in _FIELDS and name not in _NAMES_BY_ATTRIBUTE:
            raise TypeError(
                f"{name!r} is not a field of a message; give your own fields as "
                f"extra={{{name!r}: ...}}"
            )
    for name in extra or ():
        if name in _FIELDS or name in _NAMES_BY_ATTRIBUTE:
            raise TypeError(
                f"{name!r} is a field of every message; give it as a keyword, not in extra"
            )
    return {**fields, **extra} if extra else fields


def _as_mapping(message: Any) -> dict[str, Any]:
    if isinstance(message, Mapping):
        return dict(message)
    dump = getattr(message, "model_dump", None)
    if dump is None:
        raise InvalidInput(f"a message is a mapping or a Message, not a {type(message).__name__}")
    return dict(dump(by_alias=True, exclude_unset=True))


def _checked_value(key: str, value: Any) -> Any:
    """Return the value of a known field as it is written. Raises InvalidInput."""
    is_some_text = type(value) is str and value != ""
    if is_some_text and key in _IDS:
        return value
    if is_some_text and key == "from" and is_id(value):
        return value
    if key in _TIMES and isinstance(value, str):
        time = canonical_time(value)
        if time is not None:
            return time
    reason = problem_with(_FIELDS[key], value)
    if reason:
        raise InvalidInput(f"message.{key}: {reason}")
    if not isinstance(value, str):
        return value
    return _checked_text(key, value)


def _checked_text(key: str, value: str) -> str:
    """Return a text that has the right type, if it may be the value of this field."""
    if key in _IDS and not value:
        raise InvalidInput(f"message.{key}: is empty; leave it out")
    if key == "from" and not is_id(value):
        raise InvalidInput(
            f"message.from: {value[:60]!r} is not an agent id: letters, digits and . _ @ -, at most 128"
        )
    # A subclass of str, for example a member of an enum, is written as the text that it is.
    return value if type(value) is str else str.__str__(value)
