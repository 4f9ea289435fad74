"""Runs the queries of the index, which are written for SQLite, on tables in PostgreSQL.

A statement is translated by a few replacements of text, and its values and results are converted.
The modules that build statements know what only one of the two databases can do.

What must stay true: a statement means the same in both databases. A text of PostgreSQL can hold no
NUL, so a character that is in no text takes its place.
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
_NUL = "\0"
#: Replaces NUL in the database. Unicode assigns no character to this number.
_NUL_REPLACEMENT = "\U0010fffe"
#: A NUL in JSON, and the backslashes before it, which are pairs.
_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
#: Patterns in SQL of SQLite, and the SQL of PostgreSQL in their place.
_REPLACEMENTS = (
    (re.compile(r"INDEXED BY \w+"), ""),
    (re.compile(r"\bCROSS JOIN (\w+ AS \w+ ON|json_each)"), r"JOIN \1"),
    (re.compile(r"json_each\(\?\)"), "json_array_elements_text(?::json) AS j(value)"),
    (re.compile(r"length\(CAST\((\w+) AS BLOB\)\)"), r"octet_length(\1)"),
    (re.compile(r"\binstr\("), "strpos("),
    (re.compile(r"typeof\((\w+)\.value\) = 'text'"), r"\1.number IS NULL"),
)


@cache
def _translated(statement: str) -> str:
    for pattern, replacement in _REPLACEMENTS:
        statement = pattern.sub(replacement, statement)
    return statement.replace("%", "%%").replace("?", "%s")


class ResultCursor:
    """The result of a statement, with the methods and values of a cursor of SQLite."""

    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        self._cursor = cursor

    @property
    def description(self) -> Any:
        """The columns."""
        return self._cursor.description

    def fetchall(self) -> list[Row]:
        """Return all rows."""
        return [tuple(map(_from_postgres, row)) for row in self._cursor.fetchall()]

    def fetchone(self) -> Row | None:
        """Return the next row, or None."""
        row = self._cursor.fetchone()
        return None if row is None else tuple(map(_from_postgres, row))

    def __iter__(self) -> Iterator[Row]:
        return iter(self.fetchall())


class IndexTables:
    """The tables of the index in one transaction, in place of a connection of SQLite.

    Args:
        connection: A connection in a transaction. The schema of the store is the first one in its
            search path.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> ResultCursor:
        """Run a statement of SQLite, with its values for `?`."""
        parameters = list(map(_to_postgres, values))
        if "json_each" in statement:
            parameters = [
                _ESCAPED_NUL.sub(rf"\1{_NUL_REPLACEMENT}", value)
                if isinstance(value, str)
                else value
                for value in parameters
            ]
        # PostgreSQL would plan a prepared statement for any words, as if they were common ones.
        is_prepared = False if "tsquery" in statement else None
        return ResultCursor(
            self._connection.execute(
                _translated(statement), parameters or None, binary=True, prepare=is_prepared
            )
        )

    def query(self, statement: str, *values: Any) -> list[Row]:
        """Return the rows of a statement of PostgreSQL, with its values for `%s`."""
        cursor = self._connection.execute(statement, values or None, binary=True)
        return cursor.fetchall() if cursor.description else []

    def query_once(self, statement: str, *values: Any) -> list[Row]:
        """Run a statement as `query` does, but have PostgreSQL plan it for these very values.

        A prepared statement would be planned for any values.
        """
        cursor = self._connection.execute(statement, values or None, binary=True, prepare=False)
        return cursor.fetchall()

    def pipeline(self) -> AbstractContextManager[Any]:
        """Send statements without waiting for the result of each, while the context is entered."""
        return self._connection.pipeline()

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement of SQLite once for each row of values."""
        self._connection.cursor().executemany(
            _translated(statement), [list(map(_to_postgres, row)) for row in rows]
        )


def _to_postgres(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(_NUL, _NUL_REPLACEMENT)
    return int(value) if isinstance(value, bool) else value


def _from_postgres(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(_NUL_REPLACEMENT, _NUL) if _NUL_REPLACEMENT in value else value
    return int(value) if isinstance(value, Decimal) else value
