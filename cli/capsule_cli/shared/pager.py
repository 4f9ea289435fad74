"""Long output in the person's pager, as git does it.

What must stay true: only a person at a terminal gets a pager; it is started with the first byte, and what it has no
room for yet is not made yet; once they leave it, nothing more is made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from capsule_cli.shared.asked import asked
from capsule_cli.shared.output import Stopped, in_terminal, written_to

#: less ends at once when all fits on the screen (F), shows colours (R), and leaves the text there (X).
_SETTINGS = {"LESS": "FRX", "LV": "-c"}
_NOT_FOUND = (126, 127)


@contextmanager
def paged() -> Iterator[None]:
    """Send what the body writes to stdout through `$PAGER`, or `less`. Without a person, or with --json: nothing."""
    command = None if asked.json or asked.no_pager or not in_terminal() else _command()
    if command is None:
        yield
        return
    pager = _Pager(command)
    try:
        with written_to(pager.write):
            yield
    except BrokenPipeError:
        pass  # The person has seen enough.
    finally:
        code = pager.end()
    if code in _NOT_FOUND:
        raise Stopped(f"the pager {command!r} can't be started; set PAGER to yours, or give --no-pager")


def _command() -> str | None:
    """The person's pager; None where they want none, or there is none."""
    chosen = os.environ.get("PAGER")
    if chosen is None:
        return "less" if shutil.which("less") else None
    return chosen if chosen.strip() not in ("", "cat") else None


class _Pager:
    """A pager, once there is something to show."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._program: subprocess.Popen[bytes] | None = None

    def write(self, data: bytes) -> None:
        """Show more. Raises BrokenPipeError when the person has left."""
        if self._program is None:
            environment = _SETTINGS | os.environ
            self._program = subprocess.Popen(self._command, shell=True, stdin=subprocess.PIPE, env=environment)
        assert self._program.stdin is not None
        self._program.stdin.write(data)
        self._program.stdin.flush()

    def end(self) -> int:
        """Wait until the person has read. Returns: the pager's exit code."""
        if self._program is None:
            return 0
        assert self._program.stdin is not None
        with suppress(BrokenPipeError):
            self._program.stdin.close()
        while True:
            try:
                return self._program.wait()
            except KeyboardInterrupt:
                continue  # Ctrl-C is a command of the pager, which shows the text still.
