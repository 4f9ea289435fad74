"""How many statements a write sends to the database, and that none of them waits for the index."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import psycopg
import pytest

from capsule import Refused, Store
from capsule.engines.postgres.engine import PostgresEngine

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements of this thread, as they are sent."""
    sent: list[str] = []
    real, main = psycopg.Connection.execute, threading.get_ident()

    def execute(self: psycopg.Connection[Any], statement: Any, *args: Any, **named: Any) -> Any:
        if threading.get_ident() == main:
            sent.append(str(statement))
        return real(self, statement, *args, **named)

    monkeypatch.setattr(psycopg.Connection, "execute", execute)
    return sent


@pytest.fixture
def store(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store with agents and a channel, whose index nobody may use."""

    def refuse(engine: PostgresEngine) -> NoReturn:
        raise AssertionError("the index is used")

    with Store.open(database) as store:
        for agent in ("anna", "bob", "carl"):
            store.agents.register(agent)
        store.channels.create("builds", agent="anna", members=["bob", "carl"])
        with monkeypatch.context() as patch:
            patch.setattr(PostgresEngine, "index", property(refuse))
            yield store


def test_a_write_sends_few_statements_and_none_for_the_index(
    store: Store, statements: list[str]
) -> None:
    def count(act: Callable[[], object]) -> int:
        act()  # Connected, and what never changes is known.
        statements.clear()
        act()
        return len(statements)

    id = store.create(type="group", messages=HELLO).id
    first = str(store.tail(id, 1)[0].id)
    texts = iter(map(str, range(99)))
    for other in ("one", "two"):
        store.create(type="group", id=other)
    others = iter(["one", "two"])
    channel = "channel_global_builds"
    send = store.messages.send
    found = {
        "append": count(lambda: store.append(id, content="text")),
        "append of several": count(lambda: store.append_many(id, HELLO * 3)),
        "direct": count(lambda: send("text", agent="anna", to="bob")),
        "channel by id": count(lambda: send("text", agent="anna", conversation=channel)),
        "channel by name": count(lambda: send("text", agent="anna", channel="builds")),
        "edit": count(lambda: store.edits.message(id, first, next(texts))),
        "rename": count(lambda: store.rename(id, next(texts))),
        "delete": count(lambda: store.delete(next(others))),
    }
    assert found == {
        "append": 1,
        "append of several": 1,
        "direct": 3,
        "channel by id": 2,
        "channel by name": 3,
        "edit": 2,
        "rename": 1,
        "delete": 4,
    }


def test_a_send_is_decided_anew_if_an_agent_changes_before_it_is_written(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(database) as store, Store.open(database) as other:
        for agent in ("anna", "bob"):
            store.agents.register(agent)
        store.messages.send("first", agent="anna", to="bob")
        engine, real = store.inner.engine, store.inner.engine.save

        def block_and_save(*args: Any, **named: Any) -> Any:
            monkeypatch.setattr(engine, "save", real)
            other.agents.block(agent="bob", other="anna")
            return real(*args, **named)

        monkeypatch.setattr(engine, "save", block_and_save)
        with pytest.raises(Refused):
            store.messages.send("second", agent="anna", to="bob")
        assert [message.content for message in store.tail("direct_anna_bob", 9)] == ["first"]
