"""Count what is in a store, without what is hidden from the asker."""

from __future__ import annotations

import sqlite3
from datetime import date
from typing import TYPE_CHECKING

from capsule.engines.index.visibility import VisibilityFilter, seen_of
from capsule.engines.queries import LargeConversation, Stats, Tally
from capsule.format.documents.head import WRITTEN_HERE

if TYPE_CHECKING:
    import sqlite3

    from capsule.engines.queries import (
        Stats,
    )


#: How many of the largest conversations are named.
_LARGEST = 10


#: So that every time of the years 1 to 9999 is counted from a day upwards.
_DAYS_TO_1970 = date(1970, 1, 1).toordinal()


_DAY_MS = 86_400_000


_NO_TIME = "no time"


def count(db: sqlite3.Connection, hidden: VisibilityFilter) -> Stats:
    """Count what is in the index, without what is hidden."""
    there = f"gone = 0 AND {hidden.of_conversations}"
    in_part = f"num IN ({', '.join(map(str, hidden.partly)) or 'NULL'})"
    conversations, damaged, archived, size = db.execute(
        "SELECT count(*), count(*) FILTER (WHERE damaged != ''), count(*) FILTER (WHERE damaged = "
        "'' AND archived = 1),"
        f" sum(CASE WHEN {in_part} THEN 0 ELSE size END) FROM capsules AS c WHERE {there}"
    ).fetchone()
    sound = (
        f"{hidden.of_messages} AND m.capsule NOT IN (SELECT num FROM capsules WHERE gone = 0 "
        "AND damaged != '')"
    )
    days = db.execute(
        f"SELECT (time_ms + {_DAYS_TO_1970 * _DAY_MS}) / {_DAY_MS} AS day, role, sender,"
        " count(*), sum(words), sum(tokens) FROM messages AS m INDEXED BY messages_narrow WHERE "
        f"{sound}"
        " GROUP BY day, role, sender ORDER BY day"
    )
    everything, by_role, by_month, by_day, by_sender, by_source = (
        Tally(),
        *(dict[str, Tally]() for _ in range(5)),
    )
    for number, role, sender, *counts in days:
        day = _day(number)
        month = day if day == _NO_TIME else day[:7]
        tallies = [
            (by_role, role),
            (by_month, month),
            (by_day, day),
            *([(by_sender, sender)] if sender else []),
        ]
        for tally in (everything, *(where.setdefault(name, Tally()) for where, name in tallies)):
            tally.add(*counts)
    parts = []
    for num, id, title, source in db.execute(
        f"SELECT num, id, title, source FROM capsules WHERE gone = 0 AND damaged = '' AND {in_part}"
    ).fetchall():
        messages, words, bytes, tokens = seen_of(db, num, hidden.partly[num])
        parts.append(LargeConversation(id, title, messages, words, bytes))
        by_source.setdefault(source or WRITTEN_HERE, Tally()).add(messages, words, tokens)
    whole = f"FROM capsules AS c WHERE {there} AND damaged = '' AND ({in_part}) IS NOT TRUE"
    for source, *counts in db.execute(
        f"SELECT source, sum(entries), sum(words), sum(tokens) {whole} GROUP BY source"
    ):
        by_source.setdefault(source or WRITTEN_HERE, Tally()).add(*counts)
    large = db.execute(
        f"SELECT id, title, entries, words, size {whole} ORDER BY words DESC, entries DESC, id "
        f"LIMIT {_LARGEST}"
    )
    largest = sorted(
        [*parts, *(LargeConversation(*row) for row in large)],
        key=lambda each: (-each.words, -each.messages, each.id),
    )
    return Stats(
        conversations,
        damaged,
        archived,
        everything.messages,
        everything.words,
        everything.tokens,
        (size or 0) + sum(part.bytes for part in parts),
        _ranked(by_role),
        by_month,
        by_day,
        _ranked(by_sender),
        _ranked(by_source),
        largest[:_LARGEST],
    )


def _ranked(tallies: dict[str, Tally]) -> dict[str, Tally]:
    return dict(sorted(tallies.items(), key=lambda item: (-item[1].messages, item[0])))


def _day(number: int) -> str:
    if number == _DAYS_TO_1970:  # As `timestamps.UNKNOWN`.
        return _NO_TIME
    return date.fromordinal(max(1, min(number, date.max.toordinal()))).isoformat()
