"""The index of a store's conversations, and what all its questions share; `IndexQueries` has the
questions.

What must stay true: an answer is that of the files at the time of the question or later, whoever
wrote them; and an index that is of no use is built anew without an error.
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
    is_of_no_use,
)
from capsule.engines.index.visibility import SEES_ALL, VisibilityFilter, hide
from capsule.errors import CapsuleError, InvalidInput, StoreBusy

if TYPE_CHECKING:
    from capsule.engines.changes import Change
    from capsule.engines.cursor_seal import CursorSeal
    from capsule.engines.files.disk.derived import DerivedFiles
    from capsule.engines.index.heads import SortedHeads
    from capsule.engines.local_documents import LocalDocuments
    from capsule.engines.queries import Order
    from capsule.format.documents.head import Head
    from capsule.rules.policy import Viewer

T = TypeVar("T")
#: The number of agents for which the index remembers what they may not read.
_MOST = 1000
#: If more heads changed, sorting them anew is quicker than repairing their orders.
_MOST_REPAIRED = 1000
_TRIES = 4


class Index:
    """The index of the conversations of an engine, which says how it is brought up to date. Several
    threads may use it.

    Args:
        derived: Where its file lies; None: it is in memory.
        prefix: What stands before the id in the path of a conversation.
    """

    def __init__(self, derived: DerivedFiles | None, prefix: str) -> None:
        self._prefix = prefix
        self._guard = threading.RLock()
        self._database = IndexDatabase(derived, self._fill)
        self._pid = os.getpid()
        #: What tells this index from one that was built before: 16 hexadecimal digits.
        self.generation = ""
        #: The thread that reads within a transaction (0: none), and its connection.
        self._reader: tuple[int, Any] = 0, None
        _all.add(self)
        self._reset()

    def _reset(self) -> None:
        """Forget everything about the rows."""
        self._heads: dict[str, Head] | None = None
        #: The numbers of their rows, which stay; and they in the orders that were asked for.
        self.numbers: dict[str, int] = {}
        self._sorted: dict[str, SortedHeads] = {}
        self._stale: set[str] = set()
        #: Everything that was acknowledged before this time is in the rows.
        self._fresh_ns = 0
        #: By agent, what it may not read.
        self._hidden: dict[str, tuple[Viewer, dict[str, int | None]]] = {}
        #: By agent: its last cursor, and the place up to which the journal has no change behind it
        #: for this agent.
        self.read_to: dict[str, tuple[str, str]] = {}
        self._seals: dict[str, CursorSeal] = {}

    # -- Bringing it up to date --------------------------------------------------------------------

    def refresh(self, ids: Iterable[str] | None = None, progress: Progress | None = None) -> None:
        """Bring the index up to date.

        Args:
            ids: Only as far as these conversations go; None: all.
            progress: Told how many bytes are done, and of how many, when there is much to do.

        Raises:
            StoreBusy: Another process keeps the index from being written.
            Refused, StorageFailed: The system did not let the files be read.
        """
        self._doing(lambda: None, ids, progress)

    def _doing(
        self,
        act: Callable[[], T],
        ids: Iterable[str] | None = None,
        progress: Progress | None = None,
    ) -> T:
        """Bring the index up to date, and do something with it; anew when it proves to be of no
        use.
        """
        if os.getpid() != self._pid:
            self._after_fork()
        with self._guard:
            for tries in range(_TRIES):
                try:
                    self._bring(ids, progress)
                    return act()
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
                    if tries == _TRIES - 1 or not is_of_no_use(error):
                        raise
                    self._throw_away()
                    if tries == _TRIES - 2:
                        self._database.stay_in_memory(error)
            raise AssertionError

    def _throw_away(self) -> None:
        self._reset()
        self._database.discard()

    def _after_fork(self) -> None:
        self._guard = threading.RLock()
        self._pid = os.getpid()
        self._reset()

    def _bring(self, ids: Iterable[str] | None, progress: Progress | None) -> None:
        """Bring the rows up to date, as `refresh` does."""
        raise NotImplementedError

    def _fill(self, db: sqlite3.Connection, progress: Progress | None) -> None:
        """Fill an empty index with all there is."""
        raise NotImplementedError

    def _changed(self, id: str) -> None:
        """Read these rows again before the next answer."""
        self._stale.add(id)

    def query(
        self,
        asker: Viewer | None,
        ask: Callable[[sqlite3.Connection, VisibilityFilter], T],
        ids: Iterable[str] | None = None,
        progress: Progress | None = None,
    ) -> T:
        """Bring the index up to date, as `refresh` does, and read it within one transaction.

        A question that is asked within another one is about the same state of the rows.

        Args:
            asker: Who asks, if `ask` takes what is hidden from it by numbers.
            ask: The question. It may run twice, when the index proves to be of no use.
            ids: Of the owner's questions: only these conversations are brought up to date.
            progress: As for `refresh`.
        """

        reader, db = self._reader
        if reader == threading.get_ident():
            return ask(db, SEES_ALL if asker is None else self.hide(db, self.hidden(asker)))

        def read() -> T:
            db, self.generation = self._database.connection, self._database.generation
            db.execute("BEGIN")
            self._reader = threading.get_ident(), db
            try:
                return self.query(asker, ask)
            finally:
                self._reader = 0, None
                db.execute("COMMIT")

        # Who may read these conversations depends on others.
        return self._doing(read, ids if asker is None or not ids else None, progress)

    def hide(self, db: Any, hidden: Mapping[str, int | None]) -> VisibilityFilter:
        """Hide conversations from the questions to `db`; see `hidden.hide`."""
        return hide(db, hidden)

    # -- What is kept of the rows; within `query` only ---------------------------------------------

    def heads(self) -> dict[str, Head]:
        """The heads of all conversations, in no order, damaged ones among them. Not to
        be changed.
        """
        if self._heads is None:
            self._heads = {head.id: head for head in self.heads_where("TRUE")}
            self.numbers = dict(self._reader[1].execute("SELECT id, num FROM capsules").fetchall())
        else:
            if len(self._stale) > _MOST_REPAIRED:
                self._sorted = {}
            for id in self._stale:
                head = next(self.heads_where("id = ?", id), None)
                for order in self._sorted.values():
                    order.change(self._heads.get(id), head)
                self.numbers |= (
                    self._reader[1]
                    .execute("SELECT id, num FROM capsules WHERE id = ?", (id,))
                    .fetchall()
                )
                if head is None:
                    self._heads.pop(id, None)
                else:
                    self._heads[id] = head
                for sight, hidden in self._hidden.values():
                    hidden.pop(id, None)
                    if head is not None and (since := sight.readable_from_ms(head)) != 0:
                        hidden[id] = since
        self._stale = set()
        return self._heads

    def sorted_heads(self, order: Order) -> Iterable[Head]:
        """The same in an order. Costs sorting them for the first who asks, and little when some
        changed since.
        """
        from capsule.engines.index.heads import SortedHeads

        heads = self.heads()
        if order not in self._sorted:
            self._sorted[order] = SortedHeads(order, heads.values())
        return self._sorted[order]

    def heads_where(self, condition: str, *values: str | int) -> Iterator[Head]:
        """The heads that fit a condition about the row of a conversation."""
        from capsule.engines.index.heads import HEAD_COLUMNS, head_of

        question = f"SELECT {HEAD_COLUMNS} FROM capsules WHERE {condition} AND gone = 0"
        rows = self._reader[1].execute(f"{question} ORDER BY id" if values else question, values)
        return (head_of(row, self._prefix) for row in rows)

    def latest(self) -> Iterator[Head]:
        """The heads of the sound conversations, the one that changed last first."""
        # Within one millisecond, the files' own times tell.
        question = (
            "SELECT num FROM capsules WHERE gone = 0 AND damaged = '' ORDER BY updated_ms "
            "DESC, written DESC"
        )
        for row in self._reader[1].execute(f"{question}, id DESC"):
            yield from self.heads_where("num = ?", *row)

    def hidden(self, asker: Viewer) -> dict[str, int | None]:
        """What an agent may not read (None), or only from a time in milliseconds since 1970. Not to
        be changed.
        """
        heads = self.heads()
        sight, hidden = self._hidden.get(asker.agent, (None, {}))
        if sight is not asker and sight != asker:
            hidden = {
                id: since
                for id, head in heads.items()
                if (since := asker.readable_from_ms(head)) != 0
            }
            self._hidden.pop(
                next(iter(self._hidden)) if len(self._hidden) == _MOST else asker.agent, None
            )
            self._hidden[asker.agent] = asker, hidden
        return hidden

    def changes(
        self, db: sqlite3.Connection, since: str | None, limit: int
    ) -> tuple[list[Change], str]:
        """The changes of all conversations since a cursor, as the rows have them now, and the
        cursor behind them.
        """
        from capsule.engines.index.tables import journal

        generation = self._database.generation
        now = journal.Cursor(generation, journal.newest(db), self._fresh_ns // 1_000_000)
        if since is None:
            return [], str(now)
        cursor = journal.Cursor.of(since)
        changes = journal.read(db, generation, cursor, limit)
        if changes is None:
            return journal.since_time(db, cursor, now), str(now)
        return changes, changes[-1].cursor if len(changes) == limit and changes else str(now)

    def seal(self, agent: str, machine: LocalDocuments) -> CursorSeal:
        """The seal of an agent's cursors."""
        if agent not in self._seals:
            from capsule.engines.cursor_seal import CursorSeal

            self._seals[agent] = CursorSeal(agent, machine)
        return self._seals[agent]

    # -- The whole index ---------------------------------------------------------------------------

    def rebuild(self, progress: Progress | None = None) -> None:
        """Build the index anew from the files."""
        with self._guard:
            with suppress(CapsuleError):  # Where no file can be written it is made in memory.
                self.drop()
            self.refresh(progress=progress)

    def drop(self) -> None:
        """Remove the index's files; the next question has them built anew. Raises Refused,
        StorageFailed, StoreBusy.
        """
        with self._guard:
            self._throw_away()
            self._database.drop()

    def close(self) -> None:
        """Give back every descriptor."""
        with self._guard:
            self._database.forget()
            self._reset()


# -- Forking ---------------------------------------------------------------------------------------

_all: weakref.WeakSet[Index] = weakref.WeakSet()
_still: list[Index] = []
_forking = threading.RLock()


def _before_fork() -> None:
    """Wait until no thread is at work in an index: what SQLite had locked would stay so in the
    child.
    """
    _forking.acquire()
    _still[:] = list(_all)
    for index in _still:
        index._guard.acquire()


def _after_fork_in_parent() -> None:
    while _still:
        _still.pop()._guard.release()
    _forking.release()


def _after_fork_in_child() -> None:
    # Their guards are made anew when the child first uses them; the process id says so.
    global _forking
    _still.clear()
    _forking = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
