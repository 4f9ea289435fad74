"""Watchers get every kind of change, from any writer and any way of saving."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from capsule import Store
from capsule.engines.changes import Change
from capsule.engines.files import index
from capsule.format.json import codec
from tests.core.watch.conftest import Follower, has

HELLO = [{"role": "user", "content": "hello"}]
Save = Callable[[Path, bytes], None]


def file_of(root: Path, id: str) -> Path:
    return root / "conversations" / f"{id}.json"


def in_place(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def by_rename(path: Path, data: bytes) -> None:
    copy = path.with_name(path.name + "~")
    copy.write_bytes(data)
    copy.rename(path)


def as_vim_does(path: Path, data: bytes) -> None:
    """Move the old version away, write the new one in its place, and delete the old one."""
    probe, backup = path.with_name("4913"), path.with_name(path.name + "~")
    probe.write_bytes(b"")
    probe.unlink()
    path.rename(backup)
    path.write_bytes(data)
    backup.unlink()


SAVES = pytest.mark.parametrize("save", [in_place, by_rename, as_vim_does])


def test_writes_of_a_store_are_changes_of_their_kinds(
    store: Store, other: Store, follower: Follower
) -> None:
    id = other.create(title="Plan", type="group", messages=HELLO).id
    created = follower.next("created")
    assert (created.id, created.count, len(created.messages)) == (id, 1, 1)
    messages = other.append_many(
        id, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    )
    appended = follower.next("appended")
    assert (
        appended.messages == tuple(str(message.id) for message in messages) and appended.count == 3
    )
    other.edits.message(id, str(messages[0].id), "A")
    assert follower.next("edited").messages == (messages[0].id,)
    other.rename(id, "Another plan")
    assert "title" in follower.next("head").fields
    held = other.locks.take(id)
    lock = follower.next("locked").lock
    assert lock is not None and lock["instanceId"] == other.instance_id
    with held:
        pass
    assert follower.next("unlocked").id == id
    other.delete(id)
    assert follower.next("deleted").id == id
    other.trash.restore(id)
    assert follower.next("restored").id == id
    assert {change.source for change in follower.heard} == {"store"}
    assert not any(change.own for change in follower.heard)


@SAVES
def test_saves_of_an_editor_have_the_source_outside(
    root: Path, store: Store, follower: Follower, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = store.create(title="Plan", messages=HELLO).id
    follower.next("created")
    path = file_of(root, id)
    sound = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(
            index, "_QUIET_S", 60
        )  # A busy machine may stop an editor in the middle of a save.
        save(path, sound.replace(b"hello", b"good morning").replace(b'"Plan"', b'"Plans"'))
        news = follower.until(has("edited", "head"))
        message = store.tail(id, 1)[0].id
        assert [change.messages for change in news if change.kind == "edited"] == [(message,)]
        assert [change.fields for change in news if change.kind == "head"] == [("title",)]
        save(path, sound[:-20])
        assert path.name in follower.next("damaged").damaged
        save(path, sound)
        news += follower.until(has("repaired"))
    path.unlink()
    news.append(follower.next("deleted"))
    assert {(change.source, change.own) for change in news} == {("outside", False)}


@SAVES
def test_a_save_that_adds_and_removes_messages_is_reported_with_their_ids(
    root: Path, store: Store, follower: Follower, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_QUIET_S", 60)
    id = store.create(messages=[{"role": "user", "content": word} for word in ("one", "two")]).id
    follower.next("created")
    first, second = (str(message.id) for message in store.tail(id, 2))
    document = store.document(id)
    document["history"] = [document["history"][0], {"role": "user", "content": "three"}]
    save(file_of(root, id), codec.encode(document))
    news = follower.until(lambda changes: any(second in change.removed for change in changes))
    added = [message for change in news for message in change.messages]
    # The file has no id for it; the next write gives it the id of the change.
    store.append(id, content="four")
    assert added == [store.tail(id, 2)[0].id] and first not in added


def test_a_file_copied_into_the_store_is_reported_as_created_from_outside(
    root: Path, store: Store, follower: Follower, samples: Path
) -> None:
    sample = next(path for path in sorted(samples.glob("*.json")))
    shutil.copy(sample, file_of(root, sample.stem))
    created = follower.next("created")
    assert (created.id, created.source) == (sample.stem, "outside")


def test_writes_of_its_maker_to_a_new_conversation_are_reported(
    root: Path, store: Store, other: Store
) -> None:
    # In the kernel's notices the maker writes to the temporary name of the file.
    id = other.create(type="group", title="Plan").id
    written_ns = file_of(root, id).stat().st_ctime_ns
    cursor = ""
    while not cursor or time.time_ns() - written_ns < 200_000_000:
        cursor = store.changes().cursor  # Until the file is too old to be reread without a notice.
    message = other.append(id, content="x").id
    assert [change.messages for change in store.changes(cursor).changes] == [(message,)]
    follower = Follower(store)
    message = other.append(id, content="y").id
    assert follower.next("appended").messages == (message,)


def test_own_writes_are_distinguished_from_those_of_others(
    root: Path, store: Store, other: Store
) -> None:
    store.wait_for_changes(timeout_s=0)  # From here on it remembers.
    follower = Follower(store)

    def changes_by(author: Store) -> list[Change]:
        """The changes of a write of each kind."""
        message = author.append(id, content="first")
        changes = [follower.next("appended")]
        author.edits.message(id, str(message.id), "later")
        changes.append(follower.next("edited"))
        author.tag(id, author.instance_id)
        changes.append(follower.next("head"))
        with author.locks.take(id):
            changes.append(follower.next("locked"))
        return [*changes, follower.next("unlocked")]

    id = store.create(title="Plan", type="group", messages=HELLO).id
    mine = [follower.next("created"), *changes_by(store)]
    store.delete(id)
    mine.append(follower.next("deleted"))
    store.trash.restore(id)
    mine.append(follower.next("restored"))
    assert all(change.own and change.source == "store" for change in mine), mine
    theirs = changes_by(other)
    in_place(file_of(root, id), file_of(root, id).read_bytes().replace(b"hello", b"by hand"))
    theirs.append(follower.next("edited"))
    assert not any(change.own for change in theirs), theirs
    assert theirs[-1].source == "outside"


@pytest.mark.skipif(
    os.environ.get("CAPSULE_ENGINE") == "postgres",
    reason="each write is a change of its own there: nothing is joined",
)
def test_a_change_has_one_author_and_a_cursor(store: Store, other: Store) -> None:
    # A wait would start a thread, which may look at the index between two of these writes.
    store.remember_own()
    id = store.create(type="group", title="Plan").id
    cursor = store.changes().cursor
    authors = (store, other, other, store, other)
    written = [str(author.append(id, content="x").id) for author in authors]
    parts = store.changes(cursor).changes
    assert [(part.own, part.messages) for part in parts] == [
        (True, (written[0],)), (False, (written[1], written[2])), (True, (written[3],)), (False, (written[4],)),
    ]  # fmt: skip
    for number, part in enumerate(parts):
        left = [message for rest in parts[number + 1 :] for message in rest.messages]
        for reader in (store, other):
            assert [
                message
                for change in reader.changes(part.cursor).changes
                for message in change.messages
            ] == left
    # Both wrote to a new conversation, and then both changed its head, before a store read the
    # changes.
    cursor = parts[-1].cursor
    both = store.create(type="group", title="Both", messages=HELLO).id
    last = str(other.append(both, content="y").id)
    created, appended = store.changes(cursor).changes
    assert (created.kind, created.own, appended.kind, appended.own) == (
        "created",
        True,
        "appended",
        False,
    )
    assert appended.messages == (last,)
    cursor = appended.cursor
    other.rename(both, "Theirs")
    store.tag(both, "mine")
    (head,) = store.changes(cursor).changes
    assert head.fields == ("title", "tags") and not head.own
    store.tag(both, "mine too")
    store.rename(both, "Mine")
    assert [change.own for change in store.changes(head.cursor).changes] == [True]


def test_a_save_to_a_file_with_a_second_hard_link_is_reported(
    root: Path, store: Store, tmp_path: Path
) -> None:
    id = store.create(messages=HELLO).id
    store.changes()
    follower = Follower(store)
    os.link(file_of(root, id), tmp_path / "elsewhere.json")
    in_place(file_of(root, id), file_of(root, id).read_bytes().replace(b"hello", b"HELLO"))
    assert follower.next("edited").id == id
