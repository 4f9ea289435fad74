"""What comes in: texts from the command line, a file or standard input, and a person's word before
something goes.

What must stay true: what is not UTF-8 is refused by name and byte, and never read as something
else; and nothing goes that one command can't bring back, unless somebody said so.
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
    """The text of a message: `text`, else the file's, else that of standard input (`-` names it
    too).

    Raises:
        typer.BadParameter: Both are given, or the text is empty.
        InvalidInput, NotFound, Refused, StorageFailed: The file can't be read, or is not valid UTF-8.
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
    """A file's bytes.

    Raises:
        NotFound, Refused, StorageFailed: It isn't there, or can't be read.
        InvalidInput: It is no file: a directory, a device, a pipe that nobody may ever write to.
    """
    try:
        # Not blocking, so that a pipe in a file's place is refused and not waited for.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        with open(fd, "rb") as file:
            # A shell's <(command) is a pipe with a writer: those stand in /dev/fd, and are read to
            # their end.
            if not stat.S_ISREG(os.fstat(fd).st_mode) and not path.startswith(
                ("/dev/fd/", "/proc/self/fd/")
            ):
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
        why = getattr(error, "strerror", None) or error
        raise StorageFailed(
            f"{path} can't be read: {why}", path=path, errno=getattr(error, "errno", None)
        ) from None


def decode_text(data: bytes, name: str) -> str:
    """Bytes as the UTF-8 that they are, without the last line end. Raises InvalidInput, with `name`
    and the byte.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{name}: byte {error.start} (0x{data[error.start]:02x}) is not valid UTF-8; save the text "
            "as UTF-8"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def ensure_confirmed(*questions: str, yes: bool, has_undo: bool = False) -> None:
    """Return when whoever runs the command agrees.

    A person at a terminal is always asked, unless they said `--yes`. Where nobody can be asked,
    what one command brings back goes ahead; all else demands `--yes`, as an agent's shell looks
    like that too.

    Args:
        questions: What is asked, one after the other.
        yes: Whether they said `--yes`.
        has_undo: Whether it is undone by one command that is named in the output.

    Raises:
        Stopped: The person said no.
        typer.BadParameter: Nobody can be asked.
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
