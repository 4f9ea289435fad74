"""What is flushed when: the log before an append is acknowledged, the document behind it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.disk.syscalls import Syscalls
from capsule.engines.files import note
from capsule.engines.files.disk import behind
from capsule.engines.files.disk import log as logs
from capsule.errors import StorageFailed
from tests.core.storage.faults import store_on
from tests.processes import Child, until
from tests.torture.filesystem import Recorder

Start = Callable[..., Child]
#: A child whose thread flushes nothing by itself, and which says when it appended, and waits.
APPENDS = """
from capsule.engines.files.disk import behind
behind._DELAY_S = 3600
store = Store.open(sys.argv[1])
store.append("plan", content="two")
say()
hear()
"""


class Flushes(Syscalls):
    """Records what is flushed, by the name of its folder: "log", or "conversations" for a document.

    Attributes:
        flushed: The names, in order.
        failing: What fails when it is flushed.
        gate: What a flush of the log waits for, once `reached` is set.
    """

    def __init__(self) -> None:
        self.flushed: list[str] = []
        self.failing = ""
        self.gate: threading.Event | None = None
        self.reached = threading.Event()

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        name = os.path.basename(os.path.dirname(os.readlink(f"/proc/self/fd/{fd}")))
        if name == "log" and self.gate is not None:
            self.reached.set()
            self.gate.wait()
        if name == self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fsync(fd)
        self.flushed.append(name)

    fsync = fdatasync  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The thread flushes nothing by itself."""
    behind._thread.stop()
    monkeypatch.setattr(behind, "_DELAY_S", 3600)
    monkeypatch.setattr(behind, "_thread", behind._Thread())
    yield
    behind._thread.stop()


@pytest.fixture
def system() -> Flushes:
    return Flushes()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of a fresh store."""
    Store.init(tmp_path)
    return tmp_path


@pytest.fixture
def store(root: Path, system: Flushes) -> Iterator[Store]:
    """A store with a conversation, whose log and document are flushed."""
    with store_on(root, system, keep_locks=False) as store:
        store.create(id="plan", type="group")
        store.append("plan", content="one")
        store.flush()
        system.flushed.clear()
        yield store


def is_checkpoint(root: Path) -> bool:
    """Whether the note says that the document is on the medium."""
    header = note.decode_header((root / ".capsule" / "mutex" / "conversations-plan").read_bytes())
    return header is not None and header[1] is not None and header[1].is_checkpoint


def texts(store: Store) -> list[str]:
    return [message.content for message in store.load("plan").history]


def inodes(root: Path) -> tuple[int, int]:
    """Those of the document and its log."""
    places = (root / "conversations" / "plan.json", root / ".capsule" / "log" / "conversations-plan")
    return places[0].stat().st_ino, places[1].stat().st_ino


def test_an_append_flushes_its_log_and_the_thread_the_document(
    root: Path, store: Store, system: Flushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_checkpoint(root)
    store.append("plan", content="two")
    assert system.flushed == ["log"] and not is_checkpoint(root)
    behind._thread.stop()
    monkeypatch.setattr(behind, "_DELAY_S", 0.001)
    store.append("plan", content="three")
    until(lambda: is_checkpoint(root))
    assert system.flushed[-1] == "conversations"


def test_closing_a_store_flushes_its_documents(root: Path, store: Store, system: Flushes) -> None:
    store.append("plan", content="two")
    store.close()
    assert system.flushed == ["log", "conversations"] and is_checkpoint(root)


def test_a_flush_of_the_store_makes_durable_what_a_killed_writer_left(
    root: Path, store: Store, system: Flushes, child: Start
) -> None:
    writer = child(APPENDS, root)
    writer.hear()
    writer.kill()
    assert not is_checkpoint(root)
    assert store.flush() == 0
    assert system.flushed == ["log", "conversations"] and is_checkpoint(root)


def test_the_document_is_flushed_before_lines_leave_its_log(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MESSAGE_BYTES", 1000)
    monkeypatch.setattr(logs, "_LARGEST", 4096)
    recorder = Recorder(root)
    with store_on(root, recorder, keep_locks=False) as store:
        store.create(id="plan", type="group")
        document = (root / "conversations" / "plan.json").stat().st_ino
        for letter in "abcdefgh":
            store.append("plan", content=letter * 900)
        events = list(recorder.events)
    renewed = [at for at, event in enumerate(events) if event[0] == "rename" and "/log/" in event[2]]
    assert len(renewed) > 2
    for at in renewed[1:]:
        last = next(event for event in reversed(events[:at]) if event[:2] in (("write", document), ("sync", document)))
        assert last[0] == "sync"


def test_an_append_that_does_not_wait_is_seen_at_once_and_flushed_later(
    root: Path, store: Store, system: Flushes
) -> None:
    store.append("plan", content="two", wait=False)
    assert system.flushed == []
    with Store.open(root) as other:
        assert texts(other) == ["one", "two"]
    store.flush()
    assert system.flushed == ["log", "conversations"] and is_checkpoint(root)


def begun(pool: ThreadPoolExecutor, store: Store, system: Flushes, *contents: str) -> list[Any]:
    """Appends by a thread each: the first one flushes the log, and the others have written meanwhile."""
    system.gate = threading.Event()
    first = pool.submit(store.append, "plan", content=contents[0])
    assert system.reached.wait(240)
    rest = [pool.submit(store.append, "plan", content=content) for content in contents[1:]]
    until(lambda: len(texts(store)) == 1 + len(contents))
    return [first, *rest]


def test_threads_whose_flushes_overlap_share_them(store: Store, system: Flushes) -> None:
    with ThreadPoolExecutor() as pool:
        appends = begun(pool, store, system, "two", "three", "four", "five")
        assert system.gate is not None
        system.gate.set()
        assert {append.result().content for append in appends} == {"two", "three", "four", "five"}
    assert system.flushed == ["log", "log"]


def test_a_flush_that_fails_fails_for_each_thread_that_waited_for_it_and_for_each_process(
    root: Path, store: Store, system: Flushes, child: Start
) -> None:
    system.failing, before = "log", inodes(root)
    with ThreadPoolExecutor() as pool:
        appends = begun(pool, store, system, "two", "three")
        assert system.gate is not None
        system.gate.set()
        for append in appends:
            with pytest.raises(StorageFailed):
                append.result()
    other = child('store = Store.open(sys.argv[1]); store.append("plan", content="four"); say()', root)
    other.hear()
    after = inodes(root)
    assert before[0] != after[0] and before[1] != after[1]  # Every byte is written anew, and the log.
    assert texts(store)[0] == "one" and texts(store)[-1] == "four"


def test_a_retry_of_an_append_whose_flush_failed_is_acknowledged_once_it_is_durable(
    root: Path, store: Store, system: Flushes
) -> None:
    system.failing, before = "log", inodes(root)
    with pytest.raises(StorageFailed):
        store.append_once("plan", "key", content="two")
    system.failing = ""
    store.append_once("plan", "key", content="two")
    assert texts(store) == ["one", "two"]
    assert inodes(root)[0] != before[0] and "conversations" in system.flushed


def test_a_retry_flushes_the_log_of_a_writer_that_was_killed_before_it_did(
    root: Path, store: Store, system: Flushes, child: Start
) -> None:
    writer = child(
        """
        from tests.core.storage.test_flush_behind import Flushes, store_on, threading
        system = Flushes()
        store = store_on(sys.argv[1], system)
        system.gate = threading.Event()
        threading.Thread(target=store.append_once, args=("plan", "key"), kwargs={"content": "two"}).start()
        system.reached.wait()
        say()
        """,
        root,
    )
    writer.hear()
    writer.kill()
    assert texts(store) == ["one", "two"] and system.flushed == []
    assert store.append_once("plan", "key", content="two")[1]
    assert system.flushed == ["log"]
