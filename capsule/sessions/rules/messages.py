"""The rules of inbound messages: how they are numbered, picked, claimed, given back and retried.

The host receives messages. A worker picks the next batch and claims it. Then it answers, fails, or
gives the batch back. The host retries a batch that was given back, or whose worker died, and gives
up after `RETRIES` retries. Each function returns the events that carry its decision out. The caller
appends them to the inbound file (host) or the outbound file (worker).

What must stay true:
- A message that was answered is never picked again, whichever process dies at any time.
- A worker ends only its own claims. The host withdraws only claims of workers that are dead, or
  that gave the message back.

No file, no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from capsule import timestamps
from capsule.errors import InvalidInput
from capsule.sessions.events import (
    AckState,
    Event,
    Route,
    ack_event,
    failed_event,
    inbound_message,
    retry_event,
)
from capsule.sessions.session_state import InboundMessage, MessageStatus, SessionState, digest

if TYPE_CHECKING:
    from capsule.sessions.adapters.interface import ReceivedMessage

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
