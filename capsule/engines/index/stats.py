"""What is in a store, counted."""

from __future__ import annotations

import sqlite3
from datetime import date

from capsule.engines.answers import Large, Stats, Tally
from capsule.engines.index.hidden import Hidden, seen_of

#: How many of the largest conversations are named.
_LARGEST = 10
#: So that every time of the years 1 to 9999 is counted from a day upwards.
_DAYS_TO_1970 = date(1970, 1, 1).toordinal()
_DAY_MS = 86_400_000


def count(db: sqlite3.Connection, hidden: Hidden) -> Stats:
    """Count what is in the index, without what is hidden."""
    there = f"gone = 0 AND {hidden.of_conversations}"
    in_part = f"num IN ({', '.join(map(str, hidden.partly))})"
    conversations, damaged, archived, size = db.execute(
        f"SELECT count(*), sum(damaged != ''), sum(damaged = '' AND archived), sum(size * (NOT {in_part}))"
        f" FROM capsules AS c WHERE {there}"
    ).fetchone()
    sound = f"{hidden.of_messages} AND m.capsule NOT IN (SELECT num FROM capsules WHERE gone = 0 AND damaged != '')"
    days = db.execute(
        f"SELECT (time_ms + {_DAYS_TO_1970 * _DAY_MS}) / {_DAY_MS} AS day, role, count(*), sum(words)"
        f" FROM messages AS m INDEXED BY messages_narrow WHERE {sound} GROUP BY day, role ORDER BY day"
    )
    by_role: dict[str, Tally] = {}
    by_month: dict[str, Tally] = {}
    for day, role, messages, words in days:
        for where in (by_role.setdefault(role, Tally()), by_month.setdefault(_month(day), Tally())):
            where.messages += messages
            where.words += words
    parts = [
        Large(id, title, *seen_of(db, num, hidden.partly[num]))
        for num, id, title in db.execute(
            f"SELECT num, id, title FROM capsules WHERE gone = 0 AND damaged = '' AND {in_part}"
        )
    ]
    large = db.execute(
        f"SELECT id, title, entries, words, size FROM capsules AS c WHERE {there} AND damaged = '' AND NOT {in_part}"
        f" ORDER BY words DESC, entries DESC, id LIMIT {_LARGEST}"
    )
    largest = sorted([*parts, *(Large(*row) for row in large)], key=lambda each: (-each.words, -each.messages, each.id))
    return Stats(
        conversations,
        damaged or 0,
        archived or 0,
        sum(tally.messages for tally in by_role.values()),
        sum(tally.words for tally in by_role.values()),
        (size or 0) + sum(part.bytes for part in parts),
        dict(sorted(by_role.items(), key=lambda item: (-item[1].messages, item[0]))),
        by_month,
        largest[:_LARGEST],
    )


def _month(day: int) -> str:
    if day == _DAYS_TO_1970:  # As `timestamps.UNKNOWN`.
        return "no time"
    return date.fromordinal(max(1, min(day, date.max.toordinal()))).isoformat()[:7]
