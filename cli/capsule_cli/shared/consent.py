"""A person's word before something goes.

What must stay true: a person at a terminal is always asked unless they said `--yes`. Where nobody can be asked, what
one command brings back goes ahead; all else demands `--yes`, as an agent's shell looks like that too.
"""

from __future__ import annotations

import sys

import typer

from capsule_cli.shared.options import usage
from capsule_cli.shared.output import Stopped


def ensure_agreed(*questions: str, yes: bool, has_undo: bool = False) -> None:
    """Return when whoever runs the command agrees.

    Args:
        questions: What is asked, one after the other.
        yes: Whether they said `--yes`.
        has_undo: Whether it is undone by one command that is named in the output.

    Raises:
        Stopped: The person said no.
        typer.BadParameter: Nobody can be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        if has_undo:
            return
        raise usage(f"{questions[0]} Nobody can be asked here; say --yes too", "--yes")
    for question in questions:
        if not typer.confirm(question, err=True):
            raise Stopped("nothing was changed")
