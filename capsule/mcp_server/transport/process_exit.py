"""End a server process: one way out, over stdio and over HTTP.

What must stay true: the locks are released before the process ends, unless that takes too long. The
process ends even if one of its threads hangs in a call that cannot be cancelled. Safety depends on
neither: the kernel frees the instance file of a process that has ended, and other processes then
know that its locks are dead.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, NoReturn

import anyio
from anyio.abc import TaskStatus

_log = logging.getLogger("capsule")

#: The exit code after SIGINT. After SIGTERM, SIGHUP or the end of input it is 0, because a server is
#: stopped that way.
INTERRUPTED = 130
#: Seconds for the release of the locks.
_RELEASE_S = 0.5
_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
    if hasattr(signal, name)
]


def claim_stdio() -> tuple[BinaryIO, int]:
    """Take stdin and stdout for the protocol. Return them.

    From then on, output to descriptor 1 goes to stderr, and a child process gets an empty stdin.
    """
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        stdin = os.dup(0)
    except OSError:  # The parent process started this one without stdin.
        stdin = os.dup(null)
    stdout = os.dup(1)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:
        os.dup2(null, 1)
    os.close(null)
    return os.fdopen(stdin, "rb"), stdout


async def call_on_signal(
    end: Callable[[int], object], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Call `end` with the exit code when a signal asks the process to end. A second signal ends it
    at once.
    """
    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        task_status.started()
        is_ending = False
        async for number in signals:
            if is_ending:
                os._exit(128 + number)
            is_ending = True
            end(INTERRUPTED if number == signal.SIGINT else 0)


def run_in_daemon_thread(function: Callable[[], None]) -> threading.Thread:
    """Run a function in a thread that does not keep the process alive. An error is logged."""

    def run() -> None:
        try:
            function()
        except Exception:
            _log.exception("the server did not end properly")

    thread = threading.Thread(target=run, name="capsule-end", daemon=True)
    thread.start()
    return thread


def finish(code: int, close: Callable[[], None]) -> NoReturn:
    """Release the locks and close the stores for at most `_RELEASE_S`, then end the process."""
    run_in_daemon_thread(close).join(_RELEASE_S)
    with suppress(Exception):
        sys.stderr.flush()
    os._exit(code)
