"""Merging two versions of an agent's document: a read cursor never goes back."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from capsule.format import codec
from capsule.format.merge.agents import merge_agents

EARLY, LATE = "019b0000-0000-7000-8000-000000000001", "019b0000-0001-7000-8000-000000000000"
_TIME = st.sampled_from(("2020-01-01T00:00:00Z", "2030-01-01"))
_CURSOR = st.sampled_from((EARLY, LATE, "m1")) | st.fixed_dictionaries(
    {"message": st.sampled_from((EARLY, LATE)), "at": _TIME}
)
_AGENT = st.fixed_dictionaries(
    {"id": st.just("anna")},
    optional={
        "name": st.sampled_from("xyz"),
        "profile": st.dictionaries(st.sampled_from("pq"), st.integers(0, 3)),
        "cursors": st.dictionaries(st.sampled_from(("c1", "c2")), _CURSOR),
        "updatedAt": st.sampled_from(("2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z")),
    },
)


@given(_AGENT, _AGENT, _AGENT)
def test_the_laws_of_merging_hold(base: Any, a: Any, b: Any) -> None:
    one, other = merge_agents(base, a, b), merge_agents(base, b, a)
    assert codec.encode(one.document) == codec.encode(other.document) and one == other
    assert merge_agents(base, a, a).document == merge_agents(base, a, base).document == a


def test_the_further_cursor_is_taken() -> None:
    for back, ahead in [
        (EARLY, LATE),
        ({"message": LATE, "at": "2020-01-01T00:00:00Z"}, {"message": EARLY, "at": "2021-01-01T00:00:00Z"}),
        ("a", "b"),
        (EARLY, {"message": LATE}),
    ]:
        for base, (ours, theirs) in itertools.product((None, back, ahead, "x"), ((back, ahead), (ahead, back))):
            was = None if base is None else {"id": "anna", "cursors": {"c": base}}
            mine, yours = ({"id": "anna", "cursors": {"c": one}, "n": n} for n, one in enumerate((ours, theirs)))
            assert merge_agents(was, mine, yours).document["cursors"] == {"c": ahead}


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
