"""The index: how fast it is made, and what it costs to have it up to date.

What must stay true: nothing of what is measured is in the index before, but what is said to be; the
files are in the system's cache for all alike.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import corpus
from benchmarks.environment import usual
from benchmarks.fixtures import texts
from benchmarks.harness import Contestant, Samples, interleave
from benchmarks.peers.fts import BareText, OurText
from benchmarks.report import Bar, Bench, Report, Table, micro, sample_rows, times
from capsule import Store

__all__ = ["run"]

_COLUMNS = ("what", "how", "rounds", "median", "p95", "p99", "max", "capsule / it")
_OPEN_BAR_S, _COLD_BAR = 0.005, 3.0
_FIRST, _BARE = "Store.reindex", "bare FTS5, a table of its own"
_ALIKE, _ALIKE_BAR = "bare FTS5 with our tokenizer, our columns and optimize", 0.85
_OPEN, _NOTHING = "changes(), a store that is open", "the same, when nothing changed"
_OPENED, _SCAN = "open and changes(), in this process", "scandir + stat"
_COLD, _COLD_SCAN = "open and changes(), in a new process", "scandir + stat, in a new process"

#: In a process of its own: the seconds it takes. What it needs it has imported by then, for a store
#: of one conversation, which was appended to as well.
_UP_TO_DATE = """
import sys, time
from capsule import Store
for root in sys.argv[2], sys.argv[1]:
    begin = time.perf_counter()
    with Store.open(root) as store:
        store.changes()
        taken = time.perf_counter() - begin
print(taken)
"""
_LOOK = """
import os, sys, time
begin = time.perf_counter()
with os.scandir(sys.argv[1] + "/conversations") as entries:
    for entry in entries:
        entry.stat()
print(time.perf_counter() - begin)
"""


def run(bench: Bench) -> Report:
    """Measure the index."""
    report = Report()
    made = corpus.ensure(bench)
    _first(bench, report, made)
    _up_to_date(bench, report, made)
    return report


def _first(bench: Bench, report: Report, made: corpus.Corpus) -> None:
    bare, alike = bench.shared / corpus.BARE, bench.shared / "alike.db"

    def reindex() -> None:
        with Store.open(made.root) as store:
            store.reindex()

    def fill(text: type[BareText] | type[OurText], path: Path) -> None:
        database = text(path)
        database.fill(corpus.rows(made))
        database.close()

    for path in (made.root / "conversations").iterdir():
        path.read_bytes()
    rounds = bench.rounds(2, 3)
    with bench.progress(f"indexing {made.messages:,} messages", rounds) as step:
        samples = interleave(
            [
                Contestant(_FIRST, reindex),
                Contestant(
                    _BARE,
                    lambda: fill(BareText, bare),
                    prepare=lambda: bare.unlink(missing_ok=True),
                ),
                Contestant(
                    _ALIKE,
                    lambda: fill(OurText, alike),
                    prepare=lambda: alike.unlink(missing_ok=True),
                ),
            ],
            rounds,
            warm_up=0,
            tick=step,
        )
    us = samples[_FIRST]
    alike.unlink()
    speed, theirs, with_ours = (
        made.bytes / 1e6 / samples[name].median for name in (_FIRST, _BARE, _ALIKE)
    )
    rows = [
        (*row, f"{made.bytes / 1e6 / one.median:,.1f} MB/s") for one, row in _with_rows(samples, us)
    ]
    report.tables.append(
        Table(
            f"The first indexing of {made.messages:,} messages, {made.bytes / 1e6:,.0f} MB of "
            "capsules",
            (*_COLUMNS, "capsules"),
            rows,
            "Bare FTS5: the same files read and parsed, one full-text table filled as it comes, "
            "and not synced. With "
            "our tokenizer and columns, the texts lie beside it, as FTS5 keeps none.",
        )
    )
    report.bars += [
        Bar(
            "first indexing",
            "not slower than bare FTS5 on the same files",
            f"{speed:,.1f} MB/s of capsule files (bare FTS5: {theirs:,.1f})",
            speed >= theirs,
            "FTS5 splits the texts into words and writes them; the rest is reading, checking and "
            "parsing the files",
        ),
        Bar(
            "first indexing, like with like",
            f"at least {_ALIKE_BAR:g}x of the speed of {_ALIKE}",
            f"{times(speed / with_ours)} ({with_ours:,.1f} MB/s)",
            speed >= _ALIKE_BAR * with_ours,
            "files are checked, and there are tables for lists, filters and branches",
        ),
    ]
    sizes = {
        path.name: path.stat().st_size for path in (made.root / ".capsule").glob("index.sqlite3")
    }
    report.data["first"] = {
        "messages": made.messages,
        "bytes": made.bytes,
        "index_bytes": sizes,
        "bare_bytes": bare.stat().st_size,
        "who": {name: one.as_json() for name, one in samples.items()},
    }


def _with_rows(samples: dict[str, Samples], us: Samples) -> list[tuple[Samples, tuple[str, ...]]]:
    return list(
        zip(samples.values(), sample_rows("first indexing", samples.values(), us), strict=True)
    )


def _look(directory: Path) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            entry.stat()


def _alone(source: str, roots: tuple[Path, ...], into: Samples) -> None:
    """A sample that a process of its own takes."""
    env = usual() | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, roots)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )
    into.seconds.append(json.loads(done.stdout))


def _up_to_date(bench: Bench, report: Report, made: corpus.Corpus) -> None:
    pool = itertools.cycle(texts())
    rounds = bench.rounds(100, 20)
    directory = made.root / "conversations"
    cold, cold_scan = Samples(_COLD), Samples(_COLD_SCAN)
    Store.init(bench.directory)
    with (
        Store.open(made.root) as writer,
        Store.open(made.root) as store,
        Store.open(bench.directory) as small,
    ):
        other = small.create(title="Small").id
        small.changes()
        ids = itertools.cycle([head.id for head in store.heads()][:20])
        cursor = store.changes().cursor

        def append() -> None:
            writer.append(next(ids), content=next(pool))

        def follow() -> None:
            nonlocal cursor
            found = store.changes(cursor)
            assert len(found.changes) == 1, found.changes
            cursor = found.cursor

        def catch_up() -> None:
            nonlocal cursor
            append()
            cursor = store.changes(cursor).cursor

        def nothing() -> None:
            assert not store.changes(cursor).changes

        def opened() -> None:
            with Store.open(made.root) as another:
                another.changes()

        def settle() -> None:
            nonlocal cursor
            cursor = store.changes(cursor).cursor

        def append_to_one_up_to_date() -> None:
            settle()
            append()

        for _ in range(20):
            catch_up()
        with bench.progress("bringing the index up to date", rounds) as step:
            samples = interleave(
                [
                    Contestant(_OPEN, follow, prepare=append_to_one_up_to_date),
                    Contestant(_NOTHING, nothing, prepare=settle),
                    Contestant(_OPENED, opened, prepare=append_to_one_up_to_date),
                    Contestant(_SCAN, lambda: _look(directory)),
                ],
                rounds,
                tick=step,
            )
        processes = bench.rounds(30, 6)
        with bench.progress("the same in new processes", processes) as step:
            for _ in range(processes):
                append_to_one_up_to_date()
                small.append(other, content=next(pool))
                _alone(_UP_TO_DATE, (made.root, bench.directory), cold)
                _alone(_LOOK, (made.root,), cold_scan)
                step()
    samples |= {one.name: one for one in (cold, cold_scan)}
    label = f"1 append, {made.conversations:,} capsules"
    report.tables.append(
        Table(
            "Bringing the index up to date",
            _COLUMNS,
            sample_rows(label, samples.values(), samples[_OPEN]),
            "After an append by another instance. In a new process: without its start and what it "
            "imports.",
        )
    )
    us = samples[_OPEN]
    ratio, within = cold.median / cold_scan.median, samples[_OPENED].median / samples[_SCAN].median
    report.bars += [
        Bar(
            f"index up to date after {label}: an open store",
            f"under {_OPEN_BAR_S * 1e3:g} ms",
            micro(us.median),
            us.median < _OPEN_BAR_S,
            "one read of what was appended, and one transaction",
        ),
        Bar(
            f"index up to date after {label}: a new process",
            f"at most {_COLD_BAR:g}x of scandir + stat over them",
            f"{times(ratio)} ({micro(cold.median)} and {micro(cold_scan.median)}); "
            f"{times(within)} in a process that "
            "did it before",
            ratio <= _COLD_BAR,
            "each file's signature is compared with the index's, in Python; and the database is "
            "opened, which weighs "
            "more the fewer files there are",
        ),
    ]
    report.data["up_to_date"] = {"capsules": made.conversations} | {
        name: s.as_json() for name, s in samples.items()
    }
