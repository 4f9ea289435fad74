"""The server is an instance: however its client goes away, its locks are nobody's obstacle, and
nothing is lost.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.maintenance import doctor
from tests.core.mcp_server.serving import (
    CAPABILITIES,
    HANDSHAKE,
    PATIENCE_S,
    Stdio,
    eventually,
    over_stdio,
)

pytestmark = pytest.mark.slow

ID = "the-one"

Leaving = Callable[[Stdio], None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Store.init(tmp_path / "store")
    with Store.open(tmp_path / "store", keep_locks=False) as store:
        store.create(id=ID, title="The one")
    return tmp_path / "store"


def after_end_of_file(number: int, wait_ms: float) -> Leaving:
    def leave(client: Stdio) -> None:
        client.leave()
        time.sleep(
            wait_ms / 1000
        )  # The interval itself is what is tested: hosts wait no longer than this.
        client.signal(number)

    return leave


WAYS: dict[str, tuple[Leaving, set[int]]] = {
    "end of file": (Stdio.leave, {0}),
    "SIGTERM": (methodcaller("signal", signal.SIGTERM), {0}),
    "SIGINT": (methodcaller("signal", signal.SIGINT), {130}),
    "SIGHUP": (methodcaller("signal", signal.SIGHUP), {0}),
    "SIGKILL": (methodcaller("signal", signal.SIGKILL), {-9}),
    "end of file, SIGKILL at once": (after_end_of_file(signal.SIGKILL, 0), {0, -9}),
    # Whichever comes first decides; a second signal would be the third word.
    "end of file, SIGTERM after 5 ms": (after_end_of_file(signal.SIGTERM, 5), {0}),
    "end of file, SIGINT at once": (after_end_of_file(signal.SIGINT, 0), {0, 130}),
}


def document(root: Path) -> Any:
    return json.loads((root / "conversations" / f"{ID}.json").read_bytes())


def contents(root: Path) -> list[str]:
    return [message["content"] for message in document(root)["history"]]


def in_use(root: Path) -> set[str]:
    with Store.open(root, keep_locks=False) as store:
        return {lock.id for lock in store.locks.list() if lock.state != "orphaned"}


@pytest.mark.parametrize("way", WAYS)
def test_however_the_client_ends_no_acknowledged_write_is_lost_and_its_lock_blocks_nobody(
    root: Path, way: str
) -> None:
    leave, codes = WAYS[way]
    with over_stdio(root) as client:
        client.call("append_message", id=ID, content="first")
        client.call("lock_conversation", id=ID)
        assert in_use(root) == {ID}
        asked = {
            client.send_call("append_message", id=ID, content=f"in flight {n}"): n
            for n in range(20)
        }
        leave(client)
        acknowledged = [
            f"in flight {asked[message['id']]}"
            for message in client.answers()
            if message.get("id") in asked
            and not message.get("result", {"isError": True}).get("isError")
        ]
        assert client.ended() in codes, client.said
    with Store.open(root, keep_locks=False) as store:
        # Nobody waits, nobody needs force: the lock is gone, or its owner provably dead.
        store.append(ID, content="the next")
        found = list(doctor.examine(store))
    assert {finding.kind for finding in found} <= {"leftover"}, found
    there = contents(root)
    assert there[0] == "first"
    assert there[-1] == "the next"
    assert set(acknowledged) <= set(there)
    assert len(there) == len(set(there))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_call_that_can_not_be_cancelled_does_not_keep_the_other_locks(
    root: Path, number: int
) -> None:
    with Store.open(root, keep_locks=False) as other:
        other.create(id="held-up", title="Held up")
        with over_stdio(root) as client:
            client.call("lock_conversation", id=ID)
            assert in_use(root) == {ID}
            # A write that waits for the mutex sits in a thread, in a system call, for up to ten
            # seconds.
            with other.engine.storage.hold("conversations", "held-up"):
                client.send_call("append_message", id="held-up", content="waits")
                client.call("list_conversations")
                client.signal(number)
                assert client.ended() == (130 if number == signal.SIGINT else 0)
            assert in_use(root) == set()
        other.append("held-up", content="goes on")


@pytest.mark.slow
@pytest.mark.sample
def test_requests_sent_before_the_end_of_file_are_answered_though_they_take_long(
    root: Path,
) -> None:
    with Store.open(root, keep_locks=False) as other, over_stdio(root) as client:
        other.create(id="held", title="Held")
        client.call("lock_conversation", id="held")
        with other.engine.storage.hold("conversations", ID):
            asked = {
                client.send_call("append_message", id=ID, content=f"piped {n}") for n in range(20)
            }
            client.leave()
            eventually(lambda: in_use(root) == set(), "the locks are given back")
        answered = {
            message["id"] for message in client.answers() if not message["result"].get("isError")
        }
        assert answered == asked
        assert client.ended() == 0
    assert sorted(contents(root)) == sorted(f"piped {n}" for n in range(20))
    assert in_use(root) == set()


@pytest.mark.parametrize("is_asked_before", [True, False])
def test_a_question_that_nobody_can_answer_any_more_is_a_no(
    root: Path, is_asked_before: bool
) -> None:
    with over_stdio(root) as client:
        client.answer(
            client.send(
                "initialize", HANDSHAKE | {"capabilities": CAPABILITIES | {"elicitation": {}}}
            )
        )
        call = client.send_call("delete_conversation", id=ID)
        if is_asked_before:
            assert next(client.answers())["method"] == "elicitation/create"
        client.leave()
        said = client.answer(call)["result"]
        assert said["isError"] and "counts as no" in said["content"][0]["text"]
        assert client.ended() == 0, client.said
    assert document(root)["id"] == ID


def test_the_server_ends_when_its_client_stops_reading(root: Path) -> None:
    with over_stdio(root) as client:
        client.call("lock_conversation", id=ID)
        assert client.process.stdout is not None
        client.process.stdout.close()
        client.send("ping")
        assert client.ended() == 0, client.said
    assert in_use(root) == set()


def test_a_client_that_leaves_before_the_handshake_is_no_failure(root: Path) -> None:
    client = Stdio(root=root)
    try:
        client.leave()
        assert client.ended() == 0, client.said
        assert client.said == ""
    finally:
        client.close()


def test_a_long_poll_does_not_keep_the_server_from_ending(root: Path) -> None:
    with over_stdio(root) as client:
        poll = client.send_call("watch_changes", id=ID, seconds=50)
        # Another's conversation: nothing that the poll waits for.
        client.call("create_conversation", title="Another")
        client.leave()
        (last,) = [message for message in client.answers() if message.get("id") == poll]
        assert last["result"]["structuredContent"]["changes"] == []
        assert client.ended() == 0, client.said
    assert in_use(root) == set()


def test_a_signal_releases_the_locks_before_the_process_ends(root: Path) -> None:
    with over_stdio(root, limits={"process._RELEASE_S": PATIENCE_S}) as client:
        client.call("lock_conversation", id=ID)
        client.signal(signal.SIGTERM)
        assert client.ended() == 0
    assert not document(root)["metadata"]["lock"]["active"]


def test_a_named_instance_keeps_its_locks_when_the_server_ends(root: Path) -> None:
    with over_stdio(root, "--instance", "anna") as client:
        client.call("lock_conversation", id=ID)
        client.leave()
        assert client.ended() == 0
    with Store.open(root) as store:
        assert [(lock.name, lock.state) for lock in store.locks.list()] == [("anna", "held")]


def test_a_store_that_was_released_writes_on_without_keeping_locks(root: Path) -> None:
    with Store.open(root) as store:
        store.append(ID, content="one")
        assert in_use(root) == {ID}
        store.release()
        assert in_use(root) == set()
        store.append(ID, content="two")
        assert in_use(root) == set()
        with pytest.raises(Exception, match="is being closed"):
            store.locks.take(ID)
    assert contents(root) == ["one", "two"]


def test_writes_during_a_close_leave_no_live_lock(root: Path) -> None:
    with Store.open(root, keep_locks=False) as other:
        ids = [other.create(title="t").id for _ in range(40)]
    store, begun = Store.open(root), threading.Event()

    def write() -> None:
        for n, id in enumerate(ids):
            store.append(id, content="x")
            if n == 5:
                begun.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        begun.wait(60)
        store.close()
        writing.result(60)
    assert in_use(root) == set()
