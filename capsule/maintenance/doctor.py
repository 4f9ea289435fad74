"""Examine every document of a store, and repair what is safe to repair.

`examine` scans the files of all kinds. Each conversation or session file is read once without its
mutex. If something is wrong, or a process writes the file, it is examined again under its mutex,
repaired, and examined once more: findings that are gone were repaired.

What must stay true: each document is examined by itself. An error in one is a finding, and the
others are examined. Without `repair` nothing is changed. A repair keeps the original in the
quarantine or the trash. A write in progress is no finding.

Documents have a kind, such as conversations or agents. Findings (`DoctorFinding.kind`) and leftovers
have kinds of their own.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from capsule.engines.interface import (
    CONVERSATIONS,
    WITH_ENTRIES,
    DatabaseEngine,
    HeldFile,
    ScannedFile,
)
from capsule.errors import CapsuleError, InvalidDocument, NotFound, Problem
from capsule.format import migrations, validation
from capsule.format.documents.head import Head
from capsule.format.json import canonical, codec, locations
from capsule.format.recovery.reconcile import reconcile
from capsule.format.recovery.torn_files import RepairedFile, repair_torn
from capsule.format.validation import KINDS, decode_checked
from capsule.ids import is_id
from capsule.maintenance.conflict_copies import Ancestor, find_conflict_copy
from capsule.maintenance.rebuild import RecoverySource, collect_sources, rebuild_file
from capsule.rules.locking import describe
from capsule.store.change.pending_overrides import pending_override_problems
from capsule.store.objects.summaries import standing_of
from capsule.store.store import CoreStore

Progress = Callable[[int, int], None]
_IRREGULAR = "is not a regular file, as a document must be; move it away"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One finding about a file.

    Attributes:
        id: The document. Empty: none.
        path: The file.
        line: The line in it, from 1. 0: the finding is about the whole file.
        column: The column in characters, from 1, or 0.
        kind: `damaged`, `torn`, `name`, `copy` (a file synchronizer's conflict copy), `twice`,
            `odd`, `layout`, `overwritten`, `interrupted` (a write that was not acknowledged),
            `lock`, `leftover`, `vanished`, `settings`, `failed` (its examination ended with an
            unexpected error), `behind` (a summary whose source changed since) and `durability`
            (which failures an acknowledged message survives in a database). The last two are no
            errors.
        what: The finding, in words.
        repaired: The repair, in words. None: it was not repaired.
        repairable: Whether a repair is expected to succeed. Otherwise `what` has advice for a
            person.
        traceback: Of `failed`, the type of the error and the places in the code that led to it, the
            last one first.
    """

    id: str
    path: str
    line: int
    column: int
    kind: str
    what: str
    repaired: str | None = None
    repairable: bool = False
    traceback: tuple[str, ...] = ()

    @classmethod
    def of(cls, id: str, kind: str, problem: Problem) -> DoctorFinding:
        """Return the finding about a problem of a document's file."""
        text = f"{problem.where}: {problem.what}" if problem.where else problem.what
        return cls(id, problem.path, problem.line, problem.column, kind, text)

    @classmethod
    def of_error(cls, id: str, path: str, error: Exception) -> DoctorFinding:
        """Return the finding about a document whose examination raised an error."""
        if isinstance(error, CapsuleError):
            return cls(id, path, 0, 0, "damaged", error.message)
        name = type(error).__name__
        text = (
            f"could not be examined: {name}: {error}; this is an error in Capsule: report it "
            "with the "
        )
        text += "output of: capsule doctor --report"
        places = []
        for frame, line in traceback.walk_tb(error.__traceback__):
            places.append(f"{frame.f_globals.get('__name__')}:{line} {frame.f_code.co_name}")
        return cls(id, path, 0, 0, "failed", text, traceback=(name, *reversed(places)))

    @property
    def is_trouble(self) -> bool:
        """Whether it is an error, and not only information."""
        return self.kind not in ("behind", "durability")

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}:{self.column}" if self.line else self.path
        repair = f" -- mended: {self.repaired}" if self.repaired else ""
        return f"{place}: {self.kind}: {self.what}{repair}"


def examine(
    store: CoreStore,
    *,
    repair: bool = False,
    progress: Progress | None = None,
    ancestor: Ancestor | None = None,
) -> Iterator[DoctorFinding]:
    """Examine a store.

    Args:
        store: The store.
        repair: Whether to repair what can be repaired.
        progress: Called with the number of files examined so far, and of all files.
        ancestor: Returns the common ancestor of a conflict copy and its conversation.

    Repairs are made while the findings are iterated. Cost: reading and parsing every file.
    """
    for problem in store.settings.unknown:
        yield DoctorFinding.of("", "settings", problem)
    # Conversations are in both. Sessions have entries, and are not in `KINDS`. Agents and projects
    # have no entries.
    document_kinds = dict.fromkeys((*WITH_ENTRIES, *KINDS))
    if isinstance(store.engine, DatabaseEngine) and not repair:
        yield from _in_database(store, store.engine, document_kinds, progress)
        return
    # A database has no files: this refuses a repair there, and names it in the error.
    files = store.engine.external_edits(purpose="a repair")
    scanned = [
        (document_kind, file)
        for document_kind in document_kinds
        for file in sorted(files.scan(document_kind), key=lambda file: file.id)
    ]
    #: For each kind with entries: the paths of the files with an id. The examinations fill it.
    paths_by_id: dict[str, dict[str, list[str]]] = {
        document_kind: {} for document_kind in WITH_ENTRIES
    }
    for count, (document_kind, file) in enumerate(scanned, 1):
        find = partial(_examine_file, store, document_kind, file, paths_by_id, repair, ancestor)
        yield from _caught(file.id, file.path, find)
        if progress:
            progress(count, len(scanned))
    for kind_paths in paths_by_id.values():
        for id, paths in kind_paths.items():
            for path in paths[1:]:
                text = (
                    f"has the same id {id} as {paths[0]}; give one of them another id, and the "
                    "name that fits"
                )
                yield DoctorFinding(id, path, 0, 0, "twice", text)
    yield from _caught("", str(store.root), partial(_pending_overrides, store))
    for document_kind in document_kinds:
        yield from _caught("", str(store.root), partial(_leftovers, store, document_kind, repair))


def _caught(
    id: str, path: str, examine: Callable[[], Iterator[DoctorFinding]]
) -> Iterator[DoctorFinding]:
    """Yield the findings of an examination. If it raises an error, yield that as a finding."""
    try:
        yield from examine()
    except Exception as error:
        yield DoctorFinding.of_error(id, path, error)


def _examine_file(
    store: CoreStore,
    document_kind: str,
    file: ScannedFile,
    paths_by_id: dict[str, dict[str, list[str]]],
    repair: bool,
    ancestor: Ancestor | None,
) -> Iterator[DoctorFinding]:
    """Yield the findings about one file."""
    copy = find_conflict_copy(store, file, document_kind) if document_kind in KINDS else None
    if copy is not None:
        if repair:
            copy.merge(store, ancestor)
        yield DoctorFinding(
            id=copy.id,
            path=file.path,
            line=copy.line,
            column=copy.column,
            kind="copy",
            what=copy.text,
            repaired=copy.repaired,
            repairable=not copy.line,
        )
    elif document_kind in paths_by_id:
        examination = _DocumentExamination(
            store, document_kind, file, paths_by_id[document_kind], repair
        )
        yield from examination.findings()
        yield from examination.orphaned_lock()
        yield from examination.stale_summary()
    else:
        yield from _examine_plain_document(store, file, document_kind)


def _pending_overrides(store: CoreStore) -> Iterator[DoctorFinding]:
    """Yield the findings about settings for the next conversation."""
    for problem in pending_override_problems(store.engine):
        yield DoctorFinding.of("", "damaged", problem)


def _leftovers(store: CoreStore, document_kind: str, repair: bool) -> Iterator[DoctorFinding]:
    """Yield what dead processes left among the documents of a kind, and vanished documents."""
    files = store.engine.external_edits()
    for leftover in files.leftovers(document_kind):
        if leftover.kind == "instance" and document_kind != CONVERSATIONS:
            # An instance belongs to no kind, and is a leftover of each. It is reported once.
            continue
        finding_kind = "vanished" if leftover.kind == "vanished" else "leftover"
        swept = files.sweep(document_kind, leftover) if repair else None
        yield DoctorFinding(
            id=leftover.id,
            path=leftover.path,
            line=0,
            column=0,
            kind=finding_kind,
            what=leftover.description,
            repaired=swept,
            repairable=True,
        )


class _DocumentExamination:
    """The examination of one file of a kind with entries.

    Args:
        store: The store.
        kind: The kind.
        scanned: The file.
        paths_by_id: The paths of the files with an id. The examination adds its file.
        repair: Whether to repair it.
    """

    def __init__(
        self,
        store: CoreStore,
        document_kind: str,
        scanned: ScannedFile,
        paths_by_id: dict[str, list[str]],
        repair: bool,
    ) -> None:
        self._store = store
        self._files = store.engine.external_edits()
        self._document_kind = document_kind
        self._scanned = scanned
        self._paths_by_id = paths_by_id
        self._repair = repair
        #: The head, if the file could be parsed.
        self._head: Head | None = None
        #: The other sources of a damaged document, for `rebuild_file`.
        self._sources: dict[str, RecoverySource] = {}
        self._rebuilt_file: RepairedFile | None = None

    def _finding(
        self,
        finding_kind: str,
        text: str,
        line: int = 0,
        column: int = 0,
        *,
        repairable: bool = False,
    ) -> DoctorFinding:
        return DoctorFinding(
            self._scanned.id, self._scanned.path, line, column, finding_kind, text, None, repairable
        )

    def findings(self) -> list[DoctorFinding]:
        """Return the findings about the file, and repair it, if requested."""
        file = self._scanned
        if not file.is_regular:
            return [self._finding("damaged", _IRREGULAR)]
        if not is_id(file.id):
            text = f"{file.id!r} is not an id: letters, digits and . _ @ -, at most 128; rename the file"
            return [self._finding("name", text)]
        try:
            data = self._files.read_stray(self._document_kind, file.id)
            if data is None:
                return []
            findings = self._check_bytes(data, None)
            if not findings and self._files.is_unchanged(self._document_kind, file.id):
                return []
            if any(finding.kind in ("damaged", "torn") for finding in findings):
                self._sources = collect_sources(self._store, self._document_kind, file)
            # Something is wrong, or a process writes the file: under the mutex, nobody writes it.
            with self._files.hold(self._document_kind, file.id) as held_file:
                return self._under_mutex(held_file)
        except InvalidDocument as error:
            return [DoctorFinding.of(file.id, "damaged", problem) for problem in error.problems]
        except CapsuleError as error:
            return [self._finding("damaged", error.message)]

    def _under_mutex(self, held_file: HeldFile) -> list[DoctorFinding]:
        """Return the findings about the file, and repair it, if requested."""
        # Not for its answer: it reads the state header, by which the log is judged.
        held_file.is_unchanged()
        findings = self._check_file(held_file)
        if not self._repair or not any(finding.repairable for finding in findings):
            return findings
        repair = self._repair_file(held_file, {finding.kind for finding in findings})
        remaining = {(finding.kind, finding.what) for finding in self._check_file(held_file)}
        reported = []
        for finding in findings:
            if (finding.kind, finding.what) in remaining:
                reported.append(finding)
            else:
                reported.append(replace(finding, repaired=repair or "done"))
        return reported

    def _check_file(self, held_file: HeldFile) -> list[DoctorFinding]:
        content = held_file.read()
        return self._check_bytes(content[0], held_file) if content else []

    def _check_bytes(self, data: bytes, held_file: HeldFile | None) -> list[DoctorFinding]:
        """Return the findings about the bytes of the file.

        Args:
            data: The bytes.
            held_file: The document, if its mutex is held. Then lost messages are found, too.
        """
        path = self._scanned.path
        try:
            document = decode_checked(data, path, None)
        except InvalidDocument as error:
            return self._check_damaged(data, held_file, error)
        upgraded, changes = migrations.upgrade(document, path)
        self._head = Head.of(upgraded, path, len(data))
        is_locked = self._lock() == "held"
        findings = self._check_id(data, document["id"], held_file)
        findings += self._check_oddities(data, document, is_locked=is_locked)
        if changes or codec.encode(upgraded) != data:
            reason = ", ".join(changes) or "layout"
            # The next write of the lock's holder corrects the layout. Until then it stays.
            remedy = "the next write" if is_locked else "the next write or --repair"
            text = f"not in the canonical layout ({reason}); {remedy} corrects it"
            findings.append(self._finding("layout", text, repairable=not is_locked))
        if held_file is not None and not held_file.is_unchanged():
            findings += self._check_lost_changes(upgraded, held_file)
        return findings

    def _check_damaged(
        self, data: bytes, held_file: HeldFile | None, error: InvalidDocument
    ) -> list[DoctorFinding]:
        """Return the findings about an invalid file: torn by a crash, cut, or damaged."""
        problem = error.problems[0]
        if held_file is not None:
            content = held_file.read()
            if content is not None and held_file.repaired(*content) is not None:
                text = "a crash left it torn; the next write or --repair repairs it"
                return [self._finding("torn", text, repairable=True)]
        if repair_torn(data) is not None:
            text = (
                f"{problem.what}: it ends too early, but not because of an interrupted write; "
                "save it again, or let --repair cut it back"
            )
            return [self._finding("torn", text, problem.line, problem.column, repairable=True)]
        rebuilt = None if held_file is None else self._try_rebuild(held_file, data)
        if rebuilt is not None:
            text = f"{problem.what.partition(';')[0]}; with --repair it is {rebuilt.description}"
            return [self._finding("damaged", text, problem.line, problem.column, repairable=True)]
        return [
            DoctorFinding.of(self._scanned.id, "damaged", other_problem)
            for other_problem in error.problems
        ]

    def _check_id(self, data: bytes, id: str, held_file: HeldFile | None) -> list[DoctorFinding]:
        """Return a finding if file name and id differ. Record the path of the id.

        Without the mutex, a different id is not recorded yet: the file can be in the middle of a
        write.
        """
        path = self._scanned.path
        if held_file is not None or id == self._scanned.id:
            paths = self._paths_by_id.setdefault(id, [])
            if path not in paths:
                paths.append(path)
        if id == self._scanned.id:
            return []
        line, column = locations.locate(data, ("id",))
        is_free = is_id(id) and not self._store.engine.exists(self._document_kind, id)
        text = f"its id is {id!r}: file name and id differ"
        if not is_free:
            text += "; give it an id that no other file has, and the name that fits"
        return [self._finding("name", text, line, column, repairable=is_free)]

    def _check_oddities(
        self, data: bytes, document: dict[str, Any], *, is_locked: bool
    ) -> list[DoctorFinding]:
        """Return findings about what is allowed but odd. Repeated message ids can be repaired.

        If there are any, a repair is tried, and all these findings are marked for it. Those that it
        does not remove are reported as not repaired.
        """
        problems = validation.oddities(document, self._scanned.path, data)
        has_twins = bool(problems) and not is_locked and _with_own_ids(document) != document
        findings = []
        for problem in problems:
            finding = DoctorFinding.of(self._scanned.id, "odd", problem)
            findings.append(replace(finding, repairable=has_twins))
        return findings

    def _check_lost_changes(
        self, document: dict[str, Any], held_file: HeldFile
    ) -> list[DoctorFinding]:
        """Return a finding if an externally edited file lacks changes that are in the log."""
        records = held_file.records()
        outcome = reconcile(document, records)
        if not outcome.is_changed:
            return []
        finding_kind = "overwritten"
        text = f"an external edit lacks acknowledged changes: {outcome.missing_in_words}"
        # Without a header, or after an interrupted write, the last write was perhaps not finished.
        # If the file lacks only that one, nothing acknowledged is missing.
        is_last_certain = held_file.has_header and not held_file.is_interrupted
        if not is_last_certain and not reconcile(document, records[:-1]).is_changed:
            finding_kind = "interrupted"
            text = (
                f"it lacks the last write in the log, {outcome.missing_in_words}: a crash "
                "interrupted it before it was acknowledged"
            )
            if not held_file.is_interrupted:
                text += ", or an external edit lacks it"
        text += "; the next read or write merges it back"
        return [self._finding(finding_kind, text, repairable=True)]

    def _lock(self) -> str:
        """Return the state of the file's lock. Empty: it has none."""
        state = self._store.locks.state(self._head) if self._head else None
        return state.state if state else ""

    def orphaned_lock(self) -> Iterator[DoctorFinding]:
        """Yield a finding about an orphaned lock. Call it after `findings`, without the mutex."""
        head = self._head
        if head is None or head.lock is None or self._lock() != "orphaned":
            return
        text = f"locked by {describe(head.lock)}, whose program has ended; the next write takes it over"
        finding = self._finding("lock", text, repairable=True)
        id = self._scanned.id
        if self._repair and head.id == id and self._store.locks.release(id):
            finding = replace(finding, repaired="unlocked")
        yield finding

    def stale_summary(self) -> Iterator[DoctorFinding]:
        """Yield a finding about a summary whose source changed since. Call it after `findings`."""
        head = self._head
        if head is None or not head.is_summary or not head.source_conversation_id:
            return
        summary = self._document(self._scanned.id)
        source = self._document(head.source_conversation_id)
        if summary is None or source is None:
            return
        standing = standing_of(summary, source)
        if standing.state in ("behind", "elsewhere"):
            text = f"a summary of {head.source_conversation_id}; {standing}"
            yield self._finding("behind", text)

    def _document(self, id: str) -> dict[str, Any] | None:
        """Return a conversation from its file, without reconciling it. None: it can't be read."""
        name = self._store.engine.name(CONVERSATIONS, id)
        try:
            data = self._files.read_stray(CONVERSATIONS, id)
            if data is None:
                return None
            document, _ = migrations.upgrade(decode_checked(data, name, id))
        except CapsuleError:
            return None
        return document

    def _repair_file(self, held_file: HeldFile, finding_kinds: set[str]) -> str:
        """Repair what can be repaired of these kinds of findings. Return the repair in words."""
        if "name" in finding_kinds:
            return self._rename_to_id(held_file)
        held_file.reconcile_external_edit(lambda data: self._try_rebuild(held_file, data))
        content = held_file.read()
        if content is None:
            return ""
        data, signature = content
        document = decode_checked(data, held_file.path, held_file.id)
        if "odd" in finding_kinds:
            document = _with_own_ids(document)
        upgraded, changes = migrations.upgrade(document, held_file.path)
        encoded = codec.encode(canonical.in_order(upgraded))
        if encoded != data:
            description = ", ".join(changes) or "brought into the canonical layout"
            if "odd" in finding_kinds:
                quarantine_path = held_file.quarantine(data, "repair")
                description += f"; the original is kept as {quarantine_path}"
            held_file.put(signature, encoded, [])
            return description
        if finding_kinds & {"overwritten", "interrupted"}:
            return "merged back"
        description = self._rebuilt_file.description if self._rebuilt_file else "cut back"
        return f"{description}; the original is in the quarantine"

    def _try_rebuild(self, held_file: HeldFile, data: bytes) -> RepairedFile | None:
        """Rebuild the file. None: it can't be rebuilt, or need not be."""
        self._rebuilt_file = None
        if self._sources:
            self._rebuilt_file = rebuild_file(held_file, data, self._sources)
        return self._rebuilt_file

    def _rename_to_id(self, held_file: HeldFile) -> str:
        """Rename a file to its id, if that name is free. Return the repair in words."""
        content = held_file.read()
        if content is None:
            return ""
        document = decode_checked(content[0], held_file.path, None)
        id = document["id"]
        if not is_id(id) or self._store.engine.exists(self._document_kind, id):
            return ""
        upgraded, _ = migrations.upgrade(document, held_file.path)
        with self._files.hold(self._document_kind, id) as target:
            target.put(None, codec.encode(upgraded), [])
        held_file.delete()
        name = self._store.engine.name(self._document_kind, id)
        return f"is {name} now; the misnamed file is in the trash"


def _in_database(
    store: CoreStore, rows: DatabaseEngine, document_kinds: Iterable[str], progress: Progress | None
) -> Iterator[DoctorFinding]:
    """Yield the findings about a store in a database. Only a backup can repair them."""
    yield DoctorFinding("", str(store.root), 0, 0, "durability", rows.durability())
    documents = [
        (document_kind, id)
        for document_kind in document_kinds
        for id in store.engine.ids(document_kind)
    ]
    for count, (document_kind, id) in enumerate(documents, 1):
        yield from _caught(
            id, store.engine.name(document_kind, id), partial(_row, store, document_kind, id)
        )
        if progress:
            progress(count, len(documents))
    for document_kind, id, flaw in rows.flaws():
        name = store.engine.name(document_kind, id) if document_kind else str(store.root)
        yield DoctorFinding(id, name, 0, 0, "damaged", f"{flaw}; restore it from a backup")


def _row(store: CoreStore, document_kind: str, id: str) -> Iterator[DoctorFinding]:
    """Yield the findings about a document in a database."""
    name = store.engine.name(document_kind, id)
    try:
        data = store.engine.read(document_kind, id)
        if document_kind in KINDS:
            KINDS[document_kind].read(data, name)
        else:
            decode_checked(data, name, id)
    except NotFound:
        pass  # It was deleted in between.
    except InvalidDocument as error:
        yield from (DoctorFinding.of(id, "damaged", problem) for problem in error.problems)


def _with_own_ids(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document without the repeated uses of a message id, so that new ids are made."""
    used_ids: set[Any] = set()
    history = []
    for message in document["history"]:
        id = message.get("id")
        if id is not None and id in used_ids:
            history.append({key: value for key, value in message.items() if key != "id"})
        else:
            history.append(message)
        used_ids.add(id)
    return document | {"history": history}


def _examine_plain_document(
    store: CoreStore, file: ScannedFile, document_kind: str
) -> Iterator[DoctorFinding]:
    """Yield the findings about a document without entries, such as an agent. It has no log.

    The store replaces its file, so a write in progress is no finding.
    """
    if not file.is_regular:
        yield DoctorFinding(file.id, file.path, 0, 0, "damaged", _IRREGULAR)
        return
    try:
        data = store.engine.external_edits().read_stray(document_kind, file.id)
        document = (
            KINDS[document_kind].read(data, file.path) if data is not None else {"id": file.id}
        )
    except InvalidDocument as error:
        yield from (DoctorFinding.of(file.id, "damaged", problem) for problem in error.problems)
        return
    if document["id"] != file.id:
        text = (
            f"its id is {document['id']!r}: file name and id differ; rename the file, or "
            "correct the id"
        )
        line, column = locations.locate(data or b"", ("id",))
        yield DoctorFinding(file.id, file.path, line, column, "name", text)
