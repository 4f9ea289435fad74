"""How messages get into the sessions of a host, and how the answers get out again.

`OpenSessions` holds the sessions that are in use and the registry as it could last be read.
`Router` takes messages from the adapters and writes each into the inbound files of the sessions
that it is for. `Deliverer` reads the outbound files and gives what is due to the adapters.
`rules.wirings` decides which sessions get a message; `rules.deliveries` decides where an answer
goes and whether it is tried again.

Invariants:
- Only one thread at a time uses a session, because its state changes while it is read.
- A damaged registry stops nothing that runs: the last readable version stays in use.
- A message that an adapter handed over is durable when `Router` returns, and the same message
  again changes nothing. If the file of one session cannot be written, the adapter gets the error
  and brings the message again; the other sessions have it already.
- A session is drained by one thread of a pool at a time, so a slow channel delays few others. A
  drain that fails is logged and stops no other.
- If the process is killed between delivering a message and recording it, the message is delivered
  again under the same id.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.engines.interface import INBOUND
from capsule.errors import CapsuleError, InvalidInput, NotFound, Refused
from capsule.sessions import events
from capsule.sessions.adapters.interface import Adapter, File, Outgoing
from capsule.sessions.events import Event, Route
from capsule.sessions.registry import UNSERVED, ChannelPlace, Registry, RegistryState
from capsule.sessions.rules import deliveries, messages, questions, wirings
from capsule.sessions.rules.messages import inbound_event, is_bulky, receive
from capsule.sessions.rules.questions import events_for_session
from capsule.sessions.session import EventRule, Session
from capsule.sessions.session_state import OutboundMessage

if TYPE_CHECKING:
    from capsule.engines.interface import Engine, Lease
    from capsule.sessions.adapters.interface import Arrived
    from capsule.sessions.events import Event
    from capsule.sessions.registry import RegistryState, SessionKey, SessionRecord
    from capsule.sessions.rules.questions import QuestionOutcome
    from capsule.sessions.rules.wirings import RoutingDecision
    from capsule.sessions.session import Session
    from capsule.sessions.session_state import SessionState


#: Writes a line of the log: the name of the step, and what it was about.
WriteLogLine = Callable[..., None]
#: What the log does not say of an event: it names messages, and holds no text of them.
_NOT_LOGGED = frozenset({"event", "role", "content", "timestamp", "value"})


class OpenSessions:
    """The open sessions of a store.

    Args:
        engine: The engine of the whole store.
        registry: Its registry.
        log: Writes a line of the log.
    """

    #: The host's.
    lease: Lease | None = None

    def __init__(self, engine: Engine, registry: Registry, log: WriteLogLine) -> None:
        self.registry = registry
        self._engine = engine
        self.log = log
        self._guard = threading.Lock()
        self._sessions: dict[str, tuple[Session, threading.RLock]] = {}
        self._state = RegistryState()

    @contextmanager
    def session(self, id: str) -> Iterator[Session]:
        """A session, for this thread alone while the body runs; its files are made if they are not
        there.
        """
        with self._guard:
            if not self._engine.exists(INBOUND, id):  # It is new, or somebody removed it.
                Session.create(self._engine, id, id)
            if id not in self._sessions:
                self._sessions[id] = Session(self._engine, id), threading.RLock()
            session, alone = self._sessions[id]
        with alone:
            session.lease = self.lease
            yield session

    def state(self) -> RegistryState:
        """The registry as it is, or as it was before it was damaged. Cost: an lstat."""
        try:
            self._state = self.registry.read()
        except CapsuleError as error:
            self.log("registry", error=str(error))
        return self._state

    def apply_question_outcome(
        self, change: Callable[[RegistryState], QuestionOutcome]
    ) -> list[str]:
        """Change the questions in the registry, and tell their sessions what was decided.

        A store without sessions gets no registry.

        Returns:
            The ids of the sessions that were told.
        """
        before = self.state()
        if change(before) == (before, []):
            return []
        news = self.registry.decide(change)
        for id, new_events in news:
            self.write_inbound(id, partial(events_for_session, events=new_events))
        return [id for id, _ in news]

    def write_inbound(self, id: str, rule: EventRule) -> None:
        """Write what a rule says into the inbound file of a session, durably, and into the log."""
        with self.session(id) as session:
            for event in session.write_inbound(rule):
                about = {name: value for name, value in event.items() if name not in _NOT_LOGGED}
                self.log(event["event"], session=id, **about)


def error_text(error: Exception) -> str:
    """An error in words."""
    return error.message if isinstance(error, CapsuleError) else f"{type(error).__name__}: {error}"


_Items = list[tuple["Arrived", "RoutingDecision"]]


class Router:
    """What the adapters of a host give their messages to: see `Receiver`.

    Args:
        opened: The sessions.
        ring: Called for each session that got messages, with its id.
    """

    def __init__(self, opened: OpenSessions, ring: Callable[[str], None]) -> None:
        self._opened = opened
        self._ring = ring
        self._alone = threading.Lock()

    def receive(self, arrived: Sequence[Arrived]) -> None:
        by_session: dict[SessionKey, _Items] = defaultdict(list)
        sessions: list[str] = []
        errors: list[Exception] = []
        with self._alone:  # Messages of one place keep their order.
            state = self._opened.state()
            for each in arrived:
                if id := self._answers(each, state):
                    sessions.append(id)
                else:
                    for decision in wirings.route(
                        each, state, partial(self._engaged, state, by_session)
                    ):
                        by_session[decision.serves].append((each, decision))
            for serves, items in by_session.items():
                try:
                    sessions += self._take(serves, items, errors)
                except Exception as error:  # Of that session; the others have theirs.
                    errors.append(error)
        for id in sessions:
            self._ring(id)
        if errors:
            raise min(
                errors, key=lambda error: isinstance(error, InvalidInput)
            )  # What may be brought again is first.

    def _answers(self, arrived: Arrived, state: RegistryState) -> str:
        """The session that a message answers a question of, and which has the answer now; empty: it
        is for none.
        """
        now = timestamps.now()
        if not arrived.reply_to or not state.questions:
            return ""
        answer = partial(
            questions.match_answer, arrived=arrived, delivered=self._delivered, now=now
        )
        for id, _ in answer(state)[1]:
            if not arrived.to or state.sessions[id].agent in arrived.to:
                return next(iter(self._opened.apply_question_outcome(answer)), "")
        return ""

    def _delivered(self, id: str, message: str) -> str | None:
        """The id on its platform of a message that a session sent; None: it has none, or the
        session can't be read.
        """
        with suppress(CapsuleError), self._opened.session(id) as session:
            return session.read().inbound.delivered.get(message)
        return None

    def _take(self, serves: SessionKey, items: _Items, errors: list[Exception]) -> list[str]:
        """Put messages into the session that serves a place; its id, if it has to do with them."""
        now, row = timestamps.now(), self._opened.state().serving.get(serves)
        is_heard = any(decision.outcome != "ignored" for _, decision in items)
        if row is None and is_heard:
            first, _ = items[0]
            place = ChannelPlace(first.channel, first.place, first.title, first.is_group)
            row = self._opened.registry.ensure_session(serves, now, place)
        with self._opened.session(row.id if row is not None else UNSERVED) as session:
            self._opened.write_inbound(session.id, partial(self._told_by, items, errors))
            if row is None and is_bulky(session.read()):
                session.compact(now)
        return [row.id] if row is not None and is_heard else []

    def _told_by(
        self, items: _Items, errors: list[Exception], session_state: SessionState
    ) -> list[Event]:
        """The events for messages that a session does not have yet."""
        messages, said, route = list[Event](), list[Event](), session_state.inbound.route
        for arrived, decision in items:
            came_by = Route(arrived.channel, arrived.place, arrived.thread or decision.serves[3])
            if decision.outcome != "ignored":
                message = inbound_event(
                    arrived, trigger=decision.outcome, route=came_by, wiring=decision.wiring or None
                )
                try:
                    new = receive(session_state, [message])
                except InvalidInput as error:  # The session has it with other content, which stays.
                    self._opened.log(
                        "refused",
                        message=arrived.id,
                        session=session_state.session,
                        error=str(error),
                    )
                    errors += [] if arrived.editable else [error]
                    continue
                if not new:
                    continue
                messages.append(message)
                route = came_by if decision.outcome == "wake" else route
            how = events.routed_event(
                message=arrived.id,
                agent=decision.agent,
                outcome=decision.outcome,
                reason=decision.reason,
                wiring=decision.wiring or None,
            )
            if how["id"] not in session_state.inbound.event_ids:
                said.append(how)
        if route is not None and route != session_state.inbound.route:
            said.append(events.routing_event(route=route))
        return [*receive(session_state, messages), *said]

    def _engaged(
        self, state: RegistryState, before: Mapping[SessionKey, _Items], serves: SessionKey
    ) -> bool:
        """Whether the session that serves this was woken there, or is by a message before
        this one.
        """
        row, is_woken = (
            state.serving.get(serves),
            any(each.outcome == "wake" for _, each in before.get(serves, ())),
        )
        if row is None or is_woken:
            return is_woken
        with suppress(CapsuleError), self._opened.session(row.id) as session:
            return session.read().inbound.route is not None
        return True  # It is damaged: the message must wait for it.


#: How many sessions are drained at once.
_THREADS = 8
_FINAL = (Refused, InvalidInput, NotFound)
#: What adapters are told of; the rest is text.
_KINDS = frozenset({"edit", "reaction", "file", "question"})


class Deliverer:
    """What takes messages from the sessions of a host.

    Args:
        opened: The sessions.
        adapters: The adapters by their names.
        trying: Calls a function for a session, and says what it raises.
    """

    def __init__(
        self,
        opened: OpenSessions,
        adapters: Mapping[str, Adapter],
        trying: Callable[[str, Callable[[], None]], None],
    ) -> None:
        self._opened = opened
        self._adapters = adapters
        self._trying = trying
        self._pool = ThreadPoolExecutor(_THREADS, "capsule-deliver")
        self._guard = threading.Lock()
        self._wanted: set[str] = set()
        self._draining: set[str] = set()
        self._closed = False

    def drain(self, session: str) -> None:
        """Deliver what is due in a session; returns at once."""
        with self._guard:
            self._wanted.add(session)
            if session in self._draining or self._closed:
                return
            self._draining.add(session)
            self._pool.submit(self._drain, session)

    def _drain(self, id: str) -> None:
        while True:
            with self._guard:
                if id not in self._wanted:
                    self._draining.discard(id)
                    return
                self._wanted.discard(id)
            self._trying(id, partial(self._deliver, id))

    def _deliver(self, id: str) -> None:
        row, results = (
            self._opened.state().sessions[id],
            list[tuple[OutboundMessage, dict[str, Any]]](),
        )
        with self._opened.session(id) as session:
            due = deliveries.due_deliveries(session.read(), timestamps.now())
        for message in due:
            if message.kind != "task":  # Those are for the host itself.
                try:
                    result: dict[str, Any] = {"platform_id": self._delivered(session, row, message)}
                except Exception as error:
                    result = {"error": error_text(error), "is_final": isinstance(error, _FINAL)}
                results.append((message, result))

        def noted(session_state: SessionState) -> list[Event]:
            now = timestamps.now()
            attempts = (
                deliveries.after_attempt(session_state, message, now, **result)
                for message, result in results
            )
            return messages.numbered(
                session_state, [event for attempt in attempts for event in attempt]
            )

        self._opened.write_inbound(id, noted)

    def _delivered(self, session: Session, row: SessionRecord, message: OutboundMessage) -> str:
        """Deliver a message; the id that it gets."""
        with self._opened.session(row.id):
            session_state = session.read()
            route = deliveries.route_of(session_state, message)
            out = _outgoing_message(session, row.agent, session_state, message, route)
        if message.kind == "question":  # Before, as an answer may come as soon as it is asked.
            self._opened.registry.edit(
                partial(questions.add_question, row=row, message=message, route=route)
            )
        if route.channel not in self._adapters:
            raise OSError(f"the host has no adapter {route.channel!r}")
        return self._adapters[route.channel].deliver(out)

    def close(self) -> None:
        """Wait for the drains that run, and begin no more."""
        with self._guard:
            self._closed = True
        self._pool.shutdown(cancel_futures=True)


def _outgoing_message(
    session: Session,
    agent: str,
    session_state: SessionState,
    message: OutboundMessage,
    route: Route,
) -> Outgoing:
    """A message as its adapter takes it."""
    event, answered = message.event, session_state.inbound.messages.get(message.in_reply_to)
    came_by = answered.route if answered else None
    is_back = came_by is not None and (came_by.channel, came_by.place) == (
        route.channel,
        route.place,
    )
    return Outgoing(
        deliveries.delivery_id(session_state, message),
        message.kind if message.kind in _KINDS else "chat",
        session.id,
        agent,
        route.place,
        route.thread,
        event["content"],
        reply_to=message.in_reply_to if is_back else "",
        target=session_state.inbound.delivered.get(message.target) or message.target,
        emoji=event.get("emoji", ""),
        options=event.get("options", ()),
        files=[
            File(file["name"], partial(session.file, "outbox", file["path"]))
            for file in event.get("attachments", ())
        ],
        hops=event.get("hops", 0),
    )
