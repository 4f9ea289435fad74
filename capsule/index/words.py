"""The full-text index: how the words of rows come into it and out of it, and how a first build is quick.

What must stay true: the two FTS5 tables are changed in the transaction that changes the rows they stand for; they
are contentless (no text is kept twice), so what is removed must be named with the very texts that were added.

    words   content, tools      a row for a message, rowid messages.num
    names   title, tags         a row for a conversation, rowid capsules.num
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import orjson

from capsule.index.folding import count, fold

if TYPE_CHECKING:
    from queue import Queue

__all__ = ["Row", "add", "add_title", "bulk", "count", "create", "let_go", "remove", "remove_title"]

#: messages.num, content, tools.
Row = tuple[int, str, str | None]

_WORDS = "CREATE VIRTUAL TABLE words USING fts5(content, tools, content='', tokenize='ascii')"
_NAMES = "CREATE VIRTUAL TABLE names USING fts5(title, tags, content='', tokenize='ascii')"
_ADD = "INSERT INTO words(rowid, content, tools) VALUES(?, ?, ?)"
_REMOVE = "INSERT INTO words(words, rowid, content, tools) VALUES('delete', ?, ?, ?)"
_CONFIGURE = "INSERT INTO words(words, rank) VALUES(?, ?)"

#: A crisis merge rewrites all there is while somebody waits; the automatic one does a little at each append.
_MERGES = {"automerge": 4, "crisismerge": 1999, "hashsize": 1 << 20}
#: A part for every 250,000 messages, which a search doesn't feel; sixteen of them are made one.
_FEW_MERGES = {"automerge": 16, "crisismerge": 1999, "hashsize": 64 << 20}
#: So many levels up go the parts of a first build.
_LIFT = 4
#: Pages as those of the index (`database`), though they may differ.
_SETTINGS = ("page_size=8192", "journal_mode=off", "synchronous=off", "cache_size=-32768")
#: Characters that are handed over at once; and how many such blocks wait at most, while a part is written down.
_BLOCK, _WAITING = 1 << 20, 16


def create(db: sqlite3.Connection) -> None:
    """Make the tables, in an index that has none."""
    db.execute(_WORDS)
    db.execute(_NAMES)
    _configure(db, _MERGES)


def add(db: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Take in the texts of messages, in the order of their numbers where there is a choice: it is the quickest."""
    aside = _ASIDE.get(id(db))
    if aside is not None:
        aside.add(rows)
    else:
        db.executemany(_ADD, _folded(rows))


def remove(db: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Take out the texts of messages, which must be those that were added."""
    db.executemany(_REMOVE, _folded(rows))


def add_title(db: sqlite3.Connection, num: int, title: str, tags: Iterable[str]) -> None:
    """Take in the title and the tags of conversation `num`."""
    db.execute("INSERT INTO names(rowid, title, tags) VALUES(?, ?, ?)", (num, fold(title), fold("\n".join(tags))))


def remove_title(db: sqlite3.Connection, num: int, title: str, tags: Iterable[str]) -> None:
    """Take out the title and the tags of conversation `num`, which must be those that were added."""
    row = (num, fold(title), fold("\n".join(tags)))
    db.execute("INSERT INTO names(names, rowid, title, tags) VALUES('delete', ?, ?, ?)", row)


@contextmanager
def bulk(db: sqlite3.Connection) -> Iterator[Callable[[], None]]:
    """Let `add` be quick while the body runs: for a first build, into an index that has no words yet.

    The words are indexed by a thread of its own, in a temporary database, and moved into `db` when the body is
    done: with two processors it costs the caller next to nothing. Titles are not affected. `remove` is not to be
    called meanwhile. After the commit, `let_go` is.

    Yields:
        Says that all is added; what the body does then, it does while the thread comes to its end.
    """
    try:
        aside = _Aside(db) if _has_json(db) else None
    except OSError:
        aside = None  # There is no place for a temporary file.
    if aside is None:
        _configure(db, _FEW_MERGES)
        yield lambda: None
        db.execute("INSERT INTO words(words) VALUES('optimize')")
        with _forgetting(db):
            _lift(db)
        _configure(db, _MERGES)
        return
    _ASIDE[id(db)] = aside
    try:
        yield aside.end
        aside.finish(db)
    finally:
        del _ASIDE[id(db)]
        aside.close()


def let_go(db: sqlite3.Connection) -> None:
    """Give back what `bulk` attached, when the transaction is done."""
    with suppress(sqlite3.OperationalError):  # Not each way of building attaches something.
        db.execute("DETACH aside")


def _has_json(db: sqlite3.Connection) -> bool:
    """Whether SQLite reads JSON: since 3.38 it does unless it was built not to, before that it was the reverse."""
    try:
        db.execute("SELECT key FROM json_each('[]')").close()
    except sqlite3.OperationalError:
        return False
    return True


def _folded(rows: Iterable[Row]) -> Iterator[Row]:
    return ((num, fold(content), tools if tools is None else fold(tools)) for num, content, tools in rows)


def _configure(db: sqlite3.Connection, settings: dict[str, int]) -> None:
    db.executemany(_CONFIGURE, settings.items())


@contextmanager
def _forgetting(db: sqlite3.Connection) -> Iterator[None]:
    """Let the body change the tables that FTS5 keeps its index in."""
    # FTS5 remembers what it last read of them, until something is undone.
    db.execute("SAVEPOINT words_forgotten")
    db.execute(_ADD, (1, "", None))
    db.execute("ROLLBACK TO words_forgotten")
    yield
    db.execute("RELEASE words_forgotten")


def _lift(db: sqlite3.Connection) -> None:
    """Put the parts of a new index on a higher level, where FTS5 has parts that were merged several times.

    Where they are made, they would be merged with the first few texts that are added: for thousands of writes, each
    of which leaves a part, as no other merge is begun meanwhile. At 2,000 parts FTS5 says that the disk is full.
    """
    # Row 10: a cookie (4 bytes), and as varints how many levels and parts there are, a counter, and the levels.
    structure: bytes = db.execute("SELECT block FROM words_data WHERE id = 10").fetchone()[0]
    if not 0 < structure[4] < 32:  # No part, or a form of later versions.
        return
    at = 5
    for _ in range(2):
        while structure[at] & 0x80:
            at += 1
        at += 1
    levels = bytes([structure[4] + _LIFT])
    lifted = structure[:4] + levels + structure[5:at] + bytes(2 * _LIFT) + structure[at:]
    db.execute("UPDATE words_data SET block = ? WHERE id = 10", (lifted,))


class _Aside:
    """The words of a first build, on their way to a temporary database of their own.

    One statement takes them all, in blocks of JSON that it asks for by a function: a statement for a row would take
    Python's lock back after each, and wait for the caller's thread every time (5 ms); and FTS5 writes down what it
    has gathered at the end of every statement that takes several rows, so that several of them are slower.
    """

    _ALL = """
        INSERT INTO words(rowid, content, tools)
        WITH RECURSIVE blocks(block) AS (
            SELECT next_block() UNION ALL SELECT next_block() FROM blocks WHERE block IS NOT NULL
        )
        SELECT CAST(key AS INTEGER),
            CASE type WHEN 'array' THEN json_extract(value, '$[0]') ELSE value END,
            CASE type WHEN 'array' THEN json_extract(value, '$[1]') END
        FROM blocks CROSS JOIN json_each(block)"""

    def __init__(self, db: sqlite3.Connection) -> None:
        from queue import Queue
        from tempfile import mkstemp
        from threading import Thread

        main = db.execute("PRAGMA database_list").fetchone()[2]
        # Beside the index, whose builder sweeps what one leaves that is killed at this very moment.
        fd, path = mkstemp(prefix=f"{os.path.basename(main)}-words-", dir=os.path.dirname(main) or None)
        os.close(fd)
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            for setting in _SETTINGS:
                self._db.execute(f"PRAGMA {setting}").close()
            self._db.execute(_WORDS)
            _configure(self._db, _FEW_MERGES)
            db.execute("ATTACH ? AS aside", (path,))
        finally:
            os.unlink(path)  # So that the system takes it back, whatever becomes of this process.
        self._db.create_function("next_block", 0, self._next_block)
        self._texts: dict[int, str | tuple[str, str]] = {}
        self._size = 0
        self._stopped = False
        self._error: BaseException | None = None
        self._queue: Queue[str | None] = Queue(_WAITING)
        self._thread = Thread(target=self._work, name="capsule-words", daemon=True)
        self._thread.start()

    def add(self, rows: Iterable[Row]) -> None:
        """Take in rows; soon they are handed over."""
        for num, content, tools in rows:
            # SQLite's JSON ends a text at a NUL; the tokenizer takes one for a space.
            folded = (content if content.isascii() else fold(content)).replace("\0", " ")
            self._texts[num] = folded if tools is None else (folded, fold(tools).replace("\0", " "))
            self._size += len(content) + len(tools or "")
            if self._size >= _BLOCK:
                self._hand_over()

    def end(self) -> None:
        """Nothing more is added."""
        if not self._stopped:
            self._hand_over()
            self._stopped = True
            self._queue.put(None)

    def finish(self, db: sqlite3.Connection) -> None:
        """Move what was indexed into `db`, whose own table is empty."""
        self.end()
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._db.close()
        with _forgetting(db):
            for table in ("data", "idx", "docsize"):
                db.execute(f"DELETE FROM words_{table}")
                db.execute(f"INSERT INTO main.words_{table} SELECT * FROM aside.words_{table}")
            _lift(db)

    def close(self) -> None:
        """Stop the thread, and give the temporary database back."""
        if not self._stopped:
            self._stopped = True
            self._queue.put(None)
        self._thread.join()
        self._db.close()

    def _hand_over(self) -> None:
        if self._error is not None:
            raise self._error
        if self._texts:
            self._queue.put(orjson.dumps(self._texts, option=orjson.OPT_NON_STR_KEYS).decode())
            self._texts, self._size = {}, 0

    def _next_block(self) -> str | None:
        return self._queue.get()

    def _work(self) -> None:
        try:
            self._db.execute(self._ALL).close()
        except BaseException as error:
            self._error = error
            while self._queue.get() is not None:  # So that nobody waits for a place in it.
                pass


_ASIDE: dict[int, _Aside] = {}
