"""Forks of a branch, and their fate when their source is deleted."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from capsule import Store
from capsule.errors import InvalidInput, Locked, NotFound, StoreBusy
from capsule.ids import message_ids_at
from capsule.maintenance.doctor import examine
from capsule.store.objects.forks import Forks


def source(store: Store) -> str:
    messages = [
        {"role": "user", "content": "look", "attachments": [{"name": "a.png"}], "own": 1},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "thanks"},
    ]
    id = store.create(
        title="Plan", type="group", tags=["work"], mode="toolbox", messages=messages
    ).id
    store.branches.regenerate(id, "two")
    return id


@pytest.mark.files
def test_a_fork_has_the_texts_and_times_of_a_branch_and_new_ids(root: Path, store: Store) -> None:
    id = source(store)
    head = store.forks.create(id)
    assert (head.title, head.tags, head.mode, head.type) == (
        "Fork of Plan",
        ("work",),
        "toolbox",
        "group",
    )
    assert head.forked_from == id and head == store.head(head.id)
    mine, theirs = store.branches.path(id), store.load(head.id).history
    assert (
        [message.content for message in theirs]
        == ["look", "two"]
        == [message.content for message in mine]
    )
    assert [message.timestamp for message in theirs] == [message.timestamp for message in mine]
    ids = [str(message.id) for message in theirs]
    assert ids == sorted(ids) and not set(ids) & {
        str(message.id) for message in store.load(id).history
    }
    assert all("parent" not in message.model_fields_set for message in theirs)
    assert theirs[0].attachments == [{"name": "a.png"}] and theirs[0].model_extra == {"own": 1}
    assert not list(examine(store))


def test_a_fork_can_end_at_a_message_and_leave_out_attachments(store: Store) -> None:
    id = source(store)
    head = store.forks.create(id, at="@1", title="Mine", attachments=False, new_id="mine")
    assert (head.id, head.title, head.title_set_by) == ("mine", "Mine", "user")
    history = store.load("mine").history
    assert [message.content for message in history] == ["look", "one"] and history[
        0
    ].attachments is None
    with pytest.raises(NotFound):
        store.forks.create(id, at="nobody")
    with pytest.raises(InvalidInput):
        store.forks.create(id, new_id="mine")
    assert store.forks.list(id) == ["mine"]


def test_a_reply_in_a_fork_names_the_copy_of_the_message_it_is_a_reply_to(store: Store) -> None:
    id = store.create(type="group", messages=[{"role": "user", "content": "one"}]).id
    first = str(store.load(id).history[0].id)
    for reply_to in (first, "not-there"):
        store.append(id, content="two", reply_to=reply_to, thread=reply_to)
    one, two, three = store.load(store.forks.create(id).id).history
    assert two.reply_to == two.thread == one.id != first
    assert not {"reply_to", "thread"} & three.model_fields_set


def test_an_empty_conversation_and_one_with_the_longest_title_can_be_forked(store: Store) -> None:
    empty = store.create(title="x" * 200).id
    head = store.forks.create(empty)
    assert (
        store.load(head.id).history == []
        and head.title.startswith("Fork of xxx")
        and len(head.title) == 200
    )


def test_a_locked_source_is_forked_without_a_change(store: Store) -> None:
    id = store.create(title="T", messages=[{"role": "user", "content": "hello"}]).id
    before = store.read(id)
    with store.beside() as other:
        assert other.forks.create(id).forked_from == id
    assert store.read(id) == before


def test_a_fork_whose_source_is_deleted_points_to_the_grandparent(store: Store) -> None:
    id = source(store)
    child = store.forks.create(id).id
    grandchild = store.forks.create(child).id
    store.delete(child)
    assert store.head(grandchild).forked_from == id and store.forks.list(id) == [grandchild]
    store.delete(id)
    assert store.head(grandchild).forked_from is None
    assert [message.content for message in store.load(grandchild).history] == ["look", "two"]


def test_deleting_a_source_neither_locks_its_forks_nor_changes_a_locked_one(
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


def test_forks_are_deleted_on_request_unless_one_is_locked(store: Store) -> None:
    id = source(store)
    forks = [store.forks.create(id).id]
    forks.append(store.forks.create(forks[0]).id)
    other_one = store.create(title="O").id
    with store.beside() as other:
        other.locks.take(forks[1])
        with pytest.raises(Locked):
            store.forks.delete(id)
        assert store.ids() == sorted([id, *forks, other_one])
    assert [gone.id for gone in store.forks.delete(id)] == [forks[1], forks[0], id]
    assert store.ids() == [other_one]
    assert store.forks.list(id, deep=True) == []


def test_a_fork_that_is_deleted_with_its_source_keeps_its_source_id(store: Store) -> None:
    id = store.create(title="T", type="group").id
    fork = store.forks.create(id).id
    before = {one: store.read(one) for one in (id, fork)}
    assert {one for one, _ in store.delete_all()} == {id, fork} and store.ids() == []
    for trashed in store.trash.list():
        assert store.engine.trash.read(trashed.token) == before[trashed.id]


def test_a_conversation_is_deleted_although_its_forks_cannot_be_listed(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    id = store.create(type="group").id

    def busy(forks: Forks, id: str, *, deep: bool = False) -> list[str]:
        raise StoreBusy("the index is being built", id="", holder="another process")

    monkeypatch.setattr(Forks, "list", busy)
    assert store.delete(id).id == id and not store.engine.exists("conversations", id)
    assert "could not look for" in caplog.text


def test_a_damaged_source_is_deleted_and_its_forks_stay(root: Path, store: Store) -> None:
    id = source(store)
    fork = store.forks.create(id).id
    (root / "conversations" / f"{id}.json").write_text("oops", encoding="utf-8")
    store.delete(id)
    assert store.ids() == [fork] and store.head(fork).forked_from is None


def test_forks_of_each_other_can_be_deleted(store: Store) -> None:
    id = source(store)
    fork = store.forks.create(id).id
    store.inner.change_head(id, lambda head: head["metadata"].update(forkedFrom=fork))
    assert store.forks.list(id, deep=True) == [fork] and store.forks.list(fork, deep=True) == [id]
    store.delete(id)
    assert store.head(fork).forked_from is None


def test_ids_of_messages_sort_by_time_and_then_by_position() -> None:
    ids = message_ids_at([0, 5, 5, 3, *[7] * 5000, 6])
    assert ids == sorted(ids) and len(set(ids)) == len(ids)
    assert all(id[14] == "7" for id in ids)
