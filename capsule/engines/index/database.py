"""Open the SQLite file of the index, build it, and replace it if it is unusable.

If there is no usable file, a process builds one under another name and renames it. SQLite finds the
write-ahead log `index.sqlite3-wal` by name. So a replacement, under the lock of `index.lock`,
removes first the old file, then its log, and then gives the new file the name. The new file is
complete and has no log. A process that opened the old file in between notices before it writes that
the name belongs to another inode. SQLite itself leaves the log alone when it closes a file without
a name.

What must stay true:

- A connection that writes has the file that has the name, or one that nobody will read any more, so
  that no two indexes share a write-ahead log.
- The file may be deleted, truncated or overwritten at any moment.
- Where no file can be written, the index is in memory.
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
#: The longest waits for another process that writes, and for one that builds the index, in seconds.
_BUSY_S = 30.0
_BUILD_TIMEOUT_S = 600.0
_POLL_S = 0.02
_TRIES = 8
_CACHE_KIB = 16 * 1024
#: A file that is being built need not be durable. Pages of 8 KiB hold more long messages as a
#: whole.
_BUILD_SETTINGS = (
    "page_size = 8192",
    "journal_mode = OFF",
    "synchronous = OFF",
    "main.locking_mode = EXCLUSIVE",
    f"cache_size = -{_CACHE_KIB}",
)

Progress = Callable[[int, int], None]
Fill = Callable[[sqlite3.Connection, Progress | None], None]


class UnusableIndex(Exception):
    """The file must be replaced. This error is not raised to callers of the engine."""


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def is_busy(error: Exception) -> bool:
    """Return whether another process locked the file for too long."""
    busy_codes = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return isinstance(error, sqlite3.Error) and _code(error) in busy_codes


def is_unusable(error: Exception) -> bool:
    """Return whether the file is the cause of an error, and not the statement."""
    if isinstance(error, UnusableIndex):
        return True
    if not isinstance(error, sqlite3.Error):
        return False
    return _code(error) in _FILE_ERRORS or "no such table" in str(error)


_FILE_ERRORS = frozenset(
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ("CORRUPT", "NOTADB", "IOERR", "CANTOPEN", "FULL", "READONLY", "PROTOCOL")
)


class IndexDatabase:
    """The database of one index in one process.

    Args:
        derived: The directory of the file. None: the index is in memory.
        fill: Fills an empty index with all conversations.

    Attributes:
        generation: Identifies one build of the index. See `Index`.
    """

    def __init__(self, derived: DerivedFiles | None, fill: Fill) -> None:
        self._derived_or_none = derived
        self._fill = fill
        self._connection: sqlite3.Connection | None = None
        #: The inode of the open file. 0: the index is in memory, or not open.
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
        """Open the index, or build it.

        Returns: the connection, and whether it is to another index than the last time. Not
            thread-safe.

        Raises:
            sqlite3.Error, UnusableIndex: The file is the cause.
        """
        if self._connection is not None and os.getpid() == self._pid:
            derived = self._derived_or_none
            if derived is None or self._inode in (0, derived.inode(INDEX)):
                return self._connection, False
        self.forget()
        for _ in range(_TRIES):
            if self._is_in_memory or not (self._open() or self._build(progress)):
                self._fill_memory(progress)
            if self._connection is not None:
                return self._connection, True
        raise UnusableIndex("it keeps being replaced")

    def _open(self) -> bool:
        """Open the file. Return False if there is no usable one of this version."""
        inode = self._derived.inode(INDEX)
        if not inode:
            return False
        uri = f"file:{_quoted(self._derived.path(INDEX))}?mode=rw"
        db = None
        try:
            db = sqlite3.connect(
                uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            # The first read opens the log. Only after it, the inode shows whose log that is.
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
        """Build the index, unless another process has just built it. Return False if that fails."""
        try:
            release = self._lock()
        except CapsuleError as error:
            self.stay_in_memory(error)
            return False
        try:
            if self._open():
                return True
            self._sweep()
            self._build_file(progress)
        except (CapsuleError, sqlite3.OperationalError) as error:
            if self._is_filling and isinstance(error, CapsuleError):
                raise  # The documents can't be read.
            self.stay_in_memory(error)
            return False
        finally:
            self._is_filling = False
            release()
        return True

    def _lock(self) -> Callable[[], None]:
        """Wait for the lock of a build. Raises StoreBusy, and as `DerivedFiles.try_lock`.

        Returns: a function that releases it.
        """
        deadline = time.monotonic() + _BUILD_TIMEOUT_S
        while (release := self._derived.try_lock(_LOCK)) is None:
            if time.monotonic() > deadline:
                raise StoreBusy(
                    "another process takes too long to build it", id="", holder="another process"
                )
            time.sleep(_POLL_S)
        return release

    def _build_file(self, progress: Progress | None) -> None:
        """Build the index under another name, and replace the file."""
        temporary_name = f"{INDEX}-{os.urandom(6).hex()}.new"
        path = self._derived.make(temporary_name)
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            for setting in _BUILD_SETTINGS:
                db.execute(f"PRAGMA {setting}").close()
            self._fill_tables(db, progress)
            db.execute("PRAGMA main.locking_mode = NORMAL").close()
            db.execute("PRAGMA main.journal_mode = WAL").close()
            db.close()
            self._derived.remove(INDEX, *_LOGS)
            self._derived.install(temporary_name, INDEX)
        except BaseException:
            db.close()
            with suppress(CapsuleError):
                self._derived.remove(
                    temporary_name,
                    *(f"{temporary_name}-{log}" for log in ("wal", "shm", "journal")),
                )
            raise

    def _fill_tables(self, db: sqlite3.Connection, progress: Progress | None) -> None:
        # Imported here, as a list mostly writes nothing.
        from capsule.engines.index.search import words

        # Texts go through a temporary table. In memory it needs no directory.
        db.execute("PRAGMA temp_store = MEMORY")
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
        self._connection = db
        self._inode = 0
        self.generation = self._generation(db)

    def _sweep(self) -> None:
        """Remove files of builds that were killed. The caller has the lock."""
        for name in self._derived.names():
            if name.startswith(f"{INDEX}-") and ".new" in name:
                self._derived.remove(name)

    def stay_in_memory(self, error: Exception) -> None:
        """Use no file any more, because of an error, which is logged."""
        if not self._is_in_memory:
            self._is_in_memory = True
            _log.warning("the index can't be stored (%s); each process builds it in memory", error)

    def discard(self) -> None:
        """Remove this unusable index, so that the next `ensure` builds it. Not thread-safe."""
        inode = self._inode
        self.forget()
        if inode:
            with suppress(CapsuleError):
                self._remove(inode)

    def drop(self) -> None:
        """Remove any file of the index. Raises Refused, StorageFailed."""
        self.forget()
        if self._derived_or_none is not None:
            self._remove(None)

    def _remove(self, inode: int | None) -> None:
        """Remove the file with this inode (None: any), its logs, and files of killed builds."""
        release = self._lock()
        try:
            if inode in (None, self._derived.inode(INDEX)):
                self._derived.remove(INDEX, *_LOGS)
                self._sweep()
        finally:
            release()

    # -- The connection ----------------------------------------------------------------------------

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection that `ensure` opened last.

        Use it only with the thread lock of the index: SQLite crashes the process if one thread
        closes a connection that another one reads.
        """
        assert self._connection is not None
        return self._connection

    def forget(self) -> None:
        """Close the connection. In a forked child it is the parent's, and is only dropped."""
        connection = self._connection
        self._connection = None
        self._inode = 0
        if os.getpid() != self._pid:
            # Closing it would change files that the parent uses.
            _parents.append(connection)
            self._pid = os.getpid()
        elif connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def __del__(self) -> None:
        # A store that was not closed closes its files when it is deleted. Python 3.13 would warn.
        with suppress(AttributeError):
            self.forget()


#: Connections of a parent process, which the child must not close.
_parents: list[sqlite3.Connection | None] = []


def _quoted(path: str) -> str:
    """Return a path quoted for a URI."""
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
