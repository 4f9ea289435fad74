"""Write the rows of the index in a database, and the words of messages for PostgreSQL's search.

What must stay true: the words are those of the index of files, from the same tokenizer. A text that
is too long for PostgreSQL is found by the words that fit, and does not prevent others from being
indexed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import orjson

from capsule.engines.index.parsing import ConversationRow
from capsule.engines.index.search.query import fold
from capsule.engines.index.search.words import Title
from capsule.engines.index.tables.writer import IndexWriter, NumberedMessage
from capsule.engines.postgres.tables import IndexTables
from capsule.format.documents.head import Head
from capsule.format.facts import BOOL, IN_LIST, NULL, TEXT

_WORD = re.compile("[0-9a-z\x80-\U0010ffff]+")
#: PostgreSQL's limits: of places, of places of one word, and of the bytes of all; and ours of the
#: characters of a word.
_LAST_PLACE, _MOST_PLACES, _MOST_BYTES = 16383, 255, 900_000
LONGEST_WORD = 500
#: Between two texts in one list of words, so that no phrase is found across them.
_GAP = 8
_MESSAGE = (
    "INSERT INTO messages(num, capsule, at, front, id, parent, role, sender, time_ms, words, "
    "tokens, digest, active)"
    " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)"
)


class PostgresIndexWriter(IndexWriter):
    """Writes the rows in one transaction, which has the lock of the index.

    Args:
        tables: The tables.
        stamp: The column `stamp` of the written rows. A process reads rows with a newer one again.
        ids: The conversations that will be written.
    """

    def __init__(self, tables: IndexTables, stamp: int, ids: Iterable[str]) -> None:
        super().__init__(tables)  # type: ignore[arg-type]
        self._stamp = {"stamp": stamp}
        cursor = tables.execute(
            "SELECT * FROM capsules WHERE id IN (SELECT value FROM json_each(?))",
            (orjson.dumps(list(ids)).decode(),),
        )
        rows = [
            dict(zip((column[0] for column in cursor.description), row, strict=True))
            for row in cursor
        ]
        self._there: dict[str, ConversationRow] = {row["id"]: row for row in rows}

    def get(self, id: str) -> ConversationRow | None:
        return self._there.get(id)

    def _set(self, num: int, values: dict[str, Any]) -> None:
        super()._set(num, values | self._stamp)

    def _write(
        self,
        num: int,
        id: str,
        row: ConversationRow | None,
        values: dict[str, Any],
        head: Head | None = None,
    ) -> None:
        super()._write(num, id, row, values | self._stamp, head)

    def _insert_rows(self, placed: list[NumberedMessage]) -> None:
        rows = [(*place, *message[:7], message.digest) for place, message in placed]
        if rows:
            self._db.executemany(_MESSAGE, rows)
        facts = {(place[0], *fact) for place, message in placed for fact in message.facts}
        if facts:
            values = [
                (message, path, type, *_value(type, value)) for message, path, type, value in facts
            ]
            self._db.executemany(
                "INSERT INTO facts(message, path, type, value, number) VALUES(?, ?, ?, ?, ?)",
                values,
            )

    def _add_words(self, placed: list[NumberedMessage]) -> None:
        rows = []
        for place, message in placed:
            tools = vector(message.content, message.tools) if message.tools else None
            rows.append((place[0], vector(message.content), tools))
        if rows:
            self._db.executemany(
                "INSERT INTO words(num, vector, tools) VALUES(?, ?::tsvector, ?::tsvector)", rows
            )

    def _remove_words(self, column: str, number: int) -> None:
        where = f"num IN (SELECT num FROM messages WHERE {column} = ?)"
        self._db.execute(f"DELETE FROM words WHERE {where}", (number,))

    def _change_title(self, num: int, old: Title, new: Title) -> None:
        if old != new:
            self._db.execute("DELETE FROM names WHERE num = ?", (num,))
            title, tags = new
            if words := vector(title, *orjson.loads(tags)):
                self._db.execute(
                    "INSERT INTO names(num, vector) VALUES(?, ?::tsvector)", (num, words)
                )


def _value(type: int, value: str | float) -> tuple[str, str | None]:
    """A fact as text, and as a number, of which PostgreSQL's `numeric` has every digit."""
    if type & ~IN_LIST == TEXT:
        return str(value), None
    return (text := "0" if type in (NULL, NULL + IN_LIST) else _digits(type, value)), text


def _digits(type: int, value: str | float) -> str:
    return str(int(value)) if type & ~IN_LIST == BOOL else orjson.dumps(value).decode()


def vector(*texts: str) -> str:
    """The words of some texts with their places, as PostgreSQL reads a `tsvector`."""
    places: dict[str, list[int]] = {}
    at = size = 0
    for text in texts:
        for word in _WORD.findall(text.lower() if text.isascii() else fold(text)):
            at += 1
            word = word[:LONGEST_WORD]
            of_word = places.get(word)
            if of_word is None:
                size += 4 * len(word) + 8
                if size > _MOST_BYTES:
                    continue
                places[word] = [min(at, _LAST_PLACE)]
            elif len(of_word) < _MOST_PLACES:
                size += 2
                of_word.append(min(at, _LAST_PLACE))
        at += _GAP
    return " ".join([f"'{word}':{','.join(map(str, of_word))}" for word, of_word in places.items()])
