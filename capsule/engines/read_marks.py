"""Define read marks, which say how far an agent has read, and the values of unread messages.

What must stay true: nothing here belongs to one kind of engine. A quick command loads this, and not
`queries.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from capsule.format.documents.channels import Channel
from capsule.format.documents.members import Member

#: A position in a conversation, with the id of the message there, or with the ids digest: a hash of
#: the ids of all messages up to it. A mark with a digest is valid only if nothing before changed.
ReadMark = tuple[int, str]


def first_unread(marks: Iterable[ReadMark], ids_at: Mapping[int, tuple[str, str]]) -> int:
    """Return the position after the furthest valid mark, or 0.

    A mark is valid if the message at its position still has its id or ids digest.

    Args:
        marks: The marks.
        ids_at: The id and the ids digest of the messages at these positions.
    """
    valid = [position for position, id in marks if id in ids_at.get(position, ())]
    return max(valid, default=-1) + 1


class MessagePosition(NamedTuple):
    """A message: its conversation, its position, its id, and if asked for its ids digest."""

    conversation: str
    position: int
    message: str
    ids_digest: str = ""


class Participation(NamedTuple):
    """A conversation that an agent takes part in.

    Attributes:
        entries: The number of messages in all its branches.
        participants: The agents that take part, and those that left.
        history: What the participants may read: `joined` or `all`. Empty: the default.
        channel: The channel. None: it is a conversation of another type.
        created_by: The agent that created it. None: unknown.
        ids_digest: The digest of the ids of all messages. Empty: there are none. A read mark with
            it has read everything.
        tag: The tag of this version. See `DocumentState`. Empty: unknown.
        version: Identifies this version in the index. Empty: it can't be compared.
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
    """A message: its position, id, sender (empty: unknown), text and time."""

    position: int
    id: str
    sender: str
    content: str
    time: str


class UnreadFilter(NamedTuple):
    """The conditions of unread messages in a conversation.

    Attributes:
        read_marks: Messages up to the furthest valid mark are read.
        excluded_senders: Messages of these agents do not count.
        since_ms: Messages before this time do not count, in milliseconds since 1970.
        mentioning: Only messages that mention this agent or everybody count. Empty: all.
        part: Only messages with this value at this path count (a path and a value, such as a topic
            or a thread), and the message with this id. None: all.
        read_parts: Further such parts, each with its own read marks.
    """

    read_marks: tuple[ReadMark, ...] = ()
    excluded_senders: tuple[str, ...] = ()
    since_ms: int = 0
    mentioning: str = ""
    part: tuple[str, str] | None = None
    read_parts: tuple[tuple[tuple[str, str], tuple[ReadMark, ...]], ...] = ()


class UnreadSummary(NamedTuple):
    """The number of unread messages, their senders in the order of their first one,
    and the last.
    """

    total: int
    senders: tuple[str, ...] = ()
    last: LastMessage | None = None
