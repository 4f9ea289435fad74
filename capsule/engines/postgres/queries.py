"""The queries of the owner or of one agent, in the SQL of PostgreSQL.

`PostgresQueries` implements `Queries`. Each method is one `PostgresIndex.query`: it brings the index
up to date and reads it in one transaction.

What must stay true:
- What an agent may not read is decided (by `capsule.rules`) from the heads of the same transaction,
  and counts in no result.
- An agent's cursors are sealed (see `cursor_seal`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from capsule import timestamps
from capsule.engines.changes import Changes
from capsule.engines.interface import CONVERSATIONS, deleted_last
from capsule.engines.postgres import layout
from capsule.engines.postgres.index import Freshness, heads_where
from capsule.engines.postgres.visibility import SEES_ALL, Visibility, visibility_of
from capsule.engines.queries import Facets, FieldValue, Listed
from capsule.engines.questions import change_cursors
from capsule.engines.questions.change_cursors import ChangeBatch, ChangeCursor, JournalEnd
from capsule.engines.questions.heads import HeadCache, visible_heads, without_partial_sizes
from capsule.engines.questions.page_cursor import list_page
from capsule.engines.questions.participations import IDS_DIGEST, participation_of
from capsule.engines.read_marks import (
    LastMessage,
    MessagePosition,
    Participation,
    ReadMark,
    UnreadFilter,
    UnreadSummary,
    first_unread,
)
from capsule.format.facts import IN_LIST, TEXT

if TYPE_CHECKING:
    from capsule.engines.changes import Change
    from capsule.engines.interface import Engine
    from capsule.engines.postgres.index import PostgresIndex
    from capsule.engines.postgres.tables import IndexTables
    from capsule.engines.queries import (
        Filter,
        Found,
        ListRequest,
        Order,
        Progress,
        SearchRequest,
        Stats,
    )
    from capsule.format.documents.head import Head
    from capsule.rules.policy import Viewer

T = TypeVar("T")

#: The numbers of messages of conversations, and the last model that their last messages name. `{}` is
#: a condition on the messages.
_COUNT_MESSAGES = """SELECT c.id, c.num, c.entries, (
        SELECT f.value FROM messages AS m JOIN facts AS f ON f.message = m.num
        WHERE m.capsule = c.num AND m.at >= c.entries - 50 AND {} AND f.path = 'model'
            AND f.number IS NULL ORDER BY m.at DESC LIMIT 1
    ) FROM capsules AS c WHERE c.num = ANY(%(nums)s::bigint[])"""
_COUNT_VISIBLE = """SELECT count(*) FROM messages AS m
    WHERE m.capsule = %(num)s AND m.time_ms >= %(since)s"""
_VERSION = "c.version || ' ' || c.era"
_SELECT_VERSIONS = f"""SELECT c.id, {_VERSION} FROM members AS p JOIN capsules AS c ON c.num = p.capsule
    WHERE p.agent = %(agent)s AND c.damaged = ''
    ORDER BY c.updated_ms DESC, c.version DESC, c.id DESC"""
_SELECT_PARTICIPATIONS = f"""SELECT c.id, c.head, c.title, c.entries, c.archived, c.updated_at, c.tag, {_VERSION},
    (SELECT front FROM messages WHERE capsule = c.num AND at = c.entries - 1)
    FROM capsules AS c WHERE c.id = ANY(%(ids)s::text[])"""
_CONVERSATION_NUM = "(SELECT num FROM capsules WHERE id = %(conversation)s)"
_IS_MENTIONED = f"""m.num IN (SELECT message FROM facts WHERE path = 'mentions'
    AND type = {TEXT + IN_LIST} AND value IN (%(mentioned)s, '@all'))"""


class PostgresQueries:
    """The queries of one asker. See `Queries`, which describes the methods.

    Args:
        index: The index.
        asker: The agent. None: the owner.
        engine: The engine whose documents are in the index.
    """

    def __init__(self, index: PostgresIndex, asker: Viewer | None, engine: Engine) -> None:
        self._index = index
        self._asker = asker
        self._engine = engine
        self._seal = None if asker is None else index.seal(asker.agent, engine.local)

    def _sealed(self, cursor: str) -> str:
        return cursor if self._seal is None else self._seal.seal(cursor)

    def _unsealed(self, cursor: str) -> str:
        return cursor if self._seal is None else self._seal.open(cursor)

    def _query(
        self,
        run: Callable[[IndexTables], T],
        *,
        refresh: bool = True,
        progress: Progress | None = None,
    ) -> T:
        required = Freshness.UP_TO_DATE
        if not refresh and not self._index.needs_update:
            required = Freshness.STALE_OK
        return self._index.query(run, required, progress)

    # -- What the asker may read -------------------------------------------------------------------

    def _hidden(self, tables: IndexTables) -> dict[str, int | None]:
        """Return what the asker may not read. See `HeadCache.hidden`."""
        if self._asker is None:
            return {}
        return self._index.head_cache(tables).hidden(self._asker)

    def _visibility(self, tables: IndexTables) -> Visibility:
        if self._asker is None:
            return SEES_ALL
        cache = self._index.head_cache(tables)
        return visibility_of(cache, cache.hidden(self._asker))

    # -- Lists and searches ------------------------------------------------------------------------

    def conversations(self, request: ListRequest, progress: Progress | None = None) -> Listed:
        def read(tables: IndexTables) -> Listed:
            hidden = self._hidden(tables)
            if request.order == "latest":
                visibility = self._visibility(tables)
                latest = _latest(tables, request.limit, visibility)
                heads = list(without_partial_sizes(latest, hidden))
            elif request.order is None:
                heads = request.of(without_partial_sizes(self._candidates(tables, request), hidden))
            else:
                return self._page(tables, request, request.order, hidden)
            return Listed(heads, {}, {}, len(heads), lambda _: None)

        return self._query(read, progress=progress)

    def _candidates(self, tables: IndexTables, request: ListRequest) -> Iterable[Head]:
        """Return the heads among which a list without an order selects."""
        if request.forks_of is not None:
            return heads_where(tables, "forked = %(id)s ORDER BY id", {"id": request.forks_of})
        if request.filter is not None and request.filter.locked:
            return heads_where(tables, "lock IS NOT NULL")
        return self._index.head_cache(tables).heads.values()

    def _page(
        self,
        tables: IndexTables,
        request: ListRequest,
        order: Order,
        hidden: Mapping[str, int | None],
    ) -> Listed:
        """Return a page of a sorted list."""
        cache = self._index.head_cache(tables)
        heads = request.of(visible_heads(cache.sorted(order), hidden))
        cursor = self._unsealed(request.cursor) if request.cursor else ""
        page = list_page(heads, replace(request, cursor=cursor), self._index.generation, cache.nums)
        messages, models = _count_messages(tables, cache, page.heads, hidden)

        def next_cursor(count: int) -> str | None:
            text = page.cursor(count, cache.nums)
            return self._sealed(text) if text else None

        listed = list(without_partial_sizes(page.heads, hidden))
        return Listed(listed, messages, models, len(heads), next_cursor)

    def facets(
        self, filter: Filter, folders: Mapping[str, str], progress: Progress | None = None
    ) -> Facets:
        def read(tables: IndexTables) -> Facets:
            heads = self._index.head_cache(tables).heads.values()
            visible = visible_heads(heads, self._hidden(tables))
            return Facets.of(filter.of(visible), folders)

        return self._query(read, progress=progress)

    def search(self, request: SearchRequest, progress: Progress | None = None) -> Found:
        from capsule.engines.postgres.search import MatchedRows
        from capsule.engines.questions.search import check, search

        check(request)
        unsealed = request
        if request.cursor is not None:
            unsealed = replace(request, cursor=self._unsealed(request.cursor))

        def read(tables: IndexTables) -> Found:
            rows = MatchedRows(tables, unsealed, self._visibility(tables))
            return search(rows, unsealed, self._index.generation)

        page = self._query(read, progress=progress)
        if page.cursor is None:
            return page
        return replace(page, cursor=self._sealed(page.cursor))

    def messages(self, where: object, conversation: str | None = None) -> list[MessagePosition]:
        from capsule.engines.postgres.filters import messages_with
        from capsule.format.filters import parse

        filter = parse(where)
        return self._query(
            lambda tables: messages_with(tables, filter, conversation, self._visibility(tables))
        )

    def values(self, path: str, conversation: str) -> list[FieldValue]:
        from capsule.engines.postgres.filters import values_of

        return self._query(
            lambda tables: values_of(tables, path, conversation, self._visibility(tables))
        )

    def stats(self, progress: Progress | None = None) -> Stats:
        from capsule.engines.postgres.statistics import count

        return self._query(
            lambda tables: count(tables, self._visibility(tables)), progress=progress
        )

    # -- Changes -----------------------------------------------------------------------------------

    def changes(self, since: str | None, limit: int, *, refresh: bool = True) -> Changes:
        """Waits up to 0.5 s for transactions that are open in the database.

        Without `refresh`, the owner gets what the hub of this process was told of.
        """
        feed = self._index.feed
        if refresh:
            feed.wait_for_horizon()
        if self._asker is not None:
            cursor = None if since is None else self._journal_cursor(since)
            return self._visible_changes(self._asker, cursor, limit, refresh=refresh)
        found = None
        if since is not None and not refresh:
            found = feed.new_changes(since, limit)
        if found is None:
            found = feed.changes(since, limit)
        changes = Changes(*found)
        is_behind = refresh or bool(changes.changes)
        self._index.needs_update = self._index.needs_update or is_behind
        return changes

    def advance(self, cursor: str, messages: int = 0) -> str:
        return self._sealed(change_cursors.advance(self._journal_cursor(cursor), messages))

    def _journal_cursor(self, cursor: str) -> str:
        """Return the cursor for the feed.

        If an agent gives an owner's cursor, only its transaction is used: the number of a row would
        reveal how many changes the agent may not see.
        """
        if self._asker is None or "." not in cursor:
            return self._unsealed(cursor)
        return str(ChangeCursor.parse(cursor)._replace(seq=0, skip=0))

    def _visible_changes(
        self, asker: Viewer, since: str | None, limit: int, *, refresh: bool
    ) -> Changes:
        """Return the changes that an agent may know of."""
        refresh_next = refresh

        def read(cursor: str | None, count: int) -> ChangeBatch:
            nonlocal refresh_next
            batch = self._change_batch(asker, cursor, count, refresh=refresh_next)
            refresh_next = False
            return batch

        end = self._index.journal_ends.get(asker.agent, JournalEnd())
        changes, end = change_cursors.visible_changes(read, since, limit, end)
        self._index.journal_ends[asker.agent] = end
        return Changes([*map(self._with_sealed_cursors, changes)], self._sealed(end.last_cursor))

    def _with_sealed_cursors(self, change: Change) -> Change:
        """Seal the cursors of a change. A change of one message needs no cursor of a part."""
        before = self._sealed(change.before) if len(change.messages) > 1 else ""
        return replace(change, cursor=self._sealed(change.cursor), before=before)

    def _change_batch(
        self, asker: Viewer, since: str | None, limit: int, *, refresh: bool
    ) -> ChangeBatch:
        """Return changes since a cursor of the feed, with what an agent may read of them.

        For a deleted conversation, the version in the trash decides.
        """

        def read(tables: IndexTables) -> tuple[ChangeBatch, set[str]]:
            changes, cursor = self._index.changes(since, limit)
            cache = self._index.head_cache(tables)
            changed_ids = {change.id for change in changes}
            all_hidden = cache.hidden(asker)
            hidden = {id: all_hidden[id] for id in changed_ids & all_hidden.keys()}
            positions = {}
            for id, visible_from_ms in hidden.items():
                if visible_from_ms is not None:
                    unread = UnreadFilter(since_ms=visible_from_ms)
                    matches = _unread_positions(tables, unread, id, SEES_ALL)
                    positions[id] = {message.message: message.position for message in matches}
            deleted_ids = changed_ids - cache.heads.keys()
            return ChangeBatch(changes, cursor, hidden, positions), deleted_ids

        batch, deleted_ids = self._query(read, refresh=refresh)
        if deleted_ids:
            documents = deleted_last(self._engine.trash, deleted_ids)
            batch.hide_deleted(deleted_ids, documents, asker)
        return batch

    # -- Messages ----------------------------------------------------------------------------------

    def participations(
        self, agent: str, cached: Mapping[str, Participation] = {}, *, refresh: bool = True
    ) -> list[Participation]:
        def read(tables: IndexTables) -> list[Participation]:
            found = _participations(tables, agent, cached)
            hidden = self._hidden(tables)
            return [item for item in found if hidden.get(item.id, 0) is not None]

        return self._query(read, refresh=refresh)

    def unread_positions(
        self, unread_filter: UnreadFilter, conversation: str | None = None, *, refresh: bool = True
    ) -> list[MessagePosition]:
        return self._query(
            lambda tables: _unread_positions(
                tables, unread_filter, conversation, self._visibility(tables)
            ),
            refresh=refresh,
        )

    def summarize_unread(
        self, conversation: str, unread_filter: UnreadFilter, *, refresh: bool = True
    ) -> UnreadSummary:
        return self._query(
            lambda tables: _summarize_unread(
                tables, conversation, unread_filter, self._visibility(tables)
            ),
            refresh=refresh,
        )

    def ids_at(
        self, conversation: str, positions: Iterable[int], *, refresh: bool = True
    ) -> dict[int, tuple[str, str]]:
        listed = list(map(int, positions))
        return self._query(
            lambda tables: _ids_at(tables, conversation, listed, self._visibility(tables)),
            refresh=refresh,
        )

    def find(self, message: str, conversation: str | None = None) -> tuple[str, int] | None:
        return self._query(
            lambda tables: _find(tables, message, conversation, self._visibility(tables))
        )

    def in_one_transaction(self, run: Callable[[], T]) -> T:
        return self._query(lambda _: run(), refresh=False)

    def last_valid_version(self, conversation: str) -> tuple[dict[str, Any], frozenset[str]] | None:
        """Return the conversation itself for the owner: no document in a database is damaged."""
        if self._asker is None and self._engine.exists(CONVERSATIONS, conversation):
            return self._engine.document(CONVERSATIONS, conversation), frozenset()
        return None

    # -- The index itself --------------------------------------------------------------------------

    def refresh(
        self,
        ids: Iterable[str] | None = None,
        progress: Progress | None = None,
        *,
        anew: bool = False,
    ) -> None:
        """Brings all conversations up to date, whatever `ids` are."""
        if anew:
            self._index.rebuild(progress)
        else:
            self._index.refresh(progress)


# -- Lists -----------------------------------------------------------------------------------------


def _latest(tables: IndexTables, limit: int | None, visibility: Visibility) -> list[Head]:
    """Return the heads of the valid conversations, the one that changed last first."""
    return heads_where(
        tables,
        f"c.damaged = '' AND {visibility.conversation_condition} "
        "ORDER BY c.updated_ms DESC, c.version DESC, c.id DESC LIMIT %(limit)s",
        visibility.values | {"limit": limit},
    )


def _count_messages(
    tables: IndexTables,
    cache: HeadCache,
    heads: Sequence[Head],
    hidden: Mapping[str, int | None],
) -> tuple[dict[str, int], dict[str, str]]:
    """Return the number of messages of conversations, and their last models, by id.

    `hidden` has the conversations that the asker reads in part.
    """
    partial = {head.id: hidden[head.id] for head in heads if hidden.get(head.id)}
    visibility = visibility_of(cache, partial) if partial else SEES_ALL
    values = visibility.values | {"nums": [cache.nums[head.id] for head in heads]}
    messages: dict[str, int] = {}
    models: dict[str, str] = {}
    for id, num, count, model in tables.query_once(
        _COUNT_MESSAGES.format(visibility.message_condition), values
    ):
        messages[id] = count
        if num in visibility.visible_from_ms:
            since = visibility.visible_from_ms[num]
            ((messages[id],),) = tables.query(_COUNT_VISIBLE, {"num": num, "since": since})
        if model:
            models[id] = model
    return messages, models


# -- Messages --------------------------------------------------------------------------------------


def _participations(
    tables: IndexTables, agent: str, cached: Mapping[str, Participation]
) -> list[Participation]:
    """Return the conversations that an agent takes part in, the latest first."""
    versions = tables.query(_SELECT_VERSIONS, {"agent": agent})
    by_id: dict[str, Participation] = {}
    for id, version in versions:
        earlier = cached.get(id)
        if earlier and earlier.version == version:
            by_id[id] = earlier
    changed_ids = [id for id, _ in versions if id not in by_id]
    if changed_ids:
        for row in tables.query(_SELECT_PARTICIPATIONS, {"ids": changed_ids}):
            by_id[row[0]] = participation_of(*row)
    return [by_id[id] for id, _ in versions]


def _ids_at(
    tables: IndexTables, conversation: str, positions: list[int], visibility: Visibility
) -> dict[int, tuple[str, str]]:
    """Return, by position, the id of a message and the digest of all ids up to it."""
    rows = tables.query(
        f"SELECT at, id, front FROM messages AS m WHERE capsule = {_CONVERSATION_NUM} "
        f"AND at = ANY(%(positions)s::integer[]) AND {visibility.message_condition}",
        visibility.values | {"conversation": conversation, "positions": positions},
    )
    return {position: (id, IDS_DIGEST % front) for position, id, front in rows}


def _first_unread(tables: IndexTables, conversation: str | None, marks: Sequence[ReadMark]) -> int:
    """Return the position after the furthest valid read mark of a conversation.

    Of all conversations (None) it is 0.
    """
    if conversation is None or not marks:
        return 0
    positions = [position for position, _ in marks]
    return first_unread(marks, _ids_at(tables, conversation, positions, SEES_ALL))


def _find(
    tables: IndexTables, message: str, conversation: str | None, visibility: Visibility
) -> tuple[str, int] | None:
    """Return the conversation and the position of a message. None: it is not found."""
    scope = "TRUE" if conversation is None else f"m.capsule = {_CONVERSATION_NUM}"
    rows = tables.query(
        "SELECT c.id, m.at FROM messages AS m JOIN capsules AS c ON c.num = m.capsule "
        f"WHERE m.id = %(message)s AND {scope} AND {visibility.message_condition} "
        "ORDER BY m.num DESC LIMIT 1",
        visibility.values | {"message": message, "conversation": conversation},
    )
    for id, position in rows:
        return id, position
    return None


def _unread_condition(
    tables: IndexTables,
    unread_filter: UnreadFilter,
    conversation: str | None,
    visibility: Visibility,
) -> tuple[str, dict[str, Any]]:
    """Return the condition that an unread row `m` of `messages` meets, and the values in it.

    Hidden messages do not meet it.
    """
    conditions = [
        "m.at >= %(first)s",
        "m.time_ms >= %(since)s",
        "coalesce(m.sender, '') <> ALL(%(excluded)s::text[])",
    ]
    values: dict[str, Any] = {
        "first": _first_unread(tables, conversation, unread_filter.read_marks),
        "since": unread_filter.since_ms,
        "excluded": list(unread_filter.excluded_senders),
    }
    if unread_filter.mentioning:
        conditions.append(_IS_MENTIONED)
        values["mentioned"] = unread_filter.mentioning
    if unread_filter.part is not None:
        conditions.append(_is_in_part("part", unread_filter.part, values))
    for number, (part, marks) in enumerate(unread_filter.read_parts):
        name = f"read_{number}"
        in_part = _is_in_part(name, part, values)
        conditions.append(f"NOT (m.at < %({name}_first)s AND {in_part})")
        values[f"{name}_first"] = _first_unread(tables, conversation, marks)
    conditions.append(visibility.message_condition)
    return " AND ".join(conditions), values | visibility.values


def _is_in_part(name: str, part: tuple[str, str], values: dict[str, Any]) -> str:
    """Return the condition that a message has a value at a path, or this id.

    The path and the value are added to `values`, under names that begin with `name`.
    """
    values[f"{name}_path"], values[f"{name}_value"] = part
    return (
        f"(m.id = %({name}_value)s OR m.num IN (SELECT message FROM facts "
        f"WHERE path = %({name}_path)s AND type = {TEXT} AND value = %({name}_value)s))"
    )


def _summarize_unread(
    tables: IndexTables,
    conversation: str,
    unread_filter: UnreadFilter,
    visibility: Visibility,
) -> UnreadSummary:
    """Return the number of the unread messages of a conversation, their senders, and the last."""
    condition, values = _unread_condition(tables, unread_filter, conversation, visibility)
    values["conversation"] = conversation
    rows = tables.query(
        "SELECT m.sender, count(*), min(m.at), max(m.at) FROM messages AS m "
        f"WHERE m.capsule = {_CONVERSATION_NUM} AND {condition} GROUP BY m.sender ORDER BY 3",
        values,
    )
    if not rows:
        return UnreadSummary(0)
    last_position = max(last for *_, last in rows)
    ((position, id, sender, body, time_ms),) = tables.query(
        "SELECT m.at, m.id, coalesce(m.sender, ''), e.body, m.time_ms "
        "FROM capsules AS c JOIN messages AS m ON m.capsule = c.num "
        f"LEFT JOIN documents AS d ON d.kind = '{CONVERSATIONS}' AND d.id = c.id "
        "LEFT JOIN entries AS e ON e.doc = d.num AND e.place = m.at "
        "WHERE c.id = %(conversation)s AND m.at = %(at)s",
        {"conversation": conversation, "at": last_position},
    )
    # The index may be older than the documents, so the entry may be gone.
    content = layout.entries_in([body], id)[0]["content"] if body else ""
    time = timestamps.blank_if_unknown(timestamps.from_ms(time_ms))
    total = sum(count for _, count, *_ in rows)
    senders = tuple(row_sender or "" for row_sender, *_ in rows)
    return UnreadSummary(total, senders, LastMessage(position, id, sender, content, time))


def _unread_positions(
    tables: IndexTables,
    unread_filter: UnreadFilter,
    conversation: str | None,
    visibility: Visibility,
) -> list[MessagePosition]:
    """Return the unread messages of one conversation or of all (None), the latest first."""
    condition, values = _unread_condition(tables, unread_filter, conversation, visibility)
    if conversation is not None:
        condition = f"c.id = %(conversation)s AND {condition}"
        values["conversation"] = conversation
    rows = tables.query_once(
        "SELECT c.id, m.at, m.id, m.front FROM messages AS m JOIN capsules AS c "
        f"ON c.num = m.capsule WHERE c.gone = 0 AND {condition} "
        "ORDER BY m.time_ms DESC, m.num DESC",
        values,
    )
    positions = []
    for id, position, message, front in rows:
        positions.append(MessagePosition(id, position, message, IDS_DIGEST % front))
    return positions
