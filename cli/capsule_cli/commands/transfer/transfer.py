"""`import` and `export`: conversations of other programs, in and out.

What must stay true: an import in which nothing was found does not exit 0, nor one in which
something was damaged. An export replaces no file unasked, and leaves no half one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from secrets import token_hex
from typing import IO, TYPE_CHECKING, Any, Literal, cast

import typer

from capsule.errors import InvalidDocument, NotFound, Refused, StorageFailed
from capsule_cli.completion import complete_id
from capsule_cli.public import open_full_store
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.inputs import ensure_confirmed
from capsule_cli.shared.options import (
    CONVERSATION,
    DryRun,
    Tags,
    Yes,
    argument,
    flag,
    option,
    refuse_if,
    usage_error,
)
from capsule_cli.shared.output import (
    escape_controls,
    in_terminal,
    print_answer,
    print_list,
    print_notice,
    print_stored_bytes,
    progress,
    with_count,
)
from capsule_cli.signals import end_at_once

if TYPE_CHECKING:
    from capsule import Store
    from capsule.transfer.drafts.report import ImportResult, Report

_MOST_SHOWN = 20
#: So many files in no known format are named in one line.
_MOST_NAMED = 3


def complete_format(incomplete: str) -> list[tuple[str, str]]:
    """The names of the formats that begin with `incomplete`, with what they are."""
    from capsule.transfer.registry import formats

    return [(name, each.title) for name, each in formats().items() if name.startswith(incomplete)]


def _formats(use: str) -> str:
    """The names of the formats that have a way in (`read`) or out (`write`)."""
    from capsule.transfer.registry import formats

    return ", ".join(name for name, each in formats().items() if getattr(each, use))


def import_(
    paths: list[str] | None = argument("PATH", "Files, folders and zips; - for standard input."),
    format: str | None = option(
        "--format FORMAT",
        lambda: (
            "Read this format. Without it, the content says which it is. The formats: "
            f"{_formats('read')}."
        ),
        autocompletion=complete_format,
    ),
    dry_run: DryRun = False,
    on_conflict: Literal["skip", "update", "copy"] = option(
        "--on-conflict CHOICE",
        "If the source and this store changed the same message: keep this store's (skip), "
        "take the source's (update), or make a second conversation (copy).",
        "skip",
    ),
    discover: bool = flag(
        "--discover", "List the conversations of programs on this machine, and choose."
    ),
    follow: bool = flag(
        "--follow -f", "Continue to import while the other program writes, until Ctrl-C."
    ),
    trusted: bool = flag(
        "--trusted",
        "Bring back exported conversations of this store, agents' too, but no agents. Asks; a "
        "script must give --yes.",
    ),
    yes: Yes = False,
) -> None:
    """Import conversations of other programs. If repeated, it adds only new messages.

    Without --trusted, no imported message reaches an agent. Direct conversations, groups and
    channels become copies: chats without participants.

    The exit code is 0 if everything was imported or was there already, 3 if nothing was found, and
    5 if something was damaged and the rest was imported.
    """
    if discover:
        refuse_if(paths, "it finds the paths itself; give none", "--discover")
        paths = _chosen(format, yes=yes)
        if not paths:
            return
    if not paths:
        raise usage_error("give a path, - for standard input, or --discover")
    options: dict[str, Any] = {"format": format, "on_conflict": on_conflict, "is_trusted": trusted}
    if trusted and not dry_run:
        ensure_confirmed(
            f"Import {', '.join(paths)} as conversations of this store? Messages from agents in "
            "it count as theirs, "
            "reach others, and may start workers.",
            yes=yes,
        )
    if follow:
        refuse_if(dry_run or "-" in paths, "it needs files, and writes what it finds", "--follow")
        end_at_once()
        with open_full_store() as store:
            _follow(store, paths, options)
        return
    with open_full_store() as store, progress("importing") as bar:
        tell = None if bar is None else (lambda done, total, report: bar(done, total))
        stream = sys.stdin.buffer if "-" in paths else None
        files = [path for path in paths if path != "-"]
        report = store.import_(*files, is_dry_run=dry_run, stream=stream, progress=tell, **options)
    _answer(report, dry_run=dry_run)


def _follow(store: Store, paths: list[str], options: dict[str, Any]) -> None:
    from capsule.transfer.continuous_import import follow
    from capsule.transfer.reading.files import Damage

    def tell(entry: ImportResult | Damage) -> None:
        if isinstance(entry, Damage):
            print_notice(_place(entry.path, entry.line, entry.reason))
        elif entry.id and entry.state != "unchanged":
            print_answer(
                entry.as_json(),
                f"{entry.state:<9}  {entry.id}  {escape_controls(entry.title)}",
                line=True,
            )

    follow(store, paths, tell, **options)


def _answer(report: Report, *, dry_run: bool) -> None:
    problems, count = report.remarks, report.notes.count + report.problems.count
    counts = [
        f"{report.count(state)} {state}"
        for state in ("imported", "updated", "unchanged", "skipped")
    ]
    would = "would be " if dry_run else ""
    lines = [f"{would}{', '.join(counts)}, {report.problems.count} damaged"]
    lines += [
        _place(problem.path, problem.line, problem.reason) for problem in problems[:_MOST_SHOWN]
    ]
    if count > _MOST_SHOWN:
        lines.append(f"... and {count - _MOST_SHOWN} more; --json has them")
    skipped = [taken for taken in report.conversations if taken.state == "skipped"][:_MOST_SHOWN]
    lines += [
        f"skipped: {taken.id or taken.source}  {taken.title if taken.id else '(empty)'}"
        for taken in skipped
    ]
    lines += _unknown(report)
    print_answer(report.as_json(), escape_controls("\n".join(lines)))
    if not report.conversations:
        raise typer.Exit(NotFound.exit_code)
    if report.problems.count:
        raise typer.Exit(InvalidDocument.exit_code)


def _unknown(report: Report) -> list[str]:
    """A line for the files of each program that no format takes, but those that were reported one
    by one.
    """
    reported = {problem.path for problem in report.remarks}
    lines = []
    for guess, paths in report.unknown_paths().items():
        if guess:
            lines.append(f"{with_count(len(paths), 'file')} of {guess}: not supported yet")
            continue
        others = [path for path in paths if path not in reported]
        if others:
            more = ", ..." if len(others) > _MOST_NAMED else ""
            named = ", ".join(others[:_MOST_NAMED])
            lines.append(f"{with_count(len(others), 'file')} in no known format: {named}{more}")
    return lines


def _place(path: str, line: int | None, problem: str) -> str:
    return f"{path}:{line}: {problem}" if line else f"{path}: {problem}"


def _chosen(format: str | None, *, yes: bool) -> list[str]:
    """The paths of programs on this machine that are to be imported."""
    from capsule.transfer.reading.sources import places_of
    from capsule.transfer.registry import formats

    places = []
    for name, each in formats().items():
        for place in places_of(each, os.environ) if format in (None, name) else ():
            if files := sorted(glob(os.path.expanduser(place))):
                size = sum(os.path.getsize(file) for file in files if os.path.isfile(file))
                places.append(
                    {
                        "format": name,
                        "title": each.title,
                        "path": place,
                        "files": len(files),
                        "bytes": size,
                    }
                )
    is_picked = yes or format is not None
    if not is_picked or not places:
        columns = ("format", "path", "files", "bytes")
        rows = [[str(row[name]) for name in columns] for row in places]
        print_list(
            {"found": places},
            columns,
            rows,
            "no conversations of other programs were found",
            last="path",
        )
    if (
        places
        and not is_picked
        and in_terminal()
        and sys.stdin.isatty()
        and not global_options.json
    ):
        picked = typer.prompt(
            "Import which formats (names with spaces, or all)", default="", show_default=False
        )
        places = [row for row in places if picked == "all" or row["format"] in picked.split()]
    elif not is_picked:
        if not places:
            raise typer.Exit(NotFound.exit_code)
        return []
    return [path for row in places for path in sorted(glob(os.path.expanduser(str(row["path"]))))]


def export(
    ids: list[str] | None = argument(
        "ID", f"The conversations, each: {CONVERSATION}", autocompletion=complete_id
    ),
    format: str | None = option(
        "--format FORMAT",
        lambda: f"Write this format. The formats: {_formats('write')}.",
        autocompletion=complete_format,
    ),
    site: str | None = option(
        "--site DIR",
        "Write pages with an index and a search. Without ID and --tag: of all conversations.",
    ),
    all: bool = flag("--all", "Export every conversation."),
    tags: Tags = None,
    output: str | None = option(
        "--output -o PATH", "Write to this file; .zip makes a zip. Default: standard output."
    ),
    redact: bool = flag(
        "--redact", "Replace secrets, by the rules of a context capture, and home folders by ~."
    ),
    plain: bool = flag(
        "--plain", "Write only what people read, without ids and metadata. Default for Markdown."
    ),
    whole: bool = flag(
        "--whole", "Write everything that an import can read back. Default for the other formats."
    ),
    force: bool = flag("--force", "Replace the file."),
) -> None:
    """Export conversations in the format of another program, or as pages for a browser.

    Several conversations make one file, or a zip if the format has a file for each. --site makes a
    folder, which needs no server. A later export replaces only changed pages.
    """
    from capsule.engines.queries import Filter
    from capsule.transfer.registry import format_named

    refuse_if((format is None) == (site is None), "give --format FORMAT or --site DIR")
    refuse_if(
        site is not None and (output or plain or whole or force),
        "it excludes -o, --plain, --whole, --force",
        "--site",
    )
    all = all or not (site is None or ids or tags)
    refuse_if(bool(ids) + all + bool(tags) != 1, "name conversations, or give --all or --tag")
    refuse_if(plain and whole, "--plain and --whole exclude each other")
    with open_full_store() as store:
        damaged: list[str] = []
        if ids:
            chosen = [store.resolve(id) for id in ids]
        else:
            heads = store.list(Filter(tags=tuple(tags or ()), archived=None)).heads
            chosen = [head.id for head in heads if not head.damaged]
            damaged = [head.id for head in heads if head.damaged]
        if not chosen:
            raise NotFound("there is no such conversation", id="")
        if site is not None:
            with progress("writing") as bar:
                made = store.export.site(chosen, site, is_redacted=redact, progress=bar)
            pages = (
                f"wrote {with_count(made.conversations, 'conversation')} to {escape_controls(site)}"
            )
            print_answer(
                {"path": site, **made.as_json()},
                f"{pages}: {made.written} files changed, {made.removed} removed",
            )
        elif format is not None:
            is_plain = plain or (format_named(format).is_for_people and not whole)
            is_archive = output is not None and output.endswith(".zip")
            with _file(output, force=force) as file:
                options: dict[str, Any] = {
                    "is_archive": is_archive,
                    "is_redacted": redact,
                    "is_plain": is_plain,
                }
                count = store.export(chosen, file, format=format, **options)
    if output is not None:
        print_answer(
            {"path": output, "conversations": count},
            f"wrote {with_count(count, 'conversation')} to {escape_controls(output)}",
        )
    if damaged:
        print_notice(f"damaged, and left out: {', '.join(damaged)}")
        raise typer.Exit(InvalidDocument.exit_code)


class _Stdout:
    """Standard output, as a file of bytes."""

    def write(self, data: bytes) -> int:
        print_stored_bytes(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Each write is flushed."""


@contextmanager
def _file(path: str | None, *, force: bool) -> Iterator[IO[bytes]]:
    """The file to write; it gets its name when it is complete."""
    if path is None:
        yield cast("IO[bytes]", _Stdout())
        return
    if os.path.lexists(path) and not force:
        raise Refused(f"{path} is there already; replace it with --force", path=path)
    try:
        with open(os.path.join(os.path.dirname(path), f".capsule-{token_hex(8)}"), "xb") as file:
            try:
                yield file
                file.flush()
                (os.replace if force else os.link)(file.name, path)
            finally:
                if os.path.lexists(file.name):
                    os.unlink(file.name)
    except OSError as error:
        raise StorageFailed(
            f"{path} can't be written: {error.strerror}", path=path, errno=error.errno
        ) from None
