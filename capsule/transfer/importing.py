"""Bringing conversations into a store: each file, each draft in it, and what becomes of it.

What must stay true: each conversation is one durable write, so that an import can be stopped and run again. What was
imported before is found by its id, and nothing is doubled. Damage is reported and ends nothing but its own record.
What is remembered of imports (`memory`) is derived: without it they only take longer.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Any, BinaryIO, get_args

from capsule import timestamps
from capsule.errors import (
    InvalidDocument,
    InvalidInput,
    Locked,
    LockLost,
    Refused,
    StoreBusy,
)
from capsule.format import codec
from capsule.store.change import REMOVED
from capsule.store.creation import write_new
from capsule.store.reading import KIND
from capsule.transfer.conversion import digest_of, document_of, source_id
from capsule.transfer.interface import Draft, Format, Source, read_bytes
from capsule.transfer.memory import Memory
from capsule.transfer.reading import drafts_of, format_of
from capsule.transfer.registry import format_named
from capsule.transfer.revision import OnConflict, revised
from capsule.transfer.sources import File, Problems, files_at, opened, spooled

if TYPE_CHECKING:
    from capsule.store.store import Store

Document = dict[str, Any]
#: Takes the bytes that were read, all bytes, and the report so far.
Progress = Callable[[int, int, "Report"], None]
STATES = ("imported", "updated", "unchanged", "skipped")
#: The largest attachment that is stored, in bytes.
_LARGEST_FILE = 1 << 28


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
        state: `imported`, `updated`, `unchanged`, or `skipped`: it is in the trash, or both sides changed the same.
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
    """

    conversations: list[Taken] = field(default_factory=list)
    problems: Problems = field(default_factory=Problems)
    unknown: list[str] = field(default_factory=list)

    def count(self, state: str) -> int:
        """The number of conversations in a state."""
        return Counter(taken.state for taken in self.conversations)[state]

    def as_json(self) -> dict[str, Any]:
        """The report as JSON."""
        counts = Counter(taken.state for taken in self.conversations)
        problems = [{"path": one.path, "line": one.line, "what": one.what} for one in self.problems.found]
        return {
            **{state: counts[state] for state in STATES},
            "damaged": self.problems.count,
            "conversations": [taken.as_json() for taken in self.conversations],
            "problems": problems,
        }


class Import:
    """Bringing conversations of other programs into a store: `store.import_(path)`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(
        self,
        *paths: str | os.PathLike[str],
        format: str | None = None,
        on_conflict: OnConflict = "skip",
        is_dry_run: bool = False,
        stream: BinaryIO | None = None,
        progress: Progress | None = None,
    ) -> Report:
        """Import the conversations of files, folders and zips. Those imported before are updated.

        Args:
            paths: The files, folders and zips.
            format: The name of the format, as `transfer.formats()` has it. None: the content tells it.
            on_conflict: Where the source and this store changed the same message or field: `skip` leaves it, `update`
                takes what the source has (the former text goes to the trash), and `copy` makes a second conversation.
            is_dry_run: Whether only the report is made.
            stream: A file that is read once, besides `paths`.
            progress: Called with the bytes that were read, all bytes, and the report so far.

        Raises:
            NotFound: There is nothing at a path.
            InvalidInput: No such format or choice.
            Refused, StorageFailed: The system did not permit it; what was imported before stays.

        Cost: reading the files once, and for each new conversation two flushes. A file that was imported before is
            only read for its digest.
        """
        if self._store.agent is not None:
            raise Refused("conversations are imported by the owner of the store", path="")
        if on_conflict not in get_args(OnConflict):
            raise InvalidInput(f"{on_conflict!r} is no choice for conflicts; these are skip, update and copy")
        run = _Run(self._store, None if format is None else format_named(format), on_conflict, is_dry_run=is_dry_run)
        with ExitStack() as stack:
            files = [file for path in paths for file in files_at(path, run.report.problems)]
            if stream is not None:
                files.append(stack.enter_context(spooled(stream, run.report.problems)))
            stack.callback(run.finish)
            run.take(files, progress or (lambda done, total, report: None))
        return run.report


class _Run:
    """One import."""

    def __init__(self, store: Store, only: Format | None, on_conflict: str, *, is_dry_run: bool) -> None:
        self.report = Report()
        self._store = store
        self._only = only
        self._on_conflict = on_conflict
        self._is_dry_run = is_dry_run
        self._memory = Memory(store.engine)
        self._stamp = timestamps.now()
        self._trashed: set[str] | None = None
        self._removed: dict[str, list[Any]] | None = None

    def finish(self) -> None:
        if not self._is_dry_run:
            self._memory.save()

    def take(self, files: list[File], progress: Progress) -> None:
        total, done = sum(file.size for file in files), 0
        for file in files:
            for part in self._taken(file):
                progress(done + min(part.at, file.size), total, self.report)
            done += file.size
            progress(done, total, self.report)

    def _taken(self, file: File) -> Iterator[File]:
        """Import a file; the parts of it, as they are read."""
        report, only = self.report, self._only.name if self._only else ""
        digest = f"{only}:{_digest(file)}"
        before = self._memory.file(digest)
        if before is not None and all(self._store.engine.exists(KIND, row[0]) for row in before):
            for id, title, count, name, source, inside in before:
                report.conversations.append(Taken(id, title, count, name, source, file.name + inside, "unchanged"))
            return
        problems, first = report.problems.count, len(report.conversations)
        is_alone, is_known = True, False
        for part in opened(file):
            format = format_of(part, self._only)
            if format is None:
                report.unknown.append(part.name)
            else:
                is_known = True
                for _ in self._drafts(part, format):
                    yield part
            is_alone = is_alone and part.is_alone
        taken = report.conversations[first:]
        is_settled = report.problems.count == problems and all(one.state != "skipped" for one in taken)
        if is_known and is_alone and is_settled:
            rows = [
                (one.id, one.title, one.messages, one.format, one.source, one.path.removeprefix(file.name))
                for one in taken
            ]
            self._memory.keep_file(digest, rows)

    def _drafts(self, file: File, format: Format) -> Iterator[None]:
        nameless: Counter[str] = Counter()
        for draft in drafts_of(file, format):
            suffix = ""
            if not draft.id:
                said = source_id(draft)
                suffix = f"#{nameless[said]}" if nameless[said] else ""
                nameless[said] += 1
            self._take(file, format, draft, suffix)
            yield

    def _take(self, file: File, format: Format, draft: Draft, suffix: str) -> None:
        def tell(what: str) -> None:
            file.tell(what, draft.line)

        def add(document: Document, state: str) -> None:
            title, count = document["title"], len(document["history"])
            self.report.conversations.append(
                Taken(document["id"], title, count, format.name, source_id(draft), file.name, state)
            )

        try:
            document = self._document(draft, format, tell, suffix)
            digest = digest_of([document["title"], document["metadata"], document["context"], document["history"]])
            state, is_conflict = self._put(document, digest)
            add(document, state)
            if is_conflict and self._on_conflict == "copy":
                document = self._document(draft, format, tell, f"{suffix}#copy-{digest}")
                add(document, self._put(document, digest)[0])
        except (InvalidInput, InvalidDocument, Locked, LockLost, StoreBusy) as error:
            tell(error.message)

    def _document(self, draft: Draft, format: Format, tell: Callable[[str], None], suffix: str) -> Document:
        limit = self._store.settings.message_bytes
        return document_of(draft, format.name, self._stamp, tell, self._keep, suffix, limit)

    def _put(self, document: Document, digest: str) -> tuple[str, bool]:
        """Write what a draft became; its state, and whether both sides changed the same."""
        id, engine = document["id"], self._store.engine
        if not engine.exists(KIND, id):
            if id in self._in_trash():
                return "skipped", False
            if not self._is_dry_run:
                write_new(self._store, document)
                self._memory.keep_conversation(id, digest)
            return "imported", False
        if self._memory.conversation(id) == digest:
            return "unchanged", False
        present = self._store.document(id)
        removed = self._removed_from(id)
        theirs = self._on_conflict == "update"
        change = revised(present, document, removed, theirs=theirs)
        is_open = bool(change.conflicts) and not theirs
        if not self._is_dry_run:
            if change.document is not present:
                self._store._change(
                    id,
                    lambda conversation: conversation.rewrite(
                        lambda now: revised(now, document, removed, theirs=theirs).document,
                        reason="edited",
                    ),
                )
            if not is_open:
                self._memory.keep_conversation(id, digest)
        if change.document is not present:
            return "updated", is_open
        return ("skipped" if is_open else "unchanged"), is_open

    def _in_trash(self) -> set[str]:
        if self._trashed is None:
            self._trashed = {trashed.id for trashed in self._store.engine.trash(KIND)}
        return self._trashed

    def _removed_from(self, id: str) -> set[str]:
        """The ids of the messages that were removed from a conversation, or changed, as far as the trash has them."""
        if self._removed is None:
            self._removed = {}
            for trashed in self._store.engine.trash(REMOVED):
                self._removed.setdefault(trashed.id, []).append(trashed)
        removed = set()
        for trashed in self._removed.get(id, ()):
            kept = codec.decode(self._store.engine.trashed(trashed.token), trashed.path)
            removed |= {entry["id"] for entry in kept["history"]}
        return removed

    def _keep(self, data: bytes | Source) -> tuple[str, int]:
        content = data if isinstance(data, bytes) else read_bytes(data, _LARGEST_FILE)
        digest = sha256(content).hexdigest()
        if not self._is_dry_run:
            self._store.engine.keep_file("attachments", digest, digest, content)
        return digest, len(content)


def _digest(file: File) -> str:
    digest = blake2b(digest_size=16)
    for chunk in file.chunks():
        digest.update(chunk)
    return digest.hexdigest()
