"""How far a conversation went when it was summed up, and what became of it since.

What must stay true: whether a source has moved on is worked out from the two conversations as they are, and written
to neither. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.errors import InvalidInput
from capsule.format.paths import active_path
from capsule.format.references import find_message

if TYPE_CHECKING:
    from capsule.format.head import Head


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a conversation went at a time.

    Attributes:
        message: The id of the last message of its active branch, or of the one up to which it was summed up; None
            when it had none.
        messages: How many messages lead there, itself included.
        updated_at: The conversation's `updatedAt` then.
    """

    message: str | None
    messages: int
    updated_at: str

    @classmethod
    def of(cls, document: Mapping[str, Any], up_to: str | None = None) -> Mark:
        """The mark of a conversation as `Store.document` gives it.

        Args:
            document: The conversation.
            up_to: A message of its active branch, as `Store.find_message` takes it; None: its end.

        Raises:
            NotFound, InvalidInput: `up_to` is no message there.
        """
        path = active_path(document)
        if up_to is not None:
            history = document["history"]
            wanted = history[find_message(history, up_to, document["id"])]["id"]
            place = next((place for place, entry in enumerate(path) if entry["id"] == wanted), -1)
            if place < 0:
                raise InvalidInput(f"message {up_to} of conversation {document['id']} is not on its active branch")
            path = path[: place + 1]
        return cls(path[-1]["id"] if path else None, len(path), document["updatedAt"])

    def as_json(self) -> dict[str, Any]:
        """As it stands in `metadata.summaryOf`."""
        return {"message": self.message, "messages": self.messages, "updatedAt": self.updated_at}


@dataclass(frozen=True, slots=True)
class Standing:
    """What became of a summary's source since.

    Attributes:
        state: `current`; `behind`: it went on; `elsewhere`: its active branch is another one, or lost messages;
            `gone`: it can't be read; `unknown`: the summary doesn't say what it was made of.
        added: Messages that came since, on the active branch.
        edited: Messages that were summed up, and changed since.
    """

    state: str
    added: int = 0
    edited: int = 0

    def __str__(self) -> str:
        if self.state == "behind":
            parts = [(self.added, "new", "message"), (self.edited, "edited", "")]
            said = ", ".join(
                f"{many} {what}{' ' + noun + ('s' if many > 1 else '') if noun else ''}"
                for many, what, noun in parts
                if many
            )
            return f"its source has moved on since: {said}"
        return {
            "current": "its source is as it was",
            "elsewhere": "its source has moved on since: what was summed up is no longer all on its active branch",
            "gone": "its source is gone, or can't be read",
            "unknown": "it doesn't say how far its source went",
        }[self.state]

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {"state": self.state, "added": self.added, "edited": self.edited}


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary, and what became of its source since."""

    head: Head
    standing: Standing


def standing_of(summary: Mapping[str, Any], source: Mapping[str, Any] | None) -> Standing:
    """What became of the source of a summary.

    Args:
        summary: The summary, as `Store.document` gives it.
        source: Its source likewise; None: it is gone.
    """
    if source is None:
        return Standing("gone")
    summed_up = summary["metadata"].get("summaryOf")
    if not summed_up:
        return Standing("unknown")
    path = active_path(source)
    last, since = summed_up.get("message"), timestamps.sortable(summed_up.get("updatedAt") or "")
    place = next((place for place, entry in enumerate(path) if entry["id"] == last), -1)
    if last is not None and (place < 0 or place + 1 != summed_up.get("messages", place + 1)):
        return Standing("elsewhere")
    edited = sum(timestamps.sortable(entry.get("editedAt") or "") > since for entry in path[: place + 1])
    added = len(path) - place - 1
    return Standing("behind" if added or edited else "current", added, edited)
