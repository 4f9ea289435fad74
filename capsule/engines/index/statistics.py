"""Count conversations, messages, words and tokens in the index, without what is hidden."""

from __future__ import annotations

import sqlite3

from capsule.engines.index.visibility import VisibilityFilter, count_visible
from capsule.engines.queries import LargeConversation, Stats, Tally
from capsule.engines.questions.tallies import (
    DAY_MS,
    DAYS_TO_1970,
    LARGEST,
    largest_first,
    most_frequent_first,
    tally_messages,
)
from capsule.format.documents.head import WRITTEN_HERE


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

    messages = tally_messages(
        db.execute(
            f"SELECT (time_ms + {DAYS_TO_1970 * DAY_MS}) / {DAY_MS} AS day, role, sender, "
            "count(*), sum(words), sum(tokens) FROM messages AS m INDEXED BY messages_narrow "
            f"WHERE {visibility.message_condition} AND m.capsule NOT IN "
            "(SELECT num FROM capsules WHERE gone = 0 AND damaged != '') "
            "GROUP BY day, role, sender ORDER BY day"
        )
    )
    by_source: dict[str, Tally] = {}
    largest = []
    for num, id, title, source in db.execute(
        "SELECT num, id, title, source FROM capsules "
        f"WHERE gone = 0 AND damaged = '' AND {is_partial}"
    ).fetchall():
        total, words, bytes, tokens = count_visible(db, num, visibility.visible_from_ms[num])
        largest.append(LargeConversation(id, title, total, words, bytes))
        by_source.setdefault(source or WRITTEN_HERE, Tally()).add(total, words, tokens)
    bytes_read_in_part = sum(conversation.bytes for conversation in largest)
    from_whole = (
        f"FROM capsules AS c WHERE {exists_condition} AND damaged = '' "
        f"AND ({is_partial}) IS NOT TRUE"
    )
    for source, *counts in db.execute(
        f"SELECT source, sum(entries), sum(words), sum(tokens) {from_whole} GROUP BY source"
    ):
        by_source.setdefault(source or WRITTEN_HERE, Tally()).add(*counts)
    for row in db.execute(
        f"SELECT id, title, entries, words, size {from_whole} "
        f"ORDER BY words DESC, entries DESC, id LIMIT {LARGEST}"
    ):
        largest.append(LargeConversation(*row))

    return Stats(
        conversations=conversations,
        damaged=damaged,
        archived=archived,
        messages=messages.total.messages,
        words=messages.total.words,
        tokens=messages.total.tokens,
        bytes=(size or 0) + bytes_read_in_part,
        by_role=messages.by_role,
        by_month=messages.by_month,
        by_day=messages.by_day,
        by_sender=messages.by_sender,
        by_source=most_frequent_first(by_source),
        largest=largest_first(largest),
    )
