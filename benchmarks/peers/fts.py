"""Bare FTS5: the messages in a full-text table of their own, and nothing around it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from capsule.engines.questions.query import fold

__all__ = ["BareText", "OurText"]

#: A message: its conversation, its place there, role, time, id, text, and its tool calls as text.
Row = tuple[str, int, str, str, str, str, str | None]

#: What one would write first, and what a whole store needs besides: whose message it is, and a
#: piece of the text.
_BARE = "SELECT rowid, content FROM said WHERE said MATCH ? ORDER BY rank LIMIT ?"
_JOINED = """
SELECT m.conversation, m.id, m.role, m.time, found.score, snippet(said, 0, '[', ']', '…', 16)
FROM (SELECT rowid, rank AS score FROM said WHERE said MATCH :query ORDER BY rank LIMIT :limit) AS found
JOIN said ON said.rowid = found.rowid AND said MATCH :query
JOIN messages AS m ON m.num = found.rowid ORDER BY found.score
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
            "CREATE TABLE messages (num INTEGER PRIMARY KEY, conversation TEXT, id TEXT, role "
            "TEXT, time TEXT)"
        )

    def fill(self, rows: Iterable[Row]) -> None:
        """Take in messages."""
        self._db.execute("BEGIN")
        add, about = (
            "INSERT INTO said (rowid, content) VALUES (?, ?)",
            "INSERT INTO messages VALUES (?, ?, ?, ?, ?)",
        )
        for num, (conversation, _, role, time, id, text, _) in enumerate(rows, 1):
            self._db.execute(add, (num, text))
            self._db.execute(about, (num, conversation, id, role, time))
        self._db.execute("COMMIT")

    def search(self, query: str, limit: int) -> list[Any]:
        """The rows of the best matches, texts included."""
        return self._db.execute(_BARE, (query, limit)).fetchall()

    def search_joined(self, query: str, limit: int) -> list[Any]:
        """The best matches with what a person wants to see of them."""
        return self._db.execute(_JOINED, {"query": query, "limit": limit}).fetchall()

    def count(self, query: str) -> int:
        """How many rows match."""
        return int(
            self._db.execute("SELECT count(*) FROM said WHERE said MATCH ?", (query,)).fetchone()[0]
        )

    def words_in(self, rows: int, count: int) -> list[str]:
        """The words that stand in about so many rows."""
        nearest = (
            "SELECT term FROM words WHERE length(term) > 2 ORDER BY abs(doc - ?), term LIMIT ?"
        )
        return [str(term) for (term,) in self._db.execute(nearest, (rows, count))]

    def close(self) -> None:
        self._db.close()


class OurText:
    """Bare FTS5 with what the index has: its tokenizer, its columns, and texts that are kept
    beside, once.

    Args:
        path: The database file, which is made.
    """

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute(
            "CREATE VIRTUAL TABLE said USING fts5 (content, tools, content = '', tokenize = "
            "'ascii')"
        )
        self._db.execute(
            "CREATE TABLE messages (num INTEGER PRIMARY KEY, conversation TEXT, id TEXT, role "
            "TEXT, time TEXT,"
            " content TEXT, tools TEXT)"
        )

    def fill(self, rows: Iterable[Row]) -> None:
        """Take in messages, and join the parts of the full-text index."""
        self._db.execute("BEGIN")
        add = "INSERT INTO said (rowid, content, tools) VALUES (?, ?, ?)"
        about = "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?)"
        for num, (conversation, _, role, time, id, text, tools) in enumerate(rows, 1):
            self._db.execute(add, (num, fold(text), tools and fold(tools)))
            self._db.execute(about, (num, conversation, id, role, time, text, tools))
        self._db.execute("INSERT INTO said (said) VALUES ('optimize')")
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()
