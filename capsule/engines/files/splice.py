"""The splice: appending to `history` in place, at a cost that the file's size has no part in.

One pwrite over the closing of the file, and one over `updatedAt`. What must stay true: a splice
that returns lies in the file that the path names; one that fails leaves the file as it was,
complete, or torn as `repair` knows; one that an editor's save got in the way of takes back what it
wrote and says so. Nothing is flushed: the log has it.
"""

from __future__ import annotations

import time
from contextlib import suppress

import orjson

from capsule.disk.syscalls import Syscalls
from capsule.disk.whole_files import SIGNATURE, Signature, pread_all, pwrite_all
from capsule.engines.files.protocols import Known
from capsule.errors import Interfered
from capsule.format.json.anatomy import Anatomy, closing_of, spliced
from capsule.timestamps import WIDTH

#: Bytes before the splice that are looked at again after it: a file that an editor truncated has
#: NULs there.
_BEFORE = 48
_QUIET_S = 0.03
_PATIENCE_S = 2.0


class NotAsItWas(OSError):
    """The system refused a splice, and then to put back what it had overwritten,
    or to flush that.
    """


class Overtaken(Interfered):
    """The whole splice lies in a file that another one took the name of: its version was there to
    be read.
    """


def splice(
    sys: Syscalls,
    fd: int,
    path: str,
    known: Known,
    anatomy: Anatomy,
    entries: list[bytes],
    stamp: str,
) -> tuple[Signature, Anatomy]:
    """Append entries to the canonical capsule open at `fd`.

    Args:
        sys: The seam to the system.
        fd: The document, open for reading and writing.
        path: Its name, which must still stand for it at the end.
        known: How it was found.
        anatomy: The file's anatomy.
        entries: Encoded entries, at least one.
        stamp: The new `updatedAt`.

    Returns:
        The file's signature and anatomy afterwards.

    Raises:
        Interfered: Another program wrote the file meanwhile; nothing of the splice is left in it.
        Overtaken: It put another file in its place, which has nothing of the splice.
        NotAsItWas: The system refused, and may have left a part of it in the file.
        OSError: The system refused; the file is as it was.
    """
    closing = closing_of(anatomy)
    start = max(anatomy.tail - _BEFORE, 0)
    block, after = spliced(anatomy, entries)
    before, now, inode = known.stamp.encode(), stamp.encode(), known.signature.inode
    # All is looked at right before it is written, so that an editor that writes in place is met in
    # time.
    if SIGNATURE(sys.fstat(fd)) != known.signature:
        raise Interfered
    around = sys.pread(fd, anatomy.tail - start + len(closing) + 1, start)
    if not around.endswith(closing) or len(around) != anatomy.size - start:
        raise Interfered
    try:
        pwrite_all(sys, fd, block, anatomy.tail)
        undisturbed = sys.pread(fd, WIDTH, anatomy.updated_at) == before
        if undisturbed:
            pwrite_all(sys, fd, now, anatomy.updated_at)
    except OSError as error:
        # Not enough space, most likely. The closing overwrites bytes that the file has, so it needs
        # none. Cut first: a crash in between then leaves a torn tail, and not a second end behind
        # the first.
        try:
            if sys.fstat(fd).st_size <= after.size:
                sys.ftruncate(fd, anatomy.size)
                pwrite_all(sys, fd, closing, anatomy.tail)
                pwrite_all(sys, fd, before, anatomy.updated_at)
                sys.fdatasync(fd)  # No sector of it may be found behind those of the next one.
        except OSError:
            raise NotAsItWas(error.errno, error.strerror) from error
        raise
    try:
        status = sys.lstat(path)
        is_named = status.st_ino == inode
    except FileNotFoundError:
        is_named = False
    size = status.st_size if is_named else sys.fstat(fd).st_size
    there = around[: anatomy.tail - start] + block[:_BEFORE]
    if not undisturbed or size != after.size or sys.pread(fd, len(there), start) != there:
        _withdraw(sys, fd, anatomy, block)
        raise Interfered
    if not is_named:
        raise Overtaken
    return Signature(*SIGNATURE(status)), after


def _withdraw(sys: Syscalls, fd: int, anatomy: Anatomy, block: bytes) -> None:
    """Take what a splice wrote out of a file that an editor truncated and wrote in place at the
    same time.

    The editor's text ends at some byte, before or inside what the splice wrote; what lies between
    is NULs. Waits until the editor is done. An `updatedAt` that was put into the editor's text
    stays: `reconcile` knows that it shows nothing of what was read.
    """
    tail = anatomy.tail
    data = _quiet(sys, fd)
    end = _end_of_document(data)
    if end is None:
        return
    rest = data[end:].lstrip(b" \r\n\t")
    left = rest.lstrip(b"\0")
    if left and block.endswith(left) and len(data) <= tail + len(block):
        white = len(data) - end - len(rest)
        try:
            sys.ftruncate(fd, end + white)
            sys.fdatasync(fd)
        except OSError as error:
            raise NotAsItWas(error.errno, error.strerror) from error


def _quiet(sys: Syscalls, fd: int) -> bytes:
    """The file, once it has been left alone for a moment."""
    deadline = time.monotonic() + _PATIENCE_S
    before = sys.fstat(fd)
    while time.monotonic() < deadline:
        time.sleep(_QUIET_S)
        now = sys.fstat(fd)
        if (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
            break
        before = now
    return pread_all(sys, fd, before.st_size)


def _end_of_document(data: bytes) -> int | None:
    """Where the first JSON document in `data` ends; None when it holds no whole one."""
    text = data.partition(b"\0")[0]
    end = text.rfind(b"}") + 1
    while end > 0:
        with suppress(orjson.JSONDecodeError):
            orjson.loads(text[:end])
            return end
        end = text.rfind(b"}", 0, end - 1) + 1
        if len(text) - end > 64 << 10:
            return None
    return None
