"""Changes of conversations, as an engine reports them to followers.

What must stay true: a change names what changed, and has no text. A program that wants the text
reads it from the store, which has the current version by then. The names of kinds and fields are
part of the plain output, and stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


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
        at: When it was noticed, as the format writes times.
        cursor: The place behind this change, to go on from.
        messages: The ids of the messages that are new or changed. A message without an id is named
            by the id that the next write gives it.
        removed: The ids of the messages that are gone (kind `edited`).
        fields: Names of the head's fields that changed (kind `head`), as `Head` has them.
        source: "store" when a store wrote this version; "outside": an editor, git, another program.
        own: Whether the store that reports the change made it.
        lock: The lock as it stands now (kind `locked`), or as it stood (kind `unlocked`).
        damaged: What is wrong with the file (kind `damaged`).
        count: How many messages the conversation has now.
        tag, was: The tags of the version that was read and of the one before (`StateHeader.tag`), if a
            store wrote them. The store compares them to find `own`. `as_json` leaves them out.
        before: The cursor from which this change comes next, so that a part of it can have a cursor
            of its own.
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
        """The change as `--json` prints it. The fields that only some changes have are left out if
        empty.
        """
        change: dict[str, Any] = {
            "kind": self.kind,
            "id": self.id,
            "at": self.at,
            "cursor": self.cursor,
        }
        change |= {"source": self.source, "own": self.own, "count": self.count}
        for name in ("messages", "removed", "fields"):
            if getattr(self, name):
                change[name] = list(getattr(self, name))
        if self.lock is not None:
            change["lock"] = self.lock
        if self.damaged:
            change["damaged"] = self.damaged
        return change


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed since a cursor, oldest first.

    Attributes:
        cursor: The place behind all of them, to go on from.
    """

    changes: list[Change] = field(default_factory=list)
    cursor: str = ""
