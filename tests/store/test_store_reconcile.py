"""A save that did not know of the latest writes: what comes back, what stays away, and what is told."""

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
    """Let the clock tick a millisecond on: what an editor can have read is told by the time of the writes."""
    start = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= start:
        pass


@pytest.fixture
def group(store: Store) -> str:
    """A conversation of many writers with two messages."""
    id = store.create(title="Plan", type="group", tags=["old"]).id
    for text in ("one", "two"):
        later()
        store.append(id, content=text)
    later()
    return id


def test_messages_appended_since_an_editor_read_come_back_with_a_word(
    root: Path, store: Store, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    document = opened(file_of(root, group))
    store.append_many(group, [{"role": "user", "content": "three"}, {"role": "user", "content": "four"}])
    store.append(group, content="five")
    ids = [message.id for message in store.load(group).history]
    document["title"] = "By hand"
    save(file_of(root, group), document)
    with caplog.at_level(logging.WARNING, "capsule"):
        assert contents(store, group) == ["one", "two", "three", "four", "five"]
    assert "3 messages" in caplog.text
    assert [message.id for message in store.load(group).history] == ids
    assert store.head(group).title == "By hand"


def test_the_merge_is_written_once_and_the_next_look_finds_nothing_to_do(
    root: Path, store: Store, group: str, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_message_that_was_deleted_on_purpose_stays_deleted(root: Path, store: Store, group: str) -> None:
    document = opened(file_of(root, group))
    del document["history"][1]
    save(file_of(root, group), document)
    assert contents(store, group) == ["one"]
    store.append(group, content="three")
    assert contents(store, group) == ["one", "three"]
    save(file_of(root, group), opened(file_of(root, group)) | {"title": "Again"})
    assert contents(store, group) == ["one", "three"]


def test_one_save_can_delete_what_it_read_and_lack_what_it_did_not(root: Path, store: Store, group: str) -> None:
    document = opened(file_of(root, group))
    store.append(group, content="three")
    del document["history"][0]
    document["history"].append({"role": "user", "content": "typed"})
    save(file_of(root, group), document)
    assert sorted(contents(store, group)) == ["three", "two", "typed"]


def test_all_messages_deleted_on_purpose_stay_deleted_and_those_unread_come_back(
    root: Path, store: Store, group: str
) -> None:
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


def test_the_person_wins_where_both_changed_the_same_and_the_other_is_kept(
    root: Path, store: Store, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    document = opened(file_of(root, group))
    store.rename(group, "By the store")
    document["title"] = "By hand"
    save(file_of(root, group), document)
    assert store.head(group).title == "By hand"
    kept = b"".join(path.read_bytes() for path in (root / ".capsule" / "quarantine").iterdir())
    assert b"By the store" in kept and "title" in caplog.text


def test_an_edit_the_editor_did_not_read_is_made_again(root: Path, store: Store, group: str) -> None:
    document = opened(file_of(root, group))
    store.edits.message(group, "@0", "ONE")
    document["history"][1]["content"] = "TWO"
    save(file_of(root, group), document)
    assert contents(store, group) == ["ONE", "TWO"]


def test_an_edit_of_the_same_message_by_a_person_goes_over_the_stores_which_is_kept(
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


def test_a_person_who_takes_the_lock_out_of_the_file_has_taken_it(root: Path, store: Store) -> None:
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


def test_a_lock_merged_back_is_known_to_the_very_write_that_found_it_missing(root: Path, store: Store) -> None:
    id = store.create(type="group").id
    document = opened(file_of(root, id))
    with store.locks.take(id), Store.open(root) as other:
        save(file_of(root, id), document)
        from capsule.errors import Locked

        with pytest.raises(Locked):
            other.append(id, content="x")


def test_messages_larger_than_the_notes_log_come_back_too(root: Path, store: Store, group: str) -> None:
    document = opened(file_of(root, group))
    store.append(group, content="x" * 400_000)
    save(file_of(root, group), document)
    assert [len(text) for text in contents(store, group)] == [3, 3, 400_000]


def test_many_messages_within_one_millisecond_all_come_back(root: Path, store: Store, group: str) -> None:
    document = opened(file_of(root, group))
    texts = [str(n) for n in range(200)]
    for text in texts:
        store.append(group, content=text)
    save(file_of(root, group), document)
    assert contents(store, group) == ["one", "two", *texts]


def test_what_another_process_appended_comes_back_as_well(root: Path, store: Store, group: str) -> None:
    document = opened(file_of(root, group))
    with Store.open(root) as other:
        other.append(group, content="theirs")
    save(file_of(root, group), document)
    assert contents(store, group) == ["one", "two", "theirs"]


def test_a_deletion_by_the_store_is_not_undone_by_a_stale_save(root: Path, store: Store, group: str) -> None:
    read = store.read(group)
    document = opened(file_of(root, group))
    edited = orjson.loads(read)
    del edited["history"][0]
    store.edits.rewrite(group, orjson.dumps(edited), read)
    later()
    store.append(group, content="three")
    save(file_of(root, group), document)
    assert "three" in contents(store, group)
