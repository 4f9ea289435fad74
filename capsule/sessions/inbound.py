"""The fold of a session's inbound file: what the host wrote for the worker, and what it did with
the worker's messages.

What must stay true: an event that is applied again changes nothing. An event that is unknown, or of
which a field is wrong, is kept, and changes nothing. No file, no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from capsule import timestamps
from capsule.sessions import fields
from capsule.sessions.events import OF_TIME, Event, Route, reply_id
from capsule.sessions.fields import Check


class Handler(NamedTuple):
    """What is done with the events of one name."""

    is_valid: Check  # Whether an event can be applied.
    apply: Callable[[Any, Event], None]  # Apply an event to a fold.


@dataclass
class Fold:
    """What the events of a file say."""

    handlers: ClassVar[Mapping[str, Handler]]  # By the names of events.
    session: str = ""
    open: dict[str, None] = field(default_factory=dict)  # The ids of messages that may not be done.
    highest: int = 0  # The highest number of a message.
    others: list[Event] = field(default_factory=list)  # Events without a meaning for the fold.
    seen: set[str] = field(default_factory=set, repr=False)  # The ids of all events.

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
        if id in self.seen:
            return
        handler = self._handler(event)
        if handler is not None and handler.is_valid(event):
            handler.apply(self, event)
        else:
            self.others.append(event)
        if id:
            self.seen.add(id)


@dataclass(frozen=True, slots=True)
class InMessage:
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
    def of(cls, event: Event) -> InMessage:
        """Return the message of an event that passes `fields.IN_MESSAGE`."""
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


class Attempts(NamedTuple):
    """How far the delivery of a message out came."""

    failed: int = 0  # The attempts of this occurrence that failed.
    next_at: str = ""  # When the next one is due; empty: at once.
    round: int = 0  # How many occurrences of a recurring message are done.


@dataclass
class Inbound(Fold):
    """What the events of an inbound file say."""

    messages: dict[str, InMessage] = field(
        default_factory=dict
    )  # Of the file, by id, oldest first.
    left: dict[str, str] = field(
        default_factory=dict
    )  # Digests of the last messages that a compaction took out, by id.
    ended: dict[str, str] = field(
        default_factory=dict
    )  # The ids that the host ended, as `failed` or `cancelled`.
    notices: dict[str, Notice] = field(
        default_factory=dict
    )  # The notices to deliver, by their ids.
    failures: dict[str, Failures] = field(
        default_factory=dict
    )  # By sender, since the session began.
    settled: int = (
        0  # Up to which number a compaction found all messages out delivered or given up.
    )
    delivered: dict[str, str] = field(
        default_factory=dict
    )  # The ids on their platforms of messages out.
    undeliverable: dict[str, str] = field(
        default_factory=dict
    )  # Why messages out could not be delivered.
    again: dict[str, None] = field(
        default_factory=dict
    )  # Messages out that a person wants delivered after all.
    attempts: dict[str, Attempts] = field(default_factory=dict)  # How far the deliveries came.
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
        message = InMessage.of(event)
        if message.id not in self.messages and message.id not in self.left:
            self.messages[message.id] = message
            self.open[message.id] = None
            self.highest = max(self.highest, message.seq)
            if message.series:
                self.series[message.series] = message.id

    def _change(self, id: str, **fields: Any) -> None:
        if id in self.messages:
            self.messages[id] = InMessage.of(self.messages[id].event | fields)

    def _apply_retry(self, event: Event) -> None:
        for id, to in event["messages"].items():
            if id not in self.messages:
                if event.get("again"):
                    self.undeliverable.pop(id, None)
                    self.attempts.pop(id, None)
                    self.again[id] = None
                continue
            tries = max(self.messages[id].tries, to["tries"])
            self._change(id, tries=tries, processAfter=to["processAfter"], waits=True)
            if event.get("again") and self.ended.get(id) != "cancelled":
                self._change(id, again=tries)
                self.ended.pop(id, None)
                self._leave_out_of_notices(id)
                self.open = {key: None for key in self.messages if key == id or key in self.open}

    def _apply_failed(self, event: Event) -> None:
        by_sender = defaultdict[tuple[Route, str], list[str]](list)
        for id in event["messages"]:
            if id in self.ended:
                continue
            self.ended[id] = "failed"
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
        self.ended.update(dict.fromkeys(event["messages"], "cancelled"))

    def _apply_paused(self, event: Event) -> None:
        self.paused.add(event.get("series") or "")

    def _apply_resumed(self, event: Event) -> None:
        self.paused.discard(event.get("series") or "")

    def _apply_changed(self, event: Event) -> None:
        id = self.series.get(event["series"])
        if id is None:
            self.others.append(event)
            return
        if "prompt" in event:
            self._change(id, content=event["prompt"])
        of_time = {name: event[name] for name in OF_TIME if name in event}
        if of_time:
            recurrence = self.messages[id].event.get("recurrence") or {}
            self._change(id, recurrence=recurrence | of_time)

    def _apply_attempt(self, event: Event) -> None:
        id = event["message"]
        before = self.attempts.get(id, Attempts())
        self.attempts[id] = Attempts(
            event["attempts"], timestamps.sortable(event["nextAt"]), before.round
        )

    def _settle(self, event: Event, settled: dict[str, str], word: str) -> None:
        id = event["message"]
        next_at = timestamps.sortable(event.get("nextAt", ""))
        if next_at:
            self.attempts[id] = Attempts(0, next_at, self.attempts.get(id, Attempts()).round + 1)
        else:
            settled[id] = event.get(word, "")
            self.attempts.pop(id, None)
            self.again.pop(id, None)
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
        self.highest = max(self.highest, event["seq"])
        self.settled = max(self.settled, event["settled"])
        self.left.update(event["left"])
        self.ended.update(event["ended"])
        self.delivered.update(event["delivered"])
        self.undeliverable.update(event["undeliverable"])
        self.again.update(dict.fromkeys(event["again"]))
        self.attempts.update({id: Attempts(*tried) for id, tried in event["attempts"].items()})
        for id, (sender, ids, reason) in event["notices"].items():
            self.notices[id] = Notice(sender, tuple(ids), reason)
        self.failures.update(
            {sender: Failures(*counts) for sender, counts in event["failures"].items()}
        )
        self.destinations.update(event["destinations"])
        self.route = Route.of(event["route"])
        self.paused.update(event["paused"])

    handlers: ClassVar[Mapping[str, Handler]] = {
        "message": Handler(fields.IN_MESSAGE, _apply_message),
        "retry": Handler(fields.RETRY, _apply_retry),
        "failed": Handler(fields.FAILED, _apply_failed),
        "cancelled": Handler(fields.CANCELLED, _apply_cancelled),
        "paused": Handler(fields.PAUSED, _apply_paused),
        "resumed": Handler(fields.RESUMED, _apply_resumed),
        "changed": Handler(fields.CHANGED, _apply_changed),
        "attempt": Handler(fields.ATTEMPT, _apply_attempt),
        "delivered": Handler(fields.DELIVERED, _apply_delivered),
        "undeliverable": Handler(fields.UNDELIVERABLE, _apply_undeliverable),
        "destinations": Handler(fields.DESTINATIONS, _apply_destinations),
        "routing": Handler(fields.ROUTING, _apply_routing),
        "compacted": Handler(fields.IN_COMPACTED, _apply_compacted),
    }
