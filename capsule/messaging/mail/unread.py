"""What an agent has not read, in all conversations that it takes part in.

What must stay true: unread is what stands behind the cursor, is of another agent that is not
blocked, and what the agent wants to hear of; no time decides it but the one of joining. A
conversation that the agent may not read now has nothing unread. The texts that an agent is given
come from the conversations' files, never from the index.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from capsule.engines.marks import Behind
from capsule.errors import InvalidDocument, NotFound, Refused
from capsule.format.json import codec
from capsule.format.kinds import AGENT
from capsule.messaging.mail.cursors import Part, first_behind, marks_of, parts_in
from capsule.messaging.mail.mail import Inbox, InboxItem, Mail, Mention
from capsule.messaging.mail.mentions import Interest
from capsule.messaging.people.people import People
from capsule.rules import policy
from capsule.store.reading import KIND
from capsule.timestamps import ms_of

if TYPE_CHECKING:
    from capsule.engines.marks import Mark, Mine, Place
    from capsule.store.store import CoreStore

#: The types of conversations that are messages between agents.
TYPES = ("direct", "group", "channel")


@dataclass(slots=True, eq=False)
class Seat:
    """A conversation that an agent takes part in, or a part of it, and how far the agent has read
    there.

    Attributes:
        agent: The agent.
        mine: The conversation, as the index has it.
        behind: What is unread: from the time on when the agent joined, and behind its cursors.
        interest: What the agent wants to hear of there.
        is_read: Whether nothing is unread, as far as that was asked.
        item: What is unread; None: nothing, or it was not asked.
    """

    agent: str
    mine: Mine
    behind: Behind
    interest: Interest
    is_read: bool
    item: InboxItem | None = None


#: On what a seat depends: the conversation, the agent's cursor, those of parts, and what it wants
#: to hear of.
_Basis = tuple["Mine", Any, Any, Any]
#: What of all conversations counts as unread depends on: what decides what an agent may read; its
#: document, which has what it wants to hear of and how far it has read; and the version of that,
#: None if there is none that can be read.
Wishes = tuple[policy.State, Mapping[str, Any], Any]


class _Kept(NamedTuple):
    """The last answer about an agent, and what it was made of."""

    state: policy.State
    version: Any
    mines: dict[str, Mine]
    by_basis: dict[str, tuple[_Basis, Seat | None]]
    seats: dict[str, Seat]


class Unread:
    """What the agents of a store have not read. It keeps each answer until something changes that
    it depends on.

    Attributes:
        store: The store, as its owner sees it.
        questions: The questions of its owner.
    """

    def __init__(self, store: CoreStore) -> None:
        self.store = store
        self._people = store.inner.part(People)
        self.questions = store.questions
        self._kept: dict[str, _Kept] = {}

    def wishes(self, agent: str) -> Wishes:
        """The wishes of an agent, as they are now."""
        state = self._people.directory.state(agent)
        version: Any = state.reads.get((AGENT.name, agent))
        return state, self._people.documents.as_read(agent, version), version

    def seats(
        self, agent: str, part: Part | None = None, wishes: Wishes | None = None
    ) -> dict[str, Seat]:
        """The conversations that an agent takes part in, the latest first, as the index has them.

        Args:
            agent: The agent.
            part: The part of them that it reads; None: everything.
            wishes: What `wishes` gave just now; None: it is asked.

        Cost: some microseconds for each conversation.
        """
        state, document, version = wishes or self.wishes(agent)
        kept = self._kept.get(agent) or _Kept(state, None, {}, {}, {})
        mines = self.questions.mine(agent, kept.mines, refresh=False)
        if (
            version is None
            or (state, version) != (kept.state, kept.version)
            or mines != [*kept.mines.values()]
        ):
            reading, cursors = document.get("reading") or {}, document.get("cursors") or {}
            parts, before = parts_in(cursors), kept.by_basis if kept.state == state else {}
            now: dict[str, tuple[_Basis, Seat | None]] = {}
            for mine in mines:
                id, was = mine.id, before.get(mine.id)
                basis = mine, cursors.get(id), parts.get(id), reading.get(id)
                now[id] = (
                    was
                    if was is not None and was[0] == basis
                    else (basis, self._seat(agent, state, *basis))
                )
            seats = {id: seat for id, (_, seat) in now.items() if seat is not None}
            kept = self._kept[agent] = _Kept(
                state, version, {mine.id: mine for mine in mines}, now, seats
            )
        return (
            kept.seats if part is None else {id: _at(seat, part) for id, seat in kept.seats.items()}
        )

    def _seat(
        self,
        agent: str,
        state: policy.State,
        mine: Mine,
        cursor: Any,
        parts: Mapping[Part, Any] | None,
        reading: Any,
    ) -> Seat | None:
        """The seat of an agent; None: it may not read the conversation, or it is none
        of messages.
        """
        about = (
            mine.participants,
            mine.archived,
            mine.history or "joined",
            mine.channel,
            mine.created_by or "",
        )
        object = policy.Object(mine.id, mine.type, *about)
        is_mail = mine.type in TYPES and not (
            mine.channel and mine.channel.owner
        )  # Notes are none.
        if not is_mail or not policy.may(agent, "read", object, state).allowed:
            return None
        interest = Interest.of(reading, state.profiles[agent])
        since = object.by_id[agent].joined_at if agent in object.by_id else ""
        behind = Behind(
            marks_of(cursor),
            (agent, *interest.blocked),
            ms_of(since),
            agent if interest.only_mentions else "",
            covered=tuple((part, marks_of(its)) for part, its in (parts or {}).items()),
        )
        return Seat(agent, mine, behind, interest, _is_read(mine, behind))

    def unread(self, seat: Seat, read: tuple[Mark, ...] | None = None) -> list[Place]:
        """The unread messages of a conversation; those behind `read`, if a listener stands
        elsewhere than the agent.
        """
        behind = seat.behind if read is None else seat.behind._replace(read=read)
        unread = self.questions.behind(behind, seat.mine.id, refresh=False)
        seat.is_read = seat.is_read or (not unread and behind.read == seat.behind.read)
        return unread

    def _item(self, seat: Seat) -> InboxItem | None:
        """What is unread; None: nothing."""
        if seat.is_read or seat.item is not None:
            return seat.item
        mine = seat.mine
        said = self.questions.said(mine.id, seat.behind, refresh=False)
        if said.last is None:
            seat.is_read = True
            return None
        name = mine.title
        if mine.type == "direct":
            name = next(
                (member.id for member in mine.participants if member.id != seat.agent), name
            )
        at, id, sender, content, time = said.last
        last = Mail(mine.id, mine.type, id, at, sender, content, time)
        seat.item = InboxItem(
            mine.id, mine.type, name, said.total, said.senders, last, seat.interest.wakes
        )
        return seat.item

    def inbox(self, agent: str, part: Part | None = None) -> Inbox:
        """The inbox of an agent, or of the part that it reads.

        Cost: bringing the index up to date, as `seats`, and a question for each conversation that
        changed and is not read.
        """
        self.questions.refresh()
        return Inbox.of(
            item
            for seat in self.seats(agent, part).values()
            if (item := self._item(seat)) is not None
        )

    def pointer(self, agent: str) -> str:
        """How much is unread that may wake an agent, and from whom. See `Messages.pointer`."""
        return Inbox.of(item for item in self.inbox(agent).conversations if item.wakes).pointer

    def mentioned(self, agent: str) -> list[Place]:
        """Where others mention an agent, in the conversations that it takes part in, the latest
        first.
        """
        blocked = Interest.of(None, self.wishes(agent)[0].profiles[agent]).blocked
        found = self.questions.behind(Behind(not_by=(agent, *blocked), mentioning=agent))
        seats = self.seats(agent)
        return [place for place in found if place.conversation in seats]

    def mentions(
        self, agent: str, in_states: Collection[str], kind: str | None, limit: int
    ) -> list[Mention]:
        """See `Messages.mentions`."""
        concerns, wanted = (
            self._people.documents.part(agent, "concerns"),
            dict[str, dict[int, Any]](),
        )
        places, seats = self.mentioned(agent), self.seats(agent)

        @cache
        def unread(id: str) -> int:
            return first_behind(
                seats[id].behind.read, partial(self.questions.marks, id, refresh=False)
            )

        for place in places:
            conversation, at, id, _ = place
            if kind is None and sum(map(len, wanted.values())) == limit:
                break
            about = concerns.get(id) or {}
            read_at, done_at = about.get("readAt") or "", about.get("doneAt") or ""
            now = (
                "done" if done_at else "read" if read_at or at < unread(conversation) else "unread"
            )
            if now in in_states:
                wanted.setdefault(conversation, {})[at] = place, now, read_at, done_at
        mentions = []
        for conversation, states in wanted.items():
            ids, seat = {at: place for at, (place, *_) in states.items()}, seats[conversation]
            with suppress(NotFound, InvalidDocument, Refused):  # As for a listener.
                mail = reversed(mail_at(self.store, seat, ids))
                since = (each for each in mail if ms_of(each.timestamp) >= seat.behind.since_ms)
                mentions += [Mention(each, *states[each.at][1:]) for each in since]
        mentions = [each for each in mentions if kind in (None, each.mail.mention)]
        return sorted(mentions, key=lambda each: each.mail.timestamp, reverse=True)[:limit]


def _at(seat: Seat, part: Part) -> Seat:
    """A seat, as far as a part is concerned."""
    read = (*seat.behind.read, *dict(seat.behind.covered).get(part, ()))
    behind = seat.behind._replace(read=read, part=part)
    return Seat(
        seat.agent, seat.mine, behind, seat.interest, seat.is_read or _is_read(seat.mine, behind)
    )


def _is_read(mine: Mine, behind: Behind) -> bool:
    """Whether the last message was read, as in most conversations."""
    return (mine.entries - 1, mine.last) in behind.read


def mail_at(store: CoreStore, seat: Seat, places: Mapping[int, Place]) -> list[Mail]:
    """The messages at these places, if they are still there and the agent may still read them.

    Args:
        store: The store.
        seat: The agent's seat in the conversation.
        places: The places, and what the index says of the messages there.

    Raises NotFound, InvalidDocument, and Refused when the agent may not read there any more.
    Cost: reading the messages from the first place on.
    """
    if not places:
        return []
    id, place, acting, engine = (
        seat.mine.id,
        min(places),
        store.inner.acting(seat.agent),
        store.engine,
    )
    wanted = max(seat.mine.entries, max(places) + 1) - place
    data, count, tag = engine.tail(id, wanted)
    while count - place > wanted or (engine is store.engine and (not tag or tag != seat.mine.tag)):
        # More were written meanwhile; or it is not the version by which the agent has its seat: it
        # is judged anew.
        engine, wanted = acting.engine, max(wanted, count - place)
        data, count, tag = engine.tail(id, wanted)
    store.inner.whole.flush(
        KIND, id
    )  # Who reads a message acts on it: it must outlive a power cut.
    entries = codec.decode_entries(data, id)
    first = count - len(entries)
    if [
        entry for entry in entries if not (entry.get("id") and entry.get("timestamp"))
    ]:  # Somebody typed them.
        entries = acting.engine.document(KIND, id)["history"][first:]
    return [
        Mail.of(
            id, seat.mine.type, at, entry, seat.interest.kind(entry, seat.agent), places[at].front
        )
        for at, entry in enumerate(entries, first)
        if entry and at in places and places[at].message == entry["id"]
    ]
