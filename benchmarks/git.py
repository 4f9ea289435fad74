"""What the filter costs git: the same commands in two repositories of the same files, one with it
and one without.

What must stay true: both repositories hold the same bytes under the same times, no file is as young
as the index (git would read such a file again to be sure, "racily clean", and hide the difference),
and git does nothing by itself in the background. What git flushes is left as it is by default,
which for what it adds is nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.fixtures import STAMP, history, write_capsule
from benchmarks.harness import Contestant, Samples, interleave
from benchmarks.report import Bar, Bench, Report, Step, Table, micro, sample_rows, times
from capsule import Store
from capsule.format.documents.creation import new_capsule
from capsule.format.json import codec
from capsule.git.attributes import attribute_lines, driver_config

__all__ = ["run"]

STATUS_BAR, TOUCHED_BAR, ADD_BAR = 1.3, 5.0, 5.0
_COLUMNS = ("what", "git", "rounds", "median", "p95", "p99", "max", "with the filter / it")
_WITH, _WITHOUT = "with the filter", "without"
_PROGRAM = [sys.executable, "-P", "-m", "capsule_cli.drivers"]
_MESSAGES = 10
#: Seconds since 1970 of the first version of the files; each later one is as many seconds younger.
_THEN = 1_700_000_000
_QUIET = {
    "gc.auto": "0",
    "maintenance.auto": "false",
    "user.name": "bench",
    "user.email": "bench@example.org",
}


class _Repository:
    """A store of canonical capsules that is a repository."""

    def __init__(self, top: Path, *, filtered: bool) -> None:
        self.top = top
        self.round = 0
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
        }
        Store.init(top)
        (top / ".gitattributes").write_text(
            "".join(f"{line}\n" for line in attribute_lines()), "utf-8"
        )
        self.git("init", "-q", ".")
        for name, value in {**_QUIET, **(driver_config(_PROGRAM) if filtered else {})}.items():
            self.git("config", name, value)

    def git(self, *words: str) -> None:
        subprocess.run(
            ["git", *words],
            cwd=self.top,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def path(self, number: int) -> Path:
        return self.top / "conversations" / f"c{number:05}.json"

    def fill(self, capsules: int, step: Step) -> None:
        """Write and commit so many capsules."""
        for number in range(capsules):
            path = write_capsule(self.top, f"c{number:05}", messages=_MESSAGES)
            os.utime(path, (_THEN, _THEN))
            step()
        self.git("add", "--all")
        self.git("commit", "-q", "-m", "first")

    def change(self, capsules: int, *, locked: bool) -> None:
        """Give the first so many capsules a new version, as a save would."""
        self.round += 1
        then = _THEN + self.round
        for number in range(capsules):
            document = new_capsule(
                f"c{number:05}",
                f"Version {self.round}",
                STAMP,
                type="group",
                messages=history(_MESSAGES + 1),
            )
            if locked:
                document["metadata"]["lock"] |= {
                    "active": True,
                    "user": "bench",
                    "instanceId": "i",
                    "host": "h",
                }
            self.path(number).write_bytes(codec.encode(document))
            os.utime(self.path(number), (then, then))

    def touch(self, capsules: int) -> None:
        """Give the first so many capsules another time, so that git has to compare them."""
        self.round += 1
        then = _THEN + self.round
        for number in range(capsules):
            os.utime(self.path(number), (then, then))


def run(bench: Bench) -> Report:
    """Measure git with the filter and without."""
    report = Report()
    capsules, changed = (500, 50) if bench.quick else (10_000, 1000)
    ours = _Repository(bench.directory / "with", filtered=True)
    own = _Repository(bench.directory / "without", filtered=False)
    both = {_WITH: ours, _WITHOUT: own}
    with bench.progress(f"making two repositories of {capsules:,} capsules", 2 * capsules) as step:
        for repository in both.values():
            repository.fill(capsules, step)
    size = ours.path(0).stat().st_size
    rows: list[tuple[str, ...]] = []

    def measure(
        name: str, rounds: int, prepare: str, count: int, *words: str
    ) -> dict[str, Samples]:
        def prepared(repository: _Repository) -> None:
            if prepare == "touch":
                repository.touch(count)
            elif prepare == "back":
                repository.git("checkout", "-q", "-f", "HEAD", "--", ".")
            elif prepare:
                repository.change(count, locked=prepare == "locked")

        with bench.progress(name, rounds + 1) as step:
            samples = interleave(
                [
                    Contestant(label, partial(at.git, *words), prepare=partial(prepared, at))
                    for label, at in both.items()
                ],
                rounds,
                warm_up=1,
                tick=step,
            )
        rows.extend(sample_rows(name, samples.values(), samples[_WITH]))
        report.data[name] = {label: one.as_json() for label, one in samples.items()}
        return samples

    rounds, few = bench.rounds(30, 10), bench.rounds(7, 3)
    settled = measure(f"git status, {capsules:,} capsules", rounds, "", 0, "status")
    measure(f"git status, {changed:,} of them touched", few, "touch", changed, "status")
    touched = measure(f"git status, all {capsules:,} touched", few, "touch", capsules, "status")
    added = measure(f"git add, {changed:,} changed", few, "changed", changed, "add", "--all")
    measure(f"git add, {changed:,} changed and locked", few, "locked", changed, "add", "--all")
    for repository in both.values():
        repository.git("commit", "-q", "-m", "second")
    measure(
        f"git checkout, {changed:,} that differ",
        few,
        "back",
        0,
        *("checkout", "-q", "-f", "HEAD~1", "--", "."),
    )
    note = (
        f"Capsules of {_MESSAGES} messages, {size / 1000:,.1f} kB each. A touched file has "
        "another time and the same "
        "bytes, so that git compares it, as it does once with what was checked out in the second "
        "it is asked."
    )
    report.tables.append(Table("Git with the filter", _COLUMNS, rows, note))
    for name, samples, bar, why in (
        (f"git status on {capsules:,} capsules", settled, STATUS_BAR, "git started the filter"),
        (
            f"git status on {capsules:,} capsules, all touched",
            touched,
            TOUCHED_BAR,
            (
                "git hands every touched file to the filter; one that passes it through unchanged "
                "costs 1.7x to 2.9x"
            ),
        ),
        (
            f"git add of {changed:,} changed capsules",
            added,
            ADD_BAR,
            "a strict look at each capsule, in Python",
        ),
    ):
        ratio = samples[_WITH].median / samples[_WITHOUT].median
        measured = (
            f"{times(ratio)} ({micro(samples[_WITH].median)} and {micro(samples[_WITHOUT].median)})"
        )
        limit = (
            f"at most {bar:g}x of git's own"
            if bar is STATUS_BAR
            else f"under {bar:g}x of git's own"
        )
        reached = ratio <= bar if bar is STATUS_BAR else ratio < bar
        report.bars.append(Bar(name, limit, measured, reached, why))
    return report
