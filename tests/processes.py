"""Real processes for tests: Python programs that exchange lines of JSON with the test; and waiting
for what others do.

What must stay true: a child shares only the file system with the test; a child says when it has
come to the point that the test waits for; and every child has ended when its test ends.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any, TypeVar

T = TypeVar("T")
#: Seconds after which a wait fails: a hang is a failure, slowness is not.
PATIENCE_S = 240.0
ROOT = Path(__file__).resolve().parents[1]

_PRELUDE = f"""
import json, os, sys
sys.path[:0] = [{str(ROOT)!r}]
from capsule import Store
from capsule.errors import CapsuleError
def say(value=None): print(json.dumps(value), flush=True)
def hear(): return json.loads(sys.stdin.readline())
"""


def until(is_so: Callable[[], T]) -> T:
    """What `is_so` gives, as soon as that is something. Fails after `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := is_so()):
        assert time.monotonic() < deadline, "it was waited for in vain"
        time.sleep(0.002)
    return found


class Child:
    """A Python program in a separate process; it has `Store`, `say`, `hear` and its arguments in
    `sys.argv`.

    What else it needs of a module, it imports: `Child("from tests.torture.writers import main;
    main(say, hear)", ...)`.
    """

    def __init__(self, body: str, *args: str, **settings: Any) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PRELUDE + dedent(body), *args],
            **{"stdin": pipe, "stdout": pipe, "stderr": pipe, "text": True} | settings,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def hear(self) -> Any:
        """The next value from the child."""
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(
                f"the child ended: {self._process.wait()}\n{self._process.stderr.read()}"
            )
        return json.loads(line)

    def say(self, value: Any = None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait for its end."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> int:
        """Wait until the process ends by itself. Returns: its exit code."""
        return self._process.wait()

    def ended(self) -> tuple[int, str]:
        """Close its standard input, and wait until it ends. Returns: its exit code, and what it
        said on stderr.
        """
        _, words = self._process.communicate(timeout=2 * PATIENCE_S)
        return self._process.returncode, words

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def together(*children: Child) -> None:
    """Let children go on at once, as soon as each has said that it is ready."""
    for child in children:
        child.hear()
    for child in children:
        child.say()
