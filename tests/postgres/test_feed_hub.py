"""One reader of the feed for the processes of a machine: who leads, who follows, and what happens
when the leader dies or hangs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psutil
import pytest

from capsule import Store
from capsule.engines.changes import Interest
from capsule.engines.postgres.feed_hub import Demand
from capsule.engines.postgres.feed_reader import FeedNews, FeedRow
from capsule.engines.postgres.feed_window import FeedWindow
from capsule.engines.questions.change_cursors import ChangeCursor as Cursor
from tests.postgres.test_opening import sql
from tests.processes import Child, until

#: Waits for changes of some conversations, and says the messages. A third argument names modules'
#: constants to be changed.
LISTENER = """
from capsule.engines.postgres import feed_hub
for name, value in json.loads(sys.argv[3]).items():
    setattr(feed_hub, name, value)
store = Store.open(sys.argv[1])
cursor, ids = store.changes().cursor, sys.argv[2].split() or None
say()
while True:
    found = store.wait_for_changes(cursor, ids=ids, timeout_s=100)
    cursor = found.cursor
    say([message for change in found.changes for message in change.messages])
"""
#: A leader that hangs is noticed at once.
QUICK = '{"_HANGS_S": 1.0, "_BEGIN_S": 1.0, "_BEAT_S": 0.1, "_IDLE_S": 0.2}'
#: Connections that are not in use are closed at once.
IDLE = '{"_IDLE_S": 0.2}'
LISTENERS = "SELECT count(*) FROM @listeners WHERE expires > clock_timestamp()"


def listeners(child: Callable[..., Child], url: str, *ids: str, constants: str) -> list[Child]:
    """A process for each of these conversations, ready to hear."""
    started = [child(LISTENER, url, id, constants) for id in ids]
    for each in started:
        each.hear()
    return started


def next_message(listener: Child) -> str:
    """The next message that it hears of."""
    while not (messages := listener.hear()):
        pass
    (message,) = messages
    return str(message)


@pytest.mark.slow
def test_processes_of_one_machine_share_a_listener_and_hear_only_what_they_wait_for(
    database: str, child: Callable[..., Child]
) -> None:
    with Store.open(database) as store:
        ids = [store.create(type="group").id for _ in range(3)]
        started = listeners(child, database, *ids, constants=IDLE)
        until(lambda: sql(database, LISTENERS) == [(1,)])
        for _ in range(3):
            sent = [str(store.append(id, content="x").id) for id in ids]
            assert [next_message(each) for each in started] == sent
        assert sql(database, LISTENERS) == [(1,)]


@pytest.mark.slow
def test_a_process_that_waits_beside_a_listener_has_no_connection(
    database: str, child: Callable[..., Child]
) -> None:
    name = f"waits{os.getpid()}"
    url = f"{database}&application_name={name}"
    count = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'"
    with Store.open(database) as store:
        ids = [store.create(type="group").id for _ in range(4)]
        started = listeners(child, url, *ids, constants=IDLE)
        until(lambda: sql(database, count) == [(1,)])
        sent = str(store.append(ids[-1], content="x").id)
        assert next_message(started[-1]) == sent
        assert sql(database, count) == [(1,)]


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_leader_that_dies_or_hangs_is_replaced_and_nothing_is_missed(
    database: str, child: Callable[..., Child], end: signal.Signals
) -> None:
    with Store.open(database) as store:
        id = store.create(type="group").id
        leader, *others = [listeners(child, database, id, constants=QUICK)[0] for _ in range(4)]
        first = str(store.append(id, content="first").id)
        assert [next_message(each) for each in (leader, *others)] == [first] * 4
        psutil.Process(leader.pid).send_signal(end)
        for number in range(3):
            sent = str(store.append(id, content=f"{number}").id)
            assert [next_message(each) for each in others] == [sent] * 3


@pytest.mark.slow
def test_a_forked_child_of_a_leader_does_not_lead(
    database: str, child: Callable[..., Child]
) -> None:
    body = (
        "store = Store.open(sys.argv[1])\nstore.wait_for_changes(timeout_s=0.01)\n"
        "pid = os.fork()\n"
        "if not pid:\n    hear()\n    os._exit(0)\n"
        "say(pid)\nos._exit(0)"
    )
    parent = child(body, database)
    pid = parent.hear()
    name = f"forked{os.getpid()}"
    count = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'"
    try:
        with Store.open(database) as store:
            id = store.create(type="group").id
            url = f"{database}&application_name={name}"
            others = listeners(child, url, id, id, constants=IDLE)
            sent = str(store.append(id, content="x").id)
            assert [next_message(other) for other in others] == [sent] * 2
            until(lambda: sql(database, count) == [(1,)])
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_window_answers_a_cursor_only_if_nothing_can_be_missing() -> None:
    window = FeedWindow()
    cursor = Cursor("g", 5, 100)
    assert window.rows_after(cursor, 10) is None
    window.add(FeedNews("g", 200, 200))
    assert window.rows_after(cursor, 10) is None
    window.note_cursor(str(cursor), 199)
    assert window.rows_after(cursor, 10) is None
    window.note_cursor(str(cursor), 200)
    rows = [
        FeedRow(200 + number, number, "c", "appended", "{}", 0, 0, 0, "") for number in range(4)
    ]
    window.add(FeedNews("g", 204, None, rows))
    assert window.rows_after(cursor, 10) == rows
    assert window.rows_after(cursor, 2) == rows[:2]
    assert window.rows_after(Cursor("g", 1, 201), 10) == rows[2:]
    assert window.rows_after(Cursor("other", 1, 201), 10) is None
    window.add(FeedNews())
    assert window.rows_after(cursor, 10) is None
    window.add(FeedNews("g", 300, 300))
    assert window.rows_after(Cursor("g", 1, 201), 10) is None


def test_an_interest_counts_appends_and_other_changes_apart() -> None:
    every, one = Interest(), Interest(frozenset("a"), frozenset("a"))
    member = Interest(appends_in=frozenset("ab"))
    assert every.covers(member) and member.covers(one) and not one.covers(member)
    assert every.includes("appended", "c") and not member.includes("appended", "c")
    assert member.includes("head", "c") and not one.includes("head", "c")
    assert one.union(member) == member and member.union(every) == every
    assert Demand(every, True).covers(Demand(one)) and not Demand(one).covers(Demand(None, True))
