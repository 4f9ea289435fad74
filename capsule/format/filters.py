"""Filters over the fields of messages: a checked tree made of a mapping such as `{"confidence":
{"$gte": 0.5}}`.

What must stay true: what can't be answered within bounds is refused here, whatever its keys and
values are; each operator that denies is the exact opposite of one that affirms. docs/search.md says
what the operators mean. Where messages and their fields lie is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from reprlib import repr  # Of a large value, its beginning.
from sys import float_info
from typing import Any, Literal, NoReturn

from capsule.errors import InvalidInput
from capsule.format.facts import FIELDS, LONGEST_PATH, LONGEST_TEXT, MOST_PARTS, UNSEEN

#: How deep filters may lie in each other, and how many comparisons there may be.
MAX_DEPTH, MAX_CONDITIONS = 8, 100

Scalar = str | float | bool | None


@dataclass(frozen=True, slots=True)
class FieldCondition:
    """One comparison with the values at a path.

    Attributes:
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
    """Filters together; `not` has one part. `and` of nothing holds for every message."""

    kind: Literal["and", "or", "not"]
    parts: tuple[Filter, ...]


Filter = FieldCondition | FilterGroup


def parse(where: object) -> Filter:
    """Check a filter. Raises InvalidInput if it can't be accepted."""
    parsed = _parsed(where, 1)
    if _size(parsed) > MAX_CONDITIONS:
        _refuse(f"it has more than {MAX_CONDITIONS} comparisons")
    return parsed


def _refuse(why: str) -> NoReturn:
    raise InvalidInput(f"the filter can't be accepted: {why}")


def _size(filter: Filter) -> int:
    return 1 if isinstance(filter, FieldCondition) else max(1, sum(map(_size, filter.parts)))


def _not(filter: Filter) -> Filter:
    return FilterGroup("not", (filter,))


def _parsed(where: object, depth: int) -> Filter:
    if not isinstance(where, Mapping):
        _refuse(f'{repr(where)} is not an object such as {{"confidence": {{"$gte": 0.5}}}}')
    if depth > MAX_DEPTH:
        _refuse(f"it is more than {MAX_DEPTH} levels deep")
    return FilterGroup("and", tuple(_part(key, value, depth) for key, value in where.items()))


def _part(key: object, value: object, depth: int) -> Filter:
    if key in ("$and", "$or"):
        parts = tuple(_parsed(item, depth + 1) for item in _listed(key, value))
        return FilterGroup("and" if key == "$and" else "or", parts)
    if key == "$not":
        return _not(_parsed(value, depth + 1))
    path = _text("a path", key)
    is_long = len(path) > LONGEST_PATH or path.count(".") >= MOST_PARTS
    if is_long or not path.removeprefix("metadata.") or path.startswith("$"):
        _refuse(f"{repr(path)} is not the path of a field, and not $and, $or or $not")
    if path.startswith("metadata."):
        path = path.removeprefix("metadata.")
    elif path.partition(".")[0] in UNSEEN:
        seen = f"{', '.join(FIELDS)}, mentions, and the keys of metadata: metadata.KEY"
        _refuse(f"filters can't use {repr(path)}; they can use {seen}")
    return _tests(path, value if isinstance(value, Mapping) else {"$eq": value}, depth)


def _tests(path: str, operators: Mapping[Any, Any], depth: int) -> Filter:
    """The filter for one field."""
    if not operators or depth > MAX_DEPTH:
        _refuse(
            f"{repr(path)} has no operator"
            if not operators
            else f"it is more than {MAX_DEPTH} levels deep"
        )
    return FilterGroup(
        "and", tuple(_test(path, operator, value, depth) for operator, value in operators.items())
    )


_OPPOSITES = {"$ne": "$eq", "$nin": "$in", "$not_contains": "$contains"}


def _test(path: str, operator: object, value: object, depth: int) -> Filter:
    match operator:
        case "$eq":
            return FieldCondition(path, "$in", (_scalar(operator, value),))
        case "$in":
            scalars = [_scalar(operator, item) for item in _listed(operator, value)]
            kinds = dict.fromkeys(map(kind_of, scalars))
            by_kind = [tuple(item for item in scalars if kind_of(item) == kind) for kind in kinds]
            return FilterGroup("or", tuple(FieldCondition(path, "$in", some) for some in by_kind))
        case "$all":
            return FilterGroup(
                "and", tuple(_test(path, "$eq", item, depth) for item in _listed(operator, value))
            )
        case "$ne" | "$nin" | "$not_contains":
            return _not(_test(path, _OPPOSITES[str(operator)], value, depth))
        case "$not" if isinstance(value, Mapping):
            return _not(_tests(path, value, depth + 1))
        case "$gt" | "$gte" | "$lt" | "$lte" if (
            kind_of(given := _scalar(operator, value)) in _ORDERED
        ):
            return FieldCondition(path, str(operator), given)
        case "$between":
            ends = tuple(_scalar(operator, item) for item in _listed(operator, value))
            if (
                len(ends) == 2
                and (kind := kind_of(ends[0])) == kind_of(ends[1])
                and kind in _ORDERED
            ):
                return FieldCondition(path, "$between", ends)
        case "$contains":
            element = FieldCondition(path, "$element", _scalar(operator, value))
            return (
                FilterGroup("or", (element, FieldCondition(path, "$piece", value)))
                if isinstance(value, str)
                else element
            )
        case "$size" if type(value) is int and 0 <= value < 1 << 63:
            return FieldCondition(path, "$size", value)
        case "$exists" | "$null" | "$empty" if isinstance(value, bool):
            test = (
                FieldCondition(path, "$in", (None,))
                if operator == "$null"
                else FieldCondition(path, str(operator), True)
            )
            return test if value else _not(test)
        case "$regex" | "$text":
            text = _text(operator, value)
            if operator == "$regex":
                compile_pattern(text)
            return FieldCondition(path, str(operator), text)
    _refuse(
        f"{repr(path)}: {repr(operator)} does not accept {repr(value)}; the operators are: "
        f"{_OPERATORS}"
    )


_ORDERED = ("number", "text")
_OPERATORS = (
    "$eq $ne $contains $not_contains (a text, a number, true, false or null), $in $nin $all (a "
    "list of them), "
    "$gt $gte $lt $lte (a number or a text), $between (two of them), $size (a whole number), "
    "$regex $text (a text), "
    "$exists $null $empty (true or false), $not (operators)"
)


# -- Values ----------------------------------------------------------------------------------------


def _listed(operator: object, value: object) -> list[Any]:
    if not isinstance(value, list | tuple) or not value or len(value) > MAX_CONDITIONS:
        _refuse(f"{operator} takes a list of 1 to {MAX_CONDITIONS}, not {repr(value)}")
    return list(value)


def _text(operator: object, value: object) -> str:
    if (
        not isinstance(value, str)
        or len(value) > LONGEST_TEXT
        or any("\ud800" <= item <= "\udfff" for item in value)
    ):
        _refuse(f"{operator} takes a text of at most {LONGEST_TEXT} characters, not {repr(value)}")
    return value


def _scalar(operator: object, value: object) -> Scalar:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and -float_info.max <= value <= float_info.max:
        return value if -(1 << 63) <= value < 1 << 63 else float(value)  # As the index has it.
    if isinstance(value, int | float):
        _refuse(f"{operator}: a JSON number is between {-float_info.max} and {float_info.max}")
    return _text(f"{operator} takes a number, true, false or null, or it", value)


def kind_of(value: Scalar) -> str:
    """The kind of a value: values of two kinds are never equal."""
    if value is None:
        return "null"
    return "boolean" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"


@lru_cache(maxsize=32)
def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """A function that says whether a text has what a pattern describes, in time linear in its
    length.

    It is Rust's engine, as Python's own may take years for thirty characters. Raises InvalidInput.
    """
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        return SchemaValidator(
            core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
        ).isinstance_python
    except SchemaError as error:
        why = " ".join(str(error).split()).rpartition("rror: ")[
            2
        ]  # Behind what pydantic says of itself.
        raise InvalidInput(
            f"the filter can't be accepted: $regex {repr(pattern)}: {why}"
        ) from error
