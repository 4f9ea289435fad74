"""The doctor: examines every document of a store, and repairs what is safe to repair.

What must stay true: each document is examined by itself. An error in one is a finding, and the
others are examined. Without `repair` nothing is changed. A repair keeps the original in the
quarantine or the trash. A file is judged only under its mutex, so that a write in progress is no
finding.
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
from capsule.maintenance.conflict_copies import Ancestor, copy_in
from capsule.maintenance.rebuild import RecoverySource, rebuilt, remembered
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
        id: The document; empty: none.
        path: The file.
        line: Line in it, from 1; 0 when the finding concerns the whole file.
        column: Column in characters, from 1; 0 likewise.
        kind: `damaged`, `torn`, `name`, `copy` (a file synchronizer's conflict copy), `twice`,
            `odd`, `layout`, `overwritten`, `interrupted` (a write that was not acknowledged),
            `lock`, `leftover`, `vanished`, `settings`, `failed` (its examination ended with an
            unexpected error), `behind` (a summary whose source has moved on) and `durability` (what
            an acknowledged message survives in a database). The last two are no errors.
        what: The finding, in words.
        repaired: The repair, in words; None: it was not repaired.
        repairable: Whether a repair can be expected to succeed; else `what` says what a person can
            do.
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
        """The finding about a document that is a problem of its file."""
        text = f"{problem.where}: {problem.what}" if problem.where else problem.what
        return cls(id, problem.path, problem.line, problem.column, kind, text)

    @classmethod
    def of_error(cls, id: str, path: str, error: Exception) -> DoctorFinding:
        """Return the finding about a document whose examination raised this."""
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
        done = f" -- mended: {self.repaired}" if self.repaired else ""
        return f"{place}: {self.kind}: {self.what}{done}"


def examine(
    store: CoreStore,
    *,
    repair: bool = False,
    progress: Progress | None = None,
    ancestor: Ancestor | None = None,
) -> Iterator[DoctorFinding]:
    """Examine a store.

    Args:
        repair: Repair what can be repaired.
        progress: Called with the number of files examined so far, and of all files.
        ancestor: Gives the common ancestor of a conflict copy and its conversation.

    Cost: reading and parsing every file.
    """
    for problem in store.settings.unknown:
        yield DoctorFinding.of("", "settings", problem)
    kinds = dict.fromkeys((*WITH_ENTRIES, *KINDS))
    if isinstance(store.engine, DatabaseEngine) and not repair:
        yield from _in_database(store, store.engine, kinds, progress)
        return
    files = store.engine.external_edits("a repair")
    scanned = [
        (kind, file)
        for kind in kinds
        for file in sorted(files.scan(kind), key=lambda file: file.id)
    ]
    claimed: dict[str, dict[str, list[str]]] = {kind: {} for kind in WITH_ENTRIES}
    for done, (kind, file) in enumerate(scanned, 1):
        find = partial(_of_file, store, kind, file, claimed, repair, ancestor)
        yield from _caught(file.id, file.path, find)
        if progress:
            progress(done, len(scanned))
    for id, paths in (item for ids in claimed.values() for item in ids.items()):
        for path in paths[1:]:
            text = (
                f"has the same id {id} as {paths[0]}; give one of them another id, and the "
                "name that fits"
            )
            yield DoctorFinding(id, path, 0, 0, "twice", text)
    yield from _caught("", str(store.root), partial(_waiting, store))
    for kind in kinds:
        yield from _caught("", str(store.root), partial(_leftovers, store, kind, repair))


def _caught(
    id: str, path: str, examine: Callable[[], Iterator[DoctorFinding]]
) -> Iterator[DoctorFinding]:
    """Yield findings, and an error that their search raises as a finding."""
    try:
        yield from examine()
    except Exception as error:
        yield DoctorFinding.of_error(id, path, error)


def _of_file(
    store: CoreStore,
    kind: str,
    file: ScannedFile,
    claimed: dict[str, dict[str, list[str]]],
    repair: bool,
    ancestor: Ancestor | None,
) -> Iterator[DoctorFinding]:
    copy = copy_in(store, file, kind) if kind in KINDS else None
    if copy is not None:
        if repair:
            copy.merge(store, ancestor)
        yield DoctorFinding(
            copy.id,
            file.path,
            copy.line,
            copy.column,
            "copy",
            copy.text,
            copy.repaired,
            not copy.line,
        )
    elif kind in claimed:
        examination = _DocumentExamination(store, kind, file, claimed[kind], repair)
        yield from examination.findings()
        yield from examination.lock()
        yield from examination.source()
    else:
        yield from _record(store, file, kind)


def _waiting(store: CoreStore) -> Iterator[DoctorFinding]:
    for problem in pending_override_problems(store.engine):
        yield DoctorFinding.of("", "damaged", problem)


def _leftovers(store: CoreStore, kind: str, repair: bool) -> Iterator[DoctorFinding]:
    files = store.engine.external_edits()
    for leftover in files.leftovers(kind):
        if (
            kind == CONVERSATIONS or leftover.kind != "instance"
        ):  # An instance is one of the store, and found with either.
            said = "vanished" if leftover.kind == "vanished" else "leftover"
            swept = files.sweep(kind, leftover) if repair else None
            yield DoctorFinding(
                leftover.id, leftover.path, 0, 0, said, leftover.description, swept, True
            )


class _DocumentExamination:
    """The examination of one file."""

    def __init__(
        self,
        store: CoreStore,
        kind: str,
        scanned: ScannedFile,
        claimed: dict[str, list[str]],
        repair: bool,
    ) -> None:
        self._store, self._files, self._kind = store, store.engine.external_edits(), kind
        self._scanned, self._claimed, self._repair = scanned, claimed, repair
        self._head: Head | None = None
        self._remembered: dict[str, RecoverySource] = {}
        self._whole: RepairedFile | None = None

    def _finding(
        self, kind: str, text: str, line: int = 0, column: int = 0, *, repairable: bool = False
    ) -> DoctorFinding:
        return DoctorFinding(
            self._scanned.id, self._scanned.path, line, column, kind, text, None, repairable
        )

    def findings(self) -> list[DoctorFinding]:
        """The findings about the file; it is repaired first, if requested."""
        file = self._scanned
        if not file.is_regular:
            return [self._finding("damaged", _IRREGULAR)]
        if not is_id(file.id):
            text = f"{file.id!r} is not an id: letters, digits and . _ @ -, at most 128; rename the file"
            return [self._finding("name", text)]
        try:
            data = self._files.read_stray(self._kind, file.id)
            wrong = self._wrong(data, None) if data is not None else []
            if data is None or (not wrong and self._files.is_unchanged(self._kind, file.id)):
                return []
            if any(finding.kind in ("damaged", "torn") for finding in wrong):
                self._remembered = remembered(self._store, self._kind, file)
            # Something is wrong, or a writer is at work: only the mutex can distinguish the two.
            with self._files.hold(self._kind, file.id) as held:
                return self._under_mutex(held)
        except InvalidDocument as error:
            return [DoctorFinding.of(file.id, "damaged", problem) for problem in error.problems]
        except CapsuleError as error:
            return [self._finding("damaged", error.message)]

    def _under_mutex(self, held: HeldFile) -> list[DoctorFinding]:
        held.is_unchanged()
        got = held.read()
        wrong = self._wrong(got[0], held) if got else []
        if not self._repair or not any(finding.repairable for finding in wrong):
            return wrong
        done = self._mended(held, {finding.kind for finding in wrong})
        got = held.read()
        left = {
            (finding.kind, finding.what) for finding in (self._wrong(got[0], held) if got else [])
        }
        return [
            finding
            if (finding.kind, finding.what) in left
            else replace(finding, repaired=done or "done")
            for finding in wrong
        ]

    def _wrong(self, data: bytes, held: HeldFile | None) -> list[DoctorFinding]:
        """The findings about these bytes; with the mutex held, also about lost messages."""
        path = self._scanned.path
        try:
            document = decode_checked(data, path, None)
        except InvalidDocument as error:
            got = held.read() if held is not None else None
            if held is not None and got is not None and held.repaired(*got) is not None:
                text = "a crash left it torn; the next write or --repair repairs it"
                return [self._finding("torn", text, repairable=True)]
            if repair_torn(data) is not None:
                text = (
                    "it ends too early, but not because of an interrupted write; save it "
                    "again, or let --repair cut it back"
                )
                at = error.problems[0]
                return [
                    self._finding("torn", f"{at.what}: {text}", at.line, at.column, repairable=True)
                ]
            if held is not None and (whole := self._rebuilt(held, data)) is not None:
                at = error.problems[0]
                text = f"{at.what.partition(';')[0]}; with --repair it is {whole.description}"
                return [self._finding("damaged", text, at.line, at.column, repairable=True)]
            return [
                DoctorFinding.of(self._scanned.id, "damaged", problem) for problem in error.problems
            ]
        wrong = []
        self._head = Head.of(migrations.upgrade(document, path)[0], path, len(data))
        if document["id"] != self._scanned.id:
            line, column = locations.locate(data, ("id",))
            is_free = is_id(document["id"]) and not self._store.engine.exists(
                self._kind, document["id"]
            )
            text = f"its id is {document['id']!r}: file name and id differ"
            if not is_free:
                text += "; give it an id that no other file has, and the name that fits"
            wrong.append(self._finding("name", text, line, column, repairable=is_free))
        if held is not None or document["id"] == self._scanned.id:
            claimants = self._claimed.setdefault(document["id"], [])
            if path not in claimants:
                claimants.append(path)
        is_locked = (
            self._lock() == "held"
        )  # The holder's next write repairs what is odd or laid out otherwise.
        notes = [
            DoctorFinding.of(self._scanned.id, "odd", problem)
            for problem in validation.oddities(document, path, data)
        ]
        has_twins = bool(notes) and not is_locked and _with_own_ids(document) != document
        wrong += [replace(finding, repairable=has_twins) for finding in notes]
        as_written, changes = migrations.upgrade(document, path)
        if changes or codec.encode(as_written) != data:
            why = ", ".join(changes) or "layout"
            text = (
                f"not in the canonical layout ({why}); the next write "
                f"{'' if is_locked else 'or --repair '}corrects it"
            )
            wrong.append(self._finding("layout", text, repairable=not is_locked))
        if held is not None and not held.is_unchanged():
            records = held.records()
            outcome = reconcile(as_written, records)
            if outcome.is_changed:
                kind, text = (
                    "overwritten",
                    f"an external edit lacks acknowledged changes: {outcome.missing_in_words}",
                )
                is_counted = held.has_header and not held.is_interrupted
                if not is_counted and not reconcile(as_written, records[:-1]).is_changed:
                    kind, text = (
                        "interrupted",
                        f"it lacks the last write in the log, {outcome.missing_in_words}: a crash ",
                    )
                    text += "interrupted it before it was acknowledged"
                    text += "" if held.is_interrupted else ", or an external edit lacks it"
                text += "; the next read or write merges it back"
                wrong.append(self._finding(kind, text, repairable=True))
        return wrong

    def _lock(self) -> str:
        """The state of the file's lock; empty: it has none."""
        state = self._store.locks.state(self._head) if self._head else None
        return state.state if state else ""

    def lock(self) -> Iterator[DoctorFinding]:
        """A finding about an orphaned lock. Call it after `findings`, without the mutex."""
        if self._head is None or self._head.lock is None or self._lock() != "orphaned":
            return
        text = (
            f"locked by {describe(self._head.lock)}, whose program has ended; the next write "
            "takes it over"
        )
        finding = self._finding("lock", text, repairable=True)
        if (
            self._repair
            and self._head.id == self._scanned.id
            and self._store.locks.release(self._scanned.id)
        ):
            finding = replace(finding, repaired="unlocked")
        yield finding

    def source(self) -> Iterator[DoctorFinding]:
        """A finding about a summary whose source has moved on. Call it after `findings`."""
        head = self._head
        if head is None or not head.is_summary or not head.source_conversation_id:
            return
        both = [self._document(id) for id in (self._scanned.id, head.source_conversation_id)]
        if both[0] is not None and both[1] is not None:
            standing = standing_of(both[0], both[1])
            if standing.state in ("behind", "elsewhere"):
                yield self._finding(
                    "behind", f"a summary of {head.source_conversation_id}; {standing}"
                )

    def _document(self, id: str) -> dict[str, Any] | None:
        """A conversation as it is in its file, which is not settled; None: it can't be read."""
        try:
            data = self._files.read_stray(CONVERSATIONS, id)
            return (
                None
                if data is None
                else migrations.upgrade(
                    decode_checked(data, self._store.engine.name(CONVERSATIONS, id), id)
                )[0]
            )
        except CapsuleError:
            return None

    def _mended(self, held: HeldFile, kinds: set[str]) -> str:
        """Repair what can be repaired of these kinds; the repair in words."""
        if "name" in kinds:
            return self._renamed(held)
        held.reconcile_external_edit(lambda data: self._rebuilt(held, data))
        got = held.read()
        if got is None:
            return ""
        data, signature = got
        document = decode_checked(data, held.path, held.id)
        if "odd" in kinds:
            document = _with_own_ids(document)
        document, changes = migrations.upgrade(document, held.path)
        written = codec.encode(canonical.in_order(document))
        if written != data:
            kept = held.quarantine(data, "repair") if "odd" in kinds else ""
            held.put(signature, written, [])
            said = ", ".join(changes) or "brought into the canonical layout"
            return f"{said}; the original is kept as {kept}" if kept else said
        if kinds & {"overwritten", "interrupted"}:
            return "merged back"
        return f"{self._whole.description if self._whole else 'cut back'}; the original is in the quarantine"

    def _rebuilt(self, held: HeldFile, data: bytes) -> RepairedFile | None:
        """The file rebuilt; None: it can't be, or need not be."""
        self._whole = rebuilt(held, data, self._remembered) if self._remembered else None
        return self._whole

    def _renamed(self, held: HeldFile) -> str:
        """Rename a file to its id, if that name is free."""
        got = held.read()
        if got is None:
            return ""
        document = decode_checked(got[0], held.path, None)
        id = document["id"]
        if not is_id(id) or self._store.engine.exists(self._kind, id):
            return ""
        as_written, _ = migrations.upgrade(document, held.path)
        written = codec.encode(as_written)
        with self._files.hold(self._kind, id) as target:
            target.put(None, written, [])
        held.delete()
        return (
            f"is {self._store.engine.name(self._kind, id)} now; the misnamed file is in the trash"
        )


def _in_database(
    store: CoreStore, rows: DatabaseEngine, kinds: Iterable[str], progress: Progress | None
) -> Iterator[DoctorFinding]:
    """The findings about a store in a database. What a person can do is to restore a backup."""
    yield DoctorFinding("", str(store.root), 0, 0, "durability", rows.durability())
    there = [(kind, id) for kind in kinds for id in store.engine.ids(kind)]
    for done, (kind, id) in enumerate(there, 1):
        yield from _caught(id, store.engine.name(kind, id), partial(_row, store, kind, id))
        if progress:
            progress(done, len(there))
    for kind, id, flaw in rows.flaws():
        yield DoctorFinding(
            id,
            store.engine.name(kind, id) if kind else str(store.root),
            0,
            0,
            "damaged",
            f"{flaw}; restore it from a backup",
        )


def _row(store: CoreStore, kind: str, id: str) -> Iterator[DoctorFinding]:
    name = store.engine.name(kind, id)
    try:
        data = store.engine.read(kind, id)
        KINDS[kind].read(data, name) if kind in KINDS else decode_checked(data, name, id)
    except NotFound:
        pass  # It was deleted meanwhile.
    except InvalidDocument as error:
        yield from (DoctorFinding.of(id, "damaged", problem) for problem in error.problems)


def _with_own_ids(document: dict[str, Any]) -> dict[str, Any]:
    """The document without the second and every further use of a message id, so that a new id is
    made.
    """
    seen: set[Any] = set()
    history = []
    for message in document["history"]:
        id = message.get("id")
        if id is not None and id in seen:
            message = {key: value for key, value in message.items() if key != "id"}
        seen.add(id)
        history.append(message)
    return document | {"history": history}


def _record(store: CoreStore, file: ScannedFile, kind: str) -> Iterator[DoctorFinding]:
    """The findings about a document without a history. The store replaces it whole, so no write in
    progress is one.
    """
    if not file.is_regular:
        yield DoctorFinding(file.id, file.path, 0, 0, "damaged", _IRREGULAR)
        return
    try:
        data = store.engine.external_edits().read_stray(kind, file.id)
        document = KINDS[kind].read(data, file.path) if data is not None else {"id": file.id}
    except InvalidDocument as error:
        yield from (DoctorFinding.of(file.id, "damaged", problem) for problem in error.problems)
        return
    if document["id"] != file.id:
        text = (
            f"its id is {document['id']!r}: file name and id differ; rename the file, or "
            "correct the id"
        )
        yield DoctorFinding(
            file.id, file.path, *locations.locate(data or b"", ("id",)), "name", text
        )
