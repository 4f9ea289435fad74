"""What is known of a document in a file: as the store left it, and as a scan meets it."""

from __future__ import annotations

from typing import NamedTuple

from capsule.disk.whole_files import Signature
from capsule.engines.capabilities import Scanned as Scanned
from capsule.format.json.anatomy import Anatomy, closing_of

#: No clock that stamps files has a longer step: a younger file may be written to without its times
#: changing.
STEP_NS = 10_000_000


class Known(NamedTuple):
    """A document that is as the store left it.

    Attributes:
        anatomy: Where its parts lie; None when its layout isn't canonical, so that it is only ever
            replaced.
        tag: Changes whenever the head does, its in-place `updatedAt` apart: a key for caches.
        stamp: `updatedAt` as it stands in the file; empty when the layout isn't canonical.
        boot: The boot of the machine within which this holds. After a power cut a signature proves
            nothing: bytes may have reached the medium, and the size and the times that go with them
            not.
        doubt: What may not have reached the medium: "name", when another program put the file
            there; "bytes", when a flush failed, or it isn't known that it didn't; "restored", while
            the store itself puts the file there; empty when all of it has.
        newest: The latest `updatedAt` that this document ever had, as far as is known: the next one
            is later.
        time: The time of the newest message that the store wrote, as far as is known; empty when it
            isn't.
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
        """Whether bytes of this signature that were read without the mutex end as this version
        does.

        A clock that ticks every few milliseconds lets a splice under way leave the signature as it
        was.
        """
        return self.anatomy is None or data.endswith(closing_of(self.anatomy))


class FileVersion(NamedTuple):
    """A `Version`. `is_settled`: the file was so old when it was read that no other version can
    have its signature.
    """

    data: bytes
    signature: Signature
    is_settled: bool


class Place(NamedTuple):
    """How far the entries of a file were read: of which version, to which byte (-1: it has no
    anatomy).
    """

    signature: Signature
    tag: str
    tail: int

    @classmethod
    def of(cls, known: Known) -> Place:
        """How far a version was read that was read to its end."""
        return cls(known.signature, known.tag, known.anatomy.tail if known.anatomy else -1)

    def goes_on_in(self, known: Known) -> bool:
        """Whether a version is this one with entries appended."""
        return (
            known.anatomy is not None
            and self.tag == known.tag
            and 0 <= self.tail <= known.anatomy.tail
        )
