"""Reading a store: conversations, their pages and their heads; searches.

What must stay true: reading waits for no writer, and changes nothing. The index is brought up to
date before each answer, so that the answer fits the files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.errors import InvalidInput, NotFound, Remedy
from capsule.format import migrations
from capsule.format.json import codec
from capsule.format.merge.copy_names import original_of
from capsule.format.references import find_message, moment, one_of
from capsule.ids import check_id, is_id
from capsule.store.lists import Lists

if TYPE_CHECKING:
    from collections.abc import Callable

    from capsule.engines.changes import Changes
    from capsule.engines.queries import Found, Stats
    from capsule.format.documents.head import Head
    from capsule.format.models import Capsule, Message
    from capsule.settings import Settings
    from capsule.store.inner import Inner
    from capsule.store.pages import Page

KIND = "conversations"


class Reading(Lists):
    """The reading half of an open store.

    Args:
        inner: The inner interface of the store.
    """

    agent: str | None
    settings: Settings

    def __init__(self, inner: Inner[Any]) -> None:
        self.inner = inner
        self.engine = inner.engine
        self.agent = inner.agent
        self.settings = inner.settings

    def read(self, id: str) -> bytes:
        """Read the stored bytes of a conversation, validated. Raises NotFound, InvalidDocument.
        Cost: reading the file.

        Args:
            id: The conversation.
        """
        return self.engine.read(KIND, id)

    def document(self, id: str) -> dict[str, Any]:
        """Read a conversation as this version writes it, in canonical order.

        A number that JSON libraries would change is an `orjson.Fragment`.

        Args:
            id: The conversation.

        Raises NotFound, InvalidDocument. Cost: reading the file.
        """
        document = self.engine.document(KIND, id)
        return (
            document
            if self.agent is None
            else document | {"history": [*filter(None, document["history"])]}
        )

    def load(self, id: str) -> Capsule:
        """Read the whole conversation. Unknown fields are kept.

        Args:
            id: The conversation.

        Raises:
            NotFound: There is no such conversation.
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

        if self.agent is None:
            return self.engine.parsed(id, parse).placed(0)
        document = self.engine.document(KIND, id)
        seen = [*filter(None, document["history"])]  # It may not read the first messages.
        return parse(codec.encode(document | {"history": seen}), True).placed(
            len(document["history"]) - len(seen)
        )

    def tail(self, id: str, n: int) -> list[Message]:
        """Read the last messages, oldest first. Raises NotFound, InvalidDocument. Cost: reading
        these messages.

        Args:
            id: The conversation.
            n: The number of messages.
        """
        from capsule.format.models import messages_in

        entries, count, _ = self.engine.tail(id, n)
        messages = messages_in(entries)
        return [message.placed(count - len(messages) + i) for i, message in enumerate(messages)]

    def tail_entries(self, id: str, n: int) -> tuple[int, list[dict[str, Any]]]:
        """Read the last messages as they stand in the file, with numbers as in `document`.

        Args:
            id: The conversation.
            n: The number of messages.

        Returns:
            The place of the first message, and the messages.

        Raises NotFound, InvalidDocument. Cost: reading these messages.
        """
        from capsule.store.pages import tail_entries

        return tail_entries(self.engine, id, n)

    def head(self, id: str) -> Head:
        """Read the head of one conversation. Raises NotFound, InvalidDocument. Cost: reading the
        beginning of the file.

        Args:
            id: The conversation.
        """
        return self.inner.head_of(id, *self.engine.head(id))

    def heads(self, progress: Callable[[int, int], None] | None = None) -> Iterator[Head]:
        """Read the heads of all conversations, in no order. Those of damaged files have
        `Head.damaged`.

        Args:
            progress: Called with the bytes indexed so far, and all bytes, if the index must be
                built first.

        Raises:
            StorageFailed, StoreBusy: The index can't be built.

        Cost: bringing the index up to date: one scan of the directory with an lstat for each file,
            and reading the new part of each file that changed since it was indexed.
        """
        from capsule.engines.queries import ListRequest

        return iter(self.questions.conversations(ListRequest(), progress).heads)

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
        where: Mapping[str, Any] | None = None,
        limit: int = 20,
        cursor: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Found:
        """Search messages, and the titles and tags of conversations; the best hits first.

        Args:
            query: Words, "phrases", prefix*, AND, OR, NOT; any text is a query (docs/search.md). If
                no text has all words, the hits have as many as possible, and `Found.having` says
                so. An empty query finds all messages.
            roles: Only messages of these roles; empty: all roles. With `roles` or `senders`, titles
                are not searched.
            senders: Only messages from these agents.
            ids: Only these conversations, by their full ids.
            tags: Only conversations with all of these tags.
            mode: Only conversations of this mode.
            since: Only messages of this time or later; a text as `moment` takes it (`2025-01-31`,
                `24h`).
            until: Only messages before this time, or up to the end of this day.
            title_only: Search titles and tags only.
            branch: `all`: messages of every branch; `active`: messages of the active branch.
            in_tools: Search tool calls and reasoning too.
            profile: The weight of a message's age: `recent`, `balanced` or `exact`.
            where: Only messages whose fields and metadata fit this filter, such as `{"confidence":
                {"$gte": 0.5}}` (docs/search.md, "Filters"). Titles are not searched then.
            limit: The largest number of hits in a page.
            cursor: `Found.cursor` of the page before, with the same query and options.
            progress: Called with the bytes indexed so far, and all bytes, if the index must be
                built first.

        Raises:
            InvalidInput: An option can't be accepted, or the cursor belongs to another search.
            StorageFailed, StoreBusy: The index can't be built.

        Cost: as `heads`, and about a microsecond for each match that is ranked.
        """
        from capsule.engines.queries import SearchRequest
        from capsule.format.filters import parse

        # In one order: the cursor of a search fits only the same options.
        asked = SearchRequest(
            query=query,
            roles=tuple(sorted({*roles})),
            senders=tuple(sorted({*senders})),
            ids=tuple(sorted({*ids})),
            tags=tuple(sorted({*tags})),
            mode=mode,
            since_ms=_ms(since, until=False),
            until_ms=_ms(until, until=True),
            title_only=title_only,
            branch=branch,
            in_tools=in_tools,
            profile=profile,
            where=None if where is None else parse(where),
            limit=limit,
            cursor=cursor,
            now_ms=time.time_ns() // 1_000_000,
        )
        return self.questions.search(asked, progress)

    def stats(self, progress: Callable[[int, int], None] | None = None) -> Stats:
        """Count what is in the store. Raises StorageFailed, StoreBusy. Cost: a pass over the index.

        Args:
            progress: As in `search`.
        """
        return self.questions.stats(progress)

    def changes(
        self, since: str | None = None, *, ids: Iterable[str] | None = None, limit: int = 1000
    ) -> Changes:
        """List the changes since a cursor, by any writer. Cost: as `heads`.

        Args:
            since: The cursor of a change, or of an earlier answer. None: no changes, and the
                current cursor.
            ids: Only these conversations. None: all.
            limit: The largest number of changes. `Changes.cursor` is the place to continue from.

        Raises:
            InvalidInput: `since` is not a cursor.
        """
        news = self.questions.changes(since, limit)
        wanted = None if ids is None else set(ids)
        return self.inner.marked(
            [change for change in news.changes if wanted is None or change.id in wanted],
            news.cursor,
        )

    def reindex(self, progress: Callable[[int, int], None] | None = None) -> dict[str, int]:
        """Rebuild the index, and return its counts. Raises StorageFailed, StoreBusy. Cost: reading
        every file.

        Args:
            progress: Called with the bytes read so far, and all bytes.
        """
        self.questions.refresh(progress=progress, anew=True)
        stats = self.questions.stats()
        return {
            name: getattr(stats, name) for name in ("conversations", "damaged", "messages", "words")
        }

    def ids(self) -> list[str]:
        """List the ids of all conversations, sorted.

        Raises:
            Refused, StorageFailed: The system did not permit it.

        Cost: one scan of the directory.
        """
        return self.engine.ids(KIND)

    def find_message(self, id: str, message_id: str) -> Message:
        """Read one message. Raises NotFound, InvalidInput, InvalidDocument. Cost: reading the file.

        Args:
            id: The conversation.
            message_id: The message's id, a unique prefix of it, `@N` (its place) or `@last`.
        """
        from capsule.format.models import Message

        history = self.engine.document(KIND, id)["history"]
        place = find_message(history, message_id, id)
        return Message.model_validate_json(codec.encode(history[place])).placed(place)

    def resolve(self, text: str) -> str:
        """Find the id that a person means. An id, or a beginning of one, wins over a name.

        Args:
            text: A full id, a unique prefix of 4 characters or more, `@last`, or the name of a
                channel or a group that the agent may read, as the room of messaging takes it.

        Raises:
            NotFound: There is no such conversation.
            InvalidInput: The prefix or the name fits several conversations, or is too short.

        Cost: one scan of the directory; for `@last` and for a name, as `heads`.
        """
        from capsule.engines.queries import ListRequest

        if text == "@last":
            latest = self.questions.conversations(ListRequest(order="latest", limit=1)).heads
            if not latest:
                raise NotFound("there is no conversation yet", remedy=Remedy("new"), id=text)
            return latest[0].id
        if is_id(text) and self.engine.exists(KIND, text):
            return text
        ids = self.ids()
        fitting = [id for id in ids if id.startswith(text) and original_of(id) is None]
        try:
            return one_of(fitting, check_id(text))
        except (NotFound, InvalidInput):
            heads = self.questions.conversations(ListRequest()).heads if ids and text else ()
            named = self.inner.guard.named(self.agent, text, heads)
            if len(named) > 1:
                raise InvalidInput(
                    f"several are called {text[:80]!r}; give the id of one: "
                    f"{', '.join(sorted(named))}"
                ) from None
            if not named:
                raise
            return named[0]

    def page(
        self,
        id: str,
        limit: int = 20,
        *,
        around: str | None = None,
        cursor: str | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> Page:
        """Read a page of the active branch: its newest messages, the messages around one, or the
        next page of a cursor.

        `Page.older` and `Page.newer` are cursors. Following a cursor from page to page shows each
        message that stays on the branch exactly once, whatever is appended, edited, deleted or
        restored between the pages. A cursor stands at the next message. When another branch becomes
        the active one, older pages stay where they were; newer pages follow it only if it leads
        through that message. When the message is deleted, the cursor is refused: continue `around`
        the last message that was shown.

        Args:
            id: The conversation.
            limit: The largest number of messages.
            around: A message, as `find_message` takes it, shown with its neighbours. If it is not
                on the active branch, the page is of the branch through it, and on to the newest
                answers.
            cursor: `Page.older` or `Page.newer` of an earlier page.
            where: Only messages that fit this filter, as `search` takes it. The cursors go with the
                same one.

        Raises:
            NotFound: There is no such conversation or message.
            InvalidInput: `around` fits several messages, or the cursor or filter can't be accepted.
            InvalidDocument: The file does not parse, or is no capsule.

        Cost: reading from the page to the end of the file. Reading the whole file if a branch
            begins there, if there is a filter, or if `around` names, by its id, a message that is
            not among the last 256.
        """
        from capsule.store.pages import page_of

        only = (
            None
            if where is None
            else {place.message for place in self.questions.messages(where, id)}
        )
        return page_of(self.engine, id, limit, around, cursor, only)


def _ms(text: str | None, *, until: bool) -> int | None:
    if text is None:
        return None
    return timestamps.ms_of(moment(text, until=until))
