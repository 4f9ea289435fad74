"""What reading costs: a whole conversation, its last messages, the heads of all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import orjson

from benchmarks.fixtures import write_capsule
from benchmarks.harness import Contestant, interleave
from benchmarks.peers.sqlite import SqliteMessages
from benchmarks.report import Bar, Bench, Report, Table, sample_rows, times
from capsule import Capsule, Store

__all__ = ["run"]

_COLUMNS = ("what", "how", "rounds", "median", "p95", "p99", "max", "capsule / it")
_MESSAGES_50_MB = 90_000
_BLOCK = 64 * 1024


def run(bench: Bench) -> Report:
    """Measure load, tail and heads."""
    report = Report()
    _load(bench, report)
    _tail(bench, report)
    _heads(bench, report)
    return report


def _load(bench: Bench, report: Report) -> None:
    root = bench.directory / "load"
    Store.init(root)
    path = write_capsule(root, "c", messages=1000, size=880)
    data = path.read_bytes()
    database = SqliteMessages(root / "peer.db")
    database.fill("c", 1000)
    rounds = bench.rounds(300, 60)
    with Store.open(root) as store, bench.progress("load 1 MB", rounds) as step:
        store.load("c")
        samples = interleave(
            [
                Contestant("Store.load", lambda: store.load("c")),
                Contestant("orjson.loads", lambda: orjson.loads(data)),
                Contestant("json.loads", lambda: json.loads(data)),
                Contestant("model_validate_json", lambda: Capsule.model_validate_json(data)),
                Contestant(
                    "sqlite3, SELECT of as many rows of 400 bytes", lambda: database.load("c")
                ),
            ],
            rounds,
            tick=step,
        )
    database.close()
    us = samples["Store.load"]
    ratio = us.median / samples["orjson.loads"].median
    label = f"load {len(data) / 1e6:.2f} MB, 1,000 messages"
    report.tables.append(
        Table("Loading a whole conversation", _COLUMNS, sample_rows(label, samples.values(), us))
    )
    report.bars.append(
        Bar(
            "load of 1 MB with 1,000 messages",
            "at most 3.5x of orjson.loads",
            times(ratio),
            ratio <= 3.5,
            "the part that reads the file and validates it into models",
        )
    )
    report.data["load"] = {name: one.as_json() for name, one in samples.items()}


def _tail(bench: Bench, report: Report) -> None:
    root = bench.directory / "tail"
    Store.init(root)
    messages = _MESSAGES_50_MB // (5 if bench.quick else 1)
    path = write_capsule(root, "c", messages=messages)
    rounds = bench.rounds(200, 30)
    with Store.open(root) as store, bench.progress("tail of 50 MB", rounds) as step:
        store.load("c")
        samples = interleave(
            [
                Contestant("Store.tail(20)", lambda: store.tail("c", 20)),
                Contestant("Store.head", lambda: store.head("c")),
                Contestant("Store.load", lambda: store.load("c"), every=rounds // 10),
            ],
            rounds,
            warm_up=1,
            tick=step,
        )
    us, whole = samples["Store.tail(20)"], samples["Store.load"]
    ratio = us.median / whole.median
    label = f"{path.stat().st_size / 1e6:.0f} MB"
    report.tables.append(
        Table(
            "The last messages of a large conversation",
            _COLUMNS,
            sample_rows(label, samples.values(), us),
        )
    )
    report.bars.append(
        Bar(
            f"tail(20) of a {label} capsule",
            "under 1/100 of load",
            f"1/{1 / ratio:,.0f} of load",
            ratio < 0.01,
            "what a tail costs at any size: an open, the note, and one read",
        )
    )
    report.data["tail"] = {name: one.as_json() for name, one in samples.items()}


def _loop(directory: Path) -> int:
    """What a list can't do without: scandir, stat, and the first 64 KiB of each file."""
    read = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.name.endswith(".json"):
                continue
            entry.stat()
            fd = os.open(entry.path, os.O_RDONLY)
            read += len(os.pread(fd, _BLOCK, 0))
            os.close(fd)
    return read


def _count(heads: Iterator[object]) -> int:
    return sum(1 for _ in heads)


def _heads(bench: Bench, report: Report) -> None:
    root = bench.directory / "heads"
    Store.init(root)
    count = 2000 if bench.quick else 10_000
    for number in range(count):
        write_capsule(root, f"c{number:05}", messages=20)
    rounds = bench.rounds(30, 10)

    def fresh() -> None:
        with Store.open(root) as store:
            assert _count(store.heads()) == count

    with (
        Store.open(root) as open_store,
        bench.progress(f"heads of {count:,} capsules", rounds) as step,
    ):
        samples = interleave(
            [
                Contestant("heads(), a Store just opened", fresh),
                Contestant(
                    "heads(), a Store that listed before", lambda: _count(open_store.heads())
                ),
                Contestant(
                    "scandir + stat + read of 64 KiB", lambda: _loop(root / "conversations")
                ),
            ],
            rounds,
            warm_up=2,
            tick=step,
        )
    us = samples["heads(), a Store just opened"]
    again = samples["heads(), a Store that listed before"]
    loop = samples["scandir + stat + read of 64 KiB"]
    ratio = us.median / loop.median
    report.tables.append(
        Table(
            "The heads of all conversations",
            _COLUMNS,
            sample_rows(f"{count:,} capsules", samples.values(), us),
        )
    )
    report.bars.append(
        Bar(
            f"heads() of {count:,} capsules, warm",
            "at most 3x of a scandir+stat+64 KiB-read loop over them",
            f"{times(ratio)} by a Store just opened, {times(again.median / loop.median)} by one "
            "that listed before",
            ratio <= 3,
            "parsing each head and making an object of it, in Python",
        )
    )
    report.data["heads"] = {"capsules": count} | {
        name: one.as_json() for name, one in samples.items()
    }
