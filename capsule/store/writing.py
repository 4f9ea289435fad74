"""The common writes: making a conversation, appending messages, changing the head.

What must stay true: every change of a conversation is one `_change`. A write is durable when the method returns. A
change of the head is one write, parses no message, and changes only the given fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from capsule import timestamps
from capsule.engines.retrying import overtaken
from capsule.errors import Interfered, InvalidInput
from capsule.format.documents import new
from capsule.format.documents.message import check_message, fields_given
from capsule.format.text.titles import check_tags, check_title, title_by_rule
from capsule.ids import check_id, new_id
from capsule.store.appends import appended, as_model, complete, keyed_message, signed
from capsule.store.change import TRIES, Conversation, unasked
from capsule.store.reading import KIND, Reading

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.format.models import Message
    from capsule.locks.holder import Holder
    from capsule.rules.policy import StateOf
    from capsule.settings import Settings

T = TypeVar("T")
Document = dict[str, Any]


class Writing(Reading):
    """The common writes of an open store. A base of `Store`.

    Every change of a conversation is one `_change`: a transaction, the check who may write, the change, and the lock
    recorded with it. It starts over when another program wrote the file in between.
    """

    settings: Settings
    _holder: Holder
    #: Gives what a decision of the rule depends on besides an object.
    _state_of: StateOf

    def _change(
        self,
        id: str,
        edit: Callable[[Conversation], T],
        admit: Callable[[Conversation], Document | None] | None = None,
        *,
        is_own: bool = True,
    ) -> T:
        """Change a conversation.

        Args:
            id: The conversation.
            edit: Makes the change. It runs again when another program wrote in between, so new ids are made outside it.
            admit: Decides who may write, as `Conversation` takes it; None: as for a save, which also asks what the
                agent may do.
            is_own: Whether this store's watchers see the change as its own.
        """
        for tries in range(TRIES):  # Not by `again`: an append goes this way, through as few functions as can be.
            with suppress(Interfered), self.engine.transaction(KIND, id) as transaction:
                conversation = Conversation(
                    self,
                    transaction,
                    admit or self._holder.admit,
                    tries,
                    is_own=is_own,
                    is_ruled=admit is None,
                )
                own = self._own if is_own else None
                with nullcontext() if own is None else own.writing(conversation):
                    result = edit(conversation)
                if conversation.recorded is not None:
                    self._holder.now_held(id, conversation.recorded)
                return result
        raise overtaken(f"conversation {id}", id)

    def _wrote(self, id: str, *marks: str, entries: Iterable[Document] = ()) -> None:
        """Remember own writes for this store's watchers: messages, and marks as `Own.wrote` takes them."""
        if self._own is not None:
            self._own.wrote(id, *marks)
            self._own.appended(id, entries)

    def _under_way(self, id: str) -> AbstractContextManager[None]:
        """As `Own.under_way`, while the store is watched."""
        return nullcontext() if self._own is None else self._own.under_way(id)

    def _change_unasked(self, id: str, action: Callable[[Conversation], T]) -> T:
        return self._change(id, action, unasked)

    def _change_head(self, id: str, change: Callable[[Document], None]) -> Head:
        return self._head_of(id, self._change(id, lambda conversation: conversation.change_head(change)))

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
        """Make a conversation; it is durable when this returns.

        Args:
            title: Its title; None: made by rule from the first user message, if there is one.
            mode: `api` or `toolbox`.
            type: `chat`, `direct`, `group` or `channel`.
            tags: Its tags.
            id: Its id; None: a new one.
            messages: Its first messages, as `append_many` takes them.
            created_by: The agent that makes it.
            key: An idempotency key in place of `id`, for this one conversation. A retry with the same key and the same
                first message returns the conversation that the first call made, in any process.

        The new conversation takes over the MCP switches that wait for it (`servers.set` with None).

        Raises:
            InvalidInput: An argument can't be accepted, or the id is taken.
            InvalidDocument: The file of the waiting switches does not parse.
            Refused, StorageFailed: The system did not permit it.

        Cost: writing a new file, with two flushes.
        """
        from capsule.store.attributes import with_waiting
        from capsule.store.creation import made_once, write_new

        if key is not None and id is not None:
            raise InvalidInput("give id or key, and not both: a key makes the id")
        stamp = timestamps.now()
        checked = [signed(check_message(message), self.agent) for message in messages]
        entries = [complete(message, stamp) for message in checked]
        named = title is not None
        title = title_by_rule(entries) if title is None else check_title(title)

        def make(id: str) -> Head:
            lock = self._holder.lock_for_new(type)

            def with_overrides(overrides: dict[str, Any] | None) -> Head:
                document = new.new_capsule(
                    id,
                    title,
                    stamp,
                    mode,
                    type,
                    check_tags(tags),
                    "user" if named else "auto",
                    lock,
                    entries,
                    metadata={"createdBy": self.agent or created_by, "mcpServers": overrides},
                )
                return write_new(self, document)

            return with_waiting(self.engine, with_overrides)

        if key is not None:
            return made_once(self, "create", "", key, make, title if named else None, next(iter(checked), None))
        return make(new_id() if id is None else check_id(id))

    def append(
        self, id: str, *, role: str = "user", content: str, extra: Mapping[str, Any] | None = None, **fields: Any
    ) -> Message:
        """Append one message; it is durable when this returns.

        Args:
            id: The conversation.
            role: `user`, `assistant`, `system` or `tool`.
            content: The text.
            extra: Fields that the format does not know, by the names that they get in the file.
            fields: Further fields, by their names in the format or in the model (`from_`, `tool_calls`). `parent` is
                the id of the message it answers (None: no message); without it, the end of the active branch.

        Returns:
            The message as written, with its id, its time, and `at`, its position.

        Raises:
            NotFound: There is no such conversation.
            TypeError: A keyword is no field of a message, or `extra` has one.
            InvalidInput: The message can't be accepted, or the conversation has no message with the id of its parent.
            Locked, LockLost: Another instance holds the lock, or took it.
            InvalidDocument: The file does not parse; it stays as it is.
            StoreBusy, Refused, StorageFailed: The system did not permit it.

        Cost: two pwrites and an fdatasync under the mutex, whatever the conversation's size. If the active branch was
            switched, also reading back to the beginning of the branch, once for each open store.
        """
        if fields or extra:
            fields = fields_given(fields, extra)
        checked = [check_message({"role": role, "content": content, **fields})]
        at, entries = self._change(id, lambda conversation: conversation.append(checked))
        return as_model(entries[0], at)

    def append_many(self, id: str, messages: Iterable[Mapping[str, Any] | Message]) -> list[Message]:
        """Append messages in one write: all of them, or none. They are durable when this returns.

        Args:
            id: The conversation.
            messages: Mappings or `Message` models. If there are none, nothing happens.

        Returns the messages as written. Raises the errors of `append`. Cost: one fdatasync.
        """
        at, entries = self.append_entries(id, messages)
        return [as_model(entry, place) for place, entry in enumerate(entries, at)]

    def append_entries(
        self, id: str, messages: Iterable[Mapping[str, Any] | Message]
    ) -> tuple[int, list[dict[str, Any]]]:
        """Append as `append_many` does, without making models: importing pydantic takes longer than an append.

        Args:
            id: The conversation.
            messages: As `append_many` takes them.

        Returns:
            The place of the first message, and the messages as they stand in the file.

        Raises the errors of `append`. Cost: one fdatasync.
        """
        checked = [check_message(message) for message in messages]
        if not checked:
            return 0, []
        return self._change(id, lambda conversation: conversation.append(checked))

    def append_once(
        self,
        id: str,
        key: str,
        *,
        role: str = "user",
        content: str,
        extra: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> tuple[Message, bool]:
        """Append one message, unless any process has appended it under this key before.

        Args:
            id: The conversation.
            key: An idempotency key for this one message. A retry gives the same key and the same message.
            role, content, extra, fields: As `append` takes them.

        Returns:
            The message as written, and whether it was there already.

        Raises the errors of `append`, and InvalidInput if the key was used for another message.

        Cost: as `append`, and reading the file once for each process and each version of the file's head. A retry
            costs reading the file.
        """
        given = {"role": role, "content": content, **fields_given(fields, extra)}
        message = signed(keyed_message(check_id(id), key, given), self.agent)

        def act(conversation: Conversation) -> tuple[int, dict[str, Any], bool]:
            before = appended(conversation, message)
            if before is not None:
                return *before, True
            at, entries = conversation.append([message])
            return at, entries[0], False

        at, entry, repeated = self._change(id, act)
        return as_model(entry, at), repeated

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
        """Change several fields of a head in one write. A field that is None or left out stays as it is.

        Args:
            id: The conversation.
            title: The title.
            by: As `rename` takes it.
            instead_of: The title that the new one replaces. The change is refused if the title is another one by now.
            tags: All tags; they replace the present ones.
            tagged, untagged: Tags to add, and tags to remove.
            pinned: Whether it is pinned to the top of the list.
            archived: Whether it is archived.
            mcp_servers: Switches of MCP servers, as `servers.set` takes them.

        Raises the errors of `append`, and InvalidInput if a value can't be accepted or there is nothing to change.

        Cost: copying the file.
        """
        from capsule.store.attributes import changed

        flags = {"pinned": pinned, "archived": archived}
        return self._change_head(id, changed(title, by, instead_of, tags, tagged, untagged, flags, mcp_servers))

    def rename(self, id: str, title: str, *, by: str = "user") -> Head:
        """Give a conversation a title. Raises the errors of `append`. Cost: copying the file.

        Args:
            id: The conversation.
            title: The title.
            by: `user`, or `auto` for a title made by rule, which a later rule may change.
        """
        return self.update(id, title=title, by=by)

    def tag(self, id: str, *tags: str) -> Head:
        """Add tags. A tag that exists already stays as it is. Raises the errors of `append`. Cost: copying the file.

        Args:
            id: The conversation.
            tags: The tags.
        """
        return self.update(id, tagged=tags)

    def untag(self, id: str, *tags: str) -> Head:
        """Remove tags. A tag that does not exist is skipped. Raises the errors of `append`. Cost: copying the file.

        Args:
            id: The conversation.
            tags: The tags.
        """
        return self.update(id, untagged=tags)

    def pin(self, id: str, on: bool = True) -> Head:
        """Pin a conversation to the top of the list, or unpin it. Raises and costs as `rename`.

        Args:
            id: The conversation.
            on: False unpins it.
        """
        return self.update(id, pinned=on)

    def archive(self, id: str, on: bool = True) -> Head:
        """Archive a conversation, or restore it to the list. Raises the errors of `append`. Cost: copying the file.

        Args:
            id: The conversation.
            on: False brings it back.
        """
        return self.update(id, archived=on)
