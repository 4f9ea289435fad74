"""A transaction on a document in PostgreSQL.

It holds no lock and no connection of the database, unless it is an exclusive one (`exclusive.py`).
It begins with a state of the document, and each write names the version of this state: if another
program wrote the document meanwhile, the write raises `ConcurrentWrite`, nothing is written, and the
caller begins again. The state may be one that this process cached (`is_verified` False), which saves
a round trip before a write. The engine lets one thread of a process at a time have a transaction on
a document.

What must stay true: no answer and no refusal is based on a cached state before the database has
confirmed its version (`ensure_unchanged`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from capsule.engines.entries import entry_with_id, head_fields
from capsule.engines.interface import (
    CONVERSATIONS,
    Document,
    DocumentState,
    EntriesSince,
    ReadSet,
    Trashed,
)
from capsule.engines.postgres import change_events, layout
from capsule.engines.postgres.layout import RowState
from capsule.engines.postgres.writing import DocumentWrite, head_columns, message_key
from capsule.errors import ConcurrentWrite
from capsule.format import validation
from capsule.format.documents.head import ParsedHead
from capsule.format.json import canonical, codec

if TYPE_CHECKING:
    from capsule.engines.postgres.engine import PostgresEngine
    from capsule.engines.postgres.exclusive import DocumentLock
    from capsule.rules.consent import PolicyInputs as Consent
    from capsule.rules.policy import PolicyTarget

#: How far entries were read: the era, and the number of entries. See `RowState`.
Place = tuple[int, int]


class PostgresTransaction:
    """The right to write one version of a document. See `Transaction`, which describes the methods.

    Args:
        engine: The engine.
        kind, id: The document.
        state: Its state: just read, or cached by this process.
        is_verified: Whether the state was just read.
        document_lock: The lock of the document, if it is held. Then nobody else writes it before the
            first write of this transaction.
    """

    def __init__(
        self,
        engine: PostgresEngine,
        kind: str,
        id: str,
        state: RowState,
        *,
        is_verified: bool,
        document_lock: DocumentLock | None = None,
    ) -> None:
        self.id = id
        self.name = engine.name(kind, id)
        self.read_set: ReadSet = {}
        self.waits_for_flush = True
        self.decision_inputs: tuple[PolicyTarget, Consent] | None = None
        self._engine = engine
        self._kind = kind
        self._is_verified = is_verified
        self._document_lock = document_lock
        self._set_state(state)
        #: Whether the next write depends on the entries of the document.
        self._has_read = kind != CONVERSATIONS
        #: Ids that were looked up and not found. The next write depends on their absence, except
        #: for the ids that it appends itself.
        self._missing: set[str] = set()

    def _set_state(self, state: RowState) -> None:
        self._row_state = state
        self._document: Document | None = None
        self._bodies: list[str] = []
        self.state: DocumentState = state.public
        self.head: ParsedHead = state.head

    def ensure_unchanged(self) -> None:
        """Raise ConcurrentWrite if the document has another version than this transaction's state.

        Cost: one round trip, the first time.
        """
        if not self._is_verified:
            if self._engine.version_number(self._kind, self.id) != self._row_state.version:
                raise ConcurrentWrite
            self._is_verified = True

    def document(self) -> Document:
        self._has_read = True
        if self._document is None:
            version, data, bodies = self._engine.read_version(self._kind, self.id) or (0, b"", [])
            if version != self._row_state.version:
                raise ConcurrentWrite
            self._document = codec.decode(data, self.name)
            self._is_verified = True
            self._bodies = bodies
        return self._document

    def follow(
        self, since: Place | None = None, own_entries: list[Document] | None = None
    ) -> EntriesSince:
        position = self._row_state.era, self._row_state.entries
        self._has_read = True
        if own_entries is not None:
            return EntriesSince(position, own_entries, False)
        if since == position:
            self.ensure_unchanged()
            return EntriesSince(position, [], False)
        new_entries = self._engine.follow(self._kind, self.id, since)
        if new_entries.position != position:
            raise ConcurrentWrite
        return new_entries

    def find(self, id: str) -> tuple[int, Document] | None:
        """Cost: up to two round trips; none if the document was read."""
        if self._document is not None:
            return entry_with_id(self._document["history"], id)
        self.ensure_unchanged()
        positioned = self._engine.entry(self._kind, self.id, id)
        if positioned is None:
            self._missing.add(id)
        return positioned

    def appended(self) -> list[Document]:
        """Return an empty list: an interrupted write leaves nothing to complete."""
        return []

    def ensure_durable(self) -> None:
        """Do nothing: a commit is durable."""

    def append(
        self,
        entries: list[Document],
        encoded: list[bytes],
        updated_at: str,
        *,
        time: str,
        head: Document | None,
        ends_active: bool,
    ) -> None:
        """Cost: one round trip, also if others append at the same time.

        If the document has a later time than `time`, the messages get that one, and `entries` are
        changed accordingly.
        """
        ids = [str(entry.get("id", "")) for entry in entries]
        old = self._row_state
        # An independent append may follow appends of others that this transaction has not seen.
        is_independent = not (self._has_read or self._missing - {*ids})
        if self.head.current is not None and not old.ends_active:
            is_independent = False
        new_head = {} if head is None else head_fields(head)
        save = self._base_write(exact=not is_independent, ends_active=ends_active)
        save |= {
            "messages": [message_key(id) for id in ids],
            "bodies": [body.decode() for body in encoded],
        }
        save |= {"active": old.ends_active, "time": time, "stamp": updated_at}
        if head is not None:
            save |= {**head_columns(head), "rest": self._changed_rest(head)}
        self._write(
            save, change_events.append_events(self._kind, ids, old.head.document, new_head or None)
        )
        if self._row_state.time > time:  # Others appended meanwhile, with a clock that is ahead.
            for entry in entries:
                if entry.get("timestamp") == time:
                    entry["timestamp"] = self._row_state.time

    def set_head(
        self,
        head: Document,
        *,
        context: Callable[[], Iterable[bytes]] | None = None,
        ends_active: bool | None = None,
    ) -> None:
        old = self._row_state
        rest = self._changed_rest(head)
        if context is not None:
            in_head = head_fields(self.document())
            other_fields = {
                key: value
                for key, value in self.document().items()
                if key not in in_head and key != "history"
            }
            other_fields["context"] = codec.decode(b"".join(context()), "context")
            rest = layout.encode_fields(canonical.in_order(other_fields))
        stamp: str | None = str(head.get("updatedAt", ""))
        if stamp == old.updated_at:
            stamp = None  # Appends of others may have set a later time, which stays.
        save = self._base_write(
            exact=self._has_read or bool(self._missing), ends_active=ends_active
        )
        save |= {"stamp": stamp, "rest": rest, **head_columns(head)}
        events = change_events.head_change_events(
            self._kind, old.head.document, head, has_context=context is not None
        )
        self._write(save, events)

    def _changed_rest(self, head: Document) -> str | None:
        """Return the new text of the column `rest`, or None if `head` has no field of it."""
        if set(head) <= set(head_fields(head)):
            return None
        document = canonical.in_order(self.document() | head)
        return layout.split_document(document | {"history": []}).rest

    def replace(self, document: Document, removed: tuple[str, Document] | None = None) -> None:
        """Cost: two round trips. If the number of entries stays the same, the changed ones are
        written, else all from the first different one on.
        """
        data = codec.encode(document)
        validation.check(document, data, self.name)
        old = self.document()
        old_bodies = self._bodies
        new = layout.split_document(document)
        save = self._base_write(exact=True, ends_active=False) | {
            "stamp": str(document.get("updatedAt", "")),
            "rest": new.rest,
            **head_columns(document),
        }
        save |= _changed_entries(document["history"], old_bodies, new.bodies)
        trash = removed and (removed[0], codec.encode(removed[1]))
        events = change_events.replacement_events(self._kind, old, document, old_bodies, new.bodies)
        self._write(save, events, trash)

    def _base_write(self, *, exact: bool, ends_active: bool | None) -> DocumentWrite:
        """Return the fields that every write has."""
        return {
            "kind": self._kind,
            "id": self.id,
            "tag": self._row_state.tag,
            "version": self._row_state.version,
            "exact": exact,
            "ends_active": ends_active,
        }

    def _write(
        self,
        save: DocumentWrite,
        events: change_events.Events,
        trash: tuple[str, bytes] | None = None,
    ) -> None:
        is_head_unchanged = save.get("head") is None
        base = self._row_state if is_head_unchanged else None
        state = self._engine.save(
            save,
            self.read_set,
            events,
            trash=trash,
            base=base,
            document_lock=self._document_lock,
        )
        self._set_state(state)
        self._is_verified = True

    def quarantine_copy(self, reason: str) -> str:
        self.document()
        return self._engine.trash.add(reason, self.id, self._engine.read(self._kind, self.id)).token

    def delete(self) -> Trashed:
        """Cost: two round trips. The first one reads the document."""
        version, data, _ = self._engine.read_version(self._kind, self.id) or (0, b"", [])
        if version != self._row_state.version:
            raise ConcurrentWrite
        self._is_verified = True
        return self._engine.remove(
            self._kind, self.id, version, data, self.read_set, self._document_lock
        )


def _changed_entries(
    entries: list[Document], old_bodies: list[str], new_bodies: list[str]
) -> DocumentWrite:
    """Return the fields of a write that replaces the entries of a document.

    Args:
        entries: The new entries.
        old_bodies, new_bodies: The entries before and after the write, as the file has them.
    """
    common_length = min(len(old_bodies), len(new_bodies))
    changed = [place for place in range(common_length) if old_bodies[place] != new_bodies[place]]
    fields: DocumentWrite = {
        "inner_bytes": sum(len(body.encode()) + 2 for body in new_bodies),
    }
    if len(old_bodies) == len(new_bodies):
        if not changed:
            return {}
        fields["places"] = changed
    else:
        # The entries behind get other positions.
        fields["start"] = changed[0] if changed else common_length
        changed = [*range(fields["start"], len(new_bodies))]
    fields["messages"] = [message_key(str(entries[place].get("id", ""))) for place in changed]
    fields["bodies"] = [new_bodies[place] for place in changed]
    return fields
