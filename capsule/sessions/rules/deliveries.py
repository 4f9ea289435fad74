"""Destinations: where an agent may send by itself, by name.

What must stay true: the map of names is the permission. It stands in the registry, and a session's
inbound file has a copy, which is renewed before anything is delivered. Whatever writes for a
session stays within `writable_conversations`. No file, no clock.

[joined: deliveries] The rules of messages out: how they are numbered and said once, where they go,
when they are delivered again.

What must stay true: nothing goes where the map of destinations does not lead, but for an answer,
which goes where its message came from; and the map counts as it is at the delivery. No file, no
clock.
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


def allow_destination(group: AgentSetup, route: Route, title: str = "") -> tuple[AgentSetup, str]:
    """Let an agent send to a place.

    Args:
        group: The agent.
        route: The place, and a thread there if need be.
        title: What people call it; empty: as the place.

    Returns:
        The agent with the destination, and its name: that which it had, if it was allowed before,
        else one made of the title; one that is taken gets `-2`, then `-3`.
    """
    for name, entry in group.destinations.items():
        if Route.of(entry) == route:
            return group, name
    plain = slug(title or route.place) or "unnamed"
    names = (plain if number == 1 else f"{plain}-{number}" for number in count(1))
    name = next(name for name in names if name not in group.destinations)
    entry = route.as_json() | {"title": title or route.place}
    return replace(group, destinations={**group.destinations, name: entry}), name


def forbid_destination(group: AgentSetup, name: str) -> AgentSetup:
    """Take a destination away. Raises NotFound, which lists those there are."""
    if name not in group.destinations:
        names = ", ".join(sorted(group.destinations)) or "none yet"
        raise NotFound(f"{group.name} has no destination {name[:80]!r}; it has: {names}", id=name)
    return replace(
        group, destinations={key: entry for key, entry in group.destinations.items() if key != name}
    )


def update_destinations(
    session_state: SessionState, state: RegistryState, row: SessionRecord
) -> list[Event]:
    """The event that gives a session the map of its agent; nothing if it has that. An entry without
    a place is left.
    """
    group = state.agents.get(row.agent)
    named = {
        name: dict(entry)
        for name, entry in (group.destinations if group else {}).items()
        if Route.of(entry)
    }
    return (
        []
        if named == session_state.inbound.destinations
        else [destinations_event(destinations=named)]
    )


def writable_conversations(session_state: SessionState) -> frozenset[str]:
    """The conversations that an agent may write to in a session: its destinations, and where the
    messages came from that it answers now, or the last one that woke it."""
    there, claims = session_state.inbound.messages, session_state.outbound.claims
    answered = (
        there[id].route for id in claims if id in there and session_state.status(id) == "processing"
    )
    routes = [
        *map(Route.of, session_state.inbound.destinations.values()),
        session_state.inbound.route,
        *answered,
    ]
    return frozenset(route.place for route in routes if route and route.channel == CONVERSATIONS)


#: How often a delivery is tried, and the seconds before the second time; before the third twice as
#: many.
ATTEMPTS = 3
FIRST_WAIT_S = 5


def number_replies(session_state: SessionState, messages: Iterable[Event]) -> list[Event]:
    """Number messages of the worker, without those that it said before.

    Raises Refused: one goes to a name that is not in the map.
    """
    highest, new = session_state.highest_seq, dict[str, Event]()
    for message in messages:
        id, to = message["id"], message.get("to")
        if to is not None and to not in session_state.inbound.destinations:
            raise _unknown_destination(session_state, to)
        if (
            id not in session_state.outbound.messages
            and id not in session_state.outbound.compacted_routes
            and id not in new
        ):
            highest = next_seq(highest, "worker")
            new[id] = message | {"seq": highest}
    return list(new.values())


def due_deliveries(session_state: SessionState, now: str) -> list[OutboundMessage]:
    """What is to be delivered now, in the order of both files: messages of the worker, and notices
    of the host.
    """
    due = [message for message, at in _deliveries(session_state, now) if at <= now]
    return sorted(due, key=lambda message: message.seq)


def next_delivery(session_state: SessionState, now: str) -> str | None:
    """When something is to be delivered: `now`, or later; None: nothing is left."""
    return min((max(at, now) for _, at in _deliveries(session_state, now)), default=None)


def _deliveries(session_state: SessionState, now: str) -> Iterator[tuple[OutboundMessage, str]]:
    """What is not delivered, with the time from which on it is due: at once if the clock went back
    while it waited.

    A change waits for the message that it changes.
    """
    for message in (*_notices(session_state), *session_state.undelivered_messages()):
        tried = session_state.inbound.attempts.get(
            message.id, DeliveryAttempts(next_at=message.due)
        )
        if (
            message.target not in session_state.outbound.unfinished_ids
            or session_state.inbound.attempts.get(message.target, DeliveryAttempts()).round
        ):
            is_early = tried.failed and tried.next_at > add_seconds(now, FIRST_WAIT_S * 2**ATTEMPTS)
            yield message, "" if is_early else tried.next_at


def _notices(session_state: SessionState) -> Iterator[OutboundMessage]:
    """What the host tells the senders of messages that failed, unless an answer came after all."""
    for id, notice in session_state.notices().items():
        messages = [session_state.inbound.messages[message] for message in notice.messages]
        first = messages[0]
        hops = 1 + max(message.event.get("hops", 0) for message in messages)
        text = _notice_text(messages, notice.reason)
        said = outbound_message(id=id, kind="system", content=text, in_reply_to=first.id, hops=hops)
        yield OutboundMessage.of(said | {"seq": first.seq})


def _notice_text(messages: Sequence[InboundMessage], reason: str) -> str:
    if (
        messages[0].kind == "system"
    ):  # An answer to a question that is over: trying it again changes nothing.
        return f"This answer does not count: {reason}."
    what = "This message was" if len(messages) == 1 else f"{len(messages)} messages were"
    commands = "\n".join(f"capsule worker retry {message.id}" for message in messages)
    return (
        f"{what} not answered: {reason}.\nSend again, or ask a person of this store to "
        f"run:\n{commands}"
    )


def delivery_id(session_state: SessionState, message: OutboundMessage) -> str:
    """The id under which a message is delivered once: its own, or that of its occurrence."""
    done = session_state.inbound.attempts.get(message.id, DeliveryAttempts()).round
    return reply_id(session_state.session, message.id, f"occurrence {done}") if done else message.id


def route_of(session_state: SessionState, message: OutboundMessage) -> Route:
    """Where a message goes: to its destination, else where the message that it answers came from,
    else by default.

    Raises Refused: nowhere, or to a name that is not in the map.
    """
    to, answered = message.event.get("to"), session_state.inbound.messages.get(message.in_reply_to)
    if to is not None:
        route = Route.of(session_state.inbound.destinations.get(to))
        if route is None:
            raise _unknown_destination(session_state, to)
    else:
        route = answered.route if answered and answered.route else session_state.inbound.route
    if route is None:
        raise Refused(
            f"message {message.id} answers nobody, and session {session_state.session} has no default route"
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
    """What the host notes after it tried to deliver a message, for `messages.numbered`.

    Args:
        platform_id: The id that it got.
        error: Why it did not arrive; empty: it did.
        is_final: Whether it can't ever arrive, however often it is tried.
    """
    following = _next_at(message, now)
    if not error:
        return [delivered_event(message=message.id, platform_id=platform_id, next_at=following)]
    tried = session_state.inbound.attempts.get(message.id, DeliveryAttempts()).failed + 1
    if tried < ATTEMPTS and not is_final:
        again = add_seconds(now, FIRST_WAIT_S * 2 ** (tried - 1))
        return [attempt_event(message=message.id, attempts=tried, reason=error, next_at=again)]
    gave_up = undeliverable_event(message=message.id, reason=error, next_at=following)
    if (
        message.id in session_state.inbound.notices
    ):  # The host's own, of which the worker knows nothing.
        return [gave_up]
    text = f"Your message {delivery_id(session_state, message)} was not delivered: {error}"
    id = reply_id(
        session_state.session, delivery_id(session_state, message), f"undeliverable: {error}"
    )
    # The worker learns of it with the next message from where the answered one came.
    answered = session_state.inbound.messages.get(message.in_reply_to)
    back = answered.route if answered else session_state.inbound.route
    notice = inbound_message(id=id, content=text, trigger="accumulate", route=back)
    return [notice, gave_up]


def _next_at(message: OutboundMessage, now: str) -> str | None:
    """When a message recurs; None: it does not."""
    recurrence = message.event.get("recurrence")
    return next_at(recurrence, now) if recurrence else None
