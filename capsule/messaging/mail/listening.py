"""One call of `listen`: what is unread for an agent at once, and what comes while it waits.

What must stay true: the place in the journal is taken before the first look, so that nothing is lost in between. A
listener goes on where it stood, whatever others of the same agent read meanwhile, so that each of them is served.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidDocument, NotFound, Refused
from capsule.messaging.mail.cursors import Part, cursor_at, marks_of
from capsule.messaging.mail.unread import mail_at

if TYPE_CHECKING:
    from capsule.engines.answers import Mark, Mine
    from capsule.engines.changes import Changes
    from capsule.messaging.mail.mail import Mail
    from capsule.messaging.mail.unread import Seat, Unread
    from capsule.store.store import CoreStore


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
        before: The last wait of this listener, which this one continues; None: it begins.

    Attributes:
        since: The place in the journal from which to wait.
        stands: By conversation, messages up to which it was given everything, as a cursor names them.
        done: The conversations of which it has given all there was.
    """

    def __init__(
        self, store: CoreStore, unread: Unread, since: str, asked: Asked, limit: int, before: Listener | None
    ) -> None:
        self._store = store
        self._unread = unread
        self._asked = asked
        self._limit = limit
        self._before = None if before is None else (before.stands, before.done)
        self._seats: dict[str, Seat] = {}
        self._wishes: Any = None
        #: Conversations that the agent does not take part in.
        self._others: set[str] = set()
        self.since = since
        self.stands: dict[str, tuple[Mark, ...]] = {}
        self.done: dict[str, Mine] = {}

    def look(self) -> list[Mail]:
        """What is unread now."""
        self._sit()
        wanted = {id for id, seat in self._seats.items() if seat.item is not None}
        if self._before is None:
            self.stands = {id: seat.behind.read for id, seat in self._seats.items()}
        else:  # Others may have read meanwhile what was not given to this one.
            stands, done = self._before
            self.stands = {id: stands.get(id, ()) for id in self._seats}
            wanted |= {id for id, seat in self._seats.items() if done.get(id) is not seat.mine}
        mail = self._given({id: _end(self._seats[id].mine) for id in wanted})
        if len(mail) < self._limit:
            self.done = {id: seat.mine for id, seat in self._seats.items()}
        return mail

    def look_at(self, changes: Changes) -> list[Mail]:
        """What is new in the conversations that changed."""
        self.since = changes.cursor
        changed = {change.id for change in changes.changes}
        if self._unread.wishes(self._asked.agent) != self._wishes:
            self._sit()
            self.stands = {id: seat.behind.read for id, seat in self._seats.items()} | self.stands
        is_more = any(change.kind != "appended" for change in changes.changes)
        if is_more or not changed <= self._seats.keys() | self._others:
            self._sit()
            self._others |= changed - self._seats.keys()
        back = {change.id for change in changes.changes if change.kind in ("restored", "repaired")}
        changed &= self._seats.keys()
        for id in changed:
            self.stands.setdefault(id, self._seats[id].behind.read if id in back else ())
        ends = {id: _end(self._seats[id].mine) for id in changed}
        for change in changes.changes:
            if change.kind == "appended" and change.id in changed and change.messages:
                at = change.count - 1
                ends[change.id] = at, self._store.questions.marks(change.id, [at], refresh=False).get(at, ("", ""))[1]
        return self._given(ends)

    def _sit(self) -> None:
        self._wishes = self._unread.wishes(self._asked.agent)
        seats = self._unread.seats(self._asked.agent, self._asked.part, refresh=False, wishes=self._wishes)
        self._seats = {id: seat for id, seat in seats.items() if self._asked.conversation in (None, id)}
        self._others -= self._seats.keys()

    def _given(self, ends: Mapping[str, Mark]) -> list[Mail]:
        """The messages of these conversations behind where it stands, given the last message of each that is known."""
        mails = {id: mail for id in ends if (mail := self._read(id)) is not None}
        # By time; the messages of one conversation stay in its order.
        mail = list(islice(merge(*mails.values(), key=lambda each: each.timestamp), self._limit))
        given = {each.conversation: each for each in mail}
        for id, there in mails.items():
            last = given.get(id)
            marks: list[Mark] = [(last.at, last.front)] if last is not None else []
            if last is (there[-1] if there else None):  # So it has seen what is not for it, too.
                marks.append(ends[id])
            marks_at = partial(self._store.questions.marks, id, refresh=False)
            stands = (marks_of(cursor_at(*mark, marks_at)) for mark in sorted(marks, reverse=True))
            self.stands[id] = next(filter(None, stands), self.stands[id])
        return mail

    def _read(self, id: str) -> list[Mail] | None:
        seat = self._seats[id]
        unread = self._store.questions.behind(replace(seat.behind, read=self.stands[id]), id, refresh=False)
        try:
            return mail_at(self._store, seat, {each.place: each for each in unread})
        except (NotFound, InvalidDocument, Refused):
            return None  # It went, was damaged, or is not for the agent any more.


def _end(mine: Mine) -> Mark:
    """The last message of a conversation."""
    return mine.entries - 1, mine.last
