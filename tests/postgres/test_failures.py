"""Connections that are cut, backends that are killed, transactions that stall: nothing is lost or
comes twice.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from capsule import StorageFailed, Store, StoreBusy, timestamps
from capsule.engines.interface import CONVERSATIONS
from capsule.format.documents.creation import new_capsule
from capsule.ids import new_message_id
from tests.postgres.server import Server
from tests.postgres.stores import engine_of
from tests.postgres.test_opening import sql
from tests.postgres.writers import WRITER, histories, writing
from tests.processes import Child, until

HELLO = [{"role": "user", "content": "hello"}]
STAMP = "2026-01-01T10:00:00.000Z"


@pytest.fixture
def own_server(postgres: str) -> Iterator[Server]:
    """A server that a test may break."""
    server = Server("fsync=on")
    yield server
    server.close()


def everything(store: Store) -> Any:
    """What is there: entries with their places, the trash and the numbers of changes."""
    texts = {
        id: [entry["content"] for entry in history] for id, history in histories(store).items()
    }
    return texts, sorted((trashed.id) for trashed in store.trash.list())


def act(store: Store, step: Callable[[], None]) -> None:
    """Every kind of write."""
    id = store.create(id="plan", type="group", messages=HELLO).id
    step()
    first = store.append(id, content="one")
    step()
    store.append_many(
        id, [{"role": "user", "content": "two"}, {"role": "user", "content": "three"}]
    )
    store.append_once(id, "key", content="once")
    step()
    store.rename(id, "Plan")
    store.edits.message(id, str(first.id), "uno")
    step()
    with store.locks.take(id):
        store.append(id, content="held")
    store.create(id="gone")
    store.delete("gone")
    step()
    store.create(id="back")
    store.delete("back")
    store.trash.restore("back")
    store.engine.put("agents", "anna", b"{}", None)
    store.engine.files.write("attachments", "a", "a", b"data")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_is_cut_at_any_statement_loses_and_doubles_nothing(
    postgres: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    expected, real, total, number, cut_at = None, psycopg.Connection.execute, 0, 0, -1
    main = threading.get_ident()

    def execute(self: psycopg.Connection[Any], *args: Any, **named: Any) -> Any:
        nonlocal number
        if threading.get_ident() != main:
            return real(self, *args, **named)
        number += 1
        if number != cut_at:
            return real(self, *args, **named)
        if when == "after":
            real(self, *args, **named)
        with psycopg.connect(postgres, autocommit=True) as other:
            real(other, "SELECT pg_terminate_backend(%s, 10000)", (self.info.backend_pid,))
        if when == "after":
            self.close()
            raise psycopg.OperationalError("the answer was lost")
        return real(self, *args, **named)

    monkeypatch.setattr(psycopg.Connection, "execute", execute)
    step = 1 if os.environ.get("CAPSULE_TORTURE") else 3
    cut, first = 0, random.Random(when).randint(1, step)
    while expected is None or cut <= total:
        cut_at = -1
        url = f"{postgres}&schema=f{os.getpid()}_{when}_{cut}"
        Store.init(url)
        with Store.open(url) as store:
            number, cut_at = 0, cut or -1
            act(store, lambda: None)
            cut_at = -1
            if expected is None:
                expected, total, cut = everything(store), number, first
                continue
            assert everything(store) == expected, f"cut {when} statement {cut}"
        cut += step


def test_processes_that_append_to_one_conversation_lose_nothing_and_keep_its_order(
    database: str, child: Callable[..., Child]
) -> None:
    with Store.open(database) as store:
        id = store.create(type="group").id
        writers = [child(WRITER, database, name, id) for name in "abcd"]
        for writer in writers:
            assert writer.hear() == "ready"
        said: list[list[Any]] = [[writer.hear() for _ in range(30)] for writer in writers]
        for writer in writers:
            writer.say()
        said += [[*iter(writer.hear, None)] for writer in writers]
        history = store.document(id)["history"]
        acknowledged = [one for each in said for one in each]
        assert all(place is not None for _, place, _, _ in acknowledged)
        assert sorted(one[1] for one in acknowledged) == [*range(len(history))]
        assert all(history[place]["id"] == message for _, place, message, _ in acknowledged)
        times = [entry["timestamp"] for entry in history]
        assert times == sorted(times)
        for name in "abcd":
            numbers = [
                int(entry["content"][2:]) for entry in history if entry["content"][0] == name
            ]
            assert numbers == [*range(len(numbers))]


def test_an_append_that_is_tried_again_is_no_earlier_than_what_others_wrote_meanwhile(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(database) as store, Store.open(database) as other:
        id = store.create(type="group").id
        engine, real = store.inner.engine, store.inner.engine.save

        def save(*args: Any, **named: Any) -> Any:
            monkeypatch.setattr(engine, "save", real)
            began = timestamps.now()
            other.rename(id, "Plan")
            until(lambda: str(other.append(id, content="between").timestamp) > began)
            return real(*args, **named)

        monkeypatch.setattr(engine, "save", save)
        store.append(id, content="last")
        history = store.document(id)["history"]
        assert history[-1]["content"] == "last"
        assert history[-1]["timestamp"] >= history[-2]["timestamp"]


def test_an_edit_that_was_cut_off_is_done_though_others_wrote_meanwhile(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(database) as store, Store.open(database) as other:
        id = store.create(type="group", messages=HELLO).id
        first, real, cuts = str(store.tail(id, 1)[0].id), psycopg.Connection.execute, []

        def execute(self: psycopg.Connection[Any], statement: Any, *args: Any, **named: Any) -> Any:
            if "save(" not in statement or cuts:
                return real(self, statement, *args, **named)
            cuts.append(statement)
            other.append(id, content="between")
            self.close()
            raise psycopg.OperationalError("the connection was cut")

        monkeypatch.setattr(psycopg.Connection, "execute", execute)
        store.edits.message(id, first, "goodbye")
        assert [entry["content"] for entry in store.document(id)["history"]] == [
            "goodbye",
            "between",
        ]


@pytest.mark.slow
def test_backends_that_are_killed_under_writers_lose_and_double_nothing(
    own_server: Server, child: Callable[..., Child]
) -> None:
    url = f"{own_server.url}&schema=killed"
    Store.init(url)
    with Store.open(url) as store:
        ids = [store.create(type="group").id for _ in range(3)]
        with writing(child, url, ids, 8) as acknowledged:
            for round in range(1, 4):
                until(lambda round=round: len(acknowledged) > round * 400)  # type: ignore[misc]
                pids = sql(
                    url, "SELECT pid FROM pg_stat_activity WHERE application_name = 'capsule'"
                )
                os.kill(pids[0][0], signal.SIGKILL)  # The server ends all sessions, and recovers.
            until(lambda: len(acknowledged) > 2000)
        there = histories(store)
        entries = {
            entry["id"]: (id, place)
            for id, history in there.items()
            for place, entry in enumerate(history)
        }
        texts = [entry["content"] for history in there.values() for entry in history]
        assert len(texts) == len(set(texts)) and len(entries) == len(texts)
        for id, place, message, text in acknowledged:
            assert message is None or entries[message] == (id, place), text
        assert sum(message is not None for _, _, message, _ in acknowledged) > 2000


def test_the_feed_has_no_gap_and_no_inversion_under_32_writers(
    database: str, child: Callable[..., Child]
) -> None:
    each = 500 if os.environ.get("CAPSULE_TORTURE") else 20
    with Store.open(database) as store:
        ids = [store.create(type="group").id for _ in range(4)]
        follower = child(
            "store = Store.open(sys.argv[1])\ncursor = store.changes().cursor\nsay()\nleft = "
            "int(sys.argv[2])\n"
            "while left > 0:\n"
            "    found = store.wait_for_changes(cursor, timeout_s=60)\n"
            "    cursor, left = found.cursor, left - sum(len(change.messages) for change in "
            "found.changes)\n"
            "    say([[change.id, change.messages, change.count] for change in found.changes])\n"
            "say(None)",
            database,
            32 * each,
        )
        follower.hear()

        def write(number: int) -> None:
            chosen = random.Random(number)
            with Store.open(database) as own:
                for _ in range(each):
                    own.append_entries(chosen.choice(ids), [{"role": "user", "content": "x"}])

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(write, range(32)))
        heard = [change for changes in iter(follower.hear, None) for change in changes]
        for id, history in histories(store).items():
            messages = [message for of, messages, _ in heard if of == id for message in messages]
            assert messages == [entry["id"] for entry in history]
            counts = [count for of, _, count in heard if of == id]
            assert counts == sorted(counts)


def test_a_transaction_that_stalls_delays_the_feed_and_nothing_else(
    database: str, postgres: str
) -> None:
    with Store.open(database) as store, psycopg.connect(postgres) as stalls:
        id = store.create(type="group", title="Plan").id
        cursor = store.changes().cursor
        stalls.execute("SELECT pg_current_xact_id()")
        sent = store.append(id, content="a fish").id
        assert (
            sent in {hit.message for hit in store.search("fish").hits}
            and store.tail(id, 1)[0].id == sent
        )
        assert store.changes(cursor).changes == []
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(store.wait_for_changes, cursor, timeout_s=100)
            stalls.rollback()
            assert [change.messages for change in waits.result().changes] == [(sent,)]


def test_a_lease_that_was_taken_over_keeps_its_former_holder_from_writing(database: str) -> None:
    first, second = engine_of(database), engine_of(database)
    first.create(CONVERSATIONS, new_capsule("plan", "", STAMP))
    lease = first.leases.acquire("worker")
    with pytest.raises(StoreBusy, match="process"):
        second.leases.acquire("worker")
    first.put("agents", "anna", b"{}", None, lease.as_read_set)
    sql(database, "UPDATE @leases SET expires = now() - interval '1 second'")  # It stalled.
    other = second.leases.acquire("worker")
    assert other.fence > lease.fence
    with pytest.raises(StoreBusy):
        first.put("agents", "bob", b"{}", None, lease.as_read_set)
    with pytest.raises(StoreBusy), first.transaction(CONVERSATIONS, "plan") as transaction:
        transaction.read_set = lease.as_read_set
        transaction.set_head(transaction.head.document | {"title": "x"})
    second.put("agents", "bob", b"{}", None, other.as_read_set)
    first.leases.release("worker")
    with pytest.raises(StoreBusy):
        first.leases.acquire("worker")
    for engine in (first, second):
        engine.close()


def test_a_process_that_dies_leaves_leases_that_expire(
    database: str, child: Callable[..., Child]
) -> None:
    body = "store = Store.open(sys.argv[1])\nstore.engine.leases.acquire('worker')\nsay(); hear()"
    holder = child(body, database)
    holder.hear()
    engine = engine_of(database)
    holder.signal(signal.SIGKILL)
    sql(
        database, "UPDATE @leases SET expires = now() + interval '1 second'"
    )  # As its time runs out.
    engine.leases.acquire("worker", timeout_s=60)
    engine.close()


@pytest.mark.slow
def test_a_wait_for_a_standby_that_was_cancelled_is_no_acknowledgement(own_server: Server) -> None:
    url = f"{own_server.url}&schema=standby"
    Store.init(url)
    with Store.open(url) as store, psycopg.connect(own_server.url, autocommit=True) as admin:
        id = store.create(type="group").id
        admin.execute("SET synchronous_commit = local")
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        admin.execute("SELECT pg_reload_conf()")
        waiting = (
            "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%save%'"
        )
        texts: list[str] = []

        def append() -> None:
            while True:  # Until the server's processes have read the setting.
                texts.append(f"perhaps {len(texts)}")
                store.append(id, content=texts[-1])

        with ThreadPoolExecutor(1) as pool:
            appends = pool.submit(append)
            (pid,) = until(lambda: admin.execute(waiting).fetchone())
            admin.execute("SELECT pg_cancel_backend(%s)", (pid,))
            with pytest.raises(StorageFailed, match="is unknown"):
                appends.result()
        admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
        admin.execute("SELECT pg_reload_conf()")
        assert [entry["content"] for entry in store.document(id)["history"]] == texts


def test_a_database_that_is_gone_says_so_and_the_store_goes_on_when_it_is_back(
    own_server: Server,
) -> None:
    url = f"{own_server.url}&schema=gone"
    Store.init(url)
    with Store.open(url) as store:
        id = store.create(type="group").id
        own_server.stop()
        with ThreadPoolExecutor(1) as pool:
            appends = pool.submit(
                store.append_many,
                id,
                [{"role": "user", "content": "later", "id": new_message_id()}],
            )
            own_server.start()
            appends.result()
        assert [message.content for message in store.tail(id, 9)] == ["later"]
        own_server.stop()
        with pytest.raises(StorageFailed):
            Store.open(url)
