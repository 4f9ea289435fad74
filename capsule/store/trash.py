"""The trash of an open store: conversations and messages that were taken away, brought back, and dropped for good.

What must stay true: whatever a write takes away lies in the trash before it is gone; only `purge` drops it from there,
and only what has been there for long enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capsule.engines.files.engine import files_of
from capsule.engines.files.protocols import Trashed
from capsule.errors import CapsuleError, InvalidDocument, Remedy
from capsule.format import codec, migrations
from capsule.format.head import Head
from capsule.format.references import one_of
from capsule.format.tree.pruning import put_back
from capsule.ids import check_id
from capsule.store.change import REMOVED, Conversation, unasked
from capsule.store.reading import KIND

if TYPE_CHECKING:
    from capsule.store.store import Store


@dataclass(frozen=True, slots=True)
class Removed:
    """Messages in the trash that one write took out of a conversation or changed.

    Attributes:
        trashed: Where they lie.
        title: The conversation's title then.
        reason: `deleted`, `pruned`, `edited` or `restored` (their places were taken by others that were put back).
        messages: They, as they were.
    """

    trashed: Trashed
    title: str
    reason: str
    messages: list[dict[str, Any]]


class Trash:
    """What was deleted from a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def head(self, trashed: Trashed) -> Head:
        """Read the head of a deleted conversation, as far as it can be read.

        Args:
            trashed: The conversation, as `list` gives it.

        Raises as `list`. Cost: reading the beginning of the file.
        """
        data = b""
        try:
            data = self._store.engine.trashed(trashed.token)
            document, _ = migrations.current(codec.decode(data, trashed.path), trashed.path)
            head = Head.of(document, trashed.path, len(data))
        except CapsuleError as error:
            return Head(trashed.id, path=trashed.path, bytes=len(data), damaged=error.message)
        return head or Head(trashed.id, path=trashed.path, bytes=len(data), damaged="no capsule")

    def restore(self, id: str, trashed: Trashed | None = None) -> Head:
        """Bring a conversation back from the trash.

        Args:
            id: Its id, or a unique beginning of it.
            trashed: Which one of those that were deleted under this id, as `list` gives it. None: the last one.

        Raises:
            NotFound: There is none in the trash.
            Refused: A conversation of that id is there.

        Cost: a link and two flushes of a directory.
        """
        deleted = self.list()
        wanted = one_of(sorted({trashed.id for trashed in deleted}), id, "deleted conversation", Remedy("trash"))
        latest = trashed or next(one for one in deleted if one.id == wanted)
        self._store._wrote(wanted, "restored")
        self._store.engine.restore(KIND, wanted, latest.token)
        try:
            return self._store.head(wanted)
        except InvalidDocument as error:
            return Head(wanted, path=self._store.engine.name(KIND, wanted), damaged=error.message)

    def removed(self, id: str | None = None) -> list[Removed]:
        """List the messages in the trash, those that were removed last first.

        Args:
            id: Only of this conversation. None: of all.

        Raises as `list`. Costs reading the messages that it lists.
        """
        found = []
        for trashed in self._store.engine.trash(REMOVED):
            if id is None or trashed.id == id:
                kept = codec.decode(self._store.engine.trashed(trashed.token), trashed.path)
                found.append(Removed(trashed, kept["title"], kept["removed"]["reason"], kept["history"]))
        return found

    def restore_messages(self, trashed: Trashed) -> list[str]:
        """Put messages from the trash back into their conversation, and remove them from the trash.

        A message that was removed returns under the message that it answered. A message that was edited gets its former
        text, and the text that it has now goes to the trash in turn.

        Args:
            trashed: The messages, as `removed` gives them.

        Returns:
            The ids of the messages that came back or changed.

        Raises as `append`, and costs as `edits.message`; also
            NotFound: They are no longer in the trash, or the conversation is gone.
        """
        kept = codec.decode(self._store.engine.trashed(trashed.token), trashed.path)

        def act(conversation: Conversation) -> list[str]:
            before = conversation.document()
            after = conversation.rewrite(lambda document: put_back(document, kept), reason="restored")
            conversation.transaction.drop_kept(trashed)
            there = {entry["id"]: entry["content"] for entry in before["history"]}
            wanted = {entry["id"] for entry in kept["history"]}
            return [
                entry["id"]
                for entry in after["history"]
                if entry["id"] in wanted and there.get(entry["id"]) != entry["content"]
            ]

        return self._store._change(trashed.id, act)

    def purge(self, older_than_s: float = 0) -> list[str]:
        """Remove for good what is in the trash and the quarantine, and every other trace of it.

        Afterwards no file in `.capsule/` has a text that was removed from a conversation, unless it came to the
        trash or the quarantine since. What a conversation has now stays in it. If a document does not parse, what the
        store remembers of it is kept, because a repair may need it.

        Args:
            older_than_s: Only what has been there for more than so many seconds; 0: everything.

        Returns:
            The paths that were removed from the trash and the quarantine.

        Raises:
            StoreBusy, Refused, StorageFailed: The system did not permit it; the next purge removes what is left.

        Cost: reading every conversation that was written here. The next question builds the index anew.
        """
        return self._store.engine.purge(older_than_s)

    def list(self) -> list[Trashed]:
        """List the deleted conversations, the newest first.

        Raises:
            Refused, StorageFailed: The system did not permit it.

        Cost: listing a directory.
        """
        return self._store.engine.trash(KIND)


def discard(store: Store, id: str) -> Trashed:
    """Move a conversation to the trash, whatever forks it has; a damaged file too. Raises as `Store.delete`."""

    def act(conversation: Conversation) -> Trashed:
        trashed = store._holder.discard(conversation)
        store._wrote(id, "deleted")
        return trashed

    try:
        return store._change(check_id(id), act, unasked)
    except InvalidDocument:
        with files_of(store.engine).mutex(KIND, id) as held:
            trashed = store._holder.discard_damaged(held)
            store._wrote(id, "deleted")
            return trashed
