"""Instance files: which instances are alive, and which are dead."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from capsule.disk.syscalls import Syscalls
from capsule.engines.files.disk.leases import FileLeases
from capsule.engines.files.disk.mutex import Mutexes
from capsule.engines.files.disk.store_paths import StoreDirectory, StorePaths
from tests.processes import Child

Start = Callable[..., Child]
ONE, TWO = "5f0c9a52-7e0b-4b0e-9f0f-6a9f7c1d2e31", "0b9c3f54-2f5d-4f7e-8a53-3f1b6c7d8e92"

LIVING = """
from capsule.engines.files.storage import FileStorage
storage = FileStorage(sys.argv[1])
storage.leases.acquire(sys.argv[2], {"agent": "anna", "listening": True})
say("announced")
hear()
storage.close()
say("closed")
hear()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / ".capsule" / "instances"


@pytest.fixture
def instances(directory: Path) -> Iterator[FileLeases]:
    instances = on(directory, Syscalls())
    yield instances
    instances.close()


def on(directory: Path, sys: Syscalls) -> FileLeases:
    return FileLeases(
        sys,
        layout := StorePaths(str(directory.parents[1])),
        Mutexes(sys, StoreDirectory(layout, sys, "mutex")),
    )


def test_an_instance_of_another_process_is_alive_until_it_closes(
    tmp_path: Path, directory: Path, instances: FileLeases, child: Start
) -> None:
    other = child(LIVING, tmp_path, ONE)
    other.hear()
    assert instances.is_live(ONE) and instances.dead() == []
    instances.sweep(ONE)
    assert (directory / ONE).exists() and instances.is_live(ONE)
    other.say()
    other.hear()
    assert not instances.is_live(ONE) and list(directory.iterdir()) == []


def test_a_killed_instance_is_dead_and_its_file_is_swept(
    tmp_path: Path, directory: Path, instances: FileLeases, child: Start
) -> None:
    other = child(LIVING, tmp_path, ONE)
    other.hear()
    other.kill()
    assert not instances.is_live(ONE) and instances.dead() == [ONE]
    instances.acquire(TWO)
    instances.close()
    assert list(directory.iterdir()) == []


def test_an_instance_whose_file_was_unlinked_leaves_the_file_of_its_namesake(
    tmp_path: Path, directory: Path, instances: FileLeases, child: Start
) -> None:
    instances.acquire(ONE)
    (directory / ONE).unlink()
    other = child(LIVING, tmp_path, ONE)
    other.hear()
    assert (directory / ONE).exists()


def test_a_sweep_never_removes_the_file_of_an_instance_being_announced(directory: Path) -> None:
    announcer = on(directory, Syscalls())

    class Between(Syscalls):
        """A system that does something before its first `step`, as another process could."""

        def __init__(self, step: str, what: Callable[[], object]) -> None:
            call, done = getattr(Syscalls(), step), []

            def first(*args: object) -> object:
                if not done:
                    done.append(what())
                return call(*args)

            setattr(self, step, first)

    def tidy() -> None:
        for name in announcer.dead():
            announcer.sweep(name)

    for step in ("try_lock", "rename"):
        on(directory, Between(step, tidy)).acquire(ONE)
        assert announcer.is_live(ONE), step
    directory.joinpath(f".{TWO}").write_bytes(b"")
    on(directory, Between("try_lock", lambda: announcer.acquire(TWO))).sweep(f".{TWO}")
    assert (directory / TWO).exists()
    announcer.close()


def test_a_dead_instance_is_dead_during_a_check_by_another_and_a_live_one_is_checked_once(
    directory: Path, instances: FileLeases
) -> None:
    directory.mkdir(parents=True)
    (directory / ONE).write_bytes(b"")
    asked = 0

    class Counting(Syscalls):
        def try_lock(self, fd: int, shared: bool = False, wait: bool = False) -> bool:  # type: ignore[override]
            nonlocal asked
            asked += 1
            return super().try_lock(fd, shared, wait)

    asking = os.open(directory / ONE, os.O_RDWR)
    assert Syscalls().try_lock(asking, True)
    assert not on(directory, Counting()).is_live(ONE)
    instances.acquire(TWO)
    assert on(directory, Counting()).is_live(TWO)
    assert asked == 2
    os.close(asking)


def test_what_a_live_instance_says_is_read_and_ends_with_its_process(
    tmp_path: Path, directory: Path, instances: FileLeases, child: Start
) -> None:
    other = child(LIVING, tmp_path, ONE)
    other.hear()
    instances.acquire(TWO, {"agent": "bob"})
    (directory / TWO.replace("8", "9")).write_bytes(b'{"about": {"agent": "dead"}}')
    (directory / "notes.txt").write_bytes(b"")
    assert instances.live_instances() == {
        ONE: {"agent": "anna", "listening": True},
        TWO: {"agent": "bob"},
    }
    other.kill()
    assert instances.live_instances() == {TWO: {"agent": "bob"}}


def test_an_instance_without_readable_words_says_nothing(
    directory: Path, instances: FileLeases
) -> None:
    for words in (b"", b"{", b"[]", b'{"pid": 1}', b'{"about": 1}'):
        instances.acquire(ONE)
        (directory / ONE).write_bytes(words)
        assert instances.live_instances() == {ONE: {}}
    instances.acquire(ONE, {"agent": "anna"})
    assert instances.live_instances() == {ONE: {"agent": "anna"}}


def test_an_announcement_reads_no_other_instance(directory: Path) -> None:
    """A save announces its instance under the document's mutex, so that the number of others must
    not matter.
    """

    class Blind(Syscalls):
        def names(self, directory: str) -> NoReturn:
            raise AssertionError

    on(directory, Blind()).acquire(ONE)


def test_an_instance_can_be_announced_again_after_the_derived_directory_was_moved(
    directory: Path, instances: FileLeases
) -> None:
    instances.acquire(ONE)
    directory.parent.rename(directory.parents[1] / "aside")
    assert not on(directory, Syscalls()).is_live(ONE)
    instances.acquire(ONE)
    assert on(directory, Syscalls()).is_live(ONE)


def test_an_instance_that_cannot_be_checked_counts_as_alive(directory: Path) -> None:
    class Failing(Syscalls):
        def try_lock(self, fd: int, shared: bool = False, wait: bool = False) -> bool:  # type: ignore[override]
            raise OSError(37, "No locks available")

    directory.mkdir(parents=True)
    (directory / ONE).write_bytes(b"")
    assert on(directory, Failing()).is_live(ONE)
