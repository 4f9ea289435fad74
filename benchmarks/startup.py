"""What it costs to start: whole processes, from the fork to the exit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.environment import usual
from benchmarks.fixtures import write_capsule
from benchmarks.harness import Contestant, interleave
from benchmarks.report import Bar, Bench, Report, Table, micro, times
from capsule import Store

__all__ = ["run"]

_TYPER = 'python -c "import typer"'
_PASS, _APPEND = "python -c pass", "capsule append ID TEXT"
_VERSION, _LIST = "capsule --version", "capsule list, 100 capsules"
_HOOK, _HOOK_S = "a client's hook with nothing to say, 100 capsules", 0.150


def run(bench: Bench) -> Report:
    """Measure the start of processes."""
    report = Report()
    program = Path(sys.executable).with_name("capsule")
    if not program.exists():
        reason = (
            f"there is no {program.name} beside {Path(sys.executable).name}; pip install -e "
            ". into its environment"
        )
        report.skipped["start-up"] = reason
        report.bars = [
            Bar(_VERSION, "at most 1.3x", "", None, reason),
            Bar(_LIST, "at most 2x", "", None, reason),
            Bar(_APPEND, "at most 3.3x", "", None, reason),
            Bar(_HOOK, f"under {_HOOK_S * 1000:.0f} ms", "", None, reason),
        ]
        return report
    root = bench.directory / "store"
    Store.init(root)
    for number in range(100):
        write_capsule(root, f"c{number:03}", messages=20)
    with Store.open(root) as agents:
        agents.agents.register("bob")

    def process(*words: str, said: bytes = b"") -> Callable[[], None]:
        def run_it() -> None:
            subprocess.run(
                words, check=True, input=said, stdout=subprocess.DEVNULL, cwd=root, env=usual()
            )

        return run_it

    python, capsule = sys.executable, str(program)
    store = ("--store", str(root))
    append = ("append", *store, "c000", "hello")
    hook = (
        "-m",
        "capsule_cli",
        "agent",
        "wake",
        "hook",
        "claude-code",
        "UserPromptSubmit",
        *store,
        "--as",
        "bob",
    )
    rounds = bench.rounds(80, 12)
    with bench.progress("processes", rounds) as step:
        samples = interleave(
            [
                Contestant(_PASS, process(python, "-c", "pass")),
                Contestant(_TYPER, process(python, "-c", "import typer")),
                Contestant('python -c "import capsule"', process(python, "-c", "import capsule")),
                Contestant(_VERSION, process(capsule, "--version")),
                Contestant(_LIST, process(capsule, "list", *store)),
                Contestant(
                    "capsule show ID --last 5",
                    process(capsule, "show", *store, "c000", "--last", "5"),
                ),
                Contestant(_APPEND, process(capsule, *append)),
                # Each round an append came before it, so that it brings the index up to date.
                Contestant(_HOOK, process(python, *hook, said=b'{"session_id": "one"}')),
            ],
            rounds,
            tick=step,
        )
    typer = samples[_TYPER].median
    rows = [
        (
            one.name,
            str(len(one.seconds)),
            *(micro(one.quantile(q)) for q in (0.5, 0.95, 0.99, 1.0)),
            times(one.median / typer),
        )
        for one in samples.values()
    ]
    columns = ("process", "rounds", "median", "p95", "p99", "max", f"it / {_TYPER}")
    report.tables.append(Table("Starting", columns, rows))
    for name, allowed, base in (
        (_VERSION, 1.3, _TYPER),
        (_LIST, 2.0, _TYPER),
        (_APPEND, 3.3, _PASS),
    ):
        ratio = samples[name].median / samples[base].median
        report.bars.append(
            Bar(
                name,
                f"at most {allowed:g}x of {base}",
                f"{times(ratio)} ({micro(samples[name].median)} and {micro(samples[base].median)})",
                ratio <= allowed,
                "what is imported besides typer",
            )
        )
    hook_s = samples[_HOOK].median
    within = f"under {_HOOK_S * 1000:.0f} ms"
    report.bars.append(
        Bar(_HOOK, within, micro(hook_s), hook_s < _HOOK_S, "Python's own start, and the index")
    )
    report.data["processes"] = {name: one.as_json() for name, one in samples.items()}
    return report
