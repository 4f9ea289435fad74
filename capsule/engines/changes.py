"""Define the changes of conversations that an engine reports to followers.

What must stay true: a change names what changed, and has no text. A program that needs the text
reads it from the store. The names of kinds and fields are part of the plain output, and stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

KINDS = (
    "created",
    "appended",
    "edited",
    "head",
    "locked",
    "unlocked",
    "deleted",
    "restored",
    "damaged",
    "repaired",
)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one conversation.

    Attributes:
        kind: One of `KINDS`.
        id: The conversation.
        at: The time at which it was noticed, as the format writes times.
        cursor: The cursor after this change.
        messages: The ids of the messages that are new or changed. A message without an id has the
            id that the next write gives it.
        removed: The ids of the removed messages (kind `edited`).
        fields: The names of the head's fields that changed (kind `head`), as in `Head`.
        source: "store" if a store wrote this version, "outside" if an editor, git or another
            program did.
        own: Whether the store that reports the change made it.
        lock: The present lock (kind `locked`), or the former one (kind `unlocked`).
        damaged: The damage of the file (kind `damaged`).
        count: The present number of messages of the conversation.
        tag, was: The tags of this version and of the one before, if a store wrote them. A tag is
            the key of a version (`DocumentState.tag`). `OwnWrites` finds `own` by the ids of
            messages, and for other kinds by the chain of tags. They are not in `as_json`.
        before: The cursor before this change. A change of messages by several authors is split, and
            the cursors of its parts are counted from here.
    """

    kind: str
    id: str
    at: str
    cursor: str
    messages: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    source: str = "store"
    own: bool = False
    lock: dict[str, Any] | None = None
    damaged: str = ""
    count: int = 0
    tag: str = field(default="", repr=False, compare=False)
    was: str = field(default="", repr=False, compare=False)
    before: str = field(default="", repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        """Return the change as `--json` prints it, without empty fields of only some kinds."""
        change: dict[str, Any] = {
            "kind": self.kind,
            "id": self.id,
            "at": self.at,
            "cursor": self.cursor,
            "source": self.source,
            "own": self.own,
            "count": self.count,
        }
        for name in ("messages", "removed", "fields"):
            if getattr(self, name):
                change[name] = list(getattr(self, name))
        if self.lock is not None:
            change["lock"] = self.lock
        if self.damaged:
            change["damaged"] = self.damaged
        return change


class Interest(NamedTuple):
    """The changes that somebody waits for.

    Attributes:
        ids: The conversations of which every change but an append counts. None: all.
        appends_in: The conversations in which appends count. None: all.
    """

    ids: frozenset[str] | None = None
    appends_in: frozenset[str] | None = None

    def includes(self, kind: str, id: str) -> bool:
        """Return whether a change counts, by its kind and its conversation."""
        ids = self.appends_in if kind == "appended" else self.ids
        return ids is None or id in ids

    def covers(self, other: Interest) -> bool:
        """Return whether everything that counts for the other one counts here."""
        for own, others in zip(self, other, strict=True):
            if own is not None and (others is None or not others <= own):
                return False
        return True

    def union(self, other: Interest) -> Interest:
        """Return what counts for one of the two."""
        return Interest(
            *(
                None if own is None or others is None else own | others
                for own, others in zip(self, other, strict=True)
            )
        )


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes since a cursor, oldest first.

    Attributes:
        cursor: The cursor after all of them. It may also be past changes that the reader may not
            see.
    """

    changes: list[Change] = field(default_factory=list)
    cursor: str = ""
