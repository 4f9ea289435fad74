"""Bringing conversations into a store: each file, each draft in it, and what becomes of it.

What must stay true: each conversation is one durable write, so that an import can be stopped and
run again. What was imported before is found by its id, and nothing is doubled. Only a chat is
written to, unless what comes is trusted. What two sources say of one conversation is both kept.
Damage is reported and ends nothing but its own record.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, get_args

from capsule import timestamps
from capsule.engines.interface import CONVERSATIONS
from capsule.errors import InvalidDocument, InvalidInput, Locked, LockLost, Refused, StoreBusy
from capsule.format.json import codec
from capsule.store.change.conversation import REMOVED
from capsule.store.creation import ConversationExists, write_new
from capsule.transfer.drafts.conversion import EmptyDraft, ReportProblem, document_of, source_id
from capsule.transfer.drafts.digests import digest_of, digest_of_document
from capsule.transfer.drafts.export_note import unchanged_since_export
from capsule.transfer.drafts.import_memory import ImportedFile, ImportMemory
from capsule.transfer.drafts.merging import MergeOutcome, OnConflict, contradicts, merge
from capsule.transfer.drafts.report import ImportResult, Report, UnknownFile
from capsule.transfer.drafts.trust import keeps_id, sender_outside, with_imported_senders
from capsule.transfer.interface import Draft, Format, Source, read_bytes, reporting_damage
from capsule.transfer.reading.files import SourceFile
from capsule.transfer.reading.sources import (
    OpenFile,
    files_at,
    from_disk,
    is_stream,
    spooled,
    unpacked,
)
from capsule.transfer.registry import (
    drafts_of,
    format_named,
    format_of,
    guess_of,
    has_value,
    is_part,
    report_unknown,
)

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

Document = dict[str, Any]
#: Takes the bytes that were read, all bytes, and the report so far.
Progress = Callable[[int, int, "Report"], None]
#: The largest attachment that is stored, in bytes.
_LARGEST_FILE = 1 << 28
#: So many new conversations are written at once.
_MAX_PENDING_WRITES = 8
#: Errors of one conversation, which the others do not share.
_CONVERSATION_ERRORS = (InvalidInput, InvalidDocument, Locked, LockLost, StoreBusy)


class Import:
    """Bringing conversations of other programs into a store: `store.import_(path)`."""

    def __init__(self, store: CoreStore) -> None:
        self._store = store

    def __call__(
        self,
        *paths: str | os.PathLike[str],
        format: str | None = None,
        on_conflict: OnConflict = "skip",
        is_dry_run: bool = False,
        is_trusted: bool = False,
        stream: BinaryIO | None = None,
        progress: Progress | None = None,
        open_file: OpenFile = from_disk,
    ) -> Report:
        """Import the conversations of files, folders and zips. Those imported before are updated.

        Args:
            paths: The files, folders and zips.
            format: The name of the format, as `transfer.registry.formats()` has it. None: the
                content tells it.
            on_conflict: Where the source and this store changed the same message or field: `skip`
                leaves it, `update` takes what the source has (the former text goes to the trash),
                and `copy` makes a second conversation.
            is_dry_run: Whether only the report is made.
            is_trusted: Whether the paths were exported from this store: all conversations keep
                their ids and senders. Otherwise only chats keep their ids. What agents said to each
                other comes in as a copy: a chat without participants.
            stream: A file that is read once, besides `paths`.
            progress: Called with the bytes that were read, all bytes, and the report so far: what
                it has is durable.
            open_file: Opens the files on disk.

        Raises:
            NotFound: There is nothing at a path.
            InvalidInput: No such format or choice.
            Refused, StorageFailed: The system refused a read or a write; what was imported before stays.

        Cost: reading the files once, and for each new conversation two flushes. A file that was
            imported before is only read for its digest, and the heads of its conversations.
        """
        if self._store.agent is not None:
            raise Refused("only the owner of the store may import conversations", path="")
        if on_conflict not in get_args(OnConflict):
            raise InvalidInput(
                f"{on_conflict!r} is not a choice for conflicts; these are skip, update and copy"
            )
        only = None if format is None else format_named(format)
        if only is not None and only.read is None:
            raise InvalidInput(
                f"{only.name} can only be exported; without a format, the content of a file decides"
            )
        run = _ImportRun(
            self._store, only, on_conflict, is_dry_run=is_dry_run, is_trusted=is_trusted
        )
        with ExitStack() as stack:
            problems = run.report.problems
            files = deque[SourceFile]()
            streams = []
            for path in paths:
                if is_stream(path):
                    streams.append(
                        SourceFile(os.fspath(path), 0, partial(open_file, Path(path)), problems)
                    )
                else:
                    files.extend(files_at(path, problems, open_file))
            if stream is not None:
                streams.append(SourceFile("-", 0, lambda: nullcontext(stream), problems))
            files.extend(stack.enter_context(spooled(each, has_value)) for each in streams)
            stack.callback(run.finish)
            run.take(files, progress or (lambda done, total, report: None))
        return run.report

    def forget(self) -> None:
        """Forget what files were imported, so that no text of them is left. The next import reads
        them again.

        Raises StoreBusy, Refused, StorageFailed. Cost: a look for each conversation that was
        imported.
        """
        ImportMemory(self._store.engine).forget()


@dataclass(slots=True)
class _PendingImport:
    """What a draft became.

    Attributes:
        source: The digest of where it comes from.
        line: The line of the draft in its file.
        is_copy: Whether it is a conversation of agents, which comes in as a chat.
        unchanged: The ids of the messages that are as an export of this store wrote them.
        exported_head: The digests of the head as an export of this store wrote it. None: it is no
            such export.
        present: The conversation that it goes on with; None: it is not read.
        write: The write that is under way; None: there is none.
        other: Makes it again, with a suffix to its id.
    """

    taken: ImportResult
    read: ImportedFile
    tell: Callable[[str], None]
    document: Document = field(default_factory=dict)
    digest: str = ""
    source: str = ""
    line: int | None = None
    is_copy: bool = False
    unchanged: frozenset[str] = frozenset()
    exported_head: Mapping[str, str] | None = None
    present: Document | None = None
    write: Future[Any] | None = None
    other: Callable[[str], _PendingImport] | None = None

    @property
    def is_own(self) -> bool:
        """Whether it is a capsule that keeps its id."""
        return self.taken.id == self.taken.source

    def remark(self, report: Report, reason: str) -> None:
        """Let the report say what became of the draft besides its state."""
        report.notes.add(self.taken.path, reason, self.line)


class _ImportRun:
    """One import."""

    def __init__(
        self,
        store: CoreStore,
        only: Format | None,
        on_conflict: str,
        *,
        is_dry_run: bool,
        is_trusted: bool,
    ) -> None:
        self.report, self._memory, self._stamp = (
            Report(),
            ImportMemory(store.engine),
            timestamps.now(),
        )
        self._store, self._only, self._on_conflict = store, only, on_conflict
        self._is_dry_run, self._is_trusted = is_dry_run, is_trusted
        #: New conversations are written while the next ones are read: most of a write is waiting
        #: for the disk.
        self._pool = ThreadPoolExecutor(_MAX_PENDING_WRITES)
        #: What is not in the report yet: behind a write that is under way, in the order of the
        #: source.
        self._pending: deque[_PendingImport] = deque()
        self._read: list[ImportedFile] = []

    def finish(self) -> None:
        try:
            self._report_until(0)
        finally:
            self._pool.shutdown()
            if not self._is_dry_run:
                for read in self._read:
                    if read.is_whole and not read.awaited:
                        self._memory.files[read.digest] = read.as_json()
                self._memory.save()

    def take(self, files: deque[SourceFile], progress: Progress) -> None:
        total, done = sum(file.size for file in files), 0
        while files:
            file = files.popleft()  # It holds its beginning in memory.
            for part in self._taken(file):
                progress(done + min(part.at, file.size), total, self.report)
            done += file.size
            progress(done, total, self.report)
        self._report_until(0)
        progress(done, total, self.report)

    def _taken(self, file: SourceFile) -> Iterator[SourceFile]:
        """Import a file; the parts of it, as they are read."""
        report, how = (
            self.report,
            f"{self._only.name if self._only else ''}:{'trusted' if self._is_trusted else ''}",
        )
        read, problems, notes = (
            ImportedFile(file.name, f"{how}:{file.digest()}"),
            report.problems.count,
            report.notes.count,
        )
        if (known := self._memory.known(file, read.digest)) is not None:
            for taken in known:
                self._note(_PendingImport(taken, read, file.tell))
            return
        asked = set[str]()
        is_known = False
        for part in unpacked(file):
            format = format_of(part, self._only)
            if format is None:
                if is_part(part):
                    continue
                report.unknown.append(UnknownFile(part.name, guess_of(part)))
                if report.problems.count == problems:  # Otherwise it is known why it can't be read.
                    report_unknown(part, report.notes.add if part.is_named else None)
            else:
                is_known = True
                seen = Counter[str]()
                for draft in drafts_of(part, format):
                    self._take(part, format, draft, seen, read)
                    yield part
            is_known = is_known and part.asked is not None
            asked |= part.asked or set()
        if asked:
            read.near = {"patterns": sorted(asked), "digest": file.digest_of_near(asked)}
        is_sound, is_empty = report.problems.count == problems, not (read.taken or read.awaited)
        if file.is_named and is_empty and is_sound and report.notes.count == notes:
            report.notes.add(file.name, "no conversation was found in it")
        read.is_whole = read.is_whole and is_known and is_sound and not is_empty
        self._read.append(read)

    def _take(
        self, file: SourceFile, format: Format, draft: Draft, seen: Counter[str], read: ImportedFile
    ) -> None:
        """Import a draft; `seen` counts those of each id in this file."""
        limit = self._store.settings.message_bytes

        def tell(reason: str, id: str = "") -> None:
            file.tell(reason, draft.lines.get(id, draft.line))

        def made(suffix: str = "", note: ReportProblem = lambda reason, id: None) -> _PendingImport:
            suffix = suffix if draft.id or not nth else f"#{nth}{suffix}"
            document = document_of(
                draft,
                format.name,
                self._stamp,
                note,
                self._keep,
                suffix,
                limit,
                is_trusted=self._is_trusted,
            )
            unchanged = unchanged_since_export(draft, document)
            count, source = len(document["history"]), source_id(draft)
            taken = ImportResult(
                document["id"], document["title"], count, format.name, source, file.name, ""
            )
            is_copy = draft.is_own and not keeps_id(draft, is_trusted=self._is_trusted)
            place = digest_of([os.path.abspath(file.name), nth])
            new = _PendingImport(
                taken,
                read,
                tell,
                document,
                source=place,
                line=draft.line,
                is_copy=is_copy,
                unchanged=unchanged,
                exported_head=draft.exported_head,
            )
            new.digest = digest_of_document(document, is_own=new.is_own)
            if self._is_trusted:  # What was imported without trust may come in otherwise now.
                new.digest = digest_of([new.digest, "trusted"])
            return new

        first = None
        try:
            with reporting_damage(file.tell, "a conversation", draft.line):
                said = source_id(draft)
                nth, seen[said] = seen[said], seen[said] + 1
                first = made(note=tell)
            if first is not None:
                self._bring(first, made)
        except EmptyDraft:  # As an empty chat is: no damage, and nothing to keep.
            if draft.id:
                self._note(
                    _PendingImport(
                        ImportResult("", "", 0, format.name, draft.id, file.name, "skipped"),
                        read,
                        tell,
                    )
                )
        except _CONVERSATION_ERRORS as error:
            tell(error.message)

    def _bring(self, first: _PendingImport, other: Callable[[str], _PendingImport]) -> None:
        """Import what a draft became; if its id is that of another conversation, under an id with a
        suffix.
        """
        new = self._placed(first, other)
        new.other, id, source = other, new.taken.id, new.taken.source
        if new is not first:
            new.remark(
                self.report,
                f"conversation {first.taken.id} has other content; this one is kept as {id}",
            )
        elif new.is_copy:
            new.remark(
                self.report,
                f"{source} is imported as a copy, chat {id}; --trusted brings it back unchanged",
            )
        if self._put(new) and self._on_conflict == "copy":
            copy = other(f"#copy-{new.digest}")
            copy.other = other
            self._put(copy)

    def _placed(
        self, first: _PendingImport, other: Callable[[str], _PendingImport]
    ) -> _PendingImport:
        """What a draft became, under the id of the first conversation that it continues, or of a
        new one.

        It continues what the same source brought, and what another source brought if it does not
        contradict that.
        """
        mine, new, number = None, first, 1
        while self._exists(id := new.taken.id):
            digest, source = self._memory.conversations.get(id, ("", new.source))
            if digest == new.digest:
                return new
            present = new.present = self._store.document(id)
            if self._is_trusted or present["metadata"].get("type") in (None, "chat"):
                if new.is_own or not contradicts(present, new.document):
                    return new
                mine = mine or (new if source == new.source else None)
            number += 1
            new = other(f"#other-{number}")
        return mine or new

    def _exists(self, id: str) -> bool:
        if any(pending.taken.id == id for pending in self._pending):
            self._report_until(0)
        return self._store.engine.exists(CONVERSATIONS, id)

    def _put(self, new: _PendingImport) -> bool:
        """Write what a draft became, and note its state; whether both sides changed the same."""
        id = new.taken.id
        if not self._exists(id):
            document = self._from_outside(new, None)
            self._remark_senders(new, document)
            if id in self._in_trash:
                new.read.is_whole = False
                self._note(new, "skipped")
                return False
            if not self._is_dry_run:
                self._report_until(_MAX_PENDING_WRITES - 1)
                new.write = self._pool.submit(
                    write_new, self._store.inner, document, has_checked_messages=True
                )
            self._note(new, "imported")
            return False
        digest, source = self._memory.conversations.get(id, ("", new.source))
        if digest == new.digest:
            self._note(new, "unchanged")
            return False
        present, removed = new.present or self._store.document(id), self._removed_from(id)
        is_other_source = source != new.source
        prefer_source = self._on_conflict == "update"

        def merged(now: Document, *, is_other_source: bool = is_other_source) -> MergeOutcome:
            return merge(
                now,
                self._from_outside(new, now),
                removed,
                prefer_source=prefer_source,
                is_own=new.is_own,
                is_other_source=is_other_source,
                is_trusted=self._is_trusted,
                unchanged=new.unchanged,
                exported_head=new.exported_head,
            )

        result = merged(present)
        is_changed = result.document is not present
        is_open = bool(result.conflicts) and not prefer_source
        if is_other_source and result.document != merged(present, is_other_source=False).document:
            new.remark(
                self.report,
                f"it differs from another source of {id}: only its new messages were added",
            )
        if is_changed:
            self._remark_senders(new, self._from_outside(new, present))
        if new.is_own and result.kept_title:
            new.remark(
                self.report,
                f"the title of {id} stays, because a person gave it: {present['title']!r}",
            )
        if is_open:
            new.read.is_whole = False
        if not self._is_dry_run:
            if is_changed:
                self._store.inner.change(
                    id,
                    lambda here: here.rewrite(lambda now: merged(now).document, reason="edited"),
                )
            if not is_open:
                self._memory.conversations[id] = new.digest, source
        self._note(new, "updated" if is_changed else "skipped" if is_open else "unchanged")
        return is_open

    def _from_outside(self, new: _PendingImport, present: Document | None) -> Document:
        """Return what a draft became, as it comes in: unless it is trusted, with no new words from
        an agent here.
        """
        senders = {entry.get("from") for entry in new.document["history"]} & self._agents
        if self._is_trusted or not senders:
            return new.document
        return with_imported_senders(new.document, present, self._agents)

    def _remark_senders(self, new: _PendingImport, document: Document) -> None:
        """Let the report name the agents from whom new messages would have come in."""
        pairs = zip(new.document["history"], document["history"], strict=True)
        renamed = sorted(
            {raw["from"] for raw, came in pairs if raw.get("from") != came.get("from")}
        )
        if renamed:
            senders = ", ".join(map(sender_outside, renamed))
            reason = (
                f"the new messages of {new.taken.id} are imported as from {senders}; --trusted "
                "imports them unchanged"
            )
            new.remark(self.report, reason)

    @cached_property
    def _agents(self) -> frozenset[str]:
        """The ids of the agents here."""
        return frozenset(self._store.engine.ids("agents"))

    def _note(self, new: _PendingImport, state: str = "") -> None:
        new.taken = replace(new.taken, state=state or new.taken.state)
        new.read.awaited += 1
        self._pending.append(new)
        self._report_until(_MAX_PENDING_WRITES)

    def _report_until(self, most: int) -> None:
        """Report what became of drafts, until at most so many are behind a write that is
        under way.
        """
        while self._pending and (len(self._pending) > most or self._pending[0].write is None):
            new = self._pending.popleft()
            try:
                try:
                    if new.write is not None:
                        new.write.result()
                        self._memory.conversations[new.taken.id] = new.digest, new.source
                except ConversationExists:  # Another process was quicker.
                    new.write = None
                    assert new.other is not None
                    self._bring(new, new.other)
                else:
                    self.report.conversations.append(new.taken)
                    new.read.taken.append(new.taken)
            except _CONVERSATION_ERRORS as error:
                new.tell(error.message)
                continue
            new.read.awaited -= 1

    @cached_property
    def _in_trash(self) -> set[str]:
        return {trashed.id for trashed in self._store.engine.trash.entries(CONVERSATIONS)}

    @cached_property
    def _removed(self) -> dict[str, list[Any]]:
        removed = dict[str, list[Any]]()
        for trashed in self._store.engine.trash.entries(REMOVED):
            removed.setdefault(trashed.id, []).append(trashed)
        return removed

    def _removed_from(self, id: str) -> set[str]:
        """The ids of the messages that were removed from a conversation, or changed, as far as the
        trash has them.
        """
        read = self._store.engine.trash.read
        kept = (
            codec.decode(read(trashed.token), trashed.path) for trashed in self._removed.get(id, ())
        )
        return {entry["id"] for document in kept for entry in document["history"]}

    def _keep(self, data: bytes | Source) -> tuple[str, int]:
        content = data if isinstance(data, bytes) else read_bytes(data, _LARGEST_FILE)
        digest = sha256(content).hexdigest()
        if not self._is_dry_run:
            self._store.engine.files.write("attachments", digest, digest, content)
        return digest, len(content)
