"""The index of a store's conversations: bring it up to date, then read it in one transaction.

The index is an SQLite database that each engine fills from its documents. `Index` is the base
class. An engine overrides `_update_rows`, which brings the rows up to date, and `_fill`, which
fills an empty database. `IndexQueries` has the queries and calls `Index.query`. Between queries,
the object keeps the heads in memory, sorted, and what each agent may not read. A query reads again
only the rows that changed.

A database that is damaged or cannot be written is replaced: `_with_current_rows` deletes it and
tries again, at last in memory. A caller sees no error of it, unless that one fails too.

What must stay true: a result is that of the documents at the time of the query or later, whoever
wrote them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from capsule.engines.index.database import (
    IndexDatabase,
    Progress,
    UnusableIndex,
    is_busy,
    is_unusable,
)
from capsule.engines.index.visibility import SEES_ALL, VisibilityFilter, hide
from capsule.errors import CapsuleError, InvalidInput, StoreBusy

if TYPE_CHECKING:
    from capsule.engines.changes import Change
    from capsule.engines.cursor_seal import CursorSeal
    from capsule.engines.files.disk.derived import DerivedFiles
    from capsule.engines.local_documents import LocalDocuments
    from capsule.engines.questions.change_cursors import JournalEnd
    from capsule.engines.questions.heads import HeadCache
    from capsule.format.documents.head import Head
    from capsule.rules.policy import Viewer

T = TypeVar("T")
_TRIES = 4


class Index:
    """The index of the conversations of an engine. Several threads may use it.

    A subclass overrides `_update_rows` and `_fill`. Its `_update_rows` calls `_mark_stale` for each
    row that it changes, and sets `_complete_until_ns`.

    Args:
        derived: The directory of its file. None: it is in memory.
        prefix: The part of a conversation's path before its id.

    Attributes:
        generation: Identifies one build of the index: 16 hexadecimal digits.
        journal_ends: By agent: how far the journal was read for it.
    """

    def __init__(self, derived: DerivedFiles | None, prefix: str) -> None:
        self._prefix = prefix
        self._thread_lock = threading.RLock()
        self._database = IndexDatabase(derived, self._fill)
        self._pid = os.getpid()
        self.generation = ""
        #: The thread that reads within a transaction (0: none), and its connection.
        self._reader: tuple[int, Any] = 0, None
        _all_indexes.add(self)
        self._reset()

    def _reset(self) -> None:
        """Forget everything about the rows."""
        self._head_cache: HeadCache | None = None
        #: The conversations whose rows changed since their heads were read.
        self._stale_ids: set[str] = set()
        #: The rows have everything that was acknowledged before this time.
        self._complete_until_ns = 0
        self.journal_ends: dict[str, JournalEnd] = {}
        self._seals: dict[str, CursorSeal] = {}

    # -- Bringing it up to date --------------------------------------------------------------------

    def refresh(self, ids: Iterable[str] | None = None, progress: Progress | None = None) -> None:
        """Bring the index up to date.

        Args:
            ids: The conversations. None: all.
            progress: Called with the number of bytes read and their total, if there is much to
                read.

        Raises:
            StoreBusy: Another process keeps the index from being written.
            Refused, StorageFailed: The system did not let the files be read.
        """
        self._with_current_rows(lambda: None, ids, progress)

    def _with_current_rows(
        self,
        operation: Callable[[], T],
        ids: Iterable[str] | None = None,
        progress: Progress | None = None,
    ) -> T:
        """Bring the index up to date and run an operation.

        If the database proves unusable, replace it and run the operation again.
        """
        if os.getpid() != self._pid:
            self._after_fork()
        with self._thread_lock:
            for tries in range(_TRIES):
                try:
                    self._update_rows(ids, progress)
                    return operation()
                except UnicodeEncodeError:
                    raise InvalidInput(
                        "half a character (a lone surrogate) cannot be stored"
                    ) from None
                except (sqlite3.Error, UnusableIndex) as error:
                    if is_busy(error):
                        raise StoreBusy(
                            "another process has been writing the index for too long; try again later",
                            id="",
                            holder="another process",
                        ) from error
                    if tries == _TRIES - 1 or not is_unusable(error):
                        raise
                    self._discard_all()
                    if tries == _TRIES - 2:
                        self._database.stay_in_memory(error)
            raise AssertionError

    def _discard_all(self) -> None:
        self._reset()
        self._database.discard()

    def _after_fork(self) -> None:
        self._thread_lock = threading.RLock()
        self._pid = os.getpid()
        self._reset()

    def _update_rows(self, ids: Iterable[str] | None, progress: Progress | None) -> None:
        """Bring the rows up to date, as `refresh` does."""
        raise NotImplementedError

    def _fill(self, db: sqlite3.Connection, progress: Progress | None) -> None:
        """Fill an empty index with all conversations."""
        raise NotImplementedError

    def _mark_stale(self, id: str) -> None:
        """Read the rows of a conversation again before the next result."""
        self._stale_ids.add(id)

    def query(
        self,
        asker: Viewer | None,
        run: Callable[[sqlite3.Connection, VisibilityFilter], T],
        ids: Iterable[str] | None = None,
        progress: Progress | None = None,
    ) -> T:
        """Bring the index up to date, as `refresh` does, and read it within one transaction.

        A query within another one reads the same state of the rows.

        Args:
            asker: The agent, if `run` needs its filter. None: `run` gets the filter of the owner.
            run: The query. It runs again if the database proves unusable.
            ids: For the owner: bring only these conversations up to date.
            progress: As for `refresh`.
        """
        reader, connection = self._reader
        if reader == threading.get_ident():
            if asker is None:
                return run(connection, SEES_ALL)
            return run(connection, self.hide(connection, self.hidden_conversations(asker)))

        def read() -> T:
            db = self._database.connection
            self.generation = self._database.generation
            db.execute("BEGIN")
            self._reader = threading.get_ident(), db
            try:
                return self.query(asker, run)
            finally:
                self._reader = 0, None
                db.execute("COMMIT")

        if asker is not None and ids:
            ids = None  # Other conversations too decide what the agent may read.
        return self._with_current_rows(read, ids, progress)

    def hide(self, db: Any, hidden: Mapping[str, int | None]) -> VisibilityFilter:
        """Return a filter for the next queries on `db`. See `visibility.hide`."""
        return hide(db, hidden)

    # -- Heads in memory. Call these within `query` only -------------------------------------------

    def head_cache(self) -> HeadCache:
        """Return the heads of all conversations, after reading those again that changed."""
        from capsule.engines.questions.heads import MAX_REPLACED, HeadCache

        if self._head_cache is None:
            self._head_cache = HeadCache(self._numbered_heads("gone = 0"))
        else:
            if len(self._stale_ids) > MAX_REPLACED:
                self._head_cache.forget_orders()
            for id in self._stale_ids:
                num, head = next(self._numbered_heads("gone = 0 AND id = ?", id), (0, None))
                self._head_cache.replace(id, num, head)
        self._stale_ids = set()
        return self._head_cache

    def hidden_conversations(self, asker: Viewer) -> dict[str, int | None]:
        """Return the conversations that an agent may not read. See `HeadCache.hidden`."""
        return self.head_cache().hidden(asker)

    def heads_where(self, condition: str, *values: str | int) -> Iterator[Head]:
        """Return the heads that meet an SQL condition on the row of a conversation.

        Args:
            condition: The condition.
            values: The values bound in it. With any, the heads are sorted by id.
        """
        order = " ORDER BY id" if values else ""
        rows = self._numbered_heads(f"{condition} AND gone = 0{order}", *values)
        return (head for _, head in rows)

    def _numbered_heads(self, condition: str, *values: str | int) -> Iterator[tuple[int, Head]]:
        """Return the heads that meet an SQL condition, each with the number of its row."""
        from capsule.engines.questions.heads import HEAD_COLUMNS, head_of

        rows = self._reader[1].execute(
            f"SELECT num, {HEAD_COLUMNS} FROM capsules WHERE {condition}", values
        )
        return ((num, head_of(tuple(columns), self._prefix)) for num, *columns in rows)

    def latest(self) -> Iterator[Head]:
        """Yield the heads of the valid conversations, the one that changed last first."""
        # Within one millisecond, the order of the files' own times decides.
        rows = self._reader[1].execute(
            "SELECT num FROM capsules WHERE gone = 0 AND damaged = '' "
            "ORDER BY updated_ms DESC, written DESC, id DESC"
        )
        for row in rows:
            yield from self.heads_where("num = ?", *row)

    def changes(
        self, db: sqlite3.Connection, since: str | None, limit: int
    ) -> tuple[list[Change], str]:
        """Return the changes of all conversations since a cursor, and the cursor after them."""
        from capsule.engines.index.tables import journal
        from capsule.engines.questions.change_cursors import ChangeCursor

        generation = self._database.generation
        complete_until_ms = self._complete_until_ns // 1_000_000
        end = ChangeCursor(generation, journal.newest_seq(db), complete_until_ms)
        if since is None:
            return [], str(end)
        cursor = ChangeCursor.parse(since)
        changes = journal.read(db, generation, cursor, limit)
        if changes is None:
            return journal.changes_by_file_time(db, cursor, end), str(end)
        if changes and len(changes) == limit:
            return changes, changes[-1].cursor
        return changes, str(end)

    def seal(self, agent: str, local: LocalDocuments) -> CursorSeal:
        """Return the seal of an agent's cursors."""
        if agent not in self._seals:
            from capsule.engines.cursor_seal import CursorSeal

            self._seals[agent] = CursorSeal(agent, local)
        return self._seals[agent]

    # -- The whole index ---------------------------------------------------------------------------

    def rebuild(self, progress: Progress | None = None) -> None:
        """Build the index again from the documents."""
        with self._thread_lock:
            with suppress(CapsuleError):  # If no file can be written, it is built in memory.
                self.drop()
            self.refresh(progress=progress)

    def drop(self) -> None:
        """Remove the index's files. The next query builds them again.

        Raises Refused, StorageFailed, StoreBusy.
        """
        with self._thread_lock:
            self._discard_all()
            self._database.drop()

    def close(self) -> None:
        """Close every file."""
        with self._thread_lock:
            self._database.forget()
            self._reset()


# -- Forking ---------------------------------------------------------------------------------------

_all_indexes: weakref.WeakSet[Index] = weakref.WeakSet()
#: The indexes whose thread locks `_before_fork` acquired.
_locked_indexes: list[Index] = []
_fork_lock = threading.RLock()


def _before_fork() -> None:
    """Wait until no thread uses an index. Locks that SQLite had would stay locked in the child."""
    _fork_lock.acquire()
    _locked_indexes[:] = list(_all_indexes)
    for index in _locked_indexes:
        index._thread_lock.acquire()


def _after_fork_in_parent() -> None:
    while _locked_indexes:
        _locked_indexes.pop()._thread_lock.release()
    _fork_lock.release()


def _after_fork_in_child() -> None:
    # An index makes a new thread lock when the child first uses it: its process id differs.
    global _fork_lock
    _locked_indexes.clear()
    _fork_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
