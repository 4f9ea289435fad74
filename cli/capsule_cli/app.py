"""The program `capsule`: its commands by name, its help, and the handling of their errors.

Typer calls `_RootCommand`, which expands short names, finds the command among the core and the
rooms, and runs it. An expected error becomes a message on stderr and an exit code. Any other error
stays a traceback.

What must stay true: the help of the whole program fits one screen, and imports no command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from operator import itemgetter
from typing import Any

import typer

from capsule import rooms
from capsule.errors import CapsuleError, NotFound, StorageFailed
from capsule_cli.command_aliases import expand
from capsule_cli.core_commands import CORE, HELP, room_of
from capsule_cli.error_output import (
    BROKEN_PIPE,
    ensure_streams,
    is_folder_deleted,
    print_error,
    report_error,
)
from capsule_cli.framework import CapsuleGroup, Commands, program_of, with_typer_parameters
from capsule_cli.shared import options
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.output import CommandStopped, discard_stdout, print_json, print_text


def installed_parts() -> list[rooms.Room]:
    """Return the core and the installed rooms. If a room of another package can't be loaded, return
    only the core and the built-in rooms.
    """
    with suppress(CapsuleError):
        return [CORE, *rooms.installed(_configured_rooms())]
    return [CORE, *rooms.installed()]


def help_by_topic() -> dict[str, list[tuple[str, str]]]:
    """Return the lines of the help by topic. Each line has the names of commands and their purpose."""
    topics: dict[str, list[tuple[str, str]]] = {topic: [] for topic in HELP}
    help_lines = [line for part in installed_parts() for line in part.help]
    for topic, _, names, purpose in sorted(help_lines, key=itemgetter(1)):
        topics.setdefault(topic, []).append((names, purpose))
    return {topic: lines for topic, lines in topics.items() if lines}


def _configured_rooms() -> tuple[str, ...]:
    """Return the rooms of other packages that the store uses. Without a store, return none: this
    makes no store.
    """
    from capsule import locate, settings
    from capsule.engines import opening

    try:
        if (url := locate.database_address(global_options.meant_store)) is not None:
            return opening.settings_in_database(url).rooms
        store = locate.find_store(global_options.meant_store, is_made=False)
        path = os.path.join(store, "capsule.toml")
        with open(path, "rb") as file:
            return settings.parse(file.read(), path).rooms
    except (NotFound, StorageFailed, OSError):
        return ()


def _find_room(command: str) -> rooms.Room | None:
    """Return the core or the room that has a command. The rooms of other packages are loaded only
    if no other one has it.
    """
    if room := room_of(command):
        return room
    for room in map(rooms.of_others, _configured_rooms()):
        if command in room.groups or command in room.command_names():
            return room
    return None


class _RootCommand(CapsuleGroup):
    """The program as a typer group: finds the command, runs it, and reports its errors."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands(installed_parts, _find_room)  # type: ignore[assignment]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            from capsule_cli.commands.help import FIRST_STEPS

            sys.stderr.write(FIRST_STEPS)
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from capsule_cli.commands.help import page

        formatter.write(page(help_by_topic()))

    def make_context(
        self, info_name: Any, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        global_options.forget()
        # Found in the words and not by the parser: if an option before --json can't be parsed, its
        # error is JSON too.
        words = args[: args.index("--")] if "--" in args else args
        self._as_json = "--json" in words
        global_options.json = self._as_json
        completing = bool(extra.get("resilient_parsing"))
        args = expand(args, completing=completing)
        # The store decides which rooms of other packages there are, and so which commands.
        global_options.meant_store = next(
            (value for option, value in pairwise(words) if option == "--store"), None
        )
        try:
            return super().make_context(info_name, args, parent, **extra)
        except typer.TyperException as error:
            self._report_usage(error)
            raise

    def _report_usage(self, error: typer.TyperException) -> None:
        """With --json, print a usage error as JSON and exit. Otherwise return, and typer prints it."""
        if self._as_json:
            global_options.json = True
            print_error(error.format_message(), error.exit_code, "Usage")
            sys.exit(error.exit_code)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except (CapsuleError, CommandStopped) as error:
            raise typer.Exit(report_error(error)) from error
        except typer.TyperException as error:
            self._report_usage(error)
            raise
        except ModuleNotFoundError as error:
            missing_package = rooms.missing(error)
            if missing_package is None:
                raise
            raise typer.Exit(report_error(missing_package)) from error
        except FileNotFoundError as error:
            if not is_folder_deleted():
                raise
            reason = "the working directory was deleted; go to another one with cd, and try again"
            raise typer.Exit(report_error(NotFound(reason, id=""))) from error
        except BrokenPipeError:
            discard_stdout()
            raise typer.Exit(BROKEN_PIPE) from None


app = typer.Typer(
    name="capsule",
    cls=_RootCommand,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(ctx: typer.Context, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    if global_options.json:
        from capsule.software_versions import versions

        print_json(versions(), line=True)
    else:
        from capsule import __version__

        print_text(f"capsule {__version__}")
    raise typer.Exit()


@app.callback()
@with_typer_parameters
def _capsule(
    version: bool = options.flag(
        "--version -V",
        "Print the version; with --json also those of what it runs on.",
        callback=_version,
        expose_value=False,
    ),
) -> None:
    """Conversations as files: written by many, lost by none."""


def program() -> Any:
    """The program as a typer group."""
    return program_of(app)


def main(run: Callable[..., Any] | None = None) -> None:
    """Run `capsule` with the words of the command line. Never returns.

    Args:
        run: Called instead of the command's function. It raises the error that the command raised
            on
            the fast path.
    """
    ensure_streams()
    for position, word in enumerate(sys.argv[1:], 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            global_options.json = "--json" in sys.argv
            print_error(f"argument {position} is not valid UTF-8 text: {word!a}", 2, "Usage")
            sys.exit(2)
    program().main(prog_name="capsule", obj=run)
