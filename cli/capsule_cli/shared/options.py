"""What every command takes, and what several take.

What must stay true: the options of every command are declared here, once, and stand before or after
the command's name alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin

from capsule.errors import InvalidInput
from capsule_cli.completion import complete_agent, complete_id, complete_tag

if TYPE_CHECKING:
    import typer


class ParameterSpec(NamedTuple):
    """What `option` and `argument` were given; an argument has no names. `framework` makes typer's
    parameter of it.

    A help that is a function is asked for only when typer makes the command: what it lists may take
    long to import.
    """

    names: tuple[str, ...]
    metavar: str | None
    help: str | Callable[[], str]
    default: Any
    more: Mapping[str, Any]


def parameters(function: Callable[..., Any]) -> Iterator[tuple[Parameter, ParameterSpec | None]]:
    """The parameters of a command with their plain types, and what it declares of each; None: typer
    gives it.
    """
    for param in signature(function, eval_str=True).parameters.values():
        kind, declared = param.annotation, param.default
        if get_origin(kind) is Annotated:
            kind, declared = get_args(kind)
            declared = declared._replace(
                default=... if param.default is param.empty else param.default
            )
        yield (
            param.replace(annotation=kind),
            declared if isinstance(declared, ParameterSpec) else None,
        )


def is_plain(kind: Any) -> bool:
    """Whether `value_of` makes values of this kind."""
    return kind in (str, int, bool) or get_origin(kind) is Literal


def value_of(kind: Any, word: Any, least: int | None) -> Any:
    """The value of a word of the command line. Raises ValueError: it is none of its kind, or less
    than `least`.
    """
    if kind is int:
        if not str(word).removeprefix("-").isdecimal():
            raise ValueError(f"{word!r} is no whole number")
        if least is not None and int(word) < least:
            raise ValueError(f"{int(word)} is less than {least}")
        return int(word)
    if get_origin(kind) is Literal and word not in get_args(kind):
        raise ValueError(f"{word!r} is not one of {', '.join(map(repr, get_args(kind)))}")
    return word


def option(spec: str, help: str | Callable[[], str], default: Any = None, **more: Any) -> Any:
    """An option of a command.

    Args:
        spec: Its names, and behind them the name of its value: `--limit -n N`.
        help: What it does.
        default: Its value where it isn't given; `...`: it must be, or, in an `Annotated`, each
            command says it.
        more: As typer takes it.
    """
    words = spec.split()
    value = None if words[-1].startswith("-") else words.pop()
    return ParameterSpec(tuple(words), value, help, default, more)


def flag(spec: str, help: str, **more: Any) -> Any:
    """An option without a value."""
    return option(spec, help, False, **more)


def argument(name: str, help: str | Callable[[], str], default: Any = None, **more: Any) -> Any:
    """An argument of a command; its default as of an option."""
    return ParameterSpec((), name, help, default, more)


# Typed out, because a type checker wants it so; a test holds them and the format's own lists
# together.
Role = Literal["user", "assistant", "system", "tool"]
Mode = Literal["api", "toolbox"]
Type = Literal["chat", "direct", "group", "channel"]

CONVERSATION = (
    "its id, a unique beginning of it (4 characters or more), @last, or the name of a "
    "channel or group."
)
Id = Annotated[
    str, argument("ID", f"The conversation: {CONVERSATION}", ..., autocompletion=complete_id)
]
_AGENT_NAME = "its id, its name, or NAME@PROJECT."
Agent = Annotated[
    str, argument("AGENT", f"The agent: {_AGENT_NAME}", ..., autocompletion=complete_agent)
]
Agents = Annotated[
    list[str],
    argument("AGENT", f"The agents, each: {_AGENT_NAME}", ..., autocompletion=complete_agent),
]
_WITH = "Add these agents: names with commas between them. Repeatable."
With = Annotated[
    list[str] | None, option("--with AGENTS", _WITH, ..., autocompletion=complete_agent)
]
_TAGS = "Take only conversations with this tag. If repeated, with all of these tags."
Tags = Annotated[list[str] | None, option("--tag TAG", _TAGS, ..., autocompletion=complete_tag)]
Yes = Annotated[bool, option("--yes -y", "Don't ask.", ...)]
DryRun = Annotated[bool, option("--dry-run", "Print what would be done, and change nothing.", ...)]
File = Annotated[str | None, option("--file -F FILE", "Read the text from a file.", ...)]
From = Annotated[
    str | None, option("--from AGENT", "Name the agent that wrote the message, by its id.", ...)
]
At = Annotated[
    str | None,
    option("--at REV", "Print the version of this commit, or of this date or time (UTC).", ...),
]
_BUDGET = "Limit the transcript to N tokens, by an estimate. Without it: all messages."
Budget = Annotated[int | None, option("--budget N", _BUDGET, ..., min=1)]
Limit = Annotated[int | None, option("--limit -n N", "Show at most N.", ..., min=1)]


_STORE = (
    "Use this store. Else: CAPSULE_STORE, the nearest directory upwards with a capsule.toml, "
    "your own store."
)
_INSTANCE = (
    "Act as the holder of this name, whose locks outlive the command. Else: CAPSULE_INSTANCE."
)
_AGENT = (
    "Act for this agent (its id, its name here, or name@project). Else: the store's owner, "
    "who may do everything."
)


def every_command(
    json: bool = flag("--json", "Print JSON, errors too."),
    store: str | None = option("--store DIR|URL", _STORE),
    instance: str | None = option("--instance NAME", _INSTANCE),
    as_: str | None = option("--as AGENT", _AGENT, autocompletion=complete_agent),
    no_pager: bool = flag("--no-pager", "Don't show long output in $PAGER."),
) -> None:
    """What every command takes."""


def usage_error(message: str, option: str | None = None) -> typer.BadParameter:
    """A usage error (exit code 2), about `option` when one is to blame."""
    import typer

    return typer.BadParameter(message, param_hint=option)


def refuse_if(when: object, message: str, option: str | None = None) -> None:
    """Raise a usage error when something is so."""
    if when:
        raise usage_error(message, option)


def parse_filter(
    where: str | None, topic: str | None = None, thread: str | None = None
) -> dict[str, Any] | None:
    """The filter of `--where`, `--topic` and `--thread`; None: none was given. Raises
    typer.BadParameter.
    """
    import orjson

    try:
        parts = [] if where is None else [orjson.loads(where)]
    except orjson.JSONDecodeError as error:
        raise usage_error(f"{where!r:.80} is not valid JSON: {error}", "--where") from None
    parts += [
        {name: value} for name, value in (("topic", topic), ("thread", thread)) if value is not None
    ]
    return {"$and": parts} if parts else None


def split_names(values: list[str] | None) -> list[str]:
    """The names in the values of an option that takes several, with commas between them."""
    return [name for value in values or () for name in value.split(",") if name]


_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")


def parse_duration(text: str, option: str, *, unit: str = "") -> int:
    """The seconds in `90s`, `15m`, `2h`, `3d` or `1w`; a bare number is one of `unit`. Raises
    typer.BadParameter.
    """
    match = _DURATION.fullmatch(text + unit if text.isdecimal() else text)
    if match is None:
        raise usage_error(
            f"{text!r} is not a duration: a whole number and s, m, h, d or w, like 30d", option
        )
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def parse_time(text: str, option: str, *, until: bool = False) -> str:
    """A point in time, as the format writes it (`references.moment`). Raises typer.BadParameter: it
    is none.
    """
    from capsule.format import references

    try:
        return references.parse_time(text, until=until)
    except InvalidInput as error:
        raise usage_error(error.message, option) from None
