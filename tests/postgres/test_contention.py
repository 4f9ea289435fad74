"""Writes that depend on all of a conversation, while others append to it all the time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from capsule import Store, StoreBusy
from capsule.engines.interface import CONVERSATIONS
from capsule.engines.postgres import exclusive
from capsule.store import internals
from tests.postgres.stores import engine_of
from tests.postgres.test_opening import sql
from tests.postgres.writers import writing
from tests.processes import Child, until

TEXTS = ["zero", "one", "two", "three", "four", "five", "six", "seven"]
MESSAGES = [{"role": "user", "content": text} for text in TEXTS]


@pytest.fixture
def always_exclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first try of each change be an exclusive one."""
    monkeypatch.setattr(internals, "OPTIMISTIC_TRIES", 0)


def ids_in(store: Store, id: str) -> list[str]:
    return [str(message.id) for message in store.load(id).history]


def test_every_kind_of_write_succeeds_while_others_append(
    database: str, child: Callable[..., Child]
) -> None:
    with Store.open(database) as store:
        id = store.create(type="group", messages=MESSAGES).id
        first, second, *others = ids_in(store, id)
        with writing(child, database, [id], 2) as said:
            until(lambda: len(said) > 10)
            for number, other in enumerate(others):
                store.edits.message(id, first, f"edit {number}")
                store.branches.revise(id, second, f"version {number}")
                store.branches.remove(id, other, keep_children=True)
                store.context.set(id, {"fullContext": f"context {number}", "metadata": {}})
                store.rename(id, f"title {number}")
            length = len(said)
            until(lambda: len(said) > length)
        document = store.document(id)
        last = len(others) - 1
        texts = [entry["content"] for entry in document["history"]]
        acknowledged = [text for _, place, _, text in said if place is not None]
        assert texts[0] == f"edit {last}" and document["title"] == f"title {last}"
        assert document["context"]["fullContext"] == f"context {last}"
        assert not {*TEXTS[2:]} & {*texts}
        assert sorted(text for text in texts if text[0] == "w") == sorted(acknowledged)
        assert len(acknowledged) == len(said)


def test_a_conversation_is_deleted_while_others_append(
    database: str, child: Callable[..., Child]
) -> None:
    with Store.open(database) as store:
        for id in ("one", "two", "three"):
            store.create(type="group", id=id)
            with writing(child, database, [id], 2) as said:
                until(lambda said=said: len(said) > 10)  # type: ignore[misc]
                store.delete(id)
            assert id not in store.ids()
            trashed = store.trash.list()[0]
            texts = store.engine.trash.read(trashed.token).decode()
            acknowledged = [text for _, place, _, text in said if place is not None]
            assert all(f'"{text}"' in texts for text in acknowledged)


@pytest.mark.usefixtures("always_exclusive")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_answer_to_the_commit_of_an_exclusive_write_changes_nothing(
    postgres: str, database: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    real, cuts = psycopg.Connection.execute, []

    def execute(self: psycopg.Connection[Any], statement: Any, *args: Any, **named: Any) -> Any:
        if statement != "COMMIT" or cuts:
            return real(self, statement, *args, **named)
        cuts.append(statement)
        if when == "after":
            real(self, statement, *args, **named)
        with psycopg.connect(postgres, autocommit=True) as other:
            real(other, "SELECT pg_terminate_backend(%s, 10000)", (self.info.backend_pid,))
        self.close()
        raise psycopg.OperationalError("the answer was lost")

    with Store.open(database) as store:
        id = store.create(type="group", messages=MESSAGES).id
        first = ids_in(store, id)[0]
        monkeypatch.setattr(psycopg.Connection, "execute", execute)
        store.edits.message(id, first, "uno")
        assert cuts.pop() and store.load(id).history[0].content == "uno"
        assert len(store.trash.removed(id)) == 1
        assert sql(database, "SELECT count(*) FROM @changes WHERE event = 'edited'") == [(1,)]
        store.append(id, content="once")
        assert cuts.pop() and [message.content for message in store.tail(id, 2)] == [
            "seven",
            "once",
        ]
        store.delete(id)
        assert cuts.pop() and [trashed.id for trashed in store.trash.list()] == [id]


@pytest.mark.usefixtures("always_exclusive")
def test_a_process_that_stops_in_an_exclusive_write_loses_its_lock(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = exclusive._BEGIN.replace(f"'{exclusive._MAX_IDLE_S}s'", "'100ms'")
    monkeypatch.setattr(exclusive, "_BEGIN", begin)
    with Store.open(database) as store, Store.open(database) as other:
        id = store.create(type="group", messages=MESSAGES).id
        first, tries = ids_in(store, id)[0], []

        def edit(conversation: Any) -> Any:
            tries.append(conversation.transaction.state.entries)
            if len(tries) == 1:  # Stopped until another one could write.
                other.append_many(id, MESSAGES)
            return conversation.rewrite(
                lambda document: document["history"][0].update(content="uno")
            )

        store.inner.change(id, edit)
        assert tries == [8, 16]
        assert [entry["content"] for entry in store.document(id)["history"]] == [
            "uno",
            *TEXTS[1:],
            *TEXTS,
        ]
        assert first == ids_in(store, id)[0]


def test_who_waits_too_long_for_an_exclusive_write_hears_what_it_waits_for(database: str) -> None:
    first, second = engine_of(database), engine_of(database, timeout_s=0.1)
    with Store.open(database) as store:
        id = store.create(type="group", messages=MESSAGES).id
    begun, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with first.transaction(CONVERSATIONS, id, exclusive=True):
            begun.set()
            ended.wait(60)

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(hold)
        assert begun.wait(60)
        with (
            pytest.raises(StoreBusy, match="another process"),
            second.transaction(CONVERSATIONS, id, exclusive=True),
        ):
            pass
        ended.set()
        held.result()
    with second.transaction(CONVERSATIONS, id, exclusive=True) as transaction:
        assert transaction.state.entries == len(MESSAGES)
    first.close()
    second.close()


def test_an_edit_writes_the_row_of_its_message_alone(database: str) -> None:
    with Store.open(database) as store:
        id = store.create(type="group", messages=MESSAGES).id

        def rows() -> dict[int, Any]:
            found = sql(database, "SELECT place, xmin::text FROM @entries ORDER BY place")
            return dict(found)

        before = rows()
        store.edits.message(id, ids_in(store, id)[2], "due")
        after = rows()
        assert {place for place in before if before[place] != after[place]} == {2}
        assert [message.content for message in store.load(id).history][1:4] == [
            "one",
            "due",
            "three",
        ]
        assert list(store.inner.engine.flaws()) == []
