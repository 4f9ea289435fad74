"""The full-text index: how the words of rows come into it and out of it.

What must stay true: the two FTS5 tables change in the transaction that changes their rows; they are
contentless (no text is kept twice), so a removal must give the very texts that were added.

    words   content, tools      a row for a message, rowid messages.num
    names   title, tags         a row for a conversation, rowid capsules.num
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import orjson

from capsule.engines.index.search.query import fold

#: messages.num, content, tools.
WordsRow = tuple[int, str, str | None]
#: Title, and the tags as a JSON array.
Title = tuple[str, str]
_NO_TITLE: Title = ("", "[]")

_WORDS = "CREATE VIRTUAL TABLE words USING fts5(content, tools, content='', tokenize='ascii')"
_NAMES = "CREATE VIRTUAL TABLE names USING fts5(title, tags, content='', tokenize='ascii')"
_ADD = "INSERT INTO words(rowid, content, tools) VALUES(?, ?, ?)"
_FOLDED = "CREATE TEMP TABLE folded(num INTEGER PRIMARY KEY, content TEXT NOT NULL, tools TEXT)"
#: The same of messages that are rows already, in one statement, so that another thread may run
#: meanwhile.
_ADD_ROWS = """INSERT INTO words(rowid, content, tools)
    SELECT num, coalesce(f.content, m.content), coalesce(f.tools, m.tools)
    FROM messages AS m LEFT JOIN folded AS f USING(num) WHERE num BETWEEN ? AND ? ORDER BY num"""
_REMOVE = "INSERT INTO words(words, rowid, content, tools) VALUES('delete', ?, ?, ?)"
_ADD_NAME = "INSERT INTO names(rowid, title, tags) VALUES(?, ?, ?)"
_REMOVE_NAME = "INSERT INTO names(names, rowid, title, tags) VALUES('delete', ?, ?, ?)"
#: How many bytes FTS5 gathers before it writes a part: while a first index is built, and else (its
#: default).
_BUILDING_HASH, _HASH = 8 << 20, 1 << 20
#: So many parts of one level FTS5 joins by itself (`automerge`).
_ON_A_LEVEL = 4
_BRIEF: list[WordsRow] = [(-1, "x", None)]


def create(db: sqlite3.Connection) -> None:
    """Make the tables, in an index that has none."""
    db.execute(_WORDS)
    db.execute(_NAMES)


def add(db: sqlite3.Connection, rows: Iterable[WordsRow]) -> None:
    """Take in the texts of messages, in the order of their numbers where there is a choice: it is
    the quickest.
    """
    db.executemany(_ADD, _folded(rows))


def adding(db: sqlite3.Connection, rows: list[WordsRow]) -> Callable[[], object]:
    """What adds the texts of messages that came into their table one behind the other; only while
    `build` fills it.

    It needs next to nothing of Python, so that it may run in a thread of its own. Nothing else uses
    `db` meanwhile.
    """
    db.execute("DELETE FROM folded")
    others = (row for row in rows if not (row[1].isascii() and (row[2] or "").isascii()))
    db.executemany("INSERT INTO folded VALUES(?, ?, ?)", _folded(others))
    return partial(db.execute, _ADD_ROWS, (rows[0][0], rows[-1][0]) if rows else (0, 0))


def remove(db: sqlite3.Connection, rows: Iterable[WordsRow]) -> None:
    """Take out the texts of messages, which must be those that were added."""
    db.executemany(_REMOVE, _folded(rows))


def change_title(db: sqlite3.Connection, num: int, old: Title, new: Title) -> None:
    """Replace the title and the tags of conversation `num`. `old` is what was added last."""
    for sql, (title, tags) in ((_REMOVE_NAME, old), (_ADD_NAME, new)):
        if old != new and (title, tags) != _NO_TITLE:
            db.execute(sql, (num, fold(title), fold("\n".join(orjson.loads(tags)))))


def build(db: sqlite3.Connection, fill: Callable[[], None]) -> None:
    """Have `fill` add all there is to an index without words, and make one part of it.

    The part then lies above the level where later texts come, so that they are not merged with it
    for a long time.
    """
    _configure(db, _BUILDING_HASH)
    db.execute(_FOLDED)
    fill()
    db.execute("DROP TABLE folded")
    # Parts of several levels are joined above all of these, but those of one level, which are few,
    # on the next one. A text that comes and goes makes them several.
    parts = db.execute("SELECT count(DISTINCT segid) FROM words_idx").fetchone()[0]
    for _ in range(2 if parts < _ON_A_LEVEL else 1):
        add(db, _BRIEF)
        remove(db, _BRIEF)
        db.execute("INSERT INTO words(words) VALUES('optimize')")
    _configure(db, _HASH)


def _folded(rows: Iterable[WordsRow]) -> Iterator[WordsRow]:
    return (
        (num, fold(content), tools if tools is None else fold(tools))
        for num, content, tools in rows
    )


def _configure(db: sqlite3.Connection, hash_size: int) -> None:
    db.execute("INSERT INTO words(words, rank) VALUES('hashsize', ?)", (hash_size,))
