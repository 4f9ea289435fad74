"""What an engine keeps beside its documents: files, heartbeats, and locks of the machine
by name.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from capsule import Store
from capsule.engines.files.engine import FilesEngine
from capsule.engines.files.storage import FileStorage
from capsule.engines.interface import CONVERSATIONS, Engine
from capsule.engines.memory.engine import MemoryEngine
from capsule.errors import (
    InvalidDocument,
    InvalidInput,
    NotFound,
    Refused,
    StorageFailed,
    StoreBusy,
)
from capsule.format.documents.creation import new_capsule
from tests.core.engines.test_conformance import STAMP
from tests.core.storage.faults import Faulty
from tests.processes import Child


def test_a_file_is_kept_once_under_a_name_of_its_folder(engine: Engine) -> None:
    assert engine.files.names("inbox", "s_1") == []
    for _ in range(2):
        engine.files.write("inbox", "s_1", "report (1).pdf", b"\0data")
    assert engine.files.read("inbox", "s_1", "report (1).pdf") == b"\0data"
    with pytest.raises(Refused):
        engine.files.write("inbox", "s_1", "report (1).pdf", b"other")
    engine.files.write("inbox", "s_1", "über.txt", b"")
    engine.files.write("outbox", "s_1", "über.txt", b"of the outbox")
    engine.files.write("attachments", "0a1b", "0a1b", b"of all")
    assert (
        engine.files.names("inbox", "s_1") == ["report (1).pdf", "über.txt"]
        and engine.files.read("inbox", "s_1", "über.txt") == b""
    )
    assert (
        engine.files.names("attachments", "0a1b") == ["0a1b"]
        and engine.files.names("outbox", "s_2") == []
    )
    for ask in (("inbox", "s_2", "über.txt"), ("outbox", "s_1", "report (1).pdf")):
        with pytest.raises(NotFound):
            engine.files.read(*ask)
    for _ in range(2):
        engine.files.erase("inbox", "s_1", "über.txt")
    assert engine.files.names("inbox", "s_1") == ["report (1).pdf"] and engine.files.names(
        "outbox", "s_1"
    ) == ["über.txt"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "../x", "a\\b", "a\0", "a\nb", "x" * 201, "\ud800"]
)
def test_a_name_that_could_leave_its_folder_is_refused(engine: Engine, name: str) -> None:
    with pytest.raises(InvalidInput):
        engine.files.write("inbox", "s_1", name, b"x")
    with pytest.raises(InvalidInput):
        engine.files.read("inbox", "s_1", name)
    with pytest.raises(InvalidInput):
        engine.files.write("inbox", f"s_1/{name}", "name", b"x")


@pytest.mark.parametrize(
    "link",
    ["sessions", "sessions/s_1", "sessions/s_1/inbox", "sessions/s_1/inbox/x", "attachments"],
)
def test_no_file_behind_a_symlink_is_read_or_written(tmp_path: Path, link: str) -> None:
    root, outside = tmp_path / "store", tmp_path / "outside"
    Store.init(root)
    for folder in ("s_1/inbox", "inbox"):
        (outside / folder).mkdir(parents=True, exist_ok=True)
        (outside / folder / "x").write_bytes(b"of the user")
    (outside / "x").write_bytes(b"of the user")
    (root / link).parent.mkdir(parents=True, exist_ok=True)
    (root / link).symlink_to(outside / "x" if link.endswith("x") else outside)
    engine = FilesEngine(FileStorage(str(root)))
    kind = "attachments" if link == "attachments" else "inbox"
    for act in (engine.files.read, lambda *place: engine.files.write(*place, b"new")):
        with pytest.raises((Refused, InvalidDocument)):
            act(kind, "s_1", "x")
    if not link.endswith(("x", "s")):
        with pytest.raises(Refused):
            engine.leases.record_heartbeat("s_1")
    engine.close()
    assert {path.read_bytes() for path in outside.rglob("*") if path.is_file()} == {b"of the user"}
    assert not list(outside.rglob("heartbeat"))


def test_a_fault_at_any_call_keeps_a_file_whole_or_not_at_all(tmp_path: Path) -> None:
    for at in range(1, 200):
        root, sys = tmp_path / str(at), Faulty()
        Store.init(root)
        engine = FilesEngine(FileStorage(str(root), sys=sys))
        sys.arm(at, 5)
        try:
            engine.files.write("inbox", "s_1", "x", b"data")
            failed = False
        except (StorageFailed, Refused):
            failed = True
        sys.disarm()
        assert failed or engine.files.names("inbox", "s_1") == ["x"]
        if engine.files.names("inbox", "s_1"):
            assert engine.files.read("inbox", "s_1", "x") == b"data"
        engine.files.write("inbox", "s_1", "x", b"data")
        assert engine.files.names("inbox", "s_1") == ["x"]
        engine.trash.purge(0)
        assert not list(root.rglob(".*.tmp"))
        engine.close()
        if not sys.hit:
            return
    raise AssertionError("no run came to its end")


def test_a_heartbeat_says_when_it_was(engine: Engine) -> None:
    assert engine.leases.last_heartbeat("s_1") is None
    engine.leases.record_heartbeat("s_1")
    first = engine.leases.last_heartbeat("s_1")
    assert first is not None and engine.leases.last_heartbeat("s_2") is None
    engine.leases.record_heartbeat("s_1")
    assert (engine.leases.last_heartbeat("s_1") or "") >= first


def test_instances_are_listed_while_others_come_and_go() -> None:
    switch_interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    leases = MemoryEngine().leases
    is_done = threading.Event()

    instances = [str(uuid4()) for _ in range(100)]

    def come_and_go() -> None:
        while not is_done.is_set():
            for instance in instances:
                leases.acquire(instance)
            for instance in instances:
                leases.release(instance)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(come_and_go)
        try:
            for _ in range(2000):
                leases.live_instances()
        finally:
            sys.setswitchinterval(switch_interval_s)
            is_done.set()
        other.result()


def test_a_name_is_held_by_one_until_it_lets_go(engine: Engine) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with engine.leases.acquire("host"):
            entered.set()
            leave.wait(20)

    def wait() -> bool:
        with engine.leases.acquire("host", timeout_s=None):
            return leave.is_set()

    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(hold)
        assert entered.wait(20)
        with pytest.raises(StoreBusy) as busy, engine.leases.acquire("host"):
            pass
        assert str(os.getpid()) in busy.value.holder
        with engine.leases.acquire("worker-s_1"):
            pass
        waits = pool.submit(wait)
        leave.set()
        held.result()
        assert waits.result()


def test_two_takers_of_a_lease_are_never_both_holders_and_each_has_a_higher_fence(
    engine: Engine,
) -> None:
    holders, most, fences = 0, 0, []

    def take(_: int) -> None:
        nonlocal holders, most
        for _ in range(20):
            with engine.leases.acquire("host", timeout_s=None) as lease:
                holders += 1
                most = max(most, holders)
                fences.append(lease.fence)
                holders -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(take, range(4)))
    assert most == 1 and fences == sorted({*fences}) and len(fences) == 80


def test_a_holder_whose_lease_was_taken_writes_nothing(engine: Engine) -> None:
    engine.create(CONVERSATIONS, new_capsule("plan", "Plan", STAMP))
    leases = [engine.leases.acquire("host")]
    with engine.transaction(CONVERSATIONS, "plan") as transaction:
        transaction.read_set = leases[0].as_read_set
        transaction.set_head(transaction.head.document | {"title": "Mine"})
        engine.leases.release("host")
        leases.append(engine.leases.acquire("host"))
        with pytest.raises(StoreBusy):
            transaction.set_head(transaction.head.document | {"title": "Late"})
    with pytest.raises(StoreBusy):
        engine.put("agents", "anna", b"{}", None, leases[0].as_read_set)
    assert engine.head("plan")[0]["title"] == "Mine" and engine.ids("agents") == []
    engine.put("agents", "anna", b"{}", None, leases[1].as_read_set)
    engine.leases.release("host")


def test_a_lease_whose_file_was_removed_is_lost(tmp_path: Path) -> None:
    Store.init(tmp_path)
    mine, other = (FilesEngine(FileStorage(str(tmp_path))) for _ in range(2))
    lease = mine.leases.acquire("host")
    mine.put("agents", "anna", b"1", None, lease.as_read_set)
    (tmp_path / ".capsule" / "mutex" / "hold-host").unlink()
    with other.leases.acquire("host") as theirs:
        assert theirs.fence > lease.fence
        with pytest.raises(StoreBusy):
            mine.put("agents", "bob", b"1", None, lease.as_read_set)
        other.put("agents", "bob", b"2", None, theirs.as_read_set)
    for engine in (mine, other):
        engine.close()


def test_a_name_is_free_when_its_holder_was_killed(tmp_path: Path) -> None:
    Store.init(tmp_path)
    child = Child(
        """
        with Store.open(sys.argv[1]) as store, store.engine.leases.acquire("host"):
            say()
            hear()
        """,
        str(tmp_path),
    )
    child.hear()
    engine = FilesEngine(FileStorage(str(tmp_path)))
    with pytest.raises(StoreBusy) as busy, engine.leases.acquire("host"):
        pass
    assert str(child.pid) in busy.value.holder
    with ThreadPoolExecutor(1) as pool:

        def wait() -> None:
            with engine.leases.acquire("host", timeout_s=None):
                pass

        waits = pool.submit(wait)
        child.kill()
        waits.result(20)
    engine.close()
    child.close()
