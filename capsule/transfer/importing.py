"""Import conversations into a store: each file, each draft in it, and the write that it leads to.

A file is read in parts (the files in a zip). Each part has a format, which gives drafts. A draft
becomes a capsule, a `_PendingImport`. If its id is not here yet, it is written by a thread while
the next draft is read. Otherwise it is merged into the conversation that is here. Results are
reported in the order of the source, each after its write.

Invariants: each conversation is one durable write, so that an import can be stopped and run again.
An earlier import is found by the id, and nothing is doubled. Only a chat is written to, unless the
import is trusted. If two sources differ about one conversation, both versions are kept. Damage is
reported and ends nothing but its own record.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from capsule.transfer.drafts.conversion import (
    EmptyDraft,
    ReportProblem,
    document_of,
    keeps_id,
    sender_outside,
    source_id,
    with_imported_senders,
)
from capsule.transfer.drafts.digests import digest_of, digest_of_document
from capsule.transfer.drafts.import_records import (
    ImportedFile,
    ImportMemory,
    ImportResult,
    Report,
    UnknownFile,
)
from capsule.transfer.drafts.reimport import (
    MergeOutcome,
    OnConflict,
    contradicts,
    merge,
    unchanged_since_export,
)
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
#: Gets the number of bytes that were read, the number of all bytes, and the report so far.
Progress = Callable[[int, int, "Report"], None]
#: The largest attachment that is stored, in bytes.
_MAX_ATTACHMENT_BYTES = 1 << 28
#: The new conversations that are written at the same time.
_MAX_PENDING_WRITES = 8
#: The errors that end the import of one conversation only.
_CONVERSATION_ERRORS = (InvalidInput, InvalidDocument, Locked, LockLost, StoreBusy)


class Import:
    """Imports conversations of other programs into a store: `store.import_(path)`."""

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
        """Import the conversations of files, folders and zips. Update those that were imported before.

        Args:
            paths: The files, folders and zips.
            format: The name of the format, as `transfer.registry.formats()` has it. None: the
                content decides it.
            on_conflict: What happens if the source and this store changed the same message or field.
                `skip` leaves it, `update` takes the version of the source (the former text goes to the
                trash), and `copy` makes a second conversation.
            is_dry_run: Whether only the report is made.
            is_trusted: Whether the paths were exported from this store. Then all conversations keep
                their ids and senders. Otherwise only chats keep their ids, and a conversation of agents
                is imported as a copy: a chat without participants.
            stream: A file that can be read once, besides `paths`.
            progress: Called with the bytes that were read, all bytes, and the report so far, whose
                conversations are durable.
            open_file: Opens the files on disk.

        Raises:
            NotFound: Nothing is at a path.
            InvalidInput: The format or the choice does not exist.
            Refused: An agent calls it, or the system refused a read or a write. Conversations that were
                imported before stay.
            StorageFailed: The system refused a read or a write.

        Cost: reading the files once, and for each new conversation two flushes. Of a file that was
            imported before, only its digest and the heads of its conversations are read.
        """
        if self._store.agent is not None:
            raise Refused("only the owner of the store may import conversations", path="")
        if on_conflict not in get_args(OnConflict):
            raise InvalidInput(
                f"{on_conflict!r} is not a choice for conflicts; these are skip, update and copy"
            )
        only_format = None if format is None else format_named(format)
        if only_format is not None and only_format.read is None:
            raise InvalidInput(
                f"{only_format.name} can only be exported; without a format, the content of a file "
                "decides"
            )
        run = _ImportRun(
            self._store, only_format, on_conflict, is_dry_run=is_dry_run, is_trusted=is_trusted
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
            files.extend(stack.enter_context(spooled(file, has_value)) for file in streams)
            stack.callback(run.finish)
            run.import_files(files, progress or (lambda done, total, report: None))
        return run.report

    def forget(self) -> None:
        """Forget which files were imported, so that no text of them is left. The next import reads them
        again.

        Raises StoreBusy, Refused, StorageFailed. Cost: one look-up for each imported conversation.
        """
        ImportMemory(self._store.engine).forget()


@dataclass(slots=True)
class _PendingImport:
    """A draft that became a capsule, up to the report of its result.

    Attributes:
        result: The result for the report.
        file: The file that it is in.
        report_problem: Reports damage of the draft.
        document: The capsule.
        digest: The digest of the capsule, which the next import compares.
        source: The digest of the place that it comes from: the file, and its number there.
        line: The line of the draft in its file.
        is_copy: Whether it is a conversation of agents, which is imported as a chat.
        unchanged: The ids of the messages that are as an export of this store wrote them.
        exported_head: The digests of the head as an export of this store wrote it. None: it is no
            such export.
        present: The conversation here that it continues. None: it is not read yet.
        write: The write that is running. None: none is.
        convert_with_suffix: Converts the draft again, with a suffix to its id.
    """

    result: ImportResult
    file: ImportedFile
    report_problem: Callable[[str], None]
    document: Document = field(default_factory=dict)
    digest: str = ""
    source: str = ""
    line: int | None = None
    is_copy: bool = False
    unchanged: frozenset[str] = frozenset()
    exported_head: Mapping[str, str] | None = None
    present: Document | None = None
    write: Future[Any] | None = None
    convert_with_suffix: Callable[[str], _PendingImport] | None = None

    @property
    def is_own(self) -> bool:
        """Whether it is a capsule that keeps its id."""
        return self.result.id == self.result.source

    def add_note(self, report: Report, reason: str) -> None:
        """Add a note about the draft to the report."""
        report.notes.add(self.result.path, reason, self.line)


class _ImportRun:
    """One import."""

    def __init__(
        self,
        store: CoreStore,
        only_format: Format | None,
        on_conflict: str,
        *,
        is_dry_run: bool,
        is_trusted: bool,
    ) -> None:
        self.report = Report()
        self._memory = ImportMemory(store.engine)
        self._stamp = timestamps.now()
        self._store = store
        self._only_format = only_format
        self._on_conflict = on_conflict
        self._is_dry_run = is_dry_run
        self._is_trusted = is_trusted
        #: New conversations are written while the next ones are read: a write mostly waits for the
        #: disk.
        self._pool = ThreadPoolExecutor(_MAX_PENDING_WRITES)
        #: The results that are not reported yet, in the order of the source: behind a running write.
        self._pending: deque[_PendingImport] = deque()
        self._files: list[ImportedFile] = []

    def finish(self) -> None:
        """Wait for the running writes, and save the memory of the import."""
        try:
            self._flush_results(0)
        finally:
            self._pool.shutdown()
            if not self._is_dry_run:
                for file in self._files:
                    if file.is_whole and not file.unwritten:
                        self._memory.files[file.digest] = file.as_json()
                self._memory.save()

    def import_files(self, files: deque[SourceFile], progress: Progress) -> None:
        """Import files, and call `progress` after each conversation and each file."""
        total = sum(file.size for file in files)
        bytes_done = 0
        while files:
            file = files.popleft()  # It has its beginning in memory.
            for part in self._import_file(file):
                progress(bytes_done + min(part.at, file.size), total, self.report)
            bytes_done += file.size
            progress(bytes_done, total, self.report)
        self._flush_results(0)
        progress(bytes_done, total, self.report)

    def _import_file(self, file: SourceFile) -> Iterator[SourceFile]:
        """Import a file, and return its current part after each draft.

        A file that was imported before, and is unchanged like the files beside it, is not read again.
        """
        report = self.report
        problems_before = report.problems.count
        notes_before = report.notes.count
        imported_file = ImportedFile(file.name, f"{self._options_key}:{file.digest()}")
        results = self._memory.unchanged_results(file, imported_file.digest)
        if results is not None:
            self._queue_remembered(results, file, imported_file)
            return
        neighbour_patterns: set[str] = set()
        is_remembered = False
        for part in unpacked(file):
            format = format_of(part, self._only_format)
            if format is not None:
                is_remembered = True
                yield from self._import_drafts(part, format, imported_file)
            elif is_part(part):
                continue
            else:
                self._report_unknown(part, problems_before)
            is_remembered = is_remembered and part.asked is not None
            neighbour_patterns |= part.asked or set()
        if neighbour_patterns:
            imported_file.neighbours = {
                "patterns": sorted(neighbour_patterns),
                "digest": file.digest_of_near(neighbour_patterns),
            }
        is_sound = report.problems.count == problems_before
        is_empty = not (imported_file.results or imported_file.unwritten)
        if is_empty and is_sound and report.notes.count == notes_before and file.is_named:
            report.notes.add(file.name, "no conversation was found in it")
        if is_empty or not is_sound or not is_remembered:
            imported_file.is_whole = False
        self._files.append(imported_file)

    def _queue_remembered(
        self, results: Iterable[ImportResult], file: SourceFile, imported_file: ImportedFile
    ) -> None:
        """Queue the results of an earlier import of a file that is unchanged."""
        for result in results:
            self._queue_result(_PendingImport(result, imported_file, file.tell))

    def _report_unknown(self, part: SourceFile, problems_before: int) -> None:
        """Report a part in no known format.

        `problems_before` is the number of problems before its file. A new one is the reason.
        """
        self.report.unknown.append(UnknownFile(part.name, guess_of(part)))
        if self.report.problems.count == problems_before:
            report_unknown(part, self.report.notes.add if part.is_named else None)

    @property
    def _options_key(self) -> str:
        """The options on which the result for a file depends."""
        format_name = self._only_format.name if self._only_format else ""
        return f"{format_name}:{'trusted' if self._is_trusted else ''}"

    def _import_drafts(
        self, part: SourceFile, format: Format, imported_file: ImportedFile
    ) -> Iterator[SourceFile]:
        """Import the drafts of a part of a file, and return the part after each."""
        id_counts: Counter[str] = Counter()
        for draft in drafts_of(part, format):
            self._import_draft(part, format, draft, id_counts, imported_file)
            yield part

    def _import_draft(
        self,
        part: SourceFile,
        format: Format,
        draft: Draft,
        id_counts: Counter[str],
        imported_file: ImportedFile,
    ) -> None:
        """Import a draft. `id_counts` counts the drafts of each id in this part, and is changed."""

        def report_problem(reason: str, id: str = "") -> None:
            part.tell(reason, draft.lines.get(id, draft.line))

        def convert(
            suffix: str = "", report: ReportProblem = lambda reason, id: None
        ) -> _PendingImport:
            return self._convert(
                draft, format, part.name, number, suffix, report, imported_file, report_problem
            )

        first = None
        try:
            with reporting_damage(part.tell, "a conversation", draft.line):
                id_at_source = source_id(draft)
                number = id_counts[id_at_source]
                id_counts[id_at_source] += 1
                first = convert(report=report_problem)
            if first is not None:
                self._import_document(first, convert)
        except EmptyDraft:  # It is no damage, and has nothing to keep.
            if draft.id:
                result = ImportResult(
                    id="",
                    title="",
                    messages=0,
                    format=format.name,
                    source=draft.id,
                    path=part.name,
                    state="skipped",
                )
                self._queue_result(_PendingImport(result, imported_file, report_problem))
        except _CONVERSATION_ERRORS as error:
            report_problem(error.message)

    def _convert(
        self,
        draft: Draft,
        format: Format,
        path: str,
        number: int,
        suffix: str,
        report: ReportProblem,
        imported_file: ImportedFile,
        report_problem: Callable[[str], None],
    ) -> _PendingImport:
        """Convert a draft to a capsule.

        Args:
            draft: The draft.
            format: Its format.
            path: Its file.
            number: The number of earlier drafts with its id in the file.
            suffix: A suffix to its id.
            report: Gets problems of the conversion.
            imported_file: The file, for the memory.
            report_problem: Gets problems of the later write.
        """
        if number and not draft.id:
            suffix = f"#{number}{suffix}"
        document = document_of(
            draft,
            format.name,
            self._stamp,
            report,
            self._store_attachment,
            suffix,
            self._store.settings.message_bytes,
            is_trusted=self._is_trusted,
        )
        result = ImportResult(
            id=document["id"],
            title=document["title"],
            messages=len(document["history"]),
            format=format.name,
            source=source_id(draft),
            path=path,
            state="",
        )
        pending = _PendingImport(
            result,
            imported_file,
            report_problem,
            document,
            source=digest_of([os.path.abspath(path), number]),
            line=draft.line,
            is_copy=draft.is_own and not keeps_id(draft, is_trusted=self._is_trusted),
            unchanged=unchanged_since_export(draft, document),
            exported_head=draft.exported_head,
        )
        pending.digest = digest_of_document(document, is_own=pending.is_own)
        if self._is_trusted:  # An earlier import without trust may have changed it.
            pending.digest = digest_of([pending.digest, "trusted"])
        return pending

    def _import_document(
        self, first: _PendingImport, convert_with_suffix: Callable[[str], _PendingImport]
    ) -> None:
        """Import a capsule. If another conversation has its id, it gets a suffix."""
        new = self._choose_target(first, convert_with_suffix)
        new.convert_with_suffix = convert_with_suffix
        id = new.result.id
        if new is not first:
            new.add_note(
                self.report,
                f"conversation {first.result.id} has other content; this one is kept as {id}",
            )
        elif new.is_copy:
            new.add_note(
                self.report,
                f"{new.result.source} is imported as a copy, chat {id}; --trusted brings it back "
                "unchanged",
            )
        if self._write(new) and self._on_conflict == "copy":
            copy = convert_with_suffix(f"#copy-{new.digest}")
            copy.convert_with_suffix = convert_with_suffix
            self._write(copy)

    def _choose_target(
        self, first: _PendingImport, convert_with_suffix: Callable[[str], _PendingImport]
    ) -> _PendingImport:
        """Return a capsule under the id of the first conversation that it continues, or a new id.

        It continues a conversation of the same source, or of another source that it does not
        contradict.
        """
        same_source_match: _PendingImport | None = None
        new = first
        number = 1
        while self._exists(new.result.id):
            digest, source = self._memory.conversations.get(new.result.id, ("", new.source))
            if digest == new.digest:
                return new
            present = self._store.document(new.result.id)
            new.present = present
            if self._is_trusted or present["metadata"].get("type") in (None, "chat"):
                if new.is_own or not contradicts(present, new.document):
                    return new
                if same_source_match is None and source == new.source:
                    same_source_match = new
            number += 1
            new = convert_with_suffix(f"#other-{number}")
        return same_source_match or new

    def _exists(self, id: str) -> bool:
        if any(pending.result.id == id for pending in self._pending):
            self._flush_results(0)
        return self._store.engine.exists(CONVERSATIONS, id)

    def _write(self, new: _PendingImport) -> bool:
        """Write a capsule, and queue its result. Return whether a conflict stays open."""
        id = new.result.id
        if not self._exists(id):
            self._create(new)
            return False
        digest, source = self._memory.conversations.get(id, ("", new.source))
        if digest == new.digest:
            self._queue_result(new, "unchanged")
            return False
        return self._merge(new, source)

    def _create(self, new: _PendingImport) -> None:
        """Write a new conversation. One that is in the trash is skipped."""
        document = self._with_outside_senders(new, None)
        self._note_renamed_senders(new, document)
        if new.result.id in self._in_trash:
            new.file.is_whole = False
            self._queue_result(new, "skipped")
            return
        if not self._is_dry_run:
            self._flush_results(_MAX_PENDING_WRITES - 1)
            new.write = self._pool.submit(
                write_new, self._store.inner, document, has_checked_messages=True
            )
        self._queue_result(new, "imported")

    def _merge(self, new: _PendingImport, source: str) -> bool:
        """Merge a capsule into the conversation here. Return whether a conflict stays open.

        `source` is the source that the conversation was imported from last.
        """
        id = new.result.id
        present = new.present or self._store.document(id)
        removed_ids = self._removed_from(id)
        is_other_source = source != new.source
        prefer_source = self._on_conflict == "update"

        def merged(current: Document, *, is_other_source: bool = is_other_source) -> MergeOutcome:
            return merge(
                current,
                self._with_outside_senders(new, current),
                removed_ids,
                prefer_source=prefer_source,
                is_own=new.is_own,
                is_other_source=is_other_source,
                is_trusted=self._is_trusted,
                unchanged=new.unchanged,
                exported_head=new.exported_head,
            )

        outcome = merged(present)
        is_changed = outcome.document is not present
        has_open_conflict = bool(outcome.conflicts) and not prefer_source
        if is_other_source and outcome.document != merged(present, is_other_source=False).document:
            new.add_note(
                self.report,
                f"it differs from another source of {id}: only its new messages were added",
            )
        if is_changed:
            self._note_renamed_senders(new, self._with_outside_senders(new, present))
        if new.is_own and outcome.kept_title:
            new.add_note(
                self.report,
                f"the title of {id} stays, because a person gave it: {present['title']!r}",
            )
        if has_open_conflict:
            new.file.is_whole = False
        if not self._is_dry_run:
            if is_changed:
                self._store.inner.change(
                    id,
                    lambda conversation: conversation.rewrite(
                        lambda current: merged(current).document, reason="edited"
                    ),
                )
            if not has_open_conflict:
                self._memory.conversations[id] = new.digest, source
        if is_changed:
            self._queue_result(new, "updated")
        else:
            self._queue_result(new, "skipped" if has_open_conflict else "unchanged")
        return has_open_conflict

    def _with_outside_senders(self, new: _PendingImport, present: Document | None) -> Document:
        """Return a capsule without new messages from agents here, unless the import is trusted.

        `present` is the conversation here. None: it is new.
        """
        senders = {entry.get("from") for entry in new.document["history"]} & self._agents
        if self._is_trusted or not senders:
            return new.document
        return with_imported_senders(new.document, present, self._agents)

    def _note_renamed_senders(self, new: _PendingImport, document: Document) -> None:
        """Add a note with the agents whose new messages got another sender in `document`."""
        renamed_agents = set()
        for original, entry in zip(new.document["history"], document["history"], strict=True):
            if original.get("from") != entry.get("from"):
                renamed_agents.add(original["from"])
        if renamed_agents:
            senders = ", ".join(map(sender_outside, sorted(renamed_agents)))
            reason = (
                f"the new messages of {new.result.id} are imported as from {senders}; --trusted "
                "imports them unchanged"
            )
            new.add_note(self.report, reason)

    @cached_property
    def _agents(self) -> frozenset[str]:
        """The ids of the agents here."""
        return frozenset(self._store.engine.ids("agents"))

    def _queue_result(self, new: _PendingImport, state: str = "") -> None:
        """Queue a result for the report, in this state or in the one that it has."""
        new.result = replace(new.result, state=state or new.result.state)
        new.file.unwritten += 1
        self._pending.append(new)
        self._flush_results(_MAX_PENDING_WRITES)

    def _flush_results(self, max_pending: int) -> None:
        """Report results in their order, until at most `max_pending` are left behind a running write.

        If another process created a conversation meanwhile, it is imported again.
        """
        while self._pending:
            if len(self._pending) <= max_pending and self._pending[0].write is not None:
                return
            new = self._pending.popleft()
            try:
                try:
                    if new.write is not None:
                        new.write.result()
                        self._memory.conversations[new.result.id] = new.digest, new.source
                except ConversationExists:
                    new.write = None
                    assert new.convert_with_suffix is not None
                    self._import_document(new, new.convert_with_suffix)
                else:
                    self.report.conversations.append(new.result)
                    new.file.results.append(new.result)
            except _CONVERSATION_ERRORS as error:
                new.report_problem(error.message)
                continue
            new.file.unwritten -= 1

    @cached_property
    def _in_trash(self) -> set[str]:
        """The ids of the conversations in the trash."""
        return {trashed.id for trashed in self._store.engine.trash.entries(CONVERSATIONS)}

    @cached_property
    def _removed_versions(self) -> dict[str, list[Any]]:
        """The entries of the trash with removed or changed messages, by their conversations."""
        versions: dict[str, list[Any]] = {}
        for trashed in self._store.engine.trash.entries(REMOVED):
            versions.setdefault(trashed.id, []).append(trashed)
        return versions

    def _removed_from(self, id: str) -> set[str]:
        """Return the ids of the removed or changed messages of a conversation that are in the trash."""
        removed_ids: set[str] = set()
        for trashed in self._removed_versions.get(id, ()):
            data = self._store.engine.trash.read(trashed.token)
            document = codec.decode(data, trashed.path)
            removed_ids.update(entry["id"] for entry in document["history"])
        return removed_ids

    def _store_attachment(self, data: bytes | Source) -> tuple[str, int]:
        """Store an attachment, unless it is a dry run. Return its SHA-256 and its size."""
        content = data if isinstance(data, bytes) else read_bytes(data, _MAX_ATTACHMENT_BYTES)
        digest = sha256(content).hexdigest()
        if not self._is_dry_run:
            self._store.engine.files.write("attachments", digest, digest, content)
        return digest, len(content)
