"""On what a run was made: machine, system, versions, commit; and where there is a real disk to work
on.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

__all__ = ["disk_directory", "file_system", "moment", "record", "usual"]

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_VERSIONS = (
    "orjson", "pydantic", "portalocker", "typer", "rich", "tinydb", "langchain-community", "llm", "matplotlib"
)  # fmt: skip


def usual() -> dict[str, str]:
    """The environment, with compiled modules kept, as they are wherever a program is
    started twice.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def file_system(path: Path) -> str:
    """The kind of file system that a path lies on, with its mount options; `unknown` where nothing
    tells.
    """
    best, found = "", "unknown"
    try:
        mounts = Path("/proc/mounts").read_text("utf-8").splitlines()
    except OSError:
        return found
    wanted = f"{path.resolve()}/"
    for line in mounts:
        _, where, kind, options, *_ = line.split()
        if wanted.startswith(where.rstrip("/") + "/") and len(where) >= len(best):
            best, found = where, f"{kind} ({options})"
    return found


def disk_directory() -> Path:
    """A directory for temporary files that isn't in memory, where a sync would cost nothing."""
    places = (Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd())
    return next(
        (place for place in places if file_system(place).split()[0] not in _IN_MEMORY), places[0]
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "../capsule", "../cli")
        return git("rev-parse", "--short=12", "HEAD") + (
            " with uncommitted changes" if changed else ""
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def moment() -> dict[str, str]:
    """When, at which commit and beside what load a measurement was made."""
    return {
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load of the last minute": f"{os.getloadavg()[0]:.2f}",
    }


def record(directory: Path, *, quick: bool) -> dict[str, str]:
    """What a reader needs to judge the figures by."""
    return {
        "run": "quick" if quick else "full",
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release()}",
        "file system": file_system(directory),
        "Python": sys.version.split()[0],
        "sqlite3": sqlite3.sqlite_version,
    } | {name: _version(name) for name in _VERSIONS}
