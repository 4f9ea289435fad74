"""What Capsule needs of typer beyond typer's public interface. No other module uses its internals.

Typer gets `Commands`, a mapping that makes a command only when its name is looked up. Each command
and group also has the options of all_names command, and reads its values without pydantic.

What must stay true: the module of a command is imported only when the command is named. A short
command imports no pydantic, which typer would load to read a text as a text. `pyproject.toml` keeps
typer below the next minor version, and tests of the command line fail first if that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from inspect import Signature
from typing import TYPE_CHECKING, Any, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_command_from_info, get_group_from_info
from typer.models import CommandInfo, TyperInfo

from capsule_cli.command_aliases import suggestions
from capsule_cli.in_session import ensure_permitted
from capsule_cli.shared import options
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.stores import session_name

if TYPE_CHECKING:
    from capsule.rooms import Room

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
