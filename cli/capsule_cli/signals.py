"""What SIGINT and SIGTERM do to a command; the server has its own way,
`capsule.mcp_server.transport.process_exit`.

What must stay true: a command that holds something is unwound, so that it leaves no lock and no
program behind; work in steps is ended between two steps, and within one only where the network is
waited for; and the second signal waits for nothing.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

from capsule_cli.error_output import INTERRUPTED, TERMINATED

#: Steps that wait for somebody else, and leave nothing half done.
_PATIENT = frozenset({"fetch", "push"})
#: Python drops an exception where it can't be raised, as while a module is imported: it is raised
#: once more then.
_AGAIN_S = 0.2


class SignalGuard:
    """While the body of a `with` runs, a signal unwinds it: at once, or between steps when it has
    some.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._asked = 0
        self._careful = False

    def __enter__(self) -> Self:
        numbers = [
            getattr(signal, name)
            for name in ("SIGINT", "SIGTERM", "SIGALRM")
            if hasattr(signal, name)
        ]
        self._before = {number: signal.signal(number, self._hear) for number in numbers}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        _alarm(0)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None or (self._asked and issubclass(kind, Exception)):
            # A git that the same Ctrl-C ended has failed; that isn't news.
            self._end_if_asked()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        again = self._asked != 0
        self._asked = self._asked or number
        if again or not self._careful:
            _alarm(_AGAIN_S)
            self._end_if_asked()

    def _end_if_asked(self) -> None:
        if self._asked == signal.SIGINT:
            raise KeyboardInterrupt
        if self._asked:
            raise SystemExit(TERMINATED)

    def step(self, name: str) -> None:
        """Begin a step: end now if a signal came, else let no signal interrupt it, unless it waits
        for others.
        """
        self._careful = False
        self._end_if_asked()
        self._careful = name not in _PATIENT

    def busy(self) -> None:
        """Let no signal interrupt what comes next."""
        self._end_if_asked()
        self._careful = True

    def finish(self) -> None:
        """Let only a second signal interrupt what is left to do."""
        _alarm(0)
        self._careful = True

    def rest(self) -> None:
        """End the steps: from here on a signal ends the command at once."""
        self._careful = False
        self._end_if_asked()


def _alarm(after_s: float) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, after_s)


def end_at_once() -> None:
    """Let SIGINT and SIGTERM end the process where it stands: for a command that holds nothing and
    only reads.
    """
    codes = {int(signal.SIGINT): INTERRUPTED, int(signal.SIGTERM): TERMINATED}
    for number in codes:
        signal.signal(number, lambda number, frame: os._exit(codes[number]))
