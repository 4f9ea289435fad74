"""Sessions: how soon a message wakes a worker, how many a session takes a second, what idle ones
cost, and their files.

What must stay true: a host is a process of its own, `capsule worker host`, and the time of what it
starts is the one at which this process hears of it, by one clock, the system's monotonic one. Both
ways through a session are the same steps, without anything that waits: messages in, claimed,
answered and completed, delivered, noted.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Queue

import orjson

from benchmarks.fixtures import texts
from benchmarks.harness import Contestant, Samples, interleave
from benchmarks.mcp import cpu_s
from benchmarks.peers.session_pair import SessionPair
from benchmarks.report import Bar, Bench, Report, Table, micro, sample_rows, times
from capsule import Store, timestamps
from capsule.ids import new_message_id
from capsule.sessions import events
from capsule.sessions.rules import messages
from capsule.sessions.session import Session

__all__ = ["run"]

_START_S, _TIMES, _CPU, _DONE = 0.050, 5, 1.0, 10_000
_IDLE_S, _PATIENCE_S = 60, 60.0
_BYTES = 2_000_000


def run(bench: Bench) -> Report:
    """Measure sessions."""
    report = Report()
    program = Path(sys.executable).with_name("capsule")
    if program.exists():
        _latency(bench, report, program)
        _idle(bench, report, program)
    else:
        report.skipped["the host"] = (
            f"there is no {program.name} beside {Path(sys.executable).name}"
        )
    _throughput(bench, report)
    return report


@contextmanager
def _host(program: Path, root: Path, heard: Queue[tuple[str, int]]) -> Iterator[int]:
    """A host; puts the steps of its log with the times at which they came."""
    process = subprocess.Popen(
        [program, "worker", "host", "--store", root],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=root,
    )
    assert process.stderr
    lines = process.stderr

    def hear() -> None:
        for line in lines:
            now = time.monotonic_ns()
            said = orjson.loads(line)
            heard.put((str(said.get("step") or said.get("event")), now))

    thread = threading.Thread(target=hear)
    thread.start()
    try:
        _until("running", heard)
        yield process.pid
    finally:
        process.terminate()
        process.wait()
        thread.join()
        lines.close()


def _until(step: str, heard: Queue[tuple[str, int]]) -> int:
    while True:
        found, at = heard.get(timeout=_PATIENCE_S)
        if found == step:
            return at


# -- From a message to its worker ------------------------------------------------------------------


def _latency(bench: Bench, report: Report, program: Path) -> None:
    root, count, draw = bench.directory / "latency", bench.rounds(100, 10, 1), random.Random(1)
    Store.init(root)
    heard, begun = Queue[tuple[str, int]](), Queue[int]()
    fifo = root / "begun"
    os.mkfifo(fifo)
    with open(os.open(fifo, os.O_RDWR), "rb", buffering=0) as told:
        threading.Thread(
            target=lambda: [begun.put(time.monotonic_ns()) for _ in told], daemon=True
        ).start()
        words = ["/bin/sh", "-c", f"echo begins > {fifo}"]
        with Store.open(root) as store:
            store.agents.register("anna")
            for agent, idle_s in (("cold", 0), ("warm", 3600)):
                store.sessions.set_agent(agent, words, settings={"idleS": idle_s})
            with (
                _host(program, root, heard),
                bench.progress("messages that wake workers", count) as step,
            ):
                found = {
                    name: Samples(name)
                    for name in ("started", "began, started for it", "began, of a live one")
                }
                for number in range(-3, count):
                    for agent in ("cold", "warm"):
                        time.sleep(draw.uniform(0.1, 0.3))
                        store.messages.send("Hello", agent="anna", to=agent)
                        sent = time.monotonic_ns()
                        is_cold = agent == "cold"
                        if is_cold:
                            found["started"].seconds.append((_until("started", heard) - sent) / 1e9)
                        began = (begun.get(timeout=_PATIENCE_S) - sent) / 1e9
                        found[
                            "began, started for it" if is_cold else "began, of a live one"
                        ].seconds.append(began)
                        _until("ended" if is_cold else "completed", heard)
                    if number < 0:
                        for samples in found.values():
                            samples.seconds.clear()
                    else:
                        step()
    started = found["started"]
    columns = (
        "from the return of send to",
        "what",
        "messages",
        "median",
        "p95",
        "p99",
        "max",
        "started / it",
    )
    rows = sample_rows("worker", [started], started)
    rows += sample_rows(
        "command", [each for each in found.values() if each is not started], started
    )
    report.tables.append(Table("A message that wakes a worker", columns, rows))
    why = "the router, two durable writes and a fork"
    report.bars.append(
        Bar(
            "message to worker start, median",
            f"under {_START_S * 1e3:.0f} ms",
            micro(started.median),
            started.median < _START_S,
            why,
        )
    )
    report.data["latency"] = {name: samples.as_json() for name, samples in found.items()}


# -- What idle sessions cost -----------------------------------------------------------------------


def _idle(bench: Bench, report: Report, program: Path) -> None:
    what, bar = "a host with 1,000 idle sessions", f"under {_CPU:g} % CPU"
    if not Path("/proc/self/stat").exists():
        report.bars.append(
            Bar(what, bar, "", None, "the system does not tell of other processes in /proc")
        )
        return
    root, heard = bench.directory / "idle", Queue[tuple[str, int]]()
    Store.init(root)
    count = bench.rounds(1_000, 1_000, 50)
    with Store.open(root) as store, bench.progress("idle sessions", count) as step:
        store.sessions.set_agent("bob", ["/bin/true"])
        registry = store.sessions.registry
        for number in range(count):
            row = registry.ensure_session(
                ("bob", "webhook", f"place-{number}", ""), timestamps.now()
            )
            session = Session.create(store.engine, row.id, row.id)
            _through(_Ours(session), ["Hello"])
            step()
    with _host(program, root, heard) as pid:
        time.sleep(bench.rounds(10, 10, 1))  # What is still to be begun has begun.
        seconds, before = bench.rounds(_IDLE_S, 10, 1), cpu_s(pid)
        time.sleep(seconds)
        share = (cpu_s(pid) - before) / seconds * 100
    why = "the sweep of all sessions, and the store's own looks"
    report.bars.append(Bar(what, bar, f"{share:.2f} %", share < _CPU, why))
    report.data["idle"] = {"cpu_percent": share}


# -- Through a session -----------------------------------------------------------------------------


class _Ours:
    """The way of messages through a session, as the host and a worker go it. Each has its own view
    of the files.
    """

    def __init__(self, host: Session, worker: Session | None = None) -> None:
        self._host, self._worker = host, worker or host

    def take(self, texts: list[str]) -> None:
        """As the router takes what is there at once: in one write."""
        route = events.Route("webhook", "place")
        new = [
            events.inbound_message(id=new_message_id(), content=text, sender="anna", route=route)
            for text in texts
        ]
        self._host.write_inbound(partial(messages.receive, messages=new))

    def work(self) -> None:
        now = timestamps.now()
        claims = self._worker.write_outbound(
            lambda session_state: messages.claim(
                session_state, messages.pick(session_state, now, just_started=False), "worker"
            )
        )
        ids, batch = list(claims[0]["messages"]), claims[0]["batch"]
        answer = events.outbound_message(
            id=events.reply_id(self._worker.id, batch, 0),
            content="This is the answer.",
            in_reply_to=ids[-1],
        )
        self._worker.write_outbound(
            lambda session_state: [
                *messages.number_replies(session_state, [answer]),
                *messages.end_claims(session_state, ids, instance="worker", state="completed"),
            ]
        )

    def deliver(self, deliver: Callable[[str], str]) -> int:
        now = timestamps.now()
        due = messages.due_deliveries(self._host.read(), now)
        for message in due:
            id = deliver(message.event["content"])
            self._host.write_inbound(
                partial(messages.after_attempt, message=message, now=now, platform_id=id)
            )
        session_state = self._host.read()
        messages.next_due(session_state, now)  # As at each of its looks: it forgets what is done.
        if messages.is_bulky(session_state):
            self._host.compact(now)
        return len(due)


def _through(session: _Ours | SessionPair, texts: list[str]) -> None:
    session.take(texts)
    session.work()
    if session.deliver(lambda text: "delivered") != 1:
        raise RuntimeError("an answer was not delivered")


def _throughput(bench: Bench, report: Report) -> None:
    root, done = bench.directory / "through", bench.rounds(_DONE, _DONE // 20, 100)
    Store.init(root)
    pool, rows, data = texts(), [], {}
    with Store.open(root) as store:
        for before in (0, done):
            session = Session.create(store.engine, f"s_{before}", "a session")
            ours = _Ours(session, Session(store.engine, session.id))
            sizes = list[int]()
            with bench.progress(f"{before:,} messages", max(before // 100, 1)) as step:
                for number in range(before):
                    _through(ours, [pool[number % len(pool)]])
                    if number % 100 == 99:
                        sizes.append(
                            sum(
                                path.stat().st_size
                                for path in (root / "sessions" / session.id).iterdir()
                            )
                        )
                        step()
            pair = SessionPair(bench.directory / f"pair-{before}", before)
            for batch in (1, 10):
                given = pool[:batch]
                contestants = [
                    Contestant("capsule", partial(_through, ours, given)),
                    Contestant("the pair of SQLite databases", partial(_through, pair, given)),
                ]
                samples = interleave(contestants, bench.rounds(60 if before else 300, 20))
                us, peer = samples.values()
                label = f"{before:,} messages before, {batch} at a time"
                rows += sample_rows(label, samples.values(), us)
                data[label] = {name: one.as_json() for name, one in samples.items()}
                ratio = peer.median / us.median
                rates = f"{batch / us.median:,.0f} and {batch / peer.median:,.0f} messages a second"
                why = (
                    "both wait for the disk: for four writes of ours, and for six or more of "
                    "its transactions"
                )
                report.bars.append(
                    Bar(
                        f"messages through a session, {label}",
                        f"{_TIMES} times those of the pair of SQLite databases",
                        f"{times(ratio)} ({rates})",
                        ratio >= _TIMES,
                        why,
                    )
                )
            pair.close()
    columns = ("session", "who", "rounds", "median", "p95", "p99", "max", "capsule / it")
    note = (
        "In, claimed, answered and completed, delivered, noted: each step is on the disk "
        "before the next one. Ten that "
    )
    note += (
        "are there at once get one answer; they come in by one write, and into the databases "
        "one by one."
    )
    report.tables.append(Table("Messages through a session", columns, rows, note))
    report.bars.append(
        Bar(
            f"the files of a session through which {done:,} messages went",
            f"at most {_BYTES:,} bytes at any time",
            f"{max(sizes):,} bytes, {sizes[-1]:,} in the end",
            max(sizes) <= _BYTES,
            "windows of what was done, and the log of the last writes",
        )
    )
    report.data["through"] = data | {"bytes": sizes}
