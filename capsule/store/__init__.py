"""The Store, and what it offers, a module each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capsule.store.store import Store


class Offered:
    """An object that a store offers: the same at each call, in every thread.

    Its module is imported at the first call, so that a command that does without imports nothing for it.
    """

    def __init__(self, module: str, kind: str) -> None:
        self._module = module
        self._kind = kind
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, store: Store | None, owner: type) -> Any:
        if store is None:
            return self
        return vars(store).setdefault(self._name, getattr(import_module(self._module), self._kind)(store))


def offered(module: str, kind: str) -> Any:
    """The object of a class that a store offers."""
    return Offered(module, kind)
