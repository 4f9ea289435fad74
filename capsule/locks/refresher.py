"""Refreshing the locks of a live instance, for other hosts, which can't see whether it is alive.

What must stay true: only its holder refreshes a lock. A failed refresh is repeated after the next interval. The thread
ends with the store, and does not keep the process alive.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from capsule.errors import CapsuleError

_log = logging.getLogger("capsule")


class Leases:
    """Refreshes the lock of every held conversation at an interval.

    Args:
        every_s: Seconds between two refreshes.
        held: The ids of the conversations held now.
        refresh: Refreshes the lock of a conversation.
    """

    def __init__(self, every_s: float, held: Callable[[], list[str]], refresh: Callable[[str], None]) -> None:
        self._every_s = every_s
        self._held = held
        self._refresh = refresh
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="capsule-leases", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait until it has ended."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            for id in self._held():
                try:
                    self._refresh(id)
                except CapsuleError as error:
                    _log.debug("the lock on %s was not refreshed: %s", id, error)
