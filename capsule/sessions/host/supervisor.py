"""Run the workers of a host: at most one for a session, and at most `max_workers` in total.

A session that gets no slot waits until a worker ends. A worker that ends although its work is not
done is started again after a pause, which doubles with each start for the same work. A worker that
got on with its work is started again at once. Each running worker has a thread that waits for its
end.

What must stay true: the workers end with the host. The module does not know why a session needs a
worker, nor what becomes of the claims of a dead one.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal, NamedTuple

from capsule.errors import CapsuleError
from capsule.sessions.host.routing import WriteLogLine

#: The longest pause in seconds between two starts for the same work. The first pause is 1 second.
_MAX_PAUSE_S = 60.0
#: Starts for the same work are counted up to here: the pause has its full length before.
_MAX_STARTS = 10


#: A running worker. Another class with `pid`, `wait`, `terminate` and `kill` may stand in for it.
WorkerProcess = subprocess.Popen[bytes]
#: Starts a worker for a session and an agent. Raises OSError, CapsuleError.
Spawn = Callable[[str, str], WorkerProcess]


class _PipedWorkerProcess(WorkerProcess):
    """A worker whose stdin stays open until it ends. It ends when this process does, because the
    kernel closes its stdin then.
    """

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait(timeout)
        if self.stdin is not None:
            self.stdin.close()
        return code


@contextmanager
def prestarted_workers(words: Sequence[str]) -> Iterator[Spawn]:
    """Give a function that starts workers. One process is always started ahead of its work, so that
    no message waits for its imports.

    A process reads two lines from stdin when it gets its work: the agent, and the session. It ends
    at the end of stdin. It runs in a process session of its own, so that it does not get what the
    terminal sends to the host.

    Args:
        words: The command of a worker.
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
            except BrokenPipeError:  # Somebody has ended it.
                worker.wait()
                continue
            with suppress(OSError):  # Then the next one is started when it is needed.
                waiting.append(start())
            return worker

    waiting = [start()]
    try:
        yield spawn
    finally:
        for unused_worker in waiting:
            unused_worker.communicate()


class _LastStart(NamedTuple):
    """The last start of the worker of a session.

    Attributes:
        work: The work that it was started for.
        starts: How often in a row it was started for this work.
        not_before_s: The monotonic time in seconds before which it is not started for it again.
    """

    work: str = ""
    starts: int = 0
    not_before_s: float = 0.0


class Supervisor:
    """The workers of a host. Any thread may call it.

    Args:
        spawn: Starts a worker.
        max_workers: How many run at once.
        log: Writes a line of the log.
        on_end: Called when a worker has ended.
    """

    def __init__(
        self, spawn: Spawn, *, max_workers: int, log: WriteLogLine, on_end: Callable[[], object]
    ) -> None:
        self._spawn = spawn
        self._max_workers = max_workers
        self._log = log
        self._on_end = on_end
        self._lock = threading.Lock()
        #: By session, the worker, and the thread that waits for its end.
        self._running: dict[str, tuple[WorkerProcess, threading.Thread]] = {}
        #: The sessions whose workers were asked to end.
        self._ending: set[str] = set()
        #: The sessions that wait for a slot, in their order.
        self._waiting: dict[str, None] = {}
        self._last_starts: dict[str, _LastStart] = {}
        #: The sessions whose workers ended since the last `take_sessions_to_check`.
        self._ended_sessions: list[str] = []
        self._closed = False

    def wake(self, session: str, agent: str, work: str) -> float:
        """Start the worker of a session, unless it runs.

        Args:
            session: The session.
            agent: Its agent.
            work: The name of its work. Other work has another name.

        Returns:
            Seconds until the next try. 0 means that the worker runs, or that
            `take_sessions_to_check` will name the session once a slot is free.

        Cost: starting a process.
        """
        with self._lock:
            if session in self._running or self._closed:
                return 0
            last_start = self._last_starts.get(session, _LastStart())
            starts = last_start.starts if last_start.work == work else 0
            pause_left_s = last_start.not_before_s - time.monotonic()
            if starts > 0 and pause_left_s > 0:
                return pause_left_s
            if len(self._running) >= self._max_workers:
                self._waiting.setdefault(session)
                return 0
            pause_s = min(2.0**starts, _MAX_PAUSE_S)
            self._last_starts[session] = _LastStart(
                work=work,
                starts=min(starts + 1, _MAX_STARTS),
                not_before_s=time.monotonic() + pause_s,
            )
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
        """Wait for the end of a worker. The pause before its next start begins then."""
        code = worker.wait()
        with self._lock:
            del self._running[session]
            self._ending.discard(session)
            last_start = self._last_starts[session]
            pause_s = min(2.0 ** (last_start.starts - 1), _MAX_PAUSE_S)
            self._last_starts[session] = last_start._replace(
                not_before_s=time.monotonic() + pause_s
            )
            self._ended_sessions.append(session)
        self._log("ended", session=session, pid=worker.pid, code=code)
        self._on_end()

    def take_sessions_to_check(self) -> list[str]:
        """Return the sessions that waited and can have a slot now, then those whose workers ended
        since the last call. Removes both from their queues.
        """
        with self._lock:
            ended_sessions = self._ended_sessions
            self._ended_sessions = []
            free_slots = self._max_workers - len(self._running)
            admitted_sessions = list(self._waiting)[:free_slots]
            for session in admitted_sessions:
                del self._waiting[session]
        return admitted_sessions + ended_sessions

    def state(self, session: str) -> Literal["running", "stopped"]:
        """Return whether the worker of a session runs."""
        return "running" if session in self._running else "stopped"

    def running(self) -> list[str]:
        """Return the sessions whose workers run and were not asked to end."""
        with self._lock:
            return [session for session in self._running if session not in self._ending]

    @property
    def missing_slots(self) -> int:
        """How many sessions will still wait when the workers that were asked to end have ended."""
        return len(self._waiting) - len(self._ending)

    def end(self, session: str, *, kill: bool = False) -> None:
        """Ask the worker of a session to end. With `kill`, kill it."""
        with self._lock:
            if session not in self._running:
                return
            worker, _ = self._running[session]
            self._ending.add(session)
            if kill:
                worker.kill()
            else:
                worker.terminate()

    def stop(self, grace_s: float) -> None:
        """Ask all workers to end, and kill those that still run after `grace_s` seconds."""
        with self._lock:
            self._closed = True
            running = dict(self._running)
        deadline = time.monotonic() + grace_s
        for session in running:
            self.end(session)
        for _, thread in running.values():
            thread.join(max(deadline - time.monotonic(), 0))
        for session in running:
            self.end(session, kill=True)
        for _, thread in running.values():
            thread.join()
