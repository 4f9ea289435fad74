"""A transaction on a document that is a file: which primitive a change takes is decided here, and nowhere else.

What must stay true: splice for entries alone, rehead for the head and the context, replace for the rest; every write
leaves its record in the log first; and what is no capsule any more is not written.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from capsule.engines.files.external_edits import decoded
from capsule.engines.files.protocols import Held, Interfered, Known, Trashed
from capsule.format import anatomy, canonical, codec, migrations
from capsule.format.fields import names
from capsule.format.head import HeadCache, ParsedHead
from capsule.format.merge.records import append_record, appended, head_record, lock_record, records_between

if TYPE_CHECKING:
    from capsule.engines.interface import Document

#: What stands before the context in a canonical file. Unknown fields stand behind it, and go with the rest.
_HEAD = frozenset(names("")) - {"context", "history"}
#: An entry is looked for so far back first, in bytes.
_NEAR = 64 << 10
#: How many ids are remembered, of all conversations together.
_MOST_IDS = 1_000_000


def head_in(document: Document) -> Document:
    """The fields of a capsule that stand before its context."""
    return {key: value for key, value in document.items() if key in _HEAD}


class Caches:
    """What an engine remembers of the conversations it saw: parsed heads, and ids that were made of something.

    Several threads may use it: what is remembered of a conversation is asked for and changed under its mutex.
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
    """A conversation under its mutex, settled. See `Transaction`.

    Args:
        held: The document under its mutex.
        known: The document as settled.
        caches: What the engine remembers.
    """

    def __init__(self, held: Held, known: Known, caches: Caches) -> None:
        self.id = held.id
        self.name = held.path
        self._held = held
        self._known = known
        self._caches = caches
        self._whole: Document | None = None
        self.head = caches.heads.get(self.id, known.tag) or self._parsed()
        held.begin_log_with(lambda: [head_record(self.updated_at, self.head.document, self.count)])

    def _parsed(self) -> ParsedHead:
        if self._known.anatomy is None:
            document = head_in(self.document())
        else:
            document = codec.decode(self._held.head(self._known), self.name)
        return self._caches.heads.put(self.id, self._known.tag, document)

    @property
    def updated_at(self) -> str:
        return self._known.stamp or str(self.head.document["updatedAt"])

    @property
    def tag(self) -> str:
        return self._known.tag

    @property
    def count(self) -> int:
        return self._known.anatomy.entries if self._known.anatomy else len(self.document()["history"])

    @property
    def size(self) -> int:
        return self._known.signature.size

    @property
    def ends_active(self) -> bool:
        return self._known.anatomy is not None and self._known.anatomy.ends_active

    @property
    def newest(self) -> str:
        newest, updated_at = self._known.newest, self._known.stamp or self.updated_at
        return newest if newest > updated_at else updated_at

    @property
    def time(self) -> str:
        return self._known.time

    def document(self) -> Document:
        """See `Transaction.document`."""
        if self._whole is None:
            got = self._held.read()
            if got is None or got[1] != self._known.signature:
                raise Interfered
            document, _ = migrations.current(decoded(got[0], self.name, self.id), self.name)
            self._whole = canonical.in_order(document)
        return self._whole

    def has(self, id: str) -> bool:
        """See `Transaction.has`."""
        at = self._known.anatomy
        if at is None:
            return any(entry.get("id") == id for entry in self.document()["history"])
        line = anatomy.id_line(id)
        near = max(at.history, at.tail - _NEAR)
        return line in self._held.history(self._known, near) or (
            near > at.history and line in self._held.history(self._known, at.history)
        )

    def find_made(self, id: str) -> tuple[int, Document] | None:
        """See `Transaction.find_made`."""
        known = self._known
        if known.anatomy is None:
            history = self.document()["history"]
            return next(((at, entry) for at, entry in enumerate(history) if entry.get("id") == id), None)
        if id.encode() not in self._caches.made_ids(self.id, known, lambda start: self._held.history(known, start)):
            return None
        found = anatomy.entry_with(self._held.history(known, known.anatomy.history), id)
        if found is None:
            return None
        at, entry = found
        return at, codec.decode(b'{"history":[' + entry + b"]}", self.name)["history"][0]

    def appended(self) -> list[Document]:
        """See `Transaction.appended`. Costs reading the log."""
        return appended(self._held.records())

    def ensure_durable(self) -> None:
        """See `Transaction.ensure_durable`. After a flush that failed, every byte is written anew."""
        if self._known.doubt == "bytes":
            document = self.document()
            data = codec.encode(document)
            self._known = self._held.replace(self._known.signature, data, anatomy.survey(data), [])
        elif self._known.doubt:
            self._known = self._held.flush(self._known)

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
        """See `Transaction.append`."""
        at = self._known.anatomy
        if at is None:
            changed = self._with_head(head or head_in(self.document()) | {"updatedAt": stamp})
            self.replace(changed | {"history": [*changed["history"], *entries]})
            return
        if at.ends_active != ends_active:
            self._known = self._known._replace(anatomy=at._replace(ends_active=ends_active))
        count = at.entries + len(entries)
        if head is None:
            record = append_record(stamp, entries, count, at.tail)
            self._known = self._held.splice(self._known, encoded, stamp, [record], time)
            self._whole = None
        else:
            self._known = self._known._replace(time=time)
            records = [append_record(stamp, entries, count), head_record(stamp, head, count)]
            self._rehead(head, encoded, records, None)

    def set_head(
        self, head: Document, *, context: Callable[[], Iterable[bytes]] | None = None, ends_active: bool | None = None
    ) -> None:
        """See `Transaction.set_head`."""
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
        # A write that leaves `updatedAt` as it is changes the lock and nothing else; of these there may be many.
        is_lock = stamp == self.updated_at
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
        self._known = self._held.rehead(self._known, written, encoded, records, lines)
        self._whole = None
        self.head = self._caches.heads.put(self.id, self._known.tag, head)

    def refresh_lock(self, stamp: str) -> bool:
        """See `Transaction.refresh_lock`."""
        if self._known.anatomy is None or self._known.anatomy.lock_at < 0:
            return False
        self._known = self._held.restamp(self._known, stamp)
        self._whole, self.head = None, self._parsed()
        return True

    def replace(self, document: Document) -> None:
        """See `Transaction.replace`."""
        before = self.document()
        data = codec.encode(document)
        decoded(data, self.name, self.id)
        records = records_between(before, document)
        self._known = self._held.replace(self._known.signature, data, anatomy.survey(data), records)
        self._whole = document
        self.head = self._caches.heads.put(self.id, self._known.tag, head_in(document))

    def keep(self, kind: str, document: Document) -> Trashed:
        """See `Transaction.keep`."""
        return self._held.keep(kind, codec.encode(document))

    def drop_kept(self, kept: Trashed) -> None:
        """See `Transaction.drop_kept`."""
        self._held.drop_kept(kept)

    def set_aside(self, reason: str) -> str:
        """See `Transaction.set_aside`."""
        got = self._held.read()
        if got is None:
            raise Interfered
        return self._held.quarantine(got[0], reason)

    def delete(self) -> Trashed:
        """See `Transaction.delete`."""
        return self._held.delete()
