"""Messages between processes: both sides at once, several listeners, retries, and clients
that die.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from capsule import NotFound, Refused, Store
from capsule.messaging.mail import Heard
from tests.processes import Child, together

SENDS = """
with Store.open(sys.argv[1]) as store:
    say()
    hear()
    say(store.messages.send(sys.argv[4], agent=sys.argv[2], to=sys.argv[3]).conversation)
"""
LISTENS = """
with Store.open(sys.argv[1]) as store:
    wanted = int(sys.argv[2])
    heard = []
    say()
    while len(heard) < wanted:
        found = store.messages.listen(agent="bob", timeout_s=60)
        heard += [mail.content for mail in found.messages]
    say(heard)
    hear()
"""


@pytest.fixture(autouse=True)
def agents(store: Store) -> None:
    for agent in ("anna", "bob", "carl"):
        store.agents.register(agent)


def listening(store: Store, agent: str, count: int = 1) -> None:
    """Wait until so many instances listen for an agent."""
    while (
        sum(
            about == {"agent": agent, "listening": True}
            for about in store.engine.leases.live_instances().values()
        )
        < count
    ):
        time.sleep(0.001)


@contextmanager
def waiting(store: Store, **asked: Any) -> Iterator[Future[Heard]]:
    """What bob hears, who waits for it while the body runs."""
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(store.messages.listen, timeout_s=600, **{"agent": "bob", **asked})
        listening(store, "bob")
        yield heard


def texts(heard: Heard) -> list[str]:
    return [mail.content for mail in heard.messages]


def test_both_sides_that_send_at_once_make_one_direct_and_lose_nothing(
    store: Store, child: Callable[..., Child]
) -> None:
    sides = [
        child(SENDS, store.root, *names)
        for names in (("anna", "bob", "to bob"), ("bob", "anna", "to anna")) * 2
    ]
    together(*sides)
    assert {side.hear() for side in sides} == {"direct_anna_bob"}
    assert store.ids() == ["direct_anna_bob"]
    for agent in ("anna", "bob"):
        mail = store.messages.listen(agent=agent).messages
        assert [each.content for each in mail] == [f"to {agent}"] * 2


def test_each_of_several_listeners_of_one_agent_hears_everything(
    store: Store, child: Callable[..., Child]
) -> None:
    listeners = [child(LISTENS, store.root, 20) for _ in range(3)]
    for listener in listeners:
        listener.hear()
    listening(store, "bob", 3)  # None of them keeps the others from listening.
    for number in range(20):
        store.messages.send(str(number), agent="anna", to="bob")
    for listener in listeners:
        assert listener.hear() == [str(number) for number in range(20)]


def test_two_listeners_in_one_instance_hear_everything(store: Store) -> None:
    heard: list[list[str]] = [[], []]

    def listen(mine: list[str]) -> None:
        while len(set(mine)) < 10:
            mine += [
                mail.content for mail in store.messages.listen(agent="bob", timeout_s=30).messages
            ]

    threads = [threading.Thread(target=listen, args=(mine,)) for mine in heard]
    for thread in threads:
        thread.start()
    while any(not mine for mine in heard):  # Until both listen.
        store.messages.send("0", agent="anna", to="bob")
    for number in range(1, 10):
        store.messages.send(str(number), agent="anna", to="bob")
    for thread in threads:
        thread.join()
    assert [sorted(set(mine), key=int) for mine in heard] == [
        [str(number) for number in range(10)]
    ] * 2


def test_messages_of_the_same_moment_are_told_apart_by_their_places(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_800_000_000_000_000_000)
    sent = [store.messages.send(str(number), agent="anna", to="bob") for number in range(3)]
    heard = store.messages.listen(agent="bob", limit=2)
    assert (texts(heard), len({mail.timestamp for mail in heard.messages})) == (["0", "1"], 1)
    store.messages.ack(agent="bob", cursor=heard.cursor)
    assert texts(store.messages.listen(agent="bob")) == ["2"]
    assert len({each.message for each in sent}) == 3


def test_an_agent_awaits_its_mail_in_an_event_loop(store: Store) -> None:
    async def talk() -> tuple[list[str], bool]:
        waiting = asyncio.create_task(store.messages.await_mail(agent="bob", timeout_s=60))
        await asyncio.to_thread(listening, store, "bob")
        await asyncio.to_thread(store.messages.send, "hello", agent="anna", to="bob")
        heard = await waiting
        nothing = await store.messages.await_mail(agent="bob", timeout_s=0.05)
        return [mail.content for mail in heard.messages], nothing.timed_out

    assert asyncio.run(talk()) == (["hello"], True)


def test_a_wait_for_one_conversation_is_not_ended_by_another(store: Store) -> None:
    direct = store.messages.send("first", agent="anna", to="bob").conversation
    store.messages.ack(agent="bob", conversation=direct)
    with waiting(store, conversation=direct) as heard:
        store.messages.send("elsewhere", agent="carl", to="bob")
        store.messages.send("here", agent="anna", to="bob")
    assert texts(heard.result()) == ["here"]
    assert store.messages.pointer("bob") == "2 unread from anna, carl"


def test_a_listener_hears_of_a_direct_and_a_group_that_begin_while_it_waits(
    store: Store, child: Callable[..., Child]
) -> None:
    listener = child(LISTENS, store.root, 2)
    listener.hear()
    listening(store, "bob")
    store.messages.send("direct", agent="carl", to="bob")
    group = store.groups.create("Late", agent="anna", with_=["carl"])
    store.messages.send("before bob", agent="anna", conversation=group.id)
    store.groups.add(group.id, ["bob"], agent="anna")
    store.messages.send("group", agent="anna", conversation=group.id)
    assert listener.hear() == ["direct", "group"]


def test_closing_the_store_ends_a_wait(root: Path) -> None:
    store = Store.open(root)
    with waiting(store) as heard:
        store.close()
    assert texts(heard.result()) == []


def test_a_message_that_a_person_types_into_the_file_is_heard(root: Path, store: Store) -> None:
    direct = store.messages.send("first", agent="anna", to="bob").conversation
    path = root / "conversations" / f"{direct}.json"
    typed = (
        '    },\n    {\n      "role": "user",\n      "content": "typed",\n      "from": '
        '"anna"\n    }\n  ]\n}\n'
    )
    text = path.read_text()
    assert text.endswith("    }\n  ]\n}\n")
    path.write_text(text.removesuffix("    }\n  ]\n}\n") + typed)
    assert texts(store.messages.listen(agent="bob")) == ["first", "typed"]
    assert store.messages.listen(agent="bob").messages == []
    assert store.messages.inbox(agent="bob").unread == 0


def test_a_store_that_acts_for_an_agent_sends_and_hears_as_that_agent_only(
    root: Path, store: Store
) -> None:
    group = store.groups.create("Release", agent="anna", with_=["carl"])
    store.messages.send("before bob", agent="anna", conversation=group.id)
    store.messages.send("secret", agent="anna", to="carl")
    store.groups.add(group.id, ["bob"], agent="anna")
    store.messages.send("to all", agent="anna", conversation=group.id)
    with Store.open(root, agent="bob") as bob:
        assert bob.messages.inbox().as_json()["unread"] == 1
        assert texts(bob.messages.listen()) == ["to all"]
        assert [mail.content for mail in bob.messages.history(group.id).messages] == ["to all"]
        with waiting(bob, agent=None) as heard:
            sent = store.messages.send("now", agent="carl", to="bob")
        told = store.messages.status(sent.message).recipients
        assert (texts(heard.result()), told) == (["now"], {"bob": "stored"})
        bob.messages.ack()
        assert bob.messages.status(sent.message, agent="bob").recipients == {"bob": "read"}
        answer = bob.messages.send("thanks", to="carl", reply_to=sent.message)
        assert [mail.from_ for mail in store.messages.listen(agent="carl").messages][-1:] == ["bob"]
        with pytest.raises((Refused, NotFound)):
            bob.messages.inbox(agent="carl")
        assert answer.conversation == "direct_bob_carl"


def test_a_conversation_that_comes_back_from_the_trash_is_not_heard_again(store: Store) -> None:
    direct = store.messages.send("read before", agent="anna", to="bob").conversation
    store.messages.ack(agent="bob", conversation=direct)
    store.delete(direct)
    with waiting(store) as heard:
        store.trash.restore(direct)
        store.messages.send("new", agent="anna", to="bob")
    assert texts(heard.result()) == ["new"]
