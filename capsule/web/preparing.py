"""The wait for the index at the first visit of a large store.

What must stay true: a visitor sees at once how far it is; a store that is small or has its index
shows nothing of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from capsule.engines.queries import Progress
from capsule.errors import CapsuleError

#: Seconds that a visitor waits for the page itself.
_A_WHILE_S: Final = 1.0
#: Bytes of a store whose index is there before anybody would read how far it is.
_SMALL: Final = 4 << 20


class Preparation:
    """The index of a store, which the first visitor of a server has brought up to date.

    Args:
        build: Brings it up to date. It is called once, in a thread of its own, and is given what to
            report to. Its errors are left to the page that asks the same next.
    """

    def __init__(self, build: Callable[[Progress], object]) -> None:
        self._build = build
        self._done = threading.Event()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._read = self._all = 0

    def unfinished(self) -> tuple[int, int] | None:
        """Wait a moment for the index. Return the bytes that are read and all bytes; None: nobody
        has to wait longer.

        Cost: nothing once it is done; up to a second before.
        """
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="index", daemon=True)
                self._thread.start()
        if self._done.wait(_A_WHILE_S) or self._all < _SMALL:
            return None
        return self._read, self._all

    def _run(self) -> None:
        def report(read: int, all: int) -> None:
            self._read, self._all = read, all

        try:
            with suppress(CapsuleError):
                self._build(report)
        finally:
            self._done.set()
