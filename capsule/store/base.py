"""The daily operations of an open store: list, read, search, create and append, and change the head.

`BaseStore` checks the arguments, and turns names of agents and folders of projects into ids,
because an engine knows neither. It then makes one call of the engine or of `StoreInternals`.
`CoreStore` in `store.py` adds opening, closing, and the objects of a store. Those objects are
annotated with `BaseStore`.

What must stay true:

- Reading waits for no writer, and changes nothing. The index is brought up to date before each
  query, so that the result fits the files.
- A conversation that the agent of the store may not read is in no list, and counts nowhere.
- Every change of a conversation is one `StoreInternals.change`, and durable when the method
  returns. A change of the head is one write, parses no message, and changes only the given fields.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.engines.interface import CONVERSATIONS
from capsule.errors import InvalidInput, NotFound, Remedy
from capsule.format import migrations
from capsule.format.documents import creation
from capsule.format.documents.message import check_message, fields_given
from capsule.format.json import codec
from capsule.format.merge.copy_names import original_of
from capsule.format.references import find_message, parse_time, resolve_prefix
from capsule.format.text.titles import automatic_title, check_tags, check_title
from capsule.ids import check_id, is_id, new_id
from capsule.store.change.appends import (
    completed_message,
    earlier_keyed_append,
    ensure_nothing_newer,
    keyed_message,
    message_model,
    with_sender,
)
from capsule.store.change.conversation import Conversation

if TYPE_CHECKING:
    from collections.abc import Callable

    from capsule.engines.changes import Changes
    from capsule.engines.interface import Engine
    from capsule.engines.queries import Facets, Filter, Found, Listed, Order, Queries, Stats
    from capsule.format.documents.head import Head
    from capsule.format.models import Capsule, Message
    from capsule.settings import Settings
    from capsule.store.internals import StoreInternals
    from capsule.store.pages import Page


class Lists:
    """The lists of an open store. Their class is one of its own because a method `list` hides the
    type `list` from the annotations of all other methods in the same class.

    Args:
        inner: The inner interface of the store.
    """

    inner: StoreInternals[Any]
    engine: Engine
    agent: str | None
    settings: Settings

    def __init__(self, inner: StoreInternals[Any]) -> None:
        self.inner = inner
        self.engine = inner.engine
        self.agent = inner.agent
        self.settings = inner.settings

    @property
    def queries(self) -> Queries:
        """The queries about all conversations, for the agent or owner that this store acts for."""
        return self.engine.queries()

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

        A conversation that fits the filter all the time is on exactly one of the pages. No
        conversation is on two, whatever is written, renamed, pinned, deleted or restored between
        the pages.

        Args:
            filter: Which conversations. None: all that are not archived, and the damaged files.
            order: `updated` or `created`, the latest first, or `title`.
            limit: The largest number of conversations in a page. None: no limit.
            cursor: `Listed.cursor` of the previous page, with the same filter and order. Empty: the
                first page.
            progress: Called with the bytes indexed so far, and all bytes, if the index must be
                built first.

        Raises:
            InvalidInput: The cursor is of another list, store or index, or no cursor.
                `Filter.since` is not a time. Several agents have the name `Filter.agent`.
            StorageFailed, StoreBusy: The index can't be built.

        Cost: as `heads`, and a tenth of a microsecond for each conversation in the store and each
            condition. The first list in an order sorts them all. Later ones do not, whatever
            changed.
        """
        from capsule.engines.queries import ListRequest

        request = ListRequest(self._resolved(filter), order, limit=limit, cursor=cursor)
        return self.queries.conversations(request, progress)

    def facets(
        self, filter: Filter | None = None, progress: Callable[[int, int], None] | None = None
    ) -> Facets:
        """Count the conversations of a list by the values that they can also be filtered by, as for
        the menus beside the list.

        Args:
            filter: As in `list`.
            progress: As in `list`.

        Raises InvalidInput, StorageFailed, StoreBusy, as `list`. Cost: as `heads`, and about two
        microseconds for each conversation that fits.
        """
        return self.queries.facets(
            self._resolved(filter), self.inner.guard.folders(self.agent), progress
        )

    def _resolved(self, filter: Filter | None) -> Filter:
        """Return the filter with the id of its agent, and the members of its project."""
        from capsule.engines.queries import Filter, is_within

        resolved = filter or Filter()
        # The guard is called only if needed: it loads a room.
        if resolved.agent is not None:
            resolved = replace(resolved, agent=self.inner.guard.agent(self.agent, resolved.agent))
        project = resolved.project
        if project is not None:
            folders = self.inner.guard.folders(self.agent).items()
            members = frozenset(id for id, path in folders if is_within(path, project))
            resolved = replace(resolved, members=members)
        return resolved


class BaseStore(Lists):
    """Reading, searching and the common writes of an open store. The base of `CoreStore`."""

    def read(self, id: str) -> bytes:
        """Read the stored bytes of a conversation, validated. Raises NotFound, InvalidDocument.
        Cost: reading the file.

        Args:
            id: The conversation.
        """
        return self.engine.read(CONVERSATIONS, id)

    def document(self, id: str) -> dict[str, Any]:
        """Read a conversation as this version writes it, in canonical order.

        A number that JSON libraries would change is an `orjson.Fragment`.

        Args:
            id: The conversation.

        Raises NotFound, InvalidDocument. Cost: reading the file.
        """
        document = self.engine.document(CONVERSATIONS, id)
        if self.agent is None:
            return document
        return document | {"history": _readable(document)}

    def load(self, id: str) -> Capsule:
        """Read the whole conversation. Unknown fields are kept.

        Args:
            id: The conversation.

        Raises:
            NotFound: The conversation does not exist.
            InvalidDocument: Its file does not parse, or is no capsule.

        Cost: reading the file, and making the models.
        """
        from capsule.format.models import Capsule

        def parse(data: bytes, is_canonical: bool) -> Capsule:
            canonical = data
            if not is_canonical:
                path = self.engine.name(CONVERSATIONS, id)
                document, _ = migrations.upgrade(codec.decode(data, path), path)
                canonical = codec.encode(document)
            return Capsule.model_validate_json(canonical)

        if self.agent is None:
            return self.engine.parsed(id, parse).placed(0)
        document = self.engine.document(CONVERSATIONS, id)
        readable = _readable(document)
        capsule = parse(codec.encode(document | {"history": readable}), True)
        return capsule.placed(len(document["history"]) - len(readable))

    def tail(self, id: str, n: int) -> list[Message]:
        """Read the last messages, oldest first. Raises NotFound, InvalidDocument. Cost: reading
        these messages.

        Args:
            id: The conversation.
            n: The number of messages.
        """
        from capsule.format.models import parse_messages

        entries, count, _ = self.engine.tail(id, n)
        messages = parse_messages(entries)
        first_position = count - len(messages)
        return [message.placed(index) for index, message in enumerate(messages, first_position)]

    def tail_entries(self, id: str, n: int) -> tuple[int, list[dict[str, Any]]]:
        """Read the last messages as in the file, with numbers as in `document`.

        Args:
            id: The conversation.
            n: The number of messages.

        Returns:
            The position of the first message, and the messages.

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
        return self.inner.parsed_head(id, *self.engine.head(id))

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

        return iter(self.queries.conversations(ListRequest(), progress).heads)

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
            query: Words, "phrases", prefix*, AND, OR, NOT. Any text is a query (docs/search.md). If
                no text has all words, the hits have as many as possible, and `Found.having` is that
                number. An empty query finds all messages.
            roles: Only messages of these roles. Empty: all roles. With `roles` or `senders`, titles
                are not searched.
            senders: Only messages from these agents.
            ids: Only these conversations, by their full ids.
            tags: Only conversations with all of these tags.
            mode: Only conversations of this mode.
            since: Only messages of this time or later, given as a date (`2025-01-31`), a time, or a
                duration before now (`24h`).
            until: Only messages before this time, or up to the end of this day.
            title_only: Search titles and tags only.
            branch: `all`: messages of every branch. `active`: messages of the active branch.
            in_tools: Search tool calls and reasoning too.
            profile: The weight of a message's age: `recent`, `balanced` or `exact`.
            where: Only messages whose fields and metadata fit this filter, such as `{"confidence":
                {"$gte": 0.5}}` (docs/search.md, "Filters"). Titles are not searched then.
            limit: The largest number of hits in a page.
            cursor: `Found.cursor` of the previous page, with the same query and options.
            progress: Called with the bytes indexed so far, and all bytes, if the index must be
                built first.

        Raises:
            InvalidInput: An option can't be accepted, or the cursor belongs to another search.
            StorageFailed, StoreBusy: The index can't be built.

        Cost: as `heads`, and about a microsecond for each match that is ranked.
        """
        from capsule.engines.queries import SearchRequest
        from capsule.format.filters import parse

        # Sorted, because the cursor of a search fits only the same options.
        request = SearchRequest(
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
        return self.queries.search(request, progress)

    def stats(self, progress: Callable[[int, int], None] | None = None) -> Stats:
        """Count the contents of the store. Raises StorageFailed, StoreBusy. Cost: a pass over the
        index.

        Args:
            progress: As in `search`.
        """
        return self.queries.stats(progress)

    def changes(
        self, since: str | None = None, *, ids: Iterable[str] | None = None, limit: int = 1000
    ) -> Changes:
        """List the changes since a cursor, by any writer. Cost: as `heads`.

        Args:
            since: The cursor of a change, or of an earlier result. None: no changes, and the
                current cursor.
            ids: Only these conversations. None: all.
            limit: The largest number of changes. `Changes.cursor` is the cursor to continue from.

        Raises:
            InvalidInput: `since` is not a cursor.
        """
        page = self.queries.changes(since, limit)
        changes = page.changes
        if ids is not None:
            requested_ids = set(ids)
            changes = [change for change in changes if change.id in requested_ids]
        return self.inner.with_own_marked(changes, page.cursor)

    def reindex(self, progress: Callable[[int, int], None] | None = None) -> dict[str, int]:
        """Rebuild the index, and return its counts. Raises StorageFailed, StoreBusy. Cost: reading
        every file.

        Args:
            progress: Called with the bytes read so far, and all bytes.
        """
        self.queries.refresh(progress=progress, anew=True)
        stats = self.queries.stats()
        return {
            "conversations": stats.conversations,
            "damaged": stats.damaged,
            "messages": stats.messages,
            "words": stats.words,
        }

    def ids(self) -> list[str]:
        """List the ids of all conversations, sorted.

        Raises:
            Refused, StorageFailed: The system refused a read or a write.

        Cost: one scan of the directory.
        """
        return self.engine.ids(CONVERSATIONS)

    def find_message(self, id: str, message_id: str) -> Message:
        """Read one message. Raises NotFound, InvalidInput, InvalidDocument. Cost: reading the file.

        Args:
            id: The conversation.
            message_id: The message's id, a unique prefix of it, `@N` (its position) or `@last`.
        """
        from capsule.format.models import Message

        history = self.engine.document(CONVERSATIONS, id)["history"]
        position = find_message(history, message_id, id)
        return Message.model_validate_json(codec.encode(history[position])).placed(position)

    def resolve(self, text: str) -> str:
        """Find the id of the conversation that a person named. An id, or a beginning of one, wins
        over a name.

        Args:
            text: A full id, a unique prefix of 4 characters or more, `@last`, or the name of a
                channel or a group that the agent may read.

        Raises:
            NotFound: The conversation does not exist.
            InvalidInput: The prefix or the name fits several conversations, or is too short.

        Cost: one scan of the directory. For `@last` and for a name, as `heads`.
        """
        from capsule.engines.queries import ListRequest

        if text == "@last":
            latest = self.queries.conversations(ListRequest(order="latest", limit=1)).heads
            if not latest:
                raise NotFound("there is no conversation yet", remedy=Remedy("new"), id=text)
            return latest[0].id
        if is_id(text) and self.engine.exists(CONVERSATIONS, text):
            return text
        ids = self.ids()
        # The conflict copies of synchronizing programs are left out.
        candidates = [id for id in ids if id.startswith(text) and original_of(id) is None]
        try:
            return resolve_prefix(candidates, check_id(text))
        except (NotFound, InvalidInput):
            heads = self.queries.conversations(ListRequest()).heads if ids and text else ()
            ids_by_name = self.inner.guard.conversations_named(self.agent, text, heads)
            if len(ids_by_name) > 1:
                raise InvalidInput(
                    f"several conversations are called {text[:80]!r}; give the id of one: "
                    f"{', '.join(sorted(ids_by_name))}"
                ) from None
            if not ids_by_name:
                raise
            return ids_by_name[0]

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
        restored between the pages. A cursor names the next message. If another branch becomes the
        active one, older pages stay on the former branch. Newer pages follow the new branch only if
        it leads through that message. If the message is deleted, the cursor is refused. Continue
        `around` the last message that was shown.

        Args:
            id: The conversation.
            limit: The largest number of messages.
            around: A message, as `find_message` takes it, shown with its neighbours. If it is not
                on the active branch, the page is of the branch through it, and on to the newest
                answers.
            cursor: `Page.older` or `Page.newer` of an earlier page.
            where: Only messages that fit this filter, as `search` takes it. A cursor needs the same
                filter.

        Raises:
            NotFound: The conversation or the message does not exist.
            InvalidInput: `around` fits several messages, or the cursor or filter can't be accepted.
            InvalidDocument: The file does not parse, or is no capsule.

        Cost: reading from the page to the end of the file. Reading the whole file if a branch
            begins there or was made the active one, if there is a filter, or if `around` names, by
            its id, a message that is not among the last 256.
        """
        from capsule.store.pages import page_of

        chosen_ids = None
        if where is not None:
            chosen_ids = {match.message for match in self.queries.messages(where, id)}
        return page_of(self.engine, id, limit, around, cursor, chosen_ids)

    def create(
        self,
        *,
        title: str | None = None,
        mode: str = "api",
        type: str = "chat",
        tags: Iterable[str] = (),
        id: str | None = None,
        messages: Iterable[Mapping[str, Any] | Message] = (),
        created_by: str | None = None,
        key: str | None = None,
    ) -> Head:
        """Make a conversation. It is durable when this returns.

        Args:
            title: Its title. None: made by rule from the first user message, if any.
            mode: `api` or `toolbox`.
            type: `chat`, `direct`, `group` or `channel`.
            tags: Its tags.
            id: Its id. None: a new one.
            messages: Its first messages, as `append_many` takes them.
            created_by: The agent that makes it.
            key: An idempotency key in place of `id`, for this one conversation. A retry with the
                same key and the same first message returns the conversation that the first call
                made, in any process.

        The new conversation gets the pending MCP switches (`servers.set` with None).

        Raises:
            InvalidInput: An argument can't be accepted, or the id is in use.
            InvalidDocument: The file of the pending switches does not parse.
            Refused, StorageFailed: The system refused a read or a write.

        Cost: writing a new file, with two flushes.
        """
        from capsule.store.change.pending_overrides import create_with_pending_overrides
        from capsule.store.creation import create_once, write_new

        if key is not None and id is not None:
            raise InvalidInput("give id or key, not both: the key determines the id")
        created_at = timestamps.now()
        checked = [with_sender(check_message(message), self.agent) for message in messages]
        entries = [completed_message(message, created_at) for message in checked]
        given_title = None if title is None else check_title(title)
        new_title = automatic_title(entries) if given_title is None else given_title

        def make(conversation_id: str) -> Head:
            lock = self.inner.instance_locks.lock_for_new(type)

            def make_with_overrides(overrides: dict[str, Any] | None) -> Head:
                document = creation.new_capsule(
                    conversation_id,
                    title=new_title,
                    stamp=created_at,
                    mode=mode,
                    type=type,
                    tags=check_tags(tags),
                    title_set_by="auto" if given_title is None else "user",
                    lock=lock,
                    messages=entries,
                    metadata={"createdBy": self.agent or created_by, "mcpServers": overrides},
                )
                return write_new(self.inner, document)

            return create_with_pending_overrides(self.engine, make_with_overrides)

        if key is not None:
            first_message = next(iter(checked), None)
            return create_once(self.inner, "create", "", key, make, given_title, first_message)
        return make(new_id() if id is None else check_id(id))

    def append(
        self,
        id: str,
        *,
        role: str = "user",
        content: str,
        extra: Mapping[str, Any] | None = None,
        wait: bool = True,
        **fields: Any,
    ) -> Message:
        """Append one message. It is durable when this returns.

        Args:
            id: The conversation.
            role: `user`, `assistant`, `system` or `tool`.
            content: The text.
            extra: Fields that the format does not know, by the names that they get in the file.
            wait: False: return as soon as every reader sees the message. It is durable within a
                second. A power cut before that may lose it. For output that comes in many small
                pieces.
            fields: Further fields, by their names in the format or in the model (`from_`,
                `tool_calls`). `parent` is the id of the message that this one answers (None: no
                message). Without it, the message answers the end of the active branch.

        Returns:
            The message as written, with its id, its time, and `at`, its position.

        Raises:
            NotFound: The conversation does not exist.
            TypeError: A keyword is no field of a message, or `extra` has such a field.
            InvalidInput: The message can't be accepted, or the conversation has no message with the
                id of its parent.
            Locked, LockLost: Another instance holds the lock, or took it.
            InvalidDocument: The file does not parse. It is not changed.
            StoreBusy: Another writer held the document for longer than storage.mutex_timeout.
            Refused, StorageFailed: The system refused a read or a write.

        Cost: four pwrites under the mutex and an fdatasync after it, whatever the conversation's
            size. If the active branch was switched, also reading back to the beginning of the
            branch, once for each open store.
        """
        if fields or extra:
            fields = fields_given(fields, extra)
        checked = [check_message({"role": role, "content": content, **fields})]
        position, entries = self.inner.change(id, methodcaller("append", checked, wait=wait))
        return message_model(entries[0], position)

    def append_many(
        self, id: str, messages: Iterable[Mapping[str, Any] | Message], *, wait: bool = True
    ) -> list[Message]:
        """Append messages in one write: all of them, or none. They are durable when this returns.

        Args:
            id: The conversation.
            messages: Mappings or `Message` models. If there are none, nothing happens.
            wait: As `append` takes it.

        Returns the messages as written. Raises the errors of `append`. Cost: one fdatasync.
        """
        first_position, entries = self.append_entries(id, messages, wait=wait)
        models = []
        for position, entry in enumerate(entries, first_position):
            models.append(message_model(entry, position))
        return models

    def append_entries(
        self, id: str, messages: Iterable[Mapping[str, Any] | Message], *, wait: bool = True
    ) -> tuple[int, list[dict[str, Any]]]:
        """Append as `append_many` does, without making models: importing pydantic takes longer than
        an append.

        Args:
            id: The conversation.
            messages: As `append_many` takes them.
            wait: As `append` takes it.

        Returns:
            The position of the first message, and the messages as in the file.

        Raises the errors of `append`. Cost: one fdatasync.
        """
        checked = [check_message(message) for message in messages]
        if not checked:
            return 0, []
        return self.inner.change(id, lambda conversation: conversation.append(checked, wait=wait))

    def append_once(
        self,
        id: str,
        key: str,
        *,
        role: str = "user",
        content: str,
        extra: Mapping[str, Any] | None = None,
        seen: str | None = None,
        **fields: Any,
    ) -> tuple[Message, bool]:
        """Append one message, unless any process has appended it under this key before.

        Args:
            id: The conversation.
            key: An idempotency key for this one message. A retry gives the same key and the same
                message.
            role, content, extra, fields: As `append` takes them.
            seen: The id of the last message that the writer saw. If other messages follow it,
                nothing is written.

        Returns:
            The message as written, and whether it existed already.

        Raises the errors of `append`, and InvalidInput if the key was used for another message, or
        other messages follow `seen`. The error's field `came` is their number. 0: `seen` is not in
        the active branch any more.

        Cost: as `append`, and reading the file once for each process and each version of the file's
            head. A retry costs reading the file.
        """
        given_fields = {"role": role, "content": content, **fields_given(fields, extra)}
        message = with_sender(keyed_message(check_id(id), key, given_fields), self.agent)

        def append(conversation: Conversation) -> tuple[int, dict[str, Any], bool]:
            earlier = earlier_keyed_append(conversation.transaction, message)
            if earlier is not None:
                return *earlier, True
            if seen is not None:
                ensure_nothing_newer(
                    conversation.transaction, seen, is_active=message.get("parent") is None
                )
            position, entries = conversation.append([message])
            return position, entries[0], False

        position, entry, is_repeated = self.inner.change(id, append)
        return message_model(entry, position), is_repeated

    def update(
        self,
        id: str,
        *,
        title: str | None = None,
        by: str = "user",
        instead_of: str | None = None,
        tags: Iterable[str] | None = None,
        tagged: Iterable[str] = (),
        untagged: Iterable[str] = (),
        pinned: bool | None = None,
        archived: bool | None = None,
        mcp_servers: Mapping[str, bool | None] | None = None,
    ) -> Head:
        """Change several fields of a head in one write. A field that is None or left out does not
        change.

        Args:
            id: The conversation.
            title: The title.
            by: As `rename` takes it.
            instead_of: The title that the new one replaces. The change is refused if the title is
                another one by now.
            tags: All tags. They replace the present ones.
            tagged, untagged: Tags to add, and tags to remove.
            pinned: Whether it is pinned to the top of the list.
            archived: Whether it is archived.
            mcp_servers: Switches of MCP servers, as `servers.set` takes them.

        Raises the errors of `append`, and InvalidInput if a value can't be accepted or nothing is
        to be changed.

        Cost: copying the file.
        """
        from capsule.store.change.head_changes import head_change

        flags = {"pinned": pinned, "archived": archived}
        return self.inner.change_head(
            id, head_change(title, by, instead_of, tags, tagged, untagged, flags, mcp_servers)
        )

    def rename(self, id: str, title: str, *, by: str = "user") -> Head:
        """Give a conversation a title. Raises the errors of `append`. Cost: copying the file.

        Args:
            id: The conversation.
            title: The title.
            by: `user`, or `auto` for a title made by rule, which a later rule may change.
        """
        return self.update(id, title=title, by=by)

    def tag(self, id: str, *tags: str) -> Head:
        """Add tags. A tag that exists already is skipped. Raises the errors of `append`. Cost:
        copying the file.

        Args:
            id: The conversation.
            tags: The tags.
        """
        return self.update(id, tagged=tags)

    def untag(self, id: str, *tags: str) -> Head:
        """Remove tags. A tag that does not exist is skipped. Raises the errors of `append`. Cost:
        copying the file.

        Args:
            id: The conversation.
            tags: The tags.
        """
        return self.update(id, untagged=tags)

    def pin(self, id: str, on: bool = True) -> Head:
        """Pin a conversation to the top of the list, or unpin it.

        Raises the errors of `append`. Cost: copying the file.

        Args:
            id: The conversation.
            on: False unpins it.
        """
        return self.update(id, pinned=on)

    def archive(self, id: str, on: bool = True) -> Head:
        """Archive a conversation, or restore it to the list. Raises the errors of `append`. Cost:
        copying the file.

        Args:
            id: The conversation.
            on: False brings it back.
        """
        return self.update(id, archived=on)


def _readable(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages that the agent may read. The view shows the others as empty objects."""
    return [entry for entry in document["history"] if entry]


def _ms(text: str | None, *, until: bool) -> int | None:
    """Return the time of a search option in milliseconds since 1970."""
    if text is None:
        return None
    return timestamps.ms_of(parse_time(text, until=until))
