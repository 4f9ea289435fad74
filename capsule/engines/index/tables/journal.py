"""The journal of changes in the index, and the cursors with which a follower goes on.

What must stay true: from a cursor, a follower hears of every later change, though perhaps twice; a
cursor of an index that is gone is answered from the times of the files.
"""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from capsule.errors import InvalidInput
from capsule.timestamps import from_ms

if TYPE_CHECKING:
    from capsule.engines.changes import Change

#: So many of the newest changes are kept.
KEPT = 100_000
_PRUNED_EVERY = 256
#: What a clock may be off, or a file system that counts in two seconds, where only times are left
#: to go by.
_SLACK_MS = 5000
_INSERT = "INSERT INTO changes(at_ms, since_ms, id, kind, told) VALUES(?, ?, ?, ?, ?)"


_CURSOR = re.compile(r"(\w+)\.(\d{1,19})\.(\d{1,19})(?:\.(\d{1,19}))?", re.ASCII)


class Cursor(NamedTuple):
    """A place in the journal.

    Attributes:
        generation: Of the index.
        seq: The last change that was heard of.
        time_ms: Everything before this time was heard of.
        skip: How many messages of the next change were heard of, too.
    """

    generation: str
    seq: int
    time_ms: int
    skip: int = 0

    def __str__(self) -> str:
        return f"{self.generation}.{self.seq}.{self.time_ms}" + (
            f".{self.skip}" if self.skip else ""
        )

    @classmethod
    def of(cls, text: str) -> Cursor:
        """Read a cursor. Raises InvalidInput when `text` is none."""
        match = _CURSOR.fullmatch(text)
        if match is not None:
            seq, time_ms, skip = (int(number or 0) for number in match.groups()[1:])
            if seq < 2**62 and time_ms < 2**62:
                return cls(match[1], seq, time_ms, skip)
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise InvalidInput(
            f"{shown!r} is not a cursor of changes; use the cursor of a change, or none"
        )


def add(
    db: sqlite3.Connection,
    changes: list[tuple[str, str, dict[str, Any]]],
    at_ms: int,
    since_ms: int,
) -> None:
    """Write changes down: kind, id and the further fields of each."""
    for kind, id, fields in changes:
        done = db.execute(_INSERT, (at_ms, since_ms, id, kind, orjson.dumps(fields).decode()))
        if (done.lastrowid or 0) % _PRUNED_EVERY == 0:
            db.execute("DELETE FROM changes WHERE seq <= ?", ((done.lastrowid or 0) - KEPT,))


def newest(db: sqlite3.Connection) -> int:
    """The number of the last change; 0 when there was none."""
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'changes'").fetchone()
    return row[0] if row else 0


def read(
    db: sqlite3.Connection, generation: str, cursor: Cursor, limit: int
) -> list[Change] | None:
    """The changes behind a cursor, `limit` at most; None when the journal doesn't reach back so
    far.
    """
    last = newest(db)
    if cursor.generation != generation or cursor.seq > last:
        return None
    if cursor.seq == last:
        return []
    rows = db.execute(
        "SELECT seq, at_ms, since_ms, id, kind, told FROM changes WHERE seq > ? ORDER BY seq "
        "LIMIT ?",
        (cursor.seq, limit),
    ).fetchall()
    if not rows or rows[0][0] != cursor.seq + 1:
        return None
    changes = []
    for seq, at_ms, since_ms, id, kind, text in rows:
        fields = orjson.loads(text)
        skip = cursor.skip if seq == cursor.seq + 1 else 0
        if skip and "messages" in fields:
            # The rest of a change whose beginning was reported by itself.
            kind, fields["messages"] = "appended", fields["messages"][skip:]
        fields["before"] = str(Cursor(generation, seq - 1, since_ms, skip))
        changes.append(_change(kind, id, at_ms, str(Cursor(generation, seq, since_ms)), fields))
    return changes


def advance(cursor: str, messages: int) -> str:
    """The cursor behind so many messages of the change that comes next from a cursor."""
    place = Cursor.of(cursor)
    return str(place._replace(skip=place.skip + messages))


def is_at(cursor: str, place: str) -> bool:
    """Whether a cursor stands at a place in the journal, whatever part of the next change was
    reported there.
    """
    return Cursor.of(cursor)[:3] == Cursor.of(place)[:3]


def heard_since(change: Change, since_ms: int, said: dict[str, int]) -> list[Change]:
    """What an agent hears of a change that reads the conversation from a time on.

    Args:
        change: The change.
        since_ms: The time, in milliseconds since 1970.
        said: The places of the messages since then, by id.
    """
    from dataclasses import replace

    messages = tuple(message for message in change.messages if message in said)
    if change.at < from_ms(since_ms) or (change.kind == "appended" and not messages):
        return []
    place = advance(
        change.before, len(change.messages) - len(messages)
    )  # What it may not read comes first.
    count = max(0, change.count - min(said.values(), default=change.count))
    return [replace(change, messages=messages, removed=(), before=place, count=count)]


def _change(kind: str, id: str, at_ms: int, cursor: str, fields: dict[str, Any]) -> Change:
    from capsule.engines.changes import Change

    for name in ("messages", "removed", "fields"):
        if name in fields:
            fields[name] = tuple(fields[name])
    return Change(kind, id, from_ms(at_ms), cursor, **fields)


def since_time(db: sqlite3.Connection, cursor: Cursor, now: Cursor) -> list[Change]:
    """What changed since a cursor that the journal doesn't know, as the files' times tell it.

    All have the cursor of now but the last: who stops in between goes on from the same time.
    """
    from dataclasses import replace

    after_ms = (
        min(cursor.time_ms, 2**43) - _SLACK_MS
    )  # In nanoseconds it is a number that SQLite has.
    after_ns = after_ms * 1_000_000
    rows = db.execute(
        "SELECT num, id, max(changed_ns, updated_ms * 1000000) AS latest, created_at, damaged, "
        "entries"
        " FROM capsules WHERE gone = 0 AND latest >= ? ORDER BY latest",
        (after_ns,),
    ).fetchall()
    changes: list[Change] = []
    again = str(Cursor(cursor.generation, cursor.seq, cursor.time_ms))
    for num, id, latest_ns, created_at, damaged, entries in rows:
        at_ms = latest_ns // 1_000_000
        fields: dict[str, Any] = {"source": "outside", "count": entries, "before": again}
        if damaged:
            changes.append(_change("damaged", id, at_ms, again, fields | {"damaged": damaged}))
            continue
        messages = [
            row[0]
            for row in db.execute(
                "SELECT id FROM messages WHERE capsule = ? AND time_ms >= ? ORDER BY at",
                (num, after_ms),
            )
        ]
        created = bool(created_at) and created_at >= from_ms(max(after_ms, 0))
        kind = "created" if created else "appended" if messages else "edited"
        changes.append(_change(kind, id, at_ms, again, fields | {"messages": messages}))
    if changes:
        changes[-1] = replace(changes[-1], cursor=str(now))
    return changes
