"""One call of `listen`: what is unread for an agent at once, and what comes while it waits.

What must stay true: the place in the journal is taken before the first look, so that nothing is lost in between. A
listener goes on where it stood, whatever others of the same agent read meanwhile, so that each of them is served.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import merge
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidDocument, NotFound, Refused
from capsule.messaging.mail.cursors import Part
from capsule.messaging.mail.unread import mail_at

if TYPE_CHECKING:
    from capsule.engines.changes import Changes
    from capsule.messaging.mail.mail import Mail
    from capsule.messaging.mail.unread import Seat, Unread
    from capsule.store.store import Store

#: By conversation, the place of the first message that was not given.
Places = dict[str, int]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call of `listen` asks for.

    Attributes:
        conversation: Only this conversation; None: all.
        part: Only this part of each conversation; None: everything.
    """

    agent: str
    conversation: str | None = None
    part: Part | None = None


class Listener:
    """One call of `listen`.

    Args:
        store: The store, as its owner sees it.
        unread: What its agents have not read.
        since: A place in the journal up to which the index has everything.
        asked: Who listens to what.
        limit: The largest number of messages that a look gives.
        stood: Where the last wait of this listener ended; None: it begins.

    Attributes:
        since: The place in the journal from which to wait.
        places: Where it stands.
    """

    def __init__(
        self,
        store: Store,
        unread: Unread,
        since: str,
        asked: Asked,
        limit: int,
        stood: Places | None,
    ) -> None:
        self._store = store
        self._unread = unread
        self._asked = asked
        self._limit = limit
        self._stood = stood
        self._seats: dict[str, Seat] = {}
        self._wishes: Any = None
        #: Conversations that the agent does not take part in.
        self._others: set[str] = set()
        self.since = since
        self.places: Places = {}

    def look(self) -> list[Mail]:
        """What is unread now."""
        self._sit()
        for id, seat in self._seats.items():
            place = seat.behind.place
            self.places[id] = place if self._stood is None else min(place, self._stood.get(id, 0))
        return self._given({id: seat.mine.entries for id, seat in self._seats.items()})

    def look_at(self, changes: Changes) -> list[Mail]:
        """What is new in the conversations that changed."""
        self.since = changes.cursor
        counts = {change.id: change.count for change in changes.changes}
        others = {change.id for change in changes.changes if change.kind != "appended"}
        if self._unread.wishes(self._asked.agent) != self._wishes:
            self._sit()
            self.places = {id: seat.behind.place for id, seat in self._seats.items()} | self.places
        if others or not counts.keys() <= self._seats.keys() | self._others:
            self._sit()
            self._others |= counts.keys() - self._seats.keys()
        back = {change.id for change in changes.changes if change.kind in ("restored", "repaired")}
        for id in counts.keys() & self._seats.keys():
            unread = self._seats[id].behind.place
            place = self.places.get(id, unread if id in back else 0)
            # Another version may have moved the messages that were given.
            self.places[id] = min(place, unread) if id in others else place
        return self._given({id: count for id, count in counts.items() if id in self._seats})

    def _sit(self) -> None:
        self._wishes = self._unread.wishes(self._asked.agent)
        seats = self._unread.seats(self._asked.agent, self._asked.part, refresh=False)
        self._seats = {id: seat for id, seat in seats.items() if self._asked.conversation in (None, id)}
        self._others -= self._seats.keys()

    def _given(self, counts: dict[str, int]) -> list[Mail]:
        """The messages behind the places, `counts` being how many messages these conversations have."""
        # By time; the messages of one conversation stay in its order.
        mail = list(merge(*self._read(counts), key=lambda each: each.timestamp))
        for each in reversed(mail[self._limit :]):
            self.places[each.conversation] = each.at
        return mail[: self._limit]

    def _read(self, counts: dict[str, int]) -> Iterable[list[Mail]]:
        for id, count in counts.items():
            seat, place = self._seats[id], self.places[id]
            if count > place:
                unread = self._store.index.behind(replace(seat.behind, place=place), id, refresh=False)
                try:
                    mail = mail_at(self._store, seat, {each.place: each.message for each in unread}, count)
                except (NotFound, InvalidDocument, Refused):
                    continue  # It went, was damaged, or is not for the agent any more.
                self.places[id] = count
                yield mail
