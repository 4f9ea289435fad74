"""Flushes that fail, overlap, or whose writer dies; and stores that are flushed while something else goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.errors import StorageFailed
from tests.core.storage.faults import Flushes, inodes, texts
from tests.processes import Child, until

Start = Callable[..., Child]


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
    assert system.flushed == ["log"]
