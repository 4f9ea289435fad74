"""The host of a store: the loop that serves sessions whenever something happened to them, and the
workers that it runs.

The loop waits until a document is written, a worker ends, or a session is due. Then it serves the
sessions concerned, one by one: it applies the rules (`capsule.sessions.rules`) until they give no
more events, compacts large files, queues due deliveries, wakes the worker, and kills a worker that
counts as dead. Every 30 seconds it also closes expired questions and records what changed.

The `Supervisor` runs at most one worker for a session, and at most `max_workers` in total. A session
that gets no slot waits until a worker ends. A worker that ends although its work is not done is
started again after a pause, which doubles with each start for the same work. A worker that got on
with its work is started again at once. Each running worker has a thread that waits for its end.

What must stay true:
- The files say what is to be done, so each step may be done twice, and the process may die between
  any two steps.
- A session that cannot be read or written is reported as broken and tried again later. It stops no
  other session. A session that nothing happens to costs nothing.
- Due times are times of the system clock, which may jump. So no wait is longer than `LOOK_S`.
- One host at a time serves a store. Another one waits for the lock, which the kernel frees when the
  first one ends. The workers end with the host.
"""

from __future__ import annotations

import math
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from capsule import timestamps
from capsule.disk.directory_tracker import TouchedNames
from capsule.engines.interface import INBOUND, OUTBOUND, DocumentNotifier
from capsule.errors import CapsuleError, StoreBusy
from capsule.sessions.adapters.conversations import ConversationAdapter
from capsule.sessions.adapters.interface import Adapter
from capsule.sessions.host.routing import Deliverer, OpenSessions, Router, WriteLogLine, error_text
from capsule.sessions.registry import KIND_OF_COMMANDS
from capsule.sessions.rules import messages, questions, schedules
from capsule.sessions.sessions import Sessions

if TYPE_CHECKING:
    from capsule.sessions.registry import AgentSetup, RegistryState, SessionRecord
    from capsule.sessions.session import EventRule, Session
    from capsule.sessions.session_state import SessionState
    from capsule.store.store import CoreStore


# -- Running workers -------------------------------------------------------------------------------

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


# -- The loop --------------------------------------------------------------------------------------

#: The longest wait of the loop, and the time between two looks for changes without a notice, in
#: seconds.
LOOK_S = 30.0
#: Seconds after which a session is served again whose worker another process runs.
_ELSEWHERE_S = 5.0
#: Seconds between two tries of a waiting host to take the lock.
_STANDBY_S = 1.0
#: Seconds that the workers have to end when the host does.
_GRACE_S = 10.0


class Host:
    """Routes messages to sessions, runs their workers, and delivers the answers.

    Args:
        store: The store.
        spawn: Starts a worker.
        adapters: The adapters besides the one for conversations.
        log: Takes a line of the log, as an object for JSON.
        max_workers: How many workers run at once.

    Attributes:
        broken: By session and failed task, the error in words.
    """

    def __init__(
        self,
        store: CoreStore,
        *,
        spawn: Spawn,
        adapters: Iterable[Adapter] = (),
        log: Callable[[dict[str, Any]], None] = lambda line: None,
        max_workers: int = 8,
    ) -> None:
        self._store = store.inner.store_for(None)
        self._engine = self._store.engine
        self._write_log = log
        self._started_at = timestamps.now()
        self._adapters = {
            adapter.name: adapter for adapter in (ConversationAdapter(self._store), *adapters)
        }
        registry = self._store.inner.object_of(Sessions).registry
        self._open_sessions = OpenSessions(self._engine, registry, self._log)
        self._router = Router(self._open_sessions, self._serve_session)
        self._deliverer = Deliverer(
            self._open_sessions, self._adapters, partial(self._run_or_retry_later, "deliver")
        )
        self._workers = Supervisor(spawn, max_workers=max_workers, log=self._log, on_end=self._ring)
        #: The registry at the last turn of the loop.
        self._registry_state = self._open_sessions.state()
        #: By session, when to serve it again: a time of the system clock.
        self._due_times: dict[str, str] = {}
        #: By session, when to serve it again: monotonic seconds.
        self._retry_times_s: dict[str, float] = {}
        #: The sessions that changed since the last sweep.
        self._changed_ids: set[str] = set()
        #: The monotonic seconds of the next sweep.
        self._next_sweep_s = 0.0
        #: The system clock at the last turn of the loop.
        self._last_turn_at = ""
        #: The difference of the system clock and the monotonic clock, in seconds.
        self._clock_offset_s = _clock_offset_s(self._started_at)
        #: Ends the wait of the loop.
        self._bell = TouchedNames()
        self.broken: dict[tuple[str, str], str] = {}

    def _log(self, step: str, **fields: Any) -> None:
        self._write_log({"time": timestamps.now(), "step": step, **fields})

    # -- The loop ----------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Serve the store until `stop` is set. While another host serves it, wait.

        Raises CapsuleError if an adapter cannot start, and StoreBusy if another host took over
        because this one stalled. Cost: none worth mentioning while nothing happens.
        """

        def end() -> None:
            stop.wait()
            self._ring()

        threading.Thread(target=end, name="capsule-host-stop", daemon=True).start()
        with ExitStack() as resources:
            resources.callback(self._bell.close)
            if self._take_lease(resources, stop):
                self._serve(stop)

    def _take_lease(self, resources: ExitStack, stop: threading.Event) -> bool:
        """Wait for the lease of the host. Return whether this host has it, or was stopped."""
        is_standby = False
        while not stop.is_set():
            try:
                lease = resources.enter_context(self._engine.leases.acquire("host"))
            except StoreBusy:
                if is_standby:
                    stop.wait(_STANDBY_S)
                    continue
                is_standby = True
                self._announce("standby")
                self._log("standby")
                continue
            self._open_sessions.lease = lease
            self._announce("running")
            self._log("running")
            return True
        return False

    def _serve(self, stop: threading.Event) -> None:
        """Start the adapters and run the loop. At the end, stop workers and adapters."""
        # The notifier comes before the first look, so that no change falls between them.
        notifier = DocumentNotifier(self._engine.tracker)
        written_documents: Collection[tuple[str, str]] | None = None
        try:
            for adapter in self._adapters.values():
                adapter.start(self._router)
            while not stop.is_set():
                self._process_changes(written_documents)
                self._wait(notifier)
                written_documents = notifier.changed_documents()
        finally:
            self._workers.stop(_GRACE_S)
            self._deliverer.close()
            for adapter in self._adapters.values():
                adapter.stop()
            notifier.close()
            self._log("stopped")

    def _ring(self) -> None:
        """End the wait of the loop."""
        self._bell.touch(None)

    def _wait(self, notifier: DocumentNotifier) -> None:
        """Wait until something is written, a worker ends, or something is due."""
        now = timestamps.now()
        monotonic_s = time.monotonic()
        times_s = [self._next_sweep_s, *self._retry_times_s.copy().values()]
        waits_s = [LOOK_S, min(times_s) - monotonic_s]
        due_times = self._due_times.copy().values()
        if due_times:
            waits_s.append(timestamps.seconds_between(now, min(due_times)))
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(notifier, select.POLLIN)
        poll.poll(max(0, math.ceil(min(waits_s) * 1000)))
        self._bell.changed_ids()

    def _process_changes(self, written_documents: Collection[tuple[str, str]] | None) -> None:
        """Serve the sessions to which something happened, and sweep if that is due.

        Args:
            written_documents: The kinds and ids of the written documents. None: any may be.
        """
        old_state = self._registry_state
        self._registry_state = self._open_sessions.state()
        monotonic_s = time.monotonic()
        for id in self._sessions_to_serve(written_documents, old_state, monotonic_s):
            self._serve_session(id)
        self._end_idle_workers()
        is_sweep_due = self._next_sweep_s <= monotonic_s
        if is_sweep_due or old_state.agents != self._registry_state.agents:
            for adapter in self._adapters.values():
                adapter.look()
        if is_sweep_due:
            self._sweep()

    def _sessions_to_serve(
        self,
        written_documents: Collection[tuple[str, str]] | None,
        old_state: RegistryState,
        monotonic_s: float,
    ) -> Iterable[str]:
        """Return the sessions that changed or are due. Those with a free slot come first."""
        now = timestamps.now()
        first_ids = self._workers.take_sessions_to_check()
        ids = {id for kind, id in written_documents or () if kind in (INBOUND, OUTBOUND)}
        self._changed_ids |= ids.union(first_ids)
        if written_documents is None:
            ids |= self._registry_state.sessions.keys()
        else:
            approved_agents = {id for kind, id in written_documents if kind == KIND_OF_COMMANDS}
            ids |= self._sessions_with_new_setup(old_state, approved_agents)
        # If the system clock was set back, the rules count waiting messages as due.
        was_set_back = now < self._last_turn_at
        self._last_turn_at = now
        for id, due in self._due_times.copy().items():
            if due <= now or was_set_back:
                ids.add(id)
        for id, retry_s in self._retry_times_s.copy().items():
            if retry_s <= monotonic_s:
                ids.add(id)
        return dict.fromkeys([*first_ids, *ids])

    def _sessions_with_new_setup(
        self, old_state: RegistryState, approved_agents: Collection[str]
    ) -> set[str]:
        """Return the sessions that are new or have another status, or whose agents were changed or
        approved.
        """
        new_state = self._registry_state
        if not approved_agents and old_state is new_state:
            return set()
        agents = set(approved_agents)
        for name in old_state.agents.keys() | new_state.agents.keys():
            if old_state.agents.get(name) != new_state.agents.get(name):
                agents.add(name)
        ids = set()
        for id, record in new_state.sessions.items():
            old_record = old_state.sessions.get(id)
            is_changed = old_record is None or old_record.status != record.status
            if is_changed or record.agent in agents:
                ids.add(id)
        return ids

    # -- One session -------------------------------------------------------------------------------

    def _serve_session(self, id: str) -> None:
        """Do everything that is to be done for a session. Any thread may call it."""
        self._retry_times_s.pop(id, None)
        self._run_or_retry_later("serve", id, partial(self._apply_rules, id))

    def _run_or_retry_later(self, task: str, id: str, act: Callable[[], None]) -> None:
        """Run a task for a session. If it raises, report it as broken and schedule another try."""
        try:
            act()
        except Exception as error:
            text = error_text(error)
            if self.broken.get((id, task)) != text:
                self._log("broken", session=id, what=task, error=text)
            self.broken[id, task] = text
            self._retry_times_s[id] = time.monotonic() + LOOK_S
        else:
            if self.broken.pop((id, task), None) is not None:
                self._log("mended", session=id, what=task)

    def _apply_rules(self, id: str) -> None:
        """Apply the rules of a session, then deliver, wake and schedule what they leave to do."""
        registry_state = self._open_sessions.state()
        now = timestamps.now()
        record = registry_state.sessions.get(id)
        self._due_times.pop(id, None)
        if record is None:
            return
        agent_setup = registry_state.agents.get(record.agent)
        with self._open_sessions.session(id) as session:
            session_state = session.read()
            for rule in self._rules(registry_state, record, agent_setup, now):
                while rule(session_state):
                    self._open_sessions.write_inbound(id, rule)
                    session_state = session.last_state
            if messages.is_bulky(session_state):
                session.compact(now)
                self._log("compacted", session=id)
                session_state = session.last_state
            if messages.due_deliveries(session_state, now):
                self._deliverer.drain(id)
            if record.status == "active" and self._workers.state(id) == "stopped":
                self._wake(id, agent_setup, session_state, now)
            times = (
                messages.next_due(session_state, now),
                messages.next_delivery(session_state, now),
            )
            future_times = [due for due in times if due is not None and due > now]
            if future_times:
                self._due_times[id] = min(future_times)
            self._kill_dead_worker(session, session_state, now)

    def _rules(
        self,
        registry_state: RegistryState,
        record: SessionRecord,
        agent_setup: AgentSetup | None,
        now: str,
    ) -> tuple[EventRule, ...]:
        """Return the rules of a session, in their order. Each is applied until it gives nothing."""
        time_zone = ""
        if agent_setup is not None:
            time_zone = str(agent_setup.settings.get("timeZone", ""))
        return (
            partial(messages.retry_or_fail, now=now, is_alive=self._engine.leases.is_live),
            partial(schedules.run_next_task, now=now, time_zone=time_zone),
            partial(schedules.occurrences, now=now),
            partial(messages.update_destinations, registry_state=registry_state, record=record),
        )

    def _kill_dead_worker(self, session: Session, session_state: SessionState, now: str) -> None:
        """Kill the worker of a session if it counts as dead. While it has claims, serve the session
        again soon.

        Raises StoreBusy if another process runs the dead worker. This host cannot kill it, because
        its process id may be another process's here.
        """
        self._renew_heartbeats_after_clock_jump(now)
        for instance in messages.holders(session_state):
            is_here = self._workers.state(session.id) == "running"
            pause_s = LOOK_S if is_here else _ELSEWHERE_S
            self._retry_times_s[session.id] = time.monotonic() + pause_s
            reason = messages.worker_fault(
                session_state, now, instance=instance, heartbeat=session.heartbeat()
            )
            if not reason:
                continue
            if not is_here:
                raise StoreBusy(
                    f"its worker, instance {instance}, is to be ended: {reason}",
                    id=session.id,
                    holder="",
                )
            self._log("stale", session=session.id, reason=reason)
            self._workers.end(session.id, kill=True)

    def _renew_heartbeats_after_clock_jump(self, now: str) -> None:
        """Record a heartbeat for each worker here if the clock was set, or the machine slept.
        Otherwise they would seem to have been silent for that time.
        """
        offset_s = _clock_offset_s(now)
        if abs(offset_s - self._clock_offset_s) <= messages.STUCK_S:
            return
        for id in self._workers.running():
            with suppress(CapsuleError):  # An error of one session.
                self._engine.leases.record_heartbeat(id)
        self._clock_offset_s = offset_s  # Last, because other threads serve sessions too.

    def _wake(
        self, id: str, agent_setup: AgentSetup | None, session_state: SessionState, now: str
    ) -> None:
        """Start the worker of a session if it has work, and no worker has a claim there."""
        picked = messages.pick(session_state, now, just_started=True)
        if not picked or agent_setup is None or not agent_setup.command:
            return
        if messages.holders(session_state):
            return
        if not self._open_sessions.registry.is_approved(agent_setup):
            self._log("not-approved", session=id, agent=agent_setup.name)
            return
        work = f"{picked[0].id} {picked[0].tries}"
        wait_s = self._workers.wake(id, agent_setup.name, work)
        if wait_s:
            self._retry_times_s[id] = time.monotonic() + wait_s

    # -- All sessions ------------------------------------------------------------------------------

    def _end_idle_workers(self) -> None:
        """End idle workers until every waiting session will have a slot."""
        for id in self._workers.running():
            if self._workers.missing_slots <= 0:
                return
            with suppress(CapsuleError), self._open_sessions.session(id) as session:
                session_state = session.read()
                has_claims = bool(messages.holders(session_state))
                if has_claims or messages.pick(session_state, timestamps.now(), just_started=True):
                    continue
                self._workers.end(id)

    def _sweep(self) -> None:
        """Close expired questions, and record the state of the changed sessions for people.

        Raises StoreBusy if another host has the lease, because this one stalled.
        """
        self._next_sweep_s = time.monotonic() + LOOK_S
        now = timestamps.now()
        changed_ids = self._changed_ids
        self._changed_ids = set()

        def change(registry_state: RegistryState) -> questions.QuestionOutcome:
            new_state, events_by_session = questions.expire_questions(registry_state, now)
            records = []
            for id in changed_ids:
                if id in new_state.sessions:
                    worker = self._workers.state(id)
                    record = replace(new_state.sessions[id], worker=worker, last_active=now)
                    records.append(record)
            return new_state.put(*records), events_by_session

        try:
            self._open_sessions.apply_question_outcome(change)
        except CapsuleError as error:
            self._log("registry", error=error.message)
        if self._open_sessions.lease is not None:
            self._engine.leases.ensure_held(self._open_sessions.lease)
        self._announce("running")

    def _announce(self, state: str) -> None:
        """Tell the other processes of this store the state of this host, and what is broken."""
        broken = {id: error[:200] for (id, _), error in islice(self.broken.items(), 10)}
        fields = {
            "host": os.getpid(),
            "since": self._started_at,
            "state": state,
            "broken": broken,
        }
        self._engine.leases.acquire(self._store.instance_id, fields)


def _clock_offset_s(now: str) -> float:
    """Return by how many seconds a time of the system clock is ahead of the monotonic clock."""
    return timestamps.ms_of(now) / 1000 - time.monotonic()
