"""Reading a store: conversations, pages of them, their heads; and what lists and searches find.

What must stay true: reading waits for no writer, and changes nothing. An answer of the index is that of the files as
they are when it is asked for: the index is brought up to date first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from capsule import timestamps
from capsule.errors import NotFound, Remedy
from capsule.format import codec, migrations
from capsule.format.head import Head
from capsule.format.merge.copy_names import original_of
from capsule.format.moments import moment
from capsule.format.references import find_message, one_of
from capsule.ids import check_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from capsule.engines.changes import Change, Changes
    from capsule.engines.index.hits import Found
    from capsule.engines.index.index import Index
    from capsule.engines.index.pages import Listed
    from capsule.engines.index.stats import Stats
    from capsule.engines.interface import Engine
    from capsule.format.models import Capsule, Message
    from capsule.store.lists import Filter, Order
    from capsule.store.pages import Page
    from capsule.watch.own_writes import Own

T = TypeVar("T")

KIND = "conversations"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Reading:
    """What an open store reads. The base of `Store`.

    Args:
        engine: Where its documents live.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        #: What this store wrote itself, as far as somebody watches it.
        self._own: Own | None = None

    def read(self, id: str) -> bytes:
        """Read a conversation as it is stored, validated. Raises as `load`. Costs reading the file.

        Args:
            id: The conversation.
        """
        return self.engine.read(KIND, id)

    def document(self, id: str) -> dict[str, Any]:
        """Read a conversation as this version writes it, in canonical order. Raises as `load`. Costs reading the file.

        A number that JSON libraries would change is an `orjson.Fragment`.

        Args:
            id: The conversation.
        """
        return self.engine.document(KIND, id)

    def load(self, id: str) -> Capsule:
        """Read the whole conversation; unknown fields are kept.

        Args:
            id: The conversation.

        Raises:
            NotFound: There is none.
            InvalidDocument: Its file does not parse, or is no capsule.

        Cost: reading the file, and making the models.
        """
        from capsule.format.models import Capsule

        def parse(data: bytes, is_canonical: bool) -> Capsule:
            if not is_canonical:
                path = self.engine.name(KIND, id)
                document, _ = migrations.current(codec.decode(data, path), path)
                data = codec.encode(document)
            return Capsule.model_validate_json(data)

        return self.engine.parsed(id, parse)

    def tail(self, id: str, n: int) -> list[Message]:
        """Read the last messages, oldest first. Raises as `load`. Costs reading these messages, not the file.

        Args:
            id: The conversation.
            n: How many.
        """
        from capsule.format.models import messages_in

        entries, count = self.engine.tail(id, n)
        messages = messages_in(entries)
        return [message.placed(count - len(messages) + i) for i, message in enumerate(messages)]

    def tail_entries(self, id: str, n: int) -> tuple[int, list[dict[str, Any]]]:
        """Read the last messages as they stand in the file, numbers as in `document`. Raises and costs as `tail`.

        Args:
            id: The conversation.
            n: How many.

        Returns:
            The place of the first one, and the messages.
        """
        entries, count = self.engine.tail(id, n)
        found = codec.decode(b'{"history":' + entries + b"}", self.engine.name(KIND, id))["history"]
        return count - len(found), found

    def head(self, id: str) -> Head:
        """Read the head of one conversation. Raises as `load`. Cost: reading the beginning of the file.

        Args:
            id: The conversation.
        """
        fields, size = self.engine.head(id)
        found = Head.of(fields, self.engine.name(KIND, id), size)
        assert found is not None  # It was validated.
        return found

    def _head_of(self, id: str, head: dict[str, Any]) -> Head:
        """The head as just written."""
        found = Head.of(head, self.engine.name(KIND, id), 0)
        return found if found is not None else self.head(id)

    @property
    def index(self) -> Index:
        """The index of the conversations."""
        return self.engine.index

    def heads(self, progress: Callable[[int, int], None] | None = None) -> Iterator[Head]:
        """Read the heads of all conversations, in no order. Those of damaged files have `Head.damaged`.

        Args:
            progress: Called with the bytes that are indexed so far, and all bytes, if the index must be built first.

        Raises:
            StorageFailed, StoreBusy: The index can't be built.

        Cost: bringing the index up to date: one scan of the directory with an lstat for each file, and for a file that
            changed since it was indexed, reading what is new in it.
        """
        return iter(self.index.heads(progress))

    def search(
        self,
        query: str,
        *,
        roles: Iterable[str] = (),
        senders: Iterable[str] = (),
        ids: Iterable[str] = (),
        tags: Iterable[str] = (),
        mode: str | None = None,
        since: str | None = None,
        until: str | None = None,
        title_only: bool = False,
        branch: str = "all",
        in_tools: bool = False,
        profile: str = "balanced",
        limit: int = 20,
        cursor: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Found:
        """Find the messages, and the conversations by their titles and tags, that fit a query, best first.

        Args:
            query: Words, "phrases", prefix*, AND, OR, NOT; any text is a query (docs/search.md). If nothing has all
                words, it finds what has the most of them, and `Found.having` says so. An empty one finds every message.
            roles: Only messages of these roles; empty: of all. With it, or `senders`, titles are not searched.
            senders: Only messages from these agents.
            ids: Only these conversations, by their full ids.
            tags: Only conversations with all of these tags.
            mode: Only conversations of this mode.
            since: Only what was said at this time or later; a text as `moment` takes it (`2025-01-31`, `24h`).
            until: Only what was said before this time, or up to the end of this day.
            title_only: Look at titles and tags only.
            branch: `all`: messages of every branch; `active`: of the active one.
            in_tools: Look at tool calls and reasoning too.
            profile: How age counts: `recent`, `balanced` or `exact`.
            limit: The most hits of a page.
            cursor: `Found.cursor` of the page before, with the same query and options.
            progress: Called with the bytes that are indexed so far, and all bytes, if the index must be built first.

        Raises:
            InvalidInput: An option can't be accepted, or the cursor belongs to another search.
            StorageFailed, StoreBusy: The index can't be built.

        Cost: as `heads`, and about a microsecond for each match that is ranked.
        """
        from capsule.engines.index.search import Asked, check

        asked = Asked(
            query=query,
            roles=_sorted(roles),
            senders=_sorted(senders),
            ids=_sorted(ids),
            tags=_sorted(tags),
            mode=mode,
            since_ms=_ms(since, until=False),
            until_ms=_ms(until, until=True),
            title_only=title_only,
            branch=branch,
            in_tools=in_tools,
            profile=profile,
            limit=limit,
            cursor=cursor,
        )
        check(asked)
        return self.index.search(asked, time.time_ns() // 1_000_000, progress)

    def stats(self, progress: Callable[[int, int], None] | None = None) -> Stats:
        """Count what is in the store. Raises as `heads`. Costs a pass over the messages in the index.

        Args:
            progress: As in `search`.
        """
        return self.index.stats(progress)

    def changes(self, since: str | None = None, *, ids: Iterable[str] | None = None, limit: int = 1000) -> Changes:
        """Say what changed since a cursor, whoever changed it. Costs as `heads`.

        Args:
            since: The cursor of a change, or of an earlier answer. None: no changes, but the cursor of now.
            ids: Only of these conversations. None: of all.
            limit: The most changes. `Changes.cursor` is then the place to go on from.

        Raises:
            InvalidInput: `since` is no cursor.
        """
        found, cursor = self.index.changes(since, limit)
        wanted = None if ids is None else set(ids)
        return self._told([change for change in found if wanted is None or change.id in wanted], cursor)

    def _told(self, changes: list[Change], cursor: str) -> Changes:
        from capsule.engines.changes import Changes

        return Changes(changes if self._own is None else self._own.marked(changes), cursor)

    def reindex(self, progress: Callable[[int, int], None] | None = None) -> dict[str, int]:
        """Build the index anew from the files, and count what is in it. Raises as `heads`. Costs reading every file.

        Args:
            progress: Called with the bytes that are done, and all bytes.
        """
        self.index.rebuild(progress)
        counted = self.index.stats()
        return {name: getattr(counted, name) for name in ("conversations", "damaged", "messages", "words")}

    def ids(self) -> list[str]:
        """List the ids of all conversations, sorted.

        Raises:
            Refused, StorageFailed: The system did not permit it.

        Cost: one scan of the directory.
        """
        return self.engine.ids(KIND)

    def find_message(self, id: str, message_id: str) -> Message:
        """Read one message. Raises as `load`. Costs reading the file.

        Args:
            id: The conversation.
            message_id: The message's id, a unique prefix of it, `@N` (its place) or `@last`.
        """
        from capsule.format.models import Message

        history = self.document(id)["history"]
        place = find_message(history, message_id, id)
        return Message.model_validate_json(codec.encode(history[place])).placed(place)

    def resolve(self, prefix: str) -> str:
        """Find the id that a person means.

        Args:
            prefix: A full id, a unique prefix of 4 characters or more, or `@last`.

        Raises:
            NotFound: There is no such conversation.
            InvalidInput: The prefix fits several, or it is too short.

        Cost: one scan of the directory; for `@last`, as `heads`.
        """
        if prefix == "@last":
            latest = self.index.latest()
            if latest is None:
                raise NotFound("there is no conversation yet", remedy=Remedy("new"), id=prefix)
            return latest
        check_id(prefix)
        if self.engine.exists(KIND, prefix):
            return prefix
        return one_of([id for id in self.ids() if id.startswith(prefix) and original_of(id) is None], prefix)

    def page(self, id: str, limit: int = 20, *, around: str | None = None, cursor: str | None = None) -> Page:
        """Read a page of the active branch: its newest messages, those around one, or on from another page.

        `Page.older` and `Page.newer` are cursors. Whoever follows one of them from page to page meets each message that
        stays on the branch once, and none twice, whatever is appended, edited, deleted or brought back between them. A
        cursor stands at the next message. If another branch is made the active one, older pages stay where they were,
        and newer ones follow it only if it leads through that message. If the message is deleted, the cursor is
        refused; go on `around` the last one that was shown.

        Args:
            id: The conversation.
            limit: The most messages.
            around: A message, as `find_message` takes it, to be shown with those before and after it. If it is not on
                the active branch: those of the branch through it, and on to the newest answers.
            cursor: `Page.older` or `Page.newer` of an earlier page.

        Raises as `load`; also
            NotFound: There is no such message.
            InvalidInput: Several messages are meant; or the cursor is none, or its message is gone.

        Cost: reading from the page to the end of the file. Reading the whole file if somebody branched off there, or
            `around` names a message, by its id, that is not among the last 256.
        """
        from capsule.store.pages import page_of

        return page_of(self, id, limit, around, cursor)

    def list(
        self,
        filter: Filter | None = None,
        order: Order = "updated",
        *,
        limit: int | None = None,
        cursor: str = "",
        progress: Callable[[int, int], None] | None = None,
    ) -> Listed:
        """List a page of the conversations: pinned ones first, damaged files last.

        A conversation that fits from the first page to the last is on exactly one of the pages, and none is on two,
        whatever is written, renamed, pinned, deleted or brought back between them.

        Args:
            filter: Which conversations. None: those that are not archived, and the damaged files.
            order: `updated` or `created`: the latest first; or `title`.
            limit: The most conversations of a page. None: all of them.
            cursor: `Listed.cursor` of the page before, with the same filter and order. Empty: the first page.
            progress: Called with the bytes that are indexed so far, and all bytes, if the index must be built first.

        Raises:
            InvalidInput: The cursor is none, or of another list, store or index; or the filter's `since` is no time.
            StorageFailed, StoreBusy: The index can't be built.

        Cost: as `heads`, and some microseconds for each conversation in the store.
        """
        from capsule.store.lists import listed

        return listed(self.index, filter, order, limit, cursor, progress)


def _sorted(texts: Iterable[str]) -> tuple[str, ...]:
    """In one order, so that the cursor of a search is that of the same one."""
    return tuple(sorted(set(texts)))


def _ms(text: str | None, *, until: bool) -> int | None:
    if text is None:
        return None
    return (timestamps.parse(moment(text, until=until)) - _EPOCH) // timedelta(milliseconds=1)
