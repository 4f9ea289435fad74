"""Times as the format writes them: ISO 8601, UTC, milliseconds, always 24 characters.

What must stay true: written timestamps compare as strings as they compare as times. Each has
`WIDTH` characters, so that it can be overwritten in place.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache

WIDTH = 24
#: The time of a message of a source that knows no times.
UNKNOWN = "1970-01-01T00:00:00.000Z"
_CANONICAL = re.compile(
    r"(?!0000)\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d\.\d{3}Z",
    re.ASCII,
)


def now(not_before: str = "") -> str:
    """The time as the format writes it.

    Args:
        not_before: A written timestamp; the result is never earlier, even when the clock went back.
    """
    seconds, rest = divmod(time.time_ns() // 1_000_000, 1000)
    stamp = f"{_second(seconds)}.{rest:03d}Z"
    return stamp if stamp > not_before else not_before


def later_than(stamp: str) -> str:
    """The current time, and at least a millisecond later than `stamp`, whatever the clock says."""
    stamp_now = now()
    if stamp_now > stamp:
        return stamp_now
    if is_canonical(stamp) and stamp[20:23] != "999":
        return f"{stamp[:20]}{int(stamp[20:23]) + 1:03d}Z"
    try:
        return canonical(
            (parse(stamp) + timedelta(milliseconds=1)).isoformat(timespec="milliseconds")
        )
    except OverflowError:
        return stamp


def from_ms(ms: int) -> str:
    """Milliseconds since 1970 as the format writes times."""
    seconds, rest = divmod(ms, 1000)
    return f"{_second(seconds)}.{rest:03d}Z"


def blank_if_unknown(time: str | None) -> str:
    """A time for a reader; empty: there is none, or it is `UNKNOWN`."""
    return "" if time is None or time == UNKNOWN else time


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def is_canonical(text: str) -> bool:
    """Whether `text` is a timestamp exactly as the format writes it."""
    if _CANONICAL.fullmatch(text) is None:
        return False
    return text[8:10] <= "28" or _is_time(text)


def _is_time(text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def parse(text: str) -> datetime:
    """Read a time in any ISO 8601 form; a time without a zone is UTC, as in the format.

    Raises:
        ValueError: `text` is no ISO 8601 date and time.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is UTC:
        return moment
    try:
        zone = moment.tzinfo
        return (
            moment
            if zone is UTC
            else moment.replace(tzinfo=UTC)
            if zone is None
            else moment.astimezone(UTC)
        )
    except OverflowError as error:
        raise ValueError(f"{text!r} is outside of the years 1 to 9999") from error


def canonical(text: str) -> str:
    """`text`, an ISO 8601 time in any form, as the format writes it (truncated to milliseconds).

    Raises:
        ValueError: `text` is no ISO 8601 date and time.
    """
    if is_canonical(text):
        return text
    return parse(text).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_between(earlier: str, later: str) -> float:
    """Seconds from one ISO 8601 time to another. Raises ValueError if `earlier` or `later` is no
    such time.
    """
    return (parse(later) - parse(earlier)).total_seconds()


def sortable(text: str) -> str:
    """`text` in the form that sorts as times do; empty if it is not a time, which sorts first."""
    try:
        return canonical(text)
    except ValueError:
        return ""


def ms_of(stamp: str) -> int:
    """A time in milliseconds since 1970; 0 for what is none."""
    try:
        return round(parse(stamp).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0
