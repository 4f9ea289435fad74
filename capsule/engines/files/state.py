"""The state header of a document: what the store's last write left on the disk.

It is 512 bytes in the document's mutex file: one padded JSON line after its CRC-32. It is
overwritten in place under the mutex and never flushed, since everything in it is derived. One byte
after it, the failure mark, says that a flush of the document or of its log failed. The mark needs
no mutex.

What must stay true: a header that is torn, stale, missing or impossible costs a look at the whole
document and nothing else; a reader without the mutex checks the header by its CRC.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

import orjson

from capsule.disk.whole_files import Signature
from capsule.engines.files.disk.log import Position
from capsule.format.json.anatomy import Anatomy, closing_of
from capsule.timestamps import WIDTH, sortable

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


HEADER_BYTES = 512


_VERSION = 5


_MARK = b'{"note":%d,' % _VERSION


#: Stands where earlier versions have the offset of the lock's time: without one they replace the
#: file.
_UNUSED = -1


#: What stands behind a header while something is to be written anew, as a flush of it failed.
MARKED = b"!"


_DOUBTS = ("", "name", "bytes", "restored")


_described = itemgetter("tag", "stamp", "boot", "doubt", "newest", "time")


def new_tag() -> str:
    """A tag for a head that was written anew."""
    return os.urandom(8).hex()


def encode_header(known: Known, log: Position | None) -> bytes:
    """The header for a document as it is, and where its log ends."""
    fields = {
        "note": _VERSION,
        "file": tuple(known.signature),
        "at": known.anatomy and (*known.anatomy[:2], _UNUSED, *known.anatomy[2:]),
        "tag": known.tag,
        "stamp": known.stamp,
        "boot": known.boot,
        "doubt": known.doubt,
        "newest": known.newest,
        "time": known.time,
        "log": log and tuple(log),
    }
    body = orjson.dumps(fields).ljust(HEADER_BYTES - 10)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode_header(raw: bytes) -> tuple[Known, Position | None] | None:
    """What a header says: the document as the last writer left it, and where the log ended; None
    when it is none.

    A true checksum says nothing of what is below it: a header whose fields can't be is none either.
    """
    body = raw[9 : HEADER_BYTES - 1]
    if not body.startswith(_MARK) or raw[:8] != b"%08x" % zlib.crc32(body):
        return None
    try:
        fields = orjson.loads(body)
        at, log = fields["at"], fields["log"]
        known = Known(
            Signature(*fields["file"]),
            None if at is None else Anatomy(*at[:2], *at[3:]),
            *_described(fields),
        )
        position = None if log is None else Position(*log)
    except (ValueError, KeyError, TypeError):
        return None
    return (known, position) if _can_be(known, position) else None


def _can_be(known: Known, position: Position | None) -> bool:
    """Whether all fields of a header are of their types, and all offsets in it within what they are
    offsets of.
    """
    at, signature = known.anatomy, known.signature
    if not _are_counts(signature[:2]) or not all(type(time) is int for time in signature[2:]):
        return False
    if not all(isinstance(text, str) for text in known[2:]) or known.doubt not in _DOUBTS:
        return False
    if not all(not stamp or sortable(stamp) for stamp in (known.stamp, known.newest, known.time)):
        return False
    if position is not None and not _are_counts(position):
        return False
    if position is not None and not position.durable <= position.end <= position.size:
        return False
    if at is None:
        return True
    if (
        not _are_counts(at[:-1])
        or not isinstance(at.ends_active, bool)
        or len(known.stamp) != WIDTH
    ):
        return False
    is_within = (
        at.updated_at + WIDTH < at.context < at.history <= at.tail < at.size == signature.size
    )
    return is_within and at.entries <= at.tail - at.history


def _are_counts(values: Iterable[object]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)
