"""The rules of messages: whom one wakes, how it is claimed, given back and retried, and where an agent
may send.

The host receives messages. For each agent that a message could be meant for, there is one decision:
it wakes the agent, accumulates in its session until another message wakes it, or is ignored. The
wiring of the agent in the place of the message decides, or a default wiring if it has none. A worker
picks the next batch and claims it. Then it answers, fails, or gives the batch back. The host retries
a batch that was given back, or whose worker died, and gives up after `RETRIES` retries. Each function
returns the events that carry its decision out. The caller appends them to the inbound file (host) or
the outbound file (worker).

A destination is a place to which an agent may send by itself, under a name. The registry has the
destinations of each agent, and the inbound file of a session has a copy, which is renewed before
anything is delivered. A message to no destination is an answer: it goes where the answered message
came from. A failed delivery is tried again with growing pauses, and is given up after `ATTEMPTS`
attempts. Then the worker gets a message about it, with the next message that wakes it.

What must stay true:
- A message that was answered is never picked again, whichever process dies at any time.
- A worker ends only its own claims. The host withdraws only claims of workers that are dead, or
  that gave the message back.
- Whom a message wakes depends only on the message, the registry, and whether a session was woken
  before. A message that may not wake an agent, because of its sender or its hops, does not accumulate
  either.
- The destinations are the permission. Except for answers, nothing goes to a place that is not
  among them at the time of the delivery. Everything that writes for a session stays within
  `writable_conversations`.

No file, no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from capsule import timestamps
from capsule.errors import InvalidInput, NotFound, Refused
from capsule.ids import slug
from capsule.sessions.events import (
    AckState,
    Event,
    Outcome,
    Route,
    ack_event,
    attempt_event,
    delivered_event,
    destinations_event,
    failed_event,
    inbound_message,
    next_at,
    outbound_message,
    reply_id,
    retry_event,
    undeliverable_event,
)
from capsule.sessions.registry import (
    MATCH_ALL,
    AgentSetup,
    RegistryState,
    SessionKey,
    SessionRecord,
    Wiring,
)
from capsule.sessions.session_state import (
    DeliveryAttempts,
    InboundMessage,
    MessageStatus,
    OutboundMessage,
    SessionState,
    digest,
)

if TYPE_CHECKING:
    from capsule.sessions.adapters.interface import ReceivedMessage


# -- Messages for a worker -------------------------------------------------------------------------

#: How often a message is retried.
RETRIES = 5
#: Seconds before the first retry. Each further pause is twice as long.
FIRST_RETRY_S = 5
#: Seconds without a heartbeat after which a worker is dead.
SILENT_S = 30 * 60
#: Seconds without a heartbeat since its claim after which a worker is dead.
STUCK_S = 60
#: The system keeps the times of files by ticks, so a heartbeat after a claim may seem to be this
#: much earlier than the claim.
GRAIN_MS = 1000
#: How many events a file may have if all its messages are finished.
MAX_EVENTS = 1000


def next_seq(highest_seq: int, side: Literal["host", "worker"]) -> int:
    """Return the number of the next message: the host's are even, the worker's odd.

    Args:
        highest_seq: The highest number that the writer sees in both files.
        side: The writer.
    """
    parity = 0 if side == "host" else 1
    return highest_seq + 1 + (highest_seq + 1 + parity) % 2


def add_seconds(now: str, seconds: float) -> str:
    """Return the time that is so many seconds after another time."""
    return timestamps.from_ms(timestamps.ms_of(now) + round(seconds * 1000))


def inbound_event(received: ReceivedMessage, **fields: Any) -> Event:
    """Return the event of a message that an adapter received.

    Args:
        received: The message.
        fields: Further or other fields of `events.InboundFields`.
    """
    message_fields: dict[str, Any] = {
        "id": received.id,
        "content": received.text,
        "kind": received.kind,
        "hops": received.hops,
        "sender": received.sender,
        "timestamp": received.at or None,
        "attachments": received.attachments,
        "route": Route(received.channel, received.place, thread=received.thread),
    }
    return inbound_message(**message_fields | fields)


def receive(session_state: SessionState, messages: Iterable[Event]) -> list[Event]:
    """Return the messages that the session does not have yet, numbered.

    Raises InvalidInput (field `id`) if the session has another content under the id of a message.
    """
    highest_seq = session_state.highest_seq
    new_messages = dict[str, Event]()
    for message in messages:
        id = message["id"]
        if id in session_state.inbound.messages:
            known_digest: str | None = digest(session_state.inbound.messages[id].event)
        elif id in new_messages:
            known_digest = digest(new_messages[id])
        else:
            known_digest = session_state.inbound.compacted_digests.get(id)
        if known_digest is None:
            highest_seq = next_seq(highest_seq, "host")
            new_messages[id] = message | {"seq": highest_seq}
        elif known_digest != digest(message):
            raise InvalidInput(
                f"message {id} is in session {session_state.session} with another content", id=id
            )
    return list(new_messages.values())


def numbered(session_state: SessionState, events: Iterable[Event]) -> list[Event]:
    """Return events with their messages numbered and first.

    A power cut may leave only the first events of a write, and the others refer to the messages.
    """
    message_events: list[Event] = []
    other_events: list[Event] = []
    for event in events:
        if event["event"] == "message":
            message_events.append(event)
        else:
            other_events.append(event)
    return receive(session_state, message_events) + other_events


def pick(
    session_state: SessionState, now: str, *, just_started: bool, limit: int = 10
) -> list[InboundMessage]:
    """Return the next batch of a worker, oldest first. Empty: it has no work.

    A batch has one route: the route of the oldest message that wakes the worker. It also has the
    messages of this route that accumulated before. Messages that were claimed together come
    together again, and alone, so that the next try gives its replies the same ids.

    Args:
        session_state: The session.
        now: The time.
        just_started: Whether the worker has answered nothing since its start. Only then it gets
            messages with `onWake`.
        limit: The largest size of a batch.
    """
    groups = defaultdict[Hashable, list[InboundMessage]](list)
    chosen: list[InboundMessage] | None = None
    waking_index = 0
    waking_batches = {
        claim.batch
        for id, claim in session_state.outbound.claims.items()
        if _wakes_again(session_state, id)
    }
    for message, due in _pending(session_state, now, just_started=just_started):
        if due > now:
            continue
        ack = session_state.outbound.acks.get(message.id)
        key: Hashable = message.route
        if ack and ack.batch in waking_batches:
            key = ack.batch
        groups[key].append(message)
        if chosen is None and message.wakes:
            chosen = groups[key]
            waking_index = len(chosen) - 1
        if chosen is not None and len(chosen) >= limit:
            break
    if chosen is None:
        return []
    start = max(0, waking_index + 1 - limit)
    return chosen[start : start + limit]


def next_due(session_state: SessionState, now: str, *, just_started: bool = True) -> str | None:
    """Return the time at which a message that wakes is due: `now` or later, or None.

    The arguments are as for `pick`.
    """
    soonest = None
    for message, due in _pending(session_state, now, just_started=just_started):
        if not message.wakes:
            continue
        if due <= now:
            return now
        if soonest is None or due < soonest:
            soonest = due
    return soonest


def _pending(
    session_state: SessionState, now: str, *, just_started: bool
) -> Iterator[tuple[InboundMessage, str]]:
    """Yield the messages that a worker may get, each with the time when it becomes due.

    A retry whose time is too far away is due at once: the system clock was set back meanwhile.
    """
    paused = session_state.inbound.paused
    if "" in paused:
        return
    for message in session_state.unfinished_messages():
        if message.kind == "system" or message.series in paused:
            continue
        if not just_started and message.event.get("onWake") is True:
            continue
        if session_state.status(message.id) != "pending":
            continue
        if message.waits and message.due > add_seconds(now, FIRST_RETRY_S * 2**RETRIES):
            yield message, ""
        else:
            yield message, message.due


def _wakes_again(session_state: SessionState, id: str) -> bool:
    """Return whether a message that was claimed before is pending, and wakes the worker."""
    message = session_state.inbound.messages.get(id)
    return message is not None and message.wakes and session_state.status(id) == "pending"


def claim(
    session_state: SessionState, picked: Sequence[InboundMessage], instance: str
) -> list[Event]:
    """Claim a batch for the worker `instance`. `reply_id` takes the event's `batch` for replies.

    A batch is named after its first message that was never claimed. If all were claimed before, it
    is an earlier batch and keeps its name.
    """
    if not picked:
        return []
    acks = session_state.outbound.acks
    batch = next((message.id for message in picked if message.id not in acks), "")
    if not batch:
        batch = acks[picked[0].id].batch
    tries = {message.id: message.tries for message in picked}
    return [ack_event(state="processing", messages=tries, instance=instance, batch=batch)]


def end_claims(
    session_state: SessionState,
    ids: Iterable[str],
    *,
    instance: str,
    state: AckState,
    error: str = "",
) -> list[Event]:
    """End the claims of the worker `instance` on messages.

    Returns:
        An event for the claims that it still holds. Nothing if it holds none: then it must not
        write an answer either.
    """
    tries = {
        id: session_state.outbound.claims[id].tries
        for id in ids
        if _holder(session_state, id) == instance
    }
    if not tries:
        return []
    return [ack_event(state=state, messages=tries, instance=instance, error=error or None)]


def complete_for_tool(session_state: SessionState, id: str, instance: str) -> list[Event]:
    """Complete a message that a tool returned to the agent, so that no prompt has it.

    Returns nothing if a worker claimed the message before.
    """
    if session_state.status(id) != "pending":
        return []
    tries = {id: session_state.inbound.messages[id].tries}
    return [ack_event(state="completed", messages=tries, instance=instance)]


def withdraw_old_claims(session_state: SessionState, instance: str) -> list[Event]:
    """Withdraw all claims in the name of the worker `instance`, which holds the session's lock."""
    tries = {
        id: claim.tries
        for id, claim in session_state.outbound.claims.items()
        if claim.state == "processing"
    }
    if not tries:
        return []
    return [ack_event(state="dropped", messages=tries, instance=instance)]


def _holder(session_state: SessionState, id: str) -> str:
    """Return the worker that has claimed a message. Empty: none."""
    claim = session_state.outbound.claims.get(id)
    if claim is None or id not in session_state.inbound.messages:
        return ""
    return claim.instance if session_state.status(id) == "processing" else ""


def holders(session_state: SessionState) -> set[str]:
    """Return the workers that hold claims."""
    return {_holder(session_state, id) for id in session_state.outbound.claims} - {""}


def is_bulky(session_state: SessionState) -> bool:
    """Return whether so many events are obsolete that a compaction is worth its cost."""
    inbound, outbound = session_state
    unfinished_count = len(outbound.unfinished_ids)
    for id in inbound.unfinished_ids:
        if not inbound.messages[id].is_idle:
            unfinished_count += 1
    event_count = max(len(inbound.event_ids), len(outbound.event_ids))
    return event_count > MAX_EVENTS + 4 * unfinished_count


def retry_or_fail(
    session_state: SessionState, now: str, *, is_alive: Callable[[str], bool | None]
) -> list[Event]:
    """Retry or give up the messages that workers gave back, failed, or held when they died.

    A `failed` event also makes the notices to the senders, which `due_deliveries` returns.

    Args:
        session_state: The session.
        now: The time.
        is_alive: Tells whether the worker of an instance is alive.
    """
    retries = defaultdict[str, dict[str, tuple[int, str]]](dict)
    failed_ids = defaultdict[str, list[str]](list)
    for id, claim in session_state.outbound.claims.items():
        message = session_state.inbound.messages.get(id)
        if message is None or id in session_state.inbound.final_states:
            continue
        state = session_state.status(id)
        reason = claim.error or "the worker ended without an answer"
        if state == "failed":
            failed_ids[reason].append(id)
        elif _claim_has_ended(state, claim.instance, is_alive):
            if message.tries >= RETRIES:
                failed_ids[reason].append(id)
            else:
                due = add_seconds(now, FIRST_RETRY_S * 2**message.tries)
                retries[reason][id] = (message.tries + 1, due)
    events = [retry_event(messages=messages, reason=reason) for reason, messages in retries.items()]
    events += [failed_event(messages=ids, reason=reason) for reason, ids in failed_ids.items()]
    return events


def _claim_has_ended(
    state: MessageStatus, instance: str, is_alive: Callable[[str], bool | None]
) -> bool:
    return state == "released" or (state == "processing" and not is_alive(instance))


def retry_by_hand(session_state: SessionState, ids: Iterable[str], now: str) -> list[Event]:
    """Retry messages now because a person wants it. An outbound message is delivered again.

    Raises:
        InvalidInput: A message is answered, cancelled, delivered, or being answered.
        NotFound: The session has no such message.
    """
    retries = {}
    for id in ids:
        if id in session_state.outbound.messages:
            was_given_up = id in session_state.inbound.undeliverable
            if not was_given_up and not is_undelivered(session_state, id):
                raise InvalidInput(
                    f"message {id} of session {session_state.session} is delivered or cancelled",
                    id=id,
                )
            retries[id] = 0, now
            continue
        state = session_state.status(id)
        is_in_file = id in session_state.inbound.messages
        if not is_in_file or state in ("completed", "cancelled", "processing"):
            raise InvalidInput(
                f"message {id} in session {session_state.session} is {state}, and can't be tried "
                "again",
                id=id,
            )
        tries = session_state.inbound.messages[id].tries
        if state in ("failed", "released"):
            tries += 1
        retries[id] = tries, now
    if not retries:
        return []
    return [retry_event(messages=retries, reason="by hand", by_hand=True)]


def is_undelivered(session_state: SessionState, id: str) -> bool:
    """Return whether an outbound message waits for its delivery."""
    return any(message.id == id for message in session_state.undelivered_messages())


def reason_worker_is_dead(
    now: str, heartbeat: str | None, claimed_at: Iterable[str], limit_s: float = 0
) -> str:
    """Return why a worker counts as dead although its process runs. Empty: it does not.

    Args:
        now: The time.
        heartbeat: The time of its last heartbeat. None: it had none yet, which alone is no fault.
        claimed_at: The times of its claims. A time that cannot be read is passed over.
        limit_s: The limit in seconds that the tool in use declares. It counts if it is longer than
            the usual limit.
    """
    now_ms = timestamps.ms_of(now)
    heartbeat_ms = timestamps.ms_of(heartbeat or "")
    silent_ms = max(SILENT_S, limit_s) * 1000
    stuck_ms = max(STUCK_S, limit_s) * 1000
    if heartbeat_ms and now_ms - heartbeat_ms > silent_ms:
        return f"no heartbeat for {(now_ms - heartbeat_ms) // 1000} seconds"
    for claimed_ms in filter(None, map(timestamps.ms_of, claimed_at)):
        if now_ms - claimed_ms > stuck_ms and heartbeat_ms + GRAIN_MS <= claimed_ms:
            age_s = (now_ms - claimed_ms) // 1000
            return f"no heartbeat since it claimed a message {age_s} seconds ago"
    return ""


def worker_fault(
    session_state: SessionState, now: str, *, instance: str, heartbeat: str | None
) -> str:
    """Return why the worker `instance` counts as dead, by `reason_worker_is_dead`. Empty: it does
    not. The host kills a worker that does.
    """
    claimed_at = (
        claim.at
        for id, claim in session_state.outbound.claims.items()
        if _holder(session_state, id) == instance
    )
    tool = session_state.outbound.tool
    return reason_worker_is_dead(now, heartbeat, claimed_at, tool.limit_s if tool else 0)


# -- Wirings ---------------------------------------------------------------------------------------

#: The number of agents that a message may come through, each of which answered the one before. The
#: setting `maxHops` of an agent replaces it.
MAX_HOPS = 8


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    """What becomes of a message for one agent.

    Attributes:
        agent: The agent.
        session_key: What the session for the message serves.
        outcome: Whether the message wakes the agent, accumulates, or is ignored.
        reason: Why, in words.
        wiring: The id of the wiring that decided. Empty: the default wiring.
    """

    agent: str
    session_key: SessionKey
    outcome: Outcome
    reason: str
    wiring: str = ""


def route(
    received: ReceivedMessage,
    registry_state: RegistryState,
    was_woken: Callable[[SessionKey], bool],
) -> list[RoutingDecision]:
    """Decide for each agent that a message could be meant for.

    The default wiring wakes an agent by every message if nobody else is in the place, and else by
    mentions.

    Args:
        received: The message.
        registry_state: The registry.
        was_woken: Tells whether a session was woken before, for `mention-sticky`.
    """
    place_wirings = registry_state.wirings_by_place.get((received.channel, received.place), ())
    wirings = {wiring.agent: wiring for wiring in place_wirings}
    decisions = []
    for agent, wiring in wirings.items():
        if not received.to or agent in received.to:
            decisions.append(
                _decide(received, wiring, registry_state, was_woken, wiring_id=wiring.id)
            )
    for agent in sorted(received.to - wirings.keys()):
        wiring = _default_wiring(received, agent)
        decisions.append(_decide(received, wiring, registry_state, was_woken, wiring_id=""))
    return decisions


def _default_wiring(received: ReceivedMessage, agent: str) -> Wiring:
    engage: Literal["pattern", "mention"] = "mention" if received.is_group else "pattern"
    return Wiring(
        channel=received.channel,
        place=received.place,
        agent=agent,
        engage=engage,
        pattern=MATCH_ALL,
    )


def _decide(
    received: ReceivedMessage,
    wiring: Wiring,
    registry_state: RegistryState,
    was_woken: Callable[[SessionKey], bool],
    *,
    wiring_id: str,
) -> RoutingDecision:
    """Decide about a message for one agent by its wiring."""
    session_key = _session_key(received, wiring)
    outcome: Outcome = "ignored"
    reason = _reason_to_ignore(received, wiring, registry_state)
    if not reason:
        wakes, reason = _wakes_agent(received, wiring, session_key, was_woken)
        # A sticky wiring has a session for each thread. None is made for a message that is in no
        # thread and wakes nobody.
        has_session = bool(received.thread) or wiring.engage != "mention-sticky"
        if wakes:
            outcome = "wake"
        elif wiring.ignored == "accumulate" and has_session:
            outcome = "accumulate"
    return RoutingDecision(
        agent=wiring.agent,
        session_key=session_key,
        outcome=outcome,
        reason=reason,
        wiring=wiring_id,
    )


def _reason_to_ignore(
    received: ReceivedMessage, wiring: Wiring, registry_state: RegistryState
) -> str:
    """Return why a message is not for an agent, whatever its text is. Empty: it may be."""
    agent_setup = registry_state.agents.get(wiring.agent)
    if agent_setup is None:
        return "no workers are set up for the agent"
    if received.sender == wiring.agent:
        return "the agent itself wrote it"
    max_hops = agent_setup.settings.get("maxHops", MAX_HOPS)
    if not isinstance(max_hops, int):
        max_hops = MAX_HOPS
    if received.hops > max_hops:
        return f"it came through {received.hops} agents that answered each other"
    if wiring.senders == "known" and not received.known:
        return "the sender is not known"
    return ""


def _wakes_agent(
    received: ReceivedMessage,
    wiring: Wiring,
    session_key: SessionKey,
    was_woken: Callable[[SessionKey], bool],
) -> tuple[bool, str]:
    """Return whether the text of a message wakes an agent, and why."""
    if wiring.engage == "pattern":
        # Imported here, because a worker that starts wakes nobody.
        from capsule.format.filters import compile_pattern

        try:
            matches = wiring.pattern == MATCH_ALL or compile_pattern(wiring.pattern)(received.text)
        except InvalidInput:
            return False, f"the pattern {wiring.pattern!r} can't be read"
        verb = "fits" if matches else "does not fit"
        return matches, f"it {verb} the pattern {wiring.pattern!r}"
    if wiring.agent in received.mentions:
        return True, "it mentions the agent"
    if wiring.engage == "mention-sticky" and received.thread and was_woken(session_key):
        return True, "its thread has mentioned the agent"
    return False, "it does not mention the agent"


def _session_key(received: ReceivedMessage, wiring: Wiring) -> SessionKey:
    if wiring.engage == "mention-sticky":  # A message in no thread begins one.
        return wiring.agent, received.channel, received.place, received.thread or received.id
    if wiring.session == "agent-shared":
        return wiring.agent, "", "", ""
    thread = received.thread if wiring.session == "per-thread" else ""
    return wiring.agent, received.channel, received.place, thread


# -- Messages from a worker ------------------------------------------------------------------------

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
