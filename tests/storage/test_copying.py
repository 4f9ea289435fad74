"""A copy that goes on beside the caller, and the new head that is found out meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from capsule.errors import InvalidInput
from capsule.format import anatomy
from capsule.storage import held as held_module
from capsule.storage.copying import CopyMeanwhile
from capsule.storage.interface import Held, Interfered, Known, Storage
from capsule.storage.syscalls import Syscalls
from tests.storage.conftest import document, entry, head, texts_of

KIND = "conversations"
LATER = "2025-01-12T10:31:00.000Z"


class Slow(Syscalls):
    """A system that copies when it is let, and tells of it."""

    def __init__(self) -> None:
        self.begun, self.may = threading.Event(), threading.Event()
        self.copies = 0

    def copy(self, source: int, target: int, offset: int, size: int, target_offset: int) -> int:
        self.begun.set()
        assert self.may.wait(20)
        self.copies += 1
        return super().copy(source, target, offset, min(size, 1000), target_offset)


@pytest.fixture(params=[0, 1 << 40])
def _thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thread, and without."""
    monkeypatch.setattr(held_module, "WORTH_A_THREAD", request.param)


def looked(held: Held) -> Known:
    known = held.look()
    assert known is not None
    return known


def put(storage: Storage, texts: list[str]) -> bytes:
    data = document("plan", texts)
    with storage.mutex(KIND, "plan") as held:
        held.replace(None, data, anatomy.survey(data), [], keep=False)
    return data


@pytest.mark.usefixtures("_thread")
@pytest.mark.parametrize("off_by", [0, 7, -7])
def test_a_head_that_is_found_out_meanwhile_stands_before_the_rest_as_it_was(storage: Storage, off_by: int) -> None:
    put(storage, ["one", "x" * 30_000])
    new = head("plan", "New", LATER)
    with storage.mutex(KIND, "plan") as held:
        known = looked(held)

        def decide() -> tuple[bytes, list[bytes]]:
            assert known.anatomy is not None
            assert b'"m-one"' in held.history(known, known.anatomy.history)
            return new, [b'{"decided": 1}']

        after = held.rehead_meanwhile(known, len(new) + off_by, decide)
        assert held.look() == after and held.records()[-1:] == [b'{"decided": 1}']
        held.splice(after, [entry("two")], LATER, [])
    got = storage.read(KIND, "plan")
    assert got is not None and got[0].startswith(new) and texts_of(got[0]) == ["one", "x" * 30_000, "two"]


@pytest.mark.usefixtures("_thread")
def test_what_is_raised_meanwhile_is_raised_and_nothing_was_written(storage: Storage, root: Path) -> None:
    data = put(storage, ["one"])
    files = set((root / "conversations").iterdir())

    def decide() -> tuple[bytes, list[bytes]]:
        raise InvalidInput("no")

    with storage.mutex(KIND, "plan") as held:
        known = looked(held)
        with pytest.raises(InvalidInput):
            held.rehead_meanwhile(known, 100, decide)
        assert held.look() == known
        held.rehead(known, head("plan", "Next"), [], [])
    got = storage.read(KIND, "plan")
    assert got is not None and texts_of(got[0]) == texts_of(data) and set((root / "conversations").iterdir()) == files


@pytest.mark.usefixtures("_thread")
def test_a_save_by_an_editor_meanwhile_is_noticed_and_stays(storage: Storage, root: Path) -> None:
    put(storage, ["one"])
    path, mine = root / "conversations" / "plan.json", document("plan", ["mine"])

    def decide() -> tuple[bytes, list[bytes]]:
        (root / "copy").write_bytes(mine)
        (root / "copy").rename(path)
        return head("plan", "New", LATER), []

    with storage.mutex(KIND, "plan") as held, pytest.raises(Interfered):
        held.rehead_meanwhile(looked(held), len(head("plan", "New", LATER)), decide)
    assert path.read_bytes() == mine


def copied(tmp_path: Path, sys: Syscalls, body: Callable[[CopyMeanwhile, int], None]) -> bytes:
    """What lies in the target after `body`, which is given the copy and the source."""
    (tmp_path / "source").write_bytes(bytes(range(256)) * 100)
    source = os.open(tmp_path / "source", os.O_RDONLY)
    target = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    try:
        with CopyMeanwhile(sys, source, target, 100, 25_000, 50) as copying:
            body(copying, source)
    finally:
        assert not before or set(os.listdir("/proc/self/fd")) == before
        os.close(source)
        os.close(target)
    return (tmp_path / "target").read_bytes()


def test_the_copy_is_under_way_while_the_caller_does_something_else(tmp_path: Path) -> None:
    sys = Slow()

    def body(copying: CopyMeanwhile, source: int) -> None:
        assert sys.begun.wait(20)
        sys.may.set()
        assert copying.end(source, 50) == 24_950

    assert copied(tmp_path, sys, body) == bytes(50) + (bytes(range(256)) * 100)[100:25_000]
    assert sys.copies == 25


def test_a_copy_that_is_not_wanted_is_given_up(tmp_path: Path) -> None:
    sys = Slow()

    def body(copying: CopyMeanwhile, source: int) -> None:
        sys.may.set()
        raise KeyError

    with pytest.raises(KeyError):
        copied(tmp_path, sys, body)


def test_where_no_thread_can_be_had_the_caller_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    done = copied(tmp_path, Syscalls(), lambda copying, source: (copying.end(source, 7), None)[1])
    assert done == bytes(7) + (bytes(range(256)) * 100)[100:25_000]


def test_a_source_that_was_cut_short_is_noticed(tmp_path: Path) -> None:
    sys = Slow()

    def body(copying: CopyMeanwhile, source: int) -> None:
        (tmp_path / "source").write_bytes(b"short")
        sys.may.set()
        with pytest.raises(Interfered):
            copying.end(source, 50)

    copied(tmp_path, sys, body)
