"""The file of the index: opened, built aside and put into place, and built anew when anything is
wrong with it.

What must stay true: a connection that writes has the file that the name stands for, or one that
nobody will read any more, so that no two indexes share a write-ahead log; the index may be deleted,
cut short or overwritten at any moment; and where no file can be written, the index is in memory.

How a new file replaces the old one: SQLite finds `index.sqlite3-wal` by name. So under the lock of
`index.lock`, first the old file's name goes, then its log's, then the new file gets the name,
complete and without a log. A process that opened the old file in between sees that the name stands
for another one before it writes. SQLite itself leaves the log alone when it closes a file without a
name.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress

from capsule.engines.files.disk.derived import INDEX, DerivedFiles
from capsule.engines.index.tables import schema
from capsule.errors import CapsuleError, StoreBusy

_log = logging.getLogger("capsule")

_LOCK = "index.lock"
_LOGS = (f"{INDEX}-wal", f"{INDEX}-shm", f"{INDEX}-journal")
_BUSY_S = 30.0
_POLL_S = 0.02
_BUILT_S = 600.0
_TRIES = 8
_CACHE_KIB = 16 * 1024  # KiB
#: Nothing of it is durable until it is put into place. Pages of 8 KiB hold more of the longer
#: messages as a whole.
_BUILDING = (
    "page_size = 8192",
    "journal_mode = OFF",
    "synchronous = OFF",
    "main.locking_mode = EXCLUSIVE",
    f"cache_size = -{_CACHE_KIB}",
)

Progress = Callable[[int, int], None]
Fill = Callable[[sqlite3.Connection, Progress | None], None]


class UnusableIndex(Exception):
    """The file can't be used as it is. It never leaves this package."""


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def is_busy(error: Exception) -> bool:
    """Whether another process held the file for too long."""
    return isinstance(error, sqlite3.Error) and _code(error) in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    )


def is_unusable(error: Exception) -> bool:
    """Whether an error speaks against the file, and not against what was asked of it."""
    if isinstance(error, UnusableIndex):
        return True
    return isinstance(error, sqlite3.Error) and (
        _code(error) in _FILE_ERRORS or "no such table" in str(error)
    )


_FILE_ERRORS = frozenset(
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ("CORRUPT", "NOTADB", "IOERR", "CANTOPEN", "FULL", "READONLY", "PROTOCOL")
)


class IndexDatabase:
    """The database of one index in one process.

    Args:
        derived: Where it lies; None: in memory.
        fill: Fills an empty index with all there is.

    Attributes:
        generation: Tells this index from the one before it was built anew.
    """

    def __init__(self, derived: DerivedFiles | None, fill: Fill) -> None:
        self._derived_or_none = derived
        self._fill = fill
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._pid = os.getpid()
        self._is_in_memory = derived is None
        self._is_filling = False
        self.generation = ""

    @property
    def _derived(self) -> DerivedFiles:
        assert self._derived_or_none is not None
        return self._derived_or_none

    # -- Opening -----------------------------------------------------------------------------------

    def ensure(self, progress: Progress | None = None) -> tuple[sqlite3.Connection, bool]:
        """The connection that writes; and whether it is to another index than the last time. Not
        thread-safe.

        Raises:
            sqlite3.Error, Unusable: There is something wrong with the file.
        """
        is_same = os.getpid() == self._pid and (
            self._derived_or_none is None or self._inode in (0, self._derived_or_none.inode(INDEX))
        )
        if self._connection is not None and is_same:
            return self._connection, False
        self.forget()
        for _ in range(_TRIES):
            if self._is_in_memory or not (self._open() or self._build(progress)):
                self._fill_memory(progress)
            if self._connection is not None:
                return self._connection, True
        raise UnusableIndex("it keeps being replaced")

    def _open(self) -> bool:
        """Open the file, when there is a sound one of this version."""
        inode = self._derived.inode(INDEX)
        if not inode:
            return False
        uri = f"file:{_quoted(self._derived.path(INDEX))}?mode=rw"
        db = None
        try:
            db = sqlite3.connect(
                uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            # The first read opens the log; only then is it certain whose log that is.
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if self._derived.inode(INDEX) != inode:
                raise UnusableIndex("replaced while it was opened")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self.generation = self._generation(db)
        except BaseException as error:
            if db is not None:
                db.close()
            if isinstance(error, (sqlite3.DatabaseError, UnusableIndex)) and not is_busy(error):
                return False
            raise
        self._connection, self._inode = db, inode
        return True

    @staticmethod
    def _generation(db: sqlite3.Connection) -> str:
        if db.execute("PRAGMA user_version").fetchone()[0] != schema.VERSION:
            raise UnusableIndex("of another version")
        row = db.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()
        if row is None or not isinstance(row[0], str):
            raise UnusableIndex("without a generation")
        return row[0]

    # -- Building ----------------------------------------------------------------------------------

    def _build(self, progress: Progress | None) -> bool:
        """Build the index and put it into place, unless another process has just done so; False
        when it can't be.
        """
        try:
            release = self._lock()
        except CapsuleError as error:
            self.stay_in_memory(error)
            return False
        try:
            if self._open():
                return True
            self._sweep()
            self._build_aside(progress)
        except (CapsuleError, sqlite3.OperationalError) as error:
            if self._is_filling and isinstance(error, CapsuleError):
                raise  # It is the documents that can't be read.
            self.stay_in_memory(error)
            return False
        finally:
            self._is_filling = False
            release()
        return True

    def _lock(self) -> Callable[[], None]:
        """Wait for the lock of whoever builds. Raises StoreBusy, and as `DerivedFiles.try_lock`."""
        deadline = time.monotonic() + _BUILT_S
        while (release := self._derived.try_lock(_LOCK)) is None:
            if time.monotonic() > deadline:
                raise StoreBusy(
                    "another process takes too long to build it", id="", holder="another process"
                )
            time.sleep(_POLL_S)
        return release

    def _build_aside(self, progress: Progress | None) -> None:
        aside = f"{INDEX}-{os.urandom(6).hex()}.new"
        path = self._derived.make(aside)
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            for setting in _BUILDING:
                db.execute(f"PRAGMA {setting}").close()
            self._fill_tables(db, progress)
            db.execute("PRAGMA main.locking_mode = NORMAL").close()
            db.execute("PRAGMA main.journal_mode = WAL").close()
            db.close()
            self._derived.drop(INDEX, *_LOGS)
            self._derived.put(aside, INDEX)
        except BaseException:
            db.close()
            with suppress(CapsuleError):
                self._derived.drop(aside, *(f"{aside}-{log}" for log in ("wal", "shm", "journal")))
            raise

    def _fill_tables(self, db: sqlite3.Connection, progress: Progress | None) -> None:
        from capsule.engines.index.search import (
            words,
        )  # Only where something is written: a list mostly writes nothing.

        db.execute(
            "PRAGMA temp_store = MEMORY"
        )  # Texts go through a table there, and it needs no directory.
        db.execute("BEGIN")
        schema.create(db)
        if not db.in_transaction:
            db.execute("BEGIN")
        db.execute("INSERT INTO meta VALUES('generation', ?)", (os.urandom(8).hex(),))
        self._is_filling = True
        words.build(db, lambda: self._fill(db, progress))
        self._is_filling = False
        schema.finish(db)
        db.execute("COMMIT")

    def _fill_memory(self, progress: Progress | None) -> None:
        db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._fill_tables(db, progress)
        self._connection, self._inode, self.generation = db, 0, self._generation(db)

    def _sweep(self) -> None:
        """Drop what builders left that are dead; the lock is held."""
        for name in self._derived.names():
            if name.startswith(f"{INDEX}-") and ".new" in name:
                self._derived.drop(name)

    def stay_in_memory(self, why: Exception) -> None:
        """Use no file any more."""
        if not self._is_in_memory:
            self._is_in_memory = True
            _log.warning("the index can't be stored (%s); each process builds it in memory", why)

    def discard(self) -> None:
        """Have the index built anew by the next `ensure`, as this one is of no use. Not
        thread-safe.
        """
        inode = self._inode
        self.forget()
        if inode:
            with suppress(CapsuleError):
                self._remove(inode)

    def drop(self) -> None:
        """Have the index built anew, whatever lies there. Raises Refused, StorageFailed."""
        self.forget()
        if self._derived_or_none is not None:
            self._remove(None)

    def _remove(self, inode: int | None) -> None:
        """Remove the file with this inode (None: any), its logs, and what a builder left."""
        release = self._lock()
        try:
            if inode in (None, self._derived.inode(INDEX)):
                self._derived.drop(INDEX, *_LOGS)
                self._sweep()
        finally:
            release()

    # -- The connection ----------------------------------------------------------------------------

    @property
    def connection(self) -> sqlite3.Connection:
        """What `ensure` opened last. Only whoever holds the lock of the index uses it: SQLite
        crashes the process when one thread closes what another one reads."""
        assert self._connection is not None
        return self._connection

    def forget(self) -> None:
        """Close the connection. In a forked child it is the parent's, and only dropped."""
        connection, self._connection, self._inode = self._connection, None, 0
        if os.getpid() != self._pid:
            _parents.append(
                connection
            )  # Closing it would meddle with files that the parent is at work on.
            self._pid = os.getpid()
        elif connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def __del__(self) -> None:
        # A store that nobody closed gives its files back with itself, as the rest of it does;
        # Python 3.13 would warn.
        with suppress(AttributeError):
            self.forget()


#: Connections of a parent process, kept from being closed.
_parents: list[sqlite3.Connection | None] = []


def _quoted(path: str) -> str:
    """A path as it stands in a URI."""
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
