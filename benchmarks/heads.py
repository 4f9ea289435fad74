"""What changing a head costs: rename, lock, unlock, tag; and creating and deleting."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from benchmarks.fixtures import copy_durably, texts, write_capsule
from benchmarks.harness import Contestant, interleave
from benchmarks.peers.sqlite import SqliteMessages
from benchmarks.report import Bar, Bench, Report, Table, sample_rows, times
from capsule import Store

__all__ = ["run"]

_COLUMNS = ("what", "how", "rounds", "median", "p95", "p99", "max", "capsule / it")
_MESSAGES_50_MB = 90_000


def run(bench: Bench) -> Report:
    """Measure changes of heads, creation and deletion."""
    report = Report()
    _rename_large(bench, report)
    _small(bench, report)
    return report


def _rename_large(bench: Bench, report: Report) -> None:
    root = bench.directory / "rename"
    Store.init(root)
    path = write_capsule(root, "c", messages=_MESSAGES_50_MB // (5 if bench.quick else 1))
    copy = root / "copy"

    def clear() -> None:
        copy.unlink(missing_ok=True)
        os.sync()

    titles = (f"Title {number}" for number in itertools.count())
    rounds = bench.rounds(40, 10)
    with Store.open(root) as store, bench.progress("rename of 50 MB", rounds) as step:
        store.append("c", content="settled")
        samples = interleave(
            [
                Contestant(
                    "Store.rename", lambda: store.rename("c", next(titles)), prepare=os.sync
                ),
                Contestant("cp + fsync", lambda: copy_durably(path, copy), prepare=clear),
            ],
            rounds,
            warm_up=2,
            tick=step,
        )
    us = samples["Store.rename"]
    ratio = us.median / samples["cp + fsync"].median
    label = f"{path.stat().st_size / 1e6:.0f} MB"
    report.tables.append(
        Table(
            "Changing the head of a large conversation",
            _COLUMNS,
            sample_rows(f"rename, {label}", samples.values(), us),
            "Both copy in the kernel (copy_file_range), and begin when nothing waits to be "
            "written.",
        )
    )
    report.bars.append(
        Bar(
            f"rename of a {label} capsule",
            "at most 1.5x of cp + fsync of that file",
            times(ratio),
            ratio <= 1.5,
            "a second fsync, that of the directory, and the freeing of the old version's blocks",
        )
    )
    report.data["rename"] = {name: one.as_json() for name, one in samples.items()}


def _create_file(directory: Path, name: str, data: bytes) -> None:
    """A durable new file: written beside its place, fsync, rename, fsync of the directory."""
    fd = os.open(directory / f".{name}.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, data)
    os.fsync(fd)
    os.close(fd)
    os.rename(directory / f".{name}.tmp", directory / name)
    fd = os.open(directory, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def _small(bench: Bench, report: Report) -> None:
    root, plain = bench.directory / "small", bench.directory / "plain"
    Store.init(root)
    plain.mkdir()
    path = write_capsule(root, "c", messages=100)
    data = path.read_bytes()
    database = SqliteMessages(root / "peer.db")
    database.fill("c", 100)
    numbers, pool = itertools.count(), itertools.cycle(texts())
    made: list[str] = []
    rows: list[str] = []

    def create() -> None:
        made.append(
            store.create(type="group", messages=[{"role": "user", "content": next(pool)}]).id
        )

    def insert() -> None:
        rows.append(f"r{next(numbers)}")
        database.create(rows[-1], next(pool))

    def write_new() -> None:
        _create_file(plain, str(next(numbers)), data)

    rounds = bench.rounds(200, 40)
    with Store.open(root) as store, bench.progress("small changes", rounds) as step:
        store.append("c", content="settled")
        samples = interleave(
            [
                Contestant(
                    "rename: Store.rename", lambda: store.rename("c", f"Title {next(numbers)}")
                ),
                Contestant(
                    "rename: sqlite3 UPDATE", lambda: database.rename("c", f"Title {next(numbers)}")
                ),
                Contestant(
                    "lock: Store.locks.take",
                    lambda: store.locks.take("c"),
                    prepare=lambda: store.locks.release("c"),
                ),
                Contestant(
                    "unlock: Store.locks.release",
                    lambda: store.locks.release("c"),
                    prepare=lambda: store.locks.take("c"),
                ),
                Contestant("create: Store.create", create),
                Contestant("create: new file, fsync, rename, fsync", write_new),
                Contestant("create: sqlite3, two INSERTs", insert),
                Contestant(
                    "delete: Store.delete", lambda: store.delete(made.pop()), prepare=create
                ),
                Contestant(
                    "delete: sqlite3, two DELETEs",
                    lambda: database.delete(rows.pop()),
                    prepare=insert,
                ),
            ],
            rounds,
            tick=step,
        )
    database.close()
    table_rows = []
    for name, one in samples.items():
        what, _, how = name.partition(": ")
        us = next(ours for label, ours in samples.items() if label.startswith(f"{what}: Store."))
        table_rows += [(what, how, *row[2:]) for row in sample_rows(what, [one], us)]
    report.tables.append(
        Table(
            "Small changes, durable",
            _COLUMNS,
            table_rows,
            "A conversation of 100 messages. "
            "sqlite3 is WAL, FULL, with the FTS5 trigger. A delete of ours moves to the trash, "
            "and can be undone.",
        )
    )
    report.data["small"] = {name: one.as_json() for name, one in samples.items()}
