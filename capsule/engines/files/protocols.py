"""What the store asks of a storage engine, and the words both use.

What must stay true: `capsule/store/store.py` and what stands beside it reach bytes through these two protocols only,
never through `open` or `os`. Another engine that keeps them can stand behind the same store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from capsule.format.anatomy import Anatomy

#: A record that begins so is about a head: many of them never push a message out of the log.
HEAD_RECORDS = (b'{"k":"head"', b'{"k":"lock"')


class Signature(NamedTuple):
    """What tells one state of a file from another: times in nanoseconds, size in bytes."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class Known(NamedTuple):
    """A document that is as the store left it.

    Attributes:
        anatomy: Where its parts lie; None when its layout isn't canonical, so that it is only ever replaced.
        tag: Changes whenever the head does, its in-place `updatedAt` apart: a key for caches.
        stamp: `updatedAt` as it stands in the file; empty when the layout isn't canonical.
        boot: The boot of the machine within which this holds. After a power cut a signature proves nothing: bytes
            may have reached the medium, and the size and the times that go with them not.
        doubt: What may not have reached the medium: "name", when another program put the file there; "bytes", when
            a flush failed, or it isn't known that it didn't; "restored", while the store itself puts the file there;
            empty when all of it has.
        newest: The latest `updatedAt` that this document ever had, as far as is known: the next one is later.
        time: The time of the newest message that the store wrote, as far as is known; empty when it isn't.
    """

    signature: Signature
    anatomy: Anatomy | None
    tag: str
    stamp: str
    boot: str
    doubt: str
    newest: str = ""
    time: str = ""


class Splice(NamedTuple):
    """A splice as the log has it: where it wrote, the entries as they stand in the file, and their `updatedAt`."""

    at: int
    entries: list[bytes]
    stamp: str


class Scanned(NamedTuple):
    """One file met by a scan: its id, its signature, and whether it is a regular file at all.

    A tuple, as a scan of thousands makes one for each.

    Attributes:
        links: Names that the file has; through one elsewhere it changes without an event here.
    """

    id: str
    path: str
    signature: Signature
    regular: bool
    links: int = 1


@dataclass(frozen=True, slots=True)
class Trashed:
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


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something a dead process left behind, or a document that vanished without the store."""

    kind: str
    id: str
    path: str
    what: str


class Interfered(Exception):
    """Another program wrote the file while the store was writing: look again, and do it again.

    It never leaves the package `capsule`: whoever holds the mutex starts over.
    """


class Held(Protocol):
    """One document under its mutex. Every write is durable when the call returns."""

    id: str
    path: str

    def begin_log_with(self, records: Callable[[], list[bytes]]) -> None:
        """Say what a log that is made from here on is to begin with: how the document was before."""

    def look(self) -> Known | None:
        """The document, when it is as the store left it; None when it is not, or there is none."""

    def read(self) -> tuple[bytes, Signature] | None:
        """The whole file and its signature; None when there is none."""

    def head(self, known: Known) -> bytes:
        """The bytes before `context`, as a JSON document of its own."""

    def history(self, known: Known, start: int, end: int | None = None) -> bytes:
        """The bytes of `history` between two offsets in the file, by default to the end of its last entry.

        Raises `Interfered`.
        """

    def was_known(self) -> bool:
        """Whether the store had a document here lately, whatever became of it since."""

    def records(self) -> list[list[bytes]]:
        """What the store wrote lately, the oldest write first: whatever was given as its records below.

        The records of a write are durable before it touches the document, and are taken out again when it fails and
        did not change the document; those of one that was interrupted stay.
        """

    def adopt(self, signature: Signature, anatomy: Anatomy | None, records: list[bytes], newest: str) -> Known:
        """Take the file as it is for known.

        Args:
            signature: The file's signature.
            anatomy: Its anatomy, None when it isn't canonical.
            records: What is to be remembered of it, if anything is remembered of the document.
            newest: The latest `updatedAt` that it is known to have had.
        """

    def splice(self, known: Known, entries: list[bytes], stamp: str, records: list[bytes], time: str = "") -> Known:
        """Append entries, of a time if that is known, in place, and overwrite `updatedAt`.

        Raises `Interfered`, `StorageFailed`.
        """

    def flush(self, known: Known) -> Known:
        """Make the document durable, bytes and name, as it is. Raises `Interfered`, `StorageFailed`."""

    def restamp(self, known: Known, lock_stamp: str) -> Known:
        """Overwrite the lock's timestamp in place. Raises `Interfered`, `StorageFailed`."""

    def rehead(
        self,
        known: Known,
        head: bytes,
        entries: list[bytes],
        records: list[bytes],
        context: Iterable[bytes] | None = None,
    ) -> Known:
        """Write a new head, the rest copied behind it, and entries appended. Raises as `splice`.

        Args:
            known, head, entries, records: As their names say.
            context: The line or lines of a new `context`, as `anatomy.context_lines` gives them, piece by piece, for it
                may be large; None: as it is.
        """

    def replace(self, expected: Signature | None, data: bytes, anatomy: Anatomy | None, records: list[bytes]) -> Known:
        """Write the whole document.

        Args:
            expected: What the caller decided upon; None: there must be no file, and what is remembered of one that
                had this id is dropped.
            data: The document.
            anatomy: Its anatomy, None when it isn't canonical.
            records: What is to be remembered of it; none where nothing is remembered of a new document.
        """

    def rewrite_records(self, writes: list[list[bytes]]) -> None:
        """Remember these writes and no others, durably; nothing, when there are none."""

    def mended(
        self, data: bytes, signature: Signature, splices: list[Splice], *, asked: bool
    ) -> tuple[bytes, str] | None:
        """A file that isn't valid made whole, and in words what was done; None when no write of the store tore it.

        Args:
            data: The file.
            signature: Its signature.
            splices: What the store remembers to have spliced into it, the latest first.
            asked: Whether a person asked for it, so that the bytes need only look as a crash leaves them.
        """

    def repair(self, data: bytes, signature: Signature, mended: bytes) -> str:
        """Put a mended file in place of the damaged one, which goes to the quarantine; its path there."""

    def quarantine(self, data: bytes, reason: str) -> str:
        """Keep bytes in the quarantine; the path."""

    def delete(self) -> Trashed:
        """Move the document to the trash."""

    def keep(self, kind: str, data: bytes) -> Trashed:
        """Put bytes into the trash, as a document of `kind` with this one's id."""

    def drop_kept(self, kept: Trashed) -> None:
        """Take out of the trash what `keep` put there, if it is still there."""

    def restore(self, token: str) -> None:
        """Move the document back from the trash. Raises `Refused` when its place is taken."""


class Tracker(Protocol):
    """Tells which documents were touched."""

    def changed(self) -> set[str] | None:
        """The ids whose files were touched since the last call, every acknowledged write among them.

        None when that can't be told: scan. Writes through a mapping or a second name of a file are not seen.
        """

    def fileno(self) -> int:
        """The descriptor that can be read when there is an answer to be had, for `select.poll`."""

    @property
    def is_open(self) -> bool:
        """Whether there will be answers."""

    def close(self) -> None:
        """Give back what it holds."""


class DerivedFiles(Protocol):
    """Files that are derived from the documents, by their names."""

    def path(self, name: str) -> str:
        """Where the file lies; whether it is there is not asked."""

    def inode(self, name: str) -> int:
        """What tells the file of this name from another that had it before; 0 when there is none."""

    def make(self, name: str) -> str:
        """Make an empty file; its path. Raises `Refused`, `StorageFailed`."""

    def put(self, new: str, name: str) -> None:
        """Give a finished file another name, durable before it has it. Raises as `make`."""

    def drop(self, *names: str) -> None:
        """Unlink files, as far as they are there. Raises as `make`."""

    def names(self) -> list[str]:
        """The names of all of them."""

    def try_lock(self, name: str) -> Callable[[], None] | None:
        """Take the exclusive lock of a file; what gives it back, None when another holds it. Raises as `make`."""


class Source(Protocol):
    """What the index reads: versions of documents, and which of them were touched.

    Attributes:
        boot: What tells this run of the machine from another.
    """

    boot: str

    @property
    def derived(self) -> DerivedFiles | None:
        """The derived files; None: what is derived is kept in memory."""

    def read(self, kind: str, id: str) -> tuple[bytes, Signature] | None:
        """The whole file and its signature, without the mutex; None when there is none.

        A file that changed while it was read has a signature that no file has.
        """

    def read_from(self, kind: str, id: str, offset: int) -> tuple[bytes, Signature] | None:
        """As `read`, from a byte on. Costs reading what is behind it."""

    def is_torn(self, data: bytes) -> bool:
        """Whether a file that is not valid is what a crash can leave."""

    def remembers(self, kind: str, id: str) -> bool:
        """Whether the store has a note of such a document, whatever became of the file since."""

    def noted(self, kind: str, id: str) -> Known | None:
        """How the store left a document, whatever became of the file and the machine since; None without a note."""

    def scan(self, kind: str) -> Iterator[Scanned]:
        """Every document of a kind, in no order."""

    def find(self, kind: str, id: str) -> Scanned | None:
        """One document as a scan meets it; None when there is none of that name. An id that is none will do."""

    def tracker(self, kind: str) -> Tracker | None:
        """What tells which documents of a kind are touched from now on; None where the system can't."""

    def path(self, kind: str, id: str) -> str:
        """Where the document lies."""


class Storage(Source, Protocol):
    """Documents of one store, as files."""

    def mutex(self, kind: str, id: str, timeout_s: float | None = None) -> AbstractContextManager[Held]:
        """The short exclusive right to one document. Raises `StoreBusy`, `Refused`."""

    def known(self, kind: str, id: str) -> Known | None:
        """As `Held.look`, without the mutex; None also when a writer is at work."""

    def beginning(self, path: str) -> tuple[bytes, bytes]:
        """The first bytes of a file, up to and with the line of `context`, and its last 8. Raises `NotFound`."""

    def remembered(self, kind: str) -> list[str]:
        """The ids of the documents that were ever written here, whatever became of them. Costs one scandir."""

    def tail(self, kind: str, id: str, known: Known, n: int) -> bytes | None:
        """The last `n` entries as a JSON array; None when the file changed meanwhile."""

    def exists(self, kind: str, id: str) -> bool:
        """Whether a file of that name is there."""

    def trash(self, kind: str) -> list[Trashed]:
        """The deleted documents of a kind, newest first."""

    def read_trashed(self, token: str) -> bytes:
        """The bytes of a deleted document. Raises `NotFound`."""

    def purge(self, older_than_s: float) -> list[str]:
        """Drop what lies in the trash and the quarantine for longer; the paths."""

    def announce(self, instance: str) -> None:
        """Make the instance file, locked as long as this process lives; idempotent."""

    def withdraw(self, instance: str) -> None:
        """Give an instance file of this process back, when there is one."""

    def alive(self, instance: str) -> bool:
        """Whether a process on this machine holds that instance file."""

    def read_stray(self, kind: str, name: str) -> bytes | None:
        """A file that lies among the documents of a kind under any name, without `.json`; None: there is none."""

    def set_aside(self, kind: str, name: str, id: str, reason: str) -> str:
        """Move such a file to the quarantine, as one of the document `id`; its path there. Raises `NotFound`."""

    def leftovers(self, kind: str) -> list[Leftover]:
        """What dead processes left, and known documents whose file vanished."""

    def sweep(self, kind: str, leftover: Leftover) -> str:
        """Put one leftover away; in words what was done."""

    def close(self) -> None:
        """Give back every descriptor and the instance file."""
