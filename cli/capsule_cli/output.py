"""Everything that goes to stdout and stderr.

What must stay true: no control character that stands in a file reaches a terminal through here (newline and tab
excepted); what a program reads is UTF-8, whatever the locale. rich is imported only to write to a terminal.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from capsule.format.shown import one_line, shown

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Stopped",
    "console",
    "in_terminal",
    "one_line",
    "out",
    "out_bytes",
    "out_json",
    "out_json_bytes",
    "out_json_line",
    "out_rows",
    "progress",
    "quiet_stdout",
    "say",
    "short_ids",
    "short_time",
    "shown",
    "table",
]

_IN_JSON = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Stopped(Exception):
    """The command did not do what was asked, though nothing of the store failed.

    Args:
        message: What happened, and the way out.
        exit_code: The program's exit code.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


def in_terminal() -> bool:
    """Whether a person reads stdout."""
    return sys.stdout.isatty()


def say(text: str) -> None:
    """A word to the person, on stderr."""
    sys.stderr.write(f"capsule: {text}\n")
    sys.stderr.flush()


def out_bytes(data: bytes) -> None:
    """Bytes to stdout, as they are.

    Raises:
        BrokenPipeError: Nobody reads it.
        Stopped: It can't be written, to a full disk for example.
    """
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        quiet_stdout()
        raise Stopped(f"the output can't be written: {error.strerror}") from None


def quiet_stdout() -> None:
    """Let what is still to be written to stdout go nowhere: its reader has left, or can't take it."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)


def out(text: str) -> None:
    """A text and a newline to stdout; the caller has made it fit to be shown."""
    out_bytes(f"{text}\n".encode("utf-8", "backslashreplace"))


def out_json(value: Any) -> None:
    """A JSON document to stdout, in the layout of the store's files."""
    import orjson

    out_json_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def out_json_line(value: Any) -> None:
    """A JSON document to stdout, in one line."""
    import orjson

    out_json_bytes(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))


def out_json_bytes(data: bytes) -> None:
    """An encoded JSON document to stdout; in a terminal what could command it is escaped, which changes no value."""
    if in_terminal():
        data = _IN_JSON.sub(lambda match: f"\\u{ord(match.group()):04x}", data.decode()).encode()
    out_bytes(data)


def console() -> Console:
    """rich's console on stdout; nothing in what it prints is taken for markup, emoji names or numbers to colour."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, wide: str = "title") -> None:
    """A table: drawn in a terminal, else a line a row and a tab between the columns, without a header.

    Args:
        columns: The names of the columns.
        rows: Texts, as they stand in the files.
        wide: The column that takes the space there is; the others keep theirs.
    """
    if not in_terminal():
        out_rows(rows)
        return
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        drawn.add_column(name.upper(), no_wrap=name != wide, overflow="ellipsis" if name != wide else "fold")
    for row in rows:
        drawn.add_row(*(Text(one_line(cell)) for cell in row))
    if drawn.row_count:
        console().print(drawn)


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Beginnings that tell these ids apart, of 8 characters or more, for a person to read and to type."""
    known = set(ids)
    length = next(n for n in range(8, 130) if len({id[:n] for id in known}) == len(known))
    return {id: id[:length] for id in known}


def short_time(text: str) -> str:
    """A time for a table: to the minute for a person, else as it stands in the file."""
    return text[:16].replace("T", " ") if in_terminal() else text


def out_rows(rows: Iterable[Sequence[str]]) -> None:
    """Rows to stdout, a line each, a tab between the columns."""
    out_bytes(
        "".join("\t".join(map(one_line, row)) + "\n" for row in rows).encode("utf-8", "backslashreplace"),
    )


@contextmanager
def progress(what: str, after_s: float = 0.0) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr while the body runs; nothing when stderr is no terminal.

    Args:
        what: What is being done.
        after_s: The bar is for work that takes longer than so many seconds.

    Yields:
        What takes how much is done, and of how much; None when there is no bar.
    """
    if not sys.stderr.isatty():
        yield None
        return
    bar: Any = None
    begun = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            if time.monotonic() - begun < after_s:
                return
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            bar.add_task(what, total=total)
            bar.start()
        bar.update(0, completed=done, total=total)

    try:
        yield tell
    finally:
        if bar is not None:
            bar.stop()
