"""Machines whose clocks are an hour apart: what depends on the order, or on who lives, does not
depend on them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from capsule import Store, timestamps
from tests.postgres.test_opening import sql
from tests.processes import Child

HOUR_S = 3600
#: A store on a machine whose clock is off, which says what expressions of it give, as JSON.
MACHINE = """
import time
real_ns, off_s = time.time_ns, int(sys.argv[2])
time.time_ns = lambda: real_ns() + off_s * 10**9
time.time = lambda: time.time_ns() / 10**9
with Store.open(sys.argv[1]) as store:
    say()
    while (asked := hear()) is not None:
        try:
            say(eval(asked))
        except CapsuleError as error:
            say(type(error).__name__)
"""


class Machine:
    """A machine. Calling it gives what an expression is there."""

    def __init__(self, child: Callable[..., Child], url: str, off_s: int) -> None:
        self.child = child(MACHINE, url, str(off_s))
        self.child.hear()

    def __call__(self, expression: str) -> Any:
        self.child.say(expression)
        return self.child.hear()


@pytest.fixture
def machines(database: str, child: Callable[..., Child]) -> list[Machine]:
    """One an hour ahead, one an hour behind, and one that is right."""
    return [Machine(child, database, off_s) for off_s in (HOUR_S, -HOUR_S, 0)]


def test_messages_are_in_order_and_each_version_has_another_time(
    database: str, machines: list[Machine]
) -> None:
    with Store.open(database) as store:
        store.create(id="plan", type="group")
        stamps = [store.head("plan").updated_at]
        for number in range(12):
            machine = machines[number % 3]
            machine(f"str(store.append('plan', content='{number}').id)")
            stamps.append(machine("store.head('plan').updated_at"))
            machine(f"store.rename('plan', 'Plan {number}') and None")
            stamps.append(machine("store.head('plan').updated_at"))
        history = store.document("plan")["history"]
        assert [entry["content"] for entry in history] == [str(number) for number in range(12)]
        times = [entry["timestamp"] for entry in history]
        assert times == sorted(times)
        assert stamps == sorted(set(stamps))
        assert (
            abs(timestamps.seconds_between(timestamps.now(), times[0])) > HOUR_S / 2
        )  # The clocks are off.


def test_messages_at_once_are_in_order_too(database: str, machines: list[Machine]) -> None:
    with Store.open(database) as store:
        store.create(id="plan", type="group")
        many = "[store.append('plan', content=f'{off_s}') and None for _ in range(30)] and None"
        threads = [threading.Thread(target=machine, args=(many,)) for machine in machines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        times = [entry["timestamp"] for entry in store.document("plan")["history"]]
        assert len(times) == 90 and times == sorted(times)


def test_who_lives_and_who_holds_is_said_by_the_clock_of_the_database(
    database: str, machines: list[Machine]
) -> None:
    with Store.open(database) as store:
        store.create(id="plan", type="group")
        for machine in machines:
            instance = machine("store.instance_id")
            assert machine("store.engine.leases.acquire(store.instance_id, {}) and None") is None
            assert all(each(f"store.engine.leases.is_live({instance!r})") for each in machines)
            machine("store.engine.leases.acquire('worker').fence")
            assert {each("store.engine.leases.acquire('worker').fence") for each in machines} == {
                "StoreBusy"
            }
            machine("store.engine.leases.release('worker')")
            machine("store.locks.take('plan').__enter__() and None")
            others = [each for each in machines if each is not machine]
            assert {each("str(store.append('plan', content='x').id)") for each in others} == {
                "Locked"
            }
            machine("store.locks.release('plan') and None")
            machine("store.engine.leases.acquire('left').fence")
            sql(
                database,
                "UPDATE @leases SET expires = now() - interval '1 second' WHERE name = 'left'",
            )
            assert others[0]("store.engine.leases.acquire('left').fence") > 0
            others[0]("store.engine.leases.release('left')")


def test_who_joined_reads_what_comes_later_and_is_told_when_it_is_mentioned(
    database: str, machines: list[Machine]
) -> None:
    ahead, behind, right = machines
    with Store.open(database) as store:
        for agent in ("anna", "bot"):
            store.agents.register(agent)
        id = store.groups.create("Team", agent="anna").id
        right(f"store.messages.send('before', agent='anna', conversation={id!r}).conversation")
        ahead(f"store.groups.add({id!r}, ['bot'], agent='anna') and None")
        for machine in (behind, right, ahead):
            machine(
                f"store.messages.send('@bot later', agent='anna', conversation={id!r}).conversation"
            )
        for machine in machines:
            heard = (
                "[mail.content for mail in store.inner.store_for('bot').messages.listen().messages]"
            )
            assert machine(heard) == ["@bot later"] * 3
            assert (
                machine(f"[each.content for each in store.inner.store_for('bot').tail({id!r}, 9)]")
                == ["@bot later"] * 3
            )
