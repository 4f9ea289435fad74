"""Threads, processes and forks on one store: every acknowledged message is there once, in its
writer's order.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from capsule import Store
from capsule.disk.syscalls import Syscalls
from capsule.engines.files.engine import FilesEngine
from capsule.engines.files.storage import FileStorage
from capsule.errors import CapsuleError, StoreBusy
from capsule.format.json import codec
from tests.processes import Child, together

Start = Callable[..., Child]

WRITER = """
with Store.open(sys.argv[1]) as store:
    say("ready")
    hear()
    name, ids, count = sys.argv[2], sys.argv[3].split(","), int(sys.argv[4])
    say([store.append(ids[n % len(ids)], content=f"{name} {n}").id for n in range(count)])
"""


def in_order(texts: list[str], writers: list[str], count: int) -> bool:
    return all(
        [t for t in texts if t.startswith(w + " ")] == [f"{w} {n}" for n in range(count)]
        for w in writers
    )


def test_processes_that_append_to_one_conversation_lose_nothing(
    root: Path, store: Store, child: Start
) -> None:
    id = store.create(type="group").id
    writers = [child(WRITER, root, name, id, 60) for name in "abc"]
    together(*writers)
    mine = [store.append(id, content=f"me {n}").id for n in range(60)]
    acknowledged = mine + [message for writer in writers for message in writer.hear()]
    assert all(writer.end() == 0 for writer in writers)
    history = store.load(id).history
    assert sorted(message.id or "" for message in history) == sorted(acknowledged)
    assert in_order([message.content for message in history], ["a", "b", "c", "me"], 60)
    times = [message.timestamp or "" for message in history]
    assert times == sorted(times)
    assert codec.encode(store.document(id)) == store.read(id)


def test_threads_share_one_store(store: Store) -> None:
    group, chat = store.create(type="group").id, store.create().id
    start = threading.Barrier(6)

    def write(name: str) -> None:
        start.wait()
        for n in range(40):
            store.append(group if n % 2 else chat, content=f"{name} {n}")
            if n % 8 == 0:
                store.rename(group, f"{name} {n}")

    def read(name: str) -> None:
        start.wait()
        for _ in range(40):
            (
                store.load(group),
                store.tail(chat, 3),
                list(store.heads()),
                store.head(group),
                list(store.locks.list()),
            )

    with ThreadPoolExecutor(6) as pool:
        for running in [pool.submit(write if name < "e" else read, name) for name in "abcdef"]:
            running.result()
    for id, parity in ((group, 1), (chat, 0)):
        texts = [message.content for message in store.load(id).history]
        assert len(texts) == 80
        for name in "abcd":
            assert [t for t in texts if t.startswith(name)] == [
                f"{name} {n}" for n in range(40) if n % 2 == parity
            ]


@pytest.mark.slow
def test_readers_never_see_a_conversation_half_written(
    root: Path, store: Store, child: Start
) -> None:
    id = store.create(type="group").id
    writer = child(WRITER, root, "a", id, 150)
    assert writer.hear() == "ready"
    writer.say()
    seen = 0
    while seen < 150:
        texts = [message.content for message in store.load(id).history]
        assert texts == [f"a {n}" for n in range(len(texts))] and len(texts) >= seen
        seen = len(texts)
        tail = [message.content for message in store.tail(id, 2)]
        assert len(tail) <= 2 and (not seen or tail)
    writer.hear()


def test_a_read_during_a_splice_is_repeated(root: Path, store: Store) -> None:
    """The signature may still be the old one, as the clock of the file system ticks every few
    milliseconds.
    """
    id = store.create(type="group", messages=[{"role": "user", "content": "one"}]).id
    size = (root / "conversations" / f"{id}.json").stat().st_size
    met = []

    class Meeting(Syscalls):
        @staticmethod
        def pread(fd: int, count: int, offset: int) -> bytes:  # type: ignore[override]
            data = os.pread(fd, count, offset)
            if count == size and not met:
                met.append(data)
                return data[:-7] + b",\n    {"
            return data

    with Store(
        str(root), store.settings, FilesEngine(FileStorage(str(root), sys=Meeting()))
    ) as reader:
        assert [message.content for message in reader.load(id).history] == ["one"]
    assert met


def test_a_document_held_too_long_raises_busy_with_id_and_holder(root: Path, store: Store) -> None:
    id = store.create(type="group").id
    (root / "capsule.toml").write_text('[storage]\nmutex_timeout = "50ms"\n')
    with Store.open(root) as hasty:
        with (
            store.engine.storage.hold("conversations", id),
            pytest.raises(StoreBusy, match=str(os.getpid())) as busy,
        ):
            hasty.append(id, content="x")
        assert busy.value.id == id and hasty.load(id).history == []
        hasty.append(id, content="x")


def test_processes_that_create_one_id_at_once_make_one_conversation(
    root: Path, child: Start
) -> None:
    makers = [
        child(
            """
            with Store.open(sys.argv[1]) as store:
                say("ready")
                hear()
                try:
                    say(store.create(id="plan", title=sys.argv[2], type="group").title)
                except CapsuleError as error:
                    say(error.meaning)
            """,
            root,
            name,
        )
        for name in "abc"
    ]
    together(*makers)
    outcomes = sorted(maker.hear() for maker in makers)
    titles = [one for one in outcomes if one != "usage"]
    assert len(titles) == 1
    with Store.open(root) as store:
        assert [store.head("plan").title] == titles


def test_a_delete_during_appends_loses_nothing_acknowledged(store: Store) -> None:
    id = store.create(type="group").id
    outcomes: list[str] = []
    start = threading.Barrier(2)

    def append() -> None:
        start.wait()
        for n in range(50):
            try:
                outcomes.append(store.append(id, content=str(n)).content)
            except CapsuleError as error:
                outcomes.append(type(error).__name__)

    thread = threading.Thread(target=append)
    thread.start()
    start.wait()
    store.delete(id)
    thread.join()
    store.trash.restore(id)
    kept = [message.content for message in store.load(id).history]
    assert kept == [text for text in outcomes if text != "NotFound"]
    assert set(outcomes) - set(kept) <= {"NotFound"}
