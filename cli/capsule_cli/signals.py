"""Handle SIGINT and SIGTERM in commands. The server handles them in
`capsule.mcp_server.transport.process`.

A command that holds a lock or has started a program runs in a `SignalGuard`. The guard raises
KeyboardInterrupt or SystemExit, so that the command is unwound. Work in steps is interrupted only
between two steps, or in a step that waits for the network. A command that only reads ends at once
(`end_at_once`).

What must stay true: an interrupted command leaves neither a lock nor a program behind. A second
signal ends the command at once.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

from capsule_cli.error_output import INTERRUPTED, TERMINATED

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
