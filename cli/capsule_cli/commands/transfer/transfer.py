"""`import` and `export`: take conversations over from other programs, and write them in their
formats.

What must stay true: an import that finds nothing, or something damaged, does not exit with 0. An
export replaces a file only if it is told to, and leaves no incomplete file.
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
from capsule_cli.exits import end_at_once
from capsule_cli.public import open_full_store
from capsule_cli.shared.inputs import ensure_confirmed
from capsule_cli.shared.options import (
    CONVERSATION,
    DryRun,
    Tags,
    Yes,
    argument,
    complete_id,
    flag,
    option,
    refuse_if,
    usage_error,
)
from capsule_cli.shared.output import (
    escape_controls,
    global_options,
    in_terminal,
    print_answer,
    print_list,
    print_notice,
    print_stored_bytes,
    progress,
    with_count,
)

if TYPE_CHECKING:
    from capsule import Store
    from capsule.transfer.drafts.import_records import ImportResult, Report

#: Most problems, and most skipped conversations, that are printed.
_MAX_LINES = 20
#: Most files in no known format that are named in a line.
_MAX_NAMES = 3


def complete_format(incomplete: str) -> list[tuple[str, str]]:
    """Return the names of the formats that begin with `incomplete`, with their titles."""
    from capsule.transfer.registry import formats

    return [
        (name, format.title) for name, format in formats().items() if name.startswith(incomplete)
    ]


def _formats(use: str) -> str:
    """Return the names of the formats that can be imported (`read`) or exported (`write`)."""
    from capsule.transfer.registry import formats

    return ", ".join(name for name, format in formats().items() if getattr(format, use))


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
        paths = _discover(format, yes=yes)
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
        report_progress = None if bar is None else (lambda done, total, _: bar(done, total))
        stream = sys.stdin.buffer if "-" in paths else None
        files = [path for path in paths if path != "-"]
        report = store.import_(
            *files, is_dry_run=dry_run, stream=stream, progress=report_progress, **options
        )
    _print_report(report, dry_run=dry_run)


def _follow(store: Store, paths: list[str], options: dict[str, Any]) -> None:
    """Import changes of files until a signal comes, and print a line for each conversation."""
    from capsule.transfer.continuous_import import follow
    from capsule.transfer.reading.files import Damage

    def print_entry(entry: ImportResult | Damage) -> None:
        if isinstance(entry, Damage):
            print_notice(_problem_line(entry.path, entry.line, entry.reason))
        elif entry.id and entry.state != "unchanged":
            text = f"{entry.state:<9}  {entry.id}  {escape_controls(entry.title)}"
            print_answer(entry.as_json(), text, line=True)

    follow(store, paths, print_entry, **options)


def _print_report(report: Report, *, dry_run: bool) -> None:
    """Print the report on an import: counts, problems, skipped conversations, unknown files.

    Raises typer.Exit: nothing was found, or something was damaged.
    """
    states = ("imported", "updated", "unchanged", "skipped")
    counts = ", ".join(f"{report.count(state)} {state}" for state in states)
    prefix = "would be " if dry_run else ""
    lines = [f"{prefix}{counts}, {report.problems.count} damaged"]
    for problem in report.remarks[:_MAX_LINES]:
        lines.append(_problem_line(problem.path, problem.line, problem.reason))
    problem_count = report.notes.count + report.problems.count
    if problem_count > _MAX_LINES:
        lines.append(f"... and {problem_count - _MAX_LINES} more; --json has them")
    skipped = [result for result in report.conversations if result.state == "skipped"]
    for result in skipped[:_MAX_LINES]:
        title = result.title if result.id else "(empty)"
        lines.append(f"skipped: {result.id or result.source}  {title}")
    lines += _unknown_file_lines(report)
    print_answer(report.as_json(), escape_controls("\n".join(lines)))
    if not report.conversations:
        raise typer.Exit(NotFound.exit_code)
    if report.problems.count:
        raise typer.Exit(InvalidDocument.exit_code)


def _unknown_file_lines(report: Report) -> list[str]:
    """Return a line for the files of each program that no format can read, without the files that
    were reported one by one.
    """
    reported = {problem.path for problem in report.remarks}
    lines = []
    for program, paths in report.unknown_paths().items():
        if program:
            lines.append(f"{with_count(len(paths), 'file')} of {program}: not supported yet")
            continue
        unreported = [path for path in paths if path not in reported]
        if unreported:
            names = ", ".join(unreported[:_MAX_NAMES])
            if len(unreported) > _MAX_NAMES:
                names += ", ..."
            lines.append(f"{with_count(len(unreported), 'file')} in no known format: {names}")
    return lines


def _problem_line(path: str, line: int | None, problem: str) -> str:
    return f"{path}:{line}: {problem}" if line else f"{path}: {problem}"


def _discover(format: str | None, *, yes: bool) -> list[str]:
    """List the conversations of programs on this machine, and return the paths to import.

    A person at a terminal chooses formats. With `yes` or a format, all that was found is returned,
    and without a terminal nothing.

    Raises typer.Exit: nothing was found.
    """
    is_chosen = yes or format is not None
    places = _discovered_places(format)
    if not places or not is_chosen:
        columns = ("format", "path", "files", "bytes")
        rows = [[str(place[name]) for name in columns] for place in places]
        empty = "no conversations of other programs were found"
        print_list({"found": places}, columns, rows, empty, last="path")
    if not is_chosen:
        if not places:
            raise typer.Exit(NotFound.exit_code)
        places = _ask_for_places(places)
    paths = []
    for place in places:
        paths += sorted(glob(os.path.expanduser(str(place["path"]))))
    return paths


def _ask_for_places(places: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ask a person at a terminal which places to import. Return none if there is nobody to ask."""
    can_ask = in_terminal() and sys.stdin.isatty() and not global_options.json
    if not can_ask:
        return []
    choice = typer.prompt(
        "Import which formats (names with spaces, or all)", default="", show_default=False
    )
    if choice == "all":
        return places
    return [place for place in places if place["format"] in choice.split()]


def _discovered_places(format: str | None) -> list[dict[str, Any]]:
    """Return the places of conversations that exist on this machine, with their files and bytes."""
    from capsule.transfer.reading.sources import places_of
    from capsule.transfer.registry import formats

    places = []
    for name, candidate in formats().items():
        if format not in (None, name):
            continue
        for path in places_of(candidate, os.environ):
            files = sorted(glob(os.path.expanduser(path)))
            if not files:
                continue
            size = sum(os.path.getsize(file) for file in files if os.path.isfile(file))
            places.append(
                {
                    "format": name,
                    "title": candidate.title,
                    "path": path,
                    "files": len(files),
                    "bytes": size,
                }
            )
    return places


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
    refuse_if((format is None) == (site is None), "give --format FORMAT or --site DIR")
    refuse_if(
        site is not None and (output or plain or whole or force),
        "it excludes -o, --plain, --whole, --force",
        "--site",
    )
    exports_all = all or not (site is None or ids or tags)
    refuse_if(
        bool(ids) + exports_all + bool(tags) != 1, "name conversations, or give --all or --tag"
    )
    refuse_if(plain and whole, "--plain and --whole exclude each other")
    count = 0
    with open_full_store() as store:
        exported_ids, damaged_ids = _ids_to_export(store, ids, tags)
        if site is not None:
            _export_site(store, exported_ids, site, is_redacted=redact)
        elif format is not None:
            is_plain = plain or _is_plain_by_default(format, whole=whole)
            with _output_file(output, force=force) as file:
                count = store.export(
                    exported_ids,
                    file,
                    format=format,
                    is_archive=output is not None and output.endswith(".zip"),
                    is_redacted=redact,
                    is_plain=is_plain,
                )
    if output is not None:
        text = f"wrote {with_count(count, 'conversation')} to {escape_controls(output)}"
        print_answer({"path": output, "conversations": count}, text)
    if damaged_ids:
        print_notice(f"damaged, and left out: {', '.join(damaged_ids)}")
        raise typer.Exit(InvalidDocument.exit_code)


def _ids_to_export(
    store: Store, names: list[str] | None, tags: list[str] | None
) -> tuple[list[str], list[str]]:
    """Return the ids of the conversations to export, and the ids of damaged ones, which are left
    out. Raises NotFound: no conversation is left.
    """
    from capsule.engines.queries import Filter

    damaged_ids: list[str] = []
    if names:
        ids = [store.resolve(name) for name in names]
    else:
        heads = store.list(Filter(tags=tuple(tags or ()), archived=None)).heads
        ids = [head.id for head in heads if not head.damaged]
        damaged_ids = [head.id for head in heads if head.damaged]
    if not ids:
        raise NotFound("there is no such conversation", id="")
    return ids, damaged_ids


def _is_plain_by_default(format: str, *, whole: bool) -> bool:
    from capsule.transfer.registry import format_named

    return format_named(format).is_for_people and not whole


def _export_site(store: Store, ids: list[str], folder: str, *, is_redacted: bool) -> None:
    """Write conversations as pages into a folder, and print the counts."""
    with progress("writing") as bar:
        report = store.export.site(ids, folder, is_redacted=is_redacted, progress=bar)
    count = with_count(report.conversations, "conversation")
    print_answer(
        {"path": folder, **report.as_json()},
        f"wrote {count} to {escape_controls(folder)}: {report.written} files changed, "
        f"{report.removed} removed",
    )


class _Stdout:
    """Standard output as a file of bytes."""

    def write(self, data: bytes) -> int:
        print_stored_bytes(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Each write is flushed."""


@contextmanager
def _output_file(path: str | None, *, force: bool) -> Iterator[IO[bytes]]:
    """Yield the file to write. It gets its name after the body has completed it.

    Args:
        path: Its path. None: standard output.
        force: Whether to replace an existing file.

    Raises Refused: the file exists. StorageFailed: it can't be written.
    """
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
