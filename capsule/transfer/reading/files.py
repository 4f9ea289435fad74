"""A file of an import, wherever it is, and what is damaged in it.

What must stay true: it is read in chunks. Only the modules of this folder open files.
"""

from __future__ import annotations

import sqlite3
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO

from capsule.errors import InvalidInput
from capsule.transfer.reading.databases import opened_database

#: How much of a file tells its format, and how much of it is read at once, in bytes.
HEAD, CHUNK = 1 << 17, 1 << 20
#: Problems of one import that are reported in full; the others are counted.
_MOST_PROBLEMS = 1_000
#: How zips and files in Zstandard begin.
ZIP, ZSTD = (b"PK\x03\x04", b"PK\x05\x06"), b"\x28\xb5\x2f\xfd"
#: The largest database that is copied out of a zip, in bytes.
_LARGEST_DATABASE = 1 << 31
DAMAGED = (
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
class File:
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
    matching: Callable[[str], Iterator[File]] = lambda path: iter(())
    at: int = 0
    asked: set[str] | None = field(default_factory=set)
    is_named: bool = False

    def tell(self, reason: str, line: int | None = None) -> None:
        """Report something damaged that is read around: the reason, and the line in this file (from
        1).
        """
        self.problems.add(self.name, reason, line)

    def near(self, path: str) -> Iterator[File]:
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
                while chunk := file.read(CHUNK):
                    self.at += len(chunk)
                    yield chunk
        except DAMAGED as error:
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
                return file.read(HEAD)
        except DAMAGED as error:
            self.tell(f"can't be read: {error}")
            return b""

    @property
    def is_packed(self) -> bool:
        """Whether it is a zip, or in Zstandard."""
        return self.head.startswith((*ZIP, ZSTD))

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
            with opened_database(self.path) as database:
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
            with opened_database(copy) as database:
                yield database
