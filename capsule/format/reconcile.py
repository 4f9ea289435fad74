"""What the store wrote lately, held against a file that somebody else saved.

An editor that saves a conversation saves what it read, some time ago, with its person's changes. What the
store acknowledged in between is then missing from the file, and so is what the person deleted; this module tells
the two apart. The evidence is what the editor *can have read*: its copy carries the `updatedAt` of the version it
read, as every append sets that field, and a message it holds was there when it read.

- A write that the saved version holds, or that is older than one it holds, or whose time lies before the
  saved `updatedAt`, was there to be read: what is missing of it was taken out on purpose, and stays out.
- Any other was not: its messages come back, at the end; its edits and its changes of the head are made again,
  unless the person changed the same thing, who then wins.

What it can't tell: two writes within the same millisecond carry the same `updatedAt`, so that the second, deleted on
purpose before anything was written after it, comes back; and an `updatedAt` that was itself edited is no
evidence, which leaves the other one. What must stay true: pure, and nothing acknowledged is dropped without
being named in the outcome.

The idea is that of a three-way merge; the rule for telling stale from deleted is this project's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from capsule import timestamps
from capsule.errors import CapsuleError
from capsule.format import codec

__all__ = ["Outcome", "append_record", "edit_record", "gone_record", "head_record", "reconcile"]

_HEAD_APART = ("updatedAt", "history", "context")


def _record(kind: str, stamp: str, **told: Any) -> bytes:
    return orjson.dumps({"k": kind, "u": stamp, **told})


def append_record(stamp: str, entries: Iterable[Mapping[str, Any]]) -> bytes:
    """The record of an append: the entries, and the `updatedAt` it wrote."""
    return orjson.dumps({"k": "append", "u": stamp, "e": list(entries)})


def edit_record(stamp: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bytes:
    """The record of one message's change."""
    return _record("edit", stamp, was=digest(before), e=after)


def gone_record(stamp: str, ids: Iterable[str]) -> bytes:
    """The record of messages that were taken out."""
    return _record("gone", stamp, ids=list(ids))


def head_record(stamp: str, document: Mapping[str, Any]) -> bytes:
    """The record of a head as it was written: all of `document` but its context and history."""
    return _record("head", stamp, h={key: value for key, value in document.items() if key not in _HEAD_APART})


def digest(entry: Any) -> str:
    """A digest of one value, the same for equal values: `sha256:` and 32 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(orjson.dumps(entry, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


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
    """

    document: dict[str, Any]
    records: list[bytes] = field(default_factory=list)
    restored: list[dict[str, Any]] = field(default_factory=list)
    remade: list[str] = field(default_factory=list)
    overruled: list[tuple[Any, str]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether `document` differs from the saved version."""
        return bool(self.restored or self.remade)


def reconcile(saved: dict[str, Any], records: list[bytes]) -> Outcome:
    """Hold a saved version against what the store wrote lately.

    Args:
        saved: The saved version, as `migrations.current` gives it.
        records: The store's records, oldest first; what is no record is passed over.
    """
    writes = [write for write in map(_decoded, records) if write]
    outcome = Outcome(dict(saved))
    read = _Read(saved, writes)
    _messages(outcome, writes, read)
    _edits(outcome, writes, read)
    _head(outcome, writes, read)
    outcome.records = _remembered(writes, read)
    return outcome


def _decoded(record: bytes) -> dict[str, Any] | None:
    try:
        told = codec.decode(record, "note")
    except CapsuleError:
        return None
    return told if isinstance(told.get("u"), str) else None


class _Read:
    """Which of the writes the person can have read when they began to edit."""

    def __init__(self, saved: dict[str, Any], writes: list[dict[str, Any]]) -> None:
        self.ids = {entry.get("id"): entry for entry in saved["history"] if isinstance(entry, dict)}
        try:
            self.stamp = timestamps.canonical(str(saved.get("updatedAt")))
        except ValueError:
            self.stamp = ""
        stamps = [write["u"] for write in writes if write["k"] != "head"]
        # An `updatedAt` later than every write's was set by hand, or by a tool: it tells nothing.
        self._trusted = bool(stamps) and self.stamp <= max(stamps)
        self._first = next((i for i, write in enumerate(writes) if write["u"] == self.stamp and write["k"] != "head"),
                           -1)  # fmt: skip
        self._last = max((i for i, write in enumerate(writes) if self._holds(write)), default=-1)

    def _holds(self, write: dict[str, Any]) -> bool:
        return write["k"] == "append" and any(entry.get("id") in self.ids for entry in write["e"])

    def had(self, place: int, write: dict[str, Any]) -> bool:
        """Whether the write at `place` was there to be read."""
        if place <= self._last or place == self._first:
            return True
        return self._trusted and write["u"] < self.stamp


def _messages(outcome: Outcome, writes: list[dict[str, Any]], read: _Read) -> None:
    """Bring back the messages that were not there to be read; name those that were, and are gone."""
    pending: dict[str, dict[str, Any]] = {}
    for place, write in enumerate(writes):
        if write["k"] == "append":
            missing = [entry for entry in write["e"] if entry.get("id") not in read.ids]
            if read.had(place, write):
                outcome.removed += [entry["id"] for entry in missing]
            else:
                pending |= {entry["id"]: entry for entry in missing}
        elif write["k"] == "edit" and write["e"].get("id") in pending:
            pending[write["e"]["id"]] = write["e"]
        elif write["k"] == "gone":
            for id in write["ids"]:
                pending.pop(id, None)
    if pending:
        outcome.restored = list(pending.values())
        outcome.document["history"] = [*outcome.document["history"], *outcome.restored]


def _edits(outcome: Outcome, writes: list[dict[str, Any]], read: _Read) -> None:
    """Make the edits again that were not there to be read, where the person left the message alone."""
    latest = {write["e"].get("id"): place for place, write in enumerate(writes) if write["k"] == "edit"}
    for id, place in latest.items():
        write = writes[place]
        there = read.ids.get(id)
        if there is None or read.had(place, write):
            continue
        befores = {older["was"] for older in writes if older["k"] == "edit" and older["e"].get("id") == id}
        if digest(there) == digest(write["e"]):
            continue
        if digest(there) in befores:
            outcome.document["history"] = [
                write["e"] if entry is there else entry for entry in outcome.document["history"]
            ]
            outcome.remade.append(f"the edit of message {id}")
        else:
            outcome.overruled.append((write["e"], f"an edit of message {id}, which the saved version edits too"))


def _head(outcome: Outcome, writes: list[dict[str, Any]], read: _Read) -> None:
    """Merge the head three ways: what the person read, what the store has written since, what they saved."""
    heads = [write for write in writes if write["k"] == "head"]
    if not heads:
        return
    saved = {key: value for key, value in outcome.document.items() if key not in _HEAD_APART}
    ours = _flat(heads[-1]["h"])
    theirs = _flat(saved)
    readable = [head for head in heads if head["u"] <= read.stamp] or heads
    base = min(reversed([_flat(head["h"]) for head in readable]), key=lambda flat: len(_differing(flat, theirs)))
    locks = [digest(_flat(head["h"]).get(("metadata", "lock"))) for head in heads]
    merged = dict(theirs)
    for key in _differing(base, ours):
        was, mine, saved_value = (flat.get(key, _ABSENT) for flat in (base, ours, theirs))
        if _same(saved_value, mine):
            continue
        if _same(saved_value, was) or (key == ("metadata", "lock") and digest(saved_value) in locks):
            merged[key] = mine
            if key != ("metadata", "lock"):
                outcome.remade.append(f"the change of {key[-1]}")
            else:
                outcome.remade.append("the lock")
        elif key == ("metadata", "tags") and isinstance(was, list):
            merged[key] = _merged_tags(was, mine, saved_value)
            outcome.remade.append("the change of tags")
        else:
            kept = {".".join(key): None if mine is _ABSENT else mine}
            outcome.overruled.append((kept, f"a change of {key[-1]}, which the saved version changes too"))
    if outcome.remade:
        rest = {key: value for key, value in outcome.document.items() if key in _HEAD_APART}
        outcome.document = _deep(merged) | rest


_ABSENT: Any = object()
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


def _merged_tags(was: list[Any], mine: Any, saved: Any) -> list[Any]:
    """Both sides' additions and removals, the saved version's order first."""
    mine, saved = (tags if isinstance(tags, list) else [] for tags in (mine, saved))
    dropped = [tag for tag in was if tag not in mine]
    added = [tag for tag in mine if tag not in was and tag not in saved]
    return [tag for tag in saved if tag not in dropped] + added


def _remembered(writes: list[dict[str, Any]], read: _Read) -> list[bytes]:
    """The records that are still of use: what was taken out on purpose must not come back later."""
    kept = []
    for write in writes:
        if write["k"] == "append":
            entries = [entry for entry in write["e"] if entry.get("id") in read.ids]
            if entries:
                kept.append(append_record(write["u"], entries))
        else:
            kept.append(orjson.dumps(write))
    return kept
