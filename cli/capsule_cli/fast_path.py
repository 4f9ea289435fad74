"""Runs a command without typer, whose import takes longer than a short command.

What must stay true: only words that typer understands in the same way are read here; all others are
left to it. An error of the command is raised once more in typer's program, which reports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import NoneType
from typing import Any, NoReturn, get_args, get_origin

from capsule.errors import Refused
from capsule_cli.command_aliases import expand
from capsule_cli.core_commands import room_of
from capsule_cli.error_output import ensure_streams
from capsule_cli.in_session import ensure_permitted
from capsule_cli.shared import options
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.stores import session_name

Values = dict[str, Any]


def run(words: Sequence[str]) -> None:
    """Run the command that the words ask for, and end the process. Returns if they are
    for typer.
    """
    try:
        function, shared, values = read(words)
    except (LookupError, ValueError, ModuleNotFoundError, Refused):
        return
    ensure_streams()
    for name, value in shared.items():
        setattr(global_options, name, value)
    try:
        function(**values)
        sys.stdout.flush()
        sys.exit()
    except (Exception, KeyboardInterrupt) as error:
        failure = error

    def fail(**_: Any) -> NoReturn:
        raise failure

    from capsule_cli import app

    app.main(fail)


def read(words: Sequence[str]) -> tuple[Callable[..., Any], Values, Values]:
    """The command that the words ask for, what they ask of every command, and the command's
    arguments.

    Raises LookupError, ValueError, ModuleNotFoundError, Refused: they are for typer.
    """
    "".join(words).encode()  # Typer's program says which word is not valid UTF-8.
    words = expand(list(words))
    function: Callable[..., Any] | None = None
    names: list[str] = []
    shared: Values = {}
    values: Values = {}
    known, arguments = _setters(options.every_command, shared)
    rest = iter(words)
    for word in rest:
        if word == "--":
            ((into, name, kind, _),) = (take.args for take in arguments)
            if get_origin(kind) is not list:
                raise ValueError(word)
            into[name] = list(rest) or into[name]
        elif _is_option(word):
            is_flag, take = known[word]
            take(word if is_flag else next(rest, ""))
        elif function is None:
            names.append(word)
            if function := _function_of(names):
                of_command, arguments = _setters(function, values)
                known |= of_command
        else:
            arguments.pop(0)(word)
    if function is None or ... in values.values():
        raise ValueError("there is no command, or it lacks an argument")
    ensure_permitted(" ".join(names), session_name())
    return function, shared, values


def _setters(
    function: Callable[..., Any], into: Values
) -> tuple[dict[str, Any], list[partial[None]]]:
    """What puts a word `into` the arguments of a command: by option, with whether it is a flag, and
    for each argument.

    The defaults are put there at once.
    """
    known: dict[str, Any] = {}
    arguments: list[partial[None]] = []
    for param, declared in options.parameters(function):
        if declared is None:
            raise ValueError(f"{param.name} is typer's")
        kinds = get_args(param.annotation)
        kind = kinds[0] if NoneType in kinds and bool not in kinds else param.annotation
        into[param.name] = declared.default
        take = partial(_set_value, into, param.name, kind, declared.more.get("min"))
        known |= dict.fromkeys(declared.names, (kind is bool, take))
        if not declared.names:
            arguments.append(take)
    return known, arguments


def _set_value(into: Values, name: str, kind: Any, least: int | None, word: str) -> None:
    if not word or not options.is_plain(kind) or _is_option(word) != (kind is bool):
        raise ValueError(word)
    into[name] = kind is bool or options.value_of(kind, word, least)


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _function_of(names: list[str]) -> Callable[..., Any] | None:
    """The function of a command; None: the names are those of a group."""
    command = " ".join(names)
    room = room_of(command)
    if room is None:
        raise LookupError(command)
    if command not in room.command_names():
        return None
    return room.command(command)
