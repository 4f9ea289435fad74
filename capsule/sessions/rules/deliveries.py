"""The rules of messages out: how they are numbered and said once, where they go, when they are
delivered again.

What must stay true: nothing goes where the map of destinations does not lead, but for an answer,
which goes where its message came from; and the map counts as it is at the delivery. No file, no
clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from capsule.errors import Refused
from capsule.sessions.cron import next_at
from capsule.sessions.events import (
    Event,
    Route,
    attempt,
    delivered,
    incoming,
    outgoing,
    reply_id,
    undeliverable,
)
from capsule.sessions.folds import Folds
from capsule.sessions.inbound import Attempts, InMessage
from capsule.sessions.outbound import OutMessage
from capsule.sessions.rules.messages import later, next_seq

#: How often a delivery is tried, and the seconds before the second time; before the third twice as
#: many.
ATTEMPTS = 3
FIRST_WAIT_S = 5


def send(folds: Folds, messages: Iterable[Event]) -> list[Event]:
    """Number messages of the worker, without those that it said before.

    Raises Refused: one goes to a name that is not in the map.
    """
    highest, new = folds.highest, dict[str, Event]()
    for message in messages:
        id, to = message["id"], message.get("to")
        if to is not None and to not in folds.inbound.destinations:
            raise _unknown(folds, to)
        if id not in folds.outbound.messages and id not in folds.outbound.said and id not in new:
            highest = next_seq(highest, "worker")
            new[id] = message | {"seq": highest}
    return list(new.values())


def due_out(folds: Folds, now: str) -> list[OutMessage]:
    """What is to be delivered now, in the order of both files: messages of the worker, and notices
    of the host.
    """
    due = [message for message, at in _deliveries(folds, now) if at <= now]
    return sorted(due, key=lambda message: message.seq)


def next_delivery(folds: Folds, now: str) -> str | None:
    """When something is to be delivered: `now`, or later; None: nothing is left."""
    return min((max(at, now) for _, at in _deliveries(folds, now)), default=None)


def _deliveries(folds: Folds, now: str) -> Iterator[tuple[OutMessage, str]]:
    """What is not delivered, with the time from which on it is due: at once if the clock went back
    while it waited.

    A change waits for the message that it changes.
    """
    for message in (*_notices(folds), *folds.undelivered()):
        tried = folds.inbound.attempts.get(message.id, Attempts(next_at=message.due))
        if (
            message.target not in folds.outbound.open
            or folds.inbound.attempts.get(message.target, Attempts()).round
        ):
            is_early = tried.failed and tried.next_at > later(now, FIRST_WAIT_S * 2**ATTEMPTS)
            yield message, "" if is_early else tried.next_at


def _notices(folds: Folds) -> Iterator[OutMessage]:
    """What the host tells the senders of messages that failed, unless an answer came after all."""
    for id, notice in folds.notices().items():
        messages = [folds.inbound.messages[message] for message in notice.messages]
        first = messages[0]
        hops = 1 + max(message.event.get("hops", 0) for message in messages)
        text = _notice_text(messages, notice.reason)
        said = outgoing(id=id, kind="system", content=text, in_reply_to=first.id, hops=hops)
        yield OutMessage.of(said | {"seq": first.seq})


def _notice_text(messages: Sequence[InMessage], reason: str) -> str:
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


def delivery_id(folds: Folds, message: OutMessage) -> str:
    """The id under which a message is delivered once: its own, or that of its occurrence."""
    done = folds.inbound.attempts.get(message.id, Attempts()).round
    return reply_id(folds.session, message.id, f"occurrence {done}") if done else message.id


def route_of(folds: Folds, message: OutMessage) -> Route:
    """Where a message goes: to its destination, else where the message that it answers came from,
    else by default.

    Raises Refused: nowhere, or to a name that is not in the map.
    """
    to, answered = message.event.get("to"), folds.inbound.messages.get(message.in_reply_to)
    if to is not None:
        route = Route.of(folds.inbound.destinations.get(to))
        if route is None:
            raise _unknown(folds, to)
    else:
        route = answered.route if answered and answered.route else folds.inbound.route
    if route is None:
        raise Refused(
            f"message {message.id} answers nobody, and session {folds.session} has no default route"
        )
    return replace(route, thread=message.event.get("thread") or route.thread)


def _unknown(folds: Folds, to: str) -> Refused:
    names = ", ".join(sorted(folds.inbound.destinations)) or "no one"
    return Refused(f"{to!r} is no destination of session {folds.session}; it may write to {names}")


def after_attempt(
    folds: Folds,
    message: OutMessage,
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
        return [delivered(message=message.id, platform_id=platform_id, next_at=following)]
    tried = folds.inbound.attempts.get(message.id, Attempts()).failed + 1
    if tried < ATTEMPTS and not is_final:
        again = later(now, FIRST_WAIT_S * 2 ** (tried - 1))
        return [attempt(message=message.id, attempts=tried, reason=error, next_at=again)]
    gave_up = undeliverable(message=message.id, reason=error, next_at=following)
    if message.id in folds.inbound.notices:  # The host's own, of which the worker knows nothing.
        return [gave_up]
    text = f"Your message {delivery_id(folds, message)} was not delivered: {error}"
    id = reply_id(folds.session, delivery_id(folds, message), f"undeliverable: {error}")
    # The worker learns of it with the next message from where the answered one came.
    answered = folds.inbound.messages.get(message.in_reply_to)
    back = answered.route if answered else folds.inbound.route
    notice = incoming(id=id, content=text, trigger="accumulate", route=back)
    return [notice, gave_up]


def _next_at(message: OutMessage, now: str) -> str | None:
    """When a message recurs; None: it does not."""
    recurrence = message.event.get("recurrence")
    return next_at(recurrence, now) if recurrence else None
