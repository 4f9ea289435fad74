"""A stale save, made without the latest writes: they come back, and the person's changes stay."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from capsule import Store
from capsule.errors import LockLost


def file_of(root: Path, id: str) -> Path:
    return root / "conversations" / f"{id}.json"


def contents(store: Store, id: str) -> list[str]:
    return [message.content for message in store.load(id).history]


def save(path: Path, document: dict[str, Any]) -> None:
    """Save as vim does: a copy, renamed over."""
    copy = path.with_suffix(".swp")
    copy.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    copy.rename(path)


def opened(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(path.read_bytes())
    return found


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
    document = opened(file_of(root, group))
    store.append_many(group, [{"role": "user", "content": "three"}, {"role": "user", "content": "four"}])
    with Store.open(root) as other:
        other.append(group, content="five")
    ids = [message.id for message in store.load(group).history]
    document["title"] = "By hand"
    save(file_of(root, group), document)
    with caplog.at_level(logging.WARNING, "capsule"):
        assert contents(store, group) == ["one", "two", "three", "four", "five"]
    assert "3 messages" in caplog.text
    assert [message.id for message in store.load(group).history] == ids
    assert store.head(group).title == "By hand"


def test_a_merge_is_written_once(root: Path, store: Store, group: str, caplog: pytest.LogCaptureFixture) -> None:
    document = opened(file_of(root, group))
    store.append(group, content="three")
    save(file_of(root, group), document)
    store.append(group, content="four")
    data = store.read(group)
    caplog.clear()
    with Store.open(root) as again:
        assert contents(again, group) == ["one", "two", "three", "four"]
        assert again.read(group) == data
    assert caplog.text == ""


def test_a_message_deleted_by_hand_stays_deleted(root: Path, store: Store, group: str) -> None:
    document = opened(file_of(root, group))
    del document["history"][1]
    save(file_of(root, group), document)
    assert contents(store, group) == ["one"]
    store.append(group, content="three")
    assert contents(store, group) == ["one", "three"]
    save(file_of(root, group), opened(file_of(root, group)) | {"title": "Again"})
    assert contents(store, group) == ["one", "three"]


def test_one_save_deletes_a_message_it_read_and_lacks_one_it_did_not(root: Path, store: Store, group: str) -> None:
    document = opened(file_of(root, group))
    store.append(group, content="three")
    del document["history"][0]
    document["history"].append({"role": "user", "content": "typed"})
    save(file_of(root, group), document)
    assert sorted(contents(store, group)) == ["three", "two", "typed"]


def test_a_save_without_messages_deletes_those_it_read_alone(root: Path, store: Store, group: str) -> None:
    document = opened(file_of(root, group))
    store.append(group, content="three")
    document["history"] = []
    save(file_of(root, group), document)
    assert contents(store, group) == ["three"]


def test_a_head_is_merged_three_ways(root: Path, store: Store, group: str) -> None:
    document = opened(file_of(root, group))
    store.rename(group, "By the store")
    store.tag(group, "new")
    store.pin(group)
    document["metadata"]["tags"] = ["old", "hand"]
    document["metadata"]["description"] = "typed"
    save(file_of(root, group), document)
    head = store.head(group)
    assert (head.title, head.pinned, set(head.tags)) == ("By the store", True, {"old", "new", "hand"})
    assert store.document(group)["metadata"]["description"] == "typed"


def test_the_person_wins_a_conflict_and_the_value_of_the_store_is_kept(
    root: Path, store: Store, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    document = opened(file_of(root, group))
    store.rename(group, "By the store")
    document["title"] = "By hand"
    save(file_of(root, group), document)
    assert store.head(group).title == "By hand"
    kept = b"".join(path.read_bytes() for path in (root / ".capsule" / "quarantine").iterdir())
    assert b"By the store" in kept and "title" in caplog.text


def test_an_edit_that_the_editor_did_not_read_comes_back(root: Path, store: Store, group: str) -> None:
    document = opened(file_of(root, group))
    store.edits.message(group, "@0", "ONE")
    document["history"][1]["content"] = "TWO"
    save(file_of(root, group), document)
    assert contents(store, group) == ["ONE", "TWO"]


def test_the_person_wins_a_conflict_of_edits_and_that_of_the_store_is_kept(
    root: Path, store: Store, group: str
) -> None:
    document = opened(file_of(root, group))
    store.edits.message(group, "@0", "by the store")
    document["history"][0]["content"] = "by hand"
    save(file_of(root, group), document)
    assert contents(store, group) == ["by hand", "two"]
    kept = b"".join(path.read_bytes() for path in (root / ".capsule" / "quarantine").iterdir())
    assert b"by the store" in kept


def test_a_stale_save_does_not_bring_back_a_released_lock_or_drop_a_held_one(root: Path, store: Store) -> None:
    id = store.create(title="Plan").id
    document = opened(file_of(root, id))
    store.locks.release(id)
    save(file_of(root, id), document)
    assert store.head(id).lock is None
    document = opened(file_of(root, id))
    with store.locks.take(id):
        save(file_of(root, id), document | {"title": "By hand"})
        store.append(id, content="x")
        lock = store.head(id).lock
        assert lock is not None and lock["instanceId"] == store.instance_id
    assert store.head(id).title == "By hand"


def test_removing_a_lock_by_hand_takes_it_from_its_holder(root: Path, store: Store) -> None:
    id = store.create(type="group", tags=["old"]).id
    document = opened(file_of(root, id))
    with store.locks.take(id):
        store.tag(id, "new")
        document["metadata"] = {"type": "group"}
        save(file_of(root, id), document)
        with pytest.raises(LockLost):
            store.append(id, content="x")
    store.append(id, content="y")
    assert contents(store, id) == ["y"] and store.head(id).tags == ("new",)


def test_a_write_is_refused_by_the_lock_that_it_merges_back(root: Path, store: Store) -> None:
    id = store.create(type="group").id
    document = opened(file_of(root, id))
    with store.locks.take(id), Store.open(root) as other:
        save(file_of(root, id), document)
        from capsule.errors import Locked

        with pytest.raises(Locked):
            other.append(id, content="x")


def test_a_message_larger_than_the_log_comes_back(root: Path, store: Store, group: str) -> None:
    document = opened(file_of(root, group))
    store.append(group, content="x" * 400_000)
    save(file_of(root, group), document)
    assert [len(text) for text in contents(store, group)] == [3, 3, 400_000]


def test_messages_of_one_millisecond_all_come_back(root: Path, store: Store, group: str) -> None:
    document = opened(file_of(root, group))
    texts = [str(n) for n in range(200)]
    for text in texts:
        store.append(group, content=text)
    save(file_of(root, group), document)
    assert contents(store, group) == ["one", "two", *texts]


def test_a_deletion_by_the_store_is_not_undone_by_a_stale_save(root: Path, store: Store, group: str) -> None:
    read = store.read(group)
    document = opened(file_of(root, group))
    edited = orjson.loads(read)
    del edited["history"][0]
    store.edits.rewrite(group, orjson.dumps(edited), read)
    later()
    store.append(group, content="three")
    save(file_of(root, group), document)
    assert contents(store, group) == ["two", "three"]
