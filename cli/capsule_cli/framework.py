"""What Capsule needs of typer beyond what typer promises; nothing else of the program reaches into it.

What must stay true: a command's module is imported when the command is named, and not before; and a short command
never imports pydantic, which typer would load to read a text as a text. `pyproject.toml` keeps typer below the next
minor version, and a test here fails first when that one is different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cache
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_command_from_info, get_group_from_info
from typer.models import CommandInfo, TyperInfo

__all__ = [
    "CapsuleCommand",
    "CapsuleGroup",
    "Commands",
    "choices_of",
    "everywhere",
    "give_every_command",
    "piece_of",
    "program_of",
]

_shared: Callable[..., None] | None = None
_PLAIN: dict[str, Any] = {"pretty_exceptions_short": False, "rich_markup_mode": None}

program_of = get_command


def give_every_command(declares: Callable[..., None]) -> None:
    """Give every command the parameters of the function `declares`."""
    global _shared
    _shared = declares


@cache
def everywhere() -> tuple[Any, ...]:
    """The parameters that every command has."""
    assert _shared is not None
    return tuple(get_command_from_info(CommandInfo(callback=_shared), **_PLAIN).params)


def choices_of(param: Any) -> tuple[str, ...]:
    """The values that a parameter takes; none: any."""
    return tuple(map(str, param.type_descriptor.choices or ()))


def piece_of(param: Any) -> str:
    """An argument as the line of usage shows it."""
    name = param.metavar or param.name.upper()
    return (name if param.required else f"[{name}]") + ("..." if param.nargs == -1 else "")


class CapsuleCommand(TyperCommand):
    """A command, with the options that every command has."""

    def __init__(self, name: str | None, *, params: list[Any] | None = None, **settings: Any) -> None:
        super().__init__(name, params=[*(params or []), *everywhere()], **settings)

    def get_params(self, ctx: Any) -> list[Any]:
        # With the option of the help, which typer makes here.
        return _read_plainly(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *(piece_of(param) for param in self.params if param.param_type_name == "argument")]


class CapsuleGroup(TyperGroup):
    """A command that has commands of its own, and takes the options that every command takes."""

    def __init__(self, *, params: list[Any] | None = None, **settings: Any) -> None:
        super().__init__(params=[*(params or []), *everywhere()], **settings)

    def get_params(self, ctx: Any) -> list[Any]:
        return _read_plainly(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


class Commands(MutableMapping[str, Any]):
    """The commands by name; each is made when it is asked for.

    Args:
        modules: The module of each command, in `capsule_cli`, where it stands in `commands`.
        groups: The commands of those that have some, likewise; the group itself stands in `group` of its module.
        aliases: Other names of commands, which are found and not listed.
    """

    def __init__(
        self, modules: Mapping[str, str], groups: Mapping[str, Mapping[str, str]], aliases: Mapping[str, str]
    ) -> None:
        self._modules = dict(modules)
        self._groups = groups
        self._aliases = aliases
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        name = self._aliases.get(name, name)
        if name not in self._made:
            module = import_module(f"capsule_cli.{self._modules[name]}")
            self._made[name] = self._group(name, module) if name in self._groups else self._command(name, module)
        return self._made[name]

    def _command(self, name: str, module: Any) -> Any:
        info = next(info for info in module.commands.registered_commands if info.name == name)
        info.cls = CapsuleCommand
        return get_command_from_info(info, **_PLAIN)

    def _group(self, name: str, module: Any) -> Any:
        info = TyperInfo(module.group, name=name, cls=CapsuleGroup)
        group = get_group_from_info(info, suggest_commands=True, **_PLAIN)
        group.commands = Commands(self._groups[name], {}, {})
        return group

    def __setitem__(self, name: str, command: Any) -> None:
        self._modules[name], self._made[name] = "", command

    def __delitem__(self, name: str) -> None:
        del self._modules[name]
        self._made.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._modules or name in self._aliases

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


def _read_plainly(params: list[Any]) -> list[Any]:
    """Let the values of `params` be read without pydantic, whose import takes longer than a short command.

    A kind of parameter that is not known here is left to typer.
    """
    for param in params:
        annotation = getattr(getattr(param, "type_descriptor", None), "annotation", None)
        inner = get_args(annotation)[0] if get_origin(annotation) is list else annotation
        if inner in (str, int, bool) or get_origin(inner) is Literal:
            param.get_runtime_param = _Reading(inner).itself
    return params


class _Reading:
    """Makes a parameter's value of the words of the command line."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def itself(self) -> _Reading:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        return [self._one(one, param, ctx) for one in value] if many else self._one(value, param, ctx)

    def _one(self, value: Any, param: Any, ctx: Any) -> Any:
        if self._kind is int:
            return self._number(value, param, ctx)
        if get_origin(self._kind) is Literal and value not in get_args(self._kind):
            choices = ", ".join(map(repr, get_args(self._kind)))
            raise typer.BadParameter(f"{value!r} is not one of {choices}", ctx=ctx, param=param)
        return value

    def _number(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            number = int(value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} is no whole number", ctx=ctx, param=param) from None
        if param.min is not None and number < param.min:
            raise typer.BadParameter(f"{number} is less than {param.min}", ctx=ctx, param=param)
        return number
