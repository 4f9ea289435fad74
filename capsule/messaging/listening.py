"""One call of `listen`: what is unread for an agent at once, and what comes while it waits.

What must stay true: the place in the journal is taken before the first look, so that nothing is lost in between. A
listener goes on where it stood, whatever others of the same agent read meanwhile, so that each of them is served.
"""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING

from capsule.errors import InvalidDocument, NotFound
from capsule.messaging.unread import first_place, mail_in, seat_of, seats_of

if TYPE_CHECKING:
    from capsule.engines.changes import Change
    from capsule.messaging.mail import Mail
    from capsule.messaging.unread import Seat
    from capsule.store.store import Store


class Listener:
    """One call of `listen`.

    Args:
        store: A store; its index and its journal are asked.
        agent: The agent.
        conversation: Only this conversation; None: all.
        limit: The largest number of messages that a look gives.
        stood: The places where the last wait of this listener ended, by conversation; None: it begins.

    Attributes:
        since: The place in the journal from which to wait.
        places: By conversation, the place of the first message that was not given.
    """

    def __init__(
        self, store: Store, agent: str, conversation: str | None, limit: int, stood: dict[str, int] | None
    ) -> None:
        self._store = store
        self._agent = agent
        self._conversation = conversation
        self._limit = limit
        self._stood = stood
        self._cursors = store.agents.documents.cursors(agent)
        self.since = store.changes().cursor
        self.places: dict[str, int] = {}

    def look(self) -> list[Mail]:
        """What is unread now."""
        seats = seats_of(self._store, self._agent)
        return self._given([seat for seat in seats if self._conversation in (None, seat.id)])

    def look_at(self, changes: list[Change]) -> list[Mail]:
        """What is new in the conversations that changed."""
        seats = []
        for id in dict.fromkeys(change.id for change in changes):
            seat = seat_of(self._store, self._agent, id)
            if seat is not None and self._conversation in (None, id):
                seats.append(seat)
        for change in changes:
            if change.kind != "appended" and change.id in self.places:  # Messages before may have moved.
                self._stood = (self._stood or {}) | {change.id: self.places.pop(change.id)}
        return self._given(seats)

    def _given(self, seats: list[Seat]) -> list[Mail]:
        waiting: list[list[Mail]] = []
        for seat in seats:
            try:
                place = self._place(seat)
                mail, end = mail_in(self._store, seat, self._agent, place)
            except (NotFound, InvalidDocument):
                continue  # It went, or was damaged, meanwhile.
            self.places[seat.id] = end
            waiting.append(mail)
        # By time; the messages of one conversation stay in its order.
        mail = list(merge(*waiting, key=lambda each: each.timestamp))
        for each in mail[self._limit :]:
            self.places[each.conversation] = min(each.at, self.places[each.conversation])
        return mail[: self._limit]

    def _place(self, seat: Seat) -> int:
        if seat.id in self.places:
            return self.places[seat.id]
        unread = first_place(self._store, seat, self._cursors)
        return unread if self._stood is None else min(unread, self._stood.get(seat.id, 0))
