"""Many processes and one index: every query sees what was acknowledged before it, and no writer
waits for one.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from capsule import Store
from tests.core.index.state import asked, state, state_of_the_files
from tests.processes import Child

pytestmark = pytest.mark.slow

Start = Callable[..., Child]

WRITER = """
store = Store.open(sys.argv[1], keep_locks=False)
say()
while (told := hear()) is not None:
    id, text = told
    if text is None: store.delete(id)
    elif text.startswith("title "): store.rename(id, text)
    else: store.append(id, content=text)
    say()
"""
LAST = """
    SELECT content FROM messages JOIN capsules ON capsules.num = capsule WHERE capsules.id = ? ORDER BY at DESC LIMIT 1
"""


def last(store: Store, id: str) -> str | None:
    row = asked(store, lambda db: db.execute(LAST, (id,)).fetchone())
    return None if row is None else str(row[0])


def test_a_query_right_after_a_write_of_another_process_sees_it(
    store: Store, root: Path, child: Start
) -> None:
    ids = [store.create(type="group", title="T").id for _ in range(3)]
    writer = child(WRITER, root)
    writer.hear()
    for turn in range(1500):
        id = ids[turn % 3]
        writer.say([id, f"text {turn}"])
        writer.hear()
        assert last(store, id) == f"text {turn}"
        if turn % 10 == 0:
            writer.say([id, f"title {turn}"])
            writer.hear()
            assert f"title {turn}" in {head.title for head in store.heads()}
    assert state(store) == state_of_the_files(root)


def test_a_refresh_takes_no_mutex_and_waits_for_none(
    store: Store, root: Path, child: Start
) -> None:
    ids = [
        store.create(type="group", title="T", messages=[{"role": "user", "content": "x"}]).id
        for _ in range(3)
    ]
    list(store.heads())
    store.append(ids[0], content="before")
    holder = child(
        """
        with Store.open(sys.argv[1]) as store:
            from contextlib import ExitStack
            with ExitStack() as stack:
                for id in sys.argv[2:]: stack.enter_context(store.engine.storage.hold("conversations", id))
                say()
                hear()
        """,
        root,
        *ids,
    )
    holder.hear()
    assert last(store, ids[0]) == "before"
    store.queries.refresh(anew=True)
    assert last(store, ids[0]) == "before"
    # A person's version can't be settled now; it is told as it is.
    path = root / "conversations" / f"{ids[1]}.json"
    path.write_bytes(path.read_bytes().replace(b'"x"', b'"by hand"'))
    assert last(store, ids[1]) == "by hand"
    holder.say()


def test_a_writer_waits_for_no_refresh(store: Store, root: Path, child: Start) -> None:
    id = store.create(type="group", title="T").id
    list(store.heads())
    refresher = child(
        """
        with Store.open(sys.argv[1]) as store:
            store.queries.refresh()
            db = store.engine.index._database.connection
            db.execute("BEGIN IMMEDIATE")
            say()
            hear()
            db.execute("ROLLBACK")
        """,
        root,
    )
    refresher.hear()
    store.append(id, content="while the index is being written")
    store.rename(id, "Renamed")
    refresher.say()
    assert last(store, id) == "while the index is being written"


def test_several_processes_without_an_index_build_one(root: Path, child: Start) -> None:
    with Store.open(root, keep_locks=False) as store:
        for n in range(50):
            store.create(
                type="group",
                title=f"T{n}",
                messages=[{"role": "user", "content": f"text {n}"}] * 20,
            )
    children = [
        child(
            """
            store = Store.open(sys.argv[1])
            say()
            hear()
            say([len(list(store.heads())), store.changes().cursor.split(".")[0]])
            """,
            root,
        )
        for _ in range(4)
    ]
    for one in children:
        one.hear()
    for one in children:
        one.say()
    told = [one.hear() for one in children]
    assert told == [told[0]] * 4 and told[0][0] == 50
    names = {path.name for path in (root / ".capsule").glob("index*")}
    assert names <= {"index.sqlite3", "index.sqlite3-wal", "index.sqlite3-shm", "index.lock"}


@pytest.mark.parametrize("at", ["the first build", "a refresh"])
def test_a_process_killed_while_it_writes_the_index_leaves_a_sound_one(
    root: Path, child: Start, at: str
) -> None:
    with Store.open(root, keep_locks=False) as store:
        ids = [
            store.create(
                type="group",
                title=f"T{n}",
                messages=[{"role": "user", "content": f"text {n}"}] * 30,
            ).id
            for n in range(60)
        ]
    for turn in range(8):
        if at == "the first build":
            shutil.rmtree(root / ".capsule")
        else:
            with Store.open(root, keep_locks=False) as store:
                list(store.heads())
                for n, id in enumerate(ids):
                    store.append(id, content=f"turn {turn} {n}")
        victim = child(
            """
            import signal
            store = Store.open(sys.argv[1])
            def step(done, total):
                if done * 8 >= total * int(sys.argv[2]): os.kill(os.getpid(), signal.SIGKILL)
            if int(sys.argv[2]) % 2:  # Within a transaction.
                from capsule.engines.index.tables.writer import IndexWriter
                left = [7 * int(sys.argv[2])]
                def mortal(method):
                    def call(*args, **kwargs):
                        left[0] -= 1
                        if left[0] < 0: os.kill(os.getpid(), signal.SIGKILL)
                        return method(*args, **kwargs)
                    return call
                IndexWriter.put = mortal(IndexWriter.put)
                IndexWriter._numbered = mortal(IndexWriter._numbered)
            store.queries.refresh(progress=step)
            """,
            root,
            turn,
        )
        assert victim.end() in (-signal.SIGKILL, 0)
        with Store.open(root, keep_locks=False) as store:
            assert state(store) == state_of_the_files(root)
    assert not list((root / ".capsule").glob("*.new*"))


def test_a_forked_child_has_an_index_of_its_own_hands(store: Store, root: Path) -> None:
    id = store.create(type="group", title="T").id
    for _ in range(3):
        list(store.heads())
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            store.append(id, content="of the child")
            os.write(write, (last(store, id) or "").encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 100) == b"of the child"
    os.close(read)
    os.close(write)
    assert last(store, id) == "of the child"
    store.append(id, content="of the parent")
    assert last(store, id) == "of the parent"


def test_a_fork_waits_until_no_thread_is_at_work_in_the_index(root: Path, child: Start) -> None:
    process = child(
        """
        import threading, warnings
        warnings.simplefilter("ignore")  # That threads and fork don't go together is what this is about.
        store = Store.open(sys.argv[1], keep_locks=False)
        id = store.create(type="group").id
        done = threading.Event()
        def turn():
            with Store.open(sys.argv[1], keep_locks=False) as other:
                other.append(id, content="on")
            list(store.heads())
        def work():
            while not done.is_set():
                turn()
        for _ in range(3):
            turn()  # Everything is imported: Python itself can't fork while a thread imports a module.
        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(60):
            if os.fork() == 0:
                os._exit(0 if [head.id for head in store.heads()] == [id] else 1)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        done.set()
        thread.join()
        say("done")
        """,
        root,
    )
    assert process.hear() == "done"


def test_threads_search_while_another_builds_the_index_anew_and_closes(
    store: Store, root: Path, child: Start
) -> None:
    for _ in range(5):
        id = store.create(title="a title").id
        store.append_many(
            id, [{"role": "user", "content": f"a word {n} " + "more " * 40} for n in range(200)]
        )
    # In a process of its own: what goes wrong here ends the process.
    process = child(
        """
        import sqlite3, threading

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
                store.engine.index.close()
            if round % 2:
                store.close()
            done.set()
            for thread in threads:
                thread.join()
            store.close()
            if failed and not round % 2:
                raise failed[0]
            assert not any(isinstance(error, (AssertionError, sqlite3.Error)) for error in failed), failed
        say("done")
        """,
        root,
    )
    assert process.hear() == "done"
