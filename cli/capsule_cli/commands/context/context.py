"""`context`: the snapshot of a project in a conversation: captured, compared, shown, removed.

What must stay true: what looks like a secret is named before anything is written; a project that
has drifted makes `check` exit 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsule.errors import CapsuleError, NotFound
from capsule.format.text.escaping import escape_controls, one_line
from capsule_cli.completion import complete_id
from capsule_cli.error_output import exit_with_errors
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.options import DryRun, Id, Yes, argument, flag, option, usage_error
from capsule_cli.shared.output import (
    in_terminal,
    print_answer,
    print_json_bytes,
    print_list,
    print_notice,
    print_text,
    progress,
    with_count,
)
from capsule_cli.shared.stores import open_conversation, open_core_store

if TYPE_CHECKING:
    from capsule.context.capture import Capture
    from capsule.context.drift import Drift
    from capsule.store.store import CoreStore


#: How many findings, and how many files that are left out, are printed.
_SHOWN = 20

_PROJECT = "Compare with this directory. Without it: with the directory of the capture."
Project = Annotated[str | None, option("--project DIR", _PROJECT, ...)]


def capture(
    id: Id,
    path: str = argument("PATH", "The project's directory.", "."),
    include: list[str] | None = option(
        "--include GLOB",
        "Take only files that match, as in .gitignore. The path of a file takes that file, "
        "whatever git or its "
        "name says. Repeatable.",
    ),
    exclude: list[str] | None = option(
        "--exclude GLOB", "Take no files that match, as in .gitignore. Repeatable."
    ),
    budget: int | None = option(
        "--budget N",
        "Fit the document into N tokens: README first, then the highest folders, the smallest "
        "files first.",
        min=100,
    ),
    max_file_bytes: int | None = option(
        "--max-file-bytes N", "Leave out files of more than N bytes. Default: 1000000.", min=1
    ),
    max_bytes: int | None = option(
        "--max-bytes N",
        "Leave out the largest files, until the rest has at most N bytes. Default: 10^8.",
        min=1,
    ),
    allow_secrets: bool = flag(
        "--allow-secrets", "Take files even if they seem to contain secrets."
    ),
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Put the text files that git would track into the conversation's context, in place of the old
    context.
    """
    from capsule.context import capture as capturing
    from capsule.context.files import FILE_BYTES, TOTAL_BYTES, FileSelection

    limits = max_file_bytes or FILE_BYTES, max_bytes or TOTAL_BYTES
    selection = FileSelection(tuple(include or ()), tuple(exclude or ()), *limits, budget)
    with open_conversation(id) as (store, id):
        with progress("capturing") as bar:
            made = capturing.capture(path, selection, bar)
        made.secrets_allowed = allow_secrets
        if not dry_run:
            _ask_about_secrets(made, yes)
            store.context.set(id, made)
    if not global_options.json:
        _tell_left_out(made, planned=dry_run)
    said = f"{with_count(len(made.files), 'file')}, about {made.tokens:,} tokens"
    facts = {
        "id": id,
        "written": not dry_run,
        "projectPath": made.root,
        "filesIncluded": len(made.files),
        "bytes": sum(len(file.data) for file in made.files),
        "estimatedTokens": made.tokens,
        "files": [
            {"path": file.path, "bytes": len(file.data), "tokens": file.tokens}
            for file in made.files
        ],
        "leftOut": [{"path": _utf8(file.path), "why": file.why} for file in made.left_out],
        "secrets": [
            {"path": secret.path, "line": secret.line, "kind": secret.kind}
            for secret in made.findings
        ],
    }
    print_answer(
        facts, f"{id}: {'would capture' if dry_run else 'captured'} {one_line(made.root)}: {said}"
    )


def _ask_about_secrets(made: Capture, yes: bool) -> None:
    """Let a person at a terminal decide; elsewhere it is an error, unless it was allowed."""
    if made.findings and not (made.secrets_allowed or yes) and in_terminal() and sys.stdin.isatty():
        print_notice("this looks like secrets, and whoever reads the conversation reads them:")
        for finding in made.findings[:_SHOWN]:
            print_notice(f"  {one_line(str(finding))}")
        made.secrets_allowed = typer.confirm("Take these files as they are?", err=True)
    made.ensure_no_secrets()


def _utf8(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode()


def _tell_left_out(made: Capture, *, planned: bool) -> None:
    if planned:
        rows = [(str(file.tokens), file.path) for file in made.files]
        print_list(None, ("tokens", "file"), rows, "no file would be taken", last="file")
        for finding in made.findings:
            print_notice(f"looks like a secret: {one_line(str(finding))}")
    for left_out in made.left_out[:_SHOWN]:
        print_notice(f"left out: {one_line(_utf8(left_out.path))}: {one_line(left_out.why)}")
    if len(made.left_out) > _SHOWN:
        print_notice(f"left out: {len(made.left_out) - _SHOWN} more; --json lists them all")


def check(
    id: str | None = argument(
        "ID", "The conversation. Without it, give --all.", autocompletion=complete_id
    ),
    all_: bool = flag("--all", "Check every conversation that has a context."),
    project: Project = None,
) -> None:
    """List the files that changed, disappeared or are new since the capture. The exit code is 1 if
    there are any, or if it can't compare.
    """
    from capsule.context import drift

    if (id is None) != all_ or (all_ and project is not None):
        raise usage_error("name a conversation, or give --all, which takes no --project", "ID")
    drifts: list[tuple[str, Drift]] = []
    failed: list[CapsuleError] = []
    with open_core_store() as store, progress("checking") as bar:
        if id is not None:
            id = store.resolve(id)
            drifts.append((id, drift.check(_context_of(store, id), project, bar)))
        for each in store.ids() if all_ else ():
            try:
                context = store.context.get(each)
                if not drift.is_empty(context):
                    drifts.append((each, drift.check(context)))
            except CapsuleError as error:
                failed.append(error)
    documents = [{"id": each, **drifted.as_json()} for each, drifted in drifts]
    for each, drifted in drifts if not global_options.json else ():
        if drifted.problem:
            print_notice(f"{each}: {drifted.problem}")
    lines = [line for each, drifted in drifts for line in _lines(each, drifted)]
    if lines or global_options.json:
        print_answer(documents if all_ else documents[0], "\n".join(lines))
    exit_with_errors(failed)
    if not all(drifted.is_current for _, drifted in drifts):
        raise typer.Exit(1)


def _lines(id: str, drift: Drift) -> Iterator[str]:
    kinds = {"changed": drift.changed, "gone": drift.gone, "new": drift.new}
    if drift.edited:
        yield f"{id}: the context's text was edited: it is not the one that was captured"
    yield from (f"{kind}\t{one_line(path)}" for kind, paths in kinds.items() for path in paths)
    if drift.has_drifted:
        counts = ", ".join(f"{len(paths)} {kind}" for kind, paths in kinds.items() if paths)
        yield f"{id}: {one_line(drift.project)} has drifted: {counts}"
    elif drift.is_current:
        yield f"{id}: {one_line(drift.project)} is as it was captured"


def show(id: Id, files: bool = flag("--files", "List the files with their sizes instead.")) -> None:
    """Print the document of a conversation's context; with --json all of the context."""
    with open_conversation(id) as (store, id):
        context = _context_of(store, id)
    metadata = context.get("metadata") or {}
    if global_options.json:
        from capsule.format.json.codec import encode

        print_json_bytes(encode(metadata if files else context))
    elif files:
        names = ("bytes", "tokens", "path")
        rows = [
            [str(entry.get(name, "")) for name in names] for entry in metadata.get("files") or ()
        ]
        print_list(None, ("bytes", "tokens", "file"), rows, "it lists no files", last="file")
    else:
        text = str(context.get("fullContext") or "").removesuffix("\n")
        print_text(escape_controls(text) if in_terminal() else text)


def diff(id: Id, project: Project = None) -> None:
    """Print the changes of the project since the capture, as a unified diff."""
    from capsule.context import drift

    with open_conversation(id) as (store, id):
        context = _context_of(store, id)
        with progress("comparing") as bar:
            drifted = drift.check(context, project, bar)
    lines = list(drift.diff(context, drifted))
    if drifted.problem and not global_options.json:
        print_notice(f"{id}: {drifted.problem}")
    if lines or global_options.json:
        print_answer(
            {"id": id, **drifted.as_json(), "diff": "".join(f"{line}\n" for line in lines)},
            escape_controls("\n".join(lines)),
        )
    if drifted.problem:
        raise typer.Exit(1)


def clear(id: Id) -> None:
    """Remove a conversation's context; its messages stay."""
    from capsule.context.drift import is_empty

    with open_conversation(id) as (store, id):
        there = not is_empty(store.context.get(id))
        if there:
            store.context.clear(id)
    said = "its context is cleared" if there else "it has no context; nothing was changed"
    print_answer({"id": id, "cleared": there}, f"{id}: {said}")


def _context_of(store: CoreStore, id: str) -> dict[str, Any]:
    from capsule.context.drift import is_empty

    context = store.context.get(id)
    if is_empty(context):
        raise NotFound(
            f"conversation {id} has no context; capture one with: capsule context capture {id} "
            "PATH",
            id=id,
        )
    return context
