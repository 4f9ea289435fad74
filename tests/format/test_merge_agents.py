"""Merging two versions of an agent's document, field by field."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from capsule.format import codec
from capsule.format.merge.agents import merge_agents

EARLY, LATE = "019b0000-0000-7000-8000-000000000001", "019b0000-0001-7000-8000-000000000000"
T1, T2, T3 = (f"2026-01-0{day}T00:00:00.000Z" for day in (1, 2, 3))


def at(place: int, message: str = EARLY) -> dict[str, Any]:
    return {"message": message, "at": place, "trail": {str(place - 1): "m"}}


_CURSOR = st.builds(at, st.integers(1, 4), st.sampled_from((EARLY, LATE))) | st.sampled_from(("m1", None, {}))
#: What a program writes.
_KNOWN = st.fixed_dictionaries(
    {"id": st.just("anna")},
    optional={
        "name": st.sampled_from("xyz"),
        "cursors": st.dictionaries(st.sampled_from(("c1", "c2")), _CURSOR),
        "updatedAt": st.sampled_from((T1, T2)),
        "lastSeen": st.sampled_from((T1, T2, T3)),
    },
)


_AGENT = st.tuples(_KNOWN, st.dictionaries(st.sampled_from("pq"), st.integers(0, 3))).map(
    lambda drawn: drawn[0] | ({"profile": drawn[1]} if drawn[1] else {})
)


@given(_AGENT, _AGENT, _AGENT)
def test_the_laws_of_merging_hold(base: Any, a: Any, b: Any) -> None:
    one, other = merge_agents(base, a, b), merge_agents(base, b, a)
    assert codec.encode(one.document) == codec.encode(other.document) and one == other
    assert merge_agents(base, a, a).document == merge_agents(base, a, base).document == a


@given(st.none() | _KNOWN, st.lists(_KNOWN, min_size=3, max_size=3))
def test_three_clones_end_alike_whichever_two_merge_first(base: Any, sides: Any) -> None:
    ends = set()
    for one, two, three in itertools.permutations(sides):
        pair = merge_agents(base, one, two).document
        ends.add(codec.encode(merge_agents(base, pair, three).document))
    assert len(ends) == 1


def test_of_two_cursors_that_moved_the_further_is_taken_whole() -> None:
    for back, ahead in [(at(3), at(4)), (at(3, EARLY), at(3, LATE)), ("read", at(1)), (None, at(1))]:
        for base, sides in itertools.product((None, "x", at(1, "m")), ((back, ahead), (ahead, back))):
            was = None if base is None else {"id": "anna", "cursors": {"c": base}}
            mine, yours = ({"id": "anna", "cursors": {"c": one}, "n": n} for n, one in enumerate(sides))
            assert merge_agents(was, mine, yours).document["cursors"] == {"c": ahead}


def test_a_cursor_that_one_side_set_back_or_took_away_is_as_that_side_has_it() -> None:
    was, back = {"id": "anna", "cursors": {"c": at(9)}}, {"id": "anna", "cursors": {"c": at(2)}}
    gone, on = {"id": "anna", "cursors": {}}, {"id": "anna", "cursors": {"c": at(10)}}
    for side in (back, gone):
        assert merge_agents(was, side, was | {"lastSeen": T1}).document["cursors"] == side["cursors"]
        assert merge_agents(was, on, side).document["cursors"] == on["cursors"]


def test_the_later_sight_stands_and_the_fields_are_in_canonical_order() -> None:
    was = {"id": "anna", "lastSeen": T1, "cursors": {}}
    mine, yours = {"x": 1, **was, "lastSeen": T3}, {**was, "lastSeen": "2026-01-02", "updatedAt": T2}
    merged = merge_agents(was, mine, yours)
    assert list(merged.document.items()) == [
        ("id", "anna"),
        ("updatedAt", T2),
        ("lastSeen", T3),
        ("cursors", {}),
        ("x", 1),
    ]
    assert not merged.conflicts


def test_fields_of_both_sides_combine_and_conflicts_are_reported() -> None:
    base = {"id": "anna", "name": "Anna", "profile": {"a": 1, "b": 2}, "cursors": {}}
    ours = {**base, "profile": {"a": 3, "b": 2}, "x": {"kept": True}}
    theirs = {**base, "profile": {"a": 4, "b": 5}, "cursors": {"c": EARLY}}
    merged = merge_agents(base, ours, theirs)
    assert merged.document == {
        "id": "anna",
        "name": "Anna",
        "profile": {"a": 4, "b": 5},
        "cursors": {"c": EARLY},
        "x": {"kept": True},
    }
    assert [(one.field, one.values, one.kept) for one in merged.conflicts] == [("profile.a", (3, 4), 4)]
