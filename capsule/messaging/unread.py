"""What an agent has not read, in all conversations that it takes part in.

What must stay true: unread is what stands behind the cursor and is of another agent; no time decides it but the one of
joining. The texts come from the conversations' files, never from the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from capsule.errors import InvalidDocument, NotFound
from capsule.format import codec
from capsule.messaging.cursors import first_unread
from capsule.messaging.mail import Inbox, InboxItem, Mail
from capsule.store.reading import KIND

if TYPE_CHECKING:
    from capsule.format.head import Head
    from capsule.store.store import Store

#: The types of conversations that are messages between agents.
TYPES = ("direct", "group")
Entry = dict[str, Any]


class Seat(NamedTuple):
    """A conversation that an agent takes part in.

    Attributes:
        others: The other agents that take part.
        since: The time from which messages are unread for the agent: that of its joining.
    """

    id: str
    type: str
    title: str
    others: tuple[str, ...]
    since: str


def seats_of(store: Store, agent: str) -> list[Seat]:
    """The conversations that an agent takes part in, the latest first."""
    heads = sorted(store.heads(), key=lambda head: head.updated_at, reverse=True)
    return [seat for head in heads if (seat := _seat(head, agent)) is not None]


def seat_of(store: Store, agent: str, id: str) -> Seat | None:
    """One of them; None: the agent does not take part in it."""
    try:
        return _seat(store.head(id), agent)
    except (NotFound, InvalidDocument):
        return None


def _seat(head: Head, agent: str) -> Seat | None:
    there = {member.id: member for member in head.participants if member.is_in}
    if head.type not in TYPES or agent not in there:
        return None
    return Seat(head.id, head.type, head.title, tuple(id for id in there if id != agent), there[agent].joined_at)


def ids_in(store: Store, conversation: str, places: Iterable[int]) -> dict[int, str]:
    """The ids of the messages at these places."""
    places = list(places)
    first, entries = entries_from(store, conversation, min(places))
    return {at: entries[at - first].get("id", "") for at in places if first <= at < first + len(entries)}


def entries_from(store: Store, conversation: str, place: int) -> tuple[int, list[Entry]]:
    """The entries of a conversation from a place on, and the place of the first. Cost: reading them."""
    engine = store.engine
    _, count = engine.tail(conversation, 0)
    entries, count = engine.tail(conversation, max(count - place, 0))
    found = codec.decode_entries(entries, engine.name(KIND, conversation))
    return count - len(found), found


def first_place(store: Store, seat: Seat, cursors: Mapping[str, Any]) -> int:
    """The place of the first message behind the cursor."""
    return first_unread(cursors.get(seat.id), partial(ids_in, store, seat.id))


def mail_in(store: Store, seat: Seat, agent: str, place: int) -> tuple[list[Mail], int]:
    """The messages of others from a place on, and the place behind the last message of all."""
    first, entries = entries_from(store, seat.id, place)
    mail = [Mail.of(seat.id, seat.type, at, entry) for at, entry in enumerate(entries, first)]
    is_new = (each for each in mail if each.from_ != agent and each.timestamp >= seat.since and each.at >= place)
    return list(is_new), first + len(entries)


def inbox_of(store: Store, agent: str) -> Inbox:
    """The inbox of an agent."""
    cursors, items = store.agents.documents.cursors(agent), []
    for seat in seats_of(store, agent):
        mail, _ = mail_in(store, seat, agent, first_place(store, seat, cursors))
        if mail:
            name = seat.others[0] if seat.type == "direct" else seat.title
            senders = tuple(dict.fromkeys(each.from_ for each in mail))
            items.append(InboxItem(seat.id, seat.type, name, len(mail), senders, mail[-1]))
    items.sort(key=lambda item: item.last.timestamp, reverse=True)
    return Inbox(sum(item.unread for item in items), items)
