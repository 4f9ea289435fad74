"""Two ways to change a canonical file at a cost that does not follow its size.

The *splice* appends to `history` in place: one pwrite over the closing of the file, and one over
`updatedAt`. A splice that returns is in the file that the path names. A splice that fails leaves
the file as it was, complete, or torn in a way that `format/recovery/torn_files.py` recognizes. If an
editor saves meanwhile, the splice removes what it wrote and raises `ConcurrentWrite`. It flushes
nothing, since the log has the entries.

The *head rewrite* writes a new file with another head. The kernel copies everything that does not
change, byte by byte, and nothing of the history is parsed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

import orjson

from capsule.disk.syscalls import Syscalls
from capsule.disk.whole_files import (
    Signature,
    copy_range,
    pread_all,
    pwrite_all,
    stat_key,
    write_pieces,
)
from capsule.engines.files.state import StateHeader
from capsule.errors import ConcurrentWrite
from capsule.format.json.layout import (
    CONTEXT_END_BYTES,
    FileLayout,
    append_bytes,
    closing_of,
    context_end,
    with_head,
    with_longer_context,
)
from capsule.timestamps import WIDTH

#: Bytes before the splice that are looked at again after it: a file that an editor truncated has
#: NULs there.
_BEFORE = 48
_QUIET_S = 0.03
_PATIENCE_S = 2.0


class UnexpectedContent(OSError):
    """The system refused a splice, and then to put back what it had overwritten,
    or to flush that.
    """


class FileReplaced(ConcurrentWrite):
    """The whole splice lies in a file that another one took the name of: its version was there to
    be read.
    """


def splice(
    sys: Syscalls,
    fd: int,
    path: str,
    header: StateHeader,
    anatomy: FileLayout,
    entries: list[bytes],
    stamp: str,
) -> tuple[Signature, FileLayout]:
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
    block, after = append_bytes(anatomy, entries)
    before, now, inode = header.updated_at.encode(), stamp.encode(), header.signature.inode
    # All is looked at right before it is written, so that an editor that writes in place is met in
    # time.
    if stat_key(sys.fstat(fd)) != header.signature:
        raise ConcurrentWrite
    around = sys.pread(fd, anatomy.tail - start + len(closing) + 1, start)
    if not around.endswith(closing) or len(around) != anatomy.size - start:
        raise ConcurrentWrite
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
            raise UnexpectedContent(error.errno, error.strerror) from error
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
        raise ConcurrentWrite
    if not is_named:
        raise FileReplaced
    return Signature(*stat_key(status)), after


def _withdraw(sys: Syscalls, fd: int, anatomy: FileLayout, block: bytes) -> None:
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
            raise UnexpectedContent(error.errno, error.strerror) from error


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


#: An old context is looked through in pieces of this size, in bytes, which stay in the processor's
#: cache.
_CHUNK = 256 << 10


class HeadRewrite:
    """A version that is to be written.

    Args:
        sys: The seam to the system.
        source: The document, open for reading.
        anatomy: Its anatomy.
        head: The new head, as `layout.head_prefix` returns it.
        entries: Encoded entries to append.
        context: The line or lines of a new `context`, as `layout.context_lines` returns them, piece
            by piece, for it may be large; None: as it is.

    Attributes:
        after: The anatomy of the new version; known once it is written.
    """

    def __init__(
        self,
        sys: Syscalls,
        source: int,
        anatomy: FileLayout,
        head: bytes,
        entries: list[bytes],
        context: Iterable[bytes] | None,
    ) -> None:
        new = with_head(anatomy, head)
        if new is None:
            raise ValueError("not the head of a capsule")
        self._sys, self._source, self._before, self._head, self._context = (
            sys,
            source,
            anatomy,
            head,
            context,
        )
        self._block, self.after = append_bytes(new, entries)

    def write(self, fd: int) -> None:
        """Write it into an empty file. Raises `ConcurrentWrite` when the document has become shorter,
        and `OSError`.
        """
        sys, before = self._sys, self._before
        pwrite_all(sys, fd, self._head, 0)
        at, to = before.context, len(self._head)
        if self._context is not None:
            at = self._behind_context()
            to = write_pieces(sys, fd, self._context, to)
            self.after = with_longer_context(
                self.after, (to - len(self._head)) - (at - before.context)
            )
        to = copy_range(sys, self._source, fd, at, before.tail, to)
        pwrite_all(sys, fd, self._block, to)

    def _behind_context(self) -> int:
        """The offset of the line behind `context` in the document, wherever that ends."""
        before = self._before
        at, rest = before.context, b""
        while at < before.history:
            data = pread_all(self._sys, self._source, min(_CHUNK, before.history - at), at)
            if not data:
                break
            # The text is one line, and most of the pieces lie within it.
            end = (
                context_end(rest + data, first=at == before.context)
                if b"\n" in rest or b"\n" in data
                else -1
            )
            if end >= 0:
                return at - len(rest) + end
            at, rest = at + len(data), (rest + data[-CONTEXT_END_BYTES:])[-CONTEXT_END_BYTES:]
        raise ConcurrentWrite
