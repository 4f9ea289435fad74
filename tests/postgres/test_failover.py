"""A primary that dies under writers, and its standby takes over, again and again: nothing acknowledged is lost.

What must stay true: the control, whose standby lacks the last moments, sees a loss by the same look.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from capsule import Store
from tests.postgres.server import Server
from tests.postgres.test_opening import sql
from tests.postgres.writers import histories, writing
from tests.processes import Child, until

#: How often the primary dies, and how many appends are acknowledged in between.
ROUNDS, EACH = (20, 1000) if os.environ.get("CAPSULE_TORTURE") else (2, 120)


class Pair:
    """A primary, its standby, and the address that names both.

    Args:
        settings: Of both.
    """

    def __init__(self, *settings: str) -> None:
        settings = ("fsync=on", "wal_retrieve_retry_interval=100ms", *settings)
        self.primary = Server(*settings)
        self.standby = Server(*settings, of=self.primary)
        hosts = f"{self.primary.directory},{self.standby.directory}"
        self.url = f"postgresql://capsule@/postgres?host={hosts}&target_session_attrs=read-write&schema=pair"

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby."""
        self.primary.kill()
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def is_even(self) -> bool:
        """Whether the standby has everything."""
        lags = "SELECT bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication"
        with psycopg.connect(self.primary.url) as admin:
            return admin.execute(lags).fetchone() == (True,)

    def part(self) -> None:
        """Let nothing reach the standby any more."""
        with psycopg.connect(self.standby.url, autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET primary_conninfo = ''")
            admin.execute("SELECT pg_reload_conf()")
            until(lambda: admin.execute("SELECT pid FROM pg_stat_wal_receiver").fetchone() is None)

    def close(self) -> None:
        self.primary.close()
        self.standby.close()


@contextmanager
def pair(*settings: str) -> Iterator[Pair]:
    servers = Pair(*settings)
    try:
        yield servers
    finally:
        servers.close()


def lost(url: str, said: list[Any]) -> list[Any]:
    """What was acknowledged and is not there. Asserts that nothing is there twice, and that places have no gap."""
    with Store.open(url) as store:
        there = histories(store)
    entries = {entry["id"]: (id, place) for id, history in there.items() for place, entry in enumerate(history)}
    texts = [entry["content"] for history in there.values() for entry in history]
    assert len(texts) == len(set(texts)) == len(entries)
    gaps = "SELECT doc FROM @entries GROUP BY doc HAVING min(place) <> 0 OR max(place) <> count(*) - 1"
    counts = "SELECT num FROM @documents WHERE entries <> (SELECT count(*) FROM @entries WHERE doc = num)"
    assert sql(url, f"{gaps} UNION ALL {counts}") == []
    return [one for one in said if one[2] is not None and entries.get(one[2]) != (one[0], one[1])]


@pytest.mark.slow
@pytest.mark.sample
@pytest.mark.usefixtures("postgres")
@pytest.mark.timeout(3600)
def test_a_synchronous_standby_that_takes_over_has_everything_that_was_acknowledged(
    child: Callable[..., Child],
) -> None:
    with pair("synchronous_standby_names=walreceiver") as servers:
        Store.init(servers.url)
        with Store.open(servers.url) as store:
            ids = [store.create(type="group").id for _ in range(4)]
        with writing(child, servers.url, ids, 4) as said:
            for _ in range(ROUNDS):
                before = len(said)
                until(lambda before=before: len(said) >= before + EACH)  # type: ignore[misc]
                servers.fail_over()
                servers.standby.stand_by(servers.primary)
            until(lambda: len(said) >= (ROUNDS + 1) * EACH)
        acknowledged = sum(message is not None for _, _, message, _ in said)
        print(f"{ROUNDS} failovers, {acknowledged} acknowledged, {len(said) - acknowledged} not known")
        assert lost(servers.url, said) == []
        assert acknowledged >= ROUNDS * EACH


@pytest.mark.slow
@pytest.mark.usefixtures("postgres")
def test_an_asynchronous_standby_that_takes_over_lacks_what_it_did_not_get(child: Callable[..., Child]) -> None:
    with pair() as servers:
        Store.init(servers.url)
        with Store.open(servers.url) as store:
            ids = [store.create(type="group").id for _ in range(4)]
        until(servers.is_even)
        with writing(child, servers.url, ids, 4) as said:
            until(lambda: len(said) >= 50)
            servers.part()
            before = len(said)
            until(lambda: len(said) >= before + 50)
            servers.fail_over()
            before = len(said)
            until(lambda: len(said) >= before + 50)
        assert len(lost(servers.url, said)) >= 40
