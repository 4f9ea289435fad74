"""The host of a store: the loop that is woken by what is written, by the ends of workers, and by
the time.

What must stay true: what is to be done stands in the files, so each step may be done twice, and the
process may die between any two. A session that can't be read or written is shown, is tried again
later, and stops no other. Times that something is due are those of the wall, which may jump: no
wait is longer than `LOOK_S`. One host at a time serves a store; another one waits for the lock that
the kernel frees. A session that nothing happens to costs nothing.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.disk.directory_tracker import TouchedNames
from capsule.engines.interface import INBOUND, OUTBOUND, DocumentNotifier
from capsule.errors import CapsuleError, StoreBusy
from capsule.sessions.adapters.conversations import ConversationAdapter
from capsule.sessions.adapters.interface import Adapter
from capsule.sessions.host.routing import Deliverer, OpenSessions, Router, error_text
from capsule.sessions.host.supervisor import Spawn, Supervisor
from capsule.sessions.registry import KIND_OF_COMMANDS
from capsule.sessions.rules import deliveries, messages, questions, schedules
from capsule.sessions.sessions import Sessions

if TYPE_CHECKING:
    from capsule.sessions.registry import AgentSetup, RegistryState
    from capsule.sessions.session import EventRule, Session
    from capsule.sessions.session_state import SessionState
    from capsule.store.store import CoreStore

#: The longest wait, in seconds; and how often what comes without a notice is looked for.
LOOK_S = 30.0
#: Seconds after which a session is looked at again whose worker another process runs.
_ELSEWHERE_S = 5.0
#: How often a standby tries the lock, in seconds; and how long workers have to end, when the host
#: does.
_STANDBY_S, _GRACE_S = 1.0, 10.0


class Host:
    """Routes messages to sessions, runs their workers, and delivers what these say.

    Args:
        store: The store.
        spawn: Starts a worker.
        adapters: The adapters besides the one for conversations.
        log: Takes a line of the log: an object for JSON.
        max_workers: How many workers run at once, at most.

    Attributes:
        broken: By session and what can't be done for it, why.
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
        self._since = timestamps.now()
        self._adapters = {
            adapter.name: adapter for adapter in (ConversationAdapter(self._store), *adapters)
        }
        self._opened = OpenSessions(
            self._engine, self._store.inner.object_of(Sessions).registry, self._log
        )
        self._router = Router(self._opened, self._step)
        self._deliverer = Deliverer(self._opened, self._adapters, partial(self._trying, "deliver"))
        self._workers = Supervisor(spawn, max_workers, self._log, self._ring)
        self._state = self._opened.state()
        #: When to look at sessions again: by the time on the wall, and by that of this process.
        self._due: dict[str, str] = {}
        self._again: dict[str, float] = {}
        self._changed: set[str] = set()
        self._next_sweep = 0.0
        self._looked_at = ""
        #: By how many seconds the clock on the wall is ahead of that of this process.
        self._ahead_s = timestamps.ms_of(self._since) / 1000 - time.monotonic()
        self._bell = TouchedNames()  # It ends the wait of the loop.
        self.broken: dict[tuple[str, str], str] = {}

    def _log(self, step: str, **about: Any) -> None:
        self._write_log({"time": timestamps.now(), "step": step, **about})

    # -- The loop ----------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Serve the store until `stop` is set; wait, if another host does.

        Raises CapsuleError if an adapter can't begin; StoreBusy if another host took over, as this
        one stalled. Cost: none worth mentioning while nothing happens.
        """

        def end() -> None:
            stop.wait()
            self._ring()

        threading.Thread(target=end, name="capsule-host-stop", daemon=True).start()
        with ExitStack() as held:
            held.callback(self._bell.close)
            state = ""
            while state != "running" and not stop.is_set():
                try:
                    self._opened.lease = held.enter_context(self._engine.leases.acquire("host"))
                    state = "running"
                except StoreBusy:
                    if state == "standby":
                        stop.wait(_STANDBY_S)
                        continue
                    state = "standby"
                self._announce(state)
                self._log(state)
            if state == "running":
                self._serve(stop)

    def _serve(self, stop: threading.Event) -> None:
        touched: Collection[tuple[str, str]] | None = None
        notices = DocumentNotifier(
            self._engine.tracker
        )  # Before the first look, so that nothing happens in between.
        try:
            for adapter in self._adapters.values():
                adapter.start(self._router)
            while not stop.is_set():
                self._turn(touched)
                self._wait(notices)
                touched = notices.changed_documents()
        finally:
            self._workers.stop(_GRACE_S)
            self._deliverer.close()
            for adapter in self._adapters.values():
                adapter.stop()
            notices.close()
            self._log("stopped")

    def _ring(self) -> None:
        """End the wait of the loop."""
        self._bell.touch(None)

    def _wait(self, notices: DocumentNotifier) -> None:
        """Wait until something is written, a worker ends, or something is due."""
        now, at = timestamps.now(), time.monotonic()
        soonest = min([self._next_sweep, *self._again.copy().values()]) - at
        waits = [LOOK_S, soonest]
        waits += [
            timestamps.seconds_between(now, due) for due in sorted(self._due.copy().values())[:1]
        ]
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(notices, select.POLLIN)
        poll.poll(max(0, math.ceil(min(waits) * 1000)))
        self._bell.changed_ids()

    def _turn(self, touched: Collection[tuple[str, str]] | None) -> None:
        """Look at the sessions to which something happened. `touched` was written; None: anything
        may be.
        """
        before, self._state = self._state, self._opened.state()
        rows, now, at = self._state.sessions, timestamps.now(), time.monotonic()
        first = self._workers.ended()
        ids = {*first, *(id for kind, id in touched or () if kind in (INBOUND, OUTBOUND))}
        self._changed |= ids
        agents = {id for kind, id in touched or () if kind == KIND_OF_COMMANDS}
        ids |= rows.keys() if touched is None else self._concerned(before, agents)
        # A rule counts what waited while the clock went back as due: nobody would come to ask it.
        ids |= {id for id, due in self._due.copy().items() if due <= now or now < self._looked_at}
        self._looked_at = now
        ids |= {id for id, again in self._again.copy().items() if again <= at}
        for id in dict.fromkeys([*first, *ids]):
            self._step(id)
        self._make_room()
        if self._next_sweep <= at or before.agents != self._state.agents:
            for adapter in self._adapters.values():
                adapter.look()
        if self._next_sweep <= at:
            self._sweep()

    def _concerned(self, before: RegistryState, agents: Collection[str]) -> set[str]:
        """The sessions whose rows or agents are not as before, or whose agents are among these."""
        if not agents and before is self._state:
            return set()
        was, now = before.agents, self._state.agents
        concerned = {
            name for name in was.keys() | now.keys() if was.get(name) != now.get(name)
        } | set(agents)
        rows = ((id, row, before.sessions.get(id)) for id, row in self._state.sessions.items())
        return {
            id
            for id, row, old in rows
            if row.agent in concerned or old is None or old.status != row.status
        }

    # -- One session -------------------------------------------------------------------------------

    def _step(self, id: str) -> None:
        """Do what is to be done for a session. Any thread may call it."""
        self._again.pop(id, None)
        self._trying("serve", id, partial(self._look_at, id))

    def _trying(self, task: str, id: str, act: Callable[[], None]) -> None:
        """Do something for a session; what it raises is shown, and it is tried again later."""
        try:
            act()
        except Exception as error:
            about = error_text(error)
            if self.broken.get((id, task)) != about:
                self._log("broken", session=id, what=task, error=about)
            self.broken[id, task] = about
            self._again[id] = time.monotonic() + LOOK_S
        else:
            if self.broken.pop((id, task), None) is not None:
                self._log("mended", session=id, what=task)

    def _look_at(self, id: str) -> None:
        state, now = self._opened.state(), timestamps.now()
        row = state.sessions.get(id)
        self._due.pop(id, None)
        if row is None:
            return
        with self._opened.session(id) as session:
            session_state = session.read()
            agent = state.agents.get(row.agent)
            rules: tuple[EventRule, ...] = (
                partial(messages.retry_or_fail, now=now, is_alive=self._engine.leases.is_live),
                partial(
                    schedules.run_next_task,
                    now=now,
                    time_zone=str(agent.settings.get("timeZone", "")) if agent else "",
                ),
                partial(schedules.occurrences, now=now),
                lambda session_state: deliveries.update_destinations(session_state, state, row),
            )
            for rule in rules:
                while rule(session_state):
                    self._opened.write_inbound(id, rule)
                    session_state = session.last_state
            if messages.is_bulky(session_state):
                session.compact(now)
                self._log("compacted", session=id)
                session_state = session.last_state
            if deliveries.due_deliveries(session_state, now):
                self._deliverer.drain(id)
            if row.status == "active" and self._workers.state(id) == "stopped":
                self._wake(id, agent, session_state, now)
            times = (
                messages.next_due(session_state, now),
                deliveries.next_delivery(session_state, now),
            )
            if later := [at for at in times if at is not None and at > now]:
                self._due[id] = min(later)
            self._heal(session, session_state, now)

    def _heal(self, session: Session, session_state: SessionState, now: str) -> None:
        """End the worker of a session if it counts as dead; look again later, as long as it has
        work.
        """
        self._forgive(now)
        for instance in messages.holders(session_state):
            is_here = self._workers.state(session.id) == "running"
            self._again[session.id] = time.monotonic() + (LOOK_S if is_here else _ELSEWHERE_S)
            reason = messages.worker_fault(
                session_state, now, instance=instance, heartbeat=session.heartbeat()
            )
            if (
                reason and not is_here
            ):  # Its number may be that of another process, in another container.
                raise StoreBusy(
                    f"its worker, instance {instance}, is to be ended: {reason}",
                    id=session.id,
                    holder="",
                )
            if reason:
                self._log("stale", session=session.id, reason=reason)
                self._workers.end(session.id, kill=True)

    def _forgive(self, now: str) -> None:
        """Let the silence of the workers here begin anew if the clock was set, or the machine
        slept.
        """
        ahead_s = timestamps.ms_of(now) / 1000 - time.monotonic()
        if abs(ahead_s - self._ahead_s) > messages.STUCK_S:
            for id in self._workers.running():
                with suppress(CapsuleError):  # Of that session; the others begin anew.
                    self._engine.leases.record_heartbeat(id)
            self._ahead_s = ahead_s  # Now, as other threads look at sessions too.

    def _wake(
        self, id: str, agent: AgentSetup | None, session_state: SessionState, now: str
    ) -> None:
        """Start the worker of a session if it has work, and none has a claim there."""
        picked = messages.pick(session_state, now, just_started=True)
        if not picked or agent is None or not agent.command or messages.holders(session_state):
            return
        if not self._opened.registry.is_approved(agent):
            self._log("not-approved", session=id, agent=agent.name)
        elif wait_s := self._workers.wake(id, agent.name, f"{picked[0].id} {picked[0].tries}"):
            self._again[id] = time.monotonic() + wait_s

    # -- All sessions ------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """End idle workers for those sessions that wait for a place."""
        for id in self._workers.running():
            if self._workers.wanted <= 0:
                return
            with suppress(CapsuleError), self._opened.session(id) as session:
                session_state = session.read()
                is_busy = messages.holders(session_state) or messages.pick(
                    session_state, timestamps.now(), just_started=True
                )
                if not is_busy:
                    self._workers.end(id)

    def _sweep(self) -> None:
        """Close questions whose time is over, and note what people read of the sessions."""
        self._next_sweep, now = time.monotonic() + LOOK_S, timestamps.now()
        changed, self._changed = self._changed, set()

        def change(state: RegistryState) -> questions.QuestionOutcome:
            state, news = questions.expire_questions(state, now)
            rows = [state.sessions[id] for id in changed if id in state.sessions]
            return state.put(
                *(replace(row, worker=self._workers.state(row.id), last_active=now) for row in rows)
            ), news

        try:
            self._opened.apply_question_outcome(change)
        except CapsuleError as error:
            self._log("registry", error=error.message)
        if (
            self._opened.lease is not None
        ):  # Another host may have it, if this one stalled for long.
            self._engine.leases.ensure_held(self._opened.lease)
        self._announce("running")

    def _announce(self, state: str) -> None:
        """Tell other processes of this store that this one is its host, and what it can't serve."""
        broken = {id: about[:200] for (id, _), about in islice(self.broken.items(), 10)}
        about = {"host": os.getpid(), "since": self._since, "state": state, "broken": broken}
        self._engine.leases.acquire(self._store.instance_id, about)
