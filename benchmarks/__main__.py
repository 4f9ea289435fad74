"""Measure the store, side by side with what one would use instead.

A whole run takes about fifty minutes, and writes RESULTS.md and results.json here and the plots
into docs/. Each measurement is kept in build/benchmarks, with its commit and its time; `--resume`
takes what is there. One that fails does not end the others: it is named at the end, and a whole run
then writes nothing here.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path

from benchmarks import environment, harness, plot, tables
from benchmarks.report import Bench, Report

#: The measurements by name, in the order of the report: each is a module with a `run`.
WORKS = (
    "append", "contention", "amplification", "reading", "heads", "startup", "memory",
    "indexing", "search", "filters", "watch", "messaging", "channels", "sessions",
    "mcp", "context", "trees", "merging", "git", "transfer", "web", "postgres",
)  # fmt: skip
_HERE = Path(__file__).parent


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=WORKS, metavar="NAME", help=f"some of: {', '.join(WORKS)}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="about a minute: fewer rounds, smaller sizes"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="as --quick, each loop once; only say what fails"
    )
    parser.add_argument(
        "--resume", action="store_true", help="take what was measured before, and measure the rest"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the figures as JSON instead of tables"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="write RESULTS.md, results.json and the plots into this directory",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        help="where to work; default: a temporary directory on a real disk",
    )
    parser.add_argument(
        "--basic-memory",
        nargs="?",
        const="basic-memory",
        default="",
        metavar="REQUIREMENT",
        help="measure basic-memory too: installed with pip into a throwaway environment of Python "
        "3.12 or newer",
    )
    return parser.parse_args()


def main() -> int:
    """Run what was asked for; 1 when a measurement failed."""
    asked = _arguments()
    asked.quick = asked.quick or asked.smoke
    if asked.smoke:
        harness.most_rounds = 1
    works = tuple(asked.only or WORKS)
    parent = asked.directory or environment.disk_directory()
    progress = tables.progress(quiet=not sys.stderr.isatty())
    reports: dict[str, Report] = {}
    failed: list[str] = []
    kept = (
        _HERE.parent
        / "build"
        / "benchmarks"
        / ("smoke" if asked.smoke else "quick" if asked.quick else "full")
    )
    kept.mkdir(parents=True, exist_ok=True)
    shared = Path(tempfile.mkdtemp(prefix="capsule-bench-", dir=parent))
    try:
        for name in works:
            file = kept / f"{name}.json"
            if asked.resume and file.exists():
                reports[name] = Report.of_text(file.read_text("utf-8"))
                continue
            directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=shared))
            bench = Bench(directory, shared, asked.quick, progress, asked.basic_memory, asked.smoke)
            begin = time.monotonic()
            try:
                reports[name] = import_module(f"benchmarks.{name}").run(bench)
            except Exception:
                traceback.print_exc()
                failed.append(name)
            else:
                reports[name].run = environment.moment()
                file.write_text(reports[name].as_text(), "utf-8")
            finally:
                shutil.rmtree(directory, ignore_errors=True)
            outcome = "FAILED" if name in failed else "done"
            print(f"{name}: {outcome} after {time.monotonic() - begin:.0f} s", file=sys.stderr)
    finally:
        shutil.rmtree(shared, ignore_errors=True)
    about = environment.record(parent, quick=asked.quick)
    if asked.json:
        sys.stdout.write(tables.as_json(about, reports))
    elif not asked.smoke:
        tables.show(about, reports)
    # The committed results are those of a whole run; a part of one is written only where it is
    # asked for.
    output = asked.output or (_HERE if works == WORKS and not asked.quick and not failed else None)
    if output is not None:
        plots = asked.output or _HERE.parent / "docs"
        _write(output, plots, about, reports)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _write(output: Path, plots: Path, about: dict[str, str], reports: dict[str, Report]) -> None:
    output.mkdir(parents=True, exist_ok=True)
    drawn: list[Path] = []
    if "append" in reports:
        reason = plot.missing()
        if reason:
            reports["append"].skipped["the plot"] = reason
        else:
            drawn = plot.draw(reports["append"].data["by_size"], plots)
    (output / "RESULTS.md").write_text(tables.markdown(about, reports, drawn, output), "utf-8")
    (output / "results.json").write_text(tables.as_json(about, reports), "utf-8")
    for path in (*drawn, output / "RESULTS.md", output / "results.json"):
        print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
