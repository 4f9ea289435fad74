"""Parse filters over the fields of messages: a mapping such as `{"confidence": {"$gte": 0.5}}`.

`parse` checks a mapping and returns a tree of `FilterGroup`s with `FieldCondition`s as leaves. The
engines translate the tree into their queries. docs/search.md lists the operators.

What must stay true: a filter that cannot be answered within bounds is refused here, whatever its
keys and values are. Each negated operator is the exact opposite of a positive one. The module does
not know where messages and their fields are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from reprlib import repr  # Of a large value it returns the beginning.
from sys import float_info
from typing import Any, Literal, NoReturn

from capsule.errors import InvalidInput
from capsule.format.facts import FIELDS, LONGEST_PATH, LONGEST_TEXT, MOST_PARTS, UNSEEN

#: The bounds of a filter: the levels of nested filters, and the number of comparisons.
MAX_DEPTH, MAX_CONDITIONS = 8, 100
#: The integers that the index can store.
_MIN_INTEGER, _MAX_INTEGER = -(1 << 63), (1 << 63) - 1

Scalar = str | float | bool | None


@dataclass(frozen=True, slots=True)
class FieldCondition:
    """One comparison with the values at a path.

    Attributes:
        path: The path of the field.
        operator: `$in $gt $gte $lt $lte $between $size $exists $empty $regex $text`; `$element`: a
            list has the value; `$piece`: a text that is in no list has this piece.
        value: A scalar; for `$in` a tuple of scalars of one kind, for `$between` of two texts or
            two numbers.
    """

    path: str
    operator: str
    value: Any


@dataclass(frozen=True, slots=True)
class FilterGroup:
    """Filters together. `not` has one part. An `and` without parts is true for every message."""

    kind: Literal["and", "or", "not"]
    parts: tuple[Filter, ...]


Filter = FieldCondition | FilterGroup


def parse(expression: object) -> Filter:
    """Return a checked filter. Raises InvalidInput if it can't be accepted."""
    parsed = _parse_mapping(expression, 1)
    if _count_conditions(parsed) > MAX_CONDITIONS:
        _refuse(f"it has more than {MAX_CONDITIONS} comparisons")
    return parsed


def _refuse(reason: str) -> NoReturn:
    raise InvalidInput(f"the filter can't be accepted: {reason}")


def _count_conditions(filter: Filter) -> int:
    if isinstance(filter, FieldCondition):
        return 1
    return max(1, sum(map(_count_conditions, filter.parts)))


def _negate(filter: Filter) -> Filter:
    return FilterGroup("not", (filter,))


def _parse_mapping(expression: object, depth: int) -> Filter:
    """Return the filter for a mapping of paths and groups at a depth, which begins with 1."""
    if not isinstance(expression, Mapping):
        _refuse(f'{repr(expression)} is not an object such as {{"confidence": {{"$gte": 0.5}}}}')
    _check_depth(depth)
    parts = [_parse_item(key, value, depth) for key, value in expression.items()]
    return FilterGroup("and", tuple(parts))


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        _refuse(f"it is more than {MAX_DEPTH} levels deep")


def _parse_item(key: object, value: object, depth: int) -> Filter:
    """Return the filter for one key of a mapping: a group, or a path and its operators."""
    if key in ("$and", "$or"):
        parts = [_parse_mapping(item, depth + 1) for item in _check_list(key, value)]
        return FilterGroup("and" if key == "$and" else "or", tuple(parts))
    if key == "$not":
        return _negate(_parse_mapping(value, depth + 1))
    path = _parse_path(key)
    if isinstance(value, Mapping):
        return _parse_operators(path, value, depth)
    return _parse_operators(path, {"$eq": value}, depth)


def _parse_path(key: object) -> str:
    """Return the path of a field. Keys of the metadata of a message lose their `metadata.`."""
    path = _check_text("a path", key)
    is_long = len(path) > LONGEST_PATH or path.count(".") >= MOST_PARTS
    if is_long or not path.removeprefix("metadata.") or path.startswith("$"):
        _refuse(f"{repr(path)} is not the path of a field, and not $and, $or or $not")
    if path.startswith("metadata."):
        return path.removeprefix("metadata.")
    if path.partition(".")[0] in UNSEEN:
        allowed = f"{', '.join(FIELDS)}, mentions, and the keys of metadata: metadata.KEY"
        _refuse(f"filters can't use {repr(path)}; they can use {allowed}")
    return path


def _parse_operators(path: str, operators: Mapping[Any, Any], depth: int) -> Filter:
    """Return the filter for one field."""
    if not operators:
        _refuse(f"{repr(path)} has no operator")
    _check_depth(depth)
    parts = [_parse_operator(path, name, value, depth) for name, value in operators.items()]
    return FilterGroup("and", tuple(parts))


_OPPOSITES = {"$ne": "$eq", "$nin": "$in", "$not_contains": "$contains"}


def _parse_operator(path: str, operator: object, value: object, depth: int) -> Filter:
    """Return the filter for one operator of a field."""
    match operator:
        case "$eq":
            return FieldCondition(path, "$in", (_check_scalar(operator, value),))
        case "$in":
            return _parse_in(path, _check_list(operator, value))
        case "$all":
            items = _check_list(operator, value)
            parts = [_parse_operator(path, "$eq", item, depth) for item in items]
            return FilterGroup("and", tuple(parts))
        case "$ne" | "$nin" | "$not_contains":
            return _negate(_parse_operator(path, _OPPOSITES[str(operator)], value, depth))
        case "$not" if isinstance(value, Mapping):
            return _negate(_parse_operators(path, value, depth + 1))
        case "$gt" | "$gte" | "$lt" | "$lte":
            limit = _check_scalar(operator, value)
            if kind_of(limit) in _ORDERED_KINDS:
                return FieldCondition(path, str(operator), limit)
        case "$between":
            ends = tuple(_check_scalar(operator, item) for item in _check_list(operator, value))
            if _are_ends(ends):
                return FieldCondition(path, "$between", ends)
        case "$contains":
            return _parse_contains(path, value)
        case "$size" if type(value) is int and 0 <= value <= _MAX_INTEGER:
            return FieldCondition(path, "$size", value)
        case "$exists" | "$null" | "$empty" if isinstance(value, bool):
            condition = FieldCondition(path, str(operator), True)
            if operator == "$null":
                condition = FieldCondition(path, "$in", (None,))
            return condition if value else _negate(condition)
        case "$regex" | "$text":
            text = _check_text(operator, value)
            if operator == "$regex":
                compile_pattern(text)
            return FieldCondition(path, str(operator), text)
    _refuse(
        f"{repr(path)}: {repr(operator)} does not accept {repr(value)}; the operators are: "
        f"{_OPERATORS}"
    )


def _parse_in(path: str, items: list[Any]) -> Filter:
    """Return the filter for `$in`: a condition for each kind of scalar in the list."""
    by_kind: dict[str, list[Scalar]] = {}
    for item in items:
        scalar = _check_scalar("$in", item)
        by_kind.setdefault(kind_of(scalar), []).append(scalar)
    parts = [FieldCondition(path, "$in", tuple(scalars)) for scalars in by_kind.values()]
    return FilterGroup("or", tuple(parts))


def _parse_contains(path: str, value: object) -> Filter:
    """Return the filter for `$contains`: an element of a list, or a piece of a text."""
    element = FieldCondition(path, "$element", _check_scalar("$contains", value))
    if not isinstance(value, str):
        return element
    return FilterGroup("or", (element, FieldCondition(path, "$piece", value)))


def _are_ends(ends: tuple[Scalar, ...]) -> bool:
    """Return whether these are two texts or two numbers."""
    if len(ends) != 2:
        return False
    kind = kind_of(ends[0])
    return kind == kind_of(ends[1]) and kind in _ORDERED_KINDS


_ORDERED_KINDS = ("number", "text")
_OPERATORS = (
    "$eq $ne $contains $not_contains (a text, a number, true, false or null), $in $nin $all (a "
    "list of them), "
    "$gt $gte $lt $lte (a number or a text), $between (two of them), $size (a whole number), "
    "$regex $text (a text), "
    "$exists $null $empty (true or false), $not (operators)"
)


# --- Values ---


def _check_list(operator: object, value: object) -> list[Any]:
    if not isinstance(value, list | tuple) or not value or len(value) > MAX_CONDITIONS:
        _refuse(f"{operator} takes a list of 1 to {MAX_CONDITIONS}, not {repr(value)}")
    return list(value)


def _check_text(operator: object, value: object) -> str:
    if (
        not isinstance(value, str)
        or len(value) > LONGEST_TEXT
        or any("\ud800" <= letter <= "\udfff" for letter in value)
    ):
        _refuse(f"{operator} takes a text of at most {LONGEST_TEXT} characters, not {repr(value)}")
    return value


def _check_scalar(operator: object, value: object) -> Scalar:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if not -float_info.max <= value <= float_info.max:
            _refuse(f"{operator}: a JSON number is between {-float_info.max} and {float_info.max}")
        is_storable = _MIN_INTEGER <= value <= _MAX_INTEGER
        return value if is_storable else float(value)  # As in the index.
    return _check_text(f"{operator} takes a number, true, false or null, or it", value)


def kind_of(value: Scalar) -> str:
    """Return the kind of a scalar. Values of two kinds are never equal."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"


@lru_cache(maxsize=32)
def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a text matches a regular expression somewhere.

    It uses Rust's engine, which takes time linear in the length of the text. Python's own may take
    years for thirty characters. Raises InvalidInput.
    """
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
    try:
        return SchemaValidator(schema).isinstance_python
    except SchemaError as error:
        # The message of the engine follows that of pydantic.
        reason = " ".join(str(error).split()).rpartition("rror: ")[2]
        raise InvalidInput(
            f"the filter can't be accepted: $regex {repr(pattern)}: {reason}"
        ) from error
