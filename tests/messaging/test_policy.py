"""The rule of who may do what: every type, every relation, every action."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from capsule.errors import NotFound, Refused
from capsule.format.documents.members import Member
from capsule.rules.consent import AgentProfile, PolicyInputs
from capsule.rules.policy import (
    Action,
    PolicyTarget,
    Relation,
    decide,
    raise_if_denied,
    readable_from,
    relation,
)

JOINED, LEFT = "2025-01-02T00:00:00.000Z", "2025-01-03T00:00:00.000Z"
SUBJECTS: dict[Relation, str | None] = {
    "owner": None,
    "member": "anna",
    "left": "carl",
    "stranger": "eve",
}
DIRECT = PolicyTarget("direct_anna_bob", "direct", (Member("anna"), Member("bob")))
GROUP = PolicyTarget(
    "team", "group", (Member("anna", JOINED), Member("bob"), Member("carl", JOINED, LEFT))
)
STATE = PolicyInputs({id: AgentProfile(id) for id in ("anna", "bob", "carl", "eve")})
TAKES_PART = {"find", "read", "append", "edit", "create", "message", "change"}
THE_OWNERS = {"moderate", "rewrite", "delete", "lock"}
#: What each may do; who is not named may do nothing.
MAY: dict[str, dict[Relation, set[str]]] = {
    "direct": {"owner": TAKES_PART | THE_OWNERS, "member": TAKES_PART},
    "group": {
        "owner": TAKES_PART | THE_OWNERS | {"rename", "add", "leave", "archive", "remove"},
        "member": TAKES_PART | {"rename", "add", "leave"},
    },
}


@pytest.mark.parametrize(
    ("object", "who"),
    [
        (object, who)
        for object in (DIRECT, GROUP)
        for who in get_args(Relation)
        if (object, who) != (DIRECT, "left")
    ],
    ids=lambda value: getattr(value, "type", value),
)
@pytest.mark.parametrize("action", sorted({*get_args(Action)} - {"link"}))
def test_in_a_closed_conversation_everybody_may_do_what_the_table_says(
    object: PolicyTarget, who: Relation, action: Action
) -> None:
    decision = decide(SUBJECTS[who], action, object, STATE)
    assert relation(SUBJECTS[who], object) == who
    assert decision.allowed == (action in MAY[object.type].get(who, set()))
    assert bool(decision.reason) != decision.allowed


@pytest.mark.parametrize("type", ["chat", "channel", "direct", "group"])
@pytest.mark.parametrize("subject", [None, "anna"])
def test_a_conversation_without_participants_is_open_but_for_what_others_wrote(
    type: str, subject: str | None
) -> None:
    denied = {
        action
        for action in get_args(Action)
        if not decide(subject, action, PolicyTarget("plan", type)).allowed
    }
    several = set() if type == "chat" else {"lock"}
    assert denied == (set() if subject is None else {"moderate", "link"} | several)


@pytest.mark.parametrize("type", ["chat", "channel"])
def test_a_chat_and_a_channel_of_no_name_are_open_whoever_they_name(type: str) -> None:
    assert all(
        decide("eve", action, PolicyTarget("plan", type, (Member("anna"),))).allowed
        for action in TAKES_PART
    )


def test_only_a_person_links_projects_and_an_agents_policies_are_its_own() -> None:
    assert decide(None, "link", PolicyTarget("api", "project")).allowed
    assert not decide("anna", "link", PolicyTarget("api", "project")).allowed
    anna = PolicyTarget("anna", "agent")
    assert [
        decide(subject, "manage", anna, STATE).allowed for subject in (None, "anna", "bob")
    ] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("action", "object", "is_within"),
    [
        ("append", GROUP, True),
        ("change", GROUP, True),
        ("add", GROUP, False),
        ("read", DIRECT, True),
        ("append", DIRECT, False),
        ("create", PolicyTarget("plan"), False),
        ("create", PolicyTarget("mine", "group", (Member("anna"),)), True),
        ("manage", PolicyTarget("anna", "agent"), False),
    ],
)
def test_in_a_session_an_agent_writes_to_its_destinations_and_where_it_is_alone(
    action: Action, object: PolicyTarget, is_within: bool
) -> None:
    assert decide("anna", action, object, STATE).allowed
    assert (
        decide("anna", action, object, replace(STATE, session_targets=frozenset({"team"}))).allowed
        == is_within
    )


def test_a_direct_has_the_two_in_its_id_whoever_else_is_written_into_it() -> None:
    third = PolicyTarget(
        "direct_anna_bob", "direct", (Member("anna"), Member("bob"), Member("eve"))
    )
    assert not decide("eve", "read", third).allowed
    assert decide(
        "bob",
        "read",
        PolicyTarget("direct_anna_bob", "direct", (Member("anna"), Member("bob", JOINED, LEFT))),
    ).allowed
    assert decide(
        "bob", "read", PolicyTarget("plan", "direct", (Member("anna"), Member("bob")))
    ).allowed


@pytest.mark.parametrize("subject", [None, "anna"])
@pytest.mark.parametrize("action", ["create", "message"])
def test_nobody_begins_a_direct_with_oneself_or_with_three(
    subject: str | None, action: Action
) -> None:
    assert not decide(
        subject, action, PolicyTarget("direct_anna_anna", "direct", (Member("anna"),))
    ).allowed
    three = (Member("anna"), Member("bob"), Member("carl"))
    assert not decide(subject, action, PolicyTarget("plan", "direct", three)).allowed


def test_who_was_added_again_reads_from_then_on_and_others_from_where_they_joined() -> None:
    group = PolicyTarget(
        "team", "group", (Member("anna"), Member("bob", JOINED), Member("carl", LEFT))
    )
    assert [readable_from(agent, group) for agent in (None, "anna", "bob", "carl")] == [
        "",
        "",
        JOINED,
        LEFT,
    ]
    assert readable_from("bob", PolicyTarget("team", "group", group.members, history="all")) == ""
    assert (
        readable_from(
            "bob",
            PolicyTarget("direct_anna_bob", "direct", (Member("anna"), Member("bob", JOINED))),
        )
        == ""
    )


def test_a_refusal_says_what_and_where_and_who_is_not_in_it_is_told_of_nothing() -> None:
    with pytest.raises(Refused) as refused:
        raise_if_denied(decide("anna", "archive", GROUP), GROUP.id)
    assert refused.value.fields["id"] == "team"
    assert all(word in refused.value.message for word in ("archive", "team"))
    for agent, action in product(
        ("carl", "eve"), {*get_args(Action)} - {"create", "message", "link"}
    ):
        with pytest.raises(NotFound) as missing:
            raise_if_denied(decide(agent, action, GROUP), GROUP.id)
        assert missing.value.message == "no conversation team"
