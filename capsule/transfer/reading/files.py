"""Read one file of an import, wherever it is, and report what is damaged in it.

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

#: So many steps of SQLite's machine may reading take, and so many more for each byte: the rows of
#: `llm` take a third.
_STEPS, _STEPS_OF_A_BYTE = 100_000_000, 5
#: How often they are counted.
_AT_ONCE = 100_000


@contextmanager
def open_database(path: Path) -> Iterator[sqlite3.Connection]:
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


#: How much of a file tells its format, and how much of it is read at once, in bytes.
HEAD_BYTES, CHUNK_BYTES = 1 << 17, 1 << 20
#: Problems of one import that are reported in full; the others are counted.
_MOST_PROBLEMS = 1_000
#: How zips and files in Zstandard begin.
ZIP_MAGIC, ZSTD_MAGIC = (b"PK\x03\x04", b"PK\x05\x06"), b"\x28\xb5\x2f\xfd"
#: The largest database that is copied out of a zip, in bytes.
_LARGEST_DATABASE = 1 << 31
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
    """Something in a source that was damaged, and read around: where, and what."""

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
        """Note a damage."""
        self.count += 1
        if self.count <= _MOST_PROBLEMS:
            self.first.append(Damage(path, line, reason))


@dataclass
class SourceFile:
    """A file, wherever it is: on disk, in a zip, in memory.

    Attributes:
        name, size: Its path as people read it, in a zip after the path of the zip; and its size in
            bytes.
        opened: Opens the content.
        problems: Takes what is damaged.
        path: The file on disk; None: it is elsewhere.
        at: How many bytes were read in chunks.
        asked: The patterns of other files on disk that were asked for; None: they are not known.
        matching: Finds the files that match a pattern, relative to the folder of this one.
        is_named: Whether its path was given, so that it was not found in a folder or in a zip.
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
        """Report something damaged that is read around: the reason, and the line in this file (from
        1).
        """
        self.problems.add(self.name, reason, line)

    def near(self, path: str) -> Iterator[SourceFile]:
        """The files of the same folder, zip or disk that match a pattern, sorted; none that leads
        out of it.

        Args:
            path: Relative to this file's folder, POSIX, with `*`; `..` stands only at its
                beginning.
        """
        if self.path is not None and self.asked is not None:
            self.asked.add(path)
        if ".." in PurePosixPath(path.lstrip("./")).parts or path.startswith("/") or "\0" in path:
            return iter(())
        return self.matching(path)

    def chunks(self) -> Iterator[bytes]:
        """The content in pieces; what the system refuses to read is reported, and ends the file."""
        try:
            with self.opened() as file:
                self.at = 0
                while chunk := file.read(CHUNK_BYTES):
                    self.at += len(chunk)
                    yield chunk
        except READ_ERRORS as error:
            self.tell(f"can't be read to its end: {error}")

    def digest(self) -> str:
        """The digest of the content. Cost: reading it."""
        digest = blake2b(digest_size=16)
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.hexdigest()

    def digest_of_near(self, patterns: Iterable[str]) -> str:
        """The digest of the names, sizes and times of the files that match patterns."""
        digest = blake2b(digest_size=16)
        for pattern in sorted(patterns):
            for other in self.matching(pattern):
                assert other.path is not None
                digest.update(
                    f"{pattern}\0{other.name}\0{other.size}\0{other.path.stat().st_mtime_ns}\0".encode()
                )
        return digest.hexdigest()

    @cached_property
    def head(self) -> bytes:
        """The first 128 KiB."""
        try:
            with self.opened() as file:
                return file.read(HEAD_BYTES)
        except READ_ERRORS as error:
            self.tell(f"can't be read: {error}")
            return b""

    @property
    def is_packed(self) -> bool:
        """Whether it is a zip, or in Zstandard."""
        return self.head.startswith((*ZIP_MAGIC, ZSTD_MAGIC))

    @cached_property
    def tables(self) -> frozenset[str]:
        """The tables of a SQLite database; empty: it is none."""
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
        """The file as a SQLite database, read-only, also while another program writes it.

        It is copied first out of an archive. Raises InvalidInput, sqlite3.Error.
        """
        self.asked = None  # Its log is beside it, and changes under one's hands.
        if self.path is not None:
            with open_database(self.path) as database:
                yield database
            return
        with TemporaryDirectory(prefix="capsule-import-") as folder:
            copy = Path(folder, "database")
            with copy.open("wb") as out:
                for chunk in self.chunks():
                    out.write(chunk)
                    if out.tell() > _LARGEST_DATABASE:
                        raise sqlite3.DatabaseError(
                            "it is too large to be copied out of the archive"
                        )
            with open_database(copy) as database:
                yield database
