"""What an agent may write: checked in the transaction of the write, whichever method makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from capsule import NotFound, Refused, Store
from capsule.store.change.conversation import Conversation
from tests.core.store.doors import WRITES
from tests.core.store.making import EARLY, LATE, branched, make


@pytest.fixture
def store(each_store: Store) -> Store:
    return each_store


#: What a participant may do with a message of another one there, and what with its own.
OTHERS = {"append", "append_many", "append_once", "rename", "tag", "titles.suggest", "context.set"}
OWN = {"edits.message", "branches.remove"}
#: What takes away or changes messages.
TAKING = {*OWN, "delete", "forks.delete"}
OPEN = ("chat", "group", "direct", "channel")
TEAM = ("anna", "bob", {"id": "carl", "joinedAt": EARLY, "leftAt": LATE})
#: The type and the participants of a conversation, who writes to it, and the doors that let it.
CASES: dict[str, tuple[str, tuple[Any, ...], str | None, set[str]]] = {
    "a stranger": ("group", TEAM, "eve", set()),
    "one who left": ("group", TEAM, "carl", set()),
    "another participant": ("group", TEAM, "bob", OTHERS),
    "who wrote the messages": ("group", TEAM, "anna", OTHERS | OWN),
    "a third agent": ("direct", ("anna", "bob"), "eve", set()),
    "the other one": ("direct", ("anna", "bob"), "bob", OTHERS - {"rename", "titles.suggest"}),
    "the owner": (
        "direct",
        ("anna", "bob"),
        None,
        {*WRITES} - {"rename", "archive", "titles.suggest"},
    ),
    **{
        f"who wrote nothing of an open {type}": (type, (), "eve", {*WRITES} - TAKING)
        for type in OPEN
    },
    **{f"who wrote all of an open {type}": (type, (), "anna", {*WRITES}) for type in OPEN},
    **{f"the owner of an open {type}": (type, (), None, {*WRITES}) for type in OPEN},
}


def outcome(store: Store, write: Callable[[Store, str], Any], id: str) -> str:
    before = store.inner.whole_engine.document("conversations", id)
    try:
        write(store, id)
    except (NotFound, Refused):
        assert store.inner.whole_engine.document("conversations", id) == before
        return "refused"
    return "done"


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("case", CASES)
def test_a_door_lets_an_agent_write_what_the_rule_says(store: Store, case: str, write: str) -> None:
    type, participants, agent, done = CASES[case]
    id = branched(
        store,
        "direct_anna_bob" if type == "direct" and participants else "team",
        *participants,
        type=type,
    )
    acting = store if agent is None else store.beside(agent=agent)
    assert outcome(acting, WRITES[write], id) == ("done" if write in done else "refused")


@pytest.mark.parametrize(("participants", "type"), [((), "chat"), (("anna", "bob"), "group")])
def test_an_agent_that_removes_its_own_message_leaves_the_answers(
    store: Store, participants: Any, type: str
) -> None:
    id, anna = (
        make(store, "team", *participants, type=type, currentNode="team-first"),
        store.beside(agent="anna"),
    )
    with store.beside(agent="bob") as bob:
        answer = str(bob.append(id, content="answer").id)
    assert anna.branches.remove(id, "team-first", dry_run=True).ids == ("team-first",)
    anna.branches.remove(id, "team-first", expected=["team-first"])
    assert [message.id for message in store.load(id).history] == [answer]


CHANGES: dict[str, Callable[[Store, str, str], Any]] = {
    "an edit": lambda store, id, at: store.edits.message(id, at, "REWRITTEN"),
    "an edit of the file": lambda store, id, at: store.edits.rewrite(
        id, store.read(id).replace(b'"alice"', b'"anna"'), store.read(id)
    ),
    "words in the name of another": lambda store, id, at: store.edits.rewrite(
        id, store.read(id).replace(b'"content": "one"', b'"content": "two"'), store.read(id)
    ),
    "a removal": lambda store, id, at: store.branches.remove(id, at),
    "a removal alone": lambda store, id, at: store.branches.remove(id, at, keep_children=True),
    "a trim": lambda store, id, at: store.branches.trim(id),
    "a deletion": lambda store, id, at: store.delete(id),
    "an earlier version": lambda store, id, at: store.versions.restore(
        id, {**(now := store.document(id)), "history": now["history"][:1]}
    ),
}


@pytest.mark.parametrize("how", CHANGES)
def test_in_a_chat_an_agent_changes_no_message_of_another_agent_or_of_a_person(
    store: Store, how: str
) -> None:
    store = store.beside(keep_locks=False)
    messages = [
        {"role": "user", "content": "one", "from": "alice"},
        {"role": "user", "content": "of a person"},
    ]
    id = store.create(title="Plan", messages=messages).id
    first = str(store.load(id).history[0].id)
    store.append(id, content="beside", parent=None)
    store.branches.switch(id, first)
    with store.beside(keep_locks=False, agent="anna") as anna:
        assert outcome(anna, lambda store, id: CHANGES[how](store, id, first), id) == "refused"
        assert outcome(anna, lambda store, id: CHANGES[how](store, id, "@1"), id) == "refused"


def test_an_edit_says_which_agent_made_it_until_a_person_edits(store: Store) -> None:
    store = store.beside(keep_locks=False)
    id = store.create(title="Plan").id
    with store.beside(keep_locks=False, agent="anna") as anna:
        at = str(anna.append(id, content="one").id)
        assert anna.edits.message(id, at, "two").edited_by == "anna"
        anna.edits.rewrite(id, store.read(id).replace(b'"two"', b'"three"'), store.read(id))
        assert store.load(id).history[0].edited_by == "anna"
    assert store.edits.message(id, at, "four").edited_by is None


def test_a_message_is_from_the_agent_that_the_store_acts_for(store: Store) -> None:
    anna = store.beside(agent="anna")
    assert (anna.agent, anna.beside().agent, store.agent) == ("anna", "anna", None)
    id = anna.create(type="group", messages=[{"role": "user", "content": "one"}]).id
    anna.append(id, content="two")
    anna.append_once(id, "key", content="three")
    anna.append_once(id, "key", content="three")
    anna.append(id, content="four", **{"from": "anna"})
    anna.branches.revise(id, "@0", "five")
    assert [message.from_ for message in store.load(id).history] == ["anna"] * 5
    for write in (anna.append, lambda id, **fields: anna.append_once(id, "other", **fields)):
        with pytest.raises(Refused):
            write(id, content="six", **{"from": "bob"})
    with pytest.raises(Refused):
        anna.create(messages=[{"role": "user", "content": "one", "from": "bob"}])
    assert len(store.load(id).history) == 5


def test_an_agent_makes_no_closed_conversation_without_itself(store: Store) -> None:
    make(store.beside(agent="anna"), "ours", "anna", "bob")
    make(store.beside(agent="anna"), "direct_anna_bob", "anna", "bob", type="direct")
    for id, type in (("theirs", "group"), ("direct_bob_carl", "direct")):
        with pytest.raises(Refused):
            make(store.beside(agent="anna"), id, "bob", "carl", type=type)
    assert store.ids() == ["direct_anna_bob", "ours"]


def test_a_message_in_a_group_is_never_earlier_than_the_last_one_joined(store: Store) -> None:
    ahead = "2999-01-01T00:00:00.000Z"
    make(store, "team", "anna", {"id": "bob", "joinedAt": ahead})
    assert store.append("team", content="hello").timestamp == ahead


@pytest.mark.parametrize("is_before", [True, False])
def test_a_policy_that_changes_within_a_write_has_it_decided_anew(
    store: Store, is_before: bool
) -> None:
    store.agents.register("anna")
    store.agents.register("bob")
    blocks = iter([{"anna": {"permission": "block"}}])
    with store.beside(keep_locks=False, agent="anna") as anna:
        id = anna.messages.send("hello", to="bob").conversation

        def change_policy() -> None:
            for entry in blocks:  # Once: in the first try.
                store.agents._documents.edit(
                    "bob", lambda document, entry=entry: document.update(dm=entry)
                )  # type: ignore[misc]

        def act(inside: Conversation) -> object:
            if is_before:
                change_policy()
            inside.ensure_permitted("append")
            change_policy()
            return inside.append([{"role": "user", "content": "too late"}])

        with pytest.raises(Refused, match="blocked"):
            anna.inner.change(id, act)
    assert [message.content for message in store.load(id).history] == ["hello"]
