"""What every command takes, and what several take.

What must stay true: the options of every command are declared here, once, and stand before or after the command's
name alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand
from typer.main import get_command_from_info
from typer.models import CommandInfo

from capsule.errors import InvalidInput
from capsule_cli.completion import complete_id

__all__ = [
    "Asked",
    "CapsuleCommand",
    "Id",
    "Mode",
    "Role",
    "Type",
    "Yes",
    "asked",
    "everywhere",
    "moment",
    "piece_of",
    "read_plainly",
    "seconds",
    "usage",
]

# Typed out, because a type checker wants it so; a test holds them and the format's own lists together.
Role = Literal["user", "assistant", "system", "tool"]
Mode = Literal["api", "toolbox"]
Type = Literal["chat", "direct", "group", "channel"]

Id = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        autocompletion=complete_id,
        help="The conversation: its id, a unique beginning of it (4 characters or more), or @last.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]


@dataclass(slots=True)
class Asked:
    """What the options of every command ask for.

    Attributes:
        json: Whether to print JSON.
        store: The store's directory; None: to be discovered.
        instance: The name of the instance, when one was given as an option.
        no_pager: Whether a person wants long output all at once.
    """

    json: bool = False
    no_pager: bool = False
    store: str | None = None
    instance: str | None = None


def asked(ctx: typer.Context) -> Asked:
    """What the options of every command ask for, wherever they stood."""
    return ctx.ensure_object(Asked)


def _ask(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    # The option stands before the command's name or after it; where it doesn't stand it must not undo the other.
    wanted = asked(ctx)
    if value:
        setattr(wanted, str(param.name), value)
    return value


def _everywhere(
    json: Annotated[
        bool,
        typer.Option("--json", callback=_ask, expose_value=False, is_eager=True, help="Print JSON, errors too."),
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="DIR",
            callback=_ask,
            expose_value=False,
            is_eager=True,
            help="The store. Else: CAPSULE_STORE, the nearest directory upwards with a capsule.toml, your own store.",
        ),
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            "--instance",
            metavar="NAME",
            callback=_ask,
            expose_value=False,
            is_eager=True,
            help="Act as the holder of this name, whose locks outlive the command. Else: CAPSULE_INSTANCE.",
        ),
    ] = None,
    no_pager: Annotated[
        bool,
        typer.Option(
            "--no-pager", callback=_ask, expose_value=False, is_eager=True, help="Don't show long output in $PAGER."
        ),
    ] = False,
) -> None:
    """What every command takes."""


@cache
def everywhere() -> tuple[Any, ...]:
    """The parameters that every command has."""
    made = get_command_from_info(
        CommandInfo(callback=_everywhere), pretty_exceptions_short=False, rich_markup_mode=None
    )
    return tuple(made.params)


class CapsuleCommand(TyperCommand):
    """A command, with the options that every command has."""

    def __init__(self, name: str | None, *, params: list[Any] | None = None, **settings: Any) -> None:
        super().__init__(name, params=[*(params or []), *everywhere()], **settings)

    def get_params(self, ctx: Any) -> list[Any]:
        # With the option of the help, which typer makes here.
        return read_plainly(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *(piece_of(param) for param in self.params if param.param_type_name == "argument")]


def piece_of(param: Any) -> str:
    """An argument as the line of usage shows it."""
    name = param.metavar or param.name.upper()
    return (name if param.required else f"[{name}]") + ("..." if param.nargs == -1 else "")


def read_plainly(params: list[Any]) -> list[Any]:
    """Let the values of `params` be read without pydantic, which typer would import to read a text as a text.

    That import takes longer than everything else a short command does. A kind of parameter that is not known here
    is left to typer, and so are all of them by a typer that asks in another way.
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


def usage(message: str, option: str | None = None) -> typer.BadParameter:
    """A usage error (exit code 2), about `option` when one is to blame."""
    return typer.BadParameter(message, param_hint=option)


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d+)([smhdw])")


def seconds(text: str, option: str) -> int:
    """The seconds in a duration like `90s`, `15m`, `2h`, `3d` or `1w`.

    Raises:
        typer.BadParameter: It is none.
    """
    match = _DURATION.fullmatch(text)
    if match is None or len(match[1]) > 9:
        raise usage(f"{text!r} is no duration: a whole number and s, m, h, d or w, like 30d", option)
    return int(match[1]) * _SECONDS[match[2]]


def moment(text: str, option: str, *, until: bool = False) -> str:
    """A point in time, as the format writes it; see `capsule.moments`.

    Raises:
        typer.BadParameter: It is none.
    """
    from capsule import moments

    try:
        return moments.moment(text, until=until)
    except InvalidInput as error:
        raise usage(error.message, option) from None
