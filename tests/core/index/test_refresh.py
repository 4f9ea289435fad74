"""The index says what the files say, whoever wrote them, and reads no more of them than it must."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from capsule import Store
from capsule.disk.syscalls import Syscalls
from capsule.engines.index.tables.writer import IndexWriter
from capsule.engines.read_marks import UnreadFilter
from capsule.format.json import codec
from tests.core.index.state import asked, index_of, state, state_of_the_files
from tests.core.storage.faults import store_on
from tests.torture.filesystem import Rebooted

pytestmark = pytest.mark.files


def path_of(root: Path, id: str) -> Path:
    return root / "conversations" / f"{id}.json"


def texts(store: Store, id: str) -> list[str]:
    """The messages of a conversation, as the index has them."""
    return [
        row[0]
        for row in asked(
            store,
            lambda db: db.execute(
                "SELECT content FROM messages JOIN capsules ON capsules.num = capsule"
                " WHERE capsules.id = ? AND gone = 0 AND damaged = '' ORDER BY at",
                (id,),
            ).fetchall(),
        )
    ]


class Reading(Syscalls):
    """The system, counting what is read of documents and which mutexes are opened."""

    def __init__(self) -> None:
        self.read = 0
        self.mutexes = 0
        self._documents: set[int] = set()

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        fd = os.open(path, flags, mode)
        self._documents.discard(fd)
        if path.endswith(".json"):
            self._documents.add(fd)
        if "/mutex/" in path and flags & os.O_CREAT:
            self.mutexes += 1
        return fd

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = os.pread(fd, size, offset)
        if fd in self._documents:
            self.read += len(data)
        return data


@pytest.fixture
def counting(root: Path) -> Iterator[tuple[Store, Reading]]:
    """A store on the same directory whose reads are counted."""
    system = Reading()
    with store_on(root, system, keep_locks=False) as store:
        yield store, system


def until_settled(root: Path) -> None:
    """Wait until no file is so young that it is read once more."""
    young = 1
    while young:
        with Store.open(root) as store:
            young = asked(
                store, lambda db: db.execute("SELECT sum(racy) FROM capsules").fetchone()
            )[0]


def large(store: Store, count: int = 500) -> str:
    """A conversation of some size."""
    messages = [{"role": "user", "content": f"number {n} " + "x" * 500} for n in range(count)]
    return store.create(type="group", title="Large", messages=messages).id


def test_what_a_power_cut_took_from_a_file_is_found_before_anybody_loads_it(
    root: Path, tmp_path: Path
) -> None:
    with Store.open(root, keep_locks=False) as store:
        id = store.create(title="Plan", type="group").id
        store.append(id, content="kept")
        store.flush()
        before = (root / "conversations" / f"{id}.json").read_bytes()
        store.append(id, content="acknowledged")
        noted, bare = (Path(shutil.copytree(root, tmp_path / name)) for name in ("noted", "bare"))
    shutil.rmtree(bare / ".capsule" / "mutex")
    for after in (noted, bare):
        (after / "conversations" / f"{id}.json").write_bytes(before)
        with store_on(after, Rebooted()) as rebooted:
            assert len(rebooted.search("acknowledged").hits) == 1


def test_only_appended_messages_are_read(
    store: Store, root: Path, counting: tuple[Store, Reading]
) -> None:
    reader, system = counting
    id = large(store)
    size = path_of(root, id).stat().st_size
    list(reader.heads())
    old = system.read
    assert old >= size
    until_settled(root)
    list(reader.heads())
    for n in range(20):
        store.append(id, content=f"more {n}")
        system.read = 0
        assert texts(reader, id)[-1] == f"more {n}"
        assert system.read < 4000
    assert state(reader) == state_of_the_files(root)


def test_a_file_that_did_not_change_is_not_opened(
    store: Store, root: Path, counting: tuple[Store, Reading]
) -> None:
    reader, system = counting
    large(store)
    until_settled(root)
    list(reader.heads())
    system.read = 0
    store.create(title="Small")
    list(reader.heads())
    assert 0 < system.read < 10_000


def test_a_new_head_makes_no_message_be_read_anew(store: Store, root: Path) -> None:
    id = large(store)
    list(store.heads())
    before = (
        index_of(store)
        ._database.connection.execute("SELECT max(num), min(num), count(*) FROM messages")
        .fetchall()
    )
    cursor = store.changes().cursor
    store.rename(id, "Renamed")
    store.tag(id, "one")
    with store.locks.take(id):
        store.append(id, content="locked")
        assert [change.kind for change in store.changes(cursor).changes] == [
            "appended",
            "head",
            "locked",
        ]
    assert [head.title for head in store.heads()] == ["Renamed"]
    after = (
        index_of(store)
        ._database.connection.execute("SELECT max(num) - 1, min(num), count(*) - 1 FROM messages")
        .fetchall()
    )
    assert after == before
    assert state(store) == state_of_the_files(root)


def test_only_the_messages_that_differ_are_touched(store: Store, root: Path) -> None:
    id = large(store, 50)
    list(store.heads())
    numbers = "SELECT id, num FROM messages"
    before = dict(index_of(store)._database.connection.execute(numbers).fetchall())
    path = path_of(root, id)
    document = orjson.loads(path.read_bytes())
    gone = document["history"].pop(10)["id"]
    document["history"][20]["content"] = "changed"
    document["history"].insert(5, {"role": "user", "content": "put in between"})
    document["history"].append({"role": "user", "content": "put behind"})
    path.write_bytes(codec.encode(document))
    cursor = store.changes().cursor
    assert texts(store, id)[5] == "put in between" and texts(store, id)[-1] == "put behind"
    after = dict(index_of(store)._database.connection.execute(numbers).fetchall())
    assert {key: after[key] for key in before if key != gone} == {
        k: v for k, v in before.items() if k != gone
    }
    assert state(store) == state_of_the_files(root)
    assert cursor


@pytest.mark.parametrize("layout", ["as the store writes it", "on one line", "with four spaces"])
def test_a_hand_edit_is_seen_whatever_its_layout(store: Store, root: Path, layout: str) -> None:
    id = large(store, 5)
    document = orjson.loads(path_of(root, id).read_bytes())
    document["history"][2]["content"] = "by hand"
    import json

    data = {
        "as the store writes it": codec.encode(document),
        "on one line": orjson.dumps(document),
        "with four spaces": json.dumps(document, indent=4).encode(),
    }[layout]
    path_of(root, id).write_bytes(data)
    assert texts(store, id)[2] == "by hand"
    store.append(id, content="after")
    assert texts(store, id)[-1] == "after"
    assert state(store) == state_of_the_files(root)


def same_size(root: Path, id: str, before: bytes, after: bytes) -> None:
    """Write over a file in place, at once, with as many bytes; and say that nothing happened."""
    path = path_of(root, id)
    old = path.stat()
    data = path.read_bytes()
    assert before in data
    path.write_bytes(data.replace(before, after))
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))


@pytest.mark.slow
@pytest.mark.parametrize(
    "through", ["one store", pytest.param("a new store each time", marks=pytest.mark.slow)]
)
def test_an_edit_of_the_same_size_in_the_same_tick_is_seen(root: Path, through: str) -> None:
    with Store.open(root, keep_locks=False) as writer:
        first = {"role": "user", "content": "xxx"}
        ids = [writer.create(type="group", title="T", messages=[first]).id for _ in range(3)]
        reader = Store.open(root)
        for turn in range(100):
            id = ids[turn % 3]
            if through != "one store":
                reader.close()
                reader = Store.open(root)
            writer.append(id, content=f"{turn:03}")
            assert texts(reader, id)[-1] == f"{turn:03}"
            for letter in "yzx":
                old, new = {"y": (b"xxx", b"yyy"), "z": (b"yyy", b"zzz"), "x": (b"zzz", b"xxx")}[
                    letter
                ]
                same_size(root, id, old, new)
                if through != "one store":
                    reader.close()
                    reader = Store.open(root)
                assert texts(reader, id)[0] == letter * 3
        reader.close()


def test_an_edit_in_the_tick_of_an_append_is_not_hidden_by_the_next_append(
    store: Store, root: Path
) -> None:
    id = store.create(type="group", title="T", messages=[{"role": "user", "content": "xxx"}]).id
    for turn in range(50):
        store.append(id, content="more")
        with Store.open(root) as reader:
            texts(reader, id)
        same_size(root, id, *((b"xxx", b"yyy") if turn % 2 == 0 else (b"yyy", b"xxx")))
        with Store.open(root) as reader:
            assert texts(reader, id)[0] == ("yyy" if turn % 2 == 0 else "xxx")


def test_damage_in_the_middle_is_noticed_and_hides_no_other(store: Store, root: Path) -> None:
    id, other = large(store, 20), store.create(title="Other").id
    assert not any(head.damaged for head in store.heads())
    cursor = store.changes().cursor
    data = path_of(root, id).read_bytes()
    middle = data.index(b'"role"', len(data) // 2)
    path_of(root, id).write_bytes(data[:middle] + b"x" + data[middle:])
    heads = {head.id: head for head in store.heads()}
    assert heads[id].damaged.startswith(str(path_of(root, id)) + ":") and not heads[other].damaged
    (change,) = store.changes(cursor).changes
    assert (change.kind, change.id, change.source, change.damaged) == (
        "damaged",
        id,
        "outside",
        heads[id].damaged,
    )
    path_of(root, id).write_bytes(data)
    assert not any(head.damaged for head in store.heads())
    assert [change.kind for change in store.changes(change.cursor).changes] == ["repaired"]
    assert state(store) == state_of_the_files(root)


@pytest.mark.parametrize(
    "harm",
    [
        lambda document: (
            document | {"history": [*document["history"], {"role": "nobody", "content": "x"}]}
        ),
        lambda document: document | {"history": [*document["history"], {"role": "user"}]},
        lambda document: document | {"history": [*document["history"], "text"]},
        lambda document: document | {"id": "another"},
        lambda document: document | {"version": "3.0"},
        lambda document: document | {"title": 1},
        lambda document: {key: value for key, value in document.items() if key != "history"},
    ],
)
def test_a_file_that_the_store_refuses_is_damaged_in_the_same_words(
    store: Store, root: Path, harm: Any
) -> None:
    from capsule.errors import InvalidDocument

    id = large(store, 3)
    data = codec.encode(harm(orjson.loads(path_of(root, id).read_bytes())))
    for name in (id, "never-seen"):
        path_of(root, name).write_bytes(data.replace(id.encode(), name.encode()))
    os.utime(path_of(root, id), ns=(1, 1))
    for name in (id, "never-seen"):
        with pytest.raises(InvalidDocument) as refused:
            store.load(name)
        assert {head.id: head.damaged for head in store.heads()}[name] == refused.value.message


def test_a_fresh_clone_is_indexed_without_a_note_or_a_mutex(
    store: Store, root: Path, samples: Path, counting: tuple[Store, Reading]
) -> None:
    import shutil

    reader, system = counting
    for sample in samples.glob("*.json"):
        shutil.copy(sample, path_of(root, orjson.loads(sample.read_bytes())["id"]))
    heads = list(reader.heads())
    assert heads and not any(head.damaged for head in heads)
    assert not system.mutexes and not list((root / ".capsule").glob("mutex/*"))
    for head in heads:
        assert texts(reader, head.id) == [
            message.content for message in store.load(head.id).history
        ]


def test_a_message_without_an_id_is_indexed_with_the_id_of_the_next_write(
    store: Store, root: Path
) -> None:
    id = store.create(type="group", title="T").id
    document = orjson.loads(path_of(root, id).read_bytes())
    document["history"] = [
        {"role": "user", "content": "typed"},
        {"role": "assistant", "content": "typed too"},
    ]
    path_of(root, id).write_bytes(codec.encode(document))
    ids = "SELECT id FROM messages ORDER BY at"
    before = asked(store, lambda db: db.execute(ids).fetchall())
    cursor = store.changes().cursor
    store.append(id, content="next")
    after = asked(store, lambda db: db.execute(ids).fetchall())
    assert after[:2] == before and len(after) == 3
    assert after == [(message.id,) for message in store.load(id).history]
    told = [(change.kind, change.messages) for change in store.changes(cursor).changes]
    assert told == [
        ("edited", (before[0][0], before[1][0])),
        ("appended", (after[2][0],)),
    ] or told == [("appended", (after[2][0],))]


def test_a_restored_conversation_is_not_reported_as_new(store: Store, root: Path) -> None:
    id = store.create(title="T", type="group", messages=[{"role": "user", "content": "x"}]).id
    cursor = store.changes().cursor
    store.delete(id)
    assert list(store.heads()) == []
    store.trash.restore(id)
    list(store.heads())
    path_of(root, id).rename(root / "away")
    assert list(store.heads()) == []
    (root / "away").rename(path_of(root, id))
    assert [head.id for head in store.heads()] == [id]
    told = [(change.kind, change.source) for change in store.changes(cursor).changes]
    assert [kind for kind, _ in told] == ["deleted", "restored", "deleted", "restored"]
    assert [source for kind, source in told if kind == "deleted"] == ["store", "outside"]


def test_two_files_that_change_places_are_both_seen(store: Store, root: Path) -> None:
    ids = [
        store.create(title=title, type="group", messages=[{"role": "user", "content": title}]).id
        for title in "ab"
    ]
    list(store.heads())
    one, other = (path_of(root, id) for id in ids)
    data = [path.read_bytes() for path in (one, other)]
    one.write_bytes(data[1].replace(ids[1].encode(), ids[0].encode()))
    other.write_bytes(data[0].replace(ids[0].encode(), ids[1].encode()))
    assert state(store)["messages"] == state_of_the_files(root)["messages"]
    one.rename(root / "x")
    other.rename(one)
    (root / "x").rename(other)
    assert all("the file's name says" in head.damaged for head in store.heads())


def test_a_second_name_elsewhere_is_a_way_to_write_too(store: Store, root: Path) -> None:
    id = store.create(title="T", type="group", messages=[{"role": "user", "content": "xxx"}]).id
    (root / "other name").hardlink_to(path_of(root, id))
    for _ in range(3):
        list(store.heads())
    for letter, after in ((b"xxx", b"yyy"), (b"yyy", b"zzz")):
        other = root / "other name"
        data = other.read_bytes().replace(letter, after)
        with other.open("r+b") as file:
            file.write(data)
        list(Store.heads(store))
        with Store.open(root) as reader:
            assert texts(reader, id) == [after.decode()]


def test_after_a_start_of_the_machine_the_latest_files_are_read_again(root: Path) -> None:
    with Store.open(root, keep_locks=False) as store:
        id = store.create(title="T", type="group", messages=[{"role": "user", "content": "xxx"}]).id
        assert texts(store, id) == ["xxx"]
    until_settled(root)
    # The bytes of the last write were lost, and its times were not.
    path = path_of(root, id)
    signature = path.stat()
    path.write_bytes(path.read_bytes().replace(b"xxx", b"\0\0\0"))
    os.utime(path, ns=(signature.st_atime_ns, signature.st_mtime_ns))
    import sqlite3

    with sqlite3.connect(root / ".capsule" / "index.sqlite3") as db:
        now = path.stat()
        version = [now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns]
        db.execute("UPDATE capsules SET version = ?", (orjson.dumps(version).decode(),))
    db.close()
    with Store.open(root) as unaware:
        assert not any(head.damaged for head in unaware.heads())
    with store_on(root, Rebooted()) as rebooted:
        assert [bool(head.damaged) for head in rebooted.heads()] == [True]


def test_a_first_indexing_looks_for_nothing_in_front_of_a_first_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    real = IndexWriter._ids_digests

    def traced(self: IndexWriter, capsule: int, at: int, ids: list[str]) -> list[int]:
        self._db.set_trace_callback(asked.append)
        try:
            return real(self, capsule, at, ids)
        finally:
            self._db.set_trace_callback(None)

    monkeypatch.setattr(IndexWriter, "_ids_digests", traced)
    with Store.in_memory() as store:
        id = store.create(messages=[{"role": "user", "content": "one"}]).id
        store.reindex()
        assert asked == []
        store.append(id, content="two")
        store.search("two")
    assert len(asked) == 1


def test_questions_that_are_asked_together_are_about_one_state(store: Store, root: Path) -> None:
    id = store.create(messages=[{"role": "user", "content": "one"}]).id
    store.queries.refresh()
    with Store.open(root) as other:

        def count() -> int:
            return len(store.queries.unread_positions(UnreadFilter(), id, refresh=False))

        def ask() -> list[int]:
            before = count()
            other.append(id, content="more")
            other.queries.refresh()
            return [before, count()]

        assert store.queries.in_one_transaction(ask) == [1, 1] and count() == 2
        with pytest.raises(ZeroDivisionError):
            store.queries.in_one_transaction(lambda: 1 // 0)
        assert store.queries.in_one_transaction(ask) == [2, 2] and count() == 3
