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
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from capsule import timestamps
from capsule.format.documents.message import saying
from capsule.format.fields import names
from capsule.format.json import codec

_RECORD_BYTES = 64 << 10
#: What of a capsule is merged as its head: what the store changes without rewriting the whole.
HEAD = frozenset(names("")) - {"updatedAt", "history", "context"}


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
    edit = {"k": "edit", **record, "was": said(was)}
    if parent_of(was) != parent_of(now):
        edit["above"] = parent_of(was)
    return orjson.dumps({**edit, "e": now})


def gone_record(record: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]) -> bytes:
    """The record of messages that a rewrite took out; `record` has its other fields."""
    return orjson.dumps(
        {"k": "gone", **record, "was": {entry["id"]: said(entry) for entry in entries}}
    )


def head_record(stamp: str, document: Mapping[str, Any], count: int) -> bytes:
    """The record of a head as it was written: what `document` has before its context; it has
    `count` messages.
    """
    return headed({"k": "head", "u": stamp, "n": count}, document)


def lock_record(stamp: str, document: Mapping[str, Any]) -> bytes:
    """The record of a head in which nothing but the lock was changed."""
    return orjson.dumps({"k": "lock", "u": stamp, "l": document["metadata"].get("lock")})


def headed(record: dict[str, Any], document: Mapping[str, Any]) -> bytes:
    """A record with the head of a document in it."""
    # Joined by hand: a head may be as deep as orjson goes, and a record is deeper by one.
    return orjson.dumps(record)[:-1] + b',"h":' + orjson.dumps(apart(document)) + b"}"


def apart(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a document that are merged as its head."""
    return {key: value for key, value in document.items() if key in HEAD}


def digest(entry: Any) -> str:
    """A digest of one value, the same for equal values: `sha256:` and 32 hexadecimal digits."""
    from hashlib import sha256  # OpenSSL with it, which who only reads has no use for.

    return "sha256:" + sha256(orjson.dumps(entry, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def said(entry: Mapping[str, Any]) -> str:
    """A digest of what a message says, which stays the same when Capsule names its parent."""
    return digest(saying(entry))


def parent_of(entry: Mapping[str, Any]) -> str | bool | None:
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


def decoded(records: list[list[bytes]]) -> list[WriteRecord]:
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


def appended(records: list[list[bytes]]) -> list[dict[str, Any]]:
    """The messages of all appends, also those that were taken out since."""
    return [
        entry for _, record in _each(records) if record["k"] == "append" for entry in record["e"]
    ]


def splices(records: list[list[bytes]]) -> list[tuple[int, list[dict[str, Any]], str]]:
    """The splices that are remembered, the latest first: where, the messages,
    and the `updatedAt`.
    """
    found: list[tuple[int, list[dict[str, Any]], str]] = []
    place = -1
    for write in decoded(records):
        if write.kind == "append" and write.record.get("at", -1) >= 0:
            found.append((write.record["at"], list(write.entries), write.record["u"]))
            place = write.place
        elif write.kind == "append" and write.place == place:
            found[-1][1].extend(write.entries)
    return [splice for splice in reversed(found) if splice[1]]


def identified(history: list[dict[str, Any]], records: list[list[bytes]]) -> list[dict[str, Any]]:
    """The messages of a saved version, in which those that lost their ids have them again: each
    gets that of the logged message of the same role, text and time that isn't there, each once."""
    if not records or all(entry.get("id") for entry in history):
        return history
    there = {entry.get("id") for entry in history}
    ids: dict[tuple[Any, ...], dict[str, None]] = {}
    for write in decoded(records):
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


def without_texts(records: list[list[bytes]], document: Mapping[str, Any]) -> list[list[bytes]]:
    """The records of a document, the oldest first, without the texts of messages, and titles, that
    it has no more.
    """
    there = {entry.get("id"): entry for entry in document["history"]}
    writes = decoded(records)
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
