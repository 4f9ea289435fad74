"""Who takes part in a conversation: reading `participants`, joining and leaving."""

from __future__ import annotations

from typing import Any

import pytest

from capsule.format.documents.creation import new_capsule
from capsule.format.documents.head import Head, ParsedHead
from capsule.format.documents.members import (
    Member,
    are_members,
    as_json,
    members_in,
    with_joined,
    with_left,
)
from capsule.format.json import codec
from capsule.format.validation import CONVERSATION

T1, T2, T3 = (f"2026-01-0{day}T00:00:00.000Z" for day in (1, 2, 3))


def test_a_text_is_a_member_since_ever_and_an_object_says_when() -> None:
    value = [
        "anna",
        {"id": "bob", "joinedAt": "2026-01-02T01:00:00+01:00"},
        {"id": "carl", "leftAt": T3},
    ]
    assert members_in(value) == (Member("anna"), Member("bob", T2), Member("carl", left_at=T3))
    assert [member.is_in for member in members_in(value)] == [True, True, False]
    assert as_json(members_in(value)) == [
        "anna",
        {"id": "bob", "joinedAt": T2},
        {"id": "carl", "leftAt": T3},
    ]


def test_what_is_no_member_is_passed_over() -> None:
    for value in (None, "anna", [1, None, {"id": 2}, {"id": "x", "leftAt": 5}, {}]):
        assert members_in(value) == ()
        assert not are_members(value)


def test_of_leaving_and_joining_the_later_counts() -> None:
    for times, member in [
        ((T2, T1), Member("a", T2)),
        ((T1, T2), Member("a", T1, T2)),
        ((T1, T1), Member("a", T1, T1)),
    ]:
        assert members_in([{"id": "a", "joinedAt": times[0], "leftAt": times[1]}]) == (member,)
        assert member.is_in == (times == (T2, T1))
    assert members_in(["a", {"id": "a", "leftAt": T1}]) == (Member("a", "", T1),)


def test_a_member_has_its_origin_and_its_rights_and_is_written_as_it_was() -> None:
    items: list[Any] = [
        {
            "id": "a",
            "joinedAt": T2,
            "invitedBy": "anna",
            "source": "manual",
            "canSend": False,
            "canManage": True,
        },
        {"id": "b", "joinedAt": T1, "leftAt": T2, "optedOutAt": T2, "invitedBy": "self"},
        {"id": "c", "source": "default", "canInvite": None},
    ]
    a, b, c = members_in(items)
    assert a == Member("a", T2, invited_by="anna", source="manual", can_send=False, can_manage=True)
    assert (b.opted_out_at, b.is_in) == (T2, False)
    assert [member.is_invited for member in (a, b, c, Member("d"))] == [True, False, False, True]
    assert as_json((a, b, c)) == [*items[:2], {"id": "c", "source": "default"}]
    assert members_in([{"id": "b", "joinedAt": T3, "leftAt": T2, "optedOutAt": T2}]) == (
        Member("b", T3),
    )
    assert not are_members([{"id": "a", "canSend": "no"}])


def test_of_two_items_of_one_agent_the_later_times_stand_and_what_grants_less() -> None:
    invited = {
        "id": "a",
        "joinedAt": T1,
        "invitedBy": "zoe",
        "source": "manual",
        "canSend": True,
        "canManage": True,
    }
    alone = {"id": "a", "joinedAt": T2, "invitedBy": "self", "source": "default", "canSend": False}
    member = Member("a", T2, invited_by="self", source="default", can_send=False)
    assert members_in([invited, alone]) == members_in([alone, invited]) == (member,)
    gone = {"id": "a", "leftAt": T3, "optedOutAt": T3}
    assert members_in([invited, gone])[0].opted_out_at == T3


def test_joining_and_leaving_change_one_item_and_keep_the_rest() -> None:
    value: list[Any] = ["anna", {"id": "bob", "joinedAt": T1, "can": ["read"]}]
    gone = with_left(value, ["bob", "nobody"], T2)
    assert gone == ["anna", {"id": "bob", "joinedAt": T1, "can": ["read"], "leftAt": T2}]
    assert with_left(gone, ["bob"], T3) == gone
    assert with_joined(gone, ["carl", "bob", "anna"], T3) == [
        "anna",
        {"id": "bob", "joinedAt": T3, "can": ["read"]},
        {"id": "carl", "joinedAt": T3},
    ]
    assert with_left(["anna"], ["anna"], T1) == [{"id": "anna", "leftAt": T1}]
    assert value == ["anna", {"id": "bob", "joinedAt": T1, "can": ["read"]}]
    assert with_joined(None, ["anna"], T1) == [{"id": "anna", "joinedAt": T1}]


def test_who_joins_or_leaves_gets_more_fields_and_coming_back_ends_an_opt_out() -> None:
    value: list[Any] = with_joined(["anna"], ["bob"], T1, invitedBy="anna", canSend=None)
    assert value == ["anna", {"id": "bob", "invitedBy": "anna", "joinedAt": T1}]
    gone = with_left([*value, {"id": "carl", "note": None}], ["bob", "carl"], T2, optedOutAt=T2)
    assert gone[2] == {"id": "carl", "note": None, "optedOutAt": T2, "leftAt": T2}
    assert with_joined(gone, ["bob"], T3)[1] == value[1] | {"joinedAt": T3}


def test_a_head_has_the_members_and_the_history_and_shows_neither_when_there_is_none() -> None:
    value = ["anna", {"id": "bob", "joinedAt": T2, "leftAt": T3}, {"id": "carl", "joinedAt": T1}]
    document = new_capsule(
        "c", "", T1, type="group", metadata={"participants": value, "history": "all"}
    )
    head = Head.of(document, "c.json", 1)
    assert head is not None
    assert head.participants == (Member("anna"), Member("bob", T2, T3), Member("carl", T1))
    assert (head.as_json()["participants"], head.as_json()["history"]) == (value, "all")
    parsed = ParsedHead("", document)
    assert (parsed.participants, parsed.last_joined) == (head.participants, T2)
    plain = Head.of(new_capsule("c", "", T1), "c.json", 1)
    assert plain is not None
    assert not {"participants", "history"} & set(plain.as_json())
    assert ParsedHead("", {}).last_joined == ""


@pytest.mark.parametrize(
    ("item", "where"),
    [(1, "[1]"), ({"id": "b", "leftAt": "soon"}, "[1].leftAt"), ({"joinedAt": None}, "[1].id")],
)
def test_a_wrong_participant_has_its_place(item: Any, where: str) -> None:
    document = new_capsule("c", "", T1, metadata={"participants": ["anna", item]})
    (problem,) = CONVERSATION.problems_of(codec.encode(document), "x")
    assert problem.where == f"metadata.participants{where}"
    assert problem.line > 0
    is_headless = Head.of(document, "x", 1) is None
    assert is_headless == (where != "[1].leftAt")


def test_whom_somebody_took_out_comes_back_without_the_rights_it_had_and_who_left_comes_back_with_them() -> (
    None
):
    rights = {"canManage": True, "canSend": False}
    there = [{"id": "anna", "joinedAt": T1, **rights}]
    assert with_joined(with_left(there, ["anna"], T2), ["anna"], T3) == [
        {"id": "anna", "joinedAt": T3, "canSend": False}
    ]
    assert with_joined(with_left(there, ["anna"], T2), ["anna"], T3, canManage=True) == [
        {"id": "anna", "joinedAt": T3, **rights}
    ]
    by_itself = with_left(there, ["anna"], T2, optedOutAt=T2)
    assert with_joined(by_itself, ["anna"], T3) == [{"id": "anna", "joinedAt": T3, **rights}]
