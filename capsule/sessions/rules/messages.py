"""The rules of messages in: how they are numbered, taken once, picked, claimed, given back, tried
again.

What must stay true: a message is never finished twice, nor answered and picked again, whoever dies
when. A worker ends only claims of its own; the host withdraws only those of a worker that is dead,
or gave them back. No file, no clock.
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
    from capsule.sessions.adapters.interface import Arrived

#: How often a message is tried again, and the seconds before the first time; before each further
#: time twice as many.
RETRIES = 5
FIRST_RETRY_S = 5
#: After how many seconds without a heartbeat a worker is dead, and one that has not shown life
#: since it claimed.
SILENT_S = 30 * 60
STUCK_S = 60
#: A heartbeat is the time of a file, which the system keeps by ticks: one after a claim may seem to
#: be before it.
GRAIN_MS = 1000
#: How many events a file may have whose messages are all done.
MAX_EVENTS = 1000


def next_seq(highest_seen: int, side: Literal["host", "worker"]) -> int:
    """The number of the next message of a side: above the highest it sees, the host's even, the
    worker's odd.
    """
    parity = 0 if side == "host" else 1
    return highest_seen + 1 + (highest_seen + 1 + parity) % 2


def add_seconds(now: str, seconds: float) -> str:
    """The time some seconds after another."""
    return timestamps.from_ms(timestamps.ms_of(now) + round(seconds * 1000))


def inbound_event(arrived: Arrived, **more: Any) -> Event:
    """The event for a message from outside. Args: the message, and fields of `events.Incoming` that
    say more of it.
    """
    fields: dict[str, Any] = {
        "id": arrived.id,
        "content": arrived.text,
        "kind": arrived.kind,
        "hops": arrived.hops,
    }
    fields |= {
        "sender": arrived.sender,
        "timestamp": arrived.at or None,
        "attachments": arrived.attachments,
    }
    return inbound_message(
        **fields | {"route": Route(arrived.channel, arrived.place, arrived.thread)} | more
    )


def receive(session_state: SessionState, messages: Iterable[Event]) -> list[Event]:
    """Number messages for the worker, without those that are there.

    Raises InvalidInput: one has the id of another one with another content (field `id`).
    """
    highest, new = session_state.highest_seq, dict[str, Event]()
    for message in messages:
        id = message["id"]
        there = (
            session_state.inbound.messages[id].event
            if id in session_state.inbound.messages
            else new.get(id)
        )
        known = digest(there) if there else session_state.inbound.compacted_digests.get(id)
        if known is None:
            highest = next_seq(highest, "host")
            new[id] = message | {"seq": highest}
        elif known != digest(message):
            raise InvalidInput(
                f"message {id} is in session {session_state.session} with another content", id=id
            )
    return list(new.values())


def numbered(session_state: SessionState, events: Iterable[Event]) -> list[Event]:
    """Events with their messages numbered and first: a power cut may leave the first of a write
    alone.
    """
    said = [event for event in events if event["event"] == "message"]
    return receive(session_state, said) + [event for event in events if event["event"] != "message"]


def pick(
    session_state: SessionState, now: str, *, just_started: bool, limit: int = 10
) -> list[InboundMessage]:
    """The messages that a worker does next, oldest first; none if it has nothing to do.

    They are of one route, that of the oldest message that wakes, with those that accumulated before
    it. What was claimed together before comes together again, and alone, so that a second try gives
    its replies the same ids. A worker that has just started (`just_started`) gets also what is for the
    start only.
    """
    groups, chosen, oldest = defaultdict[Hashable, list[InboundMessage]](list), None, 0
    waking = {
        claim.batch
        for id, claim in session_state.outbound.claims.items()
        if _wakes(session_state, id)
    }
    for message, due in _pending(session_state, now, just_started=just_started):
        if due > now:
            continue
        claimed = session_state.outbound.acks.get(message.id)
        key: Hashable = claimed.batch if claimed and claimed.batch in waking else message.route
        groups[key].append(message)
        if chosen is None and message.wakes:
            chosen, oldest = groups[key], len(groups[key]) - 1
        if chosen is not None and len(chosen) >= limit:
            break
    start = max(0, oldest + 1 - limit)
    return chosen[start : start + limit] if chosen else []


def next_due(session_state: SessionState, now: str, *, just_started: bool = True) -> str | None:
    """When a message that wakes is due: `now`, or later; None: there is none. Arguments as for
    `pick`.
    """
    soonest = None
    for message, due in _pending(session_state, now, just_started=just_started):
        if message.wakes and due <= now:
            return now
        if message.wakes and (soonest is None or due < soonest):
            soonest = due
    return soonest


def _pending(
    session_state: SessionState, now: str, *, just_started: bool
) -> Iterator[tuple[InboundMessage, str]]:
    """What a worker may get, with the time from which on it is due: at once if the clock went back
    while it waited.
    """
    if "" in session_state.inbound.paused:
        return
    for message in session_state.unfinished_messages():
        is_held = message.kind == "system" or message.series in session_state.inbound.paused
        is_for_later = not just_started and message.event.get("onWake") is True
        if not (is_held or is_for_later) and session_state.status(message.id) == "pending":
            is_early = message.waits and message.due > add_seconds(now, FIRST_RETRY_S * 2**RETRIES)
            yield message, "" if is_early else message.due


def _wakes(session_state: SessionState, id: str) -> bool:
    """Whether a message that was claimed once waits, and wakes the worker again."""
    message = session_state.inbound.messages.get(id)
    return message is not None and message.wakes and session_state.status(id) == "pending"


def claim(
    session_state: SessionState, picked: Sequence[InboundMessage], instance: str
) -> list[Event]:
    """Claim what was picked, for the worker `instance`. The event's `batch` is what `reply_id`
    takes for this batch.
    """
    if not picked:
        return []
    # What was never claimed names a new batch; otherwise it is one that comes again.
    again = session_state.outbound.acks.get(picked[0].id)
    batch = next(
        (message.id for message in picked if message.id not in session_state.outbound.acks),
        again.batch if again else "",
    )
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
        An event for those that it still holds. Nothing if it holds none: then it must not answer
        them either.
    """
    held = {
        id: session_state.outbound.claims[id].tries
        for id in ids
        if _holder(session_state, id) == instance
    }
    return (
        [ack_event(state=state, messages=held, instance=instance, error=error or None)]
        if held
        else []
    )


def complete_for_tool(session_state: SessionState, id: str, instance: str) -> list[Event]:
    """Finish a message that a tool gives to the agent: no prompt has it then. Nothing if a worker
    has it, or had it.
    """
    is_free = session_state.status(id) == "pending"
    return [
        ack_event(
            state="completed",
            messages={id: session_state.inbound.messages[id].tries},
            instance=instance,
        )
    ] * is_free


def withdraw_old_claims(session_state: SessionState, instance: str) -> list[Event]:
    """Withdraw the claims that the session's former workers left, for the worker `instance` that
    has just started.
    """
    left = {
        id: claim.tries
        for id, claim in session_state.outbound.claims.items()
        if claim.state == "processing"
    }
    return [ack_event(state="dropped", messages=left, instance=instance)] if left else []


def _holder(session_state: SessionState, id: str) -> str:
    """The worker that a message is claimed by; empty: none."""
    claimed = session_state.outbound.claims.get(id)
    holds = (
        claimed is not None
        and id in session_state.inbound.messages
        and session_state.status(id) == "processing"
    )
    return claimed.instance if claimed is not None and holds else ""


def holders(session_state: SessionState) -> set[str]:
    """The workers that hold claims."""
    return {_holder(session_state, id) for id in session_state.outbound.claims} - {""}


def is_bulky(session_state: SessionState) -> bool:
    """Whether so much of the files is done that a compaction is worth its cost."""
    most = MAX_EVENTS + 4 * (
        sum(
            not session_state.inbound.messages[id].is_idle
            for id in session_state.inbound.unfinished_ids
        )
        + len(session_state.outbound.unfinished_ids)
    )
    return max(len(session_state.inbound.event_ids), len(session_state.outbound.event_ids)) > most


def retry_or_fail(
    session_state: SessionState, now: str, *, is_alive: Callable[[str], bool | None]
) -> list[Event]:
    """Try again, or give up, what workers gave back or died over; note what they failed.

    The `failed` events are also the notices to the senders: `due_deliveries` gives them. Workers
    are known by their instances.
    """
    due = defaultdict[str, dict[str, tuple[int, str]]](dict)
    given_up = defaultdict[str, list[str]](list)
    for id, claimed in session_state.outbound.claims.items():
        message = session_state.inbound.messages.get(id)
        if message is None or id in session_state.inbound.final_states:
            continue
        state, reason = (
            session_state.status(id),
            claimed.error or "the worker ended without an answer",
        )
        if state == "failed" or (
            message.tries >= RETRIES and _claim_has_ended(state, claimed.instance, is_alive)
        ):
            given_up[reason].append(id)
        elif _claim_has_ended(state, claimed.instance, is_alive):
            due[reason][id] = (
                message.tries + 1,
                add_seconds(now, FIRST_RETRY_S * 2**message.tries),
            )
    again = [retry_event(messages=messages, reason=reason) for reason, messages in due.items()]
    return again + [
        failed_event(messages=messages, reason=reason) for reason, messages in given_up.items()
    ]


def _claim_has_ended(
    state: MessageStatus, instance: str, is_alive: Callable[[str], bool | None]
) -> bool:
    return state == "released" or (state == "processing" and not is_alive(instance))


def retry_by_hand(session_state: SessionState, ids: Iterable[str], now: str) -> list[Event]:
    """Try messages again at a person's word: what failed is pending again, and what waits for its
    time is due now.

    A message out is delivered again if it could not be delivered, or waits for that.

    Raises InvalidInput: one is answered, cancelled, delivered, or being answered. NotFound: there
    is none.
    """
    due = {}
    for id in ids:
        if id in session_state.outbound.messages:
            if id not in session_state.inbound.undeliverable and not is_undelivered(
                session_state, id
            ):
                raise InvalidInput(
                    f"message {id} of session {session_state.session} is delivered or cancelled",
                    id=id,
                )
            due[id] = 0, now
            continue
        state = session_state.status(id)
        if id not in session_state.inbound.messages or state in (
            "completed",
            "cancelled",
            "processing",
        ):
            raise InvalidInput(
                f"message {id} in session {session_state.session} is {state}, and can't be tried again",
                id=id,
            )
        due[id] = session_state.inbound.messages[id].tries + (state in ("failed", "released")), now
    return [retry_event(messages=due, reason="by hand", by_hand=True)] if due else []


def is_undelivered(session_state: SessionState, id: str) -> bool:
    """Whether a message out waits to be delivered."""
    return any(message.id == id for message in session_state.undelivered_messages())


def reason_worker_is_dead(
    now: str, heartbeat: str | None, claimed_at: Iterable[str], limit_s: float = 0
) -> str:
    """Why a worker counts as dead although its process lives; empty: it does not.

    Args:
        now: The time.
        heartbeat: When it last showed life; None: not yet, which alone is no fault.
        claimed_at: When it claimed what it holds. A time that can't be read is passed over.
        limit_s: The limit that the tool it uses declares, in seconds; it counts if it is longer
            than the usual one.
    """
    at, beat = timestamps.ms_of(now), timestamps.ms_of(heartbeat or "")
    silent_ms, stuck_ms = max(SILENT_S, limit_s) * 1000, max(STUCK_S, limit_s) * 1000
    if beat and at - beat > silent_ms:
        return f"no heartbeat for {(at - beat) // 1000} seconds"
    for claimed in filter(None, map(timestamps.ms_of, claimed_at)):
        if at - claimed > stuck_ms and beat + GRAIN_MS <= claimed:
            return f"no heartbeat since it claimed a message {(at - claimed) // 1000} seconds ago"
    return ""


def worker_fault(
    session_state: SessionState, now: str, *, instance: str, heartbeat: str | None
) -> str:
    """Why the worker `instance` of a session counts as dead, by `reason_worker_is_dead`; empty: it
    does not. It is to be killed.
    """
    held = (
        claim.at
        for id, claim in session_state.outbound.claims.items()
        if _holder(session_state, id) == instance
    )
    return reason_worker_is_dead(
        now,
        heartbeat,
        held,
        session_state.outbound.tool.limit_s if session_state.outbound.tool else 0,
    )
