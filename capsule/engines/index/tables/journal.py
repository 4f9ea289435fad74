"""Record the changes of conversations in the index, and read them from a cursor on.

The journal is the table `changes`. Its sequence numbers have no gaps, and the newest 100,000 rows
are kept. A cursor names the generation of the index, the last change that was read and a time. If
the journal does not reach back to the cursor, or is of another generation, `read` returns None and
`changes_by_file_time` lists the conversations that changed since the time of the cursor.

What must stay true: from a cursor, a follower gets every later change, perhaps twice. Only
`changes_by_file_time` misses deletions, which leave no row.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import orjson

from capsule.engines.questions.change_cursors import ChangeCursor
from capsule.timestamps import from_ms

if TYPE_CHECKING:
    from capsule.engines.changes import Change

#: The number of newest changes that are kept.
MAX_CHANGES = 100_000
#: Older ones are deleted at each so many changes.
_PRUNE_INTERVAL = 256
#: Where only times are compared: the error of a clock, or of a file system that counts in units of
#: two seconds, in milliseconds.
_SLACK_MS = 5000
#: A later time in nanoseconds would not fit into a number of SQLite.
_MAX_TIME_MS = 2**43


def record(
    db: sqlite3.Connection,
    changes: list[tuple[str, str, dict[str, Any]]],
    at_ms: int,
    since_ms: int,
) -> None:
    """Write changes to the journal.

    Args:
        db: The index, within a transaction.
        changes: The kind, the conversation and the further fields of each `Change`.
        at_ms: The time of the changes, in milliseconds since 1970.
        since_ms: The time of the last reading of the documents: the changes are later.
    """
    for kind, id, fields in changes:
        cursor = db.execute(
            "INSERT INTO changes(at_ms, since_ms, id, kind, told) VALUES(?, ?, ?, ?, ?)",
            (at_ms, since_ms, id, kind, orjson.dumps(fields).decode()),
        )
        seq = cursor.lastrowid or 0
        if seq % _PRUNE_INTERVAL == 0:
            db.execute("DELETE FROM changes WHERE seq <= ?", (seq - MAX_CHANGES,))


def newest_seq(db: sqlite3.Connection) -> int:
    """Return the number of the last change. 0: there was none."""
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'changes'").fetchone()
    return row[0] if row else 0


def read(
    db: sqlite3.Connection, generation: str, cursor: ChangeCursor, limit: int
) -> list[Change] | None:
    """Return at most `limit` changes after a cursor.

    Returns: None if the journal does not reach back to the cursor, or is of another generation.
    """
    last_seq = newest_seq(db)
    if cursor.generation != generation or cursor.seq > last_seq:
        return None
    if cursor.seq == last_seq:
        return []
    rows = db.execute(
        "SELECT seq, at_ms, since_ms, id, kind, told FROM changes WHERE seq > ? ORDER BY seq "
        "LIMIT ?",
        (cursor.seq, limit),
    ).fetchall()
    if not rows or rows[0][0] != cursor.seq + 1:
        return None
    changes = []
    for seq, at_ms, since_ms, id, recorded_kind, text in rows:
        kind = recorded_kind
        fields = orjson.loads(text)
        skip = cursor.skip if seq == cursor.seq + 1 else 0
        if skip and "messages" in fields:
            # The beginning of this change was reported alone: report the rest.
            kind = "appended"
            fields["messages"] = fields["messages"][skip:]
        fields["before"] = str(ChangeCursor(generation, seq - 1, since_ms, skip))
        changes.append(
            _change(kind, id, at_ms, str(ChangeCursor(generation, seq, since_ms)), fields)
        )
    return changes


def _change(kind: str, id: str, at_ms: int, cursor: str, fields: dict[str, Any]) -> Change:
    from capsule.engines.changes import Change

    for name in ("messages", "removed", "fields"):
        if name in fields:
            fields[name] = tuple(fields[name])
    return Change(kind, id, from_ms(at_ms), cursor, **fields)


def changes_by_file_time(
    db: sqlite3.Connection, cursor: ChangeCursor, end: ChangeCursor
) -> list[Change]:
    """Return a change for each conversation that changed since a cursor of another journal.

    All but the last have the given cursor: a follower that stops between two of them continues from
    the same time. The last has the cursor `end`.
    """
    from dataclasses import replace

    since_ms = min(cursor.time_ms, _MAX_TIME_MS) - _SLACK_MS
    rows = db.execute(
        "SELECT num, id, max(changed_ns, updated_ms * 1000000) AS latest, created_at, damaged, "
        "entries FROM capsules WHERE gone = 0 AND latest >= ? ORDER BY latest",
        (since_ms * 1_000_000,),
    ).fetchall()
    changes: list[Change] = []
    same_cursor = str(ChangeCursor(cursor.generation, cursor.seq, cursor.time_ms))
    for num, id, latest_ns, created_at, damaged, entries in rows:
        at_ms = latest_ns // 1_000_000
        fields: dict[str, Any] = {"source": "outside", "count": entries, "before": same_cursor}
        if damaged:
            fields["damaged"] = damaged
            changes.append(_change("damaged", id, at_ms, same_cursor, fields))
            continue
        messages = db.execute(
            "SELECT id FROM messages WHERE capsule = ? AND time_ms >= ? ORDER BY at",
            (num, since_ms),
        ).fetchall()
        fields["messages"] = [message_id for (message_id,) in messages]
        if created_at and created_at >= from_ms(max(since_ms, 0)):
            kind = "created"
        elif messages:
            kind = "appended"
        else:
            kind = "edited"
        changes.append(_change(kind, id, at_ms, same_cursor, fields))
    if changes:
        changes[-1] = replace(changes[-1], cursor=str(end))
    return changes
