"""Where errors end: on stderr, with their exit code.

What must stay true: this is the one place that turns an error into words for the terminal. A
`CapsuleError` is expected and printed in its own words; anything else is a bug and stays a
traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from capsule.errors import Action, CapsuleError, Remedy
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.output import CommandStopped, print_json_to_stderr, print_notice

#: What a shell reports for a program that SIGINT, SIGPIPE or SIGTERM ended.
INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143

#: What leads to a command that helps, and the command; `{}` is what it is done with.
REMEDIES: Final[dict[Action, tuple[str, str]]] = {
    "list": ("list them with:", "capsule list"),
    "show": ("read it, then try again:", "capsule show {}"),
    "messages": ("list its messages with:", "capsule show {} --json"),
    "new": ("make one with:", "capsule new"),
    "init": ("make one with:", "capsule init {}"),
    "move": ("move it with:", "capsule agent set {} --project DIR"),
    "unlock": ("wait, or run:", "capsule lock release {} --force"),
    "edit": ("make a new version of it with:", "capsule edit {} --which MESSAGE --beside"),
    "trash": ("list them with:", "capsule trash list"),
    "webhook": ("make it with:", "capsule worker webhook {}"),
    "copy": ("copy the store into files first:", "capsule copy {} DIR"),
    "update": (
        "update this one, or delete those files after you ran, with the newer one:",
        "capsule doctor --flush",
    ),
    "migrate": ("run:", "capsule store migrate"),
    "repair": ("repair it first:", "capsule doctor --repair"),
    "conflicts": ("list what there is with:", "capsule git resolve --list"),
    "log": ("see its history with:", "capsule git log {}"),
    "set up git": ("run:", "capsule git setup"),
    "join histories": ("if they belong together:", "capsule git sync --allow-unrelated-histories"),
}


def ensure_streams() -> None:
    """Give a process that was started without standard input, output or error ones that lead
    nowhere, as git does it.

    Nothing is lost that the caller wanted, and no document is opened under the number of a standard
    stream.
    """
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8", closefd=False))


def is_folder_deleted() -> bool:
    """Whether the working directory was deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def print_error(message: str, code: int, kind: str, fields: dict[str, Any] | None = None) -> None:
    """Write an error to stderr: in words, or as one line that holds a JSON object."""
    if global_options.json:
        facts = {"code": code, "kind": kind, "message": message}
        print_json_to_stderr({"error": facts | (fields or {}) | facts})
    else:
        for line in message.replace("\r\n", "\n").split("\n"):
            print_notice(line)


def remedy_command(remedy: Remedy) -> str:
    """The command that a remedy is."""
    import shlex

    return REMEDIES[remedy.action][1].format(shlex.quote(remedy.on))


def report_error(error: CapsuleError | CommandStopped) -> int:
    """Write `error` to stderr, with the command that helps. Returns: its exit code."""
    message, fields = error.message, {}
    if isinstance(error, CapsuleError):
        fields = error.fields
        if remedy := error.remedy:
            message = f"{message}; {REMEDIES[remedy.action][0]} {remedy_command(remedy)}"
            fields = fields | {
                "remedy": {"action": remedy.action, "command": remedy_command(remedy)}
            }
    print_error(message, error.exit_code, type(error).__name__, fields)
    return error.exit_code


def exit_with_errors(failed: Sequence[CapsuleError]) -> None:
    """Print the errors of what failed while the rest was done; the exit code is that of
    the first.
    """
    for failure in failed:
        report_error(failure)
    if failed:
        import typer

        raise typer.Exit(failed[0].exit_code)
