"""Threads of one process that search while others build the index anew and close the store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from capsule import Store

_ROUNDS = """
import sqlite3, sys, threading
from capsule import Store

def ask(store, done):
    while not done.is_set():
        store.search("word", profile="exact")
        store.stats()
        store.changes()
        for head in store.heads():
            assert head.title == "a title"

for round in range(6):
    store = Store.open(sys.argv[1])
    done, failed = threading.Event(), []
    threading.excepthook = lambda args: failed.append(args.exc_value)
    threads = [threading.Thread(target=ask, args=(store, done)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        store.reindex()
        store.index.close()
    if round % 2:
        store.close()
    done.set()
    for thread in threads:
        thread.join()
    store.close()
    if failed and not round % 2:
        raise failed[0]
    assert not any(isinstance(error, (AssertionError, sqlite3.Error)) for error in failed), failed
print("done")
"""


@pytest.mark.slow
def test_threads_search_while_another_builds_the_index_anew_and_closes(tmp_path: Path) -> None:
    Store.init(tmp_path)
    with Store.open(tmp_path) as store:
        for _ in range(5):
            id = store.create(title="a title").id
            store.append_many(id, [{"role": "user", "content": f"a word {n} " + "more " * 40} for n in range(200)])
    # In a process of its own: what goes wrong here ends the process.
    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", _ROUNDS, tmp_path], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr[-2000:]
