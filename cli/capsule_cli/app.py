"""The program `capsule`: its commands by name, its help, and the one boundary between their errors and the terminal.

What must stay true: the help of the whole program fits one screen, and costs the import of no command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from operator import itemgetter
from typing import Any

import typer

from capsule import rooms
from capsule.errors import CapsuleError, NotFound
from capsule_cli.boundary import BROKEN_PIPE, ensure_streams, is_nowhere, report, report_error
from capsule_cli.framework import CapsuleGroup, Commands, program_of
from capsule_cli.shared import options
from capsule_cli.shared.asked import asked
from capsule_cli.shared.output import Stopped, answer, quiet_stdout

#: The help of the core's commands by topic: the commands, and what they do.
HELP: dict[str, tuple[tuple[str, str], ...]] = {
    "Write and read": (
        ("new", "Start a conversation and print its id."),
        ("append", "Add a message and print its id."),
        ("show (cat)", "Print a conversation."),
        ("list (ls)", "List the conversations, the latest first."),
        ("search", "Find messages and titles by their words."),
        ("tail, watch, events", "Follow a conversation, or all that changes."),
        ("edit", "Change a conversation or message in your editor."),
    ),
    "Order and remove": (
        ("rename, tag, pin, archive, set", "Change the title, tags or the place in lists."),
        ("delete (rm)", "Move conversations or messages to the trash."),
        ("trash, restore, purge", "List the trash, bring back from it, or empty it."),
        ("lock, unlock, locks", "Hold a conversation for yourself, or let it go."),
    ),
    "Branch and carry on": (
        ("switch, regenerate", "Choose a branch, or put another answer beside."),
        ("fork, trim", "Copy a branch out, or remove all but one."),
        ("summarize, transcript", "Keep a summary, or print what a model can read."),
    ),
    "Talk to each other": (),
    "Work together": (("mcp, tokens", "Serve the store to AI agents, and admit them."),),
    "Look after the store": (
        ("init, demo", "Make a store, or one that shows the main job."),
        ("doctor", "Examine every file, and mend what can be mended."),
        ("validate, migrate, schema", "Check files, update them, or print the format."),
        ("stats, reindex", "Count what is there, or build the index anew."),
    ),
}

#: What the core has, as a room says it.
CORE = rooms.Room(
    "core",
    package="capsule_cli.commands",
    commands={
        "conversations": "new list",
        "append": "append",
        "reading.show": "show",
        "reading.search": "search stats reindex",
        "reading.watch": "tail watch events",
        "reading.summaries": "summarize transcript",
        "edit": "edit",
        "heads": "rename tag pin archive set lock unlock locks",
        "trash": "delete trash restore purge",
        "branches": "switch regenerate fork trim",
        "mcp.server": "mcp",
        "mcp.tokens": "tokens",
        "maintenance": "init doctor validate migrate schema",
        "demo.demo": "demo",
        "help": "help",
    },
    groups={"mcp": {"mcp.clients": "install uninstall doctor"}, "tokens": {"mcp.tokens": "add list revoke"}},
    help=tuple((topic, 10 * n, *line) for topic, lines in HELP.items() for n, line in enumerate(lines, 1)),
)

#: Names that hands know from elsewhere.
ALIASES = {"ls": "list", "cat": "show", "rm": "delete"}


def parts() -> list[rooms.Room]:
    """The core and the installed rooms; without those of other packages if one of these is in error."""
    with suppress(CapsuleError):
        return [CORE, *rooms.installed(_named())]
    return [CORE, *rooms.installed()]


def overview() -> dict[str, list[tuple[str, str]]]:
    """The lines of the help by topic."""
    topics: dict[str, list[tuple[str, str]]] = {topic: [] for topic in HELP}
    for topic, _, names, says in sorted((line for part in parts() for line in part.help), key=itemgetter(1)):
        topics.setdefault(topic, []).append((names, says))
    return {topic: lines for topic, lines in topics.items() if lines}


def _named() -> tuple[str, ...]:
    """The rooms of other packages that the store uses; none if there is no store, which is not made here."""
    from capsule import locate, settings

    try:
        path = os.path.join(locate.find_store(asked.meant_store, is_made=False), "capsule.toml")
        with open(path, "rb") as file:
            return settings.parse(file.read(), path).rooms
    except (NotFound, OSError):
        return ()


class _Every(Mapping[str, Any]):
    """The commands of the core and of the rooms; those of a room are looked for when the core has none of the name."""

    def __init__(self) -> None:
        self._of: dict[str, Commands] = {}

    def __getitem__(self, name: str) -> Any:
        name = ALIASES.get(name, name)
        room = CORE if name in CORE.modules() else rooms.of_command(name)
        room = room or next((other for other in map(rooms.of_others, _named()) if name in other.modules()), None)
        if room is None:
            raise KeyError(name)
        return self._of.setdefault(room.name, Commands(room))[name]

    def __iter__(self) -> Iterator[str]:
        return (name for part in parts() for name in part.modules())

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Program(CapsuleGroup):
    """Finds the command, runs it, and turns an error into words on stderr and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Every()  # type: ignore[assignment]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            from capsule_cli.commands.help import FIRST_STEPS

            sys.stderr.write(FIRST_STEPS)
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from capsule_cli.commands.help import page

        formatter.write(page(overview()))

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        asked.forget()
        # Read off the words: an option that can't be parsed may stand before --json, and its error is JSON too.
        words = args[: args.index("--")] if "--" in args else args
        self._as_json = "--json" in words
        # And the command may be one that only this store has.
        asked.meant_store = next((after for word, after in pairwise(words) if word == "--store"), None)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except typer.TyperException as error:
            self._report_usage(error)
            raise

    def _report_usage(self, error: typer.TyperException) -> None:
        """Print a usage error as JSON and end, where JSON was asked for; else typer prints it."""
        if self._as_json:
            asked.json = True
            report(error.format_message(), error.exit_code, "Usage")
            sys.exit(error.exit_code)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except (CapsuleError, Stopped) as error:
            raise typer.Exit(report_error(error)) from error
        except typer.TyperException as error:
            self._report_usage(error)
            raise
        except ModuleNotFoundError as error:
            if (refused := rooms.missing(error)) is None:
                raise
            raise typer.Exit(report_error(refused)) from error
        except FileNotFoundError as error:
            if not is_nowhere():
                raise
            reason = "the working directory was deleted; go to another one with cd, and try again"
            raise typer.Exit(report_error(NotFound(reason, id=""))) from error
        except BrokenPipeError:
            quiet_stdout()
            raise typer.Exit(BROKEN_PIPE) from None


app = typer.Typer(
    name="capsule", cls=_Program, rich_markup_mode=None, context_settings={"help_option_names": ["--help", "-h"]}
)


def _version(ctx: typer.Context, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from capsule import __version__

    answer({"version": __version__}, f"capsule {__version__}", line=True)
    raise typer.Exit()


@app.callback()
def _capsule(
    version: bool = options.flag("--version -V", "Print the version.", callback=_version, expose_value=False),
) -> None:
    """Conversations as files: written by many, lost by none."""


def program() -> Any:
    """The program as a typer group."""
    return program_of(app)


def main() -> None:
    """Run `capsule` with the words of the command line; never returns."""
    ensure_streams()
    for at, word in enumerate(sys.argv[1:], 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            asked.json = "--json" in sys.argv
            report(f"argument {at} is no UTF-8 text: {word!a}", 2, "Usage")
            sys.exit(2)
    program().main(prog_name="capsule")
