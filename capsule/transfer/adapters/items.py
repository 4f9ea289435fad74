"""The items of an SDK as messages of a conversation, and back.

What must stay true: an item comes back equal. What a message has no field for is in its
`metadata.source`. Appends of many processes at once are all kept, and an item that has an id of its
own is kept once.
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

#: The key under which what an item has besides is kept as JSON: it has half of a character, which
#: no document can hold.
_ESCAPED = "$json"
_SAID = ("role", "content", "model", "reasoning", "toolCalls", "toolCallId", "metadata")


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
            rest = difference(item, self._item.write(fields))
            if without_surrogates(rest) != rest or _ESCAPED in rest:
                rest = {_ESCAPED: json.dumps(rest)}
            message = check_message(with_source(fields, rest))
            made = key(item)
            messages.append(message | ({"id": imported_message_id(self.id, made)} if made else {}))
        if not messages:
            return None

        def name(head: Fields) -> None:
            about = head["metadata"]
            about |= {"tags": [*about.get("tags", ()), self._name], "source": dict(self._key or {})}

        def act(conversation: Conversation) -> None:
            if self._key and self._name not in conversation.head.document["metadata"].get(
                "tags", ()
            ):
                conversation.change_head(name)
            new = {message.get("id", n): message for n, message in enumerate(messages)}
            added = [
                entry
                for id, entry in new.items()
                if type(id) is int or conversation.transaction.find(id) is None
            ]
            if added:
                conversation.append(added)

        while True:
            try:
                return self._store.inner.change(self.id, act)
            except NotFound:
                try:
                    self._store.create(id=self.id)
                except InvalidInput:
                    self._store.document(self.id)  # Another process made it first.

    def entries(self, *, is_all: bool = False) -> list[Fields] | None:
        """The messages, of the active branch or all. None: there is no conversation. Cost: reading
        the file.
        """
        try:
            history, tree, current = self._store.branches.tree(self.id)
        except NotFound:
            return None
        return history if is_all else [history[place] for place in tree.path(current)]

    def item(self, entry: Fields) -> Fields:
        """The item that a message was, or is like."""
        plain, rest = without_source({name: entry[name] for name in _SAID if name in entry})
        return apply_difference(
            self._item.write(plain), json.loads(rest[_ESCAPED]) if _ESCAPED in rest else rest
        )


def sessions(store: CoreStore, name: str) -> Iterator[tuple[Head, Fields]]:
    """The conversations of the sessions of an SDK, whose name is a tag of them, with their keys.

    Cost: reading the head of each.
    """
    for head in store.list(Filter(tags=(name,), archived=None)).heads:
        with suppress(NotFound):  # It is deleted by now.
            yield head, object_of(store.engine.head(head.id)[0]["metadata"].get("source"))
