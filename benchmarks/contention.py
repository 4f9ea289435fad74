"""Several processes that append at once: how many messages a second, and how many of the
acknowledged are there.

What must stay true: a message counts as acknowledged when the peer's call returned without an
error, and as kept when its text is found afterwards by a process that had no part in it; texts are
unique.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks.fixtures import MESSAGE_BYTES, texts
from benchmarks.peers import PEERS, basic_memory
from benchmarks.report import Bar, Bench, Report, Table, micro, times

__all__ = ["run"]

#: By the number of processes and of conversations: how much of sqlite3's throughput ours is to be.
_LEAST = {(2, 1): 1.15, (4, 1): 1.5, (8, 1): 1.5, (4, 50): 2.5, (8, 50): 2.5}
_BEFORE = 100
_MANY = 50
_SPAWN = multiprocessing.get_context("spawn")
#: Rewriting a file, or twenty statements a message, takes longer than an append does.
_SLOW = frozenset({"rewriting", "tinydb", "langchain", "llm"})


@dataclass(slots=True)
class Run:
    """What came of one run, or of several taken together.

    Attributes:
        seconds: From the first append's beginning to the last one's end.
        slowest_s: The longest that one append took.
        times_s: How long each took.
    """

    attempted: int = 0
    acknowledged: int = 0
    kept: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    error: str = ""
    times_s: list[float] = field(default_factory=list)

    @property
    def slowness(self) -> float:
        """The 99th percentile of the times, as a multiple of their median."""
        ordered = sorted(self.times_s)
        return ordered[len(ordered) * 99 // 100] / ordered[len(ordered) // 2] if ordered else 0.0

    @property
    def rate(self) -> float:
        """Acknowledged messages a second."""
        return self.acknowledged / self.seconds if self.seconds else 0.0

    def add(self, other: Run) -> None:
        self.attempted += other.attempted
        self.acknowledged += other.acknowledged
        self.kept += other.kept
        self.seconds += other.seconds
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        self.error = self.error or other.error
        self.times_s += other.times_s

    def as_json(self) -> dict[str, Any]:
        return {
            "attempted": self.attempted,
            "acknowledged": self.acknowledged,
            "kept": self.kept,
            "per_second": round(self.rate, 1),
            "slowest_ms": round(self.slowest_s * 1e3, 1),
            "first_error": self.error,
        }


def write(
    name: str,
    directory: str,
    writer: int,
    conversations: list[str],
    count: int,
    start: Barrier,
    told: Any,
) -> None:
    """One writer, in a process of its own: appends, and tells what was acknowledged."""
    peer = PEERS[name].open(Path(directory))
    draw, pool = random.Random(writer), texts()
    acknowledged: list[str] = []
    error, times_s = "", list[float]()
    clock = time.perf_counter
    start.wait()
    begin = clock()
    for number in range(count):
        text = f"writer {writer} message {number} {pool[number % len(pool)]}"[:MESSAGE_BYTES]
        before = clock()
        try:
            peer.append(draw.choice(conversations), text)
        except Exception as failure:  # Whatever a peer raises: the message is not acknowledged.
            error = error or f"{type(failure).__name__}: {failure}"[:200]
        else:
            acknowledged.append(text)
        times_s.append(clock() - before)
    end = clock()
    told.put((begin, end, times_s, acknowledged, error))
    with suppress(Exception):  # It wrote what it wrote; what is kept is counted.
        peer.close()


def contend(name: str, directory: Path, processes: int, conversations: int, count: int) -> Run:
    """Let processes append to conversations of a fresh store, and count."""
    directory.mkdir(parents=True)
    ids = [f"c{number:02}" for number in range(conversations)]
    peer = PEERS[name].open(directory)
    for id in ids:
        peer.fill(id, _BEFORE if conversations == 1 else 2)
    peer.close()
    told, start = _SPAWN.Queue(), _SPAWN.Barrier(processes)
    writers = [
        _SPAWN.Process(target=write, args=(name, str(directory), writer, ids, count, start, told))
        for writer in range(processes)
    ]
    for writer in writers:
        writer.start()
    results = [told.get(timeout=600) for _ in writers]
    for writer in writers:
        writer.join()
    acknowledged = {text for *_, told_of, _ in results for text in told_of}
    found: set[str] = set()
    error = next((error for *_, error in results if error), "")
    for id in ids:
        try:
            peer = PEERS[name].open(directory)
            found.update(peer.texts(id))
            peer.close()
        except (
            Exception
        ) as failure:  # A file that its own library can't read any more keeps nothing.
            error = error or f"unreadable afterwards: {type(failure).__name__}: {failure}"[:200]
    return Run(
        attempted=processes * count,
        acknowledged=len(acknowledged),
        kept=len(acknowledged & found),
        seconds=max(end for _, end, *_ in results) - min(begin for begin, *_ in results),
        slowest_s=max(max(times_s) for _, _, times_s, _, _ in results),
        times_s=[time_s for _, _, times_s, _, _ in results for time_s in times_s],
        error=error,
    )


def run(bench: Bench) -> Report:
    """Measure writers that get in each other's way."""
    report = Report()
    peers = {name: peer for name, peer in PEERS.items() if not peer.missing()}
    report.skipped.update({name: peer.missing() for name, peer in PEERS.items() if peer.missing()})
    rounds = bench.rounds(5, 2, 1)
    cases = (
        ((4, 1), (4, _MANY))
        if bench.quick
        else ((1, 1), (2, 1), (4, 1), (8, 1), (4, _MANY), (8, _MANY))
    )
    found: dict[tuple[int, int], dict[str, Run]] = {}
    with bench.progress("several writers", len(cases) * rounds * len(peers)) as step:
        for processes, conversations in cases:
            of_case = found[processes, conversations] = {name: Run() for name in peers}
            for number in range(rounds):
                for name in peers:
                    if name in _SLOW and number:
                        step()
                        continue
                    count = (
                        bench.rounds(300, 100, 10) if name not in _SLOW else bench.rounds(40, 20, 5)
                    )
                    directory = (
                        bench.directory
                        / f"{name.replace(' ', '-')}-{processes}-{conversations}-{number}"
                    )
                    of_case[name].add(contend(name, directory, processes, conversations, count))
                    step()
    report.tables.append(_table(found))
    report.bars += _bars(found)
    report.data["runs"] = [
        {
            "processes": p,
            "conversations": c,
            "who": {name: one.as_json() for name, one in of_case.items()},
        }
        for (p, c), of_case in found.items()
    ]
    _against_basic_memory(bench, report)
    return report


def _table(found: dict[tuple[int, int], dict[str, Run]]) -> Table:
    rows = []
    for (processes, conversations), of_case in found.items():
        where = (
            "one conversation" if conversations == 1 else f"{conversations} conversations at random"
        )
        label = f"{processes} processes, {where}" if processes > 1 else f"1 process, {where}"
        ours = of_case["capsule"].rate
        rows += [
            (
                label,
                name,
                f"{one.rate:,.0f}",
                times(ours / one.rate) if one.rate else "",
                micro(one.slowest_s),
                f"{one.attempted:,}",
                f"{one.acknowledged:,}",
                f"{one.kept:,}",
                f"{one.acknowledged - one.kept:,}",
            )
            for name, one in of_case.items()
        ]
    return Table(
        "Several processes append at once",
        (
            "writers",
            "who",
            "a second",
            "capsule / it",
            "slowest",
            "tried",
            "acknowledged",
            "kept",
            "lost",
        ),
        rows,
        "Acknowledged messages a second; lost are those that were acknowledged and are not there. "
        "Not acknowledged: "
        "the call raised an error. The runs of the contestants alternate.",
    )


def _bars(found: dict[tuple[int, int], dict[str, Run]]) -> list[Bar]:
    bars = []
    for (processes, conversations), least in _LEAST.items():
        if (of_case := found.get((processes, conversations))) is None:
            continue
        ours, full = of_case["capsule"], of_case["sqlite FULL"]
        where = "one conversation" if conversations == 1 else f"{conversations} conversations"
        ratio = ours.rate / full.rate
        bars.append(
            Bar(
                f"{processes} processes on {where}: throughput",
                f"at least {least}x of sqlite3's (WAL, FULL, an FTS5 trigger)",
                f"{times(ratio)} ({ours.rate:,.0f} and {full.rate:,.0f} a second)",
                ratio >= least,
                "what Python does takes its time on as many cores as there are",
            )
        )
        if conversations == 1:
            bars.append(
                Bar(
                    f"{processes} processes on {where}: the slow appends",
                    "p99 at most 20x the median",
                    f"{times(ours.slowness)} (sqlite3: {times(full.slowness)})",
                    ours.slowness <= 20,
                    "each writer has to notice that the mutex is free",
                )
            )
        bars.append(
            Bar(
                f"{processes} processes on {where}: kept",
                "all",
                f"{ours.kept:,} of {ours.acknowledged:,} acknowledged, of {ours.attempted:,} tried",
                ours.kept == ours.acknowledged == ours.attempted,
                ours.error or "messages were lost",
            )
        )
    return bars


def _against_basic_memory(bench: Bench, report: Report) -> None:
    if not bench.basic_memory:
        report.skipped["basic-memory"] = (
            "not asked for: --basic-memory installs it into a throwaway environment"
        )
        return
    with bench.progress("basic-memory, through its MCP server", 1) as step:
        found = basic_memory.measure(
            bench.directory, bench.basic_memory, appends=bench.rounds(15, 8)
        )
        step()
    if isinstance(found, str):
        report.skipped["basic-memory"] = found
        return
    report.tables.append(
        Table(
            f"basic-memory {found['version']}, through its MCP server",
            ("writers", "median", "slowest", "tried", "acknowledged", "kept", "lost"),
            [
                (
                    f"{case['processes']} process{'es' if case['processes'] > 1 else ''}, one note",
                    micro(case["median_s"]),
                    micro(case["slowest_s"]),
                    f"{case['attempted']:,}",
                    f"{case['acknowledged']:,}",
                    f"{case['kept']:,}",
                    f"{case['acknowledged'] - case['kept']:,}",
                )
                for case in found["cases"]
            ],
            "edit_note with operation append, one server a writer, all on one project; semantic "
            "search is off.",
        )
    )
    report.data["basic_memory"] = found
