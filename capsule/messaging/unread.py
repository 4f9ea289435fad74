"""What an agent has not read, in all conversations that it takes part in.

What must stay true: unread is what stands behind the cursor and is of another agent; no time decides it but the one of
joining. The texts that an agent is given come from the conversations' files, never from the index.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.format import codec
from capsule.messaging import policy
from capsule.messaging.cursors import first_unread
from capsule.messaging.mail import Inbox, InboxItem, Mail
from capsule.store.reading import KIND

if TYPE_CHECKING:
    from capsule.engines.index.participation import Mine
    from capsule.store.store import Store

#: The types of conversations that are messages between agents.
TYPES = ("direct", "group")


@dataclass(frozen=True, slots=True)
class Seat:
    """A conversation that an agent takes part in, and how far it has read there.

    Attributes:
        mine: The conversation, as the index has it.
        cursor: The agent's cursor; None: it has read nothing.
        place: The place of the first message behind the cursor.
        since: The time from which messages are unread for the agent: that of its joining.
        item: What is unread; None: nothing.
    """

    mine: Mine
    cursor: Any
    place: int
    since: str
    item: InboxItem | None


class Unread:
    """What the agents of a store have not read. It keeps each answer until the conversation or the cursor changes.

    Args:
        store: The store, as its owner sees it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[str, dict[str, tuple[Mine, Any, Seat | None]]] = {}

    def seats(self, agent: str, *, refresh: bool = True) -> dict[str, Seat]:
        """The conversations that an agent takes part in, the latest first.

        Args:
            agent: The agent.
            refresh: Whether to bring the index up to date before; else the answer is what it has.

        Cost: bringing the index up to date, a fraction of a microsecond for each conversation, and two questions to
        the index for each one that changed and is not read.
        """
        cursors, kept = self._store.agents.documents.cursors(agent), self._kept.get(agent, {})
        now: dict[str, tuple[Mine, Any, Seat | None]] = {}
        for mine in self._store.index.of_agent(agent, refresh=refresh):
            cursor, was = cursors.get(mine.id), kept.get(mine.id)
            is_same = was is not None and was[0] is mine and (was[1] is cursor or was[1] == cursor)
            now[mine.id] = was if was and is_same else (mine, cursor, self._seat(agent, mine, cursor))
        self._kept[agent] = now
        return {id: seat for id, (_, _, seat) in now.items() if seat is not None}

    def _seat(self, agent: str, mine: Mine, cursor: Any) -> Seat | None:
        """The seat of an agent; None: it may not read the conversation, or it is none of messages."""
        object = policy.Object(mine.id, mine.type, mine.members, mine.archived, mine.history)
        if mine.type not in TYPES or not policy.may(agent, "read", object).allowed:
            return None
        since = next((member.joined_at for member in mine.members if member.id == agent), "")
        if isinstance(cursor, dict) and (cursor.get("at"), cursor.get("message")) == (mine.entries - 1, mine.last):
            place = mine.entries  # It has read everything, as in most conversations.
        else:
            place = first_unread(cursor, partial(self._store.index.message_ids, mine.id, refresh=False))
        return Seat(mine, cursor, place, since, self._item(agent, mine, place, since))

    def _item(self, agent: str, mine: Mine, place: int, since: str) -> InboxItem | None:
        since_ms = round(timestamps.parse(since).timestamp() * 1000) if since else 0
        if place >= mine.entries:
            return None
        said = self._store.index.said_after(mine.id, place, agent, since_ms, refresh=False)
        if said.last is None:
            return None
        name = mine.title
        if mine.type == "direct":
            name = next((member.id for member in mine.members if member.id != agent), name)
        at, id, sender, content, time = said.last
        last = Mail(mine.id, mine.type, id, at, sender, content, time)
        return InboxItem(mine.id, mine.type, name, said.total, said.senders, last)

    def inbox(self, agent: str) -> Inbox:
        """The inbox of an agent."""
        items = [seat.item for seat in self.seats(agent).values() if seat.item is not None]
        return Inbox(sum(item.unread for item in items), items)


def mail_in(store: Store, agent: str, seat: Seat, place: int, count: int) -> tuple[list[Mail], int]:
    """The messages of others from a place on.

    Args:
        store: The store.
        agent: The agent.
        seat: Its seat in the conversation.
        place: The place.
        count: The number of messages in the conversation, as far as it is known.

    Returns:
        The messages, and the place behind the last message of all.

    Raises NotFound, InvalidDocument. Cost: reading the messages from the place on.
    """
    id, wanted = seat.mine.id, max(count - place, 0)
    data, count = store.engine.tail(id, wanted)
    while count - place > wanted:  # More were written meanwhile.
        wanted = count - place
        data, count = store.engine.tail(id, wanted)
    entries = codec.decode_entries(data, store.engine.name(KIND, id))
    first = count - len(entries)
    if not all(entry.get("id") and entry.get("timestamp") for entry in entries):  # Somebody typed them.
        entries = store.document(id)["history"][first:]
    mail = (Mail.of(id, seat.mine.type, at, entry) for at, entry in enumerate(entries, first))
    is_new = (each for each in mail if each.at >= place and timestamps.sortable(each.timestamp) >= seat.since)
    return [each for each in is_new if each.from_ != agent], count
