"""What comes back: deleted conversations and removed messages, from the trash, and earlier
versions, from anywhere.

What must stay true: a write puts what it removes into the trash first, and a restored version what
it replaces into the quarantine. Only `purge` empties the trash, and only of entries that are old
enough. The same rule as for a save decides who may write. Restored messages keep their ids, so that
a merge recognizes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.engines.interface import Trashed, retry
from capsule.errors import CapsuleError, ConcurrentWrite, InvalidDocument, NotFound, Remedy
from capsule.format import migrations
from capsule.format.documents.creation import inactive_lock
from capsule.format.documents.head import Head
from capsule.format.json import canonical, codec
from capsule.format.recovery.reconcile import head_record, reconcile
from capsule.format.references import resolve_prefix
from capsule.format.tree.branches import restore_removed
from capsule.format.validation import decode_checked
from capsule.ids import check_id
from capsule.store.base import KIND
from capsule.store.change.appends import with_sender
from capsule.store.change.conversation import REMOVED, Conversation, admit_any_instance
from capsule.store.creation import write_new

if TYPE_CHECKING:
    from capsule.store.base import BaseStore


@dataclass(frozen=True, slots=True)
class RemovedMessages:
    """Messages in the trash that one write removed or changed.

    Attributes:
        trashed: The entry in the trash.
        title: The conversation's title then.
        reason: `deleted`, `pruned`, `edit_document` or `restored` (restored messages replaced them).
        messages: The messages before the write.
        by: The agent that wrote; empty: the store's owner, or it is unknown.
    """

    trashed: Trashed
    title: str
    reason: str
    messages: list[dict[str, Any]]
    by: str = ""


class StoreTrash:
    """The trash of a store."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def head(self, trashed: Trashed) -> Head:
        """Read the head of a deleted conversation, as far as it can be read.

        Args:
            trashed: The conversation, as `list` gives it.

        Raises nothing: `Head.damaged` says why the file can't be read. Cost: reading the file.
        """
        data = b""
        try:
            data = self._store.engine.trash.read(trashed.token)
            document, _ = migrations.upgrade(codec.decode(data, trashed.path), trashed.path)
            head = Head.of(document, trashed.path, len(data))
        except CapsuleError as error:
            return Head(trashed.id, path=trashed.path, bytes=len(data), damaged=error.message)
        return head or Head(trashed.id, path=trashed.path, bytes=len(data), damaged="no capsule")

    def restore(self, id: str, trashed: Trashed | None = None) -> Head:
        """Bring a conversation back from the trash. An agent brings back only what it deleted.

        Args:
            id: Its id, or a unique prefix of it.
            trashed: The entry to restore if several were deleted under this id, as `list` gives it.
                None: the newest.

        Raises:
            NotFound: The trash has no such conversation.
            Refused: The id is taken by another conversation.

        Cost: a link and two flushes of a directory.
        """
        deleted = self.list()
        wanted = resolve_prefix(
            sorted({trashed.id for trashed in deleted}), id, "deleted conversation", Remedy("trash")
        )
        latest = trashed or next(entry for entry in deleted if entry.id == wanted)
        self._store.inner.remember_own_write(wanted, "restored")
        self._store.engine.trash.restore(KIND, wanted, latest.token)
        try:
            return self._store.head(wanted)
        except InvalidDocument as error:
            return Head(wanted, path=self._store.engine.name(KIND, wanted), damaged=error.message)

    def removed(
        self,
        id: str | None = None,
        *,
        before: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> list[RemovedMessages]:
        """List the messages in the trash, the last removed first. An agent lists those that it
        removed or changed.

        Args:
            id: Only of this conversation. None: of all conversations.
            before: Only what comes behind an entry in the list: its `deleted_at` and its `token`.
                None: all.
            limit: The largest number of entries; None: no limit.

        Raises Refused, StorageFailed. Cost: reading the listed messages.
        """
        removed: list[RemovedMessages] = []
        for trashed in self._store.engine.trash.entries(REMOVED):
            if len(removed) == limit:
                break
            if id in (None, trashed.id) and (
                before is None or (trashed.deleted_at, trashed.token) < before
            ):
                kept = codec.decode(self._store.engine.trash.read(trashed.token), trashed.path)
                about = kept["removed"]
                removed.append(
                    RemovedMessages(
                        trashed,
                        kept["title"],
                        about["reason"],
                        kept["history"],
                        about.get("by") or "",
                    )
                )
        return removed

    def restore_messages(self, trashed: Trashed) -> list[str]:
        """Put messages from the trash back into their conversation, and remove them from the trash.

        An agent puts back only what it removed or changed.

        A removed message returns under the message that it answered. An edited message gets its
        former text, and its present text goes to the trash.

        Args:
            trashed: The messages, as `removal_record` gives them.

        Returns:
            The ids of the messages that came back or changed.

        Raises the errors of `append`; NotFound if they are not in the trash, or the conversation
        was deleted. Cost: reading and writing the whole file.
        """
        kept = codec.decode(self._store.engine.trash.read(trashed.token), trashed.path)

        def act(conversation: Conversation) -> list[str]:
            before = conversation.document()
            after = conversation.rewrite(
                lambda document: restore_removed(document, kept, self._store.agent),
                reason="restored",
            )
            self._store.engine.trash.erase(trashed.token)
            there = {entry["id"]: entry["content"] for entry in before["history"]}
            wanted = {entry["id"] for entry in kept["history"]}
            return [
                entry["id"]
                for entry in after["history"]
                if entry["id"] in wanted and there.get(entry["id"]) != entry["content"]
            ]

        return self._store.inner.change(trashed.id, act)

    def purge(self, older_than_s: float = 0) -> list[str]:
        """Erase the contents of the trash and the quarantine, and every other trace of them.

        Afterwards no file in `.capsule/` has a text that was removed from a conversation, except
        texts that came to the trash or the quarantine since, and no session has a message that is
        done, nor its files. Conversations and attachments stay as they are. If a document does not
        parse, the store keeps its records of that document, because a repair may need them.

        Args:
            older_than_s: Only entries older than this many seconds; 0: everything.

        Returns:
            The paths that were removed from the trash and the quarantine.

        Raises:
            StoreBusy: Another writer held the document for longer than storage.mutex_timeout.
            Refused, StorageFailed: The system refused a read or a write; the next purge removes
                the rest.

        Cost: reading every conversation that was written here. The next use of the index rebuilds
        it.
        """
        if self._store.agent is None:
            self._store.inner.forget_purged()
        return self._store.engine.trash.purge(older_than_s)

    def list(self) -> list[Trashed]:
        """List the deleted conversations, the newest first. An agent lists those that it deleted.

        Raises:
            Refused, StorageFailed: The system refused a read or a write.

        Cost: listing a directory.
        """
        return self._store.engine.trash.entries(KIND)


def discard(store: BaseStore, id: str, *, is_agreed: bool = False) -> Trashed:
    """Move a conversation or a damaged file to the trash, without its forks.

    Args:
        store: The store.
        id: The conversation.
        is_agreed: Whether a person said yes to it. An agent may then delete messages of others with
            it.

    Raises the errors of `Store.delete`.
    """

    def act(conversation: Conversation) -> Trashed:
        conversation.ensure_permitted("delete")
        if store.agent is not None and not is_agreed:
            authors = {entry.get("from") for entry in conversation.document()["history"]}
            if not authors <= {store.agent}:
                conversation.ensure_permitted("moderate")
        trashed = store.inner.instance_locks.delete(conversation)
        store.inner.remember_own_write(id, "deleted")
        return trashed

    try:
        return store.inner.change(check_id(id), act, admit_any_instance)
    except InvalidDocument:
        with store.engine.external_edits().hold(KIND, id) as held:
            trashed = store.inner.instance_locks.delete_damaged(held)
            store.inner.remember_own_write(id, "deleted")
            return trashed


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored version.

    Attributes:
        head: The head as it is now.
        kept: The path of the replaced version in the quarantine; None: nothing was replaced.
    """

    head: Head
    kept: str | None


class EarlierVersions:
    """Earlier versions of the conversations of a store."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def restore(self, id: str, document: Mapping[str, Any]) -> Restored:
        """Write an earlier version of a conversation, with a new `updatedAt`.

        The present file goes to the quarantine first, even if it does not parse. A deleted
        conversation is made again; an agent does so only if all messages are from it.

        Args:
            id: The conversation.
            document: The version, as `Store.document` gives it. Its lock is ignored. It is not
                changed.

        Raises:
            InvalidDocument: It is no capsule, or of another conversation or a newer major version.
            InvalidInput: The conversation was deleted, and a message is larger than the store
                accepts.
            Locked, LockLost: Another instance holds the lock, or took it.
            StoreBusy: Another writer held the document for longer than storage.mutex_timeout.
            Refused, StorageFailed: The system refused a read or a write.

        Cost: writing the file twice.
        """
        check_id(id)
        wanted = _without_lock(migrations.upgrade(dict(document), f"{id}.json")[0])
        wanted = decode_checked(
            codec.encode(wanted), f"{id}.json", id
        )  # It must still be a capsule, and this one.
        self._store.inner.remember_own_write(
            id, "restored"
        )  # Watchers that saw it deleted see this change.
        try:
            return self._store.inner.change(
                id, lambda conversation: self._in_its_place(conversation, wanted)
            )
        except NotFound:
            return self._anew(wanted)
        except InvalidDocument:
            return retry(lambda: self._in_place_of_damaged(id, wanted))

    def _in_its_place(self, conversation: Conversation, wanted: dict[str, Any]) -> Restored:
        """Replace a valid file."""
        conversation.admitted()
        kept = conversation.transaction.quarantine_copy("replaced")

        def change(now: dict[str, Any]) -> dict[str, Any]:
            return wanted | {"metadata": wanted["metadata"] | {"lock": now["metadata"]["lock"]}}

        after = conversation.rewrite(change)
        return Restored(self._store.inner.parsed_head(conversation.id, after), kept)

    def _anew(self, wanted: dict[str, Any]) -> Restored:
        """Make a deleted conversation again."""
        kind = str(wanted["metadata"].get("type", "chat"))
        lock = self._store.inner.instance_locks.lock_for_new(kind) or inactive_lock()
        stamp = timestamps.now(wanted["updatedAt"])
        metadata = wanted["metadata"] | {"lock": lock}
        history = [with_sender(message, self._store.agent) for message in wanted["history"]]
        retry = wanted | {"updatedAt": stamp, "metadata": metadata, "history": history}
        return Restored(write_new(self._store.inner, canonical.in_order(retry)), None)

    def _in_place_of_damaged(self, id: str, wanted: dict[str, Any]) -> Restored:
        """Replace a file that does not parse, so that its lock is unknown."""
        with self._store.engine.external_edits().hold(KIND, id) as held:
            got = held.read()
            if got is None or _is_sound(got[0], held.path, id):
                raise ConcurrentWrite
            kept = held.quarantine(got[0], "replaced")
            # Messages that are not in this version stay out: the caller asked for this version.
            taken_in = reconcile(wanted, held.records(), deliberate=True)
            if taken_in.taken_away:
                held.quarantine(taken_in.kept, "overruled")
            document = wanted | {"updatedAt": timestamps.later_than(taken_in.newest)}
            data = codec.encode(document)
            records = [
                *taken_in.seen,
                head_record(document["updatedAt"], document, len(document["history"])),
            ]
            self._store.inner.remember_own_write(id, held.put(got[1], data, records))
        return Restored(self._store.inner.parsed_head(id, document), kept)


def _without_lock(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"metadata": document["metadata"] | {"lock": inactive_lock()}}


def _is_sound(data: bytes, path: str, id: str) -> bool:
    """Whether a file is the capsule of this conversation."""
    try:
        decode_checked(data, path, id)
    except InvalidDocument:
        return False
    return True
