"""What a filter means, said once more and as simply as can be: by looking at each message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from operator import ge, gt, le, lt
from typing import Any

ORDERS: dict[str, Callable[[Any, Any], bool]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}
FIELDS = ("topic", "thread", "confidence", "intent", "priority", "model")


def here(value: Any, listed: bool) -> Iterator[tuple[Any, bool]]:
    """A value with what is in it at the same path; and whether it stands in a list."""
    yield value, listed
    for one in value if isinstance(value, list) else ():
        yield from here(one, True)


def below(value: Any, path: str, listed: bool = False) -> Iterator[tuple[Any, bool]]:
    if isinstance(value, list):
        for one in value:
            yield from below(one, path, True)
    for key, one in value.items() if isinstance(value, dict) else ():
        if key == path:
            yield from here(one, listed)
        elif path.startswith(f"{key}."):
            yield from below(one, path[len(key) + 1 :], listed)


def values_at(entry: dict[str, Any], path: str) -> list[tuple[Any, bool]]:
    fields = {name: entry[name] for name in FIELDS if name in entry}
    mentions = entry.get("mentions", {})
    valid = {"mentions": mentions["valid"]} if "valid" in mentions else {}
    path = path.removeprefix("metadata.")
    return [
        value for each in (fields, valid, entry.get("metadata", {})) for value in below(each, path)
    ]


def kind(value: Any) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


def compares(operator: str, value: Any, given: Any, listed: bool) -> bool:
    """Whether one value passes one operator that affirms."""
    alike = kind(value) == kind(given)
    match operator:
        case "$eq":
            return alike and value == given and not isinstance(value, list | dict)
        case "$gt" | "$gte" | "$lt" | "$lte":
            return alike and ORDERS[operator](value, given)
        case "$between":
            return kind(value) == kind(given[0]) and given[0] <= value <= given[1]
        case "$in":
            return any(compares("$eq", value, one, listed) for one in given)
        case "$contains":
            equals = compares("$eq", value, given, listed)
            return (
                equals
                if listed
                else isinstance(value, str) and isinstance(given, str) and given in value
            )
        case "$size":
            return isinstance(value, list) and not listed and len(value) == given
        case "$null":
            return value is None
        case "$empty":
            return not listed and value in (None, "", [], {}) and value is not False and value != 0
        case "$regex":
            return isinstance(value, str) and re.search(given, value) is not None
        case "$text":
            return isinstance(value, str) and set(given.lower().split()) <= set(
                value.lower().split()
            )
    return True  # $exists


OPPOSITE = {"$ne": "$eq", "$nin": "$in", "$not_contains": "$contains"}


def passes(entry: dict[str, Any], path: str, operator: str, given: Any) -> bool:
    if operator in OPPOSITE:
        return not passes(entry, path, OPPOSITE[operator], given)
    if operator == "$not":
        return not all(passes(entry, path, *one) for one in given.items())
    if operator == "$all":
        return all(passes(entry, path, "$eq", one) for one in given)
    if operator in ("$exists", "$null", "$empty") and not given:
        return not passes(entry, path, operator, True)
    one_of = {"$eq": [given], "$in": given}.get(operator, ())
    if path == "thread" and entry.get("id", object()) in one_of:
        return True  # The message that began a thread is in it.
    return any(compares(operator, value, given, listed) for value, listed in values_at(entry, path))


def fits(entry: dict[str, Any], where: dict[str, Any]) -> bool:
    """Whether a message fits a filter."""
    for key, given in where.items():
        if key in ("$and", "$or"):
            fit = (all if key == "$and" else any)(fits(entry, one) for one in given)
        elif key == "$not":
            fit = not fits(entry, given)
        else:
            operators = given if isinstance(given, dict) else {"$eq": given}
            fit = all(passes(entry, key, *one) for one in operators.items())
        if not fit:
            return False
    return True
