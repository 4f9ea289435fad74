"""What a value of a known field may be, and what is said when it is something else.

What must stay true: nothing here raises on any value that JSON can hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

from capsule import timestamps
from capsule.format.documents.servers import are_switches
from capsule.format.fields import Field
from capsule.format.json.codec import kind_of

_WHOLE = re.compile(rb"-?[0-9]+")


def canonical_time(text: str) -> str | None:
    """`text` as the format writes times; None when it is not a time in any ISO 8601 form."""
    return timestamps.sortable(text) or None


def has_zone(text: str) -> bool:
    """Whether a time says which zone it is of. Meant for texts that are times."""
    return (
        text.endswith(("Z", "z"))
        or re.search(r"[+-]\d\d(:?\d\d){0,2}(\.\d+)?$", text[10:]) is not None
    )


def fault(field: Field, value: Any, *, any_choice: bool = False) -> str:
    """What is wrong with `value`, as the decoder gave it, as the value of `field`, in words; empty
    when nothing is.

    `any_choice` accepts values of enumerations that this version does not know.
    """
    types, is_it, called = _KINDS[field.kind]
    if value is None:
        return "" if field.null else f"must be {called}, is null"
    if not isinstance(value, types) or (is_it and not is_it(value)):
        return f"must be {called}, is {kind_of(value)}{_first_wrong(field, value)}"
    if field.choices and not any_choice and value not in field.choices:
        return f"must be one of {', '.join(field.choices)}, is {_short(value)}"
    if field.kind == "time" and canonical_time(value) is None:
        return f"must be a time like 2025-01-12T10:30:00.000Z (ISO 8601), is {_short(value)}"
    return ""


def _is_whole(value: Any) -> bool:
    is_text = isinstance(value, orjson.Fragment)
    return (
        _WHOLE.fullmatch(orjson.dumps(value)) is not None
        if is_text
        else not isinstance(value, bool)
    )


def _list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(isinstance(item, kind) for item in value)


_are_texts, _are_objects = _list_of(str), _list_of(dict)


def _is_share(value: Any) -> bool:
    number = float(orjson.dumps(value)) if isinstance(value, orjson.Fragment) else value
    return type(number) in (int, float) and 0 <= number <= 1


def _are_mentions(value: Any) -> bool:
    """Whether an object has lists of names, and an object of the kinds of some, as far as it has
    these fields.
    """
    kinds = value.get("kinds", {})
    lists = all(_are_texts(value.get(name, [])) for name in ("valid", "invalid", "unknown"))
    return lists and isinstance(kinds, dict) and _are_texts(list(kinds.values()))


#: The types of the values of a kind, what else tells them, and what the kind is called.
_KINDS: dict[str, tuple[Any, Callable[[Any], bool] | None, str]] = {
    "text": (str, None, "a text"),
    "time": (str, None, "a time (a text like 2025-01-12T10:30:00.000Z)"),
    "whole": ((int, orjson.Fragment), _is_whole, "a whole number"),
    "share": ((int, float, orjson.Fragment), _is_share, "a number from 0 to 1"),
    "yes or no": (bool, None, "true or false"),
    "texts": (list, _are_texts, "a list of texts"),
    "object": (dict, None, "an object"),
    "objects": (list, _are_objects, "a list of objects"),
    "mentions": (
        dict,
        _are_mentions,
        "an object of valid, invalid and unknown, lists of texts, and kinds, an object of texts",
    ),
    "entries": (dict, lambda value: _are_objects([*value.values()]), "an object of objects"),
    "switches": (
        (dict, list),
        are_switches,
        'an object of names, each with {"enabled": true} or {"enabled": false}',
    ),
    "part": (dict, None, "an object"),
    "parts": (list, None, "a list of objects"),
    "members": (list, None, "a list of texts and objects"),
}


def _first_wrong(field: Field, value: Any) -> str:
    """Which item spoils a list, or an object of switches."""
    if field.kind == "switches" and isinstance(value, dict):
        return next(
            f" whose {_short(name)} is "
            + ("one without it" if isinstance(item, dict) else kind_of(item))
            for name, item in value.items()
            if not (isinstance(item, dict) and isinstance(item.get("enabled"), bool))
        )
    if field.kind not in {"texts", "objects"} or not isinstance(value, list):
        return ""
    wanted = str if field.kind == "texts" else dict
    at, item = next((at, item) for at, item in enumerate(value) if not isinstance(item, wanted))
    return f" whose item {at} is {kind_of(item)}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
