"""How far an agent has read: marks, and what is asked and answered by them.

What must stay true: nothing here belongs to one kind of engine. A quick command loads this, and not
`queries.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from capsule.format.documents.channels import Channel
from capsule.format.documents.members import Member

#: A message, by its place, and by its id or by a digest of the ids up to it, which also tells what
#: stands in front.
ReadMark = tuple[int, str]


def first_unread(marks: Iterable[ReadMark], there: Mapping[int, tuple[str, str]]) -> int:
    """The place behind the furthest of these marks that holds, given the ids and digests at their
    places; 0: none.
    """
    return max([at + 1 for at, id in marks if id in there.get(at, ())], default=0)


class MessagePosition(NamedTuple):
    """Where a message is: its conversation, its place there, its id, and if asked for the digest of
    the ids so far.
    """

    conversation: str
    position: int
    message: str
    ids_digest: str = ""


class Participation(NamedTuple):
    """A conversation that an agent takes part in.

    Attributes:
        entries: How many messages it has, in all its branches.
        last: The digest of all their ids; empty: there are none. A cursor with this mark has read
            everything.
        tag: Of the version that this is of, as `DocumentState` has it; empty: it isn't known.
        version: As the index tells one version from another; empty: it can't.
        participants: The agents that take part, and those that left.
        history: What the participants read: `joined` or `all`; empty: it does not say.
        channel: What makes it a channel; None: it is none.
        created_by: The agent that made it; None: it does not say.
    """

    id: str
    type: str
    title: str
    entries: int
    archived: bool
    updated_at: str
    participants: tuple[Member, ...]
    history: str
    channel: Channel | None
    created_by: str | None
    ids_digest: str
    tag: str
    version: str = ""


class LastMessage(NamedTuple):
    """A message: its place, its id, who wrote it (empty: it does not say), its text, and when it
    was written.
    """

    position: int
    id: str
    sender: str
    content: str
    time: str


class UnreadFilter(NamedTuple):
    """Which messages of a conversation count: those behind what was read, and not all of these.

    Attributes:
        read: What was read: everything up to the furthest of these messages that still stands at
            its place.
        not_by: Agents whose messages don't count.
        since_ms: Messages before this time don't count, in milliseconds since 1970.
        mentioning: Only what mentions this agent, or everybody, counts; empty: all does.
        part: Only messages with this value at this path count, and the one with this id; None: all
            do.
        covered: Such parts, each with what was read of it.
    """

    read_marks: tuple[ReadMark, ...] = ()
    excluded_senders: tuple[str, ...] = ()
    since_ms: int = 0
    mentioning: str = ""
    part: tuple[str, str] | None = None
    read_parts: tuple[tuple[tuple[str, str], tuple[ReadMark, ...]], ...] = ()


class UnreadSummary(NamedTuple):
    """Messages from a place on: how many, who wrote them in the order of their first, and the last
    one.
    """

    total: int
    senders: tuple[str, ...] = ()
    last: LastMessage | None = None
