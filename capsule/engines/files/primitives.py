"""Two ways to change a canonical file whose cost does not depend on the size of the file.

A *splice* appends to `history` in place. One pwrite overwrites the closing brackets of the file
with the new entries and new closing brackets, and another one overwrites `updatedAt`. It flushes
nothing, since the log has the entries.

A *head rewrite* writes a new file with another head. The kernel copies everything that does not
change, and no byte of the history is parsed.

What must stay true: after a splice that returns, the path names a file with the new entries. After
a splice that fails, the file is as before, or complete, or torn in a way that
`format/recovery/torn_files.py` recognizes. If an editor saves during a splice, the splice removes what it
wrote and raises `ConcurrentWrite`.
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

#: The number of bytes before the splice that are compared again after it. A file that an editor
#: truncated has NULs there.
_COMPARED_BYTES = 48
#: How long a file must be unchanged until its writer is taken to be done, and how long to wait for
#: that, in seconds.
_QUIET_S = 0.03
_PATIENCE_S = 2.0
#: The end of a document is searched for in this number of bytes before the first NUL.
_SEARCHED_BYTES = 64 << 10
#: An old context is searched through in pieces of this size, in bytes, which stay in the cache of
#: the processor.
_CHUNK = 256 << 10


class UnexpectedContent(OSError):
    """The system refused a splice, and then also to restore what the splice had overwritten, or to
    flush that. The file may be torn.
    """


class FileReplaced(ConcurrentWrite):
    """The file has the whole splice, but its name now belongs to another file, of an editor that
    could read the old one.
    """


def splice(
    sys: Syscalls,
    fd: int,
    path: str,
    header: StateHeader,
    layout: FileLayout,
    entries: list[bytes],
    updated_at: str,
) -> tuple[Signature, FileLayout]:
    """Append entries to a canonical document in place.

    Args:
        sys: The system calls.
        fd: The document, open for reading and writing.
        path: Its name, which must still name it at the end.
        header: Its state header.
        layout: The offsets of its parts.
        entries: The encoded entries, at least one.
        updated_at: The new `updatedAt`.

    Returns:
        The signature and the offsets of the file afterwards.

    Raises:
        ConcurrentWrite: Another program wrote the file meanwhile. The file has nothing of the
            splice.
        FileReplaced: Another program put another file in its place, which has nothing of the
            splice.
        UnexpectedContent: The system refused. The file may have a part of the splice.
        OSError: The system refused. The file is as before.
    """
    closing = closing_of(layout)
    start = max(layout.tail - _COMPARED_BYTES, 0)
    block, new_layout = append_bytes(layout, entries)
    old_updated_at = header.updated_at.encode()
    inode = header.signature.inode
    # Compared right before it is overwritten, to notice an editor that writes in place.
    if stat_key(sys.fstat(fd)) != header.signature:
        raise ConcurrentWrite
    old_end = sys.pread(fd, layout.tail - start + len(closing) + 1, start)
    if not old_end.endswith(closing) or len(old_end) != layout.size - start:
        raise ConcurrentWrite
    try:
        pwrite_all(sys, fd, block, layout.tail)
        is_unchanged = sys.pread(fd, WIDTH, layout.updated_at) == old_updated_at
        if is_unchanged:
            pwrite_all(sys, fd, updated_at.encode(), layout.updated_at)
    except OSError as error:
        # Most likely the disk is full. The old closing needs no space, since the file has these
        # bytes. The file is truncated first: a crash in between then leaves a torn end, and not a
        # second end after the first.
        try:
            if sys.fstat(fd).st_size <= new_layout.size:
                sys.ftruncate(fd, layout.size)
                pwrite_all(sys, fd, closing, layout.tail)
                pwrite_all(sys, fd, old_updated_at, layout.updated_at)
                # Otherwise a power cut could leave bytes of this splice after those of the next.
                sys.fdatasync(fd)
        except OSError:
            raise UnexpectedContent(error.errno, error.strerror) from error
        raise
    try:
        status = sys.lstat(path)
        is_named = status.st_ino == inode
    except FileNotFoundError:
        is_named = False
    size = status.st_size if is_named else sys.fstat(fd).st_size
    expected = old_end[: layout.tail - start] + block[:_COMPARED_BYTES]
    if (
        not is_unchanged
        or size != new_layout.size
        or sys.pread(fd, len(expected), start) != expected
    ):
        _remove_splice(sys, fd, layout, block)
        raise ConcurrentWrite
    if not is_named:
        raise FileReplaced
    return Signature(*stat_key(status)), new_layout


def _remove_splice(sys: Syscalls, fd: int, layout: FileLayout, block: bytes) -> None:
    """Remove what a splice wrote from a file that an editor truncated and wrote in place at the
    same time.

    Waits until the editor is done. The editor's text ends at some byte, before or inside what the
    splice wrote, and NULs fill the gap. An `updatedAt` that was written into the editor's text
    stays: `reconcile` does not rely on it.
    """
    data = _read_when_quiet(sys, fd)
    end = _end_of_document(data)
    if end is None:
        return
    rest = data[end:].lstrip(b" \r\n\t")
    remains = rest.lstrip(b"\0")
    is_of_splice = block.endswith(remains) and len(data) <= layout.tail + len(block)
    if remains and is_of_splice:
        whitespace_bytes = len(data) - end - len(rest)
        try:
            sys.ftruncate(fd, end + whitespace_bytes)
            sys.fdatasync(fd)
        except OSError as error:
            raise UnexpectedContent(error.errno, error.strerror) from error


def _read_when_quiet(sys: Syscalls, fd: int) -> bytes:
    """Return the bytes of a file once it did not change for a moment, or after `_PATIENCE_S`."""
    deadline = time.monotonic() + _PATIENCE_S
    status = sys.fstat(fd)
    while time.monotonic() < deadline:
        time.sleep(_QUIET_S)
        next_status = sys.fstat(fd)
        is_same_size = next_status.st_size == status.st_size
        if is_same_size and next_status.st_mtime_ns == status.st_mtime_ns:
            break
        status = next_status
    return pread_all(sys, fd, status.st_size)


def _end_of_document(data: bytes) -> int | None:
    """Return the offset after the first whole JSON document in `data`, or None."""
    text = data.partition(b"\0")[0]
    end = text.rfind(b"}") + 1
    while end > 0:
        with suppress(orjson.JSONDecodeError):
            orjson.loads(text[:end])
            return end
        end = text.rfind(b"}", 0, end - 1) + 1
        if len(text) - end > _SEARCHED_BYTES:
            return None
    return None


class HeadRewrite:
    """A new version of a document with another head, and perhaps another context and more entries.

    Args:
        sys: The system calls.
        source: The document, open for reading.
        layout: The offsets of its parts.
        head: The new head, as `layout.head_prefix` returns it.
        entries: Encoded entries to append.
        context: The line or lines of a new `context`, as `layout.context_lines` returns them, in
            pieces, since they may be large. None: the old context is copied.

    Attributes:
        new_layout: The offsets of the new version. With a new context, known after `write`.
    """

    def __init__(
        self,
        sys: Syscalls,
        source: int,
        layout: FileLayout,
        head: bytes,
        entries: list[bytes],
        context: Iterable[bytes] | None,
    ) -> None:
        layout_with_head = with_head(layout, head)
        if layout_with_head is None:
            raise ValueError("not the head of a capsule")
        self._sys = sys
        self._source = source
        self._old_layout = layout
        self._head = head
        self._context = context
        self._block, self.new_layout = append_bytes(layout_with_head, entries)

    def write(self, fd: int) -> None:
        """Write the version into an empty file.

        Raises `ConcurrentWrite` if the document has become shorter, and `OSError`.
        """
        old_layout = self._old_layout
        pwrite_all(self._sys, fd, self._head, 0)
        source_offset = old_layout.context
        target_offset = len(self._head)
        if self._context is not None:
            source_offset = self._find_end_of_context()
            target_offset = write_pieces(self._sys, fd, self._context, target_offset)
            old_bytes = source_offset - old_layout.context
            new_bytes = target_offset - len(self._head)
            self.new_layout = with_longer_context(self.new_layout, new_bytes - old_bytes)
        target_offset = copy_range(
            self._sys, self._source, fd, source_offset, old_layout.tail, target_offset
        )
        pwrite_all(self._sys, fd, self._block, target_offset)

    def _find_end_of_context(self) -> int:
        """Return the offset after the line of `context` in the document.

        Raises `ConcurrentWrite` if there is none.
        """
        layout = self._old_layout
        offset = layout.context
        rest = b""
        while offset < layout.history:
            size = min(_CHUNK, layout.history - offset)
            data = pread_all(self._sys, self._source, size, offset)
            if not data:
                break
            # The context is one long line, so most pieces have no line feed and need no search.
            if b"\n" in rest or b"\n" in data:
                end = context_end(rest + data, first=offset == layout.context)
                if end >= 0:
                    return offset - len(rest) + end
            offset += len(data)
            # The end may lie across two pieces.
            rest = (rest + data[-CONTEXT_END_BYTES:])[-CONTEXT_END_BYTES:]
        raise ConcurrentWrite
