"""Run queries that are written for SQLite on the tables of the index in PostgreSQL.

What must stay true: a query has the same result. Expressions that only SQLite has are translated.
Where only one of both has an ability, the callers know it. A text in PostgreSQL can't have a NUL: a
noncharacter replaces it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

Row = tuple[Any, ...]
_NUL, _STAND_IN = "\0", "\U0010fffe"
#: A NUL in JSON, and the backslashes before it, which are pairs.
_ESCAPED = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_WORDS = (
    (re.compile(r"INDEXED BY \w+"), ""),
    (re.compile(r"\bCROSS JOIN (\w+ AS \w+ ON|json_each)"), r"JOIN \1"),
    (re.compile(r"json_each\(\?\)"), "json_array_elements_text(?::json) AS j(value)"),
    (re.compile(r"length\(CAST\((\w+) AS BLOB\)\)"), r"octet_length(\1)"),
    (re.compile(r"\binstr\("), "strpos("),
    (re.compile(r"typeof\((\w+)\.value\) = 'text'"), r"\1.number IS NULL"),
)


@cache
def _translated(statement: str) -> str:
    for pattern, words in _WORDS:
        statement = pattern.sub(words, statement)
    return statement.replace("%", "%%").replace("?", "%s")


class ResultCursor:
    """The result of a statement, with the methods of a cursor of SQLite."""

    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        self._cursor = cursor

    @property
    def description(self) -> Any:
        """The columns."""
        return self._cursor.description

    def fetchall(self) -> list[Row]:
        """All rows."""
        return [tuple(map(_given, row)) for row in self._cursor.fetchall()]

    def fetchone(self) -> Row | None:
        """The first row."""
        row = self._cursor.fetchone()
        return None if row is None else tuple(map(_given, row))

    def __iter__(self) -> Iterator[Row]:
        return iter(self.fetchall())


class IndexTables:
    """The tables, in a transaction that has their schema first in its search path.

    Args:
        connection: The connection.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> ResultCursor:
        """What a statement gives, with its values for `?`."""
        bound = list(map(_bound, values))
        if "json_each" in statement:
            bound = [
                _ESCAPED.sub(rf"\1{_STAND_IN}", each) if isinstance(each, str) else each
                for each in bound
            ]
        # A plan for any words would be one for common words.
        is_prepared = False if "tsquery" in statement else None
        return ResultCursor(
            self._connection.execute(
                _translated(statement), bound or None, binary=True, prepare=is_prepared
            )
        )

    def query(self, statement: str, *values: Any) -> list[Row]:
        """The rows of a statement in PostgreSQL's words, with its values for `%s`."""
        cursor = self._connection.execute(statement, values or None, binary=True)
        return cursor.fetchall() if cursor.description else []

    def pipeline(self) -> AbstractContextManager[Any]:
        """Statements of which nothing is asked are sent without waiting for each, while this is
        entered.
        """
        return self._connection.pipeline()

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Do a statement with each of these values."""
        self._connection.cursor().executemany(
            _translated(statement), [list(map(_bound, row)) for row in rows]
        )


def _bound(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(_NUL, _STAND_IN)
    return int(value) if isinstance(value, bool) else value


def _given(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(_STAND_IN, _NUL) if _STAND_IN in value else value
    return int(value) if isinstance(value, Decimal) else value
