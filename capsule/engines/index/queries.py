"""Answer the queries of one asker from the index.

`IndexQueries` has the queries. `last_valid_version` gives a conversation as the index had it last,
for the time when its file is damaged.

What must stay true:

- An answer is that of the documents at the time of the query or later, whoever wrote them.
- What the asker may not read is decided (elsewhere) by the heads of the same moment, and counts in
  no answer.
- An agent's cursors are sealed.
- A list imports nothing that only reading messages needs, so that it starts quickly.
- If the index does not have all fields of a message, `last_valid_version` says so; the digest
  tells.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from capsule.engines.index.heads import HEAD_COLUMNS, head_of
from capsule.engines.index.visibility import SEES_ALL, VisibilityFilter
from capsule.format.documents.head import Head
from capsule.timestamps import from_ms

if TYPE_CHECKING:
    from capsule.engines.changes import Change, Changes
    from capsule.engines.index.index import Index
    from capsule.engines.index.search.search import SearchPage
    from capsule.engines.index.tables.facts import FilterMatcher
    from capsule.engines.interface import Engine
    from capsule.engines.queries import (
        Facets,
        FieldValue,
        Filter,
        Found,
        Listed,
        ListRequest,
        Progress,
        SearchRequest,
        Stats,
    )
    from capsule.engines.read_marks import (
        MessagePosition,
        Participation,
        UnreadFilter,
        UnreadSummary,
    )
    from capsule.format.documents.head import Head
    from capsule.rules.policy import Viewer


_TOP = ("id", "title", "version", "createdAt", "updatedAt")
#: What is not of the document, or not all that it has.
_OF_THE_FILE = ("path", "bytes", "conflicts", "imported")


def last_valid_version(
    db: sqlite3.Connection, id: str
) -> tuple[dict[str, Any], frozenset[str]] | None:
    """Return a conversation as the index had it last, and the ids of the messages whose fields it
    does not all have.

    Returns: None if the index does not have the conversation. Cost: reading its rows.
    """
    # Only a damaged file needs these; a list must not wait for them.
    from capsule.engines.index.parsing import lines_of, messages_of
    from capsule.format.documents.creation import empty_context, new_metadata
    from capsule.format.facts import FIELDS, NUMBER, TEXT
    from capsule.format.json.canonical import order_message

    columns = HEAD_COLUMNS.replace("damaged", "''")
    row = db.execute(
        f"SELECT num, current, context, {columns} FROM capsules WHERE id = ? AND gone = 0 AND "
        "head IS NOT NULL",
        (id,),
    ).fetchone()
    if row is None:
        return None
    number, current, context, *fields = row
    head = head_of(tuple(fields), "").as_json() | {"currentNode": current}
    about = {
        name: value for name, value in head.items() if value and name not in _TOP + _OF_THE_FILE
    }
    document = {name: head[name] for name in _TOP} | {"metadata": new_metadata() | about}
    if context == zlib.crc32(orjson.dumps(empty_context())):
        document["context"] = empty_context()
    history, partial = [], set()
    for num, message, parent, role, sender, time_ms, content, digest in db.execute(
        "SELECT num, id, parent, role, sender, time_ms, content, digest FROM messages WHERE "
        "capsule = ? ORDER BY at",
        (number,),
    ):
        entry = {"role": role, "content": content, "timestamp": from_ms(time_ms), "id": message}
        entry |= ({} if parent is None else {"parent": parent or None}) | (
            {"from": sender} if sender else {}
        )
        facts = db.execute(
            f"SELECT path, value FROM facts WHERE message = ? AND type IN ({NUMBER}, {TEXT})",
            (num,),
        )
        with_facts = order_message(entry | {path: value for path, value in facts if path in FIELDS})
        indexed = messages_of([with_facts], [lines_of(with_facts)])
        if indexed is not None and indexed[0].digest == digest:
            history.append(with_facts)
        else:
            partial.add(message)
            history.append(order_message(entry))  # Without the facts: one may be of the metadata.
    return document | {"history": history}, frozenset(partial)


T = TypeVar("T")


class IndexQueries:
    """The questions of one asker to an index. See `Queries`, which describes the methods.

    Args:
        index: The index.
        asker: Who asks; None: the owner.
        engine: The engine whose documents the index has.
    """

    def __init__(self, index: Index, asker: Viewer | None, engine: Engine) -> None:
        self._index = index
        self._asker = asker
        self._engine = engine
        self._seal = None if asker is None else index.seal(asker.agent, engine.local)

    def _sealed(self, cursor: str) -> str:
        return cursor if self._seal is None else self._seal.seal(cursor)

    def _opened(self, cursor: str) -> str:
        return cursor if self._seal is None else self._seal.open(cursor)

    # -- Lists and searches ------------------------------------------------------------------------

    def conversations(self, asked: ListRequest, progress: Progress | None = None) -> Listed:
        def read(db: sqlite3.Connection, _: VisibilityFilter) -> Listed:
            if asked.order == "latest":
                heads = [
                    *islice(
                        (shown for head in self._index.latest() for shown in self._shown([head])),
                        asked.limit,
                    )
                ]
            elif asked.order is None:
                heads = asked.of(self._shown(self._candidates(asked)))
            else:
                heads = asked.of(self._seen(self._index.sorted_heads(asked.order)))
                opened = replace(asked, cursor=asked.cursor and self._opened(asked.cursor))
                from capsule.engines.index.page_cursor import listed

                page = listed(db, heads, opened, self._index, self._hidden())
                return replace(
                    page,
                    heads=[*self._shown(page.heads)],
                    _cursor=lambda shown: (text := page._cursor(shown)) and self._sealed(text),
                )
            from capsule.engines.queries import Listed

            return Listed(heads, {}, {}, len(heads), lambda shown: None)

        return self._index.query(None, read, None, progress)

    def _candidates(self, asked: ListRequest) -> Iterable[Head]:
        if asked.forks_of is not None:
            return self._index.heads_where("forked = ?", asked.forks_of)
        if asked.filter is not None and asked.filter.locked:
            return self._index.heads_where("lock IS NOT NULL")
        return self._index.heads().values()

    def _hidden(self) -> dict[str, int | None]:
        """What the asker may not read, or only in part, as `Index.hidden` says it."""
        return {} if self._asker is None else self._index.hidden(self._asker)

    def _seen(self, heads: Iterable[Head]) -> Iterable[Head]:
        """Those that the asker may read."""
        hidden = self._hidden()
        return [head for head in heads if hidden.get(head.id, 0) is not None] if hidden else heads

    def _shown(self, heads: Iterable[Head]) -> Iterable[Head]:
        """The same, without the sizes of files that it reads in part."""
        hidden, seen = self._hidden(), self._seen(heads)
        return (
            [replace(head, bytes=0) if head.id in hidden else head for head in seen]
            if hidden
            else seen
        )

    def facets(
        self, asked: Filter, folders: Mapping[str, str], progress: Progress | None = None
    ) -> Facets:
        from capsule.engines.queries import Facets

        def read(db: sqlite3.Connection, _: VisibilityFilter) -> Facets:
            return Facets.of(asked.of(self._seen(self._index.heads().values())), folders)

        return self._index.query(None, read, None, progress)

    def search(self, asked: SearchRequest, progress: Progress | None = None) -> Found:
        from capsule.engines.index.search.search import check, search

        check(asked)
        if asked.cursor is not None:
            asked = replace(asked, cursor=self._opened(asked.cursor))

        def read(db: sqlite3.Connection, hidden: VisibilityFilter) -> Found:
            if self._asker is not None:
                # Whose a damaged file is can't be known, and its last sound messages are still in
                # the index.
                damaged = {id: None for id, head in self._index.heads().items() if head.damaged}
                hidden = self._index.hide(db, self._hidden() | damaged)
            return search(db, asked, hidden, self._index.generation, *self._searches())

        page = self._index.query(None, read, None, progress)
        return page if page.cursor is None else replace(page, cursor=self._sealed(page.cursor))

    def _searches(self) -> tuple[type[SearchPage], type[FilterMatcher]]:
        """What searches the tables of this index, and finds in them what filters fit."""
        from capsule.engines.index.search.search import SearchPage
        from capsule.engines.index.tables.facts import FilterMatcher

        return SearchPage, FilterMatcher

    def messages(self, where: object, conversation: str | None = None) -> list[MessagePosition]:
        from capsule.engines.index.tables.facts import messages_with
        from capsule.format.filters import parse

        parsed, finds = parse(where), self._searches()[1]
        return self._index.query(
            self._asker, lambda db, hidden: messages_with(db, parsed, conversation, hidden, finds)
        )

    def values(self, path: str, conversation: str) -> list[FieldValue]:
        from capsule.engines.index.tables import facts

        return self._index.query(
            self._asker, lambda db, hidden: facts.values_of(db, path, conversation, hidden)
        )

    def stats(self, progress: Progress | None = None) -> Stats:
        from capsule.engines.index.statistics import count

        return self._index.query(self._asker, count, None, progress)

    # -- Changes -----------------------------------------------------------------------------------

    def changes(self, since: str | None, limit: int, *, refresh: bool = True) -> Changes:
        from capsule.engines.changes import Changes

        place, ids = None if since is None else self._place(since), None if refresh else ()
        if self._asker is None:
            return Changes(
                *self._index.query(None, lambda db, _: self._index.changes(db, place, limit), ids)
            )
        changes, cursor = self._heard(self._asker, place, limit, ids)
        return Changes([*map(self._as_heard, changes)], self._sealed(cursor))

    def advance(self, cursor: str, messages: int = 0) -> str:
        from capsule.engines.index.tables import journal

        return self._sealed(journal.advance(self._place(cursor), messages))

    def _place(self, cursor: str) -> str:
        """The place in the journal. Of an owner's cursor an agent uses only the time: its number is
        a count.
        """
        if self._asker is None or "." not in cursor:
            return self._opened(cursor)
        from capsule.engines.index.tables.journal import Cursor

        return str(Cursor.of(cursor)._replace(generation="0", seq=0, skip=0))

    def _as_heard(self, change: Change) -> Change:
        before = (
            self._sealed(change.before) if len(change.messages) > 1 else ""
        )  # A part of it may be reported.
        return replace(change, cursor=self._sealed(change.cursor), before=before)

    def _heard(
        self, asker: Viewer, since: str | None, limit: int, ids: Iterable[str] | None
    ) -> tuple[list[Change], str]:
        """The changes that an agent hears of, and the cursor of the last one: no other change moves
        it.
        """
        from capsule.engines.index.tables import journal

        heard: list[Change] = []
        read_to, after = self._index.read_to.get(asker.agent, ("", ""))
        place = begin = read_to if since == after else since
        while True:
            wanted = limit - len(heard)
            changes, cursor, hidden, said = self._judged(asker, place, wanted, ids)
            for change in changes:
                if change.id not in hidden:
                    heard.append(change)
                elif (until := hidden[change.id]) is not None:
                    heard += journal.heard_since(change, until, said.get(change.id, {}))
            if len(changes) < wanted or len(heard) == limit:
                break
            place, ids = cursor, ()
        after = cursor if heard or since is None else since
        if (
            heard and begin is not None and not journal.is_at(heard[-1].cursor, begin)
        ):  # Else the files were asked.
            after = heard[-1].cursor
        self._index.read_to[asker.agent] = cursor, after
        return heard, after

    def _judged(
        self, asker: Viewer, since: str | None, limit: int, ids: Iterable[str] | None
    ) -> tuple[list[Change], str, dict[str, int | None], dict[str, dict[str, int]]]:
        """As `Index.changes`; and what is hidden of these conversations, and the places of what was
        said since.
        """
        from capsule.engines.index.tables.participation import unread_positions
        from capsule.engines.read_marks import UnreadFilter

        def read(db: sqlite3.Connection, _: VisibilityFilter) -> Any:
            changes, cursor = self._index.changes(db, since, limit)
            changed, all_hidden, said = (
                {change.id for change in changes},
                self._index.hidden(asker),
                {},
            )
            hidden = {id: all_hidden[id] for id in changed & all_hidden.keys()}
            for id, until in hidden.items():
                if until is not None:
                    places = unread_positions(db, UnreadFilter(since_ms=until), id, SEES_ALL)
                    said[id] = {place.message: place.place for place in places}
            return changes, cursor, hidden, said, changed - self._index.heads().keys()

        changes, cursor, hidden, said, gone = self._index.query(None, read, ids)
        if gone:
            from capsule.engines.interface import deleted_last

            deleted = deleted_last(self._engine.trash, gone)
            since_of = {
                id: asker.readable_from_ms_in(deleted[id]) if id in deleted else None for id in gone
            }
            hidden |= {id: time for id, time in since_of.items() if time != 0}
        return changes, cursor, hidden, said

    # -- Messages ----------------------------------------------------------------------------------

    def participations(
        self, agent: str, known: Mapping[str, Participation] = {}, *, refresh: bool = True
    ) -> list[Participation]:
        from capsule.engines.index.tables.participation import participations

        def read(db: sqlite3.Connection, _: VisibilityFilter) -> list[Participation]:
            found = participations(db, agent, known)
            hidden = self._hidden()
            return (
                [each for each in found if hidden.get(each.id, 0) is not None] if hidden else found
            )

        return self._index.query(None, read, None if refresh else ())

    def unread_positions(
        self, wanted: UnreadFilter, conversation: str | None = None, *, refresh: bool = True
    ) -> list[MessagePosition]:
        from capsule.engines.index.tables.participation import unread_positions

        ids = () if not refresh else None if conversation is None else (conversation,)
        return self._index.query(
            self._asker, lambda db, hidden: unread_positions(db, wanted, conversation, hidden), ids
        )

    def summarize_unread(
        self, conversation: str, wanted: UnreadFilter, *, refresh: bool = True
    ) -> UnreadSummary:
        from capsule.engines.index.tables.participation import summarize_unread

        ids = (conversation,) if refresh else ()
        return self._index.query(
            self._asker, lambda db, hidden: summarize_unread(db, conversation, wanted, hidden), ids
        )

    def ids_at(
        self, conversation: str, places: Iterable[int], *, refresh: bool = True
    ) -> dict[int, tuple[str, str]]:
        from capsule.engines.index.tables.participation import ids_at

        ids = (conversation,) if refresh else ()
        return self._index.query(
            self._asker, lambda db, hidden: ids_at(db, conversation, places, hidden), ids
        )

    def find(self, message: str, conversation: str | None = None) -> tuple[str, int] | None:
        from capsule.engines.index.tables.participation import find

        ids = None if conversation is None else (conversation,)
        return self._index.query(
            self._asker, lambda db, hidden: find(db, message, conversation, hidden), ids
        )

    def in_one_transaction(self, ask: Callable[[], T]) -> T:
        return self._index.query(None, lambda db, _: ask(), ())

    def last_valid_version(self, conversation: str) -> tuple[dict[str, Any], frozenset[str]] | None:

        if self._asker is not None:
            return None
        return self._index.query(None, lambda db, _: last_valid_version(db, conversation), ())

    # -- The index itself --------------------------------------------------------------------------

    def refresh(
        self,
        ids: Iterable[str] | None = None,
        progress: Progress | None = None,
        *,
        anew: bool = False,
    ) -> None:
        if anew:
            self._index.rebuild(progress)
        else:
            self._index.refresh(ids, progress)
