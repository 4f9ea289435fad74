"""Doing a write again that another program interrupted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from capsule.errors import Interfered, StoreBusy

T = TypeVar("T")
_TRIES = 5


def again(act: Callable[[], T], what: str = "the file", id: str = "", tries: int = _TRIES) -> T:
    """What `act` gives, which starts over when another program wrote `what` in between. Raises StoreBusy."""
    for _ in range(tries):
        with suppress(Interfered):
            return act()
    raise overtaken(what, id)


def overtaken(what: str, id: str) -> StoreBusy:
    """The error that another program wrote `what` again and again."""
    why = f"{what} keeps being rewritten by another program; try again when it is done"
    return StoreBusy(why, id=id, holder="another program")
