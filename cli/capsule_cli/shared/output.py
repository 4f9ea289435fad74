"""Everything that goes to stdout and stderr.

What must stay true: no control character that stands in a file reaches a terminal through here
(newline and tab excepted); what a program reads is UTF-8, whatever the locale. rich is imported
only to write to a terminal.
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
from capsule_cli.shared.global_options import global_options

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

#: Seconds that work takes before a bar is drawn of it.
_BAR_DELAY_S = 0.3
_UUID = re.compile("[0-9a-f-]{36}")
_TIME_START = re.compile(r"\d{4}-\d\d-\d\dT")
_UNSAFE_IN_JSON = "[\x7f-\x9f\u202a-\u202e\u2066-\u2069]"


class CommandStopped(Exception):
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
    return _is_terminal(sys.stdout)


@lru_cache(maxsize=1)
def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty()  # A system call; this is asked several times for each message.


def print_notice(text: str) -> None:
    """A word to the person, on stderr; with `--json` a warning."""
    if global_options.json:
        print_json_to_stderr({"warning": text})
    else:
        sys.stderr.write(f"capsule: {escape_controls(text)}\n")
        sys.stderr.flush()


def print_json_to_stderr(value: dict[str, Any]) -> None:
    """A JSON object to stderr, in one line."""
    import orjson

    data = orjson.dumps(
        value, default=lambda it: list(it) if isinstance(it, set | frozenset) else str(it)
    )
    sys.stderr.write(_plain_json(data).decode() + "\n")
    sys.stderr.flush()


def with_count(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def on_or_off(is_on: bool) -> str:
    """`on`, `off`."""
    return "on" if is_on else "off"


def exit_reason(code: int) -> str:
    """How a program failed, by its return code: `exit code 3`, `signal 9`."""
    return f"exit code {code}" if code > 0 else f"signal {-code}"


_redirect: Callable[[bytes], None] | None = None


@contextmanager
def redirect_output(write: Callable[[bytes], None]) -> Iterator[None]:
    """While the body runs, give `write` what would go to stdout."""
    global _redirect
    _redirect = write
    try:
        yield
    finally:
        _redirect = None


def print_stored_bytes(data: bytes) -> None:
    """Bytes that stand in files to stdout, as they are; in a terminal what could command it is
    escaped.
    """
    print_safe_bytes(
        escape_controls(data.decode("utf-8", "backslashreplace")).encode()
        if in_terminal()
        else data
    )


def print_safe_bytes(data: bytes) -> None:
    """Bytes to stdout; the caller has made them fit to be shown.

    Raises:
        BrokenPipeError: Nobody reads it.
        Stopped: It can't be written, to a full disk for example.
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
    """Let what is still to be written to stdout go nowhere: its reader has left,
    or can't take it.
    """
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)


def print_text(text: str) -> None:
    """A text and a newline to stdout; the caller has made it fit to be shown."""
    print_safe_bytes(f"{text}\n".encode("utf-8", "backslashreplace"))


def print_json(value: Any, *, line: bool = False) -> None:
    """A JSON document to stdout: in the layout of the store's files, or in one line."""
    import orjson

    print_json_bytes(
        orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE | (0 if line else orjson.OPT_INDENT_2))
    )


def as_json(value: Any) -> Any:
    """Return what a method of the store returned as JSON: a list, or an object with `as_json`."""
    if hasattr(value, "as_json"):  # First, because it may be a named tuple.
        return value.as_json()
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value


def print_answer(value: Any, text: str, *, line: bool = False, ok: bool = True) -> None:
    """A command's answer: `value` with `--json`, in one line where `line` says so; else `text`.

    Raises typer.Exit with the exit code 1 unless it is `ok`.
    """
    if global_options.json:
        print_json(value, line=line)
    else:
        print_text(text)
    if not ok:
        import typer

        raise typer.Exit(1)


def print_fields(
    value: dict[str, Any], labels: Mapping[str, str] = MappingProxyType({}), **shown: str
) -> None:
    """Print one object as a command's answer, a line for each field; in a terminal without those
    that are empty.

    Args:
        value: The object, as JSON.
        labels: What a person reads in place of the names of fields; the others are split into
            words.
        shown: Fields in words for a person.
    """
    fields = value | shown
    if in_terminal():
        named = {
            labels.get(name) or _label(name): _for_person(part) for name, part in fields.items()
        }
        lines = [f"{label}: {one_line(text)}" for label, text in named.items() if text]
    else:
        lines = [f"{name}: {one_line(_for_program(part))}" for name, part in fields.items()]
    print_answer(value, "\n".join(lines))


def _label(name: str) -> str:
    """`projectPath` as people write it: `project path`."""
    return re.sub("([A-Z])", r" \1", name).lower()


def _for_person(value: Any) -> str:
    """A value as a person reads it; empty: there is none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        inner = {
            key: f"({_for_person(it)})" if isinstance(it, dict) else _for_person(it)
            for key, it in value.items()
        }
        return ", ".join(f"{key} {text}" for key, text in inner.items() if text)
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(_for_person, value)))
    text = "" if value is None else str(value)
    return short_time(text) if _TIME_START.match(text) else text


def _for_program(value: Any) -> str:
    """A value as programs read it: a text as it is, nothing as nothing, all else as JSON."""
    import orjson

    return (
        value if isinstance(value, str) else "" if value is None else orjson.dumps(value).decode()
    )


def print_json_bytes(data: bytes) -> None:
    """An encoded JSON document to stdout; in a terminal what could command it is escaped, which
    changes no value.
    """
    print_safe_bytes(_plain_json(data) if in_terminal() else data)


def _plain_json(data: bytes) -> bytes:
    return re.sub(
        _UNSAFE_IN_JSON, lambda match: f"\\u{ord(match.group()):04x}", data.decode()
    ).encode()


def console() -> Console:
    """rich's console on stdout; nothing in what it prints is taken for markup, emoji names or
    numbers to colour.
    """
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def width() -> int:
    """The columns of the terminal."""
    import shutil

    return shutil.get_terminal_size().columns


def styled(text: str, *codes: int) -> str:
    """A text in a colour or a weight, by the codes of ANSI; as it is where the person wants no
    colours.
    """
    if (
        not in_terminal()
        or not codes
        or os.environ.get("NO_COLOR")
        or os.environ.get("TERM") == "dumb"
    ):
        return text
    return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m"


#: The columns of a table with ids, with times, and with numbers.
_ID_COLUMNS = frozenset({"id", "conversation", "session", "holder"})
_TIME_COLUMNS = frozenset(
    {"time", "updated", "deleted", "since", "created", "expires", "set at", "seen", "active"}
)
_NUMBER_COLUMNS = frozenset({"n", "messages", "words", "bytes", "tokens", "unread"})


def print_list(
    value: Any, columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str, **more: Any
) -> None:
    """A command's answer that is a list: `value` with `--json`, else `rows` as `print_table`
    shows them.
    """
    if global_options.json:
        print_json(value)
    elif in_terminal():
        print_table(columns, rows, empty=empty, **more)
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
    """Print a table for a person: a row is one line of the screen.

    Ids can be copied: they are whole, or a beginning that tells them apart from all others. Times
    are in the reader's zone, and empty columns are left out. Texts are cut to the width of the
    screen.

    Args:
        columns: The names of the columns.
        rows: Texts, as they stand in the files.
        last: The column that comes last.
        empty: What the person reads when there is no row.
        ids: The ids of all conversations, if the table has short ones.
        below: A line to write under each row, ready to be shown.
    """
    from rich.table import Table
    from rich.text import Text

    items = [dict(zip(columns, row, strict=True)) for row in rows]
    if not items:
        print_notice(empty)
        return
    short = short_ids(ids)
    for texts in items:
        texts |= {name: short_time(texts[name]) for name in _TIME_COLUMNS & texts.keys()}
        texts |= {name: short.get(texts[name], texts[name]) for name in _ID_COLUMNS & texts.keys()}
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown_columns = [
        name for name in columns if name == last or any(texts[name] for texts in items)
    ]
    for name in sorted(shown_columns, key=lambda name: name == last):
        grid.add_column(
            name.upper(),
            justify="right" if name in _NUMBER_COLUMNS else "left",
            no_wrap=name in _ID_COLUMNS | _TIME_COLUMNS | _NUMBER_COLUMNS,
            min_width=max(len(texts[name]) for texts in items)
            if name in _ID_COLUMNS
            else 8
            if name == last
            else None,
        )
    for texts in items:
        cells = (one_line(texts[str(column.header).lower()]) for column in grid.columns)
        grid.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells))
    screen = console()
    with screen.capture() as captured:
        screen.print(grid, crop=False)  # Ids may need more than the screen.
    for line, under in zip_longest(captured.get().splitlines(), ["", *below]):
        print_text(line.rstrip() + (f"\n{under}" if under else ""))


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """For each id that is no name a beginning of 8 characters, or as many as tell it apart: to
    read, and to type.
    """
    ordered = sorted(set(ids))
    common = [0, *(len(os.path.commonprefix(pair)) for pair in pairwise(ordered)), 0]  # noqa: RUF071
    short = {id: id[: max(8, common[at] + 1, common[at + 1] + 1)] for at, id in enumerate(ordered)}
    return {id: text if _UUID.fullmatch(id) else id for id, text in short.items()}


def short_time(text: str, timespec: str = "minutes") -> str:
    """A time for a person, in their zone and with its offset; for a program as the file has it."""
    if not in_terminal():
        return text
    try:
        moment = datetime.fromisoformat(timestamps.canonical(text)).astimezone()
    except (ValueError, OverflowError):
        return text
    return moment.replace(microsecond=0).isoformat(" ", timespec)


def print_rows(rows: Iterable[Sequence[str]]) -> None:
    """Rows to stdout, a line each, a tab between the columns."""
    print_safe_bytes(
        "".join("\t".join(map(one_line, row)) + "\n" for row in rows).encode(
            "utf-8", "backslashreplace"
        )
    )


@contextmanager
def progress(work: str) -> Iterator[Callable[[int, int], None] | None]:
    """Draw a progress bar on stderr when the body takes a while; nothing when stderr is no
    terminal.

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
            if time.monotonic() - begun < _BAR_DELAY_S:
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
        bar.update(0, completed=done, total=total)

    try:
        yield tell
    finally:
        if bar is not None:
            bar.stop()


def with_progress(work: str, items: Iterable[T], total: int = 0) -> Iterator[T]:
    """The items, beneath a progress bar while the caller works on them; `total`: how many there
    are, where known.
    """
    with progress(work) as bar:
        for at, item in enumerate(items, 1):
            yield item
            if bar:
                bar(at, max(at, total))
