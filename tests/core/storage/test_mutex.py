"""The mutex: one holder among threads and processes, even if they die or its file is deleted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capsule.engines.files.storage import FileStorage
from capsule.errors import StoreBusy
from tests.processes import Child

Start = Callable[..., Child]

KIND = "conversations"
HOLDER = """
from capsule.engines.files.storage import FileStorage
storage = FileStorage(sys.argv[1])
with storage.hold("conversations", "x", 10):
    say("held")
    hear()
say("released")
hear()
"""


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[FileStorage]:
    storage = FileStorage(str(tmp_path))
    yield storage
    storage.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The mutex file of the document x."""
    return tmp_path / ".capsule" / "mutex" / f"{KIND}-x"


def take(storage: FileStorage, id: str, timeout_s: float = 0) -> None:
    with storage.hold(KIND, id, timeout_s):
        pass


def assert_excluded(storage: FileStorage, holder: Child) -> None:
    """Another process takes the mutex, and this one does not get it."""
    holder.hear()
    with pytest.raises(StoreBusy, match=f"process {holder.pid}"):
        take(storage, "x", 0.01)


def test_two_threads_never_hold_one_mutex(storage: FileStorage) -> None:
    inside, most, total = 0, 0, 0
    start = threading.Barrier(8)

    def work() -> None:
        nonlocal inside, most, total
        start.wait()
        for _ in range(200):
            with storage.hold(KIND, "x", 60):
                inside += 1
                most = max(most, inside)
                total += 1
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, total) == (1, 1600)


def test_a_timeout_names_the_process_that_holds_the_mutex(
    storage: FileStorage, child: Start, tmp_path: Path
) -> None:
    holder = child(HOLDER, tmp_path)
    assert_excluded(storage, holder)
    take(storage, "y")
    holder.say()
    take(storage, "x", 60)


def test_a_timeout_names_the_thread_that_holds_the_mutex(storage: FileStorage) -> None:
    with (
        storage.hold(KIND, "x"),
        pytest.raises(StoreBusy, match=f"thread of process {os.getpid()}"),
    ):
        take(storage, "x", 0.01)
    take(storage, "x")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_mutex_of_a_dead_process_is_free(
    tmp_path: Path, storage: FileStorage, child: Start, number: signal.Signals
) -> None:
    holder = child(HOLDER, tmp_path)
    holder.hear()
    holder.signal(number)
    holder.end()
    take(storage, "x")


def test_a_mutex_whose_file_was_unlinked_excludes_others(
    tmp_path: Path, storage: FileStorage, file: Path, child: Start
) -> None:
    take(storage, "x")
    file.unlink()
    holder = child(HOLDER, tmp_path)
    assert_excluded(storage, holder)
    holder.say()
    holder.hear()
    take(storage, "x", 60)
    with storage.hold(KIND, "x"):
        other = FileStorage(str(tmp_path))
        with pytest.raises(StoreBusy):
            take(other, "x")
        other.close()


def test_a_mutex_excludes_others_after_the_derived_directory_was_moved(
    tmp_path: Path, storage: FileStorage, child: Start
) -> None:
    take(storage, "x")
    (tmp_path / ".capsule").rename(tmp_path / "aside")
    holder = child(HOLDER, tmp_path)
    assert_excluded(storage, holder)
    holder.kill()
    take(storage, "x")


def test_many_mutexes_keep_few_files_open(storage: FileStorage) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("the system does not say which files are open")
    before = len(os.listdir("/proc/self/fd"))
    with storage.hold(KIND, "held"):
        for n in range(600):
            take(storage, f"m{n}")
        assert len(os.listdir("/proc/self/fd")) - before < 500
        with pytest.raises(StoreBusy):
            take(storage, "held")


def test_idle_descriptors_are_closed_when_the_system_has_no_more(
    tmp_path: Path, child: Start
) -> None:
    process = child(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        Store.init(sys.argv[1])
        with Store.open(sys.argv[1]) as store:
            ids = [store.create(type="group").id for _ in range(80)]
            for id in ids * 2:
                store.append(id, content="x")
            say(len(list(store.heads())))
        """,
        tmp_path / "store",
    )
    assert process.hear() == 80


def test_a_forked_child_shares_no_mutex_with_its_parent(tmp_path: Path, child: Start) -> None:
    process = child(
        """
        from capsule.engines.files.storage import FileStorage
        storage = FileStorage(sys.argv[1])
        with storage.hold("conversations", "x"):
            pid = os.fork()
            if pid == 0:
                try:
                    with storage.hold("conversations", "x", 0):
                        say("shared")
                except CapsuleError as error:
                    say(type(error).__name__)
                os._exit(0)
            os.waitpid(pid, 0)
            other = FileStorage(sys.argv[1])
            try:
                with other.hold("conversations", "x", 0):
                    say("lost")
            except CapsuleError as error:
                say(type(error).__name__)
        with storage.hold("conversations", "x", 0):
            say("free")
        """,
        tmp_path,
    )
    assert [process.hear() for _ in range(3)] == ["StoreBusy", "StoreBusy", "free"]


def test_a_child_forked_while_threads_hold_mutexes_is_not_stuck(
    tmp_path: Path, child: Start
) -> None:
    process = child(
        """
        import threading, warnings
        warnings.simplefilter("ignore")
        from capsule.engines.files.storage import FileStorage
        storage = FileStorage(sys.argv[1])
        inside, over = threading.Event(), threading.Event()
        def hold():
            with storage.hold("conversations", "x"):
                inside.set()
                over.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait()
        pid = os.fork()
        if pid == 0:
            with storage.hold("conversations", "y", 1):
                say("not stuck")
            os._exit(0)
        os.waitpid(pid, 0)
        over.set()
        thread.join()
        say("over")
        """,
        tmp_path,
    )
    assert [process.hear(), process.hear()] == ["not stuck", "over"]
