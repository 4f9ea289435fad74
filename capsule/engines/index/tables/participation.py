"""Who takes part in which conversation, and what was said there from a place on.

What must stay true: these are answers about rows, within the caller's transaction; what an agent
has read is not known here. Places count from 0, on all branches.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from capsule import timestamps
from capsule.engines.index.heads import HEAD_FIELDS
from capsule.engines.index.visibility import SEES_ALL, VisibilityFilter
from capsule.engines.read_marks import (
    LastMessage,
    MessagePosition,
    Participation,
    ReadMark,
    UnreadFilter,
    UnreadSummary,
    first_unread,
)
from capsule.format.documents.channels import Channel
from capsule.format.documents.members import members_in
from capsule.format.facts import IN_LIST, TEXT

#: The digest of the ids up to a message, as marks have it.
_FRONT = "sha256:%014x"
_LAST = "(SELECT front FROM messages WHERE capsule = capsules.num ORDER BY at DESC LIMIT 1)"
#: The signature of the file; NULL where the file may have changed and have the same one.
_VERSION = (
    "CASE WHEN racy = 0 THEN version || ' ' || size || ' ' || written || ' ' || changed_ns END"
)
_MINE = f"""SELECT id, {_VERSION} FROM capsules
    WHERE num IN (SELECT capsule FROM members WHERE agent = ?) AND damaged = ''
    ORDER BY updated_ms DESC, written DESC, id DESC"""
_ROW = f"""SELECT id, head, title, entries, archived, updated_at, tag, {_VERSION}, {_LAST} FROM capsules
    WHERE id IN (SELECT value FROM json_each(?))"""
_TYPE, _MEMBERS, _HISTORY, _MAKER, _CHANNEL = map(
    HEAD_FIELDS.index, ("type", "participants", "history", "created_by", "channel")
)
_NUM = "(SELECT num FROM capsules WHERE id = ?)"
_MENTIONED = (
    "m.num IN (SELECT message FROM facts WHERE path = 'mentions' AND type = "
    f"{TEXT + IN_LIST} AND value IN (?, '@all'))"
)
_IN_PART = (
    f"(m.id = ? OR m.num IN (SELECT message FROM facts WHERE path = ? AND type = {TEXT} "
    "AND value = ?))"
)


def participations(
    db: sqlite3.Connection, agent: str, known: Mapping[str, Participation]
) -> list[Participation]:
    """The conversations that an agent takes part in, the latest first; nothing is read of those
    that are as `blank_if_unknown`.
    """
    versions = db.execute(_MINE, (agent,)).fetchall()
    same = {
        id: was
        for id, version in versions
        if version and (was := known.get(id)) and was.version == version
    }
    others = orjson.dumps([id for id, _ in versions if id not in same]).decode()
    same |= {row[0]: _mine(*row) for row in db.execute(_ROW, (others,))}
    return [same[id] for id, _ in versions]


def _mine(
    id: str,
    head: str,
    title: str,
    entries: int,
    archived: int,
    updated_at: str,
    tag: str,
    version: str | None,
    last: int | None,
) -> Participation:
    of = orjson.loads(head)
    whose = (
        members_in(of[_MEMBERS]),
        of[_HISTORY],
        of[_CHANNEL] and Channel(**of[_CHANNEL]),
        of[_MAKER],
    )
    return Participation(
        id,
        of[_TYPE],
        title,
        entries,
        bool(archived),
        updated_at,
        *whose,
        "" if last is None else _FRONT % last,
        tag,
        version or "",
    )


def ids_at(
    db: sqlite3.Connection, conversation: str, places: Iterable[int], hidden: VisibilityFilter
) -> dict[int, tuple[str, str]]:
    """By place: the id of the message there, and the digest of the ids up to it; hidden ones are
    left out.
    """
    wanted = ", ".join(map(str, map(int, places))) or "NULL"
    question = (
        f"SELECT at, id, front FROM messages AS m WHERE capsule = {_NUM} AND at IN "
        f"({wanted}) AND {hidden.of_messages}"
    )
    return {at: (id, _FRONT % front) for at, id, front in db.execute(question, (conversation,))}


def _first_behind(
    db: sqlite3.Connection, conversation: str | None, read: Sequence[ReadMark]
) -> int:
    """The place behind what was read, of one conversation. Of all conversations (None) nothing was
    read.
    """
    if conversation is None or not read:
        return 0
    return first_unread(read, ids_at(db, conversation, [at for at, _ in read], SEES_ALL))


def find(
    db: sqlite3.Connection, message: str, conversation: str | None, hidden: VisibilityFilter
) -> tuple[str, int] | None:
    """The conversation and the place of a message, looked for in one conversation or in all; None:
    it is not there.
    """
    # The newest have the highest numbers; an index of all ids would be a third of the texts.
    where, order, bound = (
        ("", "num", ())
        if conversation is None
        else (f"capsule = {_NUM} AND", "at", (conversation,))
    )
    where = f"{where} {hidden.of_messages}"
    question = (
        f"SELECT capsule, at FROM messages AS m WHERE id = ? AND {where} ORDER BY {order} "
        "DESC LIMIT 1"
    )
    row = db.execute(question, (message, *bound)).fetchone()
    if row is None:
        return None
    id: str = db.execute("SELECT id FROM capsules WHERE num = ?", row[:1]).fetchone()[0]
    return id, row[1]


def _condition(
    db: sqlite3.Connection, wanted: UnreadFilter, conversation: str | None, hidden: VisibilityFilter
) -> tuple[str, list[Any]]:
    """What is wanted and not hidden, as a condition about the row `m` of `messages`, and the values
    bound in it.
    """
    conditions = [
        (
            "m.at >= ? AND m.time_ms >= ? AND coalesce(m.sender, '') NOT IN (SELECT value FROM "
            "json_each(?))"
        )
    ]
    first = _first_behind(db, conversation, wanted.read)
    values: list[Any] = [first, wanted.since_ms, orjson.dumps(wanted.not_by).decode()]
    if wanted.mentioning:
        conditions.append(_MENTIONED)
        values.append(wanted.mentioning)
    if wanted.part is not None:
        conditions.append(_IN_PART)
        values += [wanted.part[1], *wanted.part]
    for part, read in wanted.covered:
        conditions.append(f"NOT (m.at < ? AND {_IN_PART})")
        values += [_first_behind(db, conversation, read), part[1], *part]
    return " AND ".join([*conditions, hidden.of_messages]), values


def summarize_unread(
    db: sqlite3.Connection, conversation: str, wanted: UnreadFilter, hidden: VisibilityFilter
) -> UnreadSummary:
    """How many messages of a conversation are wanted, who wrote them, and the last of them."""
    condition, values = _condition(db, wanted, conversation, hidden)
    rows = db.execute(
        "SELECT m.sender, count(*), min(m.at), max(m.at) FROM messages AS m INDEXED BY "
        "messages_in_order"
        f" WHERE m.capsule = {_NUM} AND {condition} GROUP BY m.sender ORDER BY 3",
        (conversation, *values),
    ).fetchall()
    if not rows:
        return UnreadSummary(0)
    at = max(last for *_, last in rows)
    question = (
        "SELECT at, id, coalesce(sender, ''), content, time_ms FROM texts WHERE capsule = "
        f"{_NUM} AND at = ?"
    )
    place, id, sender, content, time_ms = db.execute(question, (conversation, at)).fetchone()
    last = LastMessage(
        place, id, sender, content, timestamps.blank_if_unknown(timestamps.from_ms(time_ms))
    )
    return UnreadSummary(
        sum(total for _, total, *_ in rows), tuple(sender or "" for sender, *_ in rows), last
    )


def unread_positions(
    db: sqlite3.Connection, wanted: UnreadFilter, conversation: str | None, hidden: VisibilityFilter
) -> list[MessagePosition]:
    """The places of the wanted messages, of one conversation or of all (None), the latest first."""
    condition, values = _condition(db, wanted, conversation, hidden)
    where, bound = ("", ()) if conversation is None else ("c.id = ? AND ", (conversation,))
    question = (
        "SELECT c.id, m.at, m.id, m.front FROM messages AS m JOIN capsules AS c ON c.num = "
        "m.capsule"
        f" WHERE {where}c.gone = 0 AND {condition} ORDER BY m.time_ms DESC, m.num DESC"
    )
    places = []
    for id, at, message, front in db.execute(question, (*bound, *values)):
        places.append(MessagePosition(id, at, message, _FRONT % front))
    return places
