"""What an import did: each conversation that was found, and what people should know of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from capsule.transfer.reading.files import Damage, Problems

STATES = ("imported", "updated", "unchanged", "skipped")


@dataclass(frozen=True, slots=True)
class Taken:
    """A conversation of a source, and what became of it.

    Attributes:
        id: The conversation.
        title: Its title in the source.
        messages: The number of its messages in the source.
        format: The format of the source.
        source: The id that it has there.
        path: The file.
        state: `imported`, `updated`, `unchanged`, or `skipped`: it is in the trash, both sides changed the same, or it
            is empty, and then its id is so too.
    """

    id: str
    title: str
    messages: int
    format: str
    source: str
    path: str
    state: str

    def as_json(self) -> dict[str, Any]:
        """The conversation as JSON."""
        source = {"format": self.format, "id": self.source, "path": self.path}
        return {"id": self.id, "title": self.title, "messages": self.messages, "source": source, "state": self.state}


@dataclass(slots=True)
class Report:
    """What an import did.

    Attributes:
        conversations: The conversations that were found.
        problems: What was damaged, with its place.
        unknown: The files that no format knows.
        notes: What is no damage, but came in otherwise than its source has it.
    """

    conversations: list[Taken] = field(default_factory=list)
    problems: Problems = field(default_factory=Problems)
    unknown: list[str] = field(default_factory=list)
    notes: Problems = field(default_factory=Problems)

    @property
    def remarks(self) -> list[Damage]:
        """The notes and the problems."""
        return [*self.notes.first, *self.problems.first]

    def count(self, state: str) -> int:
        """The number of conversations in a state."""
        return sum(taken.state == state for taken in self.conversations)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON."""
        problems = [{"path": damage.path, "line": damage.line, "what": damage.reason} for damage in self.remarks]
        return {
            **{state: self.count(state) for state in STATES},
            "damaged": self.problems.count,
            "conversations": [taken.as_json() for taken in self.conversations],
            "problems": problems,
        }
