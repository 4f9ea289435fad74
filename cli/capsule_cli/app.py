"""The program `capsule`: its commands by name, its help, and the handling of their errors.

Typer calls `_RootCommand`, which expands short names, finds the command among the core and the
rooms, and runs it. Typer gets `Commands`, a mapping that makes a command only when its name is
looked up. Each command and group also has the options of every command, and reads its values
without pydantic. An expected error becomes a message on stderr and an exit code. Any other error
stays a traceback.

What must stay true:
- The help of the whole program fits one screen, and imports no command. The module of a command is
  imported only when the command is named.
- A short command imports no pydantic, which typer would load to read a text as a text.
- No other module uses typer beyond its public interface. `pyproject.toml` keeps typer below the
  next minor version, and tests of the command line fail first if that differs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, wraps
from inspect import Signature
from operator import itemgetter
from typing import TYPE_CHECKING, Any, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_command_from_info, get_group_from_info
from typer.models import CommandInfo, TyperInfo

from capsule import rooms
from capsule.errors import CapsuleError, NotFound, StorageFailed
from capsule_cli.command_names import ensure_permitted, expand, suggestions
from capsule_cli.core_commands import CORE, HELP, room_of
from capsule_cli.exits import (
    BROKEN_PIPE,
    ensure_streams,
    is_folder_deleted,
    print_error,
    report_error,
)
from capsule_cli.shared import options
from capsule_cli.shared.output import (
    CommandStopped,
    discard_stdout,
    global_options,
    print_json,
    print_text,
)
from capsule_cli.shared.stores import session_name

if TYPE_CHECKING:
    from capsule.rooms import Room


# -- Typer -----------------------------------------------------------------------------------------

_PLAIN_SETTINGS: dict[str, Any] = {"pretty_exceptions_short": False, "rich_markup_mode": None}

program_of = get_command


@cache
def global_parameters() -> tuple[Any, ...]:
    """Return typer's parameters for the options of all_names command."""
    callback = with_typer_parameters(
        options.every_command, callback=_set_global_option, expose_value=False, is_eager=True
    )
    return tuple(get_command_from_info(CommandInfo(callback=callback), **_PLAIN_SETTINGS).params)


def _set_global_option(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    # Called for the options before the command's name and for those after it: an option that is
    # missing in one place must not reset the other.
    if value:
        setattr(global_options, str(param.name), value)
    return value


def with_typer_parameters(
    function: Callable[..., Any], **typer_settings: Any
) -> Callable[..., Any]:
    """Return `function` with typer's parameters in place of its declarations.

    Args:
        function: The function of a command.
        typer_settings: Settings that typer gets for each of the parameters.
    """
    run: Callable[..., Any] = wraps(function)(lambda **values: function(**values))
    typer_parameters = []
    for parameter, declared in options.parameters(function):
        if declared:
            make = typer.Option if declared.names else typer.Argument
            help = declared.help() if callable(declared.help) else declared.help
            settings: dict[str, Any] = {"metavar": declared.metavar, "help": help}
            settings |= {**declared.typer_settings, **typer_settings}
            default = make(declared.default, *declared.names, **settings)
            parameter = parameter.replace(default=default)
        typer_parameters.append(parameter)
    run.__annotations__ = {}
    run.__signature__ = Signature(typer_parameters)  # type: ignore[attr-defined]
    return run


def choices_of(param: Any) -> tuple[str, ...]:
    """Return the values that a parameter accepts. Empty: it accepts any."""
    return tuple(map(str, param.type_descriptor.choices or ()))


def usage_of(parameter: Any) -> str:
    """Return the notation of an argument in the line of usage."""
    name = parameter.metavar or parameter.name.upper()
    if not parameter.required:
        name = f"[{name}]"
    return f"{name}..." if parameter.nargs == -1 else name


class _WithGlobalOptions:
    """Adds the options of all_names command to a command or a group."""

    def __init__(self, *words: Any, params: list[Any] | None = None, **settings: Any) -> None:
        super().__init__(*words, params=[*(params or []), *global_parameters()], **settings)  # type: ignore[call-arg]

    def get_params(self, ctx: Any) -> list[Any]:
        # Here typer adds the option of the help.
        return _read_without_pydantic(super().get_params(ctx))  # type: ignore[misc]


class CapsuleCommand(_WithGlobalOptions, TyperCommand):
    """A command. Before it runs, it checks that a session may run it."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command's function, or the one that `app.main` was given instead.

        Raises Refused: the command is not permitted in a session.
        """
        root = ctx.find_root().command_path
        ensure_permitted(ctx.command_path.removeprefix(root).strip(), session_name())
        self.callback = ctx.obj or self.callback
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command's name in the line of usage."""
        return [
            "[OPTIONS]",
            *(usage_of(param) for param in self.params if param.param_type_name == "argument"),
        ]


class CapsuleGroup(_WithGlobalOptions, TyperGroup):
    """A command that has commands of its own."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of their declaration."""
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the words name.

        Raises typer.TyperException: it does not exist. The message suggests similar commands.
        """
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            if self.get_command(ctx, args[0]) is None:
                similar = self._suggestions(ctx, args[0])
                if similar:
                    error.message = (
                        f"No such command {args[0]!r}. Did you mean: {', '.join(similar)}?"
                    )
            raise

    def _suggestions(self, ctx: Any, name: str) -> list[str]:
        root = ctx.find_root()
        group = ctx.command_path.removeprefix(root.command_path).strip()
        return suggestions(group, name, root.command.commands.all_names())


class Commands(Mapping[str, Any]):
    """Maps names to the commands at the top or of a group. Each command is made at its first
    lookup.

    Args:
        parts: Returns the core and the installed rooms, for a list of all names.
        room_of: Returns the room that has a command or a group. None: none has it.
        group: The words of the group. Empty: the top.
    """

    def __init__(
        self,
        parts: Callable[[], list[Room]],
        room_of: Callable[[str], Room | None],
        group: str = "",
    ) -> None:
        self._parts = parts
        self._room_of = room_of
        self._group = group
        self._commands: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        words = f"{self._group} {name}".strip()
        if name not in self._commands:
            room = self._room_of(words)
            if room is None:
                raise KeyError(name)
            if words in room.command_names():
                self._commands[name] = self._make_command(name, room.command(words))
            else:
                self._commands[name] = self._make_group(words, room)
        return self._commands[name]

    def _make_command(self, name: str, function: Callable[..., Any]) -> Any:
        callback = with_typer_parameters(function)
        return get_command_from_info(
            CommandInfo(name, cls=CapsuleCommand, callback=callback), **_PLAIN_SETTINGS
        )

    def _make_group(self, words: str, room: Room) -> Any:
        info = TyperInfo(
            typer.Typer(no_args_is_help=True),
            name=words.rpartition(" ")[2],
            cls=CapsuleGroup,
            help=room.groups[words],
        )
        group = get_group_from_info(info, suggest_commands=False, **_PLAIN_SETTINGS)
        group.commands = Commands(self._parts, self._room_of, words)  # type: ignore[assignment]
        return group

    def __iter__(self) -> Iterator[str]:
        return iter(
            dict.fromkeys(name for part in self._parts() for name in part.names_in(self._group))
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def all_names(self) -> list[str]:
        """Return the names of all commands, also in groups, with all of their words."""
        return [name for part in self._parts() for name in part.command_names()]


def _read_without_pydantic(parameters: list[Any]) -> list[Any]:
    """Let the parameters read their values without pydantic, whose import takes longer than a short
    command. Return the parameters.

    A parameter of a type that `options.is_plain` does not know is left to typer.
    """
    for parameter in parameters:
        annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
        inner = get_args(annotation)[0] if get_origin(annotation) is list else annotation
        if options.is_plain(inner):
            parameter.get_runtime_param = _ValueReader(inner).itself
        if parameter.param_type_name == "argument" and not choices_of(parameter):
            parameter.display_type_rich = lambda ctx: None  # No `<list[str]>` after its name.
    return parameters


class _ValueReader:
    """Makes the value of a parameter from the words of the command line, in place of typer's
    reader.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def itself(self) -> _ValueReader:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        is_repeatable = param.multiple or param.nargs == -1
        if value is None:
            return () if is_repeatable else None
        minimum = getattr(param, "min", None)
        try:
            if not is_repeatable:
                return options.value_of(self._kind, value, minimum)
            return [options.value_of(self._kind, word, minimum) for word in value]
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None


# -- The program -----------------------------------------------------------------------------------


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


def _meant_store(words: list[str]) -> str | None:
    """Return the value of `--store` in unparsed words, as `--store X` or `--store=X`. None: it is
    not given.
    """
    for position, word in enumerate(words):
        option, separator, value = word.partition("=")
        if option == "--store":
            if separator:
                return value
            return next(iter(words[position + 1 :]), None)
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
        global_options.meant_store = _meant_store(words)
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
            missing_room = rooms.missing(error)
            if missing_room is None:
                raise
            raise typer.Exit(report_error(missing_room)) from error
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
        run: Called instead of the command's function. `fast_path.run` has run the command, which
            failed. This raises its error again, to be reported.
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
