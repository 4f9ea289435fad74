"""A transaction on a document that is a file: which primitive a change takes is decided here, and
nowhere else.

What must stay true: splice for entries alone, rehead for the head and the context, replace for the
rest; every write leaves its record in the log first; and what is no capsule any more is not
written.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from capsule.engines.files.external_edits import take_in
from capsule.engines.files.protocols import Known, Place
from capsule.engines.interface import DocumentState
from capsule.engines.values import News, Reads, Trashed
from capsule.errors import Interfered
from capsule.format import migrations
from capsule.format.documents.head import HeadCache
from capsule.format.fields import names
from capsule.format.json import anatomy, canonical, codec
from capsule.format.saved.records import (
    append_records,
    appended,
    head_record,
    lock_record,
    records_between,
)
from capsule.format.validation import decoded

if TYPE_CHECKING:
    from capsule.engines.files.document import HeldDocument
    from capsule.engines.interface import Document
    from capsule.rules.consent import State
    from capsule.rules.policy import Object

#: What stands before the context in a canonical file. Unknown fields stand behind it, and go with
#: the rest.
_HEAD = frozenset(names("")) - {"context", "history"}
#: An entry is looked for so far back first, in bytes.
_NEAR = 64 << 10
#: How many ids are remembered, of all conversations together.
_MOST_IDS = 1_000_000


def head_in(document: Document) -> Document:
    """The fields of a capsule that stand before its context."""
    return {key: value for key, value in document.items() if key in _HEAD}


def entries_in(block: bytes, name: str) -> list[Document]:
    """The entries in a piece of a canonical history, between the ends of two of them."""
    return codec.decode_entries(b"[" + block.removeprefix(b",") + b"]", name) if block else []


def found_in(history: list[Document], id: str) -> tuple[int, Document] | None:
    """The place of the entry with an id, and the entry; None: there is none."""
    return next(((at, entry) for at, entry in enumerate(history) if entry.get("id") == id), None)


class Caches:
    """What an engine remembers of the conversations it saw: parsed heads, and ids that were made of
    something.

    Several threads may use it: what is remembered of a conversation is asked for and changed under
    its mutex.
    """

    def __init__(self) -> None:
        self.heads = HeadCache()
        self._made: OrderedDict[str, tuple[str, int, set[bytes]]] = OrderedDict()
        self._count = 0

    def made_ids(self, id: str, known: Known, history: Callable[[int], bytes]) -> set[bytes]:
        """The UUIDv5s among the ids of a canonical history.

        Args:
            id: The conversation.
            known: As it is.
            history: Gives the bytes of the history from an offset on.
        """
        assert known.anatomy is not None
        tag, start, ids = self._made.pop(id, ("", 0, set[bytes]()))
        self._count -= len(ids)
        if tag != known.tag or start > known.anatomy.tail:
            start, ids = known.anatomy.history, set()
        if start < known.anatomy.tail:
            ids |= anatomy.made_ids(history(start))
        self._made[id] = (known.tag, known.anatomy.tail, ids)
        self._count += len(ids)
        while self._count > _MOST_IDS and len(self._made) > 1:
            self._count -= len(self._made.popitem(last=False)[1][2])
        return ids


class FileTransaction:
    """A conversation, settled under its mutex in a `with` block. See `Transaction`, which describes
    the methods.

    Args:
        held: The document, whose mutex is taken with the block.
        caches: What the engine remembers.
        ensure_unchanged: Raises Interfered if what a decision read has another version.
    """

    def __init__(
        self, held: HeldDocument, caches: Caches, ensure_unchanged: Callable[[Reads], None]
    ) -> None:
        self.id = held.id
        self.name = held.path
        self.reads: Reads = {}
        self.waits = True
        self.judged: tuple[Object, State] | None = None
        self._held, self._tag = held, ""
        self._caches = caches
        self._ensure_unchanged = ensure_unchanged

    def __enter__(self) -> Self:
        held = self._held.__enter__()
        try:
            self._go_on(held.look() or take_in(held))
        except BaseException:
            held.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._held.waits = self.waits
        self._held.__exit__(kind, error, at)

    def _go_on(
        self, known: Known, head: Document | None = None, document: Document | None = None
    ) -> None:
        """Go on from the document as it is now.

        Args:
            known: As the store knows it.
            head: Its head, if that is new.
            document: The whole document, if that is at hand.
        """
        heads, anatomy = self._caches.heads, known.anatomy
        self._known, self._whole = known, document
        if head is not None:
            self.head = heads.put(self.name, known.tag, head)
        elif known.tag != self._tag:
            self.head = heads.get(self.name, known.tag) or heads.put(
                self.name, known.tag, self._read_head()
            )
        self._tag = known.tag
        if anatomy is not None:
            stamp, count, ends_active = known.stamp, anatomy.entries, anatomy.ends_active
        else:
            whole = self.document()
            stamp, count, ends_active = str(whole["updatedAt"]), len(whole["history"]), False
        newest = max(known.newest, stamp)
        self._held.base = partial(
            head_record, stamp, self.head.document, count
        )  # No method, which would be a cycle.
        self.state = DocumentState(
            stamp, known.tag, count, known.signature.size, ends_active, newest, known.time
        )

    def _read_head(self) -> Document:
        if self._known.anatomy is None:
            return head_in(self.document())
        return codec.decode(self._held.head(self._known), self.name)

    def document(self) -> Document:
        if self._whole is None:
            got = self._held.read()
            if got is None or got[1] != self._known.signature:
                raise Interfered
            if (
                self._known.anatomy is not None
            ):  # The note says so only of a document that is valid and current.
                self._whole = codec.decode(got[0], self.name)
            else:
                document, _ = migrations.current(decoded(got[0], self.name, self.id), self.name)
                self._whole = canonical.in_order(document)
        return self._whole

    def follow(self, since: Place | None = None, own: list[Document] | None = None) -> News:
        place = Place.of(self._known)
        if since == place or own is not None:
            return News(place, own or [], False)
        if since is None or not since.goes_on_in(self._known):
            return News(place, self.document()["history"], True)
        return News(
            place, entries_in(self._held.history(self._known, since.tail), self.name), False
        )

    def find(self, id: str) -> tuple[int, Document] | None:
        """Costs reading back to it; and for an id that was made of something and is not there, only
        what is new.
        """
        known, at = self._known, self._known.anatomy
        if at is None:
            return found_in(self.document()["history"], id)
        if anatomy.made_ids(anatomy.id_line(id)) and id.encode() not in self._caches.made_ids(
            self.name, known, lambda start: self._held.history(known, start)
        ):
            return None
        for start in sorted({at.history, max(at.history, at.tail - _NEAR)}, reverse=True):
            block = self._held.history(known, start)
            if (match := anatomy.entry_with(block, id)) is not None:
                entry = codec.decode(b'{"history":[' + match[1] + b"]}", self.name)["history"][0]
                return at.entries - anatomy.begun_in(block) + match[0], entry
        return None

    def appended(self) -> list[Document]:
        """Costs reading the log."""
        return appended(self._held.records())

    def ensure_durable(self) -> None:
        """After a flush that failed, every byte is written anew."""
        is_in_log = self._held.owe_flush()
        if self._known.doubt == "bytes":
            document = self.document()
            data = codec.encode(document)
            self._go_on(self._held.replace(self._known.signature, data, anatomy.survey(data), []))
        elif self._known.doubt or not is_in_log:
            self._go_on(self._held.flush(self._known))

    def append(
        self,
        entries: list[Document],
        encoded: list[bytes],
        stamp: str,
        *,
        time: str,
        head: Document | None,
        ends_active: bool,
    ) -> None:
        if self.reads:
            self._ensure_unchanged(self.reads)
        at = self._known.anatomy
        if at is None:
            changed = self._with_head(head or head_in(self.document()) | {"updatedAt": stamp})
            changed |= {"history": [*changed["history"], *entries]}
            count = len(changed["history"])
            self._replace(
                changed,
                [*append_records(stamp, entries, count), head_record(stamp, changed, count)],
            )
            return
        if at.ends_active != ends_active:
            self._known = self._known._replace(anatomy=at._replace(ends_active=ends_active))
        count = at.entries + len(entries)
        if head is None:
            records = append_records(stamp, entries, count, at.tail)
            self._go_on(self._held.splice(self._known, encoded, stamp, records, time))
        else:
            self._known = self._known._replace(time=time)
            records = [*append_records(stamp, entries, count), head_record(stamp, head, count)]
            self._rehead(head, encoded, records, None)

    def set_head(
        self,
        head: Document,
        *,
        context: Callable[[], Iterable[bytes]] | None = None,
        ends_active: bool | None = None,
    ) -> None:
        self._ensure_unchanged(self.reads)
        at = self._known.anatomy
        if at is None:
            changed = self._with_head(head)
            if context is not None:
                changed["context"] = codec.decode(b"".join(context()), "context")
            self.replace(changed)
            return
        if ends_active is not None:
            self._known = self._known._replace(anatomy=at._replace(ends_active=ends_active))
        stamp = head["updatedAt"]
        # A write that leaves `updatedAt` as it is changes the lock and nothing else; of these there
        # may be many.
        is_lock = stamp == self.state.updated_at
        record = lock_record(stamp, head) if is_lock else head_record(stamp, head, at.entries)
        self._rehead(head, [], [record], context)

    def _with_head(self, head: Document) -> Document:
        """The document with another head."""
        rest = {key: value for key, value in self.document().items() if key not in _HEAD}
        return canonical.in_order(head | rest)

    def _rehead(
        self,
        head: Document,
        encoded: list[bytes],
        records: list[bytes],
        context: Callable[[], Iterable[bytes]] | None,
    ) -> None:
        lines = None if context is None else anatomy.context_lines(context())
        written = anatomy.joined(codec.encode(head))
        self._go_on(self._held.rehead(self._known, written, encoded, records, lines), head)

    def replace(self, document: Document, removed: tuple[str, Document] | None = None) -> None:
        self._replace(document, None, removed)

    def _replace(
        self,
        document: Document,
        records: list[bytes] | None,
        removed: tuple[str, Document] | None = None,
    ) -> None:
        """Write the whole document. `records` says what the write does; None: what differs from the
        present one.
        """
        self._ensure_unchanged(self.reads)
        before = self.document()
        data = codec.encode(document)
        decoded(data, self.name, self.id)
        if records is None:
            records = records_between(before, document)
        kept = removed and self._held.keep(removed[0], codec.encode(removed[1]))
        try:
            known = self._held.replace(self._known.signature, data, anatomy.survey(data), records)
        except Interfered:
            if kept:
                self._held.storage.keeping.drop(kept.token)
            raise
        self._go_on(known, head_in(document), document)

    def set_aside(self, reason: str) -> str:
        got = self._held.read()
        if got is None:
            raise Interfered
        return self._held.quarantine(got[0], reason)

    def delete(self) -> Trashed:
        self._ensure_unchanged(self.reads)
        return self._held.delete()
