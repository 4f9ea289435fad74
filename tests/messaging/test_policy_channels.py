"""The rule of channels: every access, everything that an agent can be to a channel,
every action.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import pytest

from capsule.errors import NotFound, Refused
from capsule.format.documents.agents import GLOBAL
from capsule.format.documents.channels import Channel, channel_id, notes_id
from capsule.format.documents.members import Member
from capsule.rules.consent import AgentProfile, PolicyInputs
from capsule.rules.policy import Action, PolicyTarget, decide, raise_if_denied
from capsule.rules.write_actions import actions_of_write

T1, T2 = "2025-01-02T00:00:00.000Z", "2025-01-03T00:00:00.000Z"
ALL = {"can_leave": True, "can_send": True, "can_invite": True, "can_manage": True}
#: The members of a channel of the project api, by what each of them is to it.
MEMBERS = (
    Member("maker", invited_by="self", **ALL),
    Member("manager", invited_by="maker", can_manage=True),
    Member("invited", invited_by="maker"),
    Member("joined", invited_by="self"),
    Member("by default", invited_by="system", source="default"),
    Member("quiet", invited_by="maker", can_send=False, can_leave=False),
    Member("inviter", invited_by="maker", can_invite=True),
    Member("opted out", T1, T2, T2, invited_by="maker"),
    Member("left alone", T1, T2, T2, invited_by="self"),
    Member("removed", T1, T2, invited_by="maker"),
)
IN = ("maker", "manager", "invited", "joined", "by default", "quiet", "inviter")
ACCESSES = ("open", "members", "private")
OUTSIDE = ("join", "find", "read")
EVERYTHING = {*get_args(Action)} - {"link", "create"}
#: What the owner alone does, and what nobody does to a channel.
THE_OWNERS = {"moderate", "rewrite", "delete", "message", "add", "default", "lock"}
NOBODYS = {"readmit"}
MEMBERS_MAY = {"find", "read", "join", "append", "edit", "change", "leave"}
MANAGES = {"rename", "archive", "manage"}


def channel(access: str, *members: Member, scope: str = "api", **fields: Any) -> PolicyTarget:
    about = Channel("news", scope, access, **fields)
    return PolicyTarget(
        about.id,
        "channel",
        members or MEMBERS,
        channel=about,
        created_by=fields.get("owner") or "maker",
    )


def granted(subject: str | None, object: PolicyTarget, state: PolicyInputs) -> set[str]:
    return {action for action in EVERYTHING if decide(subject, action, object, state).allowed}


def expected(who: str, access: str, *, in_scope: bool) -> set[str]:
    """The rule, by what an agent is to the channel."""
    came_alone = who in ("joined", "by default", "maker")
    if who not in IN or (came_alone and not in_scope):
        returns = who == "opted out" and access != "private"
        if in_scope and access == "open":
            return {"find", "read", "join"}
        return (
            {"find", *(["join"] if returns else [])}
            if returns or (in_scope and access == "members")
            else set()
        )
    may_invite = who in ("maker", "inviter") or access == "open"
    brings_in = {"readmit" if access == "private" else "invite"} if may_invite else set()
    found = MEMBERS_MAY | (MANAGES if who in ("maker", "manager") else set()) | brings_in
    if who in ("maker", "manager") and access != "private":
        found = found | {"remove"}
    if who == "quiet":
        found = found - {"append", "edit", "change", "leave"}
    return found


@pytest.mark.parametrize("in_scope", [True, False], ids=["in scope", "out of scope"])
@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("who", [*(member.id for member in MEMBERS), "stranger"])
def test_in_a_channel_everybody_may_do_what_the_rule_says(
    who: str, access: str, in_scope: bool
) -> None:
    state = PolicyInputs(
        {who: AgentProfile(who, project="web")}, frozenset({"web", "api"} if in_scope else {"web"})
    )
    assert granted(who, channel(access), state) == expected(who, access, in_scope=in_scope)
    for action in sorted(EVERYTHING - granted(who, channel(access), state)):
        decision = decide(who, action, channel(access), state)  # type: ignore[arg-type]
        assert decision.reason
        is_told = action == "readmit" and access != "private"
        assert decision.hidden == (
            "find" not in expected(who, access, in_scope=in_scope) and not is_told
        )


@pytest.mark.parametrize("access", ACCESSES)
def test_the_owner_may_do_everything_but_bring_back_who_left_where_one_comes_by_oneself(
    access: str,
) -> None:
    assert granted(None, channel(access), PolicyInputs()) == EVERYTHING - (
        NOBODYS if access != "private" else set()
    )


def test_an_agent_of_which_nothing_is_known_has_only_what_is_global() -> None:
    assert not decide("eve", "find", channel("open")).allowed
    assert decide("eve", "find", channel("open", scope=GLOBAL)).allowed


@pytest.mark.parametrize(
    ("hidden", "named"),
    [((), ["maker", "inviter"]), (("maker",), ["inviter"]), (("maker", "inviter"), [])],
    ids=str,
)
def test_a_refusal_names_who_may_invite_of_those_that_one_finds(
    hidden: tuple[str, ...], named: list[str]
) -> None:
    def state_of(object: PolicyTarget | None, others: Iterable[str]) -> PolicyInputs:
        return PolicyInputs(
            {
                id: AgentProfile(id, discoverable="private" if id in hidden else "public")
                for id in ("eve", *others)
            }
        )

    state = PolicyInputs({"eve": AgentProfile("eve", project="api")})
    with pytest.raises(Refused) as refused:
        raise_if_denied(
            decide("eve", "join", channel("members"), state), "channel_api_news", state_of
        )
    assert [
        id
        for id in ("maker", "inviter", "invited")
        if f" {id}" in refused.value.message.split(";")[1]
    ] == named
    with pytest.raises(NotFound) as unknown:
        raise_if_denied(
            decide("eve", "join", channel("private"), state), "channel_api_news", state_of
        )
    assert unknown.value.message == "no conversation channel_api_news"


def test_who_looks_into_notes_was_let_in_by_their_owner_who_may_end_it() -> None:
    looks = Member("bob", invited_by="anna", can_send=False)
    notes = channel(
        "private", Member("anna", invited_by="self", **ALL), looks, scope=GLOBAL, owner="anna"
    )
    assert {"invite", "remove", "append"} <= granted(
        "anna", notes, PolicyInputs({"anna": AgentProfile("anna")})
    )
    assert "leave" not in granted("anna", notes, PolicyInputs({"anna": AgentProfile("anna")}))
    assert granted("bob", notes, PolicyInputs({"bob": AgentProfile("bob")})) == {
        "find",
        "read",
        "join",
        "leave",
    }
    assert granted("eve", notes, PolicyInputs({"eve": AgentProfile("eve")})) == set()


CREATED: dict[str, tuple[PolicyTarget, bool]] = {
    "its own": (channel("open", Member("maker")), True),
    "a global one": (channel("private", Member("maker"), scope=GLOBAL), True),
    "one of another project": (channel("open", Member("maker"), scope="web"), False),
    "one without itself": (channel("open", Member("bob")), False),
    "notes of another": (channel("private", Member("maker"), scope=GLOBAL, owner="bob"), False),
    "its notes": (channel("private", Member("maker"), scope=GLOBAL, owner="maker"), True),
    "one with one it blocked": (channel("open", Member("maker"), Member("blocked")), False),
    "one with another": (channel("open", Member("maker"), Member("bob")), True),
    "one with another that is closed": (
        channel("private", Member("maker"), Member("closed")),
        False,
    ),
    "one with somebody unknown": (channel("private", Member("maker"), Member("nobody")), False),
    "a default one": (channel("open", Member("maker"), is_default=True), True),
    "a global default one": (
        channel("open", Member("maker"), scope=GLOBAL, is_default=True),
        False,
    ),
    "the id of a channel": (
        PolicyTarget(channel_id("api", "news"), "group", (Member("maker"),)),
        False,
    ),
    "the id of another channel": (
        PolicyTarget(
            channel_id("api", "old"),
            "channel",
            (Member("maker"),),
            channel=Channel("news", "api"),
            created_by="maker",
        ),
        False,
    ),
    "the id of notes": (PolicyTarget(notes_id("bob")), False),
    "the id of a direct": (PolicyTarget("direct_bob_carl"), False),
    "another id": (PolicyTarget("plan"), True),
}


@pytest.mark.parametrize("made", CREATED)
def test_an_agent_makes_channels_of_its_own_and_takes_no_id_that_tells_of_another(
    made: str,
) -> None:
    object, is_allowed = CREATED[made]
    profiles = {id: AgentProfile(id, project="api") for id in ("bob", "blocked")}
    profiles["closed"] = AgentProfile("closed", project="api", dm="closed")
    profiles["maker"] = AgentProfile("maker", project="api", dm_entries={"blocked": "block"})
    decision = decide(
        "maker",
        "create",
        object,
        PolicyInputs({id: profiles[id] for id in {"maker", *object.present_ids} & {*profiles}}),
    )
    assert decision.allowed == is_allowed
    assert decide(None, "create", object).allowed


# -- What a write to a channel is ------------------------------------------------------------------


def document(
    *participants: Any, access: str = "open", about: Any = None, **metadata: Any
) -> dict[str, Any]:
    fields = {"name": "news", "scope": "api", "access": access} if about is None else about
    metadata = {
        "type": "channel",
        "participants": [*participants],
        "channel": fields,
        "lock": {},
        **metadata,
    }
    return {"id": "channel_api_news", "title": "news", "metadata": metadata}


MAKER, BOB = (
    {"id": "maker", "invitedBy": "self", "canManage": True},
    {"id": "bob", "invitedBy": "maker"},
)
GONE = {"leftAt": T1}
OUT = {**GONE, "optedOutAt": T1}
#: Who writes, what stands there of carl before, and what afterwards; and which actions that is.
ITEMS: dict[str, tuple[str | None, Any, Any, set[str]]] = {
    "joins": ("carl", None, {"id": "carl", "joinedAt": T1, "invitedBy": "self"}, {"join"}),
    "joins by default": (
        "carl",
        None,
        {"id": "carl", "invitedBy": "system", "source": "default"},
        {"join"},
    ),
    "joins as if invited": (
        "carl",
        None,
        {"id": "carl", "invitedBy": "maker"},
        {"join", "rewrite"},
    ),
    "joins as if it was there": ("carl", None, "carl", {"join", "rewrite"}),
    "joins with rights": (
        "carl",
        None,
        {"id": "carl", "invitedBy": "self", "canManage": True},
        {"join", "manage"},
    ),
    "is invited": ("bob", None, {"id": "carl", "invitedBy": "bob"}, {"invite"}),
    "is invited in the name of another": (
        "bob",
        None,
        {"id": "carl", "invitedBy": "maker"},
        {"invite", "rewrite"},
    ),
    "is invited with rights": (
        "bob",
        None,
        {"id": "carl", "invitedBy": "bob", "canManage": True},
        {"invite", "manage"},
    ),
    "is invited with less": (
        "bob",
        None,
        {"id": "carl", "invitedBy": "bob", "canSend": False},
        {"invite"},
    ),
    "is kept there": (
        "bob",
        None,
        {"id": "carl", "invitedBy": "bob", "canLeave": False},
        {"invite", "manage"},
    ),
    "leaves": (
        "carl",
        {"id": "carl", "invitedBy": "bob"},
        {"id": "carl", "invitedBy": "bob", **OUT},
        {"leave"},
    ),
    "is removed": ("bob", {"id": "carl"}, {"id": "carl", **GONE}, {"remove"}),
    "comes back": (
        "carl",
        {"id": "carl", "invitedBy": "bob", **OUT},
        {"id": "carl", "invitedBy": "bob"},
        {"join"},
    ),
    "comes back after a removal": (
        *("carl", {"id": "carl", "invitedBy": "bob", **GONE}, {"id": "carl", "invitedBy": "bob"}),
        {"join", "rewrite"},
    ),
    "comes back alone": (
        "carl",
        {"id": "carl", "invitedBy": "bob", **GONE},
        {"id": "carl", "invitedBy": "self"},
        {"join"},
    ),
    "comes back louder": (
        *(
            "carl",
            {"id": "carl", "invitedBy": "self", "canSend": False, **OUT},
            {"id": "carl", "invitedBy": "self"},
        ),
        {"join", "manage"},
    ),
    "leaves with rights": (
        "carl",
        {"id": "carl"},
        {"id": "carl", "canManage": True, **OUT},
        {"leave", "manage"},
    ),
    "is brought back": (
        "bob",
        {"id": "carl", **OUT},
        {"id": "carl", "invitedBy": "bob"},
        {"readmit"},
    ),
    "is brought back by a person": (
        None,
        {"id": "carl", **OUT},
        {"id": "carl"},
        {"readmit", "rewrite"},
    ),
    "is forgotten": ("bob", {"id": "carl", **OUT}, None, {"rewrite"}),
    "is taken out whole": ("bob", {"id": "carl"}, None, {"rewrite"}),
    "never opted out": ("bob", {"id": "carl", **OUT}, {"id": "carl", **GONE}, {"rewrite"}),
    "gets a right": ("bob", {"id": "carl"}, {"id": "carl", "canManage": True}, {"manage"}),
    "was invited": (
        "carl",
        {"id": "carl", "invitedBy": "self"},
        {"id": "carl", "invitedBy": "bob"},
        {"rewrite"},
    ),
    "stays out": ("carl", None, {"id": "carl", "invitedBy": "self", **OUT}, {"join"}),
    "stays out as if invited": ("carl", None, {"id": "carl", **OUT}, {"join", "rewrite"}),
}


@pytest.mark.parametrize("item", ITEMS)
def test_what_changes_of_a_member_says_which_action_it_is(item: str) -> None:
    subject, before, after, actions = ITEMS[item]
    was, now = (document(MAKER, BOB, *([] if each is None else [each])) for each in (before, after))
    assert actions_of_write(subject, was, now) == actions


BEFORE = document(MAKER)
RENAMED = {"name": "old", "scope": "api", "access": "open"}
MOVED = {"name": "news", "scope": GLOBAL, "access": "open"}


@pytest.mark.parametrize(
    ("after", "actions"),
    [
        (document(MAKER, access="members"), {"manage"}),
        (document(MAKER, description="what is new"), {"manage"}),
        (document(MAKER, about=RENAMED), {"rewrite"}),
        (document(MAKER, about=MOVED), {"rewrite"}),
        (document(MAKER, about={**RENAMED, "name": "news", "owner": "maker"}), {"rewrite"}),
        (document(MAKER, about="nothing"), {"rewrite"}),
        (document(MAKER, type="chat"), {"rewrite"}),
        (document(MAKER, createdBy="bob"), {"rewrite"}),
        (document(MAKER, archived=True), {"archive"}),
        (document(MAKER, tags=["red"]), {"change"}),
        (document(MAKER) | {"title": "other"}, {"rename"}),
    ],
)
def test_what_changes_of_a_channel_says_which_action_it_is(
    after: dict[str, Any], actions: set[str]
) -> None:
    assert actions_of_write("maker", BEFORE, after) == actions


@pytest.mark.parametrize(
    ("scope", "actions"), [(GLOBAL, {"manage", "default"}), ("api", {"manage"})]
)
def test_every_later_agent_is_put_into_a_channel_by_a_person(scope: str, actions: set[str]) -> None:
    before = document(MAKER, about={"name": "news", "scope": scope, "access": "open"})
    after = document(
        MAKER, about={"name": "news", "scope": scope, "access": "open", "isDefault": True}
    )
    assert actions_of_write("maker", before, after) == actions
    assert actions_of_write("maker", after, before) == {"manage"}


@pytest.mark.parametrize(
    ("access", "actions"), [("private", set()), ("members", {"rewrite"}), ("open", {"rewrite"})]
)
def test_what_was_said_in_private_is_opened_by_a_person(access: str, actions: set[str]) -> None:
    assert (
        actions_of_write("maker", document(MAKER, access="private"), document(MAKER, access=access))
        == actions
    )


def test_a_group_or_a_chat_becomes_a_channel_by_a_person() -> None:
    for type in ("group", "chat"):
        before = document("maker", type=type)
        assert "rewrite" in actions_of_write(
            "maker", before | {"metadata": before["metadata"] | {"channel": None}}, BEFORE
        )
