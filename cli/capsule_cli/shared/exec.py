"""Run a person's own command for each change or message: `--exec`.

What must stay true: a failed command is reported, and the next change is handled as usual.
"""

from __future__ import annotations

import os
from typing import Any

import orjson

from capsule_cli.shared.output import exit_reason, one_line, print_notice

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
