"""Showing a run: on the terminal, as RESULTS.md, as results.json; and the progress display
meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.report import Bar, Progress, Report, Step, Table

__all__ = ["as_json", "markdown", "progress", "show"]


def progress(*, quiet: bool) -> Progress:
    """What shows a piece of work: a bar on a terminal, a line at its beginning elsewhere."""

    @contextmanager
    def lines(what: str, total: int) -> Iterator[Step]:
        print(f"{what} ...", file=sys.stderr, flush=True)
        yield lambda: None

    @contextmanager
    def bars(what: str, total: int) -> Iterator[Step]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        # No thread that redraws: it would take its share of what is measured.
        shown = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
            console=Console(stderr=True), auto_refresh=False, transient=True,
        )  # fmt: skip
        with shown:
            task = shown.add_task(what, total=total)
            shown.refresh()
            done = 0

            def step() -> None:
                nonlocal done
                done += 1
                shown.update(task, advance=1)
                if done % max(total // 40, 1) == 0:
                    shown.refresh()

            yield step

    return lines if quiet else bars


def _verdict(bar: Bar) -> str:
    return {True: "yes", False: "NO", None: "not measured"}[bar.reached]


def show(about: Mapping[str, str], reports: Mapping[str, Report]) -> None:
    """Print a run's tables and bars."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(width=None if sys.stdout.isatty() else 160)
    for report in reports.values():
        for table in report.tables:
            shown = RichTable(
                title=table.title,
                caption=table.note or None,
                box=box.SIMPLE_HEAD,
                title_justify="left",
            )
            for number, column in enumerate(table.columns):
                shown.add_column(column, justify="left" if number < 2 else "right")
            before = ""
            for row in table.rows:
                if before and row[0] != before:
                    shown.add_section()
                shown.add_row("" if row[0] == before else row[0], *row[1:])
                before = row[0]
            console.print(shown)
    bars = RichTable(title="Bars", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("bar", "", "measured", "reached?"):
        bars.add_column(column)
    for bar in _all_bars(reports):
        style = {True: "green", False: "red", None: "yellow"}[bar.reached]
        bars.add_row(bar.what, bar.bar, bar.measured, f"[{style}]{_verdict(bar)}[/]")
    console.print(bars)
    for name, reason in _skipped(reports).items():
        console.print(f"skipped: {name}: {reason}", markup=False)
    console.print(
        "; ".join(f"{name}: {value}" for name, value in about.items()), style="dim", markup=False
    )


def _all_bars(reports: Mapping[str, Report]) -> list[Bar]:
    return [bar for report in reports.values() for bar in report.bars]


def _skipped(reports: Mapping[str, Report]) -> dict[str, str]:
    return {name: reason for report in reports.values() for name, reason in report.skipped.items()}


def _rows(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], left: int = 2) -> list[str]:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = tuple("---" if number < left else "---:" for number in range(len(columns)))
    return [line(columns), line(rule), *map(line, rows), ""]


def _section(table: Table) -> list[str]:
    rows = [
        row if number == 0 or table.rows[number - 1][0] != row[0] else ("", *row[1:])
        for number, row in enumerate(table.rows)
    ]
    note = [table.note, ""] if table.note else []
    return [f"## {table.title}", "", *note, *_rows(table.columns, rows)]


def markdown(
    about: Mapping[str, str], reports: Mapping[str, Report], drawn: list[Path], directory: Path
) -> str:
    """RESULTS.md: the bars, the tables, and what the run was made on.

    Args:
        about: What the run was made on.
        reports: What was found.
        drawn: The plots.
        directory: Where the page is going to lie; the plots are named from there.
    """
    lines = [
        "# Results",
        "",
        (
            "Written by `python -m benchmarks` (`make bench`), on one machine. Contestants of a table "
            "took turns in one"
        ),
        "loop, so the ratios hold where the absolute figures would not.",
        "",
        "## Bars",
        "",
    ]
    bars = [(bar.what, bar.bar, bar.measured, _verdict(bar)) for bar in _all_bars(reports)]
    lines += _rows(("what", "bar", "measured", "reached?"), bars, left=4)
    missed = [bar for bar in _all_bars(reports) if not bar.reached]
    if missed:
        lines += ["Not reached, and why:", "", *(f"- {bar.what}: {bar.why}." for bar in missed), ""]
    pictures = [path for path in drawn if path.suffix == ".svg"]
    lines += [
        line
        for path in pictures
        for line in (f"![Cost against size]({os.path.relpath(path, directory)})", "")
    ]
    for report in reports.values():
        for table in report.tables:
            lines += _section(table)
    skipped = _skipped(reports)
    if skipped:
        lines += [
            "## Left out",
            "",
            *(f"- {name}: {reason}" for name, reason in skipped.items()),
            "",
        ]
    lines += ["## The run", "", *_rows(("", " "), list(about.items()))]
    runs = [(name, *report.run.values()) for name, report in reports.items() if report.run]
    if runs:
        lines += _rows(("measurement", *next(iter(reports.values())).run), runs, left=3)
    return "\n".join(lines)


def as_json(about: Mapping[str, str], reports: Mapping[str, Report]) -> str:
    """results.json: every figure of a run."""
    told = {
        "environment": dict(about),
        "bars": [bar.as_json() for bar in _all_bars(reports)],
        "skipped": _skipped(reports),
        "measurements": {name: report.run | report.data for name, report in reports.items()},
    }
    return json.dumps(told, indent=2, ensure_ascii=False) + "\n"
