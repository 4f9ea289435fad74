"""sqlite3, as agents' message stores use it: WAL, an FTS5 index kept by triggers, a column for what
is unread.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from benchmarks.fixtures import STAMP, history
from capsule.ids import new_message_id

__all__ = ["SqliteMessages", "open_full", "open_normal"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS conversations (id TEXT PRIMARY KEY, title TEXT, context TEXT, updated_at TEXT);
CREATE TABLE IF NOT EXISTS messages (
    seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, conversation TEXT NOT NULL REFERENCES conversations (id),
    role TEXT NOT NULL, content TEXT NOT NULL, timestamp TEXT NOT NULL, unread INTEGER NOT NULL DEFAULT 1);
CREATE INDEX IF NOT EXISTS messages_of ON messages (conversation, seq);
CREATE VIRTUAL TABLE IF NOT EXISTS messages_text USING fts5 (content, content='messages', content_rowid='seq');
CREATE TRIGGER IF NOT EXISTS messages_added AFTER INSERT ON messages BEGIN
    INSERT INTO messages_text (rowid, content) VALUES (new.seq, new.content); END;
CREATE TRIGGER IF NOT EXISTS messages_removed AFTER DELETE ON messages BEGIN
    INSERT INTO messages_text (messages_text, rowid, content) VALUES ('delete', old.seq, old.content); END;
"""
_INSERT = "INSERT INTO messages (id, conversation, role, content, timestamp) VALUES (?, ?, ?, ?, ?)"


def open_full(directory: Path) -> SqliteMessages:
    """Open the database in a directory; a commit is durable."""
    return SqliteMessages(directory / "full.db")


def open_normal(directory: Path) -> SqliteMessages:
    """Open the database in a directory; a commit is durable at the next checkpoint only."""
    return SqliteMessages(directory / "normal.db", "NORMAL")


class SqliteMessages:
    """A database of conversations.

    Args:
        path: The database file; made, if need be.
        synchronous: `FULL`, with which a commit is durable, or `NORMAL`, with which it isn't.
    """

    def __init__(self, path: Path, synchronous: str = "FULL") -> None:
        self._db = sqlite3.connect(path, timeout=60, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {synchronous}")
        self._db.executescript(_SCHEMA)

    def fill(self, conversation: str, count: int, context: str = "") -> None:
        about = (conversation, f"Conversation {conversation}", context, STAMP)
        self._db.execute("BEGIN")
        self._db.execute("INSERT INTO conversations VALUES (?, ?, ?, ?)", about)
        self._db.executemany(
            _INSERT,
            (
                (m["id"], conversation, m["role"], m["content"], m["timestamp"])
                for m in history(count)
            ),
        )
        self._db.execute("COMMIT")
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def append(self, conversation: str, text: str) -> None:
        self._db.execute(_INSERT, (new_message_id(), conversation, "user", text, STAMP))

    def rename(self, conversation: str, title: str) -> None:
        """Change a conversation's title."""
        self._db.execute("UPDATE conversations SET title = ? WHERE id = ?", (title, conversation))

    def create(self, conversation: str, text: str) -> None:
        """Make a conversation with its first message, in one transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(
            "INSERT INTO conversations VALUES (?, ?, '', ?)", (conversation, text[:60], STAMP)
        )
        self.append(conversation, text)
        self._db.execute("COMMIT")

    def delete(self, conversation: str) -> None:
        """Delete a conversation with its messages, in one transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("DELETE FROM messages WHERE conversation = ?", (conversation,))
        self._db.execute("DELETE FROM conversations WHERE id = ?", (conversation,))
        self._db.execute("COMMIT")

    def tail(self, conversation: str, n: int) -> list[Any]:
        """The last rows of a conversation."""
        last = "SELECT * FROM messages WHERE conversation = ? ORDER BY seq DESC LIMIT ?"
        return self._db.execute(last, (conversation, n)).fetchall()

    def load(self, conversation: str) -> list[Any]:
        """All rows of a conversation."""
        found = self._db.execute(
            "SELECT * FROM messages WHERE conversation = ? ORDER BY seq", (conversation,)
        )
        return found.fetchall()

    def texts(self, conversation: str) -> list[str]:
        return [str(row[4]) for row in self.load(conversation)]

    def close(self) -> None:
        self._db.close()
