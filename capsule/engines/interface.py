"""The interface of an engine: transactions on one document, and queries over all of them.

What must stay true: the Store and everything above it know documents, places and versions, and
never bytes, offsets, paths or SQL. A write is all or nothing, and durable when the call returns.
What only some engines can do is a protocol in `capabilities`, which is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from capsule.engines.leases import Leases
from capsule.engines.values import News, Reads, Tracker, Trashed, Version
from capsule.errors import NotFound, Remedy

if TYPE_CHECKING:
    from capsule.engines.capabilities import OutsideEdits
    from capsule.engines.machine import Machine
    from capsule.engines.queries import Queries
    from capsule.format.documents.head import ParsedHead
    from capsule.rules.consent import State
    from capsule.rules.policy import Object
    from capsule.rules.visibility import Sight

T = TypeVar("T")
Document = dict[str, Any]
CONVERSATIONS = "conversations"
#: The two documents of a session, which have its id.
INBOUND, OUTBOUND = "inbound", "outbound"
#: The kinds of documents that have entries.
WITH_ENTRIES = (CONVERSATIONS, INBOUND, OUTBOUND)


def missing(kind: str, id: str) -> NotFound:
    """The error that there is no document of this kind with this id."""
    if kind == CONVERSATIONS:
        return NotFound(f"no conversation {id}", remedy=Remedy("list"), id=id)
    return NotFound(
        f"no session {id}" if kind in WITH_ENTRIES else f"there is no {kind}/{id}.json", id=id
    )


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
    newest: str
    time: str


class Transaction(Protocol):
    """The exclusive right to one document.

    Each write is all or nothing, and durable when the transaction has ended without an error. A
    call may raise `Interfered`: another program wrote the document, so begin the transaction again;
    or `StorageFailed`, `Refused`: nothing was written. The end of the transaction may raise
    `StorageFailed`: what was appended is there, and may not outlive a power cut.

    Attributes:
        id: The document's id.
        name: Its name in errors: its path, or its kind and id.
        reads: What else the decision on the next write read. If any of it has another version when
            that is written, the write raises `Interfered`, and nothing is written.
        waits: Whether its end waits until what was appended is durable; otherwise that is so a
            second later.
        judged: The conversation as the agent was let in to it, and the state by which; None: no
            agent was judged. The other decisions on it are by the same state, whose documents are
            in `reads`.
    """

    id: str
    name: str
    reads: Reads
    waits: bool
    judged: tuple[Object, State] | None

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

    def follow(self, since: Any = None, own: list[Document] | None = None) -> News:
        """As `Engine.follow`, of the document as it is here. If this transaction alone appended
        since then, `own` has its entries, which are not read again."""

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
        stamp: str,
        *,
        time: str,
        head: Document | None,
        ends_active: bool,
    ) -> None:
        """Append entries.

        Args:
            entries: Complete entries, at least one.
            encoded: The entries, as `codec.encode_entry` encodes them.
            stamp: The new `updatedAt`.
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

    def set_aside(self, reason: str) -> str:
        """Keep a copy of the present document; the path or name of the copy."""

    def delete(self) -> Trashed:
        """Move the document to the trash."""


class Files(Protocol):
    """Files that are no documents: those of messages, and attachments."""

    def keep(self, kind: str, id: str, name: str, data: bytes) -> str:
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

    def drop(self, kind: str, id: str, name: str) -> None:
        """Erase such a file, if it is there. Raises InvalidInput, Refused, StorageFailed."""


class Trash(Protocol):
    """What was deleted, until it is purged."""

    def entries(self, kind: str) -> list[Trashed]:
        """The entries of the trash, newest first."""

    def read(self, token: str) -> bytes:
        """One document in the trash. Raises `NotFound`."""

    def keep(self, kind: str, id: str, data: bytes, at: str = "") -> Trashed:
        """Put a document there, as if it had been deleted at this time; empty: now. Raises Refused,
        StorageFailed.
        """

    def restore(self, kind: str, id: str, token: str) -> None:
        """Move a document out of the trash. Raises `Refused` if its id is taken."""

    def drop(self, token: str) -> None:
        """Erase one document, if it is there."""

    def purge(self, older_than_s: float) -> list[str]:
        """Erase the entries of trash and quarantine that are older; the names of those erased."""


class Engine(Protocol):
    """The documents of one store."""

    @property
    def files(self) -> Files:
        """The files that it keeps beside the documents."""

    @property
    def trash(self) -> Trash:
        """What was deleted."""

    @property
    def machine(self) -> Machine:
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
        written: Callable[[str], None] | None = None,
        reads: Reads | None = None,
    ) -> int:
        """Write a new document, durably; its size in bytes.

        Args:
            document: The document, checked, in canonical order.
            written: Called with its tag, before another transaction on it can begin.
            reads: What the decision to write it read.

        Raises:
            Taken: A document with this id exists.
            Interfered: What the decision read has another version by now: decide anew.
        """

    def put(
        self, kind: str, id: str, data: bytes, expected: Version | None, reads: Reads | None = None
    ) -> Version:
        """Write a document of a kind without entries, durably, if it is as it was when that was
        decided.

        Args:
            data: The new bytes.
            expected: The version that the decision read; None: there was no document.
            reads: What else it read.

        Raises:
            Interfered: Any of these has another version by now: decide anew. One with the same
                bytes may count as the same.
        """

    def delete(self, kind: str, id: str) -> Trashed:
        """Move a document of a kind without entries to the trash. Raises `NotFound`."""

    def exists(self, kind: str, id: str) -> bool:
        """Whether a document with this id exists."""

    def version(self, kind: str, id: str, known: Version | None = None) -> Version | None:
        """The present version of a document of a kind without entries; None: there is none.

        Args:
            known: An earlier version. If it is still the present one, this object is the answer, at
                the cost of a look.
        """

    def ids(self, kind: str) -> list[str]:
        """The ids of all documents of a kind, sorted."""

    def read(self, kind: str, id: str) -> bytes:
        """The stored bytes of a document, checked. Raises `NotFound`, `InvalidDocument`."""

    def document(self, kind: str, id: str) -> Document:
        """The document, current and in canonical order. Raises `NotFound`, `InvalidDocument`."""

    def follow(self, kind: str, id: str, since: Any = None) -> News:
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

    def outside_edits(self, purpose: str = "this") -> OutsideEdits:
        """The documents as files, for a purpose that the error names. Raises Refused: this engine
        keeps none.
        """

    # -- All conversations -------------------------------------------------------------------------

    def questions(self, asker: Sight | None = None) -> Queries:
        """The questions of an agent about the conversations, or of the store's owner (None)."""

    def tracker(self, kind: str | None = None) -> Tracker:
        """What tells of documents that are touched from now on. Raises `StorageFailed`, `Refused`.

        Args:
            kind: Tells by their ids which documents of this kind any program touched. None: tells
                `kind-id` of all that stores wrote, and perhaps again when it is flushed; of a write
                by another program nothing before a store has taken it in. See `Notices`.
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

    def set_toml(self, data: bytes, before: bytes) -> None:
        """Replace the settings, which are `before`. Raises StoreBusy: they are others; Refused,
        StorageFailed.
        """

    def close(self) -> None:
        """Release all resources."""
