"""Route messages into the sessions of a host, and deliver the answers.

`OpenSessions` holds the sessions that are in use, and the registry as it could last be read.
`Router` takes messages from the adapters and writes each into the inbound files of its sessions.
`Deliverer` reads the outbound files and gives due messages to the adapters. `rules.messages` decides
which sessions get a message, where an answer goes, and whether it is tried again.

What must stay true:
- Only one thread at a time uses a session, because its state changes while it is read.
- A damaged registry stops nothing that runs: the last readable version stays in use.
- A message that an adapter handed over is durable when `Router.receive` returns, and the same
  message again changes nothing. If the file of one session cannot be written, the adapter gets the
  error and brings the message again. The other sessions have it already.
- A session is drained by one thread of a pool at a time, so a slow channel delays few others. A
  drain that fails is logged and stops no other.
- If the process is killed between delivering a message and recording that, the message is delivered
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
from capsule.sessions.adapters.interface import Adapter, OutgoingFile, OutgoingMessage
from capsule.sessions.events import Event, Route, routed_event, routing_event
from capsule.sessions.registry import UNSERVED, ChannelPlace, Registry, RegistryState
from capsule.sessions.rules import messages, questions
from capsule.sessions.rules.messages import inbound_event, is_bulky, receive
from capsule.sessions.rules.questions import events_for_session
from capsule.sessions.session import EventRule, Session
from capsule.sessions.session_state import OutboundMessage

if TYPE_CHECKING:
    from capsule.engines.interface import Engine, Lease
    from capsule.sessions.adapters.interface import ReceivedMessage
    from capsule.sessions.registry import SessionKey, SessionRecord
    from capsule.sessions.rules.messages import RoutingDecision
    from capsule.sessions.rules.questions import QuestionOutcome
    from capsule.sessions.session_state import SessionState


#: Writes a line of the log: the name of the step, and its details.
WriteLogLine = Callable[..., None]
#: The fields of an event that the log leaves out. It names messages, and has none of their text.
_NOT_LOGGED = frozenset({"event", "role", "content", "timestamp", "value"})


class OpenSessions:
    """The open sessions of a store, and its registry.

    Args:
        engine: The engine of the whole store.
        registry: The registry of the store.
        log: Writes a line of the log.

    Attributes:
        lease: The lease of the host. A host that lost it writes nothing.
    """

    lease: Lease | None = None

    def __init__(self, engine: Engine, registry: Registry, log: WriteLogLine) -> None:
        self.registry = registry
        self.log = log
        self._engine = engine
        self._lock = threading.Lock()
        self._sessions: dict[str, tuple[Session, threading.RLock]] = {}
        self._registry_state = RegistryState()

    @contextmanager
    def session(self, id: str) -> Iterator[Session]:
        """Give a session to this thread alone while the body runs.

        Its files are created if they do not exist: it is new, or somebody removed them.
        """
        with self._lock:
            if not self._engine.exists(INBOUND, id):
                Session.create(self._engine, id, id)
            if id not in self._sessions:
                self._sessions[id] = Session(self._engine, id), threading.RLock()
            session, session_lock = self._sessions[id]
        with session_lock:
            session.lease = self.lease
            yield session

    def state(self) -> RegistryState:
        """Return the registry, or its last readable version if it is damaged. Cost: an lstat."""
        try:
            self._registry_state = self.registry.read()
        except CapsuleError as error:
            self.log("registry", error=str(error))
        return self._registry_state

    def apply_question_outcome(
        self, change: Callable[[RegistryState], QuestionOutcome]
    ) -> list[str]:
        """Change the questions in the registry, and write the events to their sessions.

        A store without sessions gets no registry.

        Returns:
            The ids of the sessions that got events.
        """
        registry_state = self.state()
        if change(registry_state) == (registry_state, []):
            return []
        events_by_session = self.registry.decide(change)
        for id, question_events in events_by_session:
            self.write_inbound(id, partial(events_for_session, events=question_events))
        return [id for id, _ in events_by_session]

    def write_inbound(self, id: str, rule: EventRule) -> None:
        """Write the events of a rule durably into the inbound file of a session, and log them."""
        with self.session(id) as session:
            for event in session.write_inbound(rule):
                details = {key: value for key, value in event.items() if key not in _NOT_LOGGED}
                self.log(event["event"], session=id, **details)


def error_text(error: Exception) -> str:
    """Return an error in words."""
    if isinstance(error, CapsuleError):
        return error.message
    return f"{type(error).__name__}: {error}"


#: Messages for one session, each with the decision about it.
_RoutedMessages = list[tuple["ReceivedMessage", "RoutingDecision"]]


class Router:
    """The `Receiver` to which the adapters of a host give their messages.

    Args:
        open_sessions: The sessions.
        serve: Called with the id of each session that got messages.
    """

    def __init__(self, open_sessions: OpenSessions, serve: Callable[[str], None]) -> None:
        self._open_sessions = open_sessions
        self._serve = serve
        self._lock = threading.Lock()

    def receive(self, arrived: Sequence[ReceivedMessage]) -> None:
        """Write messages into their sessions. See `Receiver.receive`."""
        routed: dict[SessionKey, _RoutedMessages] = defaultdict(list)
        session_ids: list[str] = []
        errors: list[Exception] = []
        with self._lock:  # So messages of one place keep their order.
            registry_state = self._open_sessions.state()
            was_woken = partial(self._was_woken, registry_state, routed)
            for received in arrived:
                answered_session = self._answer_question(received, registry_state)
                if answered_session:
                    session_ids.append(answered_session)
                    continue
                for decision in messages.route(received, registry_state, was_woken):
                    routed[decision.session_key].append((received, decision))
            for key, routed_messages in routed.items():
                try:
                    session_ids += self._write_to_session(key, routed_messages, errors)
                except Exception as error:  # The other sessions still get their messages.
                    errors.append(error)
        for id in session_ids:
            self._serve(id)
        if errors:
            # An error after which the adapter brings the message again comes first.
            raise min(errors, key=lambda error: isinstance(error, InvalidInput))

    def _answer_question(self, received: ReceivedMessage, registry_state: RegistryState) -> str:
        """Record a message as the answer to a question of a session.

        Returns:
            The id of the session, which has the answer now. Empty: it answers none.
        """
        if not received.reply_to or not registry_state.questions:
            return ""
        answer = partial(
            questions.match_answer,
            received=received,
            find_platform_id=self._platform_id,
            now=timestamps.now(),
        )
        _, events_by_session = answer(registry_state)
        for id, _ in events_by_session:
            if not received.to or registry_state.sessions[id].agent in received.to:
                return next(iter(self._open_sessions.apply_question_outcome(answer)), "")
        return ""

    def _platform_id(self, id: str, message: str) -> str | None:
        """Return the id that a message of a session got at its destination. None: it has none, or
        the session cannot be read.
        """
        with suppress(CapsuleError), self._open_sessions.session(id) as session:
            return session.read().inbound.delivered.get(message)
        return None

    def _write_to_session(
        self, key: SessionKey, routed_messages: _RoutedMessages, errors: list[Exception]
    ) -> list[str]:
        """Write messages and the reasons of their routing into the session that serves a place.

        If all are ignored and no session exists, the reasons go to the session `UNSERVED`.

        Args:
            key: The agent, channel, place and thread.
            routed_messages: The messages and their decisions.
            errors: Gets the errors of single messages.

        Returns:
            The id of the session, if it has something to do.
        """
        now = timestamps.now()
        record = self._open_sessions.state().sessions_by_key.get(key)
        has_work = any(decision.outcome != "ignored" for _, decision in routed_messages)
        if record is None and has_work:
            first, _ = routed_messages[0]
            place = ChannelPlace(
                channel=first.channel,
                place=first.place,
                name=first.title,
                is_group=first.is_group,
            )
            record = self._open_sessions.registry.ensure_session(key, now, place)
        id = UNSERVED if record is None else record.id
        with self._open_sessions.session(id) as session:
            self._open_sessions.write_inbound(
                session.id, partial(self._events_for, routed_messages, errors)
            )
            if record is None and is_bulky(session.read()):
                session.compact(now)
        return [record.id] if record is not None and has_work else []

    def _events_for(
        self,
        routed_messages: _RoutedMessages,
        errors: list[Exception],
        session_state: SessionState,
    ) -> list[Event]:
        """Return the events for messages that a session does not have yet."""
        new_messages: list[Event] = []
        other_events: list[Event] = []
        default_route = session_state.inbound.route
        for received, decision in routed_messages:
            wiring = decision.wiring or None
            if decision.outcome != "ignored":
                thread = received.thread or decision.session_key[3]
                origin = Route(received.channel, received.place, thread=thread)
                message = inbound_event(
                    received, trigger=decision.outcome, route=origin, wiring=wiring
                )
                try:
                    is_new = bool(receive(session_state, [message]))
                except InvalidInput as error:  # It has other content there, which stays.
                    self._open_sessions.log(
                        "refused",
                        message=received.id,
                        session=session_state.session,
                        error=str(error),
                    )
                    if not received.editable:
                        errors.append(error)
                    continue
                if not is_new:
                    continue
                new_messages.append(message)
                if decision.outcome == "wake":
                    default_route = origin
            reason_event = routed_event(
                message=received.id,
                agent=decision.agent,
                outcome=decision.outcome,
                reason=decision.reason,
                wiring=wiring,
            )
            if reason_event["id"] not in session_state.inbound.event_ids:
                other_events.append(reason_event)
        if default_route is not None and default_route != session_state.inbound.route:
            other_events.append(routing_event(route=default_route))
        return [*receive(session_state, new_messages), *other_events]

    def _was_woken(
        self,
        registry_state: RegistryState,
        routed: Mapping[SessionKey, _RoutedMessages],
        key: SessionKey,
    ) -> bool:
        """Return whether a session was woken before, or is by a message that `routed` has.

        A session that cannot be read counts as woken, so that the message waits for it.
        """
        record = registry_state.sessions_by_key.get(key)
        if any(decision.outcome == "wake" for _, decision in routed.get(key, ())):
            return True
        if record is None:
            return False
        with suppress(CapsuleError), self._open_sessions.session(record.id) as session:
            return session.read().inbound.route is not None
        return True


#: How many sessions are drained at once.
_THREADS = 8
#: The errors after which no further attempt can succeed.
_FINAL_ERRORS = (Refused, InvalidInput, NotFound)
#: The kinds that adapters get. Every other kind is delivered as a text.
_DELIVERED_KINDS = frozenset({"edit", "reaction", "file", "question"})


class Deliverer:
    """Delivers the messages of the sessions of a host, in threads of a pool.

    Args:
        open_sessions: The sessions.
        adapters: The adapters by their names.
        run_or_retry: Calls a function for a session. If it raises, it is called again later.
    """

    def __init__(
        self,
        open_sessions: OpenSessions,
        adapters: Mapping[str, Adapter],
        run_or_retry: Callable[[str, Callable[[], None]], None],
    ) -> None:
        self._open_sessions = open_sessions
        self._adapters = adapters
        self._run_or_retry = run_or_retry
        self._pool = ThreadPoolExecutor(_THREADS, "capsule-deliver")
        self._lock = threading.Lock()
        #: The sessions to drain, and those that a thread drains now.
        self._queued_ids: set[str] = set()
        self._draining_ids: set[str] = set()
        self._closed = False

    def drain(self, session: str) -> None:
        """Deliver the due messages of a session. Returns at once."""
        with self._lock:
            self._queued_ids.add(session)
            if session in self._draining_ids or self._closed:
                return
            self._draining_ids.add(session)
            self._pool.submit(self._drain, session)

    def _drain(self, id: str) -> None:
        """Deliver the due messages of a session, until nobody has queued it again meanwhile."""
        while True:
            with self._lock:
                if id not in self._queued_ids:
                    self._draining_ids.discard(id)
                    return
                self._queued_ids.discard(id)
            self._run_or_retry(id, partial(self._deliver, id))

    def _deliver(self, id: str) -> None:
        """Deliver the due messages of a session, and record the attempts in one append."""
        record = self._open_sessions.state().sessions[id]
        results: list[tuple[OutboundMessage, dict[str, Any]]] = []
        with self._open_sessions.session(id) as session:
            due = messages.due_deliveries(session.read(), timestamps.now())
        for message in due:
            if message.kind == "task":  # The host itself carries tasks out.
                continue
            result: dict[str, Any]
            try:
                result = {"platform_id": self._deliver_message(session, record, message)}
            except Exception as error:
                is_final = isinstance(error, _FINAL_ERRORS)
                result = {"error": error_text(error), "is_final": is_final}
            results.append((message, result))

        def record_attempts(session_state: SessionState) -> list[Event]:
            now = timestamps.now()
            attempt_events = []
            for message, result in results:
                attempt_events += messages.after_attempt(session_state, message, now, **result)
            return messages.numbered(session_state, attempt_events)

        self._open_sessions.write_inbound(id, record_attempts)

    def _deliver_message(
        self, session: Session, record: SessionRecord, message: OutboundMessage
    ) -> str:
        """Deliver a message. Return the id that it gets at its destination."""
        with self._open_sessions.session(record.id):
            session_state = session.read()
            route = messages.route_of(session_state, message)
            outgoing = _outgoing_message(session, record.agent, session_state, message, route)
        if message.kind == "question":  # First, because an answer may come at once.
            self._open_sessions.registry.edit(
                partial(questions.add_question, record=record, message=message, route=route)
            )
        if route.channel not in self._adapters:
            raise OSError(f"the host has no adapter {route.channel!r}")
        return self._adapters[route.channel].deliver(outgoing)

    def close(self) -> None:
        """Wait for the running drains, and begin no more."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(cancel_futures=True)


def _outgoing_message(
    session: Session,
    agent: str,
    session_state: SessionState,
    message: OutboundMessage,
    route: Route,
) -> OutgoingMessage:
    """Return a message in the form that its adapter takes."""
    event = message.event
    answered = session_state.inbound.messages.get(message.in_reply_to)
    origin = answered.route if answered else None
    returns_to_origin = (
        origin is not None and origin.channel == route.channel and origin.place == route.place
    )
    files = [
        OutgoingFile(file["name"], partial(session.file, "outbox", file["path"]))
        for file in event.get("attachments", ())
    ]
    return OutgoingMessage(
        id=messages.delivery_id(session_state, message),
        kind=message.kind if message.kind in _DELIVERED_KINDS else "chat",
        session=session.id,
        agent=agent,
        place=route.place,
        thread=route.thread,
        text=event["content"],
        reply_to=message.in_reply_to if returns_to_origin else "",
        target=session_state.inbound.delivered.get(message.target) or message.target,
        emoji=event.get("emoji", ""),
        options=event.get("options", ()),
        files=files,
        hops=event.get("hops", 0),
    )
