"""Sum up counts of messages for the statistics of a store."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any, NamedTuple

from capsule.engines.queries import LargeConversation, Tally

#: The number of largest conversations that are named.
LARGEST = 10
DAY_MS = 86_400_000
#: Days from the first day of year 1 to 1970. Added, every time is a positive number of days.
DAYS_TO_1970 = date(1970, 1, 1).toordinal()
_NO_TIME = "no time"


class MessageTallies(NamedTuple):
    """The counts of all messages, and by role, by month, by day and by sender."""

    total: Tally
    by_role: dict[str, Tally]
    by_month: dict[str, Tally]
    by_day: dict[str, Tally]
    by_sender: dict[str, Tally]


def tally_messages(rows: Iterable[tuple[Any, ...]]) -> MessageTallies:
    """Sum up counts of messages.

    Args:
        rows: Sorted by day: the number of the day (from the first one of year 1 on), the role, the
            sender, and the numbers of messages, words and tokens.
    """
    tallies = MessageTallies(Tally(), {}, {}, {}, {})
    for day_number, role, sender, *counts in rows:
        day = _day(day_number)
        month = day if day == _NO_TIME else day[:7]
        tallies.total.add(*counts)
        tallies.by_role.setdefault(role, Tally()).add(*counts)
        tallies.by_month.setdefault(month, Tally()).add(*counts)
        tallies.by_day.setdefault(day, Tally()).add(*counts)
        if sender:
            tallies.by_sender.setdefault(sender, Tally()).add(*counts)
    return tallies._replace(
        by_role=most_frequent_first(tallies.by_role),
        by_sender=most_frequent_first(tallies.by_sender),
    )


def most_frequent_first(tallies: dict[str, Tally]) -> dict[str, Tally]:
    """Sort tallies, the one with the most messages first."""
    return dict(sorted(tallies.items(), key=lambda item: (-item[1].messages, item[0])))


def largest_first(conversations: Iterable[LargeConversation]) -> list[LargeConversation]:
    """Return the conversations with the most words, the largest first."""
    ordered = sorted(conversations, key=lambda item: (-item.words, -item.messages, item.id))
    return ordered[:LARGEST]


def _day(day_number: int) -> str:
    """Return a day as `2025-01-31`, and `timestamps.UNKNOWN` as `_NO_TIME`."""
    if day_number == DAYS_TO_1970:
        return _NO_TIME
    return date.fromordinal(max(1, min(day_number, date.max.toordinal()))).isoformat()
