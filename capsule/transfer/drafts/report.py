"""Define the report of an import: the result for each conversation, and damage and notes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from capsule.transfer.reading.files import Damage, Problems

#: The states of a result.
STATES = ("imported", "updated", "unchanged", "skipped")
#: The unknown files of one program that are named. The others are counted.
_MAX_NAMED = 100


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result for one conversation of a source.

    Attributes:
        id: The conversation. Empty: the source is empty, so nothing is imported.
        title: Its title in the source.
        messages: The number of its messages in the source.
        format: The format of the source.
        source: Its id in the source.
        path: The file.
        state: `imported`, `updated`, `unchanged`, or `skipped`: it is in the trash, both sides
            changed the same, or it is empty.
    """

    id: str
    title: str
    messages: int
    format: str
    source: str
    path: str
    state: str

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
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
    """A file in no known format.

    Attributes:
        path: The file.
        guess: The program that it may come from. Empty: it looks like no conversation.
    """

    path: str
    guess: str


@dataclass(slots=True)
class Report:
    """The report of an import.

    Attributes:
        conversations: The results for the conversations that were found.
        problems: The damage.
        unknown: The files in no known format.
        notes: Conversations that are imported in another way than their source has them.
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
        """Return the number of conversations in a state."""
        return sum(result.state == state for result in self.conversations)

    def unknown_paths(self) -> dict[str, list[str]]:
        """Return the paths of the files in no known format, by the guess of their program.

        Files without a guess come last.
        """
        paths: dict[str, list[str]] = {}
        for file in sorted(self.unknown, key=lambda file: (not file.guess, file.guess)):
            paths.setdefault(file.guess, []).append(file.path)
        return paths

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        unknown = [
            {"guess": guess, "files": len(paths), "paths": paths[:_MAX_NAMED]}
            for guess, paths in self.unknown_paths().items()
        ]
        problems = [
            {"path": damage.path, "line": damage.line, "what": damage.reason}
            for damage in self.remarks
        ]
        return {
            **{state: self.count(state) for state in STATES},
            "damaged": self.problems.count,
            "conversations": [result.as_json() for result in self.conversations],
            "problems": problems,
            "unknown": unknown,
        }
