"""Query the index for the conversations of an agent, and for messages after its read marks.

What must stay true: the functions read rows within the caller's transaction. The caller knows what
an agent has read. Positions count from 0, on all branches.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from capsule import timestamps
from capsule.engines.index.visibility import SEES_ALL, VisibilityFilter
from capsule.engines.questions.participations import IDS_DIGEST, participation_of
from capsule.engines.read_marks import (
    LastMessage,
    MessagePosition,
    Participation,
    ReadMark,
    UnreadFilter,
    UnreadSummary,
    first_unread,
)
from capsule.format.facts import IN_LIST, TEXT

_LAST_IDS_DIGEST = (
    "(SELECT front FROM messages WHERE capsule = capsules.num ORDER BY at DESC LIMIT 1)"
)
#: The version of the row. NULL if the file may have changed without another version.
_VERSION = (
    "CASE WHEN racy = 0 THEN version || ' ' || size || ' ' || written || ' ' || changed_ns END"
)
_SELECT_VERSIONS = f"""SELECT id, {_VERSION} FROM capsules
    WHERE num IN (SELECT capsule FROM members WHERE agent = ?) AND damaged = ''
    ORDER BY updated_ms DESC, written DESC, id DESC"""
_SELECT_ROWS = f"""SELECT id, head, title, entries, archived, updated_at, tag, {_VERSION},
    {_LAST_IDS_DIGEST} FROM capsules WHERE id IN (SELECT value FROM json_each(?))"""
_CONVERSATION_NUM = "(SELECT num FROM capsules WHERE id = ?)"
_IS_MENTIONED = (
    "m.num IN (SELECT message FROM facts WHERE path = 'mentions' AND type = "
    f"{TEXT + IN_LIST} AND value IN (?, '@all'))"
)
#: Whether a message has a value at a path, or this id.
_IS_IN_PART = (
    f"(m.id = ? OR m.num IN (SELECT message FROM facts WHERE path = ? AND type = {TEXT} "
    "AND value = ?))"
)


def participations(
    db: sqlite3.Connection, agent: str, cached: Mapping[str, Participation]
) -> list[Participation]:
    """Return the conversations that an agent takes part in, the latest first.

    Args:
        db: The index, within a transaction.
        agent: The agent.
        cached: Earlier results, by id. Those whose version is the same are returned again, and
            only the others are read.
    """
    versions = db.execute(_SELECT_VERSIONS, (agent,)).fetchall()
    by_id: dict[str, Participation] = {}
    for id, version in versions:
        earlier = cached.get(id)
        if version and earlier and earlier.version == version:
            by_id[id] = earlier
    changed_ids = orjson.dumps([id for id, _ in versions if id not in by_id]).decode()
    for row in db.execute(_SELECT_ROWS, (changed_ids,)):
        by_id[row[0]] = participation_of(*row)
    return [by_id[id] for id, _ in versions]


def ids_at(
    db: sqlite3.Connection,
    conversation: str,
    positions: Iterable[int],
    visibility: VisibilityFilter,
) -> dict[int, tuple[str, str]]:
    """Return, by position, the id of a message and the digest of all ids up to it.

    Hidden messages are left out.
    """
    listed = ", ".join(map(str, map(int, positions))) or "NULL"
    rows = db.execute(
        f"SELECT at, id, front FROM messages AS m WHERE capsule = {_CONVERSATION_NUM} "
        f"AND at IN ({listed}) AND {visibility.message_condition}",
        (conversation,),
    )
    return {position: (id, IDS_DIGEST % ids_digest) for position, id, ids_digest in rows}


def _first_unread(
    db: sqlite3.Connection, conversation: str | None, marks: Sequence[ReadMark]
) -> int:
    """Return the position after the furthest valid read mark of a conversation.

    Of all conversations (None) it is 0.
    """
    if conversation is None or not marks:
        return 0
    positions = [position for position, _ in marks]
    return first_unread(marks, ids_at(db, conversation, positions, SEES_ALL))


def find(
    db: sqlite3.Connection, message: str, conversation: str | None, visibility: VisibilityFilter
) -> tuple[str, int] | None:
    """Return the conversation and the position of a message. None: it is not found.

    Searches one conversation, or all (None), from the end: the index has no index of ids, which
    would take a third of the size of the texts.
    """
    visible = visibility.message_condition
    if conversation is None:
        row = db.execute(
            "SELECT capsule, at FROM messages AS m "
            f"WHERE id = ? AND {visible} ORDER BY num DESC LIMIT 1",
            (message,),
        ).fetchone()
    else:
        row = db.execute(
            "SELECT capsule, at FROM messages AS m "
            f"WHERE id = ? AND capsule = {_CONVERSATION_NUM} AND {visible} "
            "ORDER BY at DESC LIMIT 1",
            (message, conversation),
        ).fetchone()
    if row is None:
        return None
    conversation_num, position = row
    id: str = db.execute("SELECT id FROM capsules WHERE num = ?", (conversation_num,)).fetchone()[0]
    return id, position


def _condition(
    db: sqlite3.Connection,
    unread_filter: UnreadFilter,
    conversation: str | None,
    visibility: VisibilityFilter,
) -> tuple[str, list[Any]]:
    """Return the condition that an unread row `m` of `messages` meets, and the values bound in it.

    Hidden messages do not meet it.
    """
    conditions = [
        "m.at >= ?",
        "m.time_ms >= ?",
        "coalesce(m.sender, '') NOT IN (SELECT value FROM json_each(?))",
    ]
    values: list[Any] = [
        _first_unread(db, conversation, unread_filter.read_marks),
        unread_filter.since_ms,
        orjson.dumps(unread_filter.excluded_senders).decode(),
    ]
    if unread_filter.mentioning:
        conditions.append(_IS_MENTIONED)
        values.append(unread_filter.mentioning)
    if unread_filter.part is not None:
        path, value = unread_filter.part
        conditions.append(_IS_IN_PART)
        values += [value, path, value]
    for (path, value), marks in unread_filter.read_parts:
        conditions.append(f"NOT (m.at < ? AND {_IS_IN_PART})")
        values += [_first_unread(db, conversation, marks), value, path, value]
    conditions.append(visibility.message_condition)
    return " AND ".join(conditions), values


def summarize_unread(
    db: sqlite3.Connection,
    conversation: str,
    unread_filter: UnreadFilter,
    visibility: VisibilityFilter,
) -> UnreadSummary:
    """Return the number of the unread messages of a conversation, their senders, and the last."""
    condition, values = _condition(db, unread_filter, conversation, visibility)
    rows = db.execute(
        "SELECT m.sender, count(*), min(m.at), max(m.at) FROM messages AS m INDEXED BY "
        f"messages_in_order WHERE m.capsule = {_CONVERSATION_NUM} AND {condition} "
        "GROUP BY m.sender ORDER BY 3",
        (conversation, *values),
    ).fetchall()
    if not rows:
        return UnreadSummary(0)
    last_position = max(last for *_, last in rows)
    position, id, sender, content, time_ms = db.execute(
        "SELECT at, id, coalesce(sender, ''), content, time_ms FROM messages "
        f"WHERE capsule = {_CONVERSATION_NUM} AND at = ?",
        (conversation, last_position),
    ).fetchone()
    time = timestamps.blank_if_unknown(timestamps.from_ms(time_ms))
    total = sum(count for _, count, *_ in rows)
    senders = tuple(row_sender or "" for row_sender, *_ in rows)
    return UnreadSummary(total, senders, LastMessage(position, id, sender, content, time))


def unread_positions(
    db: sqlite3.Connection,
    unread_filter: UnreadFilter,
    conversation: str | None,
    visibility: VisibilityFilter,
) -> list[MessagePosition]:
    """Return the unread messages of one conversation or of all (None), the latest first."""
    condition, values = _condition(db, unread_filter, conversation, visibility)
    if conversation is not None:
        condition = f"c.id = ? AND c.gone = 0 AND {condition}"
        values.insert(0, conversation)
    else:
        condition = f"c.gone = 0 AND {condition}"
    rows = db.execute(
        "SELECT c.id, m.at, m.id, m.front FROM messages AS m JOIN capsules AS c "
        f"ON c.num = m.capsule WHERE {condition} ORDER BY m.time_ms DESC, m.num DESC",
        tuple(values),
    )
    positions = []
    for id, position, message, ids_digest in rows:
        positions.append(MessagePosition(id, position, message, IDS_DIGEST % ids_digest))
    return positions
