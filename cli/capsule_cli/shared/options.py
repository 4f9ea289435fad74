"""Declare the options and arguments of commands, and complete their values in the shell.

A command declares each parameter as `name: type = option(...)`, or with one of the `Annotated`
types below. The name of the parameter is not the name of the option. `capsule_cli.app` makes
typer's parameters of these declarations, and `fast_path` reads them without typer.

What must stay true: the options of every command are declared once, here, and may be written before
or after the command's name. A completion prints candidates or nothing, and never fails, because
nobody would read the error. This module imports typer only to report an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from capsule import rooms
from capsule.errors import CapsuleError, InvalidInput, Refused
from capsule_cli.shared.output import one_line, with_count
from capsule_cli.shared.stores import agent_name, open_store

if TYPE_CHECKING:
    import typer

    from capsule.store.store import CoreStore


# -- Completion ------------------------------------------------------------------------------------

S = TypeVar("S")
T = TypeVar("T")
Completion = Callable[[str], list[tuple[str, str]]]


def completion_of(
    open_store: Callable[[], AbstractContextManager[S]],
    read_items: Callable[[S], Iterable[T]],
    describe: Callable[[T], tuple[str, str]],
) -> Completion:
    """Return a completion for items of a store.

    Args:
        open_store: Opens the store.
        read_items: Returns the items of the store.
        describe: Returns the name of an item, which is completed, and a description of it.
    """

    def complete(incomplete: str) -> list[tuple[str, str]]:
        candidates = map(describe, _read_or_nothing(open_store, read_items))
        return [candidate for candidate in candidates if candidate[0].startswith(incomplete)]

    return complete


def _read_or_nothing(
    open_store: Callable[[], AbstractContextManager[S]], read_items: Callable[[S], Iterable[T]]
) -> list[T]:
    """Return the items of the store. Return none if that fails."""
    try:
        with open_store() as store:
            return list(read_items(store))
    except (CapsuleError, OSError):
        return []


def _open_for_agent() -> AbstractContextManager[CoreStore]:
    """Open the store for the agent of the option or the environment, else for its owner."""
    from capsule.store.store import CoreStore

    return open_store(CoreStore, agent_name())


def complete_id(incomplete: str) -> list[tuple[str, str]]:
    """Return the ids of the conversations that begin with `incomplete`, with their titles, in the
    order of `list`.
    """
    from capsule.engines.queries import Filter

    heads = _read_or_nothing(_open_for_agent, lambda store: store.list(Filter(archived=None)).heads)
    pairs = [
        (head.id, "damaged" if head.damaged else one_line(head.title) or "untitled")
        for head in heads
    ]
    pairs += [("@last", "the conversation changed last")] if incomplete.startswith("@") else []
    return [pair for pair in pairs if pair[0].startswith(incomplete) or pair[0][0] == "@"]


def complete_id_or_next(incomplete: str) -> list[tuple[str, str]]:
    """Return the ids that begin with `incomplete`, and `@next`, the next new conversation."""
    candidates = complete_id(incomplete)
    if incomplete.startswith("@"):
        candidates.append(("@next", "the next one that is made"))
    return candidates


def complete_tag(incomplete: str) -> list[tuple[str, str]]:
    """Return the tags that begin with `incomplete`, the most used first."""
    from collections import Counter

    tags = _read_or_nothing(
        _open_for_agent, lambda store: [tag for head in store.heads() for tag in head.tags]
    )
    counts = Counter(tag for tag in tags if tag.startswith(incomplete))
    return [(tag, with_count(count, "conversation")) for tag, count in counts.most_common()]


def complete_agent(incomplete: str) -> list[tuple[str, str]]:
    """Return the ids of the agents that begin with `incomplete`. Return none if the room of
    messaging is not installed.
    """
    try:
        return rooms.complete_agent(incomplete)
    except Refused:
        return []


complete_trashed = completion_of(
    _open_for_agent,
    lambda store: [*store.trash.list(), *(removed.trashed for removed in store.trash.removed())],
    lambda item: (item.id, f"deleted {item.deleted_at}"),
)


# -- Parameters ------------------------------------------------------------------------------------


class ParameterSpec(NamedTuple):
    """The declaration of an option or an argument, made by `option` and `argument`.

    Attributes:
        names: The names of an option. An argument has none.
        metavar: The name of the value in the help.
        help: The text of the help. A function is called only when typer makes the command: to make
            the text may take long imports.
        default: The default. `...`: the value is required.
        typer_settings: Further settings of typer's parameter.
    """

    names: tuple[str, ...]
    metavar: str | None
    help: str | Callable[[], str]
    default: Any
    typer_settings: Mapping[str, Any]


def parameters(function: Callable[..., Any]) -> Iterator[tuple[Parameter, ParameterSpec | None]]:
    """Yield the parameters of a command, with their plain types, and their declarations.

    The declaration is None for a parameter that typer itself gives, such as the context.
    """
    for parameter in signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        declared = parameter.default
        if get_origin(kind) is Annotated:
            kind, declared = get_args(kind)
            default = ... if parameter.default is parameter.empty else parameter.default
            declared = declared._replace(default=default)
        spec = declared if isinstance(declared, ParameterSpec) else None
        yield parameter.replace(annotation=kind), spec


def is_plain(kind: Any) -> bool:
    """Return whether `value_of` makes values of this type."""
    return kind in (str, int, bool) or get_origin(kind) is Literal


def value_of(kind: Any, word: Any, minimum: int | None) -> Any:
    """Return the value of a word of the command line.

    Raises ValueError: it is not a value of this type, or less than `minimum`.
    """
    if kind is int:
        if not str(word).removeprefix("-").isdecimal():
            raise ValueError(f"{word!r} is not a whole number")
        if minimum is not None and int(word) < minimum:
            raise ValueError(f"{int(word)} is less than {minimum}")
        return int(word)
    if get_origin(kind) is Literal and word not in get_args(kind):
        raise ValueError(f"{word!r} is not one of {', '.join(map(repr, get_args(kind)))}")
    return word


def option(
    spec: str, help: str | Callable[[], str], default: Any = None, **typer_settings: Any
) -> Any:
    """Declare an option of a command.

    Args:
        spec: Its names, followed by the name of its value: `--limit -n N`. A flag has no value.
        help: The text of the help.
        default: Its value if it is not given. `...`: it is required, or, in an `Annotated`, each
            command has its own default.
        typer_settings: Further settings of typer's option.
    """
    names = spec.split()
    metavar = None if names[-1].startswith("-") else names.pop()
    return ParameterSpec(tuple(names), metavar, help, default, typer_settings)


def flag(spec: str, help: str, **typer_settings: Any) -> Any:
    """Declare an option without a value."""
    return option(spec, help, False, **typer_settings)


def argument(
    name: str, help: str | Callable[[], str], default: Any = None, **typer_settings: Any
) -> Any:
    """Declare an argument of a command. `default` is as for `option`."""
    return ParameterSpec((), name, help, default, typer_settings)


# A type checker needs literal values. A test compares them with the lists of the format.
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
_SETTINGS = "Change your own settings, for all projects, or those of the surrounding project."
Settings = Annotated[Literal["user", "project"], option("--settings", _SETTINGS, ...)]
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
    """Declare the options of every command. Their names are the attributes of `GlobalOptions`."""


def usage_error(message: str, option: str | None = None) -> typer.BadParameter:
    """Return a usage error (exit code 2), which names the wrong option."""
    import typer

    return typer.BadParameter(message, param_hint=option)


def refuse_if(condition: object, message: str, option: str | None = None) -> None:
    """Raise a usage error if a condition is true."""
    if condition:
        raise usage_error(message, option)


def parse_filter(
    where: str | None, topic: str | None = None, thread: str | None = None
) -> dict[str, Any] | None:
    """Return the filter of `--where`, `--topic` and `--thread`. None: none was given.

    Raises typer.BadParameter: `where` is not valid JSON.
    """
    import orjson

    try:
        parts = [] if where is None else [orjson.loads(where)]
    except orjson.JSONDecodeError as error:
        raise usage_error(f"{where!r:.80} is not valid JSON: {error}", "--where") from None
    if topic is not None:
        parts.append({"topic": topic})
    if thread is not None:
        parts.append({"thread": thread})
    return {"$and": parts} if parts else None


def split_names(values: list[str] | None) -> list[str]:
    """Return the names in the values of a repeatable option, each with commas between names."""
    return [name for value in values or () for name in value.split(",") if name]


_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")


def parse_duration(text: str, option: str, *, unit: str = "") -> int:
    """Return the seconds of `90s`, `15m`, `2h`, `3d` or `1w`.

    Args:
        text: The text of the value.
        option: The option that has it.
        unit: The unit of a number without one. Empty: a unit is required.

    Raises typer.BadParameter: it is not a duration.
    """
    match = _DURATION.fullmatch(text + unit if text.isdecimal() else text)
    if match is None:
        raise usage_error(
            f"{text!r} is not a duration: a whole number and s, m, h, d or w, like 30d", option
        )
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def parse_time(text: str, option: str, *, until: bool = False) -> str:
    """Return a point in time in the notation of the format, as `references.parse_time` does.

    Raises typer.BadParameter: it is not a time.
    """
    from capsule.format import references

    try:
        return references.parse_time(text, until=until)
    except InvalidInput as error:
        raise usage_error(error.message, option) from None
