"""Doing a write again that another program interrupted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from capsule.errors import Interfered, StoreBusy

if TYPE_CHECKING:
    from capsule.engines.interface import Engine
    from capsule.engines.values import Version

T = TypeVar("T")
Change = Callable[[bytes | None], bytes | None]
_TRIES = 5
#: Of many that write one document, each has its turn within so many tries.
_EDITS = 1000


def again(act: Callable[[], T], name: str = "the file", id: str = "", tries: int = _TRIES) -> T:
    """What `act` gives, which starts over when another program wrote `what` in between. Raises
    StoreBusy.
    """
    for _ in range(tries):
        try:  # Not by `suppress`, which costs more than this.
            return act()
        except Interfered:
            continue
    raise overtaken(name, id)


def overtaken(name: str, id: str) -> StoreBusy:
    """The error that another program wrote `what` again and again."""
    why = f"{name} keeps being rewritten by another program; try again when it is done"
    return StoreBusy(why, id=id, holder="another program")


def edited(
    engine: Engine, kind: str, id: str, change: Change, known: Version | None = None
) -> Version | None:
    """Read, change and write a document of a kind without entries, durably; the version that there
    is then.

    `change` takes the stored bytes, or None, and gives the new bytes, or None to write nothing. It
    runs again if another program wrote the document meanwhile. It begins with the version `known`,
    if that was read just now. Raises its errors, StoreBusy, and what a write raises.
    """
    for _ in range(_EDITS):
        with suppress(Interfered):
            before, known = known or engine.version(kind, id), None
            after = change(None if before is None else before.data)
            return before if after is None else engine.put(kind, id, after, before)
    raise overtaken(engine.name(kind, id), id)
