"""A transaction on a conversation in memory, and one version of a document.

What must stay true: a version that was handed out is never changed; a write makes a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from capsule.engines.entries import entry_with_id, head_fields
from capsule.engines.interface import Document, DocumentState, EntriesSince, ReadSet, Trashed
from capsule.format import validation
from capsule.format.documents.head import ParsedHead
from capsule.format.json import canonical, codec

if TYPE_CHECKING:
    from capsule.engines.memory.engine import MemoryEngine
    from capsule.rules.consent import PolicyInputs
    from capsule.rules.policy import PolicyTarget


class MemoryVersion:
    """One version of one document; `serial` is the number of the engine's write."""

    def __init__(
        self, data: bytes, document: Document, serial: int, tag: str, time: str, ends_active: bool
    ) -> None:
        self.document = document
        self.serial = serial
        self.tag = tag
        self.time = time
        self.ends_active = ends_active
        self._data = data

    @property
    def data(self) -> bytes:
        """The bytes of this version, encoded when they are first asked for."""
        if not self._data:
            self._data = codec.encode(self.document)
        return self._data

    def follow(self, since: tuple[str, int] | None) -> EntriesSince:
        """The entries since a place, which is a tag and a number of entries."""
        history = self.document["history"]
        tag, count = since or ("", 0)
        goes_on = tag == self.tag
        return EntriesSince(
            (self.tag, len(history)), history[count if goes_on else 0 :], not goes_on
        )


class MemoryTransaction:
    """The exclusive right to a document of a `MemoryEngine`. See `Transaction`, which describes the
    methods.
    """

    def __init__(self, engine: MemoryEngine, kind: str, id: str, stored: MemoryVersion) -> None:
        self.id = id
        self.name = engine.name(kind, id)
        self.read_set: ReadSet = {}
        self.waits_for_flush = True
        self.decision_inputs: tuple[PolicyTarget, PolicyInputs] | None = None
        self._kind = kind
        self._engine = engine
        self._now = stored
        self.head = ParsedHead(stored.tag, head_fields(stored.document))

    @property
    def state(self) -> DocumentState:
        now, at = self._now, str(self._now.document["updatedAt"])
        return DocumentState(
            at, now.tag, len(now.document["history"]), len(now.data), now.ends_active, at, now.time
        )

    def document(self) -> Document:
        return self._now.document

    def follow(
        self, since: tuple[str, int] | None = None, own_entries: list[Document] | None = None
    ) -> EntriesSince:
        return self._now.follow(since)

    def find(self, id: str) -> tuple[int, Document] | None:
        return entry_with_id(self._now.document["history"], id)

    def appended(self) -> list[Document]:
        return list(self._now.document["history"])

    def ensure_durable(self) -> None:
        """Do nothing: no document outlives the process."""

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
        """Append entries. Cost: a copy of the list of entries."""
        document = self._now.document if head is None else self._with_head(head)
        document = document | {"updatedAt": updated_at, "history": [*document["history"], *entries]}
        self._write(document, new_tag=head is not None, time=time, ends_active=ends_active)

    def set_head(
        self,
        head: Document,
        *,
        context: Callable[[], Iterable[bytes]] | None = None,
        ends_active: bool | None = None,
    ) -> None:
        document = self._with_head(head)
        if context is not None:
            document["context"] = codec.decode(b"".join(context()), "context")
        self._write(
            document, ends_active=self._now.ends_active if ends_active is None else ends_active
        )

    def _with_head(self, head: Document) -> Document:
        codec.encode(head)  # Refuses what no file could hold.
        kept = head_fields(self._now.document)
        return canonical.in_order(
            head
            | {key: value for key, value in self._now.document.items() if key not in kept | head}
        )

    def replace(self, document: Document, removed: tuple[str, Document] | None = None) -> None:
        data = codec.encode(document)
        validation.check(document, data, self.name)
        self._engine.ensure_unchanged(self.read_set)
        if removed is not None:
            self._engine.trash.add(removed[0], self.id, codec.encode(removed[1]))
        self._write(document, data=data)

    def _write(
        self,
        document: Document,
        *,
        new_tag: bool = True,
        time: str = "",
        ends_active: bool = False,
        data: bytes = b"",
    ) -> None:
        tag = "" if new_tag else self._now.tag
        time = time or self._now.time
        self._now = self._engine.store(
            self._kind,
            self.id,
            document,
            data,
            self.read_set,
            tag=tag,
            time=time,
            ends_active=ends_active,
        )
        if new_tag:
            self.head = ParsedHead(self._now.tag, head_fields(document))

    def quarantine_copy(self, reason: str) -> str:
        return self._engine.trash.add(reason, self.id, self._now.data).token

    def delete(self) -> Trashed:
        return self._engine.remove(self._kind, self.id, self.read_set)
