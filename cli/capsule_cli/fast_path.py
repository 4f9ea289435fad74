"""Run a command without typer, whose import takes longer than a short command.

`read` parses the words by the same declarations that typer gets (`shared.options`). If it does not
understand one of them, it raises, and typer's program parses the line again from the start.

What must stay true: this parser accepts only words that typer understands in the same way. An error
of the command is raised again in typer's program, which reports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, NamedTuple, NoReturn, get_args, get_origin

from capsule.errors import Refused
from capsule_cli.command_names import ensure_permitted, expand
from capsule_cli.core_commands import room_of
from capsule_cli.exits import ensure_streams
from capsule_cli.shared import options
from capsule_cli.shared.output import global_options
from capsule_cli.shared.stores import session_name

#: Values by the name of the parameter.
Values = dict[str, Any]


class _Setter(NamedTuple):
    """Stores one value of the command line.

    Attributes:
        values: The dict to store it in.
        name: The name of the parameter.
        kind: The type of the value.
        minimum: The least number that is accepted.
    """

    values: Values
    name: str
    kind: Any
    minimum: int | None

    def set(self, word: str) -> None:
        """Store the value of a word. Raises ValueError: typer has to parse it."""
        is_flag = self.kind is bool
        if not word or not options.is_plain(self.kind) or _is_option(word) != is_flag:
            raise ValueError(word)
        self.values[self.name] = is_flag or options.value_of(self.kind, word, self.minimum)


def run(words: Sequence[str]) -> None:
    """Run the command of a command line, and end the process. Return if typer has to do it."""
    try:
        function, global_values, values = read(words)
    except (LookupError, ValueError, ModuleNotFoundError, Refused):
        return
    ensure_streams()
    for name, value in global_values.items():
        setattr(global_options, name, value)
    try:
        function(**values)
        sys.stdout.flush()
        sys.exit()
    except (Exception, KeyboardInterrupt) as error:
        failure = error

    def raise_again(**_: Any) -> NoReturn:
        raise failure

    from capsule_cli import app

    app.main(raise_again)


def read(words: Sequence[str]) -> tuple[Callable[..., Any], Values, Values]:
    """Parse a command line. Return the command's function, the values of the options of every
    command, and the function's arguments.

    Raises LookupError, ValueError, ModuleNotFoundError, Refused: typer has to parse the line.
    """
    "".join(words).encode()  # Typer's program reports which word is not valid UTF-8.
    words = expand(list(words))
    function: Callable[..., Any] | None = None
    names: list[str] = []
    global_values: Values = {}
    values: Values = {}
    option_setters, argument_setters = _setters(options.every_command, global_values)
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            (setter,) = argument_setters
            if get_origin(setter.kind) is not list:
                raise ValueError(word)
            setter.values[setter.name] = list(remaining) or setter.values[setter.name]
        elif _is_option(word):
            setter = option_setters[word]
            setter.set(word if setter.kind is bool else next(remaining, ""))
        elif function is None:
            names.append(word)
            if function := _function_of(names):
                command_setters, argument_setters = _setters(function, values)
                option_setters |= command_setters
        else:
            argument_setters.pop(0).set(word)
    if function is None or ... in values.values():
        raise ValueError("the line names no command, or it lacks an argument")
    ensure_permitted(" ".join(names), session_name())
    return function, global_values, values


def _setters(
    function: Callable[..., Any], values: Values
) -> tuple[dict[str, _Setter], list[_Setter]]:
    """Return the setters of a command's options by name, and those of its arguments in order.

    Puts the defaults of the parameters into `values`. An argument without a default is `...` there.

    Raises ValueError: typer itself gives a parameter.
    """
    option_setters: dict[str, _Setter] = {}
    argument_setters: list[_Setter] = []
    for parameter, declared in options.parameters(function):
        if declared is None:
            raise ValueError(f"{parameter.name} is typer's")
        kind = parameter.annotation
        alternatives = get_args(kind)
        if NoneType in alternatives and bool not in alternatives:
            kind = alternatives[0]
        values[parameter.name] = declared.default
        setter = _Setter(values, parameter.name, kind, declared.typer_settings.get("min"))
        option_setters |= dict.fromkeys(declared.names, setter)
        if not declared.names:
            argument_setters.append(setter)
    return option_setters, argument_setters


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _function_of(names: list[str]) -> Callable[..., Any] | None:
    """Return the function of a command. None: the names are those of a group."""
    command = " ".join(names)
    room = room_of(command)
    if room is None:
        raise LookupError(command)
    if command not in room.command_names():
        return None
    return room.command(command)
