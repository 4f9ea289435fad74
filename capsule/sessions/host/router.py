"""The router: it takes messages from adapters, and puts each into the inbound files of the sessions
that it is for.

What must stay true: what was taken is durable; a message that comes again changes nothing. A
session whose file can't be written is told to the adapter, which brings its messages again, and the
others have theirs. `rules.wirings` decides which sessions get a message.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from capsule import timestamps
from capsule.errors import CapsuleError, InvalidInput
from capsule.sessions import events
from capsule.sessions.events import Event, Route
from capsule.sessions.host.opened import Opened
from capsule.sessions.registry import UNSERVED, MessagingGroup
from capsule.sessions.rules import questions, wirings
from capsule.sessions.rules.messages import brought, is_bulky, receive

if TYPE_CHECKING:
    from capsule.sessions.adapters.interface import Arrived
    from capsule.sessions.folds import Folds
    from capsule.sessions.registry import Serves, State
    from capsule.sessions.rules.wirings import Decision

_Items = list[tuple["Arrived", "Decision"]]


class Router:
    """What the adapters of a host give their messages to: see `Receiver`.

    Args:
        opened: The sessions.
        ring: Called for each session that got messages, with its id.
    """

    def __init__(self, opened: Opened, ring: Callable[[str], None]) -> None:
        self._opened = opened
        self._ring = ring
        self._alone = threading.Lock()

    def receive(self, arrived: Sequence[Arrived]) -> None:
        by_session: dict[Serves, _Items] = defaultdict(list)
        sessions: list[str] = []
        errors: list[Exception] = []
        with self._alone:  # Messages of one place keep their order.
            state = self._opened.state()
            for each in arrived:
                if id := self._answers(each, state):
                    sessions.append(id)
                else:
                    for decision in wirings.route(
                        each, state, partial(self._engaged, state, by_session)
                    ):
                        by_session[decision.serves].append((each, decision))
            for serves, items in by_session.items():
                try:
                    sessions += self._take(serves, items, errors)
                except Exception as error:  # Of that session; the others have theirs.
                    errors.append(error)
        for id in sessions:
            self._ring(id)
        if errors:
            raise min(
                errors, key=lambda error: isinstance(error, InvalidInput)
            )  # What may be brought again is first.

    def _answers(self, arrived: Arrived, state: State) -> str:
        """The session that a message answers a question of, and which has the answer now; empty: it
        is for none.
        """
        now = timestamps.now()
        if not arrived.reply_to or not state.questions:
            return ""
        answer = partial(questions.answered, arrived=arrived, delivered=self._delivered, now=now)
        for id, _ in answer(state)[1]:
            if not arrived.to or state.sessions[id].agent in arrived.to:
                return next(iter(self._opened.answer(answer)), "")
        return ""

    def _delivered(self, id: str, message: str) -> str | None:
        """The id on its platform of a message that a session sent; None: it has none, or the
        session can't be read.
        """
        with suppress(CapsuleError), self._opened.session(id) as session:
            return session.folds().inbound.delivered.get(message)
        return None

    def _take(self, serves: Serves, items: _Items, errors: list[Exception]) -> list[str]:
        """Put messages into the session that serves a place; its id, if it has to do with them."""
        now, row = timestamps.now(), self._opened.state().serving.get(serves)
        is_heard = any(decision.outcome != "ignored" for _, decision in items)
        if row is None and is_heard:
            first, _ = items[0]
            place = MessagingGroup(first.channel, first.place, first.title, first.is_group)
            row = self._opened.registry.ensure_session(serves, now, place)
        with self._opened.session(row.id if row is not None else UNSERVED) as session:
            self._opened.tell(session.id, partial(self._told_by, items, errors))
            if row is None and is_bulky(session.folds()):
                session.compact(now)
        return [row.id] if row is not None and is_heard else []

    def _told_by(self, items: _Items, errors: list[Exception], folds: Folds) -> list[Event]:
        """The events for messages that a session does not have yet."""
        messages, said, route = list[Event](), list[Event](), folds.inbound.route
        for arrived, decision in items:
            came_by = Route(arrived.channel, arrived.place, arrived.thread or decision.serves[3])
            if decision.outcome != "ignored":
                message = brought(
                    arrived, trigger=decision.outcome, route=came_by, wiring=decision.wiring or None
                )
                try:
                    new = receive(folds, [message])
                except InvalidInput as error:  # The session has it with other content, which stays.
                    self._opened.log(
                        "refused", message=arrived.id, session=folds.session, error=str(error)
                    )
                    errors += [] if arrived.editable else [error]
                    continue
                if not new:
                    continue
                messages.append(message)
                route = came_by if decision.outcome == "wake" else route
            how = events.routed(
                message=arrived.id,
                agent=decision.agent,
                outcome=decision.outcome,
                reason=decision.reason,
                wiring=decision.wiring or None,
            )
            if how["id"] not in folds.inbound.seen:
                said.append(how)
        if route is not None and route != folds.inbound.route:
            said.append(events.routing(route=route))
        return [*receive(folds, messages), *said]

    def _engaged(self, state: State, before: Mapping[Serves, _Items], serves: Serves) -> bool:
        """Whether the session that serves this was woken there, or is by a message before
        this one.
        """
        row, is_woken = (
            state.serving.get(serves),
            any(each.outcome == "wake" for _, each in before.get(serves, ())),
        )
        if row is None or is_woken:
            return is_woken
        with suppress(CapsuleError), self._opened.session(row.id) as session:
            return session.folds().inbound.route is not None
        return True  # It is damaged: the message must wait for it.
