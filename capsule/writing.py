"""One write to one conversation: under its mutex, settled, admitted, durable.

What must stay true: everything that changes a conversation goes through `Conversation`, so that the lock rule is
asked once, for all; what changes nothing writes nothing, and what changes only the lock leaves `updatedAt` as it is;
times never go back within a file; and the cheapest primitive that does the job is chosen here, nowhere else: splice
for messages alone, rehead for the head, replace for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.errors import InvalidInput
from capsule.format import anatomy, canonical, codec, migrations
from capsule.format.fields import names
from capsule.format.pruning import removed
from capsule.format.records import append_record, head_record, lock_record, records_between
from capsule.format.titles import title_by_rule
from capsule.head import HeadCache, ParsedHead
from capsule.ids import new_message_id
from capsule.settling import decoded
from capsule.storage.interface import Held, Interfered, Known, Trashed

if TYPE_CHECKING:
    from capsule.own import Own
    from capsule.settings import Settings

__all__ = ["REMOVED", "Conversation", "complete", "encoded_within"]

Document = dict[str, Any]
#: The kind of what the trash keeps of a conversation that is still there.
REMOVED = "messages"
#: What stands before the context in a canonical file. Unknown fields stand behind it, and go with the rest.
_HEAD = frozenset(names("")) - {"context", "history"}
_LOCK = frozenset(names("metadata.lock"))
#: A parent is looked for so far back first, in bytes.
_NEAR = 64 << 10


def complete(message: Document, stamp: str) -> Document:
    """A checked message with its time and its id, when it came without, in canonical order."""
    if len(message) == 2:  # A role and a text, as nearly all are.
        return {"role": message["role"], "content": message["content"], "timestamp": stamp, "id": new_message_id()}
    if "timestamp" in message and "id" in message:
        return message
    return canonical.order_message({"timestamp": stamp, "id": new_message_id()} | message)


def encoded_within(entry: Document, limit: int) -> bytes:
    """The bytes of an entry. Raises InvalidInput when they are more than `limit`, or it has no place in JSON."""
    if len(entry["content"]) <= limit:
        encoded = codec.encode_entry(entry)
        if len(encoded) <= limit:
            return encoded
    raise InvalidInput(
        f"the message is larger than {limit:,} bytes; split it, or raise limits.message_bytes in capsule.toml"
    )


class Conversation:
    """A conversation whose mutex is held and whose file is settled.

    Args:
        held: The document under its mutex.
        known: The document as settled.
        heads: Parsed heads.
        limits: The largest message and the largest document that are accepted, in bytes.
        own: What remembers the messages that are written, while somebody watches; else None.
        tries: How often this write was begun before, and an editor interrupted it.
    """

    def __init__(
        self, held: Held, known: Known, heads: HeadCache, limits: Settings, own: Own | None = None, tries: int = 0
    ) -> None:
        self.held = held
        self.known = known
        self.id = held.id
        self._tries = tries
        self._heads = heads
        self._limits = limits
        self._own = own
        self._whole: Document | None = None
        self.head = heads.get(self.id, known.tag) or self._parsed()
        held.begin_log_with(lambda: [head_record(self._before()["updatedAt"], self.head.document, self._count())])

    def _parsed(self) -> ParsedHead:
        if self.known.anatomy is None:
            document = _head_in(self.document())
        else:
            document = codec.decode(self.held.head(self.known), self.held.path)
        return self._heads.put(self.id, self.known.tag, document)

    def document(self) -> Document:
        """The whole conversation, as this version would write it. Costs a parse of the file, once.

        Raises:
            Interfered: Another program wrote the file since it was settled.
        """
        if self._whole is None:
            got = self.held.read()
            if got is None or got[1] != self.known.signature:
                raise Interfered
            document = decoded(got[0], self.held.path, self.id)
            document, _ = migrations.current(document, self.held.path)
            self._whole = canonical.in_order(document)
        return self._whole

    def _before(self) -> Document:
        """The head as it is before this write, with its `updatedAt`."""
        return self.head.document | ({"updatedAt": self.known.stamp} if self.known.stamp else {})

    def _stamp(self) -> str:
        """The new `updatedAt`: later than any that the conversation had, so that it names one write."""
        return timestamps.later_than(max(self.known.newest, self._before()["updatedAt"]))

    def _time(self) -> str:
        """The time of a message, never earlier than the last one's. Unlike `updatedAt` it never runs ahead."""
        return timestamps.now(self.known.time or self._before()["updatedAt"])

    def _count(self) -> int:
        return self.known.anatomy.entries if self.known.anatomy else len(self.document()["history"])

    def make_durable(self) -> None:
        """Make durable what lies in the file, where it isn't known to be: after a flush that failed, every byte."""
        if self.known.doubt == "bytes":
            document = self.document()
            data = codec.encode(document)
            self.known = self.held.replace(self.known.signature, data, anatomy.survey(data), [])
        elif self.known.doubt:
            self.known = self.held.flush(self.known)

    def _appended_before(self, messages: list[Document]) -> tuple[int, list[Document]] | None:
        """Where a try before this one, which an editor interrupted, has left the messages; None: nowhere."""
        history = self.document()["history"]
        times = {message.get("id"): message.get("timestamp") for message in messages}
        places = [
            place
            for place, entry in enumerate(history)
            if entry.get("id") in times and times[entry["id"]] in (None, entry.get("timestamp"))
        ]
        if len(places) < len(messages):
            return None
        self.make_durable()
        return places[0], [history[place] for place in places]

    def append(
        self, messages: list[Document], *, lock: Document | None, move: bool = False
    ) -> tuple[int, list[Document]]:
        """Append checked messages, durably; one that names no parent to the end of the active branch.

        Args:
            messages: As `check_message` gives them; at least one. They are completed in this very list, so that who
                tries again gives the same.
            lock: The lock to record in the same write; None: as it is.
            move: Whether the active branch is to end in the last of them.

        Returns:
            The position of the first, and the messages as written.

        Raises:
            InvalidInput: One is too large, or names a parent that isn't there; nothing was written.
            Interfered: Another program wrote the file meanwhile; nothing was written.
        """
        if self._tries and (before := self._appended_before(messages)) is not None:
            return before
        stamp, time = self._stamp(), self._time()
        self.known = self.known._replace(time=time)
        entries = messages[:] = [complete(message, time) for message in messages]
        if self.head.current is not None or any("parent" in message for message in messages):
            from capsule.continuing import continued

            entries, is_active = continued(self, entries)
            move = move and not is_active
            self._ends_active(is_active or move)
        else:
            move = False
        encoded = [encoded_within(entry, self._limits.message_bytes) for entry in entries]
        if self.known.signature.size + sum(map(len, encoded)) > self._limits.document_bytes:
            raise InvalidInput(
                f"conversation {self.id} would have more than {self._limits.document_bytes:,} bytes; "
                "go on in a new one, or raise limits.document_bytes in capsule.toml"
            )
        if self._own is not None:
            self._own.appended(self.id, entries)
        at = self._count()
        title = title_by_rule(entries) if self.head.untitled else ""
        if self.known.anatomy is None or lock is not None or title or move:

            def change(head: Document) -> None:
                if lock is not None:
                    head["metadata"]["lock"] = lock
                if title:
                    head["title"] = title
                if move:
                    head["metadata"]["currentNode"] = entries[-1]["id"]

            self._rehead(change, stamp, entries, encoded)
        else:
            record = append_record(stamp, entries, at + len(entries), self.known.anatomy.tail)
            self.known = self.held.splice(self.known, encoded, stamp, [record])
        return at, entries

    def has(self, message_id: str) -> bool:
        """Whether a message has this id. Costs reading the history back to it; a parent mostly stands near the end."""
        at = self.known.anatomy
        if at is None:
            return any(entry.get("id") == message_id for entry in self.document()["history"])
        line = anatomy.id_line(message_id)
        near = max(at.history, at.tail - _NEAR)
        return line in self.held.history(self.known, near) or (
            near > at.history and line in self.held.history(self.known, at.history)
        )

    def _ends_active(self, does: bool) -> None:
        """Note whether the last message is the end of the active branch once the next write is done."""
        if self.known.anatomy is not None:
            self.known = self.known._replace(anatomy=self.known.anatomy._replace(ends_active=does))

    def switch(self, leaf: str, *, is_last: bool, lock: Document | None) -> None:
        """Make the branch that ends in a message the active one.

        Args:
            leaf: The message's id.
            is_last: Whether it is the last of the history.
            lock: The lock to record in the same write; None: as it is.
        """

        def change(head: Document) -> None:
            head["metadata"]["currentNode"] = leaf
            if lock is not None:
                head["metadata"]["lock"] = lock

        self._ends_active(is_last)
        self.change_head(change)

    def change_head(self, change: Callable[[Document], None]) -> Document:
        """Change title or metadata; no message is parsed.

        Args:
            change: Changes the head it is given in place. What it raises is raised, and nothing was written.

        Returns:
            The head as it is now.
        """
        with suppress(_Unchanged):
            self._rehead(change, self._stamp(), [], [])
        stamp = {} if self.known.anatomy is None else {"updatedAt": self.known.stamp}
        return self.head.document | stamp

    def set_context(self, context: Callable[[], Iterable[bytes]], change: Callable[[Document], None]) -> Document:
        """Give the conversation another context; no message is parsed.

        Args:
            context: Gives the new context, a JSON object as `anatomy.context_lines` takes it; asked once a try.
            change: As `change_head` takes it, in the same write.

        Returns:
            The head as written.
        """
        self._rehead(change, self._stamp(), [], [], context)
        return self.head.document

    def _rehead(
        self,
        change: Callable[[Document], None],
        stamp: str,
        entries: list[Document],
        encoded: list[bytes],
        context: Callable[[], Iterable[bytes]] | None = None,
    ) -> None:
        if self.known.anatomy is None:

            def rewrite(document: Document) -> None:
                change(document)
                document["history"] = [*document["history"], *entries]
                if context is not None:
                    document["context"] = codec.decode(b"".join(context()), "context")

            self.rewrite(rewrite, stamp)
            return
        count = self.known.anatomy.entries + len(entries)
        before = self.head.document | {"updatedAt": self.known.stamp}
        head = _copied(before)
        head["updatedAt"] = stamp
        change(head)
        _keep_lock_fields(before, head)
        head = _head_in(canonical.in_order(head))
        if not entries and context is None:
            head = _stamped(before, head)
        records = [append_record(head["updatedAt"], entries, count)] if entries else []
        is_lock = head["updatedAt"] != stamp  # Of which there may be many.
        records.append(lock_record(head["updatedAt"], head) if is_lock else head_record(stamp, head, count))
        lines = None if context is None else anatomy.context_lines(context())
        written = anatomy.joined(codec.encode(head))
        self.known = self.held.rehead(self.known, written, encoded, records, lines)
        self._whole = None
        self.head = self._heads.put(self.id, self.known.tag, head)

    def rewrite(
        self, change: Callable[[Document], Document | None], stamp: str | None = "", *, reason: str = ""
    ) -> Document:
        """Change anything, by writing the whole file anew.

        Args:
            change: Changes the document it is given, in which the new `updatedAt` stands, or returns another.
            stamp: The new `updatedAt`; empty: now; None: as it is, and it is written even if nothing changes.
            reason: Why messages go or change, as `removed` takes it: they are kept in the trash first. Empty: none is
                kept, because the version there is now is kept elsewhere.

        Returns:
            The document as it is now.
        """
        before = self.document()
        stamp = self._stamp() if stamp == "" else stamp
        after = _copied(before)
        after["updatedAt"] = stamp or before["updatedAt"]
        after = change(after) or after
        _keep_lock_fields(before, after)
        if stamp:
            after["updatedAt"] = stamp
        after, _ = migrations.current(after, self.held.path)
        after = canonical.in_order(after)
        if stamp:
            try:
                after = _stamped(before, after)
            except _Unchanged:
                return before
        if self._own is not None:
            there = {entry.get("id") for entry in before["history"]}
            self._own.appended(self.id, [entry for entry in after["history"] if entry.get("id") not in there])
        data = codec.encode(after)
        decoded(data, self.held.path, self.id)  # What was changed must still be a capsule.
        kept = self._kept(before, after, reason) if reason else None
        try:
            records = records_between(before, after)
            self.known = self.held.replace(self.known.signature, data, anatomy.survey(data), records)
        except Interfered:
            if kept is not None:
                self.held.drop_kept(kept)
            raise
        self._whole = after
        self.head = self._heads.put(self.id, self.known.tag, _head_in(after))
        return after

    def _kept(self, before: Document, after: Document, reason: str) -> Trashed | None:
        """Keep in the trash what a write is about to take out or change; None when it takes nothing."""
        gone = removed(before, after, reason)
        return None if gone is None else self.held.keep(REMOVED, codec.encode(gone))

    def refresh_lock(self) -> None:
        """Overwrite the lock's time with now, in place where the layout lets it."""
        stamp = timestamps.now()
        if self.known.anatomy is not None and self.known.anatomy.lock_at >= 0:
            self.known = self.held.restamp(self.known, stamp)
            self.head = self._parsed()
            return

        self.change_head(lambda head: head["metadata"]["lock"].update(timestamp=stamp))


def _keep_lock_fields(before: Document, after: Document) -> None:
    """Have a lock that is taken or let go say what else the one before it said: fields this version doesn't know."""
    there, lock = before["metadata"].get("lock"), after["metadata"].get("lock")
    if isinstance(there, dict) and isinstance(lock, dict):
        after["metadata"]["lock"] = {key: there[key] for key in there if key not in _LOCK} | lock


class _Unchanged(Exception):
    """There is nothing to write."""


def _stamped(before: Document, after: Document) -> Document:
    """What is to be written: with a new `updatedAt` only where more than the lock changed. Raises `_Unchanged`."""

    def told(document: Document, **metadata: Any) -> bytes:
        return codec.encode(document | {"updatedAt": "", "metadata": document["metadata"] | metadata})

    if told(before, lock=None) != told(after, lock=None):
        return after
    if told(before) == told(after):
        raise _Unchanged
    return after | {"updatedAt": before["updatedAt"]}


def _head_in(document: Document) -> Document:
    """The fields of a capsule that stand before its context."""
    return {key: value for key, value in document.items() if key in _HEAD}


def _copied(value: Any) -> Any:
    """A copy that may be changed; what is neither dict nor list is shared (a number's `Fragment` can't be copied)."""
    if isinstance(value, dict):
        return {key: _copied(field) for key, field in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value
