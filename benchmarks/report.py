"""What a measurement hands back: tables for the reader, bars that are reached or not, and the
figures themselves.

What must stay true: a bar is compared as it is worded, and one that isn't reached says why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import Samples

__all__ = [
    "Bar",
    "Bench",
    "Progress",
    "Report",
    "Step",
    "Table",
    "micro",
    "sample_rows",
    "size_words",
    "times",
]

Step = Callable[[], None]
#: Shows a piece of work of so many steps.
Progress = Callable[[str, int], AbstractContextManager[Step]]


@dataclass(frozen=True, slots=True)
class Bench:
    """What a measurement is given.

    Attributes:
        directory: An empty directory on a real disk, its own.
        shared: One on the same disk for what several measurements of a run use.
        quick: Fewer rounds and smaller sizes.
        progress: Shows a piece of work, and gives the function that moves it on by one.
        basic_memory: What pip is to install as basic-memory; empty: leave it out.
        smoke: Only to see that everything runs; `quick` besides.
    """

    directory: Path
    shared: Path
    quick: bool
    progress: Progress
    basic_memory: str = ""
    smoke: bool = False

    def rounds(self, full: int, quick: int, smoke: int | None = None) -> int:
        """How many of something this run has; `smoke` is for what takes long, as a loop has one
        round there anyway.
        """
        return smoke if self.smoke and smoke is not None else quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Bar:
    """One number that the store is to reach.

    Attributes:
        what: What is measured.
        bar: The bar, in words.
        measured: What came out, in words.
        reached: Whether it is reached; None: it could not be measured.
        why: Why not, when it isn't.
    """

    what: str
    bar: str
    measured: str
    reached: bool | None
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        told = {
            "what": self.what,
            "bar": self.bar,
            "measured": self.measured,
            "reached": self.reached,
        }
        return told if self.reached else told | {"why": self.why}


@dataclass(frozen=True, slots=True)
class Table:
    """A table for the reader; the first column is text, the others are figures."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


@dataclass(slots=True)
class Report:
    """What one measurement found.

    Attributes:
        run: When it was made, and on what.
    """

    tables: list[Table] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    run: dict[str, str] = field(default_factory=dict)

    def as_text(self) -> str:
        """The report as JSON, which `of_text` reads."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def of_text(cls, text: str) -> Report:
        """The report that `as_text` wrote."""
        told = json.loads(text)
        tables = [
            Table(**table | {"rows": [*map(tuple, table["rows"])]}) for table in told["tables"]
        ]
        return cls(
            tables, [Bar(**bar) for bar in told["bars"]], told["data"], told["skipped"], told["run"]
        )


def micro(seconds: float) -> str:
    """A duration, for a table."""
    if seconds < 0.01:
        return f"{seconds * 1e6:,.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:,.1f} ms"
    return f"{seconds:,.2f} s"


def times(ratio: float) -> str:
    """A ratio, for a table."""
    return (
        f"{ratio:,.4f}x" if ratio < 0.01 else f"{ratio:,.2f}x" if ratio < 100 else f"{ratio:,.0f}x"
    )


def size_words(messages: int, context_bytes: int) -> str:
    """A size of a conversation, in words."""
    return f"{messages:,} messages" + (
        f" + {context_bytes / 1e6:.1f} MB context" if context_bytes else ""
    )


def sample_rows(label: str, samples: Iterable[Samples], us: Samples) -> list[tuple[str, ...]]:
    """A row for each contestant: label, name, rounds, median, p95, p99, max, and our median over
    its median.
    """
    return [
        (
            label,
            one.name,
            str(len(one.seconds)),
            *(micro(one.quantile(q)) for q in (0.5, 0.95, 0.99, 1.0)),
            times(us.median / one.median),
        )
        for one in samples
    ]
