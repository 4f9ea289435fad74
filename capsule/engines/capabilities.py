"""What only some engines can do: their documents are files, which other programs may change, or
rows of a database.

What must stay true: whoever needs files asks `Engine.outside_edits`, which refuses it by name; and
a document in a file is judged and changed here only under its mutex.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from capsule.disk.whole_files import Signature
    from capsule.engines.files.disk.derived import Derived
    from capsule.engines.values import Trashed
    from capsule.format.saved.repair import Mended


@runtime_checkable
class InDatabase(Protocol):
    """An engine whose documents are rows of a database."""

    def flaws(self) -> Iterator[tuple[str, str, str]]:
        """What is wrong with the rows of documents: a kind, an id, and what it is. Costs a pass
        over all entries.
        """

    def durability(self) -> str:
        """What an acknowledged message survives, in words."""


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


class Leftover(NamedTuple):
    """Something a dead process left behind (`instance`, `temporary`), or a document that
    `vanished`.
    """

    kind: str
    id: str
    path: str
    what: str


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
    def is_noted(self) -> bool:
        """Whether the store knows of a version that it left."""

    @property
    def is_interrupted(self) -> bool:
        """Whether a write was begun that nobody is known to have finished. Known once the records
        were read.
        """

    def is_as_left(self) -> bool:
        """Whether the file is as the store left it. Cost: a look."""

    def read(self) -> tuple[bytes, Signature] | None:
        """The whole file and its signature; None when there is none."""

    def records(self) -> list[list[bytes]]:
        """What the store wrote lately, the oldest write first, as `format.merge.records`
        gives it.
        """

    def take_in(self, mend: Callable[[bytes], Mended | None] | None = None) -> Signature:
        """Take in whatever was done to a document with entries from outside; its signature then.

        Args:
            mend: Also have a damaged file made whole that no crash of a write left so, by this;
                what the store remembers comes back then. It is for a person to ask for.

        Raises NotFound, InvalidDocument, Interfered. Cost: none when it is as the store left it;
        else reading it.
        """

    def mended(self, data: bytes, signature: Signature) -> Mended | None:
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


class OutsideEdits(Protocol):
    """Documents that are files, which other programs may write, move and leave beside others.

    Attributes:
        derived: The files that are made of them, such as the index.
    """

    derived: Derived

    def hold(self, kind: str, id: str) -> AbstractContextManager[HeldFile]:
        """One file, whose mutex is held in a `with` block. Raises StoreBusy, Refused."""

    def scan(self, kind: str) -> Iterator[Scanned]:
        """Every file among the documents of a kind, in no order."""

    def read_stray(self, kind: str, name: str) -> bytes | None:
        """A file among the documents of a kind, by its name without `.json`, unchecked; None: there
        is none.
        """

    def set_aside(self, kind: str, name: str, id: str, reason: str) -> str:
        """Move such a file to the quarantine, as one of the document `id`; its path there. Raises
        NotFound.
        """

    def is_as_left(self, kind: str, id: str) -> bool:
        """Whether a file is as the store left it. Takes no mutex: False also while a writer is at
        work.
        """

    def committed(self, path: str) -> bytes | None:
        """The version of a document that the commit has which is checked out; None:
        there is none.
        """

    def leftovers(self, kind: str) -> list[Leftover]:
        """What dead processes left, and known documents whose file vanished."""

    def sweep(self, kind: str, leftover: Leftover) -> str:
        """Put one leftover away; in words what was done."""
