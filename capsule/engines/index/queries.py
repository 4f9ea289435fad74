"""Answer the queries of the owner or of one agent from the index.

`IndexQueries` implements `Queries`. Each method is one `Index.query`: it brings the index up to
date and reads it in one transaction. `last_valid_version` rebuilds a conversation from the rows
after its file was damaged.

What must stay true:

- A result is that of the documents at the time of the query or later, whoever wrote them.
- What an agent may not read is decided (by `capsule.rules`) from the heads of the same
  transaction, and counts in no result.
- An agent's cursors are sealed (see `cursor_seal`).
- A list imports nothing that only reading messages needs, so that it starts quickly.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import orjson

from capsule.engines.index.heads import HEAD_COLUMNS, head_of
from capsule.engines.index.visibility import SEES_ALL, VisibilityFilter
from capsule.timestamps import from_ms

if TYPE_CHECKING:
    from capsule.engines.changes import Change, Changes
    from capsule.engines.index.index import Index
    from capsule.engines.index.search.search import SearchPage
    from capsule.engines.index.tables.filters import FilterMatcher
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

T = TypeVar("T")
#: The fields of a document before its metadata.
_DOCUMENT_FIELDS = ("id", "title", "version", "createdAt", "updatedAt")
#: Fields of a `Head` that are not in the metadata, or not as the document has them.
_NO_METADATA = ("path", "bytes", "conflicts", "imported")


def last_valid_version(
    db: sqlite3.Connection, id: str
) -> tuple[dict[str, Any], frozenset[str]] | None:
    """Return a conversation as the index has it, and the ids of the messages that lack fields.

    The index has only the fields of a message that filters need. A message whose bytes do not have
    the recorded digest lacks some.

    Returns: None if the index does not have the conversation. Cost: reading its rows.
    """
    # Only a damaged file needs these. A list must not wait for them.
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
    conversation_num, current, context_checksum, *head_columns = row
    head = head_of(tuple(head_columns), "").as_json() | {"currentNode": current}
    metadata = new_metadata()
    for name, value in head.items():
        if value and name not in _DOCUMENT_FIELDS and name not in _NO_METADATA:
            metadata[name] = value
    document: dict[str, Any] = {name: head[name] for name in _DOCUMENT_FIELDS}
    document["metadata"] = metadata
    if context_checksum == zlib.crc32(orjson.dumps(empty_context())):
        document["context"] = empty_context()
    history: list[dict[str, Any]] = []
    partial_ids: set[str] = set()
    for num, message_id, parent, role, sender, time_ms, content, digest in db.execute(
        "SELECT num, id, parent, role, sender, time_ms, content, digest FROM messages WHERE "
        "capsule = ? ORDER BY at",
        (conversation_num,),
    ):
        entry = {"role": role, "content": content, "timestamp": from_ms(time_ms), "id": message_id}
        if parent is not None:
            entry["parent"] = parent or None
        if sender:
            entry["from"] = sender
        facts = db.execute(
            f"SELECT path, value FROM facts WHERE message = ? AND type IN ({NUMBER}, {TEXT})",
            (num,),
        )
        with_facts = order_message(entry | {path: value for path, value in facts if path in FIELDS})
        indexed = messages_of([with_facts], [lines_of(with_facts)])
        if indexed is not None and indexed[0].digest == digest:
            history.append(with_facts)
        else:
            partial_ids.add(message_id)
            history.append(order_message(entry))  # Without facts: one may be of the metadata.
    document["history"] = history
    return document, frozenset(partial_ids)


class _VisibleChanges(NamedTuple):
    """Changes from the journal, with what an agent may read of them.

    Attributes:
        changes: The changes of all conversations.
        cursor: The cursor after them.
        hidden: As `Index.hidden_conversations`, for the changed conversations.
        positions: For each conversation that the agent reads in part: the positions of the
            messages that it may read, by their ids.
    """

    changes: list[Change]
    cursor: str
    hidden: dict[str, int | None]
    positions: dict[str, dict[str, int]]


class IndexQueries:
    """The queries of the owner or of one agent. See `Queries`, which describes the methods.

    Args:
        index: The index.
        asker: The agent. None: the owner.
        engine: The engine whose documents are in the index.
    """

    def __init__(self, index: Index, asker: Viewer | None, engine: Engine) -> None:
        self._index = index
        self._asker = asker
        self._engine = engine
        self._seal = None if asker is None else index.seal(asker.agent, engine.local)

    def _sealed(self, cursor: str) -> str:
        return cursor if self._seal is None else self._seal.seal(cursor)

    def _unsealed(self, cursor: str) -> str:
        return cursor if self._seal is None else self._seal.open(cursor)

    # -- Lists and searches ------------------------------------------------------------------------

    def conversations(self, request: ListRequest, progress: Progress | None = None) -> Listed:
        def read(db: sqlite3.Connection, _: VisibilityFilter) -> Listed:
            from capsule.engines.queries import Listed

            if request.order == "latest":
                latest = self._index.latest()
                visible = (
                    stripped for head in latest for stripped in self._without_partial_sizes([head])
                )
                heads = list(islice(visible, request.limit))
                return Listed(heads, {}, {}, len(heads), lambda _: None)
            if request.order is None:
                heads = request.of(self._without_partial_sizes(self._candidates(request)))
                return Listed(heads, {}, {}, len(heads), lambda _: None)
            return self._page(db, request, request.order)

        return self._index.query(None, read, None, progress)

    def _page(self, db: sqlite3.Connection, request: ListRequest, order: Any) -> Listed:
        """Return a page of a sorted list."""
        from capsule.engines.index.page_cursor import list_page

        heads = request.of(self._visible(self._index.sorted_heads(order)))
        cursor = self._unsealed(request.cursor) if request.cursor else ""
        unsealed = replace(request, cursor=cursor)
        page = list_page(db, heads, unsealed, self._index, self._hidden_conversations())

        def sealed_cursor(count: int) -> str | None:
            text = page._cursor(count)
            return self._sealed(text) if text else None

        heads = list(self._without_partial_sizes(page.heads))
        return replace(page, heads=heads, _cursor=sealed_cursor)

    def _candidates(self, request: ListRequest) -> Iterable[Head]:
        """Return the heads among which a list without an order selects."""
        if request.forks_of is not None:
            return self._index.heads_where("forked = ?", request.forks_of)
        if request.filter is not None and request.filter.locked:
            return self._index.heads_where("lock IS NOT NULL")
        return self._index.heads().values()

    def _hidden_conversations(self) -> dict[str, int | None]:
        """Return what the asker may not read. See `Index.hidden_conversations`."""
        return {} if self._asker is None else self._index.hidden_conversations(self._asker)

    def _visible(self, heads: Iterable[Head]) -> Iterable[Head]:
        """Return the heads that the asker may read."""
        hidden = self._hidden_conversations()
        if not hidden:
            return heads
        return [head for head in heads if hidden.get(head.id, 0) is not None]

    def _without_partial_sizes(self, heads: Iterable[Head]) -> Iterable[Head]:
        """Return the heads that the asker may read, without the sizes of files it reads in part."""
        hidden = self._hidden_conversations()
        visible = self._visible(heads)
        if not hidden:
            return visible
        return [replace(head, bytes=0) if head.id in hidden else head for head in visible]

    def facets(
        self, filter: Filter, folders: Mapping[str, str], progress: Progress | None = None
    ) -> Facets:
        from capsule.engines.queries import Facets

        def read(db: sqlite3.Connection, _: VisibilityFilter) -> Facets:
            return Facets.of(filter.of(self._visible(self._index.heads().values())), folders)

        return self._index.query(None, read, None, progress)

    def search(self, request: SearchRequest, progress: Progress | None = None) -> Found:
        from capsule.engines.index.search.search import check, search

        check(request)
        if request.cursor is None:
            unsealed = request
        else:
            unsealed = replace(request, cursor=self._unsealed(request.cursor))

        def read(db: sqlite3.Connection, visibility: VisibilityFilter) -> Found:
            if self._asker is not None:
                # The members of a damaged conversation are unknown, and the index still has the
                # messages of its last valid version.
                damaged = {id: None for id, head in self._index.heads().items() if head.damaged}
                visibility = self._index.hide(db, self._hidden_conversations() | damaged)
            generation = self._index.generation
            return search(db, unsealed, visibility, generation, *self._search_classes())

        page = self._index.query(None, read, None, progress)
        if page.cursor is None:
            return page
        return replace(page, cursor=self._sealed(page.cursor))

    def _search_classes(self) -> tuple[type[SearchPage], type[FilterMatcher]]:
        """Return the classes that search the tables of this index and match filters in them."""
        from capsule.engines.index.search.search import SearchPage
        from capsule.engines.index.tables.filters import FilterMatcher

        return SearchPage, FilterMatcher

    def messages(self, where: object, conversation: str | None = None) -> list[MessagePosition]:
        from capsule.engines.index.tables.filters import messages_with
        from capsule.format.filters import parse

        filter = parse(where)
        _, matcher = self._search_classes()
        return self._index.query(
            self._asker,
            lambda db, visibility: messages_with(db, filter, conversation, visibility, matcher),
        )

    def values(self, path: str, conversation: str) -> list[FieldValue]:
        from capsule.engines.index.tables import filters

        return self._index.query(
            self._asker,
            lambda db, visibility: filters.values_of(db, path, conversation, visibility),
        )

    def stats(self, progress: Progress | None = None) -> Stats:
        from capsule.engines.index.statistics import count

        return self._index.query(self._asker, count, None, progress)

    # -- Changes -----------------------------------------------------------------------------------

    def changes(self, since: str | None, limit: int, *, refresh: bool = True) -> Changes:
        from capsule.engines.changes import Changes

        cursor = None if since is None else self._journal_cursor(since)
        ids = None if refresh else ()
        if self._asker is None:
            return Changes(
                *self._index.query(None, lambda db, _: self._index.changes(db, cursor, limit), ids)
            )
        changes, end = self._visible_changes(self._asker, cursor, limit, ids)
        return Changes([*map(self._with_sealed_cursors, changes)], self._sealed(end))

    def advance(self, cursor: str, messages: int = 0) -> str:
        from capsule.engines.index.tables import journal

        return self._sealed(journal.advance(self._journal_cursor(cursor), messages))

    def _journal_cursor(self, cursor: str) -> str:
        """Return the journal cursor.

        If an agent gives an owner's cursor, use only its time. The sequence number would reveal how
        many changes there were.
        """
        if self._asker is None or "." not in cursor:
            return self._unsealed(cursor)
        from capsule.engines.index.tables.journal import Cursor

        return str(Cursor.parse(cursor)._replace(generation="0", seq=0, skip=0))

    def _with_sealed_cursors(self, change: Change) -> Change:
        """Seal the cursors of a change. A change of one message needs no cursor of a part."""
        before = self._sealed(change.before) if len(change.messages) > 1 else ""
        return replace(change, cursor=self._sealed(change.cursor), before=before)

    def _visible_changes(
        self, asker: Viewer, since: str | None, limit: int, ids: Iterable[str] | None
    ) -> tuple[list[Change], str]:
        """Return the changes that an agent may know of, and the cursor after the last of them.

        A change that the agent may not know of does not move its cursor. So the journal is read
        from `Index.journal_ends`: the position up to which this agent has no further change.
        """
        from capsule.engines.index.tables import journal

        visible: list[Change] = []
        read_until, last_cursor = self._index.journal_ends.get(asker.agent, ("", ""))
        begin = read_until if since == last_cursor else since
        position = begin
        refreshed_ids = ids
        while True:
            count = limit - len(visible)
            batch = self._changes_with_visibility(asker, position, count, refreshed_ids)
            for change in batch.changes:
                visible += self._visible_parts(change, batch)
            if len(batch.changes) < count or len(visible) == limit:
                break
            position = batch.cursor
            refreshed_ids = ()
        end = batch.cursor if visible or since is None else since
        has_moved = (
            visible
            and begin is not None
            and not journal.is_same_position(visible[-1].cursor, begin)
        )
        if has_moved:  # Otherwise the changes were found by file times, and have no position.
            end = visible[-1].cursor
        self._index.journal_ends[asker.agent] = batch.cursor, end
        return visible, end

    @staticmethod
    def _visible_parts(change: Change, batch: _VisibleChanges) -> list[Change]:
        """Return what an agent may know of a change, as one change, two or none."""
        from capsule.engines.index.tables import journal

        if change.id not in batch.hidden:
            return [change]
        visible_from_ms = batch.hidden[change.id]
        if visible_from_ms is None:
            return []
        positions = batch.positions.get(change.id, {})
        return journal.visible_part(change, visible_from_ms, positions)

    def _changes_with_visibility(
        self, asker: Viewer, since: str | None, limit: int, ids: Iterable[str] | None
    ) -> _VisibleChanges:
        """Return changes since a cursor of the journal, with what an agent may read of them.

        For a deleted conversation, the version in the trash decides.
        """
        from capsule.engines.index.tables.participation import unread_positions
        from capsule.engines.read_marks import UnreadFilter

        def read(db: sqlite3.Connection, _: VisibilityFilter) -> tuple[_VisibleChanges, set[str]]:
            changes, cursor = self._index.changes(db, since, limit)
            changed_ids = {change.id for change in changes}
            all_hidden = self._index.hidden_conversations(asker)
            hidden = {id: all_hidden[id] for id in changed_ids & all_hidden.keys()}
            positions = {}
            for id, visible_from_ms in hidden.items():
                if visible_from_ms is not None:
                    matches = unread_positions(
                        db, UnreadFilter(since_ms=visible_from_ms), id, SEES_ALL
                    )
                    positions[id] = {message.message: message.position for message in matches}
            deleted_ids = changed_ids - self._index.heads().keys()
            return _VisibleChanges(changes, cursor, hidden, positions), deleted_ids

        batch, deleted_ids = self._index.query(None, read, ids)
        if deleted_ids:
            from capsule.engines.interface import deleted_last

            documents = deleted_last(self._engine.trash, deleted_ids)
            for id in deleted_ids:
                if id not in documents:
                    batch.hidden[id] = None
                    continue
                visible_from_ms = asker.readable_from_ms_in(documents[id])
                if visible_from_ms != 0:
                    batch.hidden[id] = visible_from_ms
        return batch

    # -- Messages ----------------------------------------------------------------------------------

    def participations(
        self, agent: str, cached: Mapping[str, Participation] = {}, *, refresh: bool = True
    ) -> list[Participation]:
        from capsule.engines.index.tables.participation import participations

        def read(db: sqlite3.Connection, _: VisibilityFilter) -> list[Participation]:
            matches = participations(db, agent, cached)
            hidden = self._hidden_conversations()
            if not hidden:
                return matches
            return [item for item in matches if hidden.get(item.id, 0) is not None]

        return self._index.query(None, read, None if refresh else ())

    def unread_positions(
        self, unread_filter: UnreadFilter, conversation: str | None = None, *, refresh: bool = True
    ) -> list[MessagePosition]:
        from capsule.engines.index.tables.participation import unread_positions

        ids: tuple[str, ...] | None = None
        if not refresh:
            ids = ()
        elif conversation is not None:
            ids = (conversation,)
        return self._index.query(
            self._asker,
            lambda db, visibility: unread_positions(db, unread_filter, conversation, visibility),
            ids,
        )

    def summarize_unread(
        self, conversation: str, unread_filter: UnreadFilter, *, refresh: bool = True
    ) -> UnreadSummary:
        from capsule.engines.index.tables.participation import summarize_unread

        ids = (conversation,) if refresh else ()
        return self._index.query(
            self._asker,
            lambda db, visibility: summarize_unread(db, conversation, unread_filter, visibility),
            ids,
        )

    def ids_at(
        self, conversation: str, positions: Iterable[int], *, refresh: bool = True
    ) -> dict[int, tuple[str, str]]:
        from capsule.engines.index.tables.participation import ids_at

        ids = (conversation,) if refresh else ()
        return self._index.query(
            self._asker, lambda db, visibility: ids_at(db, conversation, positions, visibility), ids
        )

    def find(self, message: str, conversation: str | None = None) -> tuple[str, int] | None:
        from capsule.engines.index.tables.participation import find

        ids = None if conversation is None else (conversation,)
        return self._index.query(
            self._asker, lambda db, visibility: find(db, message, conversation, visibility), ids
        )

    def in_one_transaction(self, run: Callable[[], T]) -> T:
        return self._index.query(None, lambda db, _: run(), ())

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
