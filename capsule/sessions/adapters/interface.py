"""What an adapter is: it brings the messages of one channel type to the host, and takes away what workers say.

What must stay true: a message that `receive` took is durable when it returns, so only then does an adapter acknowledge
it at its source; and it may bring a message twice, as the host knows it by its id. The host may deliver a message twice
too, after a crash: an adapter makes one of them by `Outgoing.id`. The module knows no session's files.

Another distribution adds an adapter as an entry point of the group `capsule.adapters`: a callable that takes the store,
as its owner sees it, and gives an `Adapter`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from capsule.errors import InvalidInput

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

#: The group of entry points that name adapters.
ENTRY_POINTS = "capsule.adapters"


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message from outside.

    Attributes:
        id: Its id; a message with the same id is the same message.
        channel: The adapter's name.
        place: Where it was said, by the adapter's id of that: a conversation, a chat, an address.
        sender: Who said it, as the channel names them; empty: unknown.
        text: The text.
        at: When it was said, as the format writes times; empty: now.
        thread: The id of the thread that it is in; empty: none.
        title: The name of the place, for people.
        is_group: Whether the place has more than one who could be meant.
        mentions: The agents that it mentions, by their ids.
        to: The agents that it is given to; empty: those whom the wirings of the place name.
        known: Whether the sender is one whom the agent knows.
        reply_to: The id of the message that it answers, as the channel names it; empty: none.
        hops: Through how many agents it came, one answering the other.
        kind: What it is.
        attachments: What is attached, as the format writes it in a message.
        editable: Whether its channel edits: then other content under its id is passed over, and is no error.
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
class File:
    """A file that a worker sends. Attributes: its name, and what reads its bytes."""

    name: str
    read: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message from a worker, for an adapter to deliver.

    Attributes:
        id: Its id; a message with the same id is the same message, and is delivered once.
        kind: `chat`, `file`, `question` (with `options`), `edit` or `reaction` (with a `target`).
        session: The session that it comes from.
        agent: The agent that says it.
        place: Where it goes, by the adapter's id of that.
        thread: The thread that it belongs to; empty: none.
        text: The text.
        reply_to: The id of the message of this place that it answers, as it arrived; empty: none.
        target: What `deliver` returned for the message that it changes or reacts to.
        emoji: The reaction.
        options: What the question may be answered with, each with `label` and `value`.
        files: The files that go with it.
        hops: Through how many agents it came; who brings the answer to it back gives it to `Arrived.hops`.
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
    files: Sequence[File] = field(default=())
    hops: int = 0


class Receiver(Protocol):
    """The host, as an adapter sees it."""

    def receive(self, arrived: Sequence[Arrived]) -> None:
        """Take messages. They are durable when this returns, and may be acknowledged at their source.

        Any thread may call it. Raises InvalidInput with a field `id`: that message was taken before with other
        content, which stays, and all others were taken. CapsuleError: not all were taken; bring them again later.
        Cost: one append to the file of each session that gets some.
        """


class Adapter(ABC):
    """One channel type. The host calls `start` once, `deliver` from several threads, and `stop` at the end."""

    #: The channel type, as `Arrived.channel` and the routes name it.
    name: ClassVar[str]

    @abstractmethod
    def start(self, receiver: Receiver) -> None:
        """Begin to bring messages, in threads of its own. Raises CapsuleError, which ends the host's start."""

    @abstractmethod
    def deliver(self, out: Outgoing) -> str:
        """Deliver a message; a message of an id that was delivered before is not delivered again.

        Returns:
            The id that the channel gives to it; empty: none.

        Raises:
            Refused, InvalidInput, NotFound: It can't be delivered, and a retry would not help.
            CapsuleError, OSError: It was not delivered now; it is tried again.
        """

    def look(self) -> None:  # noqa: B027 - most adapters are told of what comes.
        """Look for what came without a notice, and whether the registry changed. Must return at once."""

    @abstractmethod
    def stop(self) -> None:
        """End its threads. What it was given and did not acknowledge comes again."""


def installed(store: CoreStore) -> list[Adapter]:
    """The adapters of other distributions, for a store as its owner sees it.

    Raises InvalidInput: one can't be loaded; it names it. Cost: importing them.
    """
    from importlib.metadata import entry_points

    adapters = []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            adapters.append(entry.load()(store))
        except Exception as error:
            raise InvalidInput(f"the adapter {entry.name} ({entry.value}) can't be loaded: {error}") from error
    return adapters
