"""Bringing back an earlier version of a conversation, as a new write.

What must stay true: nothing is written over before it is kept in the quarantine; the rule of who may write is asked
as for every save; and the messages keep their ids, so that a merge knows them again.
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
from capsule.store.creation import write_new
from capsule.store.reading import KIND

if TYPE_CHECKING:
    from capsule.store.change import Conversation
    from capsule.store.store import Store


@dataclass(frozen=True, slots=True)
class Restored:
    """What was brought back.

    Attributes:
        head: The head as it is now.
        kept: Where the version lies whose place it took, in the quarantine; None: there was none.
    """

    head: Head
    kept: str | None


class Versions:
    """Earlier versions of the conversations of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def restore(self, id: str, document: Mapping[str, Any]) -> Restored:
        """Write an earlier version of a conversation anew, `updatedAt` apart, which is now.

        What is there now is kept in the quarantine first; also a file that does not parse. A conversation that is gone
        is made again.

        Args:
            id: The conversation.
            document: The version, as `document` gives one, with any lock; it stays as it is.

        Raises:
            InvalidDocument: It is no capsule, that of another conversation, or of a newer major version.
            InvalidInput: The conversation is gone, and a message is larger than the store accepts.
            Locked, LockLost: Another instance holds the conversation, or took it.
            StoreBusy, Refused, StorageFailed: The system did not let it.

        Cost: writing the file twice.
        """
        check_id(id)
        wanted = _without_lock(migrations.current(dict(document), f"{id}.json")[0])
        wanted = decoded(codec.encode(wanted), f"{id}.json", id)  # It must still be a capsule, and this one.
        self._store._wrote(id, "restored")  # It is so when it was deleted once, and the watchers heard of that.
        try:
            return self._store._change(id, lambda conversation: self._in_its_place(conversation, wanted))
        except NotFound:
            return self._anew(wanted)
        except InvalidDocument:
            return again(lambda: self._in_place_of_damaged(id, wanted))

    def _in_its_place(self, conversation: Conversation, wanted: dict[str, Any]) -> Restored:
        """In the place of a sound version."""
        conversation.ensure_admitted()
        kept = conversation.transaction.set_aside("replaced")

        def change(now: dict[str, Any]) -> dict[str, Any]:
            return wanted | {"metadata": wanted["metadata"] | {"lock": now["metadata"]["lock"]}}

        after = conversation.rewrite(change)
        return Restored(self._store._head_of(conversation.id, after), kept)

    def _anew(self, wanted: dict[str, Any]) -> Restored:
        """A conversation that is gone."""
        kind = str(wanted["metadata"].get("type", "chat"))
        lock = self._store._holder.lock_for_new(kind) or inactive_lock()
        stamp = timestamps.now(wanted["updatedAt"])
        metadata = wanted["metadata"] | {"lock": lock}
        return Restored(
            write_new(self._store, canonical.in_order(wanted | {"updatedAt": stamp, "metadata": metadata})), None
        )

    def _in_place_of_damaged(self, id: str, wanted: dict[str, Any]) -> Restored:
        """In the place of a file that does not parse, of which nobody can say who holds it."""
        with files_of(self._store.engine).mutex(KIND, id) as held:
            got = held.read()
            if got is None or _is_sound(got[0], held.path, id):
                raise Interfered
            kept = held.quarantine(got[0], "replaced")
            # What it lacks stays out: this version was asked for.
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
