"""Restoring an earlier version of a conversation, as a new write.

What must stay true: the replaced version goes to the quarantine first. The same rule as for a save decides who may
write. The messages keep their ids, so that a merge recognizes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.engines.files.engine import again, files_of
from capsule.engines.files.external_edits import decoded
from capsule.engines.files.protocols import Interfered
from capsule.errors import InvalidDocument, NotFound
from capsule.format import anatomy, canonical, codec, migrations
from capsule.format.head import Head
from capsule.format.merge.reconcile import reconcile
from capsule.format.merge.records import head_record
from capsule.format.new import inactive_lock
from capsule.ids import check_id
from capsule.store.appends import signed
from capsule.store.creation import write_new
from capsule.store.reading import KIND

if TYPE_CHECKING:
    from capsule.store.change import Conversation
    from capsule.store.store import Store


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored version.

    Attributes:
        head: The head as it is now.
        kept: The path of the replaced version in the quarantine; None: nothing was replaced.
    """

    head: Head
    kept: str | None


class Versions:
    """Earlier versions of the conversations of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def restore(self, id: str, document: Mapping[str, Any]) -> Restored:
        """Write an earlier version of a conversation, with a new `updatedAt`.

        The present file goes to the quarantine first, even if it does not parse. A deleted conversation is made again;
        an agent does so only if all messages are from it.

        Args:
            id: The conversation.
            document: The version, as `Store.document` gives it. Its lock is ignored. It is not changed.

        Raises:
            InvalidDocument: It is no capsule, or of another conversation or a newer major version.
            InvalidInput: The conversation was deleted, and a message is larger than the store accepts.
            Locked, LockLost: Another instance holds the lock, or took it.
            StoreBusy, Refused, StorageFailed: The system did not permit it.

        Cost: writing the file twice.
        """
        check_id(id)
        wanted = _without_lock(migrations.current(dict(document), f"{id}.json")[0])
        wanted = decoded(codec.encode(wanted), f"{id}.json", id)  # It must still be a capsule, and this one.
        self._store._wrote(id, "restored")  # Watchers that saw it deleted see this change.
        try:
            return self._store._change(id, lambda conversation: self._in_its_place(conversation, wanted))
        except NotFound:
            return self._anew(wanted)
        except InvalidDocument:
            return again(lambda: self._in_place_of_damaged(id, wanted))

    def _in_its_place(self, conversation: Conversation, wanted: dict[str, Any]) -> Restored:
        """Replace a valid file."""
        conversation.admitted()
        kept = conversation.transaction.set_aside("replaced")

        def change(now: dict[str, Any]) -> dict[str, Any]:
            return wanted | {"metadata": wanted["metadata"] | {"lock": now["metadata"]["lock"]}}

        after = conversation.rewrite(change)
        return Restored(self._store._head_of(conversation.id, after), kept)

    def _anew(self, wanted: dict[str, Any]) -> Restored:
        """Make a deleted conversation again."""
        kind = str(wanted["metadata"].get("type", "chat"))
        lock = self._store._holder.lock_for_new(kind) or inactive_lock()
        stamp = timestamps.now(wanted["updatedAt"])
        metadata = wanted["metadata"] | {"lock": lock}
        history = [signed(message, self._store.agent) for message in wanted["history"]]
        again = wanted | {"updatedAt": stamp, "metadata": metadata, "history": history}
        return Restored(write_new(self._store, canonical.in_order(again)), None)

    def _in_place_of_damaged(self, id: str, wanted: dict[str, Any]) -> Restored:
        """Replace a file that does not parse, so that its lock is unknown."""
        with files_of(self._store.engine).mutex(KIND, id) as held:
            got = held.read()
            if got is None or _is_sound(got[0], held.path, id):
                raise Interfered
            kept = held.quarantine(got[0], "replaced")
            # Messages that are not in this version stay out: the caller asked for this version.
            taken_in = reconcile(wanted, held.records(), deliberate=True)
            document = wanted | {"updatedAt": timestamps.later_than(taken_in.newest)}
            data = codec.encode(document)
            records = [taken_in.seen, head_record(document["updatedAt"], document, len(document["history"]))]
            known = held.replace(got[1], data, anatomy.survey(data), records)
            self._store._wrote(id, known.tag)
        return Restored(self._store._head_of(id, document), kept)


def _without_lock(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"metadata": document["metadata"] | {"lock": inactive_lock()}}


def _is_sound(data: bytes, path: str, id: str) -> bool:
    """Whether a file is the capsule of this conversation."""
    try:
        decoded(data, path, id)
    except InvalidDocument:
        return False
    return True
