"""Merge three versions of a value: the change of one side is taken, and objects are merged by key.

The three versions are the base, which is the common ancestor, and the two sides, ours and theirs.
`ABSENT` is the value of a field that a version does not have. `three_way` takes the value of the
side that changed it. If both did, its argument `merge_both_changed` decides.

What must stay true: no result depends on the order of the sides. The caller's `ConflictHandler` gets
each value that both sides changed differently. Values are compared by their JSON, because in Python
`1`, `1.0` and `true` are equal. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import orjson

#: The value of a field that is not there.
ABSENT: Any = type("Absent", (), {"__repr__": lambda _: "ABSENT", "__slots__": ()})()

#: Decides where both sides changed a value differently: from its path, ours and theirs.
ConflictHandler = Callable[[tuple[str, ...], Any, Any], Any]
#: Merges a field of an object: from its name, the base's value, ours and theirs.
FieldMerger = Callable[[str, Any, Any, Any], Any]
#: Merges a value: from the base's, ours and theirs.
MergeRule = Callable[[Any, Any, Any], Any]


def encode_value(value: Any) -> bytes:
    """Return the JSON of a value, by which values are compared. An absent one is least."""
    return b"" if value is ABSENT else orjson.dumps(value)


def sorted_bytes(value: Any) -> bytes:
    """Return the same JSON for values that differ only in the order of keys."""
    return b"" if value is ABSENT else orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def same(a: Any, b: Any) -> bool:
    """Return whether two values have the same JSON."""
    return a is b or encode_value(a) == encode_value(b)


def flat_head(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a head by their full names: those of `metadata` as `metadata.tags`."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if name == "metadata" and isinstance(value, dict):
            for metadata_name, field in value.items():
                flat[f"metadata.{metadata_name}"] = field
        else:
            flat[name] = value
    return flat


def three_way(base: Any, ours: Any, theirs: Any, merge_both_changed: Callable[[], Any]) -> Any:
    """Return the value of the side that changed it.

    If both changed it, and differently, return the result of `merge_both_changed`.
    """
    if same(ours, theirs) or same(theirs, base):
        return ours
    if same(ours, base):
        return theirs
    return merge_both_changed()


def by_rank(rank: Callable[[Any], Any]) -> MergeRule:
    """Return the rule that takes the changed value; if both changed it, that of the higher rank."""

    def full_rank(value: Any) -> tuple[Any, bytes]:
        return rank(value), encode_value(value)

    def rule(base: Any, ours: Any, theirs: Any) -> Any:
        return three_way(base, ours, theirs, lambda: max(ours, theirs, key=full_rank))

    return rule


def merge_value(
    base: Any,
    ours: Any,
    theirs: Any,
    handle_conflict: ConflictHandler,
    json_path: tuple[str, ...] = (),
) -> Any:
    """Return one value from three. Objects on both sides are merged key by key.

    Args:
        base, ours, theirs: The versions. `ABSENT` is a value, too.
        handle_conflict: Decides about each value that both sides changed differently.
        json_path: The path of the value, for `handle_conflict`.
    """

    def merge_key(name: str, base_value: Any, our_value: Any, their_value: Any) -> Any:
        return merge_value(base_value, our_value, their_value, handle_conflict, (*json_path, name))

    def merge_both_changed() -> Any:
        if isinstance(ours, dict) and isinstance(theirs, dict):
            return merge_object(base, ours, theirs, merge_key)
        return handle_conflict(json_path, ours, theirs)

    return three_way(base, ours, theirs, merge_both_changed)


def merge_object(
    base: Any,
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    merge_field: FieldMerger,
    known_names: Collection[str] = (),
) -> dict[str, Any]:
    """Return one object from three, merged field by field.

    Args:
        base, ours, theirs: The versions. A base that is no object counts as empty.
        merge_field: Merges each field.
        known_names: Fields that get their place from the format later. The others keep the order of
            the side that changed it, and are sorted if both did.
    """
    base_fields = base if isinstance(base, Mapping) else {}
    base_order = [name for name in base_fields if name not in known_names]
    our_order = [name for name in ours if name not in known_names]
    their_order = [name for name in theirs if name not in known_names]
    if our_order in (their_order, base_order):
        order = their_order
    elif their_order == base_order:
        order = our_order
    else:
        order = sorted({*our_order, *their_order})
    result = {}
    for name in (*order, *sorted({*ours, *theirs} - {*order})):
        value = merge_field(
            name,
            base_fields.get(name, ABSENT),
            ours.get(name, ABSENT),
            theirs.get(name, ABSENT),
        )
        if value is not ABSENT:
            result[name] = value
    return result


def take_greater(json_path: tuple[str, ...], ours: Any, theirs: Any) -> Any:
    """Return the value whose JSON sorts last: the `ConflictHandler` that leaves no conflict."""
    return max(ours, theirs, key=encode_value)


def merge_set(
    base: Any,
    ours: Any,
    theirs: Any,
    key: Callable[[Any], Any] = encode_value,
    handle_conflict: ConflictHandler = take_greater,
) -> Any:
    """Return a list with the additions and removals of both sides.

    Items of the base keep their order. New items follow, sorted.

    Args:
        base, ours, theirs: The versions. A value that is no list counts as empty.
        key: Returns what identifies an item.
        handle_conflict: Decides about an item, or a field of one, that both changed differently.
    """

    def items_by_key(side: Any) -> dict[Any, Any]:
        if not isinstance(side, list):
            return {}
        return {key(item): item for item in side}

    def merge_both_changed() -> list[Any]:
        base_items = items_by_key(base)
        our_items = items_by_key(ours)
        their_items = items_by_key(theirs)
        new_keys = sorted({*our_items, *their_items} - {*base_items})
        items = []
        for item_key in (*base_items, *new_keys):
            item = merge_value(
                base_items.get(item_key, ABSENT),
                our_items.get(item_key, ABSENT),
                their_items.get(item_key, ABSENT),
                handle_conflict,
            )
            if item is not ABSENT:
                items.append(item)
        return items

    return three_way(base, ours, theirs, merge_both_changed)
