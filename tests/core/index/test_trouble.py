"""The index is deletable: whatever becomes of it, and whenever, the answers are right and the
conversations intact.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.disk.syscalls import Syscalls
from capsule.errors import Refused
from tests.core.index.state import asked, index_of, state, state_of_the_files
from tests.core.storage.faults import store_on

pytestmark = pytest.mark.files

COUNT = 12
LAST = (
    "SELECT id FROM messages WHERE capsule = (SELECT num FROM capsules WHERE id = ?) ORDER BY "
    "at DESC"
)


def filled(root: Path) -> list[str]:
    with Store.open(root, keep_locks=False) as store:
        return [
            store.create(
                type="group",
                title=f"T{n}",
                messages=[{"role": "user", "content": f"text {n} {m}"} for m in range(40)],
            ).id
            for n in range(COUNT)
        ]


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(max(path.stat().st_size, 5000)))


def overwrite(path: Path) -> None:
    """From the second page on, as a bad disk would."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(random.Random(2).randbytes(max(path.stat().st_size - 4096, 0)))


def old_version(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 9999")
    db.close()


def no_tables(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE messages")
    db.close()


def to_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARMS: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: os.truncate(path, 0),
    "cut in the header": lambda path: os.truncate(path, 50),
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut to a page": lambda path: os.truncate(path, 4096),
    "garbage": garbage,
    "overwritten": overwrite,
    "another version": old_version,
    "without a table": no_tables,
    "a directory": to_directory,
    "all of .capsule": lambda path: shutil.rmtree(path.parent),
    "the log deleted": lambda path: path.with_name(path.name + "-wal").unlink(missing_ok=True),
}


def some_slow(hows: Iterable[str]) -> list[Any]:
    """The likeliest ones are tried by every run of the tests, the rest by the long one."""
    return [
        how if how in ("deleted", "garbage") else pytest.param(how, marks=pytest.mark.slow)
        for how in hows
    ]


@pytest.mark.parametrize("how", some_slow(HARMS))
def test_an_index_that_was_harmed_while_nobody_had_it_open_is_built_anew(
    root: Path, how: str
) -> None:
    ids = filled(root)
    for turn in range(2):
        with Store.open(root, keep_locks=False) as store:
            list(store.heads())
            store.append(ids[0], content=f"turn {turn}")
        HARMS[how](root / ".capsule" / "index.sqlite3")
        with Store.open(root, keep_locks=False) as store:
            assert state(store) == state_of_the_files(root)
            store.append(ids[1], content="more")
            assert state(store) == state_of_the_files(root)
        if (root / ".capsule" / "index.sqlite3").is_dir():
            break


@pytest.mark.parametrize("how", some_slow(how for how in HARMS if how != "a directory"))
def test_an_index_that_was_harmed_under_an_open_store_is_built_anew(root: Path, how: str) -> None:
    ids = filled(root)
    with Store.open(root, keep_locks=False) as store, Store.open(root, keep_locks=False) as other:
        for turn in range(3):
            list(store.heads()), list(other.heads())
            store.append(ids[turn], content=f"turn {turn}")
            HARMS[how](root / ".capsule" / "index.sqlite3")
            if how == "overwritten":
                # What SQLite has in its memory is right still; the next one to open the file must
                # find out.
                with Store.open(root) as third:
                    assert state(third) == state_of_the_files(root)
            assert state(store) == state_of_the_files(root)
            store.append(ids[-1], content="more")
            assert state(other) == state_of_the_files(root)
            assert state(store) == state_of_the_files(root)


@pytest.mark.slow
def test_an_index_that_is_deleted_all_the_time_is_right_all_the_time(root: Path) -> None:
    ids = filled(root)
    done = threading.Event()
    failures: list[BaseException] = []

    def harm() -> None:
        draw = random.Random(3)
        names = ("index.sqlite3", "index.sqlite3-wal")
        while not done.is_set():
            path = root / ".capsule" / draw.choice(names)
            with suppress(OSError):
                path.unlink() if draw.random() < 0.7 or path.name.endswith("wal") else os.truncate(
                    path, 4096
                )
            done.wait(draw.random() * 0.05)

    def ask(which: int) -> None:
        try:
            with Store.open(root, keep_locks=False) as store:
                for n in range(25):
                    message = store.append(ids[which], content=f"asked {n}")
                    found = asked(store, lambda db: db.execute(LAST, (ids[which],)).fetchone())
                    assert found == (message.id,)
                    assert len(list(store.heads())) == COUNT
        except BaseException as error:
            failures.append(error)

    harmer = threading.Thread(target=harm)
    askers = [threading.Thread(target=ask, args=(which,)) for which in range(3)]
    for thread in (harmer, *askers):
        thread.start()
    for thread in askers:
        thread.join()
    done.set()
    harmer.join()
    if failures:
        raise failures[0]
    with Store.open(root, keep_locks=False) as store:
        assert state(store) == state_of_the_files(root)


class ReadOnly(Syscalls):
    """A store on a medium that can't be written."""

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            raise PermissionError(30, "Read-only file system", path)
        return os.open(path, flags, mode)

    @staticmethod
    def mkdir(path: str, mode: int = 0o777) -> None:  # type: ignore[override]
        raise PermissionError(30, "Read-only file system", path)


def test_a_store_that_cannot_be_written_is_indexed_in_memory_and_it_is_said_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = filled(root)
    shutil.rmtree(root / ".capsule")
    before = {path: path.stat() for path in root.rglob("*") if path.is_file()}
    with caplog.at_level(logging.WARNING), store_on(root, ReadOnly()) as store:
        for _ in range(3):
            assert state(store) == state_of_the_files(root)
        with pytest.raises(Refused):
            store.append(ids[0], content="x")
        with Store.open(root, keep_locks=False) as writer:
            writer.append(ids[0], content="by one who may")
        assert state(store) == state_of_the_files(root)
    assert len([record for record in caplog.records if "index" in record.message]) == 1
    assert not (root / ".capsule" / "index.sqlite3").exists()
    assert before.keys() <= {path for path in root.rglob("*") if path.is_file()}


def test_reading_leaves_the_index_behind_and_nothing_else(store: Store, root: Path) -> None:
    filled(root)
    shutil.rmtree(root / ".capsule")
    with Store.open(root) as reader:
        list(reader.heads()), reader.changes()
    assert {path.name for path in (root / ".capsule").iterdir()} == {
        ".gitignore",
        "index.sqlite3",
        "index.lock",
    }
    for path in (root / ".capsule").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_cursor_of_an_index_that_is_gone_misses_nothing(store: Store, root: Path) -> None:
    ids = filled(root)
    cursor = store.changes().cursor
    messages = [store.append(ids[n], content="since").id for n in range(3)]
    new = store.create(title="New", type="group").id
    store.reindex()
    told = store.changes(cursor)
    heard = {id for change in told.changes for id in change.messages}
    assert set(messages) <= heard and ("created", new) in {
        (change.kind, change.id) for change in told.changes
    }
    assert store.changes(told.cursor).changes == []
    assert told.changes[-1].cursor == told.cursor
    # Whoever stops in between hears the rest again.
    again = store.changes(told.changes[0].cursor)
    assert {change.id for change in again.changes} >= {change.id for change in told.changes}
    store.append(ids[5], content="later")
    assert [change.id for change in store.changes(told.cursor).changes] == [ids[5]]


def test_changes_that_the_journal_lost_are_reported_from_the_files(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capsule.engines.index.tables import journal

    monkeypatch.setattr(journal, "MAX_CHANGES", 10)
    id = store.create(title="T", type="group").id
    cursor = store.changes().cursor
    messages = []
    for n in range(300):
        messages.append(store.append(id, content=f"{n}").id)
        store.queries.refresh()
    count = (
        index_of(store)._database.connection.execute("SELECT count(*) FROM changes").fetchone()[0]
    )
    assert count < 300
    told = store.changes(cursor)
    assert {message for change in told.changes for message in change.messages} == set(messages)


def test_progress_is_reported_in_bytes(root: Path) -> None:
    filled(root)
    total = sum(path.stat().st_size for path in (root / "conversations").iterdir())
    told: list[tuple[int, int]] = []
    with Store.open(root) as store:
        counts = store.reindex(lambda done, of: told.append((done, of)))
    assert counts == {
        "conversations": COUNT,
        "damaged": 0,
        "messages": COUNT * 40,
        "words": COUNT * 40 * 3,
    }
    assert told[-1] == (total, total) and told == sorted(told) and len(told) >= COUNT
