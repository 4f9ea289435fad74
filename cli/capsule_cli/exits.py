"""End a command: report its errors, choose its exit code, and unwind it at a signal.

A `CapsuleError` and a `CommandStopped` are expected: their message is printed on stderr, and with
--json an object with the fields of the error. An error that has a remedy is printed with the command
that helps (`REMEDIES`).

A command that holds a lock or has started a program runs in a `SignalGuard`. The guard raises
KeyboardInterrupt or SystemExit, so that the command is unwound. Work in steps is interrupted only
between two steps, or in a step that waits for the network. A command that only reads ends at once
(`end_at_once`). A server ends otherwise (`capsule.mcp_server.transport.process`).

What must stay true: no other module turns an error into a message in the terminal. Any other
exception is a bug and stays a traceback. An interrupted command leaves neither a lock nor a program
behind. A second signal ends the command at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Final, Self

from capsule.errors import Action, CapsuleError, Remedy
from capsule_cli.shared.output import (
    CommandStopped,
    global_options,
    print_json_to_stderr,
    print_notice,
)

# -- Errors ----------------------------------------------------------------------------------------

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


# -- Signals ---------------------------------------------------------------------------------------

#: Steps that wait for the network. A signal may interrupt them, because they leave nothing half done.
_INTERRUPTIBLE_STEPS = frozenset({"fetch", "push"})
#: Seconds after which the exception is raised once more. Python drops an exception that a signal
#: handler raises in some places, such as the import of a module.
_RAISE_AGAIN_S = 0.2


class SignalGuard:
    """While the body of the `with` runs, a signal unwinds it: at once, or after the current step."""

    def __init__(self) -> None:
        #: The handlers that the guard replaced, by the number of the signal.
        self._old_handlers: dict[int, Any] = {}
        #: The first signal that came. 0: none came.
        self._signal = 0
        #: Whether a signal has to wait for the end of the step.
        self._is_deferring = False

    def __enter__(self) -> Self:
        numbers = [
            getattr(signal, name)
            for name in ("SIGINT", "SIGTERM", "SIGALRM")
            if hasattr(signal, name)
        ]
        self._old_handlers = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _alarm(0)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        if kind is None or (self._signal and issubclass(kind, Exception)):
            # The same Ctrl-C may have ended a git: its failure is not reported.
            self._raise_if_signalled()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_second = self._signal != 0
        self._signal = self._signal or number
        if is_second or not self._is_deferring:
            _alarm(_RAISE_AGAIN_S)
            self._raise_if_signalled()

    def _raise_if_signalled(self) -> None:
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self._signal:
            raise SystemExit(TERMINATED)

    def step(self, name: str) -> None:
        """Begin a step. If a signal came, end now. During the step signals are deferred, unless it
        waits for the network.
        """
        self._is_deferring = False
        self._raise_if_signalled()
        self._is_deferring = name not in _INTERRUPTIBLE_STEPS

    def defer_signals(self) -> None:
        """Let no signal interrupt the following code. If a signal came, end now."""
        self._raise_if_signalled()
        self._is_deferring = True

    def finish(self) -> None:
        """Let only a second signal interrupt the last work of a command that ends."""
        _alarm(0)
        self._is_deferring = True

    def allow_signals(self) -> None:
        """Let a signal end the command at once from here on. If a signal came, end now."""
        self._is_deferring = False
        self._raise_if_signalled()


def _alarm(delay_s: float) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, delay_s)


def end_at_once() -> None:
    """Let SIGINT and SIGTERM end the process at once. For a command that holds nothing and only
    reads.
    """
    codes = {int(signal.SIGINT): INTERRUPTED, int(signal.SIGTERM): TERMINATED}
    for number in codes:
        signal.signal(number, lambda number, frame: os._exit(codes[number]))
