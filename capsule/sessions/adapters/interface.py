"""The interface of an adapter, which connects one type of channel with the host.

An adapter brings the messages of its channel to the host (`Receiver`), and delivers the messages of
workers. It knows no files of sessions. Another distribution adds an adapter as an entry point of
the group `capsule.adapters`: a callable that takes the store, as its owner sees it, and returns an
`Adapter`.

What must stay true:
- A message is durable when `receive` returns. Only then does an adapter acknowledge it at its
  source.
- An adapter may bring a message twice. The host recognizes it by its id.
- After a crash the host may deliver a message twice. An adapter makes one of the two by
  `OutgoingMessage.id`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from capsule.errors import InvalidInput

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

#: The group of entry points that name adapters.
ENTRY_POINTS = "capsule.adapters"


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message from outside.

    Attributes:
        id: The id. A message with the same id is the same message.
        channel: The adapter's name.
        place: The adapter's id of the place: a conversation, a chat, an address.
        sender: The sender, by the name that the channel has for it. Empty: unknown.
        text: The text.
        at: The time when it was sent, as the format writes times. Empty: now.
        thread: The thread that it is in. Empty: none.
        title: The name of the place, for people.
        is_group: Whether the place has several members that could be meant.
        mentions: The ids of the agents that it mentions.
        to: The ids of the agents that it is for. Empty: those of the place's wirings.
        known: Whether the adapter knows the sender, for wirings with `senders="known"`.
        reply_to: The message that it answers, by the channel's id. Empty: none.
        hops: The number of agents that it came through, each of which answered the one before.
        kind: The kind of the message.
        attachments: The attachments, as the format writes them in a message.
        editable: Whether messages can be edited in the channel. Then another content under its id
            is passed over, and is no error.
    """

    id: str
    channel: str
    place: str
    sender: str
    text: str
    at: str = ""
    thread: str = ""
    title: str = ""
    is_group: bool = False
    mentions: frozenset[str] = frozenset()
    to: frozenset[str] = frozenset()
    known: bool = True
    reply_to: str = ""
    hops: int = 0
    kind: Literal["chat", "webhook"] = "chat"
    attachments: tuple[Mapping[str, Any], ...] = ()
    editable: bool = False


@dataclass(frozen=True, slots=True)
class OutgoingFile:
    """A file that a worker sends.

    Attributes:
        name: The name.
        read: Returns the bytes.
    """

    name: str
    read: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message from a worker, for an adapter to deliver.

    Attributes:
        id: The id. A message with the same id is the same message, and is delivered once.
        kind: `chat`, `file`, `question` (with `options`), `edit` or `reaction` (with a `target`).
        session: The session that sends it.
        agent: The agent that sends it.
        place: The place that it goes to, by the adapter's id.
        thread: The thread that it belongs to. Empty: none.
        text: The text.
        reply_to: The message of this place that it answers, by the id with which it was received.
            Empty: none.
        target: The result of `deliver` for the message that it changes or reacts to.
        emoji: The reaction.
        options: The possible answers to a question, each with a `label` and a `value`.
        files: The files that it has.
        hops: The number of agents that it came through. An adapter that brings back an answer to it
            puts the number into `ReceivedMessage.hops`.
    """

    id: str
    kind: str
    session: str
    agent: str
    place: str
    thread: str = ""
    text: str = ""
    reply_to: str = ""
    target: str = ""
    emoji: str = ""
    options: Sequence[Mapping[str, str]] = ()
    files: Sequence[OutgoingFile] = ()
    hops: int = 0


class Receiver(Protocol):
    """The host, as an adapter sees it."""

    def receive(self, arrived: Sequence[ReceivedMessage]) -> None:
        """Take messages. They are durable when this returns, and may be acknowledged at their
        source. Any thread may call it.

        Raises:
            InvalidInput: With a field `id`: this message was received before with other content,
                which stays. All other messages were taken.
            CapsuleError: Not all messages were taken. Bring them again later.

        Cost: one append to the file of each session that gets some.
        """


class Adapter(ABC):
    """One type of channel. The host calls `start` once, `deliver` from several threads, and `stop`
    at the end.

    Attributes:
        name: The type of channel, as in `ReceivedMessage.channel` and in wirings.
    """

    name: ClassVar[str]

    @abstractmethod
    def start(self, receiver: Receiver) -> None:
        """Begin to bring messages, in threads of its own.

        Raises CapsuleError, which ends the start of the host.
        """

    @abstractmethod
    def deliver(self, out: OutgoingMessage) -> str:
        """Deliver a message. A message whose id was delivered before is not delivered again.

        Returns:
            The id that the channel gives to it. Empty: none.

        Raises:
            Refused, InvalidInput, NotFound: It cannot be delivered, and a retry would not help.
            CapsuleError, OSError: It was not delivered now. The host tries it again.
        """

    def look(self) -> None:  # noqa: B027 - most adapters are notified of new messages.
        """Look for messages that came without a notice, and for changed agents of the registry. Must
        return at once.
        """

    @abstractmethod
    def stop(self) -> None:
        """End the adapter's threads. Messages that were not acknowledged come again."""


def installed(store: CoreStore) -> list[Adapter]:
    """Return the adapters of other distributions, for a store as its owner sees it.

    Raises InvalidInput, with its name, if one cannot be loaded. Cost: importing them.
    """
    from importlib.metadata import entry_points

    adapters = []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            adapters.append(entry.load()(store))
        except Exception as error:
            raise InvalidInput(
                f"the adapter {entry.name} ({entry.value}) can't be loaded: {error}"
            ) from error
    return adapters
