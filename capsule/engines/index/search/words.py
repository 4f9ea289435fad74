"""Add the words of messages and titles to the full-text index, and remove them.

The full-text index is two FTS5 tables:

    words   content, tools      a row for a message, rowid messages.num
    names   title, tags         a row for a conversation, rowid capsules.num

What must stay true: the tables change in the transaction that changes the rows. They are
contentless (no text is stored twice). So a caller that removes a text gives exactly the text that
it added, which nothing here can check.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import orjson

from capsule.engines.questions.query import fold

#: messages.num, content, tools.
WordsRow = tuple[int, str, str | None]
#: Title, and the tags as a JSON array.
TitleAndTags = tuple[str, str]
_NO_WORDS: TitleAndTags = ("", "[]")

_WORDS = "CREATE VIRTUAL TABLE words USING fts5(content, tools, content='', tokenize='ascii')"
_NAMES = "CREATE VIRTUAL TABLE names USING fts5(title, tags, content='', tokenize='ascii')"
_ADD = "INSERT INTO words(rowid, content, tools) VALUES(?, ?, ?)"
_FOLDED = "CREATE TEMP TABLE folded(num INTEGER PRIMARY KEY, content TEXT NOT NULL, tools TEXT)"
#: Adds messages that are in their table already, in one statement: another thread runs meanwhile.
_ADD_ROWS = """INSERT INTO words(rowid, content, tools)
    SELECT num, coalesce(f.content, m.content), coalesce(f.tools, m.tools)
    FROM messages AS m LEFT JOIN folded AS f USING(num) WHERE num BETWEEN ? AND ? ORDER BY num"""
_REMOVE = "INSERT INTO words(words, rowid, content, tools) VALUES('delete', ?, ?, ?)"
_ADD_NAME = "INSERT INTO names(rowid, title, tags) VALUES(?, ?, ?)"
_REMOVE_NAME = "INSERT INTO names(names, rowid, title, tags) VALUES('delete', ?, ?, ?)"
#: The bytes that FTS5 collects in memory before it writes a segment: while an index is built, and
#: later (its default).
_BUILD_HASH_BYTES = 8 << 20
_HASH_BYTES = 1 << 20
#: FTS5 merges so many segments of one level by itself (`automerge`).
_MERGED_SEGMENTS = 4
#: Is added and removed again, to make a further segment. No message has this row number.
_PROBE: list[WordsRow] = [(-1, "x", None)]


def create(db: sqlite3.Connection) -> None:
    """Create the tables."""
    db.execute(_WORDS)
    db.execute(_NAMES)


def add(db: sqlite3.Connection, rows: Iterable[WordsRow]) -> None:
    """Add the texts of messages. In the order of their row numbers this is quickest."""
    db.executemany(_ADD, _folded(rows))


def prepare_adding(db: sqlite3.Connection, rows: list[WordsRow]) -> Callable[[], object]:
    """Return a function that adds the texts of consecutive messages, while `build` runs.

    The rows are in the table `messages` already, and are all of its rows from the first to the last
    number. The function runs in a thread of its own, as it hardly needs Python. Nothing else may
    use `db` meanwhile. Texts that are not ASCII are folded before, into a temporary table. `fold`
    does not change the others, so they are taken from `messages`.
    """
    db.execute("DELETE FROM folded")
    changed_by_folding = (
        row for row in rows if not (row[1].isascii() and (row[2] or "").isascii())
    )
    db.executemany("INSERT INTO folded VALUES(?, ?, ?)", _folded(changed_by_folding))
    num_range = (rows[0][0], rows[-1][0]) if rows else (0, 0)
    return partial(db.execute, _ADD_ROWS, num_range)


def remove(db: sqlite3.Connection, rows: Iterable[WordsRow]) -> None:
    """Remove the texts of messages, which must be exactly those that were added."""
    db.executemany(_REMOVE, _folded(rows))


def change_title(db: sqlite3.Connection, num: int, old: TitleAndTags, new: TitleAndTags) -> None:
    """Replace the title and the tags of conversation `num`. `old` must be what was added last
    for it."""
    if old == new:
        return
    for statement, (title, tags) in ((_REMOVE_NAME, old), (_ADD_NAME, new)):
        if (title, tags) != _NO_WORDS:
            db.execute(statement, (num, fold(title), fold("\n".join(orjson.loads(tags)))))


def build(db: sqlite3.Connection, fill: Callable[[], None]) -> None:
    """Run `fill`, which adds all texts to an empty index, and merge them into one segment.

    The segment gets a level above that of later texts, so that these are not merged with it for a
    long time.
    """
    _configure(db, _BUILD_HASH_BYTES)
    db.execute(_FOLDED)
    fill()
    db.execute("DROP TABLE folded")
    # `optimize` merges all segments into one. Segments of several levels become one above all of
    # these. Segments of one level become one of only the next level. A text that is added and
    # removed makes a segment of the lowest level. Few segments are all of the lowest level, so that
    # the first round brings them one level higher, and the second one above that.
    segments = db.execute("SELECT count(DISTINCT segid) FROM words_idx").fetchone()[0]
    for _ in range(2 if segments < _MERGED_SEGMENTS else 1):
        add(db, _PROBE)
        remove(db, _PROBE)
        db.execute("INSERT INTO words(words) VALUES('optimize')")
    _configure(db, _HASH_BYTES)


def _folded(rows: Iterable[WordsRow]) -> Iterator[WordsRow]:
    return (
        (num, fold(content), tools if tools is None else fold(tools))
        for num, content, tools in rows
    )


def _configure(db: sqlite3.Connection, hash_size: int) -> None:
    db.execute("INSERT INTO words(words, rank) VALUES('hashsize', ?)", (hash_size,))
