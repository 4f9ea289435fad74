"""Who takes part in which conversation, and what was said there from a place on.

What must stay true: these are answers about rows, within the caller's transaction; what an agent has read is not known
here. Places count from 0, on all branches.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from capsule import timestamps
from capsule.engines.answers import Behind, Last, Mark, Mine, Place, Said, first_unread
from capsule.engines.index.heads import HEAD_FIELDS
from capsule.engines.index.hidden import NOTHING, Hidden
from capsule.format.documents.channels import Channel
from capsule.format.documents.members import members_in
from capsule.format.facts import IN_LIST, TEXT

_LAST = "(SELECT front FROM messages WHERE capsule = capsules.num ORDER BY at DESC LIMIT 1)"
_MINE = f"SELECT id, updated_ms, written, head, title, entries, archived, updated_at, {_LAST} FROM capsules"
_TYPE, _MEMBERS, _HISTORY, _MAKER, _CHANNEL = map(
    HEAD_FIELDS.index, ("type", "participants", "history", "created_by", "channel")
)
_NUM = "(SELECT num FROM capsules WHERE id = ?)"
_MENTIONED = (
    f"m.num IN (SELECT message FROM facts WHERE path = 'mentions' AND type = {TEXT + IN_LIST} AND value IN (?, '@all'))"
)
_IN_PART = f"(m.id = ? OR m.num IN (SELECT message FROM facts WHERE path = ? AND type = {TEXT} AND value = ?))"


#: What conversations are sorted by, the latest last, and the conversation. No two have the same id.
_Entry = tuple[int, int, str, Mine]


@dataclass(slots=True)
class Participations:
    """The conversations of the agents that were asked about, as far as they are up to date.

    Attributes:
        stale: The conversations that changed since.
    """

    stale: set[str] = field(default_factory=set)
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _of: dict[str, dict[str, _Entry]] = field(default_factory=dict)

    def of_agent(self, db: sqlite3.Connection, agent: str) -> list[Mine]:
        self._refresh(db)
        mine = self._of.get(agent)
        if mine is None:
            question = f"{_MINE} WHERE num IN (SELECT capsule FROM members WHERE agent = ?) AND damaged = ''"
            entries = [self._entries.get(row[0]) or self._entry(row) for row in db.execute(question, (agent,))]
            mine = self._of[agent] = {entry[2]: entry for entry in sorted(entries)}  # So that it needs little later.
        return [entry[-1] for entry in sorted(mine.values(), reverse=True)]

    def _refresh(self, db: sqlite3.Connection) -> None:
        for id in self.stale if self._of else ():
            was = self._entries.pop(id, None)
            for member in was[-1].participants if was is not None else ():
                self._of.get(member.id, {}).pop(id, None)
            for row in db.execute(f"{_MINE} WHERE id = ? AND gone = 0 AND damaged = ''", (id,)):
                entry = self._entry(row, was)
                for member in entry[-1].participants:
                    if member.is_in and member.id in self._of:
                        self._of[member.id][id] = entry
        self.stale = set()

    def _entry(self, row: tuple[Any, ...], was: _Entry | None = None) -> _Entry:
        id, updated_ms, written, head, title, entries, archived, updated_at, last = row
        of = orjson.loads(head)
        members, is_archived = members_in(of[_MEMBERS]), bool(archived)
        whose = members, of[_HISTORY], of[_CHANNEL] and Channel(**of[_CHANNEL]), of[_MAKER]
        mine = Mine(id, of[_TYPE], title, entries, is_archived, updated_at, *whose, _digest(last))
        if was is not None and was[-1] == mine:
            mine = was[-1]
        entry = self._entries[id] = (updated_ms, written, id, mine)
        return entry


def _digest(front: int | None) -> str:
    """The digest of the ids up to a message, as marks have it."""
    return "" if front is None else f"sha256:{front:014x}"


def marks(
    db: sqlite3.Connection, conversation: str, places: Iterable[int], hidden: Hidden
) -> dict[int, tuple[str, str]]:
    wanted = ", ".join(map(str, map(int, places)))
    question = (
        f"SELECT at, id, front FROM messages AS m WHERE capsule = {_NUM} AND at IN ({wanted}) AND {hidden.of_messages}"
    )
    # As `_digest`: a cursor asks for many.
    rows = db.execute(question, (conversation,))
    return {at: (id, "" if front is None else f"sha256:{front:014x}") for at, id, front in rows}


def _first_behind(db: sqlite3.Connection, conversation: str | None, read: Sequence[Mark]) -> int:
    """The place behind what was read, of one conversation. Of all conversations (None) nothing was read."""
    if conversation is None or not read:
        return 0
    return first_unread(read, marks(db, conversation, [at for at, _ in read], NOTHING))


def find(db: sqlite3.Connection, message: str, conversation: str | None, hidden: Hidden) -> tuple[str, int] | None:
    # The newest have the highest numbers; an index of all ids would be a third of the texts.
    where, order, bound = ("", "num", ()) if conversation is None else (f"capsule = {_NUM} AND", "at", (conversation,))
    where = f"{where} {hidden.of_messages}"
    question = f"SELECT capsule, at FROM messages AS m WHERE id = ? AND {where} ORDER BY {order} DESC LIMIT 1"
    row = db.execute(question, (message, *bound)).fetchone()
    if row is None:
        return None
    id: str = db.execute("SELECT id FROM capsules WHERE num = ?", row[:1]).fetchone()[0]
    return id, row[1]


def _condition(
    db: sqlite3.Connection, wanted: Behind, conversation: str | None, hidden: Hidden
) -> tuple[str, list[Any]]:
    """What is wanted and not hidden, as a condition about the row `m` of `messages`, and the values bound in it."""
    conditions = ["m.at >= ? AND m.time_ms >= ? AND coalesce(m.sender, '') NOT IN (SELECT value FROM json_each(?))"]
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


def said(db: sqlite3.Connection, conversation: str, wanted: Behind, hidden: Hidden) -> Said:
    condition, values = _condition(db, wanted, conversation, hidden)
    rows = db.execute(
        "SELECT m.sender, count(*), min(m.at), max(m.at) FROM messages AS m INDEXED BY messages_in_order"
        f" WHERE m.capsule = {_NUM} AND {condition} GROUP BY m.sender ORDER BY 3",
        (conversation, *values),
    ).fetchall()
    if not rows:
        return Said(0)
    at = max(last for *_, last in rows)
    question = f"SELECT at, id, coalesce(sender, ''), content, time_ms FROM messages WHERE capsule = {_NUM} AND at = ?"
    place, id, sender, content, time_ms = db.execute(question, (conversation, at)).fetchone()
    last = Last(place, id, sender, content, timestamps.known(timestamps.from_ms(time_ms)))
    return Said(sum(total for _, total, *_ in rows), tuple(sender or "" for sender, *_ in rows), last)


def behind(db: sqlite3.Connection, wanted: Behind, conversation: str | None, hidden: Hidden) -> list[Place]:
    condition, values = _condition(db, wanted, conversation, hidden)
    where, bound = ("", ()) if conversation is None else ("c.id = ? AND ", (conversation,))
    question = (
        "SELECT c.id, m.at, m.id, m.front FROM messages AS m JOIN capsules AS c ON c.num = m.capsule"
        f" WHERE {where}c.gone = 0 AND {condition} ORDER BY m.time_ms DESC, m.num DESC"
    )
    rows = db.execute(question, (*bound, *values))
    return [Place(id, at, message, _digest(front)) for id, at, message, front in rows]
