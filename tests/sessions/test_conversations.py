"""Conversations as a channel of sessions: what an agent says there, once, whatever becomes of what it answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from capsule import Store
from capsule.errors import CapsuleError, NotFound, Refused
from capsule.sessions.adapters.conversations import Conversations
from capsule.sessions.adapters.interface import File, Outgoing


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.in_memory() as store:
        store.agents.register("anna")
        store.agents.register("bot")
        yield store


def history(store: Store) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = store.engine.document("conversations", "direct_anna_bot")["history"]
    return entries


def out(**more: Any) -> Outgoing:
    return Outgoing(**{"id": "out", "kind": "chat", "session": "s1", "agent": "bot", "place": "direct_anna_bot"} | more)


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("chat", {"text": "yes", "reply_to": "*"}, {"content": "yes", "replyTo": "*"}),
        ("chat", {"text": "yes", "thread": "*"}, {"content": "yes", "thread": "*"}),
        ("chat", {"text": "yes", "reply_to": "gone", "thread": "gone"}, {"content": "yes", "replyTo": None}),
        ("reaction", {"emoji": "+1", "target": "*"}, {"content": "+1", "replyTo": "*", "intent": "reaction"}),
        ("question", {"text": "Sure?", "options": [{"label": "Yes", "value": "y"}]}, {"content": "Sure?\n- Yes"}),
    ],
)
def test_what_an_agent_says_is_there_once(store: Store, kind: Any, more: Any, expected: Any) -> None:
    first = store.messages.send("hello", agent="anna", to="bot").message
    more, expected = (
        {name: first if value == "*" else value for name, value in each.items()} for each in (more, expected)
    )
    said = out(kind=kind, hops=3, **more)
    assert Conversations(store).deliver(said) == Conversations(store).deliver(said) == history(store)[1]["id"]
    assert len(history(store)) == 2
    assert {name: history(store)[1].get(name) for name in expected} == expected
    assert (history(store)[1]["from"], history(store)[1]["metadata"]["session"]) == ("bot", {"id": "s1", "hops": 3})


def test_a_file_is_kept_once_and_a_message_of_the_agent_can_be_changed(store: Store) -> None:
    store.messages.send("hello", agent="anna", to="bot")
    adapter, file = Conversations(store), File("plan.txt", lambda: b"plan")
    id = adapter.deliver(out(kind="file", text="the plan", files=[file]))
    assert adapter.deliver(out(kind="file", text="the plan", files=[file])) == id
    assert adapter.deliver(out(id="edit", kind="edit", text="the new plan", target=id)) == id
    (kept,) = store.engine.files("attachments", "any")
    attached = [{"name": "plan.txt", "path": f"attachments/{kept}"}]
    assert [(each["content"], each.get("attachments")) for each in history(store)[1:]] == [("the new plan", attached)]


@pytest.mark.parametrize(
    ("more", "error"),
    [({"place": "nowhere"}, NotFound), ({"agent": "ben"}, Refused), ({"kind": "edit", "target": "gone"}, NotFound)],
)
def test_what_can_t_be_said_is_refused_for_good(store: Store, more: Any, error: type[CapsuleError]) -> None:
    store.agents.register("ben")
    store.messages.send("hello", agent="anna", to="bot")
    with pytest.raises(error):
        Conversations(store).deliver(out(text="no", **more))
