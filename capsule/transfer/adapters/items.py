"""Store the items of a session of an agent SDK as the messages of a conversation.

An item is a JSON object that an SDK stores: a message, a call of a tool, its result. The pair of
functions of the SDK converts an item to a message and back (`mapping.Pair`). What the message
lacks is stored in its `metadata.source`. The first `add` creates the conversation, with the name of
the SDK as a tag.

Invariants: an item is read back equal. Concurrent appends of several processes are all stored. An
item with an id is stored once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from capsule.engines.queries import Filter
from capsule.errors import InvalidInput, NotFound
from capsule.format.documents.message import check_message
from capsule.ids import imported_conversation_id, imported_message_id
from capsule.transfer.reading.json_stream import without_surrogates
from capsule.transfer.records.mapping import (
    Fields,
    Pair,
    apply_difference,
    difference,
    object_of,
    with_source,
    without_source,
)

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.store.change.conversation import Conversation
    from capsule.store.store import CoreStore

#: The key in `metadata.source` for the fields as a JSON text. It is used if they have a lone
#: surrogate, which a document can't have.
_ESCAPED = "$json"
#: The fields of a message from which an item is made.
_ITEM_FIELDS = ("role", "content", "model", "reasoning", "toolCalls", "toolCallId", "metadata")


class Items:
    """The items of one session, as a conversation.

    Attributes:
        id: The id of the conversation. It depends on the SDK and the session only.
    """

    def __init__(
        self,
        store: CoreStore,
        name: str,
        session: str,
        item: Pair,
        key: Mapping[str, str] | None = None,
    ) -> None:
        """Use the conversation of a session. It need not exist.

        Args:
            store: A store that keeps no locks.
            name: The name of the SDK.
            session: The id of the session in the SDK.
            item: The functions that convert an item to a message and back.
            key: The key of the session, which `sessions` returns. None: `sessions` does not list
                this session.
        """
        self._store = store
        self._name = name
        self._item = item
        self._key = key
        self.id = imported_conversation_id(name, session)

    def add(self, items: list[Any], key: Callable[[Any], str | None] = lambda item: None) -> None:
        """Append items in one write. Create the conversation if it does not exist.

        Args:
            items: The items.
            key: Returns the id that an item has in the SDK. None: it has no id.

        Raises the errors of `Store.append`. Cost: one fdatasync.
        """
        messages = [self._message(item, key) for item in items]
        if not messages:
            return
        while True:
            try:
                self._store.inner.change(
                    self.id, lambda conversation: self._append_new(conversation, messages)
                )
            except NotFound:
                self._create()
            else:
                return

    def _message(self, item: Any, key: Callable[[Any], str | None]) -> Fields:
        """Return the message of an item. It has an id if the item has one."""
        fields = self._item.read(without_surrogates(item))
        source = difference(item, self._item.write(fields))
        if without_surrogates(source) != source or _ESCAPED in source:
            source = {_ESCAPED: json.dumps(source)}
        message = check_message(with_source(fields, source))
        item_id = key(item)
        if item_id:
            return message | {"id": imported_message_id(self.id, item_id)}
        return message

    def _append_new(self, conversation: Conversation, messages: list[Fields]) -> None:
        """Append the messages that the conversation lacks, and name the session in its head."""
        tags = conversation.head.document["metadata"].get("tags", ())
        if self._key and self._name not in tags:
            conversation.change_head(self._name_session)
        messages_by_id = {
            message.get("id", position): message for position, message in enumerate(messages)
        }
        new_messages = []
        for id, message in messages_by_id.items():
            has_own_id = isinstance(id, str)
            if not has_own_id or conversation.transaction.find(id) is None:
                new_messages.append(message)
        if new_messages:
            conversation.append(new_messages)

    def _name_session(self, head: Fields) -> None:
        """Add the tag of the SDK to a head, and the key of the session."""
        metadata = head["metadata"]
        metadata["tags"] = [*metadata.get("tags", ()), self._name]
        metadata["source"] = dict(self._key or {})

    def _create(self) -> None:
        """Create the conversation, unless another process has just created it."""
        try:
            self._store.create(id=self.id)
        except InvalidInput:
            self._store.document(self.id)  # Raises the error if nobody created it.

    def entries(self, *, is_all: bool = False) -> list[Fields] | None:
        """Return the messages of the active branch, or of all branches if `is_all`.

        None: the conversation does not exist. Cost: reading the file.
        """
        try:
            history, tree, current = self._store.branches.tree(self.id)
        except NotFound:
            return None
        if is_all:
            return history
        return [history[position] for position in tree.path(current)]

    def item(self, entry: Fields) -> Fields:
        """Return the item of a message."""
        fields = {name: entry[name] for name in _ITEM_FIELDS if name in entry}
        plain_fields, source = without_source(fields)
        if _ESCAPED in source:
            source = json.loads(source[_ESCAPED])
        return apply_difference(self._item.write(plain_fields), source)


def sessions(store: CoreStore, name: str) -> Iterator[tuple[Head, Fields]]:
    """Return the conversations of the sessions of an SDK, each with the key of its session.

    A conversation counts if the name of the SDK is one of its tags. Cost: reading the head of each.
    """
    for head in store.list(Filter(tags=(name,), archived=None)).heads:
        with suppress(NotFound):  # It was deleted after the listing.
            document_head = store.engine.head(head.id)[0]
            yield head, object_of(document_head["metadata"].get("source"))
