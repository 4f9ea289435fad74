"""Who may write to whom and who finds whom: every combination of what two agents say of
each other.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from capsule import Refused, Store
from capsule.format.documents.agents import GLOBAL, direct_id
from capsule.format.documents.channels import Channel
from capsule.format.documents.members import Member
from capsule.format.json import codec
from capsule.rules.consent import AgentProfile, PolicyInputs, dm_availability, in_scope
from capsule.rules.policy import PolicyTarget, decide

NOW = "2025-01-02T00:00:00.000Z"
POLICIES, ENTRIES = ("open", "restricted", "closed"), (None, "allow", "block")
#: A side: its policy, and what it says of the other.
SIDES = list(itertools.product(POLICIES, ENTRIES))
PAIRS = list(itertools.product(SIDES, SIDES))


def expected(one: tuple[str, Any], other: tuple[str, Any]) -> str:
    """The rule as the issue says it."""
    if "block" in (one[1], other[1]):
        return "blocked"
    if "closed" in (one[0], other[0]):
        return "unavailable"
    asks = [entry for policy, entry in (one, other) if policy == "restricted"]
    return "available" if asks.count("allow") == len(asks) else "requires permission"


def profile(id: str, other: str, side: tuple[str, Any], **fields: str) -> AgentProfile:
    return AgentProfile(
        id, dm=side[0], dm_entries={} if side[1] is None else {other: side[1]}, **fields
    )


def say(store: Store, one: str, other: str, pair: tuple[Any, Any]) -> None:
    """Have two agents say this of each other."""
    for id, to, (policy, entry) in ((one, other, pair[0]), (other, one, pair[1])):
        document = {"dmPolicy": policy, "dm": {} if entry is None else {to: {"permission": entry}}}
        store.agents._documents.edit(id, lambda there, new=document: there.update(new))  # type: ignore[misc]


def shown(pair: Any) -> str:
    return "-".join(str(word) for side in pair for word in side)


@pytest.mark.parametrize("pair", PAIRS, ids=shown)
def test_two_agents_write_to_each_other_as_both_of_them_say(pair: tuple[Any, Any]) -> None:
    anna, bob = (
        profile("anna", "bob", pair[0], project="api"),
        profile("bob", "anna", pair[1], project="web"),
    )
    assert dm_availability(anna, bob) == dm_availability(bob, anna) == expected(*pair)
    direct = PolicyTarget("direct_anna_bob", "direct", (Member("anna"), Member("bob")))
    group = PolicyTarget("team", "group", (Member("anna"),))
    for me in ("anna", "bob"):
        state = PolicyInputs({"anna": anna, "bob": bob})
        assert decide(me, "read", direct, state).allowed
        for action in ("message", "create", "append", "edit", "change"):
            decision = decide(me, action, direct, state)
            assert decision.allowed == (expected(*pair) == "available")
            assert decision.allowed or expected(*pair) in decision.reason
    both, is_available = PolicyInputs({"anna": anna, "bob": bob}), expected(*pair) == "available"
    assert decide("anna", "add", group, both).allowed == is_available
    for access in ("open", "members", "private"):
        about = Channel("news", GLOBAL, access)
        left = Member("bob", invited_by="anna", left_at=NOW, opted_out_at=NOW)
        made = PolicyTarget(
            about.id, "channel", (Member("anna"), Member("bob")), channel=about, created_by="anna"
        )
        there = replace(made, members=(Member("anna"), left))
        asked = "readmit" if access == "private" else "invite"
        for action, channel in (("create", made), (asked, there)):
            decision = decide("anna", action, channel, both)  # type: ignore[arg-type]
            assert decision.allowed == is_available
            assert is_available or expected(*pair) in decision.reason
            assert decide(None, action, channel).allowed  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pair_of() -> Callable[[tuple[Any, Any]], tuple[Store, str, str, str]]:
    """Gives two agents that say this of each other, and their direct, in which each has said
    something.
    """
    store, count = Store.in_memory(), itertools.count()

    def make(pair: tuple[Any, Any]) -> tuple[Store, str, str, str]:
        number = next(count)
        one, other = f"one-{number}", f"other-{number}"
        for id in (one, other):
            store.agents.register(id)
        store.messages.send("hello", agent=one, to=other)
        store.messages.send("hi", agent=other, to=one)
        say(store, one, other, pair)
        return store, one, other, direct_id(one, other)

    return make


#: The ways to write into a direct: by the other's id and by the direct's.
WRITES: dict[str, Callable[[Store, str, str], Any]] = {
    "send to": lambda store, to, id: store.messages.send("again", to=to),
    "send into": lambda store, to, id: store.messages.send("again", conversation=id),
    "append": lambda store, to, id: store.append(id, content="again"),
    "append_many": lambda store, to, id: store.append_many(
        id, [{"role": "user", "content": "again"}]
    ),
    "append_once": lambda store, to, id: store.append_once(id, "key", content="again"),
    "edit": lambda store, to, id: store.edits.message(id, own(store, id), "again"),
    "remove": lambda store, to, id: store.branches.remove(id, own(store, id), keep_children=True),
    "tag": lambda store, to, id: store.tag(id, "again"),
    "context": lambda store, to, id: store.context.set(
        id, {"fullContext": "again", "metadata": {}}
    ),
    "fork": lambda store, to, id: store.forks.create(id),
    "summarize": lambda store, to, id: store.summaries.add(id, "again"),
    "group": lambda store, to, id: store.groups.create("again", with_=[to]),
}


def group_with(store: Store, to: str) -> None:
    """Add to a group of one's own."""
    store.groups.add(store.groups.create("again").id, [to])


def saved_with(store: Store, to: str) -> None:
    """Save a version of a channel of one's own in which the other is a member."""
    id = store.channels.create(f"saved-{to}", access="members").id
    data = store.read(id)
    document = codec.decode(data, id)
    invited = {"id": to, "joinedAt": document["updatedAt"], "invitedBy": store.agent}
    document["metadata"]["participants"].append(invited)
    store.edits.rewrite(id, codec.encode(document), data)


def invited_to(access: str) -> Callable[[Store, str], None]:
    def invite(store: Store, to: str) -> None:
        store.channels.invite(store.channels.create(f"to-{to}", access=access).id, [to])

    return invite


def made_with(access: str) -> Callable[[Store, str], None]:
    return lambda store, to: (
        store.channels.create(f"with-{to}", access=access, members=[to]) and None
    )


#: The ways to bring another agent into a conversation, given its id.
BRINGS_IN: dict[str, Callable[[Store, str], Any]] = {
    "group": group_with,
    "saved": saved_with,
    "notes": lambda store, to: store.notes.share(to),
    **{f"made {access}": made_with(access) for access in ("open", "members", "private")},
    **{f"invited {access}": invited_to(access) for access in ("open", "members")},
}


@pytest.mark.slow
@pytest.mark.sample
@pytest.mark.parametrize("brings_in", BRINGS_IN)
def test_no_agent_brings_another_into_a_conversation_without_the_consent_of_both(
    brings_in: str,
) -> None:
    with Store.in_memory() as store:
        for number, pair in enumerate(PAIRS):
            one, other = f"one-{number}", f"other-{number}"
            for id in (one, other):
                store.agents.register(id)
            say(store, one, other, pair)
            try:
                BRINGS_IN[brings_in](store.beside(agent=one), other)
                outcome = "available"
            except Refused as refused:
                outcome = refused.message
            assert expected(*pair) in outcome, pair
            there = [
                head
                for head in store.heads()
                if other in (member.id for member in head.participants)
            ]
            assert len(there) == (outcome == "available"), pair
            asks = [contact.agent.id for contact in store.agents.requests(other)]
            is_undecided = (
                pair[1] == ("restricted", None) and brings_in != "saved"
            )  # A save asks nobody.
            assert asks == (
                [one] if is_undecided and expected(*pair) == "requires permission" else []
            ), pair


@pytest.mark.parametrize("brings_in", BRINGS_IN)
@pytest.mark.parametrize(
    "says", [{"dmPolicy": "closed"}, {"dm": {"anna": {"permission": "block"}}}], ids=str
)
def test_whoever_is_not_found_is_refused_like_an_agent_that_does_not_exist(
    brings_in: str, says: Any
) -> None:
    with Store.in_memory() as store:
        for id in ("anna", "bob"):
            store.agents.register(id)
        store.agents._documents.edit(
            "bob", lambda document: document.update(says, discoverable="private")
        )
        answers = []
        for to in ("bob", "eve"):
            with pytest.raises(Refused) as refused:
                BRINGS_IN[brings_in](store.beside(agent="anna"), to)
            words = f"{refused.value.message} {refused.value.fields} {refused.value.remedy}"
            answers.append(
                re.sub(
                    "group_[0-9]+_[a-z0-9]+|channel_global__[a-z0-9]+",
                    "ID",
                    words.replace(to, "WHO"),
                )
            )
        assert answers[0] == answers[1]


def test_what_an_agent_asked_for_is_done_once_it_is_allowed() -> None:
    with Store.in_memory() as store:
        for id in ("anna", "bob", "carl", "dora"):
            store.agents.register(id)
        for id in ("bob", "carl"):
            store.agents.policy(id, dm="restricted")
        anna = store.beside(agent="anna")
        with pytest.raises(Refused, match="bob, carl: requires permission"):
            anna.channels.create("plan", access="private", members=["bob", "carl", "dora"])
        with pytest.raises(Refused):
            anna.groups.add(anna.groups.create("Talk").id, ["bob"])
        for id in ("bob", "carl"):
            assert [contact.agent.id for contact in store.agents.requests(id)] == ["anna"]
            store.agents.allow(agent=id, other="anna")
        anna.channels.create("plan", access="private", members=["bob", "carl", "dora"])


def test_a_person_brings_in_whom_an_agent_may_not() -> None:
    with Store.in_memory() as store:
        for id in ("anna", "bob"):
            store.agents.register(id)
        store.agents.policy("bob", dm="closed", discoverable="private")
        store.channels.create("plan", access="private", members=["bob"])
        store.channels.invite(
            store.channels.create("news", agent="anna", access="members").id, ["bob"]
        )
        store.groups.create("Talk", with_=["bob"])
        assert {mine.type for mine in store.queries.participations("bob")} == {"channel", "group"}
        assert len(store.queries.participations("bob")) == 3


def own(store: Store, id: str) -> str:
    return next(
        str(message.id) for message in store.load(id).history if message.from_ == store.agent
    )


@pytest.mark.parametrize("pair", PAIRS, ids=shown)
def test_no_door_writes_into_a_direct_without_the_consent_of_both(
    pair_of: Callable[..., tuple[Store, str, str, str]], pair: tuple[Any, Any]
) -> None:
    store, one, other, id = pair_of(pair)
    before = store.document(id)
    for me, to in ((one, other), (other, one)):
        acting = store.beside(agent=me)
        assert [message.content for message in acting.load(id).history] == ["hello", "hi"]
        if expected(*pair) == "available":
            acting.messages.send("again", to=to)
            assert acting.load(id).history[-1].content == "again"
            store.versions.restore(id, before)
            continue
        for write in WRITES.values():
            with pytest.raises(Refused):
                write(acting, to, id)
        stranger = next(them for them in (one, other) if them != me)
        assert stranger == to
    assert store.document(id)["history"] == before["history"]


@pytest.mark.parametrize("write", WRITES)
def test_each_door_writes_where_both_consent(
    pair_of: Callable[..., tuple[Store, str, str, str]], write: str
) -> None:
    store, one, other, id = pair_of((("restricted", "allow"), ("open", None)))
    WRITES[write](store.beside(agent=one), other, id)


def test_the_first_message_to_an_agent_that_did_not_allow_it_makes_no_direct() -> None:
    store = Store.in_memory()
    for id in ("anna", "bob"):
        store.agents.register(id)
    store.agents._documents.edit("bob", lambda document: document.update(dmPolicy="restricted"))
    for write in (
        lambda: store.messages.send("hello", agent="anna", to="bob"),
        lambda: store.beside(agent="anna").create(id="direct_anna_bob", type="direct"),
        lambda: store.beside(agent="anna").create(id="direct_anna_bob"),
        lambda: store.beside(agent="anna").create(id="direct_bob_carl"),
    ):
        with pytest.raises(Refused):
            write()
    assert store.ids() == []


FINDERS = {"same": "api", "linked": "web", "other": "lab", "global": GLOBAL, "nobody": ""}


@pytest.mark.parametrize("discoverable", ["public", "project", "private"])
@pytest.mark.parametrize("finder", FINDERS)
@pytest.mark.parametrize("met", [False, True])
def test_an_agent_finds_another_as_that_one_says(discoverable: str, finder: str, met: bool) -> None:
    anna, bob = (
        AgentProfile("anna", project=FINDERS[finder]),
        AgentProfile("bob", project="api", discoverable=discoverable),
    )
    sight = frozenset({"api", "web"}) if finder == "linked" else frozenset({FINDERS[finder]})
    state = PolicyInputs(
        {"anna": anna, "bob": bob}, sight, frozenset({"bob"}) if met else frozenset()
    )
    by_policy = {"public": True, "project": finder in ("same", "linked", "global"), "private": met}
    decision = decide("anna", "find", PolicyTarget("bob", "agent"), state)
    assert (decision.allowed, decision.hidden) == (
        by_policy[discoverable],
        not by_policy[discoverable],
    )


def test_nobody_finds_oneself_the_owner_finds_all_and_what_is_not_known_is_not_found() -> None:
    state = PolicyInputs({"anna": AgentProfile("anna")})
    assert not decide("anna", "find", PolicyTarget("anna", "agent"), state).allowed
    assert not decide("anna", "find", PolicyTarget("bob", "agent"), state).allowed
    assert decide(None, "find", PolicyTarget("bob", "agent")).allowed


@pytest.mark.parametrize(
    ("project", "scope", "is_in"),
    [
        ("api", "api", True),
        ("api", "web", True),
        ("api", "lab", False),
        ("api", GLOBAL, True),
        (GLOBAL, "lab", True),
        ("", GLOBAL, True),
        ("", "api", False),
        ("", "", False),
    ],
)
def test_a_scope_is_in_reach_of_its_project_and_of_those_that_see_it(
    project: str, scope: str, is_in: bool
) -> None:
    sight = frozenset({"api", "web"} if project == "api" else {project})
    assert in_scope(AgentProfile("anna", project=project), scope, sight) == is_in


@pytest.mark.parametrize(
    "document",
    [
        {
            "dmPolicy": "everybody",
            "discoverable": "friends",
            "dm": {"anna": {"permission": "perhaps"}},
        },
        {"dmPolicy": "closed", "discoverable": "private", "dm": {"anna": {"permission": "block"}}},
    ],
)
def test_a_word_that_is_not_understood_counts_as_the_strictest(document: dict[str, Any]) -> None:
    bob = AgentProfile.from_document({"id": "bob", **document})
    assert (bob.project, bob.dm, bob.discoverable, bob.dm_entries) == (
        GLOBAL,
        "closed",
        "private",
        {"anna": "block"},
    )
    assert AgentProfile.from_document({"id": "bob"}) == AgentProfile("bob", "bob", GLOBAL)
