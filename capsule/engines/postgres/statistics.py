"""Count conversations, messages, words and tokens in the database, without what is hidden."""

from __future__ import annotations

from typing import Any

from capsule.engines.interface import CONVERSATIONS
from capsule.engines.postgres.tables import IndexTables
from capsule.engines.postgres.visibility import Visibility
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

_COUNT_MESSAGES = f"""SELECT (m.time_ms + {DAYS_TO_1970 * DAY_MS}) / {DAY_MS}, m.role, m.sender,
    count(*), sum(m.words)::bigint, sum(m.tokens)::bigint FROM messages AS m WHERE {{}}
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""
#: The conversations that an agent reads in part: what it reads of each.
_COUNT_PARTS = f"""SELECT c.id, c.title, c.source, count(m.num), coalesce(sum(m.words), 0)::bigint,
    coalesce(sum(octet_length(content(e.body))), 0)::bigint, coalesce(sum(m.tokens), 0)::bigint
    FROM capsules AS c LEFT JOIN messages AS m ON m.capsule = c.num AND {{}}
    LEFT JOIN documents AS d ON d.kind = '{CONVERSATIONS}' AND d.id = c.id
    LEFT JOIN entries AS e ON e.doc = d.num AND e.place = m.at
    WHERE c.num = ANY(%(partial)s::bigint[]) AND c.gone = 0 AND c.damaged = '' GROUP BY c.num"""


def count(tables: IndexTables, visibility: Visibility) -> Stats:
    """Count what an asker may read.

    Conversations that the asker reads in part are counted message by message, the others by the
    sums in their rows. Cost: a pass over the messages.
    """
    values: dict[str, Any] = visibility.values | {"partial": list(visibility.visible_from_ms)}
    exists = f"gone = 0 AND {visibility.conversation_condition}"
    is_partial = "c.num = ANY(%(partial)s::bigint[])"
    ((conversations, damaged, archived, size),) = tables.query_once(
        "SELECT count(*), count(*) FILTER (WHERE damaged <> ''), "
        "count(*) FILTER (WHERE damaged = '' AND archived = 1), "
        f"coalesce(sum(CASE WHEN {is_partial} THEN 0 ELSE size END), 0)::bigint "
        f"FROM capsules AS c WHERE {exists}",
        values,
    )
    messages = tally_messages(
        tables.query_once(_COUNT_MESSAGES.format(visibility.message_condition), values)
    )
    by_source: dict[str, Tally] = {}
    largest = []
    if visibility.visible_from_ms:
        parts = tables.query_once(_COUNT_PARTS.format(visibility.message_condition), values)
        for id, title, source, total, words, bytes, tokens in parts:
            largest.append(LargeConversation(id, title, total, words, bytes))
            by_source.setdefault(source or WRITTEN_HERE, Tally()).add(total, words, tokens)
    bytes_read_in_part = sum(conversation.bytes for conversation in largest)
    from_whole = f"FROM capsules AS c WHERE {exists} AND damaged = '' AND NOT {is_partial}"
    for source, *counts in tables.query_once(
        "SELECT source, sum(entries)::bigint, sum(words)::bigint, sum(tokens)::bigint "
        f"{from_whole} GROUP BY source",
        values,
    ):
        by_source.setdefault(source or WRITTEN_HERE, Tally()).add(*counts)
    for row in tables.query_once(
        f"SELECT id, title, entries, words, size {from_whole} "
        f"ORDER BY words DESC, entries DESC, id LIMIT {LARGEST}",
        values,
    ):
        largest.append(LargeConversation(*row))
    return Stats(
        conversations=conversations,
        damaged=damaged,
        archived=archived,
        messages=messages.total.messages,
        words=messages.total.words,
        tokens=messages.total.tokens,
        bytes=size + bytes_read_in_part,
        by_role=messages.by_role,
        by_month=messages.by_month,
        by_day=messages.by_day,
        by_sender=messages.by_sender,
        by_source=most_frequent_first(by_source),
        largest=largest_first(largest),
    )
