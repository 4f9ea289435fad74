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
from enum import Enum
from typing import NamedTuple

import orjson

from capsule.disk.whole_files import NO_SIGNATURE, Signature
from capsule.engines.files.disk.log import LogPosition
from capsule.format.json.layout import FileLayout, closing_of
from capsule.timestamps import WIDTH, is_canonical, sortable

#: No clock that stamps files has a longer step: a younger file may be written to without its times
#: changing.
STEP_NS = 10_000_000
HEADER_BYTES = 512
#: The failure mark, the byte after a header: a flush failed, so everything is to be written anew.
MARKED = b"!"
_VERSION = 6
_PREFIX = b'{"note":%d,' % _VERSION


class Durability(Enum):
    """What is known to be on the disk of a document.

    The first four are recorded in the state header. The others are what a holder of the mutex
    finds. A power cut takes nothing acknowledged from a document in any of these states, since the
    log has it until a checkpoint says that the document itself has it. `HeldDocument` has the table
    of the events that lead from one state to another.
    """

    #: The version that the last checkpoint counted, by bytes and by name. What was appended after
    #: that checkpoint is in the log.
    DURABLE = "durable"
    #: Nothing: another program put this version there, and it was not flushed yet.
    EXTERNAL = "external"
    #: Nothing: a flush failed, or a writer died. Another flush would prove nothing, so every byte
    #: is to be written anew.
    UNFLUSHED = "unflushed"
    #: The bytes, but perhaps not the name: the store itself is moving the document back from the
    #: trash.
    RESTORING = "restoring"
    #: Not looked at yet in this hold of the mutex.
    UNREAD = "unread"
    #: Nothing: there is no valid header. The file and the log are to be read.
    UNKNOWN = "unknown"
    #: What the last checkpoint counts: the header is of an earlier run of the machine. The log has
    #: every acknowledged write.
    RESTARTED = "restarted"
    #: All writes but the last: the log has a line that the header does not count, since its writer
    #: died or was interrupted.
    INTERRUPTED = "interrupted"


#: The states that a header can record.
_RECORDED = (
    Durability.DURABLE,
    Durability.EXTERNAL,
    Durability.UNFLUSHED,
    Durability.RESTORING,
)


class StateHeader(NamedTuple):
    """The state of a document after the store's last write, as its state header records it.

    Attributes:
        signature: The signature of its file.
        anatomy: The offsets of its parts. None if its layout isn't canonical, so that it is only
            ever replaced.
        tag: A key for caches. It changes whenever the head changes, except for `updatedAt` in
            place.
        updated_at: `updatedAt` of the file. Empty if the layout isn't canonical.
        boot_id: The run of the machine in which this holds. After a power cut a signature proves
            nothing: the size and the times may be on the disk, and the bytes not.
        durability: What is known to be on the disk.
        newest_updated_at: The latest `updatedAt` that this document ever had, as far as is known.
            The next one is later.
        newest_message_time: The time of the newest message that the store wrote. Empty if it isn't
            known.
    """

    signature: Signature
    anatomy: FileLayout | None
    tag: str
    updated_at: str
    boot_id: str
    durability: Durability
    newest_updated_at: str = ""
    newest_message_time: str = ""

    @classmethod
    def of_unknown_file(cls, boot_id: str, durability: Durability) -> StateHeader:
        """Return a header that no file agrees with, so that the next holder reads the whole."""
        return cls(NO_SIGNATURE, None, new_tag(), "", boot_id, durability)

    def ends(self, data: bytes) -> bool:
        """Check that bytes of this signature, read without the mutex, end as this version does.

        A clock that ticks every few milliseconds lets a splice that is not finished leave the
        signature unchanged.
        """
        return self.anatomy is None or data.endswith(closing_of(self.anatomy))


class FileVersion(NamedTuple):
    """A `Version`. `is_settled`: the file was so old when it was read that no other version can
    have its signature.
    """

    data: bytes
    signature: Signature
    is_settled: bool


class ReadPosition(NamedTuple):
    """How far the entries of a file were read.

    Attributes:
        signature, tag: Of the version that was read.
        tail: The byte after its last entry. -1: its layout isn't canonical.
    """

    signature: Signature
    tag: str
    tail: int

    @classmethod
    def of(cls, header: StateHeader) -> ReadPosition:
        """Return the position after a version that was read to its end."""
        tail = -1 if header.anatomy is None else header.anatomy.tail
        return cls(header.signature, header.tag, tail)

    def goes_on_in(self, header: StateHeader) -> bool:
        """Check that a version is this one with entries appended."""
        return (
            header.anatomy is not None
            and self.tag == header.tag
            and 0 <= self.tail <= header.anatomy.tail
        )


def new_tag() -> str:
    """Return a tag for a head that was written anew."""
    return os.urandom(8).hex()


def encode_header(header: StateHeader, log: LogPosition | None) -> bytes:
    """Encode the state of a document, and where its log ends."""
    fields = {
        "note": _VERSION,
        "file": tuple(header.signature),
        "at": None if header.anatomy is None else tuple(header.anatomy),
        "tag": header.tag,
        "stamp": header.updated_at,
        "boot": header.boot_id,
        "durability": header.durability.value,
        "newest": header.newest_updated_at,
        "time": header.newest_message_time,
        "log": None if log is None else tuple(log),
    }
    body = orjson.dumps(fields).ljust(HEADER_BYTES - 10)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode_header(raw: bytes) -> tuple[StateHeader, LogPosition | None] | None:
    """Decode the state of a document and the end of its log. None: this is no header.

    A correct checksum proves nothing about the fields, so a header with impossible fields is none
    either.
    """
    body = raw[9 : HEADER_BYTES - 1]
    if not body.startswith(_PREFIX) or raw[:8] != b"%08x" % zlib.crc32(body):
        return None
    try:
        fields = orjson.loads(body)
        header = StateHeader(
            signature=Signature(*fields["file"]),
            anatomy=None if fields["at"] is None else FileLayout(*fields["at"]),
            tag=fields["tag"],
            updated_at=fields["stamp"],
            boot_id=fields["boot"],
            durability=Durability(fields["durability"]),
            newest_updated_at=fields["newest"],
            newest_message_time=fields["time"],
        )
        position = None if fields["log"] is None else LogPosition(*fields["log"])
    except (ValueError, KeyError, TypeError):
        return None
    if not _is_possible(header, position):
        return None
    return header, position


def _is_possible(header: StateHeader, log_end: LogPosition | None) -> bool:
    """Check that all fields have their types, that all offsets are inside the file, and that a log
    can end there.

    Every read of a document decodes a header, so the checks are calls of the interpreter's own
    functions as far as possible.
    """
    if log_end is not None:
        if set(map(type, log_end)) != {int} or min(log_end) < 0:
            return False
        if not log_end.durable <= log_end.end <= log_end.size:
            return False
    signature = header.signature
    times = (header.updated_at, header.newest_updated_at, header.newest_message_time)
    if header.durability not in _RECORDED:
        return False
    if set(map(type, signature)) != {int} or min(signature[:2]) < 0:
        return False
    if set(map(type, (header.tag, header.boot_id, *times))) != {str}:
        return False
    for time in set(times):
        if time and not is_canonical(time) and not sortable(time):
            return False
    anatomy = header.anatomy
    if anatomy is None:
        return True
    offsets = anatomy[:-1]
    if (
        set(map(type, offsets)) != {int}
        or min(offsets) < 0
        or type(anatomy.ends_active) is not bool
    ):
        return False
    if len(header.updated_at) != WIDTH or anatomy.size != signature.size:
        return False
    head_end = anatomy.updated_at + WIDTH
    is_ordered = head_end < anatomy.context < anatomy.history <= anatomy.tail < anatomy.size
    return is_ordered and anatomy.entries <= anatomy.tail - anatomy.history
