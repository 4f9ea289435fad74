"""The values that messaging returns: messages, mentions, inboxes, and the outcome of sending.

What must stay true: the names in `as_json` are part of the plain output and do not change. The
values are named tuples, because defining a dataclass costs a command of one message a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

#: The fields of a message that its recipient gets besides those of `Mail`.
_MORE: tuple[str, ...] = ("replyTo", "topic", "thread", "intent", "priority", "confidence", "model")
_MORE += ("metadata", "mentions", "attachments")
_NOTHING: Mapping[str, Any] = {}


class Mail(NamedTuple):
    """A message as its recipient gets it.

    Attributes:
        conversation: The conversation's id.
        type: The conversation's type: `direct`, `group` or `channel`.
        id: The message's id.
        at: The message's place in the conversation, from 0.
        from_: The agent that wrote it; empty: unknown.
        content: The text.
        timestamp: The time, as the format writes it.
        mention: How it mentions the recipient: `mention`, `review`, `action` or `fyi`; empty: it
            does not.
        more: What else it says, by the names of the format: `replyTo`, `topic`, `thread`, `intent`,
            `priority`, `confidence`, `model`, `metadata`, `mentions`, `attachments`; what it does
            not say is left out.
        front: The digest in its mark, where it was given to a listener; see `cursors`.
    """

    conversation: str
    type: str
    id: str
    at: int
    from_: str
    content: str
    timestamp: str
    mention: str = ""
    more: Mapping[str, Any] = _NOTHING
    front: str = ""

    @classmethod
    def of(
        cls,
        conversation: str,
        type: str,
        at: int,
        entry: Mapping[str, Any],
        mention: str = "",
        front: str = "",
    ) -> Mail:
        """The mail for an entry of a history."""
        get = entry.get
        who, time = get("from") or "", get("timestamp") or ""
        more = {name: entry[name] for name in _MORE if name in entry}
        return cls(
            conversation,
            type,
            get("id") or "",
            at,
            who,
            entry["content"],
            time,
            mention,
            more,
            front,
        )

    @property
    def reply_to(self) -> str | None:
        """The id of the message that it answers; None: none."""
        return self.more.get("replyTo")

    def as_json(self) -> dict[str, Any]:
        """The message as `--json` prints it."""
        shown = {
            "conversation": self.conversation,
            "type": self.type,
            "id": self.id,
            "from": self.from_,
        }
        shown |= {"content": self.content, "timestamp": self.timestamp, **self.more}
        return shown | {"mention": self.mention} if self.mention else shown


class Mention(NamedTuple):
    """A message that mentions an agent.

    Attributes:
        mail: The message; `mail.mention` is the kind.
        state: `unread`, `read` or `done`.
        read_at: When it was read; empty: it was not, or that is not known.
        done_at: When the agent was done with it; empty: it is not.
    """

    mail: Mail
    state: str
    read_at: str = ""
    done_at: str = ""

    def as_json(self) -> dict[str, Any]:
        """The mention as `--json` prints it."""
        times = {"readAt": self.read_at, "doneAt": self.done_at}
        return {
            **self.mail.as_json(),
            "state": self.state,
            **{name: time for name, time in times.items() if time},
        }


class Sent(NamedTuple):
    """A message that was sent.

    Attributes:
        conversation: The conversation's id.
        message: The message's id.
        recipients: For each recipient `stored`, `rung` (it was woken), or `read`. Of a message that
            was sent into a channel just now: for each member that was mentioned or rung.
        mentions: What it mentions: `valid`, the ids of members, or `@all`; `invalid` and `unknown`,
            the names of agents that are no members, and of nobody. Empty: nothing.
    """

    conversation: str
    message: str
    recipients: dict[str, str]
    mentions: Mapping[str, Any] = _NOTHING

    def as_json(self) -> dict[str, Any]:
        """The answer as `--json` prints it."""
        shown = {
            "conversation": self.conversation,
            "message": self.message,
            "recipients": self.recipients,
        }
        return shown | {"mentions": self.mentions} if self.mentions else shown


class Heard(NamedTuple):
    """What a call of `listen` heard.

    Attributes:
        messages: The messages; those of one conversation in its order.
        cursor: Names these messages for `ack`; empty: there are none.
        timed_out: Whether the time was up before a message came.
    """

    messages: list[Mail]
    cursor: str
    timed_out: bool = False

    def as_json(self) -> dict[str, Any]:
        """The answer as `--json` prints it."""
        shown: dict[str, Any] = {
            "messages": [mail.as_json() for mail in self.messages],
            "cursor": self.cursor,
        }
        return shown | {"timedOut": True} if self.timed_out else shown


class InboxItem(NamedTuple):
    """A conversation with unread messages.

    Attributes:
        id: The conversation.
        type: `direct`, `group` or `channel`.
        name: The other agent of a direct, or the title of a group or a channel.
        unread: The number of unread messages.
        senders: Who wrote them, in the order of their first messages.
        last: The last of them.
        wakes: Whether they wake the agent.
    """

    id: str
    type: str
    name: str
    unread: int
    senders: tuple[str, ...]
    last: Mail
    wakes: bool = True

    def as_json(self) -> dict[str, Any]:
        """The conversation as `--json` prints it."""
        last = {
            "from": self.last.from_,
            "content": self.last.content,
            "timestamp": self.last.timestamp,
        }
        return {
            "id": self.id,
            "type": self.type,
            "name": self.name,
            "unread": self.unread,
            "senders": list(self.senders),
            "last": last,
        }


class Inbox(NamedTuple):
    """What an agent has not read.

    Attributes:
        unread: The number of unread messages in all conversations.
        conversations: The conversations that have some, the latest first.
    """

    unread: int
    conversations: list[InboxItem]

    @classmethod
    def of(cls, items: Iterable[InboxItem]) -> Inbox:
        """The inbox with these conversations."""
        conversations = list(items)
        return cls(sum(item.unread for item in conversations), conversations)

    @property
    def senders(self) -> list[str]:
        """Who wrote the unread messages, each once."""
        return list(dict.fromkeys(sender for item in self.conversations for sender in item.senders))

    @property
    def pointer(self) -> str:
        """The inbox in a few words, without any text of a message: `2 unread from anna, build-bot`;
        or empty.
        """
        return f"{self.unread} unread from {', '.join(self.senders)}" if self.unread else ""

    def as_json(self) -> dict[str, Any]:
        """The inbox as `--json` prints it."""
        return {
            "unread": self.unread,
            "conversations": [item.as_json() for item in self.conversations],
        }


class History(NamedTuple):
    """A page of a conversation.

    Attributes:
        messages: The messages, oldest first.
        before: The cursor to the messages before them; None: there are none.
        after: The cursor to the messages after them; None: there are none.
    """

    messages: list[Mail]
    before: str | None
    after: str | None

    def as_json(self) -> dict[str, Any]:
        """The page as `--json` prints it."""
        return {
            "messages": [mail.as_json() for mail in self.messages],
            "before": self.before,
            "after": self.after,
        }
