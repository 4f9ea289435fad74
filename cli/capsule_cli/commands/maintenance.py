"""The store as a whole: `init`, `store show`, `store settings`, `store doctor`.

What must stay true: a command that finds something wrong does not exit 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from capsule import rooms
from capsule.errors import (
    CapsuleError,
    InvalidDocument,
    NotFound,
    Refused,
    StorageFailed,
    StoreBusy,
)
from capsule_cli.shared.asked import asked
from capsule_cli.shared.inputs import read_file
from capsule_cli.shared.opening import store_of
from capsule_cli.shared.options import argument, flag, option, refuse
from capsule_cli.shared.output import (
    answer,
    counted,
    out,
    out_bytes,
    out_json,
    progress,
    say,
    shown,
)

if TYPE_CHECKING:
    from capsule.maintenance.conflict_copies import Ancestor
    from capsule.maintenance.doctor import Finding
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

    place = directory or asked.store or os.environ.get("CAPSULE_STORE") or "."
    place = locate.named(place) or place  # With the password, which the environment has no more.
    root = opening.shown(place) if opening.is_address(place) else os.path.abspath(place)
    made = CoreStore.init(place)
    said = (
        "\n  ".join(["made a store:", *made])
        if made
        else f"{root} is a store already; nothing was changed"
    )
    answer({"root": root, "made": made}, shown(said))


def show() -> None:
    """Print the directory of the store that commands use here, and the reason."""
    from capsule import locate

    found, facts = locate.locate_store(asked.store), {}
    if (url := locate.named(asked.store)) is not None:
        from capsule.engines import opening

        facts = {"durability": opening.durability(url)}
    said = [found.root, found.words, *facts.values()]
    answer({"root": found.root, "reason": found.reason, **facts}, shown("\n  ".join(said)))


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
    refuse(edit and new is not None, "give one of the two", "--set")
    with store_of() as store:
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
        say(str(problem))
    if asked.json:
        out_json({"settings": now, "changed": now != there})
    elif edit or new is not None:
        out("saved" if now != there else "nothing changed")
    else:
        out_bytes(now.encode())


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

    refuse(
        flush and repair,
        "it examines nothing, so it has nothing to mend; give one of the two",
        "--flush",
    )
    refuse(report and (repair or flush), "is given alone", "--report")
    if report:
        _report()
        return
    with store_of() as store:
        if flush:
            completed = store.flush()
            answer(
                {"completed": completed},
                shown("\n".join(["every document is on the disk", *_of_cut(completed)])),
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
    answer(
        facts,
        shown("\n".join([*_of_cut(completed), *map(str, findings), _summary(many, troubles)])),
    )
    if left:
        raise typer.Exit(InvalidDocument.exit_code)


def _report() -> None:
    """Print a bug report; of a store that can't be opened, why, and the versions."""
    from capsule.maintenance.report import report
    from capsule.versions import versions

    try:
        with store_of() as store, progress("examining") as bar:
            facts = report(store, bar)
    except CapsuleError as error:
        facts = {"versions": versions(), "error": type(error).__name__, "exitCode": error.exit_code}
    answer(facts, shown("\n".join(_named_values(facts))))
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
        say(f"not everything is known to be on the disk: {error.message}")
        return 0


def _of_cut(completed: int) -> list[str]:
    words = (
        "were not on the disk as a whole when the power went or the disk was gone, and were "
        "completed from the log"
    )
    return [f"{counted(completed, 'document')} {words}"] if completed else []


def _ancestor(store: CoreStore) -> Ancestor | None:
    """What finds in git which version a conflict copy began from; None where the store is in no
    repository.
    """
    try:
        clone = rooms.open_clone(store)
        return clone.ancestor if clone.repository else None
    except (NotFound, Refused):
        return None


def _summary(many: int, troubles: list[Finding]) -> str:
    examined = f"{counted(many, 'conversation')} examined: "
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
    return examined + counted(len(troubles), "finding") + mended + (advice or by_hand)
