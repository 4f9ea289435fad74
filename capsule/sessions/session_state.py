"""The state of a session: what the events of its two files add up to.

The host writes the inbound file: messages for the worker, and what became of the worker's
messages. The worker writes the outbound file: its messages, and what it did with those that it
got. `InboundState` and `OutboundState` each apply the events of one file. `SessionState` combines
both, answers what became of a message, and makes the events of compacted files.

Invariants:
- An event that is applied twice changes nothing the second time.
- An event that is unknown, or has a wrong field, is kept and changes nothing.
- A final state of a message stays final, whatever comes later.
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
from capsule.sessions.cron import next_at
from capsule.sessions.events import RECURRENCE_FIELDS, Check, Event, Route, reply_id


class Handler(NamedTuple):
    """What is done with the events of one name."""

    is_valid: Check  # Whether an event can be applied.
    apply: Callable[[Any, Event], None]  # Apply an event to a fold.


@dataclass
class FileState:
    """What the events of a file say."""

    handlers: ClassVar[Mapping[str, Handler]]  # By the names of events.
    session: str = ""
    unfinished_ids: dict[str, None] = field(
        default_factory=dict
    )  # The ids of messages that may not be done.
    highest_seq: int = 0  # The highest number of a message.
    unknown_events: list[Event] = field(
        default_factory=list
    )  # Events without a meaning for the fold.
    event_ids: set[str] = field(default_factory=set, repr=False)  # The ids of all events.

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
    """A message for the worker."""

    event: Event = field(repr=False)  # It as it stands in the file, with what became of it.
    id: str
    seq: int  # Its place in the order of both files.
    kind: str
    wakes: bool  # Whether it wakes the worker.
    due: str  # From when on it is due; empty: at once.
    tries: int  # How often it was tried in vain.
    waits: bool  # Whether it is due later because it was tried in vain.
    series: str  # The id of the series that it is an occurrence of; empty: none.

    @classmethod
    def of(cls, event: Event) -> InboundMessage:
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
        """Whether nothing picks it by itself."""
        return self.kind == "system" or not self.wakes

    @property
    def route(self) -> Route | None:
        """Where it came from."""
        return Route.of(self.event.get("route"))

    @property
    def sender(self) -> str:
        """Who sent it. Empty: the host."""
        return str(self.event.get("from", ""))


class Notice(NamedTuple):
    """What one sender is to be told about messages that failed together."""

    sender: str
    messages: tuple[str, ...]  # The ids of the messages, all of this sender and one route.
    reason: str


class Failures(NamedTuple):
    """How many messages of one sender failed, and of how many of them the sender was told."""

    failed: int = 0
    told: int = 0


class DeliveryAttempts(NamedTuple):
    """How far the delivery of a message out came."""

    failed: int = 0  # The attempts of this occurrence that failed.
    next_at: str = ""  # When the next one is due; empty: at once.
    round: int = 0  # How many occurrences of a recurring message are done.


@dataclass
class InboundState(FileState):
    """What the events of an inbound file say."""

    messages: dict[str, InboundMessage] = field(
        default_factory=dict
    )  # Of the file, by id, oldest first.
    compacted_digests: dict[str, str] = field(
        default_factory=dict
    )  # Digests of the last messages that a compaction took out, by id.
    final_states: dict[str, str] = field(
        default_factory=dict
    )  # The ids that the host ended, as `failed` or `cancelled`.
    notices: dict[str, Notice] = field(
        default_factory=dict
    )  # The notices to deliver, by their ids.
    failures: dict[str, Failures] = field(
        default_factory=dict
    )  # By sender, since the session began.
    finished_up_to_seq: int = (
        0  # Up to which number a compaction found all messages out delivered or given up.
    )
    delivered: dict[str, str] = field(
        default_factory=dict
    )  # The ids on their platforms of messages out.
    undeliverable: dict[str, str] = field(
        default_factory=dict
    )  # Why messages out could not be delivered.
    redeliver_ids: dict[str, None] = field(
        default_factory=dict
    )  # Messages out that a person wants delivered after all.
    attempts: dict[str, DeliveryAttempts] = field(
        default_factory=dict
    )  # How far the deliveries came.
    destinations: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # Those of the worker, by names.
    route: Route | None = (
        None  # The default route: it takes a message of the worker that names no destination.
    )
    series: dict[str, str] = field(
        default_factory=dict
    )  # The id of the last occurrence of each series.
    paused: set[str] = field(
        default_factory=set
    )  # The series that pause; the empty one is the whole session.

    def _apply_message(self, event: Event) -> None:
        message = InboundMessage.of(event)
        if message.id not in self.messages and message.id not in self.compacted_digests:
            self.messages[message.id] = message
            self.unfinished_ids[message.id] = None
            self.highest_seq = max(self.highest_seq, message.seq)
            if message.series:
                self.series[message.series] = message.id

    def _change(self, id: str, **fields: Any) -> None:
        if id in self.messages:
            self.messages[id] = InboundMessage.of(self.messages[id].event | fields)

    def _apply_retry(self, event: Event) -> None:
        for id, to in event["messages"].items():
            if id not in self.messages:
                if event.get("again"):
                    self.undeliverable.pop(id, None)
                    self.attempts.pop(id, None)
                    self.redeliver_ids[id] = None
                continue
            tries = max(self.messages[id].tries, to["tries"])
            self._change(id, tries=tries, processAfter=to["processAfter"], waits=True)
            if event.get("again") and self.final_states.get(id) != "cancelled":
                self._change(id, again=tries)
                self.final_states.pop(id, None)
                self._leave_out_of_notices(id)
                self.unfinished_ids = {
                    key: None for key in self.messages if key == id or key in self.unfinished_ids
                }

    def _apply_failed(self, event: Event) -> None:
        by_sender = defaultdict[tuple[Route, str], list[str]](list)
        for id in event["messages"]:
            if id in self.final_states:
                continue
            self.final_states[id] = "failed"
            message = self.messages.get(id)
            if message is None:
                continue
            self._count(message.sender, failed=1)
            if message.route is not None:
                by_sender[message.route, message.sender].append(id)
        for (_, sender), ids in by_sender.items():
            tries = self.messages[ids[0]].tries
            notice_id = reply_id(self.session, ids[0], f"failed {tries}")
            self.notices[notice_id] = Notice(sender, tuple(ids), event.get("reason", ""))

    def _leave_out_of_notices(self, message: str) -> None:
        """Note that no sender is to be told of a message: it is tried again.

        A notice that named others besides gets another id, as it says something else now.
        """
        for id, notice in list(self.notices.items()):
            if message in notice.messages:
                del self.notices[id]
                others = tuple(other for other in notice.messages if other != message)
                if others:
                    other_id = reply_id(self.session, id, f"without {message}")
                    self.notices[other_id] = notice._replace(messages=others)

    def _count(self, sender: str, *, failed: int = 0, told: int = 0) -> None:
        before = self.failures.get(sender, Failures())
        self.failures[sender] = Failures(before.failed + failed, before.told + told)

    def _apply_cancelled(self, event: Event) -> None:
        self.final_states.update(dict.fromkeys(event["messages"], "cancelled"))

    def _apply_paused(self, event: Event) -> None:
        self.paused.add(event.get("series") or "")

    def _apply_resumed(self, event: Event) -> None:
        self.paused.discard(event.get("series") or "")

    def _apply_changed(self, event: Event) -> None:
        id = self.series.get(event["series"])
        if id is None:
            self.unknown_events.append(event)
            return
        if "prompt" in event:
            self._change(id, content=event["prompt"])
        of_time = {name: event[name] for name in RECURRENCE_FIELDS if name in event}
        if of_time:
            recurrence = self.messages[id].event.get("recurrence") or {}
            self._change(id, recurrence=recurrence | of_time)

    def _apply_attempt(self, event: Event) -> None:
        id = event["message"]
        before = self.attempts.get(id, DeliveryAttempts())
        self.attempts[id] = DeliveryAttempts(
            event["attempts"], timestamps.sortable(event["nextAt"]), before.round
        )

    def _settle(self, event: Event, settled: dict[str, str], word: str) -> None:
        id = event["message"]
        next_at = timestamps.sortable(event.get("nextAt", ""))
        if next_at:
            self.attempts[id] = DeliveryAttempts(
                0, next_at, self.attempts.get(id, DeliveryAttempts()).round + 1
            )
        else:
            settled[id] = event.get(word, "")
            self.attempts.pop(id, None)
            self.redeliver_ids.pop(id, None)
        self.notices.pop(id, None)

    def _apply_delivered(self, event: Event) -> None:
        notice = self.notices.get(event["message"])
        if notice is not None:
            self._count(notice.sender, told=len(notice.messages))
        self._settle(event, self.delivered, "platformId")

    def _apply_undeliverable(self, event: Event) -> None:
        self._settle(event, self.undeliverable, "reason")

    def _apply_destinations(self, event: Event) -> None:
        self.destinations = {name: dict(entry) for name, entry in event["destinations"].items()}

    def _apply_routing(self, event: Event) -> None:
        self.route = Route.of(event["route"])

    def _apply_compacted(self, event: Event) -> None:
        self.highest_seq = max(self.highest_seq, event["seq"])
        self.finished_up_to_seq = max(self.finished_up_to_seq, event["settled"])
        self.compacted_digests.update(event["left"])
        self.final_states.update(event["ended"])
        self.delivered.update(event["delivered"])
        self.undeliverable.update(event["undeliverable"])
        self.redeliver_ids.update(dict.fromkeys(event["again"]))
        self.attempts.update(
            {id: DeliveryAttempts(*tried) for id, tried in event["attempts"].items()}
        )
        for id, (sender, ids, reason) in event["notices"].items():
            self.notices[id] = Notice(sender, tuple(ids), reason)
        self.failures.update(
            {sender: Failures(*counts) for sender, counts in event["failures"].items()}
        )
        self.destinations.update(event["destinations"])
        self.route = Route.of(event["route"])
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
    """What the worker said."""

    event: Event = field(repr=False)  # It as it stands in the file.
    id: str
    seq: int  # Its place in the order of both files.
    kind: str
    in_reply_to: str  # The message that it answers; empty: none.
    due: str  # From when on it is due; empty: at once. One that recurs is due at its first time.
    target: str  # The message that it changes or reacts to; empty: none.

    @classmethod
    def of(cls, event: Event) -> OutboundMessage:
        """Return the message of an event that passes `events.OUT_MESSAGE`, or
        of `events.outgoing`.
        """
        after = event.get("deliverAfter", "")
        if not after and "recurrence" in event:
            after = next_at(event["recurrence"], event["timestamp"])
        return cls(
            event=event,
            id=event["id"],
            seq=event.get("seq", 0),
            kind=event.get("kind", "chat"),
            in_reply_to=event.get("inReplyTo", ""),
            due=timestamps.sortable(after),
            target=event.get("target", ""),
        )

    @property
    def where(self) -> list[str]:
        """What tells where it went: the message that it answers, its destination and its thread;
        empty ones: none.
        """
        return [self.in_reply_to, str(self.event.get("to", "")), str(self.event.get("thread", ""))]


class Acknowledgement(NamedTuple):
    """The last word of a worker about a message."""

    state: str  # As in the event.
    tries: int  # The tries of the message at that time.
    instance: str  # The worker.
    at: str  # When it said so.
    batch: str  # The message that names the batch in which it was claimed.
    error: str = ""  # What failed; empty: nothing, or it is unknown.


class ToolInUse(NamedTuple):
    """The tool that the agent uses now."""

    name: str
    limit_s: float = 0  # 0: none.


@dataclass
class OutboundState(FileState):
    """What the events of an outbound file say."""

    messages: dict[str, OutboundMessage] = field(
        default_factory=dict
    )  # Of the file, by id, oldest first.
    #: Where each of the last messages went that a compaction took out, as `OutboundMessage.where`.
    compacted_routes: dict[str, list[str]] = field(default_factory=dict)
    acks: dict[str, Acknowledgement] = field(
        default_factory=dict
    )  # The last one for each message that the worker got.
    claims: dict[str, Acknowledgement] = field(
        default_factory=dict
    )  # Those of them that are not `completed`.
    tool: ToolInUse | None = None
    state: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # What the worker keeps, by provider and key.

    def _apply_message(self, event: Event) -> None:
        message = OutboundMessage.of(event)
        if message.id not in self.messages and message.id not in self.compacted_routes:
            self.messages[message.id] = message
            self.unfinished_ids[message.id] = None
            self.highest_seq = max(self.highest_seq, message.seq)

    def _put(self, id: str, ack: Acknowledgement) -> None:
        before = self.acks.get(id)
        # A message that failed is claimed again only at a person's word, and has more tries then.
        is_final = before is not None and before.state in ("completed", "failed")
        if (
            before is None
            or not is_final
            or (before.state == "failed" and ack.tries > before.tries)
        ):
            self.acks[id] = self.claims[id] = ack
            if ack.state == "completed":
                del self.claims[id]

    def _apply_ack(self, event: Event) -> None:
        for id, tries in event["messages"].items():
            batch = event.get("batch", "")
            if not batch:
                before = self.acks.get(id)
                batch = before.batch if before else id
            self._put(
                id,
                Acknowledgement(
                    state=event["state"],
                    tries=tries,
                    instance=event.get("instance", ""),
                    at=event.get("timestamp", ""),
                    batch=batch,
                    error=event.get("error", ""),
                ),
            )

    def _apply_tool(self, event: Event) -> None:
        name = event.get("tool")
        self.tool = ToolInUse(name, event.get("limitS", 0)) if name else None

    def _apply_state(self, event: Event) -> None:
        kept = self.state.setdefault(event.get("provider", ""), {})
        if event.get("value") is None:
            kept.pop(event["key"], None)
        else:
            kept[event["key"]] = event["value"]

    def _apply_cleared(self, event: Event) -> None:
        self.state.pop(event.get("provider", ""), None)

    def _apply_compacted(self, event: Event) -> None:
        self.highest_seq = max(self.highest_seq, event["seq"])
        self.compacted_routes.update(event["said"])
        for id, ack in event["acks"].items():
            self._put(id, Acknowledgement(*ack))
        self.tool = ToolInUse(*event["tool"]) if event["tool"] else None
        self.state = {provider: dict(kept) for provider, kept in event["state"].items()}

    handlers: ClassVar[Mapping[str, Handler]] = {
        "message": Handler(events.OUT_MESSAGE, _apply_message),
        "ack": Handler(events.ACK, _apply_ack),
        "tool": Handler(events.TOOL, _apply_tool),
        "state": Handler(events.STATE, _apply_state),
        "cleared": Handler(events.CLEARED, _apply_cleared),
        "compacted": Handler(events.OUT_COMPACTED, _apply_compacted),
    }


#: The last three are final.
MessageStatus = Literal["pending", "processing", "released", "completed", "failed", "cancelled"]
FINAL = frozenset({"completed", "failed", "cancelled"})
#: How many messages that are done keep their ids in a compacted file, so that none is taken for a
#: new one.
WINDOW = 1000
#: How many messages that nothing picks, and how many events that are only read by people, a
#: compacted file keeps.
MAX_KEPT = 100
_T = TypeVar("_T")


class SessionState(NamedTuple):
    """The folds of both files of a session. Attributes: that of the host's, and that of the
    worker's.
    """

    inbound: InboundState
    outbound: OutboundState

    @property
    def session(self) -> str:
        """The session's id."""
        return self.inbound.session

    @property
    def highest_seq(self) -> int:
        """The highest number of a message."""
        return max(self.inbound.highest_seq, self.outbound.highest_seq)

    def status(self, id: str) -> MessageStatus:
        """What became of a message for the worker. Raises NotFound: there is none, or it is long
        gone.
        """
        inbound, ack = self.inbound, self.outbound.acks.get(id)
        message, ended = inbound.messages.get(id), inbound.final_states.get(id)
        if message is None and id not in inbound.compacted_digests:
            raise NotFound(f"no message {id} in session {inbound.session}", id=id)
        if ack is not None and ack.state == "completed":
            return "completed"  # Also if it was cancelled at the same time: its answer is there.
        if message is None or ended == "cancelled":
            return "cancelled" if ended == "cancelled" else "failed" if ended else "completed"
        if ended or (
            ack is not None and ack.state == "failed" and ack.tries >= message.event.get("again", 0)
        ):
            return "failed"
        if ack is None or ack.tries < message.tries:
            return "pending"
        return "processing" if ack.state == "processing" else "released"

    def unfinished_messages(self) -> Iterator[InboundMessage]:
        """The messages in that are not finished, oldest first. Forgets those that are: final stays
        final.
        """
        for id in list(self.inbound.unfinished_ids):
            if self.status(id) in FINAL:
                self.inbound.unfinished_ids.pop(id, None)
            else:
                yield self.inbound.messages[id]

    def undelivered_messages(self) -> Iterator[OutboundMessage]:
        """The messages out that are neither delivered nor given up, oldest first. Forgets the
        others.
        """
        inbound, outbound = self
        for id in [
            *outbound.unfinished_ids,
            *(
                inbound.redeliver_ids.keys() - outbound.unfinished_ids.keys()
                & outbound.messages.keys()
            ),
        ]:
            message = outbound.messages[id]
            is_settled = id in inbound.delivered or id in inbound.undeliverable
            is_settled |= (
                0 < message.seq <= inbound.finished_up_to_seq and id not in inbound.redeliver_ids
            )
            if is_settled or inbound.final_states.get(id) == "cancelled":
                outbound.unfinished_ids.pop(id, None)
            else:
                yield message

    def notices(self) -> dict[str, Notice]:
        """Return the notices to senders that are not delivered, by their ids.

        They leave out messages that were answered after all.
        """
        notices = {}
        for id, notice in self.inbound.notices.items():
            known = [message for message in notice.messages if message in self.inbound.messages]
            failed = tuple(message for message in known if self.status(message) == "failed")
            if failed:
                notices[id] = notice._replace(messages=failed)
        return notices

    def compacted_inbound(self, now: str) -> list[Event]:
        """The events that a compacted inbound file has at a time. Cost: proportional to
        the file.
        """
        inbound, outbound = self
        undelivered = list(self.undelivered_messages())
        settled = min((message.seq - 1 for message in undelivered), default=outbound.highest_seq)
        ahead = {message.id for message in outbound.messages.values() if message.seq > settled}
        heads, said = set(inbound.series.values()), {message.in_reply_to for message in undelivered}
        notices = self.notices()
        telling = {id for notice in notices.values() for id in notice.messages}
        kept: list[InboundMessage] = []
        gone: list[InboundMessage] = []
        ended, idle = dict(inbound.final_states), 0
        for message in reversed(inbound.messages.values()):
            state, stays = self.status(message.id), True
            if state in FINAL:
                recurs = message.id in heads and "recurrence" in message.event
                recurs &= ended.get(message.id) != "cancelled"
                is_noted = state != "failed" or message.id in inbound.final_states
                stays = recurs or not is_noted or message.id in said or message.id in telling
            elif state == "pending" and message.is_idle:
                idle, state = idle + 1, "cancelled"
                stays = idle <= MAX_KEPT
            (kept if stays else gone).append(message)
            if not stays and state == "completed":
                ended.pop(message.id, None)
            elif not stays:
                ended[message.id] = state
        left = _windowed(
            inbound.compacted_digests
            | {message.id: digest(message.event) for message in reversed(gone)},
            (),
        )
        known = left.keys() | {message.id for message in kept} | ahead
        snapshot = _snapshot(
            inbound,
            now,
            {
                "left": left,
                "ended": {id: state for id, state in ended.items() if id in known},
                "settled": max(settled, inbound.finished_up_to_seq),
                "delivered": _windowed(inbound.delivered, ahead),
                "undeliverable": _windowed(inbound.undeliverable, ahead),
                "again": list(inbound.redeliver_ids),
                "attempts": {
                    id: list(tried)
                    for id, tried in inbound.attempts.items()
                    if id in outbound.messages or id in inbound.notices
                },
                "notices": {
                    id: [notice.sender, list(notice.messages), notice.reason]
                    for id, notice in notices.items()
                },
                "failures": {
                    sender: list(counts)
                    for sender, counts in _windowed(inbound.failures, ()).items()
                },
                "destinations": inbound.destinations,
                "route": inbound.route.as_json() if inbound.route else None,
                "paused": sorted(inbound.paused & ({""} | inbound.series.keys())),
            },
        )
        return [
            snapshot,
            *(message.event for message in reversed(kept)),
            *inbound.unknown_events[-MAX_KEPT:],
        ]

    def compacted_outbound(self, now: str) -> list[Event]:
        """As `compacted_inbound`, of the outbound file: an ack leaves if its message left the
        inbound.
        """
        inbound, outbound = self
        kept = {message.id: message for message in self.undelivered_messages()}
        said = {id: message.where for id, message in outbound.messages.items() if id not in kept}
        said = outbound.compacted_routes | said
        snapshot = _snapshot(
            outbound,
            now,
            {
                "said": _windowed(
                    said, [id for id, where in said.items() if where[0] in inbound.messages]
                ),
                "acks": {
                    id: list(ack) for id, ack in outbound.acks.items() if id in inbound.messages
                },
                "tool": list(outbound.tool) if outbound.tool else None,
                "state": outbound.state,
            },
        )
        return [
            snapshot,
            *(message.event for message in kept.values()),
            *outbound.unknown_events[-MAX_KEPT:],
        ]


def digest(event: Event) -> str:
    """The digest of what a message says."""
    said = [event.get(name) for name in ("content", "attachments", "question", "value")]
    return blake2b(orjson.dumps(said, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


def _snapshot(fold: FileState, now: str, fields: Mapping[str, Any]) -> Event:
    begin = {
        "role": "system",
        "content": "",
        "event": "compacted",
        "timestamp": now,
        "seq": fold.highest_seq,
    }
    return begin | dict(fields)


def _windowed(values: dict[str, _T], live: Iterable[str]) -> dict[str, _T]:
    """The last of some values, and those whose keys are `live`."""
    cut, live = len(values) - WINDOW, frozenset(live)
    return {id: value for at, (id, value) in enumerate(values.items()) if at >= cut or id in live}
