"""The program `capsule`: its commands by name, and the one boundary between their errors and the terminal.

What must stay true: a command's module is imported when the command is named, and not before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_command_from_info, get_group_from_info
from typer.models import TyperInfo

from capsule.errors import CapsuleError, NotFound
from capsule_cli.boundary import BROKEN_PIPE, ensure_streams, is_nowhere, report, report_error
from capsule_cli.options import CapsuleCommand, asked, everywhere, read_plainly
from capsule_cli.output import Stopped, quiet_stdout, say_as_json

__all__ = ["GROUPS", "SECTIONS", "app", "main", "program"]

#: The commands as the help lists them: topic, command, and the module that holds it.
SECTIONS: dict[str, dict[str, str]] = {
    "Conversations": {"new": "conversations", "append": "appending", "show": "showing", "list": "conversations"},
    "Titles, tags, and the place in a list": {
        "rename": "heads",
        "tag": "heads",
        "untag": "heads",
        "pin": "heads",
        "unpin": "heads",
        "archive": "heads",
        "unarchive": "heads",
        "overrides": "overrides",
    },
    "Summaries": {"summarize": "summaries", "transcript": "summaries"},
    "Branches": {"switch": "branching", "regenerate": "branching", "prune": "branching", "fork": "branching"},
    "Editing and locks": {"edit": "editing", "lock": "locking", "unlock": "locking", "locks": "locking"},
    "Project context": {"context": "context"},
    "Trash": {"delete": "trash", "trash": "trash", "restore": "trash", "purge": "trash"},
    "Store and files": {
        "init": "upkeep",
        "doctor": "upkeep",
        "validate": "upkeep",
        "migrate": "upkeep",
        "schema": "upkeep",
        "reindex": "searching",
        "demo": "demo",
    },
    "Finding": {"search": "searching", "stats": "searching"},
    "Following": {"watch": "watching", "tail": "watching"},
    "Git": {"git": "git", "conflicts": "conflicts", "resolve": "conflicts"},
    "Time travel, in git": {"log": "history", "diff": "history"},
    "For AI agents": {"mcp": "mcp", "tokens": "tokens"},
}

#: The commands that have commands of their own, and the modules that hold those; they stand in `commands` there, and
#: what the group itself takes and does in `group` of its own module.
GROUPS: dict[str, dict[str, str]] = {
    "context": dict.fromkeys(("capture", "check", "show", "diff", "clear"), "context"),
    "git": dict.fromkeys(("setup", "teardown", "status"), "git")
    | dict.fromkeys(("commit", "autocommit", "sync"), "syncing"),
    "mcp": {"install": "mcp_clients", "uninstall": "mcp_clients", "doctor": "mcp_clients"},
    "overrides": {"list": "overrides", "set": "overrides", "toggle": "overrides", "remove": "overrides"},
    "tokens": {"add": "tokens", "list": "tokens", "revoke": "tokens"},
}


class _Commands(MutableMapping[str, Any]):
    """The commands by name; each is made when it is asked for."""

    def __init__(self, modules: dict[str, str], groups: dict[str, dict[str, str]]) -> None:
        self._modules = dict(modules)
        self._groups = groups
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            module = import_module(f"capsule_cli.{self._modules[name]}")
            self._made[name] = self._group(name, module) if name in self._groups else self._command(name, module)
        return self._made[name]

    def _command(self, name: str, module: Any) -> Any:
        info = next(info for info in module.commands.registered_commands if info.name == name)
        info.cls = CapsuleCommand
        return get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=None)

    def _group(self, name: str, module: Any) -> Any:
        info = TyperInfo(module.group, name=name, cls=_Group)
        group = get_group_from_info(info, pretty_exceptions_short=False, suggest_commands=True, rich_markup_mode=None)
        group.commands = _Commands(self._groups[name], {})
        return group

    def __setitem__(self, name: str, command: Any) -> None:
        self._modules[name], self._made[name] = "", command

    def __delitem__(self, name: str) -> None:
        del self._modules[name]
        self._made.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


class _Group(TyperGroup):
    """A command that has commands of its own, and takes the options that every command takes."""

    def __init__(self, *, params: list[Any] | None = None, **settings: Any) -> None:
        super().__init__(params=[*(params or []), *everywhere()], **settings)

    def get_params(self, ctx: Any) -> list[Any]:
        return read_plainly(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


class CapsuleGroup(_Group):
    """The program: finds the command, runs it, and turns an error into words on stderr and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        modules = {name: module for section in SECTIONS.values() for name, module in section.items()}
        self.commands = _Commands(modules, GROUPS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=100)) for name in names])

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        # Read off the words: an option that can't be parsed may stand before --json, and its error is JSON too.
        self._as_json = "--json" in (args[: args.index("--")] if "--" in args else args)
        say_as_json(self._as_json)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except typer.TyperException as error:
            self._report_usage(error)
            raise

    def _report_usage(self, error: typer.TyperException) -> None:
        """Where JSON was asked for, tell a usage error so and end; else it is left to typer."""
        if self._as_json:
            report(error.format_message(), error.exit_code, "Usage", as_json=True)
            sys.exit(error.exit_code)

    def invoke(self, ctx: Any) -> Any:
        as_json = self._as_json
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except (CapsuleError, Stopped) as error:
            raise typer.Exit(report_error(error, as_json=as_json)) from error
        except typer.TyperException as error:
            self._report_usage(error)
            raise
        except FileNotFoundError as error:
            if not is_nowhere():
                raise
            what = "the working directory was deleted; go to another one with cd, and try again"
            raise typer.Exit(report_error(NotFound(what, id=""), as_json=as_json)) from error
        except BrokenPipeError:
            quiet_stdout()
            raise typer.Exit(BROKEN_PIPE) from None


app = typer.Typer(
    name="capsule",
    cls=CapsuleGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(ctx: typer.Context, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from capsule import __version__
    from capsule_cli.output import out, out_json_line

    if asked(ctx).json:
        out_json_line({"version": __version__})
    else:
        out(f"capsule {__version__}")
    raise typer.Exit()


@app.callback()
def _capsule(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, expose_value=False, help="Print the version.")
    ] = False,
) -> None:
    """Conversations as files: written by many, lost by none."""


def program() -> Any:
    """The program as a typer group."""
    return get_command(app)


def main() -> None:
    """Run `capsule` with the words of the command line; never returns."""
    ensure_streams()
    for at, word in enumerate(sys.argv[1:], 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            report(f"argument {at} is no UTF-8 text: {word!a}", 2, "Usage", as_json="--json" in sys.argv)
            sys.exit(2)
    program().main(prog_name="capsule")
