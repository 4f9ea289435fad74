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
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from capsule.engines.index.visibility import SEES_ALL, VisibilityFilter
from capsule.engines.questions.heads import (
    HEAD_COLUMNS,
    head_of,
    visible_heads,
    without_partial_sizes,
)
from capsule.timestamps import from_ms

if TYPE_CHECKING:
    from capsule.engines.changes import Change, Changes
    from capsule.engines.index.index import Index
    from capsule.engines.interface import Engine
    from capsule.engines.queries import (
        Facets,
        FieldValue,
        Filter,
        Found,
        Listed,
        ListRequest,
        Order,
        Progress,
        SearchRequest,
        Stats,
    )
    from capsule.engines.questions.change_cursors import ChangeBatch
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
    from capsule.engines.questions.parsing import lines_of, messages_of
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

            hidden = self._hidden_conversations()
            if request.order == "latest":
                latest = self._index.latest()
                visible = (
                    stripped
                    for head in latest
                    for stripped in without_partial_sizes([head], hidden)
                )
                heads = list(islice(visible, request.limit))
                return Listed(heads, {}, {}, len(heads), lambda _: None)
            if request.order is None:
                heads = request.of(without_partial_sizes(self._candidates(request), hidden))
                return Listed(heads, {}, {}, len(heads), lambda _: None)
            return self._page(db, request, request.order, hidden)

        return self._index.query(None, read, None, progress)

    def _page(
        self,
        db: sqlite3.Connection,
        request: ListRequest,
        order: Order,
        hidden: Mapping[str, int | None],
    ) -> Listed:
        """Return a page of a sorted list."""
        from capsule.engines.index.tables.lists import count_messages
        from capsule.engines.queries import Listed
        from capsule.engines.questions.page_cursor import list_page

        cache = self._index.head_cache()
        heads = request.of(visible_heads(cache.sorted(order), hidden))
        cursor = self._unsealed(request.cursor) if request.cursor else ""
        page = list_page(heads, replace(request, cursor=cursor), self._index.generation, cache.nums)
        visibility = self._index.hide(
            db, {head.id: hidden[head.id] for head in page.heads if hidden.get(head.id)}
        )
        nums = [cache.nums[head.id] for head in page.heads]
        messages, models = count_messages(db, nums, visibility)

        def next_cursor(count: int) -> str | None:
            text = page.cursor(count, cache.nums)
            return self._sealed(text) if text else None

        listed = list(without_partial_sizes(page.heads, hidden))
        return Listed(listed, messages, models, len(heads), next_cursor)

    def _candidates(self, request: ListRequest) -> Iterable[Head]:
        """Return the heads among which a list without an order selects."""
        if request.forks_of is not None:
            return self._index.heads_where("forked = ?", request.forks_of)
        if request.filter is not None and request.filter.locked:
            return self._index.heads_where("lock IS NOT NULL")
        return self._index.head_cache().heads.values()

    def _hidden_conversations(self) -> dict[str, int | None]:
        """Return what the asker may not read. See `HeadCache.hidden`."""
        return {} if self._asker is None else self._index.hidden_conversations(self._asker)

    def facets(
        self, filter: Filter, folders: Mapping[str, str], progress: Progress | None = None
    ) -> Facets:
        from capsule.engines.queries import Facets

        def read(db: sqlite3.Connection, _: VisibilityFilter) -> Facets:
            heads = self._index.head_cache().heads.values()
            return Facets.of(filter.of(visible_heads(heads, self._hidden_conversations())), folders)

        return self._index.query(None, read, None, progress)

    def search(self, request: SearchRequest, progress: Progress | None = None) -> Found:
        from capsule.engines.index.search.search import MatchedRows
        from capsule.engines.questions.search import check, search

        check(request)
        if request.cursor is None:
            unsealed = request
        else:
            unsealed = replace(request, cursor=self._unsealed(request.cursor))

        def read(db: sqlite3.Connection, visibility: VisibilityFilter) -> Found:
            if self._asker is not None:
                # The members of a damaged conversation are unknown, and the index still has the
                # messages of its last valid version.
                heads = self._index.head_cache().heads
                damaged = {id: None for id, head in heads.items() if head.damaged}
                visibility = self._index.hide(db, self._hidden_conversations() | damaged)
            rows = MatchedRows(db, unsealed, visibility)
            return search(rows, unsealed, self._index.generation)

        page = self._index.query(None, read, None, progress)
        if page.cursor is None:
            return page
        return replace(page, cursor=self._sealed(page.cursor))

    def messages(self, where: object, conversation: str | None = None) -> list[MessagePosition]:
        from capsule.engines.index.tables.filters import messages_with
        from capsule.format.filters import parse

        filter = parse(where)
        return self._index.query(
            self._asker,
            lambda db, visibility: messages_with(db, filter, conversation, visibility),
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
        return self._visible_changes(self._asker, cursor, limit, ids)

    def advance(self, cursor: str, messages: int = 0) -> str:
        from capsule.engines.questions import change_cursors

        return self._sealed(change_cursors.advance(self._journal_cursor(cursor), messages))

    def _journal_cursor(self, cursor: str) -> str:
        """Return the journal cursor.

        If an agent gives an owner's cursor, use only its time. The sequence number would reveal how
        many changes there were.
        """
        if self._asker is None or "." not in cursor:
            return self._unsealed(cursor)
        from capsule.engines.questions.change_cursors import ChangeCursor

        return str(ChangeCursor.parse(cursor)._replace(generation="0", seq=0, skip=0))

    def _with_sealed_cursors(self, change: Change) -> Change:
        """Seal the cursors of a change. A change of one message needs no cursor of a part."""
        before = self._sealed(change.before) if len(change.messages) > 1 else ""
        return replace(change, cursor=self._sealed(change.cursor), before=before)

    def _visible_changes(
        self, asker: Viewer, since: str | None, limit: int, ids: Iterable[str] | None
    ) -> Changes:
        """Return the changes that an agent may know of. `ids`: () does not look for new changes."""
        from capsule.engines.changes import Changes
        from capsule.engines.questions.change_cursors import JournalEnd, visible_changes

        refreshed_ids = ids

        def read(cursor: str | None, count: int) -> ChangeBatch:
            nonlocal refreshed_ids
            batch = self._change_batch(asker, cursor, count, refreshed_ids)
            refreshed_ids = ()
            return batch

        end = self._index.journal_ends.get(asker.agent, JournalEnd())
        changes, end = visible_changes(read, since, limit, end)
        self._index.journal_ends[asker.agent] = end
        return Changes([*map(self._with_sealed_cursors, changes)], self._sealed(end.last_cursor))

    def _change_batch(
        self, asker: Viewer, since: str | None, limit: int, ids: Iterable[str] | None
    ) -> ChangeBatch:
        """Return changes since a cursor of the journal, with what an agent may read of them.

        For a deleted conversation, the version in the trash decides.
        """
        from capsule.engines.index.tables.participation import unread_positions
        from capsule.engines.questions.change_cursors import ChangeBatch
        from capsule.engines.read_marks import UnreadFilter

        def read(db: sqlite3.Connection, _: VisibilityFilter) -> tuple[ChangeBatch, set[str]]:
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
            deleted_ids = changed_ids - self._index.head_cache().heads.keys()
            return ChangeBatch(changes, cursor, hidden, positions), deleted_ids

        batch, deleted_ids = self._index.query(None, read, ids)
        if deleted_ids:
            from capsule.engines.interface import deleted_last

            documents = deleted_last(self._engine.trash, deleted_ids)
            batch.hide_deleted(deleted_ids, documents, asker)
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
