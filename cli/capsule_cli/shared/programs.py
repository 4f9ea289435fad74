"""Run a person's own programs: the command of `--exec`, and the pager.

What must stay true: a failed command of `--exec` is reported, and the next change or message is
handled as usual. Only a person at a terminal gets a pager. It is started with the first byte of
output. Output is made only as fast as the pager takes it, and ends when the person leaves it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import orjson

from capsule_cli.shared.output import (
    CommandStopped,
    exit_reason,
    global_options,
    in_terminal,
    one_line,
    print_notice,
    redirect_output,
)

if TYPE_CHECKING:
    import subprocess


# -- The command of --exec -------------------------------------------------------------------------

#: Most bytes of JSON in one environment variable. Linux accepts 128 KiB.
MAX_ENVIRONMENT_BYTES = 100_000


def run_command_for(
    event: dict[str, Any], command: str, variable: str, *, short: dict[str, Any], **variables: str
) -> None:
    """Run a command in a shell, with an event as JSON on its standard input and in its environment.

    Args:
        event: The change or message.
        command: The command line.
        variable: The name of the environment variable for the JSON.
        short: Fields that replace the long fields of the event if the JSON is too long for the
            environment.
        variables: Further environment variables. `CAPSULE_ID` names the conversation.
    """
    import subprocess

    data = orjson.dumps(event)
    # The kernel would not start a command with a variable that is too long.
    value = data if len(data) <= MAX_ENVIRONMENT_BYTES else orjson.dumps(event | short)
    environment = {**os.environ, variable: value.decode(), **variables}
    try:
        completed = subprocess.run(
            command, shell=True, input=data + b"\n", env=environment, check=False
        )
    except OSError as error:
        print_notice(f"--exec: {one_line(command)} could not be run: {error.strerror}")
        return
    if completed.returncode:
        subject = " ".join(filter(None, (variables.get("CAPSULE_KIND"), variables["CAPSULE_ID"])))
        reason = exit_reason(completed.returncode)
        print_notice(f"--exec: {one_line(command)} failed for {subject}: {reason}")


# -- The pager -------------------------------------------------------------------------------------

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
    import shutil
    import subprocess

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
