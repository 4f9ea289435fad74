"""The canonical order of keys."""

from __future__ import annotations

import random
from typing import Any

from capsule.format.fields import PARTS
from capsule.format.json import codec
from capsule.format.json.canonical import in_order, order_message


def full() -> dict[str, Any]:
    """A document with every known field, and two unknown ones in each part."""

    def part(name: str) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for field in PARTS[name]:
            inside = f"{name}.{field.name}" if name else field.name
            made[field.name] = (
                part(inside)
                if field.kind == "part"
                else [part(inside)]
                if field.kind in ("parts", "members")
                else field.name
            )
        history = made.pop("history", None) if name == "" else None
        made |= {"zebra": 1, "ape": {"b": 1, "a": 2}}
        return made | {"history": history} if history else made

    return part("")


def shuffled(value: Any, dice: random.Random) -> Any:
    if isinstance(value, list):
        return [shuffled(item, dice) for item in value]
    if not isinstance(value, dict) or set(value) == {"a", "b"}:
        return value
    known = [key for key in value if key not in {"zebra", "ape"}]
    dice.shuffle(known)
    for unknown in ("zebra", "ape"):
        after = known.index("zebra") + 1 if unknown == "ape" else 0
        known.insert(dice.randint(after, len(known)), unknown)
    return {key: shuffled(value[key], dice) for key in known}


def test_any_order_of_the_known_fields_becomes_the_canonical_one() -> None:
    for seed in range(20):
        mixed = shuffled(full(), random.Random(seed))
        before = codec.encode(mixed)
        assert codec.encode(in_order(mixed)) == codec.encode(full())
        assert codec.encode(mixed) == before


def test_history_is_last_and_unknown_fields_stand_before_it() -> None:
    ordered = in_order({"history": [], "new": 1, "id": "x", "also": 2, "title": ""})
    assert list(ordered) == ["id", "title", "new", "also", "history"]


def test_a_message_is_ordered_into_a_new_dict() -> None:
    message = {"x": 1, "id": "m", "content": "c", "role": "user", "a": 2}
    assert list(order_message(message)) == ["role", "content", "id", "x", "a"]
    assert next(iter(message)) == "x"


def test_values_of_another_shape_stay_where_they_are() -> None:
    for document in [{}, {"metadata": 1, "history": 2, "context": []}, {"history": [1, None, {}]}]:
        assert in_order(document) == document
