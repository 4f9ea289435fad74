"""The digest of what goes through, computed beside it.

What must stay true: the digest is that of all pieces in their order; when the caller leaves, no thread is left behind.
The thread imports nothing.
"""

from __future__ import annotations

import hashlib
import threading
from queue import SimpleQueue
from types import TracebackType
from typing import Self

__all__ = ["Digest"]

#: Pieces that wait for the thread, before who brings the next one waits.
_LAG = 32


class Digest:
    """SHA-256 of pieces, by a thread of its own: hashing goes on while another thread runs Python.

    For the body of a `with`. It may lag behind by some pieces, which it holds on to.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._pieces: SimpleQueue[bytes | None] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(_LAG):
            self._room.put(None)
        self._thread = threading.Thread(target=self._run, name="capsule-digest", daemon=True)
        self._runs = False

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            self._digest.update(piece)
            self._room.put(None)

    def __enter__(self) -> Self:
        try:
            self._thread.start()
        except RuntimeError:  # No thread can be had; so the caller's does it.
            return self
        self._runs = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        if self._runs:
            self._runs = False
            self._pieces.put(None)
            self._thread.join()

    def update(self, piece: bytes) -> None:
        """Take in the next piece. Waits while the thread is far behind."""
        if self._runs:
            self._room.get()
            self._pieces.put(piece)
        else:
            self._digest.update(piece)

    def hexdigest(self) -> str:
        """The digest of all that was taken in. Waits for it; nothing is taken in after that."""
        self._end()
        return self._digest.hexdigest()
