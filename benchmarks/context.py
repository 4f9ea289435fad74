"""Capturing a project: against reading its files and hashing them, which any way of doing it must
do.

What must stay true: both read the same files, from the system's cache; a capture counts from the
directory to the conversation's file flushed to the disk.
"""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

from benchmarks.corpus import _code
from benchmarks.harness import Contestant, interleave
from benchmarks.report import Bar, Bench, Report, Table, micro, sample_rows, times
from capsule import Store
from capsule.context.capture import Capture, capture
from capsule.context.drift import check
from capsule.context.files import FileSelection, ProjectFiles, candidates

__all__ = ["run"]

_COLUMNS = ("what", "how", "rounds", "median", "p95", "p99", "max", "capture / it")
_BAR = 4.5
_CAPTURE, _READ = (
    "capture, and write it into the conversation",
    "read and hash the files, paths given",
)
_AGAIN = "the same in the place of an older one"
_LIST, _TAKE, _ENCODE, _WRITE, _CHECK = (
    "- list them",
    "- list, read, hash, look for secrets, estimate tokens",
    "- compose and encode the context, write nothing",
    "- compose, encode, write and flush it",
    "check for drift: all of them read again",
)


def _project(root: Path, files: int, size: int) -> list[str]:
    """Source files of unequal sizes, the same in every run; their paths."""
    draw = random.Random(5)
    blocks = [_code(draw, 64_000).encode() for _ in range(24)]
    paths = []
    for number in range(files):
        wanted = min(int(draw.lognormvariate(0, 0.9) * size / 1.5) + 60, 60_000)
        block = draw.choice(blocks)
        at = draw.randrange(len(block) - wanted) if wanted < len(block) else 0
        path = root / f"part{number % 97}" / f"deep{number % 7}" / f"module_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(block[at : at + wanted].split(b"\n", 1)[-1])
        paths.append(str(path))
    return paths


def _parts(shares: dict[str, float]) -> str:
    """What a capture consists of, each part as a multiple of reading and hashing."""
    judging = shares[_TAKE] - shares[_LIST]
    return (
        f"listing the files is {times(shares[_LIST])}, reading and hashing them with all that is "
        "said of each (is it a "
        f"text, may there be secrets, how many tokens, which fence) {times(judging)}, composing, "
        "hashing and flushing "
        f"the document {times(shares[_WRITE])}: all but the last in Python, on one core"
    )


def run(bench: Bench) -> Report:
    """Measure captures."""
    report = Report()
    files = 1_000 if bench.quick else 10_000
    project = bench.directory / "project"
    paths = _project(project, files, 10_000)
    size = sum(os.path.getsize(path) for path in paths)
    selection = FileSelection(total_bytes=10**9)

    def read() -> None:
        for path in paths:
            with open(path, "rb") as file:
                hashlib.sha256(file.read()).hexdigest()

    def take() -> Capture:
        return capture(str(project), selection)

    def fresh() -> None:
        store.delete("first")
        store.trash.purge()
        store.create(
            id="first",
            title="Plan",
            type="group",
            messages=[{"role": "user", "content": "look at this"}],
        )

    Store.init(bench.directory / "store")
    rounds = bench.rounds(15, 5)
    with Store.open(bench.directory / "store", keep_locks=False) as store:
        store.create(
            id="plan",
            title="Plan",
            type="group",
            messages=[{"role": "user", "content": "look at this"}],
        )
        store.create(id="first", title="Plan", type="group")
        made = take()
        assert len(made.files) == files
        assert not made.findings
        store.context.set("plan", made)
        context = store.context.get("plan")
        assert check(context).is_current
        with bench.progress(f"capturing {files:,} files", rounds + 3) as step:
            samples = interleave(
                [
                    Contestant(_CAPTURE, lambda: store.context.set("first", take()), prepare=fresh),
                    Contestant(_AGAIN, lambda: store.context.set("plan", take())),
                    Contestant(_READ, read),
                    Contestant(_LIST, lambda: candidates(ProjectFiles(str(project)), selection)),
                    Contestant(_TAKE, take),
                    Contestant(_ENCODE, lambda: sum(map(len, made.encoded()))),
                    Contestant(_WRITE, lambda: store.context.set("plan", made)),
                    Contestant(_CHECK, lambda: check(context)),
                ],
                rounds,
                tick=step,
            )
    us, bare = samples[_CAPTURE], samples[_READ]
    label = f"{files:,} files, {size / 1e6:,.0f} MB"
    report.tables.append(
        Table(
            "Capturing a project",
            _COLUMNS,
            sample_rows(label, samples.values(), us),
            f"{len(made.document()) / 1e6:,.0f} MB of document, {made.tokens:,} tokens.",
        )
    )
    ratio = us.median / bare.median
    report.bars.append(
        Bar(
            f"capturing {label}",
            f"under {_BAR:g}x of reading and hashing them",
            f"{times(ratio)} ({micro(us.median)} and {micro(bare.median)})",
            ratio < _BAR,
            _parts({name: one.median / bare.median for name, one in samples.items()}),
        )
    )
    report.data["capture"] = {"files": files, "bytes": size} | {
        name: one.as_json() for name, one in samples.items()
    }
    return report
