"""Bytes that reach the disk for each appended message.

Twice: as the disk counts them, the file system's journal and all else on the machine included, and
as the kernel accounts them to the process (`write_bytes` of /proc/self/io). The latter counts whole
folios of the page cache, of up to 2 MB, of which the kernel then writes 4 KiB blocks: a file that
grows while it is measured, as the log of a conversation does, counts up to tens of times what
reaches the disk. So the bars are about what the disk counts. Every contestant's files are dropped
from the cache first, as if they had been there since yesterday.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.fixtures import MESSAGE_BYTES, texts
from benchmarks.peers import PEERS
from benchmarks.report import Bar, Bench, Report, Table, times

__all__ = ["run"]

_IO = Path("/proc/self/io")
_FLAT = 1.1
#: Those that write what changed; what rewrites its file is watched for a few appends only.
_IN_PLACE = frozenset({"capsule", "sqlite FULL", "sqlite NORMAL", "llm"})
_NOTE = (
    "Bytes for each append: as counted by the disk, with the journal and whatever else the "
    "machine wrote; and as "
    "accounted to the process (/proc/self/io), in whole folios of the page cache, of which the "
    "disk gets the blocks of "
    "4 KiB that changed. The ratio is that at the largest size. llm logs a turn, which is two "
    "messages."
)


def written_bytes() -> int:
    """What this process caused to be written to a disk until now."""
    for line in _IO.read_text("ascii").splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    raise OSError("/proc/self/io has no write_bytes")


def device_bytes(path: Path) -> int:
    """What was written to the disk that a path lies on until now, by anyone;
    0 where nothing tells.
    """
    device = path.stat().st_dev
    try:
        counts = (
            Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
            .read_text("ascii")
            .split()
        )
    except OSError:
        return 0
    return int(counts[6]) * 512


def drop_from_cache(directory: Path) -> None:
    """Let the page cache forget the files below a directory."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def measure(name: str, directory: str, messages: int, appends: int) -> tuple[float, float]:
    """Run in a process of its own: bytes written for each of the appends, as the process's and as
    the disk's.
    """
    opened = PEERS[name].open(Path(directory))
    opened.fill("c", messages)
    pool = itertools.cycle(texts())
    for _ in range(3):
        opened.append("c", next(pool))
    drop_from_cache(Path(directory))
    before, disk_before = written_bytes(), device_bytes(Path(directory))
    for _ in range(appends):
        opened.append("c", next(pool))
    after = written_bytes()
    os.sync()
    disk_after = device_bytes(Path(directory))
    opened.close()
    return (after - before) / appends, (disk_after - disk_before) / appends


def run(bench: Bench) -> Report:
    """Measure write amplification."""
    report = Report()
    flat_bar = f"flat over size (largest at most {_FLAT:g}x of the smallest)"
    what = f"bytes on the disk per appended {MESSAGE_BYTES}-byte message"
    sizes = (10, 1000) if bench.quick else (10, 1000, 10_000, 100_000)
    try:
        written_bytes()
    except OSError as error:
        reason = f"the system does not account what a process writes ({error})"
        report.skipped["write amplification"] = reason
        report.bars = [
            Bar(what, bar, "", None, reason) for bar in (flat_bar, "under 3x of sqlite's")
        ]
        return report
    found: dict[str, dict[int, tuple[float, float]]] = {}
    peers = {name: peer for name, peer in PEERS.items() if not peer.missing()}
    with bench.progress("bytes written", len(sizes) * len(peers)) as step:
        for messages, (name, peer) in itertools.product(sizes, peers.items()):
            if messages <= peer.largest:
                directory = bench.directory / f"{peer.module}-{name.split()[-1]}-{messages}"
                directory.mkdir()
                appends = (
                    bench.rounds(1000, 300)
                    if name in _IN_PLACE
                    else min(max(20_000 // messages, 5), 200)
                )
                found.setdefault(name, {})[messages] = _in_process(
                    name, directory, messages, appends
                )
                shutil.rmtree(directory)
            step()
    ours, full = found["capsule"], found["sqlite FULL"]
    columns = ("who", "counted by", *(f"{n:,} messages" for n in sizes), "of sqlite FULL's")
    rows = []
    for number, who in enumerate(("the process", "the disk")):
        for name, by_size in found.items():
            shown = tuple(f"{by_size[n][number]:,.0f}" if n in by_size else "" for n in sizes)
            at = max(by_size)
            ratio = by_size[at][number] / full[at][number] if full[at][number] else 0.0
            rows.append((name, who, *shown, times(ratio)))
    rows.sort(key=lambda row: list(found).index(row[0]))
    report.tables.append(
        Table(f"Bytes written to append {MESSAGE_BYTES} bytes", columns, rows, _NOTE)
    )
    own = {n: ours[n][1] for n in sizes}
    spread = max(own.values()) / min(own.values())
    worst = max(own[n] / full[n][1] for n in sizes)
    figures = ", ".join(f"{size:,.0f}" for size in own.values())
    report.bars += [
        Bar(
            what,
            flat_bar,
            f"{times(spread)} ({figures} bytes)",
            spread <= _FLAT,
            "pages that are written twice",
        ),
        Bar(
            what,
            "under 3x of sqlite's",
            f"at most {times(worst)}",
            worst < 3,
            "whole pages are written, and a note",
        ),
    ]
    report.data["bytes_per_append"] = {
        name: {n: {"process": process, "disk": disk} for n, (process, disk) in by_size.items()}
        for name, by_size in found.items()
    }
    return report


def _in_process(name: str, directory: Path, messages: int, appends: int) -> tuple[float, float]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.amplification",
            name,
            str(directory),
            str(messages),
            str(appends),
        ],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    process, disk = json.loads(done.stdout)
    return float(process), float(disk)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
