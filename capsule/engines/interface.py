"""What the Store asks of a storage engine, and the values and errors that both sides exchange.

An `Engine` opens a `Transaction` on one document, and has `Leases`, a `Trash` and `SideFiles` beside
the documents. `retry`, `edit_document` and `deleted_last` are written once for all kinds of engine.
What only some engines can do is a protocol of its own (`ExternalEdits`, `DatabaseEngine`). `queries.py`
has the queries over all conversations.

What must stay true:

- The Store and everything above it know documents, positions and versions, and never bytes,
  offsets, paths or SQL. What needs files asks `Engine.external_edits`, which refuses by name.
- A write is all or nothing, and durable when the call returns.
- A lease ends when its holder releases it or dies, however it dies. Its fencing number is higher
  than those of all earlier holders, and a write that names a lease is done only while its holder
  has it.
- A document in a file is judged and changed through `HeldFile` only, that is under its mutex.
- Nothing here belongs to one kind of engine, and a quick command may load this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from capsule.errors import CapsuleError, ConcurrentWrite, NotFound, Remedy, StoreBusy

if TYPE_CHECKING:
    from capsule.disk.whole_files import FileContent, Signature
    from capsule.engines.files.disk.derived import DerivedFiles
    from capsule.engines.local_documents import LocalDocuments
    from capsule.engines.queries import Queries
    from capsule.format.documents.head import ParsedHead
    from capsule.format.recovery.torn_files import RepairedFile
    from capsule.rules.consent import PolicyInputs
    from capsule.rules.policy import PolicyTarget, Viewer

T = TypeVar("T")
Document = dict[str, Any]
CONVERSATIONS = "conversations"
#: The two documents of a session, which have its id.
INBOUND, OUTBOUND = "inbound", "outbound"
#: The kinds of documents that have entries.
WITH_ENTRIES = (CONVERSATIONS, INBOUND, OUTBOUND)


def not_found(kind: str, id: str) -> NotFound:
    """The error that there is no document of this kind with this id."""
    if kind == CONVERSATIONS:
        return NotFound(f"no conversation {id}", remedy=Remedy("list"), id=id)
    return NotFound(
        f"no session {id}" if kind in WITH_ENTRIES else f"there is no {kind}/{id}.json", id=id
    )


# -- Leases ----------------------------------------------------------------------------------------

_INSTANCE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: The kind under which `ReadSet` names the lease that a decision needs.
LEASES = "leases"


def is_instance(name: str) -> bool:
    """Whether a name is that of an instance."""
    return _INSTANCE.fullmatch(name) is not None


class Lease(NamedTuple):
    """A lease that was taken; it is released at the end of a `with` block. `fence` is its fencing
    number.
    """

    leases: Leases
    name: str
    fence: int

    @property
    def as_read_set(self) -> dict[tuple[str, str], Lease]:
        """The entry for `ReadSet` that makes a write depend on this lease."""
        return {(LEASES, self.name): self}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leases.release(self.name)


class Leases(Protocol):
    """The leases of one store. An instance has the lease of its own id, and says there what others
    may know of it.

    Attributes:
        boot: What tells the run of the system that frees the leases of the dead from all others;
            empty: nothing does. Containers of one machine have the same.
    """

    @property
    def boot_id(self) -> str: ...

    def acquire(
        self, name: str, details: Mapping[str, Any] | None = None, timeout_s: float | None = 0.0
    ) -> Lease:
        """Take a lease, until it is released or this process ends.

        Args:
            name: The name. An instance, a UUID, takes its own again to say something else; no other
                is taken twice.
            details: What an instance says about itself, as small JSON; None: what it said before.
            timeout_s: How long to wait for another holder, in seconds; None: for ever.

        Raises StoreBusy, which names the holder if that is known; Refused, StorageFailed.
        """

    def ensure_held(self, lease: Lease) -> None:
        """Raise StoreBusy if a lease was released or lost."""

    def release(self, name: str) -> None:
        """Release a lease, if this process has it."""

    def live_instances(self) -> dict[str, dict[str, Any]]:
        """What each live instance says about itself. Cost: a look at each instance."""

    def is_live(self, instance: str, host: str | None = None, boot_id: str = "") -> bool | None:
        """Whether an instance lives, True also if that can't be found out; None: the engine knows
        none of that host.

        Args:
            instance: The instance.
            host: The name of the machine that it runs on; None: one that the engine knows.
            boot_id: The `boot_id` of its leases; empty: not known.
        """

    def record_heartbeat(self, session: str) -> None:
        """Note that the worker of a session is at work now, not durably. Any process may."""

    def last_heartbeat(self, session: str) -> str | None:
        """The time of the last `beat`, by the clock of the store; None: there was none."""


# -- Values ----------------------------------------------------------------------------------------


class DocumentVersion(Protocol):
    """One version of a document of a kind without entries. Only its engine can compare it with
    another one.
    """

    @property
    def data(self) -> bytes:
        """The bytes of this version."""


#: The documents without entries that a decision read, by kind and id, each with its version; None:
#: there was none. And the lease that it needs, under `LEASES` and its name: a write after that was
#: lost raises StoreBusy.
ReadSet = Mapping[tuple[str, str], DocumentVersion | Lease | None]


class Trashed(NamedTuple):
    """A document in the trash: a deleted conversation, or messages that were taken out of one.

    Attributes:
        id: The conversation's id.
        deleted_at: When it came into the trash.
        token: Its name in the trash.
        path: Where it lies.
    """

    id: str
    deleted_at: str
    token: str
    path: str


class Tracker(Protocol):
    """Tells which documents were touched."""

    def changed_ids(self) -> set[str] | None:
        """The ids whose files were touched since the last call, every acknowledged write among
        them.

        None when that can't be told: scan. Writes through a mapping or a second name of a file are
        not seen.
        """

    def fileno(self) -> int:
        """The descriptor that can be read when there is an answer to be had, for `select.poll`."""

    @property
    def is_open(self) -> bool:
        """Whether there will be answers."""

    def close(self) -> None:
        """Give back what it holds."""


class DocumentNotifier:
    """Tells which documents of any kind a store wrote.

    Args:
        track: `Engine.tracker`. It is called again when the tracker that it gave ends.
    """

    def __init__(self, open_tracker: Callable[[], Tracker]) -> None:
        self._track = open_tracker
        self._tracker = open_tracker()

    def changed_documents(self) -> set[tuple[str, str]] | None:
        """The kind and id of each document that was written since the last call, every acknowledged
        write among them.

        None when that can't be told: look at all. Raises `StorageFailed`, `Refused`.
        """
        names = self._tracker.changed_ids()
        if not self._tracker.is_open:
            self._tracker, names = self._track(), None
        parts = (name.partition("-") for name in names or ())
        return None if names is None else {(kind, id) for kind, _, id in parts}

    def fileno(self) -> int:
        """The descriptor that can be read when there is an answer to be had; it may be another one
        after `changed`.
        """
        return self._tracker.fileno()

    def close(self) -> None:
        """Give back what it holds."""
        self._tracker.close()


class EntriesSince(NamedTuple):
    """What became of the entries of a document since an earlier look.

    Attributes:
        place: What the next look begins from.
        entries: The entries that were appended since; or all, if `is_all`.
        is_all: Whether it is the first look, or the document was changed otherwise than by
            appending.
    """

    position: Any
    entries: list[dict[str, Any]]
    is_complete: bool


# -- What only some engines can do -----------------------------------------------------------------


@runtime_checkable
class DatabaseEngine(Protocol):
    """An engine whose documents are rows of a database."""

    def flaws(self) -> Iterator[tuple[str, str, str]]:
        """What is wrong with the rows of documents: a kind, an id, and what it is. Costs a pass
        over all entries.
        """

    def durability(self) -> str:
        """What an acknowledged message survives, in words."""


class ScannedFile(NamedTuple):
    """One file met by a scan: its id, its signature, and whether it is a regular file at all.

    A tuple, as a scan of thousands makes one for each.

    Attributes:
        links: Names that the file has; through one elsewhere it changes without an event here.
    """

    id: str
    path: str
    signature: Signature
    is_regular: bool
    links: int = 1


class Leftover(NamedTuple):
    """Something a dead process left behind (`instance`, `temporary`), or a document that
    `vanished`.
    """

    kind: str
    id: str
    path: str
    description: str


class HeldFile(Protocol):
    """A document under its mutex, whatever lies in its place.

    Attributes:
        kind, id: The document.
        path: Where it lies.
    """

    kind: str
    id: str
    path: str

    @property
    def has_header(self) -> bool:
        """Whether the store knows of a version that it left."""

    @property
    def is_interrupted(self) -> bool:
        """Whether a write was begun that nobody is known to have finished. Known once the records
        were read.
        """

    def is_unchanged(self) -> bool:
        """Whether the file is as the store left it. Cost: a look."""

    def read(self) -> FileContent | None:
        """The whole file and its signature; None when there is none."""

    def records(self) -> list[list[bytes]]:
        """What the store wrote lately, the oldest write first, as `format.merge.records`
        gives it.
        """

    def reconcile_external_edit(
        self, repair: Callable[[bytes], RepairedFile | None] | None = None
    ) -> Signature:
        """Take in whatever was done to a document with entries from outside; its signature then.

        Args:
            repair: Also have a damaged file made whole that no crash of a write left so, by this;
                what the store remembers comes back then. It is for a person to ask for.

        Raises NotFound, InvalidDocument, Interfered. Cost: none when it is as the store left it;
        else reading it.
        """

    def repaired(self, data: bytes, signature: Signature) -> RepairedFile | None:
        """A file that isn't valid, made whole; None when no crash of a write can have left
        it so.
        """

    def put(
        self,
        expected: Signature | None,
        data: bytes,
        records: list[bytes],
        *,
        canonical: bool = True,
    ) -> str:
        """Write the whole document; its tag then.

        Args:
            expected: What the caller decided upon; None: there must be no file.
            data: The document.
            records: What is to be remembered of it.
            canonical: Whether it is a capsule in the canonical layout.
        """

    def quarantine(self, data: bytes, reason: str) -> str:
        """Keep bytes in the quarantine; the path."""

    def delete(self) -> Trashed:
        """Move the document to the trash."""


class ExternalEdits(Protocol):
    """Documents that are files, which other programs may write, move and leave beside others.

    Attributes:
        derived: The files that are made of them, such as the index.
    """

    derived: DerivedFiles

    def hold(self, kind: str, id: str) -> AbstractContextManager[HeldFile]:
        """One file, whose mutex is held in a `with` block. Raises StoreBusy, Refused."""

    def scan(self, kind: str) -> Iterator[ScannedFile]:
        """Every file among the documents of a kind, in no order."""

    def read_stray(self, kind: str, name: str) -> bytes | None:
        """A file among the documents of a kind, by its name without `.json`, unchecked; None: there
        is none.
        """

    def quarantine_file(self, kind: str, name: str, id: str, reason: str) -> str:
        """Move such a file to the quarantine, as one of the document `id`; its path there. Raises
        NotFound.
        """

    def is_unchanged(self, kind: str, id: str) -> bool:
        """Whether a file is as the store left it. Takes no mutex: False also while a writer is at
        work.
        """

    def committed_version(self, path: str) -> bytes | None:
        """The version of a document that the commit has which is checked out; None:
        there is none.
        """

    def leftovers(self, kind: str) -> list[Leftover]:
        """What dead processes left, and known documents whose file vanished."""

    def sweep(self, kind: str, leftover: Leftover) -> str:
        """Put one leftover away; in words what was done."""


# -- Every engine ----------------------------------------------------------------------------------


class DocumentState(NamedTuple):
    """What is known of a document with entries without reading it.

    Attributes:
        updated_at: Its `updatedAt`.
        tag: A key for caches, which changes with every write but an append.
        entries: The number of entries.
        size: The size of the stored document, in bytes.
        ends_active: Whether the last entry is known to be the end of the active branch.
        newest: The latest known `updatedAt` of the document, present or past.
        time: The time of the last append; empty: it isn't known.
    """

    updated_at: str
    tag: str
    entries: int
    size: int
    ends_active: bool
    newest_updated_at: str
    newest_message_time: str


class Transaction(Protocol):
    """The exclusive right to one document.

    Each write is all or nothing, and durable when the transaction has ended without an error. A
    call may raise `ConcurrentWrite`: another program wrote the document, so begin the transaction again;
    or `StorageFailed`, `Refused`: nothing was written. The end of the transaction may raise
    `StorageFailed`: what was appended is there, and may not outlive a power cut.

    Attributes:
        id: The document's id.
        name: Its name in errors: its path, or its kind and id.
        reads: What else the decision on the next write read. If any of it has another version when
            that is written, the write raises `ConcurrentWrite`, and nothing is written.
        waits: Whether its end waits until what was appended is durable; otherwise that is so a
            second later.
        judged: The conversation as the agent was let in to it, and the state by which; None: no
            agent was judged. The other decisions on it are by the same state, whose documents are
            in `reads`.
    """

    id: str
    name: str
    read_set: ReadSet
    waits_for_flush: bool
    decision_inputs: tuple[PolicyTarget, PolicyInputs] | None

    @property
    def head(self) -> ParsedHead:
        """The fields of a conversation except context and history, parsed."""

    @property
    def state(self) -> DocumentState:
        """What else is known of the document."""

    def document(self) -> Document:
        """The whole document, current and in canonical order; not to be changed in place. Cost: one
        parse.
        """

    def follow(self, since: Any = None, own_entries: list[Document] | None = None) -> EntriesSince:
        """As `Engine.follow`, of the document as it is here. If this transaction alone appended
        since then, `own_entries` has its entries, which are not read again."""

    def find(self, id: str) -> tuple[int, Document] | None:
        """The place of the entry with an id, and the entry; None: there is none.

        Cost: reading back to it; of a UUIDv5 that is not there, reading the entries appended since
        the last call.
        """

    def appended(self) -> list[Document]:
        """The recently appended entries that the engine has recorded, also those removed since.

        Cost: reading the record.
        """

    def ensure_durable(self) -> None:
        """Have the present document be durable at the end, in case an earlier writer failed to make
        it so.
        """

    def append(
        self,
        entries: list[Document],
        encoded: list[bytes],
        updated_at: str,
        *,
        time: str,
        head: Document | None,
        ends_active: bool,
    ) -> None:
        """Append entries.

        Args:
            entries: Complete entries, at least one.
            encoded: The entries, as `codec.encode_entry` encodes them.
            updated_at: The new `updatedAt`.
            time: The time of the append; see `DocumentState`.
            head: A new head, in canonical order, in the same write; None: only `updatedAt` changes.
            ends_active: Whether the last entry is known to be the end of the active branch.
        """

    def set_head(
        self,
        head: Document,
        *,
        context: Callable[[], Iterable[bytes]] | None = None,
        ends_active: bool | None = None,
    ) -> None:
        """Write a new head, and nothing else.

        Args:
            head: The head, in canonical order.
            context: Gives a new context: a JSON object in the canonical layout, in pieces, as it
                may be large.
            ends_active: As in `append`; None: as it is.
        """

    def replace(self, document: Document, removed: tuple[str, Document] | None = None) -> None:
        """Replace the document by another version. Raises `InvalidDocument`.

        Args:
            document: The other version.
            removed: What of the present one goes to the trash first: a kind, and a document.
        """

    def quarantine_copy(self, reason: str) -> str:
        """Keep a copy of the present document; the path or name of the copy."""

    def delete(self) -> Trashed:
        """Move the document to the trash."""


class SideFiles(Protocol):
    """Files that are no documents: those of messages, and attachments."""

    def write(self, kind: str, id: str, name: str, data: bytes) -> str:
        """Keep a file that is no document, durably; the same file again changes nothing.

        Args:
            kind: `inbox` or `outbox` of a session, or `attachments`, which belong to all.
            id: The session; of an attachment its name.
            name: The file's name in its folder.
            data: What it holds.

        Returns: its path, or its kind, id and name.

        Raises:
            Refused: A file of this name has another content, or the system did not permit it.
            InvalidInput: This is no name of a file.
        """

    def read(self, kind: str, id: str, name: str) -> bytes:
        """What such a file holds. Raises `NotFound`, InvalidInput; InvalidDocument if it is no
        regular file.
        """

    def names(self, kind: str, id: str) -> list[str]:
        """The names of these files of one session, sorted; of `attachments` all."""

    def erase(self, kind: str, id: str, name: str) -> None:
        """Erase such a file, if it is there. Raises InvalidInput, Refused, StorageFailed."""


class Trash(Protocol):
    """What was deleted, until it is purged."""

    def entries(self, kind: str) -> list[Trashed]:
        """The entries of the trash, newest first."""

    def read(self, token: str) -> bytes:
        """One document in the trash. Raises `NotFound`."""

    def add(self, kind: str, id: str, data: bytes, deleted_at: str = "") -> Trashed:
        """Put a document there, as if it had been deleted at this time; empty: now. Raises Refused,
        StorageFailed.
        """

    def restore(self, kind: str, id: str, token: str) -> None:
        """Move a document out of the trash. Raises `Refused` if its id is taken."""

    def erase(self, token: str) -> None:
        """Erase one document, if it is there."""

    def purge(self, older_than_s: float) -> list[str]:
        """Erase the entries of trash and quarantine that are older; the names of those erased."""


class Engine(Protocol):
    """The documents of one store."""

    @property
    def files(self) -> SideFiles:
        """The files that it keeps beside the documents."""

    @property
    def trash(self) -> Trash:
        """What was deleted."""

    @property
    def local(self) -> LocalDocuments:
        """What belongs to this machine alone, whatever the engine."""

    @property
    def leases(self) -> Leases:
        """Who holds which name."""

    # -- One document ------------------------------------------------------------------------------

    def transaction(self, kind: str, id: str) -> AbstractContextManager[Transaction]:
        """The exclusive right to one document.

        Raises:
            NotFound: There is no such document.
            InvalidDocument: It is damaged.
            StoreBusy, Refused: Another writer has it, or the system did not permit it.
        """

    def create(
        self,
        kind: str,
        document: Document,
        on_written: Callable[[str], None] | None = None,
        read_set: ReadSet | None = None,
    ) -> int:
        """Write a new document, durably; its size in bytes.

        Args:
            document: The document, checked, in canonical order.
            on_written: Called with its tag, before another transaction on it can begin.
            read_set: What the decision to write it read.

        Raises:
            Taken: A document with this id exists.
            Interfered: What the decision read has another version by now: decide anew.
        """

    def put(
        self,
        kind: str,
        id: str,
        data: bytes,
        expected: DocumentVersion | None,
        read_set: ReadSet | None = None,
    ) -> DocumentVersion:
        """Write a document of a kind without entries, durably, if it is as it was when that was
        decided.

        Args:
            data: The new bytes.
            expected: The version that the decision read; None: there was no document.
            read_set: What else it read.

        Raises:
            Interfered: Any of these has another version by now: decide anew. One with the same
                bytes may count as the same.
        """

    def delete(self, kind: str, id: str) -> Trashed:
        """Move a document of a kind without entries to the trash. Raises `NotFound`."""

    def exists(self, kind: str, id: str) -> bool:
        """Whether a document with this id exists."""

    def version(
        self, kind: str, id: str, cached: DocumentVersion | None = None
    ) -> DocumentVersion | None:
        """The present version of a document of a kind without entries; None: there is none.

        Args:
            cached: An earlier version. If it is still the present one, this object is the answer, at
                the cost of a look.
        """

    def ids(self, kind: str) -> list[str]:
        """The ids of all documents of a kind, sorted."""

    def read(self, kind: str, id: str) -> bytes:
        """The stored bytes of a document, checked. Raises `NotFound`, `InvalidDocument`."""

    def document(self, kind: str, id: str) -> Document:
        """The document, current and in canonical order. Raises `NotFound`, `InvalidDocument`."""

    def follow(self, kind: str, id: str, since: Any = None) -> EntriesSince:
        """The entries that were appended to a document since an earlier look.

        Args:
            kind: A kind with entries.
            id: Its id.
            since: The `place` of what an earlier call gave; None: this is the first look.

        Raises `NotFound`, `InvalidDocument`. Cost: a look if nothing changed; else reading what was
        appended, or all if it was changed in another way.
        """

    def parsed(self, id: str, parse: Callable[[bytes, bool], T]) -> T:
        """The result of `parse` on the stored bytes of a conversation.

        Args:
            id: The conversation.
            parse: Takes the bytes, and whether they are current and in the canonical layout. Called
                again when it fails, as a write may be in progress.

        Raises `NotFound`, `InvalidDocument`, and the errors of `parse`.
        """

    def tail(self, id: str, n: int) -> tuple[bytes, int, str]:
        """The last `n` entries as a JSON array, the number of all entries, and the tag (see
        `DocumentState`; empty: it isn't known). Raises `NotFound`, `InvalidDocument`."""

    def head(self, id: str) -> tuple[Document, int]:
        """A conversation without context and history, and its size in bytes. Raises `NotFound`,
        `InvalidDocument`.
        """

    def name(self, kind: str, id: str) -> str:
        """The name of a document in errors and heads: its path, or its kind and id."""

    def external_edits(self, purpose: str = "this") -> ExternalEdits:
        """The documents as files, for a purpose that the error names. Raises Refused: this engine
        keeps none.
        """

    # -- All conversations -------------------------------------------------------------------------

    def queries(self, asker: Viewer | None = None) -> Queries:
        """The questions of an agent about the conversations, or of the store's owner (None)."""

    def tracker(self, kind: str | None = None) -> Tracker:
        """What tells of documents that are touched from now on. Raises `StorageFailed`, `Refused`.

        Args:
            kind: Tells by their ids which documents of this kind any program touched. None: tells
                `kind-id` of all that stores wrote, and perhaps again when it is flushed; of a write
                by another program nothing before a store has taken it in. See `DocumentNotifier`.
        """

    # -- Beside the documents ----------------------------------------------------------------------

    def flush(self, kind: str = "", id: str = "") -> int:
        """Make a document durable as every reader sees it; without a kind all documents with
        entries.

        Returns the number of documents that a power cut had left incomplete, and that are complete
        now.

        Raises `NotFound`, `InvalidDocument`, `StoreBusy`, `Refused`, `StorageFailed`. Cost: a look
        if it is; for all a look at each that was written since the last time.
        """

    def toml(self) -> bytes:
        """The settings of the store, as its `capsule.toml` has them. Raises NotFound, Refused,
        StorageFailed.
        """

    def set_toml(self, data: bytes, expected: bytes) -> None:
        """Replace the settings, which are `expected`. Raises StoreBusy: they are others; Refused,
        StorageFailed.
        """

    def close(self) -> None:
        """Release all resources."""


# -- For all engines -------------------------------------------------------------------------------

Change = Callable[[bytes | None], bytes | None]
_TRIES = 5
#: Of many that write one document, each has its turn within so many tries.
_EDITS = 1000


def retry(
    operation: Callable[[], T], name: str = "the file", id: str = "", tries: int = _TRIES
) -> T:
    """What `operation` gives, which starts over when another program wrote `what` in between. Raises
    StoreBusy.
    """
    for _ in range(tries):
        try:  # Not by `suppress`, which costs more than this.
            return operation()
        except ConcurrentWrite:
            continue
    raise retries_exhausted(name, id)


def retries_exhausted(name: str, id: str) -> StoreBusy:
    """The error that another program wrote `what` again and again."""
    why = f"{name}: another program keeps rewriting it; try again when it has finished"
    return StoreBusy(why, id=id, holder="another program")


def edit_document(
    engine: Engine, kind: str, id: str, edit: Change, cached: DocumentVersion | None = None
) -> DocumentVersion | None:
    """Read, change and write a document of a kind without entries, durably; the version that there
    is then.

    `edit` takes the stored bytes, or None, and gives the new bytes, or None to write nothing. It
    runs again if another program wrote the document meanwhile. It begins with the version `cached`,
    if that was read just now. Raises its errors, StoreBusy, and what a write raises.
    """
    for _ in range(_EDITS):
        with suppress(ConcurrentWrite):
            before, cached = cached or engine.version(kind, id), None
            after = edit(None if before is None else before.data)
            return before if after is None else engine.put(kind, id, after, before)
    raise retries_exhausted(engine.name(kind, id), id)


def document_in(trash: Trash, token: str) -> Document:
    """Return a document in the trash, as the current format has it. Raises NotFound,
    InvalidDocument.
    """
    from capsule.format import migrations
    from capsule.format.json import codec

    return migrations.upgrade(codec.decode(trash.read(token), token), token)[0]


def deleted_last(trash: Trash, ids: Collection[str]) -> dict[str, Document]:
    """Return those of these conversations that are in the trash, by id, each as it was deleted
    last. Damaged ones are left out. Cost: reading them.
    """
    documents: dict[str, Document] = {}
    for trashed in reversed(trash.entries(CONVERSATIONS)):
        if trashed.id in ids:
            with suppress(CapsuleError):
                documents[trashed.id] = document_in(trash, trashed.token)
    return documents
