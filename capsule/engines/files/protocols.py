"""What the store asks of a storage engine, and the words both use.

What must stay true: `capsule/store/store.py` and what stands beside it reach bytes through these two protocols only,
never through `open` or `os`. Another engine that keeps them can stand behind the same store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from capsule.disk.whole_files import Signature
from capsule.engines.capabilities import Scanned as Scanned
from capsule.engines.values import Tracker
from capsule.format.json.anatomy import Anatomy, closing_of

if TYPE_CHECKING:
    from capsule.engines.files.disk.derived import Derived


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

    def ends(self, data: bytes) -> bool:
        """Whether bytes of this signature that were read without the mutex end as this version does.

        A clock that ticks every few milliseconds lets a splice under way leave the signature as it was.
        """
        return self.anatomy is None or data.endswith(closing_of(self.anatomy))


class Place(NamedTuple):
    """How far the entries of a file were read: of which version, to which byte (-1: it has no anatomy)."""

    signature: Signature
    tag: str
    tail: int

    @classmethod
    def of(cls, known: Known) -> Place:
        return cls(known.signature, known.tag, known.anatomy.tail if known.anatomy else -1)

    def goes_on_in(self, known: Known) -> bool:
        """Whether a version is this one with entries appended."""
        return known.anatomy is not None and self.tag == known.tag and 0 <= self.tail <= known.anatomy.tail


class Source(Protocol):
    """What the index reads: versions of documents, and which of them were touched.

    Attributes:
        boot: What tells this run of the machine from another.
    """

    boot: str

    @property
    def derived(self) -> Derived | None:
        """The derived files; None: what is derived is kept in memory."""

    def read(self, kind: str, id: str) -> tuple[bytes, Signature] | None:
        """The whole file and its signature, without the mutex; None when there is none.

        A file that changed while it was read has a signature that no file has.
        """

    def read_from(self, kind: str, id: str, offset: int) -> tuple[bytes, Signature] | None:
        """As `read`, from a byte on. Costs reading what is behind it."""

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
