"""What the store wrote lately, held against a file that somebody else saved.

An editor that saves a conversation saves what it read, some time ago, with its person's changes. What the
store acknowledged in between is then missing from the file, and so is what the person deleted; this module tells
the two apart. The evidence is what the editor *can have read*. The records of what the store wrote lie in the
order of the writes, and a saved version shows two things: its `updatedAt` is that of the version it was made
from, as every write of the store but a lock's sets it; and a message it holds was there when it was read.

- Every write up to the latest one that the saved version shows was there to be read: what is missing of it was
  taken out on purpose, and stays out.
- Any later one was not: its messages come back, at the end; its edits, its removals and its changes of the head are
  made again, unless the person changed the same thing, who then wins, and the store's is kept and named.

What it can't tell: of writes within the same millisecond, which carry the same `updatedAt`, only the first is shown by
it, so that the second, deleted on purpose before anything was written after it, comes back; a hand-typed
`updatedAt` shows nothing, which leaves the messages; what is older than the records can only be counted; and the
context, which is large and rarely written, is the last one saved. What must stay true: pure; the order of the records
decides and no clock does; and nothing acknowledged is dropped without being named in the outcome.

The idea is that of a three-way merge; the rule for telling stale from deleted is this project's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from capsule import timestamps
from capsule.errors import CapsuleError
from capsule.format import codec
from capsule.format.fields import names

__all__ = [
    "Outcome",
    "append_record",
    "edit_record",
    "gone_record",
    "head_record",
    "reconcile",
    "saved_record",
    "together",
]

#: What of a capsule is merged as its head: what the store changes without rewriting the whole.
_HEAD = frozenset(names("")) - {"updatedAt", "history", "context"}


def append_record(stamp: str, entries: Iterable[Mapping[str, Any]], count: int) -> bytes:
    """The record of an append: the entries, the `updatedAt` it wrote, and how many messages there were then."""
    return orjson.dumps({"k": "append", "u": stamp, "n": count, "e": list(entries)})


def edit_record(stamp: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bytes:
    """The record of one message's change."""
    return orjson.dumps({"k": "edit", "u": stamp, "was": digest(before), "e": after})


def gone_record(stamp: str, entries: Iterable[Mapping[str, Any]]) -> bytes:
    """The record of messages that were taken out."""
    return orjson.dumps({"k": "gone", "u": stamp, "was": {entry["id"]: digest(entry) for entry in entries}})


def head_record(stamp: str, document: Mapping[str, Any], count: int, *, by_hand: bool = False) -> bytes:
    """The record of a head as it was written: what `document` has before its context; it has `count` messages.

    Args:
        stamp: Its `updatedAt`.
        document: The document.
        count: How many messages it has.
        by_hand: Whether a person wrote it so. Of what people write the last one wins, and nothing is made again.
    """
    return orjson.dumps(
        {"k": "head", "u": stamp, "n": count, "h": _apart(document), **({"hand": 1} if by_hand else {})}
    )


def saved_record(document: Mapping[str, Any]) -> bytes:
    """The record of a saved version's head before what it lacked was merged back.

    Whoever goes on from it is told by it. It shows nothing of what was read, as its `updatedAt` is an older write's.
    """
    return orjson.dumps({"k": "saved", "u": document["updatedAt"], "h": _apart(document)})


def _apart(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key in _HEAD}


def together(records: list[bytes]) -> list[bytes]:
    """The records of one write as one: who has read one of them has read them all."""
    return [b'{"k":"all","w":[' + b",".join(records) + b"]}"] if len(records) > 1 else records


def digest(entry: Any) -> str:
    """A digest of one value, the same for equal values: `sha256:` and 32 hexadecimal digits."""
    from hashlib import sha256  # OpenSSL with it, which who only reads has no use for.

    return "sha256:" + sha256(orjson.dumps(entry, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


@dataclass(slots=True)
class Outcome:
    """What became of a saved version.

    Attributes:
        document: The saved version, with what was not in it made good.
        records: What is to be remembered from now on, oldest first.
        restored: Entries that come back.
        remade: Changes of the store that were made again, in words.
        overruled: Changes of the store that the person's own went over: what to keep, and in words what it is.
        removed: Ids of messages that the person took out.
        short: How many messages fewer than the store's own last version it has, restored ones counted.
        forgotten: How many of these are neither remembered nor shown to have been read: they can't be told from
            messages that the person took out.
    """

    document: dict[str, Any]
    records: list[bytes] = field(default_factory=list)
    restored: list[dict[str, Any]] = field(default_factory=list)
    remade: list[str] = field(default_factory=list)
    overruled: list[tuple[Any, str]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    short: int = 0
    forgotten: int = 0

    @property
    def changed(self) -> bool:
        """Whether `document` differs from the saved version."""
        return bool(self.restored or self.remade)


class _Write(NamedTuple):
    """One record, and which write it belongs to: 0 is the oldest remembered."""

    place: int
    told: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.told["k"])

    @property
    def entries(self) -> list[dict[str, Any]]:
        return self.told["e"] if self.kind == "append" else []


def reconcile(saved: dict[str, Any], records: list[bytes], *, deliberate: bool | None = None) -> Outcome:
    """Hold a saved version against what the store wrote lately.

    Args:
        saved: The saved version, as `migrations.current` gives it.
        records: The store's records, oldest first; what is no record is passed over.
        deliberate: Whether what is missing was taken out on purpose, where that is known: all of it, or nothing.
    """
    writes = [_Write(place, told) for place, record in enumerate(records) for told in _decoded(record)]
    outcome = Outcome(dict(saved))
    read = _Read(saved, writes)
    if deliberate is not None:
        read.upto = len(records) if deliberate else -1
    _messages(outcome, writes, read)
    _removals(outcome, writes, read)
    _edits(outcome, writes, read)
    _head(outcome, writes, read)
    counted = [write.told["n"] for write in writes if "n" in write.told]
    outcome.short = max(counted[-1] - len(outcome.document["history"]), 0) if counted else 0
    outcome.forgotten = max(outcome.short - len(outcome.removed), 0) if read.upto < 0 else 0
    outcome.records = _remembered(outcome, writes)
    return outcome


def _decoded(record: bytes) -> Iterator[dict[str, Any]]:
    try:
        told = codec.decode(record, "note")
    except CapsuleError:
        return
    for one in told["w"] if told.get("k") == "all" else [told]:
        if isinstance(one.get("u"), str):
            yield one


class _Read:
    """What the person can have read when they began to edit.

    Attributes:
        upto: The latest write that the saved version shows; -1: none.
        stamp: Its `updatedAt`.
        ids: Its messages by their ids.
    """

    def __init__(self, saved: dict[str, Any], writes: list[_Write]) -> None:
        self.ids = {entry.get("id"): entry for entry in saved["history"]}
        try:
            self.stamp = timestamps.canonical(str(saved.get("updatedAt")))
        except ValueError:
            self.stamp = ""
        stamps = ((write.place, write.told["u"]) for write in writes if write.kind != "saved")
        stamped = next((place for place, stamp in stamps if stamp == self.stamp), -1)
        held = [write.place for write in writes if any(entry.get("id") in self.ids for entry in write.entries)]
        self.upto = max(stamped, *held) if held else stamped

    def had(self, write: _Write) -> bool:
        """Whether a write was there to be read."""
        return write.place <= self.upto


def _messages(outcome: Outcome, writes: list[_Write], read: _Read) -> None:
    """Bring back the messages that were not there to be read; name those that were, and are gone."""
    pending: dict[str, dict[str, Any]] = {}
    for write in writes:
        if write.kind == "append":
            missing = [entry for entry in write.entries if entry.get("id") not in read.ids]
            if read.had(write):
                outcome.removed += [entry["id"] for entry in missing]
            else:
                pending |= {entry["id"]: entry for entry in missing}
        elif write.kind == "edit" and write.told["e"].get("id") in pending:
            pending[write.told["e"]["id"]] = write.told["e"]
        elif write.kind == "gone":
            for id in write.told["was"]:
                pending.pop(id, None)
                if id in outcome.removed:
                    outcome.removed.remove(id)
    outcome.restored = list(pending.values())
    if pending:
        outcome.document["history"] = [*outcome.document["history"], *outcome.restored]


def _removals(outcome: Outcome, writes: list[_Write], read: _Read) -> None:
    """Take out again what the store took out since, where the person left the message alone."""
    for write in writes:
        if write.kind != "gone" or read.had(write):
            continue
        for id, was in write.told["was"].items():
            there = read.ids.get(id)
            if there is None:
                continue
            befores = {was} | {w.told["was"] for w in writes if w.kind == "edit" and w.told["e"].get("id") == id}
            if digest(there) in befores:
                outcome.document["history"] = [entry for entry in outcome.document["history"] if entry is not there]
                outcome.remade.append(f"the removal of message {id}")
            else:
                outcome.overruled.append(
                    ({"removed": id}, f"the removal of message {id}, which the saved version edits")
                )


def _edits(outcome: Outcome, writes: list[_Write], read: _Read) -> None:
    """Make the edits again that were not there to be read, where the person left the message alone."""
    gone = {id for write in writes if write.kind == "gone" for id in write.told["was"]}
    back = {entry["id"] for entry in outcome.restored}
    latest = {write.told["e"].get("id"): write for write in writes if write.kind == "edit"}
    for id, write in latest.items():
        if read.had(write) or id in gone or id in back:
            continue
        edited, there = write.told["e"], read.ids.get(id)
        if there is None:
            outcome.overruled.append((edited, f"an edit of message {id}, which the saved version takes out"))
            continue
        if digest(there) == digest(edited):
            continue
        befores = {w.told["was"] for w in writes if w.kind == "edit" and w.told["e"].get("id") == id}
        if digest(there) in befores:
            outcome.document["history"] = [edited if entry is there else entry for entry in outcome.document["history"]]
            outcome.remade.append(f"the edit of message {id}")
        else:
            outcome.overruled.append((edited, f"an edit of message {id}, which the saved version edits too"))


def _head(outcome: Outcome, writes: list[_Write], read: _Read) -> None:
    """Merge the head three ways: what the person read, what the store has written since, what they saved."""
    heads = [write for write in writes if write.kind in ("head", "saved")]
    if not heads:
        return
    flats = [_flat(head.told["h"]) for head in heads]
    ours, theirs = flats[-1], _flat(_apart(outcome.document))
    # Of two that are as like, the earlier: what then seems new to the person is made again, not taken away.
    at = min(_readable(heads, read), key=lambda place: _distance(flats[place], theirs))
    base = flats[at]
    by_the_store = {
        key
        for place in range(at + 1, len(heads))
        if heads[place].kind == "head" and "hand" not in heads[place].told
        for key in _differing(flats[place - 1], flats[place])
    }
    locks = [_lock_of(flat) for flat in flats]
    merged = dict(theirs)
    remade = []
    for key in _differing(base, ours):
        was, mine, saved_value = (flat.get(key, _ABSENT) for flat in (base, ours, theirs))
        if key not in by_the_store or _same(saved_value, mine):
            continue
        if key == _LOCK and _lock_of(theirs) == locks[-1]:
            continue
        if _same(saved_value, was) or (key == _LOCK and _lock_of(theirs) in locks):
            merged[key] = mine
            remade.append("the lock" if key == _LOCK else f"the change of {key[-1]}")
        elif key == ("metadata", "tags") and isinstance(was, list):
            merged[key] = _merged_tags(was, mine, saved_value)
            if not _same(merged[key], saved_value):
                remade.append("the change of tags")
        elif key != _LOCK:
            # A lock that no record knows is that of a writer which was killed before it could leave its record, or
            # a person's; either stands, and there is nothing in the other one to keep.
            kept = {".".join(key): None if mine is _ABSENT else mine}
            outcome.overruled.append((kept, f"a change of {key[-1]}, which the saved version changes too"))
    if remade:
        rest = {key: value for key, value in outcome.document.items() if key not in _HEAD}
        outcome.document = {"metadata": {}} | _deep(merged) | rest
        outcome.remade += remade


def _lock_of(flat: _Flat) -> str:
    """What tells one lock from another; its time is refreshed in place, and in no record."""
    lock = flat.get(_LOCK)
    return digest({**lock, "timestamp": None} if isinstance(lock, dict) else lock)


def _readable(heads: list[_Write], read: _Read) -> list[int]:
    """Which of the heads the person may have begun from: the one in force at the latest write that is shown to have
    been read, and those after it of the same `updatedAt`; all that there are, when none is shown."""
    before = [at for at, head in enumerate(heads) if head.place <= read.upto]
    after = [at for at, head in enumerate(heads) if head.place > read.upto and head.told["u"] == read.stamp]
    return before[-1:] + after or list(range(len(heads)))


_ABSENT: Any = object()
_LOCK = ("metadata", "lock")
_Flat = Mapping[tuple[str, ...], Any]


def _flat(head: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """The fields of a head, those of `metadata` one by one."""
    flat: dict[tuple[str, ...], Any] = {}
    for key, value in head.items():
        if key == "metadata" and isinstance(value, dict):
            flat |= {("metadata", name): field for name, field in value.items()}
        else:
            flat[(key,)] = value
    return flat


def _deep(flat: _Flat) -> dict[str, Any]:
    head: dict[str, Any] = {}
    for key, value in flat.items():
        if value is _ABSENT:
            continue
        if len(key) == 1:
            head[key[0]] = value
        else:
            head.setdefault(key[0], {})[key[1]] = value
    return head


def _same(one: Any, other: Any) -> bool:
    if one is _ABSENT or other is _ABSENT:
        return one is other
    return digest(one) == digest(other)


def _differing(one: _Flat, other: _Flat) -> list[tuple[str, ...]]:
    return [key for key in {**one, **other} if not _same(one.get(key, _ABSENT), other.get(key, _ABSENT))]


def _distance(one: _Flat, other: _Flat) -> int:
    """How many fields differ; of the tags, how many."""
    distance = 0
    for key in _differing(one, other):
        if key == _LOCK and _lock_of(one) == _lock_of(other):
            continue
        tags = [flat.get(key) for flat in (one, other)] if key == ("metadata", "tags") else []
        both = [{digest(tag) for tag in tags_of} for tags_of in tags if isinstance(tags_of, list)]
        distance += len(both[0] ^ both[1]) if len(both) == 2 else 1
    return distance


def _merged_tags(was: list[Any], mine: Any, saved: Any) -> list[Any]:
    """Both sides' additions and removals, the saved version's order first."""
    mine, saved = (tags if isinstance(tags, list) else [] for tags in (mine, saved))
    dropped = [tag for tag in was if tag not in mine]
    added = [tag for tag in mine if tag not in was and tag not in saved]
    return [tag for tag in saved if tag not in dropped] + added


def _remembered(outcome: Outcome, writes: list[_Write]) -> list[bytes]:
    """The records that are still of use, each in its write: what was taken out on purpose must not come back later,
    and what the person put back must not go."""
    there = {entry.get("id") for entry in outcome.document["history"]}
    kept: dict[int, list[bytes]] = {}
    for place, told in writes:
        if told["k"] == "append":
            told = told | {"e": [entry for entry in told["e"] if entry.get("id") in there]}
        elif told["k"] == "gone":
            told = told | {"was": {id: was for id, was in told["was"].items() if id not in there}}
        elif told["k"] == "edit" and told["e"].get("id") not in there:
            continue
        kept.setdefault(place, []).append(orjson.dumps(told))
    return [record for records in kept.values() for record in together(records)]
