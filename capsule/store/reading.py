"""Reading conversations: whole, their last messages, their heads.

What must stay true: reading waits for no writer, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from capsule.errors import NotFound, Remedy
from capsule.format import codec, migrations
from capsule.format.head import Head
from capsule.format.merge.copy_names import original_of
from capsule.format.references import find_message, one_of
from capsule.ids import check_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from capsule.engines.changes import Change, Changes
    from capsule.engines.index.index import Index
    from capsule.engines.interface import Engine
    from capsule.format.models import Capsule, Message
    from capsule.watch.own_writes import Own

T = TypeVar("T")

KIND = "conversations"


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
