"""Threads of a process commit their writes together, and each hears what happened to its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from capsule import InvalidInput, Store
from capsule.engines.interface import CONVERSATIONS
from capsule.engines.postgres import group_commit
from capsule.engines.postgres.database import PostgresDatabase
from tests.postgres.stores import engine_of
from tests.processes import until

IDS = [f"c{number}" for number in range(8)]


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with Store.open(database) as store:
        for id in IDS:
            store.create(type="group", id=id)
        yield store


@contextmanager
def together(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[], Any]], Future[Any]]]:
    """Runs writes in threads of their own. They are in one group, which is sent at the end."""
    commit, released = store.inner.engine._writer._group_commit, threading.Event()  # type: ignore[attr-defined]
    real, waiting, count = PostgresDatabase.write, [], 0

    def write(self: PostgresDatabase, *args: Any, **named: Any) -> Any:
        if not released.is_set():
            waiting.append(args)
            released.wait(60)
        return real(self, *args, **named)

    with ThreadPoolExecutor(20) as pool, monkeypatch.context() as patch:
        patch.setattr(PostgresDatabase, "write", write)
        busy = []
        for number in range(group_commit._MAX_WRITING):  # These two are on their way.
            busy.append(pool.submit(store.append, IDS[number], content="before"))
            until(lambda number=number: len(waiting) == number + 1)  # type: ignore[misc]

        def submit(act: Callable[[], Any]) -> Future[Any]:
            nonlocal count
            submitted = pool.submit(act)
            count += 1
            until(lambda: len(commit._queue) == count)
            return submitted

        try:
            yield submit
        finally:
            released.set()
        for each in busy:
            each.result()


def texts(store: Store, id: str) -> list[str]:
    return [entry["content"] for entry in store.document(id)["history"]]


def test_threads_that_write_at_once_share_a_statement(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, real = [], psycopg.Connection.execute

    def execute(self: psycopg.Connection[Any], statement: Any, *args: Any, **named: Any) -> Any:
        sent.append(str(statement))
        return real(self, statement, *args, **named)

    monkeypatch.setattr(psycopg.Connection, "execute", execute)
    with together(store, monkeypatch) as submit:
        appended = [
            submit(lambda id=id: store.append(id, content="text"))  # type: ignore[misc]
            for id in IDS[2:]
        ]
    assert [each.result().at for each in appended] == [0] * 6
    assert all(texts(store, id) == ["text"] for id in IDS[2:])
    # One of the two on their way is alone, the other one is a group by itself.
    assert len([statement for statement in sent if "save_each(" in statement]) == 2
    assert list(store.inner.engine.flaws()) == []


def test_a_write_that_is_refused_changes_nothing_for_the_others_of_its_group(
    store: Store, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append(IDS[3], content="zero")  # Its state is known here.
    with Store.open(database) as other, together(store, monkeypatch) as submit:
        first = submit(lambda: store.append(IDS[2], content="text"))
        other.inner.engine.database.read(  # Another version of the document: decided anew.
            "UPDATE @documents SET version = version + 1, tag = tag + 1 WHERE id = %s "
            "RETURNING version",
            IDS[3],
        )
        changed = submit(lambda: store.append(IDS[3], content="text"))
        taken = submit(lambda: store.create(type="group", id=IDS[5]))
        last = submit(lambda: store.append(IDS[4], content="text"))
    assert first.result().at == 0 and last.result().at == 0 and changed.result().at == 1
    with pytest.raises(InvalidInput):
        taken.result()
    assert texts(store, IDS[3]) == ["zero", "text"] and texts(store, IDS[4]) == ["text"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_group_whose_answer_is_lost_is_written_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    real, cuts = psycopg.Connection.execute, []

    def execute(self: psycopg.Connection[Any], statement: Any, *args: Any, **named: Any) -> Any:
        if "save_each(" not in str(statement) or cuts:
            return real(self, statement, *args, **named)
        cuts.append(statement)
        if when == "after":
            real(self, statement, *args, **named)
        self.close()
        raise psycopg.OperationalError("the answer was lost")

    monkeypatch.setattr(psycopg.Connection, "execute", execute)
    monkeypatch.setattr(group_commit, "_MAX_WRITING", 1)
    with together(store, monkeypatch) as submit:
        appended = [
            submit(lambda id=id: store.append(id, content="text"))  # type: ignore[misc]
            for id in IDS[2:]
        ]
    assert cuts and [each.result().at for each in appended] == [0] * 6
    assert all(texts(store, id) == ["text"] for id in IDS[2:])


def test_a_document_that_another_process_holds_does_not_hold_up_the_others(
    store: Store, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, begun, ended = engine_of(database), threading.Event(), threading.Event()

    def hold() -> None:
        with other.transaction(CONVERSATIONS, IDS[2], exclusive=True):
            begun.set()
            assert ended.wait(60)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        assert begun.wait(60)
        with together(store, monkeypatch) as submit:
            held = submit(lambda: store.append(IDS[2], content="text"))
            free = submit(lambda: store.append(IDS[3], content="text"))
            free.add_done_callback(lambda _: ended.set())  # Else the other one would end first.
        holding.result()
    other.close()
    assert free.result().at == 0 and held.result().at == 0
