"""`help`, and the introduction for a person who calls `capsule` without a command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import typer

from capsule_cli.command_names import expand
from capsule_cli.shared.options import argument, usage_error
from capsule_cli.shared.output import print_text

FIRST_STEPS = """\
Capsule keeps conversations as files, written by many and lost by none.

Begin with:
  capsule new "My first plan"          Start a conversation and print its id.
  capsule append @last "Where to go?"  Add a message to it.
  capsule show @last                   Print it.

Your conversations go to a store of your own. To keep those of a project beside
it, make a store there first: capsule init. All commands: capsule help
"""

_FOOT = """\
Every command takes --json, --store, --as, --instance, --no-pager and --help.
The program takes --version (-V) and --install-completion.
Read about one command with: capsule help COMMAND
"""


def page(sections: Mapping[str, Iterable[tuple[str, str]]]) -> str:
    """Return the help of the whole program. `sections` has the names and purposes of commands by
    topic.
    """
    lines = ["Usage: capsule COMMAND [ARGUMENTS] [OPTIONS]"]
    for title, commands in sections.items():
        lines.append(f"{title}:")
        lines += [f"  {names:<28}  {purpose}" for names, purpose in commands]
    return "\n".join(lines) + "\n" + _FOOT


def help_(
    ctx: typer.Context,
    words: list[str] | None = argument("COMMAND", "The command; without it, all are listed."),
) -> None:
    """Print the help of a command, or of the program."""
    assert ctx.parent is not None
    context: Any = ctx.parent
    # `completing` leaves the name of a group alone, so that the help of the group is printed.
    for word in expand(words or [], completing=True):
        if word.startswith("-"):
            continue
        # A command that is no group has no commands.
        get_command = getattr(context.command, "get_command", lambda *_: None)
        command = get_command(context, word)
        if command is None:
            raise usage_error(
                f"there is no command {word!r}; see them all with: capsule help", "COMMAND"
            )
        context = typer.Context(command, info_name=command.name, parent=context)
    print_text(context.command.get_help(context).rstrip("\n"))
