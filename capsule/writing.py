"""One write to one conversation: under its mutex, settled, admitted, durable.

What must stay true: everything that changes a conversation goes through `Conversation`, so that the lock rule is
asked once, for all; times never go back within a file; and the cheapest primitive that does the job is chosen here,
nowhere else: splice for messages alone, rehead for the head, replace for the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capsule import timestamps
from capsule.errors import InvalidInput
from capsule.format import anatomy, canonical, codec, migrations
from capsule.format.reconcile import append_record, edit_record, gone_record, head_record
from capsule.format.titles import title_from
from capsule.ids import new_message_id
from capsule.settling import decoded
from capsule.storage.interface import Held, Known

__all__ = ["Conversation", "HeadCache", "complete", "creation_records"]

Document = dict[str, Any]
_EMPTY_REST: Document = {"context": {}, "history": []}


class HeadCache:
    """Parsed heads by their tag, so that a run of appends parses one once. Holds the 1,024 latest."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[str, Document]] = {}

    def get(self, id: str, tag: str) -> Document | None:
        found = self._heads.get(id)
        return found[1] if found and found[0] == tag else None

    def put(self, id: str, tag: str, head: Document) -> None:
        if len(self._heads) >= 1024:
            self._heads.clear()
        self._heads[id] = (tag, head)


def complete(message: Document, stamp: str) -> Document:
    """A checked message with its time and its id, when it came without, in canonical order."""
    if "timestamp" in message and "id" in message:
        return message
    added = {"timestamp": stamp, "id": new_message_id()} | message
    return canonical.order_message(added)


class Conversation:
    """A conversation whose mutex is held and whose file is settled.

    Args:
        held: The document under its mutex.
        known: The document as settled.
        heads: Parsed heads.
        message_bytes: The largest entry that is accepted, in bytes.
    """

    def __init__(self, held: Held, known: Known, heads: HeadCache, message_bytes: int) -> None:
        self.held = held
        self.known = known
        self.id = held.id
        self._heads = heads
        self._message_bytes = message_bytes
        self._whole: Document | None = None
        self.head = self._head()

    def _head(self) -> Document:
        cached = self._heads.get(self.id, self.known.tag)
        if cached is None:
            if self.known.anatomy is None:
                cached = {key: value for key, value in self.document().items() if key != "history"}
            else:
                cached = codec.decode(self.held.head(self.known), self.held.path)
            self._heads.put(self.id, self.known.tag, cached)
        return cached

    @property
    def metadata(self) -> Document:
        """The metadata, not to be changed in place."""
        found = self.head.get("metadata")
        return found if isinstance(found, dict) else {}

    @property
    def type(self) -> str:
        """The conversation's type."""
        return str(self.metadata.get("type") or "chat")

    @property
    def lock(self) -> Document | None:
        """The lock, when it is active."""
        lock = self.metadata.get("lock")
        return lock if isinstance(lock, dict) and lock.get("active") is True else None

    def document(self) -> Document:
        """The whole conversation, as this version would write it. Costs a parse of the file, once."""
        if self._whole is None:
            got = self.held.read()
            document = decoded(got[0], self.held.path, self.id) if got else {}
            document, _ = migrations.current(document, self.held.path)
            self._whole = canonical.in_order(document)
        return self._whole

    def _stamp(self) -> str:
        if self.known.anatomy is None:
            return timestamps.now(str(self.document()["updatedAt"]))
        return timestamps.now(self.held.stamp(self.known))

    def append(self, messages: list[Document], *, lock: Document | None) -> tuple[int, list[Document]]:
        """Append checked messages, durably.

        Args:
            messages: As `check_message` gives them; at least one.
            lock: The lock to record in the same write; None: as it is.

        Returns:
            The position of the first, and the messages as written.

        Raises:
            InvalidInput: One is too large; nothing was written.
            Interfered: Another program wrote the file meanwhile; nothing was written.
        """
        stamp = self._stamp()
        entries = [complete(message, stamp) for message in messages]
        encoded = [self._encoded(entry) for entry in entries]
        at = self.known.anatomy.count if self.known.anatomy else len(self.document()["history"])
        title = self._title_by_rule(entries)
        if self.known.anatomy is None or lock is not None or title:

            def change(head: Document) -> None:
                if lock is not None:
                    head["metadata"]["lock"] = lock
                if title:
                    head["title"] = title

            self._rehead(change, stamp, entries, encoded)
        else:
            self.known = self.held.splice(self.known, encoded, stamp, [append_record(stamp, entries)])
        return at, entries

    def _encoded(self, entry: Document) -> bytes:
        limit = self._message_bytes
        if len(entry["content"]) <= limit:
            encoded = codec.encode_entry(entry)
            if len(encoded) <= limit:
                return encoded
        raise InvalidInput(
            f"the message is larger than {limit:,} bytes; attach it as a file, "
            "or raise limits.message_bytes in capsule.toml"
        )

    def _title_by_rule(self, entries: list[Document]) -> str:
        """The title that the first user message gives a conversation which nobody named; else empty."""
        if self.head.get("title") or self.metadata.get("titleSetBy") != "auto":
            return ""
        return next((title_from(entry["content"]) for entry in entries if entry["role"] == "user"), "")

    def change_head(self, change: Callable[[Document], None], *, touch: bool = True) -> Document:
        """Change title or metadata; no message is parsed.

        Args:
            change: Changes the head it is given (all but `history`) in place.
            touch: Whether this modifies the conversation, so that `updatedAt` moves. A lock does not.

        Returns:
            The head as written.
        """
        self._rehead(change, self._stamp() if touch else None, [], [])
        return self.head

    def _rehead(
        self, change: Callable[[Document], None], stamp: str | None, entries: list[Document], encoded: list[bytes]
    ) -> None:
        if self.known.anatomy is None:

            def rewrite(document: Document) -> None:
                change(document)
                document["history"] = [*document["history"], *entries]

            self.rewrite(rewrite, stamp)
            return
        head = _copied(self.head)
        head["updatedAt"] = stamp or self.held.stamp(self.known)
        change(head)
        head = {key: value for key, value in canonical.in_order(head | _EMPTY_REST).items() if key not in _EMPTY_REST}
        records = [append_record(head["updatedAt"], entries)] if entries else []
        records.append(head_record(head["updatedAt"], head))
        self.known = self.held.rehead(self.known, anatomy.joined(codec.encode(head)), encoded, records)
        self.head = head
        self._heads.put(self.id, self.known.tag, head)

    def rewrite(self, change: Callable[[Document], Document | None], stamp: str | None = "") -> Document:
        """Change anything, by writing the whole file anew.

        Args:
            change: Changes the document it is given, or returns another.
            stamp: The new `updatedAt`; empty: now; None: as it is.

        Returns:
            The document as written.
        """
        got = self.held.read()
        signature = got[1] if got else None
        before = self.document()
        if stamp == "":
            stamp = timestamps.now(before["updatedAt"])
        after = _copied(before)
        after = change(after) or after
        if stamp:
            after["updatedAt"] = stamp
        after, _ = migrations.current(after, self.held.path)
        after = canonical.in_order(after)
        data = codec.encode(after)
        decoded(data, self.held.path, self.id)  # What was changed must still be a capsule.
        self.known = self.held.replace(
            signature, data, anatomy.survey(data), _records_between(before, after), keep=True
        )
        self._whole = after
        self.head = {key: value for key, value in after.items() if key not in _EMPTY_REST}
        self._heads.put(self.id, self.known.tag, self.head)
        return after

    def refresh_lock(self) -> None:
        """Overwrite the lock's time with now, in place where the layout lets it."""
        stamp = timestamps.now()
        if self.known.anatomy is not None and self.known.anatomy.lock_at >= 0:
            self.known = self.held.restamp(self.known, stamp)
            return

        def change(head: Document) -> None:
            head["metadata"]["lock"]["timestamp"] = stamp

        self.change_head(change, touch=False)


def creation_records(document: Document) -> list[bytes]:
    """What the store should remember of a new conversation."""
    records = [append_record(document["updatedAt"], document["history"])] if document["history"] else []
    return [*records, head_record(document["updatedAt"], document)]


def _records_between(before: Document, after: Document) -> list[bytes]:
    """What the store should remember of a rewrite: the messages that came, changed and went, and the head."""
    stamp = after["updatedAt"]
    old = {entry.get("id"): entry for entry in before["history"]}
    new = {entry.get("id"): entry for entry in after["history"]}
    records = [edit_record(stamp, old[id], new[id]) for id in old if id in new and _differ(old[id], new[id])]
    added = [entry for id, entry in new.items() if id not in old]
    gone = [id for id in old if id not in new]
    if added:
        records.append(append_record(stamp, added))
    if gone:
        records.append(gone_record(stamp, gone))
    return [*records, head_record(stamp, after)]


def _differ(one: Document, other: Document) -> bool:
    return codec.encode_entry(one) != codec.encode_entry(other)


def _copied(value: Any) -> Any:
    """A copy that may be changed; what is neither dict nor list is shared (a number's `Fragment` can't be copied)."""
    if isinstance(value, dict):
        return {key: _copied(field) for key, field in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value
