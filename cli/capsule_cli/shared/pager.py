"""Long output in the person's pager, as git does it.

What must stay true: only a person at a terminal gets a pager; it is started with the first byte,
and what it has no room for yet is not made yet; once they leave it, nothing more is made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.output import CommandStopped, in_terminal, redirect_output

#: less ends at once when all fits on the screen (F), shows colours (R), and leaves the text there
#: (X).
_SETTINGS = {"LESS": "FRX", "LV": "-c"}
_NOT_FOUND = {126, 127}


@contextmanager
def paged() -> Iterator[None]:
    """Send what the body writes through `$PAGER` or `less`, for a person. Raises Stopped: it can't
    be started.
    """
    command = os.environ.get("PAGER", "less" if shutil.which("less") else "").strip()
    if (
        global_options.json
        or global_options.no_pager
        or not in_terminal()
        or command in ("", "cat")
    ):
        yield
        return
    pagers: list[subprocess.Popen[bytes]] = []

    def write(data: bytes) -> None:
        if not pagers:
            pagers.append(
                subprocess.Popen(
                    command, shell=True, stdin=subprocess.PIPE, env=_SETTINGS | os.environ
                )
            )
        stdin = pagers[0].stdin
        assert stdin is not None
        stdin.write(data)
        stdin.flush()

    try:
        with suppress(BrokenPipeError), redirect_output(write):  # The person has seen enough.
            yield
    finally:
        codes = {_end(pager) for pager in pagers}
    if codes & _NOT_FOUND:
        raise CommandStopped(
            f"the pager {command!r} can't be started; set PAGER to yours, or give --no-pager"
        )


def _end(pager: subprocess.Popen[bytes]) -> int:
    """Wait until the person has read. Returns: the pager's exit code."""
    assert pager.stdin is not None
    with suppress(BrokenPipeError):
        pager.stdin.close()
    while True:
        try:
            return pager.wait()
        except KeyboardInterrupt:
            continue  # Ctrl-C is a command of the pager, which shows the text still.
