"""Report errors on stderr, and choose their exit code.

A `CapsuleError` and a `CommandStopped` are expected: their message is printed, and with --json an
object with the fields of the error. An error that has a remedy is printed with the command that
helps (`REMEDIES`).

What must stay true: no other module turns an error into a message in the terminal. Any other
exception is a bug and stays a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from capsule.errors import Action, CapsuleError, Remedy
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.output import CommandStopped, print_json_to_stderr, print_notice

#: The exit codes of a program that was ended by SIGINT, SIGPIPE or SIGTERM, as in a shell.
INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143

#: For each remedy an introduction and a command. `{}` stands for the id or path of the error.
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
        "update this Capsule; or run this with the newer one, and then delete those files:",
        "capsule doctor --flush",
    ),
    "migrate": ("run:", "capsule store migrate"),
    "repair": ("repair it first:", "capsule doctor --repair"),
    "conflicts": ("list the conflicts with:", "capsule git resolve --list"),
    "log": ("see its history with:", "capsule git log {}"),
    "set up git": ("run:", "capsule git setup"),
    "join histories": ("if they belong together:", "capsule git sync --allow-unrelated-histories"),
}


def ensure_streams() -> None:
    """Open /dev/null for each standard stream that the process was started without, as git does.

    Otherwise a document could be opened under the number of a standard stream, and output could be
    written into it.
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
    """Return whether the working directory was deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def print_error(message: str, code: int, kind: str, fields: dict[str, Any] | None = None) -> None:
    """Write an error to stderr as text. With --json, write one line with a JSON object.

    Args:
        message: The message of the error, which may have several lines.
        code: The exit code.
        kind: The name of the error's class.
        fields: Further fields of the object. They can't replace the code, the kind and the message.
    """
    if global_options.json:
        facts = {"code": code, "kind": kind, "message": message}
        print_json_to_stderr({"error": facts | (fields or {}) | facts})
    else:
        for line in message.replace("\r\n", "\n").split("\n"):
            print_notice(line)


def remedy_command(remedy: Remedy) -> str:
    """Return the command of a remedy, with its argument quoted for a shell."""
    import shlex

    return REMEDIES[remedy.action][1].format(shlex.quote(remedy.on))


def report_error(error: CapsuleError | CommandStopped) -> int:
    """Write an error to stderr, with the command that helps. Return its exit code."""
    message = error.message
    fields: dict[str, Any] = {}
    if isinstance(error, CapsuleError):
        fields = error.fields
        if remedy := error.remedy:
            message = f"{message}; {REMEDIES[remedy.action][0]} {remedy_command(remedy)}"
            fields = fields | {
                "remedy": {"action": remedy.action, "command": remedy_command(remedy)}
            }
    print_error(message, error.exit_code, type(error).__name__, fields)
    return error.exit_code


def exit_with_errors(errors: Sequence[CapsuleError]) -> None:
    """Print the errors of a command that did only a part of its work, and exit with the code of the
    first. Return if there are none.
    """
    for error in errors:
        report_error(error)
    if errors:
        import typer

        raise typer.Exit(errors[0].exit_code)
