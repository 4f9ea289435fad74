"""The objects that a store offers, a module each, which is imported when the object is first asked
for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from capsule.rooms import built_in


class Offered:
    """An object that a store offers: the same at each call, in every thread."""

    def __init__(self, place: str = "", room: str = "") -> None:
        self._place = place
        self._room = room

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, store: Any, owner: type) -> Any:
        if store is None:
            return self
        if self._room:
            kind = built_in(self._room).objects[self._name]()
        else:
            module, _, name = self._place.partition(":")
            kind = getattr(import_module(module), name)
        return vars(store).setdefault(self._name, store.inner.part(kind))


def offered(module: str, kind: str) -> Any:
    """The object of a class that a store offers, for a typed line in its class. To ask for it
    raises Refused if its room is not installed.
    """
    return Offered(f"{module}:{kind}")


def of_room(room: str) -> Any:
    """The same for an object of a room, whose class the room names under the name of the line."""
    return Offered(room=room)
