"""`config`: plan, apply and undo the channels, agents and links that files declare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsule.errors import Refused
from capsule_cli.public import open_full_store
from capsule_cli.shared.options import argument, option
from capsule_cli.shared.output import one_line, print_list, print_notice

if TYPE_CHECKING:
    from capsule import Plan, Store

_PRUNE = "Undo changes of earlier applies that no file declares any more."
Prune = Annotated[bool, option("--prune", _PRUNE, ...)]


def plan(prune: Prune = False) -> None:
    """Show what an apply would change and what it would refuse; change nothing.

    The exit code is 1 if there is something to do, else 6 if something is refused or a file is
    wrong.
    """
    with open_full_store() as store:
        _print_plan(_plan_of(store, prune), "there is nothing to do")


def apply(prune: Prune = False) -> None:
    """Apply what the files declare. The exit code is 6 if something is refused or a file
    is wrong.
    """
    with open_full_store() as store:
        applied = store.configuration.apply(_plan_of(store, prune))
    if applied.number:  # 0: nothing was applied.
        print_notice(
            f"this is apply {applied.number}; undo it with: capsule config rollback "
            f"{applied.number}"
        )
    _print_plan(applied, "there was nothing to do")


def history() -> None:
    """List the applies of this machine, the oldest first."""
    with open_full_store() as store:
        applied = store.configuration.history()
    rows = [
        (
            str(applied_plan.number),
            applied_plan.time,
            *(f"{len(applied_plan.having(outcome))} {outcome}" for outcome in ("done", "refused")),
        )
        for applied_plan in applied
    ]
    value = [applied_plan.as_json() for applied_plan in applied]
    print_list(
        value, ("n", "time", "done", "refused"), rows, "nothing was applied yet", last="refused"
    )


def rollback(number: Annotated[int, argument("N", "The number of the apply.", ...)]) -> None:
    """Undo an apply and all later ones. Later changes by others stay, and no agent is forgotten. The
    exit code is 6 if something is refused.
    """
    with open_full_store() as store:
        _print_plan(store.configuration.rollback(number), "there was nothing to undo")


def _plan_of(store: Store, prune: bool) -> Plan:
    """Return the plan. Besides the files of the store and its projects, it has the agent files of
    the home, and of the nearest folder upwards that has some.
    """
    start = Path.cwd().resolve()
    folders = [
        str(folder)
        for folder in (start, *start.parents)
        if (folder / ".claude" / "agents").is_dir()
    ]
    return store.configuration.plan(folders[:1], str(Path.home().resolve()), prune=prune)


def _print_plan(plan: Plan, empty: str) -> None:
    """Print the actions and problems of a plan, or of what was applied or undone. `empty` is the
    text if it has no action.

    Raises typer.Exit: something is to do (1), is refused, or a file is wrong.
    """
    columns = ("outcome", "kind", "on", "field", "before", "after", "reason")
    rows = [
        (
            action.outcome,
            action.kind,
            action.on,
            action.other,  # The field, or the other agent or project.
            _cell(action.before),
            _cell(action.after),
            action.reason or action.file,  # Not refused: the file that declares it.
        )
        for action in plan.actions
    ]
    reasons = [
        one_line(action.reason) for action in plan.actions
    ]  # In full: a column is cut to the width of the screen.
    print_list(plan.as_json(), columns, rows, empty, last="reason", below=reasons)
    for problem in plan.problems:
        print_notice(str(problem))
    if plan.having("planned"):
        raise typer.Exit(1)
    if plan.having("refused") or plan.problems:
        raise typer.Exit(Refused.exit_code)


def _cell(value: Any) -> str:
    """Return a value as text. The value of a new agent is a dict, of which the name is shown."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value["name"] if isinstance(value, dict) else value or "")
