"""The trash of an open store: conversations deleted, brought back, and dropped for good.

What must stay true: deleting loses nothing; only `purge` does, and only what lay there long enough.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from capsule.choosing import one_of
from capsule.errors import CapsuleError, InvalidDocument, NotFound
from capsule.format import codec, migrations
from capsule.head import Head
from capsule.holding import Holder
from capsule.ids import check_id
from capsule.reading import KIND, Reading
from capsule.storage.interface import Trashed
from capsule.writing import Conversation

if TYPE_CHECKING:
    from capsule.own import Own

__all__ = ["Discarding"]

T = TypeVar("T")


class Discarding(Reading, ABC):
    """What an open store does with its trash. A base of `Store`, which sets the holder and knows how to write."""

    _holder: Holder
    _own: Own | None = None

    @abstractmethod
    def _write(self, id: str, action: Callable[[Conversation], T]) -> T:
        """Run `action` on the conversation, settled and under its mutex."""

    def delete(self, id: str) -> Trashed:
        """Move a conversation to the trash; a damaged file too.

        Raises:
            NotFound: There is none.
            Locked, LockLost: Another instance holds it, or took it.
        """
        check_id(id)

        def discard(conversation: Conversation) -> Trashed:
            trashed = self._holder.discard(conversation)
            if self._own is not None:
                self._own.wrote(id, "deleted")
            return trashed

        try:
            return self._write(id, discard)
        except InvalidDocument:
            with self.storage.mutex(KIND, id) as held:
                if self._own is not None:
                    self._own.wrote(id, "deleted")
                return held.delete()

    def delete_all(self) -> Iterator[tuple[str, Trashed | CapsuleError]]:
        """Move every conversation to the trash, as the caller goes on; each is told with what became of it.

        One that another instance holds stays, and holds up no other. Forks are not pointed elsewhere, as they go too.
        """
        for id in self.ids():
            became: Trashed | CapsuleError
            try:
                became = Discarding.delete(self, id)
            except NotFound:
                continue  # Somebody else was faster.
            except CapsuleError as error:
                became = error
            yield id, became

    def trash(self) -> list[Trashed]:
        """The deleted conversations, newest first."""
        return self.storage.trash(KIND)

    def trashed_head(self, trashed: Trashed) -> Head:
        """The head of a deleted conversation, as far as it can be read."""
        data = self.storage.read_trashed(trashed.token)
        try:
            document, _ = migrations.current(codec.decode(data, trashed.path), trashed.path)
            head = Head.of(document, trashed.path, len(data))
        except CapsuleError as error:
            return Head(trashed.id, path=trashed.path, bytes=len(data), damaged=error.message)
        return head or Head(trashed.id, path=trashed.path, bytes=len(data), damaged="no capsule")

    def restore(self, id: str) -> Head:
        """Bring the conversation that was deleted last under this id back from the trash.

        Raises:
            NotFound: There is none in the trash.
            Refused: A conversation of that id is there.
        """
        deleted = self.trash()
        wanted = one_of(sorted({trashed.id for trashed in deleted}), id, "deleted conversation", "capsule trash")
        latest = next(trashed for trashed in deleted if trashed.id == wanted)
        with self.storage.mutex(KIND, wanted) as held:
            if self._own is not None:
                self._own.wrote(wanted, "restored")
            held.restore(latest.token)
        try:
            return self.head(wanted)
        except InvalidDocument as error:
            return Head(wanted, path=self.storage.path(KIND, wanted), damaged=error.message)

    def purge(self, older_than_s: float = 0) -> list[str]:
        """Drop for good what has lain in the trash and the quarantine for longer; the paths of what is gone.

        Args:
            older_than_s: Seconds; 0: everything.
        """
        return self.storage.purge(older_than_s)
