"""`git setup`, `git teardown` and `git status`: prepare a clone for conversations, undo that, and
report the state.

What must stay true: if a person has to do something by hand, `setup` and `status` exit with 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from capsule import git
from capsule_cli.shared.options import flag
from capsule_cli.shared.output import one_line, print_answer
from capsule_cli.shared.stores import open_core_store

if TYPE_CHECKING:
    from capsule.git.clone_setup import RepositoryStatus, SetupStep


def setup(
    everywhere: bool = flag(
        "--global", "Add the programs to your own configuration of git, for all your clones."
    ),
) -> None:
    """Set this clone up for conversations: attributes, ignored files, git's configuration, a
    pre-commit hook.

    Every clone needs this once. The exit code is 1 if you have to do something by hand.
    """
    with open_core_store() as store:
        steps = git.open(store).setup(everywhere=everywhere)
    _print_steps(steps, ok=not any(step.todo for step in steps))


def teardown(
    everywhere: bool = flag(
        "--global", "Remove the programs from your own configuration of git too."
    ),
) -> None:
    """Remove only what `setup` added. Report what stays, and why."""
    with open_core_store() as store:
        steps = git.open(store).teardown(everywhere=everywhere)
    _print_steps(steps)


def status() -> None:
    """Report whether this clone is set up, what changed since the last commit, and what to do; exit
    1 when there is something to do."""
    with open_core_store() as store:
        status = git.open(store).status()
    print_answer(
        status.as_json(), "\n".join(map(one_line, _status_lines(status))), ok=status.is_fine
    )


def _print_steps(steps: Sequence[SetupStep], *, ok: bool = True) -> None:
    """Print the steps of a setup or teardown. `ok` is false if a person has to do something."""
    lines = [] if steps else ["nothing of Capsule is set up here"]
    place_names = {
        "repository": "git's configuration of this repository",
        "yours": "your own configuration of git",
    }
    for step in steps:
        place = place_names.get(step.where, step.where)
        lines.append(f"{one_line(place)}: {one_line(step.what)}")
        if step.todo:
            lines.append(f"  to do: {one_line(step.todo)}")
    if any(step.changed and step.kind in ("attributes", "ignore") for step in steps):
        advice = "commit .gitattributes and .gitignore, so that other clones get them too"
        lines.append(f"{advice}: capsule git commit")
    print_answer([step.as_json() for step in steps], "\n".join(lines), ok=ok)


def _status_lines(status: RepositoryStatus) -> Iterator[str]:
    """Yield the findings with what to do, and a summary of the clone."""
    for todo, findings in groupby(status.findings, lambda finding: finding.todo):
        yield from (finding.what for finding in findings)
        yield f"  {todo}"
    place = status.top
    if status.folder:
        place += f", folder {status.folder}"
    branch = "no branch is checked out"
    if status.branch:
        branch = f"branch {status.branch}"
        if status.upstream:
            branch += f", which follows {status.upstream}"
    verdict = "this clone is set up" if status.is_fine else "something is to be done"
    yield f"{verdict}: {place}; {branch}"
