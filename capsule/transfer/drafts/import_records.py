"""What is known of imports: the report of one, and the memory that makes importing the same again cheap.

A report has the result for each conversation, damage and notes. The memory holds digests of files and
conversations, and no text of a conversation.

Invariants: the memory is derived and can be deleted at any time. Without it, a source that
contradicts another one counts as its later version. A memory that another version of Capsule wrote
is ignored, since that version may read files differently.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

import capsule
from capsule.engines.interface import CONVERSATIONS
from capsule.errors import CapsuleError, InvalidDocument, NotFound
from capsule.transfer.drafts.digests import provenance_of
from capsule.transfer.reading.files import Damage, Problems
from capsule.transfer.records.mapping import CAPSULE_KEY

if TYPE_CHECKING:
    from capsule.engines.interface import Engine
    from capsule.transfer.reading.files import SourceFile


# -- The report of an import -----------------------------------------------------------------------

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


# -- The memory of imports -------------------------------------------------------------------------

_KIND = "imports"
_ID = "digests"
#: The version of the memory's form, after that of Capsule.
_FORMAT_VERSION = f"{capsule.__version__}/2"
#: The files, and the conversations, that are remembered: the last ones.
_MAX_REMEMBERED = 100_000


@dataclass(slots=True)
class ImportedFile:
    """A file that was imported.

    Attributes:
        name: Its path.
        digest: The digest of its content.
        is_whole: Whether all of it was imported, so that the next import need not read it.
        results: The results for the conversations in it.
        unwritten: The number of conversations in it that are not written yet, or could not be.
        neighbours: The patterns and the digest of the files that it was read with. None: it was
            read alone.
    """

    name: str
    digest: str
    is_whole: bool = True
    results: list[ImportResult] = field(default_factory=list)
    unwritten: int = 0
    neighbours: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the record of the file for the memory, which has no text."""
        return {
            "rows": [(result.id, result.format, result.messages) for result in self.results],
            "near": self.neighbours,
        }


class ImportMemory:
    """The memory of the imports into a store.

    Attributes:
        files: By the digest of a file's content, its record (`ImportedFile.as_json`).
        conversations: By the id of a conversation, two digests: of its last import, and of the
            source of that import.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        saved: dict[str, Any] = {}
        with suppress(CapsuleError):
            saved = engine.local.read(_KIND, _ID) or {}
        self._saved_bytes = orjson.dumps(saved)
        if saved.get("version") != _FORMAT_VERSION:
            saved = {}
        self.files: dict[str, dict[str, Any]] = saved.get("files", {})
        self.conversations: dict[str, tuple[str, str]] = saved.get("conversations", {})

    def unchanged_results(self, file: SourceFile, digest: str) -> list[ImportResult] | None:
        """Return the results for a file that was imported before. None: it must be read.

        It must be read if it, the files that it was read with, or the conversations changed or are
        missing. `digest` is the digest of its content and of the options.
        """
        record = self.files.get(digest)
        if record is None:
            return None
        neighbours = record["near"]
        if neighbours and neighbours["digest"] != file.digest_of_near(neighbours["patterns"]):
            return None
        results = []
        for id, format, count in record["rows"]:
            title = source = ""
            if id:
                try:
                    head, _ = self._engine.head(id)
                except (NotFound, InvalidDocument):
                    return None
                title = head["title"]
                provenance = provenance_of(head)
                is_imported = provenance.get("format") in (format, CAPSULE_KEY)
                source = str(provenance.get("id")) if is_imported else id
            results.append(
                ImportResult(
                    id=id,
                    title=title,
                    messages=count,
                    format=format,
                    source=source,
                    path=file.name,
                    state="unchanged" if id else "skipped",
                )
            )
        return results

    def forget(self) -> None:
        """Forget all files, and the conversations that don't exist anymore.

        Raises the errors of `Engine.edit`.
        """
        self.files = {}
        self.conversations = {
            id: digests
            for id, digests in self.conversations.items()
            if self._engine.exists(CONVERSATIONS, id)
        }
        if self._engine.local.read(_KIND, _ID) is not None:
            self._write()

    def save(self) -> None:
        """Write the memory if it changed. A failure is ignored: the memory only saves time."""
        with suppress(CapsuleError):
            self._write()

    def _write(self) -> None:
        document = {
            "id": _ID,
            "version": _FORMAT_VERSION,
            "files": _newest(self.files),
            "conversations": _newest(self.conversations),
        }
        if orjson.dumps(document) != self._saved_bytes:
            self._engine.local.edit(_KIND, _ID, lambda saved: document)


def _newest(entries: dict[str, Any]) -> dict[str, Any]:
    """Return the last entries, as many as are remembered."""
    dropped = max(len(entries) - _MAX_REMEMBERED, 0)
    return dict(islice(entries.items(), dropped, None))
