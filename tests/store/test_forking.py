"""Forks: made of a branch, and what becomes of them when their source goes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from capsule import Store
from capsule.errors import InvalidInput, Locked, NotFound, StoreBusy
from capsule.ids import message_ids_at
from capsule.maintenance.doctor import examine


def source(store: Store) -> str:
    messages = [
        {"role": "user", "content": "look", "attachments": [{"name": "a.png"}], "own": 1},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "thanks"},
    ]
    id = store.create(title="Plan", type="group", tags=["work"], mode="toolbox", messages=messages).id
    store.branches.regenerate(id, "two")
    return id


def test_a_fork_has_the_words_and_times_of_a_branch_and_ids_of_its_own(root: Path, store: Store) -> None:
    id = source(store)
    head = store.forks.create(id)
    assert (head.title, head.tags, head.mode, head.type) == ("Fork of Plan", ("work",), "toolbox", "group")
    assert head.forked_from == id and head == store.head(head.id)
    mine, theirs = store.branches.path(id), store.load(head.id).history
    assert [message.content for message in theirs] == ["look", "two"] == [message.content for message in mine]
    assert [message.timestamp for message in theirs] == [message.timestamp for message in mine]
    ids = [str(message.id) for message in theirs]
    assert ids == sorted(ids) and not set(ids) & {str(message.id) for message in store.load(id).history}
    assert all("parent" not in message.model_fields_set for message in theirs)
    assert theirs[0].attachments == [{"name": "a.png"}] and theirs[0].model_extra == {"own": 1}
    assert not list(examine(store))


def test_a_fork_ends_where_it_is_told_and_leaves_attachments_behind_when_asked(store: Store) -> None:
    id = source(store)
    head = store.forks.create(id, at="@1", title="Mine", attachments=False, new_id="mine")
    assert (head.id, head.title, head.title_set_by) == ("mine", "Mine", "user")
    history = store.load("mine").history
    assert [message.content for message in history] == ["look", "one"] and history[0].attachments is None
    with pytest.raises(NotFound):
        store.forks.create(id, at="nobody")
    with pytest.raises(InvalidInput):
        store.forks.create(id, new_id="mine")
    assert store.forks.list(id) == ["mine"]


def test_a_fork_of_nothing_and_of_an_endless_title_is_one(store: Store) -> None:
    empty = store.create(title="x" * 200).id
    head = store.forks.create(empty)
    assert store.load(head.id).history == [] and head.title.startswith("Fork of xxx") and len(head.title) == 200


def test_a_locked_source_is_forked_and_not_touched(store: Store) -> None:
    id = store.create(title="T", messages=[{"role": "user", "content": "hello"}]).id
    before = store.read(id)
    with store.beside() as other:
        assert other.forks.create(id).forked_from == id
    assert store.read(id) == before


def test_a_fork_goes_over_to_the_grandparent(store: Store) -> None:
    id = source(store)
    child = store.forks.create(id).id
    grandchild = store.forks.create(child).id
    store.delete(child)
    assert store.head(grandchild).forked_from == id and store.forks.list(id) == [grandchild]
    store.delete(id)
    assert store.head(grandchild).forked_from is None
    assert [message.content for message in store.load(grandchild).history] == ["look", "two"]


def test_deleting_takes_no_lock_on_a_fork_and_leaves_alone_what_another_holds(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    id = store.create(title="T").id
    free, held = store.forks.create(id).id, store.forks.create(id).id
    store.locks.release(free), store.locks.release(held)
    with store.beside() as other:
        other.locks.take(held)
        with caplog.at_level(logging.WARNING, "capsule"):
            store.delete(id)
        assert held in caplog.text and store.head(held).forked_from == id
    assert (store.head(free).forked_from, store.head(free).lock) == (None, None)


def test_forks_go_along_when_asked_and_all_stay_when_one_is_held(store: Store) -> None:
    id = source(store)
    forks = [store.forks.create(id).id]
    forks.append(store.forks.create(forks[0]).id)
    other_one = store.create(title="O").id
    with store.beside() as other:
        other.locks.take(forks[1])
        with pytest.raises(Locked, match="nothing was deleted"):
            store.forks.delete(id)
        assert store.ids() == sorted([id, *forks, other_one])
    assert [gone.id for gone in store.forks.delete(id)] == [forks[1], forks[0], id]
    assert store.ids() == [other_one]
    assert store.forks.list(id, deep=True) == []


def test_when_all_go_no_fork_is_pointed_elsewhere_before_it_goes_too(store: Store) -> None:
    id = store.create(title="T", type="group").id
    fork = store.forks.create(id).id
    before = {one: store.read(one) for one in (id, fork)}
    assert {one for one, _ in store.delete_all()} == {id, fork} and store.ids() == []
    for trashed in store.trash.list():
        assert store.engine.trashed(trashed.token) == before[trashed.id]


def test_a_conversation_is_deleted_when_its_forks_cannot_be_looked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    id = store.create(type="group").id

    def busy(id: str) -> list[str]:
        raise StoreBusy("the index is being built", id="", holder="another process")

    monkeypatch.setattr(store.index, "forks_of", busy)
    assert store.delete(id).id == id and not store.engine.exists("conversations", id)
    assert "could not be looked for" in caplog.text


def test_a_damaged_source_is_deleted_and_its_forks_stay(root: Path, store: Store) -> None:
    id = source(store)
    fork = store.forks.create(id).id
    (root / "conversations" / f"{id}.json").write_text("oops", encoding="utf-8")
    store.delete(id)
    assert store.ids() == [fork] and store.head(fork).forked_from is None


def test_conversations_that_say_they_are_forks_of_each_other_are_no_matter(store: Store) -> None:
    id = source(store)
    fork = store.forks.create(id).id
    store._change_head(id, lambda head: head["metadata"].update(forkedFrom=fork))
    assert store.forks.list(id, deep=True) == [fork] and store.forks.list(fork, deep=True) == [id]
    store.delete(id)
    assert store.head(fork).forked_from is None


def test_ids_of_messages_sort_as_their_times_do_and_within_one_as_they_come() -> None:
    ids = message_ids_at([0, 5, 5, 3, *[7] * 5000, 6])
    assert ids == sorted(ids) and len(set(ids)) == len(ids)
    assert all(id[14] == "7" for id in ids)
