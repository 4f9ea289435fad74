"""What the Store asks of an engine: documents, one at a time under a transaction, and answers about all of them.

What must stay true: the Store and what stands above it know documents, places and versions, and never bytes, offsets,
paths or SQL; a write is all or nothing, and durable when the call returns; and what only some engines can do has a name
in `capabilities`, so that a door can say plainly what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from capsule.engines.files.protocols import Tracker, Trashed

if TYPE_CHECKING:
    from capsule.engines.index.index import Index
    from capsule.format.head import ParsedHead

T = TypeVar("T")
Document = dict[str, Any]
#: The kind of document that has entries.
CONVERSATIONS = "conversations"
#: Each document is a file that can be named.
PATHS = "paths"
#: Other programs may change documents: there is a quarantine, and something for the doctor to examine.
OUTSIDE_EDITS = "outside_edits"


class Transaction(Protocol):
    """One document, exclusively, as it stands now.

    Each write is all or nothing, and durable when the call returns. A call may raise `Interfered`: something else wrote
    the document, so begin the transaction again; or `StorageFailed`, `Refused`: then nothing of it was written.

    Attributes:
        id: The document's id.
        name: What errors call it: its path, or its kind and id.
        head: Of a conversation: its fields but for context and history, parsed.
        updated_at: Its `updatedAt`.
    """

    id: str
    name: str

    @property
    def head(self) -> ParsedHead: ...

    @property
    def updated_at(self) -> str: ...

    @property
    def tag(self) -> str:
        """Changes with every write but an append: a key for caches."""

    @property
    def count(self) -> int:
        """How many entries it has."""

    @property
    def size(self) -> int:
        """How many bytes it has, as it is stored."""

    @property
    def ends_active(self) -> bool:
        """Whether the last entry is known to be the end of the active branch."""

    @property
    def newest(self) -> str:
        """The latest `updatedAt` that the document is known to have had."""

    @property
    def time(self) -> str:
        """When an entry was appended last, where that is known; else empty."""

    def document(self) -> Document:
        """The whole document, current and in canonical order; not to be changed in place. Costs a parse, once."""

    def entries(self) -> list[Document]:
        """The entries, for reading only: a number in an unknown field is read as JSON libraries read it.

        Cost: a parse that is several times faster than that of `document`.
        """

    def has(self, id: str) -> bool:
        """Whether an entry has this id. Costs reading back to it."""

    def find_made(self, id: str) -> tuple[int, Document] | None:
        """The place of the entry with an id that is a UUIDv5, and the entry; None when there is none.

        Costs a look at what was appended since it was asked last.
        """

    def appended(self) -> list[Document]:
        """The entries that were appended lately, as far as that is remembered; also those that were taken out since.

        Costs reading what is remembered.
        """

    def ensure_durable(self) -> None:
        """Make the document durable as it is, where an earlier writer may have failed to."""

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
            encoded: The same, as `codec.encode_entry` gives them.
            stamp: The new `updatedAt`.
            time: The time at which they are appended; see the attribute.
            head: The head in the same write, in canonical order; None: as it is but for `updatedAt`.
            ends_active: Whether the last of them is known to be the end of the active branch.
        """

    def set_head(
        self, head: Document, *, context: Callable[[], Iterable[bytes]] | None = None, ends_active: bool | None = None
    ) -> None:
        """Write a new head, and nothing else.

        Args:
            head: The head, in canonical order.
            context: Gives a new context too: a JSON object in the canonical layout, in pieces, for it may be large.
            ends_active: As in `append`; None: as it is.
        """

    def refresh_lock(self, stamp: str) -> bool:
        """Overwrite the time of the lock in place; False where the engine can't, and nothing was written."""

    def replace(self, document: Document) -> None:
        """Write another document in this one's place. Raises `InvalidDocument` when it is none."""

    def keep(self, kind: str, document: Document) -> Trashed:
        """Put a document into the trash under this one's id, as one of another kind."""

    def drop_kept(self, kept: Trashed) -> None:
        """Take a document out of the trash for good."""

    def set_aside(self, reason: str) -> str:
        """Keep a copy of the document as it is now; what names the copy."""

    def delete(self) -> Trashed:
        """Move the document to the trash."""


class Engine(Protocol):
    """The documents of one store.

    Attributes:
        capabilities: What it can do besides: `PATHS`, `OUTSIDE_EDITS`.
    """

    capabilities: frozenset[str]

    # -- One document ----------------------------------------------------------------------------------------------

    def transaction(self, kind: str, id: str) -> AbstractContextManager[Transaction]:
        """The exclusive right to one document.

        Raises:
            NotFound: There is no such document.
            InvalidDocument: It is damaged.
            StoreBusy, Refused: It could not be had.
        """

    def create(self, kind: str, document: Document, written: Callable[[str], None] | None = None) -> int:
        """Write a new document, durably; how many bytes it has.

        Args:
            kind: Its kind.
            document: The document, checked, in canonical order.
            written: Told its tag, before anybody else can begin a transaction on it.

        Raises:
            Interfered: There is one of its id.
        """

    def edit(self, kind: str, id: str, change: Callable[[bytes | None], bytes | None]) -> None:
        """Read, change and write a document of a kind without entries, exclusively and durably.

        Args:
            kind: Its kind.
            id: Its id.
            change: Given what is stored, or None; gives what is to be stored, or None to leave it. What it raises is
                raised, and nothing was written.

        Raises:
            Interfered: Something else wrote it meanwhile: do it again.
        """

    def exists(self, kind: str, id: str) -> bool:
        """Whether there is one of that id."""

    def ids(self, kind: str) -> list[str]:
        """The ids of all documents of a kind, sorted."""

    def read(self, kind: str, id: str) -> bytes:
        """The document as it is stored, checked. Raises `NotFound`, `InvalidDocument`."""

    def document(self, kind: str, id: str) -> Document:
        """The document, current and in canonical order. Raises as `read`."""

    def parsed(self, id: str, parse: Callable[[bytes, bool], T]) -> T:
        """What `parse` makes of a conversation as it is stored.

        Args:
            id: The conversation.
            parse: Takes the bytes, and whether they are current and in the canonical layout. Called again when it
                fails, as what is stored may just be in the middle of a change.

        Raises as `read`, and what `parse` raises.
        """

    def tail(self, id: str, n: int) -> tuple[bytes, int]:
        """The last `n` entries as a JSON array, and how many there are. Raises as `read`. Costs what it gives."""

    def head(self, id: str) -> tuple[Document, int]:
        """The fields of a conversation but for context and history, and its size in bytes. Raises as `read`."""

    def name(self, kind: str, id: str) -> str:
        """What errors and heads call a document: its path, or its kind and id."""

    # -- All conversations -----------------------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        """The index of the conversations: lists, search, and what changed since a cursor."""

    def tracker(self) -> Tracker | None:
        """What tells that conversations were touched, and can be waited for; None where nothing can."""

    # -- Trash -----------------------------------------------------------------------------------------------------

    def trash(self, kind: str) -> list[Trashed]:
        """What lies in the trash, newest first."""

    def trashed(self, token: str) -> bytes:
        """One document in the trash. Raises `NotFound`."""

    def restore(self, kind: str, id: str, token: str) -> None:
        """Move a document back. Raises `Refused` when its id is taken."""

    def purge(self, older_than_s: float) -> list[str]:
        """Drop for good what was deleted or kept aside longer ago; what went."""

    # -- Instances -------------------------------------------------------------------------------------------------

    def announce(self, instance: str) -> None:
        """Say that an instance lives, for as long as this process does or until `withdraw`; idempotent."""

    def withdraw(self, instance: str) -> None:
        """Say that an instance lives no more."""

    def is_alive(self, instance: str) -> bool:
        """Whether an instance that was announced lives; True as well when that can't be told."""

    def close(self) -> None:
        """Give back everything."""
