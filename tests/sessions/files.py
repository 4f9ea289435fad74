"""The two files of a session in memory, with what writes to them gives events: ids and times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from capsule.sessions.events import AckState, Event, Route, inbound_message
from capsule.sessions.rules import messages
from capsule.sessions.rules.messages import claim, end_claims, pick, receive
from capsule.sessions.session_state import InboundState, MessageStatus, OutboundState, SessionState

T = TypeVar("T", InboundState, OutboundState)
ROUTE = Route("conversations", "team")
START = "2026-11-22T13:30:00.000Z"


def later(seconds: float, than: str = START) -> str:
    return messages.add_seconds(than, seconds)


@dataclass
class Files:
    now: str = START
    inbound: InboundState = field(default_factory=lambda: InboundState("s1"))
    outbound: OutboundState = field(default_factory=lambda: OutboundState("s1"))
    in_events: list[Event] = field(default_factory=list)
    out_events: list[Event] = field(default_factory=list)
    count: int = 0

    @property
    def session_state(self) -> SessionState:
        return SessionState(self.inbound, self.outbound)

    def status(self, id: str) -> MessageStatus:
        return self.session_state.status(id)

    def stamped(self, events: Iterable[Event]) -> list[Event]:
        stamped = []
        for event in events:
            self.count += 1
            stamped.append({"id": f"e{self.count}", "timestamp": self.now} | event)
        return stamped

    def write_inbound(self, *events: Event) -> None:
        """The host writes."""
        for event in self.stamped(events):
            self.in_events.append(event)
            self.inbound.apply(event)

    def write_outbound(self, *events: Event) -> None:
        """The worker writes."""
        for event in self.stamped(events):
            self.out_events.append(event)
            self.outbound.apply(event)

    def pass_time(self, seconds: float) -> None:
        self.now = later(seconds, self.now)

    def arrive(self, *messages: Event) -> None:
        """The host takes messages for the worker."""
        self.write_inbound(*receive(self.session_state, messages))

    def claim(self, instance: str = "w1", *, first: bool = False) -> list[str]:
        """The worker claims what it does next."""
        picked = pick(self.session_state, self.now, just_started=first)
        self.write_outbound(*claim(self.session_state, picked, instance))
        return [message.id for message in picked]

    def finish(
        self,
        ids: Iterable[str],
        state: AckState = "completed",
        instance: str = "w1",
        error: str = "",
    ) -> bool:
        """The worker ends claims. Gives whether it still had them."""
        events = end_claims(self.session_state, ids, instance=instance, state=state, error=error)
        self.write_outbound(*events)
        return bool(events)

    def compact(self) -> None:
        """Both files are compacted, and read again."""
        self.in_events = self.stamped(self.session_state.compacted_inbound(self.now))
        self.inbound = fold(InboundState("s1"), self.in_events)
        self.out_events = self.stamped(self.session_state.compacted_outbound(self.now))
        self.outbound = fold(OutboundState("s1"), self.out_events)


def fold(empty: T, events: Iterable[Event]) -> T:
    for event in events:
        empty.apply(event)
    return empty


def chat(id: str, content: str = "Hello", **fields: Any) -> Event:
    return inbound_message(id=id, content=content, **({"route": ROUTE} | fields))
