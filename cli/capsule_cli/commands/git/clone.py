"""`git`: makes a clone understand conversations, takes that out again, and says how it stands.

What must stay true: whatever is left for a person to do makes `setup` and `status` exit 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import typer

from capsule import git
from capsule_cli.shared.asked import asked
from capsule_cli.shared.opening import store_of
from capsule_cli.shared.options import flag, group_of
from capsule_cli.shared.output import one_line, out, out_json

if TYPE_CHECKING:
    from capsule.git.setup.installation import Step
    from capsule.git.setup.status import State


group = group_of("Keep a store in git: merges by message, diffs that read like a chat, commits without locks.")


def setup(
    everywhere: bool = flag("--global", "Put the programs into your own configuration of git, for all your clones."),
) -> None:
    """Set this clone up for conversations: attributes, ignored files, git's configuration, a pre-commit hook.

    Every clone needs this once. Exit 1 when something is left to do by hand.
    """
    with store_of() as store:
        steps = git.open(store).setup(everywhere=everywhere)
    _tell_steps(steps)
    if any(step.todo for step in steps):
        raise typer.Exit(1)


def teardown(
    everywhere: bool = flag("--global", "Remove the programs from your own configuration of git too."),
) -> None:
    """Remove what `setup` put in, and nothing else. Report what it leaves, and why."""
    with store_of() as store:
        steps = git.open(store).teardown(everywhere=everywhere)
    _tell_steps(steps)


def status() -> None:
    """Report whether this clone is set up, what changed since the last commit, and what to do; exit 1 when there is
    something to do."""
    with store_of() as store:
        state = git.open(store).status()
    if asked.json:
        out_json(state.as_json())
    else:
        _tell_state(state)
    if not state.is_fine:
        raise typer.Exit(1)


def _tell_steps(steps: Sequence[Step]) -> None:
    if asked.json:
        out_json([step.as_json() for step in steps])
        return
    if not steps:
        out("nothing of Capsule is set up here")
    for step in steps:
        where = {"repository": "git's configuration of this repository", "yours": "your own configuration of git"}
        out(f"{one_line(where.get(step.where, step.where))}: {one_line(step.what)}")
        if step.todo:
            out(f"  to do: {one_line(step.todo)}")
    if any(step.changed and step.kind in ("attributes", "ignore") for step in steps):
        out("commit .gitattributes and .gitignore, so that other clones have them as they are now: capsule git commit")


def _tell_state(state: State) -> None:
    for todo, findings in groupby(state.findings, lambda finding: finding.todo):
        for finding in findings:
            out(one_line(finding.what))
        out(f"  {one_line(todo)}")
    where = state.top + (f", folder {state.folder}" if state.folder else "")
    follows = f", which follows {state.upstream}" if state.upstream else ""
    branch = f"branch {state.branch}{follows}" if state.branch else "no branch is checked out"
    verdict = "this clone is set up" if state.is_fine else "something is to be done"
    out(one_line(f"{verdict}: {where}; {branch}"))
