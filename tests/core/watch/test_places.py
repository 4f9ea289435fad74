"""Watchers get changes also where the system's notices are odd, late or missing."""

from __future__ import annotations

import mmap
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.disk.directory_tracker import WatchfilesWatcher
from capsule.engines.files import index
from capsule.engines.interface import DocumentNotifier, Tracker
from capsule.errors import StorageFailed
from capsule.store.watchers import StoreWatchers
from capsule.watch import hub
from tests.core.watch.conftest import Follower
from tests.processes import PATIENCE_S

pytestmark = pytest.mark.files

HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("above", [".git", "node_modules", "a space and ü", ".hidden", "link"])
def test_changes_below_a_symlink_or_a_directory_that_other_tools_ignore_are_reported(
    tmp_path: Path, above: str
) -> None:
    root = tmp_path / above / "store"
    if above == "link":
        (tmp_path / "there").mkdir()
        root.parent.symlink_to(tmp_path / "there")
    else:
        root.parent.mkdir()
    Store.init(root)
    with (
        Store.open(root, keep_locks=False) as store,
        Store.open(root.resolve(), keep_locks=False) as other,
    ):
        follower = Follower(store)
        id = other.create().id
        assert follower.next("created").id == id


def test_changes_in_a_directory_that_is_removed_and_made_again_are_reported(
    root: Path, store: Store, other: Store
) -> None:
    conversations = root / "conversations"
    shutil.rmtree(conversations)
    follower = Follower(store)
    first = other.create(title="first").id
    assert follower.next("created").id == first
    shutil.rmtree(conversations)
    assert follower.next("deleted").id == first
    aside = root / "aside"
    second = other.create(title="second").id
    assert follower.next("created").id == second
    conversations.rename(aside)
    assert follower.next("deleted").id == second
    aside.rename(conversations)
    assert follower.next("restored").id == second
    other.append(second, content="x")
    assert follower.next("appended").id == second


def test_a_write_without_a_notice_is_found_by_the_next_scan(
    root: Path, store: Store, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_RESCAN_S", 0.1)
    monkeypatch.setattr(hub, "_RESCAN_COSTS", 1)  # On a busy machine a scan may take long.
    monkeypatch.setattr(index, "_RESCAN_NS", 100_000_000)
    id = store.create(title="Plan", messages=HELLO).id
    follower.next("created")
    with (
        (root / "conversations" / f"{id}.json").open("r+b") as file,
        mmap.mmap(file.fileno(), 0) as mapped,
    ):
        at = mapped.find(b"hello")
        mapped[at : at + 5] = b"HELLO"
        mapped.flush()
        assert follower.next("edited").id == id


def test_a_file_name_that_is_not_utf_8_does_not_stop_the_watch(
    root: Path, store: Store, other: Store, follower: Follower
) -> None:
    for number in range(3):
        (Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9%d" % number))).write_bytes(b"")
        id = other.create().id
        assert follower.next("created").id == id


def test_after_a_name_that_is_not_utf_8_notices_come_one_by_one_again(tmp_path: Path) -> None:
    watcher = WatchfilesWatcher([str(tmp_path)])
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")).write_bytes(b"")
    assert watcher.wait(10) is None
    (tmp_path / "plan").write_bytes(b"")
    assert watcher.wait(10) == {str(tmp_path / "plan")}


def test_notices_that_nobody_holds_end_their_thread(root: Path, store: Store) -> None:
    before = threading.active_count()
    notices = DocumentNotifier(store.engine.tracker)
    assert threading.active_count() == before + 1
    del notices
    assert threading.active_count() == before


def test_a_failure_in_the_watch_thread_is_logged_and_the_thread_starts_again(
    root: Path,
    store: Store,
    other: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    listen, failures = store.engine.storage.wakeup_tracker, [KeyError("one"), OSError("other")]

    def fail(kind: str) -> Tracker:
        if failures and threading.current_thread().name == "capsule-watch":
            raise failures.pop()
        return listen(kind)

    monkeypatch.setattr(store.engine.storage, "wakeup_tracker", fail)
    follower = Follower(store)
    while failures:
        follower.cursor = store.wait_for_changes(follower.cursor, timeout_s=0.05).cursor
    id = other.create().id
    assert follower.next("created").id == id
    assert len([record for record in caplog.records if record.exc_info]) == 2


def test_a_failed_read_of_the_changes_raises_its_error_in_the_wait(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = store.changes().cursor
    questions = store.queries
    looks = questions.changes
    began = threading.Event()

    def fail(since: str | None, limit: int, *, refresh: bool = True) -> Any:
        if threading.current_thread().name == "capsule-watch":
            began.set()
        if began.is_set():
            raise StorageFailed("the disk is gone", path="x")
        return looks(since, limit, refresh=refresh)

    monkeypatch.setattr(questions, "changes", fail)
    monkeypatch.setattr(store.engine, "queries", lambda asker=None: questions)
    with pytest.raises(StorageFailed):
        store.wait_for_changes(cursor, timeout_s=PATIENCE_S)


_WITHOUT_NOTICES = """
    import asyncio, ctypes, logging
    # In a user namespace of its own its limit is its own too, and can be lowered without taking anything from others;
    # where that is not to be had, it takes all there are, until it ends.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) == 0:
        with open("/proc/sys/user/max_inotify_instances", "w") as limit:
            limit.write("0")
    else:
        while libc.inotify_init1(0) >= 0:
            pass
    warnings = []
    class Kept(logging.Handler):
        def emit(self, record):
            warnings.append(record.getMessage())
    logging.getLogger("capsule").addHandler(Kept(logging.WARNING))
    with Store.open(sys.argv[1], keep_locks=False) as store:
        cursor = store.changes().cursor
        say()
        for _ in range(3):
            found = store.wait_for_changes(cursor)
            cursor = found.cursor
            say([change.id for change in found.changes])
        async def follow():
            return (await anext(store.watch(cursor))).id
        say()
        say([asyncio.run(follow())])
    say(warnings)
"""


@pytest.mark.skipif(not os.path.exists("/proc/sys/fs/inotify"), reason="the limit is one of Linux")
def test_without_an_inotify_instance_the_files_are_looked_at_and_it_warns(
    root: Path, other: Store, child: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = child(_WITHOUT_NOTICES, root)
    process.hear()
    for _ in range(3):
        id = other.create().id
        assert process.hear() == [id]
    process.hear()
    id = other.create().id
    assert process.hear() == [id]
    (warning,) = process.hear()
    assert "no change notices" in warning


def test_parent_and_child_watch_separately_after_a_fork(
    root: Path, child: Callable[..., Any]
) -> None:
    process = child(
        """
        import warnings
        warnings.simplefilter("ignore")  # That threads and fork don't go together is what this is about.
        store = Store.open(sys.argv[1], keep_locks=False)
        cursor = store.wait_for_changes(timeout_s=0).cursor
        reading, writing = os.pipe()
        if os.fork() == 0:
            cursor = store.wait_for_changes(cursor, timeout_s=0).cursor
            os.write(writing, b"x")
            found = store.wait_for_changes(cursor)
            os.write(writing, json.dumps([change.id for change in found.changes]).encode())
            os.close(writing)
            store.close()
            os._exit(0)
        os.close(writing)
        os.read(reading, 1)
        say()
        found = store.wait_for_changes(cursor)
        theirs = os.read(reading, 1000)
        os.wait()
        cursor = found.cursor
        say([[change.id for change in found.changes], json.loads(theirs)])
        found = store.wait_for_changes(cursor)
        say([change.id for change in found.changes])
        """,
        root,
    )
    with Store.open(root, keep_locks=False) as store:
        process.hear()
        id = store.create().id
        assert process.hear() == [[id], [id]]
        id = store.create().id
        assert process.hear() == [id]


@pytest.mark.parametrize("how", ["pass", "sys.exit(0)", "raise SystemExit(0)"])
def test_a_process_ends_cleanly_during_a_watch(
    root: Path, child: Callable[..., Any], how: str
) -> None:
    process = child(
        f"""
        import threading, asyncio
        from capsule.store.watchers import StoreWatchers
        store = Store.open(sys.argv[1], keep_locks=False)
        polling = threading.Thread(target=store.wait_for_changes, daemon=True)
        polling.start()
        async def follow():
            waiting = asyncio.ensure_future(anext(store.watch(), None))
            await asyncio.sleep(0)
            waiting.cancel()
        asyncio.run(follow())
        while not store.inner.object_of(StoreWatchers).hub.running:
            pass
        say()
        {how}
        """,
        root,
    )
    process.hear()
    assert process.end() == 0


def test_the_watch_thread_ends_after_a_time_without_waits(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_LINGER_S", 0.01)
    monkeypatch.setattr(hub, "_RESCAN_S", 0.05)
    monkeypatch.setattr(hub, "_RESCAN_COSTS", 1)
    cursor = store.wait_for_changes(timeout_s=0.01).cursor
    for thread in threading.enumerate():
        if thread.name == "capsule-watch":
            thread.join()
    assert (
        store.inner.object_of(StoreWatchers).hub is not None
        and not store.inner.object_of(StoreWatchers).hub.running
    )
    id = other.create().id
    follower = Follower(store)
    assert [change.id for change in store.changes(cursor).changes] == [id]
    id = other.create().id
    assert follower.next("created").id == id
