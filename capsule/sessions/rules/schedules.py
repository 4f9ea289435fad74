"""Schedules: when a task comes next.

What must stay true: cron is read in the time zone of the user, as Debian's cron reads it where the clock changes: what
falls into a gap runs once, right after it; what falls into an hour that comes twice runs once. What can't be read is
refused when it is written.
"""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from capsule.errors import InvalidInput


def zone(name: str) -> ZoneInfo:
    """A time zone by its name, as `Europe/Berlin`; empty: UTC. Raises InvalidInput."""
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(f"{name[:80]!r} is no time zone; it has a name like Europe/Berlin") from None
