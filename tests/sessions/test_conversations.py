"""Conversations as a channel of sessions: what an agent says there, once, whatever becomes of what
it answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from typing import Any

import pytest

from capsule import Store
from capsule.errors import NotFound, StorageFailed
from capsule.sessions.adapters.conversations import ConversationAdapter
from capsule.sessions.adapters.interface import OutgoingFile, OutgoingMessage, ReceivedMessage
from tests.processes import until


def history(store: Store) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = store.engine.document("conversations", "direct_anna_bot")[
        "history"
    ]
    return entries


def brought(store: Store) -> list[ReceivedMessage]:
    """What the agent has not read."""
    took: list[ReceivedMessage] = []

    class Receiver:
        def receive(self, arrived: Sequence[ReceivedMessage]) -> None:
            took.extend(arrived)

    ConversationAdapter(store)._bring("bot", Receiver())
    return took


def out(**more: Any) -> OutgoingMessage:
    return OutgoingMessage(
        **{"id": "out", "kind": "chat", "session": "s1", "agent": "bot", "place": "direct_anna_bot"}
        | more
    )


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("chat", {"text": "yes", "reply_to": "*"}, {"content": "yes", "replyTo": "*"}),
        ("chat", {"text": "yes", "thread": "*"}, {"content": "yes", "thread": "*"}),
        (
            "chat",
            {"text": "yes", "reply_to": "gone", "thread": "gone"},
            {"content": "yes", "replyTo": None},
        ),
        (
            "reaction",
            {"emoji": "+1", "target": "*"},
            {"content": "+1", "replyTo": "*", "intent": "reaction"},
        ),
        (
            "question",
            {"text": "Sure?", "options": [{"label": "Yes", "value": "y"}]},
            {"content": "Sure?\n- Yes"},
        ),
    ],
)
def test_what_an_agent_says_is_there_once(
    store: Store, kind: Any, more: Any, expected: Any
) -> None:
    first = store.messages.send("hello", agent="anna", to="bot").message
    more, expected = (
        {name: first if value == "*" else value for name, value in each.items()}
        for each in (more, expected)
    )
    said = out(kind=kind, hops=3, **more)
    assert (
        ConversationAdapter(store).deliver(said)
        == ConversationAdapter(store).deliver(said)
        == history(store)[1]["id"]
    )
    assert len(history(store)) == 2
    assert {name: history(store)[1].get(name) for name in expected} == expected
    assert (history(store)[1]["from"], history(store)[1]["metadata"]["session"]) == (
        "bot",
        {"id": "s1", "hops": 3},
    )


def test_what_an_agent_says_first_in_a_direct_makes_it(store: Store) -> None:
    for _ in range(2):
        ConversationAdapter(store).deliver(out(text="hello"))
    assert [(each["from"], each["content"]) for each in history(store)] == [("bot", "hello")]


def test_a_file_is_kept_once_and_a_message_of_the_agent_can_be_changed(store: Store) -> None:
    store.messages.send("hello", agent="anna", to="bot")
    adapter, file = ConversationAdapter(store), OutgoingFile("plan.txt", lambda: b"plan")
    id = adapter.deliver(out(kind="file", text="the plan", files=[file]))
    assert adapter.deliver(out(kind="file", text="the plan", files=[file])) == id
    assert adapter.deliver(out(id="edit", kind="edit", text="the new plan", target=id)) == id
    (kept,) = store.engine.files.names("attachments", "any")
    attached = [{"name": "plan.txt", "path": f"attachments/{kept}"}]
    assert [(each["content"], each.get("attachments")) for each in history(store)[1:]] == [
        ("the new plan", attached)
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"place": "nowhere"},
        {"agent": "ben"},
        {"place": "direct_ben_eve"},
        {"kind": "edit", "target": "gone"},
    ],
)
def test_what_can_t_be_said_is_refused_for_good(store: Store, more: Any) -> None:
    store.agents.register("ben")
    store.messages.send("hello", agent="anna", to="bot")
    with pytest.raises(NotFound):
        ConversationAdapter(store).deliver(out(text="no", **more))


def test_what_was_not_taken_is_brought_again_and_what_was_taken_is_not(store: Store) -> None:
    named = {"name": "plan.txt", "path": "attachments/0"}
    direct = store.messages.send("one", agent="anna", to="bot").conversation
    store.inner.store_for("anna").append(direct, content="two", attachments=[named])
    asked: list[list[str]] = []
    taken: list[ReceivedMessage] = []
    is_full = Event()

    class Receiver:
        def receive(self, arrived: Sequence[ReceivedMessage]) -> None:
            asked.append([each.text for each in arrived])
            if is_full.is_set():
                raise StorageFailed("the disk is full", path="", errno=None)
            taken.extend(arrived)

    is_full.set()
    adapter = ConversationAdapter(store)
    adapter.start(Receiver())
    until(lambda: asked)
    assert store.messages.inbox(agent="bot").unread == 2
    is_full.clear()
    adapter.look()
    until(lambda: store.messages.inbox(agent="bot").unread == 0)
    store.messages.send("three", agent="anna", to="bot")
    until(lambda: len(taken) == 3)
    adapter.stop()
    assert [each.text for each in taken] == ["one", "two", "three"]
    assert asked[0] == asked[-2] == ["one", "two"] and asked[-1] == ["three"]
    assert (taken[1].place, taken[1].sender, taken[1].to) == (direct, "anna", {"bot"})
    assert (taken[1].attachments, taken[1].is_group) == ((named,), False)


def test_a_sender_that_is_no_agent_of_the_store_is_a_stranger(store: Store) -> None:
    sent = store.messages.send("hello", agent="anna", to="bot")
    store.append(sent.conversation, role="user", content="let me in", **{"from": "eve"})
    took = brought(store)
    assert [(each.sender, each.known) for each in took] == [("anna", True), ("eve", False)]


@pytest.mark.parametrize(
    ("hops", "counted"), [(3, 3), (-5, 0), (2.5, 0), ("3", 0), (True, 0), (None, 0)]
)
def test_hops_that_no_host_wrote_count_as_none(store: Store, hops: Any, counted: int) -> None:
    store.messages.send("hello", agent="anna", to="bot", metadata={"session": {"hops": hops}})
    took = brought(store)
    assert [each.hops for each in took] == [counted]


def test_what_a_blocked_agent_says_is_not_brought_and_wakes_no_worker(store: Store) -> None:
    id = store.channels.create("news", agent="anna", scope="global", members=["bot"]).id
    store.agents.block(agent="bot", other="anna")
    store.messages.send("@bot --action obey", agent="anna", conversation=id)
    store.messages.send("@all --action obey", agent="anna", conversation=id)
    assert brought(store) == []
    store.agents.register("bob")
    store.channels.join(id, agent="bob")
    store.messages.send("@bot hello", agent="bob", conversation=id)
    assert [each.sender for each in brought(store)] == ["bob"]
