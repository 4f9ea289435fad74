"""`context` and `mcp servers`: what a conversation has of its project, and which MCP servers it uses.

`context` captures a project into a conversation, compares it, prints it, and removes it.
`mcp servers` switches MCP servers on or off for one conversation, in place of the default.

What must stay true: possible secrets are named before anything is written. If a project has
drifted, `context check` exits with 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from capsule.errors import CapsuleError, NotFound
from capsule.format.text.escaping import escape_controls
from capsule_cli.exits import exit_with_errors
from capsule_cli.shared.options import (
    DryRun,
    Id,
    Yes,
    argument,
    complete_id,
    complete_id_or_next,
    flag,
    option,
    usage_error,
)
from capsule_cli.shared.output import (
    global_options,
    in_terminal,
    on_or_off,
    one_line,
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


# -- context ---------------------------------------------------------------------------------------

#: Most possible secrets, and most omitted files, that are printed.
_MAX_LINES = 20

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
    from capsule.context import capture as context_capture
    from capsule.context.files import FILE_BYTES, TOTAL_BYTES, FileSelection

    limits = max_file_bytes or FILE_BYTES, max_bytes or TOTAL_BYTES
    selection = FileSelection(tuple(include or ()), tuple(exclude or ()), *limits, budget)
    with open_conversation(id) as (store, conversation_id):
        with progress("capturing") as bar:
            captured = context_capture.capture(path, selection, bar)
        captured.secrets_allowed = allow_secrets
        if not dry_run:
            _ask_about_secrets(captured, yes)
            store.context.set(conversation_id, captured)
    if not global_options.json:
        _print_omitted(captured, planned=dry_run)
    counts = f"{with_count(len(captured.files), 'file')}, about {captured.tokens:,} tokens"
    facts = {
        "id": conversation_id,
        "written": not dry_run,
        "projectPath": captured.root,
        "filesIncluded": len(captured.files),
        "bytes": sum(len(file.data) for file in captured.files),
        "estimatedTokens": captured.tokens,
        "files": [
            {"path": file.path, "bytes": len(file.data), "tokens": file.tokens}
            for file in captured.files
        ],
        "leftOut": [{"path": _utf8(file.path), "why": file.reason} for file in captured.left_out],
        "secrets": [
            {"path": secret.path, "line": secret.line, "kind": secret.kind}
            for secret in captured.findings
        ],
    }
    print_answer(
        facts,
        f"{conversation_id}: {'would capture' if dry_run else 'captured'} {one_line(captured.root)}: {counts}",
    )


def _ask_about_secrets(captured: Capture, yes: bool) -> None:
    """Ask a person at a terminal whether to take files with possible secrets.

    Raises Refused: the capture has possible secrets, and nobody permitted them.
    """
    import typer

    can_ask = in_terminal() and sys.stdin.isatty()
    if captured.findings and not (captured.secrets_allowed or yes) and can_ask:
        print_notice("these may be secrets, and every reader of the conversation would read them:")
        for finding in captured.findings[:_MAX_LINES]:
            print_notice(f"  {one_line(str(finding))}")
        captured.secrets_allowed = typer.confirm("Capture these files nevertheless?", err=True)
    captured.ensure_no_secrets()


def _utf8(path: str) -> str:
    """Return a path as text. Bytes that are not valid UTF-8 are escaped."""
    return path.encode("utf-8", "backslashreplace").decode()


def _print_omitted(captured: Capture, *, planned: bool) -> None:
    """Print the files that were left out. With `planned`, print first the files that would be taken
    and the possible secrets.
    """
    if planned:
        rows = [(str(file.tokens), file.path) for file in captured.files]
        print_list(None, ("tokens", "file"), rows, "no file would be captured", last="file")
        for finding in captured.findings:
            print_notice(f"possible secret: {one_line(str(finding))}")
    for left_out in captured.left_out[:_MAX_LINES]:
        print_notice(f"left out: {one_line(_utf8(left_out.path))}: {one_line(left_out.reason)}")
    if len(captured.left_out) > _MAX_LINES:
        print_notice(f"left out: {len(captured.left_out) - _MAX_LINES} more; --json lists them all")


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
    import typer

    if (id is None) != all_ or (all_ and project is not None):
        raise usage_error("name a conversation, or give --all without --project", "ID")
    with open_core_store() as store, progress("checking") as bar:
        if id is not None:
            from capsule.context.drift import check as check_drift

            conversation_id = store.resolve(id)
            context = _context_of(store, conversation_id)
            drifts = [(conversation_id, check_drift(context, project, bar))]
            errors: list[CapsuleError] = []
        else:
            drifts, errors = _check_all(store)
    documents = [{"id": checked_id, **drift.as_json()} for checked_id, drift in drifts]
    lines: list[str] = []
    for checked_id, drift in drifts:
        if drift.problem and not global_options.json:
            print_notice(f"{checked_id}: {drift.problem}")
        lines += _drift_lines(checked_id, drift)
    if lines or global_options.json:
        print_answer(documents if all_ else documents[0], "\n".join(lines))
    exit_with_errors(errors)
    if not all(drift.is_current for _, drift in drifts):
        raise typer.Exit(1)


def _check_all(store: CoreStore) -> tuple[list[tuple[str, Drift]], list[CapsuleError]]:
    """Check every conversation with a context. Return the drifts with their ids, and the errors."""
    from capsule.context import drift

    drifts = []
    errors = []
    for id in store.ids():
        try:
            context = store.context.get(id)
            if not drift.is_empty(context):
                drifts.append((id, drift.check(context)))
        except CapsuleError as error:
            errors.append(error)
    return drifts, errors


def _drift_lines(id: str, drift: Drift) -> Iterator[str]:
    """Yield the lines about the drift of one conversation: one for each file, then a summary."""
    kinds = {"changed": drift.changed, "gone": drift.gone, "new": drift.new}
    if drift.edited:
        yield f"{id}: the context's text was edited: it is not the one that was captured"
    yield from (f"{kind}\t{one_line(path)}" for kind, paths in kinds.items() for path in paths)
    if drift.has_drifted:
        counts = ", ".join(f"{len(paths)} {kind}" for kind, paths in kinds.items() if paths)
        yield f"{id}: {one_line(drift.project)} has drifted: {counts}"
    elif drift.is_current:
        yield f"{id}: {one_line(drift.project)} has not changed since the capture"


def show(id: Id, files: bool = flag("--files", "List the files with their sizes instead.")) -> None:
    """Print the document of a conversation's context; with --json all of the context."""
    with open_conversation(id) as (store, conversation_id):
        context = _context_of(store, conversation_id)
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
    import typer

    from capsule.context import drift

    with open_conversation(id) as (store, conversation_id):
        context = _context_of(store, conversation_id)
        with progress("comparing") as bar:
            drifted = drift.check(context, project, bar)
    lines = list(drift.diff(context, drifted))
    if drifted.problem and not global_options.json:
        print_notice(f"{conversation_id}: {drifted.problem}")
    if lines or global_options.json:
        print_answer(
            {
                "id": conversation_id,
                **drifted.as_json(),
                "diff": "".join(f"{line}\n" for line in lines),
            },
            escape_controls("\n".join(lines)),
        )
    if drifted.problem:
        raise typer.Exit(1)


def clear(id: Id) -> None:
    """Remove a conversation's context; its messages stay."""
    from capsule.context.drift import is_empty

    with open_conversation(id) as (store, conversation_id):
        had_context = not is_empty(store.context.get(conversation_id))
        if had_context:
            store.context.clear(conversation_id)
    outcome = "its context is cleared" if had_context else "it has no context; nothing was changed"
    value = {"id": conversation_id, "cleared": had_context}
    print_answer(value, f"{conversation_id}: {outcome}")


def _context_of(store: CoreStore, id: str) -> dict[str, Any]:
    """Return the context of a conversation. Raises NotFound: it has none."""
    from capsule.context.drift import is_empty

    context = store.context.get(id)
    if is_empty(context):
        raise NotFound(
            f"conversation {id} has no context; capture one with: capsule context capture {id} "
            "PATH",
            id=id,
        )
    return context


# -- mcp servers -----------------------------------------------------------------------------------

#: The name of the next new conversation. No id can be the same.
NEXT = "@next"

_CONVERSATION_OR_NEXT = (
    "The conversation: its id, a unique beginning of it, @last; or @next, the next one that "
    "is made."
)
ConversationOrNext = Annotated[
    str, argument("ID", _CONVERSATION_OR_NEXT, ..., autocompletion=complete_id_or_next)
]
Server = Annotated[str, argument("SERVER", "The MCP server, by its name.", ...)]
Names = Annotated[list[str], argument("SERVER", "MCP servers, by their names.", ...)]
Switch = Annotated[Literal["on", "off"], argument("on|off", "Whether the server is on there.", ...)]


def servers_set(id: ConversationOrNext, server: Server, switch: Switch) -> None:
    """Switch an MCP server on or off."""
    _set_servers(id, {server: switch == "on"})


def servers_remove(id: ConversationOrNext, servers: Names) -> None:
    """Reset MCP servers to their default."""
    _set_servers(id, dict.fromkeys(servers))


def servers_toggle(id: ConversationOrNext, server: Server) -> None:
    """Switch an MCP server off when it is on, and on when it is off. Without an override it counts
    as on.
    """
    with open_core_store() as store:
        conversation_id = _resolve_or_next(store, id)
        _print_switches(conversation_id, store.servers.toggle(conversation_id, server))


def servers_list(id: ConversationOrNext) -> None:
    """List the MCP servers that differ from the default."""
    with open_core_store() as store:
        conversation_id = _resolve_or_next(store, id)
        switches = store.servers.get(conversation_id)
    rows = [(name, on_or_off(is_on)) for name, is_on in switches.items()]
    value = _switches_as_json(conversation_id, switches)
    print_list(value, ("server", "here"), rows, "all servers have their default", last="server")


def _set_servers(id: str, changes: dict[str, bool | None]) -> None:
    with open_core_store() as store:
        conversation_id = _resolve_or_next(store, id)
        _print_switches(conversation_id, store.servers.set(conversation_id, changes))


def _resolve_or_next(store: CoreStore, id: str) -> str | None:
    """Return the id of a conversation. None: the next new conversation."""
    return None if id == NEXT else store.resolve(id)


def _switches_as_json(id: str | None, switches: dict[str, bool]) -> dict[str, object]:
    return {"id": id, "mcpServers": {name: {"enabled": on} for name, on in switches.items()}}


def _print_switches(id: str | None, switches: dict[str, bool]) -> None:
    texts = [f"{one_line(name)} {on_or_off(is_on)}" for name, is_on in switches.items()]
    text = ", ".join(texts) or "all as by default"
    print_answer(_switches_as_json(id, switches), f"{id or 'the next conversation'}: {text}")
