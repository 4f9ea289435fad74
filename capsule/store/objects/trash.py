"""The trash, and earlier versions: deleting conversations, and restoring conversations, messages
and versions.

The trash has two kinds of entries. A deleted conversation is its file. Removed messages are a
document (kind `REMOVED`) with the messages before the write, and under `removed` what is needed to
put them back. A version that a restored one replaces goes to the quarantine, the directory for
overruled and damaged versions.

The store of an agent has a `TrashView` (`store/view.py`) as its `engine.trash`. It keeps the rules
for agents: an agent finds and restores only what it put into the trash itself, and may not purge.

What must stay true: content goes to the trash or the quarantine before it is removed or replaced.
An entry leaves the trash only by `restore`, `restore_messages` or `purge`. (The engine also erases
the entry of a write that ended with `ConcurrentWrite`, since nothing was removed.) Restored
messages keep their ids, so that a merge recognizes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.engines.interface import CONVERSATIONS, Trashed, retry
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
        title: The conversation's title at that time.
        reason: `deleted`, `pruned`, `edited` or `restored` (restored messages replaced them).
        messages: The messages before the write.
        by: The agent that wrote. Empty: the store's owner, or it is unknown.
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
            trashed: The conversation, as `list` returns it.

        Raises nothing: `Head.damaged` is the reason if the file can't be read. Cost: reading the
        file.
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
            trashed: The entry to restore if several were deleted under this id, as `list` returns
                it. It must be of this id, which is not checked. None: the newest.

        Raises:
            NotFound: The trash has no such conversation.
            Refused: The id is taken by another conversation.

        Cost: a link and two flushes of a directory.
        """
        deleted = self.list()
        deleted_ids = sorted({entry.id for entry in deleted})
        full_id = resolve_prefix(deleted_ids, id, "deleted conversation", Remedy("trash"))
        restored = trashed or next(entry for entry in deleted if entry.id == full_id)
        # Before the write, so that watchers know that it is this store's own.
        self._store.inner.remember_own_write(full_id, "restored")
        self._store.engine.trash.restore(CONVERSATIONS, full_id, restored.token)
        try:
            return self._store.head(full_id)
        except InvalidDocument as error:
            path = self._store.engine.name(CONVERSATIONS, full_id)
            return Head(full_id, path=path, damaged=error.message)

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
            before: Only the entries that follow this one in the list: its `deleted_at` and its
                `token`. None: all.
            limit: The largest number of entries. None: no limit.

        Raises Refused, StorageFailed. Cost: reading the listed messages.
        """
        removed: list[RemovedMessages] = []
        for trashed in self._store.engine.trash.entries(REMOVED):
            if len(removed) == limit:
                break
            if id not in (None, trashed.id):
                continue
            if before is not None and (trashed.deleted_at, trashed.token) >= before:
                continue
            document = codec.decode(self._store.engine.trash.read(trashed.token), trashed.path)
            record = document["removed"]
            removed.append(
                RemovedMessages(
                    trashed=trashed,
                    title=document["title"],
                    reason=record["reason"],
                    messages=document["history"],
                    by=record.get("by") or "",
                )
            )
        return removed

    def restore_messages(self, trashed: Trashed) -> list[str]:
        """Put messages from the trash back into their conversation, and remove them from the trash.

        An agent puts back only what it removed or changed.

        A removed message becomes an answer to its former parent again. An edited message gets its
        former text, and its present text goes to the trash.

        Args:
            trashed: The messages, as `removed` returns them.

        Returns:
            The ids of the messages that were put back or changed.

        Raises the errors of `append`, and NotFound if they are not in the trash, or the
        conversation was deleted.

        Cost: reading and writing the whole file.
        """
        removed = codec.decode(self._store.engine.trash.read(trashed.token), trashed.path)

        def put_messages_back(conversation: Conversation) -> list[str]:
            old = conversation.document()
            new = conversation.rewrite(
                lambda document: restore_removed(document, removed, self._store.agent),
                reason="restored",
            )
            self._store.engine.trash.erase(trashed.token)
            old_texts = {entry["id"]: entry["content"] for entry in old["history"]}
            removed_ids = {entry["id"] for entry in removed["history"]}
            changed_ids = []
            for entry in new["history"]:
                message_id = entry["id"]
                if message_id in removed_ids and old_texts.get(message_id) != entry["content"]:
                    changed_ids.append(message_id)
            return changed_ids

        return self._store.inner.change(trashed.id, put_messages_back)

    def purge(self, older_than_s: float = 0) -> list[str]:
        """Erase the contents of the trash and the quarantine, and every other trace of them.

        Afterwards no file in `.capsule/` has a text that was removed from a conversation, except
        texts that came to the trash or the quarantine since. Sessions lose the messages that they
        have dealt with, and the files of those messages. Conversations and attachments do not
        change. If a document does not parse, the store keeps its records of that document, because
        a repair may need them.

        Args:
            older_than_s: Only entries older than this many seconds. 0: everything.

        Returns:
            The paths that were removed from the trash and the quarantine.

        Raises:
            StoreBusy: Another writer held the document for longer than storage.mutex_timeout.
            Refused: An agent asked. Only a person may empty the trash.
            Refused, StorageFailed: The system refused a read or a write. The next purge removes
                the rest.

        Cost: reading every conversation that was written here. The next use of the index rebuilds
        it.
        """
        if self._store.agent is None:  # For an agent, the next line raises Refused.
            self._store.inner.forget_purged()
        return self._store.engine.trash.purge(older_than_s)

    def list(self) -> list[Trashed]:
        """List the deleted conversations, the newest first. An agent lists those that it deleted.

        Raises:
            Refused, StorageFailed: The system refused a read or a write.

        Cost: listing a directory.
        """
        return self._store.engine.trash.entries(CONVERSATIONS)


def delete_without_forks(store: BaseStore, id: str, *, is_agreed: bool = False) -> Trashed:
    """Move a conversation or a damaged file to the trash, without its forks.

    Args:
        store: The store.
        id: The conversation.
        is_agreed: Whether a person agreed. An agent may then delete a conversation with messages of
            others.

    Raises the errors of `Store.delete`.
    """

    def delete(conversation: Conversation) -> Trashed:
        conversation.ensure_permitted("delete")
        if store.agent is not None and not is_agreed:
            authors = {entry.get("from") for entry in conversation.document()["history"]}
            if not authors <= {store.agent}:
                conversation.ensure_permitted("moderate")
        trashed = store.inner.instance_locks.delete(conversation)
        store.inner.remember_own_write(id, "deleted")
        return trashed

    try:
        return store.inner.change(check_id(id), delete, admit_any_instance)
    except InvalidDocument:
        with store.engine.external_edits().hold(CONVERSATIONS, id) as held_file:
            trashed = store.inner.instance_locks.delete_damaged(held_file)
            store.inner.remember_own_write(id, "deleted")
            return trashed


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored version.

    Attributes:
        head: The present head.
        kept: The path of a copy of the present version in the quarantine. It is made before the
            write, also if that then changes nothing. None: the conversation was deleted.
    """

    head: Head
    kept: str | None


class EarlierVersions:
    """Earlier versions of the conversations of a store."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def restore(self, id: str, document: Mapping[str, Any]) -> Restored:
        """Write an earlier version of a conversation, with a new `updatedAt`.

        A copy of the present file goes to the quarantine first, even if it does not parse. If other
        programs write meanwhile, each try makes a copy. A deleted conversation is made again. An
        agent may do that only if all messages are from it.

        Args:
            id: The conversation.
            document: The version, as `Store.document` returns it. Its lock is ignored. It is not
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
        path = f"{id}.json"
        current, _ = migrations.upgrade(dict(document), path)
        # Decoded again, to check that it still is a capsule, and the one of this conversation.
        version = decode_checked(codec.encode(_without_lock(current)), path, id)
        # Remembered first: watchers that saw the conversation deleted see it restored.
        self._store.inner.remember_own_write(id, "restored")
        try:
            return self._store.inner.change(
                id, lambda conversation: self._replace(conversation, version)
            )
        except NotFound:
            return self._recreate(version)
        except InvalidDocument:
            return retry(lambda: self._replace_damaged(id, version))

    def _replace(self, conversation: Conversation, version: dict[str, Any]) -> Restored:
        """Replace a valid file."""
        conversation.admit()  # Raises before a copy is made.
        quarantine_path = conversation.transaction.quarantine_copy("replaced")

        def change(present: dict[str, Any]) -> dict[str, Any]:
            # The present lock stays, unless `rewrite` records another one.
            metadata = version["metadata"] | {"lock": present["metadata"]["lock"]}
            return version | {"metadata": metadata}

        document = conversation.rewrite(change)
        head = self._store.inner.parsed_head(conversation.id, document)
        return Restored(head, quarantine_path)

    def _recreate(self, version: dict[str, Any]) -> Restored:
        """Make a deleted conversation again."""
        type = str(version["metadata"].get("type", "chat"))
        lock = self._store.inner.instance_locks.lock_for_new(type) or inactive_lock()
        document = version | {
            "updatedAt": timestamps.now(version["updatedAt"]),
            "metadata": version["metadata"] | {"lock": lock},
            "history": [with_sender(entry, self._store.agent) for entry in version["history"]],
        }
        return Restored(write_new(self._store.inner, canonical.in_order(document)), None)

    def _replace_damaged(self, id: str, version: dict[str, Any]) -> Restored:
        """Replace a file that does not parse. Its lock is unknown, and not respected.

        Raises ConcurrentWrite if the file was repaired or deleted meanwhile.
        """
        with self._store.engine.external_edits().hold(CONVERSATIONS, id) as held_file:
            content = held_file.read()
            if content is None or _is_valid(content.data, held_file.path, id):
                raise ConcurrentWrite
            quarantine_path = held_file.quarantine(content.data, "replaced")
            # As if a person had saved this version on purpose: messages that it lacks stay out.
            # What the log has and this version lacks goes to the quarantine, too.
            reconciled = reconcile(version, held_file.records(), deliberate=True)
            if reconciled.lost_in_words:
                held_file.quarantine(reconciled.lost_values, "overruled")
            document = version | {"updatedAt": timestamps.later_than(reconciled.latest_update)}
            head_change = head_record(document["updatedAt"], document, len(document["history"]))
            records = [*reconciled.edit_records, head_change]
            tag = held_file.put(content.signature, codec.encode(document), records)
            # Only now, because the tag is known only after the write.
            self._store.inner.remember_own_write(id, tag)
        return Restored(self._store.inner.parsed_head(id, document), quarantine_path)


def _without_lock(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"metadata": document["metadata"] | {"lock": inactive_lock()}}


def _is_valid(data: bytes, path: str, id: str) -> bool:
    """Return whether a file is the capsule of this conversation."""
    try:
        decode_checked(data, path, id)
    except InvalidDocument:
        return False
    return True
