"""The questions about all conversations that an engine answers, and what they are asked with.

What must stay true: who asks, filters, orders and pages pass as plain data, so that an engine can answer in its own
language. Nothing here belongs to one kind of engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from capsule.format.documents.head import HERE
from capsule.format.references import moment
from capsule.timestamps import sortable

if TYPE_CHECKING:
    from capsule.engines.answers import Facets, Found, Listed, Stats, Value
    from capsule.engines.changes import Changes
    from capsule.engines.marks import Behind, Mine, Place, Said
    from capsule.format.documents.head import Head
    from capsule.format.filters import Filter as Where

T = TypeVar("T")
Order = Literal["updated", "created", "title"]
#: Called with the bytes that were read so far, and all bytes, if there is much to read.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Filter:
    """The conditions that a conversation in a list meets, all of them. None: no condition.

    Attributes:
        tags: It has all these tags.
        title: Its title contains this text, in upper or lower case.
        mode, type: Its mode; its type.
        archived: Whether it is archived.
        pinned, locked: Whether it is pinned; whether it is locked.
        since: It changed at this time or later: a text as `moment` takes it (`2025-01-31`, `24h`). Empty: any time.
        summaries_of: It is a summary of this conversation (full id), which may have been deleted.
        agent: This agent takes part, or took part until it left: its id, or for `Store.list` its name.
        project: It is of the project in this folder: its own folder (`Head.folder`) is that one or lies in it, or an
            agent of the project takes part or took part. A path without links in it, of whatever machine.
        source: The program that it was imported from, by the name of its format; `here`: it was written here.
        ids: It is one of these (full ids).
        members: The agents of `project`, by their ids; `Store.list` finds them.
    """

    tags: tuple[str, ...] = ()
    title: str = ""
    mode: str | None = None
    type: str | None = None
    archived: bool | None = False
    pinned: bool | None = None
    locked: bool | None = None
    since: str = ""
    summaries_of: str | None = None
    agent: str | None = None
    project: str | None = None
    source: str | None = None
    ids: frozenset[str] | None = field(default=None, repr=False)
    members: frozenset[str] = field(default=frozenset(), repr=False)

    def of(self, heads: Iterable[Head]) -> list[Head]:
        """The heads that meet all conditions, in their order. A damaged file meets none but that it is not archived."""
        narrows = replace(self, archived=None, members=frozenset()) != Filter(archived=None) or self.archived
        tags, title, since = frozenset(self.tags), self.title.casefold(), moment(self.since) if self.since else ""
        is_there = cache(lambda folder: is_within(folder, str(self.project)))  # There are few folders.
        conditions: list[tuple[object, Callable[[Head], object]]] = [  # Few are given, and a list may be of 100,000.
            (self.archived is not None, lambda head: head.archived == self.archived),
            (narrows, lambda head: not head.damaged),
            (self.ids is not None, lambda head: head.id in (self.ids or ())),
            (self.mode is not None, lambda head: head.mode == self.mode),
            (self.type is not None, lambda head: head.type == self.type),
            (self.pinned is not None, lambda head: head.pinned == self.pinned),
            (self.locked is not None, lambda head: (head.lock is not None) == self.locked),
            (self.summaries_of, lambda head: head.is_summary and head.source_conversation_id == self.summaries_of),
            (self.source is not None, lambda head: (head.source or HERE) == self.source),
            (tags, lambda head: tags.issubset(head.tags)),
            (self.agent is not None, lambda head: any(member.id == self.agent for member in head.participants)),
            (
                self.project is not None,
                lambda head: is_there(head.folder) or any(member.id in self.members for member in head.participants),
            ),
            (title, lambda head: title in head.title.casefold()),
            (since, lambda head: sortable(head.updated_at) >= since),
        ]
        for is_given, fits in conditions:
            heads = filter(fits, heads) if is_given else heads
        return list(heads)


def is_within(folder: str, other: str) -> bool:
    """Whether a folder is another one, or lies in it."""
    other = other.rstrip("/\\")
    return bool(folder) and (folder == other or folder.startswith((f"{other}/", f"{other}\\")))


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of conversations, or a page of it.

    Attributes:
        filter: Which conversations; None: all.
        order: Pinned ones first and damaged files last, else by this; `latest`: the sound ones, by their last change
            alone. None: all of them in no order, without pages and without the numbers of their messages.
        forks_of: Only those that say they were split off from this one, damaged ones too.
        limit: The largest number of conversations in the page; None: no limit.
        cursor: Where the page begins, as the page before says; empty: the first one.
    """

    filter: Filter | None = None
    order: Order | Literal["latest"] | None = None
    forks_of: str | None = None
    limit: int | None = None
    cursor: str = ""

    @property
    def words(self) -> str:
        """What was asked for, as text: a cursor fits only the same list."""
        return f"list {self.filter} {self.order}"

    def of(self, heads: Iterable[Head]) -> list[Head]:
        """Those of these conversations that fit, in their order."""
        return list(heads) if self.filter is None else self.filter.of(heads)


def key_of(order: Order) -> Callable[[Head], tuple[Any, ...]]:
    """What heads are sorted by in an order, each by another value; the greatest comes first, but of titles."""
    if order == "title":
        return lambda head: (bool(head.damaged), not head.pinned, head.title.casefold(), head.id)
    time = attrgetter("created_at" if order == "created" else "updated_at")
    return lambda head: (not head.damaged, head.pinned, sortable(time(head)), head.id)


@dataclass(frozen=True, slots=True)
class Search:
    """A search; `Store.search` says what each of these means.

    Attributes:
        now_ms: The time that ages are counted from, in milliseconds since 1970, unless the cursor says another.
    """

    query: str
    roles: tuple[str, ...] = ()
    senders: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    mode: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    title_only: bool = False
    branch: str = "all"
    in_tools: bool = False
    profile: str = "balanced"
    where: Where | None = None
    limit: int = 20
    cursor: str | None = None
    now_ms: int = field(default=0, compare=False)

    @property
    def words(self) -> str:
        """What was asked for, as text: a cursor fits only the same search.

        It has no times: `2h ago` is another time for the next page.
        """
        asked = (self.query, self.roles, self.senders, self.ids, self.tags, self.mode, self.title_only)
        return repr((*asked, self.branch, self.in_tools, self.profile, self.where))


class Questions(Protocol):
    """The questions of one asker about the conversations of an engine.

    A conversation that the asker may not read is in no answer, and of one that it reads from a time on, no message
    before that time is. Each question is answered from what was acknowledged before it was asked; with `refresh`
    False, from what the last one knew.
    """

    def conversations(self, asked: Listing, progress: Progress | None = None) -> Listed:
        """A page of conversations.

        Raises:
            InvalidInput: The cursor belongs to another list, or the limit is less than one.
            StorageFailed, StoreBusy: The files can't be read.
        """

    def facets(self, asked: Filter, folders: Mapping[str, str], progress: Progress | None = None) -> Facets:
        """The counts of the conversations that a filter lets through, by what else they can be filtered by.

        Args:
            asked: The filter.
            folders: The folders of the projects of agents, by the agents' ids.
            progress: As in `conversations`.
        """

    def search(self, asked: Search, progress: Progress | None = None) -> Found:
        """The hits of a search, the best first. No score depends on what the asker may not read.

        Raises InvalidInput.
        """

    def messages(self, where: object, conversation: str | None = None) -> list[Place]:
        """The messages that a filter fits, of one conversation or of all sound ones, each in its order.

        Raises InvalidInput. Costs half a microsecond for each value that is compared, and a look-up for each message.
        """

    def values(self, path: str, conversation: str) -> list[Value]:
        """The numbers and texts that the messages of a conversation have at a path, the last one first."""

    def stats(self, progress: Progress | None = None) -> Stats:
        """What is in the store, counted. Costs a pass over the messages."""

    def changes(self, since: str | None, limit: int, *, refresh: bool = True) -> Changes:
        """What changed since a cursor, oldest first; and the cursor behind that.

        Of a conversation that is gone, the trash says whether the asker could read it. Where it reads a part, the
        messages that were removed are not named.

        Args:
            since: A cursor, of the asker or of the owner; None: no changes, but the cursor of now.
            limit: The largest number of changes.
            refresh: Whether to look for new changes before.

        Raises:
            InvalidInput: `since` is no cursor.
        """

    def advance(self, cursor: str, messages: int = 0) -> str:
        """The cursor behind so many messages of the change that comes next from a cursor of changes.

        Raises:
            InvalidInput: `cursor` is no cursor.
        """

    def mine(self, agent: str, known: Mapping[str, Mine] = {}, *, refresh: bool = True) -> list[Mine]:
        """The sound conversations that an agent takes part in, the latest first.

        Args:
            agent: The agent.
            known: Those of an earlier answer, by id. What did not change since is taken from there, and not read.
            refresh: Whether to bring the index up to date first.
        """

    def behind(self, wanted: Behind, conversation: str | None = None, *, refresh: bool = True) -> list[Place]:
        """The wanted messages of a conversation, or of all (None), the latest first. Costs a look-up for each."""

    def said(self, conversation: str, wanted: Behind, *, refresh: bool = True) -> Said:
        """What was said in a conversation, as far as it is wanted; nothing in one that is not there.

        Costs a tenth of a microsecond for each message there, more if only mentions or a part are wanted.
        """

    def marks(self, conversation: str, places: Iterable[int], *, refresh: bool = True) -> dict[int, tuple[str, str]]:
        """The id of the message at each of these places, and the digest of the ids up to it; see `first_unread`."""

    def find(self, message: str, conversation: str | None = None) -> tuple[str, int] | None:
        """The conversation and the place of a message; None: it is not there, or not in this conversation.

        If several conversations have it, it is the one that the engine met last. Costs reading back to it.
        """

    def together(self, ask: Callable[[], T]) -> T:
        """Ask several questions, with `refresh` False, of one state of the documents.

        Args:
            ask: Asks them, and gives what they come to. It may run twice, and holds up the questions of other threads.
        """

    def recalled(self, conversation: str) -> tuple[dict[str, Any], frozenset[str]] | None:
        """A conversation as it was when it was sound last, and the ids of its messages that had more fields.

        It is without its context, unless that was empty, and what else of its head no list has. None: it was never
        sound, or it is not the owner who asks. Costs reading the messages.
        """

    def refresh(
        self, ids: Iterable[str] | None = None, progress: Progress | None = None, *, anew: bool = False
    ) -> None:
        """Look for what is new, in these conversations or in all (None), so that later questions need not.

        Args:
            ids: The conversations.
            progress: Called with what is done and what there is to do.
            anew: Whether to forget all answers first, and make them again out of the documents.

        Raises:
            StoreBusy: Another process keeps the answers from being prepared.
            Refused, StorageFailed: The system did not let the documents be read.
        """
