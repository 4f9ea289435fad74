"""Show long output in the person's pager, as git does.

What must stay true: only a person at a terminal gets a pager. It is started with the first byte of
output. Output is made only as fast as the pager takes it, and ends when the person leaves it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.output import CommandStopped, in_terminal, redirect_output

#: For a person who has not set them. less ends at once if all fits on the screen (F), shows colours
#: (R), and leaves the text there (X).
_DEFAULT_VARIABLES = {"LESS": "FRX", "LV": "-c"}
#: The exit codes of a shell that could not start a program.
_NOT_STARTED = {126, 127}


@contextmanager
def paged() -> Iterator[None]:
    """Send the output of the body through `$PAGER` or `less`, if a person reads it.

    If the person leaves the pager, the rest of the body is skipped.

    Raises CommandStopped: the pager could not be started. It is raised after the body.
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
                    command, shell=True, stdin=subprocess.PIPE, env=_DEFAULT_VARIABLES | os.environ
                )
            )
        stdin = pagers[0].stdin
        assert stdin is not None
        stdin.write(data)
        stdin.flush()

    try:
        with suppress(BrokenPipeError), redirect_output(write):  # The person left the pager.
            yield
    finally:
        codes = {_wait_for_end(pager) for pager in pagers}
    if codes & _NOT_STARTED:
        raise CommandStopped(
            f"the pager {command!r} can't be started; set PAGER to yours, or give --no-pager"
        )


def _wait_for_end(pager: subprocess.Popen[bytes]) -> int:
    """Wait until the person has left the pager. Return its exit code."""
    assert pager.stdin is not None
    with suppress(BrokenPipeError):
        pager.stdin.close()
    while True:
        try:
            return pager.wait()
        except KeyboardInterrupt:
            continue  # Ctrl-C is a command of the pager, which goes on.
