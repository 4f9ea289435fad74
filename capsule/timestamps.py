"""Times as the format writes them: ISO 8601, UTC, milliseconds, always 24 characters.

What must stay true: written timestamps have the same order as strings and as times. Each has
`WIDTH` characters, so that it can be overwritten in place.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache

WIDTH = 24
#: The time of an imported message whose source has no times.
UNKNOWN = "1970-01-01T00:00:00.000Z"
_CANONICAL = re.compile(
    r"(?!0000)\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d\.\d{3}Z",
    re.ASCII,
)


def now(not_before: str = "") -> str:
    """Return the current time as the format writes it.

    Args:
        not_before: A written timestamp. The result is never earlier, even if the clock went back.
    """
    return max(from_ms(time.time_ns() // 1_000_000), not_before)


def later_than(timestamp: str) -> str:
    """Return the current time, or a millisecond after `timestamp` if that is later."""
    current = now()
    if current > timestamp:
        return current
    if is_canonical(timestamp) and timestamp[20:23] != "999":
        return f"{timestamp[:20]}{int(timestamp[20:23]) + 1:03d}Z"
    try:
        incremented = parse(timestamp) + timedelta(milliseconds=1)
        return canonical(incremented.isoformat(timespec="milliseconds"))
    except OverflowError:
        return timestamp


def from_ms(ms: int) -> str:
    """Return a time in milliseconds since 1970 as the format writes it."""
    seconds, milliseconds = divmod(ms, 1000)
    return f"{_second(seconds)}.{milliseconds:03d}Z"


def blank_if_unknown(time: str | None) -> str:
    """Return a time for a reader. It is empty if there is none, or if it is `UNKNOWN`."""
    return "" if time is None or time == UNKNOWN else time


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def is_canonical(text: str) -> bool:
    """Return whether `text` is a timestamp exactly as the format writes it."""
    if _CANONICAL.fullmatch(text) is None:
        return False
    return text[8:10] <= "28" or _is_time(text)  # Not every month has a day 29, 30 or 31.


def _is_time(text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def parse(text: str) -> datetime:
    """Read a time in any ISO 8601 form. A time without a zone is UTC, as in the format.

    Raises:
        ValueError: `text` is not an ISO 8601 date and time.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is UTC:
        return moment
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r} is outside of the years 1 to 9999") from error


def canonical(text: str) -> str:
    """Return an ISO 8601 time in any form as the format writes it (truncated to milliseconds).

    Raises:
        ValueError: `text` is not an ISO 8601 date and time.
    """
    if is_canonical(text):
        return text
    return parse(text).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_between(earlier: str, later: str) -> float:
    """Return the seconds from one ISO 8601 time to another. Raises ValueError if one of them is not
    such a time.
    """
    return (parse(later) - parse(earlier)).total_seconds()


def sortable(text: str) -> str:
    """Return a time in the form that sorts as times do. Empty, which sorts first, if it is not a
    time.
    """
    try:
        return canonical(text)
    except ValueError:
        return ""


def ms_of(text: str) -> int:
    """Return a time in milliseconds since 1970, or 0 if `text` is not a time."""
    try:
        return round(parse(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0
