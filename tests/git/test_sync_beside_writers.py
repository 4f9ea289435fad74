"""`capsule git sync` while others write, lock, watch, delete and rename: nobody loses a word."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from capsule import Store
from capsule.format.json import codec
from tests.git.repositories import Clone
from tests.git.talking import (
    Two,
    assert_at_rest,
    assert_same,
    contents,
    conversation,
    delete,
    diverged,
    rename,
    say,
    shared,
    status,
    sync_all,
    sync_of,
)
from tests.processes import Child

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "at", ["fetch", "merge", "check", "rehearse", "write", "index", "files", "head", "push"]
)
def test_a_message_written_at_any_moment_of_a_sync_is_kept(clones: Two, at: str) -> None:
    anna, ben, id = diverged(clones)
    written: list[str] = []

    def write(step: str, done: int, total: int) -> None:
        if step == at and not written:
            written.append(at)
            say(ben, id, "meanwhile")

    sync_of(ben, write)
    assert written
    assert sorted(contents(ben, id)) == ["from anna", "from ben", "meanwhile", "one"]
    sync_all(ben, anna)
    assert_same(id, clones)


HOLDER = """
    store = Store.open(sys.argv[1])
    store.append(sys.argv[2], content="locked now")
    say(store.head(sys.argv[2]).lock["instanceId"])
    while (text := hear()) is not None:
        message = store.append(sys.argv[2], content=text)
        say([entry.content for entry in store.load(sys.argv[2]).history])
    store.close()
    say("closed")
"""


def test_a_sync_brings_messages_into_a_locked_chat_and_keeps_the_lock(
    clones: Two, child: Callable[..., Child]
) -> None:
    anna, ben = clones
    id = shared(clones, "one", type="chat")
    holder = child(HOLDER, ben.root, id)
    instance = holder.hear()
    say(anna, id, "from anna")
    sync_all(anna, ben)
    lock = codec.decode(ben.file(id).read_bytes(), "")["metadata"]["lock"]
    assert (lock["active"], lock["instanceId"]) == (True, instance)
    holder.say("after the sync")
    said = holder.hear()
    assert sorted(said) == ["after the sync", "from anna", "locked now", "one"]
    assert status(ben) == [f" M {ben.path(id)}"]
    holder.say(None)
    assert holder.hear() == "closed"
    sync_all(ben, anna)
    assert anna.file(id).read_bytes() == ben.file(id).read_bytes()


def test_an_open_store_elsewhere_goes_on_after_a_sync(
    clones: Two, child: Callable[..., Child]
) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    with Store.open(ben.root, keep_locks=False) as open_before:
        assert len(open_before.tail(id, 5)) == 1
        open_before.append(id, content="before")
        say(anna, id, "from anna")
        sync_all(anna, ben)
        assert sorted(message.content for message in open_before.tail(id, 5)) == [
            "before",
            "from anna",
            "one",
        ]
        open_before.append(id, content="after")
        assert open_before.search("anna").hits
    assert contents(ben, id)[-1] == "after"


def test_watchers_hear_of_what_a_sync_brought(clones: Two) -> None:
    anna, ben = clones
    id, gone = shared(clones, "one"), shared(clones, "to go")
    with Store.open(ben.root) as watching:
        since = watching.changes().cursor
        say(anna, id, "from anna")
        new_one = conversation(anna, "new")
        with anna.store() as store:
            store.rename(id, "Named")
            store.delete(gone)
        sync_all(anna, ben)
        heard = watching.wait_for_changes(since, timeout_s=30).changes
        told = {(change.kind, change.id) for change in heard}
        assert {("appended", id), ("head", id), ("created", new_one), ("deleted", gone)} <= told
        assert not any(change.own for change in heard)


def test_a_stale_save_after_a_sync_keeps_the_fetched_messages(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    opened = codec.decode(ben.file(id).read_bytes(), "")
    say(anna, id, "from anna")
    sync_all(anna, ben)
    opened["history"][0]["content"] = "one, edited in an editor that was open all the time"
    ben.file(id).write_bytes(codec.encode(opened))
    with ben.store() as store:
        assert [entry.content for entry in store.load(id).history] == [
            opened["history"][0]["content"],
            "from anna",
        ]


# -- Deleting --------------------------------------------------------------------------------------


def deleted(clones: Two, type: str = "group") -> tuple[Clone, Clone, str]:
    """The clones, and a conversation that the first has deleted."""
    id = shared(clones, "one", type=type)
    delete(clones[0], id)
    sync_of(clones[0])
    return *clones, id


def test_a_conversation_deleted_there_goes_to_the_trash_here(clones: Two) -> None:
    _, ben, id = deleted(clones)
    sync_of(ben)
    with ben.store() as store:
        assert not ben.file(id).exists()
        assert [trashed.id for trashed in store.trash.list()] == [id]
    assert_at_rest(ben)


def test_a_conversation_deleted_there_and_written_to_here_comes_back_there(clones: Two) -> None:
    anna, ben, id = deleted(clones)
    say(ben, id, "still needed")
    ran = ben.capsule("git", "sync")
    assert f"kept {ben.path(id)}, which one side deleted and the other changed" in ran.lines
    sync_of(anna)
    assert contents(anna, id) == ["one", "still needed"]


def test_a_conversation_deleted_there_and_written_to_during_the_sync_is_kept(clones: Two) -> None:
    anna, ben, id = deleted(clones)

    def write(step: str, done: int, total: int) -> None:
        if step == "write":
            say(ben, id, "still needed")

    done = sync_of(ben, write)
    assert done.applied[0].documents[ben.path(id)].what == "kept"
    sync_all(ben, anna)
    assert contents(anna, id) == ["one", "still needed"]


def test_a_conversation_deleted_there_and_locked_here_is_kept(clones: Two) -> None:
    anna, ben, id = deleted(clones, "chat")
    with ben.store() as holder, holder.locks.take(id):
        ran = ben.capsule("git", "sync")
        assert "it is locked by tester" in ran.out
        holder.append(id, content="mine")
    sync_all(ben, anna)
    assert contents(anna, id) == ["one", "mine"]


# -- Conflicts -------------------------------------------------------------------------------------


def test_of_two_titles_one_stands_and_the_other_awaits_a_decision(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    rename(anna, id, "Anna's")
    rename(ben, id, "Ben's")
    sync_of(anna)
    ran = ben.capsule("git", "sync", expect=1)
    assert (
        f"conversation {id}" in ran.err
        and ": title" in ran.err
        and "capsule git resolve" in ran.err
    )
    assert "pushed 2 commits to origin/main" in ran.lines
    assert_at_rest(ben)
    sync_of(anna)
    assert anna.file(id).read_bytes() == ben.file(id).read_bytes()
    document = codec.decode(anna.file(id).read_bytes(), "")
    assert document["title"] in ("Anna's", "Ben's")
    told = json.loads(anna.capsule("git", "sync", "--json", expect=1).out)
    assert [(one["id"], one["field"]) for one in told["conflicts"]] == [(id, "title")]
    anna.capsule("git", "resolve", id, "title", "--keep", "1")
    anna.capsule("git", "sync")
    ben.capsule("git", "sync")
    assert anna.file(id).read_bytes() == ben.file(id).read_bytes()
