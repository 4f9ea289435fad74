"""The workers that a host runs: one a session, no more than there are places, ended with the host.

What must stay true: a worker that ends and leaves what it was started for is started again later
and later; one that got on is started at once. There is no thread but one for each running worker,
which waits for its end. Why a session needs a worker, and what becomes of what a dead one claimed,
is not known here.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

from capsule.errors import CapsuleError
from capsule.sessions.host.routing import WriteLogLine

#: Seconds between two starts for the same piece of work, at most; the first is 1, and each is twice
#: the one before.
_LONGEST_S = 60.0


#: A worker that runs. Another class may stand in for this one that has `pid`, `wait`, `terminate`
#: and `kill`.
WorkerProcess = subprocess.Popen[bytes]
#: Starts a worker for a session of an agent. Raises OSError, CapsuleError.
Spawn = Callable[[str, str], WorkerProcess]


class _PipedWorkerProcess(WorkerProcess):
    """A worker whose input stays open as long as this process lives: when it ends,
    the worker does.
    """

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait(timeout)
        if self.stdin is not None:
            self.stdin.close()
        return code


@contextmanager
def prestarted_workers(words: Sequence[str]) -> Iterator[Spawn]:
    """Starts workers as processes, of which one is always started ahead, so that a message waits
    for no imports.

    A worker reads two lines when it is needed: the agent, and the session. One that reads none is
    to end, and so is one that reads the end behind them. Each is in a session of its own, so that
    what the terminal sends to the host is not sent to it.
    """

    def start() -> WorkerProcess:
        return _PipedWorkerProcess(
            words, stdin=subprocess.PIPE, stdout=2, bufsize=0, start_new_session=True
        )

    def spawn(session: str, agent: str) -> WorkerProcess:
        while True:
            worker = waiting.pop() if waiting else start()
            assert worker.stdin is not None
            try:
                worker.stdin.write(f"{agent}\n{session}\n".encode())
            except BrokenPipeError:  # It was ended.
                worker.wait()
                continue
            with suppress(OSError):  # The next one is started when it is needed.
                waiting.append(start())
            return worker

    waiting = [start()]
    try:
        yield spawn
    finally:
        for unused in waiting:
            unused.communicate()


class Supervisor:
    """The workers of a host. Any thread may call it.

    Args:
        spawn: Starts a worker.
        most: How many run at once, at most.
        log: Writes a line of the log.
        ring: Called when one has ended.
    """

    def __init__(
        self, spawn: Spawn, most: int, log: WriteLogLine, ring: Callable[[], object]
    ) -> None:
        self._spawn = spawn
        self._most = most
        self._log = log
        self._ring = ring
        self._guard = threading.Lock()
        #: By session: its worker, and the thread that waits for its end.
        self._running: dict[str, tuple[WorkerProcess, threading.Thread]] = {}
        #: Those that were asked to end.
        self._ending: set[str] = set()
        #: The sessions that wait for a place, the first one first.
        self._waiting: dict[str, None] = {}
        #: By session: the work that it was started for last, how often in a row, and when not to
        #: start it again before.
        self._starts: dict[str, tuple[str, int, float]] = {}
        self._ended: list[str] = []
        self._closed = False

    def wake(self, session: str, agent: str, work: str) -> float:
        """Start the worker of a session, unless it runs.

        Args:
            session: The session.
            agent: Its agent.
            work: What it is to do: another text for another piece of work.

        Returns:
            Seconds after which to ask again; 0: it runs, or `ended` names the session when there is
            a place.

        Cost: starting a process.
        """
        with self._guard:
            if session in self._running or self._closed:
                return 0
            was, count, not_before = self._starts.get(session, ("", 0, 0.0))
            count = count if was == work else 0
            if count and (left_s := not_before - time.monotonic()) > 0:
                return left_s
            if len(self._running) >= self._most:
                self._waiting.setdefault(session)
                return 0
            pause_s = min(2.0**count, _LONGEST_S)
            self._starts[session] = work, min(count + 1, 10), time.monotonic() + pause_s
            try:
                worker = self._spawn(session, agent)
            except (OSError, CapsuleError) as error:
                self._log(
                    "not-started", session=session, agent=agent, error=str(error), again_s=pause_s
                )
                return pause_s
            self._log(
                "started",
                session=session,
                agent=agent,
                pid=worker.pid,
                message=work.partition(" ")[0],
            )
            thread = threading.Thread(
                target=self._await_end, args=(session, worker), name=session, daemon=True
            )
            self._running[session] = worker, thread
            thread.start()
            return 0

    def _await_end(self, session: str, worker: WorkerProcess) -> None:
        code = worker.wait()
        with self._guard:
            del self._running[session]
            self._ending.discard(session)
            work, count, _ = self._starts[session]
            self._starts[session] = (
                work,
                count,
                time.monotonic() + min(2.0 ** (count - 1), _LONGEST_S),
            )
            self._ended.append(session)
        self._log("ended", session=session, pid=worker.pid, code=code)
        self._ring()

    def ended(self) -> list[str]:
        """The sessions that waited and have a place now, then those whose workers ended since the
        last call.
        """
        with self._guard:
            ended, self._ended = self._ended, []
            started = list(self._waiting)[: self._most - len(self._running)]
            for session in started:
                del self._waiting[session]
        return started + ended

    def state(self, session: str) -> Literal["running", "stopped"]:
        """Whether the worker of a session runs."""
        return "running" if session in self._running else "stopped"

    def running(self) -> list[str]:
        """The sessions whose workers run and were not asked to end."""
        with self._guard:
            return [session for session in self._running if session not in self._ending]

    @property
    def wanted(self) -> int:
        """How many more places are wanted than there will be when those that were asked to end have
        ended.
        """
        return len(self._waiting) - len(self._ending)

    def end(self, session: str, *, kill: bool = False) -> None:
        """Ask the worker of a session to end; with `kill`, end it."""
        with self._guard:
            if session in self._running:
                worker, _ = self._running[session]
                self._ending.add(session)
                worker.kill() if kill else worker.terminate()

    def stop(self, grace_s: float) -> None:
        """Ask all workers to end, and end those that have not done so after so many seconds."""
        with self._guard:
            self._closed = True
            left = dict(self._running)
        until = time.monotonic() + grace_s
        for kill in (False, True):
            for session in left:
                self.end(session, kill=kill)
            for _, thread in left.values():
                thread.join(None if kill else max(until - time.monotonic(), 0))
