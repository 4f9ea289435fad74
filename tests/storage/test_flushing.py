"""Group commit: one flush serves all who wrote before it began, and nobody else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from capsule import Store
from capsule.storage.flushing import FlushLock, Pending, Unflushed, flush_once
from capsule.storage.syscalls import Syscalls
from tests.storage.faults import store_on, wanted_by_others


class Counting(Syscalls):
    """Counts the flushes; fails them on demand."""

    def __init__(self) -> None:
        self.flushes = 0
        self.fails = False

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self.flushes += 1
        if self.fails:
            raise OSError(5, "Input/output error")


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[FlushLock]:
    lock = FlushLock()
    lock.fd = os.open(tmp_path / "flush", os.O_RDWR | os.O_CREAT)
    yield lock
    os.close(lock.fd)


def test_a_flush_that_began_after_the_write_serves_it(lock: FlushLock) -> None:
    sys = Counting()
    early = Pending(0, 7, time.monotonic_ns())
    flush_once(sys, lock, Pending(0, 7, time.monotonic_ns()), "boot")
    flush_once(sys, lock, early, "boot")
    assert sys.flushes == 1


@pytest.mark.parametrize(
    ("inode", "boot", "later_ns"), [(8, "boot", 0), (7, "another", 0), (7, "boot", 1_000_000)],
    ids=["another file", "another boot", "begun before the write"],
)  # fmt: skip
def test_any_other_flush_serves_nobody(lock: FlushLock, inode: int, boot: str, later_ns: int) -> None:
    sys = Counting()
    written_ns = time.monotonic_ns()
    flush_once(sys, lock, Pending(0, 7, written_ns), "boot")
    written_ns = written_ns if not later_ns else time.monotonic_ns() + later_ns
    flush_once(sys, lock, Pending(0, inode, written_ns), boot)
    assert sys.flushes == 2


@pytest.mark.parametrize("mark", [b"", b"garbage", b"7 boot ", b"7 boot x\n", b"\n", b"7 boot 99999999999999999999"])
def test_a_mark_that_is_none_serves_nobody(lock: FlushLock, mark: bytes) -> None:
    os.pwrite(lock.fd, mark, 0)
    sys = Counting()
    flush_once(sys, lock, Pending(0, 7, time.monotonic_ns()), "boot")
    assert sys.flushes == 1


def test_a_flush_that_failed_fails_all_who_wrote_that_file(lock: FlushLock) -> None:
    sys = Counting()
    sys.fails = True
    with pytest.raises(Unflushed):
        flush_once(sys, lock, Pending(0, 7, time.monotonic_ns()), "boot")
    sys.fails = False
    with pytest.raises(Unflushed):
        flush_once(sys, lock, Pending(0, 7, time.monotonic_ns()), "boot")
    assert sys.flushes == 1
    flush_once(sys, lock, Pending(0, 8, time.monotonic_ns()), "boot")
    assert sys.flushes == 2


def test_a_flush_lock_that_another_keeps_is_done_without(lock: FlushLock, tmp_path: Path) -> None:
    sys = Counting()
    kept = os.open(tmp_path / "flush", os.O_RDWR)
    assert sys.try_lock(kept)
    flush_once(sys, lock, Pending(0, 7, time.monotonic_ns()), "boot")
    assert sys.flushes == 1
    os.close(kept)


def test_writers_that_wait_for_one_another_share_flushes_and_lose_nothing(tmp_path: Path) -> None:
    Store.init(tmp_path)

    class Slow(Syscalls):
        """A disk that takes its time, so that writers meet."""

        flushes = 0

        def fdatasync(self, fd: int) -> None:  # type: ignore[override]
            Slow.flushes += 1
            threading.Event().wait(0.002)
            os.fdatasync(fd)

    with store_on(tmp_path, Slow()) as store:
        store.create(id="team", type="group")

        def write(name: str) -> None:
            for n in range(25):
                store.append("team", content=f"{name} {n}")

        threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        texts = [message.content for message in store.load("team").history]
    assert sorted(texts) == sorted(f"{name} {n}" for name in "abcd" for n in range(25))
    assert Slow.flushes < 100


def test_an_append_whose_file_was_replaced_before_its_flush_is_in_what_replaced_it(tmp_path: Path) -> None:
    Store.init(tmp_path)
    other = Store.open(tmp_path)

    class Interrupted(Syscalls):
        """While one flushes, another instance renames the conversation, which puts a new file in its place."""

        def fdatasync(self, fd: int) -> None:  # type: ignore[override]
            os.fdatasync(fd)
            if other.head("plan").title != "Renamed":
                other.rename("plan", "Renamed")

    with other, store_on(tmp_path, Interrupted()) as store:
        other.create(id="plan", title="Plan", type="group")
        wanted_by_others(store)
        message = store.append("plan", content="mine")
        assert [kept.id for kept in store.load("plan").history] == [message.id]
        assert store.head("plan").title == "Renamed"


def test_an_append_that_an_editor_saved_over_before_its_flush_comes_back(tmp_path: Path) -> None:
    Store.init(tmp_path)
    path = tmp_path / "conversations" / "plan.json"

    class Edited(Syscalls):
        """While one flushes, an editor saves what it read before."""

        stale = b""

        def fdatasync(self, fd: int) -> None:  # type: ignore[override]
            os.fdatasync(fd)
            if Edited.stale:
                copy, Edited.stale = tmp_path / "copy", b""
                copy.write_bytes(stale)
                copy.rename(path)

    with store_on(tmp_path, Edited()) as store:
        store.create(id="plan", title="Plan", type="group")
        store.append("plan", content="read by the editor")
        stale = Edited.stale = path.read_bytes().replace(b"Plan", b"By hand")
        wanted_by_others(store)
        store.append("plan", content="mine")
        assert [message.content for message in store.load("plan").history] == ["read by the editor", "mine"]
        assert store.head("plan").title == "By hand"
