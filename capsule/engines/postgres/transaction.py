"""Implement a transaction on a document in PostgreSQL.

A transaction may begin with a cached state of the document. A write names this state, and the
database refuses it if the document has changed. Then the transaction begins again.

What must stay true: nothing is locked in the database while Python works. No refusal and no result
is based on a cached state before the database confirmed it. Threads of one process take turns.
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
from capsule.engines.postgres import layout, told
from capsule.engines.postgres.layout import RowState
from capsule.engines.postgres.writing import DocumentWrite, message_key
from capsule.errors import ConcurrentWrite
from capsule.format import validation
from capsule.format.documents.head import ParsedHead
from capsule.format.json import canonical, codec

if TYPE_CHECKING:
    from capsule.engines.postgres.engine import PostgresEngine
    from capsule.rules.consent import PolicyInputs as Consent
    from capsule.rules.policy import PolicyTarget

#: What a place of `follow` is: the era, and the number of entries.
Place = tuple[int, int]


class PostgresTransaction:
    """The right to write one document. `Transaction` describes the methods.

    Args:
        engine: The engine.
        kind, id: The document.
        state: Its state, perhaps a cached one.
        is_sure: Whether the database confirmed the state just now.
    """

    def __init__(
        self, engine: PostgresEngine, kind: str, id: str, state: RowState, *, is_sure: bool
    ) -> None:
        self.id = id
        self.name = engine.name(kind, id)
        self.read_set: ReadSet = {}
        self.waits_for_flush = True
        self.decision_inputs: tuple[PolicyTarget, Consent] | None = None
        self._engine = engine
        self._kind = kind
        self._is_sure = is_sure
        self._go_on(state)
        #: Whether the next write depends on the entries that there are.
        self._has_read = kind != CONVERSATIONS
        #: The ids of entries that are not there, on which it may depend. That of an append has none
        #: of its own there.
        self._missing: set[str] = set()

    def _go_on(self, state: RowState) -> None:
        self._now = state
        self._document: Document | None = None
        self._bodies: list[str] = []
        self.state: DocumentState = state.public
        self.head: ParsedHead = state.head

    def ensure_sure(self) -> None:
        """Raise Interfered if the document is not as this transaction began with. Cost: at most a
        look.
        """
        if not self._is_sure:
            if self._engine.number(self._kind, self.id) != self._now.version:
                raise ConcurrentWrite
            self._is_sure = True

    def document(self) -> Document:
        self._has_read = True
        if self._document is None:
            version, data, bodies = self._engine.whole(self._kind, self.id) or (0, b"", [])
            if version != self._now.version:
                raise ConcurrentWrite
            self._document, self._is_sure, self._bodies = (
                codec.decode(data, self.name),
                True,
                bodies,
            )
        return self._document

    def follow(
        self, since: Place | None = None, own_entries: list[Document] | None = None
    ) -> EntriesSince:
        place = self._now.era, self._now.entries
        self._has_read = True
        if own_entries is not None:
            return EntriesSince(place, own_entries, False)
        if since == place:
            self.ensure_sure()
            return EntriesSince(place, [], False)
        news = self._engine.follow(self._kind, self.id, since)
        if news.position != place:
            raise ConcurrentWrite
        return news

    def find(self, id: str) -> tuple[int, Document] | None:
        """Costs a look-up."""
        if self._document is not None:
            return entry_with_id(self._document["history"], id)
        self.ensure_sure()
        found = self._engine.entry(self._kind, self.id, id)
        if found is None:
            self._missing.add(id)
        return found

    def appended(self) -> list[Document]:
        """Nothing: a write that was interrupted wrote nothing."""
        return []

    def ensure_durable(self) -> None:
        """Do nothing: what was committed is durable."""

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
        """Cost: one round trip, also where others append at the same time."""
        ids = [str(entry.get("id", "")) for entry in entries]
        before, goes_on = self._now, not (self._has_read or self._missing - {*ids})
        if self.head.current is not None and not before.ends_active:
            goes_on = False
        after = {} if head is None else head_fields(head)
        save = self._decided(exact=not goes_on, ends_active=ends_active)
        save |= {
            "messages": [*map(message_key, ids)],
            "bodies": [body.decode() for body in encoded],
        }
        save |= {"active": before.ends_active, "time": time, "stamp": updated_at}
        if head is not None:
            save |= {"head": layout.fields(after), "rest": self._rest_with(head)}
        self._write(save, told.appended(self._kind, ids, before.head.document, after or None))
        if self._now.time > time:  # Others appended meanwhile, whose clock is ahead.
            for entry in entries:
                if entry.get("timestamp") == time:
                    entry["timestamp"] = self._now.time

    def set_head(
        self,
        head: Document,
        *,
        context: Callable[[], Iterable[bytes]] | None = None,
        ends_active: bool | None = None,
    ) -> None:
        before = self._now
        rest = self._rest_with(head)
        if context is not None:
            others = {
                key: value
                for key, value in self.document().items()
                if key not in head_fields(self.document())
            }
            others = {key: value for key, value in others.items() if key != "history"}
            rest = layout.fields(
                canonical.in_order(
                    others | {"context": codec.decode(b"".join(context()), "context")}
                )
            )
        # A write that leaves `updatedAt` as it is leaves it as others have made it meanwhile.
        stamp = str(head.get("updatedAt", ""))
        save = self._decided(exact=self._has_read or bool(self._missing), ends_active=ends_active)
        save |= {"stamp": None if stamp == before.updated_at else stamp}
        save |= {"head": layout.fields(head_fields(head)), "rest": rest}
        self._write(
            save,
            told.reheaded(self._kind, before.head.document, head, has_context=context is not None),
        )

    def _rest_with(self, head: Document) -> str | None:
        """What is not in the columns of a head, if this one has some of it; None: as it is."""
        if set(head) <= set(head_fields(head)):
            return None
        document = canonical.in_order(self.document() | head)
        return layout.pieces(document | {"history": []}).rest

    def replace(self, document: Document, removed: tuple[str, Document] | None = None) -> None:
        """Cost: two round trips, and what is new behind the first entry that is another."""
        data = codec.encode(document)
        validation.check(document, data, self.name)
        before, old, new = self.document(), self._bodies, layout.pieces(document)
        shorter = zip(old, new.bodies, strict=False)
        start = next(
            (at for at, (was, now) in enumerate(shorter) if was != now),
            min(len(old), len(new.bodies)),
        )
        save = self._decided(exact=True, ends_active=False) | {
            "start": start,
            "inner_bytes": sum(len(body.encode()) + 2 for body in new.bodies),
            "messages": [
                message_key(str(entry.get("id", ""))) for entry in document["history"][start:]
            ],
            "bodies": new.bodies[start:],
            "stamp": str(document.get("updatedAt", "")),
            "head": new.head,
            "rest": new.rest,
        }
        trash = removed and (removed[0], codec.encode(removed[1]))
        self._write(save, told.replaced(self._kind, before, document, old, new.bodies), trash)

    def _decided(self, *, exact: bool, ends_active: bool | None) -> DocumentWrite:
        """What every write says."""
        return {
            "kind": self._kind,
            "id": self.id,
            "tag": self._now.tag,
            "version": self._now.version,
            "exact": exact,
            "ends_active": ends_active,
        }

    def _write(
        self, save: DocumentWrite, events: told.Events, trash: tuple[str, bytes] | None = None
    ) -> None:
        parsed = self._now.head if save.get("head") is None else None
        self._go_on(self._engine.save(save, self.read_set, events, trash=trash, parsed=parsed))
        self._is_sure = True

    def quarantine_copy(self, reason: str) -> str:
        self.document()
        return self._engine.trash.add(reason, self.id, self._engine.read(self._kind, self.id)).token

    def delete(self) -> Trashed:
        """Cost: two round trips, one of which reads the document."""
        version, data, _ = self._engine.whole(self._kind, self.id) or (0, b"", [])
        if version != self._now.version:
            raise ConcurrentWrite
        self._is_sure = True
        return self._engine.remove(self._kind, self.id, version, data, self.read_set)
