"""Instance files: who lives, and who is gone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capsule.storage.instances import Instances
from capsule.storage.syscalls import Syscalls
from tests.processes import Child

Start = Callable[..., Child]

LIVING = """
from capsule.storage.engine import FileStorage
storage = FileStorage(sys.argv[1])
storage.announce(sys.argv[2])
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
def instances(directory: Path) -> Iterator[Instances]:
    instances = Instances(Syscalls(), str(directory), lambda: directory.mkdir(parents=True, exist_ok=True), 0o600)
    yield instances
    instances.close()


def test_an_instance_of_another_process_lives_until_it_closes(
    tmp_path: Path, directory: Path, instances: Instances, child: Start
) -> None:
    other = child(LIVING, tmp_path, "one")
    other.hear()
    assert instances.alive("one") and instances.dead() == []
    instances.sweep("one")
    assert (directory / "one").exists() and instances.alive("one")
    other.say()
    other.hear()
    assert not instances.alive("one") and list(directory.iterdir()) == []


def test_an_instance_that_was_killed_is_dead_and_its_file_is_swept(
    tmp_path: Path, directory: Path, instances: Instances, child: Start
) -> None:
    other = child(LIVING, tmp_path, "one")
    other.hear()
    other.kill()
    assert not instances.alive("one") and instances.dead() == ["one"]
    instances.announce("two")
    assert [path.name for path in directory.iterdir()] == ["two"]


def test_an_instance_whose_file_was_unlinked_is_not_alive_and_harms_no_namesake(
    tmp_path: Path, directory: Path, instances: Instances, child: Start
) -> None:
    instances.announce("one")
    (directory / "one").unlink()
    other = child(LIVING, tmp_path, "one")
    other.hear()
    assert (directory / "one").exists()


def test_one_that_tidies_up_never_takes_a_live_ones_file(directory: Path, instances: Instances) -> None:
    """Two sweepers meet: the second opened the file before the first unlinked it, and an announcer made it anew."""
    directory.mkdir(parents=True)
    (directory / "one").write_bytes(b"")
    announcer = Instances(Syscalls(), str(directory), lambda: None, 0o600)

    class Late(Syscalls):
        def try_lock(self, fd: int) -> bool:
            Path(directory / "one").unlink(missing_ok=True)
            announcer.announce("one")
            return Syscalls.try_lock(self, fd)

    Instances(Late(), str(directory), lambda: None, 0o600).sweep("one")
    assert (directory / "one").exists() and instances.alive("one")
    announcer.close()


def test_a_dead_one_that_somebody_tidies_up_just_now_is_not_alive(directory: Path, instances: Instances) -> None:
    directory.mkdir(parents=True)
    (directory / "one").write_bytes(b"")
    tidying = Syscalls()
    fd = os.open(directory / "one", os.O_RDWR)
    assert tidying.try_lock(fd)
    tries = 0

    class Watching(Syscalls):
        def try_lock_shared(self, other: int) -> bool:
            nonlocal tries, fd
            tries += 1
            if tries == 2:
                (directory / "one").unlink()
                os.close(fd)
            return super().try_lock_shared(other)

    assert not Instances(Watching(), str(directory), lambda: None, 0o600).alive("one")


def test_what_cannot_be_found_out_counts_as_alive(directory: Path) -> None:
    class Failing(Syscalls):
        def try_lock_shared(self, fd: int) -> bool:
            raise OSError(37, "No locks available")

    directory.mkdir(parents=True)
    (directory / "one").write_bytes(b"")
    assert Instances(Failing(), str(directory), lambda: None, 0o600).alive("one")


def test_a_forked_childs_end_does_not_end_its_parents_instance(
    tmp_path: Path, instances: Instances, child: Start
) -> None:
    other = child(
        """
        from capsule.storage.engine import FileStorage
        storage = FileStorage(sys.argv[1])
        storage.announce("one")
        pid = os.fork()
        if pid == 0:
            storage.close()
            os._exit(0)
        os.waitpid(pid, 0)
        say("child is gone")
        hear()
        """,
        tmp_path,
    )
    other.hear()
    assert instances.alive("one")
    other.kill()
    assert not instances.alive("one")
