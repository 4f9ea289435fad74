"""The records of the log: what the store is about to write to a conversation, and what it found in
it.

What must stay true: each record stands by itself, so that the oldest can be dropped at any time;
the records of one write stay together; only an `append` introduces messages, so that whoever has
one of them has read what came before; and digests are of what a message says, without the fields
that Capsule adds to it later. Pure.

| kind | what the write did |
| --- | --- |
| `append` | added messages at the end |
| `put` | put messages anywhere, as a restore does: it may be old ones, so having them shows nothing |
| `edit` | changed a message: what it said before (`was`), and its former parent (`above`) if that changed |
| `gone` | took out messages, with what they said |
| `head`, `lock` | wrote the head, or the lock alone |
| `void` | nothing: the writes of these `updatedAt` are not in the version that was saved |

A record with `hand` is of a version that another program saved: what it changed of what the log
knows.

[joined: reconcile] Comparing a file that another program saved with what the store wrote lately.

An editor saves what it read some time ago, with the changes of a person. The file then lacks what
the store wrote in between, and also what the person removed. This is how the two are told apart:

1. The log has a record of every write, in order. Each write gives the document another `updatedAt`.
2. A saved version shows what its author can have read: the write of its `updatedAt`, every append
   that introduced one of its messages, and all writes before those. A message that was put back
   introduces nothing, as the author may have it from before. An append that an editor's save
   interrupted, or a power cut, may have left its `updatedAt` in a text that lacks its messages:
   that `updatedAt` shows nothing, then and later.
3. The log gives each message that it knows: whether the document has it, since which write, what it
   says and has said. Messages are compared by their ids and by what they say.
4. A message that the version lacks comes back, at the end, if it is there since a later write than
   those that were read. Otherwise the person removed it: it stays out, and is kept.
5. The edits, removals and head changes of a later write are made again where the person left what
   they change alone. Where not, the person's change stands, and the store's is kept.
6. What a version takes back that the store had written before, an edit or a head, is kept.
7. If the `updatedAt` is later than every record, the log is behind, or a program set it. Only
   messages come back then; what else would be made again is kept.
8. A message without an id is the logged one of the same role, text and time, each once.
9. What the log no longer holds is counted and named.

Limits: an `updatedAt` typed by hand shows nothing, so only the messages tell; a message from
another clone that was deleted by hand comes back until a message of that clone shows that it was
read; the context is always the saved one.

What must stay true: the order of the records decides, not a clock; and the outcome has every
message, edit and change of a head that the version takes away. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from capsule import timestamps
from capsule.format.documents.message import content_fields
from capsule.format.fields import field_names
from capsule.format.json import codec
from capsule.format.json.canonical import order_message
from capsule.format.merge.three_way import ABSENT, flat_head, sorted_bytes

_RECORD_BYTES = 64 << 10
#: What of a capsule is merged as its head: what the store changes without rewriting the whole.
HEAD = frozenset(field_names("")) - {"updatedAt", "history", "context"}


def append_records(
    stamp: str, entries: Iterable[Mapping[str, Any]], count: int, at: int = -1
) -> list[bytes]:
    """The records of an append: its `updatedAt`, its messages, their number from then on, and the
    byte at which they are spliced in (-1: they are not).

    A long append has several, of about 64 KiB, so that the log can drop its oldest messages. The
    first has the byte.
    """
    pieces = list(map(orjson.dumps, entries))
    records: list[bytes] = []
    before = count - len(pieces)
    start = size = 0
    for end, piece in enumerate(pieces, start=1):
        size += len(piece)
        if size >= _RECORD_BYTES or end == len(pieces):
            record = {
                "k": "append",
                "u": stamp,
                "n": before + end,
                "at": -1 if records else at,
                "e": [],
            }
            records.append(orjson.dumps(record)[:-2] + b",".join(pieces[start:end]) + b"]}")
            start, size = end, 0
    return records


def put_record(record: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]) -> bytes:
    """The record of messages that a rewrite put into the history; `record` has its other fields."""
    return orjson.dumps({"k": "put", **record, "e": list(entries)})


def edit_record(record: Mapping[str, Any], was: Mapping[str, Any], now: Mapping[str, Any]) -> bytes:
    """The record of a message that a rewrite changed, before and after; `record` has its other
    fields.
    """
    edit = {"k": "edit", **record, "was": content_digest(was)}
    if named_parent(was) != named_parent(now):
        edit["above"] = named_parent(was)
    return orjson.dumps({**edit, "e": now})


def gone_record(record: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]) -> bytes:
    """The record of messages that a rewrite took out; `record` has its other fields."""
    return orjson.dumps(
        {"k": "gone", **record, "was": {entry["id"]: content_digest(entry) for entry in entries}}
    )


def head_record(stamp: str, document: Mapping[str, Any], count: int) -> bytes:
    """The record of a head as it was written: what `document` has before its context; it has
    `count` messages.
    """
    return with_head_fields({"k": "head", "u": stamp, "n": count}, document)


def lock_record(stamp: str, document: Mapping[str, Any]) -> bytes:
    """The record of a head in which nothing but the lock was changed."""
    return orjson.dumps({"k": "lock", "u": stamp, "l": document["metadata"].get("lock")})


def with_head_fields(record: dict[str, Any], document: Mapping[str, Any]) -> bytes:
    """A record with the head of a document in it."""
    # Joined by hand: a head may be as deep as orjson goes, and a record is deeper by one.
    return orjson.dumps(record)[:-1] + b',"h":' + orjson.dumps(head_fields(document)) + b"}"


def head_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a document that are merged as its head."""
    return {key: value for key, value in document.items() if key in HEAD}


def value_digest(entry: Any) -> str:
    """A digest of one value, the same for equal values: `sha256:` and 32 hexadecimal digits."""
    from hashlib import sha256  # OpenSSL with it, which who only reads has no use for.

    return "sha256:" + sha256(orjson.dumps(entry, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def content_digest(entry: Mapping[str, Any]) -> str:
    """A digest of what a message says, which stays the same when Capsule names its parent."""
    return value_digest(content_fields(entry))


def named_parent(entry: Mapping[str, Any]) -> str | bool | None:
    """The parent that a message names; None: it is a root. False: it names none, and answers the
    one before it.
    """
    parent: str | bool | None = entry.get("parent", False)
    return parent


def records_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[bytes]:
    """What the store should remember of a rewrite: the messages that came, changed and went, and
    the head.
    """
    stamp = after["updatedAt"]
    old, new = ({entry.get("id"): entry for entry in side["history"]} for side in (before, after))
    count = len(after["history"])
    records = []
    for id, entry in old.items():
        if id in new and codec.encode_entry(entry) != codec.encode_entry(new[id]):
            records.append(edit_record({"u": stamp}, entry, new[id]))
    if added := [entry for id, entry in new.items() if id not in old]:
        records.append(put_record({"u": stamp, "n": count}, added))
    if gone := [entry for id, entry in old.items() if id not in new]:
        records.append(gone_record({"u": stamp}, gone))
    return [*records, head_record(stamp, after, count)]


class WriteRecord(NamedTuple):
    """One record, and which write it belongs to: 0 is the oldest remembered; and how many messages
    more it left.
    """

    place: int
    record: dict[str, Any]
    more: int = 0

    @property
    def kind(self) -> str:
        """The kind of the record, as the table above has them."""
        return str(self.record["k"])

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The messages that the write appended or put; none if it did something else."""
        return self.record["e"] if self.kind in ("append", "put") else []

    @property
    def is_by_hand(self) -> bool:
        """Whether another program saved it."""
        return "hand" in self.record


def decode_records(records: list[list[bytes]]) -> list[WriteRecord]:
    """The records, the oldest first."""
    writes: list[WriteRecord] = []
    head: dict[str, Any] = {}
    for place, record in _each(records):
        if record["k"] == "lock":  # It is all of the head before it, but for the lock.
            if not head:
                continue
            record |= {
                "k": "head",
                "h": {**head, "metadata": {**head.get("metadata", {}), "lock": record["l"]}},
            }
        head = record.get("h", head)
        more = 0
        if record["k"] in ("append", "put"):
            more = len(record["e"])
        elif record["k"] == "gone":
            more = -len(record["was"])
        writes.append(WriteRecord(place, record, more))
    return writes


def _each(records: list[list[bytes]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each record as it was written, and which write it belongs to."""
    for place, together in enumerate(records):
        for line in together:
            with suppress(ValueError, RecursionError):
                record = codec.decode_record(line)
                if isinstance(record.get("u"), str):
                    yield place, record


def appended_entries(records: list[list[bytes]]) -> list[dict[str, Any]]:
    """The messages of all appends, also those that were taken out since."""
    return [
        entry for _, record in _each(records) if record["k"] == "append" for entry in record["e"]
    ]


def logged_splices(records: list[list[bytes]]) -> list[tuple[int, list[dict[str, Any]], str]]:
    """The splices that are remembered, the latest first: where, the messages,
    and the `updatedAt`.
    """
    found: list[tuple[int, list[dict[str, Any]], str]] = []
    place = -1
    for write in decode_records(records):
        if write.kind == "append" and write.record.get("at", -1) >= 0:
            found.append((write.record["at"], list(write.entries), write.record["u"]))
            place = write.place
        elif write.kind == "append" and write.place == place:
            found[-1][1].extend(write.entries)
    return [splice for splice in reversed(found) if splice[1]]


def with_recovered_ids(
    history: list[dict[str, Any]], records: list[list[bytes]]
) -> list[dict[str, Any]]:
    """The messages of a saved version, in which those that lost their ids have them again: each
    gets that of the logged message of the same role, text and time that isn't there, each once."""
    if not records or all(entry.get("id") for entry in history):
        return history
    there = {entry.get("id") for entry in history}
    ids: dict[tuple[Any, ...], dict[str, None]] = {}
    for write in decode_records(records):
        for entry in [write.record["e"]] if write.kind == "edit" else write.entries:
            if entry.get("id") not in there:
                ids.setdefault(_words(entry), {})[entry["id"]] = None
    result = []
    for entry in history:
        free = ids.get(_words(entry)) if not entry.get("id") else None
        if free:
            id = next(iter(free))
            entry = {**entry, "id": id}
            del free[id]
        result.append(entry)
    return result


def _words(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        entry.get("role"),
        entry.get("content"),
        timestamps.sortable(str(entry.get("timestamp") or "")),
    )


def erase_removed_texts(
    records: list[list[bytes]], document: Mapping[str, Any]
) -> list[list[bytes]]:
    """The records of a document, the oldest first, without the texts of messages, and titles, that
    it has no more.
    """
    there = {entry.get("id"): entry for entry in document["history"]}
    writes = decode_records(records)
    last = max((write.place for write in writes if "h" in write.record), default=-1)
    kept: dict[int, list[bytes]] = {}
    for place, record, _ in writes:
        if record["k"] in ("append", "put"):
            record = record | {
                "at": -1,
                "e": [there[entry["id"]] for entry in record["e"] if entry.get("id") in there],
            }
        elif record["k"] == "edit" and record["e"].get("id") in there:
            record = record | {"e": there[record["e"]["id"]]}
        elif record["k"] == "head" and place == last:
            kept.setdefault(place, []).append(head_record(record["u"], document, len(there)))
            continue
        elif record["k"] not in ("gone", "void"):
            continue
        kept.setdefault(place, []).append(orjson.dumps(record))
    return list(kept.values())


#: How `Reconciliation.remade` calls a lock.
LOCK_PHRASE = "the lock"
_LOCK, _TAGS = "metadata.lock", "metadata.tags"
_Flat = Mapping[str, Any]
_Entry = dict[str, Any]


@dataclass(slots=True)
class Reconciliation:
    """What became of a saved version.

    Attributes:
        document: The saved version, with what was not in it made good.
        seen: The records of what the version changed of what the log knows, and of the head as it
            was saved.
        newest: The latest `updatedAt` of the version and of all records.
        restored: Entries that come back.
        remade: Changes of the store that were made again, in words.
        removed: Entries that the person took out, as the store had them last.
        overruled: Other changes of the store that the version takes away: what to keep, and in
            words what it is.
        short: How many messages fewer than the store's own last version it has, restored ones
            counted.
        forgotten: How many messages of those are not in the log: they can't be kept, and it is not
            known whether who saved the version had read them.
    """

    document: dict[str, Any]
    seen: list[bytes] = field(default_factory=list)
    newest: str = ""
    restored: list[_Entry] = field(default_factory=list)
    remade: list[str] = field(default_factory=list)
    removed: list[_Entry] = field(default_factory=list)
    overruled: list[tuple[Any, str]] = field(default_factory=list)
    short: int = 0
    forgotten: int = 0

    @property
    def changed(self) -> bool:
        """Whether `document` differs from the saved version."""
        return bool(self.restored or self.remade)

    @property
    def lacking(self) -> str:
        """What the saved version lacked, in words."""
        return ", ".join([*_counted(self.restored), *self.remade])

    @property
    def taken_away(self) -> str:
        """What the saved version takes away, in words; empty: nothing."""
        return ", ".join([*_counted(self.removed), *(words for _, words in self.overruled)])

    @property
    def kept(self) -> bytes:
        """What the saved version takes away, as the quarantine keeps it."""
        kept = {"removed": self.removed, "overruled": [value for value, _ in self.overruled]}
        return orjson.dumps(kept, option=orjson.OPT_INDENT_2)


def _counted(entries: list[_Entry]) -> list[str]:
    if not entries:
        return []
    return [f"{len(entries)} message{'s' if len(entries) > 1 else ''}"]


def reconcile(
    saved: dict[str, Any],
    records: list[list[bytes]],
    *,
    deliberate: bool | None = None,
    sure: int | None = None,
) -> Reconciliation:
    """Compare a saved version, as `migrations.current` gives it, with what the store wrote lately.

    Args:
        saved: The saved version.
        records: The records of each write, the oldest first; what is no record is passed over.
        deliberate: Whether what is missing was taken out on purpose, where that is known: all of
            it, or nothing.
        sure: How many writes were in the file for sure; a later one may have come to it in part.
            None: all.
    """
    writes = decode_records(records)
    outcome = Reconciliation(dict(saved))
    read = _ReadState(saved, writes, len(records) if sure is None else sure)
    if deliberate is not None:
        read.upto = len(records) if deliberate else -1
    _messages(outcome, _known(writes), read)
    _head(outcome, writes, read)
    counted = [write.record["n"] for write in writes if "n" in write.record]
    outcome.short = max(counted[-1] - len(outcome.document["history"]), 0) if counted else 0
    outcome.forgotten = max(outcome.short - len(outcome.removed), 0)
    outcome.newest = max(read.stamp, read.newest)
    if read.void:
        outcome.seen.insert(0, orjson.dumps({"k": "void", **_by_hand(saved), "void": read.void}))
    count = len(outcome.document["history"])
    outcome.seen.append(with_head_fields({"k": "head", **_by_hand(saved), "n": count}, saved))
    return outcome


def _by_hand(saved: Mapping[str, Any]) -> dict[str, Any]:
    """What all records of a saved version have."""
    return {"u": saved["updatedAt"], "hand": 1}


class _ReadState:
    """What the person can have read when they began to edit.

    Attributes:
        upto: The latest write that the saved version shows; -1: none.
        stamp: Its `updatedAt`.
        newest: The latest `updatedAt` of a record.
        makes_again: Whether the log is not behind, so that what was not read is made again.
        void: The `updatedAt` of each interrupted append whose messages it lacks.
    """

    def __init__(self, saved: dict[str, Any], writes: list[WriteRecord], sure: int) -> None:
        self.stamp = timestamps.sortable(str(saved.get("updatedAt")))
        self.newest = max((write.record["u"] for write in writes), default="")
        self.makes_again = self.stamp <= self.newest
        counts = Counter(entry.get("id") for entry in saved["history"])
        self.void = [
            write.record["u"]
            for write in writes
            if write.place >= sure and any(entry["id"] not in counts for entry in write.entries)
        ]
        self.upto = -1
        if self.stamp not in {
            *self.void,
            *(stamp for write in writes for stamp in write.record.get("void", ())),
        }:
            self.upto = _places(writes).get(self.stamp, -1)
        # Of messages with one id, as many were read as there are.
        introduced: dict[Any, list[int]] = {}
        for write in writes:
            for entry in write.entries if write.kind == "append" else ():
                introduced.setdefault(entry.get("id"), []).append(write.place)
        for id, places in introduced.items():
            if counts[id]:
                self.upto = max(self.upto, places[min(counts[id], len(places)) - 1])

    def had(self, place: int) -> bool:
        """Whether a write was there to be read."""
        return place <= self.upto


def _places(writes: list[WriteRecord]) -> dict[str, int]:
    """The first write of the store with each `updatedAt`."""
    places: dict[str, int] = {}
    for write in writes:
        if not write.is_by_hand:
            places.setdefault(write.record["u"], write.place)
    return places


@dataclass(slots=True)
class _SavedCopy:
    """A message that the document has, as far as the log knows.

    Attributes:
        since: The write that put it there, or, if the log does not have that one, the first that
            shows it.
        entry: The message as it was written last.
        edited: The store's last write that changed what it says; None: there is none, or a person's
            version stands.
        moves: The writes of the store that gave it another parent since, and its parents before
            them.
    """

    since: int
    entry: _Entry
    edited: int | None = None
    moves: list[tuple[int, Any]] = field(default_factory=list)


@dataclass(slots=True)
class _StoreVersion:
    """What the log knows of the messages with one id; nearly always that is one.

    Attributes:
        copies: Those that the document has.
        texts: Digests of all that they said.
        gone: The store's write that took them out; None: they are there, or a person took them out.
    """

    copies: list[_SavedCopy] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)
    gone: int | None = None


def _known(writes: list[WriteRecord]) -> dict[Any, _StoreVersion]:
    """What the log knows of each message, by the ids."""
    messages: dict[Any, _StoreVersion] = {}
    places = _places(writes)
    for write in writes:
        # What a person did was there for whoever has that `updatedAt`.
        place = places.get(write.record["u"], write.place) if write.is_by_hand else write.place
        for entry in write.entries:
            message = messages.setdefault(entry.get("id"), _StoreVersion())
            copy = _SavedCopy(place, entry)
            text = content_digest(entry)
            if write.kind == "put" and not write.is_by_hand and message.texts - {text}:
                copy.edited = place  # It may have come back with another text than it went with.
            message.copies.append(copy)
            message.texts.add(text)
            message.gone = None
        if write.kind == "edit":
            _note_edit(messages.setdefault(write.record["e"].get("id"), _StoreVersion()), write)
        for id, text in write.record["was"].items() if write.kind == "gone" else ():
            message = messages.setdefault(id, _StoreVersion())
            message.copies = []
            message.texts.add(text)
            message.gone = None if write.is_by_hand else place
    return messages


def _note_edit(message: _StoreVersion, write: WriteRecord) -> None:
    entry, was = write.record["e"], write.record["was"]
    if not message.copies:  # The log doesn't have the write that put it there.
        message.copies.append(_SavedCopy(write.place, entry))
    copy = next(
        (copy for copy in message.copies if content_digest(copy.entry) == was), message.copies[-1]
    )
    text = content_digest(entry)
    copy.entry = entry
    message.texts |= {was, text}
    if write.is_by_hand:
        copy.edited = None
        copy.moves = []
        return
    if text != was:
        copy.edited = write.place
    if "above" in write.record:
        copy.moves.append((write.place, write.record["above"]))


def _messages(outcome: Reconciliation, known: dict[Any, _StoreVersion], read: _ReadState) -> None:
    """Bring back the messages that were not there to be read, and make again what the store did to
    the others.
    """
    history = outcome.document["history"]
    places: dict[Any, list[int]] = {}
    for place, entry in enumerate(history):
        places.setdefault(entry.get("id"), []).append(place)
    merged: dict[int, _Entry] = {}
    gone: set[int] = set()
    missing: list[_SavedCopy] = []
    put: list[_Entry] = []
    edits: list[bytes] = []
    record = _by_hand(outcome.document)
    for id, message in known.items():
        entries = {place: history[place] for place in places.get(id, ())}
        if not message.copies:
            for place, entry in entries.items():
                if _is_removed_again(outcome, id, message, entry, read):
                    gone.add(place)
                else:
                    put.append(entry)
            continue
        pairs, lacking = _paired(message.copies, entries)
        missing += lacking
        for place, copy in pairs.items():
            merged[place] = _merged(outcome, copy, history[place], message.texts, read)
            if _stands(copy, merged[place]):
                edits.append(edit_record(record, copy.entry, history[place]))
        if any(read.had(copy.since) for copy in lacking):
            put += [history[place] for place in pairs]  # The record of what is gone names ids.
    missing.sort(key=lambda copy: copy.since)
    outcome.removed = [copy.entry for copy in missing if read.had(copy.since)]
    outcome.restored = [copy.entry for copy in missing if not read.had(copy.since)]
    kept = [merged.get(place, entry) for place, entry in enumerate(history) if place not in gone]
    if outcome.changed:
        outcome.document["history"] = kept + outcome.restored
    if outcome.removed:
        outcome.seen.append(gone_record(record, outcome.removed))
    if put:
        outcome.seen.append(put_record(record, put))
    outcome.seen += edits


def _paired(
    copies: list[_SavedCopy], entries: dict[int, _Entry]
) -> tuple[dict[int, _SavedCopy], list[_SavedCopy]]:
    """The place of each message in the saved version, by what it says, else by the order; and those
    without one.
    """
    pairs: dict[int, _SavedCopy] = {}
    rest = []
    for copy in copies:
        text = content_digest(copy.entry)
        same = [
            place
            for place, entry in entries.items()
            if place not in pairs and content_digest(entry) == text
        ]
        if same:
            pairs[same[0]] = copy
        else:
            rest.append(copy)
    free = [place for place in entries if place not in pairs]
    pairs |= zip(free, rest, strict=False)
    return pairs, rest[len(free) :]


def _is_removed_again(
    outcome: Reconciliation, id: Any, message: _StoreVersion, entry: _Entry, read: _ReadState
) -> bool:
    """Whether a message of the saved version goes, as the store took it out since; else it counts
    as put back.
    """
    if message.gone is None or read.had(message.gone):
        return False
    words = f"the removal of message {id}"
    if read.makes_again and content_digest(entry) in message.texts:
        outcome.remade.append(words)
        return True
    outcome.overruled.append(({"removed": id}, words))
    return False


def _merged(
    outcome: Reconciliation, copy: _SavedCopy, entry: _Entry, texts: set[str], read: _ReadState
) -> _Entry:
    """A message of the saved version, with what the store changed of it since, where the person
    left that alone.
    """
    result = entry
    text = content_digest(entry)
    if copy.edited is not None and text != content_digest(copy.entry):
        words = f"the edit of message {entry['id']}"
        if read.makes_again and not read.had(copy.edited) and text in texts:
            result = _under(copy.entry, named_parent(entry))
            outcome.remade.append(words)
        else:
            outcome.overruled.append((copy.entry, words))
    unread = [before for place, before in copy.moves if not read.had(place)]
    parent = named_parent(copy.entry)
    if unread and read.makes_again and unread[0] == named_parent(entry) != parent:
        result = _under(result, parent)
        outcome.remade.append(f"the parent of message {entry['id']}")
    return result


def _stands(copy: _SavedCopy, result: _Entry) -> bool:
    """Whether the person's version of a message stands where the store had changed it."""
    is_other_text = copy.edited is not None and content_digest(result) != content_digest(copy.entry)
    is_elsewhere = bool(copy.moves) and named_parent(result) != named_parent(copy.entry)
    return is_other_text or is_elsewhere


def _under(entry: _Entry, parent: Any) -> _Entry:
    """A message with another parent, as `named_parent` gives it."""
    rest = {name: value for name, value in entry.items() if name != "parent"}
    return order_message(rest if parent is False else rest | {"parent": parent})


def _head(outcome: Reconciliation, writes: list[WriteRecord], read: _ReadState) -> None:
    """Merge the head three ways: what the person read, what the store has written since, what they
    saved.
    """
    heads = [write for write in writes if write.kind == "head"]
    if not heads:
        return
    flats = [flat_head(head.record["h"]) for head in heads]
    ours, theirs = flats[-1], flat_head(head_fields(outcome.document))
    # Of two that are as like, the earlier: what then seems new to the person is made again, not
    # taken away.
    at = min(_readable(heads, read), key=lambda place: _distance(flats[place], theirs))
    base = flats[at]
    later = [place for place in range(at + 1, len(heads)) if not heads[place].is_by_hand]
    by_the_store = {key for place in later for key in _differing(flats[place - 1], flats[place])}
    locks = [_lock_of(flat) for flat in flats]
    merged = dict(theirs)
    remade = []
    for key in _differing(ours, theirs):
        was, mine, saved_value = (flat.get(key, ABSENT) for flat in (base, ours, theirs))
        words = f"the change of {key.removeprefix('metadata.')}"
        if key == _LOCK:
            # A lock that no record knows is that of a writer which was killed before it could leave
            # its record, or a person's; either stands, and there is nothing in the other one to
            # keep.
            is_unread = key in by_the_store and not _same(was, mine)
            is_former = _lock_of(theirs) != locks[-1] and _lock_of(theirs) in locks
            if is_unread and is_former and read.makes_again:
                merged[key] = mine
                remade.append(LOCK_PHRASE)
            continue
        if _same(was, mine) or key not in by_the_store:
            is_lost = _is_reverted(key, saved_value, heads, flats)
        elif read.makes_again and _same(saved_value, was):
            merged[key] = mine
            remade.append(words)
            is_lost = False
        elif read.makes_again and key == _TAGS and isinstance(was, list):
            merged[key] = _merged_tags(was, mine, saved_value)
            if not _same(merged[key], saved_value):
                remade.append(words)
            is_lost = False
        else:
            is_lost = True
        if is_lost:
            outcome.overruled.append(({key: None if mine is ABSENT else mine}, words))
    if remade:
        head: dict[str, Any] = {"metadata": {}}
        for key, value in merged.items():
            if value is not ABSENT:
                (head["metadata"] if "." in key else head)[key.removeprefix("metadata.")] = value
        outcome.document = head | {
            key: value for key, value in outcome.document.items() if key not in HEAD
        }
        outcome.remade += remade


def _is_reverted(key: str, value: Any, heads: list[WriteRecord], flats: Sequence[_Flat]) -> bool:
    """Whether a field has a value again that it had before the store's last change of it."""
    ours = flats[-1].get(key, ABSENT)
    others = [at for at, flat in enumerate(flats) if not _same(flat.get(key, ABSENT), ours)]
    if not others or heads[others[-1] + 1].is_by_hand:
        return False
    return any(_same(flats[at].get(key, ABSENT), value) for at in others)


def _lock_of(flat: _Flat) -> str:
    """What tells one lock from another; its time is refreshed, formerly without a record."""
    lock = flat.get(_LOCK)
    return value_digest({**lock, "timestamp": None} if isinstance(lock, dict) else lock)


def _readable(heads: list[WriteRecord], read: _ReadState) -> list[int]:
    """The heads that the person may have begun from: the last one at the latest write that they
    have read, and those after it with the same `updatedAt`; all, when no write is known to have
    been read."""
    before = [at for at, head in enumerate(heads) if head.place <= read.upto]
    after = [
        at
        for at, head in enumerate(heads)
        if head.place > read.upto and head.record["u"] == read.stamp
    ]
    return before[-1:] + after if before else list(range(len(heads)))


def _same(left: Any, right: Any) -> bool:
    return left is right or sorted_bytes(left) == sorted_bytes(right)


def _differing(left: _Flat, right: _Flat) -> list[str]:
    return [
        key for key in {**left, **right} if not _same(left.get(key, ABSENT), right.get(key, ABSENT))
    ]


def _distance(left: _Flat, right: _Flat) -> int:
    """How many fields differ; of the tags, how many."""
    distance = 0
    for key in _differing(left, right):
        tags: list[Any] = [side.get(key) for side in (left, right)]
        if key == _TAGS and all(isinstance(each, list) for each in tags):
            distance += len(set(map(value_digest, tags[0])) ^ set(map(value_digest, tags[1])))
        elif key != _LOCK or _lock_of(left) != _lock_of(right):
            distance += 1
    return distance


def _merged_tags(was: list[Any], mine: Any, saved: Any) -> list[Any]:
    """Both sides' additions and removals, the saved version's order first."""
    mine, saved = (tags if isinstance(tags, list) else [] for tags in (mine, saved))
    dropped = [tag for tag in was if tag not in mine]
    added = [tag for tag in mine if tag not in was and tag not in saved]
    return [tag for tag in saved if tag not in dropped] + added
