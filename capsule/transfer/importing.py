"""Bringing conversations into a store: each file, each draft in it, and what becomes of it.

What must stay true: each conversation is one durable write, so that an import can be stopped and run again. What was
imported before is found by its id, and nothing is doubled. Damage is reported and ends nothing but its own record.
What is remembered of imports (`memory`) is derived: without it they only take longer.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from hashlib import sha256
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
from capsule.store.creation import TakenId, write_new
from capsule.store.reading import KIND
from capsule.transfer.conversion import Empty, document_of, source_id
from capsule.transfer.digests import digest_of_document
from capsule.transfer.interface import Draft, Format, Source, read_bytes
from capsule.transfer.memory import Memory
from capsule.transfer.registry import drafts_of, format_named, format_of
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
#: So many new conversations are written at once.
_AT_ONCE = 8
#: Errors of one conversation, which the others do not share.
_TOLD = (InvalidInput, InvalidDocument, Locked, LockLost, StoreBusy)


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
            progress: Called with the bytes that were read, all bytes, and the report so far: what it has is durable.

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
        only = None if format is None else format_named(format)
        if only is not None and only.read is None:
            raise InvalidInput(f"{only.name} is only written; the content of a file tells its format")
        run = _Run(self._store, only, on_conflict, is_dry_run=is_dry_run)
        with ExitStack() as stack:
            files = deque(file for path in paths for file in files_at(path, run.report.problems))
            if stream is not None:
                files.append(stack.enter_context(spooled(stream, run.report.problems)))
            stack.callback(run.finish)
            run.take(files, progress or (lambda done, total, report: None))
        return run.report


@dataclass(slots=True)
class _Read:
    """A file that was read.

    Attributes:
        name: Its path.
        digest: The digest of its content.
        is_whole: Whether all of it was taken, so that the next import need not read it.
        taken: The conversations in it.
        awaited: How many conversations in it are not written yet, or could not be.
        near: The patterns and the digest of the files that it was read with; None: there are none.
    """

    name: str
    digest: str
    is_whole: bool = True
    taken: list[Taken] = field(default_factory=list)
    awaited: int = 0
    near: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """What is remembered of it."""
        rows = [
            (one.id, one.title, one.messages, one.format, one.source, one.path.removeprefix(self.name))
            for one in self.taken
        ]
        return {"rows": rows, "near": self.near}


@dataclass(slots=True)
class _Made:
    """What a draft became, and the write that is under way; None: there is none."""

    taken: Taken
    read: _Read
    tell: Callable[[str], None]
    document: Document = field(default_factory=dict)
    digest: str = ""
    write: Future[Any] | None = None


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
        #: New conversations are written while the next ones are read: most of a write is waiting for the disk.
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        #: What is not in the report yet: behind a write that is under way, in the order of the source.
        self._pending: deque[_Made] = deque()
        self._read: list[_Read] = []
        self._trashed: set[str] | None = None
        self._removed: dict[str, list[Any]] | None = None

    def finish(self) -> None:
        try:
            self._settle(0)
        finally:
            self._pool.shutdown()
            if not self._is_dry_run:
                for read in self._read:
                    if read.is_whole and not read.awaited:
                        self._memory.files[read.digest] = read.as_json()
                self._memory.save()

    def take(self, files: deque[File], progress: Progress) -> None:
        total, done = sum(file.size for file in files), 0
        while files:
            file = files.popleft()  # It holds its beginning in memory.
            for part in self._taken(file):
                progress(done + min(part.at, file.size), total, self.report)
            done += file.size
            progress(done, total, self.report)
        self._settle(0)
        progress(done, total, self.report)

    def _taken(self, file: File) -> Iterator[File]:
        """Import a file; the parts of it, as they are read."""
        report, only = self.report, self._only.name if self._only else ""
        read, problems = _Read(file.name, f"{only}:{file.digest()}"), report.problems.count
        before = self._memory.files.get(read.digest)
        if before is not None and self._is_as(file, before):
            for id, title, count, name, source, inside in before["rows"]:
                state = "unchanged" if id else "skipped"
                self._note(_Made(Taken(id, title, count, name, source, file.name + inside, state), read, file.tell))
            return
        asked = set[str]()
        is_known = False
        for part in opened(file):
            format = format_of(part, self._only)
            if format is None:
                report.unknown.append(part.name)
            else:
                is_known = True
                for _ in self._drafts(part, format, read):
                    yield part
            is_known = is_known and part.asked is not None
            asked |= part.asked or set()
        if asked:
            read.near = {"patterns": sorted(asked), "digest": file.digest_of_near(asked)}
        read.is_whole = read.is_whole and is_known and report.problems.count == problems
        self._read.append(read)

    def _is_as(self, file: File, before: dict[str, Any]) -> bool:
        """Whether a file, those it was read with, and what was made of it are as they were."""
        near = before["near"]
        if near is not None and near["digest"] != file.digest_of_near(near["patterns"]):
            return False
        return all(self._store.engine.exists(KIND, row[0]) for row in before["rows"] if row[0])

    def _drafts(self, file: File, format: Format, read: _Read) -> Iterator[None]:
        nameless: Counter[str] = Counter()
        for draft in drafts_of(file, format):
            suffix = ""
            if not draft.id:
                said = source_id(draft)
                suffix = f"#{nameless[said]}" if nameless[said] else ""
                nameless[said] += 1
            self._take(file, format, draft, suffix, read)
            yield

    def _take(self, file: File, format: Format, draft: Draft, suffix: str, read: _Read) -> None:
        def tell(what: str, id: str = "") -> None:
            file.tell(what, draft.lines.get(id, draft.line))

        def put(suffix: str) -> tuple[str, bool]:
            limit = self._store.settings.message_bytes
            document = document_of(draft, format.name, self._stamp, tell, self._keep, suffix, limit)
            digest, count = digest_of_document(document), len(document["history"])
            taken = Taken(document["id"], document["title"], count, format.name, source_id(draft), file.name, "")
            return digest, self._put(_Made(taken, read, tell, document, digest))

        try:
            digest, is_conflict = put(suffix)
            if is_conflict and self._on_conflict == "copy":
                put(f"{suffix}#copy-{digest}")
        except Empty:  # As an empty chat is: no damage, and nothing to keep.
            if draft.id:
                self._note(_Made(Taken("", "", 0, format.name, draft.id, file.name, "skipped"), read, tell))
        except _TOLD as error:
            tell(error.message)

    def _put(self, new: _Made) -> bool:
        """Write what a draft became, and note its state; whether both sides changed the same."""
        id, engine = new.taken.id, self._store.engine
        if any(pending.taken.id == id for pending in self._pending):
            self._settle(0)
        if not engine.exists(KIND, id):
            if id in self._in_trash():
                new.read.is_whole = False
                self._note(new, "skipped")
                return False
            if not self._is_dry_run:
                self._settle(_AT_ONCE - 1)
                new.write = self._pool.submit(write_new, self._store, new.document, has_checked_messages=True)
            self._note(new, "imported")
            return False
        if self._memory.conversations.get(id) == new.digest:
            self._note(new, "unchanged")
            return False
        present, removed, theirs = self._store.document(id), self._removed_from(id), self._on_conflict == "update"

        def change(now: Document) -> Document:
            return revised(now, new.document, removed, theirs=theirs).document

        found = revised(present, new.document, removed, theirs=theirs)
        is_changed, is_open = found.document is not present, bool(found.conflicts) and not theirs
        if is_open:
            new.read.is_whole = False
        if not self._is_dry_run:
            if is_changed:
                self._store._change(id, lambda conversation: conversation.rewrite(change, reason="edited"))
            if not is_open:
                self._memory.conversations[id] = new.digest
        self._note(new, "updated" if is_changed else "skipped" if is_open else "unchanged")
        return is_open

    def _note(self, new: _Made, state: str = "") -> None:
        new.taken = replace(new.taken, state=state or new.taken.state)
        new.read.awaited += 1
        self._pending.append(new)
        self._settle(_AT_ONCE)

    def _settle(self, most: int) -> None:
        """Report what became of drafts, until at most so many are behind a write that is under way."""
        while self._pending and (len(self._pending) > most or self._pending[0].write is None):
            new = self._pending.popleft()
            try:
                if new.write is not None:
                    new.write.result()
                    self._memory.conversations[new.taken.id] = new.digest
            except TakenId:  # Another process was quicker.
                new.write = None
                self._put(new)
            except _TOLD as error:
                new.tell(error.message)
                continue
            else:
                self.report.conversations.append(new.taken)
                new.read.taken.append(new.taken)
            new.read.awaited -= 1

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
