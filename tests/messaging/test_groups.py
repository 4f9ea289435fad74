"""Groups: who is in, what they read, and what becomes of a group that everybody has left."""

from __future__ import annotations

import re

import pytest

from capsule import InvalidInput, NotFound, Refused, Store

AGENTS = dict.fromkeys(("anna", "bob", "carl"))


def texts(store: Store, agent: str) -> list[str]:
    return [mail.content for mail in store.messages.listen(agent=agent).messages]


def members(store: Store, id: str) -> list[str]:
    return [member.id for member in store.head(id).participants if member.is_in]


def test_a_group_reaches_all_its_members_and_nobody_else(store: Store) -> None:
    group = store.groups.create("Release", agent="anna", with_=["bob"])
    assert re.fullmatch("group_[0-9]{13}_[a-z0-9]{9}", group.id)
    sent = store.messages.send("Ready?", agent="anna", conversation=group.id)
    assert sent.recipients == {"bob": "stored"}
    assert (texts(store, "bob"), texts(store, "carl")) == (["Ready?"], [])
    assert store.messages.inbox(agent="carl").unread == 0
    with pytest.raises(NotFound):
        store.messages.send("Me too", agent="carl", conversation=group.id)
    with pytest.raises(NotFound):
        store.groups.add(group.id, ["carl"], agent="carl")
    assert [head.id for head in store.groups.list(agent="bob")] == [group.id]
    assert store.groups.list(agent="carl") == []


def test_who_leaves_hears_no_more_until_somebody_adds_it_again(store: Store) -> None:
    group = store.groups.create("Release", agent="anna", with_=["bob", "carl"])
    store.groups.leave(group.id, agent="carl")
    store.messages.send("without carl", agent="anna", conversation=group.id)
    assert texts(store, "carl") == []
    with pytest.raises(NotFound):
        store.messages.send("again", agent="carl", conversation=group.id)
    with pytest.raises(NotFound):
        store.messages.listen(agent="carl", conversation=group.id)
    store.groups.add(group.id, ["carl"], agent="anna")
    store.messages.send("with carl", agent="anna", conversation=group.id)
    assert texts(store, "carl") == ["with carl"]
    store.messages.send("I am back", agent="carl", conversation=group.id)


def test_a_group_is_archived_by_the_last_one_who_leaves_and_comes_back_with_the_first_one_added(
    store: Store,
) -> None:
    group = store.groups.create("Release", agent="anna", with_=["bob"])
    store.groups.leave(group.id, agent="bob")
    assert not store.head(group.id).archived
    store.groups.leave(group.id, agent="anna")
    assert store.head(group.id).archived
    assert [head.id for head in store.list().heads] == []
    store.groups.add(group.id, ["bob", "anna"])
    assert (store.head(group.id).archived, members(store, group.id)) == (False, ["anna", "bob"])
    assert store.messages.send("Back", agent="bob", conversation=group.id).recipients == {
        "anna": "stored"
    }


def test_a_member_renames_a_group_and_the_inbox_has_its_name(store: Store) -> None:
    group = store.groups.create("Release", agent="anna", with_=["bob"])
    assert store.groups.rename(group.id, "Release 2", agent="bob").title == "Release 2"
    store.messages.send("Hi", agent="anna", conversation=group.id)
    assert [item.name for item in store.messages.inbox(agent="bob").conversations] == ["Release 2"]
    with pytest.raises(NotFound):
        store.groups.rename(group.id, "Mine", agent="carl")


def test_a_direct_has_its_two_members_for_ever(store: Store) -> None:
    direct = store.messages.send("Hi", agent="anna", to="bob").conversation
    for change in (
        lambda: store.groups.leave(direct, agent="anna"),
        lambda: store.groups.add(direct, ["carl"], agent="anna"),
        lambda: store.groups.rename(direct, "Us", agent="anna"),
    ):
        with pytest.raises(InvalidInput):
            change()
    for write in (
        lambda: store.rename(direct, "Us"),
        lambda: store.archive(direct),
        lambda: store.messages.send("Me", agent="carl", conversation=direct),
    ):
        with pytest.raises((Refused, NotFound)):
            write()
    assert members(store, direct) == ["anna", "bob"]


def test_a_group_of_unknown_agents_is_not_made(store: Store) -> None:
    with pytest.raises(NotFound, match="anna, bob, carl"):
        store.groups.create("Release", with_=["dora"])
    for unknown in ("dora", ""):
        with pytest.raises(Refused):
            store.groups.create("Release", agent="anna", with_=[unknown])
    with pytest.raises(InvalidInput):
        store.groups.create("Release")
    with pytest.raises(InvalidInput):
        store.groups.create("Release", agent="anna", history="some")
    assert store.ids() == []


def test_the_owner_makes_a_group_without_taking_part_and_lists_all(store: Store) -> None:
    theirs = store.groups.create("Release", agent="anna", with_=["bob"]).id
    made = store.groups.create("Board", with_=["carl", "bob"])
    assert [member.id for member in made.participants] == ["carl", "bob"]
    assert {head.id for head in store.groups.list()} == {theirs, made.id}
    assert [head.id for head in store.groups.list(agent="anna")] == [theirs]
