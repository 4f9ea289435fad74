"""Databases of other programs, in SQLite, opened so that reading one runs nothing that its file
defines.

What must stay true: nothing is written. Only real tables are read: a view, a virtual table and a
generated column are code of the file. A damaged or forged file ends in an error, and never in a
query without an end.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from capsule.errors import InvalidInput

#: So many steps of SQLite's machine may reading take, and so many more for each byte: the rows of
#: `llm` take a third.
_STEPS, _STEPS_OF_A_BYTE = 100_000_000, 5
#: How often they are counted.
_AT_ONCE = 100_000


@contextmanager
def opened_database(path: Path) -> Iterator[sqlite3.Connection]:
    """A database for reading only, also while another program writes it.

    Args:
        path: The file. One with a log that is not there is read as it is: opening it would make the
            log.

    Raises:
        InvalidInput: What was read is no table, or took more steps than a sound file of this size
            does.
        sqlite3.Error: The file is damaged.
    """
    log = Path(f"{path}-wal")
    with path.open("rb") as file:
        is_alone = file.read(20)[18:] == b"\x02\x02" and not log.exists()
    alone = "&immutable=1" if is_alone else ""
    size = path.stat().st_size + (log.stat().st_size if log.exists() else 0)
    left, reasons = (_STEPS + size * _STEPS_OF_A_BYTE) // _AT_ONCE, list[str]()

    def count() -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            reasons.append("reading it takes far more steps than a sound file of its size does")
        return left < 0

    def admit(
        action: int, name: str | None, column: str | None, database: str | None, source: str | None
    ) -> int:
        """Whether a table may be read; `source` is the view or the query that does it."""
        for table in (
            (name, source) if action in (sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT) else ()
        ):
            if table in refused:
                reasons.append(f"{table} is {refused[table]}, and only tables are read")
                return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    uri = f"file:{quote(str(path.absolute()))}?mode=ro{alone}"
    with closing(sqlite3.connect(uri, uri=True, timeout=5)) as database:
        database.text_factory = lambda data: data.decode("utf-8", "replace")
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(max(size, 1 << 20), 1_000_000_000))
        database.set_progress_handler(count, _AT_ONCE)
        try:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA query_only = ON")
            refused = _refused(database)
            database.set_authorizer(admit)
            yield database
        except sqlite3.Error as error:
            if reasons:
                raise InvalidInput(f"the database is refused: {reasons[0]}") from error
            raise


def _refused(database: sqlite3.Connection) -> dict[str, str]:
    """The names that look like tables and are none, with the reasons."""
    refused = {}
    for name, type, sql in database.execute("SELECT name, type, sql FROM sqlite_master").fetchall():
        if type == "view" or (
            type == "table" and not re.match("create table ", str(sql), re.IGNORECASE)
        ):
            refused[name] = "a view" if type == "view" else "a virtual table"
        elif type == "table" and any(
            row[6]
            for row in database.execute(
                f'PRAGMA table_xinfo("{name.replace(chr(34), chr(34) * 2)}")'
            )
        ):
            refused[name] = "a table with generated columns"
    return refused
