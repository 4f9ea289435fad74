"""Read one file of an import, wherever it is, and report its damage.

A `SourceFile` is on the disk, in a zip or in memory. It is read in chunks, or opened as the SQLite
database of another program. Only the modules of this folder open files.

Invariants for databases: nothing is written, and nothing that the file defines runs. Only real
tables are read. A view, a virtual table or a generated column in place of a table is refused, since
it is code of the file. A damaged or forged database ends in an error, never in an endless query.
"""

from __future__ import annotations

import re
import sqlite3
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO
from urllib.parse import quote

from capsule.errors import InvalidInput

#: The steps of SQLite's machine that reading may take: these, and more for each byte of the file.
#: The rows of `llm` take a third.
_MIN_STEPS = 100_000_000
_STEPS_PER_BYTE = 5
#: The steps between two calls of the handler that counts them.
_STEPS_PER_CALL = 100_000


@contextmanager
def open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for reading only, also while another program writes it.

    Args:
        path: The file. If it names a log (WAL) that is missing, it is opened as immutable, since
            SQLite would create the log.

    Raises:
        InvalidInput: A query reads something that is no table, or takes more steps than a sound
            file of this size does.
        sqlite3.Error: The file is damaged.
    """
    log = Path(f"{path}-wal")
    with path.open("rb") as file:
        uses_log = file.read(20)[18:] == b"\x02\x02"
    immutable = "&immutable=1" if uses_log and not log.exists() else ""
    size = path.stat().st_size
    if log.exists():
        size += log.stat().st_size
    remaining_calls = (_MIN_STEPS + size * _STEPS_PER_BYTE) // _STEPS_PER_CALL
    reasons: list[str] = []

    def count_steps() -> bool:
        """Return whether the query is to be interrupted."""
        nonlocal remaining_calls
        remaining_calls -= 1
        if remaining_calls < 0:
            reasons.append("reading it takes far more steps than a valid file of its size needs")
        return remaining_calls < 0

    def authorize(
        action: int, name: str | None, column: str | None, database: str | None, source: str | None
    ) -> int:
        """Refuse names that are no tables. `source` is the view or the query that reads one."""
        if action in (sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT):
            for table in (name, source):
                if table in refused:
                    reasons.append(f"{table} is {refused[table]}, and only tables are read")
                    return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    uri = f"file:{quote(str(path.absolute()))}?mode=ro{immutable}"
    with closing(sqlite3.connect(uri, uri=True, timeout=5)) as database:
        database.text_factory = lambda data: data.decode("utf-8", "replace")
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(max(size, 1 << 20), 1_000_000_000))
        database.set_progress_handler(count_steps, _STEPS_PER_CALL)
        try:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA query_only = ON")
            refused = _refused_names(database)
            database.set_authorizer(authorize)
            yield database
        except sqlite3.Error as error:
            if reasons:
                raise InvalidInput(f"the database is refused: {reasons[0]}") from error
            raise


def _refused_names(database: sqlite3.Connection) -> dict[str, str]:
    """Return the names that look like tables and are none, with the reasons."""
    refused = {}
    for name, type, sql in database.execute("SELECT name, type, sql FROM sqlite_master").fetchall():
        if type == "view":
            refused[name] = "a view"
        elif type != "table":
            continue
        elif not re.match("create table ", str(sql), re.IGNORECASE):
            refused[name] = "a virtual table"
        elif _has_generated_column(database, name):
            refused[name] = "a table with generated columns"
    return refused


def _has_generated_column(database: sqlite3.Connection, table: str) -> bool:
    quoted = table.replace('"', '""')
    is_hidden = 6  # The column of the pragma that is not 0 for a generated column.
    return any(row[is_hidden] for row in database.execute(f'PRAGMA table_xinfo("{quoted}")'))


#: The beginning of a file that decides its format, in bytes.
HEAD_BYTES = 1 << 17
#: The part of a file that is read at once, in bytes.
CHUNK_BYTES = 1 << 20
#: The problems of one import that are reported in full. The others are counted.
_MAX_PROBLEMS = 1_000
#: The beginnings of zips, and of files in Zstandard.
ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
#: The largest database that is copied out of a zip, in bytes.
_MAX_DATABASE_BYTES = 1 << 31
#: The errors that reading a damaged file raises.
READ_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    OSError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage in a source that was read around: its place, and the reason."""

    path: str
    line: int | None
    reason: str


@dataclass(slots=True)
class Problems:
    """The damage that an import found.

    Attributes:
        first: The first thousand of it.
        count: All of it.
    """

    first: list[Damage] = field(default_factory=list)
    count: int = 0

    def add(self, path: str, reason: str, line: int | None = None) -> None:
        """Record a damage."""
        self.count += 1
        if self.count <= _MAX_PROBLEMS:
            self.first.append(Damage(path, line, reason))


@dataclass
class SourceFile:
    """A file on the disk, in a zip or in memory.

    Attributes:
        name: Its path for people. In a zip, it follows the path of the zip.
        size: Its size in bytes.
        opened: Opens the content.
        problems: Gets its damage.
        path: The file on disk. None: it is elsewhere.
        at: The number of bytes that were read in chunks.
        asked: The patterns of other files on disk that `near` was called with. None: they are not
            known.
        matching: Finds the files that match a pattern, relative to the folder of this one.
        is_named: Whether its path was an argument, so that it was not found in a folder or in a zip.
    """

    name: str
    size: int
    opened: Callable[[], AbstractContextManager[IO[bytes]]]
    problems: Problems
    path: Path | None = None
    matching: Callable[[str], Iterator[SourceFile]] = lambda path: iter(())
    at: int = 0
    asked: set[str] | None = field(default_factory=set)
    is_named: bool = False

    def tell(self, reason: str, line: int | None = None) -> None:
        """Report damage that is read around.

        Args:
            reason: The damage.
            line: Its line in this file, from 1. None: it has no line.
        """
        self.problems.add(self.name, reason, line)

    def near(self, path: str) -> Iterator[SourceFile]:
        """Return the other files of the folder, zip or disk that match a pattern, sorted.

        A pattern that leads out of the folder matches nothing.

        Args:
            path: Relative to this file's folder, POSIX, with `*`. `..` may be only at its beginning.
        """
        if self.path is not None and self.asked is not None:
            self.asked.add(path)
        if ".." in PurePosixPath(path.lstrip("./")).parts or path.startswith("/") or "\0" in path:
            return iter(())
        return self.matching(path)

    def chunks(self) -> Iterator[bytes]:
        """Return the content in chunks. An error of the system is reported, and ends the file."""
        try:
            with self.opened() as file:
                self.at = 0
                while chunk := file.read(CHUNK_BYTES):
                    self.at += len(chunk)
                    yield chunk
        except READ_ERRORS as error:
            self.tell(f"can't be read to its end: {error}")

    def digest(self) -> str:
        """Return the digest of the content. Cost: reading it."""
        digest = blake2b(digest_size=16)
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.hexdigest()

    def digest_of_near(self, patterns: Iterable[str]) -> str:
        """Return the digest of the names, sizes and times of the files that match patterns."""
        digest = blake2b(digest_size=16)
        for pattern in sorted(patterns):
            for file in self.matching(pattern):
                assert file.path is not None
                time_ns = file.path.stat().st_mtime_ns
                digest.update(f"{pattern}\0{file.name}\0{file.size}\0{time_ns}\0".encode())
        return digest.hexdigest()

    @cached_property
    def head(self) -> bytes:
        """The first 128 KiB. Empty: it can't be read, which is reported."""
        try:
            with self.opened() as file:
                return file.read(HEAD_BYTES)
        except READ_ERRORS as error:
            self.tell(f"can't be read: {error}")
            return b""

    @property
    def is_packed(self) -> bool:
        """Whether the file is a zip, or in Zstandard."""
        return self.head.startswith((*ZIP_MAGIC, ZSTD_MAGIC))

    @cached_property
    def tables(self) -> frozenset[str]:
        """The tables of a SQLite database. Empty: the file is no database, or can't be read."""
        if not self.head.startswith(b"SQLite format 3\0"):
            return frozenset()
        try:
            with self.database() as database:
                return frozenset(
                    name for (name,) in database.execute("SELECT name FROM sqlite_master")
                )
        except (sqlite3.Error, InvalidInput) as error:
            self.tell(f"the database can't be read: {error}")
            return frozenset()

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """Open the file as a SQLite database, read-only, also while another program writes it.

        A database in an archive is copied out first. Raises InvalidInput, sqlite3.Error.
        """
        self.asked = None  # Its log is a file beside it, which may change at any time.
        if self.path is not None:
            with open_database(self.path) as database:
                yield database
            return
        with TemporaryDirectory(prefix="capsule-import-") as folder:
            copy = Path(folder, "database")
            with copy.open("wb") as out:
                for chunk in self.chunks():
                    out.write(chunk)
                    if out.tell() > _MAX_DATABASE_BYTES:
                        raise sqlite3.DatabaseError(
                            "it is too large to be copied out of the archive"
                        )
            with open_database(copy) as database:
                yield database
