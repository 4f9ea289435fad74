"""Merging three versions of a value: the change of one side is taken, and objects are merged key by
key.

What must stay true: no result depends on the order of the sides; the caller is told of each value
that both changed differently; and values are compared by their JSON, because in Python `1`, `1.0`
and `true` are equal. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import orjson

#: Stands for a field that isn't there.
ABSENT: Any = type("Absent", (), {"__repr__": lambda _: "ABSENT", "__slots__": ()})()

#: Where both sides changed a value differently, and to what: ours, theirs. Returns what stands.
Clash = Callable[[tuple[str, ...], Any, Any], Any]
#: Merges one field of an object: its name, then the base's value, ours and theirs.
Each = Callable[[str, Any, Any, Any], Any]
#: Makes one value of the base's, ours and theirs.
Rule = Callable[[Any, Any, Any], Any]


def encode_value(value: Any) -> bytes:
    """What tells one value from another. Where no rule decides, the greater stands; an absent field
    is least.
    """
    return b"" if value is ABSENT else orjson.dumps(value)


def sorted_bytes(value: Any) -> bytes:
    """What equal values have in common, whatever the order of their keys; numbers count by their
    digits.
    """
    return b"" if value is ABSENT else orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def same(left: Any, right: Any) -> bool:
    """Whether two values are written alike."""
    return left is right or encode_value(left) == encode_value(right)


def flat_head(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a head by their full names, those of `metadata` one by one."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        is_nested = name == "metadata" and isinstance(value, dict)
        flat |= (
            {f"metadata.{inner}": field for inner, field in value.items()}
            if is_nested
            else {name: value}
        )
    return flat


def three_way(base: Any, ours: Any, theirs: Any, both: Callable[[], Any]) -> Any:
    """The value of the side that changed it; where both did, and differently, what `both` gives."""
    if same(ours, theirs) or same(theirs, base):
        return ours
    return theirs if same(ours, base) else both()


def by_rank(rank: Callable[[Any], Any]) -> Rule:
    """The value that changed; where both did, the one of the higher rank."""

    def rule(base: Any, ours: Any, theirs: Any) -> Any:
        return three_way(
            base,
            ours,
            theirs,
            lambda: max(ours, theirs, key=lambda value: (rank(value), encode_value(value))),
        )

    return rule


def merge_value(
    base: Any, ours: Any, theirs: Any, clash: Clash, where: tuple[str, ...] = ()
) -> Any:
    """One value out of three; ABSENT is a value too. Objects on both sides are merged key by key.

    `clash` is asked where both changed it differently, with the path, which begins with `where`.
    """

    def both() -> Any:
        if not (isinstance(ours, dict) and isinstance(theirs, dict)):
            return clash(where, ours, theirs)
        return merge_object(
            base,
            ours,
            theirs,
            lambda key, was, mine, yours: merge_value(was, mine, yours, clash, (*where, key)),
        )

    return three_way(base, ours, theirs, both)


def merge_object(
    base: Any,
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    each: Each,
    known: Collection[str] = (),
) -> dict[str, Any]:
    """One object out of three, field by field with `each`. A base that is no object counts as
    empty.

    The fields in `known` get their place by the format. The others keep the order of the side that
    changed it, and are sorted where both did.
    """
    base = base if isinstance(base, Mapping) else {}
    was, mine, yours = ([key for key in side if key not in known] for side in (base, ours, theirs))
    order = yours if mine in (yours, was) else mine if yours == was else sorted({*mine, *yours})
    result = {}
    for key in (*order, *sorted({*ours, *theirs} - {*order})):
        value = each(key, base.get(key, ABSENT), ours.get(key, ABSENT), theirs.get(key, ABSENT))
        if value is not ABSENT:
            result[key] = value
    return result


def take_greater(where: tuple[str, ...], ours: Any, theirs: Any) -> Any:
    """The `Clash` that leaves no conflict: the value whose JSON sorts last stands."""
    return max(ours, theirs, key=encode_value)


def merge_set(
    base: Any,
    ours: Any,
    theirs: Any,
    key: Callable[[Any], Any] = encode_value,
    clash: Clash = take_greater,
) -> Any:
    """A list in which the order means little: the additions and the removals of both sides.

    What was in the base keeps its order; what is new is sorted behind it. `key` says by what an
    item is known again, and `clash` is asked about an item, or a field of one, that both changed
    differently.
    """

    def both() -> list[Any]:
        lists = (side if isinstance(side, list) else () for side in (base, ours, theirs))
        was, mine, yours = ({key(item): item for item in side} for side in lists)
        order = [*was, *sorted({*mine, *yours} - {*was})]
        items = (
            merge_value(was.get(id, ABSENT), mine.get(id, ABSENT), yours.get(id, ABSENT), clash)
            for id in order
        )
        return [item for item in items if item is not ABSENT]

    return three_way(base, ours, theirs, both)
