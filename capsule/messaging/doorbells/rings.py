"""When a bell is rung again: pure.

What must stay true: at most one ring is outstanding; it is repeated after 1, 5 and 30 minutes, then never, until the
agent has read something. The module knows times only.
"""

from __future__ import annotations

from collections.abc import Sequence

from capsule import timestamps

#: Seconds from the first ring to the second, from the second to the third, and from the third to the last.
GAPS_S = (60.0, 300.0, 1800.0)


def outstanding(rung: Sequence[str], unread_since: str) -> list[str]:
    """The rings that nothing was read after.

    Args:
        rung: The times of the rings, the oldest first.
        unread_since: When the agent read something for the last time; empty: never.
    """
    return [time for time in rung if time > unread_since]


def due(rung: Sequence[str], unread_since: str, now: str) -> bool:
    """Whether to ring now, given that something is unread.

    Args:
        rung, unread_since: As `outstanding` takes them.
        now: The present time.
    """
    rings = outstanding(rung, unread_since)
    if not rings:
        return True
    return len(rings) <= len(GAPS_S) and timestamps.seconds_between(rings[-1], now) >= GAPS_S[len(rings) - 1]
