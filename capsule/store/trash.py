"""The trash of an open store: deleted conversations and removed messages.

What must stay true: a write puts what it removes into the trash first. Only `purge` empties the trash, and only of
entries that are old enough.
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
    """Messages in the trash that one write removed or changed.

    Attributes:
        trashed: The entry in the trash.
        title: The conversation's title then.
        reason: `deleted`, `pruned`, `edited` or `restored` (restored messages replaced them).
        messages: The messages before the write.
    """

    trashed: Trashed
    title: str
    reason: str
    messages: list[dict[str, Any]]


class Trash:
    """The trash of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def head(self, trashed: Trashed) -> Head:
        """Read the head of a deleted conversation, as far as it can be read.

        Args:
            trashed: The conversation, as `list` gives it.

        Raises nothing: `Head.damaged` says why the file can't be read. Cost: reading the file.
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
            id: Its id, or a unique prefix of it.
            trashed: The entry to restore if several were deleted under this id, as `list` gives it. None: the newest.

        Raises:
            NotFound: The trash has no such conversation.
            Refused: The id is taken by another conversation.

        Cost: a link and two flushes of a directory.
        """
        deleted = self.list()
        wanted = one_of(sorted({trashed.id for trashed in deleted}), id, "deleted conversation", Remedy("trash"))
        latest = trashed or next(entry for entry in deleted if entry.id == wanted)
        self._store._wrote(wanted, "restored")
        self._store.engine.restore(KIND, wanted, latest.token)
        try:
            return self._store.head(wanted)
        except InvalidDocument as error:
            return Head(wanted, path=self._store.engine.name(KIND, wanted), damaged=error.message)

    def removed(self, id: str | None = None) -> list[Removed]:
        """List the messages in the trash, the last removed first.

        Args:
            id: Only of this conversation. None: of all conversations.

        Raises Refused, StorageFailed. Cost: reading the listed messages.
        """
        removed = []
        for trashed in self._store.engine.trash(REMOVED):
            if id is None or trashed.id == id:
                kept = codec.decode(self._store.engine.trashed(trashed.token), trashed.path)
                removed.append(Removed(trashed, kept["title"], kept["removed"]["reason"], kept["history"]))
        return removed

    def restore_messages(self, trashed: Trashed) -> list[str]:
        """Put messages from the trash back into their conversation, and remove them from the trash.

        A removed message returns under the message that it answered. An edited message gets its former text, and its
        present text goes to the trash.

        Args:
            trashed: The messages, as `removed` gives them.

        Returns:
            The ids of the messages that came back or changed.

        Raises the errors of `append`; NotFound if they are not in the trash, or the conversation was deleted.
        Cost: reading and writing the whole file.
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
        """Erase the contents of the trash and the quarantine, and every other trace of them.

        Afterwards no file in `.capsule/` has a text that was removed from a conversation, except texts that came to the
        trash or the quarantine since, and no file of a session has a message that is done. Conversations stay as they
        are. If a document does not parse, the store keeps its records of that document, because a repair may need them.

        Args:
            older_than_s: Only entries older than this many seconds; 0: everything.

        Returns:
            The paths that were removed from the trash and the quarantine.

        Raises:
            StoreBusy, Refused, StorageFailed: The system did not permit it; the next purge removes the rest.

        Cost: reading every conversation that was written here. The next use of the index rebuilds it.
        """
        if self._store.agent is None:
            self._store.sessions.compact()
        return self._store.engine.purge(older_than_s)

    def list(self) -> list[Trashed]:
        """List the deleted conversations, the newest first.

        Raises:
            Refused, StorageFailed: The system did not permit it.

        Cost: listing a directory.
        """
        return self._store.engine.trash(KIND)


def discard(store: Store, id: str) -> Trashed:
    """Move a conversation or a damaged file to the trash, without its forks. Raises the errors of `Store.delete`."""

    def act(conversation: Conversation) -> Trashed:
        conversation.ensure_may("delete")
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
