"""The rules of outbound messages: where an agent may send, and when a message is delivered again.

A destination is a place to which an agent may send by itself, under a name. The registry has the
destinations of each agent, and the inbound file of a session has a copy, which is renewed before
anything is delivered. A message to no destination is an answer: it goes where the answered message
came from. A failed delivery is tried again with growing pauses, and is given up after `ATTEMPTS`
attempts. Then the worker gets a message about it, with the next message that wakes it.

What must stay true:
- The destinations are the permission. Except for answers, nothing goes to a place that is not
  among them at the time of the delivery.
- Everything that writes for a session stays within `writable_conversations`.

No file, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from capsule.errors import NotFound, Refused
from capsule.ids import slug
from capsule.sessions.cron import next_at
from capsule.sessions.events import (
    Event,
    Route,
    attempt_event,
    delivered_event,
    destinations_event,
    inbound_message,
    outbound_message,
    reply_id,
    undeliverable_event,
)
from capsule.sessions.registry import AgentSetup, RegistryState, SessionRecord
from capsule.sessions.rules.messages import add_seconds, next_seq
from capsule.sessions.session_state import (
    DeliveryAttempts,
    InboundMessage,
    OutboundMessage,
    SessionState,
)

#: The channel of the conversations of the store.
CONVERSATIONS = "conversations"
#: How often a delivery is tried.
ATTEMPTS = 3
#: Seconds from the first attempt to the second. Each further pause is twice as long.
FIRST_WAIT_S = 5


# -- Destinations ----------------------------------------------------------------------------------


def allow_destination(
    agent_setup: AgentSetup, route: Route, title: str = ""
) -> tuple[AgentSetup, str]:
    """Let an agent send to a place.

    Args:
        agent_setup: The agent.
        route: The place, with a thread if the agent may only send there.
        title: The name that people have for the place. Empty: its id.

    Returns:
        The agent with the destination, and the name of the destination. A place that was allowed
        before keeps its name. A new name is made of the title, with `-2`, `-3` and so on if it is
        taken.
    """
    for name, entry in agent_setup.destinations.items():
        if Route.from_json(entry) == route:
            return agent_setup, name
    base_name = slug(title or route.place) or "unnamed"
    candidates = (base_name if number == 1 else f"{base_name}-{number}" for number in count(1))
    new_name = next(name for name in candidates if name not in agent_setup.destinations)
    new_entry = route.as_json() | {"title": title or route.place}
    destinations = {**agent_setup.destinations, new_name: new_entry}
    return replace(agent_setup, destinations=destinations), new_name


def forbid_destination(agent_setup: AgentSetup, name: str) -> AgentSetup:
    """Remove a destination of an agent. Raises NotFound, which lists the existing names."""
    if name not in agent_setup.destinations:
        names = ", ".join(sorted(agent_setup.destinations)) or "none yet"
        raise NotFound(
            f"{agent_setup.name} has no destination {name[:80]!r}; it has: {names}", id=name
        )
    destinations = {key: entry for key, entry in agent_setup.destinations.items() if key != name}
    return replace(agent_setup, destinations=destinations)


def update_destinations(
    session_state: SessionState, registry_state: RegistryState, record: SessionRecord
) -> list[Event]:
    """Return the event that gives a session the destinations of its agent. Nothing: it has them.

    An entry without a place is left out.
    """
    agent_setup = registry_state.agents.get(record.agent)
    destinations = {}
    if agent_setup is not None:
        for name, entry in agent_setup.destinations.items():
            if Route.from_json(entry):
                destinations[name] = dict(entry)
    if destinations == session_state.inbound.destinations:
        return []
    return [destinations_event(destinations=destinations)]


def writable_conversations(session_state: SessionState) -> frozenset[str]:
    """Return the conversations that an agent may write to in a session.

    These are its destinations, the origins of the messages that it answers now, and the origin of
    the last message that woke it.
    """
    inbound, outbound = session_state
    routes = [*map(Route.from_json, inbound.destinations.values()), inbound.route]
    for id in outbound.claims:
        if id in inbound.messages and session_state.status(id) == "processing":
            routes.append(inbound.messages[id].route)
    return frozenset(route.place for route in routes if route and route.channel == CONVERSATIONS)


# -- Deliveries ------------------------------------------------------------------------------------


def number_replies(session_state: SessionState, messages: Iterable[Event]) -> list[Event]:
    """Return the messages of the worker that the session does not have yet, numbered.

    Raises Refused if one goes to a name that is not a destination.
    """
    inbound, outbound = session_state
    highest_seq = session_state.highest_seq
    new_messages = dict[str, Event]()
    for message in messages:
        id = message["id"]
        destination = message.get("to")
        if destination is not None and destination not in inbound.destinations:
            raise _unknown_destination(session_state, destination)
        if id in outbound.messages or id in outbound.compacted_routes or id in new_messages:
            continue
        highest_seq = next_seq(highest_seq, "worker")
        new_messages[id] = message | {"seq": highest_seq}
    return list(new_messages.values())


def due_deliveries(session_state: SessionState, now: str) -> list[OutboundMessage]:
    """Return the messages to deliver now, in their common order: of the worker, and the host's
    notices.
    """
    messages = [message for message, due in _deliveries(session_state, now) if due <= now]
    return sorted(messages, key=lambda message: message.seq)


def next_delivery(session_state: SessionState, now: str) -> str | None:
    """Return the time of the next delivery: `now` or later. None: nothing is left to deliver."""
    return min((max(due, now) for _, due in _deliveries(session_state, now)), default=None)


def _deliveries(session_state: SessionState, now: str) -> Iterator[tuple[OutboundMessage, str]]:
    """Yield the undelivered messages, each with the time when it becomes due.

    A change of a message waits for the delivery of that message. A retry whose time is too far away
    is due at once: the system clock was set back meanwhile.
    """
    attempts = session_state.inbound.attempts
    unfinished_ids = session_state.outbound.unfinished_ids
    for message in (*_notices(session_state), *session_state.undelivered_messages()):
        target_was_delivered = _round(session_state, message.target) > 0
        if message.target in unfinished_ids and not target_was_delivered:
            continue
        attempt = attempts.get(message.id, DeliveryAttempts(next_at=message.due))
        if attempt.failed and attempt.next_at > add_seconds(now, FIRST_WAIT_S * 2**ATTEMPTS):
            yield message, ""
        else:
            yield message, attempt.next_at


def _round(session_state: SessionState, id: str) -> int:
    """Return how many occurrences of a message were delivered or given up."""
    return session_state.inbound.attempts.get(id, DeliveryAttempts()).round


def _notices(session_state: SessionState) -> Iterator[OutboundMessage]:
    """Yield the host's notices to the senders of failed messages."""
    for id, notice in session_state.notices().items():
        messages = [session_state.inbound.messages[message_id] for message_id in notice.messages]
        first_message = messages[0]
        event = outbound_message(
            id=id,
            kind="system",
            content=_notice_text(messages, notice.reason),
            in_reply_to=first_message.id,
            hops=1 + max(message.event.get("hops", 0) for message in messages),
        )
        yield OutboundMessage.from_event(event | {"seq": first_message.seq})


def _notice_text(messages: Sequence[InboundMessage], reason: str) -> str:
    """Return the text of a notice: what failed, why, and how to retry it."""
    if messages[0].kind == "system":  # A late answer to a question: a retry changes nothing.
        return f"This answer does not count: {reason}."
    subject = "This message was"
    if len(messages) > 1:
        subject = f"{len(messages)} messages were"
    commands = "\n".join(f"capsule worker retry {message.id}" for message in messages)
    return (
        f"{subject} not answered: {reason}.\nSend again, or ask a person of this store to "
        f"run:\n{commands}"
    )


def delivery_id(session_state: SessionState, message: OutboundMessage) -> str:
    """Return the id under which a message is delivered once: its own, or its occurrence's."""
    finished_rounds = _round(session_state, message.id)
    if finished_rounds == 0:
        return message.id
    return reply_id(session_state.session, message.id, f"occurrence {finished_rounds}")


def route_of(session_state: SessionState, message: OutboundMessage) -> Route:
    """Return where a message goes: to its destination, or else to the origin of the message that it
    answers, or else to the default route.

    Raises Refused if none of them exists, or its name is not a destination.
    """
    destination = message.event.get("to")
    if destination is not None:
        route = Route.from_json(session_state.inbound.destinations.get(destination))
        if route is None:
            raise _unknown_destination(session_state, destination)
    else:
        answered = session_state.inbound.messages.get(message.in_reply_to)
        route = answered.route if answered else None
        route = route or session_state.inbound.route
    if route is None:
        raise Refused(
            f"message {message.id} answers nobody, and session {session_state.session} has no "
            "default route"
        )
    return replace(route, thread=message.event.get("thread") or route.thread)


def _unknown_destination(session_state: SessionState, to: str) -> Refused:
    names = ", ".join(sorted(session_state.inbound.destinations)) or "no one"
    return Refused(
        f"{to!r} is not a destination of session {session_state.session}; it may write to {names}"
    )


def after_attempt(
    session_state: SessionState,
    message: OutboundMessage,
    now: str,
    *,
    platform_id: str = "",
    error: str = "",
    is_final: bool = False,
) -> list[Event]:
    """Return the events that record an attempt to deliver a message, for `messages.numbered`.

    Args:
        session_state: The session.
        message: The message.
        now: The time.
        platform_id: The id that the message got at its destination.
        error: Why it was not delivered. Empty: it was.
        is_final: Whether no further attempt can succeed.
    """
    recurrence = message.event.get("recurrence")
    next_occurrence = next_at(recurrence, now) if recurrence else None
    if not error:
        return [
            delivered_event(message=message.id, platform_id=platform_id, next_at=next_occurrence)
        ]
    attempts = session_state.inbound.attempts.get(message.id, DeliveryAttempts()).failed + 1
    if attempts < ATTEMPTS and not is_final:
        retry_at = add_seconds(now, FIRST_WAIT_S * 2 ** (attempts - 1))
        return [
            attempt_event(message=message.id, attempts=attempts, reason=error, next_at=retry_at)
        ]
    undeliverable = undeliverable_event(message=message.id, reason=error, next_at=next_occurrence)
    if message.id in session_state.inbound.notices:
        return [undeliverable]  # It is the host's own, so the worker needs no message about it.
    message_id = delivery_id(session_state, message)
    answered = session_state.inbound.messages.get(message.in_reply_to)
    notice = inbound_message(
        id=reply_id(session_state.session, message_id, f"undeliverable: {error}"),
        content=f"Your message {message_id} was not delivered: {error}",
        trigger="accumulate",
        # So the worker gets it with the next message from the same place.
        route=answered.route if answered else session_state.inbound.route,
    )
    return [notice, undeliverable]
