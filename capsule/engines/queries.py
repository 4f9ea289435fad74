"""What the Store asks an engine about all conversations, and what the engine answers.

`Queries` is the interface. `Filter`, `ListRequest` and `SearchRequest` are the arguments. The other
classes are the results: lists, hits and counts.

What must stay true: arguments and results are plain data, so an engine can answer in its own query
language. Nothing here belongs to one kind of engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from capsule.engines.changes import Changes
from capsule.format.documents.head import WRITTEN_HERE, json_name
from capsule.format.references import parse_time
from capsule.timestamps import sortable

if TYPE_CHECKING:
    from capsule.engines.read_marks import (
        MessagePosition,
        Participation,
        UnreadFilter,
        UnreadSummary,
    )
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
        since: It changed at this time or later: a text as `parse_time` takes it (`2025-01-31`, `24h`).
            Empty: any time.
        summaries_of: It is a summary of this conversation (full id), which may have been deleted.
        agent: This agent takes part, or took part until it left: its id, or for `Store.list` its
            name.
        project: It is of the project in this folder: its own folder (`Head.folder`) is that one or
            lies in it, or an agent of the project takes part or took part. A path without links in
            it, of whatever machine.
        source: The program that it was imported from, by the name of its format; `here`: it was
            written here.
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
        """The heads that meet all conditions, in their order. A damaged file meets none but that it
        is not archived.
        """
        narrows = (
            replace(self, archived=None, members=frozenset()) != Filter(archived=None)
            or self.archived
        )
        tags, title, since = (
            frozenset(self.tags),
            self.title.casefold(),
            parse_time(self.since) if self.since else "",
        )
        is_there = cache(
            lambda folder: is_within(folder, str(self.project))
        )  # There are few folders.
        conditions: list[
            tuple[object, Callable[[Head], object]]
        ] = [  # Few are given, and a list may be of 100,000.
            (self.archived is not None, lambda head: head.archived == self.archived),
            (narrows, lambda head: not head.damaged),
            (self.ids is not None, lambda head: head.id in (self.ids or ())),
            (self.mode is not None, lambda head: head.mode == self.mode),
            (self.type is not None, lambda head: head.type == self.type),
            (self.pinned is not None, lambda head: head.pinned == self.pinned),
            (self.locked is not None, lambda head: (head.lock is not None) == self.locked),
            (
                self.summaries_of,
                lambda head: head.is_summary and head.source_conversation_id == self.summaries_of,
            ),
            (self.source is not None, lambda head: (head.source or WRITTEN_HERE) == self.source),
            (tags, lambda head: tags.issubset(head.tags)),
            (
                self.agent is not None,
                lambda head: any(member.id == self.agent for member in head.participants),
            ),
            (
                self.project is not None,
                lambda head: (
                    is_there(head.folder)
                    or any(member.id in self.members for member in head.participants)
                ),
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
class ListRequest:
    """A list of conversations, or a page of it.

    Attributes:
        filter: Which conversations; None: all.
        order: Pinned ones first and damaged files last, else by this; `latest`: the sound ones, by
            their last change alone. None: all of them in no order, without pages and without the
            numbers of their messages.
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
    """What heads are sorted by in an order, each by another value; the greatest comes first, but of
    titles.
    """
    if order == "title":
        return lambda head: (bool(head.damaged), not head.pinned, head.title.casefold(), head.id)
    time = attrgetter("created_at" if order == "created" else "updated_at")
    return lambda head: (not head.damaged, head.pinned, sortable(time(head)), head.id)


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A search; `Store.search` says what each of these means.

    Attributes:
        now_ms: The time that ages are counted from, in milliseconds since 1970, unless the cursor
            says another.
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
        asked = (
            self.query,
            self.roles,
            self.senders,
            self.ids,
            self.tags,
            self.mode,
            self.title_only,
        )
        return repr((*asked, self.branch, self.in_tools, self.profile, self.where))


class Queries(Protocol):
    """The questions of one asker about the conversations of an engine.

    A conversation that the asker may not read is in no answer, and of one that it reads from a time
    on, no message before that time is. Each question is answered from what was acknowledged before
    it was asked; with `refresh` False, from what the last one knew.
    """

    def conversations(self, asked: ListRequest, progress: Progress | None = None) -> Listed:
        """A page of conversations.

        Raises:
            InvalidInput: The cursor belongs to another list, or the limit is less than one.
            StorageFailed, StoreBusy: The files can't be read.
        """

    def facets(
        self, asked: Filter, folders: Mapping[str, str], progress: Progress | None = None
    ) -> Facets:
        """The counts of the conversations that a filter lets through, by what else they can be
        filtered by.

        Args:
            asked: The filter.
            folders: The folders of the projects of agents, by the agents' ids.
            progress: As in `conversations`.
        """

    def search(self, asked: SearchRequest, progress: Progress | None = None) -> Found:
        """The hits of a search, the best first. No score depends on what the asker may not read.

        Raises InvalidInput.
        """

    def messages(self, where: object, conversation: str | None = None) -> list[MessagePosition]:
        """The messages that a filter fits, of one conversation or of all sound ones, each in its
        order.

        Raises InvalidInput. Costs half a microsecond for each value that is compared, and a look-up
        for each message.
        """

    def values(self, path: str, conversation: str) -> list[FieldValue]:
        """The numbers and texts that the messages of a conversation have at a path, the last one
        first.
        """

    def stats(self, progress: Progress | None = None) -> Stats:
        """What is in the store, counted. Costs a pass over the messages."""

    def changes(self, since: str | None, limit: int, *, refresh: bool = True) -> Changes:
        """What changed since a cursor, oldest first; and the cursor behind that.

        Of a conversation that is gone, the trash says whether the asker could read it. Where it
        reads a part, the messages that were removed are not named.

        Args:
            since: A cursor, of the asker or of the owner; None: no changes, but the cursor of now.
            limit: The largest number of changes.
            refresh: Whether to look for new changes before.

        Raises:
            InvalidInput: `since` is not a cursor.
        """

    def advance(self, cursor: str, messages: int = 0) -> str:
        """The cursor behind so many messages of the change that comes next from a cursor of
        changes.

        Raises:
            InvalidInput: `cursor` is not a cursor.
        """

    def participations(
        self, agent: str, known: Mapping[str, Participation] = {}, *, refresh: bool = True
    ) -> list[Participation]:
        """The sound conversations that an agent takes part in, the latest first.

        Args:
            agent: The agent.
            known: Those of an earlier answer, by id. What did not change since is taken from there,
                and not read.
            refresh: Whether to bring the index up to date first.
        """

    def unread_positions(
        self, wanted: UnreadFilter, conversation: str | None = None, *, refresh: bool = True
    ) -> list[MessagePosition]:
        """The wanted messages of a conversation, or of all (None), the latest first. Costs a
        look-up for each.
        """

    def summarize_unread(
        self, conversation: str, wanted: UnreadFilter, *, refresh: bool = True
    ) -> UnreadSummary:
        """What was said in a conversation, as far as it is wanted; nothing in one that is not
        there.

        Costs a tenth of a microsecond for each message there, more if only mentions or a part are
        wanted.
        """

    def ids_at(
        self, conversation: str, places: Iterable[int], *, refresh: bool = True
    ) -> dict[int, tuple[str, str]]:
        """The id of the message at each of these places, and the digest of the ids up to it; see
        `first_unread`.
        """

    def find(self, message: str, conversation: str | None = None) -> tuple[str, int] | None:
        """The conversation and the place of a message; None: it is not there, or not in this
        conversation.

        If several conversations have it, it is the one that the engine met last. Costs reading back
        to it.
        """

    def in_one_transaction(self, ask: Callable[[], T]) -> T:
        """Ask several questions, with `refresh` False, of one state of the documents.

        Args:
            ask: Asks them, and gives what they come to. It may run twice, and holds up the
                questions of other threads.
        """

    def last_valid_version(self, conversation: str) -> tuple[dict[str, Any], frozenset[str]] | None:
        """A conversation as it was when it was sound last, and the ids of its messages that had
        more fields.

        It is without its context, unless that was empty, and what else of its head no list has.
        None: it was never sound, or it is not the owner who asks. Costs reading the messages.
        """

    def refresh(
        self,
        ids: Iterable[str] | None = None,
        progress: Progress | None = None,
        *,
        anew: bool = False,
    ) -> None:
        """Look for what is new, in these conversations or in all (None), so that later questions
        need not.

        Args:
            ids: The conversations.
            progress: Called with what is done and what there is to do.
            anew: Whether to forget all answers first, and make them again out of the documents.

        Raises:
            StoreBusy: Another process keeps the answers from being prepared.
            Refused, StorageFailed: The system did not let the documents be read.
        """


#: Where something stands in a text: its first character, and the one behind its last.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of a text.

    Attributes:
        text: One line.
        marks: Where what was looked for stands in it: first character, and the one behind the last.
    """

    text: str
    marks: tuple[Span, ...] = ()

    def as_json(self) -> dict[str, object]:
        """What `--json` prints."""
        return {"text": self.text, "marks": [list(mark) for mark in self.marks]}


@dataclass(frozen=True, slots=True)
class Hit:
    """One message, or one conversation by its title or tags, that a search found.

    Attributes:
        id: The conversation.
        title: Its title.
        message: The message's id; None: the title or a tag was found.
        at: The message's place in the history, from 0.
        role, sender: The message's role, and the agent that wrote the message (its field `from`).
        time: When the message was written, as the format writes times; empty: that is not known.
            For a title: when the conversation last changed.
        where: What was found: `content`, `tools` (tool calls and reasoning) or `title` (tags too).
        snippet: The piece of text that was found.
        active: Whether the message is on the active branch.
        score: How well it fits, by the ranking profile. Compare scores within one search only.
    """

    id: str
    title: str
    message: str | None
    at: int | None
    role: str | None
    sender: str | None
    time: str
    where: str
    snippet: Snippet
    score: float
    active: bool = True

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        names = [field.name for field in fields(self)]
        named = {("from" if name == "sender" else name): getattr(self, name) for name in names}
        return named | {"snippet": self.snippet.as_json()}


@dataclass(frozen=True, slots=True)
class Found:
    """The hits of one search, or a page of them, best first.

    Attributes:
        cursor: The cursor of the next page of the same search; None: there is no next page.
        total: How many hits there are in all; None: too many to count.
        having, words: If nothing has all the words of the query: how many of them the hits have,
            and how many there are. Both 0: the hits have all words.
    """

    hits: list[Hit]
    cursor: str | None = None
    total: int | None = None
    having: int = 0
    words: int = 0

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        hits = [hit.as_json() for hit in self.hits]
        weaker = {"having": self.having, "words": self.words} if self.having else {}
        return {"hits": hits, "cursor": self.cursor, "total": self.total, **weaker}


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of conversations.

    Attributes:
        heads: The conversations.
        messages: How many messages each of them has, in all its branches, by id.
        models: The model that wrote in each of them last, by id, where one of its last 50 messages
            says it.
        total: How many conversations there are on all pages.
    """

    heads: list[Head]
    messages: dict[str, int]
    models: dict[str, str]
    total: int
    _cursor: Callable[[int], str | None] = field(repr=False)

    def cursor(self, shown: int | None = None) -> str | None:
        """What the next page begins with, when `shown` of the conversations were shown (None: all);
        None: no more.
        """
        return self._cursor(len(self.heads) if shown is None else shown)


@dataclass(frozen=True, slots=True)
class Facets:
    """How many of some conversations there are, by what they can be filtered by; the most frequent
    first.

    A conversation counts once for each of its tags, agents and projects. A damaged file is in none
    of these counts.

    Attributes:
        conversations: How many there are.
        tags, types, modes: By tag, by type, by mode.
        agents: By the id of an agent that takes part, or took part.
        projects: By the folder of a project, with what lies in it; see `Filter.project`.
        sources: By the program that they were imported from; `here`: written here.
    """

    conversations: int
    tags: dict[str, int]
    types: dict[str, int]
    modes: dict[str, int]
    agents: dict[str, int]
    projects: dict[str, int]
    sources: dict[str, int]

    @classmethod
    def of(cls, heads: Iterable[Head], folders: Mapping[str, str]) -> Facets:
        """The counts of these conversations; `folders` are those of the projects of agents, by the
        agents' ids.
        """
        sound = [head for head in heads if not head.damaged]
        with_agents = [head for head in sound if head.participants]
        alone = Counter(head.folder for head in sound if not head.participants)
        places = Counter({frozenset((folder,)): count for folder, count in alone.items()})
        places.update(
            frozenset((head.folder, *(folders.get(member.id, "") for member in head.participants)))
            for head in with_agents
        )
        there = {folder for theirs in places for folder in theirs if folder}
        projects = Counter[str]()
        for theirs, count in places.items():
            projects.update(
                {above: count for folder in theirs for above in there.intersection(_above(folder))}
            )
        counts: tuple[Counter[str], ...] = (
            Counter(chain.from_iterable(map(set, map(attrgetter("tags"), sound)))),
            Counter(map(attrgetter("type"), sound)),
            Counter(map(attrgetter("mode"), sound)),
            Counter(member.id for head in with_agents for member in head.participants),
            projects,
            Counter(head.source or WRITTEN_HERE for head in sound),
        )
        return cls(
            len(sound),
            *(dict(sorted(each.items(), key=lambda item: (-item[1], item[0]))) for each in counts),
        )


def _above(folder: str) -> Iterator[str]:
    """A folder, and those in which it lies."""
    yield folder
    yield from (folder[:at] or folder[:1] for at, char in enumerate(folder) if char in "/\\")


@dataclass(slots=True)
class Tally:
    """Messages, the words in them, and the tokens that they take, estimated; of tool calls and
    reasoning too.
    """

    messages: int = 0
    words: int = 0
    tokens: int = 0

    def add(self, messages: int, words: int, tokens: int) -> None:
        """Count more."""
        self.messages += messages
        self.words += words
        self.tokens += tokens


@dataclass(frozen=True, slots=True)
class LargeConversation:
    """One of the largest conversations."""

    id: str
    title: str
    messages: int
    words: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Stats:
    """What is in a store.

    Attributes:
        conversations: How many there are, with the damaged ones.
        damaged: How many of them have a file that can't be read. No number below counts these.
        archived: How many are archived.
        messages, words: How many there are on all branches. A character of a script without spaces
            counts as a word.
        tokens: What the messages take in a model, estimated as `capsule context` does
            (docs/context.md).
        bytes: The size of the files. Of one that an agent reads in part: of the texts that it
            reads.
        by_role: By role, the most frequent first.
        by_month: By month (UTC, like 2025-01), from the first month with a message to the last; `no
            time` before them.
        by_day: By day (UTC, like 2025-01-31), in the same way.
        by_sender: By the agent that wrote them, the most frequent first; most messages name none,
            and are in none.
        by_source: By the program that their conversation was imported from (`here`: none), the most
            frequent first.
        largest: The conversations with the most words, ten at most.
    """

    conversations: int
    damaged: int
    archived: int
    messages: int
    words: int
    tokens: int
    bytes: int
    by_role: dict[str, Tally]
    by_month: dict[str, Tally]
    by_day: dict[str, Tally]
    by_sender: dict[str, Tally]
    by_source: dict[str, Tally]
    largest: list[LargeConversation]

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {json_name(name): value for name, value in asdict(self).items()}


class FieldValue(NamedTuple):
    """A value that messages have: how many do, and when the last of them was written."""

    value: str | float
    messages: int
    last: str
