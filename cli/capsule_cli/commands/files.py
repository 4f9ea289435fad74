"""Files as such: `store validate`, `store migrate`, `store schema`.

What must stay true: a command that finds something wrong does not exit 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any

import typer

from capsule.errors import CapsuleError, InvalidDocument, NotFound, Problem
from capsule_cli.boundary import end_with
from capsule_cli.completion import complete_id
from capsule_cli.shared.asked import asked
from capsule_cli.shared.inputs import read_file
from capsule_cli.shared.opening import store_of
from capsule_cli.shared.options import argument, flag, option
from capsule_cli.shared.output import (
    answer,
    counted,
    out,
    out_bytes,
    out_json,
    say,
    shown,
    with_bar,
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
    from capsule.format.kinds import KINDS

    if paths:
        files = list(dict.fromkeys(file for path in paths for file in _files(path)))
    else:
        with store_of() as store:
            store.engine.outside_edits()  # An agent does not even learn how many there are.
            folders = [os.path.join(store.root, kind) for kind in KINDS]
            files = [file for folder in folders if os.path.isdir(folder) for file in _files(folder)]
            files += filter(os.path.lexists, [os.path.join(store.root, _OVERRIDES)])
    problems = [
        problem for file in with_bar("validating", files, len(files)) for problem in _problems(file)
    ]
    if asked.json:
        out_json(
            {
                "ok": not problems,
                "files": len(files),
                "problems": [asdict(problem) for problem in problems],
            }
        )
    else:
        for problem in problems:
            out(shown(str(problem)))
        verdict = counted(len(problems), "problem") if problems else "all valid"
        say(f"{counted(len(files), 'file')} checked: {verdict}")
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
    from capsule.format.kinds import CONVERSATION, KINDS

    problems_of = KINDS.get(
        os.path.basename(os.path.dirname(os.path.abspath(path))), CONVERSATION
    ).problems_of
    if os.path.normpath(os.path.abspath(path)).endswith(os.sep + _OVERRIDES):
        from capsule.store.objects.attributes import problems_of

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
    with store_of() if ids or not names else nullcontext() as store:
        jobs = {("path", file): partial(_migrate_file, file) for file in files}
        if store is not None:
            wanted = map(store.resolve, ids) if names else sorted(store.ids())
            jobs |= {("id", id): partial(store.edits.migrate, id) for id in wanted}
        for (kind, name), migrated in with_bar("migrating", jobs.items(), len(jobs)):
            try:
                results.append({kind: name, "changes": migrated(check=check)})
            except CapsuleError as error:
                failed.append(error)
                results.append({kind: name, "changes": [], "error": error.message})
    changed = [result for result in results if result["changes"]]
    lines = [
        shown(f"{of.get('id') or of['path']}: {change}")
        for of in changed
        for change in of["changes"]
    ]
    total = f"{counted(len(jobs), 'file' if files else 'conversation')}: {len(changed)} "
    total += ("would change" if check else "changed") + (
        f", {len(failed)} failed" if failed else ""
    )
    answer(results, "\n".join([*lines, total]))
    end_with(failed)
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
        and (url := locate.named(asked.store)) is not None
        and opening.make_in_database(url)
    ):
        say("the tables of the store were brought to this version")


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
    document, changes = migrations.current(codec.decode(data, path), path)
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

    out_bytes(text(kind, format_version).encode())
