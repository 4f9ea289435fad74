"""Other programs, run for what they write.

What must stay true: what a program writes counts only when it ended well; it never outlives the command by more than
it takes to end it; and what it says on stderr, and asks on the terminal, reaches the person.
"""

from __future__ import annotations

import subprocess
import tempfile

from capsule.errors import InvalidInput
from capsule_cli.shared.output import Stopped
from capsule_cli.signals import Ending

#: Seconds that a program has to end itself, before it is ended.
_GRACE_S = 5


def written_by(command: str, given: bytes, limit: int) -> bytes:
    """What a command line writes to its standard output.

    It is run by the shell, in the same group of processes as this one, so that Ctrl-C ends both.

    Args:
        command: The command line.
        given: What it finds on its standard input; it need not read it.
        limit: So many bytes are taken at most.

    Raises:
        Stopped: It failed, or could not be run.
        InvalidInput: It wrote more.
    """
    with tempfile.TemporaryFile() as source, Ending():
        source.write(given)
        source.seek(0)
        try:
            program = subprocess.Popen(command, shell=True, stdin=source, stdout=subprocess.PIPE)
        except (OSError, ValueError) as error:
            raise Stopped(f"the shell can't run --command: {error}") from None
        try:
            assert program.stdout is not None
            written = program.stdout.read(limit + 1)
            if len(written) > limit:
                raise InvalidInput(
                    f"--command wrote more than {limit:,} bytes, the largest message that the store takes "
                    "(limits.message_bytes in capsule.toml); nothing was made"
                )
            code = program.wait()
        finally:
            _end(program)
    if code:
        how = f"failed with exit code {code}" if code > 0 else f"was ended by signal {-code}"
        raise Stopped(f"--command {how}; nothing was made. It was: {command}")
    return written


def _end(program: subprocess.Popen[bytes]) -> None:
    """End a program that is still running, politely at first."""
    if program.stdout is not None:
        program.stdout.close()
    if program.poll() is None:
        program.terminate()
        try:
            program.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
