"""What an import did: each conversation that was found, and what people should know of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from capsule.transfer.reading.files import Damage, Problems

STATES = ("imported", "updated", "unchanged", "skipped")
#: So many unknown files of one program are named; the others are counted.
_MOST_NAMED = 100


@dataclass(frozen=True, slots=True)
class ImportResult:
    """A conversation of a source, and what became of it.

    Attributes:
        id: The conversation.
        title: Its title in the source.
        messages: The number of its messages in the source.
        format: The format of the source.
        source: The id that it has there.
        path: The file.
        state: `imported`, `updated`, `unchanged`, or `skipped`: it is in the trash, both sides
            changed the same, or it is empty, and then its id is so too.
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
        return {
            "id": self.id,
            "title": self.title,
            "messages": self.messages,
            "source": source,
            "state": self.state,
        }


@dataclass(frozen=True, slots=True)
class UnknownFile:
    """A file that no format takes.

    Attributes:
        path: The file.
        guess: The program that it may come from; empty: it looks like no conversation.
    """

    path: str
    guess: str


@dataclass(slots=True)
class Report:
    """What an import did.

    Attributes:
        conversations: The conversations that were found.
        problems: What was damaged, with its place.
        unknown: The files that no format takes.
        notes: What is no damage, but came in otherwise than its source has it.
    """

    conversations: list[ImportResult] = field(default_factory=list)
    problems: Problems = field(default_factory=Problems)
    unknown: list[UnknownFile] = field(default_factory=list)
    notes: Problems = field(default_factory=Problems)

    @property
    def remarks(self) -> list[Damage]:
        """The notes and the problems."""
        return [*self.notes.first, *self.problems.first]

    def count(self, state: str) -> int:
        """The number of conversations in a state."""
        return sum(taken.state == state for taken in self.conversations)

    def unknown_paths(self) -> dict[str, list[str]]:
        """The paths of the files that no format takes, by the guess where they come from; those
        without one last.
        """
        paths: dict[str, list[str]] = {}
        for file in sorted(self.unknown, key=lambda file: (not file.guess, file.guess)):
            paths.setdefault(file.guess, []).append(file.path)
        return paths

    def as_json(self) -> dict[str, Any]:
        """The report as JSON."""
        unknown = [
            {"guess": guess, "files": len(paths), "paths": paths[:_MOST_NAMED]}
            for guess, paths in self.unknown_paths().items()
        ]
        problems = [
            {"path": damage.path, "line": damage.line, "what": damage.reason}
            for damage in self.remarks
        ]
        return {
            **{state: self.count(state) for state in STATES},
            "damaged": self.problems.count,
            "conversations": [taken.as_json() for taken in self.conversations],
            "problems": problems,
            "unknown": unknown,
        }
