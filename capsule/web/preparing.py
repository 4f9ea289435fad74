"""Brings the index up to date at the first visit of a store, and reports the progress.

The first visitor starts a thread that brings the index up to date. Each request waits up to a second
for it. Then the page shows the progress instead of its content.

What must stay true: visitors of a small store, or of one whose index is up to date, never see the
progress.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from capsule.engines.queries import Progress
from capsule.errors import CapsuleError

#: How long a request waits for the index before it shows the progress, in seconds.
_WAIT_S: Final = 1.0
#: The size of a store whose index is ready before anybody could read the progress, in bytes.
_SMALL_BYTES: Final = 4 << 20


class Preparation:
    """Brings the index of a store up to date once.

    Args:
        build: Brings the index up to date, and reports the progress to its argument. It is called
            once, in a thread of its own. Its errors are ignored: the next page that uses the index
            raises them again.
    """

    def __init__(self, build: Callable[[Progress], object]) -> None:
        self._build = build
        self._done = threading.Event()
        self._thread_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._bytes_read = 0
        self._bytes_total = 0

    def unfinished(self) -> tuple[int, int] | None:
        """Wait up to a second for the index. Return the bytes that are read, and all bytes.

        Returns None if the page can be shown.
        """
        with self._thread_lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="index", daemon=True)
                self._thread.start()
        if self._done.wait(_WAIT_S) or self._bytes_total < _SMALL_BYTES:
            return None
        return self._bytes_read, self._bytes_total

    def _run(self) -> None:
        def report(bytes_read: int, bytes_total: int) -> None:
            self._bytes_read = bytes_read
            self._bytes_total = bytes_total

        try:
            with suppress(CapsuleError):
                self._build(report)
        finally:
            self._done.set()
