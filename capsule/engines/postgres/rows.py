"""Writes the rows of the index in a database, and the words of messages for PostgreSQL's search.

A list of words with their positions is a `tsvector`. `words` has one for each message, and another
one if the message calls tools. `names` has one for each title with its tags.

What must stay true: the words are those of the index of files, from the same tokenizer. A text that
is too long for a `tsvector` is found by the words that fit, and does not keep other texts from
being indexed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import orjson

from capsule.engines.index.parsing import ConversationRow
from capsule.engines.index.search.query import fold
from capsule.engines.index.search.words import TitleAndTags
from capsule.engines.index.tables.writer import IndexWriter, NumberedMessage
from capsule.engines.postgres.tables import IndexTables
from capsule.format.documents.head import Head
from capsule.format.facts import BOOL, IN_LIST, NULL, TEXT

_WORD = re.compile("[0-9a-z\x80-\U0010ffff]+")
#: Limits of a `tsvector`: the last position, the positions of one word, and the size in bytes (the
#: last one with a margin).
_LAST_POSITION = 16383
_MAX_POSITIONS = 255
_MAX_BYTES = 900_000
#: The characters of a word that are indexed.
LONGEST_WORD = 500
#: The number of positions between two texts in one list, so that no phrase is found across them.
_GAP = 8
_MESSAGE = (
    "INSERT INTO messages(num, capsule, at, front, id, parent, role, sender, time_ms, words, "
    "tokens, digest, active)"
    " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)"
)


class PostgresIndexWriter(IndexWriter):
    """Writes the rows, within one transaction that holds the lock of the index.

    Args:
        tables: The tables.
        stamp: The stamp for the rows of conversations that are written.
        ids: The conversations whose rows `get` returns. They are read at once.
    """

    def __init__(self, tables: IndexTables, stamp: int, ids: Iterable[str]) -> None:
        super().__init__(tables)  # type: ignore[arg-type]
        self._stamp = {"stamp": stamp}
        cursor = tables.execute(
            "SELECT * FROM capsules WHERE id IN (SELECT value FROM json_each(?))",
            (orjson.dumps(list(ids)).decode(),),
        )
        columns = [column[0] for column in cursor.description]
        rows = [dict(zip(columns, row, strict=True)) for row in cursor]
        self._row_by_id: dict[str, ConversationRow] = {row["id"]: row for row in rows}

    def get(self, id: str) -> ConversationRow | None:
        return self._row_by_id.get(id)

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

    def _insert_rows(self, numbered: list[NumberedMessage]) -> None:
        rows = [(*location, *message[:7], message.digest) for location, message in numbered]
        if rows:
            self._db.executemany(_MESSAGE, rows)
        facts = {(location[0], *fact) for location, message in numbered for fact in message.facts}
        if facts:
            values = [
                (message, path, type, *_value(type, value)) for message, path, type, value in facts
            ]
            self._db.executemany(
                "INSERT INTO facts(message, path, type, value, number) VALUES(?, ?, ?, ?, ?)",
                values,
            )

    def _add_words(self, numbered: list[NumberedMessage]) -> None:
        rows = []
        for location, message in numbered:
            with_tools = vector(message.content, message.tools) if message.tools else None
            rows.append((location[0], vector(message.content), with_tools))
        if rows:
            self._db.executemany(
                "INSERT INTO words(num, vector, tools) VALUES(?, ?::tsvector, ?::tsvector)", rows
            )

    def _remove_words(self, column: str, number: int) -> None:
        where = f"num IN (SELECT num FROM messages WHERE {column} = ?)"
        self._db.execute(f"DELETE FROM words WHERE {where}", (number,))

    def _change_title(self, num: int, old: TitleAndTags, new: TitleAndTags) -> None:
        if old != new:
            self._db.execute("DELETE FROM names WHERE num = ?", (num,))
            title, tags = new
            words = vector(title, *orjson.loads(tags))
            if words:
                self._db.execute(
                    "INSERT INTO names(num, vector) VALUES(?, ?::tsvector)", (num, words)
                )


def _value(type: int, value: str | float) -> tuple[str, str | None]:
    """Return a fact as text, and as a number if it is one.

    The number is given as text, as PostgreSQL's type `numeric` keeps every digit.
    """
    plain_type = type & ~IN_LIST
    if plain_type == TEXT:
        return str(value), None
    if type in (NULL, NULL + IN_LIST):
        number = "0"
    elif plain_type == BOOL:
        number = str(int(value))
    else:
        number = orjson.dumps(value).decode()
    return number, number


def vector(*texts: str) -> str:
    """Return the words of some texts with their positions, as the text of a `tsvector`."""
    positions_by_word: dict[str, list[int]] = {}
    position = 0
    size = 0
    for text in texts:
        folded = text.lower() if text.isascii() else fold(text)
        for full_word in _WORD.findall(folded):
            position += 1
            word = full_word[:LONGEST_WORD]
            positions = positions_by_word.get(word)
            if positions is None:
                size += 4 * len(word) + 8
                if size > _MAX_BYTES:
                    continue
                positions_by_word[word] = [min(position, _LAST_POSITION)]
            elif len(positions) < _MAX_POSITIONS:
                size += 2
                positions.append(min(position, _LAST_POSITION))
        position += _GAP
    lexemes = []
    for word, positions in positions_by_word.items():
        lexemes.append(f"'{word}':{','.join(map(str, positions))}")
    return " ".join(lexemes)
