"""Two SQLite databases a session, as nanoclaw keeps them: the host writes one of them, the worker
the other.

From its published schema (`src/db/schema.ts`), with the columns and indexes that a message needs.
As there: rollback journals, a commit is durable, the host opens and closes a database for each
operation, the worker keeps its own open and opens the host's for each look; what is delivered is
found by reading both tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.fixtures import STAMP
from capsule.ids import new_message_id

__all__ = ["SessionPair"]

_INBOUND = """
CREATE TABLE messages_in (
    id TEXT PRIMARY KEY, seq INTEGER UNIQUE, kind TEXT NOT NULL, timestamp TEXT NOT NULL, status TEXT DEFAULT 'pending',
    process_after TEXT, recurrence TEXT, series_id TEXT, tries INTEGER DEFAULT 0, trigger INTEGER NOT NULL DEFAULT 1,
    platform_id TEXT, channel_type TEXT, thread_id TEXT, content TEXT NOT NULL, source_session_id TEXT,
    on_wake INTEGER NOT NULL DEFAULT 0);
CREATE INDEX messages_of_series ON messages_in (series_id);
CREATE TABLE delivered (
    message_out_id TEXT PRIMARY KEY, platform_message_id TEXT, status TEXT NOT NULL, delivered_at TEXT NOT NULL);
"""
_OUTBOUND = """
CREATE TABLE messages_out (
    id TEXT PRIMARY KEY, seq INTEGER UNIQUE, in_reply_to TEXT, timestamp TEXT NOT NULL, deliver_after TEXT,
    recurrence TEXT, kind TEXT NOT NULL, platform_id TEXT, channel_type TEXT, thread_id TEXT, content TEXT NOT NULL);
CREATE TABLE processing_ack (message_id TEXT PRIMARY KEY, status TEXT NOT NULL, status_changed TEXT NOT NULL);
"""
_IN = (
    "INSERT INTO messages_in (id, seq, kind, timestamp, series_id, content) VALUES (?, ?, "
    "'chat', ?, ?, ?)"
)
_OUT = (
    "INSERT INTO messages_out (id, seq, in_reply_to, timestamp, kind, content) VALUES (?, ?, "
    "?, ?, 'chat', ?)"
)
_ACK = "INSERT OR REPLACE INTO processing_ack VALUES (?, ?, datetime('now'))"
_DELIVERED = "INSERT OR IGNORE INTO delivered VALUES (?, ?, 'delivered', datetime('now'))"
_DUE = "(deliver_after IS NULL OR deliver_after <= datetime('now'))"
_PENDING = (
    "status = 'pending' AND (process_after IS NULL OR datetime(process_after) <= datetime('now'))"
)


class SessionPair:
    """The databases of a session.

    Args:
        directory: Where they are made.
        done: How many messages were answered and delivered before.
    """

    def __init__(self, directory: Path, done: int) -> None:
        directory.mkdir()
        self._inbound, self._outbound = directory / "inbound.db", directory / "outbound.db"
        for path, schema in ((self._inbound, _INBOUND), (self._outbound, _OUTBOUND)):
            with self._open(path) as db:
                db.executescript(schema)
        self._worker = self._connected(self._outbound)
        with self._open(self._inbound) as db, self._write(db), self._write(self._worker):
            for number in range(1, done + 1):
                id, out = new_message_id(), new_message_id()
                db.execute(_IN, (id, 4 * number, STAMP, id, "done"))
                self._worker.execute(_ACK, (id, "completed"))
                self._worker.execute(_OUT, (out, 4 * number + 1, id, STAMP, "done"))
                db.execute(_DELIVERED, (out, out))
            db.execute("UPDATE messages_in SET status = 'completed'")

    @staticmethod
    def _connected(path: Path) -> sqlite3.Connection:
        db = sqlite3.connect(path, timeout=5, isolation_level=None)
        db.execute("PRAGMA journal_mode = DELETE")
        return db

    @contextmanager
    def _open(self, path: Path) -> Iterator[sqlite3.Connection]:
        db = self._connected(path)
        try:
            yield db
        finally:
            db.close()

    @staticmethod
    @contextmanager
    def _write(db: sqlite3.Connection) -> Iterator[None]:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("COMMIT")

    def take(self, texts: Sequence[str]) -> None:
        """As the host: take messages in, one after the other."""
        for text in texts:
            with self._open(self._inbound) as db:
                last = db.execute("SELECT COALESCE(MAX(seq), 0) FROM messages_in").fetchone()[0]
                id = new_message_id()
                db.execute(_IN, (id, last + 2 - last % 2, STAMP, id, text))

    def work(self) -> None:
        """As the worker: claim what is pending, answer it at once, and complete it."""
        with self._open(self._inbound) as db:
            pending = db.execute(
                f"SELECT * FROM messages_in WHERE {_PENDING} ORDER BY seq DESC LIMIT 10"
            ).fetchall()
            acked = {id for (id,) in self._worker.execute("SELECT message_id FROM processing_ack")}
            ids = [row[0] for row in reversed(pending) if row[0] not in acked]
            with self._write(self._worker):
                self._worker.executemany(_ACK, [(id, "processing") for id in ids])
            highest = max(
                self._worker.execute("SELECT COALESCE(MAX(seq), 0) FROM messages_out").fetchone()[
                    0
                ],
                db.execute("SELECT COALESCE(MAX(seq), 0) FROM messages_in").fetchone()[0],
            )
        seq = highest + 1 + highest % 2
        self._worker.execute(_OUT, (new_message_id(), seq, ids[-1], STAMP, "This is the answer."))
        with self._write(self._worker):
            self._worker.executemany(_ACK, [(id, "completed") for id in ids])

    def deliver(self, deliver: Callable[[str], str]) -> int:
        """As the host: deliver what is due, and note that, and what the worker completed; how many
        were delivered.
        """
        with self._open(self._outbound) as out, self._open(self._inbound) as db:
            due = out.execute(
                f"SELECT * FROM messages_out WHERE {_DUE} ORDER BY timestamp ASC"
            ).fetchall()
            delivered = {id for (id,) in db.execute("SELECT message_out_id FROM delivered")}
            new = [row for row in due if row[0] not in delivered]
            for row in new:
                db.execute(_DELIVERED, (row[0], deliver(row[-1])))
            acks = "SELECT message_id FROM processing_ack WHERE status IN ('completed', 'failed')"
            completed = out.execute(acks).fetchall()
            with self._write(db):
                db.executemany("UPDATE messages_in SET status = 'completed' WHERE id = ? AND "
                               "status != ?", [
                    (id, "completed") for (id,) in completed
                ])  # fmt: skip
        return len(new)

    def close(self) -> None:
        self._worker.close()
