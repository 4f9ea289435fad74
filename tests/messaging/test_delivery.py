"""Messages between agents, in memory: what is sent, what is heard, and what counts as read."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

from capsule import InvalidInput, NotFound, Refused, Store
from capsule.messaging.unread import (
    ListenRequest,
    MessageListener,
    UnreadTracker,
    first_unread_position,
)

AGENTS = dict.fromkeys(("anna", "bob"))


def test_a_message_reaches_the_other_agent_and_is_unread_until_it_is_acknowledged(
    store: Store,
) -> None:
    sent = store.messages.send("The build is red", agent="anna", to="bob")
    assert sent.as_json() == {
        "conversation": "direct_anna_bob",
        "message": sent.message,
        "recipients": {"bob": "stored"},
    }
    for _ in range(2):
        inbox = store.messages.inbox(agent="bob").as_json()
        assert (inbox["unread"], inbox["conversations"][0]["last"]["content"]) == (
            1,
            "The build is red",
        )
    heard = store.messages.listen(agent="bob")
    assert [(mail.id, mail.from_, mail.content) for mail in heard.messages] == [
        (sent.message, "anna", "The build is red")
    ]
    store.messages.ack(agent="bob", cursor=heard.cursor)
    assert store.messages.inbox(agent="bob").unread == 0
    assert store.messages.status(sent.message).recipients == {"bob": "read"}


def test_the_status_of_a_message_that_the_agent_may_not_read_is_that_of_none(store: Store) -> None:
    store.agents.register("carl", "/web")
    store.agents.register("dora", "/api")
    store.channels.create("secret", agent="dora")
    group = store.groups.create("Team", agent="anna").id
    old = str(store.append(group, content="old", timestamp="2020-01-01T00:00:00.000Z").id)
    store.groups.add(group, ["carl"], agent="anna")
    sent = [
        store.messages.send("x", agent="dora", **where).message
        for where in ({"channel": "secret"}, {"to": "anna"})
    ]
    told = set()
    for id in ("none", old, *sent):
        with pytest.raises(NotFound) as refused:
            store.messages.status(id, agent="carl")
        told.add(str(refused.value).replace(id, "none"))
    assert len(told) == 1


def test_the_next_listen_of_the_same_instance_acknowledges(store: Store) -> None:
    store.messages.send("one", agent="anna", to="bob")
    assert [mail.content for mail in store.messages.listen(agent="bob").messages] == ["one"]
    assert store.messages.listen(agent="bob").messages == []
    assert store.messages.inbox(agent="bob").unread == 0


def test_a_message_that_is_removed_leaves_the_next_one_unread(store: Store) -> None:
    store.messages.send("kept", agent="anna", to="bob")
    gone = store.messages.send("gone", agent="anna", to="bob")
    store.messages.ack(agent="bob", conversation=gone.conversation)
    store.branches.remove(gone.conversation, gone.message)
    store.messages.send("in its place", agent="anna", to="bob")
    assert [mail.content for mail in store.messages.listen(agent="bob").messages] == [
        "in its place"
    ]


def test_another_instance_hears_again_what_nobody_acknowledged(store: Store) -> None:
    store.messages.send("one", agent="anna", to="bob")
    other = store.beside()
    assert (
        len(store.messages.listen(agent="bob").messages)
        == len(other.messages.listen(agent="bob").messages)
        == 1
    )


def test_a_listener_goes_on_where_it_stood_however_late_it_comes_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.messages.send("one", agent="anna", to="bob")
    other, now = store.beside(), time.monotonic
    assert len(store.messages.listen(agent="bob", timeout_s=1).messages) == 1
    store.messages.send("two", agent="anna", to="bob")
    other.messages.ack(agent="bob", cursor=other.messages.listen(agent="bob").cursor)
    monkeypatch.setattr(time, "monotonic", lambda: now() + 86400)
    assert [mail.content for mail in store.messages.listen(agent="bob", timeout_s=1).messages] == [
        "two"
    ]


def test_ones_own_messages_are_never_unread(store: Store) -> None:
    store.messages.send("one", agent="anna", to="bob")
    store.messages.send("two", agent="bob", to="anna")
    assert store.messages.pointer("anna") == "1 unread from bob"
    assert store.messages.pointer("bob") == "1 unread from anna"


def test_a_listener_looks_at_a_message_that_is_not_for_it_once(store: Store) -> None:
    id = store.messages.send("to bob", agent="anna", to="bob").conversation
    since, asked = store.changes().cursor, ListenRequest("anna")
    unread = UnreadTracker(store)
    context = unread.read_context("anna")
    listener = MessageListener(unread, since, asked, 10, None, context)
    store.queries.in_one_transaction(lambda: listener.prepare(context[1]))
    assert listener.first_batch() == []
    for count in (2, 3):
        store.messages.send("to bob, too", agent="anna", to="bob")
        assert listener.process_changes(store.changes(listener.change_cursor)) == []
        assert (
            first_unread_position(listener.read_marks[id], partial(store.queries.ids_at, id))
            == count
        )
    store.messages.send("to anna", agent="bob", to="anna")
    assert [
        mail.content for mail in listener.process_changes(store.changes(listener.change_cursor))
    ] == ["to anna"]


@pytest.mark.parametrize("leaves", [True, False])
def test_a_version_of_a_message_is_given_to_whom_it_is_for(
    each_store: Store, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    store = each_store
    for agent in AGENTS:
        store.agents.register(agent)
    group = store.groups.create("Team", agent="anna", with_=["bob"])
    message = store.messages.send("first", agent="anna", conversation=group.id).message
    tail, moments = store.engine.tail, [True]

    def late(*asked: Any) -> Any:  # Between what the index says and the reading of the texts.
        if moments:
            moments.clear()
            if leaves:
                store.groups.leave(group.id, agent="bob")
            store.edits.message(group.id, message, "second")
        return tail(*asked)

    monkeypatch.setattr(store.engine, "tail", late)
    heard = store.messages.listen(agent="bob").messages
    assert [mail.content for mail in heard] == ([] if leaves else ["second"]) and not moments


def test_without_a_target_the_message_goes_to_the_only_other_agent(store: Store) -> None:
    assert store.messages.send("hello", agent="anna").conversation == "direct_anna_bob"
    store.agents.register("carl")
    with pytest.raises(InvalidInput, match="bob, carl"):
        store.messages.send("hello", agent="anna")


def test_a_message_that_reaches_nobody_is_an_error(store: Store) -> None:
    with pytest.raises(NotFound, match="the agents are: anna, bob"):
        store.messages.send("hello", agent="anna", to="dora")
    with pytest.raises(Refused):
        store.messages.send("hello", agent="anna", to="anna")
    group = store.groups.create("Alone", agent="anna")
    with pytest.raises(InvalidInput):
        store.messages.send("hello", agent="anna", conversation=group.id)
    assert store.head(group.id).id in store.ids()
    assert store.messages.inbox(agent="bob").unread == 0


def test_a_retry_with_the_same_key_writes_one_message_in_one_direct(store: Store) -> None:
    sent = [
        store.messages.send("once", agent="anna", to="bob", idempotency_key="k") for _ in range(3)
    ]
    assert len({each.message for each in sent}) == 1
    assert store.ids() == ["direct_anna_bob"]
    assert [mail.content for mail in store.messages.history("direct_anna_bob").messages] == ["once"]


def test_a_retry_into_a_channel_with_a_topic_of_its_own_writes_one_message(store: Store) -> None:
    channel = store.channels.create("plans", agent="anna", default_topic="misc").id
    sent = [
        store.messages.send("once", agent="anna", channel="plans", idempotency_key="k")
        for _ in range(2)
    ]
    assert sent[0].message == sent[1].message
    assert [mail.content for mail in store.messages.history(channel).messages] == ["once"]


def test_nothing_is_sent_behind_what_the_sender_has_not_seen(store: Store) -> None:
    seen = store.messages.send("first", agent="anna", to="bob")
    store.messages.send("meanwhile", agent="bob", to="anna")
    with pytest.raises(InvalidInput, match="1 message came"):
        store.messages.send("second", agent="anna", to="bob", seen=seen.message)
    assert [mail.content for mail in store.messages.history(seen.conversation).messages] == [
        "first",
        "meanwhile",
    ]


def test_a_store_that_keeps_no_locks_keeps_none_for_its_agents(store: Store) -> None:
    with store.beside(keep_locks=False) as other:
        chat = other.create(title="Chat").id
        other.inner.store_for("anna").append(chat, content="hello")
        assert other.head(chat).lock is None


def test_an_answer_names_a_message_of_its_conversation(store: Store) -> None:
    first = store.messages.send("Lunch?", agent="anna", to="bob")
    store.messages.send("Yes", agent="bob", to="anna", reply_to=first.message)
    assert store.messages.listen(agent="anna").messages[0].reply_to == first.message
    with pytest.raises(InvalidInput):
        store.messages.send("Yes", agent="bob", to="anna", reply_to="none-of-these")


def test_history_is_read_in_pages_and_marks_nothing_as_read(store: Store) -> None:
    for number in range(5):
        store.messages.send(str(number), agent="anna", to="bob")
    page = store.messages.history("direct_anna_bob", agent="bob", limit=2)
    assert ([mail.content for mail in page.messages], page.after) == (["3", "4"], None)
    page = store.messages.history("direct_anna_bob", agent="bob", limit=2, before=page.before)
    assert [mail.content for mail in page.messages] == ["1", "2"]
    assert store.messages.inbox(agent="bob").unread == 5
