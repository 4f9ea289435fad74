"""Cron expressions: when something recurs, in the time zone of the user.

What must stay true: where clocks change, an expression is read as Debian's cron reads it. A time in
the hour that is left out comes once, right after it, and a time in the hour that comes twice comes
once. No file, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from capsule import timestamps
from capsule.errors import InvalidInput

#: The short words of cron, and their expressions.
_EXPRESSIONS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
#: Minute, hour, day of the month, month, and day of the week.
_FIELD_COUNT = 5


def zone(name: str) -> tzinfo:
    """Return the time zone of a name such as `Europe/Berlin`. An empty name is UTC.

    Raises InvalidInput if this machine has no such time zone.
    """
    if name in ("", "UTC"):
        return UTC
    # Imported here, because a worker that starts needs no time zones.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(
            f"{name[:80]!r} is not a time zone; it has a name like Europe/Berlin"
        ) from None


def next_at(recurrence: Mapping[str, Any], after: str) -> str:
    """Return the first time of a recurrence after a time.

    Args:
        recurrence: `cron`, with five fields or a word such as `@daily`, and `timeZone`.
        after: The time.

    Raises InvalidInput if the cron expression cannot be read, or fits no time.
    """
    start = timestamps.parse(after)
    return _canonical(next(time for time in _times(recurrence, start) if time > start))


def last_at(recurrence: Mapping[str, Any], end_time: str) -> str:
    """Return the last time of a recurrence that is not after a time. Arguments as for `next_at`."""
    end = timestamps.parse(end_time)
    times = _times(recurrence, end + timedelta(seconds=1), reverse=True)
    return _canonical(next(time for time in times if time <= end))


def _times(
    recurrence: Mapping[str, Any], start: datetime, *, reverse: bool = False
) -> Iterator[datetime]:
    """Yield the times of a recurrence from `start` on, in UTC. With `reverse`, backwards.

    Raises InvalidInput where no time follows.
    """
    from cronsim import CronSim, CronSimError

    text = str(recurrence["cron"])
    cron = _EXPRESSIONS.get(text.strip().lower(), text)
    try:
        if len(cron.split()) != _FIELD_COUNT:
            raise CronSimError("it has five fields, or is one of " + ", ".join(_EXPRESSIONS))
        local_start = start.astimezone(zone(str(recurrence.get("timeZone") or "")))
        for time in CronSim(cron, local_start, reverse):
            yield time.astimezone(UTC)
    except (CronSimError, OverflowError) as error:
        raise InvalidInput(f"the cron expression {cron[:80]!r} can't be read: {error}") from None
    raise InvalidInput(f"the cron expression {cron[:80]!r} matches no time within 50 years")


def _canonical(time: datetime) -> str:
    return timestamps.canonical(time.isoformat())
