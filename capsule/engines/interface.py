"""Define the interface of a storage engine, and the values that it exchanges with the Store.

An `Engine` opens a `Transaction` on one document, and has `Leases`, a `Trash` and `SideFiles`.
`Engine.queries` returns the queries about all conversations (`queries.py`). Functions such as
`retry` and `edit_document` are the same for all kinds of engine. Abilities of only some engines are
protocols of their own (`ExternalEdits`, `DatabaseEngine`).

A document of a kind with entries (a conversation, or an inbound or outbound file of a session) is
written in a transaction. A document of another kind is small, and is replaced with `put`, if it has
not changed since its version was read.

What must stay true:

- The Store and everything above it know documents, positions and versions, but no bytes, offsets,
  paths or SQL. Code that needs files calls `Engine.external_edits`, which refuses by name.
- A write is all or nothing, and durable when the call returns.
- A lease ends when its holder releases it or dies in any way. Its fencing number is higher than
  those of all earlier holders, and a write that names a lease is done only while its holder has it.
- A document in a file is checked and changed through `HeldFile` only, that is under its mutex.
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
    from capsule.engines.changes import Interest
    from capsule.engines.files.disk.derived import DerivedFiles
    from capsule.engines.local_documents import LocalDocuments
    from capsule.engines.queries import HeadField, Queries
    from capsule.format.documents.head import Head, ParsedHead
    from capsule.format.recovery.torn_files import RepairedFile
    from capsule.rules.consent import PolicyInputs
    from capsule.rules.policy import PolicyTarget, Viewer

T = TypeVar("T")
Document = dict[str, Any]
CONVERSATIONS = "conversations"
#: The two documents of a session, which have its id.
INBOUND = "inbound"
OUTBOUND = "outbound"
#: The kinds of documents that have entries.
WITH_ENTRIES = (CONVERSATIONS, INBOUND, OUTBOUND)


def not_found(kind: str, id: str) -> NotFound:
    """Return the error that there is no document of this kind with this id."""
    if kind == CONVERSATIONS:
        return NotFound(f"no conversation {id}", remedy=Remedy("list"), id=id)
    if kind in WITH_ENTRIES:
        return NotFound(f"no session {id}", id=id)
    return NotFound(f"there is no {kind}/{id}.json", id=id)


# -- Leases ----------------------------------------------------------------------------------------

_INSTANCE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: The kind under which a `ReadSet` has the lease that a decision needs.
LEASES = "leases"


def is_instance(name: str) -> bool:
    """Return whether a name is the id of an instance (a UUID)."""
    return _INSTANCE.fullmatch(name) is not None


class Lease(NamedTuple):
    """An acquired lease. A `with` block releases it at its end.

    Attributes:
        leases: The leases of the store.
        name: The name of the lease.
        fence: Its fencing number.
    """

    leases: Leases
    name: str
    fence: int

    @property
    def as_read_set(self) -> dict[tuple[str, str], Lease]:
        """The read set that makes a write depend on this lease."""
        return {(LEASES, self.name): self}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leases.release(self.name)


class Leases(Protocol):
    """The leases of one store.

    An instance (one open Store) has the lease of its own id, with details that others may read.

    Attributes:
        boot_id: Identifies the run of the system that frees the leases of dead processes. All
            containers of one machine have the same. Empty: there is no such system.
    """

    @property
    def boot_id(self) -> str: ...

    def acquire(
        self, name: str, details: Mapping[str, Any] | None = None, timeout_s: float | None = 0.0
    ) -> Lease:
        """Acquire a lease, until it is released or this process ends.

        Args:
            name: The name. An instance, a UUID, may acquire its own again to change its details. No
                other lease is acquired twice.
            details: The details of an instance, as small JSON. None: they do not change.
            timeout_s: How long to wait for another holder, in seconds. None: without a limit.

        Raises StoreBusy, which names the holder if it is known; Refused, StorageFailed.
        """

    def ensure_held(self, lease: Lease) -> None:
        """Raise StoreBusy if a lease was released or lost."""

    def release(self, name: str) -> None:
        """Release a lease, if this process has it."""

    def live_instances(self) -> dict[str, dict[str, Any]]:
        """Return the details of each live instance, by its id. Cost: a look at each instance."""

    def is_live(self, instance: str, host: str | None = None, boot_id: str = "") -> bool | None:
        """Return whether an instance is alive. True also if that can't be found out.

        Args:
            instance: The instance.
            host: The name of its machine. None: one that the engine knows.
            boot_id: The `boot_id` of its leases. Empty: unknown.

        Returns: None if the engine knows no instance of that host.
        """

    def record_heartbeat(self, session: str) -> None:
        """Record that the worker of a session works now, not durably. Any process may call it."""

    def last_heartbeat(self, session: str) -> str | None:
        """Return the time of the last heartbeat, by the clock of the store. None:
        there was none.
        """


# -- Values ----------------------------------------------------------------------------------------


class DocumentVersion(Protocol):
    """One version of a document of a kind without entries. Only its engine can compare versions."""

    @property
    def data(self) -> bytes:
        """The bytes of this version."""


#: The versions of other documents that a decision was based on, by kind and id. None: there was no
#: document. It can also have the lease that the decision needs, under `LEASES` and its name. A
#: write with a read set is refused if one of them changed: with ConcurrentWrite, or with StoreBusy
#: if the lease was lost.
ReadSet = Mapping[tuple[str, str], DocumentVersion | Lease | None]


class Trashed(NamedTuple):
    """A document in the trash: a deleted conversation, or messages that were removed from one.

    Attributes:
        id: The conversation's id.
        deleted_at: The time of the deletion.
        token: Its name in the trash.
        path: Its path. Empty in an engine without files.
    """

    id: str
    deleted_at: str
    token: str
    path: str


class Tracker(Protocol):
    """Reports which documents were written."""

    def changed_ids(self) -> set[str] | None:
        """Return the ids of the files that were written since the last call.

        All acknowledged writes are among them. Writes through a mapping or another name of a file
        are not seen.

        Returns: None if the tracker lost track: scan all files.
        """

    def fileno(self) -> int:
        """Return a descriptor for `select.poll`. It is readable when `changed_ids` has a result."""

    @property
    def is_open(self) -> bool:
        """Whether there will be more reports."""

    def close(self) -> None:
        """Release all resources."""


@runtime_checkable
class JournalTracker(Tracker, Protocol):
    """A tracker that reports changes of conversations only when the journal has them, and that can
    choose which ones.

    Attributes:
        interest: The changes that it reports.
        is_following: Whether another process of this machine watches all changes for this one.
    """

    interest: Interest

    @property
    def is_following(self) -> bool: ...

    def want(self, interest: Interest) -> None:
        """Report only these changes from now on. If they are more, it may have missed some, and
        reports so.
        """


class DocumentNotifier:
    """Reports which documents of any kind a store wrote.

    Args:
        open_tracker: `Engine.tracker`. It is called again when a tracker ends.
    """

    def __init__(self, open_tracker: Callable[[], Tracker]) -> None:
        self._open_tracker = open_tracker
        self._tracker = open_tracker()

    def changed_documents(self) -> set[tuple[str, str]] | None:
        """Return the kind and id of each document that was written since the last call.

        All acknowledged writes are among them.

        Returns: None if it is unknown: look at all. Raises `StorageFailed`, `Refused`.
        """
        names = self._tracker.changed_ids()
        if not self._tracker.is_open:
            self._tracker = self._open_tracker()
            return None
        if names is None:
            return None
        documents = set()
        for name in names:
            kind, _, id = name.partition("-")
            documents.add((kind, id))
        return documents

    def fileno(self) -> int:
        """Return the descriptor for `select.poll`. It can change with `changed_documents`."""
        return self._tracker.fileno()

    def close(self) -> None:
        """Release all resources."""
        self._tracker.close()


class EntriesSince(NamedTuple):
    """The entries of a document since an earlier read.

    Attributes:
        position: Give this to the next call.
        entries: The entries that were appended since, or all, if `is_complete`.
        is_complete: Whether these are all entries: in the first read, or if the document was
            changed in another way than by appending.
    """

    position: Any
    entries: list[dict[str, Any]]
    is_complete: bool


# -- Abilities of only some engines ----------------------------------------------------------------


@runtime_checkable
class DatabaseEngine(Protocol):
    """An engine whose documents are rows of a database."""

    def flaws(self) -> Iterator[tuple[str, str, str]]:
        """Yield what is wrong with rows: a kind, an id and a description.

        Cost: a pass over all entries.
        """

    def durability(self) -> str:
        """Return in words which failures an acknowledged message survives."""


class ScannedFile(NamedTuple):
    """One file that a scan found. A tuple, as a scan makes one for each of thousands.

    Attributes:
        id: The id of the document.
        path: Its path.
        signature: Its size, times and inode.
        is_regular: Whether it is a regular file.
        links: The number of its names. A change through a name elsewhere is not reported here.
    """

    id: str
    path: str
    signature: Signature
    is_regular: bool
    links: int = 1


class Leftover(NamedTuple):
    """Something that a dead process left, or a document that vanished.

    Attributes:
        kind: `instance`, `temporary` or `vanished`.
        id: The instance or the document.
        path: Its path.
        description: What it is, in words.
    """

    kind: str
    id: str
    path: str
    description: str


class HeldFile(Protocol):
    """The file of a document whose mutex is held. The file can be missing or damaged.

    Attributes:
        kind, id: The document.
        path: Its path.
    """

    kind: str
    id: str
    path: str

    @property
    def has_header(self) -> bool:
        """Whether there is a state header: the store recorded a version that it wrote."""

    @property
    def is_interrupted(self) -> bool:
        """Whether a write was begun and perhaps not finished. Call `records` first."""

    def is_unchanged(self) -> bool:
        """Return whether the file is as the store wrote it. Cost: one `stat`."""

    def read(self) -> FileContent | None:
        """Return the whole file and its signature, or None."""

    def records(self) -> list[list[bytes]]:
        """Return the log records of the last writes, the oldest write first."""

    def reconcile_external_edit(
        self, repair: Callable[[bytes], RepairedFile | None] | None = None
    ) -> Signature:
        """Reconcile the log with an external edit of a document with entries.

        Args:
            repair: Also repairs a damaged file that no crash of a write can explain. What the store
                has in its log is restored then. Only a person may ask for this.

        Returns: the signature of the file afterwards. Raises NotFound, InvalidDocument,
            ConcurrentWrite. Cost: none if the file is unchanged, else reading it.
        """

    def repaired(self, data: bytes, signature: Signature) -> RepairedFile | None:
        """Return an invalid file repaired. None: no crash of a write can explain the damage."""

    def put(
        self,
        expected: Signature | None,
        data: bytes,
        records: list[bytes],
        *,
        canonical: bool = True,
    ) -> str:
        """Write the whole document.

        Args:
            expected: The signature that the decision was based on. None: there must be no file.
            data: The document.
            records: The log records of this write.
            canonical: Whether the document is a capsule in the canonical layout.

        Returns: its new tag.
        """

    def quarantine(self, data: bytes, reason: str) -> str:
        """Write bytes to the quarantine, and return the path."""

    def delete(self) -> Trashed:
        """Move the document to the trash."""


class ExternalEdits(Protocol):
    """Documents that are files, which other programs may write, move and copy.

    Attributes:
        derived: The files that are made from the documents, such as the index.
    """

    derived: DerivedFiles

    def hold(self, kind: str, id: str) -> AbstractContextManager[HeldFile]:
        """Hold the mutex of one file in a `with` block. Raises StoreBusy, Refused."""

    def scan(self, kind: str) -> Iterator[ScannedFile]:
        """Yield every file among the documents of a kind, in no order."""

    def read_stray(self, kind: str, name: str) -> bytes | None:
        """Return a file by its name without `.json`, unchecked, or None."""

    def quarantine_file(self, kind: str, name: str, id: str, reason: str) -> str:
        """Move a file, by its name without `.json`, to the quarantine of document `id`.

        Returns: its path there. Raises NotFound.
        """

    def is_unchanged(self, kind: str, id: str) -> bool:
        """Return whether a file is as the store wrote it.

        It takes no mutex. So the result is also False while a process writes the file.
        """

    def committed_version(self, path: str) -> bytes | None:
        """Return the version of a document in the checked-out git commit, or None."""

    def leftovers(self, kind: str) -> list[Leftover]:
        """Return what dead processes left, and documents whose file vanished."""

    def sweep(self, kind: str, leftover: Leftover) -> str:
        """Remove one leftover. Return in words what was done."""


# -- Every engine ----------------------------------------------------------------------------------


class DocumentState(NamedTuple):
    """The state of a document with entries, which is known without reading it.

    Attributes:
        updated_at: Its `updatedAt`.
        tag: A key for caches. It changes with every write but an append.
        entries: The number of entries.
        size: The size of the stored document, in bytes.
        ends_active: Whether the last entry is known to be the end of the active branch.
        newest_updated_at: The latest `updatedAt` that the document has had.
        newest_message_time: The time of the last append. Empty: unknown.
    """

    updated_at: str
    tag: str
    entries: int
    size: int
    ends_active: bool
    newest_updated_at: str
    newest_message_time: str


class Transaction(Protocol):
    """The exclusive right to write one document.

    Each write is all or nothing, and durable when the transaction has ended without an error. A
    call may raise `ConcurrentWrite` (another program wrote the document: begin the transaction
    again), `StorageFailed` or `Refused`. Then nothing was written. If the end of the transaction
    raises `StorageFailed`, the appended entries are in the document, but a power cut can lose them.

    Attributes:
        id: The document's id.
        name: Its name in errors: its path, or its kind and id.
        read_set: The other documents that the decision on the next write is based on. If one of
            them has another version by then, the write raises `ConcurrentWrite`.
        waits_for_flush: Whether the end of the transaction waits until appended entries are on the
            disk. Otherwise they are written to the disk within a second.
        decision_inputs: For an agent: the conversation as the agent was allowed to write it, and
            the policy inputs of this decision. Later decisions in the transaction use the same
            inputs, whose documents are in `read_set`. None: the owner writes.
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
        """The state of the document."""

    def document(self) -> Document:
        """Return the whole document, current and in canonical order. Do not change it.

        Cost: one parse.
        """

    def follow(self, since: Any = None, own_entries: list[Document] | None = None) -> EntriesSince:
        """Return the entries since an earlier read. See `Engine.follow`.

        Args:
            since: The `position` from an earlier call.
            own_entries: The entries that this transaction appended since then. If nobody else
                appended, they are returned, and nothing is read.
        """

    def find(self, id: str) -> tuple[int, Document] | None:
        """Return the position of the entry with an id, and the entry, or None.

        Cost: reading back to it. For a UUIDv5 that is not there: reading the entries appended since
        the last call.
        """

    def appended(self) -> list[Document]:
        """Return the appended entries that the log still has, also those removed since.

        Cost: reading the log.
        """

    def ensure_durable(self) -> None:
        """Make the document durable at the end, in case an earlier writer failed to do so."""

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
            encoded: The entries, encoded by `codec.encode_entry`.
            updated_at: The new `updatedAt`.
            time: The time of the append. See `DocumentState.newest_message_time`.
            head: A new head, in canonical order, in the same write. None: only `updatedAt` changes.
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
            context: Returns a new context: a JSON object in the canonical layout, in pieces, as it
                can be large. None: it does not change.
            ends_active: As in `append`. None: it does not change.
        """

    def replace(self, document: Document, removed: tuple[str, Document] | None = None) -> None:
        """Replace the document by another version. Raises `InvalidDocument`.

        Args:
            document: The other version.
            removed: The part of the present version that is put into the trash first: a kind, and a
                document.
        """

    def quarantine_copy(self, reason: str) -> str:
        """Copy the document to the quarantine, and return the path or name of the copy."""

    def delete(self) -> Trashed:
        """Move the document to the trash."""


class SideFiles(Protocol):
    """Files beside the documents that are no documents: attachments, and files of sessions.

    The arguments of all methods: `kind` is `inbox` or `outbox` of a session, or `attachments`,
    which belong to the whole store; `id` is the session, or the name of the attachment; `name` is
    the name of the file.
    """

    def write(self, kind: str, id: str, name: str, data: bytes) -> str:
        """Write a file durably. Writing the same file again changes nothing.

        Returns: its path, or its kind, id and name.

        Raises:
            Refused: A file of this name has another content, or the system did not permit it.
            InvalidInput: This is no name of a file.
        """

    def read(self, kind: str, id: str, name: str) -> bytes:
        """Return the content of a file.

        Raises `NotFound`, InvalidInput; InvalidDocument if it is no regular file.
        """

    def names(self, kind: str, id: str) -> list[str]:
        """Return the names of the files of one session, sorted. For `attachments`: all."""

    def erase(self, kind: str, id: str, name: str) -> None:
        """Erase a file, if it exists. Raises InvalidInput, Refused, StorageFailed."""


class Trash(Protocol):
    """The deleted documents, until they are purged."""

    def entries(self, kind: str) -> list[Trashed]:
        """Return the entries of the trash, newest first."""

    def read(self, token: str) -> bytes:
        """Return one document in the trash. Raises `NotFound`."""

    def add(self, kind: str, id: str, data: bytes, deleted_at: str = "") -> Trashed:
        """Put a document into the trash, as if it had been deleted at this time. Empty: now.

        Raises Refused, StorageFailed.
        """

    def restore(self, kind: str, id: str, token: str) -> None:
        """Move a document out of the trash. Raises `Refused` if its id is in use."""

    def erase(self, token: str) -> None:
        """Erase one document, if it exists."""

    def purge(self, older_than_s: float) -> list[str]:
        """Erase entries of trash and quarantine that are older, in seconds. Return their names."""


class Engine(Protocol):
    """The documents of one store."""

    @property
    def files(self) -> SideFiles:
        """The side files."""

    @property
    def trash(self) -> Trash:
        """The trash."""

    @property
    def local(self) -> LocalDocuments:
        """The documents that belong to this machine alone, for every kind of engine."""

    @property
    def leases(self) -> Leases:
        """The leases."""

    # -- One document ------------------------------------------------------------------------------

    def transaction(
        self, kind: str, id: str, *, exclusive: bool = False
    ) -> AbstractContextManager[Transaction]:
        """Begin a transaction on a document of a kind with entries, in a `with` block.

        Args:
            kind, id: The document.
            exclusive: Whether to keep out all other writers of this engine until the first write.
                An engine of files always does. In a database, a transaction that is not exclusive
                costs less, and others may come first at each try: see `OPTIMISTIC_TRIES`.

        Raises:
            NotFound: The document does not exist.
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
        """Write a new document durably. Return its size in bytes.

        Args:
            kind: A kind with entries.
            document: The document, checked, in canonical order.
            on_written: Called with its tag, before another transaction on it can begin.
            read_set: The other documents that the decision to write it is based on.

        Raises:
            AlreadyExists: A document with this id exists.
            ConcurrentWrite: A document of the read set changed: decide again.
        """

    def put(
        self,
        kind: str,
        id: str,
        data: bytes,
        expected: DocumentVersion | None,
        read_set: ReadSet | None = None,
    ) -> DocumentVersion:
        """Write a document of a kind without entries durably, if it did not change.

        Args:
            kind: Its kind.
            id: Its id.
            data: The new bytes.
            expected: The version that the decision is based on. None: there was no document.
            read_set: The other documents that the decision is based on.

        Raises:
            ConcurrentWrite: The document or one of the read set changed: decide again. A version
                with the same bytes may count as the same.
        """

    def delete(self, kind: str, id: str) -> Trashed:
        """Move a document of a kind without entries to the trash. Raises `NotFound`."""

    def exists(self, kind: str, id: str) -> bool:
        """Return whether a document with this id exists."""

    def version(
        self, kind: str, id: str, cached: DocumentVersion | None = None
    ) -> DocumentVersion | None:
        """Return the present version of a document of a kind without entries, or None.

        Args:
            kind: Its kind.
            id: Its id.
            cached: An earlier version. If it is still the present one, this object is returned, and
                the document is not read.
        """

    def ids(self, kind: str) -> list[str]:
        """Return the ids of all documents of a kind, sorted."""

    def read(self, kind: str, id: str) -> bytes:
        """Return the stored bytes of a document, checked. Raises `NotFound`, `InvalidDocument`."""

    def document(self, kind: str, id: str) -> Document:
        """Return the document, current and in canonical order.

        Raises `NotFound`, `InvalidDocument`.
        """

    def follow(self, kind: str, id: str, since: Any = None) -> EntriesSince:
        """Return the entries that were appended to a document since an earlier read.

        Args:
            kind: A kind with entries.
            id: Its id.
            since: The `position` from an earlier call. None: this is the first one.

        Raises `NotFound`, `InvalidDocument`. Cost: one `stat` if nothing changed. Otherwise reading
        the appended part, or all, if the document was changed in another way.
        """

    def parsed(self, id: str, parse: Callable[[bytes, bool], T]) -> T:
        """Parse the stored bytes of a conversation, and return the result.

        Args:
            id: The conversation.
            parse: Takes the bytes, and whether they are current and in the canonical layout. It is
                called again if it fails, as a write can be in progress.

        Raises `NotFound`, `InvalidDocument`, and the errors of `parse`.
        """

    def tail(self, id: str, n: int) -> tuple[bytes, int, str]:
        """Return the end of a conversation.

        Returns: the last `n` entries as a JSON array, the number of all entries, and the tag (see
            `DocumentState`; empty: unknown). Raises `NotFound`, `InvalidDocument`.
        """

    def head(self, id: str) -> tuple[Document, int]:
        """Return a conversation without context and history, and its size in bytes.

        Raises `NotFound`, `InvalidDocument`.
        """

    def heads_with(self, field: HeadField, value: str) -> list[Head]:
        """Return the heads of the conversations with a value in a field, by their ids.

        Args:
            field: The field.
            value: Its value.

        Raises `StorageFailed`, `StoreBusy`. Cost: one round trip to a database, whatever is not in
        the index yet. On files, bringing the index up to date.
        """

    def name(self, kind: str, id: str) -> str:
        """Return the name of a document in errors and heads: its path, or its kind and id."""

    def external_edits(self, purpose: str = "this") -> ExternalEdits:
        """Return the documents as files.

        Args:
            purpose: The purpose, for the error.

        Raises Refused: this engine has no files.
        """

    # -- All conversations -------------------------------------------------------------------------

    def queries(self, asker: Viewer | None = None) -> Queries:
        """Return the queries of an agent about the conversations, or of the owner (None)."""

    def tracker(self, kind: str | None = None) -> Tracker:
        """Return a tracker of documents that are written from now on.

        Args:
            kind: Reports the ids of the documents of this kind that any program wrote. None:
                reports `kind-id` of all documents that stores wrote, perhaps again when they are
                flushed. A write of another program is reported when a store has reconciled it. See
                `DocumentNotifier`.

        Raises `StorageFailed`, `Refused`.
        """

    # -- Beside the documents ----------------------------------------------------------------------

    def flush(self, kind: str = "", id: str = "") -> int:
        """Make a document durable. Without a kind: all documents with entries.

        Returns: the number of documents that a power cut had left incomplete and that are complete
            now.

        Raises `NotFound`, `InvalidDocument`, `StoreBusy`, `Refused`, `StorageFailed`. Cost: one
        `stat` if it is durable. For all: one for each that was written since the last time.
        """

    def toml(self) -> bytes:
        """Return the settings of the store (`capsule.toml`).

        Raises NotFound, Refused, StorageFailed.
        """

    def set_toml(self, data: bytes, expected: bytes) -> None:
        """Replace the settings.

        Raises StoreBusy if they are not `expected`; Refused, StorageFailed.
        """

    def close(self) -> None:
        """Release all resources."""


# -- For all engines -------------------------------------------------------------------------------

Change = Callable[[bytes | None], bytes | None]
_TRIES = 5
#: After so many tries that other writers interrupted, a transaction is exclusive.
OPTIMISTIC_TRIES = 3
#: If many processes write one document, each succeeds within so many tries.
_EDIT_TRIES = 1000


def retry(
    operation: Callable[[], T], name: str = "the file", id: str = "", tries: int = _TRIES
) -> T:
    """Run an operation, again if another program wrote the document in between.

    Args:
        operation: The operation, which raises ConcurrentWrite in this case.
        name, id: The document, for the error.
        tries: The largest number of runs.

    Returns: the result of the operation. Raises StoreBusy after the last try.
    """
    for _ in range(tries):
        try:  # Not `suppress`, which costs more.
            return operation()
        except ConcurrentWrite:
            continue
    raise retries_exhausted(name, id)


def retries_exhausted(name: str, id: str) -> StoreBusy:
    """Return the error that another program wrote a document again and again."""
    reason = f"{name} keeps being rewritten by another program; try again when it is done"
    return StoreBusy(reason, id=id, holder="another program")


def edit_document(
    engine: Engine, kind: str, id: str, edit: Change, cached: DocumentVersion | None = None
) -> DocumentVersion | None:
    """Read, change and write a document of a kind without entries, durably.

    Args:
        engine: The engine.
        kind, id: The document.
        edit: Takes the stored bytes, or None. Returns the new bytes, or None to write nothing. It
            runs again if another program wrote the document in between.
        cached: The version to begin with, if it was read just now.

    Returns: the version afterwards. Raises the errors of `edit` and of `Engine.put`, StoreBusy.
    """
    first_version = cached
    for _ in range(_EDIT_TRIES):
        with suppress(ConcurrentWrite):
            version = first_version or engine.version(kind, id)
            first_version = None
            data = edit(None if version is None else version.data)
            if data is None:
                return version
            return engine.put(kind, id, data, version)
    raise retries_exhausted(engine.name(kind, id), id)


def document_in(trash: Trash, token: str) -> Document:
    """Return a document in the trash, upgraded to the current format.

    Raises NotFound, InvalidDocument.
    """
    from capsule.format import migrations
    from capsule.format.json import codec

    return migrations.upgrade(codec.decode(trash.read(token), token), token)[0]


def deleted_last(trash: Trash, ids: Collection[str]) -> dict[str, Document]:
    """Return the last deleted version of each of these conversations, by id.

    Conversations that are not in the trash, and damaged ones, are left out. Cost: reading them.
    """
    documents: dict[str, Document] = {}
    for trashed in reversed(trash.entries(CONVERSATIONS)):
        if trashed.id in ids:
            with suppress(CapsuleError):
                documents[trashed.id] = document_in(trash, trashed.token)
    return documents
