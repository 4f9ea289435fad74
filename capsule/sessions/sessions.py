"""The part of a store that is about sessions: set agents up, look sessions up, and control them.

Only the store's owner may use it. A store that acts for an agent refuses it, because an agent has
its tools for this. The setup (agents, places, wirings, destinations) is kept in the registry. A
command runs only on a machine where a person set or approved it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from capsule import timestamps
from capsule.engines.interface import INBOUND, OUTBOUND
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput, NotFound, Refused
from capsule.format.documents.head import json_name
from capsule.messaging.agents import Agents
from capsule.messaging.directory import StoreAgents
from capsule.sessions import events
from capsule.sessions.place_names import ensure_receives, place_of
from capsule.sessions.registry import (
    UNSERVED,
    AgentSetup,
    Registry,
    RegistryState,
    SessionRecord,
    Wiring,
)
from capsule.sessions.rules import deliveries, messages, questions, schedules
from capsule.sessions.session import EventRule, Session
from capsule.sessions.session_state import FINAL, InboundState, OutboundState
from capsule.sessions.trace import MessageStep, SessionEvents, trace_message

if TYPE_CHECKING:
    from capsule.sessions.adapters.webhook import Webhooks
    from capsule.sessions.session_state import SessionState
    from capsule.store.store import CoreStore


Events = list[events.Event]
#: What is shown of the next message of a series.
_OF_A_SERIES = ("id", "content", "recurrence", "processAfter")


@dataclass(frozen=True, slots=True)
class PendingQuestion:
    """A question of an agent that waits for people.

    What answers it is a message in its conversation that replies to `message`, with the label or
    the value of an option; with any text if it has none.

    Attributes:
        id: Its id.
        agent: Who asks.
        session: The session that asks.
        text: The question.
        options: What may be answered, each with a label and a value; none: any text.
        conversation: The conversation in which it is asked; empty: it is asked elsewhere.
        message: The message there that asks; empty: it is not delivered yet.
        at: When it was asked.
        expires_at: Until when an answer counts; empty: without limit.
    """

    id: str
    agent: str
    session: str
    text: str
    options: tuple[Mapping[str, str], ...]
    conversation: str
    message: str
    at: str
    expires_at: str


class Sessions:
    """Workers that messages wake: how they are set up, and what they do. For the store's owner
    only.

    Attributes:
        registry: Agents, places, wirings, sessions and questions, and which commands a person
            approved here.
    """

    registry: Registry

    def __init__(self, store: CoreStore) -> None:
        if store.agent is not None:
            raise Refused(f"only the store's owner may see sessions, not {store.agent}", path="")
        self._store = store
        self._engine = store.engine
        self.registry = Registry(store.engine)

    # -- Who answers -------------------------------------------------------------------------------

    def agent(self, name: str) -> AgentSetup:
        """How an agent answers.

        Args:
            name: Its id, its name, or `name@project`.

        Raises NotFound, InvalidInput. Cost: reading the registry, and a look at each agent for a
        name.
        """
        agents = self.registry.read().agents
        id = (
            name
            if name in agents
            else self._store.inner.object_of(StoreAgents).directory.resolve(name, None)
        )
        if id not in agents:
            raise NotFound(f"no command answers for {id[:80]!r}", id=id)
        return agents[id]

    def set_agent(
        self,
        name: str,
        command: Sequence[str] | None = None,
        *,
        folder: str | None = None,
        provider: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> AgentSetup:
        """Say how an agent answers. What is not given stays. An agent that does not exist is
        registered.

        Args:
            name: The agent, as in `agent`.
            command: The words of its command, which is approved with that.
            folder: Where the command runs.
            provider: The program behind it, for people.
            settings: What changes of `idleS`, `limitS` (seconds), `maxHops` and `timeZone`.

        Raises InvalidInput, InvalidDocument. Cost: writing some small files.
        """
        agents = self._store.inner.object_of(Agents)
        id = agents.identity(name)
        if id not in agents.names():
            agents.register(id)
        given: dict[str, Any] = {
            "command": command and tuple(command),
            "folder": folder,
            "provider": provider,
        }
        given = {field: value for field, value in given.items() if value is not None}

        is_known = self.registry.is_approved(self.registry.read().agents.get(id, AgentSetup(id)))
        if (
            command is not None and not is_known
        ):  # A folder that a clone brought is not approved with it.
            given.setdefault("folder", "")

        def change(state: RegistryState) -> RegistryState:
            group = state.agents.get(id, AgentSetup(id))
            return state.put(
                replace(group, **given, settings={**group.settings, **(settings or {})})
            )

        group = self.registry.edit(change).agents[id]
        if command is not None or is_known:
            self.registry.approve(group)
        return group

    # -- Where -------------------------------------------------------------------------------------

    def wire(self, place: str, agent: str, **how: Any) -> Wiring:
        """Let an agent answer in a place; an earlier wiring of the two is replaced.

        Args:
            place: A conversation or a channel that the agent takes part in, another agent (the
                direct of the two), or `channel:place`.
            agent: The agent, as in `agent`.
            how: The other fields of a `Wiring`.

        Raises NotFound. InvalidInput: also if the agent gets no messages there. Cost: writing a
        small file.
        """
        id = self.agent(agent).name
        channel, there, _ = place_of(self._store, place, id)
        ensure_receives(self._store, channel, there, id)
        wiring = Wiring(channel, there, id, **how)
        return self.registry.edit(lambda state: state.put(wiring)).wirings[wiring.id]

    def unwire(self, place: str, agent: str) -> None:
        """Remove the wiring of an agent in a place.

        Args:
            place, agent: As `wire` takes them.

        Raises NotFound, InvalidInput. Cost: writing a small file.
        """
        id = self.agent(agent).name
        wiring = Wiring(*place_of(self._store, place, id)[:2], id)
        if wiring.id not in self.registry.read().wirings:
            raise NotFound(f"{wiring.agent} is not wired to {place}", id=wiring.id)
        self.registry.edit(lambda state: state.without(wiring))

    def allow(self, agent: str, place: str, *, title: str | None = None) -> str:
        """Let an agent send to a place by itself.

        Args:
            agent: The agent, as in `agent`.
            place: As `wire` takes it.
            title: What the agent is to call it; None: as people do.

        Returns:
            The name by which the agent calls it, made of the title.

        Raises NotFound, InvalidInput. Cost: writing a small file.
        """
        id, name = self.agent(agent).name, ""
        channel, there, called = place_of(self._store, place, id)

        def change(state: RegistryState) -> RegistryState:
            nonlocal name
            group, name = deliveries.allow_destination(
                state.agents[id], events.Route(channel, there), title or called
            )
            return state.put(group)

        self.registry.edit(change)
        return name

    def forbid(self, agent: str, name: str) -> None:
        """Let an agent send to a place no more; it may still answer what comes from there.

        Args:
            agent: The agent, as in `agent`.
            name: The name by which it calls the place; or the place, as `wire` takes it.

        Raises NotFound, InvalidInput. Cost: writing a small file.
        """
        group = self.agent(agent)
        id = group.name
        if name not in group.destinations:
            with suppress(NotFound):
                route = events.Route(*place_of(self._store, name, id)[:2])
                name = next(
                    (
                        key
                        for key, each in group.destinations.items()
                        if events.Route.of(each) == route
                    ),
                    name,
                )
        self.registry.edit(
            lambda state: state.put(deliveries.forbid_destination(state.agents[id], name))
        )

    @property
    def webhooks(self) -> Webhooks:
        """The webhooks of this machine, with their secrets."""
        from capsule.sessions.adapters.webhook import Webhooks

        return Webhooks(self._engine.local)

    # -- Sessions ----------------------------------------------------------------------------------

    def list(self, agent: str | None = None) -> Sequence[SessionRecord]:
        """List the sessions, the last active first.

        Args:
            agent: Only those of this agent.

        Raises InvalidDocument. Cost: reading the registry if it changed, and a look at each
        process.
        """
        at_work = {about.get("session") for about in self._engine.leases.live_instances().values()}
        rows = [
            replace(row, worker="running" if row.id in at_work else "stopped")
            for row in self.registry.read().sessions.values()
            if agent in (None, row.agent)
        ]
        return sorted(rows, key=lambda row: row.last_active, reverse=True)

    def get(self, session: str) -> dict[str, Any]:
        """Look up a session: what the registry says of it, and what its files say, as JSON.

        Args:
            session: Its id, or a unique beginning of it.

        Returns:
            The fields of its `SessionRecord`, and besides: `messages` (how many messages in are
            pending, processing, released, completed, failed and cancelled), `undelivered` (how many
            messages out), `failures` (by sender,
            `from`: how many of its messages ever `failed`, and of how many of these it was `told`;
                an empty `from` is
            the host), `nextAt` (when work is due), `paused` (series; an empty one is the whole
            session), `series` (their next messages), `destinations` and `state` (what its workers
            keep, by provider and key).

        Raises NotFound, InvalidInput, InvalidDocument. Cost: reading both files.
        """
        row = self._row(session)
        opened, now = Session(self._engine, row.id), timestamps.now()
        session_state = opened.read()
        scheduled = schedules.live_occurrences(session_state).items()
        return {json_name(name): value for name, value in asdict(row).items()} | {
            "messages": dict(
                Counter(session_state.status(id) for id in session_state.inbound.messages)
            ),
            "undelivered": len(list(session_state.undelivered_messages())),
            "failures": [
                {"from": sender, "failed": counts.failed, "told": counts.told}
                for sender, counts in session_state.inbound.failures.items()
            ],
            "nextAt": messages.next_due(session_state, now) or "",
            "paused": sorted(session_state.inbound.paused),
            "series": {
                id: {name: row.event.get(name) for name in _OF_A_SERIES} for id, row in scheduled
            },
            "destinations": session_state.inbound.destinations,
            "state": session_state.outbound.state,
        }

    def history(self, session: str, limit: int = 200) -> Sequence[events.Event]:
        """List what happened in a session, the latest last, as its files say it.

        Args:
            session: As `get` takes it.
            limit: The largest number of events.

        Returns:
            The events of both files in the order of time. A message for the worker has besides its
            `status`: pending, processing, released, completed, failed or cancelled.

        Raises NotFound, InvalidInput, InvalidDocument. Cost: reading both files.
        """
        id = self._row(session).id
        session_state = Session(self._engine, id).read()
        both = [
            event
            for kind in (INBOUND, OUTBOUND)
            for event in self._engine.document(kind, id)["history"]
        ]
        last = sorted(both, key=lambda event: str(event.get("timestamp") or ""))[-limit:]
        return [
            event | {"status": session_state.status(event["id"])}
            if event.get("id") in session_state.inbound.messages
            else event
            for event in last
        ]

    def questions(self) -> Sequence[PendingQuestion]:
        """List the questions of agents that wait for people, those first that were asked first.

        Raises InvalidDocument. Cost: reading the registry if it changed, and the inbound and
        outbound files of the sessions that ask.
        """
        state, asked, now = self.registry.read(), list[PendingQuestion](), timestamps.now()
        for question in state.questions.values():
            if questions.is_open(question, now) and question.session in state.sessions:
                inbound, outbound = Session(self._engine, question.session).read()
                said = outbound.messages.get(question.message)
                event: events.Event = said.event if said is not None else {}
                where = question.route if question.route.get("channel") == "conversations" else {}
                about = (
                    question.id,
                    state.sessions[question.session].agent,
                    question.session,
                    event.get("content", ""),
                )
                place = (
                    where.get("place", ""),
                    inbound.delivered.get(question.message, "") if where else "",
                )
                asked.append(
                    PendingQuestion(
                        *about,
                        question.options,
                        *place,
                        event.get("timestamp", ""),
                        question.expires_at,
                    )
                )
        return sorted(asked, key=lambda each: each.at)

    def why(self, message: str) -> Sequence[MessageStep]:
        """The whole way of a message through the files of all sessions, in the order of time.

        Args:
            message: Its id; that of an answer stands for the message that it answers.

        Raises NotFound: no session knows it. InvalidDocument. Cost: reading the files of all
        sessions.
        """
        rows = [*self.list(), SessionRecord(UNSERVED, "")]
        steps = trace_message(message, filter(None, (self._files(row, message) for row in rows)))
        if not steps:
            raise NotFound(
                f"no session has message {message[:80]!r}: it is old, or was for no worker",
                id=message,
            )
        return steps

    def _files(self, row: SessionRecord, message: str) -> SessionEvents | None:
        """Return the events of a session whose files name a message, but for those with wrong
        fields.

        None: they don't name it.
        """
        kinds = (OUTBOUND, INBOUND)  # In this order, as acks leave after their messages.
        with suppress(NotFound):
            if any(
                message.encode("utf-8", "surrogatepass") in self._engine.read(kind, row.id)
                for kind in kinds
            ):
                outbound, inbound = (
                    self._engine.document(kind, row.id)["history"] for kind in kinds
                )
                return SessionEvents(
                    row.id,
                    row.agent,
                    [event for event in inbound if not InboundState.has_wrong_fields(event)],
                    [event for event in outbound if not OutboundState.has_wrong_fields(event)],
                )
        return None

    def compact(self) -> None:
        """Remove what is done from the files of all sessions, with its texts and files, and from
        the registry the texts of questions that are over, and the titles of conversations. A
        damaged file is left as it is.

        Raises StoreBusy, Refused, StorageFailed. Cost: rewriting both files of each session.
        """
        for id in self._engine.ids(INBOUND):
            with suppress(InvalidDocument, NotFound):
                Session(self._engine, id).compact(timestamps.now())
        with suppress(InvalidDocument):
            if _without_texts(state := self.registry.read()) != state:
                self.registry.edit(_without_texts)

    # -- A person's word ---------------------------------------------------------------------------

    def pause(self, session: str, *, series: str | None = None) -> str:
        """Let a session, or one of its series, answer nothing until `resume`; what comes waits.
        Returns its id.

        Args:
            session: Its id, or a unique beginning of it.
            series: The series; None: the whole session.

        Raises NotFound, InvalidInput, StoreBusy. Cost: appending to its file.
        """
        return self._switch(session, series, events.paused_event(series=series), "paused")

    def resume(self, session: str, *, series: str | None = None) -> str:
        """Let a session, or one of its series, go on. Returns its id.

        Args:
            session, series: As `pause` takes them.

        Raises NotFound, InvalidInput, StoreBusy. Cost: appending to its file.
        """
        return self._switch(session, series, events.resumed_event(series=series), "active")

    def _switch(
        self,
        session: str,
        series: str | None,
        event: events.Event,
        status: Literal["paused", "active"],
    ) -> str:
        row = self._row(session)
        opened = Session(self._engine, row.id)
        session_state = opened.read()
        if series is not None and series not in schedules.live_occurrences(session_state):
            raise NotFound(f"session {row.id} has no series {series[:80]!r}", id=series)
        opened.write_inbound(lambda session_state: [event])
        if series is None:
            self._set(row, status)
        return row.id

    def retry(self, message: str) -> Sequence[str]:
        """Try a message again now that failed, or that waits for its next try; or an answer that
        was not delivered.

        Args:
            message: Its id.

        Returns:
            The ids of its sessions.

        Raises NotFound. InvalidInput: it is answered, cancelled, delivered, or being answered.
        Cost: as `why`.
        """
        now = timestamps.now()
        return self._each(
            message, lambda session_state: messages.retry_by_hand(session_state, [message], now)
        )

    def cancel(self, id: str) -> Sequence[str]:
        """Cancel a message that is not answered, or not delivered, end a series, withdraw a
        question, or close a session, with all that waits in it.

        Args:
            id: The message, the series, the question, or the session.

        Returns:
            The ids of the sessions.

        Raises NotFound. InvalidInput: the message is answered, failed or cancelled, the question is
        answered or its time over, or the series over. Cost: as `why`.
        """

        def one(session_state: SessionState) -> Events:
            if id in session_state.inbound.series:
                if (head := schedules.live_occurrences(session_state).get(id)) is None:
                    raise InvalidInput(
                        f"series {id} in session {session_state.session} is over", id=id
                    )
                return [events.cancelled_event(messages=[head.id])]
            if id in session_state.outbound.messages:
                state = (
                    "" if messages.is_undelivered(session_state, id) else "delivered or cancelled"
                )
            else:
                state = session_state.status(id)
            if state in {*FINAL, "delivered or cancelled"}:
                raise InvalidInput(
                    f"message {id} in session {session_state.session} is {state}", id=id
                )
            return [events.cancelled_event(messages=[id])]

        def all_of_it(session_state: SessionState) -> Events:
            waiting = [message.id for message in session_state.unfinished_messages()]
            return [events.cancelled_event(messages=waiting)] if waiting else []

        state = self.registry.read()
        if id in state.questions:
            now = timestamps.now()
            ((session, outcome),) = self.registry.decide(
                lambda state: questions.cancel_question(state, id, now)
            )
            Session(self._engine, session).write_inbound(
                partial(questions.events_for_session, events=outcome)
            )
            return [session]
        if id not in state.sessions:
            return self._each(id, one)
        self._set(self._row(id), "closed")
        Session(self._engine, id).write_inbound(all_of_it)
        return [id]

    def _each(self, message: str, rule: EventRule) -> Sequence[str]:
        """Write what a rule says into each session that has a message or a series; an error counts
        if all raise one.
        """
        done, errors = [], list[CapsuleError]()
        for row in self.list():
            opened = Session(self._engine, row.id)
            try:
                inbound, outbound = opened.read()
                if (
                    message in inbound.messages
                    or message in inbound.series
                    or message in outbound.messages
                ):
                    opened.write_inbound(rule)
                    done.append(row.id)
            except (InvalidInput, NotFound) as error:
                errors.append(error)
        if not done:
            raise (
                errors[0]
                if errors
                else NotFound(f"no session has message {message[:80]!r}", id=message)
            )
        return done

    def _row(self, text: str) -> SessionRecord:
        rows = self.registry.read().sessions
        ids = [text] if text in rows else [id for id in rows if text and id.startswith(text)]
        if not ids:
            raise NotFound(f"there is no session {text[:80]!r}", id=text)
        if len(ids) > 1:
            raise InvalidInput(f"{text[:80]!r} may be several sessions: {', '.join(ids)}")
        return rows[ids[0]]

    def _set(self, row: SessionRecord, status: Literal["paused", "active", "closed"]) -> None:
        self.registry.edit(lambda state: state.put(replace(state.sessions[row.id], status=status)))


def _without_texts(state: RegistryState) -> RegistryState:
    """The registry without the texts of what is over, and without titles, which the conversations
    may have no more.
    """
    named = [place for place in state.places.values() if place.channel == deliveries.CONVERSATIONS]
    return questions.without_texts(state).put(*(replace(place, name="") for place in named))
