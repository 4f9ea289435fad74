"""Servers that lack what a primary of PostgreSQL can do: managed ones, which refuse some functions,
and standbys, which can't be written.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from capsule import StorageFailed, Store
from capsule.engines.postgres import database as database_module
from capsule.engines.postgres.database import PostgresDatabase
from capsule.maintenance.doctor import examine
from tests.postgres.server import Server
from tests.postgres.test_opening import run, sql
from tests.processes import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("postgres")]
#: What a managed server may refuse.
FUNCTIONS = ("pg_current_wal_lsn()", "pg_control_system()")


@pytest.fixture
def managed() -> Iterator[str]:
    """The address of a role that owns the database of a server which refuses some functions."""
    server = Server()
    sql(server.url, "CREATE ROLE anna LOGIN")
    sql(server.url, "CREATE DATABASE talks OWNER anna")
    url = server.url.replace("/postgres?", "/talks?")
    for function in FUNCTIONS:
        sql(url, f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
    yield url.replace("capsule@", "anna@")
    server.close()


def test_a_server_that_does_not_tell_the_position_of_its_log_has_a_store(managed: str) -> None:
    Store.init(managed)
    with Store.open(managed) as store, Store.open(managed) as other:
        begin = store.changes().cursor
        id = store.create(type="group", messages=[{"role": "user", "content": "a fish"}]).id
        sent = [str(store.append(id, content=f"{number}").id) for number in range(3)]
        found = other.wait_for_changes(begin, timeout_s=60).changes
        assert [message for change in found[1:] for message in change.messages] == sent
        assert {hit.id for hit in other.search("fish").hits} == {id}
        with store.engine.leases.acquire("worker") as lease:
            store.engine.put("agents", "anna", b"{}", None, lease.as_read_set)
        store.delete(id)
        assert not other.ids()


def test_a_store_that_comes_to_another_kind_of_server_gets_its_functions_by_migrate(
    managed: str,
) -> None:
    admin = managed.replace("anna@", "capsule@")
    for function in FUNCTIONS:
        sql(admin, f"GRANT EXECUTE ON FUNCTION {function} TO PUBLIC")
    Store.init(managed)
    assert sql(managed, "SELECT @in_timeline(0) > 0") == [(True,)]
    sql(admin, "REVOKE EXECUTE ON FUNCTION pg_current_wal_lsn() FROM PUBLIC")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        sql(managed, "SELECT @in_timeline(0)")
    assert run("store", "migrate", "--store", managed).returncode == 0
    assert sql(managed, "SELECT @in_timeline(0)") == [(0,)]


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_the_doctor_names_a_setting_that_can_lose_what_was_acknowledged(setting: str) -> None:
    server = Server("fsync=on", "full_page_writes=on", f"{setting}=off")
    Store.init(server.url)
    with Store.open(server.url) as store:
        (finding,) = examine(store)
        assert f"{setting} is off" in finding.what
        assert finding.what.count(" is off") == 1
    server.close()


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    """A primary with a store, and its standby."""
    primary = Server()
    Store.init(primary.url)
    standby = Server(of=primary)
    yield primary, standby
    standby.close()
    primary.close()


def test_a_standby_is_named_with_what_to_give(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "_PATIENCE_S", 0.0)
    _, standby = servers
    with Store.open(standby.url) as store:
        with pytest.raises(StorageFailed, match="this is a standby") as caught:
            store.create(title="Plan")
        assert "target_session_attrs=read-write; " in caught.value.message
        assert caught.value.message.endswith(" is not stored")
        with pytest.raises(StorageFailed, match=r"target_session_attrs=read-write$"):
            store.list()


def test_a_write_to_a_standby_is_done_once_it_is_promoted(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, standby = servers
    is_of_standby, refusals = PostgresDatabase._is_of_standby, []

    def note_refusal(self: PostgresDatabase, error: Any) -> bool:
        refusals.append(error)
        return is_of_standby(self, error)

    monkeypatch.setattr(PostgresDatabase, "_is_of_standby", note_refusal)
    with Store.open(standby.url) as store, ThreadPoolExecutor(1) as pool:
        write = pool.submit(store.create, title="Plan")
        until(lambda: len(refusals) > 2)
        primary.kill()
        standby.promote()
        assert write.result().title == "Plan"
        assert [head.title for head in store.list().heads] == ["Plan"]
