"""How soon one process hears of what another one appended.

What must stay true: the writer is a process of its own, and both read one clock, the system's
monotonic one. The time runs from before the writer's append is called, so that the append with its
sync is part of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import corpus
from benchmarks.fixtures import texts
from benchmarks.harness import Samples
from benchmarks.report import Bar, Bench, Report, Table, micro, times
from capsule import Store
from capsule.disk.directory_tracker import DirectoryTracker

__all__ = ["run"]

_WHAT = "append in one process to the watch event in another"
_CAPSULE, _ALONE, _AWATCH = (
    "Store.watch",
    "Store.watch, notices from watchfiles alone",
    "watchfiles.awatch as it comes",
)
#: By listener: the longest median, in seconds, and the share of a processor that waiting may take.
_BARS = {_CAPSULE: (0.01, 0.003), _ALONE: (0.03, 0.005)}
_IDLE_S = 30
_QUICK_PAUSES, _LONG_PAUSES = (0.03, 0.13), (2.5, 3.0)

#: What was heard, the id of a message or the path of a file, and when, in nanoseconds.
Heard = AsyncIterator[tuple[str, int]]
Hear = Callable[[Path], Heard]
#: For each case and listener: from the beginning of an append, and from its end.
Found = dict[str, dict[str, tuple[Samples, Samples]]]


def run(bench: Bench) -> Report:
    """Measure how soon changes are heard of."""
    report = Report()
    made = corpus.ensure(bench)
    with Store.open(made.root) as store:
        ids = [head.id for head in store.heads()][:8]
        for id in ids:  # Settled, so that an append is an append.
            store.append(id, content="settled")
    busy, calm = f"appends {_pause(_QUICK_PAUSES)} apart", f"appends {_pause(_LONG_PAUSES)} apart"
    # watchfiles by itself listens as closely after a pause as before.
    plan: list[tuple[str, str, Hear, tuple[float, float], int]] = [
        (busy, _CAPSULE, _watch, _QUICK_PAUSES, bench.rounds(60, 30, 3)),
        (busy, _ALONE, _watch_alone, _QUICK_PAUSES, bench.rounds(60, 30, 3)),
        (busy, _AWATCH, _awatch, _QUICK_PAUSES, bench.rounds(60, 30, 3)),
        (calm, _CAPSULE, _watch, _LONG_PAUSES, bench.rounds(4, 3, 1)),
    ]
    found: Found = {}
    blocks = bench.rounds(4, 1)
    with bench.progress("watching", blocks * len(plan)) as step:
        for block in range(blocks):
            for case, name, hear, pauses, count in plan:
                took = asyncio.run(_block(made.root, hear, ids, pauses, count, block))
                samples = found.setdefault(case, {}).setdefault(
                    name, (Samples(name), Samples(name))
                )
                for one, seconds in zip(samples, zip(*took, strict=True), strict=True):
                    one.seconds += seconds
                step()
    _tell(report, found, made)
    _idle(bench, report, made, _CAPSULE)
    with _without_trackers():
        _idle(bench, report, made, _ALONE)
    return report


@contextmanager
def _without_trackers() -> Iterator[None]:
    """Notices come from watchfiles alone, as on other systems than Linux."""
    sooner = DirectoryTracker.open_fast_tracker
    DirectoryTracker.open_fast_tracker = staticmethod(lambda directory, suffix: None)
    try:
        yield
    finally:
        DirectoryTracker.open_fast_tracker = staticmethod(sooner)


def _idle(bench: Bench, report: Report, made: corpus.Corpus, name: str) -> None:
    """What waiting costs a process while nothing happens, the looks without a notice among it."""
    with Store.open(made.root) as store:
        cursor = store.wait_for_changes(timeout_s=0).cursor
        begin, wall = time.process_time(), time.monotonic()
        found = store.wait_for_changes(cursor, timeout_s=bench.rounds(_IDLE_S, 10, 1))
        share = (time.process_time() - begin) / (time.monotonic() - wall)
    assert not found.changes, "somebody wrote meanwhile"
    report.bars.append(
        Bar(
            f"waiting while nothing happens, {name}",
            f"under {_BARS[name][1]:.1%} of a processor",
            f"{share:.3%}",
            share < _BARS[name][1],
            "a look without a notice now and then, for what no notice tells of",
        )
    )
    report.data.setdefault("idle", {})[name] = {"share": share}


def _pause(between: tuple[float, float]) -> str:
    return " to ".join(f"{seconds:g}" for seconds in between) + " s"


async def _watch(root: Path) -> Heard:
    with Store.open(root) as store:
        async with store.watch() as changes:
            yield "", 0  # It listens.
            async for change in changes:
                now = time.monotonic_ns()
                for message in change.messages:
                    yield message, now


async def _watch_alone(root: Path) -> Heard:
    with _without_trackers():
        async for heard in _watch(root):
            yield heard


async def _awatch(root: Path) -> Heard:
    from watchfiles import awatch

    stop = asyncio.Event()
    try:
        # With yield_on_timeout it tells that it has begun to listen.
        async for changes in awatch(
            root / "conversations", stop_event=stop, yield_on_timeout=True, rust_timeout=200
        ):
            now = time.monotonic_ns()
            if not changes:
                yield "", 0
            for _, path in changes:
                yield Path(path).stem, now
    finally:
        stop.set()


async def _block(
    root: Path, hear: Hear, ids: list[str], pauses: tuple[float, float], count: int, seed: int
) -> list[tuple[float, float]]:
    """The seconds from each append's beginning, and from its end, until it was heard of."""
    heard: list[tuple[str, int]] = []
    listening, woken = asyncio.Event(), asyncio.Event()

    async def listen() -> None:
        try:
            async for what, when in hear(root):
                if what:
                    heard.append((what, when))
                    woken.set()
                listening.set()
        finally:
            listening.set()

    task = asyncio.create_task(listen())
    await listening.wait()
    if task.done():
        task.result()
    words = [
        sys.executable,
        "-m",
        "benchmarks.watch",
        str(root),
        json.dumps([ids, pauses, count, seed]),
    ]
    where, env = (
        Path(__file__).parent.parent,
        os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    writer = await asyncio.create_subprocess_exec(
        *words, stdout=subprocess.PIPE, cwd=where, env=env
    )
    out, _ = await writer.communicate()
    if writer.returncode:
        raise RuntimeError("the writer failed")
    written: list[tuple[str, str, int, int]] = json.loads(out)
    # The last one may still be on its way.
    async with asyncio.timeout(30):
        while (took := _matched(written, heard)) is None:
            woken.clear()
            await woken.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return took


def _matched(
    written: list[tuple[str, str, int, int]], heard: list[tuple[str, int]]
) -> list[tuple[float, float]] | None:
    """When each append was heard of; None while one wasn't. A message is known by its id, else by
    its file and time.
    """
    took = []
    for id, message, begin, end in written:
        at = next(
            (when for what, when in heard if what == message or (what == id and when >= begin)),
            None,
        )
        if at is None:
            return None
        took.append(((at - begin) / 1e9, (at - end) / 1e9))
    return took


def _tell(report: Report, found: Found, made: corpus.Corpus) -> None:
    rows = []
    for case, by in found.items():
        ours = by[_CAPSULE][0].median
        rows += [
            (
                case,
                name,
                str(len(begun.seconds)),
                *(micro(begun.quantile(q)) for q in (0.5, 0.95, 0.99, 1.0)),
                micro(returned.median),
                times(ours / begun.median),
            )
            for name, (begun, returned) in by.items()
        ]
    columns = (
        "writer",
        "listener",
        "appends",
        "median",
        "p95",
        "p99",
        "max",
        "median from the append's return",
        "capsule / it",
    )
    report.tables.append(
        Table(
            "From an append to the event in another process, in a store of "
            f"{made.conversations:,} conversations",
            columns,
            rows,
            "In blocks that take turns. watchfiles tells the file and no more; Store.watch tells "
            "which message.",
        )
    )
    for name, (bar_s, _) in _BARS.items():
        samples = {case: by[name][0] for case, by in found.items() if name in by}
        case, us = max(samples.items(), key=lambda item: item[1].median)
        report.bars.append(
            Bar(
                f"{_WHAT}, {name}",
                f"median under {bar_s * 1000:g} ms while someone waits",
                f"{micro(us.median)} ({case}), the append included",
                us.median < bar_s,
                "the append, two milliseconds for what comes with it, and bringing the index up "
                "to date",
            )
        )
    report.data["watch"] = {
        case: {
            name: {"from_call": begun.as_json(), "from_return": returned.as_json()}
            for name, (begun, returned) in by.items()
        }
        for case, by in found.items()
    }


def _write(root: str, asked: Any) -> list[tuple[str, str, int, int]]:
    """Run in a process of its own: append now and then; for each conversation, message, and when it
    began and ended.
    """
    ids, (shortest, longest), count, seed = asked
    draw, text, done = random.Random(seed), texts()[0], []
    with Store.open(root) as store:
        store.append(ids[-1], content=text)  # The first one of a process imports what it needs.
        for number in range(count):
            time.sleep(draw.uniform(shortest, longest))
            id = ids[number % len(ids)]
            begin = time.monotonic_ns()
            message = store.append(id, content=text)
            done.append((id, str(message.id), begin, time.monotonic_ns()))
    return done


if __name__ == "__main__":
    print(json.dumps(_write(sys.argv[1], json.loads(sys.argv[2]))))
