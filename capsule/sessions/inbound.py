"""The fold of a session's inbound file: what the host told the worker, and what it did with what the worker said.

What must stay true: the events of a compacted file fold to a state that answers every question as before, and no more
of them stay than there is unfinished work, and windows of a fixed size. An event that is applied again changes nothing;
one that is unknown, or makes no sense, is kept and passed over. No file, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import orjson

from capsule import timestamps
from capsule.errors import InvalidInput, NotFound
from capsule.sessions.events import Event, Route, failed, reply_id

if TYPE_CHECKING:
    from capsule.sessions.outbound import Outbound

#: The last three are final.
Status = Literal["pending", "processing", "released", "completed", "failed", "cancelled"]
FINAL = frozenset({"completed", "failed", "cancelled"})
#: How many messages that are done keep their ids in a compacted file, so that none is taken for a new one.
WINDOW = 1000
#: How many messages that nothing picks, and how many events that are only read by people, a compacted file keeps.
KEPT = 100
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class InMessage:
    """A message for the worker.

    Attributes:
        event: It as it stands in the file, with what became of it.
        seq: Its place in the order of both files.
        wakes: Whether it wakes the worker.
        due: From when on it is due; empty: at once.
        tries: How often it was tried in vain.
        waits: Whether it is due later because it was tried in vain.
        series: The id of the series that it is an occurrence of; empty: none.
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
    def of(cls, event: Event) -> InMessage:
        """The message of an event. Raises KeyError or TypeError if it is none."""
        get = event.get
        after = get("processAfter")
        due = timestamps.sortable(after) if after else ""
        if not (isinstance(get("hops", 0), int) and isinstance(get("recurrence", {}), dict)):
            raise TypeError("this is no message")
        wakes = get("trigger") != "accumulate"
        id, seq, kind = str(event["id"]), int(get("seq", 0)), str(get("kind", "chat"))
        waits = get("waits") is True
        return cls(event, id, seq, kind, wakes, due, int(get("tries", 0)), waits, str(get("series", "")))

    @property
    def route(self) -> Route | None:
        """Where it came from."""
        return Route.of(self.event.get("route"))


@dataclass(frozen=True, slots=True)
class Attempts:
    """How far the delivery of a message out came.

    Attributes:
        count: The attempts of this occurrence that failed.
        next_at: When the next one is due; empty: at once.
        round: How many occurrences of a recurring message are done.
    """

    count: int = 0
    next_at: str = ""
    round: int = 0


@dataclass
class Inbound:
    """What the events of an inbound file say.

    Attributes:
        session: The session's id.
        messages: The messages of the file, by id, oldest first.
        left: The digests of the last messages that a compaction took out, by id.
        ended: The ids that the host ended, as `failed` or `cancelled`.
        open: The ids of messages that may not be finished.
        notices: Of each notice to a sender that is not delivered, its message and the reason.
        settled: Up to which number a compaction found all messages out delivered or given up.
        delivered: The ids on their platforms of messages out.
        undeliverable: Why messages out could not be delivered.
        again: The messages out that a person wants delivered after all.
        attempts: How far the deliveries came.
        destinations: The destinations that the worker may write to, by names.
        route: The default route: it takes a message of the worker that names no destination.
        series: The id of the last occurrence of each series.
        replaced: The ids of occurrences that another one of their series followed.
        idle: The ids of messages that nothing picks by themselves.
        paused: The series that pause; the empty one is the whole session.
        highest: The highest number of a message.
        others: Events without a meaning for the fold.
    """

    session: str = ""
    messages: dict[str, InMessage] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    open: dict[str, None] = field(default_factory=dict)
    notices: dict[str, tuple[str, str]] = field(default_factory=dict)
    settled: int = 0
    delivered: dict[str, str] = field(default_factory=dict)
    undeliverable: dict[str, str] = field(default_factory=dict)
    again: dict[str, None] = field(default_factory=dict)
    attempts: dict[str, Attempts] = field(default_factory=dict)
    destinations: dict[str, dict[str, Any]] = field(default_factory=dict)
    route: Route | None = None
    series: dict[str, str] = field(default_factory=dict)
    replaced: list[str] = field(default_factory=list)
    idle: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)
    highest: int = 0
    others: list[Event] = field(default_factory=list)
    seen: set[str] = field(default_factory=set, repr=False)

    def apply(self, event: Event) -> None:
        """Take an event in. Cost: some microseconds."""
        apply(self, event, _APPLY)

    def unfinished(self, outbound: Outbound) -> Iterator[InMessage]:
        """The messages that are not finished, oldest first. Forgets those that are: final stays final."""
        for id in list(self.open):
            if status(self, outbound, id) in FINAL:
                self.open.pop(id, None)
            else:
                yield self.messages[id]

    def compacted(self, outbound: Outbound, now: str) -> list[Event]:
        """The events that a compacted file has. Cost: proportional to the file.

        Args:
            outbound: The fold of the other file, read after this one.
            now: The time.
        """
        undelivered = list(outbound.undelivered(self))
        settled = min((message.seq - 1 for message in undelivered), default=outbound.highest)
        ahead = {message.id for message in outbound.messages.values() if message.seq > settled}
        heads, said = set(self.series.values()), {message.in_reply_to for message in undelivered}
        notices = [told for told in self.notices.values() if status(self, outbound, told[0]) == "failed"]
        telling = {id for id, _ in notices}
        kept: list[InMessage] = []
        gone: list[InMessage] = []
        ended, idle = dict(self.ended), 0
        for message in reversed(self.messages.values()):
            state, stays = status(self, outbound, message.id), True
            if state in FINAL:
                recurs = message.id in heads and "recurrence" in message.event and state != "cancelled"
                is_noted = state != "failed" or message.id in self.ended
                stays = recurs or not is_noted or message.id in said or message.id in telling
            elif state == "pending" and message.id in self.idle:
                idle, state = idle + 1, "cancelled"
                stays = idle <= KEPT
            (kept if stays else gone).append(message)
            if not stays and state != "completed":
                ended[message.id] = state
        left = windowed(self.left | {message.id: digest(message.event) for message in reversed(gone)}, ())
        known = left.keys() | {message.id for message in kept} | ahead
        snapshot = {
            "role": "system",
            "content": "",
            "event": "compacted",
            "timestamp": now,
            "seq": self.highest,
            "left": left,
            "ended": {id: state for id, state in ended.items() if id in known},
            "settled": max(settled, self.settled),
            "delivered": windowed(self.delivered, ahead),
            "undeliverable": windowed(self.undeliverable, ahead),
            "again": list(self.again),
            "attempts": {
                id: [tried.count, tried.next_at, tried.round]
                for id, tried in self.attempts.items()
                if id in outbound.messages or id in self.notices
            },
            "destinations": self.destinations,
            "route": self.route.written() if self.route else None,
            "paused": sorted(self.paused & ({""} | self.series.keys())),
        }
        told = [failed(messages=[id], reason=reason) for id, reason in notices]
        return [snapshot, *(message.event for message in reversed(kept)), *told, *self.others[-KEPT:]]

    def _take_message(self, event: Event) -> None:
        message = InMessage.of(event)
        if message.id not in self.messages and message.id not in self.left:
            self.messages[message.id] = message
            self.open[message.id] = None
            self.highest = max(self.highest, message.seq)
            if message.series:
                self.replaced += filter(None, [self.series.get(message.series)])
                self.series[message.series] = message.id
            if message.kind == "system" or not message.wakes:
                self.idle.add(message.id)

    def _change(self, id: str, **fields: Any) -> None:
        if id in self.messages:
            self.messages[id] = InMessage.of(self.messages[id].event | fields)

    def _take_retry(self, event: Event) -> None:
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
                self.notices = {notice: told for notice, told in self.notices.items() if told[0] != id}
                self.open = {key: None for key in self.messages if key == id or key in self.open}

    def _take_failed(self, event: Event) -> None:
        routes = set()
        for id in event["messages"]:
            self.ended.setdefault(id, "failed")
            message = self.messages.get(id)
            route = message.route if message else None
            if message and route and route not in routes:
                routes.add(route)
                notice = reply_id(self.session, id, f"failed {message.tries}")
                self.notices[notice] = (id, str(event.get("reason", "")))

    def _take_cancelled(self, event: Event) -> None:
        self.ended.update(dict.fromkeys(event["messages"], "cancelled"))

    def _take_paused(self, event: Event) -> None:
        self.paused.add(event.get("series") or "")

    def _take_resumed(self, event: Event) -> None:
        self.paused.discard(event.get("series") or "")

    def _take_changed(self, event: Event) -> None:
        id = self.series[event["series"]]
        merged = {new: event[name] for name, new in _OF_A_SERIES.items() if name in event}
        if "processAfter" in event:
            merged["waits"] = False
        of_time = {name: event[name] for name in ("cron", "timeZone", "catchUp") if name in event}
        if of_time:
            merged["recurrence"] = (self.messages[id].event.get("recurrence") or {}) | of_time
        self._change(id, **merged)

    def _take_attempt(self, event: Event) -> None:
        id = event["message"]
        before = self.attempts.get(id, Attempts())
        self.attempts[id] = Attempts(int(event["attempts"]), timestamps.sortable(event["nextAt"]), before.round)

    def _settle(self, event: Event, settled: dict[str, str], word: str) -> None:
        id, next_at = event["message"], timestamps.sortable(event.get("nextAt") or "")
        if next_at:
            self.attempts[id] = Attempts(0, next_at, self.attempts.get(id, Attempts()).round + 1)
        else:
            settled[id] = str(event.get(word, ""))
            self.attempts.pop(id, None)
            self.again.pop(id, None)
        self.notices.pop(id, None)

    def _take_delivered(self, event: Event) -> None:
        self._settle(event, self.delivered, "platformId")

    def _take_undeliverable(self, event: Event) -> None:
        self._settle(event, self.undeliverable, "reason")

    def _take_destinations(self, event: Event) -> None:
        self.destinations = {name: dict(entry) for name, entry in event["destinations"].items()}

    def _take_routing(self, event: Event) -> None:
        self.route = Route.of(event["route"])

    def _take_compacted(self, event: Event) -> None:
        self.highest = max(self.highest, int(event["seq"]))
        self.settled = max(self.settled, int(event["settled"]))
        for name in ("left", "ended", "delivered", "undeliverable", "destinations"):
            getattr(self, name).update(event[name])
        self.attempts.update({id: Attempts(*tried) for id, tried in event["attempts"].items()})
        self.again.update(dict.fromkeys(event.get("again", ())))
        self.route = Route.of(event.get("route"))
        self.paused.update(event["paused"])


_OF_A_SERIES = {"prompt": "content", "processAfter": "processAfter"}


def taking(kind: type) -> dict[str, Callable[[Any, Event], None]]:
    """The functions of a fold that take events in, by the names of the events."""
    return {name.removeprefix("_take_"): take for name, take in vars(kind).items() if name.startswith("_take_")}


def apply(fold: Any, event: Event, takes: Mapping[str, Callable[[Any, Event], None]]) -> None:
    """Take an event into a fold, by the function that `takes` has for its name; keep it, if there is none."""
    id = event.get("id")
    if id in fold.seen:
        return
    try:
        takes[event["event"]](fold, event)
    except (AttributeError, InvalidInput, KeyError, TypeError, ValueError):
        fold.others.append(event)
    if id:
        fold.seen.add(id)


_APPLY = taking(Inbound)


def status(inbound: Inbound, outbound: Outbound, id: str) -> Status:
    """What became of a message for the worker. Raises NotFound: there is none, or it is long gone."""
    message, ended = inbound.messages.get(id), inbound.ended.get(id)
    if message is None and id not in inbound.left:
        raise NotFound(f"no message {id} in session {inbound.session}", id=id)
    if message is None or ended == "cancelled":
        return "cancelled" if ended == "cancelled" else "failed" if ended else "completed"
    ack = outbound.acks.get(id)
    if ack is not None and ack.state == "completed":
        return "completed"
    if ended or (ack is not None and ack.state == "failed" and ack.tries >= message.event.get("again", 0)):
        return "failed"
    if ack is None or ack.tries < message.tries:
        return "pending"
    return "processing" if ack.state == "processing" else "released"


def digest(event: Event) -> str:
    """The digest of what a message says."""
    said = [event.get(name) for name in ("content", "attachments", "question", "value")]
    return blake2b(orjson.dumps(said, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


def windowed(values: dict[str, _T], live: Iterable[str]) -> dict[str, _T]:
    """The last of some values, and those whose keys are `live`."""
    cut, live = len(values) - WINDOW, frozenset(live)
    return {id: value for at, (id, value) in enumerate(values.items()) if at >= cut or id in live}
