"""Read texts from the command line, a file or standard input, and ask a person for consent.

What must stay true: text of a file or of standard input that is not UTF-8 is refused, with the name
of its source and the position of the byte. `capsule_cli.app` checks the arguments.
A command that can't be undone by one command calls `ensure_confirmed` before it acts.
"""

from __future__ import annotations

import os
import stat
import sys

from capsule.errors import InvalidInput, NotFound, Refused, StorageFailed
from capsule_cli.shared.options import refuse_if, usage_error
from capsule_cli.shared.output import CommandStopped, print_notice

STDIN = "standard input"


def message_text(text: str | None, file: str | None) -> str:
    """Return the text of a message: `text`, else the text of the file, else standard input. `-` is
    standard input too.

    Raises:
        typer.BadParameter: Both are given, or the text is empty.
        InvalidInput, NotFound, Refused, StorageFailed: The file can't be read, or is not valid
            UTF-8.
    """
    refuse_if(text is not None and file is not None, "give the text or --file, not both", "--file")
    if file is not None and file != "-":
        content = decode_text(read_file(file), file)
    elif text is None or text == "-" or file == "-":
        if sys.stdin.isatty():
            print_notice("type the message, and end it with Ctrl-D on a line of its own")
        content = decode_text(sys.stdin.buffer.read(), STDIN)
    else:
        content = text
    refuse_if(
        not content.strip(),
        "the message is empty; give a text, or write it to standard input",
        "TEXT",
    )
    return content


def read_file(path: str) -> bytes:
    """Return the bytes of a file.

    Raises:
        NotFound, Refused, StorageFailed: It does not exist, or can't be read.
        InvalidInput: It is not a regular file, but a directory, a device or a pipe.
    """
    try:
        # Without blocking, so that a pipe is refused instead of waited for.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        with open(fd, "rb") as file:
            # A shell passes <(command) as a pipe in /dev/fd. It has a writer, so it ends.
            may_be_pipe_of_shell = path.startswith(("/dev/fd/", "/proc/self/fd/"))
            if not stat.S_ISREG(os.fstat(fd).st_mode) and not may_be_pipe_of_shell:
                raise InvalidInput(
                    f"{path} is not a regular file; name a file, or use standard input"
                )
            os.set_blocking(fd, True)
            return file.read()
    except IsADirectoryError:
        raise InvalidInput(f"{path} is a directory; name a file") from None
    except FileNotFoundError:
        raise NotFound(f"{path}: there is no such file", id=path) from None
    except PermissionError:
        raise Refused(f"{path} can't be read: permission denied", path=path) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageFailed(
            f"{path} can't be read: {reason}", path=path, errno=getattr(error, "errno", None)
        ) from None


def decode_text(data: bytes, name: str) -> str:
    """Return bytes as text, without a byte order mark at the beginning and the last line end.

    Raises InvalidInput: they are not valid UTF-8. The message has `name` and the position.
    """
    try:
        # Not as utf-8-sig, which counts the position of an error from behind the mark.
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{name}: byte {error.start} (0x{data[error.start]:02x}) is not valid UTF-8; save the text "
            "as UTF-8"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def ensure_confirmed(*questions: str, yes: bool, has_undo: bool = False) -> None:
    """Return if the user, or the agent, who runs the command agrees to its effect.

    A person at a terminal is asked, unless `--yes` was given. Without a terminal, an effect that
    one command undoes is permitted, and any other needs `--yes`: an agent's shell has no terminal
    either.

    Args:
        questions: The questions, asked one after the other.
        yes: Whether `--yes` was given.
        has_undo: Whether one command undoes the effect, and the output names it.

    Raises:
        CommandStopped: The person answered no.
        typer.BadParameter: There is nobody to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        if has_undo:
            return
        raise usage_error(f"{questions[0]} There is no terminal to ask, so add --yes", "--yes")
    import typer

    for question in questions:
        if not typer.confirm(question, err=True):
            raise CommandStopped("nothing was changed")
