"""Write everything that goes to stdout and stderr, in the form that the options of every command ask
for (`global_options`).

A command prints its answer with one of the functions `print_...`. They choose the form: JSON with
`--json`, text in colours and columns for a person at a terminal, or rows with tabs for a program.

What must stay true: no control character of stored text reaches a terminal through this module, but
newline and tab. Programs get UTF-8, whatever the locale is. rich is imported only to write to a
terminal. Nothing of one command is left when another one begins in the same process.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from itertools import pairwise, zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from capsule import timestamps
from capsule.format.text.escaping import escape_controls as escape_controls
from capsule.format.text.escaping import one_line as one_line

if TYPE_CHECKING:
    from rich.console import Console


# -- The options of every command ------------------------------------------------------------------


class GlobalOptions:
    """The values of the options of every command.

    Attributes:
        json: Whether to print JSON.
        no_pager: Whether to print long output without a pager.
        store: The address of the store. None: the store is discovered.
        meant_store: The store in the unparsed words. It is read before parsing, because the store
            decides which commands there are.
        instance: The name of the instance, if an option gives it.
        as_: The agent to act for, if an option gives it.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset all options for another command."""
        self.json = False
        self.no_pager = False
        self.store: str | None = None
        self.meant_store: str | None = None
        self.instance: str | None = None
        self.as_: str | None = None


global_options = GlobalOptions()


# -- Writing ---------------------------------------------------------------------------------------

T = TypeVar("T")

#: Seconds that work takes before a progress bar is drawn.
_BAR_DELAY_S = 0.3
_UUID = re.compile("[0-9a-f-]{36}")
_TIME_START = re.compile(r"\d{4}-\d\d-\d\dT")
#: Characters that JSON permits and that could command a terminal.
_UNSAFE_IN_JSON = "[\x7f-\x9f\u202a-\u202e\u2066-\u2069]"


class CommandStopped(Exception):
    """A command that did not do what it was asked for, without an error of the store.

    Args:
        message: What happened, and the way out.
        exit_code: The program's exit code.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


def in_terminal() -> bool:
    """Return whether a person reads stdout."""
    return _is_terminal(sys.stdout)


@lru_cache(maxsize=1)
def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty()  # A system call, and each message needs the answer several times.


def print_notice(text: str) -> None:
    """Print a hint or a warning for the person on stderr. With `--json` it is an object with
    `warning`.
    """
    if global_options.json:
        print_json_to_stderr({"warning": text})
    else:
        sys.stderr.write(f"capsule: {escape_controls(text)}\n")
        sys.stderr.flush()


def print_json_to_stderr(value: dict[str, Any]) -> None:
    """Write a JSON object to stderr in one line."""
    import orjson

    def encode(part: Any) -> Any:
        return list(part) if isinstance(part, set | frozenset) else str(part)

    data = orjson.dumps(value, default=encode)
    sys.stderr.write(_escaped_json(data).decode() + "\n")
    sys.stderr.flush()


def with_count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 file`, `2 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def on_or_off(is_on: bool) -> str:
    """Return `on` or `off`."""
    return "on" if is_on else "off"


def exit_reason(code: int) -> str:
    """Return how a program failed: `exit code 3`, `signal 9`. A negative code is a signal."""
    return f"exit code {code}" if code > 0 else f"signal {-code}"


#: Takes what would go to stdout. None: it goes there.
_redirect: Callable[[bytes], None] | None = None


@contextmanager
def redirect_output(write: Callable[[bytes], None]) -> Iterator[None]:
    """While the body runs, give `write` the output that would go to stdout."""
    global _redirect
    _redirect = write
    try:
        yield
    finally:
        _redirect = None


def print_stored_bytes(data: bytes) -> None:
    """Write the bytes of files to stdout unchanged. In a terminal control characters are escaped."""
    print_safe_bytes(
        escape_controls(data.decode("utf-8", "backslashreplace")).encode()
        if in_terminal()
        else data
    )


def print_safe_bytes(data: bytes) -> None:
    """Write bytes to stdout. The caller has removed everything that could command a terminal.

    Raises:
        BrokenPipeError: Nobody reads stdout.
        CommandStopped: It can't be written, for example to a full disk.
    """
    if _redirect is not None:
        _redirect(data)
        return
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        raise CommandStopped(f"the output can't be written: {error.strerror}") from None


def discard_stdout() -> None:
    """Discard everything that is still to be written to stdout, because its reader has left or it
    can't be written.
    """
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)


def print_text(text: str) -> None:
    """Write a text and a newline to stdout. The caller has made the text safe for a terminal."""
    print_safe_bytes(f"{text}\n".encode("utf-8", "backslashreplace"))


def print_json(value: Any, *, line: bool = False) -> None:
    """Write a JSON document to stdout, in the layout of the store's files or in one line."""
    import orjson

    layout = 0 if line else orjson.OPT_INDENT_2
    print_json_bytes(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE | layout))


def as_json(value: Any) -> Any:
    """Return the result of a method of the store as JSON. It is a list, or an object with
    `as_json`.
    """
    if hasattr(value, "as_json"):  # First, because it may be a named tuple.
        return value.as_json()
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value


def print_answer(value: Any, text: str, *, line: bool = False, ok: bool = True) -> None:
    """Print the answer of a command.

    Args:
        value: The answer with `--json`.
        text: The answer without it.
        line: Whether the JSON is one line.
        ok: Whether the command succeeded.

    Raises typer.Exit: `ok` is false. The exit code is 1.
    """
    if global_options.json:
        print_json(value, line=line)
    else:
        print_text(text)
    if not ok:
        import typer

        raise typer.Exit(1)


def print_fields(
    value: dict[str, Any], labels: Mapping[str, str] = MappingProxyType({}), **texts: str
) -> None:
    """Print one object as the answer of a command, with a line for each field.

    A person at a terminal gets labels and words, without the empty fields.

    Args:
        value: The object as JSON.
        labels: Labels for a person in place of the names of fields. Other names are split into
            words.
        texts: Fields that are printed as this text.
    """
    fields = value | texts
    lines = []
    if in_terminal():
        for name, part in fields.items():
            text = _for_person(part)
            if text:
                lines.append(f"{labels.get(name) or _label(name)}: {one_line(text)}")
    else:
        lines = [f"{name}: {one_line(_for_program(part))}" for name, part in fields.items()]
    print_answer(value, "\n".join(lines))


def _label(name: str) -> str:
    """Return the words of a field's name: `project path` for `projectPath`."""
    return re.sub("([A-Z])", r" \1", name).lower()


def _for_person(value: Any) -> str:
    """Return a value as text for a person. Empty: there is nothing to show."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        parts = []
        for key, part in value.items():
            text = f"({_for_person(part)})" if isinstance(part, dict) else _for_person(part)
            if text:
                parts.append(f"{key} {text}")
        return ", ".join(parts)
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(_for_person, value)))
    if value is None:
        return ""
    text = str(value)
    return short_time(text) if _TIME_START.match(text) else text


def _for_program(value: Any) -> str:
    """Return a value as text for a program: a text unchanged, None as nothing, all else as JSON."""
    import orjson

    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def print_json_bytes(data: bytes) -> None:
    """Write an encoded JSON document to stdout. In a terminal unsafe characters are escaped, which
    changes no value.
    """
    print_safe_bytes(_escaped_json(data) if in_terminal() else data)


def _escaped_json(data: bytes) -> bytes:
    return re.sub(
        _UNSAFE_IN_JSON, lambda match: f"\\u{ord(match.group()):04x}", data.decode()
    ).encode()


def console() -> Console:
    """Return rich's console on stdout, which takes no text for markup, emoji names or numbers to
    colour.
    """
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def width() -> int:
    """Return the number of columns of the terminal."""
    import shutil

    return shutil.get_terminal_size().columns


def styled(text: str, *codes: int) -> str:
    """Return a text with a colour or a weight, by ANSI codes. It is unchanged for a program, and for
    a person who wants no colours.
    """
    has_no_colours = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if not in_terminal() or not codes or has_no_colours:
        return text
    return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m"


#: The names of columns that have ids, times and numbers.
_ID_COLUMNS = frozenset({"id", "conversation", "session", "holder"})
_TIME_COLUMNS = frozenset(
    {"time", "updated", "deleted", "since", "created", "expires", "set at", "seen", "active"}
)
_NUMBER_COLUMNS = frozenset({"n", "messages", "words", "bytes", "tokens", "unread"})


def print_list(
    value: Any, columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str, **options: Any
) -> None:
    """Print a list as the answer of a command: JSON, a table for a person, or rows for a program.

    Args:
        value: The list with `--json`.
        columns: The names of the columns.
        rows: The texts of the table.
        empty: The text for a person if there is no row.
        options: Further arguments of `print_table`.
    """
    if global_options.json:
        print_json(value)
    elif in_terminal():
        print_table(columns, rows, empty=empty, **options)
    else:
        print_rows(rows)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    last: str = "title",
    empty: str = "",
    ids: Iterable[str] = (),
    below: Sequence[str] = (),
) -> None:
    """Print a table for a person, with one line of the screen for each row.

    Ids can be copied: each is complete, or a beginning that no other id has. Times are in the
    reader's zone, and empty columns are left out. Texts are cut to the width of the screen.

    Args:
        columns: The names of the columns.
        rows: Texts, unchanged from the files.
        last: The column that comes last.
        empty: The text for the person if there is no row.
        ids: The ids of all conversations, if the table has short ones.
        below: A line for each row, written below it. The caller has made it safe for a terminal.
    """
    items = [dict(zip(columns, row, strict=True)) for row in rows]
    if not items:
        print_notice(empty)
        return
    shortened = short_ids(ids)
    for texts in items:
        for name in _TIME_COLUMNS & texts.keys():
            texts[name] = short_time(texts[name])
        for name in _ID_COLUMNS & texts.keys():
            texts[name] = shortened.get(texts[name], texts[name])
    nonempty = [name for name in columns if name != last and any(texts[name] for texts in items)]
    if last in columns:
        nonempty.append(last)
    lines = _table_lines(nonempty, last, items)
    for line, line_below in zip_longest(lines, ["", *below]):
        text = line.rstrip()
        print_text(f"{text}\n{line_below}" if line_below else text)


def _table_lines(columns: Sequence[str], last: str, items: list[dict[str, str]]) -> list[str]:
    """Return the lines of a table, first the heading. Texts of `items` are by column."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        min_width = 8 if name == last else None
        if name in _ID_COLUMNS:
            min_width = max(len(texts[name]) for texts in items)
        grid.add_column(
            name.upper(),
            justify="right" if name in _NUMBER_COLUMNS else "left",
            no_wrap=name in _ID_COLUMNS | _TIME_COLUMNS | _NUMBER_COLUMNS,
            min_width=min_width,
        )
    for texts in items:
        cells = [Text(one_line(texts[name]), no_wrap=True, overflow="ellipsis") for name in columns]
        grid.add_row(*cells)
    screen = console()
    with screen.capture() as captured:
        screen.print(grid, crop=False)  # Ids may need more than the width of the screen.
    return captured.get().splitlines()


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return a short form of each id, to read and to type: at least 8 characters of its beginning,
    and as many as no other id has. An id that is a name stays complete.
    """
    ordered = sorted(set(ids))
    # common[n] characters are the same in ordered[n - 1] and ordered[n].
    common = [0, *(len(os.path.commonprefix(pair)) for pair in pairwise(ordered)), 0]  # noqa: RUF071
    shortened = {}
    for position, id in enumerate(ordered):
        length = max(8, common[position] + 1, common[position + 1] + 1)
        shortened[id] = id[:length] if _UUID.fullmatch(id) else id
    return shortened


def short_time(text: str, timespec: str = "minutes") -> str:
    """Return a time for a person, in their zone and with its offset. For a program it is unchanged."""
    if not in_terminal():
        return text
    try:
        moment = datetime.fromisoformat(timestamps.canonical(text)).astimezone()
    except (ValueError, OverflowError):
        return text
    return moment.replace(microsecond=0).isoformat(" ", timespec)


def print_rows(rows: Iterable[Sequence[str]]) -> None:
    """Write rows to stdout, one line each, with a tab between the columns."""
    text = "".join("\t".join(map(one_line, row)) + "\n" for row in rows)
    print_safe_bytes(text.encode("utf-8", "backslashreplace"))


@contextmanager
def progress(work: str) -> Iterator[Callable[[int, int], None] | None]:
    """Draw a progress bar on stderr if the body takes a while. It draws nothing if stderr is no
    terminal.

    Yields:
        A function that takes the amount that is done, and the whole amount. None: there is no bar.
    """
    if not sys.stderr.isatty():
        yield None
        return
    bar: Any = None
    start_s = time.monotonic()

    def report(completed: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            if time.monotonic() - start_s < _BAR_DELAY_S:
                return
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            bar.add_task(work, total=total)
            bar.start()
        bar.update(0, completed=completed, total=total)

    try:
        yield report
    finally:
        if bar is not None:
            bar.stop()


def with_progress(work: str, items: Iterable[T], total: int = 0) -> Iterator[T]:
    """Yield the items, and draw a progress bar while the caller works on them.

    Args:
        work: What is done, in a word for the bar.
        items: The items.
        total: The number of items, if it is known.
    """
    with progress(work) as report:
        for number, item in enumerate(items, 1):
            yield item
            if report:
                report(number, max(number, total))
