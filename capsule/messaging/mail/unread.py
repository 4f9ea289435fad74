"""What an agent has not read, in all conversations that it takes part in.

What must stay true: unread is what stands behind the cursor, is of another agent, and what the agent wants to hear of;
no time decides it but the one of joining. A conversation that the agent may not read now has nothing unread. The texts
that an agent is given come from the conversations' files, never from the index.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from capsule.engines.answers import Behind
from capsule.errors import InvalidDocument, NotFound, Refused
from capsule.format.json import codec
from capsule.messaging.mail.cursors import Part, first_behind, marks_of, parts_in
from capsule.messaging.mail.mail import Inbox, InboxItem, Mail, Mention
from capsule.messaging.mail.mentions import Interest
from capsule.messaging.people.people import People
from capsule.rules import policy
from capsule.store.reading import KIND
from capsule.timestamps import ms_of

if TYPE_CHECKING:
    from capsule.engines.answers import Mine, Place
    from capsule.store.store import CoreStore

#: The types of conversations that are messages between agents.
TYPES = ("direct", "group", "channel")


@dataclass(frozen=True, slots=True)
class Seat:
    """A conversation that an agent takes part in, or a part of it, and how far the agent has read there.

    Attributes:
        agent: The agent.
        mine: The conversation, as the index has it.
        behind: What is unread: from the time on when the agent joined, and behind its cursors.
        interest: What the agent wants to hear of there.
        item: What is unread; None: nothing.
    """

    agent: str
    mine: Mine
    behind: Behind
    interest: Interest
    item: InboxItem | None = None


#: On what a seat depends: the conversation, the agent's cursor, those of parts, and what it wants to hear of.
_Basis = tuple["Mine", Any, Any, Any]
#: What an agent may read, and what it wants to hear of.
Wishes = tuple[policy.State, Any]


class Unread:
    """What the agents of a store have not read. It keeps each answer until something changes that it depends on.

    Args:
        store: The store, as its owner sees it.
    """

    def __init__(self, store: CoreStore) -> None:
        self._store = store
        self._people = store.inner.part(People)
        self._kept: dict[str, tuple[policy.State, dict[str, tuple[_Basis, Seat | None]]]] = {}

    def wishes(self, agent: str) -> Wishes:
        """What of all conversations counts as unread depends on: what the agent may read, and wants to hear of."""
        state = self._people.directory.state(agent)
        return state, self._people.documents.part_read(agent, state.reads, "reading")

    def seats(
        self, agent: str, part: Part | None = None, *, refresh: bool = True, wishes: Wishes | None = None
    ) -> dict[str, Seat]:
        """The conversations that an agent takes part in, the latest first.

        Args:
            agent: The agent.
            part: The part of them that it reads; None: everything.
            refresh: Whether to bring the index up to date before; else the answer is what it has.
            wishes: What `wishes` gave just now; None: it is asked.

        Cost: bringing the index up to date, a fraction of a microsecond for each conversation, and two questions to
        the index for each one that changed and is not read.
        """
        state, reading = wishes or self.wishes(agent)
        cursors = self._people.documents.part_read(agent, state.reads, "cursors")
        for_state, kept = self._kept.get(agent, (state, {}))
        parts, kept = parts_in(cursors), kept if for_state == state else {}
        now: dict[str, tuple[_Basis, Seat | None]] = {}
        for mine in self._store.questions.mine(agent, refresh=refresh):
            id, was = mine.id, kept.get(mine.id)
            basis = mine, cursors.get(id), parts.get(id), reading.get(id)
            now[id] = was if was is not None and was[0] == basis else (basis, self._seat(agent, state, *basis))
        self._kept[agent] = state, now
        seats = {id: seat for id, (_, seat) in now.items() if seat is not None}
        return seats if part is None else {id: self._at(seat, part) for id, seat in seats.items()}

    def _seat(
        self, agent: str, state: policy.State, mine: Mine, cursor: Any, parts: Mapping[Part, Any] | None, reading: Any
    ) -> Seat | None:
        """The seat of an agent; None: it may not read the conversation, or it is none of messages."""
        about = mine.participants, mine.archived, mine.history or "joined", mine.channel, mine.created_by or ""
        object = policy.Object(mine.id, mine.type, *about)
        is_mail = mine.type in TYPES and not (mine.channel and mine.channel.owner)  # Notes are none.
        if not is_mail or not policy.may(agent, "read", object, state).allowed:
            return None
        interest = Interest.of(reading, state.profiles[agent])
        since = object.by_id[agent].joined_at if agent in object.by_id else ""
        behind = Behind(
            marks_of(cursor),
            (agent, *interest.blocked) if interest.only_mentions else (agent,),
            ms_of(since),
            agent if interest.only_mentions else "",
            covered=tuple((part, marks_of(its)) for part, its in (parts or {}).items()),
        )
        return self._with_item(Seat(agent, mine, behind, interest))

    def _at(self, seat: Seat, part: Part) -> Seat:
        """A seat, as far as a part is concerned."""
        read = (*seat.behind.read, *dict(seat.behind.covered).get(part, ()))
        there = replace(seat, behind=replace(seat.behind, read=read, part=part))
        return there if seat.item is None else self._with_item(there)

    def _with_item(self, seat: Seat) -> Seat:
        """A seat with what is unread."""
        mine = seat.mine
        if (mine.entries - 1, mine.last) in seat.behind.read:  # As in most conversations.
            return replace(seat, item=None)
        said = self._store.questions.said(mine.id, seat.behind, refresh=False)
        if said.last is None:
            return replace(seat, item=None)
        name = mine.title
        if mine.type == "direct":
            name = next((member.id for member in mine.participants if member.id != seat.agent), name)
        at, id, sender, content, time = said.last
        last = Mail(mine.id, mine.type, id, at, sender, content, time)
        item = InboxItem(mine.id, mine.type, name, said.total, said.senders, last, seat.interest.wakes)
        return replace(seat, item=item)

    def inbox(self, agent: str, part: Part | None = None) -> Inbox:
        """The inbox of an agent, or of the part that it reads."""
        return Inbox.of(seat.item for seat in self.seats(agent, part).values() if seat.item is not None)

    def pointer(self, agent: str) -> str:
        """How much is unread that may wake an agent, and from whom. See `Messages.pointer`."""
        return Inbox.of(item for item in self.inbox(agent).conversations if item.wakes).pointer

    def mentioned(self, agent: str) -> list[Place]:
        """Where others mention an agent, in the conversations that it takes part in, the latest first."""
        blocked = Interest.of(None, self.wishes(agent)[0].profiles[agent]).blocked
        places = self._store.questions.behind(Behind(not_by=(agent, *blocked), mentioning=agent))
        seats = self.seats(agent, refresh=False)
        return [place for place in places if place.conversation in seats]

    def mentions(self, agent: str, in_states: Collection[str], kind: str | None, limit: int) -> list[Mention]:
        """See `Messages.mentions`."""
        concerns, wanted = self._people.documents.part(agent, "concerns"), dict[str, dict[int, Any]]()
        places, seats = self.mentioned(agent), self.seats(agent, refresh=False)

        @cache
        def unread(id: str) -> int:
            return first_behind(seats[id].behind.read, partial(self._store.questions.marks, id, refresh=False))

        for place in places:
            conversation, at, id, _ = place
            if kind is None and sum(map(len, wanted.values())) == limit:
                break
            about = concerns.get(id) or {}
            read_at, done_at = about.get("readAt") or "", about.get("doneAt") or ""
            now = "done" if done_at else "read" if read_at or at < unread(conversation) else "unread"
            if now in in_states:
                wanted.setdefault(conversation, {})[at] = place, now, read_at, done_at
        mentions = []
        for conversation, states in wanted.items():
            ids, seat = {at: place for at, (place, *_) in states.items()}, seats[conversation]
            with suppress(NotFound, InvalidDocument, Refused):  # As for a listener.
                mail = reversed(mail_at(self._store, seat, ids))
                since = (each for each in mail if ms_of(each.timestamp) >= seat.behind.since_ms)
                mentions += [Mention(each, *states[each.at][1:]) for each in since]
        mentions = [each for each in mentions if kind in (None, each.mail.mention)]
        return sorted(mentions, key=lambda each: each.mail.timestamp, reverse=True)[:limit]


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
    id, place, acting = seat.mine.id, min(places), store.inner.acting(seat.agent)
    wanted = max(seat.mine.entries, *(at + 1 for at in places)) - place
    data, count = acting.engine.tail(id, wanted)
    while count - place > wanted:  # More were written meanwhile.
        wanted = count - place
        data, count = acting.engine.tail(id, wanted)
    entries = codec.decode_entries(data, store.engine.name(KIND, id))
    first = count - len(entries)
    if not all(entry.get("id") and entry.get("timestamp") for entry in entries):  # Somebody typed them.
        entries = acting.engine.document(KIND, id)["history"][first:]
    return [
        Mail.of(id, seat.mine.type, at, entry, seat.interest.kind(entry, seat.agent), places[at].front)
        for at, entry in enumerate(entries, first)
        if entry and at in places and places[at].message == entry["id"]
    ]
