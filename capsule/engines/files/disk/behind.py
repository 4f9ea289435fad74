"""Flushing behind: documents are made durable within a second of an append, which waited for its
log alone.

One thread does it for all stores of a process, once there is something to flush. What must stay
true: what a caller was promised never depends on it; it holds no mutex while it sleeps, and keeps
no store alive that is flushed; no thread of ours runs while the process is forked; and a forked
child shares nothing with its parent. The module knows of a document only its name.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from capsule.errors import CapsuleError, StoreBusy

_log = logging.getLogger("capsule")
#: How long after an append: the flush itself may take a while, and a second was promised.
_DELAY_S = 0.5


class FlushBehind:
    """The documents of one store that this process appended to and that are not flushed yet."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], Callable[[str, str, float], None]] = {}
        self._turn = threading.Lock()

    def add(self, kind: str, id: str, make_durable: Callable[[str, str, float], None]) -> None:
        """Have a document flushed within a second.

        Args:
            kind, id: The document.
            make_durable: Its store's method, which also takes how long to wait for its mutex, in
                seconds.
        """
        self._names[kind, id] = make_durable
        _thread.waiting[self] = None
        if not _thread.wake.is_set():
            _thread.start()

    def flush(self, timeout_s: float = 10.0) -> None:
        """Flush them now. One whose mutex can't be had in so many seconds stays for later; an error
        is logged.
        """
        self.flush_free(timeout_s)
        if self._names:
            _thread.start()

    def flush_free(self, timeout_s: float) -> None:
        """As `flush`, but what stays for later stays until somebody else starts the thread."""
        with self._turn:
            busy = {}
            while self._names:
                (kind, id), make_durable = self._names.popitem()
                try:
                    make_durable(kind, id, timeout_s)
                except StoreBusy:
                    busy[kind, id] = make_durable
                except CapsuleError as error:
                    _log.warning("%s %s is not flushed: %s", kind, id, error)
            self._names.update(busy)
        if busy:
            _thread.waiting[self] = None


class _Thread:
    """The thread, which ends before a fork, and is started by the next append.

    Attributes:
        waiting: The stores that have something to flush.
        wake: Set while it has something to do.
    """

    def __init__(self) -> None:
        self.waiting: dict[FlushBehind, None] = {}
        self.wake, self._end = threading.Event(), threading.Event()
        self._starting = threading.Lock()
        self._running: threading.Thread | None = None
        self._ident = 0
        self._forks = 0

    def start(self) -> None:
        """Have it flush what is waiting, in a while; at the end of the process where no thread can
        be started.
        """
        if threading.get_ident() == self._ident:
            # Not under the lock: who holds that may be waiting for this thread to end.
            self.wake.set()
            return
        with self._starting, suppress(RuntimeError):  # The interpreter is shutting down.
            if self._forks:
                return  # `after_fork` does it.
            if self._running is None:
                self._end.clear()
                running = threading.Thread(target=self._run, name="capsule-flush", daemon=True)
                running.start()
                self._running = running
            self.wake.set()

    def _run(self) -> None:
        self._ident = threading.get_ident()
        while not self._end.is_set():
            self.wake.wait()
            if not self._end.wait(_DELAY_S):
                self.wake.clear()
                self.flush()
        self._ident = 0  # It may be another thread's next.

    def flush(self, timeout_s: float = 10.0) -> None:
        """Flush all that is waiting now."""
        for behind in list(self.waiting):
            self.waiting.pop(behind, None)
            behind.flush(timeout_s)

    def stop(self) -> None:
        """Flush what can be had at once, and end."""
        with self._starting:
            running, self._running = self._running, None
            if running is not None:
                self._end.set()
                self.wake.set()
                running.join()
                self.wake.clear()
        for behind in list(self.waiting):
            self.waiting.pop(behind, None)
            behind.flush_free(timeout_s=0)

    def before_fork(self) -> None:
        """Stop, and stay so until `after_fork`."""
        with self._starting:
            self._forks += 1
        self.stop()

    def after_fork(self) -> None:
        """In the parent: go on with what could not be flushed before the fork."""
        with self._starting:
            self._forks -= 1
        if self.waiting:
            self.start()


_thread = _Thread()
atexit.register(lambda: _thread.flush(timeout_s=1))


def _in_forked_child() -> None:
    global _thread
    _thread = _Thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _thread.before_fork(),
        after_in_parent=lambda: _thread.after_fork(),
        after_in_child=_in_forked_child,
    )
