"""Messages between agents: how soon one is heard, how many a second, and what an inbox costs.

What must stay true: a sender is a process of its own, and all read one clock, the system's
monotonic one. A time runs from before the call of `send` to the return of the `listen` that has the
message, with the sync to the disk.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import orjson

from benchmarks.environment import usual
from benchmarks.fixtures import STAMP, history
from benchmarks.harness import Contestant, Samples, interleave
from benchmarks.report import Bar, Bench, Report, Table, micro, sample_rows
from capsule import Store
from capsule.format.documents.creation import new_capsule
from capsule.format.json import codec

__all__ = ["run"]

_SPAWN = multiprocessing.get_context("spawn")
#: Messages a second of the broker that this replaces, which took 23 ms for one.
_BROKER = 266
_MEDIAN_S, _P99_S = 0.010, 0.050
_PAUSES_S = (0.03, 0.13)
_SENDERS = 16
_PATIENCE_S = 60.0
_TEXT_BYTES = 100
#: One conversation in so many has an unread message.
_UNREAD = 500


def run(bench: Bench) -> Report:
    """Measure messages between agents."""
    report = Report()
    _latency(bench, report)
    _throughput(bench, report)
    _inbox(bench, report)
    _commands(bench, report)
    return report


# -- From one process to another -------------------------------------------------------------------


def _latency(bench: Bench, report: Report) -> None:
    count = bench.rounds(300, 40)
    heard, (sent,) = _exchange(bench.directory / "latency", 1, count, _PAUSES_S)
    when = dict(heard)
    samples = Samples(
        "send to the return of listen", [(when[id] - begin) / 1e9 for id, begin, _ in sent]
    )
    alone = Samples("send alone", [(end - begin) / 1e9 for _, begin, end in sent])
    columns = ("from, to", "what", "messages", "median", "p95", "p99", "max", "send to listen / it")
    rows = sample_rows("two processes", [samples, alone], samples)
    report.tables.append(
        Table("From one agent to another that listens, in another process", columns, rows)
    )
    for quantile, name, bar_s in ((0.5, "median", _MEDIAN_S), (0.99, "p99", _P99_S)):
        seconds = samples.quantile(quantile)
        report.bars.append(
            Bar(
                f"send to the return of another process's listen, {name}",
                f"under {bar_s * 1000:.0f} ms",
                micro(seconds),
                seconds < bar_s,
                "the send with its sync, the notice, and bringing the index up to date",
            )
        )
    report.data["latency"] = {"heard": samples.as_json(), "sent": alone.as_json()}


def _throughput(bench: Bench, report: Report) -> None:
    count = bench.rounds(400, 60)
    heard, sent = _exchange(bench.directory / "throughput", _SENDERS, count, (0.0, 0.0))
    _, appended = _exchange(bench.directory / "appends", _SENDERS, count, (0.0, 0.0), appends=True)
    rates = {
        "sent, while the agent listens": _rate(sent, max(end for one in sent for *_, end in one)),
        "heard by the agent": _rate(sent, heard[-1][1]),
        "appended without messaging, while nobody listens": _rate(
            appended, max(end for one in appended for *_, end in one)
        ),
    }
    rows = [
        (what, f"{_SENDERS * count:,}", f"{rate:,.0f}", f"{rate / _BROKER:.1f}x")
        for what, rate in rates.items()
    ]
    columns = ("what", "messages", "a second", f"it / {_BROKER} a second")
    report.tables.append(
        Table(
            f"{_SENDERS} processes send to one agent, each in its own conversation", columns, rows
        )
    )
    report.bars.append(
        Bar(
            f"{_SENDERS} senders to one agent that listens",
            f"at least {10 * _BROKER:,} messages a second",
            f"{rates['heard by the agent']:,.0f} heard a second",
            rates["heard by the agent"] >= 10 * _BROKER,
            f"each message is on the disk when its send returns; {os.cpu_count()} processors "
            "share the work",
        )
    )
    report.data["throughput"] = {what: round(rate, 1) for what, rate in rates.items()}


#: Of each message that was sent: its id, and when the call began and ended, in nanoseconds.
Sendings = list[tuple[str, int, int]]


def _rate(sent: list[Sendings], until_ns: int) -> float:
    """Messages a second, from the beginning of the first call."""
    return (
        sum(map(len, sent)) / (until_ns - min(begin for one in sent for _, begin, _ in one)) * 1e9
    )


def _exchange(
    root: Path, senders: int, count: int, pauses_s: tuple[float, float], *, appends: bool = False
) -> tuple[list[tuple[str, int]], list[Sendings]]:
    """Let processes send to one agent, which listens here: what was heard and when, and what each
    one sent.

    With `appends` they append to their conversations instead, and nobody listens.
    """
    Store.init(root)
    names = [f"sender-{number}" for number in range(senders)]
    start, told = _SPAWN.Barrier(senders + 1), _SPAWN.Queue()
    with Store.open(root) as store:
        for name in ("bob", *names):
            store.agents.register(name)
        processes = [
            _SPAWN.Process(
                target=_send, args=(str(root), name, count, pauses_s, appends, start, told)
            )
            for name in names
        ]
        for process in processes:
            process.start()
        heard: list[tuple[str, int]] = []
        _listen(
            store, senders, heard
        )  # The first message of each: what the processes import is there now.
        heard.clear()
        start.wait()
        _listen(store, 0 if appends else senders * count, heard)
        sent = [told.get(timeout=_PATIENCE_S) for _ in processes]
        for process in processes:
            process.join()
    return heard, sent


def _listen(store: Store, count: int, heard: list[tuple[str, int]]) -> None:
    """Listen as bob until so many messages were heard: each one's id, and when the
    call returned.
    """
    while len(heard) < count:
        found = store.messages.listen(agent="bob", timeout_s=_PATIENCE_S, limit=1000)
        now = time.monotonic_ns()
        if found.timed_out:
            raise RuntimeError(f"only {len(heard)} of {count} messages were heard")
        heard += [(mail.id, now) for mail in found.messages]


def _send(
    root: str,
    name: str,
    count: int,
    pauses_s: tuple[float, float],
    appends: bool,
    start: Barrier,
    told: Any,
) -> None:
    """Run in a process of its own: send one message, and `count` more when all begin."""
    draw, done = random.Random(name), []
    with Store.open(root) as store:
        id = store.messages.send("I am here", agent=name, to="bob").conversation

        def write(text: str) -> str:
            if appends:
                return str(
                    store.append_entries(id, [{"role": "user", "content": text, "from": name}])[1][
                        0
                    ]["id"]
                )
            return store.messages.send(text, agent=name, to="bob").message

        start.wait()
        for number in range(count):
            if pauses_s[1]:
                time.sleep(draw.uniform(*pauses_s))
            begin = time.monotonic_ns()
            message = write(f"message {number} of {name}")
            done.append((message, begin, time.monotonic_ns()))
    told.put(done)


# -- The inbox -------------------------------------------------------------------------------------


def _inbox(bench: Bench, report: Report) -> None:
    conversations = bench.rounds(10_000, 500)
    rows, data = [], {}
    for messages, bar_s in ((2, 0.020), (100, 0.030)):
        size = f"{conversations:,} conversations, {conversations * messages:,} messages"
        root = bench.directory / f"inbox-{messages}"
        with bench.progress(f"making {size}", conversations // 100) as step:
            _make(root, conversations, messages, step)
        with Store.open(root) as store:
            look = partial(store.messages.inbox, agent="bob")
            come = partial(store.messages.send, "hello", agent="agent-1", to="bob")
            if (unread := look().unread) != len(range(0, conversations, _UNREAD)):
                raise RuntimeError(f"{unread} messages are unread")
            samples = interleave(
                [
                    Contestant("nothing came", look),
                    Contestant("a message came", look, prepare=come),
                ],
                bench.rounds(100, 10),
            )
        warm = samples["nothing came"]
        rows += sample_rows(size, samples.values(), warm)
        data[size] = {name: one.as_json() for name, one in samples.items()}
        reached = warm.median < bar_s
        report.bars.append(
            Bar(
                f"inbox, {size}",
                f"under {bar_s * 1000:.0f} ms warm",
                micro(warm.median),
                reached,
                "what is unread",
            )
        )
    columns = (
        "store",
        "since the last look",
        "rounds",
        "median",
        "p95",
        "p99",
        "max",
        "nothing came / it",
    )
    note = (
        f"One agent is in all conversations, and one in {_UNREAD} has an unread message. The "
        "store is open."
    )
    report.tables.append(Table("The inbox", columns, rows, note))
    report.data["inbox"] = data


def _make(root: Path, conversations: int, messages: int, step: Callable[[], None]) -> None:
    """Make a store where bob is in every conversation, and has read nearly all."""
    Store.init(root)
    pieces = [
        range(first, min(first + 100, conversations)) for first in range(0, conversations, 100)
    ]
    cursors: dict[str, Any] = {}
    with ProcessPoolExecutor(mp_context=_SPAWN) as pool:
        for of_piece in pool.map(
            _write, repeat(str(root / "conversations")), pieces, repeat(messages)
        ):
            cursors |= of_piece
            step()
    with Store.open(root) as store:
        for name in ("bob", "agent-1"):
            store.agents.register(name)
    path = root / "agents" / "bob.json"
    path.write_bytes(
        orjson.dumps(
            orjson.loads(path.read_bytes()) | {"cursors": cursors}, option=orjson.OPT_INDENT_2
        )
    )


def _write(directory: str, numbers: range, messages: int) -> dict[str, Any]:
    """Write groups of bob and another agent. Returns: bob's cursors."""
    cursors = {}
    for number in numbers:
        id, other = f"group_1736676000000_{number:09d}", f"agent-{number % 50}"
        entries = [{**entry, "from": other} for entry in history(messages, _TEXT_BYTES)]
        about = {"participants": [{"id": name, "joinedAt": STAMP} for name in ("bob", other)]}
        document = new_capsule(
            id,
            f"Group {number}",
            STAMP,
            type="group",
            title_set_by="user",
            messages=entries,
            metadata=about,
        )
        Path(directory, f"{id}.json").write_bytes(codec.encode(document))
        at = messages - (2 if number % _UNREAD == 0 else 1)
        cursors[id] = {"at": at, "trail": {str(at): entries[at]["id"]}}
    return cursors


# -- The commands ----------------------------------------------------------------------------------


def _commands(bench: Bench, report: Report) -> None:
    program = Path(sys.executable).with_name("capsule")
    if not program.exists():
        report.skipped["the commands"] = (
            f"there is no {program.name} beside {Path(sys.executable).name}"
        )
        return
    root = bench.directory / "commands"
    Store.init(root)
    with Store.open(root) as store:
        id = store.create(title="A group", type="group").id
        for name in ("anna", "bob"):
            store.agents.register(name)
        store.messages.send("hello", agent="anna", to="bob")

    def process(*words: str) -> Contestant:
        def once() -> None:
            command = [str(program), *words, "--store", str(root)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=root, env=usual())

        return Contestant(f"capsule {words[0]}", once)

    contestants = [
        process("append", id, "hello"),
        process("send", "--as", "anna", "--to", "bob", "hello"),
        process("list"),
        process("inbox", "--as", "bob"),
        process("listen", "--as", "bob", "--ack", "--timeout", "0s"),
    ]
    samples = interleave(contestants, bench.rounds(60, 8))
    columns = ("", "process", "rounds", "median", "p95", "p99", "max", "append / it")
    rows = sample_rows("from start to end", samples.values(), samples["capsule append"])
    report.tables.append(
        Table("The commands of messaging beside those of every day", columns, rows)
    )
    report.data["commands"] = {name: one.as_json() for name, one in samples.items()}
