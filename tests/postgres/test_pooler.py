"""A store behind PgBouncer in transaction mode: each transaction gets another session, and no
notice passes.

What must stay true: no statement depends on the session; a statement that was prepared could be
another one's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from capsule import Store, StoreBusy
from capsule.engines.interface import CONVERSATIONS
from capsule.engines.postgres.address import Address
from capsule.engines.postgres.database import PostgresDatabase
from tests.postgres.server import Server
from tests.postgres.stores import engine_of
from tests.postgres.test_failures import act, everything
from tests.postgres.writers import histories, writing
from tests.processes import Child, until

SETTINGS = """[databases]
* = host={directory} user=capsule
[pgbouncer]
listen_addr =
unix_socket_dir = {directory}
unix_socket_mode = 0777
listen_port = 6432
auth_type = any
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
logfile = {directory}/pgbouncer.log
"""


@pytest.fixture
def pooled(postgres: str) -> Iterator[str]:
    """The address of a store behind a pooler. Skips where there is none."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("no pgbouncer")
    server = Server()
    settings = server.directory / "pgbouncer.ini"
    settings.write_text(SETTINGS.format(directory=server.directory), encoding="utf-8")
    settings.chmod(0o644)
    # It ends with this process, however that ends.
    shell = subprocess.Popen(
        ["sh", "-c", '"$0" -q "$1" & read _; kill $!; wait', program, str(settings)],
        **server.user,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    url = f"postgresql://capsule@/postgres?host={server.directory}&port=6432"

    def answers() -> bool:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        until(answers)
        Store.init(f"{url}&schema=talks")
        yield f"{url}&schema=talks"
    finally:
        shell.communicate()
        server.close()


@pytest.mark.slow
@pytest.mark.sample
def test_everything_is_done_behind_a_pooler_as_without_one(pooled: str, database: str) -> None:
    found = []
    for url in (database, pooled):
        with Store.open(url) as store:
            act(store, lambda: None)
            assert [hit.id for hit in store.search("held").hits] == ["plan"]
            found.append(everything(store))
    assert found[0] == found[1]


@pytest.mark.slow
def test_no_statement_that_another_client_prepared_is_run_in_place_of_the_own(pooled: str) -> None:
    plain = pooled.partition("&schema")[0]
    ours, theirs = PostgresDatabase(Address(pooled)), PostgresDatabase(Address(pooled))

    def occupied(session: int) -> psycopg.Connection[Any]:
        """A client in a transaction that has this session of the server."""
        others = []
        while True:
            client = psycopg.connect(plain)
            if client.execute("SELECT pg_backend_pid()").fetchone() == (session,):
                for other in others:
                    other.close()
                return client
            others.append(client)

    for _ in range(10):
        ((_, first),) = ours.read("SELECT 'ours', pg_backend_pid() + %s", 0)
    with occupied(first):
        for _ in range(10):
            ((_, second),) = theirs.read("SELECT 'theirs', pg_backend_pid() + %s", 0)
    assert first != second
    with occupied(first):
        assert ours.read("SELECT 'ours', pg_backend_pid() + %s", 0) == [("ours", second)]
    for each in (ours, theirs):
        each.close()


@pytest.mark.slow
def test_processes_behind_a_pooler_write_and_read_at_once(
    pooled: str, child: Callable[..., Child]
) -> None:
    with Store.open(pooled) as store:
        ids = [store.create(type="group", title=f"Plan {number}").id for number in range(3)]
        with writing(child, pooled, ids, 3) as said:
            number = 0
            while len(said) < 300:
                id = ids[number % 3]
                assert store.head(id).title == f"Plan {number % 3}"
                assert store.engine.exists(CONVERSATIONS, id) and all(
                    entry.content for entry in store.tail(id, 2)
                )
                number += 1
        entries = {
            entry["id"]: (id, at)
            for id, history in histories(store).items()
            for at, entry in enumerate(history)
        }
        assert all(entries[message] == (id, place) for id, place, message, _ in said)
        assert len(entries) == len(said)


@pytest.mark.slow
def test_who_waits_behind_a_pooler_hears_though_no_notice_passes(
    pooled: str, child: Callable[..., Child]
) -> None:
    with Store.open(pooled) as store, ThreadPoolExecutor(1) as pool:
        id = store.create(type="group").id
        cursor = store.changes().cursor
        waits = pool.submit(store.wait_for_changes, cursor, timeout_s=200)
        other = child(
            "say(str(Store.open(sys.argv[1]).append(sys.argv[2], content='x').id)); os._exit(0)",
            pooled,
            id,
        )
        sent = other.hear()  # It has ended before it could give notice.
        assert waits.result().changes[0].messages == (sent,)


@pytest.mark.slow
def test_a_lease_behind_a_pooler_has_one_holder(pooled: str) -> None:
    first, second = engine_of(pooled), engine_of(pooled)
    lease = first.leases.acquire("worker")
    with pytest.raises(StoreBusy):
        second.leases.acquire("worker")
    first.put("agents", "anna", b"{}", None, lease.as_read_set)
    first.leases.release("worker")
    assert second.leases.acquire("worker").fence > lease.fence
    with pytest.raises(StoreBusy):
        first.put("agents", "bob", b"{}", None, lease.as_read_set)
    for engine in (first, second):
        engine.close()
