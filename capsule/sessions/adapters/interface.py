"""What an adapter is: it brings the messages of one channel type to the host, and takes away what
workers say.

What must stay true: a message that `receive` took is durable when it returns, so only then does an
adapter acknowledge it at its source; and it may bring a message twice, as the host knows it by its
id. The host may deliver a message twice too, after a crash: an adapter makes one of them by
`OutgoingMessage.id`. The module knows no session's files.

Another distribution adds an adapter as an entry point of the group `capsule.adapters`: a callable
that takes the store, as its owner sees it, and gives an `Adapter`.
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
    """A message from outside."""

    id: str  # A message with the same id is the same message.
    channel: str  # The adapter's name.
    place: (
        str  # Where it was said, by the adapter's id of that: a conversation, a chat, an address.
    )
    sender: str  # Who said it, as the channel names them; empty: unknown.
    text: str
    at: str = ""  # When it was said, as the format writes times; empty: now.
    thread: str = ""  # The id of the thread that it is in; empty: none.
    title: str = ""  # The name of the place, for people.
    is_group: bool = False  # Whether the place has more than one who could be meant.
    mentions: frozenset[str] = frozenset()  # The agents that it mentions, by their ids.
    to: frozenset[str] = (
        frozenset()
    )  # The agents that it is given to; empty: those whom the place's wirings name.
    known: bool = True  # Whether the sender is one whom the agent knows.
    reply_to: str = (
        ""  # The id of the message that it answers, as the channel names it; empty: none.
    )
    hops: int = 0  # Through how many agents it came, one answering the other.
    kind: Literal["chat", "webhook"] = "chat"
    attachments: tuple[Mapping[str, Any], ...] = ()  # As the format writes them in a message.
    # Whether its channel edits: other content under its id is passed over then, and no error.
    editable: bool = False


@dataclass(frozen=True, slots=True)
class OutgoingFile:
    """A file that a worker sends. Attributes: its name, and what reads its bytes."""

    name: str
    read: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message from a worker, for an adapter to deliver."""

    id: str  # A message with the same id is the same message, and is delivered once.
    kind: (
        str  # `chat`, `file`, `question` (with `options`), `edit` or `reaction` (with a `target`).
    )
    session: str  # The session that it comes from.
    agent: str  # The agent that says it.
    place: str  # Where it goes, by the adapter's id of that.
    thread: str = ""  # The thread that it belongs to; empty: none.
    text: str = ""
    reply_to: str = (
        ""  # The id of the message of this place that it answers, as it arrived; empty: none.
    )
    target: str = ""  # What `deliver` returned for the message that it changes or reacts to.
    emoji: str = ""  # The reaction.
    options: Sequence[
        Mapping[str, str]
    ] = ()  # What the question may be answered with, each a `label` and a `value`.
    files: Sequence[OutgoingFile] = ()  # The files that go with it.
    # Through how many agents it came; who brings the answer to it back gives it to `ReceivedMessage.hops`.
    hops: int = 0


class Receiver(Protocol):
    """The host, as an adapter sees it."""

    def receive(self, arrived: Sequence[ReceivedMessage]) -> None:
        """Take messages. They are durable when this returns, and may be acknowledged at their
        source.

        Any thread may call it. Raises InvalidInput with a field `id`: that message was taken before
        with other content, which stays, and all others were taken. CapsuleError: not all were
        taken; bring them again later. Cost: one append to the file of each session that gets some.
        """


class Adapter(ABC):
    """One channel type. The host calls `start` once, `deliver` from several threads, and `stop` at
    the end.
    """

    #: The channel type, as `ReceivedMessage.channel` and the routes name it.
    name: ClassVar[str]

    @abstractmethod
    def start(self, receiver: Receiver) -> None:
        """Begin to bring messages, in threads of its own. Raises CapsuleError, which ends the
        host's start.
        """

    @abstractmethod
    def deliver(self, out: OutgoingMessage) -> str:
        """Deliver a message; a message of an id that was delivered before is not delivered again.

        Returns:
            The id that the channel gives to it; empty: none.

        Raises:
            Refused, InvalidInput, NotFound: It can't be delivered, and a retry would not help.
            CapsuleError, OSError: It was not delivered now; it is tried again.
        """

    def look(self) -> None:  # noqa: B027 - most adapters are told of what comes.
        """Look for what came without a notice, and whether the registry changed. Must return at
        once.
        """

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
            raise InvalidInput(
                f"the adapter {entry.name} ({entry.value}) can't be loaded: {error}"
            ) from error
    return adapters
