"""The common writes: making a conversation, appending messages, changing the head.

What must stay true: every change of a conversation is one `Inner.change`. A write is durable when
the method returns. A change of the head is one write, parses no message, and changes only the given
fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

from capsule import timestamps
from capsule.errors import InvalidInput
from capsule.format.documents import new
from capsule.format.documents.message import check_message, fields_given
from capsule.format.text.titles import check_tags, check_title, title_by_rule
from capsule.ids import check_id, new_id
from capsule.store.change.appends import (
    appended,
    as_model,
    complete,
    ensure_seen,
    keyed_message,
    signed,
)
from capsule.store.change.conversation import Conversation
from capsule.store.reading import Reading

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.format.models import Message

T = TypeVar("T")
Document = dict[str, Any]


class Writing(Reading):
    """The common writes of an open store. A base of `CoreStore`."""

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
            key: An idempotency key in place of `id`, for this one conversation. A retry with the
                same key and the same first message returns the conversation that the first call
                made, in any process.

        The new conversation takes over the MCP switches that wait for it (`servers.set` with None).

        Raises:
            InvalidInput: An argument can't be accepted, or the id is taken.
            InvalidDocument: The file of the waiting switches does not parse.
            Refused, StorageFailed: The system did not permit it.

        Cost: writing a new file, with two flushes.
        """
        from capsule.store.creation import made_once, write_new
        from capsule.store.objects.attributes import with_waiting

        if key is not None and id is not None:
            raise InvalidInput("give id or key, and not both: a key makes the id")
        stamp = timestamps.now()
        checked = [signed(check_message(message), self.agent) for message in messages]
        entries = [complete(message, stamp) for message in checked]
        named = title is not None
        title = title_by_rule(entries) if title is None else check_title(title)

        def make(id: str) -> Head:
            lock = self.inner.holder.lock_for_new(type)

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
                return write_new(self.inner, document)

            return with_waiting(self.engine, with_overrides)

        if key is not None:
            return made_once(
                self.inner,
                "create",
                "",
                key,
                make,
                title if named else None,
                next(iter(checked), None),
            )
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
        """Append one message; it is durable when this returns.

        Args:
            id: The conversation.
            role: `user`, `assistant`, `system` or `tool`.
            content: The text.
            extra: Fields that the format does not know, by the names that they get in the file.
            wait: False: it returns when every reader sees the message, which is durable within a
                second. A power cut before that may take it. For output that comes in many small
                pieces.
            fields: Further fields, by their names in the format or in the model (`from_`,
                `tool_calls`). `parent` is the id of the message it answers (None: no message);
                without it, the end of the active branch.

        Returns:
            The message as written, with its id, its time, and `at`, its position.

        Raises:
            NotFound: There is no such conversation.
            TypeError: A keyword is no field of a message, or `extra` has one.
            InvalidInput: The message can't be accepted, or the conversation has no message with the
                id of its parent.
            Locked, LockLost: Another instance holds the lock, or took it.
            InvalidDocument: The file does not parse; it stays as it is.
            StoreBusy, Refused, StorageFailed: The system did not permit it.

        Cost: four pwrites under the mutex and an fdatasync after it, whatever the conversation's
            size. If the active branch was switched, also reading back to the beginning of the
            branch, once for each open store.
        """
        if fields or extra:
            fields = fields_given(fields, extra)
        checked = [check_message({"role": role, "content": content, **fields})]
        at, entries = self.inner.change(id, methodcaller("append", checked, wait=wait))
        return as_model(entries[0], at)

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
        at, entries = self.append_entries(id, messages, wait=wait)
        return [as_model(entry, place) for place, entry in enumerate(entries, at)]

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
            The place of the first message, and the messages as they stand in the file.

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
            seen: The id of the last message that the writer saw. If others stand behind it, nothing
                is written.

        Returns:
            The message as written, and whether it was there already.

        Raises the errors of `append`, and InvalidInput if the key was used for another message, or
        others stand behind `seen`: the error's field `came` says how many; 0: it is not in the
        active branch any more.

        Cost: as `append`, and reading the file once for each process and each version of the file's
            head. A retry costs reading the file.
        """
        given = {"role": role, "content": content, **fields_given(fields, extra)}
        message = signed(keyed_message(check_id(id), key, given), self.agent)

        def act(conversation: Conversation) -> tuple[int, dict[str, Any], bool]:
            before = appended(conversation.transaction, message)
            if before is not None:
                return *before, True
            if seen is not None:
                ensure_seen(conversation.transaction, seen, is_active=message.get("parent") is None)
            at, entries = conversation.append([message])
            return at, entries[0], False

        at, entry, repeated = self.inner.change(id, act)
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
        """Change several fields of a head in one write. A field that is None or left out stays as
        it is.

        Args:
            id: The conversation.
            title: The title.
            by: As `rename` takes it.
            instead_of: The title that the new one replaces. The change is refused if the title is
                another one by now.
            tags: All tags; they replace the present ones.
            tagged, untagged: Tags to add, and tags to remove.
            pinned: Whether it is pinned to the top of the list.
            archived: Whether it is archived.
            mcp_servers: Switches of MCP servers, as `servers.set` takes them.

        Raises the errors of `append`, and InvalidInput if a value can't be accepted or there is
        nothing to change.

        Cost: copying the file.
        """
        from capsule.store.objects.attributes import changed

        flags = {"pinned": pinned, "archived": archived}
        return self.inner.change_head(
            id, changed(title, by, instead_of, tags, tagged, untagged, flags, mcp_servers)
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
        """Add tags. A tag that exists already stays as it is. Raises the errors of `append`. Cost:
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
