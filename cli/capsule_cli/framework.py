"""What Capsule needs of typer beyond what typer promises; nothing else of the program reaches into
it.

What must stay true: a command's module is imported when the command is named, and not before; and a
short command never imports pydantic, which typer would load to read a text as a text.
`pyproject.toml` keeps typer below the next minor version, and tests of the command line fail first
when that one is different.
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

_PLAIN: dict[str, Any] = {"pretty_exceptions_short": False, "rich_markup_mode": None}

program_of = get_command


@cache
def global_parameters() -> tuple[Any, ...]:
    """The parameters that every command has."""
    callback = with_typer_parameters(
        options.every_command, callback=_ask, expose_value=False, is_eager=True
    )
    return tuple(get_command_from_info(CommandInfo(callback=callback), **_PLAIN).params)


def _ask(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    # The option stands before the command's name or after it; where it doesn't stand it must not
    # undo the other.
    if value:
        setattr(global_options, str(param.name), value)
    return value


def with_typer_parameters(function: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """`function`, with typer's parameters for those that it declares; `more`: what typer gets for
    each of them.
    """
    run: Callable[..., Any] = wraps(function)(lambda **values: function(**values))
    params = []
    for param, declared in options.parameters(function):
        if declared:
            made = typer.Option if declared.names else typer.Argument
            help = declared.help() if callable(declared.help) else declared.help
            settings = {"metavar": declared.metavar, "help": help, **declared.more, **more}
            param = param.replace(default=made(declared.default, *declared.names, **settings))
        params.append(param)
    run.__annotations__, run.__signature__ = {}, Signature(params)  # type: ignore[attr-defined]
    return run


def choices_of(param: Any) -> tuple[str, ...]:
    """The values that a parameter takes; none: any."""
    return tuple(map(str, param.type_descriptor.choices or ()))


def usage_of(param: Any) -> str:
    """An argument as the line of usage shows it."""
    name = param.metavar or param.name.upper()
    return (name if param.required else f"[{name}]") + ("..." if param.nargs == -1 else "")


class _WithGlobalOptions:
    """A command or a group, with the options that every command has."""

    def __init__(self, *words: Any, params: list[Any] | None = None, **settings: Any) -> None:
        super().__init__(*words, params=[*(params or []), *global_parameters()], **settings)  # type: ignore[call-arg]

    def get_params(self, ctx: Any) -> list[Any]:
        # With the option of the help, which typer makes here.
        return _read_without_pydantic(super().get_params(ctx))  # type: ignore[misc]


class CapsuleCommand(_WithGlobalOptions, TyperCommand):
    """A command."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; or what stands in its place, as `app.main` was given it.

        Raises Refused: the command is not for the session that runs it.
        """
        root = ctx.find_root().command_path
        ensure_permitted(ctx.command_path.removeprefix(root).strip(), session_name())
        self.callback = ctx.obj or self.callback
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words after the command's name in the line of usage."""
        return [
            "[OPTIONS]",
            *(usage_of(param) for param in self.params if param.param_type_name == "argument"),
        ]


class CapsuleGroup(_WithGlobalOptions, TyperGroup):
    """A command that has commands of its own."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands, in the order of their declaration."""
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the words name. Raises typer.TyperException: there is none; it says what
        may be meant.
        """
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            if self.get_command(ctx, args[0]) is None and (near := self._meant(ctx, args[0])):
                error.message = f"No such command {args[0]!r}. Did you mean: {', '.join(near)}?"
            raise

    def _meant(self, ctx: Any, name: str) -> list[str]:
        root = ctx.find_root()
        group = ctx.command_path.removeprefix(root.command_path).strip()
        return suggestions(group, name, root.command.commands.every())


class Commands(Mapping[str, Any]):
    """The commands at the top by name, or those of a group; each is made when it is asked for.

    Args:
        parts: Gives the core and the rooms that are installed, for a list of all names.
        room_of: Gives the room that has a command or a group; None: none has.
        group: The words of the group; empty: the top.
    """

    def __init__(
        self,
        parts: Callable[[], list[Room]],
        room_of: Callable[[str], Room | None],
        group: str = "",
    ) -> None:
        self._parts, self._room_of, self._group = parts, room_of, group
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        words = f"{self._group} {name}".strip()
        if name not in self._made:
            room = self._room_of(words)
            if room is None:
                raise KeyError(name)
            if words in room.command_names():
                self._made[name] = self._command(name, room.command(words))
            else:
                self._made[name] = self._made_group(words, room)
        return self._made[name]

    def _command(self, name: str, function: Callable[..., Any]) -> Any:
        callback = with_typer_parameters(function)
        return get_command_from_info(
            CommandInfo(name, cls=CapsuleCommand, callback=callback), **_PLAIN
        )

    def _made_group(self, words: str, room: Room) -> Any:
        made = typer.Typer(no_args_is_help=True)
        info = TyperInfo(
            made, name=words.rpartition(" ")[2], cls=CapsuleGroup, help=room.groups[words]
        )
        group = get_group_from_info(info, suggest_commands=False, **_PLAIN)
        group.commands = Commands(self._parts, self._room_of, words)  # type: ignore[assignment]
        return group

    def __iter__(self) -> Iterator[str]:
        return iter(
            dict.fromkeys(name for part in self._parts() for name in part.names_in(self._group))
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def every(self) -> list[str]:
        """All commands, those of the groups too, by all of their words."""
        return [name for part in self._parts() for name in part.command_names()]


def _read_without_pydantic(params: list[Any]) -> list[Any]:
    """Let the values of `params` be read without pydantic, whose import takes longer than a short
    command.

    A kind of parameter that is not known here is left to typer.
    """
    for param in params:
        annotation = getattr(getattr(param, "type_descriptor", None), "annotation", None)
        inner = get_args(annotation)[0] if get_origin(annotation) is list else annotation
        if options.is_plain(inner):
            param.get_runtime_param = _ValueReader(inner).itself
        if param.param_type_name == "argument" and not choices_of(param):
            param.display_type_rich = lambda ctx: None  # No `<list[str]>` behind its name.
    return params


class _ValueReader:
    """Makes a parameter's value of the words of the command line."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def itself(self) -> _ValueReader:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        try:
            least = getattr(param, "min", None)
            words = [
                options.value_of(self._kind, word, least) for word in (value if many else [value])
            ]
            return words if many else words[0]
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None
