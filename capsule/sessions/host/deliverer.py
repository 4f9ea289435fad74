"""The deliverer: it gives what workers say to the adapters, and notes what became of it.

What must stay true: one drain of a session runs at a time, in a thread of a pool, so that a slow
channel delays few; a drain that fails is told and stops no other. A message may be delivered and
not noted, when the process is killed: then it is delivered again under the same id. Where a message
goes, and whether it is tried again, `rules.deliveries` says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.errors import InvalidInput, NotFound, Refused
from capsule.sessions.adapters.interface import Adapter, File, Outgoing
from capsule.sessions.events import Route
from capsule.sessions.host.opened import Opened, said_by
from capsule.sessions.outbound import OutMessage
from capsule.sessions.rules import deliveries, messages, questions

if TYPE_CHECKING:
    from capsule.sessions.events import Event
    from capsule.sessions.folds import Folds
    from capsule.sessions.registry import SessionRow
    from capsule.sessions.session import Session

#: How many sessions are drained at once.
_THREADS = 8
_FINAL = (Refused, InvalidInput, NotFound)
#: What adapters are told of; the rest is text.
_KINDS = frozenset({"edit", "reaction", "file", "question"})


class Deliverer:
    """What takes messages from the sessions of a host.

    Args:
        opened: The sessions.
        adapters: The adapters by their names.
        trying: Calls a function for a session, and says what it raises.
    """

    def __init__(
        self,
        opened: Opened,
        adapters: Mapping[str, Adapter],
        trying: Callable[[str, Callable[[], None]], None],
    ) -> None:
        self._opened = opened
        self._adapters = adapters
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
        row, results = self._opened.state().sessions[id], list[tuple[OutMessage, dict[str, Any]]]()
        with self._opened.session(id) as session:
            due = deliveries.due_out(session.folds(), timestamps.now())
        for message in due:
            if message.kind != "task":  # Those are for the host itself.
                try:
                    result: dict[str, Any] = {"platform_id": self._delivered(session, row, message)}
                except Exception as error:
                    result = {"error": said_by(error), "is_final": isinstance(error, _FINAL)}
                results.append((message, result))

        def noted(folds: Folds) -> list[Event]:
            now = timestamps.now()
            attempts = (
                deliveries.after_attempt(folds, message, now, **result)
                for message, result in results
            )
            return messages.numbered(folds, [event for events in attempts for event in events])

        self._opened.tell(id, noted)

    def _delivered(self, session: Session, row: SessionRow, message: OutMessage) -> str:
        """Deliver a message; the id that it gets."""
        with self._opened.session(row.id):
            folds = session.folds()
            route = deliveries.route_of(folds, message)
            out = _outgoing(session, row.agent, folds, message, route)
        if message.kind == "question":  # Before, as an answer may come as soon as it is asked.
            self._opened.registry.edit(
                partial(questions.asked, row=row, message=message, route=route)
            )
        if route.channel not in self._adapters:
            raise OSError(f"the host has no adapter {route.channel!r}")
        return self._adapters[route.channel].deliver(out)

    def close(self) -> None:
        """Wait for the drains that run, and begin no more."""
        with self._guard:
            self._closed = True
        self._pool.shutdown(cancel_futures=True)


def _outgoing(
    session: Session, agent: str, folds: Folds, message: OutMessage, route: Route
) -> Outgoing:
    """A message as its adapter takes it."""
    event, answered = message.event, folds.inbound.messages.get(message.in_reply_to)
    came_by = answered.route if answered else None
    is_back = came_by is not None and (came_by.channel, came_by.place) == (
        route.channel,
        route.place,
    )
    return Outgoing(
        deliveries.delivery_id(folds, message),
        message.kind if message.kind in _KINDS else "chat",
        session.id,
        agent,
        route.place,
        route.thread,
        event["content"],
        reply_to=message.in_reply_to if is_back else "",
        target=folds.inbound.delivered.get(message.target) or message.target,
        emoji=event.get("emoji", ""),
        options=event.get("options", ()),
        files=[
            File(file["name"], partial(session.file, "outbox", file["path"]))
            for file in event.get("attachments", ())
        ],
        hops=event.get("hops", 0),
    )
