"""A stale save, made without the latest writes: they come back, and the person's changes stay."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from capsule import Store
from capsule.errors import Locked, LockLost
from tests.core.store.files import contents, opened, quarantined, save


def later() -> None:
    """Wait until the next millisecond: the times of the writes decide which of them an editor has read."""
    start = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= start:
        pass


@pytest.fixture
def group(store: Store) -> str:
    """A group conversation with two messages."""
    id = store.create(title="Plan", type="group", tags=["old"]).id
    for text in ("one", "two"):
        later()
        store.append(id, content=text)
    later()
    return id


def test_messages_appended_since_an_editor_read_come_back_with_a_warning(
    root: Path, store: Store, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    document = opened(root, group)
    store.append_many(group, [{"role": "user", "content": "three"}, {"role": "user", "content": "four"}])
    with Store.open(root) as other:
        other.append(group, content="five")
    ids = [message.id for message in store.load(group).history]
    document["title"] = "By hand"
    save(root, group, document)
    with caplog.at_level(logging.WARNING, "capsule"):
        assert contents(store, group) == ["one", "two", "three", "four", "five"]
    assert "3 messages" in caplog.text
    assert [message.id for message in store.load(group).history] == ids
    assert store.head(group).title == "By hand"
    data = store.read(group)
    caplog.clear()
    with Store.open(root) as again:
        assert contents(again, group) == ["one", "two", "three", "four", "five"]
        assert again.read(group) == data
    assert caplog.text == "", "the merge was written once"


def test_a_message_deleted_by_hand_stays_deleted(root: Path, store: Store, group: str) -> None:
    document = opened(root, group)
    del document["history"][1]
    save(root, group, document)
    assert contents(store, group) == ["one"]
    store.append(group, content="three")
    assert contents(store, group) == ["one", "three"]
    save(root, group, opened(root, group) | {"title": "Again"})
    assert contents(store, group) == ["one", "three"]


def test_one_save_deletes_a_message_it_read_and_lacks_one_it_did_not(root: Path, store: Store, group: str) -> None:
    document = opened(root, group)
    store.append(group, content="three")
    del document["history"][0]
    document["history"].append({"role": "user", "content": "typed"})
    save(root, group, document)
    assert sorted(contents(store, group)) == ["three", "two", "typed"]
    document = opened(root, group)
    store.append(group, content="four")
    save(root, group, document | {"history": []})
    assert contents(store, group) == ["four"]


def test_a_head_is_merged_three_ways(root: Path, store: Store, group: str) -> None:
    document = opened(root, group)
    store.rename(group, "By the store")
    store.tag(group, "new")
    store.pin(group)
    document["metadata"]["tags"] = ["old", "hand"]
    document["metadata"]["description"] = "typed"
    save(root, group, document)
    head = store.head(group)
    assert (head.title, head.pinned, set(head.tags)) == ("By the store", True, {"old", "new", "hand"})
    assert store.document(group)["metadata"]["description"] == "typed"


def test_the_person_wins_a_conflict_and_the_value_of_the_store_is_kept(
    root: Path, store: Store, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    document = opened(root, group)
    store.rename(group, "By the store")
    document["title"] = "By hand"
    save(root, group, document)
    assert store.head(group).title == "By hand"
    assert b"By the store" in b"".join(quarantined(root)) and "title" in caplog.text


def test_an_edit_that_the_editor_did_not_read_comes_back(root: Path, store: Store, group: str) -> None:
    document = opened(root, group)
    store.edits.message(group, "@0", "ONE")
    document["history"][1]["content"] = "TWO"
    save(root, group, document)
    assert contents(store, group) == ["ONE", "TWO"]


def test_the_person_wins_a_conflict_of_edits_and_that_of_the_store_is_kept(
    root: Path, store: Store, group: str
) -> None:
    document = opened(root, group)
    store.edits.message(group, "@0", "by the store")
    document["history"][0]["content"] = "by hand"
    save(root, group, document)
    assert contents(store, group) == ["by hand", "two"]
    assert b"by the store" in b"".join(quarantined(root))


def test_a_stale_save_does_not_bring_back_a_released_lock_or_drop_a_held_one(root: Path, store: Store) -> None:
    id = store.create(title="Plan").id
    document = opened(root, id)
    store.locks.release(id)
    save(root, id, document)
    assert store.head(id).lock is None
    document = opened(root, id)
    with store.locks.take(id):
        save(root, id, document | {"title": "By hand"})
        store.append(id, content="x")
        lock = store.head(id).lock
        assert lock is not None and lock["instanceId"] == store.instance_id
    assert store.head(id).title == "By hand"


def test_removing_a_lock_by_hand_takes_it_from_its_holder(root: Path, store: Store) -> None:
    id = store.create(type="group", tags=["old"]).id
    document = opened(root, id)
    with store.locks.take(id):
        store.tag(id, "new")
        document["metadata"] = {"type": "group"}
        save(root, id, document)
        with pytest.raises(LockLost):
            store.append(id, content="x")
    store.append(id, content="y")
    assert contents(store, id) == ["y"] and store.head(id).tags == ("new",)


def test_a_write_is_refused_by_the_lock_that_it_merges_back(root: Path, store: Store) -> None:
    id = store.create(type="group").id
    document = opened(root, id)
    with store.locks.take(id), Store.open(root) as other:
        save(root, id, document)
        with pytest.raises(Locked):
            other.append(id, content="x")


def test_a_message_larger_than_the_log_comes_back(root: Path, store: Store, group: str) -> None:
    document = opened(root, group)
    store.append(group, content="x" * 400_000)
    save(root, group, document)
    assert [len(text) for text in contents(store, group)] == [3, 3, 400_000]


def test_messages_of_one_millisecond_all_come_back(root: Path, store: Store, group: str) -> None:
    document = opened(root, group)
    texts = [str(n) for n in range(200)]
    for text in texts:
        store.append(group, content=text)
    save(root, group, document)
    assert contents(store, group) == ["one", "two", *texts]
