"""The object `store.sessions`: set agents up, look sessions up, and control them.

The setup (agents, places, wirings, destinations) is in the registry. A look at a session reads its
two files. A person's command writes an event to its inbound file, which the host carries out. Each
method finds the agent, place or session that a name means first, and changes nothing if there is
none. `place_of` finds a place of an agent by the name that people use: of a conversation, a channel,
another agent or a webhook.

What must stay true:
- Only the store's owner may use `store.sessions`. A store that acts for an agent refuses it, because
  an agent has its tools for this.
- A command runs only on a machine where a person set or approved it.
- A place that is found is one that messages of the agent can come from, or go to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from capsule import timestamps
from capsule.engines.interface import CONVERSATIONS as CONVERSATION_KIND
from capsule.engines.interface import INBOUND, OUTBOUND
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput, NotFound, Refused, Remedy
from capsule.format.documents.agents import direct_id
from capsule.format.documents.head import json_name
from capsule.ids import is_id
from capsule.messaging.agents import Agents
from capsule.messaging.channels import Channels
from capsule.messaging.directory import StoreAgents
from capsule.rules.policy import PolicyTarget
from capsule.sessions import events
from capsule.sessions.registry import (
    UNSERVED,
    AgentSetup,
    Question,
    Registry,
    RegistryState,
    SessionRecord,
    Wiring,
)
from capsule.sessions.rules import messages, questions, schedules
from capsule.sessions.rules.messages import CONVERSATIONS
from capsule.sessions.session import EventRule, Session
from capsule.sessions.session_state import FINAL, InboundState, OutboundState
from capsule.sessions.trace import MessageStep, SessionEvents, trace_message

if TYPE_CHECKING:
    from capsule.sessions.adapters.programs import Webhooks
    from capsule.sessions.session_state import SessionState
    from capsule.store.store import CoreStore


# -- Places by their names -------------------------------------------------------------------------


def place_of(store: CoreStore, text: str, agent: str) -> tuple[str, str, str]:
    """Return the place that a text names: its channel, its id there, and its title.

    Args:
        store: The owner's store.
        text: A conversation, a channel as `Channels` takes it, another agent (for the direct with
            `agent`, which need not exist), or `channel:place`.
        agent: The id of the agent that answers there, or sends there.

    Raises NotFound, InvalidInput. Cost: as `Channels.get`, and a look at each agent.
    """
    channel, colon, place = text.partition(":")
    if colon:
        if not channel or not place:
            raise InvalidInput(
                f"{text[:80]!r} is not a place: name a conversation or an agent, or write "
                "CHANNEL:PLACE"
            )
        return channel, place, place
    if not (is_id(text) and store.engine.exists(CONVERSATION_KIND, text)):
        with suppress(NotFound):
            return CONVERSATIONS, store.inner.object_of(Channels).resolve(text), text
        with suppress(NotFound):
            other_agent = store.inner.object_of(StoreAgents).directory.resolve(text, agent)
            if other_agent == agent:
                raise InvalidInput(
                    f"{agent} does not write to itself; name another agent or a conversation"
                )
            return CONVERSATIONS, direct_id(agent, other_agent), other_agent
    id = store.resolve(text)
    return CONVERSATIONS, id, store.head(id).title or id


def ensure_receives(store: CoreStore, channel: str, place: str, agent: str) -> None:
    """Check that an agent gets the messages of a place.

    Args:
        store: The owner's store.
        channel: The channel of the place.
        place: Its id there.
        agent: The agent's id.

    Raises:
        NotFound: It is a webhook that does not exist on this machine.
        InvalidInput: The agent is not a member. The error has the way to make it one.

    Cost: reading the beginning of a file.
    """
    from capsule.sessions.adapters.programs import WebhookAdapter, Webhooks

    if channel == WebhookAdapter.name:
        try:
            Webhooks(store.engine.local).get(place)
        except NotFound as error:
            remedy = Remedy("webhook", place)
            raise NotFound(f"{error.message} on this machine", id=place, remedy=remedy) from None
    if channel != CONVERSATIONS or not store.engine.exists(CONVERSATION_KIND, place):
        return
    target = PolicyTarget.from_head(store.head(place))
    if target.type == "chat" or agent not in target.present_ids:
        hint = "name a channel, a group, or a direct of its own"
        if target.type == "channel":
            hint = "invite it, or let it join"
        elif target.type == "group":
            hint = "a participant can add it"
        raise InvalidInput(
            f"{agent} is not a member of {target.type} {place}, and gets no messages of it: {hint}",
            id=place,
        )


# -- The object of the store -----------------------------------------------------------------------

#: The fields of the next message of a series that `Sessions.get` shows.
_SERIES_FIELDS = ("id", "content", "recurrence", "processAfter")


@dataclass(frozen=True, slots=True)
class PendingQuestion:
    """A question of an agent that waits for people.

    Its answer is a message in its conversation that replies to `message`, with the label or the
    value of an option, or with any text if it has no options.

    Attributes:
        id: Its id.
        agent: The agent that asks.
        session: The session that asks.
        text: The question.
        options: The possible answers, each with a label and a value. None: any text.
        conversation: The conversation in which it is asked. Empty: it is asked elsewhere.
        message: The message there that asks. Empty: it is not delivered yet.
        at: The time when it was asked.
        expires_at: The time until which an answer counts. Empty: without limit.
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
    """Workers that messages wake: their setup, and their sessions. For the store's owner only.

    Attributes:
        registry: The agents, places, wirings, sessions and questions, and the commands that a
            person approved on this machine.
    """

    registry: Registry

    def __init__(self, store: CoreStore) -> None:
        if store.agent is not None:
            raise Refused(f"only the store's owner may see sessions, not {store.agent}", path="")
        self._store = store
        self._engine = store.engine
        self.registry = Registry(store.engine)

    # -- Agents ------------------------------------------------------------------------------------

    def agent(self, name: str) -> AgentSetup:
        """Return the setup of an agent.

        Args:
            name: Its id, its name, or `name@project`.

        Raises NotFound, InvalidInput. Cost: reading the registry, and a look at each agent for a
        name.
        """
        agents = self.registry.read().agents
        id = name
        if name not in agents:
            id = self._store.inner.object_of(StoreAgents).directory.resolve(name, None)
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
        """Set up how an agent answers. An argument that is None changes nothing.

        An agent that does not exist is registered.

        Args:
            name: The agent, as in `agent`.
            command: The words of its command. This call approves them for this machine.
            folder: The working directory of the command.
            provider: The name of the program behind the command, for people.
            settings: New values for `idleS`, `limitS` (seconds), `maxHops` and `timeZone`.

        Raises InvalidInput, InvalidDocument. Cost: writing some small files.
        """
        agents = self._store.inner.object_of(Agents)
        id = agents.identity(name)
        if id not in agents.names():
            agents.register(id)
        changes: dict[str, Any] = {}
        if command is not None:
            changes["command"] = tuple(command)
        if folder is not None:
            changes["folder"] = folder
        if provider is not None:
            changes["provider"] = provider
        old_setup = self.registry.read().agents.get(id, AgentSetup(id))
        was_approved = self.registry.is_approved(old_setup)
        if command is not None and not was_approved:
            # A folder that a clone brought is not approved together with the command.
            changes.setdefault("folder", "")

        def change(registry_state: RegistryState) -> RegistryState:
            agent_setup = registry_state.agents.get(id, AgentSetup(id))
            new_settings = {**agent_setup.settings, **(settings or {})}
            return registry_state.put(replace(agent_setup, **changes, settings=new_settings))

        new_setup = self.registry.edit(change).agents[id]
        if command is not None or was_approved:
            self.registry.approve(new_setup)
        return new_setup

    # -- Places ------------------------------------------------------------------------------------

    def wire(self, place: str, agent: str, **fields: Any) -> Wiring:
        """Let an agent answer in a place. An earlier wiring of the two is replaced.

        Args:
            place: A conversation or a channel of which the agent is a member, another agent (for
                the direct of the two), or `channel:place`.
            agent: The agent, as in `agent`.
            fields: The other fields of a `Wiring`.

        Raises NotFound. InvalidInput: also if the agent gets no messages there. Cost: writing a
        small file.
        """
        id = self.agent(agent).name
        channel, place_id, _ = place_of(self._store, place, id)
        ensure_receives(self._store, channel, place_id, id)
        wiring = Wiring(channel=channel, place=place_id, agent=id, **fields)
        return self.registry.edit(lambda registry_state: registry_state.put(wiring)).wirings[
            wiring.id
        ]

    def unwire(self, place: str, agent: str) -> None:
        """Remove the wiring of an agent in a place.

        Args:
            place, agent: As `wire` takes them.

        Raises NotFound, InvalidInput. Cost: writing a small file.
        """
        id = self.agent(agent).name
        channel, place_id, _ = place_of(self._store, place, id)
        wiring = Wiring(channel=channel, place=place_id, agent=id)
        if wiring.id not in self.registry.read().wirings:
            raise NotFound(f"{wiring.agent} is not wired to {place}", id=wiring.id)
        self.registry.edit(lambda registry_state: registry_state.without(wiring))

    def allow(self, agent: str, place: str, *, title: str | None = None) -> str:
        """Let an agent send to a place by itself.

        Args:
            agent: The agent, as in `agent`.
            place: As `wire` takes it.
            title: The text from which the agent's name for the place is made. None: the name that
                people have for it.

        Returns:
            The name by which the agent calls the place.

        Raises NotFound, InvalidInput. Cost: writing a small file.
        """
        id = self.agent(agent).name
        channel, place_id, place_title = place_of(self._store, place, id)
        route = events.Route(channel, place_id)
        name = ""

        def change(registry_state: RegistryState) -> RegistryState:
            nonlocal name
            agent_setup, name = messages.allow_destination(
                registry_state.agents[id], route, title or place_title
            )
            return registry_state.put(agent_setup)

        self.registry.edit(change)
        return name

    def forbid(self, agent: str, name: str) -> None:
        """Stop an agent from sending to a place by itself. It may still answer messages from there.

        Args:
            agent: The agent, as in `agent`.
            name: The name by which the agent calls the place, or the place, as `wire` takes it.

        Raises NotFound, InvalidInput. Cost: writing a small file.
        """
        agent_setup = self.agent(agent)
        destination = name
        if name not in agent_setup.destinations:
            with suppress(NotFound):
                channel, place_id, _ = place_of(self._store, name, agent_setup.name)
                route = events.Route(channel, place_id)
                for destination_name, entry in agent_setup.destinations.items():
                    if events.Route.from_json(entry) == route:
                        destination = destination_name
                        break

        def change(registry_state: RegistryState) -> RegistryState:
            current_setup = registry_state.agents[agent_setup.name]
            return registry_state.put(messages.forbid_destination(current_setup, destination))

        self.registry.edit(change)

    @property
    def webhooks(self) -> Webhooks:
        """The webhooks of this machine, with their secrets."""
        from capsule.sessions.adapters.programs import Webhooks

        return Webhooks(self._engine.local)

    # -- Sessions ----------------------------------------------------------------------------------

    def list(self, agent: str | None = None) -> Sequence[SessionRecord]:
        """List the sessions, the last active first.

        Args:
            agent: Only the sessions of this agent.

        Raises InvalidDocument. Cost: reading the registry if it changed, and a look at each
        process.
        """
        running_ids = {
            fields.get("session") for fields in self._engine.leases.live_instances().values()
        }
        records = [
            replace(record, worker="running" if record.id in running_ids else "stopped")
            for record in self.registry.read().sessions.values()
            if agent in (None, record.agent)
        ]
        return sorted(records, key=lambda record: record.last_active, reverse=True)

    def get(self, session: str) -> dict[str, Any]:
        """Return what the registry and the files have of a session, as JSON.

        Args:
            session: Its id, or a unique beginning of it.

        Returns:
            The fields of its `SessionRecord`, and besides: `messages` (the number of inbound
            messages by status: pending, processing, released, completed, failed and cancelled),
            `undelivered` (the number of outbound messages), `failures` (by sender, `from`: how many
            of its messages ever `failed`, and about how many of these it was `told`; an empty
            `from` is the host), `nextAt` (the time when work is due), `paused` (series; an empty
            one is the whole session), `series` (their next messages), `destinations` and `state`
            (the values that its workers keep, by provider and key).

        Raises NotFound, InvalidInput, InvalidDocument. Cost: reading both files.
        """
        record = self._find_session(session)
        now = timestamps.now()
        session_state = Session(self._engine, record.id).read()
        inbound, outbound = session_state
        heads = schedules.live_occurrences(session_state)
        return {json_name(name): value for name, value in asdict(record).items()} | {
            "messages": dict(Counter(session_state.status(id) for id in inbound.messages)),
            "undelivered": len(list(session_state.undelivered_messages())),
            "failures": [
                {"from": sender, "failed": counts.failed, "told": counts.notified}
                for sender, counts in inbound.failures.items()
            ],
            "nextAt": messages.next_due(session_state, now) or "",
            "paused": sorted(inbound.paused),
            "series": {
                series: {name: head.event.get(name) for name in _SERIES_FIELDS}
                for series, head in heads.items()
            },
            "destinations": inbound.destinations,
            "state": outbound.state,
        }

    def history(self, session: str, limit: int = 200) -> Sequence[events.Event]:
        """List the events of a session, the latest last.

        Args:
            session: As `get` takes it.
            limit: The largest number of events.

        Returns:
            The last events of both files in the order of time. A message for the worker also has
            its `status`: pending, processing, released, completed, failed or cancelled.

        Raises NotFound, InvalidInput, InvalidDocument. Cost: reading both files.
        """
        id = self._find_session(session).id
        session_state = Session(self._engine, id).read()
        all_events = [
            event
            for kind in (INBOUND, OUTBOUND)
            for event in self._engine.document(kind, id)["history"]
        ]
        all_events.sort(key=lambda event: str(event.get("timestamp") or ""))
        history = []
        for event in all_events[-limit:]:
            if event.get("id") in session_state.inbound.messages:
                history.append(event | {"status": session_state.status(event["id"])})
            else:
                history.append(event)
        return history

    def questions(self) -> Sequence[PendingQuestion]:
        """List the open questions of agents to people, oldest first.

        Raises InvalidDocument. Cost: reading the registry if it changed, and both files of the
        sessions that ask.
        """
        registry_state = self.registry.read()
        now = timestamps.now()
        pending_questions = [
            self._pending_question(question, registry_state.sessions[question.session])
            for question in registry_state.questions.values()
            if questions.is_open(question, now) and question.session in registry_state.sessions
        ]
        return sorted(pending_questions, key=lambda question: question.at)

    def _pending_question(self, question: Question, record: SessionRecord) -> PendingQuestion:
        """Return an open question, with the text and the time of the message that asks it."""
        inbound, outbound = Session(self._engine, question.session).read()
        message = outbound.messages.get(question.message)
        event: events.Event = message.event if message is not None else {}
        conversation = ""
        delivered_message = ""
        if question.route.get("channel") == messages.CONVERSATIONS:
            conversation = question.route.get("place", "")
            delivered_message = inbound.delivered.get(question.message, "")
        return PendingQuestion(
            id=question.id,
            agent=record.agent,
            session=question.session,
            text=event.get("content", ""),
            options=question.options,
            conversation=conversation,
            message=delivered_message,
            at=event.get("timestamp", ""),
            expires_at=question.expires_at,
        )

    def why(self, message: str) -> Sequence[MessageStep]:
        """Trace a message through the files of all sessions, in the order of time.

        Args:
            message: Its id. The id of an answer traces the message that it answers.

        Raises NotFound if no session has it, and InvalidDocument. Cost: reading the files of all
        sessions.
        """
        sessions = []
        for record in [*self.list(), SessionRecord(UNSERVED, "")]:
            session_events = self._events_of_session(record, message)
            if session_events is not None:
                sessions.append(session_events)
        steps = trace_message(message, sessions)
        if not steps:
            raise NotFound(
                f"no session has message {message[:80]!r}: it is old, or was for no worker",
                id=message,
            )
        return steps

    def _events_of_session(self, record: SessionRecord, message: str) -> SessionEvents | None:
        """Return the events of a session if one of its files has the id of a message. None: none
        has.

        Events with wrong fields are left out.
        """
        encoded_id = message.encode("utf-8", "surrogatepass")
        kinds = (OUTBOUND, INBOUND)  # In this order, because acks leave after their messages.
        try:
            if not any(encoded_id in self._engine.read(kind, record.id) for kind in kinds):
                return None
            outbound, inbound = (
                self._engine.document(kind, record.id)["history"] for kind in kinds
            )
        except NotFound:
            return None
        return SessionEvents(
            session=record.id,
            agent=record.agent,
            inbound=[event for event in inbound if not InboundState.has_wrong_fields(event)],
            outbound=[event for event in outbound if not OutboundState.has_wrong_fields(event)],
        )

    def compact(self) -> None:
        """Remove finished messages from the files of all sessions, with their texts and files. From
        the registry, remove the texts of closed questions and the titles of conversations. A
        damaged file stays unchanged.

        Raises StoreBusy, Refused, StorageFailed. Cost: rewriting both files of each session.
        """
        for id in self._engine.ids(INBOUND):
            with suppress(InvalidDocument, NotFound):
                Session(self._engine, id).compact(timestamps.now())
        with suppress(InvalidDocument):
            registry_state = self.registry.read()
            if _without_texts(registry_state) != registry_state:
                self.registry.edit(_without_texts)

    # -- Commands of a person ----------------------------------------------------------------------

    def pause(self, session: str, *, series: str | None = None) -> str:
        """Pause a session, or one of its series, until `resume`. New messages wait.

        Args:
            session: Its id, or a unique beginning of it.
            series: The series. None: the whole session.

        Returns:
            The session's id.

        Raises NotFound, InvalidInput, StoreBusy. Cost: appending to its file.
        """
        return self._pause_or_resume(session, series, events.paused_event(series=series), "paused")

    def resume(self, session: str, *, series: str | None = None) -> str:
        """Resume a session, or one of its series.

        Args:
            session, series: As `pause` takes them.

        Returns:
            The session's id.

        Raises NotFound, InvalidInput, StoreBusy. Cost: appending to its file.
        """
        return self._pause_or_resume(session, series, events.resumed_event(series=series), "active")

    def _pause_or_resume(
        self,
        session: str,
        series: str | None,
        event: events.Event,
        status: Literal["paused", "active"],
    ) -> str:
        """Write an event for a session or a series, and record the status of a session."""
        record = self._find_session(session)
        target = Session(self._engine, record.id)
        session_state = target.read()
        if series is not None and series not in schedules.live_occurrences(session_state):
            raise NotFound(f"session {record.id} has no series {series[:80]!r}", id=series)
        target.write_inbound(lambda session_state: [event])
        if series is None:
            self._set_status(record, status)
        return record.id

    def retry(self, message: str) -> Sequence[str]:
        """Retry a message now that failed or waits for its next try, or deliver an undelivered
        answer again.

        Args:
            message: Its id.

        Returns:
            The ids of its sessions.

        Raises NotFound. InvalidInput: it is answered, cancelled, delivered, or being answered.
        Cost: as `why`.
        """
        now = timestamps.now()
        return self._write_to_sessions_of(
            message, lambda session_state: messages.retry_by_hand(session_state, [message], now)
        )

    def cancel(self, id: str) -> Sequence[str]:
        """Cancel a message that is not answered or not delivered, end a series, withdraw a
        question, or close a session and cancel everything that waits in it.

        Args:
            id: The message, the series, the question, or the session.

        Returns:
            The ids of the sessions.

        Raises NotFound. InvalidInput: the message is answered, failed or cancelled, the question is
        answered or its time is over, or the series is over. Cost: as `why`.
        """
        registry_state = self.registry.read()
        if id in registry_state.questions:
            now = timestamps.now()
            ((session, question_events),) = self.registry.decide(
                lambda current_state: questions.cancel_question(current_state, id, now)
            )
            Session(self._engine, session).write_inbound(
                partial(questions.events_for_session, events=question_events)
            )
            return [session]
        if id in registry_state.sessions:
            self._set_status(self._find_session(id), "closed")
            Session(self._engine, id).write_inbound(_cancel_unfinished)
            return [id]
        return self._write_to_sessions_of(id, partial(_cancel_message_or_series, id=id))

    def _write_to_sessions_of(self, id: str, rule: EventRule) -> Sequence[str]:
        """Write the events of a rule into each session that has a message or a series.

        Returns:
            The ids of the sessions.

        Raises the error of the first session, if all raise one, and NotFound if no session has it.
        """
        written_ids = []
        errors = list[CapsuleError]()
        for record in self.list():
            target = Session(self._engine, record.id)
            try:
                inbound, outbound = target.read()
                if id in inbound.messages or id in inbound.series or id in outbound.messages:
                    target.write_inbound(rule)
                    written_ids.append(record.id)
            except (InvalidInput, NotFound) as error:
                errors.append(error)
        if written_ids:
            return written_ids
        if errors:
            raise errors[0]
        raise NotFound(f"no session has message {id[:80]!r}", id=id)

    def _find_session(self, text: str) -> SessionRecord:
        """Return the session whose id is a text, or begins with it.

        Raises NotFound, InvalidInput.
        """
        records = self.registry.read().sessions
        if text in records:
            return records[text]
        ids = [id for id in records if text and id.startswith(text)]
        if not ids:
            raise NotFound(f"there is no session {text[:80]!r}", id=text)
        if len(ids) > 1:
            raise InvalidInput(f"{text[:80]!r} may be several sessions: {', '.join(ids)}")
        return records[ids[0]]

    def _set_status(
        self, record: SessionRecord, status: Literal["paused", "active", "closed"]
    ) -> None:
        self.registry.edit(
            lambda registry_state: registry_state.put(
                replace(registry_state.sessions[record.id], status=status)
            )
        )


def _cancel_message_or_series(session_state: SessionState, id: str) -> list[events.Event]:
    """Return the event that cancels a message or ends a series. Raises InvalidInput if it is over."""
    session = session_state.session
    if id in session_state.inbound.series:
        head = schedules.live_occurrences(session_state).get(id)
        if head is None:
            raise InvalidInput(f"series {id} in session {session} is over", id=id)
        return [events.cancelled_event(messages=[head.id])]
    if id in session_state.outbound.messages:
        if not messages.is_undelivered(session_state, id):
            raise InvalidInput(
                f"message {id} in session {session} is delivered or cancelled", id=id
            )
    else:
        status = session_state.status(id)
        if status in FINAL:
            raise InvalidInput(f"message {id} in session {session} is {status}", id=id)
    return [events.cancelled_event(messages=[id])]


def _cancel_unfinished(session_state: SessionState) -> list[events.Event]:
    """Return the event that cancels all unfinished messages for the worker. Nothing: none is."""
    ids = [message.id for message in session_state.unfinished_messages()]
    return [events.cancelled_event(messages=ids)] if ids else []


def _without_texts(registry_state: RegistryState) -> RegistryState:
    """Return the registry without the texts of closed questions, and without the titles of
    conversations, which may have other titles now.
    """
    untitled = [
        replace(place, name="")
        for place in registry_state.places.values()
        if place.channel == messages.CONVERSATIONS
    ]
    return questions.without_texts(registry_state).put(*untitled)
