"""Names that were touched, for a thread that waits for a descriptor. Every kind of engine uses it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress


class Touched:
    """Collects names, and has a descriptor that can be read while there are some. See `Tracker`."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._names: set[str] = set()
        self._is_unsure = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self.is_open = True

    def touch(self, names: Iterable[str] | None) -> None:
        """Add names, from any thread; None: any may have been touched. Nothing happens after `close`."""
        with self._guard:
            self._names.update(names or ())
            self._is_unsure = self._is_unsure or names is None
            if self.is_open and (self._names or self._is_unsure):
                with suppress(BlockingIOError):
                    os.write(self._write, b"x")

    def changed(self) -> set[str] | None:
        """The names since the last call; None: that can't be told, or it is closed."""
        with self._guard:
            if not self.is_open:
                return None
            with suppress(BlockingIOError):
                while os.read(self._read, 4096):
                    pass
            names, is_unsure = self._names, self._is_unsure
            self._names, self._is_unsure = set(), False
            return None if is_unsure else names

    def fileno(self) -> int:
        """The descriptor, readable when `changed` has something to tell."""
        return self._read

    def close(self) -> None:
        """Give back the descriptors."""
        with self._guard:
            if self.is_open:
                self.is_open = False
                os.close(self._read)
                os.close(self._write)
