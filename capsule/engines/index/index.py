"""The index of a store's conversations, and the questions it answers.

What must stay true: an answer is that of the files at the time of the question or later, whoever wrote them; and an
index that is of no use is built anew without an error.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from capsule.engines.index.database import Progress
from capsule.engines.index.refreshing import Refreshing
from capsule.errors import CapsuleError
from capsule.format.documents.head import Head

if TYPE_CHECKING:
    from capsule.engines.answers import Behind, Listed, Mark, Mine, Place, Said, Stats, Value
    from capsule.engines.answers import Found as FoundHits
    from capsule.engines.changes import Change
    from capsule.engines.index.search.search import Asked

T = TypeVar("T")


class Index(Refreshing):
    """The index of one kind of document; see `Refreshing` for its arguments. Several threads may use it."""

    def heads(self, progress: Progress | None = None) -> list[Head]:
        """The heads of all conversations, in no order, damaged ones among them."""
        return self._doing(self._all_heads, None, progress)

    def _all_heads(self) -> list[Head]:
        from capsule.engines.index.heads import HEAD_COLUMNS, head_of

        assert self._seen is not None
        db = self._database.connection
        if self._heads is None:
            rows = db.execute(f"SELECT {HEAD_COLUMNS} FROM capsules WHERE gone = 0")
            self._heads = {row[0]: head_of(row, self._prefix) for row in rows}
        else:
            for id in self._stale:
                row = db.execute(f"SELECT {HEAD_COLUMNS} FROM capsules WHERE gone = 0 AND id = ?", (id,)).fetchone()
                if row is None:
                    self._heads.pop(id, None)
                else:
                    self._heads[id] = head_of(row, self._prefix)
        self._stale = set()
        return list(self._heads.values())

    def latest(self) -> str | None:
        """The id of the sound conversation that changed last; None when there is none."""
        # Within one millisecond, the files' own times tell.
        question = (
            "SELECT id FROM capsules WHERE gone = 0 AND damaged = ''"
            " ORDER BY updated_ms DESC, mtime_ns DESC, id DESC LIMIT 1"
        )
        return self.query(lambda db: next((str(id) for (id,) in db.execute(question)), None))

    def forks_of(self, id: str) -> list[str]:
        """The ids of the conversations that say they were split off from this one, sorted."""
        question = "SELECT id FROM capsules WHERE forked = ? AND gone = 0 ORDER BY id"
        return self.query(lambda db: [row[0] for row in db.execute(question, (id,))])

    def of_agent(self, agent: str, *, refresh: bool = True) -> list[Mine]:
        """The sound conversations that an agent takes part in, the latest first.

        As long as a conversation does not change, each answer has the same object for it. Costs a pass over the
        conversations of the agent; the first question also reads their heads. For `refresh` see `changes`.
        """
        from capsule.engines.index.participation import Participations

        def read(db: sqlite3.Connection) -> list[Mine]:
            if self._participations is None:
                self._participations = Participations()
            return self._participations.of_agent(db, agent)

        return self.query(read, None if refresh else ())

    def marks_at(self, conversation: str, places: Iterable[int], *, refresh: bool = True) -> dict[int, tuple[str, str]]:
        """The id of the message at each of these places, and the digest of the ids up to it. Costs a look-up for each.

        For `refresh` see `changes`.
        """
        from capsule.engines.index import participation

        ids = (conversation,) if refresh else ()
        return self.query(lambda db: participation.marks_at(db, conversation, places), ids)

    def recalled(self, conversation: str) -> tuple[dict[str, Any], frozenset[str]] | None:
        """A conversation as its file was when it was sound last, and the ids of its messages that had more fields.

        It is without its context, unless that was empty, and what else of its head no list has; None: the file was
        never sound. Costs reading the messages.
        """
        from capsule.engines.index.recalled import recalled

        return self.query(lambda db: recalled(db, conversation), ())

    def first_behind(self, conversation: str, marks: Sequence[Mark], *, refresh: bool = True) -> int:
        """The place behind the furthest of these marks that holds; 0: none does.

        For `refresh` see `changes`. Costs a look-up for each.
        """
        from capsule.engines.index import participation

        ids = (conversation,) if refresh else ()
        return self.query(lambda db: participation.first_behind(db, conversation, marks), ids)

    def place_of(self, conversation: str, message: str) -> int | None:
        """The place of a message; None: it is not there. Costs reading back to it."""
        from capsule.engines.index import participation

        return self.query(lambda db: participation.place_of(db, conversation, message), (conversation,))

    def conversation_of(self, message: str) -> tuple[str, int] | None:
        """The conversation and the place of a message; None: there is none.

        If several conversations have it, it is the one that the index met last. Costs reading back to it, over the
        messages of all conversations.
        """
        from capsule.engines.index import participation

        return self.query(lambda db: participation.conversation_of(db, message))

    def said_after(self, conversation: str, wanted: Behind, *, refresh: bool = True) -> Said:
        """What was said in a conversation, as far as it is wanted; nothing in one that is not there.

        For `refresh` see `changes`. Costs a tenth of a microsecond for each message from that place on, more if only
        mentions or a part are wanted, and reading the last one.
        """
        from capsule.engines.index import participation

        ids = (conversation,) if refresh else ()
        return self.query(lambda db: participation.said_after(db, conversation, wanted), ids)

    def behind(self, wanted: Behind, conversation: str | None = None, *, refresh: bool = True) -> list[Place]:
        """The wanted messages of a conversation, or of all (None), the latest first.

        For `refresh` see `changes`. Costs a look-up for each message that has what is wanted.
        """
        from capsule.engines.index import participation

        ids = None if conversation is None else (conversation,)
        return self.query(lambda db: participation.behind(db, wanted, conversation), ids if refresh else ())

    def locks(self) -> dict[str, dict[str, Any]]:
        """The active locks, by conversation."""
        question = "SELECT id, lock FROM capsules WHERE lock IS NOT NULL AND gone = 0"
        return self.query(lambda db: {id: json.loads(lock) for id, lock in db.execute(question)})

    def changes(self, since: str | None, limit: int, *, refresh: bool = True) -> tuple[list[Change], str]:
        """What changed since a cursor, oldest first, `limit` at most; and the cursor behind that.

        Args:
            since: A cursor; None: nothing is told, but the cursor of now.
            limit: The most that is told at once.
            refresh: Whether to bring the index up to date before; else what is told is what it has.

        Raises:
            InvalidInput: `since` is no cursor.
        """
        from capsule.engines.index import journal

        cursor = None if since is None else journal.Cursor.of(since)

        def ask(db: sqlite3.Connection) -> tuple[list[Change], str]:
            generation = self._database.generation
            now = journal.Cursor(generation, journal.newest(db), self._fresh_ns // 1_000_000)
            if cursor is None:
                return [], str(now)
            found = journal.read(db, generation, cursor, limit)
            if found is None:
                return journal.since_time(db, cursor, now), str(now)
            return found, found[-1].cursor if len(found) == limit and found else str(now)

        return self.query(ask, None if refresh else ())

    def query(
        self,
        ask: Callable[[sqlite3.Connection], T],
        ids: Iterable[str] | None = None,
        progress: Progress | None = None,
    ) -> T:
        """Bring the index up to date, as `refresh` does, and read it within one transaction.

        `ask` may run twice, when the index proves to be of no use.
        """

        def read() -> T:
            db = self._database.connection
            db.execute("BEGIN")
            try:
                return ask(db)
            finally:
                db.execute("COMMIT")

        return self._doing(read, ids, progress)

    def search(
        self,
        asked: Asked,
        now_ms: int,
        progress: Progress | None = None,
        hidden: Mapping[str, int | None] | None = None,
    ) -> FoundHits:
        """The hits of a checked question, asked at a time in milliseconds since 1970.

        `hidden` are conversations that are not found; with a number, only their messages before this time are not, in
        milliseconds since 1970. If it is given, also if it is empty, no score depends on what is hidden. That costs a
        pass over the messages, one over the matches of each word, and reading the texts that are ranked.
        """
        from capsule.engines.index.search.search import search

        return self.query(lambda db: search(db, asked, now_ms, hidden), progress=progress)

    def messages_with(
        self,
        where: object,
        conversation: str | None = None,
        *,
        hidden: Mapping[str, int | None] = MappingProxyType({}),
    ) -> list[Place]:
        """The messages that a filter fits, of one conversation or of all sound ones, each in its order.

        For `hidden` see `search`. Raises InvalidInput. Costs about half a microsecond for each value that is compared,
        and a look-up for each message that is found.
        """
        from capsule.engines.index import facts
        from capsule.engines.index.hidden import hide
        from capsule.format.filters import parse

        parsed = parse(where)
        return self.query(lambda db: facts.messages_with(db, parsed, conversation, hide(db, hidden)))

    def values_of(
        self, path: str, conversation: str, *, hidden: Mapping[str, int | None] = MappingProxyType({})
    ) -> list[Value]:
        """The numbers and texts that the messages of a conversation have at a path, the last one first.

        For `hidden` see `search`. Costs a look-up for each message of the conversation.
        """
        from capsule.engines.index import facts
        from capsule.engines.index.hidden import hide

        return self.query(lambda db: facts.values_of(db, path, conversation, hide(db, hidden)))

    def listed(
        self,
        choose: Callable[[list[Head]], list[Head]],
        limit: int | None,
        cursor: str,
        asked: str,
        progress: Progress | None = None,
        hidden: Mapping[str, int | None] = MappingProxyType({}),
    ) -> Listed:
        """A page of what `choose` gives of all heads. Raises InvalidInput when the cursor is of another list.

        `asked` says in any words what was asked. Messages that are hidden, as in `search`, are not counted.
        """
        from capsule.engines.index.pages import listed

        def read() -> Listed:
            return listed(self._database.connection, choose(self._all_heads()), limit, cursor, asked, hidden)

        return self._doing(read, None, progress)

    def stats(self, progress: Progress | None = None, hidden: Mapping[str, int | None] = MappingProxyType({})) -> Stats:
        """What is in the store, counted, without what is hidden, as in `search`. Costs a pass over the messages."""
        from capsule.engines.index.stats import count

        return self.query(lambda db: count(db, hidden), progress=progress)

    def rebuild(self, progress: Progress | None = None) -> None:
        """Build the index anew from the files."""
        with self._guard:
            with suppress(CapsuleError):  # Where no file can be written it is made in memory.
                self.drop()
            self.refresh(progress=progress)

    def drop(self) -> None:
        """Remove the index's files; the next question has them built anew. Raises Refused, StorageFailed, StoreBusy."""
        with self._guard:
            self._throw_away()
            self._database.drop()

    def close(self) -> None:
        """Give back every descriptor."""
        with self._guard:
            self._close_tracker()
            self._database.forget()
            self._reset()
