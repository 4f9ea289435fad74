"""What a person means, by a prefix or a word instead of a full id, and by a day or a duration
instead of a time.

What must stay true: a prefix that fits several is an error that names them, never a guess.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from capsule import timestamps
from capsule.errors import InvalidInput, NotFound, Remedy
from capsule.settings import seconds

_MIN_PREFIX = 4
_PLACE = re.compile("@[0-9]{1,12}")
_LIST = Remedy("list")
_DAY = re.compile(r"\d{4}-?\d\d-?\d\d|\d{4}-?W\d\d-?\d")
_NAMED = {"today": 0, "yesterday": 1}


def resolve_prefix(
    fitting: list[str], prefix: str, noun: str = "conversation", remedy: Remedy = _LIST
) -> str:
    """The id of `fitting` that `prefix` means. `noun` says what the ids belong to, and `remedy` how
    to list them.

    Raises:
        NotFound: None is meant.
        InvalidInput: Several are, or the prefix is too short to mean one.
    """
    if prefix in fitting:
        return prefix
    fitting = [id for id in fitting if id.startswith(prefix)]
    if not fitting:
        raise NotFound(f"no {noun} {prefix}", remedy=remedy, id=prefix)
    if len(prefix) < _MIN_PREFIX:
        raise InvalidInput(
            f"{prefix!r} is too short: give {_MIN_PREFIX} characters of the id or more"
        )
    if len(fitting) > 1:
        shown = ", ".join(fitting[:5]) + (", ..." if len(fitting) > 5 else "")
        raise InvalidInput(
            f"{prefix!r} fits {len(fitting)} ids: {shown}; give more characters of the id"
        )
    return fitting[0]


def parse_position(wanted: str, count: int) -> int | None:
    """The place that `@N` or `@last` means among so many messages; None: there is no such place."""
    place = count - 1 if wanted == "@last" else int(wanted[1:]) if _PLACE.fullmatch(wanted) else -1
    return place if 0 <= place < count else None


def find_message(history: list[dict[str, Any]], wanted: str, id: str) -> int:
    """The position of one message: by its id, a unique prefix of it, `@N` or `@last`.

    An empty object in the history is no message. Raises NotFound if none is meant, and InvalidInput
    if several are.
    """
    if wanted.startswith("@"):
        place = parse_position(wanted, len(history))
        if place is None or not history[place]:
            raise NotFound(
                f"conversation {id} has no message {wanted}; it has {len(history)}", id=wanted
            )
        return place
    places: dict[str, int] = {}
    for at, message in enumerate(history):
        if message:
            places.setdefault(
                str(message.get("id")), at
            )  # Of two of one id the first is meant, as in the tree.
    return places[
        resolve_prefix(
            list(places), wanted, f"message in conversation {id}:", Remedy("messages", id)
        )
    ]


def parse_time(text: str, *, until: bool = False) -> str:
    """The time that `text` means, as the format writes times. Days are those of UTC.

    Args:
        text: `2025-01-31`, `2025-01-31T12:00Z`, `today`, `yesterday`, or a duration before now:
            `90m`, `24h`, `3d`.
        until: Whether it is the end of a span, which does not belong to it. A day that is the end
            does: the span then ends with it.

    Raises:
        InvalidInput: It is none of these.
    """
    said = text.strip().lower()
    now = timestamps.parse(timestamps.now())
    try:
        if said in _NAMED:
            time = datetime(now.year, now.month, now.day, tzinfo=UTC) - timedelta(days=_NAMED[said])
        elif re.fullmatch(r"[\d.]+\s*[a-z]+", said):
            return timestamps.canonical((now - timedelta(seconds=seconds(said))).isoformat())
        else:
            time = timestamps.parse(text.strip())
        if until and (said in _NAMED or _DAY.fullmatch(text.strip())):
            time += timedelta(days=1)
    except OverflowError:
        time = (datetime.max if until and said[-1:].isdigit() else datetime.min).replace(tzinfo=UTC)
    except (ValueError, InvalidInput):
        raise InvalidInput(
            f"{text[:100]!r} is not a time: give a day like 2025-01-31, a time like "
            "2025-01-31T12:00Z, today, yesterday, "
            "or how long ago, like 24h or 3d"
        ) from None
    return timestamps.canonical(time.isoformat())
