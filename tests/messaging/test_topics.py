"""Topics and threads: where a message goes, and what who reads one of them has read."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from capsule import InvalidInput, Store
from tests.core.store.making import channel

CHANNEL = "channel_global_api"


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.in_memory() as store:
        for agent in ("anna", "bob"):
            store.agents.register(agent)
        channel(store, CHANNEL, "anna", "bob")
        yield store


def send(store: Store, text: str, **fields: Any) -> str:
    return store.messages.send(text, agent="anna", conversation=CHANNEL, **fields).message


def heard(store: Store, **part: str) -> list[str]:
    return [mail.content for mail in store.messages.listen(agent="bob", **part).messages]


def test_a_message_keeps_what_is_said_about_it(store: Store) -> None:
    about = {
        "topic": "api",
        "intent": "ask",
        "priority": "high",
        "confidence": 0.5,
        "metadata": {"pr": 7},
    }
    about["model"] = "m-1"
    send(store, "done?", **about)
    [mail] = store.messages.listen(agent="bob").messages
    assert mail.as_json().items() >= about.items()
    assert store.messages.inbox(agent="bob").conversations[0].type == "channel"


@pytest.mark.parametrize(
    ("settings", "given", "topic"),
    [
        ({}, None, None),
        ({}, "api", "api"),
        ({"default_topic": "chat"}, None, "chat"),
        ({"default_topic": "chat", "topic_required": True}, None, "chat"),
        ({"default_topic": "chat", "topic_required": True}, "api", "api"),
        ({"topic_required": True}, "api", "api"),
    ],
)
def test_the_channel_gives_a_topic_to_a_message_without_one(
    store: Store, settings: dict[str, Any], given: str | None, topic: str | None
) -> None:
    id = channel(store, "channel_global_new", "anna", "bob", **settings)
    store.messages.send("hello", agent="anna", conversation=id, topic=given)
    assert store.document(id)["history"][0].get("topic") == topic


def test_where_a_topic_is_required_the_error_names_those_there_are(store: Store) -> None:
    id = channel(store, "channel_global_new", "anna", "bob", topic_required=True)
    root = store.messages.send("first", agent="anna", conversation=id, topic="release").message
    with pytest.raises(InvalidInput, match="release"):
        store.messages.send("second", agent="anna", conversation=id)
    store.messages.send("third", agent="anna", conversation=id, thread=root)
    assert [entry["topic"] for entry in store.document(id)["history"]] == ["release", "release"]


def test_a_thread_is_named_by_its_root(store: Store) -> None:
    root = send(store, "root", topic="api")
    answer = send(store, "answer", thread=root)
    send(store, "answer to it", thread=answer, topic="other")
    entries = store.document(CHANNEL)["history"][1:]
    assert [(entry["thread"], entry["topic"]) for entry in entries] == [
        (root, "api"),
        (root, "other"),
    ]
    with pytest.raises(InvalidInput):
        send(store, "nowhere", thread="none-of-these")


def test_who_listens_to_a_topic_has_read_that_topic_and_nothing_else(store: Store) -> None:
    for number, topic in enumerate(("api", "web", "api", "web")):
        send(store, f"{topic} {number}", topic=topic)
    assert store.messages.inbox(agent="bob", topic="api").unread == 2
    assert heard(store, topic="api") == ["api 0", "api 2"]
    assert heard(store, topic="api") == []
    assert (store.messages.inbox(agent="bob").unread, store.messages.pointer("bob")) == (
        2,
        "2 unread from anna",
    )
    send(store, "api 4", topic="api")
    assert heard(store.beside(), topic="api") == ["api 4"]
    heard_all = store.messages.listen(agent="bob")
    assert [mail.content for mail in heard_all.messages] == ["web 1", "web 3", "api 4"]
    store.messages.ack(agent="bob", cursor=heard_all.cursor)
    assert store.messages.inbox(agent="bob").unread == 0
    assert list(store.agents._documents.object_in("bob", "cursors")) == [CHANNEL]


def test_who_listens_to_a_thread_hears_its_root_too(store: Store) -> None:
    root = send(store, "root")
    send(store, "beside")
    last = send(store, "answer", thread=root)
    assert heard(store, thread=root) == ["root", "answer"]
    store.messages.ack(agent="bob", conversation=CHANNEL, thread=root)
    assert store.messages.status(last).recipients == {"bob": "read"}
    assert heard(store) == ["beside"]
    with pytest.raises(InvalidInput):
        heard(store, topic="api", thread=root)


def test_history_is_read_by_topic_and_by_thread(store: Store) -> None:
    root = send(store, "root", topic="api")
    send(store, "beside")
    for number in range(3):
        send(store, str(number), thread=root)
    send(store, "web", topic="web")
    page = store.messages.history(CHANNEL, agent="bob", thread=root, limit=2)
    assert [mail.content for mail in page.messages] == ["1", "2"]
    page = store.messages.history(CHANNEL, agent="bob", thread=root, before=page.before)
    assert [mail.content for mail in page.messages] == ["root", "0"]
    for conversation in (None, CHANNEL):
        found = store.queries.messages({"thread": root}, conversation)
        assert [place.position for place in found] == [0, 2, 3, 4]
        assert [
            place.position
            for place in store.queries.messages({"thread": {"$ne": root}}, conversation)
        ] == [1, 5]
    assert store.beside(agent="bob").search("root", where={"thread": root}).hits[0].message == root
    page = store.messages.history(
        CHANNEL, agent="bob", topic="api", where={"thread": {"$exists": False}}
    )
    assert [mail.content for mail in page.messages] == ["root"]


def test_a_topic_may_have_any_name(store: Store) -> None:
    for topic in ("a/b", "a,b:c%2F", "@all", "ä"):
        send(store, topic, topic=topic)
        given = store.messages.listen(agent="bob", topic=topic)
        assert [mail.content for mail in given.messages] == [topic]
        store.messages.ack(agent="bob", cursor=given.cursor)
        assert store.messages.inbox(agent="bob", topic=topic).unread == 0
    assert store.messages.inbox(agent="bob").unread == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_parts_are_read_each_message_is_heard_once(store: Store, seed: int) -> None:
    draw = Random(seed)
    sent: list[str] = []
    heard_ids: list[str] = []
    for _ in range(60):
        if draw.random() < 0.5:
            thread = draw.choice(sent) if sent and draw.random() < 0.4 else None
            topic = draw.choice(["api", "web", None])
            who = draw.choice(["anna", "anna", "bob"])
            message = store.messages.send(
                "x", agent=who, conversation=CHANNEL, topic=topic, thread=thread
            ).message
            sent += [message] if who == "anna" else []
        else:
            part = draw.choice(
                [{}, {"topic": "api"}, {"topic": "web"}, {"thread": draw.choice(sent or [""])}]
            )
            unread = store.messages.inbox(agent="bob", **part).unread
            given = store.beside().messages.listen(
                agent="bob", limit=draw.choice([1, 3, 100]), **part
            )
            assert min(unread, 100) >= len(given.messages) > 0 or unread == 0
            store.messages.ack(agent="bob", cursor=given.cursor)
            heard_ids += [mail.id for mail in given.messages]
            left = set(sent) - set(heard_ids)
            assert store.messages.inbox(agent="bob").unread == len(left)
    heard_ids += [mail.id for mail in store.messages.listen(agent="bob").messages]
    assert sorted(heard_ids) == sorted(sent)
