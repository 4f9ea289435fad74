"""The state header of a document: what the store's last write left on the disk.

Each document has a mutex file, and its first 512 bytes are the state header: a CRC-32 and one
padded JSON line. It names the signature of the file, the offsets of its parts, a tag, times, the
end of the log, and what is known to be durable. A reader compares the signature with the file: if
they agree, nothing else needs to be read.

The header is overwritten in place under the mutex and never flushed, since all of it is derived.
The byte after it is the failure mark: a flush of the document or of its log failed. The mark can
be written without the mutex.

What must stay true: a header that is torn, stale, missing or impossible costs a look at the whole
document and nothing else. A reader without the mutex checks the header by its CRC.
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

#: The longest step of a clock that sets the times of files. A write to a file that is younger than
#: this may leave its times unchanged.
STEP_NS = 10_000_000
HEADER_BYTES = 512
#: The failure mark, the byte after a header: a flush failed, so everything must be written anew.
MARKED = b"!"
_VERSION = 6
_PREFIX = b'{"note":%d,' % _VERSION


class Durability(Enum):
    """What is known to be on the disk of a document.

    The first four are recorded in the state header. The others describe what the holder of a mutex
    finds. In each of these states a power cut takes nothing acknowledged from the document: the log
    has every write until a checkpoint records that the document has it. `HeldDocument` has the
    table of the events that lead from one state to another.
    """

    #: The bytes and the name of the version that the last checkpoint counted. The log has what was
    #: appended after that checkpoint.
    DURABLE = "durable"
    #: Nothing: another program wrote this version, and it was not flushed yet.
    EXTERNAL = "external"
    #: Nothing: a flush failed, or a writer died. Another flush would prove nothing, so every byte
    #: must be written anew.
    UNFLUSHED = "unflushed"
    #: The bytes, but perhaps not the name: the store is moving the document back from the trash.
    RESTORING = "restoring"
    #: Not read yet by this holder of the mutex.
    UNREAD = "unread"
    #: Nothing: there is no valid header. The file and the log must be read.
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
        file_layout: The offsets of its parts. None if its layout isn't canonical. Such a file is
            only ever replaced.
        tag: A random key for caches. Every write except a splice changes it.
        updated_at: `updatedAt` of the file. Empty if the layout isn't canonical.
        boot_id: The run of the machine and the disk in which this holds. After a power cut a
            signature proves nothing: the size and the times may be on the disk without the bytes.
        durability: What is known to be on the disk.
        newest_updated_at: The latest `updatedAt` that this document is known to have had. The next
            write gets a later one.
        newest_message_time: The time of the newest message that the store wrote. Empty if it isn't
            known.
    """

    signature: Signature
    file_layout: FileLayout | None
    tag: str
    updated_at: str
    boot_id: str
    durability: Durability
    newest_updated_at: str = ""
    newest_message_time: str = ""

    @classmethod
    def of_unknown_file(cls, boot_id: str, durability: Durability) -> StateHeader:
        """Return a header that no file agrees with, so that the next holder reads the whole file."""
        return cls(
            signature=NO_SIGNATURE,
            file_layout=None,
            tag=new_tag(),
            updated_at="",
            boot_id=boot_id,
            durability=durability,
        )

    def ends(self, data: bytes) -> bool:
        """Check that bytes of this signature, read without the mutex, end like this version.

        The signature alone is not enough: within one tick of the clock, an unfinished splice leaves
        it unchanged.
        """
        return self.file_layout is None or data.endswith(closing_of(self.file_layout))


class FileVersion(NamedTuple):
    """One version of a document without entries, as its file had it. See `DocumentVersion`.

    Attributes:
        data: The bytes of the file.
        signature: Its signature.
        is_settled: Whether the file was so old when it was read that no other version can have the
            same signature.
    """

    data: bytes
    signature: Signature
    is_settled: bool


class ReadPosition(NamedTuple):
    """How far the entries of a file were read.

    Attributes:
        signature, tag: The signature and the tag of the version that was read.
        tail: The byte after its last entry. -1: its layout isn't canonical.
    """

    signature: Signature
    tag: str
    tail: int

    @classmethod
    def of(cls, header: StateHeader) -> ReadPosition:
        """Return the position after a version that was read to its end."""
        tail = -1 if header.file_layout is None else header.file_layout.tail
        return cls(header.signature, header.tag, tail)

    def continues_in(self, header: StateHeader) -> bool:
        """Check that a version is this one with entries appended."""
        return (
            header.file_layout is not None
            and self.tag == header.tag
            and 0 <= self.tail <= header.file_layout.tail
        )


def new_tag() -> str:
    """Return a random tag for a new version."""
    return os.urandom(8).hex()


def encode_header(header: StateHeader, log: LogPosition | None) -> bytes:
    """Encode the state of a document and the end of its log. Returns `HEADER_BYTES` bytes."""
    fields = {
        "note": _VERSION,
        "file": tuple(header.signature),
        "at": None if header.file_layout is None else tuple(header.file_layout),
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
    """Decode the state of a document and the end of its log.

    Returns None if the bytes are not a header of this version, or if a field is impossible: a
    correct checksum proves nothing about the fields.
    """
    body = raw[9 : HEADER_BYTES - 1]
    if not body.startswith(_PREFIX) or raw[:8] != b"%08x" % zlib.crc32(body):
        return None
    try:
        fields = orjson.loads(body)
        header = StateHeader(
            signature=Signature(*fields["file"]),
            file_layout=None if fields["at"] is None else FileLayout(*fields["at"]),
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

    Every read of a document decodes a header. So the checks call the interpreter's own functions as
    far as possible, which are fast.
    """
    if header.durability not in _RECORDED:
        return False
    if log_end is not None and not _is_possible_log_end(log_end):
        return False
    signature = header.signature
    if set(map(type, signature)) != {int} or min(signature[:2]) < 0:
        return False
    times = (header.updated_at, header.newest_updated_at, header.newest_message_time)
    if set(map(type, (header.tag, header.boot_id, *times))) != {str}:
        return False
    for time in set(times):
        if time and not is_canonical(time) and not sortable(time):
            return False
    if header.file_layout is None:
        return True
    if len(header.updated_at) != WIDTH or header.file_layout.size != signature.size:
        return False
    return _is_possible_layout(header.file_layout)


def _is_possible_log_end(log_end: LogPosition) -> bool:
    if set(map(type, log_end)) != {int} or min(log_end) < 0:
        return False
    return log_end.durable <= log_end.end <= log_end.size


def _is_possible_layout(layout: FileLayout) -> bool:
    offsets = layout[:-1]
    are_offsets = set(map(type, offsets)) == {int} and min(offsets) >= 0
    if not are_offsets or type(layout.ends_active) is not bool:
        return False
    head_end = layout.updated_at + WIDTH
    is_ordered = head_end < layout.context < layout.history <= layout.tail < layout.size
    return is_ordered and layout.entries <= layout.tail - layout.history
