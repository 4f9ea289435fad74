"""Convert the items of an SDK to messages of a conversation, and back.

Fields of an item that a message lacks are kept in its `metadata.source`.

Invariants: an item is read back equal. Appends of many processes at once are all kept. An item that
has an id of its own is stored once.
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
from capsule.transfer.records.coercion import object_of
from capsule.transfer.records.round_trip import (
    Fields,
    Pair,
    apply_difference,
    difference,
    with_source,
    without_source,
)

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.store.change.conversation import Conversation
    from capsule.store.store import CoreStore

#: The key for an item's other fields as JSON, if they have a lone surrogate, which no document can
#: have.
_ESCAPED = "$json"
#: The fields of a message from which an item is made.
_ITEM_FIELDS = ("role", "content", "model", "reasoning", "toolCalls", "toolCallId", "metadata")


class Items:
    """The items of one session, as a conversation.

    Attributes:
        id: The id of the conversation, made of that of the session.
    """

    def __init__(
        self,
        store: CoreStore,
        name: str,
        session: str,
        item: Pair,
        key: Mapping[str, str] | None = None,
    ) -> None:
        """Args: a store that keeps no locks; the name of the SDK, the id of the session there; the
        pair for an item; what `sessions` gives back for the session, None: it does not give it."""
        self._store, self._name, self._item, self._key = store, name, item, key
        self.id = imported_conversation_id(name, session)

    def add(self, items: list[Any], key: Callable[[Any], str | None] = lambda item: None) -> None:
        """Append items in one write; `key` gives the id that an item has of its own. Cost: one
        fdatasync.

        Raises the errors of `Store.append`.
        """
        messages = []
        for item in items:
            fields = self._item.read(without_surrogates(item))
            source = difference(item, self._item.write(fields))
            if without_surrogates(source) != source or _ESCAPED in source:
                source = {_ESCAPED: json.dumps(source)}
            message = check_message(with_source(fields, source))
            item_id = key(item)
            messages.append(
                message | ({"id": imported_message_id(self.id, item_id)} if item_id else {})
            )
        if not messages:
            return None

        def name(head: Fields) -> None:
            metadata = head["metadata"]
            metadata |= {
                "tags": [*metadata.get("tags", ()), self._name],
                "source": dict(self._key or {}),
            }

        def act(conversation: Conversation) -> None:
            if self._key and self._name not in conversation.head.document["metadata"].get(
                "tags", ()
            ):
                conversation.change_head(name)
            messages_by_id = {message.get("id", n): message for n, message in enumerate(messages)}
            new_messages = [
                entry
                for id, entry in messages_by_id.items()
                if type(id) is int or conversation.transaction.find(id) is None
            ]
            if new_messages:
                conversation.append(new_messages)

        while True:
            try:
                return self._store.inner.change(self.id, act)
            except NotFound:
                try:
                    self._store.create(id=self.id)
                except InvalidInput:
                    self._store.document(self.id)  # Another process made it first.

    def entries(self, *, is_all: bool = False) -> list[Fields] | None:
        """Return the messages of the active branch, or all. None: the conversation does not exist.

        Cost: reading the file.
        """
        try:
            history, tree, current = self._store.branches.tree(self.id)
        except NotFound:
            return None
        return history if is_all else [history[place] for place in tree.path(current)]

    def item(self, entry: Fields) -> Fields:
        """Return the item of a message."""
        plain, source = without_source(
            {name: entry[name] for name in _ITEM_FIELDS if name in entry}
        )
        return apply_difference(
            self._item.write(plain), json.loads(source[_ESCAPED]) if _ESCAPED in source else source
        )


def sessions(store: CoreStore, name: str) -> Iterator[tuple[Head, Fields]]:
    """Return the conversations of the sessions of an SDK, with their keys. Its name is a tag of them.

    Cost: reading the head of each.
    """
    for head in store.list(Filter(tags=(name,), archived=None)).heads:
        with suppress(NotFound):  # It is deleted by now.
            yield head, object_of(store.engine.head(head.id)[0]["metadata"].get("source"))
