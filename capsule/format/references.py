"""Which one a person means, by a prefix or a word instead of a full id.

What must stay true: a prefix that fits several is an error that names them, never a guess.
"""

from __future__ import annotations

import re
from typing import Any

from capsule.errors import InvalidInput, NotFound, Remedy

_MIN_PREFIX = 4
_PLACE = re.compile("@[0-9]{1,12}")
_LIST = Remedy("list")


def one_of(fitting: list[str], prefix: str, what: str = "conversation", remedy: Remedy = _LIST) -> str:
    """The one id that `prefix` means.

    Args:
        fitting: Ids; those that don't begin with `prefix` are passed over.
        prefix: What the person gave.
        what: What the ids are of.
        remedy: How the person sees which there are.

    Raises:
        NotFound: None is meant.
        InvalidInput: Several are, or the prefix is too short to mean one.
    """
    if prefix in fitting:
        return prefix
    fitting = [id for id in fitting if id.startswith(prefix)]
    if not fitting:
        raise NotFound(f"no {what} {prefix}", remedy=remedy, id=prefix)
    if len(prefix) < _MIN_PREFIX:
        raise InvalidInput(f"{prefix!r} is too short: give {_MIN_PREFIX} characters of the id or more")
    if len(fitting) > 1:
        shown = ", ".join(fitting[:5]) + (", ..." if len(fitting) > 5 else "")
        raise InvalidInput(f"{prefix!r} fits {len(fitting)} of them: {shown}; give more of the id")
    return fitting[0]


def place_in(wanted: str, count: int) -> int | None:
    """The place that `@N` or `@last` means among so many messages; None: there is no such place."""
    place = count - 1 if wanted == "@last" else int(wanted[1:]) if _PLACE.fullmatch(wanted) else -1
    return place if 0 <= place < count else None


def find_message(history: list[dict[str, Any]], wanted: str, id: str) -> int:
    """The position of one message: by its id, a unique prefix of it, `@N` or `@last`. Raises as `one_of`.

    An empty object in the history is no message.
    """
    if wanted.startswith("@"):
        place = place_in(wanted, len(history))
        if place is None or not history[place]:
            raise NotFound(f"conversation {id} has no message {wanted}; it has {len(history)}", id=wanted)
        return place
    places: dict[str, int] = {}
    for at, message in enumerate(history):
        if message:
            places.setdefault(str(message.get("id")), at)  # Of two of one id the first is meant, as in the tree.
    return places[one_of(list(places), wanted, f"message in conversation {id}:", Remedy("messages", id))]
