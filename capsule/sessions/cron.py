"""Cron: when something recurs, in the time zone of the user.

What must stay true: it is read as Debian's cron reads it where clocks change: what falls into a gap
comes once, right after it, and what falls into an hour that comes twice comes once. No file, no
clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from capsule import timestamps
from capsule.errors import InvalidInput

#: The short words of cron.
_WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
}
_WORDS |= {"@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *"}


def zone(name: str) -> tzinfo:
    """A time zone by its name, as `Europe/Berlin`; empty: UTC. Raises InvalidInput: this machine
    knows none such.
    """
    from zoneinfo import (
        ZoneInfo,
        ZoneInfoNotFoundError,
    )  # A worker that starts loads no time zones.

    try:
        return ZoneInfo(name) if name not in ("", "UTC") else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(
            f"{name[:80]!r} is not a time zone; it has a name like Europe/Berlin"
        ) from None


def next_at(recurrence: Mapping[str, Any], after: str) -> str:
    """The first time after `after` at which something recurs. Raises InvalidInput: cron can't be
    read, or never fits.

    Args:
        recurrence: `cron`, five fields or a word as `@daily`, and `timeZone`.
        after: A time.
    """
    start = timestamps.parse(after)
    return _written(at for at in _times(recurrence, start) if at > start)


def last_at(recurrence: Mapping[str, Any], until: str) -> str:
    """The last time until `until` at which something recurs. As `next_at`."""
    end = timestamps.parse(until)
    return _written(
        at for at in _times(recurrence, end + timedelta(seconds=1), reverse=True) if at <= end
    )


def _times(
    recurrence: Mapping[str, Any], start: datetime, *, reverse: bool = False
) -> Iterator[datetime]:
    from cronsim import CronSim, CronSimError

    said = str(recurrence["cron"])
    cron = _WORDS.get(said.strip().lower(), said)
    try:
        if len(cron.split()) != 5:
            raise CronSimError("it has five fields, or is one of " + ", ".join(_WORDS))
        for at in CronSim(
            cron, start.astimezone(zone(str(recurrence.get("timeZone") or ""))), reverse
        ):
            yield at.astimezone(UTC)
    except (CronSimError, OverflowError) as error:
        raise InvalidInput(f"the cron expression {cron[:80]!r} can't be read: {error}") from None
    raise InvalidInput(f"the cron expression {cron[:80]!r} matches no time within 50 years")


def _written(times: Iterator[datetime]) -> str:
    return timestamps.canonical(next(times).isoformat())
