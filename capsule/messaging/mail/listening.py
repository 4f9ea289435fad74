"""One call of `listen`: what is unread for an agent at once, and what comes while it waits.

What must stay true: the place in the journal is taken before the first look, so that nothing is
lost in between. A listener goes on where it stood, whatever others of the same agent read
meanwhile, so that each of them is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from capsule.errors import InvalidDocument, NotFound, Refused
from capsule.messaging.mail.cursors import Part, trail_of
from capsule.messaging.mail.unread import mail_at

if TYPE_CHECKING:
    from capsule.engines.changes import Changes
    from capsule.engines.marks import Mark, Mine, Place
    from capsule.messaging.mail.mail import Mail
    from capsule.messaging.mail.unread import Seat, Unread, Wishes


class Asked(NamedTuple):
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
        unread: What its agents have not read.
        since: A place in the journal up to which the index has everything.
        asked: Who listens to what.
        limit: The largest number of messages that a look gives.
        before: The last wait of this listener, which this one continues; None: it begins.
        wishes: What counts as unread for the agent now.

    Attributes:
        since: The place in the journal from which to wait.
        stands: By conversation, messages up to which it was given everything, as a cursor names
            them.
        done: The conversations of which it has given all there was.
    """

    def __init__(
        self,
        unread: Unread,
        since: str,
        asked: Asked,
        limit: int,
        before: Listener | None,
        wishes: Wishes,
    ) -> None:
        self._unread = unread
        self._limit = limit
        self._before = None if before is None else (before.stands, before.done)
        self._seats: dict[str, Seat] = {}
        self._wishes = wishes
        #: Conversations that the agent does not take part in.
        self._others: set[str] = set()
        self._found: dict[str, list[Place]] = {}
        #: The last message of each of these conversations that is known.
        self._ends: dict[str, Mark] = {}
        self._asked = asked
        self.since = since
        self.stands: dict[str, tuple[Mark, ...]] = {}
        self.done: dict[str, Mine] = {}

    def look(self) -> list[Mail]:
        """What was unread when it sat down."""
        mail = self._given()
        if len(mail) < self._limit:
            self.done = {id: seat.mine for id, seat in self._seats.items()}
        return mail

    def sit(self, document: Mapping[str, Any]) -> None:
        """Ask the index, within one question, what is unread, given the agent's document as it is
        to be.
        """
        self._wishes = self._wishes[0], document, None
        self._sit()
        wanted = {id for id, seat in self._seats.items() if not seat.is_read}
        if self._before is None:
            self.stands = {id: seat.behind.read for id, seat in self._seats.items()}
        else:  # Others may have read meanwhile what was not given to this one.
            stands, done = self._before
            self.stands = {id: stands.get(id, ()) for id in self._seats}
            wanted |= {id for id, seat in self._seats.items() if done.get(id) is not seat.mine}
        self._find(wanted)

    def look_at(self, changes: Changes) -> list[Mail]:
        """What is new in the conversations that changed."""
        self.since = changes.cursor
        (state, document, _), self._wishes = self._wishes, self._unread.wishes(self._asked.agent)
        is_new = (state, document.get("reading")) != (
            self._wishes[0],
            self._wishes[1].get("reading"),
        )
        self._unread.questions.together(lambda: self._look_at(changes, is_new))
        return self._given()

    def _look_at(self, changes: Changes, is_new: bool) -> None:
        """Ask the index what is unread after changes, given whether what the agent may or wants to
        hear is new, too.
        """
        changed = {change.id for change in changes.changes}
        if is_new:
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
        self._find(changed)
        for change in changes.changes:
            if change.kind == "appended" and change.id in changed and change.messages:
                at = change.count - 1
                there = self._unread.questions.marks(change.id, [at], refresh=False)
                self._ends[change.id] = at, there.get(at, ("", ""))[1]

    def _sit(self) -> None:
        self._seats = self._unread.seats(self._asked.agent, self._asked.part, self._wishes)
        if self._asked.conversation is not None:
            self._seats = {
                id: seat for id, seat in self._seats.items() if id == self._asked.conversation
            }
        self._others -= self._seats.keys()

    def _find(self, ids: Iterable[str]) -> None:
        seats = {id: self._seats[id] for id in ids}
        self._found = {id: self._unread.unread(seat, self.stands[id]) for id, seat in seats.items()}
        self._ends = {id: (seat.mine.entries - 1, seat.mine.last) for id, seat in seats.items()}

    def _given(self) -> list[Mail]:
        """The messages that were found, up to the limit."""
        found = {
            id: mail
            for id, places in self._found.items()
            if (mail := self._read(id, places)) is not None
        }
        # By time; the messages of one conversation stay in its order.
        mail = list(islice(merge(*found.values(), key=attrgetter("timestamp")), self._limit))
        given = {each.conversation: each for each in mail}
        for id, there in found.items():
            last, marks = given.get(id), []
            if last is not None:
                marks = [
                    (each.place, each.front) for each in self._found[id] if each.place <= last.at
                ]
            if (
                last is (there[-1] if there else None) and self._ends[id][1]
            ):  # So it saw what is not for it, too.
                marks.append(self._ends[id])
            if marks:
                self.stands[id] = trail_of([*self.stands[id], *marks], max(marks)[0])
        return mail

    def _read(self, id: str, places: Iterable[Place]) -> list[Mail] | None:
        try:
            return mail_at(
                self._unread.store, self._seats[id], {each.place: each for each in places}
            )
        except (NotFound, InvalidDocument, Refused):
            return None  # It went, was damaged, or is not for the agent any more.
