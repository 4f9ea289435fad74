"""Commands that only pass on: each opens the store, makes one call, and renders what the call
returns.

This way goes: an editor finds no caller of a method that is named in a text. Write a command as a
function that calls the method, as `commands/locks.py` does. `output.as_json`, `answer`, `details` and
`listing` are all that it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from inspect import Parameter, Signature
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args

from capsule_cli.shared.options import Id, With, names_in
from capsule_cli.shared.output import answer, as_json, details, listing, one_line

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

Opens = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Rows:
    """A list as it is rendered.

    Attributes:
        columns: The name of each column, and the attribute that stands there, or what makes the
            text of an item.
        empty: What a person reads when there is none.
    """

    columns: dict[str, Any]
    empty: str

    def show(self, items: Any, json: Any) -> None:
        """Print the items. The last column comes last on a terminal, too."""
        cells = [
            attrgetter(cell) if isinstance(cell, str) else cell for cell in self.columns.values()
        ]
        rows = [[_cell(cell(item)) for cell in cells] for item in items]
        listing(json, tuple(self.columns), rows, self.empty, last=next(reversed(self.columns)))


def _cell(value: Any) -> str:
    return (
        "" if value is None else ",".join(value) if isinstance(value, tuple | list) else str(value)
    )


def passing(opens: Opens) -> Callable[[str], Callable[..., Callable[..., None]]]:
    """What makes commands: `join = does("Join it.")("channels.join", "{0.id}: {agent} joined",
    channel=Channel)`.

    Args:
        opens: Opens the store for those that do not say it themselves.
    """

    def does(help: str) -> Callable[..., Callable[..., None]]:
        def by(
            call: Any, shown: Any = None, *, value: Any = None, opens: Opens = opens, **takes: Any
        ) -> Callable[..., None]:
            """Say what the command does.

            Args:
                call: The method of the store, or what is given the store and the arguments.
                shown: `Rows` of a list; the labels of fields for `details`; or the words, in which
                    `{0}` is what the call returned, `{agent}` who acts, and the other names are
                    arguments; or what makes these words.
                value: Makes the JSON of what the call returned and was given; None: it is what was
                    returned.
                opens: Opens the store.
                takes: The parameters: their types, or a type and a default.
            """

            def run(**given: Any) -> None:
                with opens() as opened:
                    store = opened[0] if isinstance(opened, tuple) else opened
                    given = {
                        key: _read(store, takes[key], argument) for key, argument in given.items()
                    }
                    result = (
                        attrgetter(call)(store)(**given)
                        if isinstance(call, str)
                        else call(store, **given)
                    )
                    agent = store.agent
                json = value(result, **given) if value else as_json(result)
                words = {"agent": agent} | {
                    key: one_line(_joined(argument)) for key, argument in given.items()
                }
                if isinstance(shown, Rows):
                    shown.show(result, json)
                elif shown is None or isinstance(shown, dict):
                    details(json, shown or {})
                else:
                    answer(
                        json,
                        shown.format(result, **words)
                        if isinstance(shown, str)
                        else shown(result, **words),
                    )

            run.__doc__, run.__annotations__ = help, {}
            run.__signature__ = Signature([_parameter(*item) for item in takes.items()])  # type: ignore[attr-defined]
            return run

        return by

    return does


def _joined(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else "" if value is None else str(value)


def _read(store: CoreStore, kind: Any, value: Any) -> Any:
    """An argument as the store takes it."""
    return store.resolve(value) if kind is Id else names_in(value) if kind is With else value


def _parameter(name: str, kind: Any) -> Parameter:
    """A parameter; one that may be None is None by default, and a switch is off."""
    if isinstance(kind, tuple):
        default, kind = kind[1], kind[0]
    else:
        inner = get_args(kind)[0]
        default = (
            None if NoneType in get_args(inner) else False if inner is bool else Parameter.empty
        )
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
