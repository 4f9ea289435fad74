"""Run the command of a worker: text in, text out, and no process left behind.

The command and the processes that it starts are one process group. A guard leads the group: a shell
that reads from a pipe which only this process holds open, and then kills its own group. So the
group ends with the command, at its time limit, and with this process, even if this process is
killed. `PR_SET_PDEATHSIG` was rejected: it reaches only the child itself, and only on Linux.

What must stay true: no process of the group outlives `run`. A process that left the group by itself
(`setsid`) is out of reach. The module knows no session.
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

#: The exit code EX_DATAERR: the input cannot be answered.
_DATA_ERROR = 65
#: The exit code EX_TEMPFAIL: another try may succeed.
_TEMPORARY_FAILURE = 75
#: The exit codes of a shell for a command that cannot be executed, or is not found.
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127
#: Exit codes after which another try is of no use.
FOR_GOOD = frozenset({_DATA_ERROR, _NOT_EXECUTABLE, _NOT_FOUND})
#: The system has no room for another process or file at this time.
_OUT_OF_RESOURCES = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_GUARD = ("/bin/sh", "-c", 'trap "" HUP INT TERM; read -r _; kill -s KILL 0')
#: Seconds from SIGTERM to SIGKILL.
_GRACE_S = 5.0
#: Seconds between two checks whether the command has ended. Its pipes do not tell: a program that
#: it left behind may hold them open.
_CHECK_S = 1.0
#: Bytes that are read or written at once.
_CHUNK_BYTES = 1 << 16
#: Bytes of the end of stderr that are kept for the error.
_MAX_ERROR_BYTES = 2000


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The end of a command.

    Attributes:
        code: The exit code, or the negative number of the signal that ended it.
        output: Its stdout. Bytes that are not UTF-8 are replaced.
        reason: Why it failed, in words. Empty: it did not.
        continuation: The text that it wrote to the file for the next run. None: nothing.
    """

    code: int
    output: str = ""
    reason: str = ""
    continuation: str | None = None


def run(
    words: Sequence[str],
    input_text: str,
    env: Mapping[str, str],
    *,
    folder: str | None,
    limit_s: float,
    max_bytes: int,
    continuation_variable: str,
    on_output: Callable[[], None],
) -> CommandResult:
    """Run a command to its end.

    Args:
        words: The program and its arguments.
        input_text: The text for its stdin.
        env: Its environment.
        folder: Its working directory. None: the current one.
        limit_s: Seconds after which it gets SIGTERM, and five seconds later SIGKILL.
        max_bytes: Bytes that it may write to stdout. A command that writes more is killed, and its
            exit code is 65.
        continuation_variable: The environment variable that names a file for the command. It may
            write a text of at most 64 KiB there for its next run.
        on_output: Called after each read of output. An exception that it raises ends the command.

    Raises OSError if not even the guard can be started, and the exceptions of `on_output`.
    Cost: two processes.
    """
    with _nameless_file() as continuation_file:
        # The guard is reaped last. Until then its process id cannot be reused, so killing the group
        # cannot hit another process.
        with subprocess.Popen(
            _GUARD,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        ) as guard:
            file_name = f"/dev/fd/{continuation_file.fileno()}"
            try:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    cwd=folder,
                    env={**env, continuation_variable: file_name},
                    process_group=guard.pid,
                    pass_fds=(continuation_file.fileno(),),
                )
            except (OSError, ValueError) as error:  # ValueError: a word has a NUL.
                code = _NOT_FOUND
                if isinstance(error, OSError) and error.errno in _OUT_OF_RESOURCES:
                    code = _TEMPORARY_FAILURE
                return CommandResult(code, reason=f"{words[0]} can't be run: {error}")
            with process:
                try:
                    result = _feed_and_read(
                        process, input_text, guard.pid, limit_s, max_bytes, on_output
                    )
                finally:
                    os.killpg(guard.pid, signal.SIGKILL)
                    process.kill()
        data = os.pread(continuation_file.fileno(), _CHUNK_BYTES, 0)
        # It becomes an environment variable of the next command, which cannot have a NUL, nor be
        # much longer.
        continuation = data.decode("utf-8", "ignore").replace("\0", "")
        return CommandResult(
            code=result.code,
            output=result.output,
            reason=result.reason,
            continuation=continuation or None,
        )


def _nameless_file() -> IO[bytes]:
    """Open a new file that has no name in a directory."""
    if hasattr(os, "memfd_create"):  # On Linux.
        return open(os.memfd_create("handed"), "rb")
    import tempfile  # It imports much, for which a message would have to wait.

    return tempfile.TemporaryFile()


class _Pipes:
    """The pipes of a running command: stdin is fed, and stdout and stderr are collected.

    Args:
        selector: An empty selector, which the caller closes.
        process: The process of the command, with three pipes.
        input_text: The text for stdin.
        on_output: Called after each read of output.

    Attributes:
        output: The bytes of stdout.
        error_output: The last bytes of stderr.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        process: subprocess.Popen[bytes],
        input_text: str,
        on_output: Callable[[], None],
    ) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self.output = bytearray()
        self.error_output = b""
        self._process = process
        self._unwritten_input = memoryview(input_text.encode("utf-8", "replace"))
        self._on_output = on_output
        self._selector = selector
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)

    def transfer(self, wait_s: float) -> bool:
        """Wait until a pipe is ready, at most `wait_s` seconds, and read and write what is
        possible. If all pipes are closed, wait for the end of the process instead.

        Returns:
            Whether a pipe was ready.
        """
        if not self._selector.get_map():
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
            return False
        ready = self._selector.select(wait_s)
        for key, _ in ready:
            if key.fileobj is self._process.stdin:
                is_open = self._write_input(key.fd)
            else:
                is_open = self._read_output(key)
            if not is_open:
                self._selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
        return bool(ready)

    def _write_input(self, fd: int) -> bool:
        """Write a chunk of the input. Return whether more is to be written."""
        try:
            written_bytes = os.write(fd, self._unwritten_input[:_CHUNK_BYTES])
            self._unwritten_input = self._unwritten_input[written_bytes:]
        except BrokenPipeError:  # The command does not read the rest of its input.
            return False
        return len(self._unwritten_input) > 0

    def _read_output(self, key: selectors.SelectorKey) -> bool:
        """Read a chunk of stdout or stderr. Return whether the pipe is still open."""
        chunk = os.read(key.fd, _CHUNK_BYTES)
        if not chunk:
            return False
        self._on_output()
        if key.fileobj is self._process.stdout:
            self.output += chunk
        else:
            self.error_output = (self.error_output + chunk)[-_MAX_ERROR_BYTES:]
        return True


def _feed_and_read(
    process: subprocess.Popen[bytes],
    input_text: str,
    group: int,
    limit_s: float,
    max_bytes: int,
    on_output: Callable[[], None],
) -> CommandResult:
    """Serve the pipes of a command until it ends, writes too much, or ignores SIGTERM.

    The caller kills the process group `group` afterwards.
    """
    deadline = time.monotonic() + limit_s
    timeout_reason = ""
    with selectors.DefaultSelector() as selector:
        pipes = _Pipes(selector, process, input_text, on_output)
        while True:
            has_ended = process.poll() is not None
            wait_s = 0.0
            if not has_ended:
                wait_s = max(0.0, min(_CHECK_S, deadline - time.monotonic()))
            was_ready = pipes.transfer(wait_s)
            if has_ended and not was_ready:  # Everything that it wrote has been read.
                break
            if len(pipes.output) > max_bytes:
                return CommandResult(_DATA_ERROR, reason=f"it wrote more than {max_bytes} bytes")
            if has_ended or time.monotonic() < deadline:
                continue
            if timeout_reason:  # It ignored SIGTERM.
                break
            timeout_reason = f"it took longer than {limit_s:g} s"
            os.killpg(group, signal.SIGTERM)
            deadline += _GRACE_S
    code = process.poll()
    if code is None:
        code = -signal.SIGKILL
    reason = timeout_reason or _failure_of(code)
    error_text = pipes.error_output.decode("utf-8", "replace").strip()
    if reason and error_text:
        reason = f"{reason}: {error_text}"
    return CommandResult(code, output=pipes.output.decode("utf-8", "replace"), reason=reason)


def _failure_of(code: int) -> str:
    """Return an exit code in words. Empty: it means success."""
    if code > 0:
        return f"exit code {code}"
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"ended by {names.get(-code, f'signal {-code}')}"
    return ""
