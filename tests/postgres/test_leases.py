"""Leases that hosts and workers lose in the middle of their work: what comes late is refused, and
nothing is twice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from capsule import Store, StoreBusy
from capsule.engines.postgres import leases
from capsule.engines.postgres.address import Address
from capsule.sessions.events import Route, inbound_message
from capsule.sessions.host import host as host_module
from capsule.sessions.host.host import Host
from capsule.sessions.rules.messages import receive, retry_or_fail
from capsule.sessions.session import Session
from capsule.sessions.worker.worker import CommandResult, Prompt, Worker
from tests.postgres.stores import engine_of
from tests.postgres.test_opening import sql
from tests.processes import until
from tests.sessions.hosting import Thread, echo, group, hosting, said

EXPIRED = "UPDATE @leases SET expires = now() - interval '1 second'"


@pytest.fixture
def stores(database: str) -> Iterator[tuple[Store, Store]]:
    """Two stores, as of two machines, with a person, anna, and an agent, bot."""
    with Store.open(database) as first, Store.open(database) as second:
        first.agents.register("anna")
        for store in (first, second):
            group(store, "bot")
        yield first, second


def test_a_worker_whose_lease_was_taken_over_while_it_worked_says_nothing_more(
    stores: tuple[Store, Store], database: str
) -> None:
    first, second = stores
    session = Session.create(first.engine, "s1", "bot")
    route = Route("conversations", "direct_anna_bot", "t1")
    session.write_inbound(
        lambda session_state: receive(
            session_state, [inbound_message(id="m1", content="hello", sender="anna", route=route)]
        )
    )

    def answer(prompt: Prompt) -> CommandResult:
        sql(database, EXPIRED)  # It stalls, and is taken for dead.
        earlier = "2026-01-01T00:00:00.000Z"
        other = Session(second.engine, "s1")
        other.write_inbound(
            lambda session_state: retry_or_fail(
                session_state, earlier, is_alive=lambda instance: instance == second.instance_id
            )
        )
        Worker(
            second, "bot", lambda prompt: CommandResult(0, "in time"), session="s1", idle_s=0
        ).run()
        return CommandResult(0, "late")

    Worker(first, "bot", answer, session="s1", idle_s=0).run()
    session_state = Session(second.engine, "s1").read()
    assert [message.event["content"] for message in session_state.outbound.messages.values()] == [
        "in time"
    ]
    assert session_state.status("m1") == "completed"


def test_a_lease_that_expired_is_renewed_if_nobody_had_it(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEW_S", 0.02)
    first, second = engine_of(database), engine_of(database)
    lease = first.leases.acquire("host")
    sql(database, EXPIRED)  # The database was away for long.
    until(lambda: sql(database, "SELECT 1 FROM @leases WHERE name = 'host' AND expires > now()"))
    first.put("agents", "anna", b"{}", None, lease.as_read_set)
    first.leases.close()
    second.leases.acquire("host")
    with pytest.raises(StoreBusy):
        first.put("agents", "bob", b"{}", None, lease.as_read_set)
    for engine in (first, second):
        engine.close()


def test_a_taker_that_waited_has_a_higher_fence_than_who_drew_one_meanwhile(database: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    address = Address(database)
    first, second = engine_of(database), engine_of(database)
    first.leases.acquire("host")
    sql(database, EXPIRED)
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with psycopg.connect(address.conninfo) as other, ThreadPoolExecutor(1) as pool:
        other.execute(f'SELECT FROM "{address.schema}".leases FOR UPDATE')
        taken = pool.submit(second.leases.acquire, "host")
        until(lambda: sql(database, waiting))
        numbers = f"'\"{address.schema}\".fences'"
        meanwhile = other.execute(f"SELECT nextval({numbers})").fetchone()[0]
        other.commit()
        assert taken.result().fence % 2**40 > meanwhile
    for engine in (first, second):
        engine.close()


def test_a_host_whose_lease_was_taken_over_ends_and_the_other_goes_on(
    stores: tuple[Store, Store], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "LOOK_S", 0.1)
    first, second = stores
    lines: list[dict[str, Any]] = []
    host = Host(
        first,
        log=lines.append,
        spawn=lambda session, agent: Thread(first, session, agent, echo, 0.0),
    )
    with ThreadPoolExecutor(1) as pool:
        runs = pool.submit(host.run, threading.Event())
        until(lambda: lines)
        sql(database, f"{EXPIRED} WHERE name = 'host'")
        with hosting(second) as (_, others):
            until(lambda: any(line["step"] == "running" for line in others))
            with pytest.raises(StoreBusy, match="host"):
                runs.result()
            sent = second.messages.send("hello", agent="anna", to="bot")
            until(lambda: said(second, sent.conversation, "bot"))
            assert said(second, sent.conversation, "bot") == ["you said: hello"]
