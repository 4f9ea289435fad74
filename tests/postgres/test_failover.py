"""A primary that dies under writers, and its standby takes over, again and again: nothing
acknowledged is lost.

What must stay true: the control, whose standby lacks the last moments, sees a loss by the same
look.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from capsule import Store, StoreBusy
from tests.postgres.server import Server
from tests.postgres.test_opening import sql
from tests.postgres.writers import histories, writing
from tests.processes import Child, until

#: How often the primary dies, and how many appends are acknowledged in between.
ROUNDS, EACH = (20, 1000) if os.environ.get("CAPSULE_TORTURE") else (2, 120)

#: Follows changes until it has heard of so many messages as it is told, or of none for a minute;
#: and says them.
FOLLOWER = """
import threading
store, heard, total = Store.open(sys.argv[1]), [], []
cursor = store.changes().cursor
threading.Thread(target=lambda: total.append(hear()), daemon=True).start()
say()
while not total or len(heard) < total[0]:
    timeout_s = 60 if total else 1
    try:
        found = store.wait_for_changes(cursor, timeout_s=timeout_s)
    except CapsuleError:
        continue
    if timeout_s > 1 and not found.changes:
        break
    cursor = found.cursor
    heard += [[change.id, message] for change in found.changes for message in change.messages]
say(heard)
"""


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
    """What was acknowledged and is not there. Asserts that nothing is there twice, and that places
    have no gap.
    """
    with Store.open(url) as store:
        there = histories(store)
    entries = {
        entry["id"]: (id, place)
        for id, history in there.items()
        for place, entry in enumerate(history)
    }
    texts = [entry["content"] for history in there.values() for entry in history]
    assert len(texts) == len(set(texts)) == len(entries)
    gaps = (
        "SELECT doc FROM @entries GROUP BY doc HAVING min(place) <> 0 OR max(place) <> count(*) - 1"
    )
    counts = (
        "SELECT num FROM @documents WHERE entries <> (SELECT count(*) FROM @entries WHERE "
        "doc = num)"
    )
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
        follower = child(FOLLOWER, servers.url)
        follower.hear()
        with writing(child, servers.url, ids, 4) as said:
            for _ in range(ROUNDS):
                before = len(said)
                until(lambda before=before: len(said) >= before + EACH)  # type: ignore[misc]
                servers.fail_over()
                servers.standby.stand_by(servers.primary)
            until(lambda: len(said) >= (ROUNDS + 1) * EACH)
        acknowledged = sum(message is not None for _, _, message, _ in said)
        print(
            f"{ROUNDS} failovers, {acknowledged} acknowledged, {len(said) - acknowledged} not known"
        )
        assert lost(servers.url, said) == []
        assert acknowledged >= ROUNDS * EACH
        with Store.open(servers.url) as store:
            there = histories(store)
        follower.say(sum(map(len, there.values())))
        heard = follower.hear()
        for id, history in there.items():
            assert [message for of, message in heard if of == id] == [
                entry["id"] for entry in history
            ]


@pytest.mark.slow
@pytest.mark.usefixtures("postgres")
def test_an_asynchronous_standby_that_takes_over_lacks_what_it_did_not_get(
    child: Callable[..., Child],
) -> None:
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


@pytest.mark.slow
@pytest.mark.usefixtures("postgres")
def test_who_knows_of_what_a_standby_lacks_goes_on_with_what_is_written_there() -> None:
    numbers = "SELECT (SELECT last_value FROM @versions), (SELECT last_value FROM @fences)"
    with pair() as servers, ThreadPoolExecutor(1) as pool:
        Store.init(servers.url)
        with Store.open(servers.url) as store, Store.open(servers.url) as other:
            id = store.create(type="group", title="Plan").id
            until(servers.is_even)
            servers.part()
            for number in range(50):
                store.append(id, content=f"gone {number}")
            store.create(title="Gone too")
            store.rename(id, "Gone")
            assert store.facets().conversations == 2
            store.engine.leases.acquire("another")
            lease = store.engine.leases.acquire("worker")
            cursor = store.changes().cursor
            waits = pool.submit(store.wait_for_changes, cursor, timeout_s=200)
            ((version, fence),) = sql(servers.url, numbers)
            servers.fail_over()
            sql(
                servers.url,
                f"SELECT setval('@versions', {version - 1}), setval('@fences', {fence - 1})",
            )
            other.rename(id, "Kept")  # It has the number that the other one had.
            assert waits.result().changes
            assert store.facets().conversations == 1
            store.archive(id)
            assert store.head(id).title == "Kept"
            other.engine.leases.acquire("worker")
            with pytest.raises(StoreBusy):
                store.engine.put("agents", "anna", b"{}", None, lease.as_read_set)
            sent = [other.append(id, content=f"sent {number}").id for number in range(3)]
            found = store.changes(cursor).changes
            assert [change.kind for change in found[:2]] == ["head", "head"]
            assert [message for change in found for message in change.messages] == sent
