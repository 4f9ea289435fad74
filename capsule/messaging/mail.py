"""The values that messaging returns: messages, mentions, inboxes, and the result of sending.

What must stay true: the names in `as_json` are part of the JSON output and do not change. The values
are named tuples, because defining a dataclass costs a command of one message a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

#: The fields of a message that are in `Mail.more`.
_MORE_FIELDS = (
    "replyTo",
    "topic",
    "thread",
    "intent",
    "priority",
    "confidence",
    "model",
    "metadata",
    "mentions",
    "attachments",
)
_NO_FIELDS: Mapping[str, Any] = {}


class Mail(NamedTuple):
    """A message as its recipient gets it.

    Attributes:
        conversation: The conversation's id.
        type: The conversation's type: `direct`, `group` or `channel`.
        id: The message's id.
        at: The message's position in the conversation, from 0.
        from_: The agent that wrote it. Empty: unknown.
        content: The text.
        timestamp: The time, as the format writes it.
        mention: How it mentions the recipient: `mention`, `review`, `action` or `fyi`. Empty: it
            does not.
        more: The fields that it has of `replyTo`, `topic`, `thread`, `intent`, `priority`,
            `confidence`, `model`, `metadata`, `mentions` and `attachments`.
        front: The digest of all message ids up to this one, if a listener got it. See the marks in
            `capsule.messaging.unread`.
    """

    conversation: str
    type: str
    id: str
    at: int
    from_: str
    content: str
    timestamp: str
    mention: str = ""
    more: Mapping[str, Any] = _NO_FIELDS
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
        """Return the mail for an entry of a history, which is at position `at`."""
        return cls(
            conversation=conversation,
            type=type,
            id=entry.get("id") or "",
            at=at,
            from_=entry.get("from") or "",
            content=entry["content"],
            timestamp=entry.get("timestamp") or "",
            mention=mention,
            more={name: entry[name] for name in _MORE_FIELDS if name in entry},
            front=front,
        )

    @property
    def reply_to(self) -> str | None:
        """The id of the message that it answers. None: none."""
        return self.more.get("replyTo")

    def as_json(self) -> dict[str, Any]:
        """The message as `--json` prints it."""
        fields = {
            "conversation": self.conversation,
            "type": self.type,
            "id": self.id,
            "from": self.from_,
            "content": self.content,
            "timestamp": self.timestamp,
            **self.more,
        }
        if self.mention:
            fields["mention"] = self.mention
        return fields


class Mention(NamedTuple):
    """A message that mentions an agent.

    Attributes:
        mail: The message. `mail.mention` is the kind.
        state: `unread`, `read` or `done`.
        read_at: When it was read. Empty: it was not, or the time is unknown.
        done_at: When the agent was done with it. Empty: it is not.
    """

    mail: Mail
    state: str
    read_at: str = ""
    done_at: str = ""

    def as_json(self) -> dict[str, Any]:
        """The mention as `--json` prints it."""
        fields = self.mail.as_json() | {"state": self.state}
        if self.read_at:
            fields["readAt"] = self.read_at
        if self.done_at:
            fields["doneAt"] = self.done_at
        return fields


class Sent(NamedTuple):
    """A message that was sent.

    Attributes:
        conversation: The conversation's id.
        message: The message's id.
        recipients: For each recipient `stored`, `rung` (it was woken), or `read`. `send` into a
            channel lists only the members that were mentioned or rung.
        mentions: The mentions by their state: `valid` (ids of members, or `@all`), `invalid` (names
            of agents that are no members) and `unknown` (names of no agent). Empty: none.
    """

    conversation: str
    message: str
    recipients: dict[str, str]
    mentions: Mapping[str, Any] = _NO_FIELDS

    def as_json(self) -> dict[str, Any]:
        """The result as `--json` prints it."""
        fields: dict[str, Any] = {
            "conversation": self.conversation,
            "message": self.message,
            "recipients": self.recipients,
        }
        if self.mentions:
            fields["mentions"] = self.mentions
        return fields


class Heard(NamedTuple):
    """The result of a call of `listen`.

    Attributes:
        messages: The messages, by time. Those of one conversation are in its order.
        cursor: The cursor with which `ack` acknowledges these messages. Empty: there are none.
        timed_out: Whether the time was up before a message came.
    """

    messages: list[Mail]
    cursor: str
    timed_out: bool = False

    def as_json(self) -> dict[str, Any]:
        """The result as `--json` prints it."""
        fields: dict[str, Any] = {
            "messages": [mail.as_json() for mail in self.messages],
            "cursor": self.cursor,
        }
        if self.timed_out:
            fields["timedOut"] = True
        return fields


class InboxItem(NamedTuple):
    """A conversation with unread messages.

    Attributes:
        id: The conversation.
        type: `direct`, `group` or `channel`.
        name: The other agent of a direct, or the title of a group or a channel.
        unread: The number of unread messages.
        senders: The agents that wrote them, in the order of their first messages.
        last: The last unread message.
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
    """The unread messages of an agent.

    Attributes:
        unread: The number of unread messages in all conversations.
        conversations: The conversations with unread messages, the latest first.
    """

    unread: int
    conversations: list[InboxItem]

    @classmethod
    def of(cls, items: Iterable[InboxItem]) -> Inbox:
        """Return the inbox with these conversations."""
        conversations = list(items)
        return cls(sum(item.unread for item in conversations), conversations)

    @property
    def senders(self) -> list[str]:
        """The agents that wrote the unread messages, each once."""
        return list(dict.fromkeys(sender for item in self.conversations for sender in item.senders))

    @property
    def pointer(self) -> str:
        """The inbox in a few words, without any text of a message: `2 unread from anna, build-bot`.

        Empty: nothing is unread.
        """
        if not self.unread:
            return ""
        return f"{self.unread} unread from {', '.join(self.senders)}"

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
        before: The cursor of the messages before them, or None.
        after: The cursor of the messages after them, or None.
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
