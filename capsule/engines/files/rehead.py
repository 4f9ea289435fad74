"""The rehead: a new version of a canonical capsule with another head, copied in the kernel.

What must stay true: what is not changed is copied byte by byte, whatever the fields behind the
context are; nothing of the history is parsed.
"""

from __future__ import annotations

from collections.abc import Iterable

from capsule.disk.syscalls import Syscalls
from capsule.disk.whole_files import copy_range, pour, pread_all, pwrite_all
from capsule.errors import Interfered
from capsule.format.json.anatomy import (
    CONTEXT_END_BYTES,
    Anatomy,
    context_end,
    moved,
    reheaded,
    spliced,
)

#: An old context is looked through in pieces of this size, in bytes, which stay in the processor's
#: cache.
_CHUNK = 256 << 10


class Rehead:
    """A version that is to be written.

    Args:
        sys: The seam to the system.
        source: The document, open for reading.
        anatomy: Its anatomy.
        head: The new head, as `anatomy.joined` gives it.
        entries: Encoded entries to append.
        context: The line or lines of a new `context`, as `anatomy.context_lines` gives them, piece
            by piece, for it may be large; None: as it is.

    Attributes:
        after: The anatomy of the new version; known once it is written.
    """

    def __init__(
        self,
        sys: Syscalls,
        source: int,
        anatomy: Anatomy,
        head: bytes,
        entries: list[bytes],
        context: Iterable[bytes] | None,
    ) -> None:
        new = reheaded(anatomy, head)
        if new is None:
            raise ValueError("not the head of a capsule")
        self._sys, self._source, self._before, self._head, self._context = (
            sys,
            source,
            anatomy,
            head,
            context,
        )
        self._block, self.after = spliced(new, entries)

    def write(self, fd: int) -> None:
        """Write it into an empty file. Raises `Interfered` when the document has become shorter,
        and `OSError`.
        """
        sys, before = self._sys, self._before
        pwrite_all(sys, fd, self._head, 0)
        at, to = before.context, len(self._head)
        if self._context is not None:
            at = self._behind_context()
            to = pour(sys, fd, self._context, to)
            self.after = moved(self.after, (to - len(self._head)) - (at - before.context))
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
        raise Interfered
