"""`context`: what a conversation is told of a project: captured, compared, shown, taken away.

What must stay true: what looks like a secret is told before anything is written; a project that has drifted makes
`check` exit 1.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsule.errors import CapsuleError, NotFound
from capsule_cli.boundary import report_error
from capsule_cli.completion import complete_id
from capsule_cli.opening import store_of
from capsule_cli.options import Id, Yes, asked, usage
from capsule_cli.output import in_terminal, one_line, out, out_json, progress, say, shown, table

if TYPE_CHECKING:
    from capsule import Store
    from capsule.context.capture import Capture
    from capsule.context.drift import Drift
    from capsule.context.files import Surroundings

__all__ = ["commands", "group"]

group = typer.Typer(no_args_is_help=True)
commands = typer.Typer()

#: The store's own directories, which are never captured.
_OWN = ("conversations", "agents", ".capsule")
#: What a hook of git sets, and would have another repository taken for the project's.
_SHOWN = 20

Project = Annotated[
    str | None, typer.Option("--project", metavar="DIR", help="Where the project is now; else where it was captured.")
]


@group.callback()
def context() -> None:
    """Give a conversation a snapshot of a project, and see whether the project has moved on."""


@commands.command("capture")
def capture(
    ctx: typer.Context,
    id: Id,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The project's directory.")] = ".",
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include",
            metavar="GLOB",
            help="Only files that match, as in .gitignore. The path of a file takes that file, whatever git or its "
            "name says. Repeatable.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="GLOB", help="No files that match, as in .gitignore. Repeatable."),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget",
            min=100,
            metavar="N",
            help="Fit the document into N tokens: README first, then what stands highest, the smallest first.",
        ),
    ] = None,
    max_file_bytes: Annotated[
        int | None, typer.Option("--max-file-bytes", min=1, metavar="N", help="No files larger than N. Else: 1000000.")
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-bytes", min=1, metavar="N", help="No more than N in all, the largest left out. Else: 10^8."
        ),
    ] = None,
    allow_secrets: Annotated[
        bool, typer.Option("--allow-secrets", help="Take files in which tokens were found, as they are.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be taken; exit 0.")] = False,
    yes: Yes = False,
) -> None:
    """Snapshot the text files that git would track into the conversation's context, in place of what is there."""
    from capsule.context import capture as capturing
    from capsule.context.files import FILE_BYTES, TOTAL_BYTES, Selection

    selection = Selection(
        tuple(include or ()),
        tuple(exclude or ()),
        FILE_BYTES if max_file_bytes is None else max_file_bytes,
        TOTAL_BYTES if max_bytes is None else max_bytes,
        budget,
    )
    with store_of(ctx) as store:
        id = store.resolve(id)
        with progress("capturing", after_s=0.3) as bar:
            made = capturing.capture(path, selection, _surroundings(store), bar)
        made.secrets_allowed = allow_secrets
        if not dry_run:
            _ask_about_secrets(made, yes)
            store.set_context(id, made)
    if asked(ctx).json:
        out_json(_as_json(id, made, written=not dry_run))
    else:
        _tell(id, made, written=not dry_run)


def _ask_about_secrets(made: Capture, yes: bool) -> None:
    """Let a person at a terminal decide; elsewhere it is an error, unless it was allowed."""
    if not made.findings or made.secrets_allowed:
        return
    if not yes and in_terminal() and os.isatty(0):
        say("this looks like secrets, and whoever reads the conversation reads them:")
        for finding in made.findings[:_SHOWN]:
            say(f"  {one_line(str(finding))}")
        made.secrets_allowed = typer.confirm("Take these files as they are?", err=True)
    made.ensure_no_secrets()


def _as_json(id: str, made: Capture, *, written: bool) -> dict[str, Any]:
    return {
        "id": id,
        "written": written,
        "projectPath": made.root,
        "filesIncluded": len(made.files),
        "bytes": sum(len(file.data) for file in made.files),
        "estimatedTokens": made.tokens,
        "files": [{"path": file.path, "bytes": len(file.data), "tokens": file.tokens} for file in made.files],
        "leftOut": [
            {"path": one.path.encode("utf-8", "backslashreplace").decode(), "why": one.why} for one in made.left_out
        ],
        "secrets": [{"path": one.path, "line": one.line, "kind": one.kind} for one in made.findings],
    }


def _tell(id: str, made: Capture, *, written: bool) -> None:
    many = f"{_count(len(made.files), 'file')}, about {made.tokens:,} tokens"
    if not written:
        table(
            ("tokens", "file"),
            [(str(file.tokens), file.path) for file in made.files],
            last="file",
        )
        for finding in made.findings:
            say(f"looks like a secret: {one_line(str(finding))}")
    for one in made.left_out[:_SHOWN]:
        say(f"left out: {one_line(one.path.encode('utf-8', 'backslashreplace').decode())}: {one_line(one.why)}")
    if len(made.left_out) > _SHOWN:
        say(f"left out: {len(made.left_out) - _SHOWN} more; --json lists them all")
    out(f"{id}: {'captured' if written else 'would capture'} {one_line(made.root)}: {many}")


@commands.command("check")
def check(
    ctx: typer.Context,
    id: Annotated[
        str | None, typer.Argument(metavar="ID", autocompletion=complete_id, help="The conversation; else --all.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every conversation that has a context.")] = False,
    project: Project = None,
) -> None:
    """Say which files of the project changed, are gone or new since; exit 1 when any did, or it can't be told."""
    from capsule.context import drift

    if (id is None) != all_ or (all_ and project is not None):
        raise usage("name a conversation, or give --all, which takes no --project", "ID")
    told: list[tuple[str, Drift]] = []
    failed: CapsuleError | None = None
    with store_of(ctx) as store:
        surroundings = _surroundings(store)
        ids = [store.resolve(id)] if id is not None else store.ids()
        with progress("checking", after_s=0.3) as bar:
            for at, one in enumerate(ids):
                try:
                    found = store.context(one)
                except CapsuleError as error:
                    if not all_:
                        raise
                    report_error(error, as_json=asked(ctx).json)
                    failed = error
                    continue
                if not drift.is_empty(found):
                    told.append((one, drift.check(found, surroundings, project, None if all_ else bar)))
                elif not all_:
                    raise _none(one)
                if bar is not None and all_:
                    bar(at + 1, len(ids))
    documents = [{"id": one, **drifted.as_json()} for one, drifted in told]
    if asked(ctx).json:
        out_json(documents if all_ else documents[0])
    else:
        for one, drifted in told:
            _tell_drift(one, drifted)
    if failed is not None:
        raise typer.Exit(failed.exit_code)
    if not all(drifted.is_current for _, drifted in told):
        raise typer.Exit(1)


def _tell_drift(id: str, found: Drift) -> None:
    if found.problem:
        say(shown(f"{id}: {found.problem}"))
    if found.edited:
        out(f"{id}: the context's text was edited: it is not the one that was captured")
    for what, paths in (("changed", found.changed), ("gone", found.gone), ("new", found.new)):
        for path in paths:
            out(f"{what}\t{one_line(path)}")
    if found.has_drifted:
        counts = (f"{len(paths)} {what}" for what, paths in _kinds(found) if paths)
        out(f"{id}: {one_line(found.project)} has drifted: {', '.join(counts)}")
    elif found.is_current:
        out(f"{id}: {one_line(found.project)} is as it was captured")


def _kinds(found: Drift) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return ("changed", found.changed), ("gone", found.gone), ("new", found.new)


@commands.command("show")
def show(
    ctx: typer.Context,
    id: Id,
    files: Annotated[bool, typer.Option("--files", help="The list of files, with their sizes.")] = False,
) -> None:
    """Print a conversation's context: its document, or with --json all of it."""
    with store_of(ctx) as store:
        id = store.resolve(id)
        found = _context_of(store, id)
    metadata = found.get("metadata") or {}
    if asked(ctx).json:
        from capsule.format.codec import encode
        from capsule_cli.output import out_json_bytes

        out_json_bytes(encode(metadata if files else found))
    elif files:
        rows = [
            tuple("" if entry.get(name) is None else str(entry[name]) for name in ("bytes", "tokens", "path"))
            for entry in metadata.get("files") or ()
        ]
        table(("bytes", "tokens", "file"), rows, last="file")
    else:
        text = str(found.get("fullContext") or "").removesuffix("\n")
        out(shown(text) if in_terminal() else text)


@commands.command("diff")
def diff(ctx: typer.Context, id: Id, project: Project = None) -> None:
    """Print what changed in the project since it was captured, as a unified diff."""
    from capsule.context import drift

    with store_of(ctx) as store:
        id = store.resolve(id)
        found = _context_of(store, id)
        with progress("comparing", after_s=0.3) as bar:
            told = drift.check(found, _surroundings(store), project, bar)
    lines = list(drift.diff(found, told))
    if asked(ctx).json:
        out_json({"id": id, **told.as_json(), "diff": "".join(f"{line}\n" for line in lines)})
    else:
        if told.problem:
            say(shown(f"{id}: {told.problem}"))
        for line in lines:
            out(shown(line))
    if told.problem:
        raise typer.Exit(1)


@commands.command("clear")
def clear(ctx: typer.Context, id: Id) -> None:
    """Take a conversation's context away; its messages stay."""
    from capsule.context.drift import is_empty

    with store_of(ctx) as store:
        id = store.resolve(id)
        there = not is_empty(store.context(id))
        if there:
            store.clear_context(id)
    if asked(ctx).json:
        out_json({"id": id, "cleared": there})
    else:
        out(f"{id}: " + ("its context is cleared" if there else "it has no context; nothing was changed"))


def _context_of(store: Store, id: str) -> dict[str, Any]:
    from capsule.context.drift import is_empty

    found = store.context(id)
    if is_empty(found):
        raise _none(id)
    return found


def _none(id: str) -> NotFound:
    return NotFound(f"conversation {id} has no context; capture one with: capsule context capture {id} PATH", id=id)


def _surroundings(store: Store) -> Surroundings:
    from capsule.context.files import Surroundings

    own = tuple(os.path.join(store.root, name) for name in _OWN)
    return Surroundings(_global_ignore, own)


def _global_ignore() -> str:
    """The text of the user's global ignore file: `core.excludesFile`, else the one in the XDG directory."""
    from capsule.git.program import Git

    try:
        path = Git(os.getcwd()).run("config", "--type=path", "--get", "core.excludesFile", fine=(0, 1)).text
    except CapsuleError:
        path = ""
    if not path:
        directory = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
        path = os.path.join(directory, "git", "ignore")
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
