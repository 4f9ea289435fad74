"""Runs `capsule mcp --http` or another server for what comes from npm, in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Seconds until a server must have said where it listens, and until it must be gone after SIGTERM.
TIMEOUT_S = 30
_ADDRESS = re.compile(r"http://[\w.:\[\]]+(?:/\w+)*")


def capsule(store: Path) -> list[str]:
    """The command line of the program under test, on a store."""
    return [sys.executable, "-m", "capsule_cli", "--store", str(store)]


def environment(place: Path) -> dict[str, str]:
    """An environment without the caller's settings, with a home of its own."""
    home = place / "home"
    home.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "LANG") if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "cli")]),
    }


@contextmanager
def serving(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The address at which a server listens that prints it; it is ended with SIGTERM.

    Raises:
        RuntimeError: It did not say where, or did not end well; what it said is in the message.
    """
    with log.open("w") as said:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, env=env
        )
    try:
        yield _address(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.returncode not in (0, -signal.SIGTERM):
        raise RuntimeError(
            f"the server ended with {process.returncode} on SIGTERM; it "
            f"said:\n{log.read_text()[-4000:]}"
        )


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if found := _ADDRESS.search(log.read_text()):
            return found[0]
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise RuntimeError(
        f"the server did not say where it listens; it said:\n{log.read_text()[-4000:]}"
    )
