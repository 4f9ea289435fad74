"""How much memory it takes to work on a large conversation: the peak, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.fixtures import texts, write_capsule
from benchmarks.report import Bar, Bench, Report, Table
from capsule import Store

__all__ = ["run"]

_MB = 1e6
_BAR_MB = 5.0
_MESSAGES_50_MB = 90_000
_APPENDS = 50


def peak_bytes() -> int:
    """The largest resident size of this process since `begin_peak`; since its start where the
    system can no better.
    """
    try:
        for line in Path("/proc/self/status").read_text("ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def begin_peak() -> None:
    """Let the peak begin anew at what is resident now, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5", "ascii")
    except OSError:
        return


def measure(root: str) -> dict[str, int]:
    """Run in a process of its own: the peak at rest, and above it for each kind of work,
    in bytes.
    """
    text = texts()[0]
    store = Store.open(root)
    store.append("small", role="user", content=text)

    def appends(id: str) -> None:
        for _ in range(_APPENDS):
            store.append(id, role="user", content=text)

    works: dict[str, Callable[[], object]] = {
        f"{_APPENDS} appends to a small capsule": lambda: appends("small"),
        f"{_APPENDS} appends": lambda: appends("large"),
        "tail(20)": lambda: store.tail("large", 20),
        "rename": lambda: store.rename("large", "Another title"),
        "load": lambda: store.load("large"),
    }
    begin_peak()
    idle = peak_bytes()
    found = {"idle": idle}
    for name, work in works.items():
        begin_peak()
        work()
        found[name] = peak_bytes() - idle
    return found


def run(bench: Bench) -> Report:
    """Measure memory."""
    root = bench.directory / "store"
    Store.init(root)
    write_capsule(root, "small", messages=10)
    path = write_capsule(root, "large", messages=_MESSAGES_50_MB // (5 if bench.quick else 1))
    with bench.progress("memory", 1) as step:
        with Store.open(root) as store:
            store.append(
                "large",
                content="Taken in, once: that reads the whole file, and is not what is measured.",
            )
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.memory", str(root)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        step()
    found: dict[str, int] = json.loads(done.stdout)
    above = found[f"{_APPENDS} appends"] / _MB
    label = f"{path.stat().st_size / _MB:.0f} MB"
    report = Report()
    rows = [
        (name, f"{size / _MB:,.1f} MB" if name == "idle" else f"{size / _MB:+,.1f} MB")
        for name, size in found.items()
    ]
    report.tables.append(
        Table(
            f"Memory of working on a capsule of {label}",
            ("work", "resident at the peak"),
            rows,
            "Idle: an open store that appended to a small capsule. The others are above that, "
            "each in turn.",
        )
    )
    report.bars.append(
        Bar(
            f"memory of appending to a {label} capsule",
            f"flat: under {_BAR_MB:g} MB above idle",
            f"{above:+.1f} MB",
            above < _BAR_MB,
            "what an append keeps of the file",
        )
    )
    report.data["memory_bytes"] = found
    return report


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
