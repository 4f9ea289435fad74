"""Making a conversation.

What must stay true: what is made is a valid capsule, and durable when it is returned; an id that is taken is never
written over; and a conversation made under a key is made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.engines.files.protocols import Interfered
from capsule.errors import InvalidDocument, InvalidInput
from capsule.format import codec, new, validation
from capsule.format.head import Head
from capsule.format.message import check_message
from capsule.format.text.titles import check_tags, check_title, title_by_rule
from capsule.ids import check_id, new_id
from capsule.store.change import complete, encoded_within
from capsule.store.idempotency import TakenId, made_once
from capsule.store.reading import KIND
from capsule.store.servers import Overriding

if TYPE_CHECKING:
    from capsule.format.models import Message


class Creating(Overriding):
    """How an open store makes a conversation. A base of `Store`."""

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
            title: Its title; None: made by rule from the first user message, when there is one.
            mode: `api` or `toolbox`.
            type: `chat`, `direct`, `group` or `channel`.
            tags: Its tags.
            id: Its id; None: a new one.
            messages: Its first messages, as `append_many` takes them.
            created_by: The agent that makes it.
            key: Instead of `id`, chosen by the caller for this one conversation. A retry gives the same key and the
                same first message, and gets the conversation that the first call made, also from another process.

        It gets the switches of MCP servers that wait for it (`set_mcp_servers` of None), which are then gone.

        Raises:
            InvalidInput: An argument can't be accepted, or the id is taken.
            InvalidDocument: The document of the waiting switches does not parse.
            Refused, StorageFailed: The system did not permit it.

        Cost: writing a new file, with two flushes.
        """
        if key is not None and id is not None:
            raise InvalidInput("give id or key, and not both: a key makes the id")
        stamp = timestamps.now()
        checked = [check_message(message) for message in messages]
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
                    metadata={"createdBy": created_by, "mcpServers": overrides},
                )
                return self._make(document)

            return self._with_pending(with_overrides)

        if key is not None:
            return made_once(self, "create", "", key, make, title if named else None, next(iter(checked), None))
        return make(new_id() if id is None else check_id(id))

    def _make(self, document: dict[str, Any]) -> Head:
        """Write a new conversation, whose lock, if it has one, is this instance's. Raises as `create`."""
        id, entries, lock = document["id"], document["history"], document["metadata"]["lock"]
        for entry in entries:
            encoded_within(entry, self.settings.message_bytes)
        _check_new(document, codec.encode(document))
        own = self._own

        def written(tag: str) -> None:
            if own is not None:
                own.wrote(id, "created", tag)
                own.appended(id, entries)

        try:
            with own.under_way(id) if own is not None else nullcontext():
                size = self.engine.create(KIND, document, written)
        except Interfered:
            raise TakenId(f"conversation {id} exists already; append to it, or choose another id") from None
        self._holder.now_held(id, lock)
        head = Head.of(document, self.engine.name(KIND, id), size)
        assert head is not None
        return head


def _check_new(document: dict[str, Any], data: bytes) -> None:
    """Raise InvalidInput unless a document made from arguments is a valid capsule."""
    try:
        validation.check(document, data, "conversation")
    except InvalidDocument as error:
        raise InvalidInput("; ".join(f"{problem.where}: {problem.what}" for problem in error.problems)) from None
