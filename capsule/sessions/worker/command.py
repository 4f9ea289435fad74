"""Runs the command of a worker: text in, text out, and nothing of it left behind.

What must stay true: the command and what it starts are one process group, which ends with the
command, with its time, and with the process that runs it, even if that is killed. For this a guard
leads the group: a shell that reads from a pipe which only this process holds open, and then kills
its own group. `PR_SET_PDEATHSIG` was not taken: it reaches the child alone, and only on Linux. What
left the group by itself (`setsid`) stays. The module knows no session.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

#: Exit codes after which another try is of no use: EX_DATAERR, and a shell's for a command that is
#: not there.
FOR_GOOD = frozenset({65, 126, 127})
#: The system has no room for another process or file now: EX_TEMPFAIL.
_FULL = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_GUARD = ("/bin/sh", "-c", 'trap "" HUP INT TERM; read -r _; kill -s KILL 0')
#: Seconds from SIGTERM to SIGKILL.
_GRACE_S = 5.0
#: A program that the command left behind may hold its output open: only then is the end of the
#: command looked for.
_LOOK_S = 1.0
_PIECE = 1 << 16
#: Bytes of stderr that are kept: its end.
_LAST = 2000


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended."""

    code: int  # Its exit code, or the negative number of the signal that ended it.
    out: str = ""  # What it wrote to stdout; bytes that are no UTF-8 are replaced.
    reason: str = ""  # Why it failed; empty: it did not.
    handed: str | None = None  # What it wrote to the file for it; None: nothing.


def run(
    words: Sequence[str],
    given: str,
    env: Mapping[str, str],
    *,
    folder: str | None,
    limit_s: float,
    most: int,
    hand: str,
    heard: Callable[[], None],
) -> CommandResult:
    """Run a command to its end.

    Args:
        words: The program, and its arguments.
        given: What it reads from stdin, if it does.
        env: Its environment.
        folder: Where it runs; None: here.
        limit_s: Seconds that it may take; then it gets SIGTERM, and SIGKILL five seconds later.
        most: Bytes that it may write to stdout; then it is ended, with the exit code 65.
        hand: The variable that names a file for what it hands back besides stdout, at most 64 KiB.
        heard: Called when it has written something. What it raises ends the command.

    Raises OSError if not even a guard can be started, and what `heard` raises. Cost: two processes.
    """
    nowhere = subprocess.DEVNULL
    with _file() as hands:
        # Not waited for until the end, the guard keeps its number: a signal to the group reaches no
        # other one.
        with subprocess.Popen(
            _GUARD, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, process_group=0
        ) as guard:
            try:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    cwd=folder,
                    env={**env, hand: f"/dev/fd/{hands.fileno()}"},
                    process_group=guard.pid,
                    pass_fds=(hands.fileno(),),
                )
            except (OSError, ValueError) as error:  # ValueError: a word holds a NUL.
                is_full = isinstance(error, OSError) and error.errno in _FULL
                return CommandResult(
                    75 if is_full else 127, reason=f"{words[0]} can't be run: {error}"
                )
            with process:
                try:
                    code, out, reason = _feed_and_read(
                        process, given, guard.pid, limit_s, most, heard
                    )
                finally:
                    os.killpg(guard.pid, signal.SIGKILL)
                    process.kill()
        # It goes into the environment of the next command, which takes no NUL, and no text twice as
        # long.
        handed = os.pread(hands.fileno(), _PIECE, 0).decode("utf-8", "ignore").replace("\0", "")
        return CommandResult(code, out, reason, handed or None)


def _file() -> IO[bytes]:
    """A new file without a name."""
    if hasattr(os, "memfd_create"):  # On Linux.
        return open(os.memfd_create("handed"), "rb")
    import tempfile  # It loads much, which a message would wait for.

    return tempfile.TemporaryFile()


def _feed_and_read(
    process: subprocess.Popen[bytes],
    given: str,
    group: int,
    limit_s: float,
    most: int,
    heard: Callable[[], None],
) -> tuple[int, str, str]:
    """Feed a command and read from it, until it has ended or has to; its exit code, its output, and
    what failed.
    """
    assert process.stdin
    assert process.stdout
    assert process.stderr
    left, out, error = memoryview(given.encode("utf-8", "replace")), bytearray(), b""
    ends, reason = time.monotonic() + limit_s, ""
    with selectors.DefaultSelector() as selector:
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        while True:
            has_ended = process.poll() is not None
            wait_s = 0 if has_ended else max(0.0, min(_LOOK_S, ends - time.monotonic()))
            if not selector.get_map():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(wait_s)
            ready = selector.select(wait_s if selector.get_map() else 0)
            if has_ended and not ready:
                break
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    try:
                        left = left[os.write(key.fd, left[:_PIECE]) :]
                    except BrokenPipeError:  # It does not read, or not all.
                        left = left[:0]
                    if left:
                        continue
                elif piece := os.read(key.fd, _PIECE):
                    heard()
                    if key.fileobj is process.stdout:
                        out += piece
                    else:
                        error = (error + piece)[-_LAST:]
                    continue
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
            if len(out) > most:
                return 65, "", f"it wrote more than {most} bytes"
            if time.monotonic() >= ends and not has_ended:
                if reason:
                    break
                reason = f"it took longer than {limit_s:g} s"
                os.killpg(group, signal.SIGTERM)
                ends += _GRACE_S
    code = process.poll()
    code = -signal.SIGKILL if code is None else code
    said = error.decode("utf-8", "replace").strip()
    if code and not reason:
        names = {number.value: number.name for number in signal.Signals}
        reason = (
            f"exit code {code}" if code > 0 else f"ended by {names.get(-code, f'signal {-code}')}"
        )
    return code, out.decode("utf-8", "replace"), reason and f"{reason}: {said}" if said else reason
