"""Everything that goes to stdout and stderr.

What must stay true: no control character that stands in a file reaches a terminal through here (newline and tab
excepted); what a program reads is UTF-8, whatever the locale. rich is imported only to write to a terminal.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from capsule import timestamps
from capsule.format.text.shown import one_line as one_line
from capsule.format.text.shown import shown as shown
from capsule_cli.shared.asked import asked

if TYPE_CHECKING:
    from rich.console import Console


T = TypeVar("T")

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
    """A word to the person, on stderr; with `--json` a warning."""
    if asked.json:
        to_stderr({"warning": text})
    else:
        sys.stderr.write(f"capsule: {shown(text)}\n")
        sys.stderr.flush()


def to_stderr(value: dict[str, Any]) -> None:
    """A JSON object to stderr, in one line."""
    import orjson

    sys.stderr.write(
        orjson.dumps(value, default=lambda it: list(it) if isinstance(it, set | frozenset) else str(it)).decode() + "\n"
    )
    sys.stderr.flush()


def counted(number: int, what: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


_instead: Callable[[bytes], None] | None = None


@contextmanager
def written_to(write: Callable[[bytes], None]) -> Iterator[None]:
    """While the body runs, give `write` what would go to stdout."""
    global _instead
    _instead = write
    try:
        yield
    finally:
        _instead = None


def out_bytes(data: bytes) -> None:
    """Bytes to stdout, as they are.

    Raises:
        BrokenPipeError: Nobody reads it.
        Stopped: It can't be written, to a full disk for example.
    """
    if _instead is not None:
        _instead(data)
        return
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


def answer(value: Any, text: str, *, line: bool = False) -> None:
    """A command's answer: `value` with `--json`, in one line where `line` says so; else `text`."""
    if not asked.json:
        out(text)
    elif line:
        out_json_line(value)
    else:
        out_json(value)


def out_json_bytes(data: bytes) -> None:
    """An encoded JSON document to stdout; in a terminal what could command it is escaped, which changes no value."""
    if in_terminal():
        data = _IN_JSON.sub(lambda match: f"\\u{ord(match.group()):04x}", data.decode()).encode()
    out_bytes(data)


def console() -> Console:
    """rich's console on stdout; nothing in what it prints is taken for markup, emoji names or numbers to colour."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def width() -> int:
    """The columns of the terminal."""
    return shutil.get_terminal_size().columns


def styled(text: str, *codes: int) -> str:
    """A text in a colour or a weight, by the codes of ANSI; as it is where the person wants no colours."""
    if not in_terminal() or not codes or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m"


#: Columns of a table that may be shortened, and to how many characters: with room, and without.
_SHORTENED = frozenset({"tags", "state", "holder", "who", "field", "author", "mode"})
_LONG, _SHORT, _LAST = 24, 8, 24
#: Columns with times, and with numbers.
_TIMES = frozenset({"time", "updated", "deleted", "since", "created", "expires", "set at"})
_NUMBERS = frozenset({"n", "messages", "words", "bytes", "tokens"})


def listing(value: Any, columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str, **more: Any) -> None:
    """A command's answer that is a list: `value` with `--json`, else `rows` as `table` shows them."""
    if asked.json:
        out_json(value)
    elif in_terminal():
        table(columns, rows, empty=empty, **more)
    else:
        out_rows(rows)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    last: str = "title",
    empty: str = "",
    ids: Iterable[str] = (),
    below: Sequence[str] = (),
) -> None:
    """A table for a person: a row is one line of the screen.

    Ids are cut to what tells them apart, and times are told in the reader's zone. Columns in which nothing stands are
    left out, and the last one takes the room that is left.

    Args:
        columns: The names of the columns.
        rows: Texts, as they stand in the files.
        last: The column that comes last, and is shortened to the width of the screen.
        empty: What the person is told when there is no row.
        ids: More ids, from which those shown are told apart.
        below: A line to write under each row, ready to be shown.
    """
    from rich.cells import cell_len, set_cell_size

    found = list(rows)
    if not found:
        say(empty)
        return
    at_id = columns.index("id") if "id" in columns else -1
    short = short_ids([*ids, *(row[at_id] for row in found)]) if at_id >= 0 else {}

    def told(at: int, text: str) -> str:
        if at == at_id:
            return one_line(short[text])
        return one_line(short_time(text) if columns[at] in _TIMES else text)

    cells = [[told(at, text) for at, text in enumerate(row)] for row in found]
    places = [at for at, name in enumerate(columns) if name != last and any(row[at] for row in cells)]
    widths = {at: max(len(columns[at]), *(cell_len(row[at]) for row in cells)) for at in places}
    room = width()
    for most in (_LONG, _SHORT):
        if sum(widths.values()) + 2 * len(widths) > room - _LAST:
            widths |= {at: min(wide, most) for at, wide in widths.items() if columns[at] in _SHORTENED}
    left = max(room - sum(widths.values()) - 2 * len(widths), _SHORT)
    end = columns.index(last)

    def fitted(text: str, size: int) -> str:
        return text if cell_len(text) <= size else set_cell_size(text, size - 1).rstrip() + "…"

    def line(row: Sequence[str]) -> str:
        parts = [
            row[at].rjust(widths[at])
            if columns[at] in _NUMBERS
            else set_cell_size(fitted(row[at], widths[at]), widths[at])
            for at in places
        ]
        return "  ".join([*parts, fitted(row[end], left)]).rstrip()

    out(styled(line([name.upper() for name in columns]), 1))
    for at, row in enumerate(cells):
        out(line(row) + (f"\n{below[at]}" if below else ""))


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """For each id a beginning of 8 characters, or as many as tell it apart: to read, and to type."""
    ordered = sorted(set(ids))
    known: dict[str, str] = {}
    for at, id in enumerate(ordered):
        beside = [*ordered[max(at - 1, 0) : at], *ordered[at + 1 : at + 2]]
        length = 8
        while any(other.startswith(id[:length]) for other in beside) and length < len(id):
            length += 1
        known[id] = id[:length]
    return known


def short_time(text: str, timespec: str = "minutes") -> str:
    """A time for a person, in their zone and with its offset; for a program as it stands in the file."""
    if not in_terminal():
        return text
    try:
        moment = datetime.fromisoformat(timestamps.canonical(text)).astimezone()
    except (ValueError, OverflowError):
        return text
    return moment.replace(microsecond=0).isoformat(" ", timespec)


def out_rows(rows: Iterable[Sequence[str]]) -> None:
    """Rows to stdout, a line each, a tab between the columns."""
    out_bytes("".join("\t".join(map(one_line, row)) + "\n" for row in rows).encode("utf-8", "backslashreplace"))


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


def with_bar(what: str, items: Iterable[T], total: int = 0, after_s: float = 0.0) -> Iterator[T]:
    """The items, beneath a progress bar while the caller works on them; `total`: how many there are, where known."""
    with progress(what, after_s) as bar:
        for at, item in enumerate(items, 1):
            yield item
            if bar:
                bar(at, max(at, total))
