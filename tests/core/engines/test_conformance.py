"""The promises of every engine: order, atomicity, exclusion, lists, search, changes, trash,
instances.

The further promises of files are tested in tests/core/storage and tests/torture.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from capsule import Store
from capsule.engines.files.engine import FilesEngine
from capsule.engines.interface import CONVERSATIONS, Engine, Transaction, edit_document
from capsule.errors import (
    ConcurrentWrite,
    InvalidDocument,
    InvalidInput,
    Locked,
    NotFound,
    Refused,
    StoreBusy,
)
from capsule.format.documents.creation import new_capsule
from capsule.format.json import codec
from capsule.ids import new_id, new_message_id

STAMP, LATER, LAST = (f"2026-01-0{day}T10:00:00.000Z" for day in (1, 2, 3))

#: How an entry is appended.
HOW: dict[str, Any] = {"time": LATER, "head": None, "ends_active": False}


def message(text: str, id: str | None = None) -> dict[str, Any]:
    return {"role": "user", "content": text, "timestamp": STAMP, "id": id or new_message_id()}


def make(engine: Engine, *texts: str, id: str = "plan") -> str:
    engine.create(
        CONVERSATIONS,
        new_capsule(id, "Plan", STAMP, type="group", messages=[message(t) for t in texts]),
    )
    return id


def append(
    engine: Engine, id: str, *texts: str, stamp: str = LATER, head: dict[str, Any] | None = None
) -> None:
    entries = [message(text) for text in texts]
    with engine.transaction(CONVERSATIONS, id) as transaction:
        encoded = [codec.encode_entry(entry) for entry in entries]
        transaction.append(entries, encoded, stamp, time=stamp, head=head, ends_active=True)


def texts(engine: Engine, id: str) -> list[str]:
    return [entry["content"] for entry in engine.document(CONVERSATIONS, id)["history"]]


def test_entries_keep_the_order_of_their_writes(engine: Engine) -> None:
    id = make(engine, "one")
    append(engine, id, "two", "three")
    append(engine, id, "four", stamp=LAST)
    assert texts(engine, id) == ["one", "two", "three", "four"]
    entries, count, tag = engine.tail(id, 2)
    assert count == 4 and [
        entry["content"] for entry in codec.decode(b'{"h":' + entries + b"}", "")["h"]
    ] == [
        "three",
        "four",
    ]
    with engine.transaction(CONVERSATIONS, id) as transaction:
        assert transaction.state.tag == tag
    assert engine.document(CONVERSATIONS, id)["updatedAt"] == LAST


def test_a_head_and_entries_are_written_together(engine: Engine) -> None:
    id = make(engine, "one")
    with engine.transaction(CONVERSATIONS, id) as transaction:
        head = transaction.head.document | {"title": "New", "updatedAt": LATER}
        before = transaction.state.tag
    append(engine, id, "two", head=head)
    document = engine.document(CONVERSATIONS, id)
    assert (document["title"], texts(engine, id)) == ("New", ["one", "two"])
    with engine.transaction(CONVERSATIONS, id) as transaction:
        assert (
            transaction.state.tag != before
            and transaction.state.ends_active
            and transaction.state.entries == 2
        )


def test_an_append_leaves_the_tag_and_any_other_write_changes_it(engine: Engine) -> None:
    id = make(engine, "one")
    with engine.transaction(CONVERSATIONS, id) as transaction:
        before = transaction.state.tag
    append(engine, id, "two")
    with engine.transaction(CONVERSATIONS, id) as transaction:
        assert transaction.state.tag == before
        transaction.set_head(transaction.head.document | {"title": "New", "updatedAt": LAST})
        assert transaction.state.tag != before and transaction.head.document["title"] == "New"


def test_a_transaction_that_raises_keeps_its_earlier_writes(engine: Engine) -> None:
    id = make(engine, "one")
    with pytest.raises(RuntimeError), engine.transaction(CONVERSATIONS, id) as transaction:
        entry = message("two")
        transaction.append(
            [entry], [codec.encode_entry(entry)], LATER, time=LATER, head=None, ends_active=False
        )
        raise RuntimeError
    with pytest.raises(InvalidDocument), engine.transaction(CONVERSATIONS, id) as transaction:
        transaction.replace(transaction.document() | {"history": "none"})
    assert texts(engine, id) == ["one", "two"]


def test_an_exclusive_transaction_writes_as_any_other(engine: Engine) -> None:
    id = make(engine, "one")
    with engine.transaction(CONVERSATIONS, id, exclusive=True) as transaction:
        for text in ("two", "three"):
            entry = message(text)
            transaction.append(
                [entry], [codec.encode_entry(entry)], LATER, time=LATER, head=None, ends_active=True
            )
        transaction.set_head(transaction.head.document | {"title": "New", "updatedAt": LAST})
    with (
        pytest.raises(RuntimeError),
        engine.transaction(CONVERSATIONS, id, exclusive=True) as transaction,
    ):
        assert transaction.head.document["title"] == "New"
        raise RuntimeError
    append(engine, id, "four", stamp=LAST)
    assert texts(engine, id) == ["one", "two", "three", "four"]
    with engine.transaction(CONVERSATIONS, id, exclusive=True) as transaction:
        transaction.delete()
    with pytest.raises(NotFound), engine.transaction(CONVERSATIONS, id, exclusive=True):
        pass


@pytest.mark.parametrize("timeout_s", [0.1])
def test_a_document_is_exclusive_to_one_transaction(engine: Engine) -> None:
    id, entered, leave = make(engine), threading.Event(), threading.Event()

    def hold() -> None:
        with engine.transaction(CONVERSATIONS, id):
            entered.set()
            leave.wait()

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(hold)
        entered.wait()
        with pytest.raises(StoreBusy), engine.transaction(CONVERSATIONS, id):
            pass
        make(engine, id="other")  # Other documents are not blocked.
        leave.set()
        held.result()
    append(engine, id, "after")


def test_appends_by_threads_lose_nothing(store: Store) -> None:
    id = store.create(type="group").id

    def write(name: str) -> list[str]:
        return [store.append(id, content=f"{name}{n}").id for n in range(20)]

    with ThreadPoolExecutor(4) as pool:
        acknowledged = [one for ids in pool.map(write, "abcd") for one in ids]
    history = store.document(id)["history"]
    assert sorted(entry["id"] for entry in history) == sorted(acknowledged)
    for name in "abcd":
        mine = [entry["content"] for entry in history if entry["content"].startswith(name)]
        assert mine == [f"{name}{n}" for n in range(20)]


def test_an_entry_is_found_by_its_id(engine: Engine) -> None:
    made = "0b5ac1a2-7d1c-5c3e-9a51-1f2e3d4c5b6a"  # A UUIDv5.
    id = make(engine)
    engine.create(
        CONVERSATIONS,
        new_capsule("keyed", "", STAMP, messages=[message("one", made), message("two")]),
    )
    with engine.transaction(CONVERSATIONS, "keyed") as transaction:
        assert transaction.find(new_id()) is None
        for place, content in enumerate(["one", "two"]):
            found = transaction.find(transaction.document()["history"][place]["id"])
            assert found is not None and (found[0], found[1]["content"]) == (place, content)
    with engine.transaction(CONVERSATIONS, id) as transaction:
        assert transaction.find(made) is None


def test_an_entry_is_found_far_back_and_by_an_odd_id(engine: Engine) -> None:
    texts, ids = ["x" * 40_000, "y", "z" * 40_000, "end"], ["first", 'a"b', "c", "d"]
    id = "far"
    engine.create(CONVERSATIONS, new_capsule(id, "", STAMP, messages=[*map(message, texts, ids)]))
    with engine.transaction(CONVERSATIONS, id) as transaction:
        found = [transaction.find(each) for each in ids]
        assert [each and (each[0], each[1]["content"]) for each in found] == [*enumerate(texts)]
        assert transaction.find("x") is None and transaction.state.entries == len(ids)


def test_what_only_files_can_do_is_refused_by_name_elsewhere(engine: Engine) -> None:
    id = make(engine, "one")
    if isinstance(engine, FilesEngine):
        files = engine.external_edits()
        assert [found.id for found in files.scan(CONVERSATIONS)] == [id] and files.is_unchanged(
            CONVERSATIONS, id
        )
    else:
        with pytest.raises(Refused, match="the doctor needs a store that keeps files"):
            engine.external_edits("the doctor")


def test_a_second_document_of_one_id_is_refused(engine: Engine) -> None:
    id = make(engine, "one")
    with pytest.raises(ConcurrentWrite):
        make(engine, "two", id=id)
    assert (
        texts(engine, id) == ["one"]
        and engine.ids(CONVERSATIONS) == [id]
        and engine.exists(CONVERSATIONS, id)
    )
    for ask in (
        engine.tail,
        lambda id, n: engine.read(CONVERSATIONS, id),
        lambda id, n: engine.head(id),
    ):
        with pytest.raises(NotFound):
            ask("none", 1)
    with pytest.raises(NotFound), engine.transaction(CONVERSATIONS, "none"):
        pass


def test_a_context_is_replaced_and_the_entries_stay(engine: Engine) -> None:
    id = make(engine, "one")
    with engine.transaction(CONVERSATIONS, id) as transaction:
        head = transaction.head.document | {"updatedAt": LATER}
        transaction.set_head(head, context=lambda: [b'{\n  "fullContext": "all"\n}'])
    document = engine.document(CONVERSATIONS, id)
    assert document["context"]["fullContext"] == "all" and texts(engine, id) == ["one"]


def test_unknown_fields_and_numbers_survive(engine: Engine) -> None:
    document = new_capsule("odd", "", STAMP, messages=[message("one")])
    document["metadata"]["x"] = codec.decode(b'{"n": 12345678901234567890123, "m": [1.50]}', "")
    engine.create(CONVERSATIONS, document)
    append(engine, "odd", "two")
    assert b"12345678901234567890123" in engine.read(CONVERSATIONS, "odd")


@pytest.mark.parametrize("kind", ["overrides", "agents"])
def test_a_document_without_entries_is_read_and_changed_as_a_whole(
    engine: Engine, kind: str
) -> None:
    seen: list[bytes | None] = []

    def change(data: bytes | None) -> bytes | None:
        seen.append(data)
        return b'{"n": 1}' if data is None else None

    assert engine.ids(kind) == [] and not engine.exists(kind, "anna")
    for _ in range(2):
        edit_document(engine, kind, "anna", change)
    assert (
        seen == [None, b'{"n": 1}'] and engine.exists(kind, "anna") and engine.ids(kind) == ["anna"]
    )
    with pytest.raises(RuntimeError):
        edit_document(engine, kind, "anna", lambda data: (_ for _ in ()).throw(RuntimeError))
    assert engine.read(kind, "anna") == b'{"n": 1}' and engine.document(kind, "anna") == {"n": 1}
    edit_document(engine, kind, "anna", lambda data: b'{"n": 2}')
    assert engine.read(kind, "anna") == b'{"n": 2}'


def test_a_document_of_the_machine_is_read_and_changed_as_a_whole(engine: Engine) -> None:
    seen: list[Any] = []

    def change(before: dict[str, Any] | None) -> dict[str, Any] | None:
        seen.append(before)
        return {"n": 1} if before is None else None

    machine = engine.local
    assert machine.ids("homes") == [] and machine.read("homes", "anna") is None
    for _ in range(2):
        machine.edit("homes", "anna", change)
    assert (
        seen == [None, {"n": 1}] and machine.ids("homes") == ["anna"] and machine.ids("keys") == []
    )
    with pytest.raises(RuntimeError):
        machine.edit("homes", "anna", lambda before: (_ for _ in ()).throw(RuntimeError))
    assert (
        machine.read("homes", "anna") == {"n": 1} == machine.for_agent("anna").read("homes", "anna")
    )
    with pytest.raises(Refused):
        machine.for_agent("anna").read("keys", "cursors")
    for _ in range(2):
        machine.delete("homes", "anna")
    assert machine.read("homes", "anna") is None
    with pytest.raises(InvalidInput):
        machine.edit("homes", "../anna", change)


def test_a_document_is_put_over_the_version_that_was_read_and_no_other(engine: Engine) -> None:
    assert engine.version("agents", "anna") is None
    engine.put("agents", "anna", b'{"n": 0}', None)
    for number in range(1, 50):
        before = engine.version("agents", "anna")
        assert before is not None and before.data == b'{"n": %d}' % (number - 1)
        engine.put("agents", "anna", b'{"n": %d}' % number, before)
        for stale in (before, None):
            with pytest.raises(ConcurrentWrite):
                engine.put("agents", "anna", b"{}", stale)
        assert engine.version("agents", "anna", before) is not before
    with pytest.raises(ConcurrentWrite):
        engine.put("agents", "bob", b"{}", before)
    assert engine.read("agents", "anna") == b'{"n": 49}' and engine.ids("agents") == ["anna"]
    now = engine.version("agents", "anna")
    while (known := engine.version("agents", "anna", now)) is not now:
        now = known  # As soon as its clock can tell two versions apart, an engine knows it again.


def test_a_write_is_not_done_if_what_its_decision_read_has_another_version(engine: Engine) -> None:
    id, place = make(engine, "one"), ("agents", "anna")
    document = new_capsule("new", "", STAMP)
    engine.put(*place, b'{"n": 1}', None)
    writes: list[Callable[[Transaction], object]] = [
        lambda it: it.set_head(it.head.document | {"title": "New"}),
        lambda it: it.replace(it.document() | {"title": "New"}),
        lambda it: it.append([entry := message("x")], [codec.encode_entry(entry)], LATER, **HOW),
        lambda it: it.delete(),
    ]
    for reads in (
        {place: None},
        {("agents", "bob"): engine.version(*place)},
        {place: engine.version(*place)},
    ):
        edit_document(engine, *place, lambda data: (data or b"") + b"\n")
        with pytest.raises(ConcurrentWrite):
            engine.put("agents", "carl", b"{}", None, reads)
        with pytest.raises(ConcurrentWrite):
            engine.create(CONVERSATIONS, document, read_set=reads)
        for write in writes:
            with (
                pytest.raises(ConcurrentWrite),
                engine.transaction(CONVERSATIONS, id) as transaction,
            ):
                transaction.read_set = reads
                write(transaction)
    assert texts(engine, id) == ["one"] and engine.head(id)[0]["title"] == "Plan"
    assert engine.ids(CONVERSATIONS) == [id] and engine.ids("agents") == ["anna"]
    now = {place: engine.version(*place), ("agents", "bob"): None}
    engine.create(CONVERSATIONS, document, read_set=now)
    engine.put("agents", "carl", b"{}", None, now)
    with engine.transaction(CONVERSATIONS, id) as transaction:
        transaction.read_set = now
        transaction.delete()


def test_counts_by_threads_lose_nothing(engine: Engine) -> None:
    def add(_: int) -> None:
        for _ in range(10):
            edit_document(
                engine,
                "agents",
                "anna",
                lambda data: b'{"n": %d}' % (codec.decode(data or b'{"n": 0}', "")["n"] + 1),
            )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    assert engine.read("agents", "anna") == b'{"n": 80}'


def test_a_document_without_entries_is_deleted_and_restored(engine: Engine) -> None:
    with pytest.raises(NotFound):
        engine.delete("agents", "anna")
    edit_document(engine, "agents", "anna", lambda data: b'{"n": 1}')
    trashed = engine.delete("agents", "anna")
    assert engine.ids("agents") == [] and engine.trash.entries("agents") == [trashed]
    with pytest.raises(NotFound):
        engine.read("agents", "anna")
    engine.trash.restore("agents", "anna", trashed.token)
    assert engine.read("agents", "anna") == b'{"n": 1}' and engine.trash.entries("agents") == []


def test_a_deleted_document_can_be_restored_until_it_is_purged(engine: Engine) -> None:
    id = make(engine, "one")
    with engine.transaction(CONVERSATIONS, id) as transaction:
        trashed = transaction.delete()
    assert not engine.exists(CONVERSATIONS, id) and engine.trash.entries(CONVERSATIONS) == [trashed]
    assert b'"one"' in engine.trash.read(trashed.token)
    engine.trash.restore(CONVERSATIONS, id, trashed.token)
    assert texts(engine, id) == ["one"] and engine.trash.entries(CONVERSATIONS) == []
    with engine.transaction(CONVERSATIONS, id) as transaction:
        trashed = transaction.delete()
    make(engine, "another", id=id)
    with pytest.raises(Refused):
        engine.trash.restore(CONVERSATIONS, id, trashed.token)
    assert len(engine.trash.purge(0)) == 1 and engine.trash.purge(0) == []
    with pytest.raises(NotFound):
        engine.trash.read(trashed.token)


def test_what_a_replacement_removes_is_in_the_trash_until_it_is_dropped(engine: Engine) -> None:
    id = make(engine, "one")
    with engine.transaction(CONVERSATIONS, id) as transaction:
        transaction.replace(
            transaction.document() | {"history": []}, ("messages", transaction.document())
        )
    (kept,) = engine.trash.entries("messages")
    assert engine.trash.entries(CONVERSATIONS) == [] and b'"one"' in engine.trash.read(kept.token)
    engine.trash.erase(kept.token)
    engine.trash.erase(kept.token)
    assert engine.trash.entries("messages") == [] and texts(engine, id) == []


def test_lists_searches_and_counts_include_the_latest_write(store: Store) -> None:
    first = store.create(
        title="Alpha", type="group", messages=[{"role": "user", "content": "a red fish"}]
    ).id
    second = store.create(title="Beta", type="group", tags=["t"]).id
    assert {head.id for head in store.heads()} == {first, second}
    store.append(second, content="a blue fish")
    assert {hit.id for hit in store.search("fish").hits} == {first, second}
    assert [hit.id for hit in store.search("fish", tags=["t"]).hits] == [second]
    assert store.resolve("@last") == second and store.reindex()["messages"] == 2
    page = store.list(limit=1)
    rest = store.list(limit=1, cursor=page.cursor() or "")
    assert [head.id for head in (*page.heads, *rest.heads)] == [second, first]
    store.delete(first)
    assert [head.id for head in store.heads()] == [second] and store.stats().conversations == 1


def test_in_memory_changes_within_one_millisecond_keep_their_order(
    monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    stands_still = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: stands_still)
    with (
        Store.in_memory() as store
    ):  # Files have it from a clock that ticks every few milliseconds.
        ids = [store.create(type="group").id for _ in range(8)]
        # One change each: a second one in the millisecond would set `updatedAt` ahead of the clock.
        for id in rng.sample(ids, len(ids)):
            store.append(id, content="x")
            assert store.resolve("@last") == id


def test_a_wait_returns_the_next_change(store: Store) -> None:
    id = store.create(title="Titled", type="group").id
    cursor = store.changes().cursor
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(store.wait_for_changes, cursor, timeout_s=20)
        sent = store.append(id, content="hello").id
        assert [change.messages for change in waits.result().changes] == [(sent,)]
    assert store.wait_for_changes(timeout_s=0.05).changes == []


def test_an_instance_lives_until_it_is_withdrawn(engine: Engine) -> None:
    instance = new_id()
    assert not engine.leases.is_live(instance)
    engine.leases.acquire(instance)
    engine.leases.acquire(instance)
    assert engine.leases.is_live(instance)
    engine.leases.release(instance)
    assert not engine.leases.is_live(instance)


def test_a_live_instance_says_something_about_itself(engine: Engine) -> None:
    one, other = new_id(), new_id()
    engine.leases.acquire(one, {"agent": "anna", "listening": True})
    engine.leases.acquire(other)
    engine.leases.acquire(one)  # As a lock does; what was said stays.
    assert engine.leases.live_instances() == {one: {"agent": "anna", "listening": True}, other: {}}
    engine.leases.acquire(one, {"agent": "anna"})
    assert engine.leases.live_instances()[one] == {"agent": "anna"}
    engine.leases.release(one)
    engine.leases.acquire(one)
    assert engine.leases.live_instances() == {one: {}, other: {}}


def test_a_lock_excludes_another_instance_until_it_is_released(store: Store) -> None:
    id = store.create(type="chat").id
    other = store.beside()
    with store.locks.take(id):
        with pytest.raises(Locked):
            other.append(id, content="mine")
        store.append(id, content="held")
    other.append(id, content="free")
    other.close()
    assert [entry["content"] for entry in store.document(id)["history"]] == ["held", "free"]


def test_branches_edits_and_keys_work_on_any_engine(store: Store) -> None:
    id = store.create(type="group").id
    first, repeated = store.append_once(id, "key", content="one")
    again, was_there = store.append_once(id, "key", content="one")
    assert (repeated, was_there, again.id) == (False, True, first.id)
    store.append(id, role="assistant", content="answer")
    store.branches.regenerate(id, "another answer")
    store.branches.switch(id, "@1")
    store.append(id, content="and more")
    assert [message.content for message in store.branches.path(id)] == ["one", "answer", "and more"]
    store.edits.message(id, first.id, "two")
    assert store.trash.removed()[0].messages[0]["content"] == "one"
    store.trash.restore_messages(store.trash.removed()[0].trashed)
    assert store.branches.path(id)[0].content == "one"
    fork = store.forks.create(id)
    assert [message.content for message in store.tail(fork.id, 9)] == ["one", "answer", "and more"]
    assert store.forks.list(id) == [fork.id]
