"""What every command takes, and what several take.

What must stay true: the options of every command are declared here, once, and stand before or after the command's
name alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from capsule.errors import InvalidInput
from capsule_cli.completion import complete_id, complete_tag
from capsule_cli.framework import give_every_command

__all__ = [
    "Asked",
    "Id",
    "Mode",
    "Role",
    "Tags",
    "Type",
    "Yes",
    "asked",
    "moment",
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
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", autocompletion=complete_tag, help="With this tag; repeated: with all."),
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


give_every_command(_everywhere)


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
