"""Comparing a file that another program saved with what the store wrote lately.

An editor saves what it read some time ago, with the changes of a person. The file then lacks what the store wrote in
between, and also what the person removed. This is how the two are told apart:

1. The log has a record of every write, in order. Each write gives the document another `updatedAt`.
2. A saved version shows what its author can have read: the write of its `updatedAt`, every write that one of its
   messages came from, and all writes before those. An append that an editor's save interrupted, or a power cut, may
   have left its `updatedAt` in a text that lacks its messages: that `updatedAt` shows nothing, then and later.
3. What such a write brought and the version lacks was removed on purpose, and stays out.
4. The messages of every later write come back, at the end.
5. The edits, removals and head changes of a later write are made again. Where the person changed the same, the
   person's change stands, and the store's is kept and named.
6. If the `updatedAt` is later than every record, the log is behind, and only messages are made again.
7. A message without an id is the logged one of the same role, text and time, each once.
8. What the log no longer holds is counted and named.

Limits: an `updatedAt` typed by hand shows nothing, so only the messages tell; a message from another clone that was
deleted by hand comes back until a message of that clone shows that it was read; the context is always the saved one.

What must stay true: the order of the records decides, not a clock; and the outcome names every acknowledged write that
it drops. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from capsule import timestamps
from capsule.format.merge.values import ABSENT, flat_head, sorted_bytes
from capsule.format.saved.records import HEAD, Write, apart, decoded, digest, headed

#: How `Outcome.remade` calls a lock.
THE_LOCK = "the lock"
_LOCK, _TAGS = "metadata.lock", "metadata.tags"
_Flat = Mapping[str, Any]


@dataclass(slots=True)
class Outcome:
    """What became of a saved version.

    Attributes:
        document: The saved version, with what was not in it made good.
        seen: The records of what the person took out and put back, and of the head as they saved it.
        newest: The latest `updatedAt` of the version and of all records.
        restored: Entries that come back.
        remade: Changes of the store that were made again, in words.
        overruled: Changes of the store that the person's own went over: what to keep, and in words what it is.
        removed: Ids of messages that the person took out.
        short: How many messages fewer than the store's own last version it has, restored ones counted.
        forgotten: How many messages are neither remembered nor shown to have been read. Most often they can't be told
            from messages that the person took out.
    """

    document: dict[str, Any]
    seen: list[bytes] = field(default_factory=list)
    newest: str = ""
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

    @property
    def lacking(self) -> str:
        """What the saved version lacks, in words."""
        many = len(self.restored)
        return ", ".join([*([f"{many} message{'s' * (many > 1)}"] if many else []), *self.remade])


def reconcile(
    saved: dict[str, Any], records: list[list[bytes]], *, deliberate: bool | None = None, sure: int | None = None
) -> Outcome:
    """Compare a saved version, as `migrations.current` gives it, with what the store wrote lately.

    Args:
        saved: The saved version.
        records: The records of each write, the oldest first; what is no record is passed over.
        deliberate: Whether what is missing was taken out on purpose, where that is known: all of it, or nothing.
        sure: How many writes were in the file for sure; a later one may have come to it in part. None: all.
    """
    writes = decoded(records)
    outcome = Outcome(dict(saved))
    read = _Read(saved, writes, len(records) if sure is None else sure)
    if deliberate is not None:
        read.upto = len(records) if deliberate else -1
    _messages(outcome, writes, read)
    if read.stamp <= read.newest:
        _removals(outcome, writes, read)
        _edits(outcome, writes, read)
        _head(outcome, writes, read)
    counted = [write.record["n"] for write in writes if "n" in write.record]
    outcome.short = max(counted[-1] - len(outcome.document["history"]), 0) if counted else 0
    is_unknown = read.upto < 0 or deliberate is True
    outcome.forgotten = max(outcome.short - len(outcome.removed), 0) if is_unknown else _dropped(writes, read)
    outcome.newest = max(read.stamp, read.newest)
    outcome.seen = _seen(saved, outcome, writes, read)
    return outcome


def _dropped(writes: list[Write], read: _Read) -> int:
    """How many messages came after what was read, and are in the log no more: its heads can reach further back."""
    dropped = count = 0
    places: dict[int, list[Write]] = {}
    for write in writes:
        places.setdefault(write.place, []).append(write)
    for place, together in places.items():
        expected = count + sum(write.more for write in together)
        count = next((write.record["n"] for write in reversed(together) if "n" in write.record), expected)
        if place > read.upto and not any("hand" in write.record for write in together):
            dropped += max(count - expected, 0)
    return dropped


def _seen(saved: Mapping[str, Any], outcome: Outcome, writes: list[Write], read: _Read) -> list[bytes]:
    """The records of a version that was taken in: what stays out from now on, what stays in, and what shows nothing;
    and its head."""
    history = outcome.document["history"]
    there = {entry.get("id") for entry in history}
    logged = {entry.get("id") for write in writes for entry in write.entries}
    out, back = [id for id in logged if id not in there], [id for id in read.gone if id in there]
    record = {"u": saved["updatedAt"], "hand": 1}
    # Of their own, as the log drops heads earlier than the messages that these correct.
    marks = [orjson.dumps({"k": "marks", **record, "out": out, "back": back, "void": read.void})]
    return [*(marks if out or back or read.void else ()), headed({"k": "head", **record, "n": len(history)}, saved)]


class _Read:
    """What the person can have read when they began to edit.

    Attributes:
        upto: The latest write that the saved version shows; -1: none.
        stamp: Its `updatedAt`.
        newest: The latest `updatedAt` of a record.
        ids: Its messages by their ids.
        missing: The logged messages that it lacks, by their places in the records.
        void: The `updatedAt` of each interrupted append whose messages it lacks.
        gone: The ids of the messages that the store took out.
        befores: The digests of the versions that the store edited, by the messages' ids.
    """

    def __init__(self, saved: dict[str, Any], writes: list[Write], sure: int) -> None:
        self.ids = {entry.get("id"): entry for entry in saved["history"]}
        self.stamp = timestamps.sortable(str(saved.get("updatedAt")))
        own = [write for write in writes if "hand" not in write.record]
        self.newest = max((write.record["u"] for write in writes), default="")
        last = [write for write in writes if write.place >= sure]
        self.void = [write.record["u"] for write in last if any(entry["id"] not in self.ids for entry in write.entries)]
        shown = (write.place for write in own if write.record["u"] == self.stamp and self.stamp not in self.void)
        stamped = next(shown, -1)
        # Two messages may have one id, and then two times.
        there = Counter((entry.get("id"), entry.get("timestamp")) for entry in saved["history"])
        self.missing: dict[int, list[dict[str, Any]]] = {}
        held = [stamped]
        for at, write in enumerate(writes):
            for entry in write.entries:
                key = entry.get("id"), entry.get("timestamp")
                if there[key]:
                    there[key] -= 1
                    held.append(write.place)
                elif write.place > stamped or entry.get("id") not in self.ids:
                    self.missing.setdefault(at, []).append(entry)
        self.upto = max(held)
        self.gone = {id for write in writes if write.kind == "gone" for id in write.record["was"]}
        self.befores: dict[Any, set[str]] = {}
        for write in writes:
            if write.kind == "edit":
                self.befores.setdefault(write.record["e"].get("id"), set()).add(write.record["was"])

    def had(self, write: Write) -> bool:
        """Whether a write was there to be read."""
        return write.place <= self.upto


def _messages(outcome: Outcome, writes: list[Write], read: _Read) -> None:
    """Bring back the messages that were not there to be read; name those that were, and are gone."""
    pending: list[dict[str, Any]] = []
    for at, write in enumerate(writes):
        if write.kind == "append":
            missing = read.missing.get(at, [])
            if read.had(write):
                outcome.removed += [entry["id"] for entry in missing]
            else:
                pending += missing
        elif write.kind == "edit":
            edited = write.record["e"]
            pending = [edited if entry["id"] == edited.get("id") else entry for entry in pending]
        elif write.kind == "gone":
            gone = write.record["was"]
            pending = [entry for entry in pending if entry["id"] not in gone]
            outcome.removed = [id for id in outcome.removed if id not in gone]
    outcome.restored = pending
    if pending:
        outcome.document["history"] = [*outcome.document["history"], *pending]


def _removals(outcome: Outcome, writes: list[Write], read: _Read) -> None:
    """Take out again what the store took out since, where the person left the message alone."""
    for write in writes:
        if write.kind != "gone" or read.had(write):
            continue
        for id, was in write.record["was"].items():
            there = read.ids.get(id)
            if there is not None and digest(there) in {was, *read.befores.get(id, ())}:
                outcome.document["history"] = [entry for entry in outcome.document["history"] if entry is not there]
                outcome.remade.append(f"the removal of message {id}")
            elif there is not None:
                kept = f"the removal of message {id}, which the saved version edits"
                outcome.overruled.append(({"removed": id}, kept))


def _edits(outcome: Outcome, writes: list[Write], read: _Read) -> None:
    """Make the edits again that were not there to be read, where the person left the message alone."""
    back = {entry["id"] for entry in outcome.restored}
    latest = {write.record["e"].get("id"): write for write in writes if write.kind == "edit"}
    for id, write in latest.items():
        if read.had(write) or id in read.gone or id in back:
            continue
        edited, there = write.record["e"], read.ids.get(id)
        if there is None:
            outcome.overruled.append((edited, f"an edit of message {id}, which the saved version takes out"))
        elif digest(there) in read.befores.get(id, set()) - {digest(edited)}:
            outcome.document["history"] = [edited if entry is there else entry for entry in outcome.document["history"]]
            outcome.remade.append(f"the edit of message {id}")
        elif digest(there) != digest(edited):
            outcome.overruled.append((edited, f"an edit of message {id}, which the saved version edits too"))


def _head(outcome: Outcome, writes: list[Write], read: _Read) -> None:
    """Merge the head three ways: what the person read, what the store has written since, what they saved."""
    heads = [write for write in writes if write.kind == "head"]
    if not heads:
        return
    flats = [flat_head(head.record["h"]) for head in heads]
    ours, theirs = flats[-1], flat_head(apart(outcome.document))
    # Of two that are as like, the earlier: what then seems new to the person is made again, not taken away.
    at = min(_readable(heads, read), key=lambda place: _distance(flats[place], theirs))
    base = flats[at]
    later = [place for place in range(at + 1, len(heads)) if "hand" not in heads[place].record]
    by_the_store = {key for place in later for key in _differing(flats[place - 1], flats[place])}
    locks = [_lock_of(flat) for flat in flats]
    merged = dict(theirs)
    remade = []
    for key in _differing(base, ours):
        name = key.removeprefix("metadata.")
        was, mine, saved_value = (flat.get(key, ABSENT) for flat in (base, ours, theirs))
        is_there = _same(saved_value, mine) or (key == _LOCK and _lock_of(theirs) == locks[-1])
        if is_there or key not in by_the_store:
            continue
        if _same(saved_value, was) or (key == _LOCK and _lock_of(theirs) in locks):
            merged[key] = mine
            remade.append(THE_LOCK if key == _LOCK else f"the change of {name}")
        elif key == _TAGS and isinstance(was, list):
            merged[key] = _merged_tags(was, mine, saved_value)
            if not _same(merged[key], saved_value):
                remade.append("the change of tags")
        elif key != _LOCK:
            # A lock that no record knows is that of a writer which was killed before it could leave its record, or
            # a person's; either stands, and there is nothing in the other one to keep.
            kept = {key: None if mine is ABSENT else mine}
            outcome.overruled.append((kept, f"a change of {name}, which the saved version changes too"))
    if remade:
        head: dict[str, Any] = {"metadata": {}}
        for key, value in merged.items():
            if value is not ABSENT:
                (head["metadata"] if "." in key else head)[key.removeprefix("metadata.")] = value
        outcome.document = head | {key: value for key, value in outcome.document.items() if key not in HEAD}
        outcome.remade += remade


def _lock_of(flat: _Flat) -> str:
    """What tells one lock from another; its time is refreshed, formerly without a record."""
    lock = flat.get(_LOCK)
    return digest({**lock, "timestamp": None} if isinstance(lock, dict) else lock)


def _readable(heads: list[Write], read: _Read) -> list[int]:
    """The heads that the person may have begun from: the last one at the latest write that they have read, and those
    after it with the same `updatedAt`; all, when no write is known to have been read."""
    before = [at for at, head in enumerate(heads) if head.place <= read.upto]
    after = [at for at, head in enumerate(heads) if head.place > read.upto and head.record["u"] == read.stamp]
    return before[-1:] + after or list(range(len(heads)))


def _same(left: Any, right: Any) -> bool:
    return left is right or sorted_bytes(left) == sorted_bytes(right)


def _differing(left: _Flat, right: _Flat) -> list[str]:
    return [key for key in {**left, **right} if not _same(left.get(key, ABSENT), right.get(key, ABSENT))]


def _distance(left: _Flat, right: _Flat) -> int:
    """How many fields differ; of the tags, how many."""
    distance = 0
    for key in _differing(left, right):
        tags: list[Any] = [side.get(key) for side in (left, right)]
        if key == _TAGS and all(isinstance(each, list) for each in tags):
            distance += len(set(map(digest, tags[0])) ^ set(map(digest, tags[1])))
        elif key != _LOCK or _lock_of(left) != _lock_of(right):
            distance += 1
    return distance


def _merged_tags(was: list[Any], mine: Any, saved: Any) -> list[Any]:
    """Both sides' additions and removals, the saved version's order first."""
    mine, saved = (tags if isinstance(tags, list) else [] for tags in (mine, saved))
    dropped = [tag for tag in was if tag not in mine]
    added = [tag for tag in mine if tag not in was and tag not in saved]
    return [tag for tag in saved if tag not in dropped] + added
