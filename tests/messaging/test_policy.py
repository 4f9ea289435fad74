"""The rule of who may do what: every type, every relation, every action."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from capsule.errors import Refused
from capsule.format.members import Member
from capsule.messaging.policy import RULES, Action, Object, Relation, actions_in, ensure, may, relation, seen_from

JOINED, LEFT = "2025-01-02T00:00:00.000Z", "2025-01-03T00:00:00.000Z"
SUBJECTS: dict[Relation, str | None] = {"owner": None, "member": "anna", "left": "carl", "stranger": "eve"}
DIRECT = Object("direct_anna_bob", "direct", (Member("anna"), Member("bob")))
GROUP = Object("team", "group", (Member("anna", JOINED), Member("bob"), Member("carl", JOINED, LEFT)))
EVERYTHING = set(get_args(Action))
TAKES_PART = {"read", "append", "edit", "create", "message", "change"}
#: What each may do; who is not named may do nothing.
MAY: dict[str, dict[Relation, set[str]]] = {
    "direct": {"owner": TAKES_PART | {"rewrite", "delete"}, "member": TAKES_PART},
    "group": {"owner": EVERYTHING, "member": TAKES_PART | {"rename", "add", "leave"}},
}


@pytest.mark.parametrize(
    ("object", "who"),
    [(object, who) for object in (DIRECT, GROUP) for who in get_args(Relation) if (object, who) != (DIRECT, "left")],
    ids=lambda value: getattr(value, "type", value),
)
@pytest.mark.parametrize("action", get_args(Action))
def test_in_a_closed_conversation_everybody_may_do_what_the_table_says(
    object: Object, who: Relation, action: Action
) -> None:
    decision = may(SUBJECTS[who], action, object)
    assert relation(SUBJECTS[who], object) == who
    assert decision.allowed == (action in MAY[object.type].get(who, set()))
    assert bool(decision.reason) != decision.allowed


@pytest.mark.parametrize("type", ["chat", "channel", "direct", "group"])
@pytest.mark.parametrize("subject", [None, "anna"])
@pytest.mark.parametrize("action", get_args(Action))
def test_a_conversation_without_participants_is_open_to_everybody(
    type: str, subject: str | None, action: Action
) -> None:
    assert may(subject, action, Object("plan", type)).allowed


@pytest.mark.parametrize("type", ["chat", "channel"])
def test_a_chat_and_a_channel_are_open_whoever_they_name(type: str) -> None:
    assert all(may("eve", action, Object("plan", type, (Member("anna"),))).allowed for action in get_args(Action))


def test_every_action_of_every_closed_type_has_a_rule() -> None:
    assert {type: set(rules) for type, rules in RULES.items()} == {"direct": EVERYTHING, "group": EVERYTHING}


def test_a_direct_has_the_two_in_its_id_whoever_else_is_written_into_it() -> None:
    third = Object("direct_anna_bob", "direct", (Member("anna"), Member("bob"), Member("eve")))
    assert not may("eve", "read", third).allowed
    assert may(
        "bob", "read", Object("direct_anna_bob", "direct", (Member("anna"), Member("bob", JOINED, LEFT)))
    ).allowed
    assert may("bob", "read", Object("plan", "direct", (Member("anna"), Member("bob")))).allowed


@pytest.mark.parametrize("subject", [None, "anna"])
@pytest.mark.parametrize("action", ["create", "message"])
def test_nobody_begins_a_direct_with_oneself_or_with_three(subject: str | None, action: Action) -> None:
    assert not may(subject, action, Object("direct_anna_anna", "direct", (Member("anna"),))).allowed
    three = (Member("anna"), Member("bob"), Member("carl"))
    assert not may(subject, action, Object("plan", "direct", three)).allowed


def test_who_was_added_again_reads_from_then_on_and_others_from_where_they_joined() -> None:
    group = Object("team", "group", (Member("anna"), Member("bob", JOINED), Member("carl", LEFT)))
    assert [seen_from(agent, group) for agent in (None, "anna", "bob", "carl")] == ["", "", JOINED, LEFT]
    assert seen_from("bob", Object("team", "group", group.members, history="all")) == ""
    assert seen_from("bob", Object("direct_anna_bob", "direct", (Member("anna"), Member("bob", JOINED)))) == ""


def test_a_refusal_says_who_and_where_and_what_could_be_done() -> None:
    with pytest.raises(Refused) as refused:
        ensure(may("carl", "append", GROUP), GROUP.id)
    assert refused.value.fields["id"] == "team"
    assert all(word in refused.value.message for word in ("carl", "left", "team", "add carl"))


def document(*participants: Any, title: str = "Team", said: Any = None, **metadata: Any) -> dict[str, Any]:
    about = {"type": "group", "participants": list(participants), "lock": {}, **metadata}
    return {"id": "team", "title": title, "metadata": about} | ({} if said is None else {"history": said})


BEFORE = document("anna", "bob")
SAID = [{"content": "one", "from": "anna", "id": "1"}, {"content": "two", "from": "bob", "id": "2"}]


@pytest.mark.parametrize(
    ("after", "actions"),
    [
        (document("anna", "bob"), set()),
        (document("anna", "bob", lock={"active": True}), set()),
        (document("anna", "bob", title="Crew", titleSetBy="user"), {"rename"}),
        (document("anna", "bob", tags=["red"], pinned=True), {"change"}),
        (document("anna", "bob", archived=True), {"archive"}),
        (document("anna", "bob", {"id": "carl", "joinedAt": JOINED}), {"add"}),
        (document({"id": "anna", "leftAt": LEFT}, "bob"), {"leave"}),
        (document("anna", {"id": "bob", "leftAt": LEFT}), {"remove"}),
        (document("anna"), {"remove"}),
        (document("anna", {"id": "bob", "joinedAt": JOINED}), {"rewrite"}),
        (document("anna", "bob", history="all"), {"rewrite"}),
        (document("anna", "bob", type="chat"), {"rewrite"}),
        (document("anna", "bob", currentNode="m1"), {"rewrite"}),
    ],
)
def test_the_changed_fields_of_a_head_say_which_actions_a_write_is(after: dict[str, Any], actions: set[str]) -> None:
    assert actions_in("anna", BEFORE, after) == actions


def test_the_last_one_who_leaves_archives_a_group_and_the_first_one_added_brings_it_back() -> None:
    one, none = document("anna"), document({"id": "anna", "leftAt": LEFT}, archived=True)
    assert actions_in("anna", one, none) == {"leave"}
    assert actions_in(None, none, document("anna")) == {"add"}


@pytest.mark.parametrize(
    ("history", "actions"),
    [
        (SAID, set()),
        ([SAID[0] | {"content": "One"}, SAID[1]], {"edit"}),
        ([SAID[1], SAID[0]], {"rewrite"}),
        ([SAID[1]], {"edit"}),
        ([SAID[0]], {"rewrite"}),
        ([SAID[0], SAID[1] | {"content": "Two"}], {"rewrite"}),
        ([*SAID, {"content": "three", "from": "bob", "id": "3"}], {"rewrite"}),
        ([SAID[0] | {"from": "bob"}, SAID[1]], {"rewrite"}),
    ],
)
def test_only_ones_own_messages_are_edited(history: list[dict[str, Any]], actions: set[str]) -> None:
    before = document("anna", "bob", said=SAID)
    assert actions_in("anna", before, document("anna", "bob", said=history)) == actions


def test_the_title_that_an_edit_makes_by_rule_is_no_renaming() -> None:
    before, history = document("anna", said=SAID[:1]), [{"content": "One", "from": "anna"}]
    assert actions_in("anna", before, document("anna", title="One", titleSetBy="auto", said=history)) == {"edit"}
    assert actions_in("anna", before, document("anna", title="One", titleSetBy="auto")) == {"rename"}
