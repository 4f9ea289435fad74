"""Copying a part of a file into another in the kernel, while the caller goes on with something else.

What must stay true: when the caller leaves, nothing is being copied any more, whatever it was that made it leave; and
what failed while copying is raised where the copy is asked for. The thread imports nothing and touches no lock.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from capsule.storage.interface import Interfered
from capsule.storage.syscalls import Syscalls

__all__ = ["WORTH_A_THREAD", "CopyMeanwhile", "copy_range"]

#: Below this many bytes the copying costs less than the thread that would do it.
WORTH_A_THREAD = 4 << 20
#: Copied by one call, after which one looks whether the copy is still wanted.
_STEP = 8 << 20


def copy_range(sys: Syscalls, source: int, target: int, start: int, end: int, to: int) -> int:
    """Copy the bytes between two offsets of a file to an offset of another; the offset behind them there.

    Raises:
        Interfered: The source has become shorter.
        OSError: The system refused.
    """
    begun = to
    while start < end:
        copied = sys.copy(source, target, start, min(end - start, _STEP), to)
        if not copied:
            raise Interfered
        start, to = start + copied, to + copied
        if to - begun >= _STEP:
            sys.begin_flush(target, begun, to - begun)
            begun = to
    return to


class CopyMeanwhile:
    """A copy that goes on while the body of a `with` runs, by a thread of its own.

    The thread has descriptors of its own: whatever becomes of the caller's, it never writes into another file.

    Args:
        sys: The seam to the system.
        source, target: The descriptors to copy from and to; the target is empty.
        start, end: The bytes.
        to: Where they are to lie, most likely.

    Raises:
        OSError: The system refused.
    """

    def __init__(self, sys: Syscalls, source: int, target: int, start: int, end: int, to: int) -> None:
        self._sys = sys
        self._part = (start, end)
        self._to = to
        self._target = target
        self._unwanted = False
        self._error: BaseException | None = None
        self._own = [sys.dup(source)]
        try:
            self._own.append(sys.dup(target))
        except BaseException:
            self._close()
            raise
        self._thread = threading.Thread(target=self._copy, name="capsule-copy", daemon=True)

    def _close(self) -> None:
        while self._own:
            self._sys.close(self._own.pop())

    def _copy(self) -> None:
        try:
            try:
                (at, end), to = self._part, self._to
                while at < end and not self._unwanted:
                    step = min(end, at + _STEP)
                    to = copy_range(self._sys, self._own[0], self._own[1], at, step, to)
                    at = step
            finally:
                self._close()
        except BaseException as error:  # Whatever it is, it is the caller's.
            self._error = error

    def __enter__(self) -> Self:
        try:
            self._thread.start()
        except RuntimeError:  # No thread can be had; so all of it is copied by whoever asks for it.
            self._unwanted = True
            self._close()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._unwanted = True
        self._joined()

    def _joined(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def end(self, source: int, to: int) -> int:
        """Wait for the copy, or make it where it must lie elsewhere; the offset behind it in the target.

        Args:
            source: The descriptor to copy from, if need be.
            to: Where it must lie.

        Raises as `copy_range`.
        """
        start, end = self._part
        self._unwanted = self._unwanted or to != self._to
        self._joined()
        if self._unwanted:
            self._sys.ftruncate(self._target, 0)
            return copy_range(self._sys, source, self._target, start, end, to)
        if self._error is not None:
            raise self._error
        return to + end - start
