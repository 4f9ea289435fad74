"""A person's own command, run for each thing that is heard: `--exec`.

What must stay true: a command that fails is reported, and is no reason to miss what comes next.
"""

from __future__ import annotations

import os
from typing import Any

import orjson

from capsule_cli.shared.output import exit_reason, one_line, print_notice

#: Bytes of JSON that are put into a command's environment at most; Linux takes 128 KiB a variable.
MAX_ENVIRONMENT_BYTES = 100_000


def run_command_for(
    heard: dict[str, Any], command: str, variable: str, *, short: dict[str, Any], **variables: str
) -> None:
    """Run a command in a shell, with what was heard as JSON on its standard input and in its
    environment.

    Args:
        variable: The name of the variable that holds the JSON.
        short: What replaces the long fields of `heard` where it is too long for the environment.
    """
    import subprocess

    data = orjson.dumps(heard)
    # A variable that is too long would keep the command from being run at all.
    fitting = data if len(data) <= MAX_ENVIRONMENT_BYTES else orjson.dumps(heard | short)
    environment = {**os.environ, variable: fitting.decode(), **variables}
    try:
        done = subprocess.run(command, shell=True, input=data + b"\n", env=environment, check=False)
    except OSError as error:
        print_notice(f"--exec: {one_line(command)} could not be run: {error.strerror}")
        return
    if done.returncode:
        about = " ".join(filter(None, (variables.get("CAPSULE_KIND"), variables["CAPSULE_ID"])))
        print_notice(
            f"--exec: {one_line(command)} failed for {about}: {exit_reason(done.returncode)}"
        )
