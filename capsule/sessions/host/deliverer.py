"""The deliverer: it gives what workers say to the adapters, and notes what became of it.

What must stay true: one drain of a session runs at a time, in a thread of a pool, so that a slow channel delays few; a
drain that fails is told and stops no other. A message may be delivered and not noted, when the process is killed: then
it is delivered again under the same id. Where a message goes, and whether it is tried again, `rules.deliveries` says.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Literal

from capsule.errors import CapsuleError, InvalidInput, NotFound, Refused
from capsule.sessions.adapters.interface import Adapter, File, Outgoing
from capsule.sessions.events import Route
from capsule.sessions.host.opened import Opened, folds
from capsule.sessions.outbound import OutMessage
from capsule.sessions.rules import deliveries, questions, schedules

if TYPE_CHECKING:
    from capsule.sessions.events import Event
    from capsule.sessions.inbound import Inbound
    from capsule.sessions.outbound import Outbound
    from capsule.sessions.session import Session

#: How many sessions are drained at once.
_THREADS = 8
_FINAL = (Refused, InvalidInput, NotFound)
#: What adapters are told of; the rest is text.
_KINDS: Mapping[str, Literal["edit", "reaction", "file", "question"]]
_KINDS = {"edit": "edit", "reaction": "reaction", "file": "file", "question": "question"}


class Deliverer:
    """What takes messages from the sessions of a host.

    Args:
        opened: The sessions.
        adapters: The adapters by their names.
        clock: Gives the time, as the format writes it.
        trying: Calls a function for a session, and says what it raises.
    """

    def __init__(
        self,
        opened: Opened,
        adapters: Mapping[str, Adapter],
        clock: Callable[[], str],
        trying: Callable[[str, Callable[[], None]], None],
    ) -> None:
        self._opened = opened
        self._adapters = adapters
        self._clock = clock
        self._trying = trying
        self._pool = ThreadPoolExecutor(_THREADS, "capsule-deliver")
        self._guard = threading.Lock()
        self._wanted: set[str] = set()
        self._draining: set[str] = set()
        self._closed = False

    def drain(self, session: str) -> None:
        """Deliver what is due in a session; returns at once."""
        with self._guard:
            self._wanted.add(session)
            if session in self._draining or self._closed:
                return
            self._draining.add(session)
            self._pool.submit(self._drain, session)

    def _drain(self, id: str) -> None:
        while True:
            with self._guard:
                if id not in self._wanted:
                    self._draining.discard(id)
                    return
                self._wanted.discard(id)
            self._trying(id, partial(self._deliver, id))

    def _deliver(self, id: str) -> None:
        row = self._opened.state().sessions[id]
        outs = defaultdict[str, list[tuple[OutMessage, Outgoing]]](list)
        with self._opened.session(id) as session:
            inbound, outbound = folds(session)
            due = [each for each in deliveries.due_out(inbound, outbound, self._clock()) if each.kind != "task"]
            for message in due:
                try:
                    route = deliveries.route_of(inbound, message)
                except Refused as error:
                    self._note(session, message, error)
                else:
                    outs[route.channel].append((message, _outgoing(session, row.agent, inbound, message, route)))
        for channel, said in outs.items():
            for message, out in said:
                if message.kind == "question":  # An answer may come before this process learns that it is delivered.
                    at = Route(channel, out.place, out.thread)
                    self._opened.registry.edit(partial(questions.asked, row=row, message=message, route=at))
            results = self._results(channel, [out for _, out in said])
            with self._opened.session(id) as session:
                arrived = [(message, result) for (message, _), result in zip(said, results, strict=True)]
                done = {message.id: result for message, result in arrived if isinstance(result, str)}
                self._opened.tell(session, partial(self._delivered, done))
                for message, result in arrived:
                    if not isinstance(result, str):
                        self._note(session, message, result)  # One by one, as the worker is told of each.

    def _results(self, channel: str, outs: list[Outgoing]) -> list[str | Exception]:
        adapter = self._adapters.get(channel)
        if adapter is None:
            return [OSError(f"the host has no adapter {channel!r}") for _ in outs]
        try:
            return list(adapter.deliver_all(outs))
        except Exception as error:
            return [error] * len(outs)

    def _delivered(self, done: Mapping[str, str], inbound: Inbound, outbound: Outbound) -> list[Event]:
        """What the host notes of messages that arrived, given the ids that they got."""
        now = self._clock()
        found: list[Event] = []
        for message in deliveries.due_out(inbound, outbound, now):
            if message.id in done:
                id, next_at = done[message.id], _next_at(message, now)
                found += deliveries.after_attempt(inbound, outbound, message, now, platform_id=id, next_at=next_at)
        return found

    def _note(self, session: Session, message: OutMessage, error: Exception) -> None:
        """Note that a message did not arrive."""
        about = error.message if isinstance(error, CapsuleError) else f"{type(error).__name__}: {error}"
        now, is_final = self._clock(), isinstance(error, _FINAL)
        note = partial(
            deliveries.after_attempt,
            message=message,
            now=now,
            error=about,
            is_final=is_final,
            next_at=_next_at(message, now),
        )
        self._opened.tell(session, note)

    def close(self) -> None:
        """Wait for the drains that run, and begin no more."""
        with self._guard:
            self._closed = True
        self._pool.shutdown(cancel_futures=True)


def _next_at(message: OutMessage, now: str) -> str | None:
    """When a message recurs; None: it does not."""
    recurrence = message.event.get("recurrence")
    try:
        return schedules.next_at(recurrence, now) if recurrence else None
    except InvalidInput:
        return None  # Somebody changed the file; the message itself arrived.


def _outgoing(session: Session, agent: str, inbound: Inbound, message: OutMessage, route: Route) -> Outgoing:
    """A message as its adapter takes it."""
    event, answered = message.event, inbound.messages.get(message.in_reply_to)
    came_by = answered.route if answered else None
    is_back = came_by is not None and (came_by.channel, came_by.place) == (route.channel, route.place)
    return Outgoing(
        deliveries.delivery_id(inbound, message),
        _KINDS.get(message.kind, "chat"),
        session.id,
        agent,
        route.place,
        route.thread,
        event["content"],
        reply_to=message.in_reply_to if is_back else "",
        target=inbound.delivered.get(message.target) or message.target,
        emoji=event.get("emoji", ""),
        options=event.get("options", ()),
        files=[
            File(each["name"], partial(session.file, "outbox", each["path"])) for each in event.get("attachments", ())
        ],
        hops=event.get("hops", 0),
    )
