"""Where errors end: on stderr, with their exit code.

What must stay true: this is the one place that turns an error into words for the terminal. A `CapsuleError` is
expected and told in its own words; anything else is a bug and stays a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from capsule.errors import CapsuleError
from capsule_cli.shared.asked import asked
from capsule_cli.shared.output import Stopped, say, to_stderr

#: What a shell reports for a program that SIGINT, SIGPIPE or SIGTERM ended.
INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143


def ensure_streams() -> None:
    """Give a process that was started without standard input, output or error ones that lead nowhere, as git does it.

    Nothing is lost that the caller wanted, and no document is opened under the number of a standard stream.
    """
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8", closefd=False))


def is_nowhere() -> bool:
    """Whether the working directory was deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def report(message: str, code: int, kind: str, fields: dict[str, Any] | None = None) -> None:
    """Tell an error on stderr: in words, or as one line that holds a JSON object."""
    if asked.json:
        told = {"code": code, "kind": kind, "message": message}
        to_stderr({"error": told | (fields or {}) | told})
    else:
        for line in message.replace("\r\n", "\n").split("\n"):
            say(line)


def report_error(error: CapsuleError | Stopped) -> int:
    """Tell `error` on stderr. Returns: its exit code."""
    fields = error.fields if isinstance(error, CapsuleError) else None
    report(error.message, error.exit_code, type(error).__name__, fields)
    return error.exit_code


def end_with(failed: Sequence[CapsuleError]) -> None:
    """Tell the errors of what failed while the rest was done; the exit code is that of the first."""
    for failure in failed:
        report_error(failure)
    if failed:
        raise typer.Exit(failed[0].exit_code)
