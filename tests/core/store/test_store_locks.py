"""Locks: they refuse other writers, and end with their holder."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from capsule import Store, timestamps
from capsule.errors import Locked, LockLost, Remedy
from tests.core.store.doors import WRITES
from tests.core.store.files import by_hand, contents, file_of, opened
from tests.core.store.making import branched
from tests.processes import Child

Start = Callable[..., Child]

#: Takes the lock of a conversation with a save, says its instance, and waits for a line.
HOLDER = """
with Store.open(sys.argv[1]) as store:
    store.append(sys.argv[2], role="user", content="held")
    say(store.instance_id)
    hear()
say("closed")
"""


def put_lock(root: Path, id: str, **lock: Any) -> None:
    """Write a lock into the file, as a checkout or another host does."""
    lock = {"active": True, "instanceId": "x", "timestamp": timestamps.now(), "user": "anna"} | lock
    by_hand(root, id, lambda document: document["metadata"].update(lock=lock))


@pytest.fixture
def id(store: Store) -> str:
    """An unlocked chat."""
    id = store.create(title="Plan").id
    store.locks.release(id)
    return id


@pytest.fixture
def holder(root: Path, id: str, child: Start) -> Child:
    return child(HOLDER, root, id)


def test_a_chat_locked_by_another_process_is_refused_until_that_closes(
    root: Path, store: Store, id: str, holder: Child
) -> None:
    instance = holder.hear()
    before = file_of(root, id).read_bytes()
    with pytest.raises(Locked) as refused:
        store.append(id, content="mine")
    assert refused.value.holder["instanceId"] == instance
    assert refused.value.id == id and refused.value.remedy == Remedy("unlock", id)
    assert file_of(root, id).read_bytes() == before
    assert [lock.state for lock in store.locks.list()] == ["held"]
    holder.signal(signal.SIGSTOP)
    with pytest.raises(Locked):
        store.append(id, content="x")
    holder.signal(signal.SIGCONT)
    holder.say()
    assert holder.hear() == "closed"
    store.append(id, content="mine")
    assert contents(store, id) == ["held", "mine"]


def test_every_kind_of_write_is_refused_while_another_instance_holds_the_lock(
    root: Path, store: Store
) -> None:
    id = branched(store, "plan", type="chat")
    with Store.open(root) as other:
        other.branches.remove(id, "@2")
        other.branches.regenerate(id, "three")
        (kept,) = other.trash.removed(id)
        before = file_of(root, id).read_bytes()
        more: dict[str, Callable[[Store, str], object]] = {
            "untag": lambda store, id: store.untag(id, "x"),
            "pin": lambda store, id: store.pin(id),
            "rewrite": lambda store, id: store.edits.rewrite(id, store.read(id), store.read(id)),
            "trim": lambda store, id: store.branches.trim(id),
            "toggle": lambda store, id: store.servers.toggle(id, "git"),
            "restore": lambda store, id: store.versions.restore(
                id, store.document(id) | {"title": "x"}
            ),
            "restore messages": lambda store, id: store.trash.restore_messages(kept.trashed),
            "take": lambda store, id: store.locks.take(id),
            "release": lambda store, id: store.locks.release(id),
        }
        for name, write in {**WRITES, **more}.items():
            with pytest.raises(Locked):
                write(store, id)
                pytest.fail(name)
        assert store.branches.trim(id, dry_run=True).roles == {"assistant": 1}
        assert file_of(root, id).read_bytes() == before and store.trash.removed(id) == [kept]
        assert list((root / "conversations").iterdir()) == [file_of(root, id)]
        assert not list((root / ".capsule").glob("quarantine/*"))


@pytest.mark.files
def test_the_lock_of_a_killed_holder_is_taken_over_with_a_warning(
    store: Store, id: str, holder: Child, caplog: pytest.LogCaptureFixture
) -> None:
    holder.hear()
    holder.kill()
    assert [lock.state for lock in store.locks.list()] == ["orphaned"]
    with caplog.at_level(logging.WARNING, "capsule"):
        store.append(id, content="after")
    assert "took over" in caplog.text
    assert contents(store, id) == ["held", "after"]
    lock = store.head(id).lock
    assert lock is not None and lock["instanceId"] == store.instance_id


def test_the_next_write_of_a_holder_whose_lock_was_forced_is_refused(root: Path) -> None:
    with Store.open(root) as ours, Store.open(root) as theirs:
        id = ours.create(title="Plan").id
        ours.append(id, content="one")
        assert theirs.locks.release(id, force=True)
        theirs.append(id, content="two")
        before = file_of(root, id).read_bytes()
        with pytest.raises(LockLost) as lost:
            ours.append(id, content="three")
        assert (
            lost.value.holder is not None and lost.value.holder["instanceId"] == theirs.instance_id
        )
        assert file_of(root, id).read_bytes() == before
        theirs.locks.release(id)
        ours.append(id, content="four")
        assert contents(ours, id) == ["one", "two", "four"]


def test_a_lock_that_was_forced_and_released_is_lost(store: Store) -> None:
    with store.beside() as ours, store.beside(keep_locks=False) as theirs:
        id = ours.create(title="Plan").id
        theirs.locks.release(id, force=True)
        with pytest.raises(LockLost) as lost:
            ours.rename(id, "Mine")
        assert lost.value.holder is None
        assert ours.rename(id, "Mine").title == "Mine"


def test_a_with_block_whose_lock_was_forced_ends_with_a_warning(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with store.beside() as ours, store.beside() as theirs:
        id = ours.create(type="group").id
        with ours.locks.take(id):
            theirs.locks.release(id, force=True)
            theirs.locks.take(id)
        assert "taken" in caplog.text
        lock = theirs.head(id).lock
        assert lock is not None and lock["instanceId"] == theirs.instance_id


def test_a_lock_of_another_host_holds_until_it_is_forced_or_expires(
    root: Path, store: Store
) -> None:
    id = store.create(type="group").id
    put_lock(root, id, host="lab-2")
    assert [lock.state for lock in store.locks.list()] == ["elsewhere"]
    for refused in (lambda: store.append(id, content="x"), lambda: store.locks.release(id)):
        with pytest.raises(Locked):
            refused()
    updated = store.head(id).updated_at
    assert store.locks.release(id, force=True) is True
    assert store.head(id).lock is None and store.head(id).updated_at == updated
    put_lock(root, id, host="lab-2", instanceId="y", timestamp="2025-01-12T10:30:00Z")
    assert [lock.state for lock in store.locks.list()] == ["orphaned"]
    store.append(id, content="x")
    assert store.head(id).lock is None


def test_a_lock_of_another_container_is_held_until_its_process_ends(
    root: Path, store: Store, id: str, holder: Child
) -> None:
    """A container has another host name, the same kernel, and here the same directory."""
    holder.hear()
    by_hand(root, id, lambda document: document["metadata"]["lock"].update(host="3f2a9c0d11e4"))
    assert [lock.state for lock in store.locks.list()] == ["held"]
    with pytest.raises(Locked):
        store.append(id, content="mine")
    holder.kill()
    assert [lock.state for lock in store.locks.list()] == ["orphaned"]
    store.append(id, content="mine")


def test_a_lock_of_another_host_is_not_taken_for_that_of_a_container(
    root: Path, store: Store, id: str
) -> None:
    put_lock(root, id, host="lab-2", boot="4c1f1c36-6e49-4a5a-9d0c-5a3c2b1d0e9f")
    assert [lock.state for lock in store.locks.list()] == ["elsewhere"]


def test_a_lock_of_this_host_with_an_invalid_instance_is_orphaned(root: Path, store: Store) -> None:
    for instance in ["", "../../x", "x" * 500, "no such", "."]:
        id = store.create().id
        store.locks.release(id)
        import socket

        put_lock(root, id, host=socket.gethostname(), instanceId=instance)
        store.append(id, content="x")
        assert contents(store, id) == ["x"]


def test_a_named_instance_keeps_its_lock_across_openings(store: Store) -> None:
    with store.beside(instance="desk") as desk:
        id = desk.create(title="Plan").id
    lock = store.head(id).lock
    assert lock is not None and lock["name"] == "desk"
    with pytest.raises(Locked, match="desk"):
        store.append(id, content="x")
    with store.beside(instance="desk") as desk:
        desk.append(id, content="mine")
        assert desk.locks.release(id) is True
    store.append(id, content="x")
    assert contents(store, id) == ["mine", "x"]


def test_a_named_lock_is_orphaned_without_writes(root: Path, store: Store) -> None:
    with Store.open(root, instance="desk") as desk:
        id = desk.create().id
    by_hand(
        root,
        id,
        lambda document: document["metadata"]["lock"].update(timestamp="2025-01-12T10:30:00.000Z"),
    )
    assert [lock.state for lock in store.locks.list()] == ["orphaned"]
    store.append(id, content="after")


@pytest.mark.parametrize("why", ["usual layout", "another layout", "no time"])
def test_a_stale_named_lock_is_refreshed_by_every_kind_of_write(root: Path, why: str) -> None:
    with Store.open(root, instance="desk") as desk:
        id = desk.create().id
        writes: tuple[Callable[[], object], ...] = (
            lambda: desk.append(id, content="x"),
            lambda: desk.rename(id, "New"),
            lambda: desk.edits.message(id, "@0", "y"),
        )
        for write in writes:
            stamp = None if why == "no time" else "2025-01-12T10:30:00.000Z"
            put_lock(root, id, **(desk.head(id).lock or {}) | {"timestamp": stamp})
            if why == "another layout":
                by_hand(root, id, lambda document: None, layout=0)
            write()
            lock = desk.head(id).lock
            assert lock is not None and lock["timestamp"] > "2025-01-12T10:30:00.000Z"
    assert [message.content for message in desk.load(id).history] == ["y"] and desk.head(
        id
    ).title == "New"


def test_nested_locks_of_one_instance_are_released_by_the_outermost(store: Store) -> None:
    id = store.create(type="group").id
    with store.locks.take(id):
        with pytest.raises(RuntimeError), store.locks.take(id):
            store.append(id, content="x")
            raise RuntimeError
        assert store.head(id).lock is not None
    assert store.head(id).lock is None


def test_releasing_a_lock_returns_whether_there_was_one_and_keeps_updated_at(store: Store) -> None:
    head = store.create()
    updated = head.updated_at
    assert store.locks.release(head.id) is True
    assert store.locks.release(head.id) is False
    assert store.head(head.id).updated_at == updated


def test_closing_releases_every_lock_and_removes_the_instance_file(root: Path) -> None:
    with Store.open(root) as store:
        ids = [store.create().id for _ in range(3)]
        assert len(list((root / ".capsule" / "instances").iterdir())) == 1
    assert list((root / ".capsule" / "instances").iterdir()) == []
    for id in ids:
        assert opened(root, id)["metadata"]["lock"]["active"] is False


def test_a_store_without_keep_locks_records_no_lock(root: Path) -> None:
    with Store.open(root, keep_locks=False) as store:
        id = store.create().id
        store.append(id, content="x")
        assert b'"active": true' not in file_of(root, id).read_bytes()
        assert not (root / ".capsule" / "instances").exists()


def test_a_save_locks_no_direct_group_or_channel_conversation(store: Store) -> None:
    for type in ["direct", "group", "channel"]:
        id = store.create(type=type).id
        with store.beside() as other:
            store.append(id, content="one")
            other.append(id, content="two")
            assert store.head(id).lock is None
            with other.locks.take(id), pytest.raises(Locked):
                store.append(id, content="three")
            store.append(id, content="four")
        assert contents(store, id) == ["one", "two", "four"]


def test_reading_announces_no_instance(root: Path, store: Store) -> None:
    id = store.create(type="group").id
    before = file_of(root, id).read_bytes()
    with Store.open(root) as reader:
        reader.load(id), reader.tail(id, 3), list(reader.heads()), reader.head(id)
    assert file_of(root, id).read_bytes() == before
    assert not (root / ".capsule" / "instances").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_is_a_new_instance_without_locks(root: Path, child: Start) -> None:
    process = child(
        """
        store = Store.open(sys.argv[1])
        chat, group = store.create().id, store.create(type="group").id
        store.append(chat, content="parent")
        pid = os.fork()
        if pid == 0:
            try:
                store.append(chat, content="child")
            except CapsuleError as error:
                say(type(error).__name__)
            store.append(group, content="child")
            say(store.instance_id)
            store.close()
            os._exit(0)
        os.waitpid(pid, 0)
        try:
            Store.open(sys.argv[1]).append(chat, content="other")  # The end of the child did not end its parent.
        except CapsuleError as error:
            say(type(error).__name__)
        store.append(chat, content="parent again")
        store.append(group, content="parent")
        say(store.instance_id)
        say([[m.content for m in store.load(id).history] for id in (chat, group)])
        store.close()
        """,
        root,
    )
    assert process.hear() == "Locked"
    instance_of_child = process.hear()
    assert process.hear() == "Locked"
    assert process.hear() != instance_of_child
    assert process.hear() == [["parent", "parent again"], ["child", "parent"]]
    assert process.end() == 0


def test_unknown_fields_of_a_lock_survive_take_and_release(root: Path) -> None:
    for layout in (0, orjson.OPT_INDENT_2):
        with Store.open(root) as store:
            id = store.create(type="group").id
            by_hand(
                root,
                id,
                lambda document: document["metadata"]["lock"].update(note={"of": "another tool"}),
                layout,
            )
            with store.locks.take(id):
                assert store.document(id)["metadata"]["lock"]["note"] == {"of": "another tool"}
                store.append(id, content="x")
            lock = store.document(id)["metadata"]["lock"]
            assert lock["active"] is False and lock["note"] == {"of": "another tool"}
