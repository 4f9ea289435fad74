"""Flushes that fail, overlap, or whose writer dies; and stores that are flushed while something
else goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.engines.files.disk import log
from capsule.engines.files.document import HeldDocument
from capsule.engines.files.storage import FileStorage
from capsule.errors import ConcurrentWrite, StorageFailed, StoreBusy
from tests.core.storage.faults import Flushes, inodes, is_checkpoint, lay_out, store_on, texts
from tests.processes import Child, until

Start = Callable[..., Child]


def begun(pool: ThreadPoolExecutor, store: Store, system: Flushes, *contents: str) -> list[Any]:
    """Appends by a thread each: the first one flushes the log, and the others have written
    meanwhile.
    """
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
    assert system.flushed == ["logs", "logs"]


def test_a_flush_that_fails_fails_for_each_thread_that_waited_for_it_and_for_each_process(
    root: Path, store: Store, system: Flushes, child: Start
) -> None:
    system.failing, before = "logs", inodes(root)
    with ThreadPoolExecutor() as pool:
        appends = begun(pool, store, system, "two", "three")
        assert system.gate is not None
        system.gate.set()
        for append in appends:
            with pytest.raises(StorageFailed):
                append.result()
    other = child(
        'store = Store.open(sys.argv[1]); store.append("plan", content="four"); say()', root
    )
    other.hear()
    after = inodes(root)
    assert (
        before[0] != after[0] and before[1] != after[1]
    )  # Every byte is written anew, and the log.
    assert texts(store)[0] == "one" and texts(store)[-1] == "four"


def test_a_retry_of_an_append_whose_flush_failed_is_acknowledged_once_it_is_durable(
    root: Path, store: Store, system: Flushes
) -> None:
    system.failing, before = "logs", inodes(root)
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
        from tests.core.storage.faults import Flushes, store_on, threading
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
    assert system.flushed == ["logs"]


def test_a_flush_of_the_store_writes_anew_what_a_failed_flush_left(
    root: Path, store: Store, system: Flushes
) -> None:
    system.failing, before = "logs", inodes(root)
    with pytest.raises(StorageFailed):
        store.append("plan", content="two")
    system.failing = ""
    store.flush()
    assert (
        inodes(root)[0] != before[0]
        and "conversations" in system.flushed
        and texts(store)[0] == "one"
    )


def test_a_flush_of_the_store_flushes_what_an_editor_saved_and_what_it_saved_over(
    root: Path, store: Store, system: Flushes
) -> None:
    store.append("plan", content="two", wait=False)
    lay_out(root, "plan")
    log._thread.flush()
    assert system.flushed == ["logs"]  # The editor's version is for the next one who looks.
    store.flush()
    assert {"conversations", root.name} <= set(system.flushed) and texts(store) == ["one", "two"]
    assert is_checkpoint(root)
    system.flushed.clear()
    store.flush()
    assert system.flushed == []


def test_a_failed_flush_for_a_reader_is_known_to_the_next_one(
    root: Path, store: Store, system: Flushes
) -> None:
    with store_on(root, Flushes(), keep_locks=False) as writer:
        writer.append("plan", content="two", wait=False)
        system.failing, before = "logs", inodes(root)
        with pytest.raises(StorageFailed):
            store.engine.flush("conversations", "plan")
        system.failing = ""
        store.engine.flush("conversations", "plan")
        assert inodes(root)[0] != before[0] and texts(store) == ["one", "two"]


def test_a_reader_that_meets_a_torn_note_flushes_all_the_same(
    root: Path, store: Store, system: Flushes
) -> None:
    store.append("plan", content="two", wait=False)
    with open(root / ".capsule" / "mutex" / "conversations-plan", "r+b") as torn:
        torn.write(b"half of it")
    store.engine.flush("conversations", "plan")
    assert "logs" in system.flushed or "conversations" in system.flushed


@pytest.mark.parametrize("failing", ["logs", "conversations"])
def test_a_failed_flush_behind_is_known_to_the_next_writer(
    root: Path, store: Store, system: Flushes, failing: str
) -> None:
    store.append("plan", content="two", wait=False)
    system.failing, before = failing, inodes(root)
    log._thread.flush()
    system.failing = ""
    store.append("plan", content="three")
    after = inodes(root)
    assert before[0] != after[0] and before[1] != after[1]
    assert texts(store) == ["one", "two", "three"]


def test_a_flush_behind_that_an_editor_interferes_with_is_left_to_the_next_one(
    root: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interfere(*_: object) -> None:
        raise ConcurrentWrite

    store.append("plan", content="two")
    lay_out(root, "plan")
    assert texts(store) == ["one", "two"]
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(HeldDocument, "flush", interfere)
        log._thread.flush()
        with pytest.raises(StoreBusy):
            store.flush()
    store.flush()
    assert is_checkpoint(root)


def test_a_document_that_cannot_be_flushed_keeps_no_other_one_from_it(
    root: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create(id="a-plan", type="group")
    for id in ("a-plan", "plan"):
        store.append(id, content="new")
    asked, hold = [], FileStorage.hold

    def held(self: FileStorage, kind: str, id: str, timeout_s: float | None = None) -> HeldDocument:
        asked.append(id)
        if len(asked) == 1:
            raise StoreBusy("it is busy", id=id, holder="another program")
        return hold(self, kind, id, timeout_s)

    with store_on(root, Flushes(), keep_locks=False) as other:
        monkeypatch.setattr(FileStorage, "hold", held)
        with pytest.raises(StoreBusy):
            other.flush()
    assert sorted(asked) == ["a-plan", "plan"]
