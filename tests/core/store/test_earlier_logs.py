"""The directory of the logs: earlier versions of Capsule had another, which is taken over, and which they lose."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.disk.syscalls import Syscalls
from capsule.engines.files.disk.layout import Layout, Logs
from capsule.errors import Refused
from tests.core.storage.faults import store_on
from tests.core.store.files import contents, put_over


def as_earlier(root: Path) -> None:
    """Give the logs the place, and the notes the form, of an earlier version, which made no checkpoints."""
    logs, earlier = root / ".capsule" / "logs", root / ".capsule" / "log"
    earlier.unlink()
    logs.rename(earlier)
    for note in (root / ".capsule" / "mutex").iterdir():
        note.write_bytes(b"")


@pytest.fixture
def stale(root: Path, store: Store) -> bytes:
    """A version of the conversation `plan` that an editor has open, while its log has two messages more."""
    store.create(id="plan", type="group", messages=[{"role": "user", "content": "one"}])
    saved = (root / "conversations" / "plan.json").read_bytes()
    store.append("plan", content="two")
    store.append("plan", content="three")
    store.close()
    return saved


def test_the_logs_of_an_earlier_version_are_taken_over_with_what_they_know(root: Path, stale: bytes) -> None:
    as_earlier(root)
    put_over(root / "conversations" / "plan.json", stale)
    with Store.open(root) as store:
        assert contents(store) == ["one", "two", "three"]
        store.append("plan", content="four")
    assert (root / ".capsule" / "log").is_file()
    assert os.listdir(root / ".capsule" / "logs") == ["conversations-plan"]


def test_an_earlier_version_finds_no_directory_for_its_logs(root: Path, stale: bytes) -> None:
    with pytest.raises(NotADirectoryError):
        os.open(root / ".capsule" / "log" / "conversations-plan", os.O_RDWR | os.O_CREAT)
    assert b"newer version of Capsule" in (root / ".capsule" / "log").read_bytes()


class Interrupted(Syscalls):
    """A system in which something else happens right before the first call of this name."""

    def __init__(self, name: str, act: Callable[[], object]) -> None:
        real, acts = getattr(super(), name), [act]

        def call(*args: Any) -> Any:
            if acts and args[0].endswith("/.capsule/log"):
                acts.pop()()
            return real(*args)

        setattr(self, name, call)


@pytest.mark.parametrize("step", ["lstat", "rename", "open"])
def test_two_processes_take_the_logs_over_at_once(root: Path, stale: bytes, step: str) -> None:
    as_earlier(root)
    layout = Layout(str(root))

    def other() -> None:
        logs = Logs(layout, Syscalls())
        logs.file("conversations-plan")
        logs.ensure()

    Logs(layout, Interrupted(step, other)).file("conversations-plan")
    assert (root / ".capsule" / "log").is_file()
    assert os.listdir(root / ".capsule" / "logs") == ["conversations-plan"]


def test_logs_that_an_earlier_version_makes_meanwhile_are_refused_by_name(root: Path, stale: bytes) -> None:
    earlier, path = root / ".capsule" / "log", root / "conversations" / "plan.json"
    earlier.unlink()
    earlier.mkdir()
    (earlier / "conversations-plan").write_bytes(b"")
    before = path.read_bytes()
    with Store.open(root) as store:
        with pytest.raises(Refused, match=f"rm -r {earlier}"):
            store.append("plan", content="four")
        assert path.read_bytes() == before
        assert contents(store) == ["one", "two", "three"]


def test_a_store_that_cannot_be_written_is_read_with_the_logs_of_an_earlier_version(root: Path, stale: bytes) -> None:
    class ReadOnly(Syscalls):
        def rename(self, source: str, target: str) -> None:  # type: ignore[override]
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    as_earlier(root)
    with store_on(root, ReadOnly()) as store:
        assert contents(store) == ["one", "two", "three"]
    assert (root / ".capsule" / "log").is_dir()
