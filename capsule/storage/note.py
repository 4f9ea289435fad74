"""The note: what the last writer left beside the mutex of a document, in the mutex file itself.

A log of records, one JSON line each, and behind it a header of 512 bytes, one padded JSON line; every line begins
with its CRC-32. A write puts its record over the header and a new header behind it, in one call. What must stay
true: the note is derived, so that a note that is torn, stale, garbage or gone costs a look at the whole document
and nothing else; it is written and read under the mutex only, except for the header, which a reader checks by
its CRC. The module knows neither what a record says nor what a conversation is.
"""

from __future__ import annotations

import os
import zlib

import orjson

from capsule.format.anatomy import Anatomy
from capsule.storage.interface import Known, Signature
from capsule.storage.syscalls import Syscalls

__all__ = ["HEADER_BYTES", "LOG_BYTES", "add", "new_tag", "read_header", "read_records", "rewrite"]

HEADER_BYTES = 512
#: The log keeps at least half of this, and never more, in bytes; but the newest record, whatever its size.
LOG_BYTES = 256 * 1024
_VERSION = 3
_MARK = b'{"note":'


def new_tag() -> str:
    """A tag for a head that was written anew."""
    return os.urandom(8).hex()


def _line(body: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _header(known: Known) -> bytes:
    told = {
        "note": _VERSION,
        "file": tuple(known.signature),
        "at": known.anatomy and tuple(known.anatomy),
        "tag": known.tag,
        "stamp": known.stamp,
        "boot": known.boot,
        "doubt": known.doubt,
    }
    return _line(orjson.dumps(told).ljust(HEADER_BYTES - 10))


def read_header(sys: Syscalls, fd: int, size: int) -> Known | None:
    """The document as the last writer left it, or None when there is no header to trust.

    Args:
        sys: The seam to the system.
        fd: The mutex file.
        size: Its size in bytes.
    """
    if size < HEADER_BYTES:
        return None
    return decode_header(sys.pread(fd, HEADER_BYTES, size - HEADER_BYTES))


def decode_header(raw: bytes) -> Known | None:
    body = raw[9:-1]
    if not body.startswith(_MARK) or raw[:8] != b"%08x" % zlib.crc32(body):
        return None
    told = orjson.loads(body)
    if told["note"] != _VERSION:
        return None
    at = told["at"]
    anatomy = None if at is None else Anatomy(*at)
    return Known(Signature(*told["file"]), anatomy, told["tag"], told["stamp"], told["boot"], told["doubt"])


def add(sys: Syscalls, fd: int, size: int, known: Known, records: list[bytes]) -> tuple[int, bytes]:
    """Log records and write the header behind them; the new size, and the header's bytes.

    When the log is full, its older half goes.

    Args:
        size: Bytes of the mutex file, whose last 512 are the header there is.
    """
    header = _header(known)
    block = b"".join([_line(record) for record in records]) + header
    log = max(size - HEADER_BYTES, 0)
    if log + len(block) > LOG_BYTES + HEADER_BYTES:
        return rewrite(sys, fd, known, [*read_records(sys, fd, size), *records], LOG_BYTES // 2)
    sys.pwrite(fd, block, log)
    return log + len(block), header


def rewrite(sys: Syscalls, fd: int, known: Known, records: list[bytes], limit: int = LOG_BYTES) -> tuple[int, bytes]:
    """Write the note anew with the newest record and as many more as `limit` bytes hold; returns as `add`."""
    lines: list[bytes] = []
    size = 0
    for record in reversed(records):
        size += len(record) + 10
        if size > limit and lines:
            break
        lines.append(_line(record))
    header = _header(known)
    block = b"".join(reversed(lines)) + header
    sys.pwrite(fd, block, 0)
    sys.ftruncate(fd, len(block))
    return len(block), header


def read_records(sys: Syscalls, fd: int, size: int) -> list[bytes]:
    """The records, oldest first; a line that doesn't agree with its CRC is passed over, and so is the header."""
    found = []
    for line in sys.pread(fd, size, 0).split(b"\n"):
        body = line[9:]
        if body and not body.startswith(_MARK) and line[:8] == b"%08x" % zlib.crc32(body):
            found.append(body)
    return found
