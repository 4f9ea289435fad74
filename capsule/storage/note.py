"""The note: what the last writer left beside the mutex of a document, in the mutex file itself.

A header of 512 bytes (one JSON line, padded, with its CRC-32) and behind it a log of records, one JSON line
each with its own CRC-32. What must stay true: the note is derived, so that a note that is torn, stale, garbage
or gone costs a look at the whole document and nothing else; and it is written and read under the mutex only,
except for the header, which a reader checks by its CRC. The module knows neither what a record says nor
what a conversation is.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass

import orjson

from capsule.format.anatomy import Anatomy
from capsule.storage.interface import Known, Signature
from capsule.storage.syscalls import Syscalls

__all__ = [
    "HEADER_BYTES",
    "LOG_BYTES",
    "Note",
    "decode_header",
    "new_tag",
    "read_records",
    "write_note",
    "write_records",
]

HEADER_BYTES = 512
#: The log keeps at least half of this, and never more, in bytes.
LOG_BYTES = 256 * 1024
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Note:
    """The header: the document as the last writer left it, and how long the log is (bytes)."""

    known: Known
    log: int


def new_tag() -> str:
    """A tag for a head that was written anew."""
    return os.urandom(8).hex()


def encode_header(note: Note) -> bytes:
    known, anatomy = note.known, note.known.anatomy
    signature = known.signature
    body = orjson.dumps(
        {
            "note": _VERSION,
            "signature": (signature.inode, signature.size, signature.mtime_ns, signature.ctime_ns),
            "anatomy": anatomy
            and (anatomy.updated_at, anatomy.lock_at, anatomy.context, anatomy.history, anatomy.tail, anatomy.count),
            "tag": known.tag,
            "log": note.log,
        }
    )
    return b"%08x %s" % (zlib.crc32(body), body.ljust(HEADER_BYTES - 10)) + b"\n"


def decode_header(raw: bytes) -> Note | None:
    """The note in the first bytes of a mutex file, or None when there is none to trust."""
    body = raw[9:].rstrip()
    if len(raw) != HEADER_BYTES or raw[:8] != b"%08x" % zlib.crc32(body):
        return None
    told = orjson.loads(body)
    if told["note"] != _VERSION:
        return None
    signature = Signature(*told["signature"])
    parts = told["anatomy"]
    anatomy = None if parts is None else Anatomy(signature.size, *parts)
    return Note(Known(signature, anatomy, told["tag"]), told["log"])


def write_note(sys: Syscalls, fd: int, known: Known, log: int) -> None:
    sys.pwrite(fd, encode_header(Note(known, log)), 0)


def _line(record: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(record), record)


def add_record(sys: Syscalls, fd: int, log: int, record: bytes) -> int:
    """Log one record behind `log` bytes of them; the new length. When the log is full, its older half goes."""
    if not record:
        return log
    line = _line(record)
    if log + len(line) > LOG_BYTES:
        return write_records(sys, fd, [*read_records(sys, fd, log), record], LOG_BYTES // 2)
    sys.pwrite(fd, line, HEADER_BYTES + log)
    return log + len(line)


def write_records(sys: Syscalls, fd: int, records: list[bytes], limit: int = LOG_BYTES) -> int:
    """Write the log anew with as many of the newest records as `limit` bytes hold; its length in bytes."""
    lines: list[bytes] = []
    size = 0
    for record in reversed(records):
        size += len(record) + 10
        if size > limit:
            break
        lines.append(_line(record))
    block = b"".join(reversed(lines))
    sys.pwrite(fd, block, HEADER_BYTES)
    sys.ftruncate(fd, HEADER_BYTES + len(block))
    return len(block)


def read_records(sys: Syscalls, fd: int, log: int) -> list[bytes]:
    """The records, oldest first; a line that doesn't agree with its CRC is passed over."""
    lines = sys.pread(fd, log, HEADER_BYTES).split(b"\n")
    return [line[9:] for line in lines if line[:8] == b"%08x" % zlib.crc32(line[9:])]
