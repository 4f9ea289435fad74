"""Bare FTS5: the messages in a full-text table of their own, and nothing around it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["BareText"]

#: What one would write first, and what a whole store needs besides: whose message it is, and a piece of the text.
_BARE = "SELECT rowid, content FROM said WHERE said MATCH ? ORDER BY rank LIMIT ?"
_JOINED = """
SELECT m.conversation, m.id, m.role, m.time, found.score, snippet(said, 0, '[', ']', '…', 16)
FROM (SELECT rowid, rank AS score FROM said WHERE said MATCH ?1 ORDER BY rank LIMIT ?2) AS found
JOIN said ON said.rowid = found.rowid AND said MATCH ?1 JOIN messages AS m ON m.num = found.rowid ORDER BY found.score
"""


class BareText:
    """A database of texts.

    Args:
        path: The database file; made, if need be.
    """

    def __init__(self, path: Path) -> None:
        made = path.exists()
        self._db = sqlite3.connect(path, isolation_level=None)
        if made:
            return
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("CREATE VIRTUAL TABLE said USING fts5 (content)")
        self._db.execute("CREATE VIRTUAL TABLE words USING fts5vocab (said, row)")
        self._db.execute(
            "CREATE TABLE messages (num INTEGER PRIMARY KEY, conversation TEXT, id TEXT, role TEXT, time TEXT)"
        )

    def fill(self, rows: Iterable[tuple[str, int, str, str, str, str]]) -> None:
        """Take in messages: conversation, place, role, time, id, text."""
        self._db.execute("BEGIN")
        add, about = "INSERT INTO said (rowid, content) VALUES (?, ?)", "INSERT INTO messages VALUES (?, ?, ?, ?, ?)"
        for num, (conversation, _, role, time, id, text) in enumerate(rows, 1):
            self._db.execute(add, (num, text))
            self._db.execute(about, (num, conversation, id, role, time))
        self._db.execute("COMMIT")

    def search(self, query: str, limit: int) -> list[Any]:
        """The rows of the best matches, texts included."""
        return self._db.execute(_BARE, (query, limit)).fetchall()

    def search_joined(self, query: str, limit: int) -> list[Any]:
        """The best matches with what a person wants to see of them."""
        return self._db.execute(_JOINED, (query, limit)).fetchall()

    def count(self, query: str) -> int:
        """How many rows match."""
        return int(self._db.execute("SELECT count(*) FROM said WHERE said MATCH ?", (query,)).fetchone()[0])

    def words_in(self, rows: int, count: int) -> list[str]:
        """The words that stand in about so many rows."""
        nearest = "SELECT term FROM words WHERE length(term) > 2 ORDER BY abs(doc - ?), term LIMIT ?"
        return [str(term) for (term,) in self._db.execute(nearest, (rows, count))]

    def close(self) -> None:
        self._db.close()
