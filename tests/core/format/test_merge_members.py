"""Merging who takes part in a conversation: the laws, and what stands."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from capsule.format.documents.members import members_in
from capsule.format.json import codec
from capsule.format.merge.merge import merge
from tests.core.format.replicas import Document, begun, operations, worked_on

_SELF = st.sampled_from(("self", "zoe"))
_ID, _TIME = (
    st.sampled_from("ab"),
    st.sampled_from([f"2026-01-0{day}T00:00:00.000Z" for day in (1, 2, 3)]),
)
_OBJECT = st.fixed_dictionaries(
    {"id": _ID},
    optional={
        "joinedAt": _TIME,
        "leftAt": _TIME | st.none(),
        "can": _ID,
        "canSend": st.booleans(),
        "invitedBy": _SELF,
    },
)
#: What hands write: texts, objects, times in any order, an id twice.
_ANY = st.none() | st.lists(_ID | _OBJECT, max_size=3)
_ONE_EACH = st.none() | st.lists(
    _ID | _OBJECT, max_size=3, unique_by=lambda item: item if isinstance(item, str) else item["id"]
)


def group(value: Any) -> Document:
    document = begun("group", 1)
    document["metadata"] |= {} if value is None else {"participants": value}
    return document


def merged(*versions: Any) -> Any:
    return merge(*map(group, versions)).document["metadata"].get("participants")


@given(_ANY, _ANY, _ANY)
def test_the_laws_of_merging_hold(base: Any, a: Any, b: Any) -> None:
    assert codec.encode({"": merged(base, a, b)}) == codec.encode({"": merged(base, b, a)})
    assert merged(base, a, a) == merged(base, a, base) == merged(base, base, a) == a


@given(_ONE_EACH, st.lists(_ONE_EACH, min_size=3, max_size=3))
def test_three_clones_end_alike_whichever_two_merge_first(base: Any, sides: Any) -> None:
    ends = {
        codec.encode({"": merged(base, merged(base, a, b), c)})
        for a, b, c in itertools.permutations(sides)
    }
    assert len(ends) == 1


_DONE = operations("join", "leave", most=5, back=False)


@given(_DONE, st.tuples(_DONE, _DONE))
def test_who_takes_part_after_a_merge_did_the_later_of_joining_and_leaving(
    before: Any, done: Any
) -> None:
    base = worked_on(begun("group", 1), before, "o", 20)
    clocks = (100, 500)  # The second clone does everything later.
    one, other = (
        worked_on(base, each, who, clock)
        for each, who, clock in zip(done, "ab", clocks, strict=True)
    )
    was, mine, yours = (
        {m.id: m for m in members_in(side["metadata"].get("participants"))}
        for side in (base, one, other)
    )
    for member in members_in(merge(base, one, other).document["metadata"].get("participants")):
        changed = (
            yours.get(member.id)
            if yours.get(member.id) != was.get(member.id)
            else mine.get(member.id)
        )
        assert changed is not None
        assert member.is_in == changed.is_in


def test_participants_are_merged_by_id_and_of_leaving_and_joining_the_later_counts() -> None:
    first, then, second = (f"2026-01-0{day}T10:00:00.000Z" for day in (1, 2, 3))
    anna, gone = (
        {"id": "anna", "joinedAt": first},
        {"id": "anna", "joinedAt": first, "leftAt": then},
    )
    for base, ours, theirs, after in [
        (["anna"], ["anna", "bob"], ["anna", "carl"], ["anna", "bob", "carl"]),
        (["anna", "bob"], ["bob"], ["anna", "bob", "carl"], ["bob", "carl"]),
        (None, ["anna"], [anna], [anna]),
        (None, [anna], [{"id": "anna", "joinedAt": second}], [{"id": "anna", "joinedAt": second}]),
        (["anna"], [gone], [], [gone]),
        (["anna"], [anna | {"can": "read"}], [gone], [gone | {"can": "read"}]),
        ([anna], [gone], [anna | {"joinedAt": second}], [gone | {"joinedAt": second}]),
        (
            [anna],
            [anna | {"canSend": False}],
            [anna | {"canSend": True}],
            [anna | {"canSend": False}],
        ),
        ([anna | {"canManage": False}], [anna | {"canManage": True}], [anna], [anna]),
        (
            [],
            [anna | {"invitedBy": "zoe"}],
            [anna | {"invitedBy": "self"}],
            [anna | {"invitedBy": "self"}],
        ),
        (
            [anna],
            [gone | {"optedOutAt": then}],
            [anna | {"canManage": True}],
            [gone | {"optedOutAt": then, "canManage": True}],
        ),
        (
            [gone],
            [gone | {"x": 1}],
            [anna | {"joinedAt": second}],
            [anna | {"joinedAt": second, "x": 1}],
        ),
    ]:
        assert merged(base, ours, theirs) == after
        assert not merge(*map(group, (base, ours, theirs))).conflicts
    assert members_in([gone | {"joinedAt": second}])[0].is_in


def test_of_two_accesses_of_a_channel_the_closer_one_stands_until_a_person_decides() -> None:
    for one, other, kept in [("open", "members", "members"), ("private", "members", "private")]:
        versions = [group(None) for _ in range(3)]
        for version, access in zip(
            versions, ("open" if one != "open" else "private", one, other), strict=True
        ):
            version["metadata"] |= {"type": "channel", "channel": {"name": "a", "access": access}}
        for sides in (versions, [versions[0], versions[2], versions[1]]):
            result = merge(*sides)
            assert result.document["metadata"]["channel"] == {"name": "a", "access": kept}
            assert [conflict.field for conflict in result.conflicts] == ["metadata.channel.access"]
