"""Resolve what a person typed: a prefix for an id, `@3` for a message, `yesterday` for a time.

What must stay true: a prefix that fits several ids is an error that names them, never a guess.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from capsule import timestamps
from capsule.errors import InvalidInput, NotFound, Remedy
from capsule.settings import seconds

_MIN_PREFIX = 4
#: An error names so many ids that fit.
_MAX_NAMED = 5
_POSITION = re.compile("@[0-9]{1,12}")
_LIST = Remedy("list")
_DAY = re.compile(r"\d{4}-?\d\d-?\d\d|\d{4}-?W\d\d-?\d")
_DURATION = re.compile(r"[\d.]+\s*[a-z]+")
#: How many days ago the named days are.
_NAMED_DAYS = {"today": 0, "yesterday": 1}


def resolve_prefix(
    ids: list[str], prefix: str, noun: str = "conversation", remedy: Remedy = _LIST
) -> str:
    """Return the one of `ids` that `prefix` is, or is the beginning of.

    Args:
        ids: The ids.
        prefix: The text.
        noun: What the ids belong to, for the error.
        remedy: How to list them, for the error.

    Raises:
        NotFound: No id begins with it.
        InvalidInput: Several do, or the prefix is too short.
    """
    if prefix in ids:
        return prefix
    matches = [id for id in ids if id.startswith(prefix)]
    if not matches:
        raise NotFound(f"no {noun} {prefix}", remedy=remedy, id=prefix)
    if len(prefix) < _MIN_PREFIX:
        raise InvalidInput(
            f"{prefix!r} is too short: give {_MIN_PREFIX} characters of the id or more"
        )
    if len(matches) > 1:
        names = ", ".join(matches[:_MAX_NAMED])
        if len(matches) > _MAX_NAMED:
            names += ", ..."
        raise InvalidInput(
            f"{prefix!r} fits {len(matches)} ids: {names}; give more characters of the id"
        )
    return matches[0]


def parse_position(reference: str, count: int) -> int | None:
    """Return the index that `@N` or `@last` means among `count` messages, or None."""
    index = -1
    if reference == "@last":
        index = count - 1
    elif _POSITION.fullmatch(reference):
        index = int(reference[1:])
    return index if 0 <= index < count else None


def find_message(history: list[dict[str, Any]], reference: str, id: str) -> int:
    """Return the index of a message of conversation `id`.

    Args:
        history: The messages. An empty object is no message.
        reference: The id of the message, a unique prefix of it, `@N` or `@last`.
        id: The conversation, for the error.

    Raises:
        NotFound: The message does not exist.
        InvalidInput: The prefix fits several.
    """
    if reference.startswith("@"):
        index = parse_position(reference, len(history))
        if index is None or not history[index]:
            raise NotFound(
                f"conversation {id} has no message {reference}; it has {len(history)}",
                id=reference,
            )
        return index
    index_by_id: dict[str, int] = {}
    for position, message in enumerate(history):
        if message:
            # Of two messages with one id the first counts, as in the tree.
            index_by_id.setdefault(str(message.get("id")), position)
    noun = f"message in conversation {id}:"
    return index_by_id[resolve_prefix(list(index_by_id), reference, noun, Remedy("messages", id))]


def parse_time(text: str, *, until: bool = False) -> str:
    """Return the time that `text` means, in canonical form. Days are in UTC.

    Args:
        text: `2025-01-31`, `2025-01-31T12:00Z`, `today`, `yesterday`, or a duration before now:
            `90m`, `24h`, `3d`.
        until: Whether it is the end of a span. A day then means its end.

    Raises:
        InvalidInput: It is none of these.
    """
    normalized = text.strip().lower()
    now = timestamps.parse(timestamps.now())
    is_day = normalized in _NAMED_DAYS or _DAY.fullmatch(text.strip()) is not None
    try:
        if normalized in _NAMED_DAYS:
            today = datetime(now.year, now.month, now.day, tzinfo=UTC)
            time = today - timedelta(days=_NAMED_DAYS[normalized])
        elif _DURATION.fullmatch(normalized):
            time = now - timedelta(seconds=seconds(normalized))
            return timestamps.canonical(time.isoformat())
        else:
            time = timestamps.parse(text.strip())
        if until and is_day:
            time += timedelta(days=1)
    except OverflowError:
        # The end of the last day is after the last time, a very long duration before the first.
        is_after_all = until and normalized[-1:].isdigit()
        time = (datetime.max if is_after_all else datetime.min).replace(tzinfo=UTC)
    except (ValueError, InvalidInput):
        raise InvalidInput(
            f"{text[:100]!r} is not a time: give a day like 2025-01-31, a time like "
            "2025-01-31T12:00Z, today, yesterday, "
            "or how long ago, like 24h or 3d"
        ) from None
    return timestamps.canonical(time.isoformat())
