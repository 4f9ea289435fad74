"""Count conversations, messages, words and tokens in the index, without what is hidden."""

from __future__ import annotations

import sqlite3
from datetime import date

from capsule.engines.index.visibility import VisibilityFilter, count_visible
from capsule.engines.queries import LargeConversation, Stats, Tally
from capsule.format.documents.head import WRITTEN_HERE

#: The number of largest conversations that are named.
_LARGEST = 10
#: Days from the first day of year 1 to 1970. Added, every time is a positive number of days.
_DAYS_TO_1970 = date(1970, 1, 1).toordinal()
_DAY_MS = 86_400_000
_NO_TIME = "no time"


def count(db: sqlite3.Connection, visibility: VisibilityFilter) -> Stats:
    """Count what a visibility filter lets through.

    Conversations that the asker reads in part are counted message by message, the others by the
    sums in their rows. Cost: a pass over the messages.
    """
    partial_nums = ", ".join(map(str, visibility.visible_from_ms)) or "NULL"
    is_partial = f"num IN ({partial_nums})"
    exists_condition = f"gone = 0 AND {visibility.conversation_condition}"
    conversations, damaged, archived, size = db.execute(
        "SELECT count(*), count(*) FILTER (WHERE damaged != ''), "
        "count(*) FILTER (WHERE damaged = '' AND archived = 1), "
        f"sum(CASE WHEN {is_partial} THEN 0 ELSE size END) "
        f"FROM capsules AS c WHERE {exists_condition}"
    ).fetchone()

    total = Tally()
    by_role: dict[str, Tally] = {}
    by_month: dict[str, Tally] = {}
    by_day: dict[str, Tally] = {}
    by_sender: dict[str, Tally] = {}
    rows = db.execute(
        f"SELECT (time_ms + {_DAYS_TO_1970 * _DAY_MS}) / {_DAY_MS} AS day, role, sender, "
        "count(*), sum(words), sum(tokens) FROM messages AS m INDEXED BY messages_narrow "
        f"WHERE {visibility.message_condition} AND m.capsule NOT IN "
        "(SELECT num FROM capsules WHERE gone = 0 AND damaged != '') "
        "GROUP BY day, role, sender ORDER BY day"
    )
    for day_number, role, sender, *counts in rows:
        day = _day(day_number)
        month = day if day == _NO_TIME else day[:7]
        total.add(*counts)
        by_role.setdefault(role, Tally()).add(*counts)
        by_month.setdefault(month, Tally()).add(*counts)
        by_day.setdefault(day, Tally()).add(*counts)
        if sender:
            by_sender.setdefault(sender, Tally()).add(*counts)

    by_source: dict[str, Tally] = {}
    partly_read = []
    for num, id, title, source in db.execute(
        "SELECT num, id, title, source FROM capsules "
        f"WHERE gone = 0 AND damaged = '' AND {is_partial}"
    ).fetchall():
        messages, words, bytes, tokens = count_visible(db, num, visibility.visible_from_ms[num])
        partly_read.append(LargeConversation(id, title, messages, words, bytes))
        by_source.setdefault(source or WRITTEN_HERE, Tally()).add(messages, words, tokens)
    from_whole = (
        f"FROM capsules AS c WHERE {exists_condition} AND damaged = '' "
        f"AND ({is_partial}) IS NOT TRUE"
    )
    for source, *counts in db.execute(
        f"SELECT source, sum(entries), sum(words), sum(tokens) {from_whole} GROUP BY source"
    ):
        by_source.setdefault(source or WRITTEN_HERE, Tally()).add(*counts)
    largest = partly_read.copy()
    for row in db.execute(
        f"SELECT id, title, entries, words, size {from_whole} "
        f"ORDER BY words DESC, entries DESC, id LIMIT {_LARGEST}"
    ):
        largest.append(LargeConversation(*row))
    largest.sort(key=lambda item: (-item.words, -item.messages, item.id))

    return Stats(
        conversations=conversations,
        damaged=damaged,
        archived=archived,
        messages=total.messages,
        words=total.words,
        tokens=total.tokens,
        bytes=(size or 0) + sum(conversation.bytes for conversation in partly_read),
        by_role=_ranked(by_role),
        by_month=by_month,
        by_day=by_day,
        by_sender=_ranked(by_sender),
        by_source=_ranked(by_source),
        largest=largest[:_LARGEST],
    )


def _ranked(tallies: dict[str, Tally]) -> dict[str, Tally]:
    """Sort tallies, the one with the most messages first."""
    return dict(sorted(tallies.items(), key=lambda item: (-item[1].messages, item[0])))


def _day(day_number: int) -> str:
    """Return a day as `2025-01-31`, and `timestamps.UNKNOWN` as `_NO_TIME`."""
    if day_number == _DAYS_TO_1970:
        return _NO_TIME
    return date.fromordinal(max(1, min(day_number, date.max.toordinal()))).isoformat()
