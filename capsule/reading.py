"""Reading conversations: whole, their last messages, their heads.

What must stay true: reading takes no mutex, unless the file isn't as the store left it; it is then settled first,
so that a hand edit is seen at once and a torn tail never is; and a store that can't be written is still read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from capsule.choosing import find_message, one_of
from capsule.errors import InvalidDocument, NotFound, Refused, StorageFailed, StoreBusy
from capsule.format import anatomy, canonical, codec, migrations
from capsule.format.copynames import original_of
from capsule.head import Head
from capsule.ids import check_id
from capsule.storage.interface import Interfered, Known, Storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from capsule.changes import Changes
    from capsule.format.models import Capsule, Message
    from capsule.index.index import Index

__all__ = ["KIND", "Reading"]

T = TypeVar("T")

KIND = "conversations"
_TRIES = 5
_SOON_S = 0.5


class Reading:
    """What an open store reads. The base of `Store`.

    Args:
        storage: The storage engine.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._index: Index | None = None
        self._guard = threading.Lock()

    def _settled(self, id: str) -> Known | None:
        """The conversation as the store knows it; None in a store that can't be written."""
        known = self.storage.known(KIND, check_id(id))
        if known is not None:
            return known
        if not self.storage.exists(KIND, id) and not self.storage.remembers(KIND, id):
            raise NotFound(f"no conversation {id}; list them with: capsule list", id=id)
        from capsule.settling import settle

        try:
            return self._again(lambda: self._settle(id, settle))
        except (Refused, StorageFailed):
            return None

    def _settled_soon(self, id: str) -> Known | None:
        """As `_settled`, for the index: a writer that holds the mutex for long is not waited for."""
        from capsule.settling import settle

        def look() -> Known:
            with self.storage.mutex(KIND, id, _SOON_S) as held:
                return settle(held)

        try:
            return self._again(look)
        except (Refused, StorageFailed, StoreBusy):
            return None

    def _settle(self, id: str, settle: Callable[..., Known]) -> Known:
        with self.storage.mutex(KIND, id) as held:
            return settle(held)

    @staticmethod
    def _again(look: Callable[[], T]) -> T:
        """What `look` gives, which starts over when another program wrote in between."""
        for _ in range(_TRIES):
            try:
                return look()
            except Interfered:
                continue
        raise StoreBusy(
            "another program keeps rewriting the file; try again when it is done", id="", holder="another program"
        )

    def _bytes(self, id: str) -> tuple[bytes, bool]:
        """The file's bytes, validated, and whether they are canonical and current."""
        for _ in range(_TRIES):
            known = self._settled(id)
            got = self.storage.read(KIND, id)
            if got is None:
                continue  # An editor is just replacing it, or it is gone: settling tells the two apart.
            if known is None:
                from capsule.settling import decoded

                decoded(got[0], self.storage.path(KIND, id), id)
                return got[0], False
            if got[1] == known.signature and _is_whole(got[0], known):
                return got[0], known.anatomy is not None
        # Writers leave no gap: read what they have, under the mutex.
        from capsule.settling import settle

        def look() -> tuple[bytes, bool]:
            with self.storage.mutex(KIND, id) as held:
                known = settle(held)
                got = held.read()
                if got is None or got[1] != known.signature:
                    raise Interfered
                return got[0], known.anatomy is not None

        return self._again(look)

    def _parsed(self, id: str, parse: Callable[[bytes, bool], T]) -> T:
        """What `parse` makes of the file's bytes, and of whether they are canonical.

        Where it fails, the signature has vouched for a file that somebody wrote through a mapping: the file is settled
        anew, which says what is wrong with it, or takes it in.
        """
        data, is_canonical = self._bytes(id)
        try:
            return parse(data, is_canonical)
        except (InvalidDocument, ValueError, TypeError, LookupError, AttributeError):
            from capsule.settling import decoded, settle

            try:
                self._again(lambda: self._settle(id, partial(settle, trust=False)))
            except (Refused, StorageFailed):
                decoded(data, self.storage.path(KIND, id), id)
        return parse(*self._bytes(id))

    def read(self, id: str) -> bytes:
        """The bytes of a conversation's file, as they are, validated. Raises as `load`."""
        from capsule.settling import decoded

        def parse(data: bytes, is_canonical: bool) -> bytes:
            decoded(data, self.storage.path(KIND, id), id)
            return data

        return self._parsed(id, parse)

    def document(self, id: str) -> dict[str, Any]:
        """The conversation as this version writes it, in canonical order; a number that JSON libraries would
        change is an `orjson.Fragment`. Raises as `load`."""
        path = self.storage.path(KIND, id)

        def parse(data: bytes, is_canonical: bool) -> dict[str, Any]:
            document, _ = migrations.current(codec.decode(data, path), path)
            return canonical.in_order(document)

        return self._parsed(id, parse)

    def load(self, id: str) -> Capsule:
        """The whole conversation, unknown fields kept.

        Raises:
            NotFound: There is none.
            InvalidDocument: Its file does not parse, or is no capsule.
        """
        from capsule.format.models import Capsule

        def parse(data: bytes, is_canonical: bool) -> Capsule:
            if not is_canonical:
                path = self.storage.path(KIND, id)
                document, _ = migrations.current(codec.decode(data, path), path)
                data = codec.encode(document)
            return Capsule.model_validate_json(data)

        return self._parsed(id, parse)

    def tail(self, id: str, n: int) -> list[Message]:
        """The last `n` messages, oldest first. Raises as `load`. Costs reading these messages, not the file."""
        from capsule.format.models import messages_in

        entries, count = self._tail(id, n)
        try:
            messages = messages_in(entries)
        except ValueError:  # What an editor writes in place this very moment is no message yet.
            entries, count = self._tail_of_whole(id, n)
            messages = messages_in(entries)
        return [message.placed(count - len(messages) + i) for i, message in enumerate(messages)]

    def tail_entries(self, id: str, n: int) -> tuple[int, list[dict[str, Any]]]:
        """As `tail`, but as they stand in the file, numbers as in `document`; and the position of the first."""
        entries, count = self._tail(id, n)
        try:
            found = codec.decode(b'{"history":' + entries + b"}", self.storage.path(KIND, id))["history"]
        except InvalidDocument:
            found = self.document(id)["history"][-n:]
        return count - len(found), found

    def _tail(self, id: str, n: int) -> tuple[bytes, int]:
        """The last `n` messages as a JSON array, and how many messages there are."""
        for _ in range(_TRIES):
            known = self._settled(id)
            if known is None or known.anatomy is None:
                break
            entries = self.storage.tail(KIND, id, known, n) if n > 0 else b"[]"
            if entries is not None:
                return entries, known.anatomy.entries
        return self._tail_of_whole(id, n)

    def _tail_of_whole(self, id: str, n: int) -> tuple[bytes, int]:
        history = self.document(id)["history"]
        return b"[" + b",".join(map(codec.encode_entry, history[-n:] if n > 0 else [])) + b"]", len(history)

    def head(self, id: str) -> Head:
        """The head of one conversation. Raises as `load`."""
        known = self._settled(id)
        size = known.signature.size if known else len(self.read(id))
        path = self.storage.path(KIND, id)
        found = self._quick(path, *self.storage.beginning(path), size)
        if found is None or found.id != id:
            document, _ = migrations.current(codec.decode(self.read(id), path), path)
            found = Head.of(document, path, size)
            assert found is not None  # It was validated.
        return found

    def _head_of(self, id: str, head: dict[str, Any]) -> Head:
        """The head as just written."""
        found = Head.of(head, self.storage.path(KIND, id), 0)
        return found if found is not None else self.head(id)

    @property
    def index(self) -> Index:
        """The index of the conversations, made when it is first asked for."""
        if self._index is None:
            from capsule.index.index import Index

            with self._guard:
                if self._index is None:
                    self._index = Index(self.storage, KIND, self._settled_soon)
        return self._index

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
        return sorted(scanned.id for scanned in self.storage.scan(KIND))

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
        if self.storage.exists(KIND, prefix):
            return prefix
        return one_of([id for id in self.ids() if id.startswith(prefix) and original_of(id) is None], prefix)

    @staticmethod
    def _quick(path: str, beginning: bytes, end: bytes, size: int) -> Head | None:
        """The head from the first and last bytes of a canonical file; None when it isn't one."""
        head = anatomy.head_of(beginning)
        if head is None or not end.endswith(b"]\n}\n"):
            return None
        try:
            return Head.of(orjson.loads(head), path, size)
        except orjson.JSONDecodeError:
            return None


def _is_whole(data: bytes, known: Known) -> bool:
    """Whether a file read without the mutex is not one whose closing a splice was just writing over.

    A clock that ticks every few milliseconds lets a splice under way leave the signature as it was.
    """
    return known.anatomy is None or data.endswith(anatomy.closing_of(known.anatomy))
