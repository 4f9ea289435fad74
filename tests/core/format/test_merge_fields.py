"""Merging two versions of an agent's or of a project's document, field by field."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.format.fields import DIRECTIONS, DISCOVERABLE, DM_POLICIES, PERMISSIONS
from capsule.format.json import codec
from capsule.format.merge.fields import merge_fields
from capsule.format.validation import AGENT, PROJECT

EARLY, LATE = "019b0000-0000-7000-8000-000000000001", "019b0000-0001-7000-8000-000000000000"
T1, T2, T3 = (f"2026-01-0{day}T00:00:00.000Z" for day in (1, 2, 3))


def at(place: int, message: str = EARLY) -> dict[str, Any]:
    return {"message": message, "at": place, "trail": {str(place - 1): "m"}}


_CURSOR = st.builds(at, st.integers(1, 4), st.sampled_from((EARLY, LATE))) | st.sampled_from(
    ("m1", None, {})
)
_PERMISSION = st.builds(dict, permission=st.sampled_from(PERMISSIONS), at=st.sampled_from((T1, T2)))
_LINK = st.builds(dict, direction=st.sampled_from(DIRECTIONS), enabled=st.booleans())
#: What a program writes.
_KNOWN = st.fixed_dictionaries(
    {"id": st.just("anna")},
    optional={
        "name": st.sampled_from("xyz"),
        "dmPolicy": st.sampled_from(DM_POLICIES),
        "discoverable": st.sampled_from(DISCOVERABLE),
        "dm": st.dictionaries(st.sampled_from("bc"), _PERMISSION),
        "links": st.dictionaries(st.sampled_from("bc"), _LINK),
        "reading": st.dictionaries(st.sampled_from("bc"), st.builds(dict, muted=st.booleans())),
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
    one, other = merge_fields(AGENT, base, a, b), merge_fields(AGENT, base, b, a)
    assert codec.encode(one.document) == codec.encode(other.document) and one == other
    assert (
        merge_fields(AGENT, base, a, a).document == merge_fields(AGENT, base, a, base).document == a
    )


@pytest.mark.slow
@given(st.none() | _KNOWN, st.lists(_KNOWN, min_size=3, max_size=3))
def test_three_clones_end_alike_whichever_two_merge_first(base: Any, sides: Any) -> None:
    ends = set()
    for one, two, three in itertools.permutations(sides):
        pair = merge_fields(AGENT, base, one, two).document
        ends.add(codec.encode(merge_fields(AGENT, base, pair, three).document))
    assert len(ends) == 1


def test_of_two_cursors_that_moved_the_further_is_taken_whole() -> None:
    for back, ahead in [
        (at(3), at(4)),
        (at(3, EARLY), at(3, LATE)),
        ("read", at(1)),
        (None, at(1)),
    ]:
        for base, sides in itertools.product(
            (None, "x", at(1, "m")), ((back, ahead), (ahead, back))
        ):
            was = None if base is None else {"id": "anna", "cursors": {"c": base}}
            mine, yours = (
                {"id": "anna", "cursors": {"c": one}, "n": n} for n, one in enumerate(sides)
            )
            assert merge_fields(AGENT, was, mine, yours).document["cursors"] == {"c": ahead}


def test_a_cursor_that_one_side_set_back_or_took_away_is_as_that_side_has_it() -> None:
    was, back = {"id": "anna", "cursors": {"c": at(9)}}, {"id": "anna", "cursors": {"c": at(2)}}
    gone, on = {"id": "anna", "cursors": {}}, {"id": "anna", "cursors": {"c": at(10)}}
    for side in (back, gone):
        assert (
            merge_fields(AGENT, was, side, was | {"lastSeen": T1}).document["cursors"]
            == side["cursors"]
        )
        assert merge_fields(AGENT, was, on, side).document["cursors"] == on["cursors"]


def test_the_later_sight_stands_and_the_fields_are_in_canonical_order() -> None:
    was = {"id": "anna", "lastSeen": T1, "cursors": {}}
    mine, yours = (
        {"x": 1, **was, "lastSeen": T3},
        {**was, "lastSeen": "2026-01-02", "updatedAt": T2},
    )
    merged = merge_fields(AGENT, was, mine, yours)
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
    merged = merge_fields(AGENT, base, ours, theirs)
    assert merged.document == {
        "id": "anna",
        "name": "Anna",
        "profile": {"a": 4, "b": 5},
        "cursors": {"c": EARLY},
        "x": {"kept": True},
    }
    assert [(one.field, one.values, one.kept) for one in merged.conflicts] == [
        ("profile.a", ((3, None), (4, None)), 4)
    ]


_ALLOW, _BLOCK, _OUT, _BOTH = (
    {"permission": "allow"},
    {"permission": "block"},
    {"direction": "out"},
    {"direction": "both"},
)
_ENDED = _BOTH | {"enabled": False}


@pytest.mark.parametrize(
    ("field", "base", "one", "other", "after"),
    [
        ("dmPolicy", "open", "restricted", "closed", "closed"),
        ("dmPolicy", "closed", "open", "restricted", "restricted"),
        ("dmPolicy", "closed", "closed", "open", "open"),
        ("discoverable", "private", "public", "project", "project"),
        ("dm", {}, {"b": _ALLOW}, {"b": _BLOCK}, {"b": _BLOCK}),
        ("dm", {"b": _ALLOW}, {}, {"b": _ALLOW | {"reason": "x"}}, {}),
        ("dm", {"b": _BLOCK}, {}, {"b": _BLOCK | {"reason": "x"}}, {"b": _BLOCK | {"reason": "x"}}),
        ("dm", {"b": _BLOCK}, {"b": _ALLOW}, {"b": _BLOCK, "c": _ALLOW}, {"b": _ALLOW, "c": _ALLOW}),
        ("links", {}, {"p": _BOTH}, {"p": _OUT}, {"p": _OUT}),
        ("links", {"p": _OUT}, {"p": _BOTH}, {"p": _ENDED}, {"p": _ENDED}),
        ("links", {"p": _OUT}, {"p": _BOTH}, {}, {}),
        ("requests", {}, {"b": {"at": T1}}, {"b": {"at": T2}}, {"b": {"at": T2}}),
        ("reading", {}, {"c": {"muted": True}}, {"c": {"notify": "none"}}, {"c": {"muted": True, "notify": "none"}}),
        ("concerns", {"m": {"readAt": T1}}, {"m": {"readAt": T1, "doneAt": T2}}, {"m": {"readAt": T3}},
         {"m": {"readAt": T3, "doneAt": T2}}),
    ],
)  # fmt: skip
def test_where_both_clones_changed_what_is_granted_the_lesser_stands(
    field: str, base: Any, one: Any, other: Any, after: Any
) -> None:
    kind = PROJECT if field == "links" else AGENT
    was, mine, yours = ({"id": "x", field: value} for value in (base, one, other))
    for sides in ((mine, yours), (yours, mine)):
        merged = merge_fields(kind, was, *sides)
        assert merged.document == {"id": "x", field: after}
        assert not merged.conflicts


def test_two_projects_of_one_agent_are_a_conflict() -> None:
    was, mine, yours = ({"id": "anna", "project": f"{name}-123456"} for name in "abc")
    merged = merge_fields(AGENT, was, mine, yours)
    assert [(one.field, one.kept) for one in merged.conflicts] == [("project", "c-123456")]
