"""The store as a whole: `init`, `copy`, and the commands of the group `store`.

What must stay true: a command that finds something wrong does not exit with 0, nor does a copy that
is incomplete. `copy` replaces and removes nothing in either store that is not named.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
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
from capsule_cli.completion import complete_id
from capsule_cli.error_output import exit_with_errors
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.inputs import read_file
from capsule_cli.shared.options import argument, flag, option, refuse_if
from capsule_cli.shared.output import (
    escape_controls,
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

    place = directory or global_options.store or os.environ.get("CAPSULE_STORE") or "."
    place = (
        locate.database_address(place) or place
    )  # With the password, which the environment has no more.
    root = opening.without_password(place) if opening.is_address(place) else os.path.abspath(place)
    made = CoreStore.init(place)
    said = (
        "\n  ".join(["made a store:", *made])
        if made
        else f"{root} is a store already; nothing was changed"
    )
    print_answer({"root": root, "made": made}, escape_controls(said))


def show() -> None:
    """Print the directory of the store that commands use here, and the reason."""
    from capsule import locate

    found, facts = locate.locate_store(global_options.store), {}
    if (url := locate.database_address(global_options.store)) is not None:
        from capsule.engines import opening

        facts = {"durability": opening.durability(url)}
    said = [found.root, found.words, *facts.values()]
    print_answer(
        {"root": found.root, "reason": found.reason, **facts}, escape_controls("\n  ".join(said))
    )


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
        there = store.read_settings()
        saved = None
        if edit:
            from capsule_cli.commands.edit import through_editor

            saved = through_editor(
                there.encode(), "-capsule.toml", lambda data, _: store.set_settings(data, there)
            )
        elif new is not None:
            saved = store.set_settings(sys.stdin.buffer.read() if new == "-" else read_file(new))
        now = store.read_settings()
    for problem in saved.unknown if saved else ():
        print_notice(str(problem))
    if global_options.json:
        print_json({"settings": now, "changed": now != there})
    elif edit or new is not None:
        print_text("saved" if now != there else "nothing changed")
    else:
        print_stored_bytes(now.encode())


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
    """Examine every document of the store. The exit code is 0 only if no problem was found.

    It first completes documents that a power cut left incomplete, and prints their number.
    """
    from capsule.maintenance.doctor import examine

    refuse_if(
        flush and repair,
        "it examines nothing, so it has nothing to mend; give one of the two",
        "--flush",
    )
    refuse_if(report and (repair or flush), "is given alone", "--report")
    if report:
        _report()
        return
    with open_core_store() as store:
        if flush:
            completed = store.flush()
            print_answer(
                {"completed": completed},
                escape_controls("\n".join(["every document is on the disk", *_of_cut(completed)])),
            )
            return
        completed = _flushed(store)
        many = len(store.ids())
        with progress("examining") as bar:
            findings = list(
                examine(
                    store,
                    repair=repair,
                    progress=bar,
                    ancestor=_ancestor(store) if repair else None,
                )
            )
    troubles = [finding for finding in findings if finding.is_trouble]
    left = [finding for finding in troubles if not finding.repaired]
    facts = {
        "ok": not left,
        "conversations": many,
        "completed": completed,
        "findings": [asdict(finding) for finding in findings],
    }
    print_answer(
        facts,
        escape_controls(
            "\n".join([*_of_cut(completed), *map(str, findings), _summary(many, troubles)])
        ),
    )
    if left:
        raise typer.Exit(InvalidDocument.exit_code)


def _report() -> None:
    """Print a bug report; of a store that can't be opened, why, and the versions."""
    from capsule.maintenance.report import report
    from capsule.software_versions import versions

    try:
        with open_core_store() as store, progress("examining") as bar:
            facts = report(store, bar)
    except CapsuleError as error:
        facts = {"versions": versions(), "error": type(error).__name__, "exitCode": error.exit_code}
    print_answer(facts, escape_controls("\n".join(_named_values(facts))))
    if code := facts["exitCode"]:
        raise typer.Exit(code)


def _named_values(value: Any, name: str = "") -> Iterator[str]:
    """A line for each value in nested objects, which its names lead to."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _named_values(part, f"{name}.{key}" if name else key)
    else:
        if isinstance(value, tuple):
            value = " ".join(value)
        if value in (None, {}, ""):
            value = "none"
        yield f"{name}: {value}"


def _flushed(store: CoreStore) -> int:
    """How many documents had to be completed after a power cut. One that can't be is for the
    examination to name.
    """
    try:
        return store.flush()
    except (Refused, StorageFailed, StoreBusy) as error:
        print_notice(f"not everything is known to be on the disk: {error.message}")
        return 0


def _of_cut(completed: int) -> list[str]:
    words = (
        "were not on the disk as a whole when the power went or the disk was gone, and were "
        "completed from the log"
    )
    return [f"{with_count(completed, 'document')} {words}"] if completed else []


def _ancestor(store: CoreStore) -> Ancestor | None:
    """What finds in git which version a conflict copy began from; None where the store is in no
    repository.
    """
    try:
        clone = rooms.open_clone(store)
        return clone.ancestor if clone.repository else None
    except (NotFound, Refused):
        return None


def _summary(many: int, troubles: list[DoctorFinding]) -> str:
    examined = f"{with_count(many, 'conversation')} examined: "
    if not troubles:
        return examined + "all is well"
    left = [finding for finding in troubles if not finding.repaired]
    mended = (
        f", {len(troubles) - len(left)} mended, {len(left)} left"
        if len(left) < len(troubles)
        else ""
    )
    advice = (
        "; what can be mended is, with --repair"
        if any(finding.repairable for finding in left)
        else ""
    )
    by_hand = "; --repair can't mend what is left: each line says what you can do" if left else ""
    return examined + with_count(len(troubles), "finding") + mended + (advice or by_hand)


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
        CoreStore.open(source, keep_locks=False) as before,
        CoreStore.open(target, keep_locks=False) as after,
    ):
        with progress("copying") as bar:
            done = copy_store(before, after, bar)
        names = before.root, after.root
    lines = [
        (
            f"{names[0]} -> {names[1]}: {with_count(done.written, 'document')} written, {done.same} "
            "there already"
        )
    ]
    lines += [
        f"{kind}/{id}: the other store has a version of its own; it stays" for kind, id in done.kept
    ]
    lines += [f"{kind}/{id}: {error}" for kind, id, error in done.failed]
    print_answer(
        done.as_json(), escape_controls("\n".join(lines)), ok=not (done.kept or done.failed)
    )


#: The one document of a store that is no capsule.
_OVERRIDES = os.path.join("overrides", "next.json")


def validate(
    paths: list[str] | None = argument(
        "PATH", "Files, and directories with *.json in them. Without any: those of the store."
    ),
) -> None:
    """Check files against the format, also outside a store. Print `path:line:column: what` for each
    problem.
    """
    from capsule.format.validation import KINDS

    if paths:
        files = list(dict.fromkeys(file for path in paths for file in _files(path)))
    else:
        with open_core_store() as store:
            store.engine.external_edits()  # An agent does not even learn how many there are.
            folders = [os.path.join(store.root, kind) for kind in KINDS]
            files = [file for folder in folders if os.path.isdir(folder) for file in _files(folder)]
            files += filter(os.path.lexists, [os.path.join(store.root, _OVERRIDES)])
    problems = [
        problem
        for file in with_progress("validating", files, len(files))
        for problem in _problems(file)
    ]
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


def _files(path: str) -> Iterator[str]:
    """`path`, or the *.json under it; what begins with a dot there is left out."""
    if not os.path.lexists(path):
        raise NotFound(f"{path}: there is no such file or directory", id=path)
    if not os.path.isdir(path):
        yield path
    for directory, names, files in os.walk(path):
        names[:] = sorted(name for name in names if not name.startswith("."))
        chosen = sorted(
            name for name in files if name.endswith(".json") and not name.startswith(".")
        )
        yield from (os.path.join(directory, name) for name in chosen)


def _problems(path: str) -> list[Problem]:
    from capsule.format.validation import CONVERSATION, KINDS

    problems_of = KINDS.get(
        os.path.basename(os.path.dirname(os.path.abspath(path))), CONVERSATION
    ).problems_of
    if os.path.normpath(os.path.abspath(path)).endswith(os.sep + _OVERRIDES):
        from capsule.store.change.pending_overrides import problems_of

    try:
        return problems_of(read_file(path), path)
    except CapsuleError as error:
        return [
            Problem(
                path, 0, 0, "", error.message.removeprefix(f"{path}: ").removeprefix(f"{path} ")
            )
        ]


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
    files = [file for name in names or () if _is_path(name) for file in _files(name)]
    ids = [name for name in names or () if not _is_path(name)]
    results: list[dict[str, Any]] = []
    failed: list[CapsuleError] = []
    if ids or not names:
        _migrate_database(check=check)
    with open_core_store() if ids or not names else nullcontext() as store:
        jobs = {("path", file): partial(_migrate_file, file) for file in files}
        if store is not None:
            wanted = map(store.resolve, ids) if names else sorted(store.ids())
            jobs |= {("id", id): partial(store.edits.migrate, id) for id in wanted}
        for (kind, name), migrated in with_progress("migrating", jobs.items(), len(jobs)):
            try:
                results.append({kind: name, "changes": migrated(check=check)})
            except CapsuleError as error:
                failed.append(error)
                results.append({kind: name, "changes": [], "error": error.message})
    changed = [result for result in results if result["changes"]]
    lines = [
        escape_controls(f"{of.get('id') or of['path']}: {change}")
        for of in changed
        for change in of["changes"]
    ]
    total = f"{with_count(len(jobs), 'file' if files else 'conversation')}: {len(changed)} "
    total += ("would change" if check else "changed") + (
        f", {len(failed)} failed" if failed else ""
    )
    print_answer(results, "\n".join([*lines, total]))
    exit_with_errors(failed)
    if check and changed:
        raise typer.Exit(1)


def _migrate_database(*, check: bool) -> None:
    """Bring the schema of a store in a database to this version, unless it only is to be
    looked at.
    """
    from capsule import locate
    from capsule.engines import opening

    if (
        not check
        and (url := locate.database_address(global_options.store)) is not None
        and opening.make_in_database(url)
    ):
        print_notice("the tables of the store were brought to this version")


def _is_path(name: str) -> bool:
    """Whether a path is meant and no conversation: a file that is there is."""
    return os.path.lexists(name) or os.sep in name or name.endswith(".json")


def _migrate_file(path: str, *, check: bool) -> list[str]:
    """Migrate one file: by its store when it lies in one, else where it lies."""
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
    after = codec.encode(canonical.in_order(document))
    if not changes and after != data:
        changes = ["brought into the canonical layout"]
    if changes and not check:
        replace_file(os.path.join(directory, name), data, after)
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
