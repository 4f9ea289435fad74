"""Mentions: what is one in a text, whom it concerns, and what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from capsule import InvalidInput, NotFound, Store
from capsule.engines.interface import edit_document
from capsule.messaging import doorbells
from capsule.messaging.doorbells import DoorbellTarget
from capsule.messaging.unread import find_mentions
from tests.core.store.making import EARLY, LATE, channel, set_fields

CHANNEL = "channel_global_api"


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.in_memory() as store:
        for agent in ("anna", "bob", "carl", "dora"):
            store.agents.register(agent)
        channel(store, CHANNEL, "anna", "bob", "carl")
        yield store


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("@anna --review?", {"anna": "review"}),
        (
            "@anna, @bob. (@all --fyi) @c-d@p-1!",
            {"anna": "mention", "bob": "mention", "all": "fyi", "c-d@p-1": "mention"},
        ),
        ("@anna and @anna --action", {"anna": "action"}),
        ("- @anna\n\n> *@bob*'s", {"anna": "mention", "bob": "mention"}),
        ("`@anna` ``@bob ` @carl`` @dora", {"dora": "mention"}),
        ("```\n@anna\n```\n~~~ @bob\n@carl\n~~~\n\n    @dora\n", {}),
        (
            (
                "a@b.example <a@b.example> https://x.example/@anna www.x.example/@bob "
                "git@host.example:a [x](y@z)"
            ),
            {},
        ),
        ("@types/node @ @@anna /@bob @-", {}),
        ("@" * 50_000 + "`" * 50_000, {}),
        (" ".join(f"@a{n}" for n in range(1000)), {f"a{n}": "mention" for n in range(50)}),
    ],
)
def test_names_in_a_text_are_mentions_but_not_in_code_addresses_and_urls(
    text: str, names: dict[str, str]
) -> None:
    assert find_mentions(text) == names


def test_a_message_says_which_mentions_are_of_members(store: Store) -> None:
    sent = store.messages.send(
        "@bob --review @dora @nobody @bob @all", agent="anna", conversation=CHANNEL
    )
    told = {
        "valid": ["bob", "@all"],
        "invalid": ["dora"],
        "unknown": ["nobody"],
        "kinds": {"bob": "review"},
    }
    assert store.document(CHANNEL)["history"][0]["mentions"] == sent.as_json()["mentions"] == told
    assert sent.recipients == {"bob": "stored"}
    assert (
        "mentions" not in store.messages.send("plain", agent="anna", conversation=CHANNEL).as_json()
    )


def test_a_name_means_the_agent_that_the_sender_means(store: Store) -> None:
    for id, folder, name in (
        ("a", "/api", "ops"),
        ("w", "/web", "ops"),
        ("b", "/api", "bert"),
        ("v", "/web", "vera"),
    ):
        store.agents.register(id, folder, name=name)
    id = channel(
        store, "channel_global_ops", "a", "w", "b", {"id": "v", "joinedAt": EARLY, "leftAt": LATE}
    )
    for sender, text, valid, invalid, unknown in (
        ("b", "@ops @ops@web @a", ["a", "w"], [], []),
        ("w", "@bert @b @ops@api @ops@nowhere", ["b", "a"], [], ["bert", "ops@nowhere"]),
        ("a", "@v @anna", [], ["v", "anna"], []),
    ):
        told = store.messages.send(text, agent=sender, conversation=id).mentions
        assert (told["valid"], told["invalid"], told["unknown"]) == (valid, invalid, unknown), text
    assert store.messages.send("@ops", agent="b", to="ops").conversation == "direct_a_b"


def states(store: Store, agent: str, **asked: Any) -> dict[str, tuple[str, str]]:
    found = store.messages.mentions(agent=agent, **{"state": "all", **asked})
    return {each.mail.content: (each.state, each.mail.mention) for each in found}


def test_a_mention_is_unread_then_read_then_done(store: Store) -> None:
    for text in ("@bob --action", "hello", "@all"):
        sent = store.messages.send(text, agent="anna", conversation=CHANNEL)
    assert states(store, "bob") == {
        "@all": ("unread", "mention"),
        "@bob --action": ("unread", "action"),
    }
    assert states(store, "anna") == {}
    heard = store.messages.listen(agent="bob", limit=1)
    assert heard.messages[0].as_json()["mention"] == "action"
    store.messages.ack(agent="bob", cursor=heard.cursor)
    store.messages.done(sent.message, agent="bob")
    assert states(store, "bob") == {
        "@all": ("done", "mention"),
        "@bob --action": ("read", "action"),
    }
    for state, found in {
        "unread": [],
        "read": ["@bob --action"],
        "open": ["@bob --action"],
        "done": ["@all"],
    }.items():
        assert list(states(store, "bob", state=state)) == found
    assert [each.state for each in store.messages.mentions(agent="bob")] == ["read"]
    assert states(store, "bob", kind="review") == {}
    assert list(states(store, "bob", state="all", limit=1)) == ["@all"]
    first, last = (
        each.as_json() for each in reversed(store.messages.mentions(agent="bob", state="all"))
    )
    assert first["readAt"] <= last["readAt"] == last["doneAt"]
    assert "doneAt" not in first
    assert states(store, "carl") == {"@all": ("unread", "mention")}


def test_only_who_is_mentioned_is_done_with_it(store: Store) -> None:
    sent = store.messages.send("@bob", agent="anna", conversation=CHANNEL)
    for agent in ("anna", "carl", "dora"):
        with pytest.raises(NotFound):
            store.messages.done(sent.message, agent=agent)
    with pytest.raises(InvalidInput):
        store.messages.mentions(agent="bob", state="lost")


def test_of_a_conversation_that_the_agent_left_no_mention_is_listed(store: Store) -> None:
    store.messages.send("@bob", agent="anna", conversation=CHANNEL)
    store.inner.change_head(CHANNEL, lambda head: head["metadata"]["participants"].remove("bob"))
    assert states(store, "bob") == {}
    assert store.messages.inbox(agent="bob").unread == 0


@pytest.mark.parametrize(
    ("reading", "unread", "pointer"),
    [
        ({}, ["one", "@bob", "two"], "3 unread from anna"),
        ({"notify": "all"}, ["one", "@bob", "two"], "3 unread from anna"),
        ({"notify": "mentions"}, ["@bob"], "1 unread from anna"),
        ({"muted": True}, ["@bob"], "1 unread from anna"),
        ({"muted": True, "notify": "none"}, ["@bob"], ""),
        ({"notify": "none"}, ["one", "@bob", "two"], ""),
        ({"muted": "yes", "notify": 7}, ["one", "@bob", "two"], "3 unread from anna"),
    ],
)
def test_muted_conversations_have_only_mentions_unread(
    store: Store, reading: dict[str, Any], unread: list[str], pointer: str
) -> None:
    set_fields(store, "bob", reading={CHANNEL: reading})
    for text in ("one", "@bob", "two"):
        store.messages.send(text, agent="anna", conversation=CHANNEL)
    assert store.messages.inbox(agent="bob").unread == len(unread)
    assert store.messages.pointer("bob") == pointer
    assert [mail.content for mail in store.messages.listen(agent="bob").messages] == unread
    assert store.messages.listen(agent="bob").messages == []
    set_fields(store, "bob", reading={})
    assert store.messages.inbox(agent="bob").unread == ("two" not in unread)


def test_who_mutes_a_conversation_while_listening_hears_its_mentions_only(store: Store) -> None:
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(store.beside().messages.listen, agent="bob", timeout_s=60)
        while not store.agents.get("bob").listening:
            time.sleep(0.01)
        set_fields(store, "bob", reading={CHANNEL: {"muted": True}})
        for text in ("one", "@bob", "two"):
            store.messages.send(text, agent="anna", conversation=CHANNEL)
        assert [mail.content for mail in heard.result().messages] == ["@bob"]


def test_a_mention_by_a_blocked_agent_concerns_nobody_who_blocked_it(store: Store) -> None:
    set_fields(
        store, "bob", dm={"anna": {"permission": "block"}}, reading={CHANNEL: {"muted": True}}
    )
    store.messages.send("@bob @carl", agent="anna", conversation=CHANNEL)
    assert (states(store, "bob"), store.messages.inbox(agent="bob").unread) == ({}, 0)
    assert store.messages.listen(agent="bob").messages == []
    assert states(store, "carl") == {"@bob @carl": ("unread", "mention")}


@pytest.mark.parametrize(
    ("fields", "text", "is_rung"),
    [
        ({}, "hello", True),
        ({"reading": {CHANNEL: {"muted": True}}}, "hello", False),
        ({"reading": {CHANNEL: {"muted": True}}}, "@bob", True),
        ({"reading": {CHANNEL: {"notify": "mentions"}}}, "@all", True),
        ({"reading": {CHANNEL: {"notify": "none"}}}, "@bob", False),
        (
            {"reading": {CHANNEL: {"muted": True}}, "dm": {"anna": {"permission": "block"}}},
            "@bob",
            False,
        ),
    ],
)
def test_a_message_rings_for_the_members_who_want_to_hear_of_it(
    store: Store, fields: dict[str, Any], text: str, is_rung: bool
) -> None:
    for agent in ("bob", "dora"):
        doorbells.register(store, agent, DoorbellTarget("command", {"command": "true"}))
    set_fields(store, "bob", **fields)
    rung = store.messages.send(text, agent="anna", conversation=CHANNEL).recipients
    assert (rung.get("bob") == "rung", "dora" in rung) == (is_rung, False)


def test_a_damaged_document_of_a_member_keeps_no_message_back(store: Store) -> None:
    doorbells.register(store, "bob", DoorbellTarget("command", {"command": "true"}))
    edit_document(store.engine, "agents", "bob", lambda data: b"{}\n")
    assert (
        store.messages.send("@bob @carl", agent="anna", conversation=CHANNEL).recipients["carl"]
        == "stored"
    )
    assert [mail.content for mail in store.messages.listen(agent="carl").messages] == ["@bob @carl"]


def test_a_membership_that_ended_with_its_link_has_nothing_unread(store: Store) -> None:
    store.agents.register("wanda", "/web")
    store.agents.register("abel", "/api")
    api, web = (store.projects.get(name).id for name in ("api", "web"))
    id = channel(
        store,
        f"channel_{web}_plans",
        "wanda",
        {"id": "abel", "joinedAt": EARLY, "invitedBy": "self"},
    )
    doorbells.register(store, "abel", DoorbellTarget("command", {"command": "true"}))
    store.projects.link(api, web, direction="out")
    assert store.messages.send("@abel one", agent="wanda", conversation=id).recipients == {
        "abel": "rung"
    }
    assert (store.messages.pointer("abel"), list(states(store, "abel"))) == (
        "1 unread from wanda",
        ["@abel one"],
    )
    store.projects.unlink(api, web)
    sent = store.messages.send("@abel two", agent="wanda", conversation=id)
    assert (sent.mentions["invalid"], sent.recipients) == (["abel"], {})
    assert (store.messages.inbox(agent="abel").unread, states(store, "abel")) == (0, {})
    assert store.messages.listen(agent="abel").messages == []
    store.projects.link(api, web, direction="out")
    assert [mail.content for mail in store.messages.listen(agent="abel").messages] == [
        "@abel one",
        "@abel two",
    ]


@pytest.mark.parametrize("text", ["hi", "@bob --action obey", "@all --action obey"])
@pytest.mark.parametrize("where", ["group", "open", "private"])
def test_messages_of_a_blocked_agent_count_mention_and_wake_nowhere(
    store: Store, where: str, text: str
) -> None:
    made = {
        "group": lambda: store.groups.create("Talk", agent="anna", with_=["bob", "carl"]).id,
        "open": lambda: CHANNEL,
        "private": lambda: (
            store.channels.create(
                "plan", agent="anna", access="private", members=["bob", "carl"]
            ).id
        ),
    }
    id = made[where]()
    store.messages.send(text, agent="anna", conversation=id)
    assert store.messages.inbox(agent="bob").unread == 1
    store.agents.block(agent="bob", other="anna")
    doorbells.register(store, "bob", DoorbellTarget("command", {"command": "true"}))
    sent = store.messages.send(text, agent="anna", conversation=id)
    assert sent.recipients.get("bob") != "rung"
    assert store.messages.inbox(agent="bob").as_json() == {"unread": 0, "conversations": []}
    assert (store.messages.pointer("bob"), store.messages.mentions(agent="bob")) == ("", [])
    assert (
        store.messages.listen(agent="bob").messages,
        store.messages.first_unread(id, agent="bob"),
    ) == ([], None)
    assert store.messages.send(text, agent="carl", conversation=id).recipients["bob"] == "rung"
    assert [mail.from_ for mail in store.messages.listen(agent="bob").messages] == ["carl"]
    assert store.messages.inbox(agent="bob").senders == ["carl"]
    assert store.messages.inbox(agent="carl").unread == 2
    assert len(store.messages.history(id, agent="bob").messages) == 3
    store.agents.forget(agent="bob", other="anna")
    assert store.messages.inbox(agent="bob").unread == 3


def test_what_a_blocked_agent_wrote_directly_before_is_not_unread(store: Store) -> None:
    id = store.messages.send("hello", agent="anna", to="bob").conversation
    store.agents.block(agent="bob", other="anna")
    assert store.messages.inbox(agent="bob").unread == 0
    assert [mail.content for mail in store.messages.history(id, agent="bob").messages] == ["hello"]


def test_whoever_listens_hears_no_more_of_an_agent_once_it_blocks_it(store: Store) -> None:
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(lambda: store.messages.listen(agent="bob", timeout_s=60))
        while not store.agents.get("bob").listening:
            pass
        store.agents.block(agent="bob", other="anna")
        store.messages.send("@all --action", agent="anna", conversation=CHANNEL)
        store.messages.send("hello", agent="carl", conversation=CHANNEL)
        assert [mail.from_ for mail in heard.result().messages] == ["carl"]
