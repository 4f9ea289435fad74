"""The commands for a whole store: `init`, `copy`, and the group `store`.

What must stay true: a command that finds a problem, and a copy that is incomplete, do not exit with
0. `copy` neither replaces nor removes a document of a store without naming it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsule import rooms
from capsule.errors import (
    CapsuleError,
    InvalidDocument,
    NotFound,
    Problem,
    Refused,
    StorageFailed,
    StoreBusy,
)
from capsule_cli.exits import exit_with_errors
from capsule_cli.shared.inputs import read_file
from capsule_cli.shared.options import argument, complete_id, flag, option, refuse_if
from capsule_cli.shared.output import (
    escape_controls,
    global_options,
    print_answer,
    print_json,
    print_notice,
    print_stored_bytes,
    print_text,
    progress,
    with_count,
    with_progress,
)
from capsule_cli.shared.stores import ensure_person, open_core_store

if TYPE_CHECKING:
    from capsule.maintenance.conflict_copies import Ancestor
    from capsule.maintenance.doctor import DoctorFinding
    from capsule.store.store import CoreStore


def init(
    directory: str | None = argument(
        "DIR",
        "The directory. Without it: that of --store, else of CAPSULE_STORE, else the current one.",
    ),
) -> None:
    """Make a store in a directory or a database. Existing files and data stay unchanged."""
    from capsule import locate
    from capsule.engines import opening
    from capsule.store.store import CoreStore

    address = directory or global_options.store or os.environ.get("CAPSULE_STORE") or "."
    # With the password, which the environment does not contain any more.
    address = locate.database_address(address) or address
    root = (
        opening.without_password(address)
        if opening.is_address(address)
        else os.path.abspath(address)
    )
    created = CoreStore.init(address)
    text = f"{root} is a store already; nothing was changed"
    if created:
        text = "\n  ".join(["made a store:", *created])
    print_answer({"root": root, "made": created}, escape_controls(text))


def show() -> None:
    """Print the directory of the store that commands use here, and the reason."""
    from capsule import locate

    location = locate.locate_store(global_options.store)
    facts: dict[str, str] = {}
    url = locate.database_address(global_options.store)
    if url is not None:
        from capsule.engines import opening

        facts["durability"] = opening.durability(url)
    lines = [location.root, location.explanation, *facts.values()]
    value = {"root": location.root, "reason": location.reason, **facts}
    print_answer(value, escape_controls("\n  ".join(lines)))


def settings(
    new: str | None = option("--set FILE", "Replace them by this file; - is standard input."),
    edit: bool = flag(
        "--edit", "Open them in $VISUAL or $EDITOR, and save them when they are valid."
    ),
) -> None:
    """Print the settings of the store, its capsule.toml, or change them; also those of a store in a
    database.

    Invalid settings are not written. A program that has the store open keeps the settings that it
    read.
    """
    refuse_if(edit and new is not None, "give one of the two", "--set")
    with open_core_store() as store:
        old_text = store.read_settings()
        saved = None
        if edit:
            from capsule_cli.commands.changes import through_editor

            saved = through_editor(
                old_text.encode(),
                "-capsule.toml",
                lambda data, _: store.set_settings(data, old_text),
            )
        elif new is not None:
            saved = store.set_settings(sys.stdin.buffer.read() if new == "-" else read_file(new))
        current_text = store.read_settings()
    for problem in saved.unknown if saved else ():
        print_notice(str(problem))
    is_changed = current_text != old_text
    if global_options.json:
        print_json({"settings": current_text, "changed": is_changed})
    elif edit or new is not None:
        print_text("saved" if is_changed else "nothing changed")
    else:
        print_stored_bytes(current_text.encode())


def doctor(
    repair: bool = flag(
        "--repair", "Repair what can be repaired. The original is kept in .capsule/quarantine/."
    ),
    flush: bool = flag(
        "--flush",
        "Flush all files to the disk, and examine nothing. Use it before a program copies "
        "the files.",
    ),
    report: bool = flag(
        "--report",
        "Print what a bug report needs: versions, counts and kinds, but no text, title, name or "
        "path.",
    ),
) -> None:
    """Examine every document of the store. The exit code is 0 only if no problem is left.

    It first completes documents that a power cut left incomplete, and prints their number.
    """
    refuse_if(
        flush and repair,
        "it examines nothing, so it has nothing to repair; give one of the two",
        "--flush",
    )
    refuse_if(report and (repair or flush), "is given alone", "--report")
    if report:
        _print_bug_report()
        return
    with open_core_store() as store:
        if flush:
            completed = store.flush()
            lines = ["every document is on the disk", *_completed_lines(completed)]
            print_answer({"completed": completed}, escape_controls("\n".join(lines)))
            return
        completed = _flush(store)
        count = len(store.ids())
        findings = _examine(store, repair=repair)
    troubles = [finding for finding in findings if finding.is_trouble]
    unrepaired = [finding for finding in troubles if not finding.repaired]
    value = {
        "ok": not unrepaired,
        "conversations": count,
        "completed": completed,
        "findings": [asdict(finding) for finding in findings],
    }
    lines = [*_completed_lines(completed), *map(str, findings), _summary(count, troubles)]
    print_answer(value, escape_controls("\n".join(lines)))
    if unrepaired:
        raise typer.Exit(InvalidDocument.exit_code)


def _examine(store: CoreStore, *, repair: bool) -> list[DoctorFinding]:
    """Examine every document. With `repair`, repair what can be repaired."""
    from capsule.maintenance.doctor import examine

    with progress("examining") as bar:
        ancestor = _ancestor(store) if repair else None
        return list(examine(store, repair=repair, progress=bar, ancestor=ancestor))


def _print_bug_report() -> None:
    """Print a bug report. If the store can't be opened, print the error and the versions."""
    from capsule.maintenance.report import report
    from capsule.software_versions import versions

    try:
        with open_core_store() as store, progress("examining") as bar:
            value = report(store, bar)
    except CapsuleError as error:
        value = {"versions": versions(), "error": type(error).__name__, "exitCode": error.exit_code}
    print_answer(value, escape_controls("\n".join(_value_lines(value))))
    exit_code = value["exitCode"]
    if exit_code:
        raise typer.Exit(exit_code)


def _value_lines(value: Any, name: str = "") -> Iterator[str]:
    """Yield a line for each value in nested objects, with the names that lead to it."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _value_lines(part, f"{name}.{key}" if name else key)
        return
    text = " ".join(value) if isinstance(value, tuple) else value
    if text in (None, {}, ""):
        text = "none"
    yield f"{name}: {text}"


def _flush(store: CoreStore) -> int:
    """Flush all documents. Return how many had to be completed after a power cut.

    A document that can't be flushed is no error: the examination reports it.
    """
    try:
        return store.flush()
    except (Refused, StorageFailed, StoreBusy) as error:
        print_notice(f"not everything is known to be on the disk: {error.message}")
        return 0


def _completed_lines(completed: int) -> list[str]:
    """Return the line that reports how many documents were completed, if any."""
    if not completed:
        return []
    outcome = (
        "were incomplete on the disk after a power cut or the loss of the disk, and were "
        "completed from the log"
    )
    return [f"{with_count(completed, 'document')} {outcome}"]


def _ancestor(store: CoreStore) -> Ancestor | None:
    """Return the function that finds in git the version which a conflict copy began from. None: the
    store is in no repository.
    """
    try:
        clone = rooms.open_clone(store)
        return clone.ancestor if clone.repository else None
    except (NotFound, Refused):
        return None


def _summary(count: int, troubles: list[DoctorFinding]) -> str:
    """Return the last line of an examination of `count` conversations."""
    examined = f"{with_count(count, 'conversation')} examined: "
    if not troubles:
        return examined + "all is well"
    unrepaired = [finding for finding in troubles if not finding.repaired]
    text = examined + with_count(len(troubles), "finding")
    if len(unrepaired) < len(troubles):
        text += f", {len(troubles) - len(unrepaired)} repaired, {len(unrepaired)} left"
    if any(finding.repairable for finding in unrepaired):
        text += "; --repair repairs what it can"
    elif unrepaired:
        text += "; --repair can't repair the rest: each line says what to do"
    return text


From = Annotated[
    str, argument("FROM", "The store to copy: a directory, or an address in PostgreSQL.", ...)
]
To = Annotated[
    str, argument("TO", "The store that gets the copy; make it with `capsule init` first.", ...)
]


def copy(source: From, target: To) -> None:
    """Copy a store into another one: into PostgreSQL, into files, and back. Run it again to copy
    later changes.

    A document of the target that has diverged is left alone and listed.
    """
    from capsule.store.copying import copy_store
    from capsule.store.store import CoreStore

    ensure_person("copies")
    with (
        CoreStore.open(source, keep_locks=False) as source_store,
        CoreStore.open(target, keep_locks=False) as target_store,
    ):
        with progress("copying") as bar:
            copied = copy_store(source_store, target_store, bar)
        title = f"{source_store.root} -> {target_store.root}"
    lines = [
        f"{title}: {with_count(copied.written, 'document')} written, {copied.same} there already"
    ]
    for kind, id in copied.kept:
        lines.append(f"{kind}/{id}: the other store has a diverged version; it stays")
    for kind, id, error in copied.failed:
        lines.append(f"{kind}/{id}: {error}")
    is_complete = not (copied.kept or copied.failed)
    print_answer(copied.as_json(), escape_controls("\n".join(lines)), ok=is_complete)


#: The paths of the documents in JSON that are not of a kind in `KINDS`: a store has one of each.
_OVERRIDES = os.path.join("overrides", "next.json")
_REGISTRY = os.path.join("sessions", "registry.json")


def validate(
    paths: list[str] | None = argument(
        "PATH", "Files, and directories with *.json in them. Without any: those of the store."
    ),
) -> None:
    """Check files against the format, also outside a store. Print `path:line:column: what` for each
    problem.
    """
    files = _files_to_validate(paths)
    problems = []
    for file in with_progress("validating", files, len(files)):
        problems += _problems(file)
    if global_options.json:
        print_json(
            {
                "ok": not problems,
                "files": len(files),
                "problems": [asdict(problem) for problem in problems],
            }
        )
    else:
        for problem in problems:
            print_text(escape_controls(str(problem)))
        verdict = with_count(len(problems), "problem") if problems else "all valid"
        print_notice(f"{with_count(len(files), 'file')} checked: {verdict}")
    if problems:
        raise typer.Exit(InvalidDocument.exit_code)


def _files_to_validate(paths: list[str] | None) -> list[str]:
    """Return the files at these paths. Without paths, return those of the store."""
    from capsule.format.validation import KINDS

    if paths:
        return list(dict.fromkeys(file for path in paths for file in _files(path)))
    with open_core_store() as store:
        # Refuses a store in a database, which has no files, and an agent, which must not learn how
        # many there are.
        store.engine.external_edits()
        files: list[str] = []
        for kind in KINDS:
            folder = os.path.join(store.root, kind)
            if os.path.isdir(folder):
                files += _files(folder)
        for name in (_OVERRIDES, _REGISTRY):
            path = os.path.join(store.root, name)
            if os.path.lexists(path):
                files.append(path)
        return files


def _files(path: str) -> Iterator[str]:
    """Yield `path`, or the *.json files below it. Files and directories below it whose name begins
    with a dot are left out.

    Raises NotFound: it does not exist.
    """
    if not os.path.lexists(path):
        raise NotFound(f"{path}: there is no such file or directory", id=path)
    if not os.path.isdir(path):
        yield path
    for directory, names, files in os.walk(path):
        names[:] = sorted(name for name in names if not name.startswith("."))
        for name in sorted(files):
            if name.endswith(".json") and not name.startswith("."):
                yield os.path.join(directory, name)


def _problems(path: str) -> list[Problem]:
    """Return the problems of a file. Its path tells the kind of the document."""
    from capsule.format.validation import CONVERSATION, KINDS, REGISTRY

    absolute = os.path.abspath(path)
    kind = KINDS.get(os.path.basename(os.path.dirname(absolute)), CONVERSATION)
    problems_of = kind.problems_of
    if absolute.endswith(os.sep + _REGISTRY):
        problems_of = REGISTRY.problems_of
    elif absolute.endswith(os.sep + _OVERRIDES):
        from capsule.store.change.pending_overrides import problems_of

    try:
        return problems_of(read_file(path), path)
    except CapsuleError as error:
        reason = error.message.removeprefix(f"{path}: ").removeprefix(f"{path} ")
        return [Problem(path, 0, 0, "", reason)]


def migrate(
    names: list[str] | None = argument(
        "ID|PATH",
        "Conversations of the store, or files, and directories with *.json in them, anywhere; "
        "else the store.",
        autocompletion=complete_id,
    ),
    check: bool = flag("--check", "Change nothing; exit 1 when something would change."),
) -> None:
    """Update files to the current version of the format. Paths may be outside a store.

    Of a store in a database, its tables come first.
    """
    files: list[str] = []
    ids: list[str] = []
    for name in names or ():
        if _is_path(name):
            files += _files(name)
        else:
            ids.append(name)
    jobs: dict[tuple[str, str], Callable[..., list[str]]] = {}
    for file in files:
        jobs["path", file] = partial(_migrate_file, file)
    if names and not ids:
        results, errors = _run_migrations(jobs, check=check)
    else:
        _migrate_database(check=check)
        with open_core_store() as store:
            for id in map(store.resolve, ids) if names else sorted(store.ids()):
                jobs["id", id] = partial(store.edits.migrate, id)
            results, errors = _run_migrations(jobs, check=check)
    _print_migrations(results, len(errors), noun="file" if files else "conversation", check=check)
    exit_with_errors(errors)
    if check and any(result["changes"] for result in results):
        raise typer.Exit(1)


def _print_migrations(
    results: list[dict[str, Any]], failed: int, *, noun: str, check: bool
) -> None:
    """Print a line for each change, and the counts."""
    changed = [result for result in results if result["changes"]]
    lines = []
    for result in changed:
        subject = result.get("id") or result["path"]
        lines += [escape_controls(f"{subject}: {change}") for change in result["changes"]]
    outcome = "would change" if check else "changed"
    total = f"{with_count(len(results), noun)}: {len(changed)} {outcome}"
    if failed:
        total += f", {failed} failed"
    print_answer(results, "\n".join([*lines, total]))


def _run_migrations(
    jobs: Mapping[tuple[str, str], Callable[..., list[str]]], *, check: bool
) -> tuple[list[dict[str, Any]], list[CapsuleError]]:
    """Migrate documents. Return a result as JSON for each, and the errors of those that failed.

    Args:
        jobs: For each document the function that migrates it and returns the changes, by the name
            of the field ("path" or "id") and its value.
        check: Whether to change nothing.
    """
    results: list[dict[str, Any]] = []
    errors: list[CapsuleError] = []
    for (field, value), migrate_document in with_progress("migrating", jobs.items(), len(jobs)):
        try:
            results.append({field: value, "changes": migrate_document(check=check)})
        except CapsuleError as error:
            errors.append(error)
            results.append({field: value, "changes": [], "error": error.message})
    return results, errors


def _migrate_database(*, check: bool) -> None:
    """Bring the tables of a store in a database to this version, unless `check` is set."""
    from capsule import locate
    from capsule.engines import opening

    if check:
        return
    url = locate.database_address(global_options.store)
    if url is not None and opening.make_in_database(url):
        print_notice("the tables of the store were migrated to this version")


def _is_path(name: str) -> bool:
    """Return whether a name is a path and no conversation. An existing file is a path."""
    return os.path.lexists(name) or os.sep in name or name.endswith(".json")


def _migrate_file(path: str, *, check: bool) -> list[str]:
    """Migrate one file, by its store if it belongs to one. Return the changes."""
    from capsule.disk.whole_files import replace_file
    from capsule.format import migrations, validation
    from capsule.format.json import canonical, codec

    directory, name = os.path.split(os.path.realpath(path))
    root = os.path.dirname(directory)
    if os.path.basename(directory) == "conversations" and os.path.isfile(
        os.path.join(root, "capsule.toml")
    ):
        from capsule.store.store import CoreStore

        with CoreStore.open(root, keep_locks=False) as store:
            return store.edits.migrate(name.removesuffix(".json"), check=check)
    data = read_file(path)
    validation.check(codec.decode(data, path), data, path)
    document, changes = migrations.upgrade(codec.decode(data, path), path)
    new_data = codec.encode(canonical.in_order(document))
    if not changes and new_data != data:
        changes = ["brought into the canonical layout"]
    if changes and not check:
        replace_file(os.path.join(directory, name), data, new_data)
    return changes


def _kinds() -> str:
    from capsule.format.schema import kinds

    return f"The kind of document: {', '.join(kinds())}."


def schema(
    kind: str = argument("KIND", _kinds, "capsule"),
    format_version: str | None = option(
        "--format-version V", "Print this version of it. Without it: the newest."
    ),
) -> None:
    """Print the JSON Schema of a kind of document."""
    from capsule.format.schema import text

    print_stored_bytes(text(kind, format_version).encode())
