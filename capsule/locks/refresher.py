"""Keeping the locks of a live instance fresh, for other hosts that can't ask whether it lives.

What must stay true: a lock is only ever refreshed by its holder, and a refresh that fails is the next one's
business; the thread ends with the store, and does not keep the process alive.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from capsule.errors import CapsuleError

_log = logging.getLogger("capsule")


class Leases:
    """Calls `refresh` for every held conversation, every `every_s` seconds, once there is one.

    Args:
        every_s: Seconds between two refreshes.
        held: The ids of the conversations held now.
        refresh: Refreshes the lock of one.
    """

    def __init__(self, every_s: float, held: Callable[[], list[str]], refresh: Callable[[str], None]) -> None:
        self._every_s = every_s
        self._held = held
        self._refresh = refresh
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="capsule-leases", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End, and wait until it has ended."""
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
