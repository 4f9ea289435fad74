"""Runs statements on the tables of the index, in one transaction.

Values have names: `%(name)s` in a statement is the value of this name.

What must stay true: a text of PostgreSQL can hold no NUL, so a character that is in no text takes
its place. It is replaced here, both ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

Row = tuple[Any, ...]
_NUL = "\0"
#: Replaces NUL in the database. Unicode assigns no character to this number.
_NUL_REPLACEMENT = "\U0010fffe"
_NO_VALUES: Mapping[str, Any] = {}


class IndexTables:
    """The tables of the index in one transaction.

    Args:
        connection: A connection in a transaction. The schema of the store is the first one in its
            search path.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def query(self, statement: str, values: Mapping[str, Any] = _NO_VALUES) -> list[Row]:
        """Run a statement, and return its rows. It is prepared when it has run several times.

        PostgreSQL plans a prepared statement for any values. Use it where the values do not matter.
        """
        return self._rows(statement, values, prepare=None)

    def query_once(self, statement: str, values: Mapping[str, Any] = _NO_VALUES) -> list[Row]:
        """Run a statement, and return its rows. PostgreSQL plans it for these very values."""
        return self._rows(statement, values, prepare=False)

    def _rows(
        self, statement: str, values: Mapping[str, Any], *, prepare: bool | None
    ) -> list[Row]:
        bound = {name: without_nul(value) for name, value in values.items()}
        cursor = self._connection.execute(statement, bound or None, binary=True, prepare=prepare)
        if not cursor.description:
            return []
        return [tuple(map(_with_nul, row)) for row in cursor.fetchall()]

    def copy(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows. Cost: two round trips, and none without rows."""
        present_rows = list(rows)
        if not present_rows:
            return
        statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in present_rows:
                copy.write_row([without_nul(value) for value in row])


def without_nul(value: Any) -> Any:
    """Return a value with each NUL in its texts replaced."""
    if isinstance(value, str):
        return value.replace(_NUL, _NUL_REPLACEMENT) if _NUL in value else value
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [text.replace(_NUL, _NUL_REPLACEMENT) for text in value]
    return value


def _with_nul(value: Any) -> Any:
    if isinstance(value, str) and _NUL_REPLACEMENT in value:
        return value.replace(_NUL_REPLACEMENT, _NUL)
    return value
