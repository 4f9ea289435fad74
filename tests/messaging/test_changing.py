"""A message that was sent is changed or reacted to by those who may."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from capsule import InvalidInput, NotFound, Refused, Store
from capsule.store import pages


@pytest.fixture(params=["files", "postgres"])
def shared_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store that several processes could write."""
    place = request.getfixturevalue("root" if request.param == "files" else "database")
    with Store.open(place) as store:
        yield store


@pytest.fixture
def sent(each_store: Store) -> str:
    for agent in ("anna", "bob", "carl"):
        each_store.agents.register(agent)
    return each_store.messages.send("The build is red.", agent="anna", to="bob").message


def test_an_agent_changes_its_own_message_and_nobody_elses(each_store: Store, sent: str) -> None:
    edited = each_store.messages.edit(sent, "The build is green.", agent="anna")
    assert (edited.id, edited.content) == (sent, "The build is green.") and edited.edited_at
    with pytest.raises(Refused):
        each_store.messages.edit(sent, "No.", agent="bob")
    with pytest.raises(NotFound):
        each_store.messages.edit(sent, "No.", agent="carl")
    assert (
        each_store.messages.history("direct_anna_bob", agent="bob").messages[0].content
        == "The build is green."
    )


def test_a_reaction_is_an_answer_of_its_own_intent(each_store: Store, sent: str) -> None:
    reaction = each_store.messages.react(sent, "👍", agent="bob")
    [_, answer] = each_store.messages.history(reaction.conversation, agent="anna").messages
    assert (answer.content, answer.reply_to, answer.more.get("intent")) == ("👍", sent, "reaction")
    with pytest.raises(NotFound):
        each_store.messages.react(sent, "👍", agent="carl")


def test_an_agent_answers_and_reacts_to_no_message_from_before_it_joined(
    each_store: Store, sent: str
) -> None:
    group = each_store.groups.create("g", agent="anna", with_=["bob"]).id
    before = each_store.messages.send("before", agent="anna", conversation=group).message
    each_store.groups.add(group, ["carl"], agent="anna")
    unknown = before[:-1] + "x"
    for acting in (each_store, each_store.inner.store_for("carl")):
        with pytest.raises(NotFound):
            acting.messages.react(before, "👍", agent="carl")
        for given in ({"reply_to": before}, {"thread": before}):
            with pytest.raises(InvalidInput) as hidden:
                acting.messages.send(
                    "👍", agent="carl", conversation=group, intent="reaction", **given
                )
            with pytest.raises(InvalidInput) as missing:
                acting.messages.send(
                    "👍", agent="carl", conversation=group, **dict.fromkeys(given, unknown)
                )
            assert str(hidden.value).replace(before, unknown) == str(missing.value)
    assert len(each_store.load(group).history) == 1
    each_store.messages.react(before, "👍", agent="bob")


def test_a_message_is_answered_while_others_append(
    each_store: Store, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = pages.tail_entries

    def append_and_read(*args: Any) -> tuple[int, list[dict[str, Any]]]:
        monkeypatch.undo()
        for _ in range(40):
            each_store.append("direct_anna_bob", content="meanwhile")
        return read(*args)

    monkeypatch.setattr(pages, "tail_entries", append_and_read)
    answer = each_store.messages.send("Yes", agent="bob", to="anna", reply_to=sent)
    history = each_store.messages.history("direct_anna_bob", agent="anna", limit=99).messages
    assert [(each.content, each.reply_to) for each in history][1:] == [
        *[("meanwhile", None)] * 40,
        ("Yes", sent),
    ]
    assert answer.message == history[-1].id


def test_a_message_is_found_although_one_before_it_is_removed_meanwhile(
    each_store: Store, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, read = "direct_anna_bob", pages.tail_entries
    other, later = (str(each_store.append(id, content=text).id) for text in ("other", "later"))

    def remove_and_read(*args: Any) -> tuple[int, list[dict[str, Any]]]:
        monkeypatch.undo()
        each_store.branches.remove(id, sent, keep_children=True)
        return read(*args)

    monkeypatch.setattr(pages, "tail_entries", remove_and_read)
    assert each_store.messages.status(later).message == later
    each_store.messages.edit(other, "another")
    assert [message.content for message in each_store.load(id).history] == ["another", "later"]


def test_messages_are_found_by_all_who_may_read_them_while_others_append(
    shared_store: Store,
) -> None:
    store = shared_store
    for agent in ("anna", "bob"):
        store.agents.register(agent)
    sent = store.messages.send("The build is red.", agent="anna", to="bob").message
    ended = threading.Event()

    def append() -> None:
        while not ended.is_set():
            store.append("direct_anna_bob", content="meanwhile")

    with ThreadPoolExecutor(2) as pool:
        appending = [pool.submit(append) for _ in range(2)]
        try:
            for _ in range(40):
                assert store.messages.status(sent, agent="bob").message == sent
            for number in range(3):
                assert store.messages.react(sent, "👍", agent="bob").message
                store.messages.edit(sent, f"The build is green: {number}.", agent="anna")
        finally:
            ended.set()
        for each in appending:
            each.result()


def test_a_mention_that_was_done_is_open_again(each_store: Store, sent: str) -> None:
    asking = each_store.messages.send("@bob --review", agent="anna", to="bob").message
    for act, state in ((each_store.messages.done, "done"), (each_store.messages.reopen, "read")):
        act(asking, agent="bob")
        assert [each.state for each in each_store.messages.mentions(agent="bob", state="all")] == [
            state
        ]
