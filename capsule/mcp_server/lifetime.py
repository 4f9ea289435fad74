"""How a server process ends: one way out, whoever asks for it.

What must stay true: once the end has begun, the locks are given back at once, beside whatever else still runs; the
process is gone at the deadline, though a thread hangs in a call that can't be cancelled; and nothing depends on that
for safety, as the kernel frees the instance file of a process that was killed, which is how its locks are known to
be dead.

`finally` blocks don't run when a signal ends a process, and a handler in Python runs only when the main thread comes
to it. So the interpreter's own C handler writes the signal's number into a socket, and a thread waits at the other end.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

__all__ = ["INTERRUPTED", "RELEASE_S", "Lifetime", "own_stdout"]

_log = logging.getLogger("capsule")

#: The exit code after SIGINT. After end of file, SIGTERM or SIGHUP it is 0: that is how a server is stopped.
INTERRUPTED = 130
#: How long the locks may take to be given back when a signal ends the process, in seconds, before it goes without;
#: who sends one sends SIGKILL soon after.
RELEASE_S = 0.05
#: And when nobody is in a hurry.
_AT_LEISURE_S = 1.0

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]


def own_stdout() -> int:
    """Take stdout for the protocol: whatever else is written to descriptor 1 goes to stderr from here on.

    The SDK does that while it serves; importing it, and what a store says before, come earlier.
    """
    sys.stdout.flush()
    mine = os.dup(1)
    try:
        os.dup2(2, 1)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    return mine


class Lifetime:
    """The end of a server process.

    Args:
        release: Gives the locks back; may be called more than once, and while requests are being served.
        close: Closes the stores. Called once, when nothing is served any more, or nobody waits for it.
        stop: Asks the server to end by itself, from another thread; None: a signal ends the process as soon as the
            locks are released.
        deadline_s: Seconds from the beginning of the end to the process being gone.
    """

    def __init__(
        self,
        release: Callable[[], None],
        close: Callable[[], None],
        *,
        stop: Callable[[], object] | None = None,
        deadline_s: float = 2.0,
    ) -> None:
        self._release = release
        self._close = close
        self._stop = stop
        self._deadline_s = deadline_s
        self._guard = threading.Lock()
        self._code: int | None = None
        self._signalled = False

    def listen(self) -> None:
        """From here on signals end the process this way. For the main thread, before it begins to serve."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        for number in _SIGNALS:
            signal.signal(number, _noticed)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._sockets = (reader, writer)
        threading.Thread(target=self._watch, args=(reader,), name="capsule-signals", daemon=True).start()

    def _watch(self, reader: socket.socket) -> None:
        while numbers := reader.recv(64):
            for number in numbers:
                if number in _SIGNALS:
                    self._on_signal(number)

    def _on_signal(self, number: int) -> None:
        if self._signalled:
            os._exit(128 + number)
        self._signalled = True
        code = INTERRUPTED if number == signal.SIGINT else 0
        if self._stop is None:
            self._begin_with(code)
            self.finish()
        self.begin(code)
        self._stop()

    def begin(self, code: int = 0) -> None:
        """The end has begun: the locks are released beside what still runs, and the deadline runs."""
        if self._begin_with(code):
            _beside(self._release)
            deadline = threading.Timer(self._deadline_s, lambda: _exit(self._code or 0))
            deadline.daemon = True
            deadline.start()

    def _begin_with(self, code: int) -> bool:
        with self._guard:
            first = self._code is None
            # A signal that comes after the end of file does not make a failure of it, nor the other way round.
            self._code = code if first else self._code
            return first

    def finish(self, code: int = 0) -> NoReturn:
        """Release the locks, close the stores, and end the process, though either take longer than they may."""
        self._begin_with(code)
        _beside(self._let_go).join(RELEASE_S if self._signalled and self._stop is None else _AT_LEISURE_S)
        _exit(self._code or 0)

    def _let_go(self) -> None:
        self._release()
        self._close()


def _beside(work: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        except Exception:
            # The process ends all the same, and the locks with it.
            _log.exception("the end of the server was not as it should be")

    thread = threading.Thread(target=run, name="capsule-end", daemon=True)
    thread.start()
    return thread


def _exit(code: int) -> NoReturn:
    with suppress(Exception):
        sys.stderr.flush()
    os._exit(code)


def _noticed(number: int, frame: object) -> None:
    """What had to be done was done in C: the number is in the socket."""
