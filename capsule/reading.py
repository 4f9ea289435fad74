"""Reading conversations: whole, their last messages, their heads.

What must stay true: reading waits for no writer, and changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from capsule.choosing import find_message, one_of
from capsule.errors import NotFound
from capsule.format import codec, migrations
from capsule.format.copynames import original_of
from capsule.head import Head
from capsule.ids import check_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from capsule.changes import Changes
    from capsule.engines.interface import Engine
    from capsule.format.models import Capsule, Message
    from capsule.index.index import Index

__all__ = ["KIND", "Reading"]

T = TypeVar("T")

KIND = "conversations"


class Reading:
    """What an open store reads. The base of `Store`.

    Args:
        engine: Where its documents live.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._guard = threading.Lock()

    def read(self, id: str) -> bytes:
        """A conversation as it is stored, validated. Raises as `load`."""
        return self.engine.read(KIND, id)

    def document(self, id: str) -> dict[str, Any]:
        """The conversation as this version writes it, in canonical order; a number that JSON libraries would
        change is an `orjson.Fragment`. Raises as `load`."""
        return self.engine.document(KIND, id)

    def load(self, id: str) -> Capsule:
        """The whole conversation, unknown fields kept.

        Raises:
            NotFound: There is none.
            InvalidDocument: Its file does not parse, or is no capsule.
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
        """The last `n` messages, oldest first. Raises as `load`. Costs reading these messages, not the file."""
        from capsule.format.models import messages_in

        entries, count = self.engine.tail(id, n)
        messages = messages_in(entries)
        return [message.placed(count - len(messages) + i) for i, message in enumerate(messages)]

    def tail_entries(self, id: str, n: int) -> tuple[int, list[dict[str, Any]]]:
        """As `tail`, but as they stand in the file, numbers as in `document`; and the position of the first."""
        entries, count = self.engine.tail(id, n)
        found = codec.decode(b'{"history":' + entries + b"}", self.engine.name(KIND, id))["history"]
        return count - len(found), found

    def head(self, id: str) -> Head:
        """The head of one conversation. Raises as `load`."""
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
        """The heads of all conversations, in no order, damaged files among them (`Head.damaged`).

        Args:
            progress: Told how many bytes are indexed, and of how many, when the index must be made first.

        Costs one scandir, and for a file that changed since it was indexed reading what is new in it.
        """
        return iter(self.index.heads(progress))

    def message_counts(self) -> dict[str, int]:
        """How many messages each sound conversation has, in all its branches, by id. Costs as `heads`."""
        return self.index.message_counts()

    def changes(self, since: str | None = None, *, ids: Iterable[str] | None = None, limit: int = 1000) -> Changes:
        """What changed since a cursor, whoever did it. Costs as `heads`.

        Args:
            since: The cursor of a change, or of an answer before; None: nothing is told, but the cursor of now.
            ids: Only of these conversations; None: of all.
            limit: So many changes at most; `Changes.cursor` is then the place to go on from.

        Raises:
            InvalidInput: `since` is no cursor.
        """
        from capsule.changes import Changes

        found, cursor = self.index.changes(since, limit)
        wanted = None if ids is None else set(ids)
        return Changes([change for change in found if wanted is None or change.id in wanted], cursor)

    def reindex(self, progress: Callable[[int, int], None] | None = None) -> dict[str, int]:
        """Build the index anew from the files, and count what is in it.

        Args:
            progress: Told how many bytes are done, and of how many.
        """
        self.index.rebuild(progress)
        return self.index.counts()

    def ids(self) -> list[str]:
        """The ids of all conversations, sorted. Costs one scandir."""
        return self.engine.ids(KIND)

    def find_message(self, id: str, message_id: str) -> Message:
        """One message: by its id, a unique prefix of it, `@N` (its position) or `@last`. Raises as `load`."""
        from capsule.format.models import Message

        history = self.document(id)["history"]
        place = find_message(history, message_id, id)
        return Message.model_validate_json(codec.encode(history[place])).placed(place)

    def resolve(self, prefix: str) -> str:
        """The id that a person means: a full id, a unique prefix of 4 characters or more, or `@last`.

        Raises:
            NotFound: None is meant.
            InvalidInput: Several are, or it is too short.
        """
        if prefix == "@last":
            latest = self.index.latest()
            if latest is None:
                raise NotFound("there is no conversation yet; make one with: capsule new", id=prefix)
            return latest
        check_id(prefix)
        if self.engine.exists(KIND, prefix):
            return prefix
        return one_of([id for id in self.ids() if id.startswith(prefix) and original_of(id) is None], prefix)
