"""The state of a session: what the events of its two files add up to.

The host writes the inbound file: messages for the worker, and the outcome of the worker's own
messages. The worker writes the outbound file: its messages, and the outcome of the messages that
it got. `InboundState` and `OutboundState` each apply the events of one file. `SessionState`
combines both, answers questions about a message, and makes the events of compacted files.

A message for the worker is pending, is claimed by a worker (processing), and ends as completed,
failed or cancelled. A worker that gives it back makes it released, until the host retries it.

What must stay true:
- An event that is applied twice changes nothing the second time.
- An event that is unknown, or has a wrong field, is kept and changes nothing.
- A final state of a message stays final, whatever comes later. Only a person's retry ends it.
- A compacted file gives a state that answers every question as before. It holds the unfinished
  work and windows of a fixed size, and nothing else.

Pure: no file, no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import orjson

from capsule import timestamps
from capsule.errors import NotFound
from capsule.sessions import events
from capsule.sessions.events import RECURRENCE_FIELDS, Check, Event, Route, next_at, reply_id


class Handler(NamedTuple):
    """How the events of one name are applied.

    Attributes:
        is_valid: Checks whether an event can be applied.
        apply: Applies a valid event to the state of its file.
    """

    is_valid: Check
    apply: Callable[[Any, Event], None]


@dataclass
class FileState:
    """The state that the events of one file add up to.

    Attributes:
        handlers: The handlers by the names of their events.
        session: The session's id.
        unfinished_ids: The messages of the file that may be unfinished, oldest first. Finished ones
            are removed when somebody asks for the unfinished messages.
        highest_seq: The highest number of a message in the file.
        unknown_events: The events that were not applied.
        event_ids: The ids of all events of the file.
    """

    handlers: ClassVar[Mapping[str, Handler]]
    session: str = ""
    unfinished_ids: dict[str, None] = field(default_factory=dict)
    highest_seq: int = 0
    unknown_events: list[Event] = field(default_factory=list)
    event_ids: set[str] = field(default_factory=set, repr=False)

    @classmethod
    def _handler(cls, event: Event) -> Handler | None:
        name = event.get("event")
        return cls.handlers.get(name) if isinstance(name, str) else None

    @classmethod
    def has_wrong_fields(cls, event: Event) -> bool:
        """Return whether an event has a handler, and a field of it is wrong."""
        handler = cls._handler(event)
        return handler is not None and not handler.is_valid(event)

    def apply(self, event: Event) -> None:
        """Check an event and apply it. Keep it if it is unknown or a field is wrong.

        Cost: some microseconds.
        """
        id = event.get("id")
        if id in self.event_ids:
            return
        handler = self._handler(event)
        if handler is not None and handler.is_valid(event):
            handler.apply(self, event)
        else:
            self.unknown_events.append(event)
        if id:
            self.event_ids.add(id)


@dataclass(frozen=True, slots=True)
class InboundMessage:
    """A message for the worker.

    Attributes:
        event: Its event, with the changes of later events merged in.
        id: Its id.
        seq: Its number in the common order of both files.
        kind: Its kind, as in `events.InboundKind`.
        wakes: Whether it wakes the worker. Others wait for a message that does.
        due: The time when it becomes due. Empty: at once.
        tries: The number of its failed tries.
        waits: Whether `due` is the time of another try.
        series: The series that it belongs to. Empty: none.
    """

    event: Event = field(repr=False)
    id: str
    seq: int
    kind: str
    wakes: bool
    due: str
    tries: int
    waits: bool
    series: str

    @classmethod
    def from_event(cls, event: Event) -> InboundMessage:
        """Return the message of an event that passes `events.IN_MESSAGE`."""
        return cls(
            event=event,
            id=event["id"],
            seq=event.get("seq", 0),
            kind=event.get("kind", "chat"),
            wakes=event.get("trigger") != "accumulate",
            due=timestamps.sortable(event.get("processAfter", "")),
            tries=event.get("tries", 0),
            waits=event.get("waits", False),
            series=event.get("series", ""),
        )

    @property
    def is_idle(self) -> bool:
        """Whether no worker is started for it."""
        return self.kind == "system" or not self.wakes

    @property
    def route(self) -> Route | None:
        """The place that it came from."""
        return Route.from_json(self.event.get("route"))

    @property
    def sender(self) -> str:
        """The name of its sender. Empty: the host."""
        return str(self.event.get("from", ""))


class Notice(NamedTuple):
    """A note that the host owes to one sender, about messages that failed together.

    Attributes:
        sender: The sender.
        messages: The ids of the messages, all of this sender and one route.
        reason: The reason of the failure, in words.
    """

    sender: str
    messages: tuple[str, ...]
    reason: str


class Failures(NamedTuple):
    """How many messages of one sender failed, and about how many of them the sender got a notice."""

    failed: int = 0
    notified: int = 0


class DeliveryAttempts(NamedTuple):
    """The progress of the delivery of an outbound message.

    Attributes:
        failed: The failed attempts of the current occurrence.
        next_at: The time of the next attempt. Empty: at once.
        round: The number of finished occurrences of a recurring message.
    """

    failed: int = 0
    next_at: str = ""
    round: int = 0


@dataclass
class InboundState(FileState):
    """The state that the events of an inbound file add up to.

    Attributes:
        messages: The messages of the file by id, oldest first.
        compacted_digests: By id, the digests of the last messages that a compaction removed.
        final_states: By id, `failed` or `cancelled` for the messages that the host ended.
        notices: The notices that are not delivered, by their ids.
        failures: The counts of failed messages by sender, since the session began.
        finished_up_to_seq: The number up to which a compaction found all outbound messages
            delivered or given up.
        delivered: By id, the ids that outbound messages got at their destinations.
        undeliverable: By id, the reasons why outbound messages were given up.
        redeliver_ids: The outbound messages whose delivery a person wants to be tried again.
        attempts: The progress of deliveries, by the ids of the messages.
        destinations: The destinations of the worker by name.
        route: The default route, for a message of the worker without a destination.
        series: By series, the id of its last occurrence.
        paused: The paused series. An empty one is the whole session.
    """

    messages: dict[str, InboundMessage] = field(default_factory=dict)
    compacted_digests: dict[str, str] = field(default_factory=dict)
    final_states: dict[str, str] = field(default_factory=dict)
    notices: dict[str, Notice] = field(default_factory=dict)
    failures: dict[str, Failures] = field(default_factory=dict)
    finished_up_to_seq: int = 0
    delivered: dict[str, str] = field(default_factory=dict)
    undeliverable: dict[str, str] = field(default_factory=dict)
    redeliver_ids: dict[str, None] = field(default_factory=dict)
    attempts: dict[str, DeliveryAttempts] = field(default_factory=dict)
    destinations: dict[str, dict[str, Any]] = field(default_factory=dict)
    route: Route | None = None
    series: dict[str, str] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)

    def _apply_message(self, event: Event) -> None:
        message = InboundMessage.from_event(event)
        if message.id in self.messages or message.id in self.compacted_digests:
            return
        self.messages[message.id] = message
        self.unfinished_ids[message.id] = None
        self.highest_seq = max(self.highest_seq, message.seq)
        if message.series:
            self.series[message.series] = message.id

    def _change_message(self, id: str, **fields: Any) -> None:
        if id in self.messages:
            self.messages[id] = InboundMessage.from_event(self.messages[id].event | fields)

    def _apply_retry(self, event: Event) -> None:
        """Apply retries of inbound messages, and by hand also new deliveries of outbound ones."""
        is_by_hand = event.get("again")
        for id, retry in event["messages"].items():
            if id in self.messages:
                tries = max(self.messages[id].tries, retry["tries"])
                due = retry["processAfter"]
                self._change_message(id, tries=tries, processAfter=due, waits=True)
                if is_by_hand and self.final_states.get(id) != "cancelled":
                    self._reopen(id, tries)
            elif is_by_hand:  # It is an outbound message.
                self.undeliverable.pop(id, None)
                self.attempts.pop(id, None)
                self.redeliver_ids[id] = None

    def _reopen(self, id: str, tries: int) -> None:
        """Make a message unfinished again. A failure with fewer tries than `tries` is void."""
        self._change_message(id, again=tries)
        self.final_states.pop(id, None)
        self._leave_out_of_notices(id)
        unfinished_ids = self.unfinished_ids.keys() | {id}
        self.unfinished_ids = {key: None for key in self.messages if key in unfinished_ids}

    def _apply_failed(self, event: Event) -> None:
        """Record failures, and one notice for each sender and route."""
        ids_by_sender = defaultdict[tuple[Route, str], list[str]](list)
        for id in event["messages"]:
            if id in self.final_states:
                continue
            self.final_states[id] = "failed"
            message = self.messages.get(id)
            if message is None:
                continue
            self._count_failures(message.sender, failed=1)
            if message.route is not None:
                ids_by_sender[message.route, message.sender].append(id)
        for (_, sender), ids in ids_by_sender.items():
            tries = self.messages[ids[0]].tries
            notice_id = reply_id(self.session, ids[0], f"failed {tries}")
            self.notices[notice_id] = Notice(
                sender=sender, messages=tuple(ids), reason=event.get("reason", "")
            )

    def _leave_out_of_notices(self, message: str) -> None:
        """Remove a message that is tried again from the notice that names it.

        A notice with other messages gets another id, because its content changes.
        """
        for id, notice in list(self.notices.items()):
            if message not in notice.messages:
                continue
            del self.notices[id]
            remaining_ids = tuple(key for key in notice.messages if key != message)
            if remaining_ids:
                new_id = reply_id(self.session, id, f"without {message}")
                self.notices[new_id] = notice._replace(messages=remaining_ids)

    def _count_failures(self, sender: str, *, failed: int = 0, notified: int = 0) -> None:
        counts = self.failures.get(sender, Failures())
        self.failures[sender] = Failures(counts.failed + failed, counts.notified + notified)

    def _apply_cancelled(self, event: Event) -> None:
        self.final_states.update(dict.fromkeys(event["messages"], "cancelled"))

    def _apply_paused(self, event: Event) -> None:
        self.paused.add(event.get("series") or "")

    def _apply_resumed(self, event: Event) -> None:
        self.paused.discard(event.get("series") or "")

    def _apply_changed(self, event: Event) -> None:
        """Change the last occurrence of a series. An event for an unknown series is kept."""
        id = self.series.get(event["series"])
        if id is None:
            self.unknown_events.append(event)
            return
        if "prompt" in event:
            self._change_message(id, content=event["prompt"])
        changes = {name: event[name] for name in RECURRENCE_FIELDS if name in event}
        if changes:
            recurrence = self.messages[id].event.get("recurrence") or {}
            self._change_message(id, recurrence=recurrence | changes)

    def _apply_attempt(self, event: Event) -> None:
        id = event["message"]
        self.attempts[id] = DeliveryAttempts(
            failed=event["attempts"],
            next_at=timestamps.sortable(event["nextAt"]),
            round=self._round(id),
        )

    def _round(self, id: str) -> int:
        return self.attempts.get(id, DeliveryAttempts()).round

    def _end_delivery(self, event: Event, outcomes: dict[str, str], field_name: str) -> None:
        """Record the end of a delivery: in `outcomes`, or as the next round if it recurs."""
        id = event["message"]
        next_time = timestamps.sortable(event.get("nextAt", ""))
        if next_time:
            self.attempts[id] = DeliveryAttempts(
                failed=0, next_at=next_time, round=self._round(id) + 1
            )
        else:
            outcomes[id] = event.get(field_name, "")
            self.attempts.pop(id, None)
            self.redeliver_ids.pop(id, None)
        self.notices.pop(id, None)

    def _apply_delivered(self, event: Event) -> None:
        notice = self.notices.get(event["message"])
        if notice is not None:
            self._count_failures(notice.sender, notified=len(notice.messages))
        self._end_delivery(event, self.delivered, "platformId")

    def _apply_undeliverable(self, event: Event) -> None:
        self._end_delivery(event, self.undeliverable, "reason")

    def _apply_destinations(self, event: Event) -> None:
        self.destinations = {name: dict(entry) for name, entry in event["destinations"].items()}

    def _apply_routing(self, event: Event) -> None:
        self.route = Route.from_json(event["route"])

    def _apply_compacted(self, event: Event) -> None:
        """Restore the state from the summary of a compaction."""
        self.highest_seq = max(self.highest_seq, event["seq"])
        self.finished_up_to_seq = max(self.finished_up_to_seq, event["settled"])
        self.compacted_digests.update(event["left"])
        self.final_states.update(event["ended"])
        self.delivered.update(event["delivered"])
        self.undeliverable.update(event["undeliverable"])
        self.redeliver_ids.update(dict.fromkeys(event["again"]))
        for id, attempts in event["attempts"].items():
            self.attempts[id] = DeliveryAttempts(*attempts)
        for id, (sender, ids, reason) in event["notices"].items():
            self.notices[id] = Notice(sender=sender, messages=tuple(ids), reason=reason)
        for sender, counts in event["failures"].items():
            self.failures[sender] = Failures(*counts)
        self.destinations.update(event["destinations"])
        self.route = Route.from_json(event["route"])
        self.paused.update(event["paused"])

    handlers: ClassVar[Mapping[str, Handler]] = {
        "message": Handler(events.IN_MESSAGE, _apply_message),
        "retry": Handler(events.RETRY, _apply_retry),
        "failed": Handler(events.FAILED, _apply_failed),
        "cancelled": Handler(events.CANCELLED, _apply_cancelled),
        "paused": Handler(events.PAUSED, _apply_paused),
        "resumed": Handler(events.RESUMED, _apply_resumed),
        "changed": Handler(events.CHANGED, _apply_changed),
        "attempt": Handler(events.ATTEMPT, _apply_attempt),
        "delivered": Handler(events.DELIVERED, _apply_delivered),
        "undeliverable": Handler(events.UNDELIVERABLE, _apply_undeliverable),
        "destinations": Handler(events.DESTINATIONS, _apply_destinations),
        "routing": Handler(events.ROUTING, _apply_routing),
        "compacted": Handler(events.IN_COMPACTED, _apply_compacted),
    }


@dataclass(frozen=True, slots=True)
class OutboundMessage:
    """A message of the worker.

    Attributes:
        event: Its event, as in the file.
        id: Its id.
        seq: Its number in the common order of both files.
        kind: Its kind, as in `events.OutboundKind`.
        in_reply_to: The inbound message that it answers. Empty: none.
        due: The time when it becomes due. Empty: at once. A recurring message is due at its
            first time.
        target: The message that it changes or reacts to. Empty: none.
    """

    event: Event = field(repr=False)
    id: str
    seq: int
    kind: str
    in_reply_to: str
    due: str
    target: str

    @classmethod
    def from_event(cls, event: Event) -> OutboundMessage:
        """Return the message of an event that passes `events.OUT_MESSAGE`, or that
        `events.outbound_message` made.
        """
        due = event.get("deliverAfter", "")
        if not due and "recurrence" in event:
            due = next_at(event["recurrence"], event["timestamp"])
        return cls(
            event=event,
            id=event["id"],
            seq=event.get("seq", 0),
            kind=event.get("kind", "chat"),
            in_reply_to=event.get("inReplyTo", ""),
            due=timestamps.sortable(due),
            target=event.get("target", ""),
        )

    @property
    def route_fields(self) -> list[str]:
        """The fields that decide where it goes: the message that it answers, its destination and
        its thread. An empty one is missing.
        """
        return [self.in_reply_to, str(self.event.get("to", "")), str(self.event.get("thread", ""))]


class Acknowledgement(NamedTuple):
    """What a worker last recorded about an inbound message.

    Attributes:
        state: The state of the message, as in `events.AckState`.
        tries: The failed tries of the message at that time.
        instance: The instance of the worker.
        at: The time of the record.
        batch: The message that names the batch in which it was claimed.
        error: The error of the worker. Empty: none, or unknown.
    """

    state: str
    tries: int
    instance: str
    at: str
    batch: str
    error: str = ""


class ToolInUse(NamedTuple):
    """The tool that the agent uses now, and its limit in seconds (0: none)."""

    name: str
    limit_s: float = 0


@dataclass
class OutboundState(FileState):
    """The state that the events of an outbound file add up to.

    Attributes:
        messages: The messages of the file by id, oldest first.
        compacted_routes: By id, the `OutboundMessage.route_fields` of the last messages that a
            compaction removed.
        acks: The last acknowledgement of each inbound message that a worker got.
        claims: The acknowledgements whose state is not `completed`.
        tool: The tool that the agent uses now.
        state: The values that the worker keeps, by provider (the name of the program behind the
            worker) and key.
    """

    messages: dict[str, OutboundMessage] = field(default_factory=dict)
    compacted_routes: dict[str, list[str]] = field(default_factory=dict)
    acks: dict[str, Acknowledgement] = field(default_factory=dict)
    claims: dict[str, Acknowledgement] = field(default_factory=dict)
    tool: ToolInUse | None = None
    state: dict[str, dict[str, Any]] = field(default_factory=dict)

    def _apply_message(self, event: Event) -> None:
        message = OutboundMessage.from_event(event)
        if message.id in self.messages or message.id in self.compacted_routes:
            return
        self.messages[message.id] = message
        self.unfinished_ids[message.id] = None
        self.highest_seq = max(self.highest_seq, message.seq)

    def _acknowledge(self, id: str, ack: Acknowledgement) -> None:
        """Record an acknowledgement of a message, unless an earlier one is final."""
        last_ack = self.acks.get(id)
        if last_ack is not None:
            if last_ack.state == "completed":
                return
            # Only a person's retry lets a failed message be claimed again. It raises the tries.
            if last_ack.state == "failed" and ack.tries <= last_ack.tries:
                return
        self.acks[id] = ack
        self.claims[id] = ack
        if ack.state == "completed":
            del self.claims[id]

    def _apply_ack(self, event: Event) -> None:
        for id, tries in event["messages"].items():
            batch = event.get("batch", "")
            if not batch:
                last_ack = self.acks.get(id)
                batch = last_ack.batch if last_ack else id
            ack = Acknowledgement(
                state=event["state"],
                tries=tries,
                instance=event.get("instance", ""),
                at=event.get("timestamp", ""),
                batch=batch,
                error=event.get("error", ""),
            )
            self._acknowledge(id, ack)

    def _apply_tool(self, event: Event) -> None:
        name = event.get("tool")
        self.tool = ToolInUse(name, event.get("limitS", 0)) if name else None

    def _apply_state(self, event: Event) -> None:
        values = self.state.setdefault(event.get("provider", ""), {})
        if event.get("value") is None:
            values.pop(event["key"], None)
        else:
            values[event["key"]] = event["value"]

    def _apply_cleared(self, event: Event) -> None:
        self.state.pop(event.get("provider", ""), None)

    def _apply_compacted(self, event: Event) -> None:
        """Restore the state from the summary of a compaction."""
        self.highest_seq = max(self.highest_seq, event["seq"])
        self.compacted_routes.update(event["said"])
        for id, ack in event["acks"].items():
            self._acknowledge(id, Acknowledgement(*ack))
        self.tool = ToolInUse(*event["tool"]) if event["tool"] else None
        self.state = {provider: dict(values) for provider, values in event["state"].items()}

    handlers: ClassVar[Mapping[str, Handler]] = {
        "message": Handler(events.OUT_MESSAGE, _apply_message),
        "ack": Handler(events.ACK, _apply_ack),
        "tool": Handler(events.TOOL, _apply_tool),
        "state": Handler(events.STATE, _apply_state),
        "cleared": Handler(events.CLEARED, _apply_cleared),
        "compacted": Handler(events.OUT_COMPACTED, _apply_compacted),
    }


MessageStatus = Literal["pending", "processing", "released", "completed", "failed", "cancelled"]
FINAL = frozenset({"completed", "failed", "cancelled"})
#: How many finished messages keep their ids in a compacted file, so that a copy of one is not taken
#: for a new message.
WINDOW = 1000
#: How many idle messages, and how many events that only people read, a compacted file keeps.
MAX_KEPT = 100
_T = TypeVar("_T")


class SessionState(NamedTuple):
    """The states of both files of a session.

    Attributes:
        inbound: The state of the file that the host writes.
        outbound: The state of the file that the worker writes.
    """

    inbound: InboundState
    outbound: OutboundState

    @property
    def session(self) -> str:
        """The session's id."""
        return self.inbound.session

    @property
    def highest_seq(self) -> int:
        """The highest number of a message in both files."""
        return max(self.inbound.highest_seq, self.outbound.highest_seq)

    def status(self, id: str) -> MessageStatus:
        """Return the status of an inbound message.

        Raises NotFound if neither the file nor the window of compacted messages has the id.
        """
        message = self.inbound.messages.get(id)
        ack = self.outbound.acks.get(id)
        final_state = self.inbound.final_states.get(id)
        if message is None and id not in self.inbound.compacted_digests:
            raise NotFound(f"no message {id} in session {self.session}", id=id)
        if ack is not None and ack.state == "completed":
            return "completed"  # Even if it was cancelled at the same time: the answer exists.
        if final_state:
            return "cancelled" if final_state == "cancelled" else "failed"
        if message is None:
            return "completed"  # A compaction drops the state of completed messages.
        if ack is None:
            return "pending"
        # `again` has the tries at a person's retry. Failures of earlier tries do not count then.
        if ack.state == "failed" and ack.tries >= message.event.get("again", 0):
            return "failed"
        if ack.tries < message.tries:
            return "pending"  # The host withdrew the claim of an earlier try.
        return "processing" if ack.state == "processing" else "released"

    def unfinished_messages(self) -> Iterator[InboundMessage]:
        """Yield the inbound messages without a final state, oldest first.

        Removes finished ids from `unfinished_ids`, so that the next call is faster.
        """
        for id in list(self.inbound.unfinished_ids):
            if self.status(id) in FINAL:
                self.inbound.unfinished_ids.pop(id, None)
            else:
                yield self.inbound.messages[id]

    def undelivered_messages(self) -> Iterator[OutboundMessage]:
        """Yield the outbound messages that are neither delivered nor given up, oldest first.

        Messages whose delivery a person wants again come last. Removes finished ids from
        `unfinished_ids`, so that the next call is faster.
        """
        inbound, outbound = self
        reopened_ids = inbound.redeliver_ids.keys() - outbound.unfinished_ids.keys()
        reopened_ids &= outbound.messages.keys()
        for id in [*outbound.unfinished_ids, *reopened_ids]:
            message = outbound.messages[id]
            if self._is_delivery_over(message):
                outbound.unfinished_ids.pop(id, None)
            else:
                yield message

    def _is_delivery_over(self, message: OutboundMessage) -> bool:
        inbound = self.inbound
        if message.id in inbound.delivered or message.id in inbound.undeliverable:
            return True
        if inbound.final_states.get(message.id) == "cancelled":
            return True
        was_finished_before_compaction = 0 < message.seq <= inbound.finished_up_to_seq
        return was_finished_before_compaction and message.id not in inbound.redeliver_ids

    def notices(self) -> dict[str, Notice]:
        """Return the notices to senders that are not delivered, by their ids.

        They leave out messages that were answered after all.
        """
        notices = {}
        for id, notice in self.inbound.notices.items():
            failed_ids = []
            for message_id in notice.messages:
                is_in_file = message_id in self.inbound.messages
                if is_in_file and self.status(message_id) == "failed":
                    failed_ids.append(message_id)
            if failed_ids:
                notices[id] = notice._replace(messages=tuple(failed_ids))
        return notices

    def compacted_inbound(self, now: str) -> list[Event]:
        """Return the events of the compacted inbound file: a summary, and what is unfinished.

        Cost: proportional to the file.
        """
        inbound, outbound = self
        undelivered = list(self.undelivered_messages())
        notices = self.notices()
        # The outbound messages up to this number need no entry of their own in the summary.
        finished_up_to_seq = min(
            (message.seq - 1 for message in undelivered), default=outbound.highest_seq
        )
        later_outbound_ids = self._outbound_ids_after(finished_up_to_seq)
        removed = self._removable_messages(undelivered, notices)
        kept_messages = [
            message for message in inbound.messages.values() if message.id not in removed
        ]
        removed_digests = {id: digest(inbound.messages[id].event) for id in reversed(removed)}
        digests = _last_entries(inbound.compacted_digests | removed_digests, ())
        remaining_ids = (
            digests.keys() | {message.id for message in kept_messages} | later_outbound_ids
        )
        final_states = _final_states_after(inbound.final_states, removed)
        attempts = {
            id: list(attempt)
            for id, attempt in inbound.attempts.items()
            if id in outbound.messages or id in inbound.notices
        }
        failures = _last_entries(inbound.failures, ())
        summary = _summary(
            inbound,
            now,
            {
                "left": digests,
                "ended": {id: state for id, state in final_states.items() if id in remaining_ids},
                "settled": max(finished_up_to_seq, inbound.finished_up_to_seq),
                "delivered": _last_entries(inbound.delivered, later_outbound_ids),
                "undeliverable": _last_entries(inbound.undeliverable, later_outbound_ids),
                "again": list(inbound.redeliver_ids),
                "attempts": attempts,
                "notices": {
                    id: [notice.sender, list(notice.messages), notice.reason]
                    for id, notice in notices.items()
                },
                "failures": {sender: list(counts) for sender, counts in failures.items()},
                "destinations": inbound.destinations,
                "route": inbound.route.as_json() if inbound.route else None,
                "paused": sorted(inbound.paused & ({""} | inbound.series.keys())),
            },
        )
        message_events = [message.event for message in kept_messages]
        return [summary, *message_events, *inbound.unknown_events[-MAX_KEPT:]]

    def _outbound_ids_after(self, seq: int) -> set[str]:
        """Return the ids of the outbound messages with a higher number."""
        return {message.id for message in self.outbound.messages.values() if message.seq > seq}

    def _removable_messages(
        self, undelivered: Iterable[OutboundMessage], notices: Mapping[str, Notice]
    ) -> dict[str, MessageStatus]:
        """Return the final states of the messages that a compacted inbound file leaves out, newest
        first.

        These are the finished messages that nothing refers to, and all but the newest idle ones.
        """
        inbound = self.inbound
        needed_ids = {message.in_reply_to for message in undelivered}
        for notice in notices.values():
            needed_ids.update(notice.messages)
        for id in inbound.series.values():  # The next occurrence is made from the last one.
            occurrence = inbound.messages.get(id)
            recurs = occurrence is not None and "recurrence" in occurrence.event
            if recurs and inbound.final_states.get(id) != "cancelled":
                needed_ids.add(id)
        removable: dict[str, MessageStatus] = {}
        idle_count = 0
        for message in reversed(inbound.messages.values()):
            state = self.status(message.id)
            if state in FINAL:
                # The host has yet to record a failure that only the worker recorded.
                is_unrecorded = state == "failed" and message.id not in inbound.final_states
                if message.id not in needed_ids and not is_unrecorded:
                    removable[message.id] = state
            elif state == "pending" and message.is_idle:
                idle_count += 1
                if idle_count > MAX_KEPT:
                    removable[message.id] = "cancelled"
        return removable

    def compacted_outbound(self, now: str) -> list[Event]:
        """Return the events of the compacted outbound file: a summary, and what is undelivered.

        The acknowledgement of a message is removed if the message is not in the inbound file.
        Cost: proportional to the file.
        """
        inbound, outbound = self
        undelivered = {message.id: message for message in self.undelivered_messages()}
        routes = dict(outbound.compacted_routes)
        for id, message in outbound.messages.items():
            if id not in undelivered:
                routes[id] = message.route_fields
        needed_ids = [
            id for id, (in_reply_to, _, _) in routes.items() if in_reply_to in inbound.messages
        ]
        acks = {id: list(ack) for id, ack in outbound.acks.items() if id in inbound.messages}
        summary = _summary(
            outbound,
            now,
            {
                "said": _last_entries(routes, needed_ids),
                "acks": acks,
                "tool": list(outbound.tool) if outbound.tool else None,
                "state": outbound.state,
            },
        )
        message_events = [message.event for message in undelivered.values()]
        return [summary, *message_events, *outbound.unknown_events[-MAX_KEPT:]]


def digest(event: Event) -> str:
    """Return a digest of the content of a message."""
    values = [event.get(name) for name in ("content", "attachments", "question", "value")]
    return blake2b(orjson.dumps(values, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


def _summary(file_state: FileState, now: str, fields: Mapping[str, Any]) -> Event:
    """Return the event `compacted`, which replaces all events that a compaction removes."""
    event = {
        "role": "system",
        "content": "",
        "event": "compacted",
        "timestamp": now,
        "seq": file_state.highest_seq,
    }
    return event | dict(fields)


def _final_states_after(
    final_states: Mapping[str, str], removed: Mapping[str, MessageStatus]
) -> dict[str, str]:
    """Return the recorded final states together with those of removed messages.

    A completed one has no entry, because a removed message without an entry counts as completed.
    """
    new_states = dict(final_states)
    for id, state in removed.items():
        if state == "completed":
            new_states.pop(id, None)
        else:
            new_states[id] = state
    return new_states


def _last_entries(entries: dict[str, _T], needed_ids: Iterable[str]) -> dict[str, _T]:
    """Return the last `WINDOW` entries, and the earlier ones whose keys are in `needed_ids`."""
    window_start = len(entries) - WINDOW
    needed_set = frozenset(needed_ids)
    return {
        id: entry
        for index, (id, entry) in enumerate(entries.items())
        if index >= window_start or id in needed_set
    }
