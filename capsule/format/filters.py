"""Filters over the fields of messages: a checked tree made of a mapping such as `{"confidence": {"$gte": 0.5}}`.

What must stay true: what can't be answered within bounds is refused here, whatever its keys and values are; each
operator that denies is the exact opposite of one that affirms. Where messages and their fields lie is not known here.

    a field          "topic": "api"       the same as {"$eq": "api"}. "release.name" is the name in an object
    a comparison     $eq $ne $in $nin; with a text or a number also $gt $gte $lt $lte $between
    a list           $contains $not_contains (in a text: a piece of it) $all $size
    what is there    $exists $null $empty, each true or false
    a text           $regex (Rust's syntax, found anywhere) $text (has all the words, as a search compares words)
    together         $and $or (lists of filters) $not; of one field: {"$not": {"$gt": 5}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from math import isfinite
from sys import float_info
from typing import Any, Literal, NoReturn

from capsule.errors import InvalidInput

#: How deep filters may lie in each other, how many comparisons there may be, and how many parts a path may have.
DEEPEST, MOST_TESTS, MOST_PARTS = 8, 100, 16
#: The longest path, and the longest text in a filter; in characters.
LONGEST_PATH, LONGEST_TEXT = 200, 1000
_GREATEST = float_info.max

Scalar = str | float | bool | None


@dataclass(frozen=True, slots=True)
class Test:
    """One comparison with the values at a path.

    Attributes:
        operator: `$eq $gt $gte $lt $lte $between $size $exists $empty $regex $text`; `$element`: a list has the value;
            `$piece`: a text that is in no list has this piece.
        value: A scalar; for `$between` two texts or two numbers.
    """

    path: str
    operator: str
    value: Any


@dataclass(frozen=True, slots=True)
class Group:
    """Filters together; `not` has one part. `and` of nothing holds for every message."""

    kind: Literal["and", "or", "not"]
    parts: tuple[Filter, ...]


Filter = Test | Group


def parse(where: object) -> Filter:
    """Check a filter. Raises InvalidInput if it can't be accepted."""
    parsed = _parsed(where, 1)
    if _size(parsed) > MOST_TESTS:
        _refuse(f"it has more than {MOST_TESTS} comparisons")
    return parsed


def _refuse(why: str) -> NoReturn:
    raise InvalidInput(f"the filter can't be accepted: {why}")


def _size(filter: Filter) -> int:
    return 1 if isinstance(filter, Test) else sum(map(_size, filter.parts))


def _not(filter: Filter) -> Filter:
    return Group("not", (filter,))


def _parsed(where: object, depth: int) -> Filter:
    if not isinstance(where, Mapping):
        _refuse(f'{where!r:.80} is no object such as {{"confidence": {{"$gte": 0.5}}}}')
    if depth > DEEPEST:
        _refuse(f"it is more than {DEEPEST} levels deep")
    return Group("and", tuple(_part(key, value, depth) for key, value in where.items()))


def _part(key: object, value: object, depth: int) -> Filter:
    if key == "$and":
        return Group("and", tuple(_parsed(one, depth + 1) for one in _listed(key, value)))
    if key == "$or":
        return Group("or", tuple(_parsed(one, depth + 1) for one in _listed(key, value)))
    if key == "$not":
        return _not(_parsed(value, depth + 1))
    path = _text("a path", key)
    if not path or path.startswith("$") or len(path) > LONGEST_PATH or path.count(".") >= MOST_PARTS:
        _refuse(f"{path!r:.80} is no path of a field, and none of $and, $or, $not")
    return _tests(path, value, depth)


def _tests(path: str, value: object, depth: int) -> Filter:
    """The filter for one field."""
    if not isinstance(value, Mapping):
        return _equal("$eq", path, value)
    if not value or depth > DEEPEST:
        _refuse(f"{path!r} has no operator" if not value else f"it is more than {DEEPEST} levels deep")
    return Group("and", tuple(_test(path, operator, given, depth) for operator, given in value.items()))


def _test(path: str, operator: object, value: object, depth: int) -> Filter:
    if operator == "$not":
        return _not(_tests(path, value if isinstance(value, Mapping) else {}, depth + 1))
    make = _OPERATORS.get(operator) if isinstance(operator, str) else None
    if make is None:
        _refuse(f"{operator!r:.80} is no operator; there are: {', '.join(_OPERATORS)}, $not")
    return make(path, value)


# -- Values -----------------------------------------------------------------------------------------------------------


def _listed(operator: object, value: object) -> list[Any]:
    if not isinstance(value, list | tuple) or not value or len(value) > MOST_TESTS:
        _refuse(f"{operator} takes a list of 1 to {MOST_TESTS}, not {value!r:.80}")
    return list(value)


def _text(operator: object, value: object) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or any("\ud800" <= one <= "\udfff" for one in value):
        _refuse(f"{operator} takes a text of at most {LONGEST_TEXT} characters, not {value!r:.80}")
    return value


def _scalar(operator: object, value: object) -> Scalar:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value.bit_length() < 64:
        return value
    if isinstance(value, int | float):
        if (isinstance(value, float) and not isfinite(value)) or value > _GREATEST or value < -_GREATEST:
            _refuse(f"{operator}: no number of JSON is so large")
        return float(value)
    return _text(f"{operator} takes a number, true, false or null, or it", value)


# -- Operators --------------------------------------------------------------------------------------------------------


def _equal(operator: str, path: str, value: object) -> Test:
    return Test(path, operator, _scalar(operator, value))


def _ordered(operator: str, path: str, value: object) -> Test:
    scalar = _scalar(operator, value)
    if scalar is None or isinstance(scalar, bool):
        _refuse(f"{operator} compares with a number or a text, not with {value!r}")
    return Test(path, operator, scalar)


def _between(path: str, value: object) -> Filter:
    ends = tuple(_ordered("$between", path, one).value for one in _listed("$between", value))
    if len(ends) != 2 or isinstance(ends[0], str) != isinstance(ends[1], str):
        _refuse(f"$between takes two numbers or two texts, not {value!r:.80}")
    return Test(path, "$between", ends)


def _contains(path: str, value: object) -> Filter:
    element = _equal("$element", path, value)
    return Group("or", (element, Test(path, "$piece", value))) if isinstance(value, str) else element


def _each(kind: Literal["and", "or"], operator: str, path: str, value: object) -> Filter:
    return Group(kind, tuple(_equal("$eq", path, one) for one in _listed(operator, value)))


def _whether(make: Callable[[str], Filter], operator: str, path: str, value: object) -> Filter:
    if not isinstance(value, bool):
        _refuse(f"{operator} takes true or false, not {value!r:.80}")
    return make(path) if value else _not(make(path))


def _sized(path: str, value: object) -> Filter:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        _refuse(f"$size takes a number of elements, not {value!r:.80}")
    return Test(path, "$size", value)


def _matching(path: str, value: object) -> Filter:
    pattern = _text("$regex", value)
    compiled(pattern)
    return Test(path, "$regex", pattern)


def _worded(path: str, value: object) -> Filter:
    return Test(path, "$text", _text("$text", value))


@lru_cache(maxsize=32)
def compiled(pattern: str) -> Callable[[str], bool]:
    """A function that says whether a text has what a pattern describes, in time linear in its length.

    It is Rust's engine, as Python's own may take years for thirty characters. Raises InvalidInput.
    """
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python
    except SchemaError as error:
        why = " ".join(str(error).split())
        raise InvalidInput(f"the filter can't be accepted: $regex {pattern!r:.80}: {why[-200:]}") from error


_OPERATORS: dict[str, Callable[[str, object], Filter]] = {
    "$eq": partial(_equal, "$eq"),
    "$ne": lambda path, value: _not(_equal("$eq", path, value)),
    **{operator: partial(_ordered, operator) for operator in ("$gt", "$gte", "$lt", "$lte")},
    "$in": partial(_each, "or", "$in"),
    "$nin": lambda path, value: _not(_each("or", "$nin", path, value)),
    "$between": _between,
    "$contains": _contains,
    "$not_contains": lambda path, value: _not(_contains(path, value)),
    "$all": partial(_each, "and", "$all"),
    "$size": _sized,
    "$exists": partial(_whether, lambda path: Test(path, "$exists", True), "$exists"),
    "$null": partial(_whether, lambda path: Test(path, "$eq", None), "$null"),
    "$empty": partial(_whether, lambda path: Test(path, "$empty", True), "$empty"),
    "$regex": _matching,
    "$text": _worded,
}
